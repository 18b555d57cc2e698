"""Looking at messages, which AMQP 0-9-1 has no word for: they are fetched, and given back at once."""

from __future__ import annotations

import asyncio
from typing import Final

from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from pamqp.commands import Basic

from pairmq.model import Delivery, FailureReason
from pairmq_rabbitmq import _codec, _errors
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import close_channel
from pairmq_rabbitmq._markers import WINDOW
from pairmq_rabbitmq._receiving import visit

_PATIENCE = 1.0  # s without a message after which no more are waited for
_GIVING_BACK, _STEP = 0.25, 0.005
_MOST: Final = 2**16 - 1  # prefetch that AMQP can say


async def peek(context: Context, queue: str, most: int, doing: str) -> list[Delivery]:
    """Fetch the oldest messages of a queue and give them back.

    For that moment nobody else can receive them. RabbitMQ counts it as a delivery: classic queues mark the messages as
    redelivered, quorum queues count one up, and dead-letter a message that reaches its ``max_delivery_count`` so. Not
    shown are messages that somebody holds locked.

    Args:
        queue: its name; it exists.
        most: how many at most.

    Returns:
        Deliveries whose lock tokens settle nothing; a message that can't be decoded shows what can be read of it.

    A cancelled call gives back what it had fetched within a second.
    """
    waiting, _ = await context.count(queue, doing)
    expected = min(waiting, most, _MOST)
    if not expected:
        return []
    fetched = await context.ask(doing, lambda channel: _fetch(channel, queue, expected), about=queue)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _GIVING_BACK
    # A quorum queue takes its time to have them back; somebody else may be quicker to get them.
    while fetched and loop.time() < deadline:
        back, _ = await context.count(queue, doing)
        if back >= waiting:
            break
        await asyncio.sleep(_STEP)
    return [_delivery(message) for message in fetched]


async def peek_in_turn(context: Context, queue: str, most: int, doing: str) -> list[Delivery]:
    """Look into a queue for one consumer at a time, as its consumer for a moment; else as `peek`.

    Raises:
        TransportError: reason *not-supported* while somebody reads it; or the broker could not be asked.
    """
    waiting, consumers = await context.count(queue, doing)
    if consumers:
        text = "somebody reads it, and it is for one consumer at a time"
        raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
    expected = min(waiting, most, WINDOW)
    found = await visit(context, queue, doing, lambda channel: len(channel.waiting) >= expected, _PATIENCE)
    return [_shown(one.properties, one.body, one.redelivered) for one in found[:most]]


async def _fetch(channel: Channel, queue: str, expected: int) -> list[DeliveredMessage]:
    fetched: list[DeliveredMessage] = []
    came = asyncio.Event()

    async def take(message: DeliveredMessage) -> None:
        fetched.append(message)
        came.set()

    try:
        await channel.basic_qos(prefetch_count=expected)
        await channel.basic_consume(queue, take)
        while len(fetched) < expected:
            came.clear()
            async with asyncio.timeout(_PATIENCE):
                await came.wait()
    except TimeoutError:
        pass  # others were quicker
    finally:
        # Gives them back to where they were. A nack would put them at the end of a quorum queue without delivery limit.
        await close_channel(channel)
    return sorted(fetched, key=_tag)


def _tag(message: DeliveredMessage) -> int:
    assert isinstance(message.delivery, Basic.Deliver)  # noqa: S101  # for mypy: it came to a consumer
    return message.delivery.delivery_tag or 0


def _delivery(message: DeliveredMessage) -> Delivery:
    assert isinstance(message.delivery, Basic.Deliver)  # noqa: S101  # for mypy: as above
    return _shown(message.header.properties, bytes(message.body), bool(message.delivery.redelivered))


def _shown(properties: Basic.Properties, body: bytes, redelivered: bool) -> Delivery:
    reason, description = _codec.dead_letter_reason(properties)
    return Delivery(
        _codec.decode_leniently(properties, body),
        lock_token=object(),
        delivery_count=_codec.delivery_count(properties, redelivered),
        dead_letter_reason=reason,
        dead_letter_description=description,
    )
