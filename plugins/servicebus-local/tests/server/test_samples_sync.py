"""What the samples of azure-servicebus do, with its blocking client as it is, against a server process.

On the wire the server sees no difference between the two clients: each kind of call is made once here, and the server's
own rules are tested with the asynchronous client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
    TransportType,
)
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


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        yield client


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Opens senders and receivers, which are closed after the test."""
    with ExitStack() as stack:
        yield stack.enter_context


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
    messages = some(receiver, count)
    for message in messages:
        receiver.complete_message(message)
    return [str(message) for message in messages]


def of_session(session_id: str, *texts: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(text, session_id=session_id) for text in texts]


Opened = Callable[[Any], Any]
MakeQueue = Callable[..., str]


def test_messages_are_sent_alone_as_a_list_and_as_a_batch(
    client: ServiceBusClient, opened: Opened, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    sender = opened(client.get_queue_sender(queue))
    fields = {"message_id": "id", "correlation_id": "c", "subject": "s", "to": "t", "reply_to": "r"}
    sender.send_messages(ServiceBusMessage("alone", application_properties={"int": -5, "text": "ü"}, **fields))
    sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    batch = sender.create_message_batch()
    for text in ("c", "d"):
        batch.add_message(ServiceBusMessage(text))
    sender.send_messages(batch)
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(bytes(512_000)))
    found: list[ServiceBusReceivedMessage] = []
    for patience in (SHORT, 10 * SHORT, 100 * SHORT):
        with client.get_queue_receiver(queue, max_wait_time=patience) as receiver:
            for message in receiver:
                found.append(message)
                receiver.complete_message(message)
        if len(found) >= 5:
            # Else the server was held up for as long, and was not heard to the end.
            break
    assert [str(message) for message in found] == ["alone", "a", "b", "c", "d"]
    assert {name: getattr(found[0], name) for name in fields} == fields
    assert found[0].application_properties == {b"int": -5, b"text": "ü".encode()}


def test_messages_are_abandoned_deferred_dead_lettered_and_peeked(
    client: ServiceBusClient, opened: Opened, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    receiver = opened(client.get_queue_receiver(queue))
    texts = ["abandoned", "deferred", "dead"]
    opened(client.get_queue_sender(queue)).send_messages([ServiceBusMessage(text) for text in texts])
    assert [str(each) for each in receiver.peek_messages(9)] == texts
    abandoned, deferred, dead = some(receiver, 3)
    receiver.abandon_message(abandoned)
    receiver.defer_message(deferred)
    receiver.dead_letter_message(dead, reason="reason", error_description="text")
    again = one(receiver)
    assert (str(again), again.delivery_count) == ("abandoned", 1)
    receiver.complete_message(again)
    (found,) = receiver.receive_deferred_messages(deferred.sequence_number)
    receiver.renew_message_lock(found)
    receiver.complete_message(found)
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages([deferred.sequence_number])
    letters = opened(client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    letter = one(letters)
    assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("reason", "text")
    letters.complete_message(letter)
    assert receiver.receive_messages(max_wait_time=SHORT) == []


def test_receive_and_delete_and_prefetch(client: ServiceBusClient, opened: Opened, make_queue: MakeQueue) -> None:
    for options in ({"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}, {"prefetch_count": 50}):
        queue = make_queue()
        receiver = opened(client.get_queue_receiver(queue, **options))
        sent = [str(number) for number in range(60)]
        opened(client.get_queue_sender(queue)).send_messages([ServiceBusMessage(text) for text in sent])
        if "prefetch_count" in options:
            assert bodies(receiver, 60) == sent
        else:
            assert [str(message) for message in some(receiver, 60)] == sent
        assert receiver.peek_messages() == []


def test_a_lock_that_ran_out_is_lost(
    client: ServiceBusClient, opened: Opened, make_queue: MakeQueue, lock_longer: Callable[[str], None]
) -> None:
    queue = make_queue(lock_duration=timedelta(seconds=1))
    receiver = opened(client.get_queue_receiver(queue))
    opened(client.get_queue_sender(queue)).send_messages(ServiceBusMessage("lost"))
    lost = one(receiver)
    lock_longer(queue)
    again = one(receiver)
    for settle in (receiver.complete_message, receiver.renew_message_lock):
        with pytest.raises(MessageLockLostError):
            settle(lost)
    before = again.locked_until_utc
    time.sleep(0.3)
    assert receiver.renew_message_lock(again) > before
    receiver.complete_message(again)


def test_the_auto_renewer_keeps_the_locks_of_messages_and_sessions(
    client: ServiceBusClient, opened: Opened, make_queue: MakeQueue
) -> None:
    long = timedelta(seconds=8)
    queue, sessions = make_queue(lock_duration=long), make_queue(lock_duration=long, requires_session=True)
    opened(client.get_queue_sender(queue)).send_messages(ServiceBusMessage("message"))
    opened(client.get_queue_sender(sessions)).send_messages(of_session("s", "session"))
    receivers = opened(client.get_queue_receiver(queue)), opened(client.get_queue_receiver(sessions, session_id="s"))
    with AutoLockRenewer(max_lock_renewal_duration=30) as renewer:
        messages = [one(receiver) for receiver in receivers]
        renewer.register(receivers[0], messages[0])
        renewer.register(receivers[1], receivers[1].session)
        time.sleep(8.5)
        for receiver, message in zip(receivers, messages, strict=True):
            receiver.complete_message(message)
            assert receiver.peek_messages() == []


def test_messages_are_scheduled_and_cancelled(client: ServiceBusClient, opened: Opened, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sender, receiver = opened(client.get_queue_sender(queue)), opened(client.get_queue_receiver(queue))
    # What is cancelled in time would not come while the test waits here.
    later = datetime.now(UTC) + timedelta(hours=1)
    numbers = sender.schedule_messages([ServiceBusMessage("cancelled"), ServiceBusMessage("kept")], later)
    sender.cancel_scheduled_messages(numbers[0])
    assert [str(each) for each in receiver.peek_messages(9)] == ["kept"]
    at = datetime.now(UTC) + timedelta(seconds=0.5)
    sender.schedule_messages([ServiceBusMessage("called")], at)
    called = one(receiver)
    assert datetime.now(UTC) >= at
    assert str(called) == "called"
    receiver.complete_message(called)


def test_subscriptions_get_what_their_rules_let_through(
    client: ServiceBusClient, opened: Opened, make_topic: Callable[..., str], admin: ServiceBusAdministrationClient
) -> None:
    topic = make_topic("all", "some")
    admin.delete_rule(topic, "some", "$Default")
    admin.create_rule(topic, "some", "large", filter=SqlRuleFilter("size > 2"))
    messages = [ServiceBusMessage(str(size), application_properties={"size": size}) for size in range(5)]
    opened(client.get_topic_sender(topic)).send_messages(messages)
    assert bodies(opened(client.get_subscription_receiver(topic, "all")), 5) == ["0", "1", "2", "3", "4"]
    assert bodies(opened(client.get_subscription_receiver(topic, "some")), 2) == ["3", "4"]


def test_sessions_have_one_receiver_an_order_and_a_state(
    client: ServiceBusClient, opened: Opened, make_queue: MakeQueue
) -> None:
    queue = make_queue(requires_session=True)
    opened(client.get_queue_sender(queue)).send_messages(of_session("x", "1", "2"))
    receiver = opened(client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION))
    session = receiver.session
    assert session.session_id == "x"
    before = session.locked_until_utc
    assert session.renew_lock() > before
    session.set_state(b"state")
    assert session.get_state() == b"state"
    with pytest.raises(SessionCannotBeLockedError):
        opened(client.get_queue_receiver(queue, session_id="x"))
    assert list(client.list_queue_sessions(queue)) == ["x"]
    assert bodies(receiver, 2) == ["1", "2"]
    with pytest.raises(OperationTimeoutError):
        opened(client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5))


def test_a_session_that_is_not_renewed_is_lost(client: ServiceBusClient, opened: Opened, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_session=True, lock_duration=timedelta(seconds=1))
    receiver = opened(client.get_queue_receiver(queue, session_id="s"))
    time.sleep(1.05)
    with pytest.raises(SessionLockLostError):
        receiver.session.get_state()


# With an endpoint of its own, the client says that the connection failed whatever is wrong with a token.
@pytest.mark.parametrize(("kind", "tls"), [("key", True), ("signature", True), ("key", False), ("wrong key", False)])
def test_credentials_are_checked(
    server: ServerProcess,
    client: ServiceBusClient,
    opened: Opened,
    make_queue: MakeQueue,
    sign: Callable[..., str],
    kind: str,
    tls: bool,
) -> None:
    credential = {
        "key": AzureNamedKeyCredential(server.key_name, server.key),
        "signature": AzureSasCredential(sign(server, "sb://some.servicebus.windows.net/")),
        "wrong key": AzureNamedKeyCredential(server.key_name, "wrong"),
    }[kind]
    where: dict[str, Any] = {"fully_qualified_namespace": f"127.0.0.1:{server.port}", "use_tls": False}
    if tls:
        where = {
            "fully_qualified_namespace": "some.servicebus.windows.net",
            "transport_type": TransportType.Amqp,
            "custom_endpoint_address": f"sb://127.0.0.1:{server.tls_port}",
            "connection_verify": str(server.ca_file),
        }
    queue = make_queue()
    sender = ServiceBusClient(**where, credential=credential, retry_total=0).get_queue_sender(queue)
    if kind == "wrong key":
        with pytest.raises(ServiceBusAuthenticationError):
            sender.send_messages(ServiceBusMessage("in"))
        return
    with sender:
        sender.send_messages(ServiceBusMessage("in"))
    assert bodies(opened(client.get_queue_receiver(queue)), 1) == ["in"]


def test_a_missing_entity_is_not_found(client: ServiceBusClient, opened: Opened) -> None:
    with pytest.raises(MessagingEntityNotFoundError):
        opened(client.get_queue_sender("nothing"))
