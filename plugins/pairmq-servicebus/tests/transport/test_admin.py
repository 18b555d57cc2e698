"""Administration against a local server process."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairmq.model import Entity, EntityKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import QueueProperties, Transport
from pairmq_servicebus.testing import ServiceBusServer
from received import take

pytestmark = pytest.mark.real_server

BACKLOG = QueueProperties(
    max_size_megabytes=5120,
    max_delivery_count=2**31 - 1,
    default_time_to_live=None,
    auto_delete_after=None,
    lock_duration=60.0,
    dead_letter_on_expiration=True,
    batched_operations=True,
)

Make = Callable[..., Message]


def new_name(stem: str = "admin") -> str:
    return f"{stem}/{uuid.uuid4().hex[:10]}"


async def test_the_namespace_answers(transport: Transport) -> None:
    await transport.admin.check()


async def test_a_backlog_queue_is_made_with_exactly_what_was_asked_for(transport: Transport) -> None:
    queue = Entity(f"{new_name()}/x-servicebus-transfer/0")
    assert await transport.admin.create(queue, BACKLOG)
    found = await transport.admin.properties(queue)
    # A server that counts deliveries up to 2000 only gets that: the nearest to no limit.
    assert found.max_delivery_count in (2**31 - 1, 2000)
    assert replace(found, max_delivery_count=2**31 - 1) == BACKLOG
    assert not await transport.admin.create(queue, replace(BACKLOG, lock_duration=30.0))
    assert await transport.admin.properties(queue) == found


async def test_forwarding_and_duplicate_detection_of_a_queue_are_reported(transport: Transport, queue: Entity) -> None:
    plain = await transport.admin.properties(queue)
    assert (plain.forwards_to, plain.drops_duplicates) == (None, False)
    source = Entity(new_name())
    # The stock client would insist on https, which this server does not have.
    client: ServiceBusAdministrationClient = transport.admin._service._good_client()  # type: ignore[attr-defined]
    await client.create_queue(source.path, forward_to=queue.path, requires_duplicate_detection=True)
    found = await transport.admin.properties(source)
    assert found.forwards_to is not None
    assert found.drops_duplicates


async def test_an_unlimited_delivery_count_is_the_largest(transport: Transport) -> None:
    queue = Entity(new_name())
    await transport.admin.create(queue, QueueProperties(lock_duration=None, default_time_to_live=90.5))
    found = await transport.admin.properties(queue)
    assert found.max_delivery_count in (2**31 - 1, 2000)
    assert (found.lock_duration, found.default_time_to_live) == (60.0, 90.5)


async def test_settings_that_the_service_refuses_are_malformed(transport: Transport) -> None:
    for asked in (QueueProperties(lock_duration=3600.0), QueueProperties(lock_duration=-1.0)):
        with pytest.raises(TransportError) as caught:
            await transport.admin.create(Entity(new_name()), asked)
        assert caught.value.reason is FailureReason.MALFORMED


async def test_entities_exist_until_they_are_deleted(transport: Transport) -> None:
    admin, queue, topic = transport.admin, Entity(new_name()), Entity(new_name(), EntityKind.TOPIC)
    assert not await admin.exists(queue)
    for entity in (queue, topic):
        assert await admin.create(entity)
        assert await admin.exists(entity)
    # A topic is no queue.
    assert not await admin.exists(Entity(topic.path))
    assert not await admin.delete(Entity(topic.path))
    with pytest.raises(TransportError) as caught:
        await admin.create(Entity(topic.path))
    assert caught.value.reason is FailureReason.ALREADY_EXISTS
    for entity in (queue, topic):
        assert await admin.delete(entity)
        assert not await admin.delete(entity)
        assert not await admin.exists(entity)


async def test_entities_are_listed_by_path(transport: Transport) -> None:
    stem = uuid.uuid4().hex[:8]
    made = [Entity(f"{stem}/b"), Entity(f"{stem}/a"), Entity(f"{stem}/c", EntityKind.TOPIC)]
    for entity in made:
        await transport.admin.create(entity)
    assert await transport.admin.list_entities(f"{stem}/") == sorted(made, key=lambda entity: entity.path)


async def test_what_does_not_exist_has_no_settings_and_no_counts(transport: Transport) -> None:
    for question in (
        transport.admin.properties(Entity("no-such-queue")),
        transport.admin.counts(Source(Entity("no-such-queue"))),
        transport.admin.create_subscription(Entity("no-such-topic", EntityKind.TOPIC), "s"),
    ):
        with pytest.raises(TransportError) as caught:
            await question
        assert caught.value.reason is FailureReason.NOT_FOUND


async def test_counts_report_what_a_queue_holds(transport: Transport, queue: Entity, message: Make) -> None:
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    later = datetime.now(UTC) + timedelta(hours=1)
    await sender.send_batch([message("a"), message("b"), message("c"), message("d", scheduled_enqueue_at=later)])
    first, _second = await take(receiver, 2)
    await receiver.dead_letter(first, "why", "because")
    counts = await transport.admin.counts(Source(queue))
    # The service counts what is locked among the active ones.
    assert (counts.active, counts.scheduled, counts.dead_letter, counts.pending) == (2, 1, 1, 3)
    dead = await transport.admin.counts(Source(queue, dead_letter=True))
    assert (dead.active, dead.pending) == (1, 1)


async def test_a_subscription_gets_what_is_sent_to_its_topic(transport: Transport, message: Make) -> None:
    topic = Entity(new_name("topic"), EntityKind.TOPIC)
    await transport.admin.create(topic)
    assert await transport.admin.create_subscription(topic, "audit")
    assert not await transport.admin.create_subscription(topic, "audit")
    source = Source(topic, subscription="audit")
    await transport.sender(topic).send_batch([message("one"), message("two", subject="s")])
    assert (await transport.admin.counts(source)).active == 2
    receiver = transport.receiver(source)
    got = await take(receiver, 2)
    assert [delivery.message.body for delivery in got] == [b"one", b"two"]
    await receiver.dead_letter(got[0], "why", "because")
    await receiver.complete(got[1])
    dead = await take(transport.receiver(Source(topic, subscription="audit", dead_letter=True)), 1)
    assert (dead[0].message.body, dead[0].dead_letter_reason) == (b"one", "why")


async def test_peeking_changes_nothing(transport: Transport, queue: Entity, message: Make) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await transport.sender(queue).send_batch(
        [message("later", scheduled_enqueue_at=later), *(message(str(number)) for number in range(5))]
    )
    receiver = transport.receiver(Source(queue))
    locked = await take(receiver, 1)
    for _ in range(2):
        seen = await transport.admin.peek(Source(queue), 4)
        assert [delivery.message.body for delivery in seen] == [b"0", b"1", b"2", b"3"]
    with pytest.raises(TransportError) as caught:
        await receiver.complete(seen[1])
    assert caught.value.reason is FailureReason.LOCK_LOST
    await receiver.complete(locked[0])
    assert (await transport.admin.peek(Source(queue), 1))[0].message.body == b"1"


async def test_peeking_into_an_empty_queue_shows_nothing(transport: Transport, queue: Entity) -> None:
    assert await transport.admin.peek(Source(queue), 10) == []


async def test_purging_empties_a_queue(transport: Transport, queue: Entity, message: Make) -> None:
    await transport.sender(queue).send_batch([message(str(number)) for number in range(30)])
    assert await transport.admin.purge(Source(queue)) == 30
    assert (await transport.admin.counts(Source(queue))).active == 0


async def test_system_entities_are_known_without_asking(transport: Transport) -> None:
    assert transport.admin.is_system_entity(Entity("orders/$DeadLetterQueue"))
    assert transport.admin.is_system_entity(Entity("$cbs"))
    assert not transport.admin.is_system_entity(Entity("orders/dollars"))


@pytest.mark.parametrize("path", ["with space", "a$b", "$cbs", "ümlaut", "a#b", "a?b"])
async def test_a_path_that_service_bus_would_refuse_is_malformed(transport: Transport, path: str) -> None:
    if path == "a?b":
        with pytest.raises(ValueError, match="patterns"):
            Entity(path)
        return
    for use in (lambda: transport.sender(Entity(path)), lambda: transport.receiver(Source(Entity(path)))):
        with pytest.raises(TransportError) as caught:
            use()
        assert caught.value.reason is FailureReason.MALFORMED


async def test_a_wrong_key_is_unauthorized_everywhere_and_shown_nowhere(server: ServiceBusServer) -> None:
    wrong = "c2VjcmV0LXRoYXQtaXMtd3Jvbmc"
    url = f"sb://{server.key_name}:{wrong}@127.0.0.1:{server.port}/?emulator=true&admin=http://127.0.0.1:{server.admin_port}"
    transport = registry.transport(f"{url}&connect-timeout=30")
    queue = Entity("any")
    for call in (
        transport.admin.create(queue),
        transport.admin.exists(queue),
        transport.admin.list_entities(),
        transport.admin.check(),
        transport.sender(queue).send(Message(message_id="m")),
        transport.receiver(Source(queue)).receive(1, 1),
    ):
        with pytest.raises(TransportError) as caught:
            await call
        assert caught.value.reason is FailureReason.UNAUTHORIZED, caught.value
        assert wrong not in repr(caught.value)
    assert wrong not in repr(transport)
    await transport.close()


async def test_a_key_without_manage_can_live_with_queues_that_exist(server: ServiceBusServer, queue: Entity) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401, text="<Error><Code>401</Code><Detail>Manage,EntityRead</Detail></Error>")

    # As a key that may only send and listen meets it: the administration refuses, links do not.
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", refuse)
    async with TestServer(app) as refusing:
        url = server.url.replace(str(server.admin_port), str(refusing.port))
        transport = registry.transport(f"{url}&connect-timeout=30")
        admin = transport.admin
        assert await admin.exists(queue)
        assert not await admin.exists(Entity("no-such-queue"))
        assert not await admin.create(queue, BACKLOG)
        assert await admin.properties(queue) == BACKLOG
        await admin.check()
        with pytest.raises(TransportError, match="Manage") as caught:
            await admin.create(Entity("no-such-queue"), BACKLOG)
        assert caught.value.reason is FailureReason.UNAUTHORIZED
        await transport.close()
