"""What the samples of azure-servicebus do, with its asynchronous client as it is, against a server process."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from servicebus_local.testing import ServerProcess

pytestmark = [pytest.mark.real_server, pytest.mark.asyncio(loop_scope="module")]

WAIT = 30.0
"""Seconds that a receiver may wait for what must come."""
SHORT = 0.3
"""Seconds that it waits for what must not come."""
LOCK = timedelta(seconds=1)

SPECIAL: dict[str, dict[str, Any]] = {
    "": {},
    "short locks": {"lock_duration": LOCK},
    "longer locks": {"lock_duration": timedelta(seconds=8)},
    "long locks": {"lock_duration": timedelta(seconds=30)},
    "sessions": {"requires_session": True, "lock_duration": timedelta(minutes=1)},
    "short sessions": {"requires_session": True, "lock_duration": LOCK},
    "longer sessions": {"requires_session": True, "lock_duration": timedelta(seconds=8)},
    "long sessions": {"requires_session": True, "lock_duration": timedelta(seconds=30)},
    "deletes": {"receiver": {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}},
    "buries": {
        "dead_lettering_on_message_expiration": True,
        "receiver": {"sub_queue": ServiceBusSubQueue.DEAD_LETTER},
    },
    "forgets": {"receiver": {"sub_queue": ServiceBusSubQueue.DEAD_LETTER}},
    "remembers": {"requires_duplicate_detection": True},
    "thrice": {"max_delivery_count": 3},
}
"""How queues are set up, and received from; those with sessions are not."""
NEEDED = {"": 34, "short locks": 2, "long locks": 0, "sessions": 6, "long sessions": 0}
"""How many are opened ahead; of others one."""


@dataclass
class Lane:
    """A queue of its own, and who sends to it and receives from it."""

    queue: str
    sender: ServiceBusSender
    receiver: Any  # a ServiceBusReceiver; None where there are sessions


class Bench:
    """One client for all tests: it takes half a second to open a sender or receiver, and as long to close it."""

    def __init__(self, client: ServiceBusClient, make_queue: Callable[..., str]) -> None:
        self.client = client
        self._make_queue = make_queue
        self._open: list[Any] = []
        self._lanes: dict[str, list[asyncio.Task[Lane]]] = {}
        # More at once would only keep each other waiting, and the server has not all patience with each.
        self._opening = asyncio.Semaphore(10)
        self.renewing: asyncio.Task[None] | None = None

    async def sender(self, queue: str) -> ServiceBusSender:
        return await self._opened(self.client.get_queue_sender(queue))

    async def receiver(self, queue: str, **options: Any) -> ServiceBusReceiver:
        return await self._opened(self.client.get_queue_receiver(queue, **options))

    async def publisher(self, topic: str) -> ServiceBusSender:
        return await self._opened(self.client.get_topic_sender(topic))

    async def subscriber(self, topic: str, name: str, **options: Any) -> ServiceBusReceiver:
        return await self._opened(self.client.get_subscription_receiver(topic, name, **options))

    def prepare(self) -> None:
        """Open everything that will be needed, all at once."""
        for kind in SPECIAL:
            tasks = [asyncio.create_task(self._make(**SPECIAL[kind])) for _ in range(NEEDED.get(kind, 1))]
            self._lanes[kind] = tasks
        # It takes its time.
        opening = [task for tasks in self._lanes.values() for task in tasks]
        self.renewing = asyncio.create_task(keep_locks(self, opening))

    async def lane(self, kind: str = "") -> Lane:
        """A queue that nobody has used, opened ahead."""
        tasks = self._lanes[kind]
        return await (tasks.pop(0) if tasks else self._make(**SPECIAL[kind]))

    async def _make(self, *, receiver: dict[str, Any] | None = None, **description: Any) -> Lane:
        queue = self._make_queue(**description)
        if "requires_session" in description:
            return Lane(queue, await self.sender(queue), None)
        return Lane(queue, *await asyncio.gather(self.sender(queue), self.receiver(queue, **(receiver or {}))))

    async def close(self) -> None:
        await asyncio.gather(*(task for tasks in self._lanes.values() for task in tasks))
        if self.renewing is not None:
            await self.renewing
        await asyncio.gather(*(each.close() for each in self._open))
        await self.client.close()

    async def _opened(self, handler: Any) -> Any:
        async with self._opening:
            opened = await handler.__aenter__()
        self._open.append(handler)
        return opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(server: ServerProcess, make_queue: Callable[..., str]) -> AsyncIterator[Bench]:
    bench = Bench(ServiceBusClient.from_connection_string(server.connection_string, retry_total=0), make_queue)
    bench.prepare()
    yield bench
    await bench.close()


@pytest.fixture(scope="module")
def open_server() -> Iterator[ServerProcess]:
    """A server that takes large messages, and every bearer token."""
    queues = ["open", "large"]
    with ServerProcess(tls=True, queues=queues, options=["--any-token", "--premium"]) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def lane(bench: Bench) -> Lane:
    return await bench.lane()


async def one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    """The next message, which must come."""
    (message,) = await receiver.receive_messages(1, max_wait_time=WAIT)
    return message


async def some(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """The next messages, which must come: one receive gives as many as come soon after the first."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        messages = await receiver.receive_messages(count - len(found), max_wait_time=WAIT)
        assert messages, f"{len(found)} of {count} messages came"
        found += messages
    return found


async def bodies(receiver: ServiceBusReceiver, count: int) -> list[str]:
    """What the next messages say; they are completed."""
    found: list[str] = []
    while len(found) < count and (messages := await receiver.receive_messages(count - len(found), max_wait_time=WAIT)):
        for message in messages:
            found.append(str(message))
            await receiver.complete_message(message)
    return found


# --------------------------------------------------------------------------- sending


async def as_one(sender: ServiceBusSender) -> None:
    await sender.send_messages(ServiceBusMessage("0"))


async def as_list(sender: ServiceBusSender) -> None:
    await sender.send_messages([ServiceBusMessage(str(number)) for number in range(10)])


async def as_batch(sender: ServiceBusSender) -> None:
    batch = await sender.create_message_batch()
    for number in range(10):
        batch.add_message(ServiceBusMessage(str(number)))
    await sender.send_messages(batch)


@pytest.mark.parametrize(("send", "count"), [(as_one, 1), (as_list, 10), (as_batch, 10)])
async def test_what_is_sent_arrives_in_order(
    lane: Lane, send: Callable[[ServiceBusSender], Coroutine[Any, Any, None]], count: int
) -> None:
    await send(lane.sender)
    assert await bodies(lane.receiver, count) == [str(number) for number in range(count)]


async def test_a_full_batch_takes_no_more_and_can_be_sent(lane: Lane) -> None:
    batch = await lane.sender.create_message_batch()
    assert batch.max_size_in_bytes == 256 * 1024
    for _ in range(26):
        batch.add_message(ServiceBusMessage(b"x" * 10_000))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * 10_000))
    await lane.sender.send_messages(batch)
    assert len(await bodies(lane.receiver, 26)) == 26


async def test_every_property_arrives(lane: Lane) -> None:
    # The service counts in milliseconds, and has a clock of its own.
    about = timedelta(seconds=1)
    before = datetime.now(UTC) - about
    await lane.sender.send_messages(
        ServiceBusMessage(
            b"body",
            message_id="id",
            correlation_id="correlation",
            subject="subject",
            to="to",
            reply_to="reply",
            reply_to_session_id="reply-session",
            content_type="text/plain",
            session_id="session",
            partition_key="session",
            time_to_live=timedelta(minutes=5),
        )
    )
    message = await one(lane.receiver)
    assert (message.message_id, message.correlation_id, message.subject) == ("id", "correlation", "subject")
    assert (message.to, message.reply_to, message.reply_to_session_id) == ("to", "reply", "reply-session")
    assert (message.content_type, message.session_id, message.partition_key) == ("text/plain", "session", "session")
    assert message.time_to_live == timedelta(minutes=5)
    assert message.delivery_count == 0
    assert message.sequence_number == message.enqueued_sequence_number == 1
    assert message.state.name == "ACTIVE"
    after = datetime.now(UTC) + about
    assert before < message.enqueued_time_utc < after
    assert message.expires_at_utc == message.enqueued_time_utc + timedelta(minutes=5)
    assert before < message.locked_until_utc - timedelta(minutes=1) < after
    assert isinstance(message.lock_token, uuid.UUID | str)
    assert message.dead_letter_source is None
    await lane.receiver.complete_message(message)


VALUES = [
    None, True, False, 0, -1, 2**31 - 1, -(2**31), 0.0, -2.5, 1e300, math.inf, b"", b"bytes",
    "", "text", "Grüße ☃", "x" * 1000, datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC), uuid.UUID(int=2**127 + 1),
]  # fmt: skip


async def test_user_properties_of_every_type_arrive_as_they_were(lane: Lane) -> None:
    sent = {f"property {number}": value for number, value in enumerate(VALUES)}
    # The client must be told when a number has 64 bits.
    longs = {f"long {number}": number for number in (2**31, 2**63 - 1, -(2**63))}
    typed = {name: {"TYPE": "LONG", "VALUE": number} for name, number in longs.items()}
    await lane.sender.send_messages(ServiceBusMessage("x", application_properties={**sent, **typed}))
    sent |= longs
    message = await one(lane.receiver)
    # The client gives names and texts as bytes, and instants as milliseconds.
    expected: dict[bytes, Any] = {}
    for name, value in sent.items():
        if isinstance(value, str):
            value = value.encode()
        elif isinstance(value, datetime):
            value = int(value.timestamp() * 1000)
        expected[name.encode()] = value
    assert message.application_properties == expected
    assert all(type(message.application_properties[name]) is type(value) for name, value in expected.items())
    await lane.receiver.complete_message(message)


@pytest.mark.parametrize(
    ("kind", "fields", "body"),
    [
        (AmqpMessageBodyType.DATA, {"data_body": [b"one", b"two"]}, [b"one", b"two"]),
        (AmqpMessageBodyType.VALUE, {"value_body": {b"a": [1, b"b", None]}}, {b"a": [1, b"b", None]}),
        (AmqpMessageBodyType.SEQUENCE, {"sequence_body": [[1, b"two"], [3]]}, [[1, b"two"], [3]]),
    ],
)
async def test_annotated_messages_arrive_with_any_body(
    lane: Lane, kind: AmqpMessageBodyType, fields: dict[str, Any], body: Any
) -> None:
    await lane.sender.send_messages(
        AmqpAnnotatedMessage(
            **fields,
            header={"durable": True, "priority": 7},
            properties={"message_id": "annotated", "user_id": b"me"},
            annotations={"mine": "kept"},
            footer={"end": 1},
        )
    )
    message = await one(lane.receiver)
    raw = message.raw_amqp_message
    assert raw.body_type is kind
    assert (raw.body if kind is AmqpMessageBodyType.VALUE else list(raw.body)) == body
    assert raw.properties.message_id == b"annotated"
    assert raw.properties.user_id == b"me"
    assert raw.annotations[b"mine"] == b"kept"
    assert raw.header.priority == 7
    assert raw.footer == {b"end": 1}
    await lane.receiver.complete_message(message)


@pytest.mark.parametrize("size", [0, 1, 60_000, 70_000, 200_000, 256 * 1024 - 100])
async def test_messages_up_to_the_limit_arrive_whole(lane: Lane, size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    await lane.sender.send_messages(ServiceBusMessage(content))
    message = await one(lane.receiver)
    assert b"".join(message.body) == content
    await lane.receiver.complete_message(message)


async def test_messages_beyond_the_limit_are_refused_and_the_sender_goes_on(lane: Lane) -> None:
    for size in (256 * 1024, 3_000_000):
        with pytest.raises(MessageSizeExceededError):
            await lane.sender.send_messages(ServiceBusMessage(b"x" * size))
    with pytest.raises(MessageSizeExceededError):
        await lane.sender.send_messages([ServiceBusMessage(b"x" * 100_000)] * 3)
    await lane.sender.send_messages(ServiceBusMessage("next"))
    assert await bodies(lane.receiver, 1) == ["next"]


async def test_a_premium_server_takes_messages_of_megabytes(open_server: ServerProcess) -> None:
    content = bytes(range(256)) * 8192
    async with ServiceBusClient.from_connection_string(open_server.connection_string, retry_total=0) as client:
        sender, receiver = await asyncio.gather(
            client.get_queue_sender("large").__aenter__(), client.get_queue_receiver("large").__aenter__()
        )
        await sender.send_messages(ServiceBusMessage(content))
        message = await one(receiver)
        assert b"".join(message.body) == content
        await receiver.complete_message(message)
        await asyncio.gather(sender.close(), receiver.close())


# --------------------------------------------------------------------------- receiving


async def test_a_receiver_is_iterated_until_nothing_came_for_a_while(bench: Bench) -> None:
    queue = (lane := await bench.lane()).queue
    await lane.sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    found: list[str] = []
    for wait in (SHORT, 10 * SHORT, 100 * SHORT):
        async with bench.client.get_queue_receiver(queue, max_wait_time=wait) as receiver:
            async for message in receiver:
                found.append(str(message))
                await receiver.complete_message(message)
        if len(found) >= 5:
            # Else the server was held up for as long, and was not heard to the end.
            break
    assert found == ["0", "1", "2", "3", "4"]


async def test_nothing_comes_from_an_empty_queue(lane: Lane) -> None:
    assert await lane.receiver.receive_messages(max_wait_time=SHORT) == []


async def test_a_waiting_receiver_gets_a_message_at_once(lane: Lane) -> None:
    waiting = asyncio.create_task(lane.receiver.receive_messages(1, max_wait_time=20 * WAIT))
    await asyncio.sleep(0.05)
    await lane.sender.send_messages(ServiceBusMessage("now"))
    async with asyncio.timeout(WAIT):
        (message,) = await waiting
    assert str(message) == "now"
    await lane.receiver.complete_message(message)


async def test_an_abandoned_message_is_redelivered_and_counted(lane: Lane) -> None:
    await lane.sender.send_messages(ServiceBusMessage("again"))
    for count in range(3):
        message = await one(lane.receiver)
        assert message.delivery_count == count
        await lane.receiver.abandon_message(message)
    await lane.receiver.complete_message(await one(lane.receiver))
    assert await lane.receiver.receive_messages(max_wait_time=SHORT) == []


async def test_deferred_messages_are_received_by_their_numbers_only(lane: Lane) -> None:
    await lane.sender.send_messages([ServiceBusMessage(str(number)) for number in range(4)])
    numbers = []
    for message in await some(lane.receiver, 4):
        numbers.append(message.sequence_number)
        await lane.receiver.defer_message(message)
    assert await lane.receiver.receive_messages(max_wait_time=SHORT) == []
    first, second, third, fourth = await lane.receiver.receive_deferred_messages(numbers)
    assert [str(each) for each in (first, second, third, fourth)] == ["0", "1", "2", "3"]
    assert first.state.name == "DEFERRED"
    await lane.receiver.complete_message(first)
    await lane.receiver.abandon_message(second)
    await lane.receiver.defer_message(third)
    await lane.receiver.dead_letter_message(fourth, reason="because")
    with pytest.raises(MessageNotFoundError):
        await lane.receiver.receive_deferred_messages(numbers[0])
    again = await lane.receiver.receive_deferred_messages(numbers[1:3])
    assert [(str(each), each.delivery_count) for each in again] == [("1", 1), ("2", 0)]
    for message in again:
        await lane.receiver.renew_message_lock(message)
        await lane.receiver.complete_message(message)


async def test_dead_letters_are_received_from_the_sub_queue(bench: Bench, lane: Lane) -> None:
    await lane.sender.send_messages(
        [ServiceBusMessage("bad", application_properties={"mine": 1}), ServiceBusMessage("ugly")]
    )
    bad, ugly = await some(lane.receiver, 2)
    await lane.receiver.dead_letter_message(bad, reason="reason", error_description="a longer text")
    await lane.receiver.dead_letter_message(ugly)
    dead = await bench.receiver(lane.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    bad, ugly = await some(dead, 2)
    assert (str(bad), bad.dead_letter_reason, bad.dead_letter_error_description) == ("bad", "reason", "a longer text")
    assert bad.application_properties[b"mine"] == 1
    assert (str(ugly), ugly.dead_letter_reason or None) == ("ugly", None)
    for message in (bad, ugly):
        await dead.complete_message(message)


async def test_peeking_takes_nothing(lane: Lane) -> None:
    await lane.sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    await lane.sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
    assert [str(each) for each in await lane.receiver.peek_messages(3)] == ["0", "1", "2"]
    # The client remembers where it was.
    assert [str(each) for each in await lane.receiver.peek_messages(9)] == ["3", "4", "later"]
    (seen,) = await lane.receiver.peek_messages(1, sequence_number=5)
    assert (str(seen), seen.sequence_number, seen.lock_token) == ("4", 5, None)
    assert await lane.receiver.peek_messages(sequence_number=100) == []
    (later,) = await lane.receiver.peek_messages(1, sequence_number=6)
    assert later.state.name == "SCHEDULED"
    assert later.scheduled_enqueue_time_utc is not None
    assert await bodies(lane.receiver, 5) == ["0", "1", "2", "3", "4"]


async def test_a_lock_is_renewed(bench: Bench, lock_longer: Callable[[str], None]) -> None:
    for kind in ("short locks", "longer locks", "long locks"):
        lane = await bench.lane(kind)
        await lane.sender.send_messages(ServiceBusMessage("mine"))
        message = await one(lane.receiver)
        before = message.locked_until_utc
        # What is renewed is kept for a minute from then on.
        lock_longer(lane.queue)
        asked = datetime.now(UTC)
        try:
            until = await lane.receiver.renew_message_lock(message)
        except MessageLockLostError:
            # Who was held up for as long as the lock lasts has lost it, and tries a longer one.
            assert datetime.now(UTC) >= before
            continue
        assert until == message.locked_until_utc
        assert until >= asked + timedelta(seconds=59)
        await asyncio.sleep(max(0.0, (before - datetime.now(UTC)).total_seconds()) + 0.1)
        await lane.receiver.complete_message(message)
        assert await lane.receiver.peek_messages() == []
        return
    pytest.fail("no lock was renewed in time")


async def test_a_lock_that_ran_out_is_lost(bench: Bench, lock_longer: Callable[[str], None]) -> None:
    lane = await bench.lane("short locks")
    await lane.sender.send_messages(ServiceBusMessage("lost"))
    lost = await one(lane.receiver)
    lock_longer(lane.queue)
    again = await one(lane.receiver)
    assert (str(again), again.delivery_count) == ("lost", 1)
    assert datetime.now(UTC) >= lost.locked_until_utc
    for settle in (lane.receiver.complete_message, lane.receiver.renew_message_lock):
        with pytest.raises(MessageLockLostError):
            await settle(lost)
    await lane.receiver.complete_message(again)
    assert await lane.receiver.peek_messages() == []


async def test_the_auto_renewer_keeps_the_locks_of_messages_and_sessions(bench: Bench) -> None:
    assert bench.renewing is not None
    await bench.renewing


async def keep_locks(bench: Bench, opening: Sequence[asyncio.Task[Lane]]) -> None:
    """Hold a message and a session for longer than their locks last, when not everybody is busy with opening links."""
    await asyncio.wait(opening)
    lane, session = await bench.lane("longer locks"), await bench.lane("longer sessions")
    sender, receiver = session.sender, await bench.receiver(session.queue, session_id="s")
    await lane.sender.send_messages(ServiceBusMessage("message"))
    await sender.send_messages(of_session("s", "session"))
    messages = await one(lane.receiver), await one(receiver)
    async with AutoLockRenewer(max_lock_renewal_duration=30) as renewer:
        renewer.register(lane.receiver, messages[0])
        renewer.register(receiver, receiver.session)
        await asyncio.sleep(8.5)
        await lane.receiver.complete_message(messages[0])
        await receiver.complete_message(messages[1])
    assert await lane.receiver.peek_messages() == await receiver.peek_messages() == []


async def test_receive_and_delete_needs_no_settling(bench: Bench) -> None:
    lane = await bench.lane("deletes")
    await lane.sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    found = await some(lane.receiver, 2)
    assert [str(each) for each in found] == ["a", "b"]
    with pytest.raises(ValueError, match="receive"):
        await lane.receiver.complete_message(found[0])
    assert await lane.receiver.peek_messages() == []


async def test_deferred_messages_can_be_received_and_deleted(bench: Bench, lane: Lane) -> None:
    await lane.sender.send_messages(ServiceBusMessage("a"))
    message = await one(lane.receiver)
    await lane.receiver.defer_message(message)
    deleting = await bench.receiver(lane.queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    (found,) = await deleting.receive_deferred_messages(message.sequence_number)
    assert str(found) == "a"
    assert await lane.receiver.peek_messages() == []


async def test_prefetched_messages_all_come_and_are_released_by_closing(bench: Bench) -> None:
    lane = await bench.lane()
    await lane.sender.send_messages([ServiceBusMessage(str(number)) for number in range(100)])
    async with bench.client.get_queue_receiver(lane.queue, prefetch_count=50) as receiver:
        assert len(await bodies(receiver, 30)) == 30
    rest = await bodies(lane.receiver, 70)
    assert sorted(map(int, rest)) == list(range(30, 100))


# --------------------------------------------------------------------------- time


@pytest.mark.parametrize("by", ["call", "property"])
async def test_scheduled_messages_come_when_it_is_time(lane: Lane, by: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=0.8)
    if by == "call":
        numbers = await lane.sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], at)
        assert len(numbers) == 2
    else:
        await lane.sender.send_messages([ServiceBusMessage(text, scheduled_enqueue_time_utc=at) for text in ("a", "b")])
    found = [await one(lane.receiver)]
    assert datetime.now(UTC) >= at - timedelta(seconds=0.01)
    found.append(await one(lane.receiver))
    assert [str(each) for each in found] == ["a", "b"]
    assert all(each.enqueued_time_utc >= at - timedelta(milliseconds=2) for each in found)
    for message in found:
        await lane.receiver.complete_message(message)


async def test_cancelled_messages_never_come(lane: Lane) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    numbers = await lane.sender.schedule_messages([ServiceBusMessage(text) for text in "abc"], at)
    await lane.sender.cancel_scheduled_messages(numbers[0])
    await lane.sender.cancel_scheduled_messages(numbers[1:2])
    with pytest.raises(MessageNotFoundError):
        await lane.sender.cancel_scheduled_messages(numbers[0])
    assert [str(each) for each in await lane.receiver.peek_messages(9)] == ["c"]


@pytest.mark.parametrize("dead_letters", [True, False])
async def test_messages_that_live_too_long_are_gone(bench: Bench, dead_letters: bool) -> None:
    lane = await bench.lane("buries" if dead_letters else "forgets")
    await lane.sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(milliseconds=200)))
    found = await lane.receiver.receive_messages(1, max_wait_time=WAIT if dead_letters else 0.6)
    assert [(str(each), each.dead_letter_reason) for each in found] == (
        [("short", "TTLExpiredException")] * dead_letters
    )
    for message in found:
        await lane.receiver.complete_message(message)
    assert await (await bench.receiver(lane.queue)).peek_messages() == []


async def test_duplicates_are_dropped(bench: Bench) -> None:
    lane = await bench.lane("remembers")
    for message_id in ("a", "b", "a", "b", "c"):
        await lane.sender.send_messages(ServiceBusMessage(message_id, message_id=message_id))
    await lane.sender.send_messages([ServiceBusMessage(each, message_id=each) for each in "cde"])
    assert await bodies(lane.receiver, 5) == ["a", "b", "c", "d", "e"]
    assert await lane.receiver.peek_messages() == []


async def test_what_is_delivered_too_often_is_dead_lettered(bench: Bench) -> None:
    lane = await bench.lane("thrice")
    await lane.sender.send_messages(ServiceBusMessage("poison"))
    for _ in range(3):
        await lane.receiver.abandon_message(await one(lane.receiver))
    dead = await bench.receiver(lane.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    message = await one(dead)
    assert (message.dead_letter_reason, message.delivery_count) == ("MaxDeliveryCountExceeded", 3)
    await dead.complete_message(message)


# --------------------------------------------------------------------------- topics


async def test_every_subscription_gets_what_its_rules_let_through(
    bench: Bench, make_topic: Callable[..., str], admin: ServiceBusAdministrationClient
) -> None:
    names = ["all", "none", "correlated", "sql", "acted"]
    topic = make_topic(*names)
    rules = {
        "none": [FalseRuleFilter()],
        "correlated": [CorrelationRuleFilter(label="red"), CorrelationRuleFilter(properties={"size": 3})],
        "sql": [SqlRuleFilter("size > 2 AND sys.Label <> 'red'")],
    }
    for name, filters in rules.items():
        admin.delete_rule(topic, name, "$Default")
        for number, wanted in enumerate(filters):
            admin.create_rule(topic, name, f"rule-{number}", filter=wanted)
    admin.delete_rule(topic, "acted", "$Default")
    admin.create_rule(topic, "acted", "act", filter=TrueRuleFilter(), action=SqlRuleAction("SET seen = 'yes'"))
    sender, *receivers = await asyncio.gather(
        bench.publisher(topic), *(bench.subscriber(topic, name) for name in names)
    )
    await sender.send_messages(
        [
            ServiceBusMessage(f"{subject}{size}", subject=subject, application_properties={"size": size})
            for subject, size in (("red", 1), ("red", 3), ("blue", 2), ("blue", 3), ("blue", 4))
        ]
    )
    last = {"all": "blue4", "correlated": "blue3", "sql": "blue4", "acted": "blue4"}

    async def received(name: str, receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
        if name not in last:
            return await receiver.receive_messages(9, max_wait_time=1.0)
        messages: list[ServiceBusReceivedMessage] = []
        while last[name] not in [str(each) for each in messages]:
            messages += await some(receiver, 1)
        return messages

    found = await asyncio.gather(*map(received, names, receivers))
    got = {name: [str(each) for each in messages] for name, messages in zip(names, found, strict=True)}
    assert got["all"] == got["acted"] == ["red1", "red3", "blue2", "blue3", "blue4"]
    assert got["none"] == []
    assert sorted(set(got["correlated"])) == ["blue3", "red1", "red3"]
    assert got["sql"] == ["blue3", "blue4"]
    assert all(each.application_properties[b"seen"] == b"yes" for each in found[-1])
    for receiver, messages in zip(receivers, found, strict=True):
        for message in messages:
            await receiver.complete_message(message)
        assert await receiver.peek_messages() == []


async def test_subscriptions_have_dead_letters_and_topics_schedules(
    bench: Bench, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("one")
    sender, receiver, dead = await asyncio.gather(
        bench.publisher(topic),
        bench.subscriber(topic, "one"),
        bench.subscriber(topic, "one", sub_queue=ServiceBusSubQueue.DEAD_LETTER),
    )
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    (first,) = await sender.schedule_messages(ServiceBusMessage("a"), soon)
    # This one can be cancelled in time.
    (second,) = await sender.schedule_messages(ServiceBusMessage("b"), soon + timedelta(hours=1))
    await sender.cancel_scheduled_messages(second)
    assert first != second
    message = await one(receiver)
    await receiver.dead_letter_message(message, reason="why")
    message = await one(dead)
    assert (str(message), message.dead_letter_reason) == ("a", "why")
    await dead.complete_message(message)


# --------------------------------------------------------------------------- sessions


@pytest_asyncio.fixture(loop_scope="module")
async def sessions(bench: Bench) -> tuple[str, ServiceBusSender]:
    """A queue with sessions, and a sender."""
    lane = await bench.lane("sessions")
    return lane.queue, lane.sender


def of_session(session_id: str, *texts: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(text, session_id=session_id) for text in texts]


async def test_two_receivers_get_two_sessions_in_order(bench: Bench, sessions: tuple[str, ServiceBusSender]) -> None:
    queue, sender = sessions
    await sender.send_messages(
        of_session("x", "1") + of_session("y", "2") + of_session("x", "3") + of_session("y", "4")
    )
    receivers = await asyncio.gather(*(bench.receiver(queue, session_id=NEXT_AVAILABLE_SESSION) for _ in range(2)))
    found = {each.session.session_id: await bodies(each, 2) for each in receivers}
    assert found == {"x": ["1", "3"], "y": ["2", "4"]}
    with pytest.raises(SessionCannotBeLockedError):
        await bench.receiver(queue, session_id="x")


async def test_a_session_has_state_and_a_lock_to_renew(bench: Bench, sessions: tuple[str, ServiceBusSender]) -> None:
    queue, sender = sessions
    await sender.send_messages(of_session("named", "a"))
    async with bench.client.get_queue_receiver(queue, session_id="named") as receiver:
        session = receiver.session
        assert await session.get_state() is None
        for state in (b"\x00state", b"", None, "text"):
            await session.set_state(state)
            expected = state.encode() if isinstance(state, str) else state
            assert await session.get_state() == expected
        before = session.locked_until_utc
        await asyncio.sleep(0.3)
        assert await session.renew_lock() > before
        assert [str(each) for each in await receiver.peek_messages()] == ["a"]
        message = await one(receiver)
        assert message.session_id == "named"
        await receiver.defer_message(message)
        (deferred,) = await receiver.receive_deferred_messages(message.sequence_number)
        await receiver.complete_message(deferred)
    # It is released at once, and the state stays.
    async with bench.client.get_queue_receiver(queue, session_id="named") as receiver:
        assert await receiver.session.get_state() == b"text"


async def test_a_session_that_is_not_renewed_is_lost(bench: Bench, lock_longer: Callable[[str], None]) -> None:
    for kind in ("short sessions", "longer sessions", "long sessions"):
        lane = await bench.lane(kind)
        await lane.sender.send_messages(of_session("late", "a"))
        receiver = await bench.receiver(lane.queue, session_id="late")
        until = receiver.session.locked_until_utc
        try:
            message = await one(receiver)
        except SessionLockLostError:
            # Who was held up for as long as the lock lasts has lost it already, and tries a longer one.
            assert datetime.now(UTC) >= until
            continue
        await asyncio.sleep(max(0.0, (until - datetime.now(UTC)).total_seconds()) + 0.1)
        with pytest.raises(SessionLockLostError):
            await receiver.complete_message(message)
        lock_longer(lane.queue)
        other = await bench.receiver(lane.queue, session_id="late")
        again = await one(other)
        assert (str(again), again.delivery_count) == ("a", 1)
        await other.complete_message(again)
        return
    pytest.fail("no session gave its message in time")


async def test_waiting_for_a_session_ends_with_one_or_with_patience(
    bench: Bench, sessions: tuple[str, ServiceBusSender]
) -> None:
    queue, sender = sessions
    with pytest.raises(OperationTimeoutError):
        await bench.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5)
    waiting = asyncio.create_task(bench.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT))
    await asyncio.sleep(0.7)
    await sender.send_messages(of_session("new", "a"))
    receiver = await waiting
    assert receiver.session.session_id == "new"
    assert await bodies(receiver, 1) == ["a"]


async def test_sessions_are_listed(bench: Bench, sessions: tuple[str, ServiceBusSender]) -> None:
    queue, sender = sessions
    empty = await bench.lane("sessions")
    receiver = await bench.receiver(queue, session_id="s007")

    async def listed(name: str, **options: Any) -> list[str]:
        return [each async for each in bench.client.list_queue_sessions(name, **options)]

    start = datetime.now(UTC) - timedelta(minutes=1)
    await sender.send_messages([message for number in range(150) for message in of_session(f"s{number:03}", "x")])
    await receiver.session.set_state(b"state")
    found = await asyncio.gather(
        listed(empty.queue),
        listed(queue),
        listed(queue, state_updated_after=start),
        listed(queue, state_updated_after=start + timedelta(hours=1)),
    )
    assert found == [[], [f"s{number:03}" for number in range(150)], ["s007"], []]


async def test_sessions_are_for_those_who_ask_for_them(
    bench: Bench, lane: Lane, sessions: tuple[str, ServiceBusSender]
) -> None:
    queue, sender = sessions
    with pytest.raises(ServiceBusError, match="session"):
        await sender.send_messages(ServiceBusMessage("no session"))
    refused = await asyncio.gather(
        bench.receiver(queue), bench.receiver(lane.queue, session_id="x"), return_exceptions=True
    )
    assert all(isinstance(each, ServiceBusError) and "session" in str(each) for each in refused)


# --------------------------------------------------------------------------- who may come in


class AnyToken:
    """What azure-identity's credentials look like."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("header.payload.signature", int(datetime.now(UTC).timestamp()) + 3600)

    async def close(self) -> None:
        pass


async def send_with(server: ServerProcess, credential: Any, queue: str, *, tls: bool = True) -> None:
    """Send a message; over TLS as one does to the service."""
    where: dict[str, Any] = {
        "fully_qualified_namespace": "some.servicebus.windows.net",
        "transport_type": TransportType.Amqp,
        "custom_endpoint_address": f"sb://127.0.0.1:{server.tls_port}",
        "connection_verify": str(server.ca_file),
    }
    if not tls:
        # With an endpoint of its own, the client says that the connection failed whatever is wrong with a token.
        where = {"fully_qualified_namespace": f"127.0.0.1:{server.port}", "use_tls": False}
    async with (
        ServiceBusClient(**where, credential=credential, retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
    ):
        await sender.send_messages(ServiceBusMessage("in"))


Credential = Callable[[ServerProcess, Callable[..., str]], Any]


def key_of(server: ServerProcess, sign: Callable[..., str]) -> Any:
    return AzureNamedKeyCredential(server.key_name, server.key)


def signature_of(server: ServerProcess, sign: Callable[..., str]) -> Any:
    return AzureSasCredential(sign(server, "sb://some.servicebus.windows.net/"))


BAD: list[Credential] = [
    lambda server, sign: AzureNamedKeyCredential(server.key_name, "wrong"),
    lambda server, sign: AzureNamedKeyCredential("nobody", server.key),
    lambda server, sign: AzureSasCredential(sign(server, "sb://some.servicebus.windows.net/other")),
    lambda server, sign: AzureSasCredential(sign(server, lives=-10)),
    lambda server, sign: AnyToken(),
]
"""A wrong key, an unknown name, a signature for something else, one that has expired, and one that is none."""


async def test_good_credentials_are_accepted_over_tls(
    server: ServerProcess, lane: Lane, sign: Callable[..., str]
) -> None:
    await asyncio.gather(*(send_with(server, each(server, sign), lane.queue) for each in (key_of, signature_of)))
    assert await bodies(lane.receiver, 2) == ["in", "in"]


async def test_bad_credentials_are_refused(server: ServerProcess, lane: Lane, sign: Callable[..., str]) -> None:
    found = await asyncio.gather(
        *(send_with(server, each(server, sign), lane.queue, tls=False) for each in BAD), return_exceptions=True
    )
    assert [type(each) for each in found] == [ServiceBusAuthenticationError] * len(BAD)
    assert server.key not in str(found)


async def test_bearer_tokens_are_accepted_if_asked_for(open_server: ServerProcess) -> None:
    await send_with(open_server, AnyToken(), "open")


async def test_an_untrusted_certificate_is_refused_by_the_client(server: ServerProcess) -> None:
    with pytest.raises(ServiceBusError, match=r"(?i)certificate"):
        async with ServiceBusClient(
            "some.servicebus.windows.net",
            AzureNamedKeyCredential(server.key_name, server.key),
            transport_type=TransportType.Amqp,
            custom_endpoint_address=f"sb://127.0.0.1:{server.tls_port}",
            retry_total=0,
        ) as client:
            await client.get_queue_sender("any").__aenter__()


# --------------------------------------------------------------------------- entities


async def test_a_missing_entity_is_not_found(bench: Bench) -> None:
    found = await asyncio.gather(bench.sender("nothing"), bench.receiver("nothing"), return_exceptions=True)
    assert [type(each) for each in found] == [MessagingEntityNotFoundError] * 2


async def test_a_disabled_entity_is_an_error(bench: Bench, admin: ServiceBusAdministrationClient) -> None:
    lane = await bench.lane()
    await lane.sender.send_messages(ServiceBusMessage("before"))
    description = admin.get_queue(lane.queue)
    description.status = "Disabled"
    admin.update_queue(description)
    found = await asyncio.gather(bench.sender(lane.queue), bench.receiver(lane.queue), return_exceptions=True)
    assert [type(each) for each in found] == [MessagingEntityDisabledError] * 2
    description.status = "Active"
    admin.update_queue(description)
    assert await bodies(await bench.receiver(lane.queue), 1) == ["before"]
