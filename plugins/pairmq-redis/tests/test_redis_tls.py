"""rediss://: certificate and host name are checked, unless the URL says otherwise."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from cut_calls import turns_until_done
from pairmq.model import Entity, FailureKind, Message, TransportError
from pairmq.plugins import registry
from pairmq.testing.servers import free_port
from pairmq_redis.testing import RedisServer

pytestmark = [
    pytest.mark.real_server,
]
QUEUE = Entity("orders")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost by name, not by address, signed by itself."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def self_signed(directory: Path) -> Path:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def tls(certificate: Path) -> Iterator[tuple[RedisServer, int]]:
    port = free_port()
    files = ("--tls-cert-file", str(certificate / "cert.pem"), "--tls-key-file", str(certificate / "key.pem"))
    more = ("--tls-ca-cert-file", str(certificate / "cert.pem"), "--tls-auth-clients", "no")
    with RedisServer(appendfsync="no", options=("--tls-port", str(port), *files, *more)) as server:
        yield server, port


async def test_a_trusted_server_of_the_right_name_is_let_in(
    tls: tuple[RedisServer, int], certificate: Path, message: Callable[..., Message]
) -> None:
    trusted = quote(str(certificate / "cert.pem"))
    async with registry.transport(
        f"rediss://localhost:{tls[1]}?ssl_ca_certs={trusted}&connect_timeout=30"
    ) as transport:
        await transport.admin.create(QUEUE)
        await transport.sender(QUEUE).send(message(b"x" * 300_000))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_an_unknown_authority_or_a_wrong_name_is_not(
    tls: tuple[RedisServer, int], certificate: Path, host: str
) -> None:
    options = f"?ssl_ca_certs={quote(str(certificate / 'cert.pem'))}" if host == "127.0.0.1" else ""
    async with registry.transport(f"rediss://{host}:{tls[1]}{options}") as transport:
        with pytest.raises(TransportError, match=r"(?i)certificate") as caught:
            await transport.admin.check()
        assert caught.value.kind is FailureKind.UNAVAILABLE
        assert not caught.value.maybe_applied


@pytest.mark.parametrize(("host", "trusted"), [("localhost", True), ("elsewhere", False)])
async def test_the_name_of_several_addresses_is_verified(
    tls: tuple[RedisServer, int], certificate: Path, monkeypatch: pytest.MonkeyPatch, host: str, trusted: bool
) -> None:
    def resolve(_: str, port: int, *hints: object, **more: object) -> list[object]:
        kind = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
        return [(*kind, (address, port)) for address in ("127.0.0.9", "127.0.0.1")]  # nothing listens at the first

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    authority = quote(str(certificate / "cert.pem"))
    async with registry.transport(f"rediss://{host}:{tls[1]}?ssl_ca_certs={authority}") as transport:
        if trusted:
            await transport.admin.check()
            return
        with pytest.raises(TransportError, match=r"(?i)certificate"):
            await transport.admin.check()


async def test_a_given_authority_takes_the_place_of_the_systems(
    tls: tuple[RedisServer, int], certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))  # the system trusts the server
    async with registry.transport(f"rediss://localhost:{tls[1]}") as transport:
        await transport.admin.check()
    other = quote(str(self_signed(tmp_path) / "cert.pem"))
    async with registry.transport(f"rediss://localhost:{tls[1]}?ssl_ca_certs={other}") as transport:
        with pytest.raises(TransportError, match=r"(?i)certificate"):
            await transport.admin.check()


async def test_verification_can_be_switched_off(tls: tuple[RedisServer, int]) -> None:
    async with registry.transport(f"rediss://127.0.0.1:{tls[1]}?ssl_cert_reqs=none&connect_timeout=30") as transport:
        await transport.admin.check()


async def test_a_cancelled_call_returns_at_once_over_tls_too(
    tls: tuple[RedisServer, int], message: Callable[..., Message]
) -> None:
    async with registry.transport(f"rediss://127.0.0.1:{tls[1]}?ssl_cert_reqs=none&connect_timeout=30") as transport:
        await transport.admin.create(QUEUE)
        sender = transport.sender(QUEUE)
        await sender.send(message())
        tls[0].pause()
        try:
            sending = asyncio.create_task(sender.send(message(b"x" * 8_000_000)))
            await asyncio.sleep(0.05)
            sending.cancel()
            assert await turns_until_done(sending)  # it waits for nothing
        finally:
            tls[0].resume()
        await sender.send(message())
