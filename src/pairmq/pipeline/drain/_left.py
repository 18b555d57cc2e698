"""What a task's queue still holds: as the driver tells it, where that is near; else as the broker does.

A count is an operation of the broker's management, which some brokers throttle. So the driver counts for all tasks,
which is what it shows to people anyway, and a task asks by itself only on another machine, or where the driver tells it
that nothing is left: a broker that does not tell what others hold locked tells each process what that one holds itself.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from pairmq.model import Entity, Source, TransportError
from pairmq.pipeline.drain._handover import Worker
from pairmq.transport import Transport

EVERY = 2.0
"""Seconds from one count of a queue to the next."""


@dataclass(frozen=True, slots=True)
class Left:
    """One count.

    Args:
        pending: messages still to be moved; None when the broker could not be asked.
        problem: why not.
    """

    pending: int | None
    problem: str | None = None


class Counts(Protocol):
    """Where counts of one queue come from."""

    async def next(self) -> Left | None:
        """Give a count that was not given before; None as long as there is none."""


class FromDriver:
    """Counts that the driver makes for all tasks; where it counts nothing, the task's own.

    Args:
        worker: this side of what is shared with it.
        index: of the queue.
        own: asks the broker from here, which knows of what this process holds.
    """

    def __init__(self, worker: Worker, index: int, own: FromBroker) -> None:
        self._worker = worker
        self._index = index
        self._own = own
        # What was counted before this task began may have been in a dead worker's hands then, and not in the queue.
        told = worker.counted()
        self._turn = -1 if told is None else told.turn

    async def next(self) -> Left | None:
        """As `Counts`."""
        told = self._worker.counted()
        if told is None or told.turn == self._turn:
            return None
        self._turn = told.turn
        pending = told.pending[self._index]
        return await self._own.count() if pending == 0 else Left(pending, told.problems[self._index])


class FromBroker:
    """Counts that the task asks for.

    The transport should be the pair's own, which has asked for the queue: that makes RabbitMQ's 0 a certain one.

    Args:
        secondary: whose queue it is.
        queue: which one.
        time_limit: seconds for one count.
    """

    def __init__(self, secondary: Transport, queue: Entity, time_limit: float) -> None:
        self._secondary = secondary
        self._queue = queue
        self._time_limit = time_limit
        self._due = time.monotonic()

    async def next(self) -> Left | None:
        """As `Counts`."""
        if time.monotonic() < self._due:
            return None
        try:
            return await self.count()
        finally:
            self._due = time.monotonic() + EVERY

    async def count(self) -> Left:
        """Ask now; a broker that can't be asked is told in the result."""
        try:
            async with asyncio.timeout(self._time_limit):
                return Left((await self._secondary.admin.counts(Source(self._queue))).pending)
        except (TransportError, TimeoutError) as error:
            return Left(None, str(error) or "the secondary does not answer")
