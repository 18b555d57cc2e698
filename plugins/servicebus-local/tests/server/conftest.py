"""Servers as processes for these tests, names that were never used before, and a peer that speaks raw AMQP."""

from __future__ import annotations

import itertools
import re
import secrets
import socket
import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import EllipsisType
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus.management import ServiceBusAdministrationClient

from servicebus_local import amqp
from servicebus_local.amqp import frames
from servicebus_local.amqp import performatives as p
from servicebus_local.testing import ServerProcess, shared_access_signature

_numbers = itertools.count(1)
_PATIENCE = 30.0  # s for an answer that must come
SESSION = amqp.Symbol("com.microsoft:session-filter")
_PREFIX = f"test-{secrets.token_hex(3)}-"
"""Of entities, so that those of other runs on one namespace are left alone."""


@pytest.fixture(scope="module")
def server(external: Any) -> Iterator[ServerProcess]:
    """A server in memory, with TLS too; or the namespace to calibrate with."""
    if external is not None:
        yield external
        return
    with ServerProcess(tls=True) as server:
        yield server
        assert "Traceback" not in server.log_tail(100_000)


@pytest.fixture(scope="module")
def admin(server: ServerProcess, external: Any) -> Iterator[ServiceBusAdministrationClient]:
    """Azure's own administration client."""
    with admin_client(server) if external is None else external_admin_client(external) as client:
        yield client
        if external is not None:
            for queue in [each.name for each in client.list_queues() if each.name.startswith(_PREFIX)]:
                client.delete_queue(queue)
            for topic in [each.name for each in client.list_topics() if each.name.startswith(_PREFIX)]:
                client.delete_topic(topic)


@pytest.fixture(scope="module")
def make_queue(admin: ServiceBusAdministrationClient) -> Callable[..., str]:
    """Makes a queue of a name that was never used before."""

    def make(**description: Any) -> str:
        name = f"{_PREFIX}queue-{next(_numbers)}"
        admin.create_queue(name, **description)
        return name

    return make


@pytest.fixture(scope="module")
def lock_longer(admin: ServiceBusAdministrationClient) -> Callable[[str], None]:
    """Makes all further locks of a queue last for a minute: who has waited for the end of a short one has time then."""

    def change(queue: str) -> None:
        description = admin.get_queue(queue)
        description.lock_duration = timedelta(minutes=1)
        admin.update_queue(description)

    return change


@pytest.fixture(scope="module")
def make_topic(admin: ServiceBusAdministrationClient) -> Callable[..., str]:
    """Makes a topic and its subscriptions."""

    def make(*subscriptions: str) -> str:
        name = f"{_PREFIX}topic-{next(_numbers)}"
        admin.create_topic(name)
        for subscription in subscriptions:
            admin.create_subscription(name, subscription)
        return name

    return make


@pytest.fixture
def dial() -> Iterator[Callable[..., RawPeer]]:
    """Connects a raw peer to a server; it is hung up at the end."""
    peers: list[RawPeer] = []

    def connect(server: ServerProcess | int, **options: Any) -> RawPeer:
        peer = RawPeer(server, **options)
        peers.append(peer)
        return peer

    yield connect
    for peer in peers:
        peer.socket.close()


@pytest.fixture
def peer(server: ServerProcess, dial: Callable[..., RawPeer]) -> RawPeer:
    """A raw peer that may use everything."""
    peer = dial(server)
    peer.login()
    return peer


@pytest.fixture(scope="session")
def sign() -> Callable[..., str]:
    """Makes shared access signatures."""
    return token_for


def admin_client(server: ServerProcess) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        server.admin_connection_string, connection_verify=str(server.ca_file), retry_total=0
    )


class _PlainTransport(RequestsTransport):
    """The emulator's administration speaks HTTP, and the client always says HTTPS."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


def external_admin_client(external: Any) -> ServiceBusAdministrationClient:
    address = external.admin_address
    if not address:
        return ServiceBusAdministrationClient.from_connection_string(external.connection_string)
    host = urlsplit(address if "://" in address else f"https://{address}").netloc
    moved = re.sub(r"(?<=Endpoint=sb://)[^;/]+", host, external.connection_string)
    options = {"transport": _PlainTransport()} if address.startswith("http://") else {}
    return ServiceBusAdministrationClient.from_connection_string(moved, **options)


def token_for(
    server: ServerProcess, scope: str = "sb://127.0.0.1/", *, key: str | None = None, lives: int = 300
) -> str:
    """A shared access signature."""
    return shared_access_signature(key or server.key, scope, key_name=server.key_name, seconds=lives)


class RawPeer:
    """A client that does what it is told, with a socket that blocks.

    It has one session, on channel 0; handles count up. `read` gives the next performative and its payload; `expect`
    passes over those that nobody asked for.
    """

    def __init__(self, server: ServerProcess | int, *, opened: bool = True, timeout: float = _PATIENCE) -> None:
        self.server = server
        port = server if isinstance(server, int) else server.port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._handles = itertools.count()
        self._deliveries = itertools.count()
        self._requests = itertools.count(1)
        if opened:
            self.open()
            self.begin()

    # Bytes and frames.

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self, performative: Any, payload: bytes = b"", channel: int = 0) -> None:
        self.say(frames.write_frame(p.write_performative(performative) + payload, channel=channel))

    def take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError(f"the server hung up, after {self._buffer!r}")
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def read(self) -> tuple[Any, bytes]:
        head = self.take(8)
        whole = head + self.take(struct.unpack(">I", head[:4])[0] - 8)
        found = frames.read_frame(whole, 0, len(whole), frames.AMQP_FRAME)
        return found.body, found.payload

    def expect(self, kind: type) -> Any:
        while True:
            body, payload = self.read()
            if isinstance(body, kind):
                self.payload = payload
                return body

    def hung_up(self, within: float = _PATIENCE) -> bool:
        """Whether the server ends the connection; what it still says is passed over."""
        self.socket.settimeout(within)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def silent(self, seconds: float) -> bool:
        """Whether the server says nothing for a while."""
        self.socket.settimeout(seconds)
        try:
            # What is said stays to be read.
            return not self._buffer and not self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(_PATIENCE)

    # Conversations.

    def open(self, **fields: Any) -> p.Open:
        self.say(frames.AMQP_HEADER)
        self.frame(p.Open(container_id="raw", hostname="127.0.0.1", **fields))
        assert self.take(8) == frames.AMQP_HEADER
        opened: p.Open = self.expect(p.Open)
        return opened

    def begin(self, channel: int = 0, window: int = 5000) -> None:
        self.frame(
            p.Begin(remote_channel=None, next_outgoing_id=0, incoming_window=window, outgoing_window=5000),
            channel=channel,
        )
        self.expect(p.Begin)

    def attach(
        self,
        address: str | None,
        *,
        sends: bool,
        waits: bool = True,
        session: str | EllipsisType | None = ...,
        **fields: Any,
    ) -> int:
        """Attach a link, of a session if that is given, None for any; gives our handle.

        The server's answer is in `attached`, its credit for us in `granted`.
        """
        handle = next(self._handles)
        here = f"raw-{handle}"
        wanted = None if session is ... else {SESSION: amqp.Described(SESSION, session)}
        fields.setdefault("source", p.Source(address=here if sends else address, filter=wanted))
        fields.setdefault("target", p.Target(address=address if sends else here))
        if sends:
            fields.setdefault("initial_delivery_count", 0)
        self.frame(p.Attach(name=f"link-{handle}", handle=handle, role=p.SENDER if sends else p.RECEIVER, **fields))
        if waits:
            self.attached: p.Attach = self.expect(p.Attach)
            if sends and self.attached.target is not None:
                self.granted: int = self.expect(p.Flow).link_credit
        return handle

    def login(self, token: str | None = None) -> dict[str, Any]:
        """Put a token for everything; gives the arguments of the answer."""
        token = token if token is not None else token_for(self.server)
        arguments, _ = self.node("$cbs").ask(
            token, operation="put-token", type="servicebus.windows.net:sastoken", name="sb://127.0.0.1/"
        )
        return arguments

    def node(self, address: str) -> RawNode:
        return RawNode(self, address)

    def credit(self, handle: int, credit: int, *, seen: int = 0, drain: bool = False, window: int = 5000) -> None:
        """Let the server send on a link; `seen` is how many deliveries came on it so far."""
        self.frame(
            p.Flow(
                next_incoming_id=None,
                incoming_window=window,
                next_outgoing_id=0,
                outgoing_window=5000,
                handle=handle,
                delivery_count=seen,
                link_credit=credit,
                drain=drain,
            )
        )

    def transfer(self, handle: int, payload: bytes, **fields: Any) -> int:
        delivery = next(self._deliveries)
        tag = delivery.to_bytes(4, "big")
        fields = {"delivery_id": delivery, "delivery_tag": tag, "message_format": 0, "settled": False, **fields}
        self.frame(p.TransferFrame(handle=handle, **fields), payload)
        return delivery

    def outcome(self) -> Any:
        """What became of the delivery that the server says something about next."""
        return self.expect(p.DispositionFrame).state

    def send(self, handle: int, body: bytes = b"hello", **sections: Any) -> Any:
        """Send a message and give its outcome."""
        self.transfer(handle, amqp.encode_message(body=body, **sections))
        return self.outcome()

    def fill(self, address: str, *bodies: bytes, session_id: str | None = None) -> int:
        """Send messages over a link of its own; gives its handle."""
        handle = self.attach(address, sends=True)
        for body in bodies:
            outcome = self.send(handle, body, properties=amqp.Properties(group_id=session_id))
            assert isinstance(outcome, amqp.Accepted)
        return handle

    def texts(self, count: int) -> list[bytes]:
        """What the next deliveries say."""
        found = []
        for _ in range(count):
            self.expect(p.TransferFrame)
            found += amqp.split_message(self.payload).data
        return found

    def deliveries(self, count: int) -> list[tuple[int, UUID]]:
        """Numbers and lock tokens of the next deliveries."""
        found = [self.expect(p.TransferFrame) for _ in range(count)]
        return [(each.delivery_id, UUID(bytes_le=each.delivery_tag)) for each in found]

    def settle(self, delivery_id: int, outcome: Any, *, settled: bool = False) -> None:
        self.frame(p.DispositionFrame(role=p.RECEIVER, first=delivery_id, settled=settled, state=outcome))


class RawNode:
    """A pair of links to a node that answers requests."""

    def __init__(self, peer: RawPeer, address: str) -> None:
        self._peer = peer
        self._answers = peer.attach(address, sends=False)
        peer.credit(self._answers, 1000)
        self._asks = peer.attach(address, sends=True)

    def say(self, value: Any, *, message_id: Any = 1, **arguments: Any) -> None:
        """Ask without waiting for the answer."""
        payload = amqp.encode_message(
            properties=amqp.Properties(message_id=message_id), application_properties=arguments, body=value
        )
        self._peer.transfer(self._asks, payload)

    def ask(self, value: Any, **arguments: Any) -> tuple[dict[str, Any], Any]:
        """Ask; gives the arguments of the answer and its value."""
        self.say(value, **arguments)
        return self.answer()

    def answer(self) -> tuple[dict[str, Any], Any]:
        self._peer.expect(p.TransferFrame)
        sections = amqp.split_message(self._peer.payload)
        value, _ = amqp.decode_value(sections.raw_body, 0)
        return dict(sections.application_properties or {}), value.value
