"""Messages as a caller gets them, each with the token that settles it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pairmq.model import Delivery
from pairmq.model.drafts import draft_of
from pairmq_rabbitmq import _codec
from pairmq_rabbitmq._receiving._delivery_channel import DeliveryChannel
from pairmq_rabbitmq._receiving._settling import Locked

_DeliveryDraft = draft_of(Delivery)


class Token:
    """What settles a delivery: the message, the channel that it is locked on, and the receiver that got it."""

    __slots__ = ("channel", "locked", "owner")

    def __init__(self, locked: Locked, channel: DeliveryChannel, owner: object) -> None:
        self.locked = locked
        self.channel = channel
        self.owner = owner


def deliveries_of(found: Sequence[Locked], channel: DeliveryChannel, owner: object, dead: bool) -> list[Delivery]:
    """Hand out messages.

    Args:
        found: that were read and given.
        channel: that they are locked on.
        owner: the receiver.
        dead: whether they come from a dead-letter queue.
    """
    now, clock = asyncio.get_running_loop().time(), datetime.now(UTC)
    deliveries: list[Delivery] = []
    until, locked_until = now, clock
    for locked in found:
        reason, description = _codec.dead_letter_reason(locked.properties) if dead else (None, None)
        assert locked.message is not None  # noqa: S101  # for mypy
        if locked.until != until:  # the same for nearly all
            until, locked_until = locked.until, clock + timedelta(seconds=locked.until - now)
        delivery = _DeliveryDraft()
        delivery.message = locked.message
        delivery.lock_token = Token(locked, channel, owner)
        delivery.delivery_count = locked.count
        delivery.sequence_number = ""
        delivery.enqueued_at = None
        delivery.locked_until = locked_until
        delivery.dead_letter_reason = reason
        delivery.dead_letter_description = description
        delivery.__class__ = Delivery
        deliveries.append(delivery)
    return deliveries


def token_of(delivery: Delivery, owner: object) -> Token | None:
    """Find the token of a receiver's own delivery; None for any other one."""
    token = delivery.lock_token
    return token if isinstance(token, Token) and token.owner is owner else None
