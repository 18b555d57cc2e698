"""A queue of a simulated primary with messages in it, and a receiver of it."""

from __future__ import annotations

from contextlib import asynccontextmanager

from pairmq import Message
from pairmq.testing import simulated_pair


@asynccontextmanager
async def orders(*ids: str | None, prefetch: int = 1):
    """A pair with messages of these ids in ``orders``, and a receiver."""
    async with simulated_pair() as it:
        for n, message_id in enumerate(ids):
            it.primary.store(it.pair.sender("orders").entity, Message(b"%d" % n, message_id=message_id))
        async with it.pair.receiver("orders", prefetch=prefetch) as receiver:
            yield it, receiver
