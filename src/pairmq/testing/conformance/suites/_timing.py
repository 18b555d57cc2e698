"""How long a call took, with what the machine itself was late taken off."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.testing.conformance._limits import limits

_TICK = 0.02


class Stopwatch:
    """Measures how long its block took, less the time in which this process did not get the processor.

    It counts in a thread, not in the event loop: a transport that blocks the loop is late itself, and not excused.
    """

    def __init__(self) -> None:
        self._lag = 0.0
        self._stall = limits().stall  # the thread does not see the test's
        self._began = self._ended = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="conformance stopwatch", daemon=True)

    @property
    def elapsed(self) -> float:
        """Seconds, the machine's own lateness taken off."""
        return max(0.0, self._ended - self._began - self._lag)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = time.monotonic()
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            asked = time.monotonic()
            over = self._over.wait(_TICK)
            if over:
                return
            late = time.monotonic() - asked - _TICK
            if late > self._stall:
                self._lag += late


class LockClock:
    """Returns whether a lost lock may have expired because this machine stalled for so long.

    Args:
        lock: seconds that it lasts; brokers keep to them within a fifth.
    """

    def __init__(self, lock: float) -> None:
        self._shortest = 0.8 * lock
        self._asked = self._since = time.monotonic()

    def ask(self) -> None:
        """The lock is asked for, or its renewal, from now on."""
        self._asked = time.monotonic()

    def begin(self) -> None:
        """It was given, or renewed, since it was asked for."""
        self._since = self._asked

    @property
    def is_over(self) -> bool:
        """Whether its time may be over."""
        return time.monotonic() - self._since >= self._shortest

    def excuses(self, error: TransportError) -> bool:
        """Whether the error says that a lock is lost whose time may be over: then nothing is proved."""
        return error.reason is FailureReason.LOCK_LOST and self.is_over


async def cut_off(
    call: Awaitable[object], limit: float = 0.3, *, why: str = "no broker can have answered"
) -> TimeoutError | None:
    """Put a time limit on a call without a response, and check that it returns.

    Args:
        call: awaits a broker that is silent.
        limit: seconds.
        why: it can't have been done; for the error.

    Returns:
        The time-out; None where the call found out before its limit that the broker is silent, and failed.
    """
    told: TimeoutError | None = None
    with Stopwatch() as watch:
        try:
            async with asyncio.timeout(limit):
                answer = await call
        except TimeoutError as timeout:
            told = timeout
        except TransportError as error:
            # A lock may be bound to a connection that an earlier call was cut off from.
            assert error.kind is FailureKind.UNAVAILABLE or error.reason is FailureReason.LOCK_LOST, f"{error!r}"
        else:
            raise AssertionError(f"it returned {answer!r}, and {why}")
    assert watch.elapsed < limit + limits().slack, (
        f"the call returned {watch.elapsed:.2f} s after the call, whose time limit was {limit} s"
    )
    return told
