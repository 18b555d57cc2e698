"""The entities of a pair: a runner each, with the primary's senders that are spare.

Programs send to ever new entities, reply queues for one. So an entity of which a new runner would decide the same is
forgotten: a few with each sender that is made, so that no sweep holds up the loop.

A transport's sender may be a link to the broker, and only closing it gives it back. An application that makes a sender
for each message closes none of them: they are spare, for the next sender of their entity.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakValueDictionary

from pairmq.model import Entity, TransportError
from pairmq.runner._clock import Clock
from pairmq.runner._counted import CountedSender, CountedTransport
from pairmq.runner._entity import EntityRunner
from pairmq.runner._limits import TimeLimits
from pairmq.transport import start_task

_KEPT: Final = 1000
"""Entities that are kept though they could be forgotten: their next senders find links, and people their states."""
_AT_ONCE: Final = 4
"""Entities looked at for each sender that is made. It adds one, which may have to be looked at three times."""
_CLOSERS: Final = 8
"""Senders that are closed side by side: most take no time, and a task for each would cost more than a send."""


class KnownEntities:
    """Finds the runner of each entity, and keeps it for as long as it is needed.

    A sender object, an operation in flight and a timer hold the runner that they need, so that one is found by a weak
    reference. What has to outlast them is kept in a line, until it can be forgotten. Closing a sender may take
    ``time_limit`` seconds.
    """

    def __init__(
        self, transport: CountedTransport, make: Callable[[Entity], EntityRunner], clock: Clock, time_limit: float
    ) -> None:
        self.forgot = False
        """Whether any entity was forgotten: one without a runner may then be one that had been found in order."""
        self._transport = transport
        self._make = make
        self._clock = clock
        self._runners: WeakValueDictionary[Entity, EntityRunner] = WeakValueDictionary()
        self._line: deque[EntityRunner] = deque()
        self._unwanted: deque[CountedSender] = deque()
        self._closers: set[asyncio.Task[None]] = set()
        self._limits = TimeLimits(time_limit)
        self._loop = asyncio.get_running_loop()

    def runners(self) -> Iterable[EntityRunner]:
        return self._runners.values()

    def runner(self, entity: Entity) -> EntityRunner:
        """The runner of an entity, made if need be."""
        runner = self._runners.get(entity)
        if runner is None:
            runner = self._runners[entity] = self._make(entity)
            self.keep(runner)
        else:
            runner.recent = True
        return runner

    def find(self, entity: Entity) -> EntityRunner | None:
        """The runner of an entity; None where it has none."""
        return self._runners.get(entity)

    def keep(self, runner: EntityRunner) -> None:
        """Keep a runner until it can be forgotten; from any thread, as `give`."""
        if not runner.kept:
            runner.kept = True
            self._line.append(runner)

    def take(self, runner: EntityRunner) -> CountedSender:
        """A sender to the entity that is unused, a new one if need be; no IO. On the pair's loop alone."""
        sender = runner.spare.pop() if runner.spare else self._transport.sender(runner.entity)
        self._forget_some()
        return sender

    def give(self, runner: EntityRunner, sender: CountedSender) -> None:
        """Keep a sender for the next one who takes one.

        From any thread, and at any point of what that thread does: it may be garbage that is collected. So there is no
        lock here, no step that another thread could come between, and no need of a loop, which may be closed.
        """
        runner.spare.append(sender)
        self.keep(runner)  # after that: what forgets it looks for spare ones when it no longer counts as kept

    async def close(self) -> None:
        """Close no more senders: the transport closes what is left."""
        for closer in self._closers:
            closer.cancel()
        if self._closers:
            await asyncio.wait(self._closers, timeout=1)

    def _forget_some(self) -> None:
        line = self._line
        for _ in range(min(_AT_ONCE, len(line) - _KEPT)):
            runner = line.popleft()
            if runner.recent or not runner.machine.is_as_new(self._clock.now()):
                runner.recent = False
                line.append(runner)
                continue
            runner.kept = False
            for _ in range(min(_AT_ONCE, len(runner.spare))):
                self._unwanted.append(runner.spare.pop())
            if runner.spare:
                self.keep(runner)
            else:
                self.forgot = True
        if len(self._closers) < min(_CLOSERS, len(self._unwanted)):
            start_task(self._close_unwanted(), name="close spare senders", loop=self._loop, keep=self._closers)

    async def _close_unwanted(self) -> None:
        while self._unwanted:
            closing = self._unwanted.popleft().close()
            with contextlib.suppress(TransportError):  # it promised not to fail
                await self._limits.run(closing)
            await asyncio.sleep(0)  # closing may take no turn of the loop, and there may be many
