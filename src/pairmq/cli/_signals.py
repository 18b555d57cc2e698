"""Runs a command's coroutine, and ends it cleanly on Ctrl-C, SIGTERM and a closed terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any, Self, TypeVar

from pairmq.cli._values import OutputClosed

T = TypeVar("T")

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a command to end."""

HANGUP = getattr(signal, "SIGHUP", None)
"""Of one terminal that is closed the kernel sends one, and the shell another: a second one ends nothing."""

_SHOW_CURSOR = "\x1b[?25h"


class Stop:
    """Whether the user or the system has asked the command to end."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._event = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        return self.signal is not None

    @property
    def exit_status(self) -> int:
        """130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP, as shells expect."""
        return 128 + (self.signal or 0)

    @property
    def name(self) -> str:
        return "" if self.signal is None else signal.Signals(self.signal).name

    def request(self, number: int) -> None:
        self.signal = number
        self._event.set()
        for listener in self._listeners:
            listener()

    def on_request(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal, at most ``seconds``; returns whether one came."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self.asked

    async def or_result(self, operation: Awaitable[T]) -> T | None:
        """Await an operation, or cancel it when a signal comes and return None."""
        task = asyncio.ensure_future(operation)
        stopped = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for one in (task, stopped):
                one.cancel()
            await asyncio.wait((task, stopped))
            if not task.cancelled():
                task.exception()  # seen: a failure while being cancelled is of no interest any more


class Interrupts:
    """Lets SIGTERM and SIGHUP do what Ctrl-C does, which asyncio and Spark handle, where no event loop runs."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that was one of these; None if it was Ctrl-C itself."""
        self.hung_up = False
        """The terminal was closed: what is written there fails."""
        self._process = 0
        self._ours: list[int] = []

    @property
    def exit_status(self) -> int:
        return 128 + (self.number or signal.SIGINT)

    def __enter__(self) -> Self:
        self.number, self.hung_up, self._process, self._ours = None, False, os.getpid(), []
        for number in ENDING:
            # Only the main thread may handle signals. What is ignored, as nohup wants it, stays so.
            if number != signal.SIGINT and signal.getsignal(number) is signal.SIG_DFL:
                with contextlib.suppress(ValueError):
                    signal.signal(number, self._on_signal)
                    self._ours.append(number)
        return self

    def __exit__(self, *error: object) -> None:
        for number in self._ours:
            signal.signal(number, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork's, which ends as any process does
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if number == HANGUP:
            if self.hung_up:
                return
            self.hung_up = True
        self.number = number
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)


interrupts = Interrupts()
"""Those of this process."""


def service_interrupted() -> int:
    """The exit status of an interrupted command that runs until a signal: 0 after SIGTERM, as service managers want."""
    return 0 if interrupts.number == signal.SIGTERM else interrupts.exit_status


def run_async(main: Callable[[Stop], Coroutine[Any, Any, int]], *, graceful: bool = False) -> int:
    """Run a command's coroutine in a fresh event loop; 129, 130 or 143 for one that a signal cancelled.

    A graceful one watches its `Stop` itself; otherwise the first signal cancels it. A second signal ends the process at
    once.
    """

    async def supervised() -> int:
        stop = Stop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # we are in one

        def on_signal(number: int) -> None:
            if number == HANGUP:
                interrupts.hung_up = True
            if stop.asked:
                if number == HANGUP:
                    return
                _end_at_once(number)
            stop.request(number)
            if not graceful:
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in ENDING:
            if number == HANGUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # as nohup wants it
            # Only the main thread may handle signals; elsewhere (in tests) there are none.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, on_signal, number)
        try:
            return await main(stop)
        except asyncio.CancelledError:
            if not stop.asked:
                raise
            return stop.exit_status

    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        return asyncio.run(supervised())
    except BrokenPipeError:
        raise OutputClosed from None
    finally:
        # The loop leaves the system's default behind.
        for number, handler in before.items():
            with contextlib.suppress(ValueError, TypeError):  # not the main thread; a handler that is not Python's
                signal.signal(number, handler)


def _end_at_once(number: int) -> None:
    # Past what draws the progress line, which replaces stderr and would draw it once more below the line end.
    stream = sys.__stderr__
    with contextlib.suppress(OSError, ValueError):
        if stream is not None and stream.isatty():
            os.write(stream.fileno(), f"\n{_SHOW_CURSOR}".encode())
    os._exit(128 + number)
