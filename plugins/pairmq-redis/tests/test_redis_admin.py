"""Administration: entities, settings, counts, and a probe that nobody sees."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from pairmq.model import Entity, EntityKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import QueueCounts, QueueProperties, Scope, Transport
from pairmq_redis.testing import RedisServer
from redis_queue import WAIT, end_locks, hasten, key

Make = Callable[..., Message]
ASKED = QueueProperties(
    max_size_megabytes=5120,
    max_delivery_count=2**31 - 1,
    default_time_to_live=None,
    auto_delete_after=None,
    lock_duration=60,
    dead_letter_on_expiration=True,
    batched_operations=True,
)


async def test_creating_twice_changes_nothing(transport: Transport) -> None:
    entity = Entity("contoso/x-servicebus-transfer/0")
    assert not await transport.admin.exists(entity)
    assert await transport.admin.create(entity, ASKED)
    assert await transport.admin.exists(entity)
    assert not await transport.admin.create(entity, QueueProperties(lock_duration=1))
    assert ASKED.differences(await transport.admin.properties(entity)) == ()
    assert not transport.admin.is_system_entity(entity)


async def test_defaults_of_a_queue(transport: Transport) -> None:
    await transport.admin.create(Entity("plain"))
    assert await transport.admin.properties(Entity("plain")) == QueueProperties()
    await transport.admin.create(Entity("bound"), QueueProperties(lock_duration=None))
    assert (await transport.admin.properties(Entity("bound"))).lock_duration == 60


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("lock_duration", value) for value in (math.inf, math.nan, -1, 0, 1e300)),
        *(("default_time_to_live", value) for value in (math.nan, -1)),
        *(("max_delivery_count", value) for value in (2.5, 0, -1)),
    ],
)
async def test_a_setting_that_redis_cannot_keep_to_is_refused(transport: Transport, setting: str, value: float) -> None:
    with pytest.raises(TransportError, match=setting) as caught:
        await transport.admin.create(Entity("q"), QueueProperties(**{setting: value}))  # type: ignore[arg-type]
    assert caught.value.reason is FailureReason.MALFORMED
    assert not await transport.admin.exists(Entity("q"))


async def test_a_name_belongs_to_one_kind(transport: Transport) -> None:
    await transport.admin.create(Entity("one"))
    topic = Entity("one", EntityKind.TOPIC)
    with pytest.raises(TransportError) as caught:
        await transport.admin.create(topic)
    assert caught.value.reason is FailureReason.ALREADY_EXISTS
    assert not await transport.admin.exists(topic)
    assert not await transport.admin.delete(topic)
    with pytest.raises(TransportError):
        await transport.admin.properties(topic)


async def test_deleting_takes_everything(transport: Transport, queue: Entity, message: Make) -> None:
    later = datetime.now(UTC) + timedelta(seconds=60)
    await transport.sender(queue).send_batch([message(), message(scheduled_enqueue_at=later)])
    assert await transport.admin.delete(queue)
    assert not await transport.admin.delete(queue)
    assert not await transport.admin.exists(queue)
    control = transport._context.control  # type: ignore[attr-defined]
    assert await control.call([(b"KEYS", b"*")], Scope()) == [[]]


async def test_what_does_not_exist_is_reported(transport: Transport) -> None:
    nobody = Entity("nobody")
    calls = (
        transport.admin.properties(nobody),
        transport.admin.counts(Source(nobody)),
        transport.admin.peek(Source(nobody), 1),
        transport.admin.purge(Source(nobody)),
        transport.admin.counts(Source(nobody, dead_letter=True)),
        transport.admin.probe(nobody),
        transport.admin.probe(Entity("nobody", EntityKind.TOPIC)),
    )
    for call in calls:
        with pytest.raises(TransportError) as caught:
            await call
        assert caught.value.reason is FailureReason.NOT_FOUND


@pytest.mark.parametrize("others", [(), ("other",)])
async def test_a_missing_subscription_is_reported(transport: Transport, others: tuple[str, ...]) -> None:
    topic = Entity("news", EntityKind.TOPIC)
    await transport.admin.create(topic)
    for other in others:
        await transport.admin.create_subscription(topic, other)
    for source in (Source(topic, subscription="no"), Source(topic, subscription="no", dead_letter=True)):
        calls = (
            transport.admin.counts(source),
            transport.admin.peek(source, 1),
            transport.admin.purge(source),
            transport.receiver(source).receive(1, 0),
        )
        for call in calls:
            with pytest.raises(TransportError) as caught:
                await call
            assert caught.value.reason is FailureReason.NOT_FOUND, source


async def test_what_cannot_be_made_whole_is_not_made(transport: Transport) -> None:
    entity, topic = Entity("taken"), Entity("news", EntityKind.TOPIC)
    await transport.admin.create(topic)
    control = transport._context.control  # type: ignore[attr-defined]
    taken = (key(entity, "dead"), key(topic, "dead:s"))
    await control.call([(b"SET", name, b"somebody else's") for name in taken], Scope())
    for call in (transport.admin.create(entity), transport.admin.create_subscription(topic, "s")):
        with pytest.raises(TransportError) as caught:
            await call
        assert caught.value.reason is FailureReason.DISABLED
    made = (key(entity, "meta"), key(entity, "queue"), key(topic, "topic"))
    assert await control.call([(b"EXISTS", *made)], Scope()) == [0]


async def test_a_receive_from_a_lost_stream_keeps_what_is_scheduled(
    transport: Transport, queue: Entity, message: Make
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await transport.sender(queue).send(message("kept", scheduled_enqueue_at=later))
    await hasten(transport, queue, 7200)
    control = transport._context.control  # type: ignore[attr-defined]
    await control.call([(b"DEL", key(queue, "queue"))], Scope())
    receiver = transport.receiver(Source(queue))
    with pytest.raises(TransportError) as caught:
        await receiver.receive(1, 0)
    assert caught.value.reason is FailureReason.NOT_FOUND
    assert await transport.admin.create(queue)
    assert [d.message.body for d in await receiver.receive(1, WAIT)] == [b"kept"]


async def test_entities_are_listed_by_path(transport: Transport) -> None:
    for path in ("b", "a/1", "a/2", "a-star", "ab"):
        await transport.admin.create(Entity(path))
    await transport.admin.create(Entity("a/topic", EntityKind.TOPIC))
    await transport.admin.create_subscription(Entity("a/topic", EntityKind.TOPIC), "s")
    assert [e.path for e in await transport.admin.list_entities()] == ["a-star", "a/1", "a/2", "a/topic", "ab", "b"]
    assert await transport.admin.list_entities("a/t") == [Entity("a/topic", EntityKind.TOPIC)]
    assert await transport.admin.list_entities("*") == []
    assert await transport.admin.list_entities("[a]") == []
    assert [e.path for e in await transport.admin.list_entities("a-")] == ["a-star"]


async def test_foreign_keys_are_no_entities(transport: Transport) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    await control.call(
        [(b"HSET", b"pairmq:{odd*}:meta", b"kind", b"queue"), (b"HSET", b"pairmq:{kind}:meta", b"kind", b"x")], Scope()
    )
    await control.call([(b"SET", b"pairmq:{text}:meta", b"queue")], Scope())
    assert await transport.admin.list_entities() == []


async def test_counts_are_exact(transport: Transport, queue: Entity, message: Make) -> None:
    later = datetime.now(UTC) + timedelta(seconds=60)
    await transport.sender(queue).send_batch([message(str(n)) for n in range(6)])
    await transport.sender(queue).send(message(scheduled_enqueue_at=later))
    receiver = transport.receiver(Source(queue))
    deliveries = await receiver.receive(4, WAIT)
    await receiver.complete(deliveries[0])
    await receiver.dead_letter(deliveries[1], "r", "d")
    await receiver.abandon(deliveries[2])
    assert await transport.admin.counts(Source(queue)) == QueueCounts(active=3, locked=1, scheduled=1, dead_letter=1)
    dead = await transport.admin.counts(Source(queue, dead_letter=True))
    assert dead == QueueCounts(active=1)
    await end_locks(transport, queue)
    assert await transport.admin.counts(Source(queue)) == QueueCounts(active=4, scheduled=1, dead_letter=1)


async def test_peek_locks_and_changes_nothing(transport: Transport, queue: Entity, message: Make) -> None:
    await transport.sender(queue).send_batch([message(str(n)) for n in range(3)])
    receiver = transport.receiver(Source(queue))
    [held] = await receiver.receive(1, WAIT)
    before = await transport.admin.counts(Source(queue))
    shown = await transport.admin.peek(Source(queue), 2)
    assert [d.message.body for d in shown] == [b"0", b"1"]
    assert await transport.admin.counts(Source(queue)) == before
    with pytest.raises(TransportError) as caught:
        await receiver.complete(shown[1])
    assert caught.value.reason is FailureReason.LOCK_LOST
    await receiver.complete(held)


async def test_peek_shows_what_is_scheduled_last_and_soonest_first(
    transport: Transport, queue: Entity, message: Make
) -> None:
    sender, soon = transport.sender(queue), datetime.now(UTC) + timedelta(hours=1)
    await sender.send(message("late", scheduled_enqueue_at=soon + timedelta(hours=2)))
    await sender.send(message("due", scheduled_enqueue_at=soon))
    await sender.send(message("now"))
    await hasten(transport, queue, 7200)  # nobody receives, so that what is due stays where it is
    before = await transport.admin.counts(Source(queue))
    assert [d.message.body for d in await transport.admin.peek(Source(queue), 10)] == [b"now", b"due", b"late"]
    assert [d.message.body for d in await transport.admin.peek(Source(queue), 2)] == [b"now", b"due"]
    assert await transport.admin.counts(Source(queue)) == before


async def test_purge_takes_locked_and_scheduled_ones_too(transport: Transport, queue: Entity, message: Make) -> None:
    later = datetime.now(UTC) + timedelta(seconds=60)
    await transport.sender(queue).send_batch([message(str(n)) for n in range(5)])
    await transport.sender(queue).send(message(scheduled_enqueue_at=later))
    receiver = transport.receiver(Source(queue))
    first, second = await receiver.receive(2, WAIT)
    await receiver.dead_letter(first, "r", "d")
    assert len(await transport.receiver(Source(queue)).receive(10, WAIT)) == 3
    assert await transport.admin.purge(Source(queue)) == 5
    assert await transport.admin.counts(Source(queue)) == QueueCounts(dead_letter=1)
    with pytest.raises(TransportError) as caught:
        await receiver.complete(second)
    assert caught.value.reason is FailureReason.LOCK_LOST
    assert await transport.admin.purge(Source(queue, dead_letter=True)) == 1
    assert await transport.admin.purge(Source(queue)) == 0
    await transport.sender(queue).send(message("goes on"))
    assert len(await receiver.receive(1, WAIT)) == 1


async def test_no_consumer_ever_sees_a_probe(transport: Transport, queue: Entity, message: Make) -> None:
    waiting = asyncio.create_task(transport.receiver(Source(queue)).receive(10, WAIT))
    await asyncio.sleep(0.05)
    for _ in range(20):
        await transport.admin.probe(queue)
    await transport.sender(queue).send(message("real"))
    assert [d.message.body for d in await waiting] == [b"real"]
    assert await transport.receiver(Source(queue)).receive(10, 0) == []
    counts = await transport.admin.counts(Source(queue))
    assert (counts.active, counts.locked) == (0, 1)


async def test_a_probe_finds_a_key_of_the_wrong_type(transport: Transport, queue: Entity) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    await control.call([(b"SET", key(queue, "queue"), b"overwritten")], Scope())
    for call in (transport.admin.probe(queue), transport.sender(queue).send(Message(message_id="1"))):
        with pytest.raises(TransportError) as caught:
            await call
        assert caught.value.reason is FailureReason.DISABLED


async def test_check_makes_a_round_trip(transport: Transport) -> None:
    await transport.admin.check()


async def test_lost_settings_are_reported_as_defaults(transport: Transport, queue: Entity) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    for text in (b"[1]", b"{", b'{"unknown":1}'):
        await control.call([(b"HSET", key(queue, "meta"), b"settings", text)], Scope())
        assert await transport.admin.properties(queue) == QueueProperties()


async def test_what_has_no_sessions_is_not_made_to_require_them(transport: Transport) -> None:
    with pytest.raises(TransportError) as caught:
        await transport.admin.create(Entity("sessions"), QueueProperties(requires_session=True))
    assert caught.value.reason is FailureReason.NOT_SUPPORTED
    assert not await transport.admin.exists(Entity("sessions"))
    with pytest.raises(TransportError) as caught:
        await transport.accept_session(Source(Entity("sessions")), "s", wait=0)
    assert caught.value.reason is FailureReason.NOT_SUPPORTED


@pytest.mark.real_server
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), []),
        (("--appendonly", "no"), ["appendonly is no: a server that ends loses everything"]),
        (("--appendonly", "no", "--save", "60 1000"), ["loses all since the last snapshot (save 60 1000)"]),
        (
            ("--appendfsync", "everysec"),
            ["appendfsync is everysec: a machine that crashes or loses power loses the last"],
        ),
        (("--maxmemory-policy", "allkeys-lru"), ["as soon as maxmemory is set, the server deletes whole queues"]),
        (("--maxmemory-policy", "volatile-ttl", "--maxmemory", "1gb"), ["deletes claims of deduplicators"]),
        (("--rename-command", "CONFIG", ""), ["it is unknown what a confirm is worth"]),
    ],
)
async def test_confirm_risks_name_each_setting_that_may_lose_what_was_confirmed(options, expected) -> None:
    with RedisServer(appendfsync="always", options=options) as server:
        async with registry.transport(server.url) as transport:
            risks = await transport.admin.confirm_risks()
            assert await transport.admin.confirm_risks(Entity("orders")) == ()
    assert len(risks) == len(expected)
    for risk, words in zip(risks, expected, strict=True):
        assert words in risk.text
        assert risk.advice
