"""The syphon: a pump per backlog queue, sharing gates, senders and the rate limit (SPEC 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial

from pairmq.core import PairOptions
from pairmq.model import Entity
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._gates import Gates
from pairmq.runner._limits import TimeLimits
from pairmq.runner._rate import RateLimit
from pairmq.runner.pump import Pump
from pairmq.transport import Sender, Transport


class Syphon:
    """All pumps of a pair in this process.

    Args:
        primary: where messages belong.
        secondary: where they wait.
        backlog: the queues to empty.
        options: the pair's.
        clock: time and chance.
        emit: takes events.
        queues: indexes of the queues to empty; all when left out.
    """

    def __init__(
        self,
        primary: Transport,
        secondary: Transport,
        backlog: BacklogQueues,
        options: PairOptions,
        clock: Clock,
        emit: Emitter,
        queues: Collection[int] | None = None,
    ) -> None:
        self._primary = primary
        self._options = options
        self._clock = clock
        self._limits = TimeLimits()
        self._senders: dict[Entity, Sender] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.gates = Gates(self._probe, options.ping_primary_interval, clock, emit, self._close_sender)
        rate = RateLimit(options.syphon_max_rate)
        self.pumps = tuple(
            Pump(
                queue,
                primary,
                secondary,
                self._sender,
                self._forget,
                partial(backlog.take_out, index),
                backlog.sender(index),
                self.gates,
                rate,
                options,
                clock,
                emit,
            )
            for index, queue in enumerate(backlog.entities)
            if queues is None or index in queues
        )

    @property
    def moved(self) -> int:
        """Messages brought home so far."""
        return sum(pump.moved for pump in self.pumps)

    @property
    def dead_lettered(self) -> int:
        """Messages set aside so far."""
        return sum(pump.dead_lettered for pump in self.pumps)

    @property
    def in_hand(self) -> int:
        """Messages received and not yet settled."""
        return sum(pump.in_hand for pump in self.pumps)

    def start(self) -> None:
        """Start all pumps."""
        for pump in self.pumps:
            pump.start()

    async def stop(self, grace: float) -> None:
        """Stop all pumps side by side; each finishes or gives back what it holds (SPEC 9.1)."""
        await asyncio.gather(*(pump.stop(grace) for pump in self.pumps))
        await self.gates.close()
        await asyncio.gather(*self._closing, *(sender.close() for sender in self._senders.values()))

    def _sender(self, entity: Entity) -> Sender:
        sender = self._senders.get(entity)
        if sender is None:
            sender = self._senders[entity] = self._primary.sender(entity)
        return sender

    def _forget(self, entity: Entity) -> None:
        self._close_sender(entity)
        self.gates.forget(entity)

    def _close_sender(self, entity: Entity) -> None:
        sender = self._senders.pop(entity, None)
        if sender is not None:
            task = asyncio.create_task(sender.close(), name=f"close {entity}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _probe(self, entity: Entity) -> None:
        limit = self._clock.now() + self._options.ping_timeout
        await self._limits.run(self._primary.admin.probe(entity), limit)
