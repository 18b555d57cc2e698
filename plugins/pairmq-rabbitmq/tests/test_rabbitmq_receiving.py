"""Receiving under peek-lock from a real server: who holds a message, until when, and how it is settled."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from cut_calls import given_up
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.testing import TcpProxy
from pairmq.testing.conformance.suites import LockClock
from pairmq.transport import Scope
from pairmq_rabbitmq import _driver, _link
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._receiving import RabbitReceiver, _delivery_channel, _receiver, held_by_this_process
from pairmq_rabbitmq._url import parse_rabbitmq_url
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

QUEUE = "orders"
DEAD = "orders/$dead-letter"
SOURCE = Source(Entity(QUEUE))
DEAD_SOURCE = Source(Entity(QUEUE), dead_letter=True)
UNAVAILABLE, REFUSED = FailureKind.UNAVAILABLE, FailureKind.REFUSED
LOCK = 0.5
"""Seconds, of the short locks here."""
WAIT = 30.0
"""Seconds to wait for what must come; nothing waits that long."""

MakeContext = Callable[..., Context]


# --------------------------------------------------------------------------- a client that is not ours


@contextmanager
def foreign(server: RabbitServer) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        if connection.is_open:
            connection.close()


def publish(server: RabbitServer, *bodies: str, queue: str = QUEUE, **properties: Any) -> None:
    """Publish messages, confirmed; each has its body as its message id."""
    with foreign(server) as channel:
        for body in bodies:
            given = {"message_id": body, "delivery_mode": 2, **properties}
            channel.basic_publish("", queue, body.encode(), pika.BasicProperties(**given), mandatory=True)


def publish_many(server: RabbitServer, count: int, *, wait: bool = True) -> None:
    """Publish messages 0, 1, 2, … as fast as possible, and wait until all are ready unless a consumer reads them."""
    with foreign(server) as confirmed:
        channel = confirmed.connection.channel()
        for number in range(count):
            body = str(number).encode()
            channel.basic_publish("", QUEUE, body, pika.BasicProperties(message_id=str(number), delivery_mode=2))
        # It comes behind the others on their channel, and the answer behind all of them.
        channel.queue_declare(QUEUE, passive=True)
        ends_at = time.monotonic() + 100
        while wait and ready_in(confirmed) < count:
            assert time.monotonic() < ends_at
            time.sleep(0.02)


def ready_in(channel: BlockingChannel, queue: str = QUEUE) -> int:
    return channel.queue_declare(queue, passive=True).method.message_count  # type: ignore[no-any-return]


def ready(server: RabbitServer, queue: str = QUEUE) -> int:
    """Ready messages, as counted by the leader of the queue: RabbitMQ reports 0 when the leader is late."""
    return server.queues()[queue][0]


def declare(server: RabbitServer, kind: str, queue: str = QUEUE, **arguments: object) -> None:
    with foreign(server) as channel:
        names = {key.replace("_", "-"): value for key, value in arguments.items()}
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **names})


def drained(server: RabbitServer, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    """All ready messages of a queue."""
    found = []
    with foreign(server) as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))


async def eventually(true: Callable[[], object], seconds: float = 60) -> None:
    ends_at = time.monotonic() + seconds
    while not await asyncio.to_thread(true):
        assert time.monotonic() < ends_at
        await asyncio.sleep(0.02)


# --------------------------------------------------------------------------- ours


@pytest.fixture(params=["classic", "quorum"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(rabbit: RabbitServer, kind: str) -> RabbitServer:
    """A server with an empty queue."""
    declare(rabbit, kind)
    return rabbit


@pytest.fixture
async def contexts(rabbit: RabbitServer, kind: str) -> AsyncIterator[MakeContext]:
    """Creates transports' contexts with locks of that many seconds."""
    made: list[Context] = []

    def make(lock: float = 60, server: Any = rabbit, **options: object) -> Context:
        more = "".join(f"&{key}={value}" for key, value in options.items())
        url = parse_rabbitmq_url(f"{server.url}?lock_duration={lock}&connect_timeout=30&queue_type={kind}{more}")
        made.append(Context(url, Scope(), None))
        return made[-1]

    yield make
    for context in made:
        for receiver in list(context.receivers):
            await receiver.close()
        await context.close(0.5)
    identity = parse_rabbitmq_url(rabbit.url).endpoint.identity
    assert held_by_this_process(identity, QUEUE) == 0


@pytest.fixture
def context(contexts: MakeContext) -> Context:
    return contexts()


@pytest.fixture
def receiver(context: Context, server: RabbitServer) -> RabbitReceiver:
    return RabbitReceiver(context, SOURCE)


def held(context: Context, queue: str = QUEUE) -> int:
    return held_by_this_process(context.url.endpoint.identity, queue)


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]


def counts(deliveries: list[Delivery]) -> list[int]:
    return [delivery.delivery_count for delivery in deliveries]


def channels(server: RabbitServer) -> int:
    """How many channels the clients have, including closed ones that wait for their queue."""
    return int(server.erl("length(rabbit_channel:list_local())"))


async def error_of(call: Coroutine[Any, Any, object]) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await call
    return caught.value


async def lost(receiver: RabbitReceiver, delivery: Delivery) -> None:
    """Check that a delivery can no longer be settled in any way."""
    calls = (receiver.complete, receiver.abandon, receiver.renew_lock, lambda one: receiver.dead_letter(one, "r", "d"))
    for call in calls:
        error = await error_of(call(delivery))
        assert (error.kind, error.reason) == (REFUSED, FailureReason.LOCK_LOST)


async def take(receiver: RabbitReceiver, count: int) -> list[Delivery]:
    """Exactly that many messages, in as many calls as it takes: a quorum queue whose leader is late returns fewer."""
    found: list[Delivery] = []
    async with asyncio.timeout(WAIT):
        while len(found) < count:
            found += await receiver.receive(count - len(found), WAIT)
    return found


async def there(receiver: RabbitReceiver, count: int, kind: str, *, most: int = 10, wait: float = 0) -> list[Delivery]:
    """That many messages without waiting; in one call, or, for a quorum queue, as `take`."""
    found = await receiver.receive(most, wait)
    async with asyncio.timeout(WAIT):
        while kind == "quorum" and len(found) < count:
            found += await receiver.receive(most - len(found), wait)
    assert len(found) == count
    return found


async def hang(server: RabbitServer) -> None:
    """Suspend a server; on a busy machine it takes its threads a moment."""
    server.pause()
    await asyncio.sleep(0.2)


async def persistently(receiver: RabbitReceiver, wait: float) -> list[Delivery]:
    """Receive as the syphon does: with a time limit, and again after transient failures."""
    ends_at = time.monotonic() + 100
    while True:
        try:
            async with asyncio.timeout(wait + 5):
                return await receiver.receive(5, wait)
        except (TimeoutError, TransportError):
            assert time.monotonic() < ends_at
            await asyncio.sleep(0.1)


# --------------------------------------------------------------------------- receive


async def test_messages_come_in_order_and_in_batches(server: RabbitServer, receiver: RabbitReceiver, kind: str) -> None:
    publish(server, *map(str, range(25)))
    batches: list[list[Delivery]] = []
    while sum(map(len, batches)) < 25:
        batches.append(await receiver.receive(10, WAIT))
    # A quorum queue whose leader is late gives fewer at a time.
    assert [len(batch) for batch in batches] == [10, 10, 5] or (kind == "quorum" and max(map(len, batches)) <= 10)
    assert [body for batch in batches for body in bodies(batch)] == list(map(str, range(25)))
    assert await receiver.receive(10, 0) == []


async def test_delivery_has_all_its_attributes(server: RabbitServer, receiver: RabbitReceiver) -> None:
    publish(server, "a", content_type="text/plain", headers={"colour": "blue"})
    before = datetime.now(UTC)
    [delivery] = await receiver.receive(1, WAIT)
    after = datetime.now(UTC)
    message = delivery.message
    assert (message.body, message.message_id, message.content_type) == (b"a", "a", "text/plain")
    assert message.application_properties == {"colour": "blue"}
    assert (delivery.delivery_count, delivery.sequence_number, delivery.enqueued_at) == (1, "", None)
    assert (delivery.dead_letter_reason, delivery.dead_letter_description) == (None, None)
    assert delivery.locked_until is not None
    slightly = timedelta(seconds=0.1)
    assert before - slightly < delivery.locked_until - timedelta(seconds=60) < after + slightly


async def test_large_and_empty_bodies_are_received_unchanged(server: RabbitServer, receiver: RabbitReceiver) -> None:
    large = random.Random(1).randbytes(1_000_000)
    with foreign(server) as channel:
        for body in (large, b"", large[:131_064], large[:131_065]):
            channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    got = await take(receiver, 4)
    assert [delivery.message.body for delivery in got] == [large, b"", large[:131_064], large[:131_065]]


@pytest.mark.parametrize("wait", [0, 0.001])
async def test_receive_returns_ready_messages_when_not_waiting(
    server: RabbitServer, context: Context, kind: str, wait: float
) -> None:
    with foreign(server) as channel:
        for number in range(30):
            receiver = RabbitReceiver(context, SOURCE)
            assert await receiver.receive(3, 0) == []
            for body in ("a", "b"):
                channel.basic_publish("", QUEUE, body.encode(), mandatory=True)
            one = RabbitReceiver(context, SOURCE) if number % 2 else receiver
            deliveries = await there(one, 2, kind, most=3, wait=wait)
            assert bodies(deliveries) == ["a", "b"]
            await one.complete(deliveries[0])
            await one.abandon(deliveries[1])
            again = await there(receiver, 1, kind, most=3, wait=wait)
            assert bodies(again) == ["b"]
            await receiver.complete_batch(again)
            await one.close()
            await receiver.close()


async def test_messages_are_available_at_once_when_another_receiver_closes(
    server: RabbitServer, context: Context, kind: str
) -> None:
    publish(server, "a", "b", "c")
    for _ in range(10):
        one = RabbitReceiver(context, SOURCE)
        assert len(await take(one, 2)) == 2
        await one.close()
        other = RabbitReceiver(context, SOURCE)
        assert sorted(bodies(await there(other, 3, kind))) == ["a", "b", "c"]
        await other.close()


async def test_a_long_poll_ends_with_the_first_message(server: RabbitServer, receiver: RabbitReceiver) -> None:
    waiting = asyncio.create_task(receiver.receive(10, 3600))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    publish(server, "a")
    async with asyncio.timeout(WAIT):
        assert bodies(await waiting) == ["a"]


async def test_a_long_poll_ends_empty_in_time(receiver: RabbitReceiver) -> None:
    before = time.monotonic()
    async with asyncio.timeout(WAIT):
        assert await receiver.receive(10, 0.3) == []
    assert time.monotonic() - before > 0.29


async def test_no_more_is_locked_than_asked_for(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, *map(str, range(10)))
    first = await take(receiver, 2)
    assert (ready(server), held(context)) == (8, 2)
    await receiver.complete_batch(first)
    assert (ready(server), held(context)) == (8, 0)
    second = await take(receiver, 3)
    await receiver.complete(second[1])
    assert (ready(server), held(context)) == (5, 2)
    third = await receiver.receive(100, WAIT)
    while len(third) < 5:
        third += await receiver.receive(100, WAIT)
    assert bodies(third) == ["5", "6", "7", "8", "9"]
    publish(server, "later")
    await asyncio.sleep(0.1)
    assert (ready(server), held(context)) == (1, 7)
    assert await receiver.complete_batch([second[0], second[2], *third]) == [None] * 7
    assert (ready(server), held(context)) == (1, 0)


async def test_read_ahead_locks_its_number_of_messages_and_returns_them_in_order(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, *map(str, range(50)))
    receiver.read_ahead(20)
    first = await receiver.receive(5, WAIT)
    while held(context) < 20:
        await asyncio.sleep(0.01)
    got = bodies(first)
    assert ready(server) == 30
    await receiver.complete_batch(first)
    while len(got) < 50:
        found = await receiver.receive(7, WAIT)
        assert held(context) <= 20
        got += bodies(found)
        assert await receiver.complete_batch(found) == [None] * len(found)
    assert got == [str(number) for number in range(50)]
    assert await receiver.receive(7, 0) == []
    publish(server, "later")
    assert bodies(await receiver.receive(7, WAIT)) == ["later"]


async def test_a_hint_to_read_ahead_that_is_taken_back_leaves_the_rest_in_the_queue(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, *map(str, range(50)))
    receiver.read_ahead(20)
    first = await take(receiver, 20)
    receiver.read_ahead(0)
    assert receiver._channel is not None
    while receiver._channel.fetching is not None:  # the consumer is being cancelled
        await asyncio.sleep(0.01)
    await receiver.complete_batch(first)
    assert (ready(server), held(context)) == (30, 0)
    assert bodies(await take(receiver, 3)) == ["20", "21", "22"]
    assert (ready(server), held(context)) == (27, 3)


async def test_read_ahead_returns_ready_messages_when_not_waiting(
    server: RabbitServer, context: Context, receiver: RabbitReceiver, kind: str
) -> None:
    receiver.read_ahead(20)
    assert await receiver.receive(5, 0) == []
    publish(server, "a")
    assert bodies(await there(receiver, 1, kind)) == ["a"]


@pytest.mark.parametrize("ahead", [0, 2])
async def test_a_message_that_the_broker_lost_on_its_way_comes_on_another_channel(
    server: RabbitServer, receiver: RabbitReceiver, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """As by a quorum queue whose leader hung: see `_receiver._QUIET`."""
    monkeypatch.setattr(_receiver, "_QUIET", 0.5)
    arrive, lost = _delivery_channel.DeliveryChannel.delivered, []

    def delivered(channel: _delivery_channel.DeliveryChannel, *frames: Any) -> None:
        if len(lost) < 2:
            lost.append(frames)
        else:
            arrive(channel, *frames)

    monkeypatch.setattr(_delivery_channel.DeliveryChannel, "delivered", delivered)
    receiver.read_ahead(ahead)
    publish(server, "1", "2", "3")
    got: list[str] = []
    while len(got) < 3:
        found = await receiver.receive(2, WAIT)
        assert found
        got += bodies(found)
        assert await receiver.complete_batch(found) == [None] * len(found)
    assert sorted(got) == ["1", "2", "3"]
    assert len(lost) == 2
    assert ready(server) == 0


async def test_a_quiet_channel_is_kept_while_a_message_is_locked_on_it(
    server: RabbitServer, receiver: RabbitReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_receiver, "_QUIET", 0.0)
    publish(server, "1")
    [first] = await receiver.receive(1, WAIT)
    assert await receiver.receive(1, 0.5) == []
    await receiver.complete(first)


async def test_an_end_of_the_wait_leaves_nothing_locked(server: RabbitServer, context: Context, kind: str) -> None:
    one, other = (RabbitReceiver(context, SOURCE) for _ in range(2))
    assert await one.receive(10, 0.1) == []
    publish(server, "a")
    assert bodies(await there(other, 1, kind)) == ["a"]


async def test_receivers_share_a_queue_and_never_hold_the_same_message(server: RabbitServer, context: Context) -> None:
    publish(server, *map(str, range(100)))
    receivers = [RabbitReceiver(context, SOURCE) for _ in range(4)]
    got = await asyncio.gather(*(receiver.receive(25, WAIT) for receiver in receivers))
    together = [body for deliveries in got for body in bodies(deliveries)]
    while len(together) < 100:
        together += bodies(await receivers[0].receive(100, WAIT))
    assert sorted(map(int, together)) == list(range(100))
    assert held(context) == 100


async def test_max_messages_is_at_least_1(receiver: RabbitReceiver) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        await receiver.receive(0, 0)


async def test_more_than_a_window_can_hold_is_asked_for(server: RabbitServer, receiver: RabbitReceiver) -> None:
    publish(server, "a")
    assert bodies(await receiver.receive(1_000_000, WAIT)) == ["a"]


async def test_missing_queue_is_raised_and_found_once_created(
    rabbit: RabbitServer, context: Context, kind: str
) -> None:
    receiver = RabbitReceiver(context, SOURCE)
    for wait in (0, 5):
        error = await error_of(receiver.receive(1, wait))
        assert (error.kind, error.reason, error.maybe_applied) == (REFUSED, FailureReason.NOT_FOUND, False)
    declare(rabbit, kind)
    publish(rabbit, "a")
    assert bodies(await receiver.receive(1, WAIT)) == ["a"]


async def test_a_queue_deleted_under_a_long_poll_ends_it(server: RabbitServer, receiver: RabbitReceiver) -> None:
    waiting = asyncio.create_task(receiver.receive(1, 3600))
    await asyncio.sleep(0.2)
    server.delete_queue(QUEUE)
    error = await error_of(asyncio.wait_for(waiting, WAIT))
    assert (error.kind, error.reason) == (REFUSED, FailureReason.NOT_FOUND)


async def test_receive_is_refused_when_the_user_may_not_read(server: RabbitServer, contexts: MakeContext) -> None:
    server.add_user("blind", "x", read="")
    context = contexts()
    url = parse_rabbitmq_url(server.url_for("blind", "x"))
    blind = Context(url, Scope(), None)
    receiver = RabbitReceiver(blind, SOURCE)
    error = await error_of(receiver.receive(1, 1))
    assert (error.kind, error.reason) == (REFUSED, FailureReason.UNAUTHORIZED)
    await receiver.close()
    await blind.close(1)
    assert context.url.nodes


async def test_receive_is_unavailable_when_the_server_is_down(server: RabbitServer, receiver: RabbitReceiver) -> None:
    server.go_down()
    error = await error_of(receiver.receive(1, 1))
    assert (error.kind, error.reason, error.maybe_applied) == (UNAVAILABLE, FailureReason.CONNECTION, False)
    server.come_up()
    publish(server, "a")
    assert bodies(await receiver.receive(1, WAIT)) == ["a"]


# --------------------------------------------------------------------------- cancellation


async def test_a_cancelled_wait_loses_nothing(server: RabbitServer, context: Context, receiver: RabbitReceiver) -> None:
    await given_up(receiver.receive(5, 3600), after=0.2)
    publish(server, *"abc")
    assert bodies(await take(receiver, 3)) == ["a", "b", "c"]
    assert held(context) == 3


async def test_cancels_at_any_moment_lose_nothing(server: RabbitServer, contexts: MakeContext, kind: str) -> None:
    chance = random.Random(7)
    context = contexts()
    receiver = RabbitReceiver(context, SOURCE)
    count = 400
    publishing = asyncio.create_task(asyncio.to_thread(publish_many, server, count, wait=False))
    done: Counter[str] = Counter()
    ends_at = time.monotonic() + 200
    while len(done) < count:
        assert time.monotonic() < ends_at, len(done)
        call = asyncio.create_task(receiver.receive(chance.randrange(1, 20), 0.05))
        await asyncio.sleep(chance.choice((0, 0, 0.0002, 0.001, 0.003, 0.01, 0.2)))
        call.cancel()
        try:
            deliveries = await call
        except asyncio.CancelledError:
            continue
        settling = asyncio.create_task(receiver.complete_batch(deliveries))
        if chance.random() < 0.3:
            await asyncio.sleep(0)
            settling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await settling
            settling = asyncio.create_task(receiver.complete_batch(deliveries))
        assert not any(await settling)
        done.update(bodies(deliveries))
        # Nothing was lost, so nothing comes twice; but a quorum queue takes back what it sent while a call was cut off,
        # however often that happens.
        assert kind == "quorum" or set(counts(deliveries)) <= {1}
    await publishing
    assert set(done.values()) == {1}
    await receiver.close()
    await eventually(lambda: (ready(server), held(context)) == (0, 0))


async def test_messages_of_a_cancelled_call_are_released_after_half_a_lock(
    server: RabbitServer, contexts: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, patient = contexts(lock=8), contexts()
    receiver, other = RabbitReceiver(context, SOURCE), RabbitReceiver(patient, SOURCE)
    publish(server, "a", "b")
    call = asyncio.create_task(receiver.receive(2, WAIT))
    ends_at = time.monotonic() + WAIT
    while not held(context):
        assert time.monotonic() < ends_at
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.1)
    assert held(context)
    again = await take(other, 2)
    assert 2 in counts(again)
    assert set(counts(again)) <= {1, 2}
    await other.close()
    assert await receiver.receive(1, WAIT) != []


async def test_a_cancelled_first_call_leaves_the_channel_to_the_next(
    server: RabbitServer, receiver: RabbitReceiver
) -> None:
    publish(server, "a")
    for delay in (0, 0.001, 0.003, 0.01):
        call = asyncio.create_task(receiver.receive(1, WAIT))
        await asyncio.sleep(delay)
        call.cancel()
        try:
            got = await call
        except asyncio.CancelledError:
            continue
        await receiver.abandon(got[0])
    assert bodies(await receiver.receive(1, WAIT)) == ["a"]
    await eventually(lambda: server.connections() == 1)  # those of the test before may be ending


# --------------------------------------------------------------------------- settle


async def test_a_completed_message_is_gone(server: RabbitServer, context: Context, receiver: RabbitReceiver) -> None:
    publish(server, "a", "b")
    first, second = await take(receiver, 2)
    await receiver.complete(second)
    assert held(context) == 1
    await receiver.complete(first)
    assert held(context) == 0
    server.drop_clients()
    await eventually(lambda: context.consuming.current is None)
    assert await receiver.receive(2, 0.2) == []
    await lost(receiver, first)


async def test_completed_is_confirmed(server: RabbitServer, receiver: RabbitReceiver, context: Context) -> None:
    for _ in range(5):
        publish(server, *map(str, range(60)))
        deliveries = await take(receiver, 60)
        assert await receiver.complete_batch(deliveries[:20]) == [None] * 20
        await asyncio.gather(*(receiver.complete(delivery) for delivery in deliveries[20:40]))
        assert await receiver.complete_batch(deliveries[:39:-1]) == [None] * 20
        session = context.consuming.current
        assert session is not None
        session.end(ConnectionResetError("cut by a test"))
        assert held(context) == 0
        await asyncio.sleep(0.1)
        assert ready(server) == 0


async def test_completing_in_any_order_and_beside_each_other(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    chance = random.Random(3)
    publish_many(server, 300)
    deliveries = await take(receiver, 300)
    given_back = set()
    calls = []
    for delivery in chance.sample(deliveries, 300):
        if chance.random() < 0.3:
            given_back.add(delivery.message.body.decode())
            calls.append(receiver.abandon(delivery))
        else:
            calls.append(receiver.complete(delivery))
        if chance.random() < 0.1:
            await asyncio.gather(*calls)
            calls = []
    await asyncio.gather(*calls)
    assert held(context) == 0
    again: list[Delivery] = []
    while len(again) < len(given_back):
        again += await receiver.receive(300, WAIT)
    assert set(bodies(again)) == given_back
    assert set(counts(again)) == {2}


async def test_settling_twice_raises_and_affects_no_other_delivery(
    server: RabbitServer, receiver: RabbitReceiver
) -> None:
    publish(server, "a", "b")
    first, second = await take(receiver, 2)
    await receiver.complete(first)
    await lost(receiver, first)
    outcomes = await receiver.complete_batch([second, first, second])
    assert outcomes[0] is None
    assert [error.reason for error in outcomes[1:] if error is not None] == [FailureReason.LOCK_LOST] * 2
    publish(server, "c")
    [third] = await receiver.receive(1, WAIT)
    await receiver.abandon(third)
    await lost(receiver, third)


async def test_delivery_of_another_receiver_is_refused(server: RabbitServer, context: Context) -> None:
    publish(server, "a")
    one, other = RabbitReceiver(context, SOURCE), RabbitReceiver(context, SOURCE)
    [delivery] = await one.receive(1, WAIT)
    await lost(other, delivery)
    await lost(one, Delivery(delivery.message, "token"))
    await one.complete(delivery)


async def test_abandoned_message_is_redelivered_at_once_and_counted(
    server: RabbitServer, context: Context, kind: str
) -> None:
    publish(server, "a", "b", "c", "d")
    one = RabbitReceiver(context, SOURCE)
    first, second, third = await take(one, 3)
    await one.abandon(third)
    await one.abandon(first)
    again = await there(RabbitReceiver(context, SOURCE), 3, kind)
    assert sorted(bodies(again)) == ["a", "c", "d"]
    assert dict(zip(bodies(again), counts(again), strict=True)) == {"a": 2, "c": 2, "d": 1}
    await one.complete(second)
    await lost(one, first)


async def test_a_quorum_queue_counts_deliveries_exactly(rabbit: RabbitServer, contexts: MakeContext, kind: str) -> None:
    declare(rabbit, kind)
    receiver = RabbitReceiver(contexts(), SOURCE)
    publish(rabbit, "a")
    seen = []
    for _ in range(5):
        [delivery] = await receiver.receive(1, WAIT)
        seen.append(delivery.delivery_count)
        await receiver.abandon(delivery)
    assert seen == ([1, 2, 3, 4, 5] if kind == "quorum" else [1, 2, 2, 2, 2])


async def test_a_waiting_receiver_is_given_what_another_abandons(server: RabbitServer, context: Context) -> None:
    publish(server, "a")
    one, other = RabbitReceiver(context, SOURCE), RabbitReceiver(context, SOURCE)
    [delivery] = await one.receive(1, WAIT)
    waiting = asyncio.create_task(other.receive(1, WAIT))
    await asyncio.sleep(0.1)
    await one.abandon(delivery)
    assert bodies(await waiting) == ["a"]


async def test_a_settlement_that_was_cut_off_can_be_asked_for_again(
    server: RabbitServer, receiver: RabbitReceiver
) -> None:
    publish(server, "a")
    [delivery] = await receiver.receive(1, WAIT)
    await given_up(receiver.complete(delivery), after=0)
    await receiver.complete(delivery)
    await lost(receiver, delivery)
    assert ready(server) == 0


async def test_every_settlement_of_a_batch_that_was_cut_off_can_be_asked_for_again(
    server: RabbitServer, receiver: RabbitReceiver
) -> None:
    publish(server, "a", "b")
    deliveries = await take(receiver, 2)
    await given_up(receiver.complete(deliveries[0]), after=0)
    await given_up(receiver.complete_batch(deliveries), after=0)  # it waits for the first, and has begun the second
    assert list(await receiver.complete_batch(deliveries)) == [None, None]
    assert ready(server) == 0


# --------------------------------------------------------------------------- locks


async def test_a_lock_that_ends_gives_the_message_to_another(server: RabbitServer, contexts: MakeContext) -> None:
    publish(server, "a")
    context, patient = contexts(LOCK), contexts()
    one, other = RabbitReceiver(context, SOURCE), RabbitReceiver(patient, SOURCE)
    before = time.monotonic()
    [first] = await one.receive(1, WAIT)
    [again] = await other.receive(1, WAIT)
    assert time.monotonic() - before > LOCK * 0.9
    assert again.delivery_count == 2
    await lost(one, first)
    await other.complete(again)
    await eventually(lambda: held(context) == 0)


async def test_ended_lock_is_lost_when_no_receiver_took_the_message(
    server: RabbitServer, contexts: MakeContext
) -> None:
    publish(server, "a")
    context = contexts(LOCK)
    receiver = RabbitReceiver(context, SOURCE)
    [delivery] = await receiver.receive(1, WAIT)
    time.sleep(LOCK + 0.01)  # the loop had no chance to look after it
    await lost(receiver, delivery)
    await eventually(lambda: ready(server) == 1)
    assert held(context) == 0


async def test_a_renewed_lock_lasts(server: RabbitServer, contexts: MakeContext) -> None:
    context, patient = contexts(lock := 1.0), contexts()
    slightly, lasts = timedelta(seconds=0.1), timedelta(seconds=lock)

    async def once() -> bool:
        """False when this machine stalled until the lock had ended, which proves nothing."""
        publish(server, "a", "b")
        one, other = RabbitReceiver(context, SOURCE), RabbitReceiver(patient, SOURCE)
        clock = LockClock(lock)
        try:
            clock.ask()
            delivery, _ = await take(one, 2)
            clock.begin()
            for _ in range(4):
                await asyncio.sleep(lock * 0.4)
                before = datetime.now(UTC)
                clock.ask()
                renewed = await one.renew_lock(delivery)
                clock.begin()
                assert renewed.locked_until is not None
                assert before - slightly < renewed.locked_until - lasts < datetime.now(UTC) + slightly
            found = bodies(await other.receive(1, WAIT))
            await one.complete(delivery)  # the old one settles just as well
        except TransportError as error:
            if not clock.excuses(error):
                raise
            return False
        finally:
            await one.close()
            await other.close()
        assert found == ["b"]
        return True

    while not await once():
        left = 2
        while left:
            left -= len(drained(server, QUEUE))
    assert [body for _, body in drained(server, QUEUE)] == [b"b"]


async def test_a_lock_is_not_renewed_until_the_broker_loses_patience(
    server: RabbitServer, contexts: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_delivery_channel, "LONGEST_HOLD", 3.0)
    publish(server, "a")
    receiver = RabbitReceiver(contexts(), SOURCE)
    [delivery] = await receiver.receive(1, WAIT)
    await receiver.renew_lock(delivery)
    await asyncio.sleep(3.1)
    error = await error_of(receiver.renew_lock(delivery))
    assert error.reason is FailureReason.LOCK_LOST
    [again] = await receiver.receive(1, WAIT)
    assert again.delivery_count == 2


async def test_many_locks_end_one_by_one(server: RabbitServer, contexts: MakeContext) -> None:
    lock = 4.0
    context = contexts(lock)
    receiver = RabbitReceiver(context, SOURCE)
    publish(server, *map(str, range(10)))
    kept = []
    for number in range(10):
        [delivery] = await receiver.receive(1, WAIT)
        if number % 2:
            kept.append(delivery)
        kept = [await receiver.renew_lock(each) for each in kept]
        await asyncio.sleep(0.01)
    for _ in range(7):
        await asyncio.sleep(lock / 4)
        kept = [await receiver.renew_lock(delivery) for delivery in kept]
    assert held(context) == 5
    assert await receiver.complete_batch(kept) == [None] * 5
    assert sorted(bodies(await take(receiver, 5))) == ["0", "2", "4", "6", "8"]


# --------------------------------------------------------------------------- dead-letter


async def test_dead_letter_has_a_reason_and_keeps_its_content(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, "a", content_type="text/plain", headers={"colour": "blue", "count": 3}, expiration="600000")
    [delivery] = await receiver.receive(1, WAIT)
    await receiver.dead_letter(delivery, "spoiled", "It was left in the sun. " * 100)
    assert (ready(server), ready(server, DEAD), held(context)) == (0, 1, 0)
    dead = RabbitReceiver(context, DEAD_SOURCE)
    [found] = await dead.receive(1, WAIT)
    assert found.message == delivery.message
    assert (found.dead_letter_reason, found.delivery_count) == ("spoiled", 1)
    assert found.dead_letter_description is not None
    assert found.dead_letter_description.startswith("It was left in the sun. It")
    assert len(found.dead_letter_description) == 1024
    assert held(context, DEAD) == 1
    error = await error_of(dead.dead_letter(found, "r", "d"))
    assert (error.kind, error.reason) == (REFUSED, FailureReason.NOT_SUPPORTED)
    await dead.complete(found)
    await lost(receiver, delivery)


async def test_an_existing_dead_letter_queue_of_any_kind_will_do(
    server: RabbitServer, receiver: RabbitReceiver
) -> None:
    declare(server, "classic", DEAD, x_max_length=100)
    publish(server, "a", "b")
    for delivery in await take(receiver, 2):
        await receiver.dead_letter(delivery, "r", "d")
    assert [body for _, body in drained(server, DEAD)] == [b"a", b"b"]


async def test_messages_without_or_with_one_id_are_dead_lettered_beside_each_other(
    server: RabbitServer, receiver: RabbitReceiver
) -> None:
    for message_id in (None, "same"):
        publish(server, *"abcdef", message_id=message_id)
        deliveries = await take(receiver, 6)
        await asyncio.gather(*(receiver.dead_letter(delivery, "r", "d") for delivery in deliveries))
        assert sorted(body for _, body in drained(server, DEAD)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert ready(server) == 0


async def test_message_stays_when_dead_lettering_fails(server: RabbitServer, receiver: RabbitReceiver) -> None:
    declare(server, "classic", DEAD, x_max_length=1, x_overflow="reject-publish")
    publish(server, "a", "b", "c")
    first, second, third = await take(receiver, 3)
    await receiver.dead_letter(first, "r", "d")
    await receiver.dead_letter(second, "r", "d") if ready(server, DEAD) == 0 else None
    error = await error_of(receiver.dead_letter(third, "r", "d"))
    assert (error.kind, error.reason) == (UNAVAILABLE, FailureReason.QUOTA)
    await receiver.renew_lock(third)
    await receiver.complete(third)


async def test_nothing_is_dead_lettered_during_an_alarm(server: RabbitServer, receiver: RabbitReceiver) -> None:
    publish(server, "a", "b")
    first, second = await take(receiver, 2)
    await receiver.dead_letter(first, "r", "d")
    server.block()
    with pytest.raises((TransportError, TimeoutError)):
        async with asyncio.timeout(1):
            await receiver.dead_letter(second, "r", "d")
    await receiver.complete(second)
    server.unblock()
    assert ready(server) == 0


def poisoned_header() -> dict[str, Any]:
    return {"when": datetime(2026, 1, 1)}  # noqa: DTZ001  # pika wants it so


def publish_unreadable(server: RabbitServer, body: bytes) -> None:
    """Publish a message whose header has a timestamp beyond the year 9999, which only raw bytes can express."""
    with foreign(server) as channel:
        original = pika.data.encode_value

        def encode(pieces: list[bytes], value: object) -> int:
            if value == "beyond":
                pieces.append(b"T" + struct.pack(">Q", 2**63))
                return 9
            return int(original(pieces, value))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pika.data, "encode_value", encode)
            properties = pika.BasicProperties(headers={"when": "beyond"}, message_id="unreadable")
            channel.basic_publish("", QUEUE, body, properties, mandatory=True)


async def test_malformed_messages_are_dead_lettered_and_block_no_receiver(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, "good 1")
    publish(server, "bad", expiration="600000", headers={"x-opt-scheduled-enqueue-time": "tomorrow"})
    publish_unreadable(server, b"worse")
    publish(server, "good 2")
    reported: list[Delivery] = []
    receiver.on_dead_lettered = reported.append
    deliveries = await take(receiver, 2)
    assert bodies(deliveries) == ["good 1", "good 2"]
    assert (ready(server), held(context)) == (0, 2)
    dead = await take(RabbitReceiver(context, DEAD_SOURCE), 2)
    assert sorted(bodies(dead)) == ["bad", "worse"]
    assert {found.dead_letter_reason for found in dead} == {"malformed"}
    assert all(found.dead_letter_description for found in dead)
    assert sorted(bodies(reported)) == ["bad", "worse"]
    assert {found.dead_letter_reason for found in reported} == {"malformed"}


async def test_a_queue_of_malformed_messages_is_cleared(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, *map(str, range(50)), headers={"x-opt-scheduled-enqueue-time": "tomorrow"})
    publish(server, "good")
    assert bodies(await receiver.receive(10, WAIT)) == ["good"]
    assert ready(server, DEAD) == 50


async def test_malformed_messages_wait_for_the_end_of_an_alarm(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, "bad", headers={"x-opt-scheduled-enqueue-time": "tomorrow"})
    publish(server, "good")
    # The alarm is known only to a connection that publishes.
    publish(server, "first")
    server.block()
    deliveries = await take(receiver, 2)
    assert bodies(deliveries) == ["good", "first"]
    assert held(context) == 3
    await receiver.complete_batch(deliveries)
    server.unblock()
    await eventually(lambda: held(context) == 0)
    assert [body for _, body in drained(server, DEAD)] == [b"bad"]


async def test_scheduled_message_is_dead_lettered_when_it_expired(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    earlier = (datetime.now(UTC) - timedelta(seconds=60)).isoformat()
    scheduled = {"x-opt-scheduled-enqueue-time": earlier, "x-death": [{"queue": "pairmq.delay.0", "count": 1}]}
    publish(server, "late", headers={**scheduled, "ttl": "30"})
    publish(server, "in time", headers={**scheduled, "ttl": "90"})
    assert bodies(await receiver.receive(10, WAIT)) == ["in time"]
    [found] = await RabbitReceiver(context, DEAD_SOURCE).receive(10, WAIT)
    assert (bodies([found]), found.dead_letter_reason) == (["late"], "expired")


async def test_headers_are_not_copied_when_too_long(server: RabbitServer, receiver: RabbitReceiver) -> None:
    publish(server, "a", headers={"long": "x" * 131_000})
    [delivery] = await receiver.receive(1, WAIT)
    await receiver.dead_letter(delivery, "r", "d" * 2000)
    [(properties, body)] = drained(server, DEAD)
    assert (body, properties.message_id, properties.headers["x-dead-letter-reason"]) == (b"a", "a", "r")
    assert "not kept" in properties.headers["x-dead-letter-description"]
    assert ready(server) == 0


async def test_headers_are_not_copied_when_too_costly(server: RabbitServer, receiver: RabbitReceiver) -> None:
    # As many as are read, just: with the reason nobody would read them, in the broker's return of the copy neither.
    publish(server, "a", headers={f"k{number:05d}": "v" * 26 for number in range(2655)})
    [delivery] = await receiver.receive(1, WAIT)
    assert len(delivery.message.application_properties) == 2655
    await receiver.dead_letter(delivery, "poison", "d" * 300)
    [(properties, body)] = drained(server, DEAD)
    assert (body, properties.message_id, properties.headers["x-dead-letter-reason"]) == (b"a", "a", "poison")
    assert "not kept" in properties.headers["x-dead-letter-description"]
    assert ready(server) == 0


async def test_dead_letter_reason_is_read_when_the_broker_dead_letters(
    rabbit: RabbitServer, contexts: MakeContext, kind: str
) -> None:
    declare(rabbit, kind, x_dead_letter_exchange="", x_dead_letter_routing_key=DEAD)
    declare(rabbit, kind, DEAD)
    publish(rabbit, "a", expiration="1")
    context = contexts()
    [found] = await RabbitReceiver(context, DEAD_SOURCE).receive(1, WAIT)
    assert (bodies([found]), found.dead_letter_reason) == (["a"], "expired")


# --------------------------------------------------------------------------- outages


async def test_killed_server_ends_a_wait_and_unsettled_messages_are_redelivered(
    server: RabbitServer, context: Context
) -> None:
    publish(server, *"abc")
    one, other = RabbitReceiver(context, SOURCE), RabbitReceiver(context, SOURCE)
    first, second, third = await take(one, 3)
    await one.complete(second)
    # A quorum queue that is half a second old is not in its node's directory yet, and has no leader after a kill.
    await asyncio.sleep(1.5)
    waiting = asyncio.create_task(other.receive(1, 3600))
    await asyncio.sleep(0.2)
    server.kill()
    error = await error_of(asyncio.wait_for(waiting, WAIT))
    assert error.kind is UNAVAILABLE
    assert held(context) == 0
    for delivery in (first, third):
        await lost(one, delivery)
    assert (await error_of(one.receive(1, 1))).kind is UNAVAILABLE
    await asyncio.to_thread(server.restart)
    again: list[Delivery] = []
    async with asyncio.timeout(100):
        while not {"a", "c"} <= set(bodies(again)):
            again += await persistently(one, 5)
    again += await persistently(one, 0.3)
    assert set(bodies(again)) <= {"a", "b", "c"}


async def test_a_lost_connection_ends_a_wait_and_the_next_call_connects(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, "a")
    [delivery] = await receiver.receive(1, WAIT)
    waiting = asyncio.create_task(RabbitReceiver(context, SOURCE).receive(1, 3600))
    await asyncio.sleep(0.2)
    server.drop_clients()
    error = await error_of(asyncio.wait_for(waiting, WAIT))
    assert error.kind is UNAVAILABLE
    await lost(receiver, delivery)
    assert held(context) == 0
    [again] = await receiver.receive(1, WAIT)
    assert again.delivery_count >= 2  # the other one may have had it for a moment


async def test_settling_on_a_connection_that_breaks_is_in_doubt(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, "a", "b")
    first, second = await take(receiver, 2)
    await hang(server)
    try:
        settling = asyncio.create_task(receiver.complete(first))
        await asyncio.sleep(0.05)
        session = context.consuming.current
        assert session is not None
        session.end(ConnectionResetError("cut by a test"))
        error = await error_of(settling)
        assert (error.kind, error.reason, error.maybe_applied) == (UNAVAILABLE, FailureReason.CONNECTION, True)
        await lost(receiver, second)
        assert held(context) == 0
    finally:
        server.resume()


async def test_calls_to_a_hung_server_can_be_cancelled_and_the_next_ones_connect_anew(
    server: RabbitServer, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, "a", "b")
    receiver, other, fresh = (RabbitReceiver(context, SOURCE) for _ in range(3))
    [delivery] = await receiver.receive(1, WAIT)
    session = context.consuming.current
    rest = await other.receive(1, WAIT)
    await hang(server)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(_link, "_SILENCE", 3600)  # it is too soon to say, however long that takes here
            await given_up(receiver.receive(1, 3600), after=0.02)
            assert context.consuming.current is session
        await given_up(receiver.complete(delivery), after=0.2)
        assert context.consuming.current is None
        await given_up(receiver.receive(1, 3600), after=0.2)
        await given_up(fresh.receive(1, 0), after=0.2)
    finally:
        server.resume()
    # Nothing was lost by it.
    await receiver.complete(delivery)
    await other.complete(rest[0])
    assert await fresh.receive(1, 0) == []
    assert context.consuming.current is session
    assert (ready(server), held(context)) == (0, 0)


async def test_a_call_that_is_given_up_in_a_stall_takes_no_lock_of_other_calls(
    server: RabbitServer, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link, "_AFTERLIFE", 0.01)
    publish(server, *"abcdef")
    receiver, other = (RabbitReceiver(context, SOURCE) for _ in range(2))
    first, *rest = await take(receiver, 4)
    others = await take(other, 2)
    await hang(server)
    try:
        await given_up(receiver.complete(first), after=0.3)
        await given_up(other.receive(1, 3600), after=0.3)
    finally:
        server.resume()
    assert list(await receiver.complete_batch([first, *rest])) == [None] * 4
    assert list(await other.complete_batch(others)) == [None] * 2
    assert (ready(server), held(context)) == (0, 0)


async def test_closing_a_receiver_in_a_stall_takes_no_lock_of_others(
    server: RabbitServer, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link, "_AFTERLIFE", 0.01)
    publish(server, *"ab")
    receiver, other = (RabbitReceiver(context, SOURCE) for _ in range(2))
    await take(receiver, 1)
    [second] = await take(other, 1)
    await hang(server)
    try:
        await receiver.close()
    finally:
        server.resume()
    await other.complete(second)
    await eventually(lambda: ready(server) == 1)  # what the other one held is released all the same


async def test_a_connection_without_calls_after_a_stall_ends(
    server: RabbitServer, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link, "_AFTERLIFE", 0.01)
    receiver = RabbitReceiver(context, SOURCE)
    await receiver.receive(1, 0)
    session = context.consuming.current
    assert session is not None
    # As after twenty questions that were given up.
    context.consuming.retire(session, silent=False)
    await asyncio.sleep(0.2)
    assert await receiver.receive(1, 0) == []  # it goes on, and has a channel there
    assert session.usable
    await receiver.close()
    await eventually(lambda: not session.usable)


async def test_a_queue_that_is_deleted_while_it_is_asked_about_takes_no_lock_of_others(
    server: RabbitServer, contexts: MakeContext, kind: str
) -> None:
    """Its consumer is cancelled while a request is in flight, for which the broker closes the channel."""
    publish(server, *"ab")
    with TcpProxy("127.0.0.1", server.port) as proxy:
        context = contexts(server=SimpleNamespace(url=proxy.rewrite(server.url)))
        keeper = RabbitReceiver(context, SOURCE)
        kept = await take(keeper, 2)
        session = context.consuming.current
        assert session is not None
        declare(server, kind, "gone")
        publish(server, "c", queue="gone")
        receiver = RabbitReceiver(context, Source(Entity("gone")))
        receiver.read_ahead(1)  # so that its consumer stays
        [delivery] = await receiver.receive(1, WAIT)
        proxy.slow(delay=0.5)
        settling = asyncio.create_task(error_of(receiver.complete(delivery)))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(server.delete_queue, "gone")
        await settling
        await error_of(receiver.receive(1, 0))
        proxy.restore()
        # The numbers of channels that were closed are used again.
        for _ in range(2):
            await RabbitReceiver(context, SOURCE).receive(1, 0)
        assert context.consuming.current is session
        assert list(await keeper.complete_batch(kept)) == [None, None]


async def test_a_first_call_to_a_hung_server_can_be_cancelled(server: RabbitServer, contexts: MakeContext) -> None:
    context = contexts()
    await RabbitReceiver(context, SOURCE).receive(1, 0)
    receiver = RabbitReceiver(context, SOURCE)
    await hang(server)
    try:
        await given_up(receiver.receive(1, 3600), after=0.3)
        assert context.consuming.current is None
    finally:
        server.resume()
    publish(server, "a")
    assert bodies(await receiver.receive(1, WAIT)) == ["a"]


async def test_lost_connection_is_raised_when_a_channel_is_being_opened(
    server: RabbitServer, contexts: MakeContext
) -> None:
    context = contexts()
    await RabbitReceiver(context, SOURCE).receive(1, 0)
    session = context.consuming.current
    assert session is not None
    await hang(server)
    try:
        waiting = asyncio.create_task(RabbitReceiver(context, SOURCE).receive(1, 3600))
        await asyncio.sleep(0.1)
        session.end(ConnectionResetError(104, "Connection reset by peer"))
        error = await error_of(asyncio.wait_for(waiting, WAIT))
        assert (error.kind, error.reason) == (UNAVAILABLE, FailureReason.CONNECTION)
    finally:
        server.resume()


async def test_a_half_open_connection_ends_a_wait_by_its_heartbeat(server: RabbitServer, contexts: MakeContext) -> None:
    receiver = RabbitReceiver(contexts(heartbeat=1), SOURCE)
    waiting = asyncio.create_task(receiver.receive(1, 3600))
    await asyncio.sleep(0.2)
    await hang(server)
    try:
        error = await error_of(asyncio.wait_for(waiting, 60))
        assert error.kind is UNAVAILABLE
    finally:
        server.resume()


async def test_a_channel_that_the_broker_closes_is_replaced(
    server: RabbitServer, context: Context, receiver: RabbitReceiver
) -> None:
    publish(server, "a", "b")
    first, second = await take(receiver, 2)
    assert receiver._channel is not None
    # Nothing but a bug writes this, and the broker closes the channel.
    await receiver._channel._raw.basic_ack(99)
    await eventually(lambda: held(context) == 0)
    await lost(receiver, first)
    [again] = await receiver.receive(1, WAIT)
    assert again.delivery_count == 2
    await receiver.complete(again)
    await lost(receiver, second)
    await eventually(lambda: server.connections() == 1)  # those of the test before may be ending


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_batch_is_settled_across_its_channel_and_an_earlier_one(
    server: RabbitServer, context: Context, receiver: RabbitReceiver, order: tuple[int, int]
) -> None:
    publish(server, "a")
    [first] = await receiver.receive(1, WAIT)
    await given_up(receiver.complete(first), after=0)
    await eventually(lambda: held(context) == 0)  # it is done all the same
    earlier = receiver._channel
    assert earlier is not None
    await earlier._raw.basic_ack(99)
    await eventually(lambda: not earlier.usable)
    publish(server, "b")
    [second] = await receiver.receive(1, WAIT)
    deliveries = (second, first)
    assert list(await receiver.complete_batch([deliveries[index] for index in order])) == [None, None]
    assert (ready(server), held(context)) == (0, 0)


async def test_a_channel_that_waits_too_long_for_its_queue_is_replaced(
    server: RabbitServer, contexts: MakeContext, kind: str
) -> None:
    if kind == "classic":
        pytest.skip("only a quorum queue can be there without a leader")
    # The server says that it is there every half of this, and hangs up on who is silent for twice as long.
    context = contexts(heartbeat=4)
    receiver = RabbitReceiver(context, SOURCE)
    assert await receiver.receive(1, 0) == []
    server.erl("ok = sys:suspend(whereis('%2F_orders'))")
    await given_up(receiver.receive(1, 3600), after=6)
    assert context.consuming.current is not None
    server.erl("ok = sys:resume(whereis('%2F_orders'))")
    publish(server, "a")
    assert bodies(await receiver.receive(1, WAIT)) == ["a"]
    await receiver.close()
    await eventually(lambda: channels(server) == 0)  # the broker let go of the first one as well


async def test_a_channel_whose_queue_owes_an_answer_is_closed_all_the_same_and_once(
    server: RabbitServer, contexts: MakeContext, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would give up after a heartbeat, and the broker keep what is locked there."""
    if kind == "classic":
        pytest.skip("only a quorum queue can be there without a leader")

    async def noted(_: object) -> None:
        """Nothing arrives."""

    monkeypatch.setattr(_driver, "_TURN", 0.05)
    context = contexts(heartbeat=4)
    session = await context.consuming.session()
    channel = await session.open_channel(confirms=False)
    server.erl("ok = sys:suspend(whereis('%2F_orders'))")
    asking = asyncio.create_task(session.run(channel.basic_consume(QUEUE, noted)))
    await asyncio.sleep(0.2)  # until it is asked
    closings = [asyncio.create_task(session.run(_driver.close_channel(channel))) for _ in range(2)]
    await asyncio.wait(closings, timeout=6)
    server.erl("ok = sys:resume(whereis('%2F_orders'))")
    await asyncio.wait_for(asyncio.gather(asking, *closings, return_exceptions=True), WAIT)
    await eventually(lambda: channels(server) == 0, 10)
    assert (await context.consuming.session()) is session
    assert await RabbitReceiver(context, SOURCE).receive(1, 0) == []


async def test_a_channel_is_closed_once_however_often_that_is_asked_in_a_stall(
    server: RabbitServer, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may close a connection on which it is asked to close a channel that does not exist."""
    monkeypatch.setattr(_driver, "_TURN", 0.05)
    session = await context.consuming.session()
    channel = await session.open_channel(confirms=False)
    written: list[bytes] = []
    put = channel.write_queue.put

    async def noted(frame: Any) -> None:
        written.append(frame.payload)
        await put(frame)

    monkeypatch.setattr(channel.write_queue, "put", noted)
    await hang(server)
    try:
        closings = [asyncio.create_task(session.run(_driver.close_channel(channel))) for _ in range(2)]
        await asyncio.wait(closings, timeout=0.5)
    finally:
        server.resume()
    await asyncio.wait_for(asyncio.gather(*closings), WAIT)
    assert sum(b"\0\x14\0\x28" in payload for payload in written) == 1  # Channel.Close
    assert await RabbitReceiver(context, SOURCE).receive(1, 0) == []
    assert context.consuming.current is session


# --------------------------------------------------------------------------- close


async def test_close_releases_unsettled_messages(server: RabbitServer, context: Context) -> None:
    publish(server, *"abc")
    receiver = RabbitReceiver(context, SOURCE)
    first, second, _ = await take(receiver, 3)
    await receiver.complete(first)
    await receiver.close()
    await receiver.close()
    assert held(context) == 0
    await eventually(lambda: ready(server) == 2)  # a quorum queue takes a moment
    for call in (receiver.receive(1, 1), receiver.complete(second), receiver.renew_lock(second)):
        assert (await error_of(call)).reason is FailureReason.CLOSED
    [outcome] = await receiver.complete_batch([second])
    assert outcome is not None
    assert outcome.reason is FailureReason.CLOSED


async def test_closing_ends_calls_in_flight(server: RabbitServer, context: Context) -> None:
    publish(server, "a")
    receiver = RabbitReceiver(context, SOURCE)
    [delivery] = await receiver.receive(1, WAIT)
    waiting = asyncio.create_task(receiver.receive(1, 30))
    await asyncio.sleep(0.1)
    settling = asyncio.create_task(receiver.complete(delivery))
    await asyncio.sleep(0)
    await receiver.close()
    assert (await error_of(waiting)).reason is FailureReason.CLOSED
    try:
        await settling
    except TransportError as error:
        assert (error.reason, error.maybe_applied) == (FailureReason.CLOSED, True)  # noqa: PT017
    assert held(context) == 0


async def test_close_releases_messages_when_called_during_a_receive(server: RabbitServer, context: Context) -> None:
    publish(server, *map(str, range(20)))
    for delay in (0, 0.0005, 0.001, 0.002, 0.004, 0.008):
        receiver = RabbitReceiver(context, SOURCE)
        call = asyncio.create_task(receiver.receive(20, 30))
        await asyncio.sleep(delay)
        await receiver.close()
        try:
            await call
        except TransportError as error:
            assert error.reason is FailureReason.CLOSED  # noqa: PT017
        assert held(context) == 0
    await eventually(lambda: ready(server) == 20)


async def test_a_receiver_that_was_never_used_closes(context: Context) -> None:
    await RabbitReceiver(context, SOURCE).close()
    assert not context.receivers


async def test_closing_does_not_wait_for_a_hung_server(server: RabbitServer, contexts: MakeContext) -> None:
    publish(server, *"abc")
    context = contexts()
    one, other, waiting = (RabbitReceiver(context, SOURCE) for _ in range(3))
    await one.receive(1, WAIT)
    await other.receive(1, WAIT)
    poll = asyncio.create_task(waiting.receive(5, 30))
    await poll
    poll = asyncio.create_task(waiting.receive(5, 30))
    await asyncio.sleep(0.2)
    await hang(server)
    try:
        async with asyncio.timeout(WAIT):
            await asyncio.gather(one.close(), other.close(), waiting.close())
        assert (await error_of(poll)).reason is FailureReason.CLOSED
        assert held(context) == 0
    finally:
        server.resume()
    await eventually(lambda: ready(server) == 3)


# --------------------------------------------------------------------------- all together


async def test_nothing_is_lost_between_receivers_that_abandon_and_forget(
    server: RabbitServer, contexts: MakeContext
) -> None:
    count = 10_000
    await asyncio.to_thread(publish_many, server, count)
    done: Counter[str] = Counter()
    contexts_ = [contexts(lock=2), contexts(lock=2)]
    ends_at = time.monotonic() + 200

    async def work(context: Context, seed: int) -> None:
        chance = random.Random(seed)
        receiver = RabbitReceiver(context, SOURCE)
        while len(done) < count:
            assert time.monotonic() < ends_at, len(done)
            deliveries = await receiver.receive(chance.randrange(1, 400), 0.5)
            completed, abandoned = [], []
            for delivery in deliveries:
                chosen = chance.random()
                if chosen < 0.05:
                    abandoned.append(delivery)
                elif chosen > 0.002 or delivery.delivery_count > 1:
                    completed.append(delivery)
            await asyncio.gather(*(receiver.abandon(delivery) for delivery in abandoned))
            outcomes = await receiver.complete_batch(completed)
            done.update(body for body, outcome in zip(bodies(completed), outcomes, strict=True) if outcome is None)
        await receiver.close()

    await asyncio.gather(*(work(contexts_[seed % 2], seed) for seed in range(3)))
    assert len(done) == count
    assert set(done.values()) == {1}
    assert held(contexts_[0]) == 0
    await eventually(lambda: ready(server) == 0)
