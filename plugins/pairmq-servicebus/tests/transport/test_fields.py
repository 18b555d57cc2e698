"""Every field of a message through a local server process, and the probe."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import QueueProperties, Transport
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

Make = Callable[..., Message]
PATIENCE = 30.0  # s for what must come

PROPERTIES = {
    "text": "grün ✓",
    "empty": "",
    "bytes": b"\x00\xff",
    "text in bytes": b"plain",
    "yes": True,
    "no": False,
    "small": 7,
    "negative": -1,
    "int32": 2**31 - 1,
    "beyond 32 bits": 2**31,
    "int64": -(2**63),
    "real": 0.1,
    "large": 1e308,
    "nothing": None,
    "uuid": uuid.UUID(int=2**127 + 1),
    "decimal": Decimal("1.50"),
    "whole ms": datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
    "µs": datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC),
    "long ago": datetime(1, 1, 2, tzinfo=UTC),
    "nested": (1, ("two", b"\xff"), {"three": Decimal("3.00"), "$bytes": None}),
    "mapping": {"a": {"b": ()}},
    "x-ms-path": "somewhere",
    "x-pairmq-fields": "mine",
}


async def there_and_back(transport: Transport, queue: Entity, message: Message) -> Message:
    await transport.sender(queue).send(message)
    receiver = transport.receiver(Source(queue))
    [delivery] = await receiver.receive(1, PATIENCE)
    await receiver.complete(delivery)
    await receiver.close()
    return delivery.message


async def test_every_field_and_property_comes_back(transport: Transport, queue: Entity) -> None:
    sent = Message(
        b"\x00body\xff" * 100,
        message_id="m" * 128,
        session_id="s",
        partition_key="s",
        time_to_live=3600.000001,
        content_type="application/json",
        content_encoding="gzip",
        correlation_id="c",
        subject="label",
        to="there",
        reply_to="here",
        reply_to_session_id="r",
        priority=9,
        application_properties=PROPERTIES,
    )
    back = await there_and_back(transport, queue, sent)
    assert back == sent
    for name, value in sent.application_properties.items():
        assert type(back.application_properties[name]) is type(value), name


@pytest.mark.parametrize("seconds", [0.75, 1.5, 7200.0015, 50 * 86400.0, 1e9])
async def test_a_time_to_live_comes_back_exactly(
    transport: Transport, queue: Entity, message: Make, seconds: float
) -> None:
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    await receiver.receive(1, 0)
    got: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while not got:
            # Who is held up for as long as it lives gets nothing, and tries again.
            await sender.send(message(time_to_live=seconds))
            got = await receiver.receive(1, min(seconds, PATIENCE))
    assert got[0].message.time_to_live == seconds


async def test_a_schedule_in_the_past_is_no_schedule(transport: Transport, queue: Entity, message: Make) -> None:
    sent = message("x", scheduled_enqueue_at=datetime.now(UTC) - timedelta(seconds=5, microseconds=1))
    assert await there_and_back(transport, queue, sent) == sent


async def test_a_message_without_fields_has_none(transport: Transport, queue: Entity, message: Make) -> None:
    sent = message(b"")
    assert await there_and_back(transport, queue, sent) == sent


async def test_other_clients_read_what_we_send(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    await transport.sender(queue).send(
        message("content", subject="s", time_to_live=600.0, application_properties={"n": 5, "t": "x", "at": at})
    )
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue.path) as other,
    ):
        [received] = await other.receive_messages(1, PATIENCE)
        assert b"".join(received.body) == b"content"
        assert (received.subject, received.time_to_live) == ("s", timedelta(seconds=600))
        found = received.application_properties or {}
        assert (found[b"n"], found[b"t"], found[b"at"]) == (5, b"x", int(at.timestamp() * 1000))
        await other.complete_message(received)


async def test_we_read_what_other_clients_send(transport: Transport, server: ServiceBusServer, queue: Entity) -> None:
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(queue.path) as other,
    ):
        await other.send_messages(
            ServiceBusMessage("hello", subject="s", application_properties={"n": 5, "t": "x", "b": True, "f": 0.5})
        )
    [delivery] = await transport.receiver(Source(queue)).receive(1, PATIENCE)
    assert (delivery.message.body, delivery.message.subject) == (b"hello", "s")
    assert delivery.message.application_properties == {"n": 5, "t": "x", "b": True, "f": 0.5}


# The probe.


async def test_a_ping_is_accepted_and_never_delivered(transport: Transport, queue: Entity) -> None:
    for _ in range(3):
        await transport.admin.probe(queue)
    assert (await transport.admin.counts(Source(queue))).pending == 0
    assert await transport.receiver(Source(queue)).receive(1, 0.3) == []


async def test_a_ping_of_a_queue_with_sessions_has_one(transport: Transport) -> None:
    queue = Entity(f"sessions/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(queue, QueueProperties(requires_session=True))
    for _ in range(2):
        await transport.admin.probe(queue)
    assert (await transport.admin.counts(Source(queue))).pending == 0


async def test_a_topic_is_pinged_as_well(transport: Transport) -> None:
    topic = Entity(f"topic/{uuid.uuid4().hex[:10]}", EntityKind.TOPIC)
    await transport.admin.create(topic)
    await transport.admin.create_subscription(topic, "s")
    await transport.admin.probe(topic)
    assert (await transport.admin.counts(Source(topic, subscription="s"))).pending == 0


async def test_a_ping_fails_where_a_send_would(transport: Transport, server: ServiceBusServer, queue: Entity) -> None:
    with pytest.raises(TransportError) as caught:
        await transport.admin.probe(Entity("no-such-queue"))
    assert caught.value.reason is FailureReason.NOT_FOUND
    await transport.admin.probe(queue)
    server.fault({"at": "send", "action": "error", "condition": "com.microsoft:entity-disabled", "times": 1})
    with pytest.raises(TransportError) as caught:
        await transport.admin.probe(queue)
    assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.DISABLED)
    server.kill()
    with pytest.raises(TransportError) as caught:
        await transport.admin.probe(queue)
    assert caught.value.kind is FailureKind.UNAVAILABLE
    server.start()
    await transport.admin.create(queue)
    await transport.admin.probe(queue)
