"""TLS to a real server: certificate and host name are checked, and a client can show a certificate of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from pairmq.model import Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.plugins import registry
from pairmq_postgres.testing import PostgresServer

pytestmark = pytest.mark.real_server

ORDERS = Entity("orders")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, Path]]:
    """A server whose certificate is for localhost by name, not by address; `carol` logs in by a certificate alone."""
    files = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=files, check=True, capture_output=True)

    request = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*request, "-x509", "-subj", "/CN=an authority", "-keyout", "authority.key", "-out", "authority.crt")
    (files / "names").write_text("subjectAltName=DNS:localhost")
    for name in ("localhost", "carol"):
        openssl(*request, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed_by = ("-CA", "authority.crt", "-CAkey", "authority.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-extfile", "names", "-out", f"{name}.crt")
    with PostgresServer(settings={"fsync": "off"}) as server:
        owner = server.data.stat()
        for name in ("authority.crt", "localhost.crt", "localhost.key"):
            copy = server.data / name
            copy.write_bytes((files / name).read_bytes())
            copy.chmod(0o600)
            if os.geteuid() == 0:
                os.chown(copy, owner.st_uid, owner.st_gid)
        rules = server.data / "pg_hba.conf"
        rules.write_text(
            f"hostssl all carol all cert\nhostssl all messenger all scram-sha-256\nhost all messenger all reject\n"
            f"{rules.read_text()}"
        )
        server.query(
            "CREATE ROLE carol LOGIN IN ROLE messenger",
            "ALTER SYSTEM SET ssl_ca_file = 'authority.crt'",
            "ALTER SYSTEM SET ssl_cert_file = 'localhost.crt'",
            "ALTER SYSTEM SET ssl_key_file = 'localhost.key'",
            "ALTER SYSTEM SET ssl = on",
        )
        server.restart()
        yield server, files


def url(server: PostgresServer, host: str, **options: str) -> str:
    query = "&".join(f"{name}={quote(value)}" for name, value in options.items())
    return f"{server.url.replace('127.0.0.1', host)}?connect_timeout=30&{query}"


async def test_messages_pass_to_a_trusted_server_of_the_right_name(tls, message):
    """More than one record of TLS at a time, and more than one read of each."""
    server, files = tls
    trusted = url(server, "localhost", sslmode="verify-full", sslrootcert=str(files / "authority.crt"))
    async with registry.transport(trusted) as transport:
        await transport.admin.create(ORDERS)
        bodies = [b"%d" % size + b"x" * size for size in (0, 8_000, 16_384, 300_000, 3_000_000) for _ in range(20)]
        assert not any(await transport.sender(ORDERS).send_batch([message(body) for body in bodies]))
        found = []
        receiver = transport.receiver(Source(ORDERS))
        while len(found) < len(bodies):
            deliveries = await receiver.receive(1000, 60.0)
            assert not any(await receiver.complete_batch(deliveries))
            found += [delivery.message.body for delivery in deliveries]
        assert found == bodies
        encrypted = "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'messenger'"
        assert server.query(encrypted) == [(True,)]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_an_unknown_authority_or_a_wrong_name_is_not_trusted(tls, host):
    server, files = tls
    known = {"sslrootcert": str(files / "authority.crt")} if host == "127.0.0.1" else {}
    async with registry.transport(url(server, host, sslmode="verify-full", **known)) as transport:
        with pytest.raises(TransportError, match=r"(?i)certificate") as caught:
            await transport.admin.check()
    assert (caught.value.kind, caught.value.maybe_applied) == (FailureKind.UNAVAILABLE, False)


async def test_a_client_without_tls_is_refused_where_the_server_demands_it(tls):
    server, _ = tls
    async with registry.transport(url(server, "127.0.0.1", sslmode="disable")) as transport:
        with pytest.raises(TransportError) as caught:
            await transport.admin.check()
    assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED)


async def test_a_clients_certificate_is_its_login(tls):
    server, files = tls
    (files / "carol.key").chmod(0o600)
    shown = {name: str(files / f"{file}") for name, file in (("sslcert", "carol.crt"), ("sslkey", "carol.key"))}
    options = {"sslmode": "verify-full", "sslrootcert": str(files / "authority.crt")}
    address = f"postgresql://carol@localhost:{server.port}/queues?connect_timeout=30&"
    query = "&".join(f"{name}={quote(value)}" for name, value in {**options, **shown}.items())
    async with registry.transport(address + query) as transport:
        await transport.admin.check()
    query = "&".join(f"{name}={quote(value)}" for name, value in options.items())
    async with registry.transport(address + query) as transport:
        with pytest.raises(TransportError) as caught:
            await transport.admin.check()
    assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED)
