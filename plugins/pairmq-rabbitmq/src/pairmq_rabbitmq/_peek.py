"""Looking at messages, which AMQP 0-9-1 has no word for: they are fetched, and given back at once."""

from __future__ import annotations

import asyncio
from typing import Final

from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from pamqp.commands import Basic

from pairmq.model import Delivery
from pairmq_rabbitmq import _codec
from pairmq_rabbitmq._context import Context

_PATIENCE = 1.0  # s without a message after which no more are waited for
_MOST: Final = 2**16 - 1  # prefetch that AMQP can say


async def peek(context: Context, queue: str, most: int, doing: str) -> list[Delivery]:
    """Fetch the oldest messages of a queue and give them back.

    For that moment nobody else can receive them. RabbitMQ counts it as a delivery: classic queues mark the messages as
    redelivered, quorum queues count one up, and dead-letter a message that reaches its ``max_delivery_count`` so. Not
    shown are messages that somebody holds locked.

    Args:
        context: to ask the broker.
        queue: its name; it exists.
        most: how many at most.
        doing: in words, for errors.

    Returns:
        Deliveries whose lock tokens settle nothing; a message that can't be decoded shows what can be read of it.

    Raises:
        TransportError: the broker could not be asked.

    A cancelled call gives back what it had fetched within a second.
    """
    fetched = await context.ask(doing, lambda channel: _fetch(channel, queue, min(most, _MOST)))
    return [_delivery(message) for message in fetched]


async def _fetch(channel: Channel, queue: str, most: int) -> list[DeliveredMessage]:
    waiting = (await channel.queue_declare(queue, passive=True)).message_count or 0
    expected = min(waiting, most)
    if not expected:
        return []
    fetched: list[DeliveredMessage] = []
    came = asyncio.Event()

    async def take(message: DeliveredMessage) -> None:
        fetched.append(message)
        came.set()

    await channel.basic_qos(prefetch_count=expected)
    tag = (await channel.basic_consume(queue, take)).consumer_tag or ""
    try:
        while len(fetched) < expected:
            came.clear()
            async with asyncio.timeout(_PATIENCE):
                await came.wait()
    except TimeoutError:
        pass  # others were quicker
    # No more come after the cancellation; what came before its confirmation is given back with the rest.
    await channel.basic_cancel(tag)
    await asyncio.sleep(0)
    fetched.sort(key=_tag)
    if fetched:
        await channel.basic_nack(_tag(fetched[-1]), multiple=True, requeue=True)
        # An answer to anything after it shows that the broker has read it; and the channel is anyone's afterwards.
        await channel.basic_qos(prefetch_count=0)
    return fetched


def _tag(message: DeliveredMessage) -> int:
    assert isinstance(message.delivery, Basic.Deliver)  # noqa: S101  # for mypy: it came to a consumer
    return message.delivery.delivery_tag or 0


def _delivery(message: DeliveredMessage) -> Delivery:
    assert isinstance(message.delivery, Basic.Deliver)  # noqa: S101  # for mypy: as above
    properties = message.header.properties
    reason, description = _codec.dead_letter_reason(properties)
    return Delivery(
        _codec.decode_leniently(properties, bytes(message.body)),
        lock_token=object(),
        delivery_count=_codec.delivery_count(properties, bool(message.delivery.redelivered)),
        dead_letter_reason=reason,
        dead_letter_description=description,
    )
