"""The probe on a real server: it fails when sends would, and no consumer ever sees it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cut_calls import given_up, turns_until_done
from foreign_channel import foreign
from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import Transport
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

QUEUE = Entity("orders")
PING_QUEUE = "pairmq.ping"  # as documented: operators see it
TOPIC = Entity("prices", EntityKind.TOPIC)


def declare(server: RabbitServer, queue: str = "orders", **arguments: Any) -> None:
    with foreign(server) as channel:
        channel.queue_declare(queue, durable=True, arguments={k.replace("_", "-"): v for k, v in arguments.items()})


def take(server: RabbitServer, count: int, queue: str = "orders") -> None:
    with foreign(server) as channel:
        for _ in range(count):
            assert channel.basic_get(queue, auto_ack=True)[0] is not None


@pytest.fixture
async def transport(rabbit: RabbitServer) -> AsyncIterator[Transport]:
    async with registry.transport(f"{rabbit.url}?connect_timeout=30") as transport:
        yield transport


async def failure(transport: Transport, entity: Entity = QUEUE) -> tuple[FailureKind, FailureReason]:
    with pytest.raises(TransportError) as caught:
        await transport.admin.probe(entity)
    return caught.value.kind, caught.value.reason


async def send(transport: Transport, entity: Entity = QUEUE) -> TransportError | None:
    return (await transport.sender(entity).send_batch([Message(b"x", message_id="m")]))[0]


async def test_no_consumer_sees_a_ping_and_the_ping_queue_does_not_grow(
    transport: Transport, rabbit: RabbitServer
) -> None:
    await transport.admin.create(QUEUE)
    await transport.admin.create(TOPIC)
    await transport.admin.create_subscription(TOPIC, "s")
    reading = [
        asyncio.create_task(transport.receiver(source).receive(10, 3)) for source in (Source(QUEUE), Source(TOPIC, "s"))
    ]
    await asyncio.sleep(0.3)
    for _ in range(50):
        await asyncio.gather(*(transport.admin.probe(entity) for entity in (QUEUE, TOPIC)))
    assert await asyncio.gather(*reading) == [[], []]
    assert rabbit.queues()[PING_QUEUE] == (1, 0)
    assert transport.admin.is_system_entity(Entity(PING_QUEUE))


async def test_what_is_missing(transport: Transport, rabbit: RabbitServer) -> None:
    missing = (FailureKind.REFUSED, FailureReason.NOT_FOUND)
    assert await failure(transport) == await failure(transport, TOPIC) == missing
    await transport.admin.create(QUEUE)
    await transport.admin.probe(QUEUE)
    rabbit.delete_queue("orders")
    assert await failure(transport) == missing


async def test_ping_queue_is_created_again_when_deleted(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit)
    await transport.admin.probe(QUEUE)
    rabbit.delete_queue(PING_QUEUE)
    await asyncio.gather(*(transport.admin.probe(QUEUE) for _ in range(10)))
    assert rabbit.queues()[PING_QUEUE] == (1, 0)


async def test_an_alarm_fails_the_probe_until_it_ends(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit)
    await transport.admin.probe(QUEUE)
    rabbit.block()
    for _ in range(3):
        probing = asyncio.create_task(transport.admin.probe(QUEUE))
        await asyncio.wait((probing,), timeout=0.3)
        probing.cancel()
        assert await turns_until_done(probing)
        with pytest.raises((TransportError, asyncio.CancelledError)):
            await probing
    # The broker says that it has blocked a connection when something is published there.
    async with asyncio.timeout(30):
        assert await failure(transport) == (FailureKind.UNAVAILABLE, FailureReason.QUOTA)
    rabbit.unblock()
    async with asyncio.timeout(30):
        while True:
            try:
                await transport.admin.probe(QUEUE)
                break
            except TransportError:
                await asyncio.sleep(0.02)
    assert await send(transport) is None


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_full_queue_fails_the_probe_until_there_is_room(
    transport: Transport, rabbit: RabbitServer, queue_type: str
) -> None:
    declare(rabbit, x_queue_type=queue_type, x_max_length=5, x_overflow="reject-publish")
    await transport.admin.probe(QUEUE)
    refused = None
    for _ in range(40):
        refused = await send(transport)
        if refused is not None:
            break
    assert refused is not None
    assert refused.reason is FailureReason.QUOTA
    for _ in range(3):
        assert await failure(transport) == (FailureKind.UNAVAILABLE, FailureReason.QUOTA)
    take(rabbit, 3)
    await transport.admin.probe(QUEUE)
    assert await send(transport) is None
    await transport.admin.probe(QUEUE)


async def test_a_queue_that_was_full_and_is_empty_has_room(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit)
    full = transport._context.full
    full["orders"] = 0, math.inf
    await transport.admin.probe(QUEUE)
    assert "orders" not in full


async def test_pings_leave_messages_alone_that_a_late_leader_did_not_count(
    transport: Transport, rabbit: RabbitServer
) -> None:
    """RabbitMQ reports an empty queue then. What a ping fetches is delivered once more, and no longer in its place."""
    declare(rabbit, "größe", x_queue_type="quorum")
    queue = Entity("größe")
    for body in (b"a", b"b", b"c"):
        await transport.sender(queue).send(Message(body, message_id=body.decode()))
    rabbit.erl("[sys:suspend(rabbit_amqqueue:pid_of(Q)) || Q <- rabbit_amqqueue:list()]")
    async with asyncio.TaskGroup() as pings, registry.transport(rabbit.url) as other:
        pings.create_task(transport.admin.probe(queue))
        pings.create_task(other.admin.probe(queue))
        await asyncio.sleep(1)  # longer than RabbitMQ waits for the leader
        rabbit.erl("[sys:resume(rabbit_amqqueue:pid_of(Q)) || Q <- rabbit_amqqueue:list()]")
        await transport.admin.probe(queue)
    with foreign(rabbit) as channel:
        came: list[tuple[bytes, bool]] = []
        while len(came) < 3:
            method, _, body = channel.basic_get("größe", auto_ack=True)
            if body is not None:
                came.append((body, method.redelivered))
    assert came == [(b"a", False), (b"b", False), (b"c", False)]


async def test_the_mark_of_a_full_queue_rises_with_it(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit)
    full = transport._context.full
    for _ in range(4):
        await send(transport)
    full["orders"] = 2, math.inf
    assert await failure(transport) == (FailureKind.UNAVAILABLE, FailureReason.QUOTA)
    assert full["orders"] == (4, math.inf)
    take(rabbit, 1)
    await transport.admin.probe(QUEUE)
    assert full == {}


async def test_probe_works_when_the_user_may_not_create_the_ping_queue(rabbit: RabbitServer) -> None:
    declare(rabbit)
    with foreign(rabbit) as channel:
        channel.exchange_declare("prices", "topic", durable=True)
    rabbit.add_user("writer", "secret", configure="", read="")
    async with registry.transport(rabbit.url_for("writer", "secret")) as transport:
        for _ in range(3):
            await transport.admin.probe(QUEUE)
            await transport.admin.probe(TOPIC)
        rabbit.block()
        with pytest.raises((TransportError, TimeoutError)):
            async with asyncio.timeout(0.3):
                await transport.admin.probe(QUEUE)
        rabbit.unblock()
    assert set(rabbit.queues()) == {"orders"}


async def test_a_user_who_may_write_to_one_exchange_only(rabbit: RabbitServer) -> None:
    declare(rabbit)
    with foreign(rabbit) as channel:
        channel.exchange_declare("prices", "topic", durable=True)
    rabbit.add_user("writer", "secret", configure="", read="", write="^prices$")
    async with registry.transport(rabbit.url_for("writer", "secret")) as transport:
        await transport.admin.probe(TOPIC)
        assert await failure(transport) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED)


async def test_a_ping_queue_that_rejects_is_not_needed(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit)
    declare(rabbit, PING_QUEUE, x_max_length=0, x_overflow="reject-publish")
    for _ in range(3):
        await transport.admin.probe(QUEUE)


async def test_probe_fails_when_the_broker_is_unresponsive_or_down(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit)
    await transport.admin.probe(QUEUE)
    rabbit.pause()
    await asyncio.sleep(0.1)  # its threads stop one after the other
    for _ in range(3):
        await given_up(transport.admin.probe(QUEUE))
    rabbit.resume()
    await transport.admin.probe(QUEUE)
    rabbit.go_down()
    assert (await failure(transport))[0] is FailureKind.UNAVAILABLE
    rabbit.come_up()
    await transport.admin.probe(QUEUE)


async def test_a_cancelled_probe_leaves_the_next_one_alone(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit)
    await transport.admin.probe(QUEUE)
    for turn in range(30):
        task = asyncio.create_task(transport.admin.probe(QUEUE))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        await transport.admin.probe(QUEUE)


async def test_closing_ends_a_probe(rabbit: RabbitServer) -> None:
    declare(rabbit)
    transport = registry.transport(rabbit.url)
    await transport.admin.probe(QUEUE)
    rabbit.block()
    probing = asyncio.create_task(transport.admin.probe(QUEUE))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(30):
        await transport.close()
    with pytest.raises(TransportError):
        await probing
    assert await failure(transport) == (FailureKind.UNAVAILABLE, FailureReason.CLOSED)
