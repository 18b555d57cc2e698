"""Consumers of aio-pika read the primary and the lane of a queue with continuity, without a connection of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import aio_pika
import pytest
from aio_pika import RobustQueue
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelInvalidStateError
from yarl import URL

from pairmq import Entity, LockLost, Message, Pair
from pairmq.core import lanes
from pairmq.model import Source
from pairmq_rabbitmq.paired import ConsumingConnection
from pairmq_rabbitmq.testing import RabbitServer

Connect = Callable[..., Any]


@pytest.fixture
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    name = uuid4().hex
    options: dict[str, Any] = {"continuity": ("orders",), "backlog_queue_count": 1, "failover_interval": 0}
    options |= getattr(request, "param", {})
    async with Pair.connect(f"memory://a-{name}", f"memory://b-{name}", control_interval=0, **options) as made:
        await made.primary.admin.create(Entity("orders"))
        yield made


@pytest.fixture
async def queue(pair: Pair) -> AsyncIterator[RobustQueue]:
    """A queue of a connection to RabbitMQ that was never made."""
    connection = ConsumingConnection(URL("amqp://127.0.0.1:1/"), pair=pair)
    channel = connection.CHANNEL_CLASS(connection)
    yield channel.QUEUE_CLASS(channel, "orders", durable=True)
    await channel.end_consuming()


async def send(pair: Pair, *bodies: str) -> None:
    for body in bodies:
        await pair.sender("orders").send(Message(body.encode(), message_id=body))


async def left(pair: Pair) -> tuple[int, int, int]:
    """Messages in the queue, in its lane, and dead-lettered by either."""
    lane = next(entity for entity in pair.backlog_queues if entity.path.endswith("lane/orders"))
    first = await pair.primary.admin.counts(Source(Entity("orders")))
    second = await pair.secondary.admin.counts(Source(lane))
    return first.active + first.locked, second.active + second.locked, first.dead_letter + second.dead_letter


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_consumer_gets_the_messages_of_both_brokers_and_settles_them(pair: Pair, queue: RobustQueue) -> None:
    await send(pair, "1", "2")
    pair.force_failover("orders")
    await send(pair, "3", "4", "5")
    got: list[AbstractIncomingMessage] = []

    async def take(message: AbstractIncomingMessage) -> None:
        got.append(message)
        if message.body == b"1" and not message.redelivered:
            await message.nack()
        elif message.body == b"3":
            await message.reject()
        else:
            await message.ack()

    tag = await queue.consume(take)
    await until(lambda: len(got) == 6)
    assert sorted((message.message_id or "") for message in got) == ["1", "1", "2", "3", "4", "5"]
    assert {(message.routing_key, message.consumer_tag) for message in got} == {("orders", tag)}
    await queue.cancel(tag)
    assert await left(pair) == (0, 0, 1)


async def test_a_consumer_has_no_more_than_the_prefetch_of_its_channel(pair: Pair, queue: RobustQueue) -> None:
    await send(pair, "1", "2", "3")
    queue.channel._prefetch_count = 2  # type: ignore[attr-defined]  # what `set_qos` remembers
    got: list[AbstractIncomingMessage] = []

    async def take(message: AbstractIncomingMessage) -> None:
        got.append(message)

    tag = await queue.consume(take)
    await until(lambda: len(got) == 2)
    await got[1].ack()
    await until(lambda: len(got) == 3)
    assert got[0].delivery_tag is not None
    await queue.cancel(tag)
    await got[2].ack(multiple=True)
    assert await left(pair) == (0, 0, 0)


async def test_an_iterator_goes_on_and_releases_what_it_has_not_given(pair: Pair, queue: RobustQueue) -> None:
    await send(pair, "1")
    found = []
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                found.append(message.body)
            if message.body == b"1":
                pair.force_failover("orders")
                await send(pair, "2", "3", "4")
            else:
                break
    assert found[0] == b"1"
    assert await left(pair) == (0, 2, 0)
    rest = queue.iterator(timeout=60)
    for _ in range(2):
        await (await anext(rest)).ack()
    await rest.close()
    brief = queue.iterator(timeout=0.01)
    with pytest.raises(TimeoutError):
        await anext(brief)
    assert await left(pair) == (0, 0, 0)


async def close_connection(pair: Pair, queue: RobustQueue) -> None:
    await queue.channel._connection.close()  # type: ignore[attr-defined]


async def close_channel(pair: Pair, queue: RobustQueue) -> None:
    await queue.channel.end_consuming()  # type: ignore[attr-defined]  # all that a channel never opened can do


async def close_pair(pair: Pair, queue: RobustQueue) -> None:
    await pair.close()


@pytest.mark.parametrize("close", [close_connection, close_channel, close_pair])
async def test_an_iterator_ends_with_what_it_reads_through(pair: Pair, queue: RobustQueue, close: Connect) -> None:
    iterator = queue.iterator()

    async def read() -> list[bytes]:
        async with iterator:
            return [message.body async for message in iterator]

    reading = asyncio.create_task(read())
    await until(lambda: iterator.consumer_tag)
    await close(pair, queue)
    async with asyncio.timeout(60):
        assert await reading == []


@pytest.mark.parametrize("pair", [{"enable_syphon": True}], indirect=True)
async def test_an_iterator_of_a_faulted_pair_raises(pair: Pair, queue: RobustQueue) -> None:
    iterator = queue.iterator()
    reading = asyncio.create_task(anext(iterator))
    await until(lambda: iterator.consumer_tag)
    await pair.primary.fault(RuntimeError("certificate revoked"))
    async with asyncio.timeout(60):
        with pytest.raises(ChannelInvalidStateError, match="certificate revoked"):
            await reading
        await iterator.close()


async def test_locks_are_renewed_until_the_channel_closes(
    pair: Pair, queue: RobustQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lanes, "renewal_due", lambda _: 0.01)
    caplog.set_level(logging.WARNING, "pairmq")
    renewed = []

    async def renew(self: Any) -> None:
        renewed.append(self)
        if len(renewed) == 3:
            raise LockLost("planted")

    monkeypatch.setattr("pairmq.PairDelivery.renew_lock", renew)
    await send(pair, "1")
    got: list[AbstractIncomingMessage] = []

    async def take(message: AbstractIncomingMessage) -> None:
        got.append(message)

    await queue.consume(take)
    await until(lambda: len(renewed) == 3)
    await until(lambda: "planted" in caplog.text)
    await queue.channel.end_consuming()  # type: ignore[attr-defined]
    with pytest.raises(ChannelInvalidStateError):
        await got[0].ack()
    assert await left(pair) == (1, 0, 0)


@pytest.mark.real_server
async def test_consumers_go_on_while_rabbitmq_is_unavailable(rabbit: RabbitServer, connect: Connect) -> None:
    connection = await connect(continuity=("orders",))
    channel = connection.channel()
    await channel.initialize()
    queue = await channel.declare_queue("orders", durable=True)
    await channel.set_qos(prefetch_count=5)

    async def publish(body: bytes) -> None:
        await channel.default_exchange.publish(aio_pika.Message(body), "orders")

    async with asyncio.timeout(120), queue.iterator() as messages:
        await publish(b"before")
        assert await take_one(messages) == b"before"
        await asyncio.to_thread(rabbit.go_down)
        await publish(b"during")
        assert await take_one(messages) == b"during"
        await asyncio.to_thread(rabbit.come_up)
        await publish(b"after")
        assert await take_one(messages) == b"after"


async def take_one(messages: Any) -> bytes:
    message = await anext(messages)
    await message.ack()
    return bytes(message.body)
