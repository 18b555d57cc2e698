"""FastStream apps publish through a pair: from anywhere, with RabbitMQ there and away."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from aio_pika.exceptions import AMQPConnectionError, MethodNotImplemented, PublishError
from aiormq.abc import DeliveredMessage
from faststream import BaseMiddleware, FastStream
from faststream.rabbit import (
    Channel,
    ExchangeType,
    RabbitBroker,
    RabbitExchange,
    RabbitQueue,
    RabbitRouter,
    TestRabbitBroker,
)
from faststream.redis import RedisBroker
from pydantic import BaseModel

from pairmq import ConfigurationError, Pair, PairClosed, PairOptions, Route
from pairmq_faststream import PairedRabbitBroker, PairMiddleware
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisCluster, RedisSentinels

# All of it: three tests that need no server are not worth the import of FastStream by each process of the first tier.
pytestmark = pytest.mark.real_server

OPTIONS = PairOptions(
    backlog_queue_count=2,
    failover_interval=0.2,
    ping_primary_interval=0.2,
    attempt_timeout=15.0,
    enable_syphon=True,
    syphon_receive_wait=1.0,
    flap_window=0.0,
    close_grace=2.0,
)
Make = Callable[..., PairedRabbitBroker]


class Order(BaseModel):
    number: int


@pytest.fixture
async def make(rabbit: RabbitServer) -> AsyncIterator[Make]:
    """Makes brokers that are stopped after the test."""
    async with AsyncExitStack() as stack:

        def made(**given: Any) -> PairedRabbitBroker:
            arguments = {"secondary": f"memory://{uuid.uuid4().hex}", "options": OPTIONS, "reconnect_interval": 0.2}
            broker = PairedRabbitBroker(rabbit.url, **{**arguments, **given})
            stack.push_async_callback(broker.stop)
            return broker

        yield made


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.05)


async def test_what_is_published_while_rabbitmq_is_unavailable_reaches_the_subscriber(make: Make, rabbit: RabbitServer):
    routes: list[Route] = []
    broker = make(on_receipt=lambda receipt: routes.append(receipt.route))
    seen: set[int] = set()

    @broker.subscriber(RabbitQueue("orders", durable=True))
    async def take(order: Order) -> None:
        seen.add(order.number)

    await broker.start()
    await broker.publish(Order(number=0), "orders")
    rabbit.go_down()
    for number in range(1, 6):
        await broker.publish(Order(number=number), "orders")
    rabbit.come_up()
    await until(lambda: seen == set(range(6)))
    assert routes == [Route.PRIMARY, *[Route.BACKLOG] * 5]


@pytest.mark.parametrize("group", [RedisSentinels, pytest.param(RedisCluster, marks=pytest.mark.long)])
async def test_the_secondary_may_be_behind_sentinels_or_a_cluster(
    make: Make, rabbit: RabbitServer, group: type[RedisSentinels | RedisCluster]
):
    with group() as servers:
        routes: list[Route] = []
        broker = make(secondary=servers.url, on_receipt=lambda receipt: routes.append(receipt.route))
        seen: set[int] = set()

        @broker.subscriber(RabbitQueue("orders", durable=True))
        async def take(order: Order) -> None:
            seen.add(order.number)

        await broker.start()
        rabbit.go_down()
        for number in range(5):
            await broker.publish(Order(number=number), "orders")
        rabbit.come_up()
        await until(lambda: seen == set(range(5)))
        assert routes == [Route.BACKLOG] * 5
        await broker.stop()


async def test_subscribers_go_on_without_rabbitmq_when_their_queue_has_continuity(make: Make, rabbit: RabbitServer):
    broker = make(options=replace(OPTIONS, continuity=("orders",)))
    seen: list[int] = []

    @broker.subscriber(RabbitQueue("orders", durable=True))
    async def take(order: Order) -> None:
        seen.append(order.number)

    await broker.start()
    await broker.publish(Order(number=0), "orders")
    await until(lambda: seen == [0])
    rabbit.go_down()
    for number in range(1, 6):
        await broker.publish(Order(number=number), "orders")
    await until(lambda: sorted(set(seen)) == list(range(6)))  # it is still down
    rabbit.come_up()
    await broker.publish(Order(number=6), "orders")
    await until(lambda: 6 in seen)


async def test_an_app_starts_and_publishes_without_rabbitmq(make: Make, rabbit: RabbitServer):
    broker = make(start_timeout=5.0)
    seen: list[int] = []

    @broker.subscriber(RabbitQueue("orders", durable=True))
    async def take(order: Order) -> None:
        seen.append(order.number)

    await broker.start()  # the queue is made once: the syphon has no other place to bring a message to
    await until(lambda: broker.running)
    await broker.stop()
    rabbit.go_down()
    try:
        await broker.start()
        assert not broker.running
        confirmation = await broker.publish(Order(number=7), "orders")
        assert confirmation.receipt.route is Route.BACKLOG
    finally:
        rabbit.come_up()
    await until(lambda: broker.running and set(seen) == {7})


async def test_an_app_that_ends_while_it_starts_leaves_no_connection_behind(make: Make):
    broker = make()
    broker.subscriber(RabbitQueue("orders", durable=True))(print)
    # As FastStream ends at Ctrl-C: it stops the broker, then cancels the start, which anyio does at every await.
    async with anyio.create_task_group() as group:
        group.start_soon(broker.start)
        while broker._held is None:  # the moment at which it begins to connect
            await asyncio.sleep(0)
        await broker.stop()
        group.cancel_scope.cancel()
    async with asyncio.timeout(120):
        await until(lambda: not any("RobustConnection" in repr(task.get_coro()) for task in asyncio.all_tasks()))


async def test_publishers_and_routers_go_through_the_pair(make: Make, rabbit: RabbitServer):
    receipts: list[Any] = []
    broker = make(on_receipt=receipts.append)
    router = RabbitRouter()
    bills: list[str] = []

    @router.subscriber(RabbitQueue("orders", durable=True))
    @router.publisher("bills")
    async def take(order: Order) -> str:
        return f"bill {order.number}"

    @router.subscriber(RabbitQueue("bills", durable=True))
    async def keep(bill: str) -> None:
        bills.append(bill)

    broker.include_router(router)
    await broker.start()
    await broker.publish(Order(number=1), "orders")
    await until(lambda: bills == ["bill 1"] and len(receipts) == 2)
    assert {receipt.entity.path for receipt in receipts} == {"orders", "bills"}  # either confirm may come first


async def test_a_reply_to_a_queue_goes_through_the_pair(make: Make, rabbit: RabbitServer):
    receipts: list[Any] = []
    broker = make(on_receipt=receipts.append)

    @broker.subscriber(RabbitQueue("orders", durable=True))
    async def take(order: Order) -> str:
        return "done"

    await broker.start()
    answers = await broker.declare_queue(RabbitQueue("answers", durable=True))
    await broker.publish(Order(number=1), "orders", reply_to="answers", correlation_id="c")
    await until(lambda: len(receipts) == 2)
    message = await answers.get(no_ack=True)
    assert (message.body, message.correlation_id) == (b"done", "c")
    assert {receipt.entity.path for receipt in receipts} == {"orders", "answers"}


async def test_a_request_is_answered_by_faststream_itself(make: Make):
    receipts: list[Any] = []
    broker = make(on_receipt=receipts.append)
    publisher = broker.publisher("orders")

    @broker.subscriber(RabbitQueue("orders", durable=True))
    async def take(order: Order) -> str:
        return "done"

    await broker.start()
    assert await (await broker.request(Order(number=1), "orders", timeout=60)).decode() == "done"
    assert await (await publisher.request(Order(number=1), timeout=60)).decode() == "done"
    await broker.stop()  # which waits for the subscriber: an answer is there before its receipt
    assert receipts == []


async def test_an_exchange_routes_by_its_key(make: Make):
    broker = make()
    seen: list[str] = []
    exchange = RabbitExchange("prices", type=ExchangeType.TOPIC, durable=True)

    @broker.subscriber(RabbitQueue("steel", routing_key="price.steel.*", durable=True), exchange)
    async def take(price: str) -> None:
        seen.append(price)

    await broker.start()
    await broker.publish("7", routing_key="price.steel.eu", exchange=exchange)
    await until(lambda: seen == ["7"])


async def test_what_a_consumer_gets_is_what_faststream_would_have_sent(make: Make, rabbit: RabbitServer):
    broker = make()
    plain = RabbitBroker(rabbit.url)
    options: dict[str, Any] = {
        "headers": {"a": 1},
        "correlation_id": "c",
        "message_id": "m",
        "message_type": "t",
        "priority": 2,
        "expiration": 600,
        "persist": True,
    }
    await broker.start()
    queue = await broker.declare_queue(RabbitQueue("orders", durable=True))
    async with plain:
        await plain.publish(Order(number=1), "orders", **options)
    await broker.publish(Order(number=1), "orders", **options)
    first, second = await queue.get(no_ack=True), await queue.get(no_ack=True)
    own = {"delivery_tag", "consumer_tag", "redelivered", "timestamp"}
    told = [{name: value for name, value in message.info().items() if name not in own} for message in (first, second)]
    assert (told[0], first.body) == (told[1], second.body)
    assert second.timestamp is not None


async def test_every_other_middleware_sees_what_is_published(make: Make):
    seen: list[str] = []

    def watch(name: str) -> Any:
        class Watch(BaseMiddleware):
            async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
                seen.append(name)
                return await call_next(cmd)

        return Watch

    broker = make(middlewares=[watch("outer")])
    broker.add_middleware(watch("added later"))
    router = RabbitRouter(middlewares=[watch("router")])
    publisher = router.publisher("orders")
    broker.include_router(router)
    await broker.start()
    await broker.declare_queue(RabbitQueue("orders", durable=True))
    await publisher.publish("1")
    assert seen == ["outer", "added later", "router"]


async def test_a_message_that_no_queue_takes_is_returned_or_raised_as_the_channel_says(make: Make):
    broker = make()
    await broker.start()
    assert isinstance(await broker.publish("1", "missing"), DeliveredMessage)
    await broker.stop()
    raising = make(default_channel=Channel(on_return_raises=True))
    await raising.start()
    with pytest.raises(PublishError):
        await raising.publish("1", "missing")
    with pytest.raises(MethodNotImplemented):
        await raising.publish("1", "missing", immediate=True)


async def test_a_broker_that_only_publishes_can_be_entered_without_rabbitmq(make: Make, rabbit: RabbitServer):
    rabbit.go_down()
    try:
        async with make(start_timeout=2.0) as broker:
            confirmation = await broker.publish({"order": Order(number=1)}, "orders")
            assert confirmation.receipt.route is Route.BACKLOG
    finally:
        rabbit.come_up()


@pytest.mark.parametrize("delay", [0.0, 0.3, 1.5])
async def test_a_start_that_is_given_up_leaves_nothing_behind(make: Make, rabbit: RabbitServer, delay: float):
    before = asyncio.all_tasks()
    rabbit.pause()  # so that connecting takes as long as it may
    try:
        broker = make(start_timeout=1.0)
        starting = asyncio.create_task(broker.start())
        await asyncio.sleep(delay)  # wherever it is by then: at the pair, at its first attempt, or between two
        starting.cancel()
        await asyncio.wait((starting,))
        await broker.stop()
        await until(lambda: asyncio.all_tasks() == before)
    finally:
        rabbit.resume()


async def test_a_wrong_password_is_reported_at_once_and_leaves_nothing_open(rabbit: RabbitServer):
    broker = PairedRabbitBroker(rabbit.url_for("guest", "wrong"), secondary="memory://refused", options=OPTIONS)
    with pytest.raises(AMQPConnectionError):
        await broker.start()
    with pytest.raises(ConfigurationError):
        _ = broker.pair


async def test_a_broker_of_ones_own_takes_the_middleware(rabbit: RabbitServer):
    receipts: list[Any] = []
    async with Pair.connect(rabbit.url, "memory://own") as pair:
        broker = RabbitBroker(rabbit.url, middlewares=[PairMiddleware(pair, on_receipt=receipts.append)])
        async with broker:
            await broker.declare_queue(RabbitQueue("orders", durable=True))
            await broker.publish("1", "orders")
    assert [receipt.route for receipt in receipts] == [Route.PRIMARY]


async def test_an_app_opens_and_closes_a_pair_of_its_own(rabbit: RabbitServer):
    receipts: list[Any] = []
    pair = Pair.connect(rabbit.url, "memory://hooks")
    broker = RabbitBroker(rabbit.url, middlewares=[PairMiddleware(pair, on_receipt=receipts.append)])

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with pair:
            yield

    app = FastStream(broker, lifespan=lifespan)

    @app.after_startup
    async def publish() -> None:
        await broker.declare_queue(RabbitQueue("orders", durable=True))
        await broker.publish("1", "orders")
        app.exit()

    await app.run()
    assert [receipt.route for receipt in receipts] == [Route.PRIMARY]
    with pytest.raises(PairClosed):
        await pair.open()


async def test_a_broker_can_be_started_again(make: Make):
    broker = make()
    await broker.start()
    first = broker.pair
    await broker.stop()
    with pytest.raises(PairClosed):
        first.sender("orders")
    await broker.start()
    await broker.declare_queue(RabbitQueue("orders", durable=True))
    assert (await broker.publish("1", "orders")).receipt.route is Route.PRIMARY


async def test_an_app_is_tested_without_any_broker_as_before():
    broker = PairedRabbitBroker(secondary="memory://unused")
    seen: list[int] = []

    @broker.subscriber("orders")
    async def take(order: Order) -> None:
        seen.append(order.number)

    async with TestRabbitBroker(broker) as tested:
        await tested.publish(Order(number=3), "orders")
    assert seen == [3]


async def test_other_brokers_are_refused_by_name():
    async with Pair.connect("memory://east", "memory://west") as pair:
        broker = RedisBroker(middlewares=[PairMiddleware(pair)])
        with pytest.raises(ConfigurationError, match="RabbitBroker"):
            await broker.publish("1", "orders")


async def test_a_pair_that_cannot_be_made_is_reported_at_once():
    def broken() -> Pair:
        raise PermissionError("no such journal for you")

    broker = PairedRabbitBroker(make_pair=broken)
    with pytest.raises(PermissionError):
        await broker.start()


async def test_a_broker_stops_while_rabbitmq_does_not_respond(rabbit: RabbitServer, make: Make):
    broker = make(start_timeout=60.0, graceful_timeout=None)

    @broker.subscriber("orders")
    async def handle(order: int) -> None: ...

    await broker.start()
    pair = broker.pair
    broker._start_timeout = 0.2
    rabbit.pause()
    try:
        async with asyncio.timeout(120):
            await broker.stop()
    finally:
        rabbit.resume()
    with pytest.raises(PairClosed):
        pair.sender("orders")
