"""Azure's own AMQP client, at its lowest level, against our connection over a loopback socket."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.servicebus._pyamqp._connection import Connection as AzureConnection
from azure.servicebus._pyamqp.constants import ConnectionState as AzureState
from azure.servicebus._pyamqp.constants import LinkState, ReceiverSettleMode, SenderSettleMode
from azure.servicebus._pyamqp.constants import SessionState as AzureSessionState
from azure.servicebus._pyamqp.error import AMQPLinkError
from azure.servicebus._pyamqp.message import BatchMessage, Header, Message, Properties
from azure.servicebus._pyamqp.outcomes import Accepted as AzureAccepted
from azure.servicebus._pyamqp.outcomes import Modified as AzureModified
from azure.servicebus._pyamqp.outcomes import Rejected as AzureRejected
from azure.servicebus._pyamqp.sasl import SASLAnonymousCredential
from azure.servicebus._pyamqp.types import AMQPTypes

from servicebus_local import amqp

PATIENCE = 100.0


class Peer:
    """Our side: a thread that moves bytes, and remembers the events; links are handled by `on_event`."""

    def __init__(self) -> None:
        self.engine = amqp.Connection(container_id="peer", properties={"product": "engine"})
        self.events: list[Any] = []
        self.on_event: Callable[[Any], None] = accept_links
        self.failures: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            client, _ = self._listener.accept()
            with client:
                client.settimeout(PATIENCE)
                while not self.engine.closed:
                    data = client.recv(65536)
                    events = self.engine.receive_data(data, time.monotonic()) if data else self.engine.receive_eof()
                    for event in events:
                        self.events.append(event)
                        self.on_event(event)
                    client.sendall(self.engine.data_to_send())
        except OSError:
            # The client has shut its socket before it read our last bytes.
            pass
        except BaseException as error:
            self.failures.append(error)

    def finish(self) -> None:
        self._listener.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert self.failures == []

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def accept_links(event: Any) -> None:
    if isinstance(event, amqp.LinkAttached):
        event.link.accept()
        if event.link.peer_role is amqp.SENDER:
            event.link.grant(1000)
    elif isinstance(event, amqp.Transfer):
        event.delivery.settle(amqp.Accepted())


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.finish()


@pytest.fixture
def client(peer: Peer) -> Iterator[AzureConnection]:
    connection = AzureConnection(
        f"amqp://127.0.0.1:{peer.port}",
        sasl_credential=SASLAnonymousCredential(),
        use_tls=False,
        socket_timeout=0.02,
        max_frame_size=1024,
        idle_timeout=60,
    )
    connection.open()
    until(connection, lambda: connection.state == AzureState.OPENED)
    yield connection
    connection.close()


@pytest.fixture
def session(client: AzureConnection) -> Any:
    session = client.create_session(incoming_window=1, outgoing_window=1)
    session.begin()
    until(client, lambda: session.state == AzureSessionState.MAPPED)
    return session


def until(connection: AzureConnection, condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        connection.listen(wait=False)


def sender(client: AzureConnection, session: Any, **options: Any) -> Any:
    link = session.create_sender_link("queue", send_settle_mode=SenderSettleMode.Unsettled, **options)
    link.attach()
    until(client, lambda: link.state == LinkState.ATTACHED)
    return link


def send(client: AzureConnection, link: Any, message: Message) -> dict[str, Any]:
    outcomes: list[Any] = []
    link.send_transfer(message, timeout=PATIENCE, on_send_complete=lambda _, state: outcomes.append(state))
    until(client, lambda: outcomes)
    return outcomes[0]


class Inbox:
    """A receiving link of Azure's client, with what came."""

    def __init__(self, client: AzureConnection, session: Any, **options: Any) -> None:
        self.client = client
        self.frames: list[Any] = []
        self.messages: list[Message] = []
        self.link = session.create_receiver_link("queue", link_credit=50, on_transfer=self._take, **options)
        self.link.attach()
        until(client, lambda: self.link.state == LinkState.ATTACHED)

    def _take(self, frame: Any, message: Message) -> None:
        self.frames.append(frame)
        self.messages.append(message)

    def wait_for(self, count: int) -> None:
        until(self.client, lambda: len(self.messages) >= count)

    def settle(self, index: int, state: Any, **options: Any) -> None:
        frame = self.frames[index]
        self.link.send_disposition(first_delivery_id=frame[1], delivery_tag=frame[2], delivery_state=state, **options)


EVERYTHING = {
    "text": ("héllo", "héllo", str),
    "long text": ("x" * 300, "x" * 300, str),
    "binary": (b"\x00\xff", b"\x00\xff", bytes),
    "true": (True, True, bool),
    "null": (None, None, type(None)),
    "uuid": (uuid.UUID(int=5), uuid.UUID(int=5), uuid.UUID),
    "double": ({"TYPE": AMQPTypes.double, "VALUE": 1.25}, 1.25, float),
    "float": ({"TYPE": AMQPTypes.float, "VALUE": 1.5}, 1.5, amqp.Float),
    "ubyte": ({"TYPE": AMQPTypes.ubyte, "VALUE": 200}, 200, amqp.UByte),
    "ushort": ({"TYPE": AMQPTypes.ushort, "VALUE": 60000}, 60000, amqp.UShort),
    "uint": ({"TYPE": AMQPTypes.uint, "VALUE": 4_000_000_000}, 4_000_000_000, amqp.UInt),
    "ulong": ({"TYPE": AMQPTypes.ulong, "VALUE": 2**64 - 1}, 2**64 - 1, amqp.ULong),
    "byte": ({"TYPE": AMQPTypes.byte, "VALUE": -100}, -100, amqp.Byte),
    "short": ({"TYPE": AMQPTypes.short, "VALUE": -30000}, -30000, amqp.Short),
    "int": ({"TYPE": AMQPTypes.int, "VALUE": -(2**31)}, -(2**31), amqp.Int),
    "long": ({"TYPE": AMQPTypes.long, "VALUE": -(2**63)}, -(2**63), amqp.Long),
    "time": ({"TYPE": AMQPTypes.timestamp, "VALUE": 1_700_000_000_000}, 1_700_000_000_000, amqp.Timestamp),
    "symbol": ({"TYPE": AMQPTypes.symbol, "VALUE": "name"}, "name", amqp.Symbol),
}


def test_the_connection_opens_and_closes_in_peace(peer: Peer, client: AzureConnection) -> None:
    assert client._remote_properties == {b"product": b"engine"}
    assert peer.of(amqp.SaslDone) == [amqp.SaslDone("ANONYMOUS", b"")]
    assert peer.of(amqp.Opened)[0].hostname == "127.0.0.1"
    client.close(wait=True)
    peer.finish()
    assert peer.of(amqp.ConnectionEnded) == [amqp.ConnectionEnded(None, True)]


def test_every_type_of_property_arrives_as_it_was_sent(peer: Peer, client: AzureConnection, session: Any) -> None:
    link = sender(client, session)
    sent = Message(
        header=Header(durable=True, priority=7, ttl=1000),
        message_annotations={"x-opt-partition-key": "key"},
        properties=Properties(
            message_id="id", content_type="text/plain", group_id="g", creation_time=5, group_sequence=9
        ),
        application_properties={name: value for name, (value, _, _) in EVERYTHING.items()},
        data=[b"payload"],
    )
    assert send(client, link, sent) == {"accepted": []}
    sections = amqp.split_message(peer.of(amqp.Transfer)[0].payload)
    assert sections.data == [b"payload"]
    assert sections.header == amqp.Header(durable=True, priority=7, ttl=1000)
    assert sections.message_annotations == {"x-opt-partition-key": "key"}
    assert sections.properties == amqp.Properties(
        message_id="id",
        content_type="text/plain",
        group_id="g",
        creation_time=amqp.Timestamp(5),
        group_sequence=9,
    )
    assert sections.application_properties is not None
    for name, (_, value, kind) in EVERYTHING.items():
        assert (name, sections.application_properties[name]) == (name, value)
        assert (name, type(sections.application_properties[name])) == (name, kind)


def test_delivery_annotations_behind_the_body_are_read(peer: Peer, client: AzureConnection, session: Any) -> None:
    sent = Message(delivery_annotations={"note": 1}, data=[b"x"], footer={"end": 2})
    send(client, sender(client, session), sent)
    sections = amqp.split_message(peer.of(amqp.Transfer)[0].payload)
    assert sections.delivery_annotations == {"note": 1}
    assert sections.raw_footer.startswith(b"\x00\x53\x78")


def test_messages_of_many_frames_arrive_whole(peer: Peer, client: AzureConnection, session: Any) -> None:
    # The client cuts by what we take, so the payload has to be larger than that.
    payloads = [bytes([number]) * size for number, size in enumerate([0, 1, 65_000, 65_536, 500_000])]
    link = sender(client, session)
    for payload in payloads:
        assert send(client, link, Message(data=[payload])) == {"accepted": []}
    assert [amqp.split_message(event.payload).data for event in peer.of(amqp.Transfer)] == [[p] for p in payloads]


def test_a_batch_is_split_into_its_messages(peer: Peer, client: AzureConnection, session: Any) -> None:
    inner = [amqp.encode_message(body=bytes([number])) for number in range(3)]
    send(client, sender(client, session), BatchMessage(data=inner))
    (event,) = peer.of(amqp.Transfer)
    assert event.delivery.message_format == amqp.BATCH_FORMAT
    assert amqp.split_batch(event.payload) == inner


def test_a_rejection_reaches_the_sender_with_its_error(peer: Peer, client: AzureConnection, session: Any) -> None:
    error = amqp.AmqpError("com.microsoft:server-busy", "later", {"tracking": "5"})

    def reject(event: Any) -> None:
        if isinstance(event, amqp.Transfer):
            event.delivery.settle(amqp.Rejected(error))
        else:
            accept_links(event)

    peer.on_event = reject
    outcome = send(client, sender(client, session), Message(data=[b"x"]))
    assert outcome == {"rejected": [[b"com.microsoft:server-busy", b"later", {b"tracking": b"5"}]]}


def test_a_range_of_outcomes_settles_every_message(peer: Peer, client: AzureConnection, session: Any) -> None:
    link = sender(client, session)
    outcomes: list[Any] = []
    for number in range(600):
        link.send_transfer(
            Message(data=[b"%d" % number]), timeout=PATIENCE, on_send_complete=lambda _, state: outcomes.append(state)
        )
    until(client, lambda: len(outcomes) == 600)
    assert len(peer.of(amqp.Transfer)) == 600


def test_a_refused_link_reports_its_error(peer: Peer, client: AzureConnection, session: Any) -> None:
    def refuse(event: Any) -> None:
        if isinstance(event, amqp.LinkAttached):
            event.link.reject(amqp.AmqpError("amqp:not-found", "no such queue"))

    peer.on_event = refuse
    link = session.create_sender_link("queue")
    link.attach()
    until(client, lambda: link.state == LinkState.ERROR)
    with pytest.raises(AMQPLinkError, match="no such queue"):
        link.get_state()


def test_a_detach_of_ours_reports_its_error(peer: Peer, client: AzureConnection, session: Any) -> None:
    def detach(event: Any) -> None:
        accept_links(event)
        if isinstance(event, amqp.Transfer):
            event.link.detach(amqp.AmqpError("amqp:link:detach-forced", "go away"))

    peer.on_event = detach
    link = sender(client, session)
    link.send_transfer(Message(data=[b"x"]), timeout=PATIENCE)
    until(client, lambda: link.state == LinkState.ERROR)
    with pytest.raises(AMQPLinkError, match="go away"):
        link.get_state()


def stock(messages: list[bytes]) -> Callable[[Any], None]:
    """A handler that sends these messages to the first receiver that asks."""
    left = list(enumerate(messages))

    def handle(event: Any) -> None:
        if isinstance(event, amqp.LinkAttached):
            event.link.accept()
        elif isinstance(event, amqp.LinkFlow):
            while left and event.link.credit:
                number, payload = left.pop(0)
                event.link.send(payload, tag=number.to_bytes(16, "big"))
        elif isinstance(event, amqp.Disposition) and not event.settled:
            event.delivery.settle(event.outcome)

    return handle


def test_messages_are_received_with_every_section(peer: Peer, client: AzureConnection, session: Any) -> None:
    payload = amqp.encode_message(
        header=amqp.Header(durable=True, delivery_count=3),
        message_annotations={"x-opt-sequence-number": 7, "x-opt-locked-until": amqp.Timestamp(5)},
        properties=amqp.Properties(message_id="id", subject="s"),
        application_properties={"a": 1, "u": uuid.UUID(int=9)},
        body=b"body",
    )
    peer.on_event = stock([payload])
    inbox = Inbox(client, session)
    inbox.wait_for(1)
    (message,) = inbox.messages
    assert list(message.data) == [b"body"]
    assert (message.header.durable, message.header.delivery_count) == (True, 3)
    assert message.message_annotations == {b"x-opt-sequence-number": 7, b"x-opt-locked-until": 5}
    assert (message.properties.message_id, message.properties.subject) == (b"id", b"s")
    assert message.application_properties == {b"a": 1, b"u": uuid.UUID(int=9)}


def test_large_messages_are_received_through_a_window_of_one(peer: Peer, client: AzureConnection, session: Any) -> None:
    bodies = [bytes([number]) * 10_000 for number in range(4)]
    peer.on_event = stock([amqp.encode_message(body=body) for body in bodies])
    inbox = Inbox(client, session)
    inbox.wait_for(4)
    assert [b"".join(message.data) for message in inbox.messages] == bodies


def test_outcomes_of_the_receiver_reach_the_deliveries(peer: Peer, client: AzureConnection, session: Any) -> None:
    peer.on_event = stock([amqp.encode_message(body=b"%d" % number) for number in range(3)])
    inbox = Inbox(client, session)
    inbox.wait_for(3)
    inbox.settle(0, AzureAccepted(), settled=True)
    inbox.settle(1, AzureModified(delivery_failed=True, undeliverable_here=False), settled=True)
    inbox.settle(2, AzureRejected(error=None), settled=True)
    client.close(wait=True)
    peer.finish()
    assert [event.outcome for event in peer.of(amqp.Disposition)] == [
        amqp.Accepted(),
        amqp.Modified(delivery_failed=True, undeliverable_here=False),
        amqp.Rejected(None),
    ]
    assert all(event.delivery.settled for event in peer.of(amqp.Disposition))


def test_an_awaited_outcome_is_confirmed(peer: Peer, client: AzureConnection, session: Any) -> None:
    peer.on_event = stock([amqp.encode_message(body=b"x")])
    inbox = Inbox(client, session, rcv_settle_mode=ReceiverSettleMode.Second)
    inbox.wait_for(1)
    inbox.settle(0, AzureModified(delivery_failed=True), settled=False, await_outcome=True, outcome_timeout=PATIENCE)
    (event,) = peer.of(amqp.Disposition)
    assert event.settled is False
    assert event.delivery.settled


def test_filters_arrive_described(peer: Peer, client: AzureConnection, session: Any) -> None:
    peer.on_event = stock([])
    inbox = Inbox(
        client,
        session,
        source_filters={
            b"com.microsoft:session-filter": None,
            b"apache.org:selector-filter:string": (b"apache.org:selector-filter:string", "a > 1"),
        },
        properties={b"com.microsoft:timeout": {"TYPE": AMQPTypes.uint, "VALUE": 65000}},
    )
    (event,) = peer.of(amqp.LinkAttached)
    selector = amqp.Symbol("apache.org:selector-filter:string")
    assert event.link.source.filter == {
        "com.microsoft:session-filter": None,
        selector: amqp.Described(selector, "a > 1"),
    }
    assert event.link.properties == {"com.microsoft:timeout": 65000}
    inbox.link.detach(close=True)
    until(client, lambda: inbox.link.state == LinkState.DETACHED)
    assert peer.of(amqp.LinkDetached) == [amqp.LinkDetached(event.link, None, True)]
