"""Backlogs as other processes would have left them, and what was moved back of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from pairmq import Entity, Message
from pairmq.core import Diversion, PairOptions, divert
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq.transport import QueueProperties

AT_ONCE = 500


async def leave(
    primary: str,
    secondary: str,
    count: int,
    *,
    queues: int,
    used: int | None = None,
    entity: str = "orders",
    made: bool = True,
    lock: float = 60.0,
) -> set[str]:
    """Put messages for an entity into the backlog queues of a pair, evenly; gives their ids.

    Args:
        primary: URL; the entity is made there.
        secondary: URL; the queues are made there.
        count: how many messages.
        queues: backlog queues of the pair.
        used: of these, how many get messages; all when left out.
        entity: where they belong.
        made: whether that entity exists.
        lock: seconds that a lock in the backlog lasts.
    """
    async with registry.transport(primary) as east, registry.transport(secondary) as west:
        if made:
            await east.admin.create(Entity(entity))
        names = PairOptions(backlog_queue_count=queues).backlog_queue_names(east.endpoint.name)
        properties = QueueProperties(max_delivery_count=2**31 - 1, lock_duration=lock)
        ids: set[str] = set()
        for index, name in enumerate(names):
            await west.admin.create(Entity(name), properties)
            numbers = range(index, count, used or queues) if index < (used or queues) else range(0)
            sender = west.sender(Entity(name))
            messages = [
                divert(
                    Message(b"an order", message_id=f"{entity}-{number}"),
                    Diversion(Entity(entity), datetime.now(UTC), "another process", number),
                )
                for number in numbers
            ]
            for start in range(0, len(messages), AT_ONCE):
                assert not any(await sender.send_batch(messages[start : start + AT_ONCE]))
            ids |= {f"{entity}-{number}" for number in numbers}
            await sender.close()
    return ids


async def taken(url: str, entity: str = "orders") -> list[str]:
    """Take everything out of a queue; gives the messages' ids, a second copy's too."""
    found: list[str] = []
    async with registry.transport(url) as transport:
        source, empty = Source(Entity(entity)), 0
        receiver = transport.receiver(source)
        while empty < 2:
            deliveries = await receiver.receive(1000, 0.3)
            found += [delivery.message.message_id or "" for delivery in deliveries]
            await receiver.complete_batch(deliveries)
            # That nothing has come in time says little of a server that was slow.
            empty = 0 if deliveries or (await transport.admin.counts(source)).pending else empty + 1
        await receiver.close()
    return found


async def held(url: str, entity: str = "orders") -> int:
    """How many messages a queue holds; 0 while its broker is unavailable."""
    async with registry.transport(url) as transport:
        return (await transport.admin.counts(Source(Entity(entity)))).pending


async def until(condition: Callable[[], object], what: str, seconds: float = 150.0) -> None:
    """Wait until a condition holds."""
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, f"not in {seconds:g} s: {what}"
        await asyncio.sleep(0.05)
