"""Finds out when the backlog is empty, for the entities that are waiting to hear it (SPEC 4.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from pairmq.core import Backlog, EmptyWatch, Health
from pairmq.model import Source, TransportError
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._entity import EntityRunner
from pairmq.runner._limits import TimeLimits
from pairmq.transport import Transport

_FIRST_WAIT = 0.25  # s between two rounds of counting, growing while messages are left
_LONGEST_WAIT = 5.0


class DrainWatch:
    """Counts the backlog queues while an entity that is up has a dirty backlog, and only then.

    Args:
        secondary: the transport of the backlog queues.
        backlog: the backlog queues.
        runners: gives the present entities.
        clock: time.
        limits: bounds every operation.
        time_limit: seconds of one count.
    """

    def __init__(
        self,
        secondary: Transport,
        backlog: BacklogQueues,
        runners: Callable[[], Iterable[EntityRunner]],
        clock: Clock,
        limits: TimeLimits,
        time_limit: float,
    ) -> None:
        self._secondary = secondary
        self._backlog = backlog
        self._runners = runners
        self._clock = clock
        self._limits = limits
        self._time_limit = time_limit
        self._empty = EmptyWatch(len(backlog.entities))
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Look whether an entity waits to hear that the backlog is empty."""
        self._wanted.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            wait = _FIRST_WAIT
            while self._waiting():
                since = await self._count()
                if since is not None:
                    for runner in self._waiting():
                        runner.backlog_seen_empty(since)
                if self._waiting():
                    await asyncio.sleep(wait)
                    wait = min(_LONGEST_WAIT, wait * 1.5)

    def _waiting(self) -> list[EntityRunner]:
        return [
            runner
            for runner in self._runners()
            if runner.machine.backlog is Backlog.DIRTY and runner.machine.health in (Health.UP, Health.TRIAL)
        ]

    async def _count(self) -> float | None:
        """Count all queues once; tells since when all are empty, if they are."""
        admin = self._secondary.admin
        for index, queue in enumerate(self._backlog.entities):
            began_at = self._clock.now()
            try:
                counts = await self._limits.run(admin.counts(Source(queue)), began_at + self._time_limit)
            except TransportError:
                self._empty.not_empty(index)  # a queue that can't be reached is not empty
                return None
            if counts.pending:
                self._empty.not_empty(index)
                return None
            self._empty.seen_empty(index, began_at)
        return self._empty.all_since()
