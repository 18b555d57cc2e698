"""One line that tells how far a command is, on a terminal; nothing where nobody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.text import Text

from pairmq.cli._output import mention, stderr_console
from pairmq.cli._values import grouped, rate

SLOW = 1.0
"""Seconds after which a command says what it waits for."""

_EVERY = 0.1  # s between two drawings


@asynccontextmanager
async def told_when_slow(text: str) -> AsyncIterator[None]:
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


class Progress:
    """The line.

    Args:
        verb: what was done to things: ``sent``.
        things: what is counted: ``lines``.
        total: size of the whole input, None when unknown.
    """

    def __init__(self, verb: str, things: str, total: int | None = None) -> None:
        self._verb = verb
        self._things = things
        self._total = total
        self._speed = Speed()
        self._next = 0.0
        console = stderr_console()
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def update(self, count: int, *, position: int = 0, text: str = "") -> None:
        """Tell how far it is; cheap to call for each message."""
        if self._live is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY
        speed = self._speed.update(now, count)
        parts = [f"{self._verb} {grouped(count)} {self._things}", rate(speed)]
        if self._total:
            parts.append(f"{min(100.0, 100 * position / self._total):.0f} %")
        if text:
            parts.append(text)
        self._live.update(Text(", ".join(parts), no_wrap=True, overflow="ellipsis"), refresh=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
