"""A ready pair of simulated brokers, for tests in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pairmq.core import PairOptions
from pairmq.model import Entity, EntityKind, Message
from pairmq.model.events import Event
from pairmq.pair import Pair
from pairmq.runner import Clock
from pairmq.testing._loop import VirtualTimeLoop, virtual_wall
from pairmq.testing._simulated import SimulatedBroker

TEST_OPTIONS = PairOptions(
    backlog_queue_count=2,
    failover_interval=2.0,
    ping_primary_interval=5.0,
    enable_syphon=True,
    attempt_timeout=1.0,
    ping_timeout=1.0,
    send_timeout=20.0,
    syphon_receive_wait=60.0,
    backlog_retry_interval=5.0,
)
"""Options for tests in virtual time: an outage is over within a minute, and the syphon runs in the same process."""


@dataclass
class SimulatedPair:
    """An open pair, its two brokers, and what it reported.

    Args:
        pair: open, as long as its ``async with`` block.
        primary: fails on request: ``primary.fail(Fault.DOWN)``, ``primary.heal()``.
        secondary: likewise.
        events: everything that the pair reported so far, oldest first.
    """

    pair: Pair
    primary: SimulatedBroker
    secondary: SimulatedBroker
    events: list[Event] = field(default_factory=list)

    def delivered(self, entity: str | Entity) -> list[Message]:
        """What a queue of the primary holds, oldest first, locked or not."""
        return self.primary.messages(entity_named(entity).path)

    def backlog(self) -> list[Message]:
        """What lies in all backlog queues, each message in its envelope."""
        return [message for queue in self.pair.backlog_queues for message in self.secondary.messages(queue.path)]


@asynccontextmanager
async def simulated_pair(
    options: PairOptions | None = None, *, entities: Iterable[str | Entity] = ("orders",), seed: int = 0, **changes: Any
) -> AsyncIterator[SimulatedPair]:
    """Open a pair of two simulated brokers in virtual time, and close it.

        @in_virtual_time
        async def test_an_outage_of_an_hour():
            async with simulated_pair(failover_interval=30) as it:
                it.primary.fail(Fault.DOWN)
                receipt = await it.pair.sender("orders").send(Message(b"1"))
                assert receipt.route is Route.BACKLOG

    Args:
        options: the pair's; `TEST_OPTIONS` when left out.
        entities: made on the primary first; ``"topic:news"`` is a topic.
        seed: of jitter, and of which backlog queue a sender picks: one seed, one run.
        changes: single options by name, in the place of those.

    Raises:
        RuntimeError: the running loop's time is real: use `in_virtual_time` or `run_virtual`.
        ConfigurationError: an option is wrong.
    """
    if not isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
        raise RuntimeError(
            "simulated_pair needs virtual time: decorate the test with pairmq.testing.in_virtual_time, "
            "or run the coroutine by pairmq.testing.run_virtual"
        )
    primary, secondary = SimulatedBroker("primary"), SimulatedBroker("secondary")
    await make_entities(primary, entities)
    numbers = itertools.count(1)
    clock = Clock(virtual_wall, random.Random(seed), lambda: f"id-{next(numbers)}")
    chosen = replace(options or TEST_OPTIONS, **changes)
    made = SimulatedPair(Pair(primary.transport(), secondary.transport(), chosen, clock=clock), primary, secondary)
    made.pair.subscribe(made.events.append)
    async with made.pair:
        yield made


async def make_entities(broker: SimulatedBroker, entities: Iterable[str | Entity]) -> None:
    """Make queues and topics on a simulated broker."""
    transport = broker.transport()
    for entity in entities:
        await transport.admin.create(entity_named(entity))
    await transport.close()


def entity_named(entity: str | Entity) -> Entity:
    """Read ``orders`` as a queue and ``topic:news`` as a topic."""
    if isinstance(entity, Entity):
        return entity
    kind, _, path = entity.rpartition(":")
    return Entity(path, EntityKind(kind)) if kind in tuple(EntityKind) else Entity(entity)
