"""The command line: ``pairmq --help``."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import typer

__all__ = ["main"]


def main(application: typer.Typer | None = None, *, name: str = "pairmq") -> None:
    """Run the command line, or a distribution's subcommand with PairMQ's errors and exit statuses, and exit."""
    if application is None and sys.argv[1:] == ["--version"] and _version_is_written():
        raise SystemExit(0)
    # During imports there is nothing to shut down, nor after the command: there Ctrl-C ends the process as it ends any
    # other, without a traceback.
    _ctrl_c(signal.default_int_handler, signal.SIG_DFL)
    try:
        with _no_garbage():
            from pairmq.cli._app import app, run
    except ModuleNotFoundError as error:
        # Both come with an extra, so that the library alone needs neither.
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write("error: the command line needs typer and rich: pip install 'pairmq[cli]'\n")
        raise SystemExit(1) from None
    _ctrl_c(signal.SIG_DFL, signal.default_int_handler)
    status = run(application=application or app, name=name)
    _ctrl_c(signal.default_int_handler, signal.SIG_DFL)
    raise SystemExit(status)


def _version_is_written() -> bool:
    """Write the version without the parser, whose import takes ten times as long; its errors are left to the parser.

    Past the stream, which would keep what it can't write, and fail again when it is closed.
    """
    from pairmq._version import version

    text = f"pairmq {version()}\n"
    try:
        os.write(sys.stdout.fileno(), text.encode())
    except io.UnsupportedOperation:  # a stream in memory, as of a program that calls this one
        sys.stdout.write(text)
    except (AttributeError, OSError, ValueError):  # not OSError if the program was started without stdout
        return False
    return True


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Import without garbage collections: nothing of it is garbage, and later ones need not look at it again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _ctrl_c(before: object, handler: Any) -> None:
    """Change what Ctrl-C does; not where it is ignored, nor outside the main thread, which no signal reaches."""
    if signal.getsignal(signal.SIGINT) is before:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, handler)
