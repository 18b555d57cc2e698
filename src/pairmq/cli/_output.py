"""What commands print: lines, tables, JSON, messages as JSON, and on a terminal how far they are."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pairmq.cli._signals import interrupts
from pairmq.cli._values import CommandFailed, OutputClosed, file_problem, grouped, printable, rate
from pairmq.model.property_json import plain

if TYPE_CHECKING:
    from pairmq.model import Delivery

# Nothing that is printed is ever read as markup: names, bodies and error texts come from elsewhere.
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}

OK, WARN, FAIL = "green", "yellow", "red"

_FILE_WIDTH = 160  # columns of tables where nothing sets a width
_UNKNOWN_WIDTH = 80


class _Nowhere(io.TextIOWrapper):
    """Replaces a stream that the program was started without."""


class _StdoutConsole(Console):
    """A console whose failures are the command's: rich would end the process with status 1, or raise an `OSError`."""

    def _check_buffer(self) -> None:
        with stdout_written():
            super()._check_buffer()

    def on_broken_pipe(self) -> None:
        raise OutputClosed


class _StderrConsole(Console):
    """A console that has failed."""

    def _check_buffer(self) -> None:
        with contextlib.suppress(OSError):
            super()._check_buffer()

    def on_broken_pipe(self) -> None:
        raise OutputClosed


def stdout_console() -> Console:
    sized = sys.stdout.isatty() or _columns()
    return _StdoutConsole(width=_width() if sized else _FILE_WIDTH, **_PLAIN)


def stderr_console() -> Console:
    return _StderrConsole(stderr=True, width=_width(), **_PLAIN)


def _columns() -> int | None:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() else None


def _width() -> int | None:
    """A width to use whatever the terminal has: rich prints nothing at all into 0 columns, as some terminals have."""
    return _UNKNOWN_WIDTH if _columns() == 0 else None


def is_closed(stream: TextIO | None) -> bool:
    """Whether the program was started without this stream."""
    return stream is None or isinstance(stream, _Nowhere)


def open_closed_streams() -> None:
    """Open missing streams: the next file would get the descriptor, and what is meant for the stream."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, _Nowhere(os.fdopen(descriptor, "rb" if name == "stdin" else "wb", closefd=False)))


@contextlib.contextmanager
def stdout_written() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        silence_stdout()
        if not interrupts.hung_up:  # else its terminal was closed, which is not another failure
            raise CommandFailed(f"can't write {file_problem('standard output', error)}") from None


def silence_stdout() -> None:
    """Discard stdout's buffer, and the interpreter's flush at exit."""
    silence(sys.stdout)


def silence(stream: TextIO) -> None:
    """Discard what a stream still holds: the interpreter flushes it at exit, and ends with 120 where that fails."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str, *, style: str | None = None) -> None:
    stdout_console().print(Text(text, style=style or ""), soft_wrap=True)


def note(text: str, *, style: str | None = None) -> None:
    stderr_console().print(Text(text, style=style or ""), soft_wrap=True)


def mention(text: str) -> None:
    """Print a line on stderr from where nothing can be ended, as a signal's handler; nothing where stderr is closed."""
    with contextlib.suppress(OutputClosed):
        note(text)


def warn(text: str) -> None:
    note(f"warning: {printable(text)}", style=WARN)


def complain(text: str) -> None:
    """Print what ended the command on stderr, as one line."""
    note(f"error: {printable(text.strip())}", style=FAIL)


def put_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON document on stdout, a line unless indented."""
    with stdout_written():
        try:
            text = json.dumps(value, indent=indent, allow_nan=False)
        except ValueError:  # a journal's row that another program wrote
            text = json.dumps(_finite(value), indent=indent)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_NARROW = 60  # columns


def table(*columns: str | tuple[str, str]) -> Table:
    """An airy table; a column given as ``(title, "right")`` holds numbers, of which none is cut unnoticed."""
    narrow = stdout_console().width < _NARROW
    made = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 0 if narrow else 1)
    )
    for column in columns:
        if isinstance(column, str):
            made.add_column(column, overflow="fold")
        else:
            title = column[0].replace("-", "-\n") if narrow else column[0]
            made.add_column(title, justify="right", no_wrap=True, overflow="ellipsis")
    return made


def cells(values: Sequence[object], style: str | None = None) -> list[Text]:
    return [Text(printable(str(value)), style=style or "") for value in values]


SLOW = 1.0
"""Seconds after which a command says what it waits for."""

_EVERY = 0.1  # s between two drawings


@asynccontextmanager
async def noted_when_slow(text: str) -> AsyncIterator[None]:
    """Print what is waited for once it takes longer than people wait without a word."""
    timer = asyncio.get_running_loop().call_later(SLOW, mention, f"{text} …")
    try:
        yield
    finally:
        timer.cancel()


class Speed:
    """Things a second, smoothed over the last few seconds."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def update(self, now: float, count: int) -> float:
        """Note how many there are now; returns things a second."""
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[0][0] > 5:
            self._points.pop(0)
        began, first = self._points[0]
        return (count - first) / (now - began) if now > began else 0.0


class LiveLine:
    """A line that is drawn anew at the lower end of a terminal; nothing where stderr is not one, or none is wanted.

    What is written to stdout goes there: only where that is a terminal, too, it is drawn above by rich, on stderr.
    """

    def __init__(self, *, wanted: bool = True) -> None:
        console = stderr_console()
        shared = sys.stdout is not None and sys.stdout.isatty()
        self._live: Live | None = None
        if wanted and console.is_terminal:
            self._live = Live(console=console, transient=True, auto_refresh=False, redirect_stdout=shared)

    @property
    def shown(self) -> bool:
        return self._live is not None

    def draw(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()


class Progress(LiveLine):
    """The line on a terminal that shows how far a command is: ``sent 1 200 lines, 400/s``."""

    def __init__(self, verb: str, things: str, total: int | None = None) -> None:
        super().__init__()
        self._verb = verb
        self._things = things
        self._total = total
        self._speed = Speed()
        self._next = 0.0

    def update(self, count: int, *, position: int = 0, text: str = "") -> None:
        """Show progress; cheap to call for each message."""
        now = time.monotonic()
        if now < self._next or not self.shown:
            return
        self._next = now + _EVERY
        speed = self._speed.update(now, count)
        parts = [f"{self._verb} {grouped(count)} {self._things}", rate(speed)]
        if self._total:
            parts.append(f"{min(100.0, 100 * position / self._total):.0f} %")
        if text:
            parts.append(text)
        self.draw(", ".join(parts))


def delivery_record(delivery: Delivery) -> dict[str, Any]:
    """A delivery as a JSON object: the body in base64, without unset fields."""
    message = delivery.message
    record: dict[str, Any] = {
        "message_id": message.message_id,
        **{entry.name: getattr(message, entry.name) for entry in fields(message)},
        "body": base64.b64encode(message.body).decode("ascii"),
        "scheduled_enqueue_at": _instant(message.scheduled_enqueue_at),
        "application_properties": {k: plain(v) for k, v in message.application_properties.items()} or None,
        "delivery_count": delivery.delivery_count,
        "sequence_number": delivery.sequence_number or None,
        "enqueued_at": _instant(delivery.enqueued_at),
        "dead_letter_reason": delivery.dead_letter_reason,
        "dead_letter_description": delivery.dead_letter_description,
    }
    return {key: value for key, value in record.items() if value is not None}


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
