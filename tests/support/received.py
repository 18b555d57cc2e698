"""Receiving a known number of messages, however many come at once."""

from __future__ import annotations

from pairmq.model import Delivery
from pairmq.transport import Receiver

_PATIENCE = 100.0  # s


async def take(receiver: Receiver, count: int) -> list[Delivery]:
    """Receive so many messages, and fail when none comes any more."""
    got: list[Delivery] = []
    while len(got) < count:
        deliveries = await receiver.receive(count - len(got), _PATIENCE)
        assert deliveries, f"{len(got)} of {count} messages came"
        got += deliveries
    return got
