"""Counts what a pair asks of its two brokers, so that the cost can be counted instead of guessed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pairmq.model.events import OperationsCounted, Side
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter

REPORT_INTERVAL = 60.0
"""Seconds between two `OperationsCounted` of one side."""


class Operations:
    """How often one broker was asked for what since the last report."""

    __slots__ = ("admin", "pings", "receives", "sends", "settlements")

    def __init__(self) -> None:
        self.sends = self.receives = self.settlements = self.pings = self.admin = 0

    def take(self) -> dict[str, int]:
        """Give the counts by name, and begin anew."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        self.__init__()  # type: ignore[misc]  # exactly what a new one is
        return counts


class OperationsReport:
    """Tells the counts of both sides every minute, while anyone listens, and at the end.

    Args:
        sides: the counts.
        clock: tells how long an interval was.
        emit: takes events.
    """

    def __init__(self, sides: Mapping[Side, Operations], clock: Clock, emit: Emitter) -> None:
        self._sides = sides
        self._clock = clock
        self._emit = emit
        self._since = clock.now()

    async def run(self) -> None:
        """Tell, again and again, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            self.tell()

    def tell(self) -> None:
        """Tell what was counted since the last time; nothing where nobody listens."""
        if not self._emit.active:
            return
        now = self._clock.now()
        for side, operations in self._sides.items():
            self._emit(OperationsCounted, side=side, seconds=now - self._since, **operations.take())
        self._since = now
