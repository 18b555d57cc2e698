"""Programs written for azure.servicebus run unchanged on the paired client, and survive the primary's end there."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairmq import EntityState, Receipt, Route
from pairmq_servicebus.paired import PairedServiceBusClient
from pairmq_servicebus.paired.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

_ID = uuid.uuid4()
_COUNT = 8
PATIENCE = 100.0  # s


def a_message(number: int) -> ServiceBusMessage:
    """With every field that an application can set."""
    message = ServiceBusMessage(
        f"order {number}",
        application_properties={
            "number": number,
            "large": 2**31 - 1,
            "price": 1.5,
            "paid": True,
            "id": _ID,
            "text": "schön",
            "raw": b"bytes",
            b"key": "of bytes",
            "nothing": None,  # type: ignore[dict-item]  # the client takes it
        },
        session_id=f"customer {number}",
        message_id=f"order-{number}",
        time_to_live=timedelta(hours=2),
        content_type="text/plain",
        correlation_id="request 7",
        subject="order",
        partition_key=f"customer {number}",
        to="shop",
        reply_to="answers",
        reply_to_session_id="customer",
    )
    assert message.raw_amqp_message.properties is not None
    message.raw_amqp_message.properties.content_encoding = "identity"
    return message


def seen(message: Any) -> dict[str, Any]:
    """What a consumer sees of it."""
    return {
        "body": b"".join(message.body),
        "application_properties": message.application_properties,
        "session_id": message.session_id,
        "message_id": message.message_id,
        "time_to_live": message.time_to_live,
        "content_type": message.content_type,
        "correlation_id": message.correlation_id,
        "subject": message.subject,
        "partition_key": message.partition_key,
        "to": message.to,
        "reply_to": message.reply_to,
        "reply_to_session_id": message.reply_to_session_id,
        "scheduled": message.scheduled_enqueue_time_utc,
        "content_encoding": message.raw_amqp_message.properties.content_encoding,
        "body_type": message.body_type,
    }


def in_the_middle() -> None:
    """What happens half-way through a program: nothing, unless a test says otherwise."""


# The two programs. Nothing in them knows of pairs.


def program(client: ServiceBusClient, queue: str, half_way: Callable[[], None] = in_the_middle) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(a_message(0))
        sender.send_messages([a_message(1), a_message(2)])
        half_way()
        batch = sender.create_message_batch()
        batch.add_message(a_message(3))
        batch.add_message(a_message(4))
        sender.send_messages(batch)
        sender.send_messages([])
        sender.send_messages({"body": "from a mapping", "message_id": "5"})  # type: ignore[arg-type]
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"annotated", properties={"message_id": "6"}))
        sender.send_messages(a_message(7), timeout=50)


def consumer(client: ServiceBusClient, queue: str) -> list[dict[str, Any]]:
    found = []
    with client.get_queue_receiver(queue, max_wait_time=PATIENCE) as receiver:
        while len(found) < _COUNT:
            for message in receiver.receive_messages(max_message_count=_COUNT):
                found.append(seen(message))
                receiver.complete_message(message)
    return sorted(found, key=lambda fields: str(fields["message_id"]))


async def async_program(
    client: AsyncServiceBusClient, queue: str, half_way: Callable[[], None] = in_the_middle
) -> None:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(a_message(0))
        await sender.send_messages([a_message(1), a_message(2)])
        half_way()
        batch = await sender.create_message_batch()
        batch.add_message(a_message(3))
        batch.add_message(a_message(4))
        await sender.send_messages(batch)
        await sender.send_messages([])
        await sender.send_messages({"body": "from a mapping", "message_id": "5"})
        await sender.send_messages(AmqpAnnotatedMessage(data_body=b"annotated", properties={"message_id": "6"}))
        await sender.send_messages(a_message(7), timeout=50)


async def async_consumer(client: AsyncServiceBusClient, queue: str) -> list[dict[str, Any]]:
    found = []
    async with client.get_queue_receiver(queue, max_wait_time=PATIENCE) as receiver:
        while len(found) < _COUNT:
            for message in await receiver.receive_messages(max_message_count=_COUNT):
                found.append(seen(message))
                await receiver.complete_message(message)
    return sorted(found, key=lambda fields: str(fields["message_id"]))


def expected(primary: ServiceBusServer, queue: str) -> list[dict[str, Any]]:
    """What the client itself brings about."""
    with ServiceBusClient.from_connection_string(primary.connection_string) as client:
        program(client, queue)
        return consumer(client, queue)


def test_a_program_sees_no_difference(
    primary: ServiceBusServer, make_queue: Callable[..., str], given: dict[str, Any]
) -> None:
    wanted = expected(primary, make_queue())
    queue = make_queue()
    with PairedServiceBusClient.from_connection_string(primary.connection_string, **given) as client:
        program(client, queue)  # type: ignore[arg-type]
        assert consumer(client, queue) == wanted  # type: ignore[arg-type]


async def test_an_asyncio_program_sees_no_difference(
    primary: ServiceBusServer, make_queue: Callable[..., str], given: dict[str, Any]
) -> None:
    wanted = await asyncio.to_thread(expected, primary, await asyncio.to_thread(make_queue))
    queue = await asyncio.to_thread(make_queue)
    async with AsyncServiceBusClient.from_connection_string(primary.connection_string) as own:
        await async_program(own, queue)
        assert await async_consumer(own, queue) == wanted
    async with AsyncPairedServiceBusClient.from_connection_string(primary.connection_string, **given) as client:
        await async_program(client, queue)  # type: ignore[arg-type]
        assert await async_consumer(client, queue) == wanted  # type: ignore[arg-type]


def test_a_program_survives_the_primary_killed_under_it(
    primary: ServiceBusServer, make_queue: Callable[..., str], given: dict[str, Any]
) -> None:
    wanted = expected(primary, make_queue())
    queue = make_queue()
    receipts: list[Receipt] = []
    states = []
    with PairedServiceBusClient.from_connection_string(
        primary.connection_string, on_receipt=receipts.append, **given
    ) as client:
        program(client, queue, half_way=primary.kill)  # type: ignore[arg-type]
        states.append(client.state(queue))
        primary.start()
        deadline = time.monotonic() + 2 * PATIENCE
        while client.state(queue) is not EntityState.HEALTHY and time.monotonic() < deadline:
            time.sleep(0.05)
        states.append(client.state(queue))
        assert consumer(client, queue) == wanted  # type: ignore[arg-type]
    assert states == [EntityState.FAILED_OVER, EntityState.HEALTHY]
    assert [receipt.route for receipt in receipts] == [Route.PRIMARY] * 3 + [Route.BACKLOG] * 5


async def test_an_asyncio_program_survives_the_primary_killed_under_it(
    primary: ServiceBusServer, make_queue: Callable[..., str], given: dict[str, Any]
) -> None:
    wanted = await asyncio.to_thread(expected, primary, await asyncio.to_thread(make_queue))
    queue = await asyncio.to_thread(make_queue)
    async with AsyncPairedServiceBusClient.from_connection_string(primary.connection_string, **given) as client:
        await async_program(client, queue, half_way=primary.kill)  # type: ignore[arg-type]
        assert client.state(queue) is EntityState.FAILED_OVER
        primary.start()
        async with asyncio.timeout(2 * PATIENCE):
            while client.pair.state(queue) is not EntityState.HEALTHY:
                await asyncio.sleep(0.05)
        assert await async_consumer(client, queue) == wanted  # type: ignore[arg-type]


def test_a_schedule_and_a_session_come_through_an_outage(
    primary: ServiceBusServer, make_queue: Callable[..., str], given: dict[str, Any]
) -> None:
    queue = make_queue(sessions=True)
    due = (datetime.now(UTC) + timedelta(seconds=5)).replace(microsecond=123_456)
    with PairedServiceBusClient.from_connection_string(primary.connection_string, **given) as client:
        with client.get_queue_sender(queue) as sender:
            primary.kill()
            sender.send_messages(ServiceBusMessage(b"later", session_id="a", scheduled_enqueue_time_utc=due))
            sender.send_messages(ServiceBusMessage(b"now", session_id="b"))
            primary.start()
        with client.get_queue_receiver(queue, session_id="b", max_wait_time=1.5 * PATIENCE) as receiver:
            (now,) = receiver.receive_messages()
            assert bytes(next(now.body)) == b"now"
            receiver.complete_message(now)
        with client.get_queue_receiver(queue, session_id="a", max_wait_time=1.5 * PATIENCE) as receiver:
            (later,) = receiver.receive_messages()
            assert datetime.now(UTC) >= due.replace(microsecond=123_000)
            assert later.scheduled_enqueue_time_utc == due.replace(microsecond=123_000)
            assert later.application_properties is None
            receiver.complete_message(later)
