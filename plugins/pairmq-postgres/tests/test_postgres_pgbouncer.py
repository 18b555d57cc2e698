"""Behind PgBouncer in transaction mode, with `listen=false`: each transaction may have another session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from broker_tests import until
from pairmq.model import Entity, FailureKind, Source, TransportError
from pairmq.testing.servers import ServerProcess, accepts_connections, free_port

pytestmark = pytest.mark.real_server

NOBODY = 65534  # it does not run as root


@pytest.fixture
def pgbouncer(server) -> Iterator[str]:
    """The URL of a PgBouncer in front of the server, which gives two sessions to all clients."""
    port = free_port()
    settings = f"""
[databases]
queues = host=127.0.0.1 port={server.port} dbname=queues user=messenger password='{server.password}'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
server_login_retry = 1
query_wait_timeout = 30
max_client_conn = 100
"""
    folder = Path(tempfile.mkdtemp(prefix="pairmq-pgbouncer-"))
    file = folder / "pgbouncer.ini"
    file.write_text(settings)
    # Debian keeps it where a user's PATH may not look.
    command = [shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") or "pgbouncer", str(file)]
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        ids = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        command = ["setpriv", *ids, "--pdeathsig", "KILL", "--", *command]
    with ServerProcess(command, ready=lambda: accepts_connections("127.0.0.1", port), directory=folder):
        yield f"postgresql://messenger@127.0.0.1:{port}/queues"
    shutil.rmtree(folder)


async def test_messages_pass_pgbouncer_in_transaction_mode(pgbouncer, connect, message):
    entity = Entity("orders")
    sending, reading = (connect(pgbouncer, listen="false", poll_interval=0.1) for _ in range(2))
    await sending.admin.create(entity)
    receiver = reading.receiver(Source(entity))
    waiting = asyncio.ensure_future(receiver.receive(1, 60.0))
    await asyncio.sleep(0.3)
    sender = sending.sender(entity)
    await asyncio.gather(*(sender.send(message(str(number))) for number in range(40)))
    found = await waiting
    while len(found) < 40:
        found += await receiver.receive(40, 60.0)
    assert list(await receiver.complete_batch(found)) == [None] * 40
    await sending.admin.probe(entity)
    assert (await reading.admin.counts(Source(entity))).pending == 0
    assert "listen is false" in " ".join(risk.text for risk in await reading.admin.confirm_risks())


async def test_server_prepares_nothing_for_pgbouncer(pgbouncer, connect, message, server):
    transport = connect(pgbouncer, listen="false")
    await transport.admin.create(Entity("orders"))
    for _ in range(10):
        await transport.sender(Entity("orders")).send(message("hello"))
    with psycopg.connect(pgbouncer, autocommit=True, prepare_threshold=None) as connection:
        assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


async def test_receivers_that_waited_for_their_turn_share_no_message(pgbouncer, server, connect, message):
    """Each sees what the one before it has locked, though the role's transactions keep their first view."""
    entity = Entity("orders")
    transport = connect(pgbouncer, listen="false", poll_interval=0.1)
    server.query("ALTER ROLE messenger SET default_transaction_isolation = 'repeatable read'")
    try:
        await transport.admin.create(entity)
        await transport.sender(entity).send_batch([message(str(number)) for number in range(10)])
        transports = [transport, connect(pgbouncer, listen="false")]  # receivers of one look as one
        receivers = [each.receiver(Source(entity)) for each in transports]
        with psycopg.connect(**server.parameters()) as turn:
            turn.execute("SELECT pg_advisory_xact_lock(579122350, id::int) FROM pairmq.source")
            looks = [asyncio.ensure_future(receiver.receive(7, 0)) for receiver in receivers]
            await until(lambda: server.query("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(2,)])
        found = [delivery.message.body for look in looks for delivery in await look]
    finally:
        server.query("ALTER ROLE messenger RESET default_transaction_isolation")
    assert sorted(found) == [b"%d" % number for number in range(10)]


async def test_outbox_stores_by_connections_through_pgbouncer(pgbouncer, server, connect, message):
    """As documented: a driver that prepares nothing. The two sessions are other ones for each transaction."""
    transport, queue = connect(server.url), Entity("outbox")
    await transport.admin.create(queue)
    database = await transport.database()
    ours = [await psycopg.AsyncConnection.connect(pgbouncer, prepare_threshold=None) for _ in range(3)]
    theirs = [await asyncpg.connect(pgbouncer, statement_cache_size=0) for _ in range(3)]
    for _ in range(8):
        for connection in ours:
            await transport.store(database, queue, [message("1")], connection)
            await transport.store(database, queue, [message("2")], connection)
            await connection.commit()
        for connection in theirs:
            async with connection.transaction():
                await transport.store(database, queue, [message("1")], connection)
                await transport.store(database, queue, [message("2")], connection)
    for connection in (*ours, *theirs):
        await connection.close()
    assert (await transport.admin.counts(Source(queue))).pending == 8 * 6 * 2


async def test_a_server_that_pgbouncer_has_lost_is_unavailable(pgbouncer, server, connect, message):
    transport = connect(pgbouncer, listen="false")
    await transport.admin.create(Entity("orders"))
    sender = transport.sender(Entity("orders"))
    await sender.send(message("before"))
    server.kill()
    try:
        for number in range(3):
            with pytest.raises(TransportError) as caught:
                await sender.send(message(str(number)))
            assert caught.value.kind is FailureKind.UNAVAILABLE
    finally:
        server.start()
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TransportError):
                await sender.send(message("after"))
                break
            await asyncio.sleep(0.1)
