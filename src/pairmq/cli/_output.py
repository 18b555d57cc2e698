"""Where commands write: results on stdout, everything for people's eyes on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pairmq.cli._errors import CommandFailed, OutputClosed, file_problem, printable

# Nothing that is printed is ever read as markup: names, bodies and error texts come from elsewhere.
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}

OK, WARN, FAIL = "green", "yellow", "red"

_FILE_WIDTH = 160  # columns of tables where nothing sets a width


class _Nowhere(io.TextIOWrapper):
    """Stands for a stream that the program was started without."""


class _StdoutConsole(Console):
    """A console whose failures are the command's: rich would end the process with status 1, or raise an `OSError`."""

    def _check_buffer(self) -> None:
        with stdout_written():
            super()._check_buffer()

    def on_broken_pipe(self) -> None:
        raise OutputClosed


class _StderrConsole(Console):
    """A console that nothing more can be told to when it fails."""

    def _check_buffer(self) -> None:
        with contextlib.suppress(OSError):
            super()._check_buffer()

    def on_broken_pipe(self) -> None:
        raise OutputClosed


def stdout_console() -> Console:
    """A console on stdout."""
    columns = os.environ.get("COLUMNS", "")
    sized = sys.stdout.isatty() or (columns.isdecimal() and int(columns) > 0)
    return _StdoutConsole(width=None if sized else _FILE_WIDTH, **_PLAIN)


def stderr_console() -> Console:
    """A console on stderr."""
    return _StderrConsole(stderr=True, **_PLAIN)


def is_closed(stream: TextIO | None) -> bool:
    """Whether the program was started without this stream."""
    return stream is None or isinstance(stream, _Nowhere)


def open_closed_streams() -> None:
    """Put the null device where the program was started without a stream.

    The next file to be opened would get its descriptor otherwise, and what is meant for the stream.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, _Nowhere(os.fdopen(descriptor, "rb" if name == "stdin" else "wb", closefd=False)))


@contextlib.contextmanager
def stdout_written() -> Iterator[None]:
    """Around what writes on stdout.

    Raises:
        OutputClosed: nobody reads it any more.
        CommandFailed: it takes no more, as on a full disk.
    """
    try:
        yield
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        silence_stdout()
        raise CommandFailed(f"can't write {file_problem('standard output', error)}") from None


def silence_stdout() -> None:
    """Let what stdout still holds, and the interpreter's own flush at exit, go nowhere."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass


def say(text: str, *, style: str | None = None) -> None:
    """Print a line on stdout."""
    stdout_console().print(Text(text, style=style or ""), soft_wrap=True)


def note(text: str, *, style: str | None = None) -> None:
    """Print a line on stderr."""
    stderr_console().print(Text(text, style=style or ""), soft_wrap=True)


def mention(text: str) -> None:
    """Print a line on stderr from where nothing can be ended, as a signal's handler; nothing where nobody reads it."""
    with contextlib.suppress(OutputClosed):
        note(text)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    note(f"warning: {printable(text)}", style=WARN)


def complain(text: str) -> None:
    """Print what ended the command on stderr, as one line."""
    note(f"error: {printable(text.strip())}", style=FAIL)


def put_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON document on stdout, a line unless indented."""
    with stdout_written():
        sys.stdout.write(json.dumps(value, indent=indent) + "\n")
        sys.stdout.flush()


def table(*columns: str | tuple[str, str]) -> Table:
    """An airy table; a column given as ``(title, "right")`` holds numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        title, side = (column, "left") if isinstance(column, str) else column
        made.add_column(title, justify="right" if side == "right" else "left", no_wrap=side == "right", overflow="fold")
    return made


def cells(values: Sequence[object], style: str | None = None) -> list[Text]:
    """A row's cells, safe to print."""
    return [Text(printable(str(value)), style=style or "") for value in values]
