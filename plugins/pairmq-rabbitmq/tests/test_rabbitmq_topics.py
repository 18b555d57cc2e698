"""Topics on a real server: an exchange, and a queue for each subscription."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from foreign_channel import foreign
from pairmq.model import Entity, EntityKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing.conformance.suites import counted
from pairmq.transport import QueueCounts, QueueProperties, Transport
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

TOPIC = Entity("prices", EntityKind.TOPIC)
WAIT = 30.0  # s
Receive = Callable[[str], AsyncIterator[bytes]]


@pytest.fixture
async def transport(rabbit: RabbitServer) -> AsyncIterator[Transport]:
    async with registry.transport(f"{rabbit.url}?connect_timeout=30") as transport:
        yield transport


async def send(transport: Transport, body: bytes, **fields: object) -> None:
    await transport.sender(TOPIC).send(Message(body, **{"message_id": body.decode(), **fields}))  # type: ignore[arg-type]


async def bodies(transport: Transport, source: Source, count: int) -> list[bytes]:
    """That many messages, and what arrives a moment after them."""
    receiver, found = transport.receiver(source), []
    async with asyncio.timeout(WAIT):
        while (deliveries := await receiver.receive(50, 0.3)) or len(found) < count:
            found += [delivery.message.body for delivery in deliveries]
            await receiver.complete_batch(deliveries)
    await receiver.close()
    return found


async def reason_of(call: object) -> FailureReason:
    with pytest.raises(TransportError) as caught:
        await call  # type: ignore[misc]
    return caught.value.reason


async def test_each_subscription_gets_every_message_from_then_on(transport: Transport) -> None:
    admin = transport.admin
    assert await admin.create(TOPIC)
    assert not await admin.create(TOPIC)
    assert await admin.exists(TOPIC)
    assert not await admin.exists(Entity("prices"))
    assert await admin.create_subscription(TOPIC, "a")
    await send(transport, b"1", subject="eur.usd")
    assert await admin.create_subscription(TOPIC, "b")
    assert not await admin.create_subscription(TOPIC, "b")
    await send(transport, b"2")
    assert await bodies(transport, Source(TOPIC, "a"), 2) == [b"1", b"2"]
    assert await bodies(transport, Source(TOPIC, "b"), 1) == [b"2"]
    assert await admin.counts(Source(TOPIC, "a")) == QueueCounts()


async def test_a_topic_without_subscriptions_refuses(transport: Transport) -> None:
    assert await reason_of(transport.admin.create_subscription(TOPIC, "a")) is FailureReason.NOT_FOUND
    await transport.admin.create(TOPIC)
    assert await reason_of(send(transport, b"1")) is FailureReason.NOT_FOUND


async def test_a_subscription_has_a_dead_letter_queue(transport: Transport) -> None:
    await transport.admin.create(TOPIC)
    await transport.admin.create_subscription(TOPIC, "a")
    source, dead = Source(TOPIC, "a"), Source(TOPIC, "a", dead_letter=True)
    await send(transport, b"1")
    receiver = transport.receiver(source)
    [delivery] = await receiver.receive(1, WAIT)
    await receiver.dead_letter(delivery, "bad", "")
    told = QueueCounts(dead_letter=1)
    assert await counted(transport.admin, source, told) == told
    assert await bodies(transport, dead, 1) == [b"1"]


async def test_the_subject_is_the_routing_key_for_foreign_readers(transport: Transport, rabbit: RabbitServer) -> None:
    await transport.admin.create(TOPIC)
    with foreign(rabbit) as channel:
        channel.queue_declare("euros")
        channel.queue_bind("euros", "prices", "eur.*")
        await transport.admin.create_subscription(TOPIC, "all")
        await send(transport, b"1", subject="eur.usd")
        await send(transport, b"2", subject="gbp.usd")
        assert channel.basic_get("euros", auto_ack=True)[2] == b"1"
        assert channel.basic_get("euros", auto_ack=True)[0] is None


async def test_foreign_exchange_is_a_topic_and_is_not_changed(transport: Transport, rabbit: RabbitServer) -> None:
    with foreign(rabbit) as channel:
        channel.exchange_declare("prices", "fanout", durable=False)
    assert await transport.admin.exists(TOPIC)
    assert not await transport.admin.create(TOPIC)
    assert await transport.admin.create_subscription(TOPIC, "a")
    await send(transport, b"1")
    assert await bodies(transport, Source(TOPIC, "a"), 1) == [b"1"]
    assert (await transport.admin.properties(TOPIC)).max_size_megabytes is None


async def test_deleting_a_topic_leaves_its_subscriptions_to_be_read(transport: Transport) -> None:
    admin = transport.admin
    assert not await admin.delete(TOPIC)
    await admin.create(TOPIC)
    await admin.create_subscription(TOPIC, "a")
    await send(transport, b"1")
    assert await admin.delete(TOPIC)
    assert not await admin.exists(TOPIC)
    told = QueueCounts(active=1)
    assert await counted(admin, Source(TOPIC, "a"), told) == told
    await admin.create(TOPIC)
    assert not await admin.create_subscription(TOPIC, "a")
    await send(transport, b"2")
    assert await bodies(transport, Source(TOPIC, "a"), 2) == [b"1", b"2"]


async def test_settings_of_a_subscription(transport: Transport) -> None:
    await transport.admin.create(TOPIC)
    await transport.admin.create_subscription(TOPIC, "a")
    assert await transport.admin.properties(Entity("prices/$subscriptions/a")) == QueueProperties()
