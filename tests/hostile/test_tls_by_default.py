"""A server whose certificate does not prove who it is gets no byte from us, with each product and by default.

The server here only shakes hands: what comes after that would be a password.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from command_line import run
from pairmq.model import Entity, FailureKind, Message, TransportError
from pairmq.plugins import registry
from pairmq.transport import TlsOptions, Transport

LATER = 10.0  # s, which a renewed file is younger
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Listener:
    """Shakes hands with each client, and counts the bytes that they say afterwards."""

    def __init__(self, certificate: trustme.LeafCert, port: int = 0) -> None:
        self.said = 0
        self.heard = threading.Event()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(self._context)
        self._socket = socket.create_server(("127.0.0.1", port))
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
def listen() -> Iterator[Callable[..., Listener]]:
    started: list[Listener] = []

    def start(certificate: trustme.LeafCert, port: int = 0) -> Listener:
        started.append(Listener(certificate, port))
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
        case "redis cluster":
            return f"rediss+cluster://:secret@localhost:{port}?ssl_ca_certs={trusted}"
        case "redis sentinel":
            return f"rediss+sentinel://:secret@localhost:{port}/orders?ssl_ca_certs={trusted}"
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


async def connects(transport: Transport, listener: Listener) -> bool:
    """Whether the server's certificate is trusted, so that something is said."""
    with pytest.raises(TransportError):
        async with asyncio.timeout(60):
            await transport.admin.probe(Entity("orders"))
    await asyncio.to_thread(listener.close)
    return listener.said > 0


@pytest.mark.parametrize("product", ["redis", "rabbitmq", "servicebus"])
async def test_an_authority_that_was_renewed_is_trusted_and_the_former_one_is_not(product, listen, tmp_path: Path):
    file, former, renewed = tmp_path / "ca.pem", trustme.CA(), trustme.CA()
    former.cert_pem.write_to_path(file)
    listener = listen(former.issue_cert("localhost"))
    async with registry.transport(url(product, listener.port, file)) as transport:
        assert await connects(transport, listener)
        renewed.cert_pem.write_to_path(file)
        os.utime(file, (time.time() + LATER,) * 2)
        assert await connects(transport, listen(renewed.issue_cert("localhost"), listener.port))
        assert not await connects(transport, listen(former.issue_cert("localhost"), listener.port))


@pytest.mark.parametrize("product", ["redis", "redis cluster", "redis sentinel", "rabbitmq", "servicebus"])
async def test_an_authority_is_trusted_while_its_file_can_not_be_used(product, listen, tmp_path: Path):
    file, ca = tmp_path / "ca.pem", trustme.CA()
    ca.cert_pem.write_to_path(file)
    listener = listen(ca.issue_cert("localhost"))
    async with registry.transport(url(product, listener.port, file)) as transport:
        file.write_text("half of it")
        assert await connects(transport, listener)


@pytest.mark.parametrize("command", ["doctor", "receive"])
def test_a_command_says_what_to_do_about_a_certificate(certificates: Certificates, listen, command, capfd) -> None:
    listener = listen(certificates.issue("expired"))
    options = ["--secondary", "memory://west"] if command == "doctor" else ["--entity", "orders", "--idle", "1"]
    assert run([command, "--primary", url("redis", listener.port, certificates.file), *options]) == 1
    out, err = capfd.readouterr()
    assert "certificate has expired" in out + err
    assert "renew the certificate, or correct the host or the TLS files in the URL" in out + err


def shown_to(ca: trustme.CA, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a client shows."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.verify_mode = ssl.CERT_REQUIRED
    ca.issue_cert("localhost").configure_cert(server)
    ca.configure_trust(server)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        context.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return int(str(sides[1].getpeercert()["serialNumber"]), 16)  # type: ignore[index]


def test_a_clients_certificate_that_was_renewed_is_shown_once_its_key_fits(certificates: Certificates, tmp_path: Path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def write(issued: trustme.LeafCert, *files: Path) -> None:
        for file in files:
            (issued.cert_chain_pems[0] if file == certificate else issued.private_key_pem).write_to_path(file)
            os.utime(file, (time.time() + LATER * len(seen),) * 2)

    seen: list[int] = []
    former, renewed = certificates.ca.issue_cert("client"), certificates.ca.issue_cert("client")
    write(former, certificate, key)
    context = TlsOptions(str(certificates.file), str(certificate), str(key)).context(for_url="rediss://localhost")
    seen.append(shown_to(certificates.ca, context))
    write(renewed, certificate)  # not its key yet
    seen.append(shown_to(certificates.ca, context))
    write(renewed, key)
    seen.append(shown_to(certificates.ca, context))
    assert seen[0] == seen[1] != seen[2]
