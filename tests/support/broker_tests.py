"""What the tests of brokers' plugins share: fixtures of what a transport needs, and patience with a pair."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest

from pairmq import Entity, Message, Pair
from pairmq.transport import Transport

PATIENCE = 200.0


@pytest.fixture
def transport(connect: Callable[..., Transport]) -> Transport:
    return connect()


@pytest.fixture
async def queue(transport: Transport) -> Entity:
    entity = Entity("orders")
    await transport.admin.create(entity)
    return entity


@pytest.fixture
def message() -> Callable[..., Message]:
    """Makes messages with an id."""

    def make(body: str | bytes = b"", **fields: object) -> Message:
        content = body.encode() if isinstance(body, str) else body
        return Message(content, **{"message_id": uuid.uuid4().hex, **fields})  # type: ignore[arg-type]

    return make


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.05)


async def bodies(pair: Pair, count: int) -> list[bytes]:
    """Receive from the primary until so many different bodies have come, each where its first copy stood."""
    found: dict[bytes, None] = {}
    async with asyncio.timeout(PATIENCE), pair.receiver("orders", prefetch=100) as receiver:
        while len(found) < count:
            for delivery in await receiver.receive(100, 1.0):
                found.setdefault(delivery.body)
                await delivery.complete()
    return list(found)
