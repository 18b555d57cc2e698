"""Scheduled messages on a real server: never early, never lost, and soon after their time."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing.conformance.suites import counted
from pairmq.transport import QueueCounts, Receiver, Transport, is_nothing_sent
from pairmq_rabbitmq import _schedule
from pairmq_rabbitmq._schedule import LEVELS, MAX_DELAY, UNIT, DelayNames
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

QUEUE = Entity("orders")
TOPIC = Entity("prices", EntityKind.TOPIC)
LATE = 2.5
"""Seconds that a message may come late here; the machine is busy with other tests."""
WAIT = 60.0
"""Seconds in which what must come has come."""

Times = dict[str, datetime]


def in_(seconds: float, **fields: object) -> Message:
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return Message(b"x", **{"message_id": uuid.uuid4().hex, "scheduled_enqueue_at": at, **fields})  # type: ignore[arg-type]


@pytest.fixture(params=["quorum", "classic"])
async def transport(rabbit: RabbitServer, request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    async with registry.transport(f"{rabbit.url}?connect_timeout=30&queue_type={request.param}") as transport:
        await transport.admin.create(QUEUE)
        yield transport


@pytest.fixture
async def quorum(rabbit: RabbitServer) -> AsyncIterator[Transport]:
    async with registry.transport(f"{rabbit.url}?connect_timeout=30") as transport:
        await transport.admin.create(QUEUE)
        yield transport


async def arrivals(receiver: Receiver, count: int, within: float, came: Times | None = None) -> Times:
    """When each of that many messages arrived."""
    came = {} if came is None else came
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while len(came) < count and loop.time() < deadline:
        for delivery in await receiver.receive(100, max(deadline - loop.time(), 0.01)):
            came.setdefault(delivery.message.message_id or "", datetime.now(UTC))
            await receiver.complete(delivery)
    return came


async def all_of_ten(transport: Transport, entity: Entity) -> float:
    """How late the last of ten messages is."""
    messages = [in_(0.3) for _ in range(10)]
    assert not any(await transport.sender(entity).send_batch(messages))
    receiver = transport.receiver(Source(entity))
    came = await arrivals(receiver, 10, WAIT)
    await receiver.close()
    return lateness(messages, came)[-1]


@pytest.mark.parametrize("lanes", [False, True])
async def test_priority_is_in_a_header_when_delay_queues_have_lanes(
    quorum: Transport, monkeypatch: pytest.MonkeyPatch, lanes: bool
) -> None:
    version = await quorum._context.server_version("ask") if lanes else (0,)
    monkeypatch.setattr(_schedule, "_LANES_SINCE", version)
    monkeypatch.setattr(_schedule, "_LANES_UNTIL", (*version, 1))
    scheduled, past = in_(0.2, priority=7), in_(-9, priority=7)
    await quorum.sender(QUEUE).send(scheduled)
    await quorum.sender(QUEUE).send_batch([past])
    receiver = quorum.receiver(Source(QUEUE))
    raw: dict[str, int | None] = {}
    while len(raw) < 2:
        for delivery in await receiver.receive(2, WAIT):
            assert delivery.message.priority == 7
            raw[delivery.message.message_id or ""] = delivery.lock_token.properties.priority  # type: ignore[attr-defined]
    assert raw == {scheduled.message_id: None if lanes else 7, past.message_id: 7}


def lateness(messages: list[Message], came: Times) -> list[float]:
    """Seconds, the smallest first."""
    late = []
    for message in messages:
        assert message.scheduled_enqueue_at is not None
        late.append((came[message.message_id or ""] - message.scheduled_enqueue_at).total_seconds())
    return sorted(late)


async def soon_enough(once: Callable[[], Awaitable[float]]) -> None:
    """Check that a coroutine is in time in one of five attempts: a stalled machine is not late forever, and what delays
    a message does so each time."""
    late = [await once()]
    while late[-1] >= LATE and len(late) < 5:
        late.append(await once())
    assert late[-1] < LATE, late


async def test_in_mixed_order_each_comes_at_its_time(transport: Transport) -> None:
    async def once() -> float:
        messages = []
        receiver = transport.receiver(Source(QUEUE))
        reading = asyncio.create_task(arrivals(receiver, 100, WAIT))
        sender = transport.sender(QUEUE)
        for _ in range(100):
            messages.append(in_(random.uniform(0.1, 3)))
            await sender.send(messages[-1])
        came = await reading
        await receiver.close()
        assert len(came) == 100
        late = lateness(messages, came)
        assert late[0] >= 0
        return late[-1]

    await soon_enough(once)


async def test_a_batch_and_what_has_waited_long_enough(transport: Transport, rabbit: RabbitServer) -> None:
    await transport.sender(QUEUE).send_batch([in_(-5)])
    assert await counted(transport.admin, Source(QUEUE), QueueCounts(active=1)) == QueueCounts(active=1)
    messages = [in_(4) for _ in range(50)]
    assert await transport.sender(QUEUE).send_batch(messages) == [None] * 50
    told, now = await transport.admin.counts(Source(QUEUE)), datetime.now(UTC)
    assert told.active <= 1 or any(each.scheduled_enqueue_at <= now for each in messages), "they are not there yet"
    came = await arrivals(transport.receiver(Source(QUEUE)), 51, WAIT)
    assert len(came) == 51
    assert lateness(messages, came)[0] >= 0
    await transport.admin.delete(QUEUE)
    assert all(name.startswith("pairmq.delay.") for name in rabbit.queues())


async def test_scheduled_message_is_received_unchanged(transport: Transport) -> None:
    message = in_(
        0.1, subject="s", session_id="g", time_to_live=60.0, reply_to="r", application_properties={"n": 1, "x": "ü"}
    )
    await transport.sender(QUEUE).send(message)
    receiver = transport.receiver(Source(QUEUE))
    [delivery] = await receiver.receive(1, WAIT)
    assert delivery.message == message
    assert delivery.dead_letter_reason is None
    assert delivery.delivery_count == 1


async def test_a_message_that_is_due_when_it_is_sent_lives_from_then_on(quorum: Transport) -> None:
    """As from a backlog; one that was scheduled lives from its time on."""
    sender, receiver = quorum.sender(QUEUE), quorum.receiver(Source(QUEUE))
    overdue, brief = in_(-3600, time_to_live=600.0), in_(0.1, time_to_live=0.000001)
    await sender.send(overdue)
    await sender.send(in_(-3600, time_to_live=0.001))
    await sender.send(brief)
    [delivery] = await receiver.receive(1, WAIT)
    assert delivery.message == overdue
    dead = quorum.receiver(Source(QUEUE, dead_letter=True))
    reasons: list[str | None] = []
    while len(reasons) < 2:  # the receiver itself finds one of them
        assert await receiver.receive(1, 0.2) == []
        found = await dead.receive(2, 0.2)
        reasons += [each.dead_letter_reason for each in found]
        await dead.complete_batch(found)
    assert reasons == ["expired", "expired"]


@pytest.fixture
def retrying(rabbit: RabbitServer) -> Iterator[RabbitServer]:
    """A server that, once it was started again, tries a message again after a second that found no way on."""
    settings = rabbit.directory / "advanced.config"
    settings.write_text("[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 1000}]}].")
    yield rabbit
    settings.unlink()


async def test_200_messages_outlive_a_crash_of_the_broker(retrying: RabbitServer) -> None:
    # A message whose time comes while the server starts finds no way on, and is tried again after 3 minutes by default.
    url = f"{retrying.url}?connect_timeout=5"
    async with registry.transport(url) as transport:
        await transport.admin.create(QUEUE)
        for delay in (8.0, 6.5, 3.0):  # all levels that are needed
            await transport._schedule.route(QUEUE, delay, "schedule")
        # What waits in queues made moments before a kill is lost or held back in some runs: see _schedule.
        await asyncio.sleep(5)
        begun = time.perf_counter()
        messages = [in_(random.uniform(0.5, 6)) for _ in range(200)]
        assert await transport.sender(QUEUE).send_batch(messages) == [None] * 200
        # Many are on their way from one level to the next all the time.
        await asyncio.sleep(max(0.0, 1.2 - (time.perf_counter() - begun)))
        retrying.kill()
    retrying.start()
    came: Times = {}
    async with registry.transport(url) as transport:
        receiver = transport.receiver(Source(QUEUE))
        deadline = time.perf_counter() + 100
        while len(came) < 200 and time.perf_counter() < deadline:
            try:
                await arrivals(receiver, 200, deadline - time.perf_counter(), came)
            except TransportError:
                await asyncio.sleep(0.1)
    assert len(came) == 200
    assert lateness(messages, came)[0] >= 0


async def test_every_delay_takes_its_way(quorum: Transport, rabbit: RabbitServer) -> None:
    schedule = quorum._schedule
    names = DelayNames("quorum")
    for seconds in (0.001, 1, 3600, 40 * 86400, MAX_DELAY - 0.02):
        await schedule.route(QUEUE, seconds, "schedule")
    # All ones: every level has its queue, and nothing else was made for it.
    assert set(rabbit.queues()) == {
        "orders",
        "orders/$dead-letter",
        names.undeliverable,
        *(names.level(level) for level in range(LEVELS)),
    }


async def test_a_delay_beyond_the_longest_is_refused(transport: Transport) -> None:
    [error] = await transport.sender(QUEUE).send_batch([in_(MAX_DELAY + 1)])
    assert error is not None
    assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
    assert "49.7 days" in str(error)
    with pytest.raises(TransportError, match=r"49\.7 days"):
        transport.check_message(QUEUE, in_(MAX_DELAY + 1))


async def test_only_what_is_needed_is_made(quorum: Transport, rabbit: RabbitServer) -> None:
    await quorum._schedule.route(QUEUE, 5 * UNIT / 1000 - 0.002, "schedule")
    names = DelayNames("quorum")
    made = set(rabbit.queues()) - {"orders", "orders/$dead-letter"}
    assert made == {names.undeliverable, names.level(0), names.level(2)}


@pytest.mark.parametrize("delay", [0.0001, 0.064, 0.0641, 1.0, 12345.678, MAX_DELAY - 0.03])
def test_units_are_rounded_up(delay: float) -> None:
    units = _schedule._units(delay)
    shortest = units * UNIT - units.bit_count()  # each queue may end its wait a fraction of a millisecond too soon
    assert shortest >= delay * 1000
    assert units < 2**LEVELS
    assert units == 1 or (units - 1) * UNIT - (units - 1).bit_count() < delay * 1000


async def test_a_target_that_is_missing(transport: Transport) -> None:
    for entity in (Entity("nowhere"), Entity("nowhere", EntityKind.TOPIC)):
        [error] = await transport.sender(entity).send_batch([in_(5)])
        assert error is not None
        assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.NOT_FOUND)


async def test_deleted_target_delays_no_other_message(transport: Transport, rabbit: RabbitServer) -> None:
    gone, stays = Entity("gone"), QUEUE
    await transport.admin.create(gone)
    lost = [in_(6) for _ in range(60)]
    assert await transport.sender(gone).send_batch(lost) == [None] * 60
    await transport.admin.delete(gone)
    async with asyncio.timeout(60):
        while (await transport._context.count(transport._schedule._names.undeliverable, "count"))[0] < 60:
            await asyncio.sleep(0.1)
    await soon_enough(lambda: all_of_ten(transport, stays))


async def test_target_gets_scheduled_messages_when_created_again(transport: Transport) -> None:
    await transport.sender(QUEUE).send(in_(0.1))
    await transport.admin.delete(QUEUE)
    await transport.admin.create(QUEUE)
    await asyncio.sleep(0.2)
    message = in_(0.1)
    await transport.sender(QUEUE).send(message)
    # The first one comes too if its time was not over before the queue was there again.
    came, receiver = Times(), transport.receiver(Source(QUEUE))
    async with asyncio.timeout(WAIT):
        while message.message_id not in came:
            await arrivals(receiver, len(came) + 1, WAIT, came)
    assert len(came) <= 2


async def test_many_at_once_share_the_work(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, asked = transport._schedule, 0
    ask = transport._context.ask

    async def counted(doing: str, method: object) -> None:
        nonlocal asked
        asked += 1
        await ask(doing, method)

    monkeypatch.setattr(transport._context, "ask", counted)
    methods = await asyncio.gather(*(schedule.route(QUEUE, 1.0, "schedule") for _ in range(50)))
    assert len(set(methods)) == 1
    levels = _schedule._units(1.0)
    assert asked <= 4 + 2 * levels.bit_length() + 2 * levels.bit_count() + 2


async def test_cancelled_calls_leave_nothing_half_done(transport: Transport) -> None:
    for turn in range(60):
        task = asyncio.create_task(transport._schedule.route(QUEUE, 0.4, "schedule"))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
    message = in_(0.4)
    await transport.sender(QUEUE).send(message)
    assert await arrivals(transport.receiver(Source(QUEUE)), 1, WAIT)


@pytest.mark.parametrize("how", ["one", "batch"])
async def test_a_scheduled_send_given_up_while_connecting_left_nothing_in_doubt(how: str) -> None:
    connected = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with registry.transport(f"amqp://127.0.0.1:{port}") as transport:
            sender = transport.sender(QUEUE)
            plain = Message(b"x", message_id="plain")
            call = sender.send(in_(60)) if how == "one" else sender.send_batch([plain, in_(60)])
            task = asyncio.ensure_future(call)
            await asyncio.wait_for(connected.wait(), WAIT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert is_nothing_sent(caught.value)


async def test_delay_queues_are_checked_again_on_a_new_connection(transport: Transport, rabbit: RabbitServer) -> None:
    sender = transport.sender(QUEUE)
    await sender.send(in_(0.1))
    assert await arrivals(transport.receiver(Source(QUEUE)), 1, WAIT)
    rabbit.reset()
    async with asyncio.timeout(WAIT):
        while True:
            try:
                await transport.admin.create(QUEUE)
                break
            except TransportError:
                await asyncio.sleep(0.05)
    message = in_(0.1)
    await sender.send(message)
    assert set(await arrivals(transport.receiver(Source(QUEUE)), 1, WAIT)) == {message.message_id}


async def test_both_queue_types_side_by_side(rabbit: RabbitServer) -> None:
    for type_ in ("quorum", "classic"):
        async with registry.transport(f"{rabbit.url}?queue_type={type_}") as transport:
            await transport.admin.create(QUEUE)
            message = in_(0.2)
            await transport.sender(QUEUE).send(message)
            assert set(await arrivals(transport.receiver(Source(QUEUE)), 1, WAIT)) == {message.message_id}


async def test_a_topics_subscriptions_get_scheduled_messages(transport: Transport) -> None:
    admin = transport.admin
    await admin.create(TOPIC)
    await admin.create_subscription(TOPIC, "a")
    await admin.create_subscription(TOPIC, "b")
    messages = [in_(0.2, subject="s") for _ in range(5)]
    assert await transport.sender(TOPIC).send_batch(messages) == [None] * 5
    for name in ("a", "b"):
        came = await arrivals(transport.receiver(Source(TOPIC, name)), 5, WAIT)
        assert len(came) == 5
        assert lateness(messages, came)[0] >= 0


async def test_topic_without_subscriptions_delays_no_other_message(transport: Transport, rabbit: RabbitServer) -> None:
    await transport.admin.create(TOPIC)
    messages = [in_(8) for _ in range(60)]  # none is due while they are sent, also on a busy machine
    assert await transport.sender(TOPIC).send_batch(messages) == [None] * 60
    await asyncio.sleep(8.5)
    await soon_enough(lambda: all_of_ten(transport, QUEUE))
    async with asyncio.timeout(WAIT):
        while any(count != (0, 0) for name, count in rabbit.queues().items() if ".delay." in name):
            await asyncio.sleep(0.05)
