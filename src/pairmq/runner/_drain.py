"""Finds out when the backlog is empty, for the entities that are waiting to hear it (SPEC 4.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from pairmq.core.lanes import EmptyWatch, drained_since
from pairmq.model import Entity, FailureReason, Source, TransportError
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._counted import EngineContext
from pairmq.runner._entity import EntityRunner

_FIRST_WAIT = 0.25  # s between two rounds of counting, growing while messages are left
_LONGEST_WAIT = 5.0


class DrainWatch:
    """Counts the backlog queues while an entity that is up has a dirty backlog, and only then.

    ``known`` finds out whether other processes use further queues, False while it can't; None where these are all.
    """

    def __init__(
        self,
        context: EngineContext,
        backlog: BacklogQueues,
        runners: Callable[[], Iterable[EntityRunner]],
        known: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._secondary = context.secondary
        self._clock = context.clock
        self._limits = context.limits
        self._backlog = backlog
        self._runners = runners
        self._known = known
        self._queues = backlog.entities
        self._empty = EmptyWatch(len(self._queues))
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
                        empty_since = drained_since(since, await self._held_in_lane(runner.entity))
                        if empty_since is not None:
                            runner.backlog_seen_empty(empty_since)
                if self._waiting():
                    await asyncio.sleep(wait)
                    wait = min(_LONGEST_WAIT, wait * 1.5)

    def _waiting(self) -> list[EntityRunner]:
        return [runner for runner in self._runners() if runner.machine.awaits_drain]

    async def _count(self) -> float | None:
        """Count all queues once; returns since when all are empty, if they are."""
        since = await self._count_queues()
        if since is None or self._known is None:
            return since
        if not await self._known():
            return None
        # What another process diverts to is empty only when it was asked, too (SPEC 13.2).
        return since if self._queues == self._all_queues() else None

    async def _held_in_lane(self, entity: Entity) -> int | None:
        """Count an entity's lane, after the shared queues: no other entity waits for it."""
        index = self._backlog.lane_of(entity)
        if index is None:
            return 0
        counting = self._secondary.admin.counts(Source(self._backlog.queues[index]))
        try:
            return (await self._limits.run(counting)).pending
        except TransportError:
            return None

    def _all_queues(self) -> tuple[Entity, ...]:
        return self._backlog.entities + self._backlog.others

    async def _count_queues(self) -> float | None:
        admin = self._secondary.admin
        queues = self._all_queues()
        if queues != self._queues:
            self._queues, self._empty = queues, EmptyWatch(len(queues))
        for index, queue in enumerate(queues):
            began_at = self._clock.now()
            try:
                counts = await self._limits.run(admin.counts(Source(queue)))
            except TransportError as error:
                if error.reason is FailureReason.NOT_FOUND and queue in self._backlog.others:
                    continue  # not this process's to make: its pump ends
                self._empty.not_empty(index)  # a queue that can't be reached is not empty
                return None
            if counts.pending:
                self._empty.not_empty(index)
                return None
            self._empty.seen_empty(index, began_at)
        return self._empty.all_since()
