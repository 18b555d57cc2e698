"""A queue for one consumer at a time, as the tests of RabbitMQ make and read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pairmq.model import Delivery, Entity, Source
from pairmq.transport import QueueProperties, Receiver, Transport

QUEUE = Entity("backlog/0")
SOURCE = Source(QUEUE)
ORDERED = QueueProperties(max_size_megabytes=5120, max_delivery_count=2**31 - 1, single_consumer=True)
PATIENCE = 100.0  # s
Connect = Callable[..., Transport]
"""Makes a transport as another process would have it; options go into the URL."""


async def with_queue(transport: Transport) -> Transport:
    """Make the queue."""
    assert await transport.admin.create(QUEUE, ORDERED)
    return transport


async def receive(receiver: Receiver, count: int) -> list[Delivery]:
    """Exactly so many messages."""
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            found += await receiver.receive(count - len(found), PATIENCE)
    return found
