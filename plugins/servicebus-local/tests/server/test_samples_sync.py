"""What the samples of azure-servicebus do, with its blocking client as it is, against a server process.

The server sees no difference between the two clients, so what is only about the server's own rules is tested with the
other one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from servicebus_local.testing import ServerProcess

pytestmark = pytest.mark.real_server

WAIT = 30.0
"""Seconds that a receiver may wait for what must come."""
SHORT = 0.3
"""Seconds that it waits for what must not come."""
LOCK = timedelta(seconds=1)

SPECIAL: dict[str, dict[str, Any]] = {
    "": {},
    "short locks": {"lock_duration": LOCK},
    "sessions": {"requires_session": True, "lock_duration": timedelta(minutes=1)},
    "short sessions": {"requires_session": True, "lock_duration": LOCK},
    "deletes": {"receiver": {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}},
    "prefetches": {"receiver": {"prefetch_count": 50}},
    "buried": {"receiver": {"sub_queue": ServiceBusSubQueue.DEAD_LETTER}},
}
"""How queues are set up, and received from; those with sessions are not."""
NEEDED = {"": 20, "sessions": 3}
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
        self.make_queue = make_queue
        self._open: list[Any] = []
        self._threads = ThreadPoolExecutor(max_workers=32)
        self._lanes: dict[str, list[Future[Lane]]] = {}
        for kind in SPECIAL:
            names = [self.make_queue(**self._description(kind)) for _ in range(NEEDED.get(kind, 1))]
            self._lanes[kind] = [self._threads.submit(self._make, kind, name) for name in names]
        opening = [lane for lanes in self._lanes.values() for lane in lanes]
        # It takes its time.
        self.renewing = self._threads.submit(keep_locks, self, opening)

    def lane(self, kind: str = "") -> Lane:
        """A queue that nobody has used, opened ahead."""
        lanes = self._lanes[kind]
        return lanes.pop(0).result() if lanes else self._make(kind, self.make_queue(**self._description(kind)))

    def sender(self, queue: str) -> ServiceBusSender:
        return self._opened(self.client.get_queue_sender(queue))

    def receiver(self, queue: str, **options: Any) -> ServiceBusReceiver:
        return self._opened(self.client.get_queue_receiver(queue, **options))

    def open(self, *handlers: Any) -> list[Any]:
        """Open all of them at once."""
        return list(self._threads.map(self._opened, handlers))

    def close(self) -> None:
        self.renewing.result()
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.result()
        list(self._threads.map(lambda each: each.close(), self._open))
        self._threads.shutdown()
        self.client.close()

    def _description(self, kind: str) -> dict[str, Any]:
        return {name: value for name, value in SPECIAL[kind].items() if name != "receiver"}

    def _make(self, kind: str, queue: str) -> Lane:
        receiver = None
        if "requires_session" not in SPECIAL[kind]:
            receiver = self.receiver(queue, **SPECIAL[kind].get("receiver", {}))
        return Lane(queue, self.sender(queue), receiver)

    def _opened(self, handler: Any) -> Any:
        opened = handler.__enter__()
        self._open.append(handler)
        return opened


@pytest.fixture(scope="module")
def bench(server: ServerProcess, make_queue: Callable[..., str]) -> Iterator[Bench]:
    bench = Bench(ServiceBusClient.from_connection_string(server.connection_string, retry_total=0), make_queue)
    yield bench
    bench.close()


@pytest.fixture
def lane(bench: Bench) -> Lane:
    return bench.lane()


def one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    """The next message, which must come."""
    (message,) = receiver.receive_messages(1, max_wait_time=WAIT)
    return message


def some(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """The next messages, which must come: one receive gives as many as come soon after the first."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        messages = receiver.receive_messages(count - len(found), max_wait_time=WAIT)
        assert messages, f"{len(found)} of {count} messages came"
        found += messages
    return found


def bodies(receiver: ServiceBusReceiver, count: int) -> list[str]:
    """What the next messages say; they are completed."""
    found: list[str] = []
    while len(found) < count and (messages := receiver.receive_messages(count - len(found), max_wait_time=WAIT)):
        for message in messages:
            found.append(str(message))
            receiver.complete_message(message)
    return found


def of_session(session_id: str, *texts: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(text, session_id=session_id) for text in texts]


# --------------------------------------------------------------------------- sending


@pytest.mark.parametrize("how", ["one", "list", "batch"])
def test_what_is_sent_arrives_in_order(lane: Lane, how: str) -> None:
    texts = ["0"] if how == "one" else [str(number) for number in range(10)]
    messages = [ServiceBusMessage(text) for text in texts]
    if how == "batch":
        batch = lane.sender.create_message_batch()
        for message in messages:
            batch.add_message(message)
        lane.sender.send_messages(batch)
    else:
        lane.sender.send_messages(messages[0] if how == "one" else messages)
    assert bodies(lane.receiver, len(texts)) == texts


def test_properties_arrive(lane: Lane) -> None:
    fields = {
        "message_id": "id",
        "correlation_id": "c",
        "subject": "s",
        "to": "t",
        "reply_to": "r",
        "content_type": "x",
    }
    values = {"none": None, "yes": True, "int": -5, "float": 1.5, "bytes": b"b", "text": "ü"}
    lane.sender.send_messages(ServiceBusMessage("x", application_properties=values, **fields))
    message = one(lane.receiver)
    assert {name: getattr(message, name) for name in fields} == fields
    expected = {name.encode(): value.encode() if isinstance(value, str) else value for name, value in values.items()}
    assert message.application_properties == expected
    lane.receiver.complete_message(message)


@pytest.mark.parametrize(
    ("kind", "fields", "body"),
    [
        (AmqpMessageBodyType.VALUE, {"value_body": [1, b"two"]}, [1, b"two"]),
        (AmqpMessageBodyType.SEQUENCE, {"sequence_body": [[1], [b"two", None]]}, [[1], [b"two", None]]),
    ],
)
def test_annotated_messages_arrive(lane: Lane, kind: AmqpMessageBodyType, fields: dict[str, Any], body: Any) -> None:
    lane.sender.send_messages(AmqpAnnotatedMessage(**fields))
    message = one(lane.receiver)
    assert (message.body_type, list(message.body)) == (kind, body)
    lane.receiver.complete_message(message)


def test_large_messages_arrive_and_those_too_large_are_refused(lane: Lane) -> None:
    content = bytes(range(256)) * 1000
    with pytest.raises(MessageSizeExceededError):
        lane.sender.send_messages(ServiceBusMessage(content * 2))
    lane.sender.send_messages(ServiceBusMessage(content))
    message = one(lane.receiver)
    assert b"".join(message.body) == content
    lane.receiver.complete_message(message)


# --------------------------------------------------------------------------- receiving


def test_a_receiver_is_iterated_until_nothing_came_for_a_while(lane: Lane, bench: Bench) -> None:
    lane.sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    found: list[str] = []
    for patience in (SHORT, 10 * SHORT, 100 * SHORT):
        with bench.client.get_queue_receiver(lane.queue, max_wait_time=patience) as receiver:
            for message in receiver:
                found.append(str(message))
                receiver.complete_message(message)
        if len(found) >= 5:
            # Else the server was held up for as long, and was not heard to the end.
            break
    assert found == ["0", "1", "2", "3", "4"]


def test_messages_are_abandoned_deferred_dead_lettered_and_peeked(lane: Lane, bench: Bench) -> None:
    lane.sender.send_messages([ServiceBusMessage(text) for text in ("abandoned", "deferred", "dead")])
    assert [str(each) for each in lane.receiver.peek_messages(9)] == ["abandoned", "deferred", "dead"]
    abandoned, deferred, dead = some(lane.receiver, 3)
    lane.receiver.abandon_message(abandoned)
    lane.receiver.defer_message(deferred)
    lane.receiver.dead_letter_message(dead, reason="reason", error_description="text")
    again = one(lane.receiver)
    assert (str(again), again.delivery_count) == ("abandoned", 1)
    lane.receiver.complete_message(again)
    (found,) = lane.receiver.receive_deferred_messages(deferred.sequence_number)
    lane.receiver.renew_message_lock(found)
    lane.receiver.complete_message(found)
    with pytest.raises(MessageNotFoundError):
        lane.receiver.receive_deferred_messages([deferred.sequence_number])
    letters = bench.receiver(lane.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    letter = one(letters)
    assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("reason", "text")
    letters.complete_message(letter)
    assert lane.receiver.receive_messages(max_wait_time=SHORT) == []


def test_receive_and_delete_and_prefetch(bench: Bench) -> None:
    for kind in ("deletes", "prefetches"):
        lane = bench.lane(kind)
        lane.sender.send_messages([ServiceBusMessage(str(number)) for number in range(60)])
        found: list[str] = []
        while len(found) < 60:
            messages = lane.receiver.receive_messages(60, max_wait_time=WAIT)
            assert messages
            found += [str(each) for each in messages]
            if kind == "prefetches":
                for message in messages:
                    lane.receiver.complete_message(message)
        assert found == [str(number) for number in range(60)]
        assert lane.receiver.peek_messages() == []


def test_a_lock_that_ran_out_is_lost(bench: Bench, lock_longer: Callable[[str], None]) -> None:
    lane = bench.lane("short locks")
    lane.sender.send_messages(ServiceBusMessage("lost"))
    lost = one(lane.receiver)
    lock_longer(lane.queue)
    again = one(lane.receiver)
    for settle in (lane.receiver.complete_message, lane.receiver.renew_message_lock):
        with pytest.raises(MessageLockLostError):
            settle(lost)
    before = again.locked_until_utc
    time.sleep(0.3)
    assert lane.receiver.renew_message_lock(again) > before
    lane.receiver.complete_message(again)


def test_the_auto_renewer_keeps_the_locks_of_messages_and_sessions(bench: Bench) -> None:
    bench.renewing.result()


def keep_locks(bench: Bench, opening: Sequence[Future[Lane]]) -> None:
    """Hold a message and a session for longer than their locks last, when not everybody is busy with opening links."""
    wait(opening)
    long = timedelta(seconds=8)
    queue, sessions = bench.make_queue(lock_duration=long), bench.make_queue(lock_duration=long, requires_session=True)
    bench.sender(queue).send_messages(ServiceBusMessage("message"))
    bench.sender(sessions).send_messages(of_session("s", "session"))
    receivers = bench.receiver(queue), bench.receiver(sessions, session_id="s")
    with AutoLockRenewer(max_lock_renewal_duration=30) as renewer:
        messages = [one(receiver) for receiver in receivers]
        renewer.register(receivers[0], messages[0])
        renewer.register(receivers[1], receivers[1].session)
        time.sleep(8.5)
        for receiver, message in zip(receivers, messages, strict=True):
            receiver.complete_message(message)
            assert receiver.peek_messages() == []


# --------------------------------------------------------------------------- time


def test_messages_are_scheduled_and_cancelled(lane: Lane) -> None:
    # What is cancelled in time would not come while anybody waits here.
    later = datetime.now(UTC) + timedelta(hours=1)
    numbers = lane.sender.schedule_messages([ServiceBusMessage("cancelled"), ServiceBusMessage("kept")], later)
    lane.sender.cancel_scheduled_messages(numbers[0])
    assert [str(each) for each in lane.receiver.peek_messages(9)] == ["kept"]
    lane.sender.cancel_scheduled_messages(numbers[1])
    assert lane.receiver.peek_messages(9, sequence_number=1) == []
    at = datetime.now(UTC) + timedelta(seconds=0.5)
    lane.sender.schedule_messages([ServiceBusMessage("called")], at)
    lane.sender.send_messages(ServiceBusMessage("sent", scheduled_enqueue_time_utc=at))
    called = one(lane.receiver)
    assert datetime.now(UTC) >= at
    assert str(called) == "called"
    lane.receiver.complete_message(called)
    assert bodies(lane.receiver, 1) == ["sent"]


def test_messages_that_live_too_long_are_gone(bench: Bench) -> None:
    lane = bench.lane()
    lane.sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(milliseconds=100)))
    lane.sender.send_messages(ServiceBusMessage("long", time_to_live=timedelta(days=40)))
    time.sleep(0.2)
    message = one(lane.receiver)
    assert (str(message), message.time_to_live) == ("long", timedelta(days=40))
    lane.receiver.complete_message(message)


# --------------------------------------------------------------------------- topics


def test_subscriptions_get_what_their_rules_let_through(
    bench: Bench, make_topic: Callable[..., str], admin: ServiceBusAdministrationClient
) -> None:
    topic = make_topic("all", "some")
    admin.delete_rule(topic, "some", "$Default")
    admin.create_rule(topic, "some", "large", filter=SqlRuleFilter("size > 2"))
    sender, everything, some = bench.open(
        bench.client.get_topic_sender(topic),
        bench.client.get_subscription_receiver(topic, "all"),
        bench.client.get_subscription_receiver(topic, "some"),
    )
    sender.send_messages([ServiceBusMessage(str(size), application_properties={"size": size}) for size in range(5)])
    assert bodies(everything, 5) == ["0", "1", "2", "3", "4"]
    assert bodies(some, 2) == ["3", "4"]


# --------------------------------------------------------------------------- sessions


def test_two_receivers_get_two_sessions_in_order(bench: Bench) -> None:
    lane = bench.lane("sessions")
    lane.sender.send_messages(of_session("x", "1") + of_session("y", "2") + of_session("x", "3"))
    found = {}
    for _ in range(2):
        receiver = bench.receiver(lane.queue, session_id=NEXT_AVAILABLE_SESSION)
        session = receiver.session.session_id
        found[session] = bodies(receiver, 2 if session == "x" else 1)
    assert found == {"x": ["1", "3"], "y": ["2"]}


def test_a_session_has_state_and_one_holder(bench: Bench) -> None:
    lane = bench.lane("sessions")
    lane.sender.send_messages(of_session("s", "a"))
    receiver = bench.receiver(lane.queue, session_id="s")
    before = receiver.session.locked_until_utc
    assert receiver.session.renew_lock() > before
    receiver.session.set_state(b"state")
    assert receiver.session.get_state() == b"state"
    with pytest.raises(SessionCannotBeLockedError):
        bench.receiver(lane.queue, session_id="s")
    assert list(bench.client.list_queue_sessions(lane.queue)) == ["s"]


def test_a_session_that_is_not_renewed_is_lost(bench: Bench) -> None:
    receiver = bench.receiver(bench.lane("short sessions").queue, session_id="s")
    time.sleep(1.05)
    with pytest.raises(SessionLockLostError):
        receiver.session.get_state()


def test_waiting_for_a_session_ends(bench: Bench) -> None:
    lane = bench.lane("sessions")
    with pytest.raises(OperationTimeoutError):
        bench.receiver(lane.queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5)


# --------------------------------------------------------------------------- who may come in


class AnyToken:
    """What azure-identity's credentials look like."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("header.payload.signature", int(time.time()) + 3600)


# With an endpoint of its own, the client says that the connection failed whatever is wrong with a token.
@pytest.mark.parametrize(
    ("kind", "tls"), [("key", True), ("signature", True), ("key", False), ("wrong key", False), ("bearer", False)]
)
def test_credentials_are_checked(
    server: ServerProcess, lane: Lane, sign: Callable[..., str], kind: str, tls: bool
) -> None:
    credential = {
        "key": AzureNamedKeyCredential(server.key_name, server.key),
        "signature": AzureSasCredential(sign(server, "sb://some.servicebus.windows.net/")),
        "wrong key": AzureNamedKeyCredential(server.key_name, "wrong"),
        "bearer": AnyToken(),
    }[kind]
    where: dict[str, Any] = {"fully_qualified_namespace": f"127.0.0.1:{server.port}", "use_tls": False}
    if tls:
        where = {
            "fully_qualified_namespace": "some.servicebus.windows.net",
            "transport_type": TransportType.Amqp,
            "custom_endpoint_address": f"sb://127.0.0.1:{server.tls_port}",
            "connection_verify": str(server.ca_file),
        }
    good = kind in ("key", "signature")
    client = ServiceBusClient(**where, credential=credential, retry_total=0)
    sender = client.get_queue_sender(lane.queue)
    if not good:
        with pytest.raises(ServiceBusAuthenticationError):
            sender.send_messages(ServiceBusMessage("in"))
        return
    with sender:
        sender.send_messages(ServiceBusMessage("in"))
    assert bodies(lane.receiver, 1) == ["in"]


def test_a_missing_entity_is_not_found(bench: Bench) -> None:
    with pytest.raises(MessagingEntityNotFoundError):
        bench.sender("nothing")
