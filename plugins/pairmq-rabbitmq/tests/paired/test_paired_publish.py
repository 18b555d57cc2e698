"""Programs for aio-pika publish through a pair: to queues and exchanges, with the primary available and unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AMQPConnectionError,
    ChannelInvalidStateError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    MethodNotImplemented,
    PublishError,
)
from aio_pika.patterns import RPC
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from pairmq import Pair, PrimaryUnavailable, Route
from pairmq_rabbitmq.paired import (
    Confirmation,
    ReservedHeaderError,
    connect_robust,
    paired_exchange,
)
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

READ = [
    "headers",
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
]


async def received(queue: Any, count: int) -> list[AbstractIncomingMessage]:
    """That many messages from a queue, however long it takes."""
    found: list[AbstractIncomingMessage] = []
    while len(found) < count:
        message = None
        with contextlib.suppress(*CONNECTION_EXCEPTIONS):  # aio-pika's channel, until it has noticed and is back
            message = await queue.get(fail=False, no_ack=True)
        if message is None:
            await asyncio.sleep(0.05)
        else:
            found.append(message)
    return found


async def test_a_program_publishes_as_with_aio_pika(connect):
    connection = await connect()
    async with connection.channel() as channel:
        queue = await channel.declare_queue("orders", durable=True)
        confirmation = await channel.default_exchange.publish(aio_pika.Message(b"42"), routing_key="orders")
        assert isinstance(confirmation, Basic.Ack)
        assert isinstance(confirmation, Confirmation)
        assert confirmation.receipt.route is Route.PRIMARY
        [message] = await received(queue, 1)
        assert message.body == b"42"


async def test_messages_reach_the_consumer_when_published_during_an_outage(connect, rabbit: RabbitServer):
    routes = []
    connection = await connect(on_receipt=lambda receipt: routes.append(receipt.route))
    channel = await connection.channel()
    queue = await channel.declare_queue("orders", durable=True)
    arrived: list[bytes] = []

    async def consume(message: AbstractIncomingMessage) -> None:
        async with message.process():
            arrived.append(message.body)

    await queue.consume(consume)
    exchange = channel.default_exchange
    await exchange.publish(aio_pika.Message(b"0", delivery_mode=2), "orders")
    rabbit.go_down()
    for number in range(1, 6):
        await exchange.publish(aio_pika.Message(str(number).encode()), "orders")
    rabbit.come_up()
    while len(set(arrived)) < 6:
        await asyncio.sleep(0.05)
    assert routes == [Route.PRIMARY, *[Route.BACKLOG] * 5]
    assert sorted(set(arrived)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_consumer_gets_the_same_message_as_from_aio_pika(connect, rabbit: RabbitServer):
    connection = await connect()
    channel = await connection.channel()
    queue = await channel.declare_queue("orders", durable=True)
    message = aio_pika.Message(
        b"body",
        headers={
            "a": "text",
            "n": 7,
            "big": 2**40,
            "yes": True,
            "none": None,
            "at": datetime.now(UTC),
            "in": {"x": [1]},
        },
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=3,
        correlation_id="c",
        reply_to="answers",
        expiration=timedelta(minutes=5),
        message_id="m",
        timestamp=datetime.now(UTC),
        type="order.placed",
        user_id="guest",
        app_id="shop",
    )
    plain = await aio_pika.connect(rabbit.url)
    async with plain, plain.channel() as own:
        await own.default_exchange.publish(message, "orders")
    await channel.default_exchange.publish(message, "orders")
    rabbit.go_down()
    await channel.default_exchange.publish(message, "orders")
    rabbit.come_up()
    first, second, third = await received(queue, 3)
    expected = {name: getattr(first, name) for name in READ}
    assert {name: getattr(second, name) for name in READ} == expected
    assert {name: getattr(third, name) for name in READ} == expected


async def test_an_exchange_routes_by_its_key_also_through_the_backlog(connect, rabbit: RabbitServer):
    connection = await connect()
    channel = await connection.channel()
    exchange = await channel.declare_exchange("prices", aio_pika.ExchangeType.TOPIC, durable=True)
    queue = await channel.declare_queue("steel", durable=True)
    await queue.bind(exchange, "price.steel.#")
    await exchange.publish(aio_pika.Message(b"1"), "price.steel.eu")
    rabbit.go_down()
    await exchange.publish(aio_pika.Message(b"2"), "price.steel.us")
    rabbit.come_up()
    messages = await received(queue, 2)
    assert [(message.body, message.routing_key) for message in messages] == [
        (b"1", "price.steel.eu"),
        (b"2", "price.steel.us"),
    ]


async def test_program_starts_and_publishes_when_the_primary_is_unavailable(connect, rabbit: RabbitServer):
    connection = await connect()
    async with connection.channel() as channel:
        await channel.declare_queue("orders", durable=True)
    await connection.close()
    rabbit.go_down()
    try:
        connection = await connect(timeout=2)
        channel = await connection.channel()
        confirmation = await channel.default_exchange.publish(aio_pika.Message(b"42"), "orders")
        assert confirmation.receipt.route is Route.BACKLOG
        declaring = asyncio.create_task(channel.declare_queue("orders", durable=True))
    finally:
        rabbit.come_up()
    [message] = await received(await declaring, 1)
    assert message.body == b"42"


@pytest.mark.long
async def test_channel_survives_the_next_outage_when_created_during_one(connect, rabbit):
    rabbit.go_down()
    try:
        connection = await connect(timeout=2)
        channel = await connection.channel()
    finally:
        rabbit.come_up()
    queue = await channel.declare_queue("orders", durable=True)
    rabbit.go_down()
    rabbit.come_up()
    await channel.default_exchange.publish(aio_pika.Message(b"42"), "orders")
    await channel.ready()
    [message] = await received(queue, 1)
    assert message.body == b"42"


async def test_unroutable_message_is_returned_as_by_aio_pika(connect):
    connection = await connect()
    channel = await connection.channel()
    seen: list[Any] = []
    channel.return_callbacks.add(lambda _, message: seen.append(message.body))
    returned = await channel.default_exchange.publish(aio_pika.Message(b"42"), "missing")
    assert isinstance(returned, DeliveredMessage)
    assert (returned.delivery.reply_code, returned.routing_key, returned.body) == (312, "missing", b"42")
    await asyncio.sleep(0)
    assert seen == [b"42"]


async def test_unroutable_message_raises_when_the_channel_has_on_return_raises(connect):
    connection = await connect()
    channel = await connection.channel(on_return_raises=True)
    with pytest.raises(PublishError) as caught:
        await channel.default_exchange.publish(aio_pika.Message(b"42"), "missing")
    assert caught.value.message.body == b"42"


async def test_unroutable_message_is_dropped_when_not_mandatory(connect):
    connection = await connect()
    channel = await connection.channel(on_return_raises=True)
    confirmation = await channel.default_exchange.publish(aio_pika.Message(b"42"), "missing", mandatory=False)
    assert isinstance(confirmation, Confirmation)
    assert confirmation.receipt is None


async def test_a_missing_exchange_is_an_error_that_leaves_the_channel_open(connect):
    connection = await connect()
    channel = await connection.channel()
    exchange = await channel.get_exchange("missing", ensure=False)
    with pytest.raises(ChannelNotFoundEntity):
        await exchange.publish(aio_pika.Message(b"42"), "key")
    assert not channel.is_closed


async def test_error_is_a_lost_connection_and_a_timeout_when_both_brokers_are_down(connect, rabbit: RabbitServer):
    connection = await connect(failover_interval=600.0)
    channel = await connection.channel()
    rabbit.go_down()
    try:
        with pytest.raises(AMQPConnectionError) as caught:
            await channel.default_exchange.publish(aio_pika.Message(b"42"), "orders", timeout=0.5)
    finally:
        rabbit.come_up()
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value.__cause__, PrimaryUnavailable)


async def test_immediate_and_transactions_are_refused(connect):
    connection = await connect()
    channel = await connection.channel()
    with pytest.raises(MethodNotImplemented):
        await channel.default_exchange.publish(aio_pika.Message(b""), "orders", immediate=True)
    with pytest.raises(MethodNotImplemented):
        channel.transaction()


async def test_invalid_entity_name_is_refused_by_the_paired_exchange(connect):
    connection = await connect()
    channel = await connection.channel()
    with pytest.raises(ValueError, match="segment"):
        await channel.default_exchange.publish(aio_pika.Message(b""), "shop//orders")


async def test_publish_returns_none_when_the_channel_has_no_confirms(connect):
    connection = await connect()
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue("orders", durable=True)
    assert await channel.default_exchange.publish(aio_pika.Message(b"42"), "orders") is None
    assert (await received(queue, 1))[0].body == b"42"


async def test_names_of_the_broker_are_published_by_aio_pika_itself(connect):
    routes = []
    connection = await connect(on_receipt=lambda receipt: routes.append(receipt.route))
    channel = await connection.channel()
    queue = await channel.declare_queue("orders", durable=True)
    exchange = await channel.get_exchange("amq.topic")
    await queue.bind(exchange, "key")
    await exchange.publish(aio_pika.Message(b"42"), "key")
    assert (await received(queue, 1))[0].body == b"42"
    assert routes == []


async def test_publish_is_refused_when_channel_or_connection_is_closed(connect):
    connection = await connect()
    channel, other = await connection.channel(), await connection.channel()
    await channel.close()
    with pytest.raises(ChannelInvalidStateError):
        await channel.default_exchange.publish(aio_pika.Message(b""), "orders")
    await connection.close()
    with pytest.raises(ChannelInvalidStateError):
        await other.default_exchange.publish(aio_pika.Message(b""), "orders")


async def test_single_exchange_of_aio_pika_can_be_paired(rabbit: RabbitServer):
    connection = await aio_pika.connect(rabbit.url)
    async with connection, connection.channel() as channel, Pair.connect(rabbit.url, "memory://alone") as pair:
        queue = await channel.declare_queue("orders", durable=True)
        exchange = paired_exchange(channel.default_exchange, pair)
        confirmation = await exchange.publish(aio_pika.Message(b"42"), "orders")
        assert confirmation.receipt.route is Route.PRIMARY
        assert (await received(queue, 1))[0].body == b"42"


async def test_wrong_password_is_raised_by_the_paired_connect(rabbit: RabbitServer):
    with pytest.raises(AMQPConnectionError):
        await connect_robust(rabbit.url_for("guest", "wrong"), secondary="memory://refused")


async def test_caller_owned_pair_stays_open(rabbit: RabbitServer):
    async with Pair.connect(rabbit.url, "memory://own") as pair:
        connection = await connect_robust(rabbit.url, pair=pair)
        await connection.close()
        assert pair.states() == {}
        pair.sender("orders")


async def test_program_starts_publishes_and_ends_when_the_primary_is_unresponsive(connect, rabbit: RabbitServer):
    rabbit.pause()
    try:
        connection = await connect(timeout=1, attempt_timeout=1.0)
        channel = await connection.channel()
        confirmation = await channel.default_exchange.publish(aio_pika.Message(b"42"), "orders")
        assert confirmation.receipt.route is Route.BACKLOG
        await connection.close()
    finally:
        rabbit.resume()


async def test_connection_that_failed_at_the_start_does_not_close_the_pair_as_garbage(connect, rabbit: RabbitServer):
    rabbit.pause()
    try:
        connection = await connect(timeout=1, attempt_timeout=2.0)
        for _ in range(10):
            gc.collect()
            await asyncio.sleep(0.01)
        channel = await connection.channel()
        confirmation = await channel.default_exchange.publish(aio_pika.Message(b"42"), "orders")
        assert confirmation.receipt.route is Route.BACKLOG
    finally:
        rabbit.resume()


@pytest.mark.long
async def test_a_publish_under_a_memory_alarm_is_diverted(connect, rabbit: RabbitServer):
    connection = await connect(attempt_timeout=1.0)
    channel = await connection.channel()
    await channel.declare_queue("orders", durable=True)
    rabbit.block()
    try:
        confirmation = await channel.default_exchange.publish(aio_pika.Message(b"42"), "orders")
        assert confirmation.receipt.route is Route.BACKLOG
    finally:
        rabbit.unblock()


async def test_missing_or_unusable_properties_are_replaced(connect, rabbit: RabbitServer):
    connection = await connect()
    channel = await connection.channel()
    queue = await channel.declare_queue("orders", durable=True)
    message = aio_pika.Message(b"", user_id="other", headers={"x-death": [{"count": 1}], "kept": 1})
    await channel.default_exchange.publish(message, "orders")
    [found] = await received(queue, 1)
    assert found.message_id
    assert (found.user_id, found.headers) == (None, {"amqp.user_id": "other", "kept": 1})
    assert found.delivery_mode is aio_pika.DeliveryMode.PERSISTENT


async def test_a_reserved_header_and_a_message_that_is_too_large_are_refused(connect):
    connection = await connect()
    channel = await connection.channel()
    await channel.declare_queue("orders", durable=True)
    exchange = channel.default_exchange
    with pytest.raises(ReservedHeaderError):
        await exchange.publish(aio_pika.Message(b"", headers={"x-ms-path": "other"}), "orders")
    with pytest.raises(ChannelPreconditionFailed):
        await exchange.publish(aio_pika.Message(b"", headers={"big": "x" * 140_000}), "orders")
    await exchange.publish(aio_pika.Message(b"42"), "orders")


@pytest.mark.long
async def test_many_tasks_share_an_exchange_through_an_outage(connect, rabbit: RabbitServer):
    connection = await connect()
    channel = await connection.channel()
    queue = await channel.declare_queue("orders", durable=True)

    async def publish(number: int) -> None:
        await channel.default_exchange.publish(aio_pika.Message(str(number).encode()), "orders")

    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(publish(number))
            if number == 100:
                await asyncio.to_thread(rabbit.go_down)
    rabbit.come_up()
    bodies: set[bytes] = set()
    while len(bodies) < 300:
        bodies |= {message.body for message in await received(queue, 1)}


@pytest.mark.long
async def test_channel_publishes_when_created_during_an_outage(connect, rabbit: RabbitServer):
    connection = await connect()
    rabbit.go_down()
    try:
        while connection.connected.is_set():
            await asyncio.sleep(0.01)
        channel = await connection.channel()
        confirmation = await channel.default_exchange.publish(aio_pika.Message(b"42"), "orders")
        assert confirmation.receipt.route is Route.BACKLOG
    finally:
        rabbit.come_up()


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.5])
async def test_connect_leaves_nothing_open_when_cancelled(rabbit: RabbitServer, delay: float):
    before = asyncio.all_tasks()
    rabbit.pause()
    try:
        connecting = asyncio.create_task(connect_robust(rabbit.url, secondary="memory://cancelled", timeout=30))
        await asyncio.sleep(delay)  # wherever it is by then
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.01)
    finally:
        rabbit.resume()


async def test_request_is_not_handled_when_its_caller_has_given_up(connect, rabbit: RabbitServer):
    routes = []
    connection = await connect(on_receipt=lambda receipt: routes.append(receipt.route))
    calls: list[int] = []

    async def double(*, number: int) -> int:
        calls.append(number)
        return 2 * number

    channel = await connection.channel()
    rpc = await RPC.create(channel)
    await rpc.register("double", double, durable=True)
    assert await rpc.call("double", {"number": 1}) == 2
    exchange = channel.default_exchange
    await exchange.publish(aio_pika.Message(b"", reply_to="answers"), "double", mandatory=False)
    rabbit.go_down()
    with contextlib.suppress(*CONNECTION_EXCEPTIONS, TimeoutError):
        async with asyncio.timeout(2):
            await rpc.call("double", {"number": 2})
    rabbit.come_up()
    assert routes == [Route.PRIMARY]  # that with a queue of its own for the answer
