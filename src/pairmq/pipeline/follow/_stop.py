"""Asks a follower to end, from a signal's handler or from another thread."""

from __future__ import annotations

import queue
from types import TracebackType
from typing import Self


class Stop:
    """Whether a follower is to end after what it has in hand.

    The follower enters it once Spark has started and leaves it in the end, so that a kind of it may watch signals in
    between: Spark puts a handler of its own in place when it starts.
    """

    def __init__(self) -> None:
        self.asked = False
        # A handler may run in the midst of `wait`: of all that can be waited for only this may be used there.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self) -> None:
        """Ask it to end."""
        self.asked = True
        self._woken.put(None)

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as it is asked."""
        if self.asked or seconds <= 0:
            return
        try:
            self._woken.get(timeout=seconds)
        except queue.Empty:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to let go of."""
