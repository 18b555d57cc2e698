"""Topics: one stream, a consumer group per subscription, and no entry goes before all have had it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from pairmq.model import Entity, EntityKind, FailureReason, Message, Source, TransportError
from pairmq.transport import QueueProperties, Scope, Transport
from redis_queue import HELD, WAIT, key

Make = Callable[..., Message]
PRICES = Entity("prices", EntityKind.TOPIC)


@pytest.fixture
async def topic(transport: Transport) -> Entity:
    assert await transport.admin.create(PRICES, QueueProperties(lock_duration=HELD))
    return PRICES


def of(name: str, *, dead_letter: bool = False) -> Source:
    return Source(PRICES, subscription=name, dead_letter=dead_letter)


async def stored(transport: Transport) -> int:
    control = transport._context.control  # type: ignore[attr-defined]
    return int((await control.call([(b"XLEN", key(PRICES, "topic"))], Scope()))[0])


async def test_every_subscription_gets_every_message(transport: Transport, topic: Entity, message: Make) -> None:
    for name in ("a", "b"):
        assert await transport.admin.create_subscription(topic, name)
        assert not await transport.admin.create_subscription(topic, name)
    await transport.sender(topic).send_batch([message(str(n)) for n in range(3)])
    for name in ("a", "b"):
        deliveries = await transport.receiver(of(name)).receive(10, WAIT)
        assert [d.message.body for d in deliveries] == [b"0", b"1", b"2"]


async def test_an_entry_goes_when_the_last_subscription_is_done(
    transport: Transport, topic: Entity, message: Make
) -> None:
    for name in ("a", "b"):
        await transport.admin.create_subscription(topic, name)
    await transport.sender(topic).send_batch([message(str(n)) for n in range(3)])
    one, other = transport.receiver(of("a")), transport.receiver(of("b"))
    first = await one.receive(10, WAIT)
    assert not any(await one.complete_batch(first))
    assert await stored(transport) == 3  # b has read nothing yet
    second = await other.receive(2, WAIT)
    await other.complete(second[1])
    assert await stored(transport) == 2  # b holds the first, and has the last still to read
    await other.complete(second[0])
    assert await stored(transport) == 1
    [last] = await other.receive(2, WAIT)
    await other.complete(last)
    assert await stored(transport) == 0


async def test_a_subscription_sees_what_is_sent_from_now_on(transport: Transport, topic: Entity, message: Make) -> None:
    await transport.admin.create_subscription(topic, "early")
    await transport.sender(topic).send(message("old"))
    await transport.admin.create_subscription(topic, "late")
    await transport.sender(topic).send(message("new"))
    assert [d.message.body for d in await transport.receiver(of("late")).receive(10, WAIT)] == [b"new"]
    assert [d.message.body for d in await transport.receiver(of("early")).receive(10, WAIT)] == [b"old", b"new"]


async def test_a_topic_without_subscriptions_discards(transport: Transport, topic: Entity, message: Make) -> None:
    sender = transport.sender(topic)
    await sender.send(message("nobody"))
    later = datetime.now(UTC) + timedelta(seconds=60)
    assert await sender.send_batch([message("listens"), message("ever", scheduled_enqueue_at=later)]) == [None, None]
    await transport.admin.probe(topic)
    await transport.admin.create_subscription(topic, "late")
    assert await transport.receiver(of("late")).receive(10, 0) == []


async def test_subscriptions_count_for_themselves(transport: Transport, topic: Entity, message: Make) -> None:
    for name in ("a", "b"):
        await transport.admin.create_subscription(topic, name)
    await transport.sender(topic).send_batch([message(str(n)) for n in range(5)])
    receiver = transport.receiver(of("a"))
    deliveries = await receiver.receive(3, WAIT)
    await receiver.complete(deliveries[0])
    await receiver.dead_letter(deliveries[1], "why", "because")
    a, b = await transport.admin.counts(of("a")), await transport.admin.counts(of("b"))
    assert (a.active, a.locked, a.dead_letter) == (2, 1, 1)
    assert (b.active, b.locked, b.dead_letter) == (5, 0, 0)
    [dead] = await transport.receiver(of("a", dead_letter=True)).receive(5, WAIT)
    assert (dead.message.body, dead.dead_letter_reason) == (b"1", "why")


async def test_peek_and_purge_touch_one_subscription(transport: Transport, topic: Entity, message: Make) -> None:
    for name in ("a", "b"):
        await transport.admin.create_subscription(topic, name)
    await transport.sender(topic).send_batch([message(str(n)) for n in range(4)])
    receiver = transport.receiver(of("a"))
    await receiver.complete((await receiver.receive(1, WAIT))[0])
    await receiver.receive(1, WAIT)
    assert [d.message.body for d in await transport.admin.peek(of("a"), 10)] == [b"1", b"2", b"3"]
    assert [d.message.body for d in await transport.admin.peek(of("a"), 2)] == [b"1", b"2"]
    assert await transport.admin.purge(of("a")) == 3
    assert (await transport.admin.counts(of("a"))).pending == 0
    assert (await transport.admin.counts(of("b"))).active == 4
    assert await transport.admin.purge(of("b")) == 4
    assert await stored(transport) == 0


async def test_a_scheduled_message_reaches_all(transport: Transport, topic: Entity, message: Make) -> None:
    for name in ("a", "b"):
        await transport.admin.create_subscription(topic, name)
    at = datetime.now(UTC) + timedelta(seconds=0.2)
    await transport.sender(topic).send(message("later", scheduled_enqueue_at=at))
    for name in ("a", "b"):
        assert len(await transport.receiver(of(name)).receive(1, WAIT)) == 1


async def test_a_topic_that_does_not_exist_is_refused(transport: Transport) -> None:
    with pytest.raises(TransportError) as caught:
        await transport.admin.create_subscription(PRICES, "a")
    assert caught.value.reason is FailureReason.NOT_FOUND
    await transport.admin.create(PRICES)
    for source in (of("nobody"), of("nobody", dead_letter=True)):
        with pytest.raises(TransportError) as caught:
            await transport.receiver(source).receive(1, 0)
        assert caught.value.reason is FailureReason.NOT_FOUND


async def test_a_deleted_topic_takes_its_subscriptions_along(
    transport: Transport, topic: Entity, message: Make
) -> None:
    await transport.admin.create_subscription(topic, "a")
    await transport.sender(topic).send(message())
    receiver = transport.receiver(of("a"))
    await receiver.dead_letter((await receiver.receive(1, WAIT))[0], "r", "d")
    assert await transport.admin.delete(topic)
    control = transport._context.control  # type: ignore[attr-defined]
    assert await control.call([(b"KEYS", b"*")], Scope()) == [[]]
