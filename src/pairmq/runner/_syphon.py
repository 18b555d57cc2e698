"""The syphon: a pump per backlog queue, sharing gates, senders and the rate limit (SPEC 7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from functools import partial
from typing import Any

from pairmq.core.backoff import Pace
from pairmq.model import Entity, TransportError
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._counted import EngineContext
from pairmq.runner._gates import GateKeeper, RateLimit
from pairmq.runner._limits import TimeLimits
from pairmq.runner._outbox import Outbox
from pairmq.runner.pump import Pump, PumpContext
from pairmq.transport import Sender, start_task


class Syphon:
    """All pumps of a pair in this process, for the queues of these indexes, all when left out."""

    def __init__(
        self,
        engine: EngineContext,
        backlog: BacklogQueues,
        pace: Pace,
        queues: Collection[int] | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        options = engine.options
        self._primary = engine.primary
        self._secondary = engine.secondary
        self._limits = TimeLimits(options.ping_timeout)
        self._senders: dict[Entity, Sender] = {}
        self._in_use = Counter[Sender]()
        self._readying: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._shares = queues is not None
        self._started = False
        self._moved = self._dead_lettered = 0  # by pumps that have ended
        self.gates = gates = GateKeeper(engine, pace, self._close_sender)
        rate = None if options.syphon_max_rate is None else RateLimit(options.syphon_max_rate)
        self._context = context = PumpContext(engine, self._sender, self._forget, gates, rate)
        self.pumps = tuple(
            Pump(queue, backlog.sender(index), partial(backlog.take_out, index), context)
            for index, queue in enumerate(backlog.entities)
            if queues is None or index in queues
        )
        self._backlog = backlog
        if queues is None:
            for lane in backlog.queues[len(backlog.entities) :]:
                self._add_lane(lane)
        self._outbox = None if outbox is None else Pump(outbox.queue, outbox.tail, outbox.missing, context)
        if self._outbox is not None:
            self.pumps += (self._outbox,)

    @property
    def moved(self) -> int:
        """Messages moved to the primary so far, those of the outbox included."""
        return self._moved + sum(pump.machine.moved for pump in self.pumps)

    @property
    def outbox_moved(self) -> int:
        """Of `moved`, those of the outbox."""
        return 0 if self._outbox is None else self._outbox.machine.moved

    @property
    def dead_lettered(self) -> int:
        """Messages dead-lettered so far."""
        return self._dead_lettered + sum(pump.machine.dead_lettered for pump in self.pumps)

    @property
    def locked(self) -> int:
        """Messages received and not yet settled."""
        return sum(len(pump.machine) for pump in self.pumps)

    def make_ready(self) -> None:
        """Connect in the background, while it is looked whose backlog queues these are: it can take seconds."""
        ways = partial(self._primary.make_ready, sends=True), partial(self._secondary.make_ready, receives=True)
        self._readying += [start_task(self._connect(way), name="connect for the syphon") for way in ways]

    async def _connect(self, way: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(TransportError):  # what needs the connection tries again, and reports it
            await self._limits.run(way())

    def start(self) -> None:
        """Start all pumps, once."""
        if self._started:
            return
        self._started = True
        for pump in self.pumps:
            pump.start()

    def add_lane(self, lane: Entity) -> None:
        """Empty a lane that has come into use; not in a process with a share of the queues."""
        if self._shares:
            return
        pump = self._add_lane(lane)
        if self._started:
            pump.start()

    def _add_lane(self, lane: Entity) -> Pump:
        index = self._backlog.queues.index(lane)
        pump = Pump(lane, self._backlog.sender(index), partial(self._backlog.take_out, index), self._context)
        self.pumps += (pump,)
        return pump

    def add(self, queue: Entity) -> None:
        """Empty a queue that another process of the pair uses, beyond this one's options (SPEC 13.2)."""
        if queue in self._backlog.others or queue in self._backlog.entities:
            return
        self._backlog.others += (queue,)
        tail = self._secondary.sender(queue)
        pump = Pump(queue, tail, lambda _: self._gone(queue, tail), self._context)
        self.pumps += (pump,)
        if self._started:
            pump.start()

    def _gone(self, queue: Entity, tail: Sender) -> None:
        """A queue that is not this process's to make does not exist any more."""
        pump = next((pump for pump in self.pumps if pump.queue == queue), None)
        if pump is None:
            return
        self._backlog.others = tuple(each for each in self._backlog.others if each != queue)
        self.pumps = tuple(each for each in self.pumps if each is not pump)
        self._moved += pump.machine.moved
        self._dead_lettered += pump.machine.dead_lettered

        async def end() -> None:
            await pump.stop(0.0)
            await tail.close()

        self._later(end(), f"end {queue}")

    async def stop(self, grace: float) -> None:
        """Stop all pumps side by side; each finishes or releases what it has locked (SPEC 9.1)."""
        for task in self._readying:
            task.cancel()
        await asyncio.gather(*(pump.stop(grace) for pump in self.pumps))
        await self.gates.close()
        await asyncio.gather(*self._closing, *(sender.close() for sender in self._senders.values()))

    @contextlib.contextmanager
    def _sender(self, entity: Entity) -> Iterator[Sender]:
        """The sender to a destination, which all pumps share: closed under one of them it would look like an outage."""
        sender = self._senders.get(entity)
        if sender is None:
            sender = self._senders[entity] = self._primary.sender(entity)
        self._in_use[sender] += 1
        try:
            yield sender
        finally:
            self._in_use[sender] -= 1
            if not self._in_use[sender]:
                del self._in_use[sender]
                if self._senders.get(entity) is not sender:
                    self._later(sender.close(), f"close {entity}")

    def _forget(self, entity: Entity) -> None:
        self._close_sender(entity)
        self.gates.gates.forget(entity)

    def _close_sender(self, entity: Entity) -> None:
        sender = self._senders.pop(entity, None)
        if sender is not None and sender not in self._in_use:
            self._later(sender.close(), f"close {entity}")

    def _later(self, work: Coroutine[Any, Any, None], name: str) -> None:
        start_task(work, name=name, keep=self._closing)
