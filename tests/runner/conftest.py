"""A pair of simulated brokers in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from pairmq import Entity, Message, Pair, PairOptions
from pairmq.model.events import Event
from pairmq.runner import Clock
from pairmq.testing import SimulatedBroker, virtual_wall


@dataclass
class World:
    """Two brokers, one pair, and what it reported."""

    east: SimulatedBroker
    west: SimulatedBroker
    pair: Pair
    events: list[Event] = field(default_factory=list)

    def of(self, *kinds: type[Event]) -> list[Any]:
        """The events of some kinds."""
        return [event for event in self.events if isinstance(event, kinds)]

    def backlog(self) -> list[Message]:
        """What lies in all backlog queues."""
        return [m for entity in self.pair.backlog_queues for m in self.west.messages(entity.path)]

    def home(self, path: str = "orders") -> list[bytes]:
        """The bodies in a queue of the primary."""
        return [message.body for message in self.east.messages(path)]


MakeWorld = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def world() -> MakeWorld:
    """Open a pair of simulated brokers whose primary has the queues ``orders`` and ``prices``; its wall clock is so
    many seconds ``fast``."""

    @asynccontextmanager
    async def make(
        east: SimulatedBroker | None = None,
        west: SimulatedBroker | None = None,
        seed: int = 1,
        fast: float = 0.0,
        **options: Any,
    ) -> AsyncIterator[World]:
        defaults: dict[str, Any] = {
            "backlog_queue_count": 3,
            "failover_interval": 2.0,
            "ping_primary_interval": 5.0,
            "attempt_timeout": 1.0,
            "ping_timeout": 1.0,
            "send_timeout": 20.0,
        }
        east, west = east or SimulatedBroker("east"), west or SimulatedBroker("west")
        pair = Pair(
            east.transport(),
            west.transport(),
            PairOptions(**{**defaults, **options}),
            clock=Clock(lambda: virtual_wall() + fast, random.Random(seed)),
        )
        made = World(east, west, pair)
        pair.subscribe(made.events.append)
        setup = east.transport()
        for name in ("orders", "prices"):
            await setup.admin.create(Entity(name))
        await setup.close()
        east.operations.clear()
        async with pair:
            yield made
        # Whatever a test does, a closed pair leaves nothing behind that could still run.
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, left

    return make
