"""A server whose certificate does not prove who it is gets no byte from us, with each product and by default.

The server here only shakes hands: what comes after that would be a password.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from pairmq.model import Entity, FailureKind, Message, TransportError
from pairmq.plugins import registry

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Listener:
    """Shakes hands with whoever comes, and counts the bytes that they say afterwards."""

    def __init__(self, certificate: trustme.LeafCert) -> None:
        self.said = 0
        self.heard = threading.Event()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(self._context)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.settimeout(30)
            with (
                connection,
                contextlib.suppress(OSError),
                self._context.wrap_socket(connection, server_side=True) as tls,
            ):
                self.said += len(tls.recv(1000))
                self.heard.set()

    def close(self) -> None:
        # Closing alone does not wake a thread that accepts.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)


@dataclass(frozen=True)
class Certificates:
    """An authority and what it has issued."""

    ca: trustme.CA
    file: Path

    def issue(self, kind: str) -> trustme.LeafCert:
        match kind:
            case "wrong name":
                return self.ca.issue_cert("example.org")
            case "expired":
                return self.ca.issue_cert("localhost", not_before=LONG_AGO, not_after=LONG_AGO + datetime.timedelta(1))
            case _:
                return self.ca.issue_cert("localhost")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    ca = trustme.CA()
    file = tmp_path_factory.mktemp("tls") / "ca.pem"
    ca.cert_pem.write_to_path(file)
    return Certificates(ca, file)


@pytest.fixture
def listen() -> Iterator[Callable[[trustme.LeafCert], Listener]]:
    started: list[Listener] = []

    def start(certificate: trustme.LeafCert) -> Listener:
        started.append(Listener(certificate))
        return started[-1]

    yield start
    for listener in started:
        listener.close()


def url(product: str, port: int, authority: Path | None) -> str:
    """The address of a server with TLS, in the ordinary way."""
    trusted = "" if authority is None else quote(str(authority))
    match product:
        case "redis":
            return f"rediss://:secret@localhost:{port}/0" + (f"?ssl_ca_certs={trusted}" if trusted else "")
        case "rabbitmq":
            return f"amqps://user:secret@localhost:{port}/" + (f"?ssl_ca_certs={trusted}" if trusted else "")
        case _:
            options = f"?connect-timeout=20&admin=localhost:{port}" + (f"&tls-ca={trusted}" if trusted else "")
            return f"sb://key:c2VjcmV0@localhost:{port}/{options}"


@pytest.mark.parametrize("product", ["redis", "rabbitmq", "servicebus"])
@pytest.mark.parametrize("kind", ["unknown authority", "wrong name", "expired"])
async def test_who_does_not_prove_who_he_is_hears_nothing(
    certificates: Certificates, listen: Callable[[trustme.LeafCert], Listener], product: str, kind: str
) -> None:
    listener = listen(certificates.issue(kind))
    authority = None if kind == "unknown authority" else certificates.file
    async with registry.transport(url(product, listener.port, authority)) as transport:
        sender = transport.sender(Entity("orders"))
        for attempt in (transport.admin.check, lambda: sender.send(Message(b"x", message_id="m"))):
            with pytest.raises(TransportError) as caught:
                await attempt()
            assert caught.value.kind is FailureKind.UNAVAILABLE
            assert not caught.value.maybe_applied
    listener.close()
    assert listener.said == 0


@pytest.mark.parametrize("product", ["redis", "rabbitmq", "servicebus"])
async def test_who_proves_it_is_spoken_to(
    certificates: Certificates, listen: Callable[[trustme.LeafCert], Listener], product: str
) -> None:
    listener = listen(certificates.issue("good"))
    async with registry.transport(url(product, listener.port, certificates.file)) as transport:
        with pytest.raises(TransportError):  # it says nothing that a broker would
            await transport.sender(Entity("orders")).send(Message(b"x", message_id="m"))
    assert listener.heard.wait(60)
    assert listener.said > 0
