"""When RabbitMQ reports a queue of PairMQ as empty, and when it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiormq
import pytest
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from pairmq.model import Entity, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import QueueCounts, QueueProperties, Transport
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

QUEUE = Entity("orders")
SOURCE = Source(QUEUE)
BACKLOG = QueueProperties(max_size_megabytes=5120, max_delivery_count=2**31 - 1)


@pytest.fixture
async def transport(rabbit: RabbitServer) -> AsyncIterator[Transport]:
    async with registry.transport(f"{rabbit.url}?connect_timeout=30") as transport:
        yield transport


async def make(transport: Transport, messages: int) -> None:
    await transport.admin.create(QUEUE, BACKLOG)
    sender = transport.sender(QUEUE)
    await asyncio.gather(*(sender.send(Message(b"%d" % n, message_id=f"m{n}")) for n in range(messages)))


@contextmanager
def suspended(server: RabbitServer) -> Iterator[None]:
    """The queue's leader does not answer, like one that lost its majority or is overloaded."""
    leader = 'binary_to_atom(<<"%2F_orders">>)'
    server.erl(f"sys:suspend({leader})")
    try:
        yield
    finally:
        server.erl(f"sys:resume({leader})")


async def hold(server: RabbitServer, messages: int) -> aiormq.abc.AbstractConnection:
    """A consumer of another client that never settles its deliveries."""
    connection = await aiormq.connect(server.url)
    channel = await connection.channel()
    held = asyncio.Semaphore(0)

    async def take(_: DeliveredMessage) -> None:
        held.release()

    await channel.basic_qos(prefetch_count=messages)
    await channel.basic_consume(QUEUE.path, take)
    for _ in range(messages):
        await held.acquire()
    return connection


async def first_count(transport: Transport) -> QueueCounts:
    """The first count returned: a connection may still have to find out that its server has ended."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TransportError):
                return await transport.admin.counts(SOURCE)


async def test_delivered_messages_are_counted_when_a_killed_server_restarts(
    transport: Transport, rabbit: RabbitServer
) -> None:
    await make(transport, 30)
    connection = await hold(rabbit, 30)
    assert await transport.admin.counts(SOURCE) == QueueCounts()
    rabbit.kill()
    rabbit.restart()
    assert await first_count(transport) == QueueCounts(active=30)
    await connection.close()


async def test_queue_is_not_counted_empty_when_its_leader_is_silent(transport: Transport, rabbit: RabbitServer) -> None:
    await make(transport, 3)
    with suspended(rabbit):
        asked = asyncio.create_task(transport.admin.counts(SOURCE))
        await asyncio.wait((asked,), timeout=1)
        assert not asked.done()
    assert await asked == QueueCounts(active=3)


async def test_count_holds_no_message_when_cancelled(transport: Transport, rabbit: RabbitServer) -> None:
    await make(transport, 3)
    with suspended(rabbit), pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await transport.admin.counts(SOURCE)
    receiver = transport.receiver(SOURCE)
    came: list[str] = []
    async with asyncio.timeout(60):
        while len(came) < 3:
            for delivery in await receiver.receive(3, 10):
                came.append(delivery.message.message_id or "")
                await receiver.complete(delivery)
    assert sorted(came) == ["m0", "m1", "m2"]
    assert await transport.admin.counts(SOURCE) == QueueCounts()


@pytest.mark.parametrize("arguments", [{}, {"x-single-active-consumer": True}], ids=["plain", "single active consumer"])
async def test_queues_of_other_clients_are_counted_as_certainly(
    transport: Transport, rabbit: RabbitServer, arguments: dict[str, Any]
) -> None:
    connection = await aiormq.connect(rabbit.url)
    channel = await connection.channel()
    await channel.queue_declare(QUEUE.path, durable=True, arguments={"x-queue-type": "quorum", **arguments})
    assert not await transport.admin.create(QUEUE, BACKLOG)
    assert await transport.admin.counts(SOURCE) == QueueCounts()
    await make(transport, 2)
    with suspended(rabbit):
        asked = asyncio.create_task(transport.admin.counts(SOURCE))
        await asyncio.wait((asked,), timeout=1)
        assert not asked.done()
    assert await asked == QueueCounts(active=2)
    await connection.close()


async def test_count_of_rabbitmq_is_returned_when_the_user_may_not_read(
    transport: Transport, rabbit: RabbitServer
) -> None:
    await make(transport, 0)
    rabbit.add_user("writer", "secret", read="")
    async with registry.transport(rabbit.url_for("writer", "secret")) as poor:
        assert not await poor.admin.create(QUEUE, BACKLOG)
        assert await poor.admin.counts(SOURCE) == QueueCounts()


async def test_nothing_is_fetched_from_queues_that_are_not_pairmqs_own(
    transport: Transport, rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rpc = aiormq.Channel.rpc

    def without_get(channel: aiormq.Channel, frame: Any, *more: Any, **named: Any) -> Any:
        assert not isinstance(frame, Basic.Get), "a message may have been fetched"
        return rpc(channel, frame, *more, **named)

    monkeypatch.setattr(aiormq.Channel, "rpc", without_get)
    await transport.admin.create(QUEUE)
    assert await transport.admin.counts(SOURCE) == QueueCounts()
    record = Entity("east/switch/x-pairmq-record")  # others look at it, and would hide it from each other
    await transport.admin.create(record, BACKLOG)
    assert await transport.admin.counts(Source(record)) == QueueCounts()
    assert await transport.admin.peek(Source(record), 10) == []
    await transport.admin.create(Entity("backlog"), BACKLOG)
    with pytest.raises((AssertionError, TransportError)):
        await transport.admin.counts(Source(Entity("backlog")))
