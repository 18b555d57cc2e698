"""The application: its commands, and the one place where errors become exit statuses."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import signal
import sys
import traceback
from typing import Annotated, Any, Protocol, runtime_checkable

import typer
from typer import Option
from typer.core import TyperCommand
from typer.main import get_command

from pairmq._version import version
from pairmq.cli._common import examples
from pairmq.cli._extensions import Commands, show_no_values
from pairmq.cli._output import complain, open_closed_streams, say, silence, silence_stdout, stdout_written, warn
from pairmq.cli._signals import interrupts
from pairmq.cli._values import BadUsage, CommandFailed, OutputClosed, file_problem, without_secrets
from pairmq.model import ConfigurationError, PairMQError

_BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="pairmq",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("pairmq demo", "pairmq COMMAND --help"),
)


@runtime_checkable
class _UsageFault(Protocol):
    """What the parser raises for a bad command line, whichever package it comes from."""

    exit_code: int

    def format_message(self) -> str: ...


class _Warnings(logging.Handler):
    """Shows, without -v, PairMQ's warnings that are not events: commands report events themselves."""

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "pairmq_event"):
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f": {type(error).__name__}: {error} (run 'pairmq -v …' for the traceback)"
        # stderr was closed by its reader; the thread that logs has no part in that.
        with contextlib.suppress(OutputClosed):
            warn(without_secrets(text))


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"pairmq {version()}")
        raise typer.Exit


@app.callback()
def pairmq(
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    verbose: Annotated[
        int,
        Option(
            "--verbose", "-v", count=True, show_default=False, help="Log events to stderr; twice: also each message."
        ),
    ] = 0,
) -> None:
    """Messages that survive the loss of their broker: failover between a primary and a secondary of any product."""
    handler: logging.Handler = logging.StreamHandler() if verbose else _Warnings(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("pairmq")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING if not verbose else logging.INFO if verbose == 1 else logging.DEBUG)


def run(arguments: list[str] | None = None, *, application: typer.Typer = app, name: str = "pairmq") -> int:
    """Run one command line, by default the process's; 0 when it did what it was asked, 1 when not, 2 if it can't."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets its escape, not a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with interrupts:
            return _flushed(_run(arguments, application, name))
    except (BrokenPipeError, OutputClosed):
        silence_stdout()
        return _BROKEN_PIPE
    finally:
        if interrupts.hung_up:
            silence(sys.stderr)


def _usage_of(error: _UsageFault, name: str) -> str:
    context = getattr(error, "ctx", None)
    return f"{name if context is None else context.command_path} --help"


def _full_place(error: OSError) -> str | None:
    """The name of the closed output; None if unknown. Silences stdout if it is that one."""
    if isinstance(error.filename, str):
        return error.filename
    if any(frame.f_code is TyperCommand.invoke.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
        return None  # commands say by themselves when it is stdout
    # The parser writes its help by itself.
    silence_stdout()
    return "standard output"


def _flushed(status: int) -> int:
    """Write what stdout still holds; the exit status, which is 1 where that fails."""
    try:
        with stdout_written():
            sys.stdout.flush()
    except CommandFailed as error:
        complain(str(error))
        return status or 1
    return status


@functools.cache
def _command_of(application: typer.Typer, name: str) -> Any:
    """The parser of an application, kept for programs that run several command lines: it is slow to make."""
    command: Any = get_command(application)
    show_no_values(command, command.context_class(command, info_name=name, **command.context_settings))
    return command


def _run(arguments: list[str] | None, application: typer.Typer, name: str) -> int:
    try:
        command = _command_of(application, name)
        status: object = command.main(args=arguments, prog_name=name, standalone_mode=False)
        if status == 128 + signal.SIGINT and interrupts.number is not None:  # the parser takes all for Ctrl-C
            return interrupts.exit_status
        return status if isinstance(status, int) else 0
    except (BadUsage, ConfigurationError) as error:
        complain(without_secrets(str(error)))
        return 2
    except PairMQError as error:
        complain(str(error))
        return 1
    except (BrokenPipeError, OutputClosed):
        raise
    except SystemExit as error:
        # Both the parser and rich, which prints its help, make exit status 1 of a broken pipe.
        if isinstance(error.__context__, BrokenPipeError):
            raise OutputClosed from None
        raise
    except (KeyboardInterrupt, typer.Abort):
        return interrupts.exit_status
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            full = _full_place(error)
            if full is not None:
                complain(f"can't write {file_problem(full, error)}")
                return 1
        if isinstance(error, _UsageFault):
            message = error.format_message().replace(": Value error, ", ": ")  # the parser's parser says so
            if message:  # none where the help was printed instead
                complain(without_secrets(f"{message.rstrip('.')} (see '{_usage_of(error, name)}')"))
            return error.exit_code
        if logging.getLogger("pairmq").isEnabledFor(logging.INFO):
            raise
        text = without_secrets(f"{type(error).__name__}: {error}")
        complain(f"unexpected {text} (run 'pairmq -v …' for the traceback)")
        return 1
