"""What all entities of one broker share: the clock, the timers, the waiters, the journal, the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from servicebus_local.broker._journal import Journal


class Timed(Protocol):
    """Something that has to do work at an instant."""

    armed_at: float
    """When the hub will call it; infinity for never. The hub's own field."""

    def next_deadline(self) -> float:
        """When work is next due; infinity for never."""
        ...

    def run_due(self, now: float) -> None:
        """Does what is due."""
        ...


class Hub:
    """See the module."""

    __slots__ = ("_order", "_timers", "_notifying", "_woken", "clock", "journal", "operations")  # noqa: RUF023

    def __init__(self, clock: Callable[[], float], journal: Journal) -> None:
        self.clock = clock
        self.journal = journal
        self.operations: Counter[str] = Counter()
        self._timers: list[tuple[float, int, Timed]] = []
        self._order = count()
        self._woken: dict[Callable[[], None], None] = {}
        self._notifying = False

    def begin(self) -> float:
        """Do what is due, as every operation does first; returns the operation's instant in Unix seconds."""
        now = self.clock()
        timers = self._timers
        while timers and timers[0][0] <= now:
            at, _, timed = heappop(timers)
            if at != timed.armed_at:
                continue  # It was armed for an earlier instant since.
            timed.armed_at = float("inf")
            timed.run_due(now)
            self.arm(timed, timed.next_deadline())
        return now

    def arm(self, timed: Timed, at: float) -> None:
        """Sees to it that a thing is called at an instant or before."""
        if at < timed.armed_at:
            timed.armed_at = at
            heappush(self._timers, (at, next(self._order), timed))

    def wake(self, call_waiters: Callable[[], None]) -> None:
        """Remembers that the waiters of a thing are to be called."""
        self._woken[call_waiters] = None

    def notify(self) -> None:
        """Calls the waiters of everything that was woken, as most operations do last."""
        if self._notifying or not self._woken:
            return  # The call further out goes on with what was woken meanwhile.
        self._notifying = True
        try:
            while self._woken:
                call_waiters = next(iter(self._woken))
                del self._woken[call_waiters]
                call_waiters()
        finally:
            self._notifying = False

    def next_deadline(self) -> float | None:
        """When `begin` has something to do, unix seconds; `None` for never."""
        if self._woken:
            return self.clock()
        timers = self._timers
        while timers and timers[0][0] != timers[0][2].armed_at:
            heappop(timers)
        return timers[0][0] if timers else None
