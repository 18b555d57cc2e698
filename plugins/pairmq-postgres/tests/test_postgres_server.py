"""What only PostgreSQL does: its logins and rights, its standbys, its sessions and transactions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from broker_tests import until
from command_line import run
from doc_blocks import blocks
from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing import TcpProxy
from pairmq.transport import QueueProperties, Transport
from pairmq_postgres import _receiver, _schema, _sender, _sql
from pairmq_postgres._connection import Blobs, Numbers, Rows, Statement, Texts
from pairmq_postgres._errors import SchemaVersion
from pairmq_postgres._pool import Pool
from pairmq_postgres._receiver import PostgresReceiver
from pairmq_postgres._schema import STEPS, VERSION, migrate, script
from pairmq_postgres.testing import GRANTS, PostgresServer

pytestmark = pytest.mark.real_server

ORDERS = Entity("orders")
PATIENCE = 60.0


def sessions(server: PostgresServer, *, but: Collection[int] = ()) -> dict[int, str]:
    """The states of the transports' sessions by process id, but those of other tests, which may be ending."""
    found = server.query(
        "SELECT pid, state FROM pg_stat_activity WHERE usename = 'messenger' AND query NOT LIKE 'LISTEN%%'"
    )
    return {pid: state or "" for pid, state in found if pid not in but}


async def refused(transport: Transport) -> TransportError:
    with pytest.raises(TransportError) as caught:
        async with asyncio.timeout(PATIENCE):
            await transport.admin.check()
    return caught.value


# Logins and rights.


async def test_wrong_password_is_refused_and_not_repeated(server, connect):
    error = await refused(connect(server.url_of("messenger", "wrong-secret")))
    assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED)
    assert "wrong-secret" not in f"{error!r} {error.__cause__!r} {error.__context__!r}"


async def test_a_unix_socket_reaches_the_server_and_finds_it_again(connect):
    settings = {"fsync": "off", "unix_socket_directories": ".", "listen_addresses": "127.0.0.1"}
    with PostgresServer(settings=settings) as own:
        login = own.url.split("@")[0]
        transport = connect(f"{login}@/queues", host=quote(str(own.data)), port=own.port)
        await transport.admin.create(ORDERS)
        sender = transport.sender(ORDERS)
        await sender.send(Message(b"before"))
        own.restart()
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(TransportError):
                    await sender.send(Message(b"after"))
                    break
        receiver = transport.receiver(Source(ORDERS))
        assert {each.message.body for each in await receiver.receive(10, 5.0)} == {b"before", b"after"}
        await transport.close()


async def test_role_without_rights_is_refused(server, connect):
    with contextlib.suppress(psycopg.errors.DuplicateObject):
        server.query("CREATE ROLE stranger LOGIN PASSWORD 'secret'")
    error = await refused(connect(server.url_of("stranger", "secret")))
    assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED)


async def test_missing_database_is_refused(server, connect):
    error = await refused(connect(server.url.replace("/queues", "/no-such-database")))
    assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.DISABLED)


async def test_database_without_tables_names_the_command_that_makes_them(server, connect):
    error = await refused(connect(server.url.replace("/queues", "/postgres")))
    assert error.kind is FailureKind.REFUSED
    assert "run `pairmq postgres migrate`" in str(error)


async def test_server_without_a_connection_to_spare_is_transient(server, connect):
    server.query("ALTER ROLE messenger CONNECTION LIMIT 0")
    try:
        error = await refused(connect())
    finally:
        server.query("ALTER ROLE messenger CONNECTION LIMIT -1")
    assert (error.kind, error.maybe_applied) == (FailureKind.TRANSIENT, False)


# The tables.


def test_tables_are_made_once(server):
    server.query("DROP DATABASE IF EXISTS other", "CREATE DATABASE other", database="postgres")
    parameters = server.parameters("other")
    assert migrate(parameters) == (0, VERSION)
    assert migrate(parameters) == (VERSION, VERSION)
    server.query("UPDATE pairmq.version SET version = 1000", database="other")
    with pytest.raises(SchemaVersion):
        migrate(parameters)


def test_command_makes_the_tables_once_and_says_what_it_did(server, capsys, monkeypatch):
    monkeypatch.delenv("PAIRMQ_POSTGRES_URL", raising=False)
    server.query("CREATE DATABASE commanded")
    parameters = server.parameters("commanded")
    login = f"{parameters['user']}:{parameters['password']}"
    url = f"postgresql://{login}@127.0.0.1:{server.port}/commanded?sslmode=disable"
    statuses = [run(["postgres", "migrate", url]), run(["postgres", "migrate", url]), run(["postgres", "migrate"])]
    statuses.append(run(["postgres", "migrate", url.replace("/commanded", "/no-such-database")]))
    assert statuses == [0, 0, 2, 1]
    told = capsys.readouterr()
    first, second = told.out.splitlines()
    assert first.endswith(f": from version 0 to {VERSION}")
    assert second.endswith(f": version {VERSION} already")
    assert told.err.count("error: ") == 2
    assert parameters["password"] not in told.out + told.err


def test_grants_of_the_readme_are_those_of_the_role_here():
    (block,) = (block for block in blocks("plugins/pairmq-postgres/README.md") if block.language == "sql")
    assert block.text.replace("app;", "{};").splitlines() == [f"{grant};" for grant in GRANTS]


def test_printed_sql_makes_the_same_tables(server):
    columns = """
        SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'pairmq'
        UNION ALL SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'pairmq' ORDER BY 1, 2
    """
    server.query("DROP DATABASE IF EXISTS printed", "CREATE DATABASE printed", database="postgres")
    with psycopg.connect(**server.parameters("printed"), autocommit=True) as connection:
        connection.execute(script())
    assert server.query(columns, database="printed") == server.query(columns)
    assert migrate(server.parameters("printed")) == (VERSION, VERSION)


@pytest.mark.parametrize("by", ["command", "printed"])
async def test_messages_outlive_a_migration(server, connect, monkeypatch, by):
    server.query("DROP DATABASE IF EXISTS older", "CREATE DATABASE older", database="postgres")
    parameters = server.parameters("older")
    migrate(parameters)
    with psycopg.connect(**parameters, autocommit=True) as connection:
        for grant in GRANTS:
            connection.execute(grant.format("messenger"))
    older = connect(server.url.replace("/queues", "/older"))
    await older.admin.create(ORDERS)
    await older.sender(ORDERS).send(Message(b"kept"))
    monkeypatch.setattr(_schema, "STEPS", (*STEPS, ("ALTER TABLE pairmq.message ADD COLUMN later_added text",)))
    monkeypatch.setattr(_schema, "VERSION", VERSION + 1)
    if by == "printed":
        with psycopg.connect(**parameters, autocommit=True) as connection:
            connection.execute(script(since=VERSION))
    assert migrate(parameters) == (VERSION if by == "command" else VERSION + 1, VERSION + 1)
    assert server.query("SELECT later_added, convert_from(body, 'utf8') FROM pairmq.message", database="older") == [
        (None, "kept")
    ]


# Locks.


def statements(monkeypatch: pytest.MonkeyPatch, counted: str) -> list[Mapping[str, Any]]:
    """The parameters of each execution of a statement from now on."""
    found: list[Mapping[str, Any]] = []
    ask = Pool.ask

    async def counting(self: Pool, begin: Callable[[], Sequence[Statement]], **how: bool) -> list[Rows]:
        def begun() -> Sequence[Statement]:
            asked = begin()
            found.extend(parameters for statement, parameters in asked if statement == counted)
            return asked

        return await ask(self, begun, **how)

    monkeypatch.setattr(Pool, "ask", counting)
    return found


def leases(server: PostgresServer) -> list[tuple[int, ...]]:
    """The numbers of the messages of each lease."""
    return sorted(tuple(sorted(numbers)) for (numbers,) in server.query("SELECT numbers FROM pairmq.lease"))


@pytest.mark.parametrize("to", ["orders", "missing"])
async def test_no_statement_of_an_ordered_batch_follows_one_that_failed(transport, queue, message, monkeypatch, to):
    monkeypatch.setattr(_sender, "_CHUNK_MESSAGES", 1000)
    outcomes = await transport.sender(Entity(to)).send_in_order([message(session_id="a") for _ in range(2500)])
    if to == queue.path:
        assert outcomes == [None] * 2500
    else:
        assert {error.reason for error in outcomes[:1000]} == {FailureReason.NOT_FOUND}
        assert all("not sent, since an earlier message" in str(error) for error in outcomes[1000:])


async def test_receive_writes_one_row_and_no_message(server, queue, transport, message):
    await transport.sender(queue).send_batch([message(str(number)) for number in range(5)])
    before = server.query("SELECT ctid::text, xmin::text, xmax::text FROM pairmq.message ORDER BY number")
    receiver = transport.receiver(Source(queue))
    deliveries = await receiver.receive(5, 0)
    assert server.query("SELECT ctid::text, xmin::text, xmax::text FROM pairmq.message ORDER BY number") == before
    assert leases(server) == [(1, 2, 3, 4, 5)]
    assert list(await receiver.complete_batch(deliveries)) == [None] * 5
    assert leases(server) == []


async def test_statements_are_not_planned_anew_for_each_call(server, connect, message):
    """The planner believes that a plan for one call's values is worth its price, which is that of the call, twice."""
    transport = connect(pool_size=1)
    await transport.admin.create(ORDERS)
    receiver = transport.receiver(Source(ORDERS))
    await transport.sender(ORDERS).send_batch([message(str(number)) for number in range(50)])
    server.query("VACUUM ANALYZE pairmq.message, pairmq.lease, pairmq.entity, pairmq.source")
    for _ in range(10):
        await receiver.complete_batch(await receiver.receive(1, 0))
    plans = "SELECT sum(generic_plans)::bigint, sum(custom_plans)::bigint FROM pg_prepared_statements"
    (((generic, custom),),) = await transport._pool.run([(plans, {})])
    assert generic >= 30
    assert custom == 0


async def test_looks_that_find_all_they_ask_for_leave_out_the_sweep(server, queue, transport, message, monkeypatch):
    """Until one does not; what a sweep would bring about waits no longer than there is more to take."""
    monkeypatch.setattr(_receiver, "_SWEPT", 3600.0)
    await transport.sender(queue).send_batch([message(str(number)) for number in range(4)])
    sweeps, turns = statements(monkeypatch, _sql.SWEEP), statements(monkeypatch, _sql.TURN)
    receiver = transport.receiver(Source(queue))
    await receiver.receive(1, 0)
    await receiver.receive(1, 0)
    assert (len(sweeps), len(turns)) == (1, 1)
    server.query("UPDATE pairmq.lease SET until = now()")
    found = [*await receiver.receive(2, 0), *await receiver.receive(2, 0)]
    assert [(each.message.body, each.delivery_count) for each in found] == [
        (b"2", 1),
        (b"3", 1),
        (b"0", 2),
        (b"1", 2),
    ]
    assert (len(sweeps), len(turns)) == (2, 3)


async def test_lock_that_has_ended_is_found_at_once_where_order_is_promised(server, transport, message, monkeypatch):
    monkeypatch.setattr(_receiver, "_SWEPT", 3600.0)
    await transport.admin.create(ORDERS, QueueProperties(single_consumer=True))
    await transport.sender(ORDERS).send_batch([message(str(number)) for number in range(4)])
    receiver = transport.receiver(Source(ORDERS))
    for _ in range(2):
        await receiver.receive(1, 0)
    server.query("UPDATE pairmq.lease SET until = now()")
    found = await receiver.receive(3, 0)
    assert [(each.message.body, each.delivery_count) for each in found] == [(b"0", 2), (b"1", 2), (b"2", 1)]


async def test_message_behind_one_that_was_delivered_too_often_is_received_with_it(server, transport, message):
    await transport.admin.create(ORDERS, QueueProperties(max_delivery_count=1))
    await transport.sender(ORDERS).send_batch([message("worn"), message("next")])
    receiver = transport.receiver(Source(ORDERS))
    (worn,) = await receiver.receive(1, 0)
    await receiver.abandon(worn)
    found = await receiver.receive(2, 0)
    assert [(each.message.body, each.delivery_count) for each in found] == [(b"next", 1)]
    (dead,) = await transport.receiver(Source(ORDERS, dead_letter=True)).receive(2, 0)
    assert (dead.message.body, dead.dead_letter_reason) == (b"worn", "max-delivery-count")


async def test_all_that_were_delivered_too_often_are_dead_lettered_by_one_sweep(
    transport, server, message, monkeypatch
):
    await transport.admin.create(ORDERS, QueueProperties(max_delivery_count=1))
    await transport.sender(ORDERS).send_batch([message(str(number)) for number in range(8)])
    receiver = transport.receiver(Source(ORDERS))
    locked, *others = await receiver.receive(7, 0)
    for each in others:
        await receiver.abandon(each)
    sweeps = statements(monkeypatch, _sql.SWEEP)
    assert [each.message.body for each in await receiver.receive(1, 0)] == [b"7"]
    assert len(sweeps) == 1
    assert (await transport.admin.counts(Source(ORDERS))).dead_letter == 6
    await receiver.complete(locked)


async def test_renewed_message_gets_a_lease_of_its_own(server, queue, transport, message):
    await transport.sender(queue).send_batch([message(str(number)) for number in range(3)])
    receiver = transport.receiver(Source(queue))
    first, second, third = await receiver.receive(3, 0)
    await receiver.renew_lock(second)
    await receiver.renew_lock(second)
    assert leases(server) == [(1, 3), (2,)]
    assert list(await receiver.complete_batch([first, second])) == [None, None]
    assert leases(server) == [(1, 3)]
    await receiver.renew_lock(third)
    await receiver.complete(third)
    assert list(await receiver.complete_batch([third])) != [None]
    assert await receiver.receive(1, 0) == []
    assert leases(server) == []


@pytest.mark.parametrize("hours", [-1, 1])
async def test_locks_end_by_the_clock_of_this_machine(transport, queue, message, monkeypatch, hours):
    """The instant was the server's: a consumer whose clock was slow renewed locks of a few seconds too late."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=hours)

    monkeypatch.setattr(_receiver, "datetime", Wrong)
    sessions = Entity("sessions")
    await transport.admin.create(sessions, QueueProperties(requires_session=True))
    await transport.sender(queue).send(message("1"))
    await transport.sender(sessions).send(message("1", session_id="s"))
    receiver, session = transport.receiver(Source(queue)), await transport.accept_session(Source(sessions), wait=5)
    (delivery,) = await receiver.receive(1, 5)
    ends = [delivery.locked_until, (await receiver.renew_lock(delivery)).locked_until, session.locked_until]
    ends += [await session.renew_session_lock(), (await session.receive(1, 5))[0].locked_until]
    assert [abs((end - Wrong.now(UTC)).total_seconds()) < 600 for end in ends] == [True] * 5


async def test_settlements_side_by_side_end_their_lease(server, queue, transport, message):
    await transport.sender(queue).send_batch([message(str(number)) for number in range(9)])
    receiver = transport.receiver(Source(queue))
    deliveries = await receiver.receive(9, 0)
    await asyncio.gather(*map(receiver.complete, deliveries[:8]))
    await receiver.abandon(deliveries[8])
    (again,) = await receiver.receive(9, 0)
    assert (again.message.body, again.delivery_count) == (b"8", 2)
    assert leases(server) == [(9,)]


async def test_completions_that_are_asked_for_at_once_are_one_statement(queue, transport, message, monkeypatch):
    """Each commit of its own would wait for the disk, and for the lease that they share."""
    counted = statements(monkeypatch, _sql.COMPLETE)
    await transport.sender(queue).send_batch([message(str(n)) for n in range(10)])
    receiver = transport.receiver(Source(queue))
    deliveries = await receiver.receive(10, 1.0)
    calls = [asyncio.ensure_future(receiver.complete(delivery)) for delivery in deliveries[:9]]
    await asyncio.sleep(0)
    calls[0].cancel()  # the others go on
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, *[type(None)] * 8]
    assert [len(parameters["numbers"].values) for parameters in counted] == [9]
    alone = asyncio.ensure_future(receiver.complete(deliveries[9]))
    await asyncio.sleep(0)
    alone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await alone
    with contextlib.suppress(TransportError):  # where it was done all the same
        await receiver.complete(deliveries[9])
    assert (await transport.admin.counts(Source(queue))).pending == 0


async def test_receivers_that_look_at_the_same_time_do_so_in_one_statement(
    server, queue, transport, message, monkeypatch
):
    """Each would wait for its turn. They get the messages in order, and a lease each."""
    await transport.sender(queue).send_batch([message(str(number)) for number in range(5)])
    receivers = [transport.receiver(Source(queue)) for _ in range(3)]
    looks, completions = statements(monkeypatch, _sql.TAKE), statements(monkeypatch, _sql.COMPLETE)
    found = await asyncio.gather(*(receiver.receive(2, 0) for receiver in receivers))
    assert [[each.message.body for each in deliveries] for deliveries in found] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert leases(server) == [(1, 2), (3, 4), (5,)]
    assert len(looks) == 1
    await receivers[2].abandon(found[2][0])
    pairs = list(zip(receivers, found, strict=True))
    outcomes = await asyncio.gather(*(receiver.complete_batch(deliveries) for receiver, deliveries in pairs))
    assert [[error and error.reason for error in each] for each in outcomes[:2]] == [[None, None]] * 2
    assert [error.reason for error in outcomes[2]] == [FailureReason.LOCK_LOST]
    assert len(completions) == 1
    ((again,), *_) = await asyncio.gather(*(receiver.receive(2, 0) for receiver in receivers))
    assert (again.message.body, again.delivery_count) == (b"4", 2)


async def test_lock_that_has_ended_settles_nothing_beside_the_next_one(server, connect, message):
    """Completed in one statement with a delivery of the receiver that has the message now."""
    transport = connect()
    await transport.admin.create(ORDERS, QueueProperties(lock_duration=1))
    await transport.sender(ORDERS).send_batch([message("0"), message("1")])
    slow, next_one = transport.receiver(Source(ORDERS)), transport.receiver(Source(ORDERS))
    (late,) = await slow.receive(1, 0)
    server.query("UPDATE pairmq.lease SET until = now()")
    server.query("UPDATE pairmq.entity SET lock_duration = '300 s'")
    taken = await next_one.receive(2, PATIENCE)
    if len(taken) == 1:  # a look soon after one that found all it asked for takes no note of locks that have ended
        taken += await next_one.receive(1, PATIENCE)
    again, other = sorted(taken, key=lambda delivery: delivery.message.body)
    assert (again.message.body, again.delivery_count) == (b"0", 2)
    (outcome,), _ = await asyncio.gather(slow.complete_batch([late]), next_one.complete(other))
    assert outcome is not None
    assert outcome.reason == FailureReason.LOCK_LOST
    assert [1 in numbers for numbers in leases(server)] == [True]
    assert server.query("SELECT number FROM pairmq.message") == [(1,)]


async def test_receivers_of_a_single_consumer_s_queue_look_alone(transport, message):
    await transport.admin.create(ORDERS, QueueProperties(single_consumer=True, lock_duration=300))
    await transport.sender(ORDERS).send_batch([message(str(number)) for number in range(5)])
    receivers = [transport.receiver(Source(ORDERS)) for _ in range(3)]
    for expected in ([b"0", b"1"], [b"2", b"3"], [b"4"]):
        found = await asyncio.gather(*(receiver.receive(2, 0) for receiver in receivers))
        assert [[each.message.body for each in deliveries] for deliveries in found if deliveries] == [expected]
        receivers.reverse()  # the first to ask has it all


async def test_receiver_that_closes_during_a_look_of_several_leaves_no_lock(server, queue, transport, message):
    await transport.sender(queue).send_batch([message(str(number)) for number in range(4)])
    receivers = [transport.receiver(Source(queue)) for _ in range(2)]
    with psycopg.connect(**server.parameters()) as turn:
        turn.execute("SELECT pg_advisory_xact_lock(579122350, id::int) FROM pairmq.source")
        looks = [asyncio.ensure_future(receiver.receive(2, 0)) for receiver in receivers]
        await until(lambda: server.query("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
        closing = asyncio.ensure_future(receivers[0].close())
        with pytest.raises(TransportError) as closed:
            await looks[0]
    assert (closed.value.reason, closed.value.maybe_applied) == (FailureReason.CLOSED, True)
    assert [each.message.body for each in await looks[1]] == [b"2", b"3"]
    await closing
    found = await receivers[1].receive(4, PATIENCE)
    assert [(each.message.body, each.delivery_count) for each in found] == [(b"0", 1), (b"1", 1)]


async def test_message_that_moved_within_the_table_is_settled_all_the_same(server, queue, transport, message):
    await transport.sender(queue).send_batch([message(str(number)) for number in range(4)])
    receiver = transport.receiver(Source(queue))
    deliveries = await receiver.receive(4, 0)
    server.query("DELETE FROM pairmq.message WHERE number = 1", "VACUUM FULL pairmq.message")
    outcomes = await receiver.complete_batch(deliveries)
    assert [error and error.reason for error in outcomes] == [FailureReason.LOCK_LOST, None, None, None]
    assert server.query("SELECT 1 FROM pairmq.message") == []


# Other servers.


def test_a_server_keeps_its_shared_memory_in_its_directory(server):
    """What a killed one leaves behind ends with the directory."""
    assert list((server.data / "pg_dynshmem").iterdir())


async def test_server_that_only_reads_is_left_for_one_that_writes(server, connect, message):
    """Several hosts in the URL: after a failover the next call asks them all again."""
    with PostgresServer() as other:
        with psycopg.connect(**other.parameters(), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("ALTER ROLE messenger PASSWORD {}").format(server.password))
        hosts = f"127.0.0.1:{server.port},127.0.0.1:{other.port}"
        transport = connect(server.url.replace(f"127.0.0.1:{server.port}", hosts))
        await transport.admin.create(ORDERS)
        await connect(other.url_of("messenger", server.password)).admin.create(ORDERS)
        sender = transport.sender(ORDERS)
        await sender.send(message("first"))
        server.query("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        failures = []
        try:
            async with asyncio.timeout(PATIENCE):
                while not other.query("SELECT 1 FROM pairmq.message"):
                    try:
                        await sender.send(message("second"))
                    except TransportError as error:  # the settings are read between two statements
                        failures.append((error.kind, error.maybe_applied))
            await sender.send(message("third"))
        finally:
            server.query("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
        assert set(failures) <= {(FailureKind.UNAVAILABLE, False)}
        stored = other.query("SELECT convert_from(body, 'utf8') FROM pairmq.message ORDER BY number")
        assert stored[-1] == ("third",)


async def test_connections_of_a_server_that_only_reads_are_dropped(server, connect, message):
    before = sessions(server)
    transport = connect()
    await transport.admin.create(ORDERS)
    sender = transport.sender(ORDERS)
    await sender.send(message("first"))
    trigger = """
        CREATE FUNCTION pairmq.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'a standby by now'; END $$
    """
    server.query(
        trigger,
        "CREATE TRIGGER refuse BEFORE INSERT ON pairmq.message FOR EACH STATEMENT EXECUTE FUNCTION pairmq.refuse()",
    )
    try:
        with pytest.raises(TransportError) as caught:
            await sender.send(message("second"))
    finally:
        server.query("DROP FUNCTION pairmq.refuse CASCADE")
    assert (caught.value.kind, caught.value.maybe_applied) == (FailureKind.UNAVAILABLE, False)
    await until(lambda: not sessions(server, but=before))
    await sender.send(message("third"))


async def test_send_is_in_doubt_when_the_server_shuts_down_under_it(server, queue, transport, message):
    sender = transport.sender(queue)
    await sender.send(message("before"))
    with psycopg.connect(**server.parameters()) as blocker:
        blocker.execute("LOCK TABLE pairmq.message IN ACCESS EXCLUSIVE MODE")
        sending = asyncio.ensure_future(sender.send(message("in doubt")))
        await until(lambda: server.query("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
        blocker.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted")
        with pytest.raises(TransportError) as caught:
            await sending
    assert (caught.value.kind, caught.value.maybe_applied) == (FailureKind.TRANSIENT, True)
    await sender.send(message("after"))


async def test_calls_that_were_given_up_leave_no_session_that_waits_for_a_lock(server, queue, transport):
    """As while a migration holds the table: sends that follow each other would use up the server's connections."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    sender = transport.sender(queue)
    await sender.send(Message(b"1", message_id="1"))
    with psycopg.connect(**server.parameters()) as blocker:
        blocker.execute("LOCK TABLE pairmq.message")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await sender.send(Message(b"1", message_id="1"))
        await until(lambda: server.query(waiting) == [(0,)])


async def test_what_the_server_refuses_leaves_nothing_in_psycopg_s_log(server, queue, transport, caplog):
    server.query("REVOKE INSERT ON pairmq.message FROM messenger")
    try:
        for calls in range(1, 4):
            outcomes = await asyncio.gather(
                *(transport.admin.probe(queue) for _ in range(calls)), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} == {TransportError}
    finally:
        server.query("GRANT INSERT ON pairmq.message TO messenger")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("psycopg")] == []


async def test_statement_that_could_not_be_prepared_is_prepared_again(server, queue, transport, message):
    sender = transport.sender(queue)
    await transport.admin.counts(Source(queue))
    before = sessions(server)
    server.query("ALTER TABLE pairmq.message RENAME TO hidden")
    try:
        for _ in range(2):
            with pytest.raises(TransportError) as caught:
                await sender.send(message("lost"))
            assert caught.value.reason == FailureReason.DISABLED
    finally:
        server.query("ALTER TABLE pairmq.hidden RENAME TO message")
    await sender.send(message("stored"))
    assert (await transport.admin.counts(Source(queue))).active == 1
    assert set(before) <= set(sessions(server)), "over the same connection"


async def test_deadlock_is_transient(server, queue, transport, message):
    await transport.sender(queue).send_batch([message("a"), message("b")])
    receiver = transport.receiver(Source(queue))
    deliveries = await receiver.receive(2, 0)
    with psycopg.connect(**server.parameters()) as other:
        other.execute("SET deadlock_timeout = '60s'")
        other.execute("SELECT 1 FROM pairmq.message WHERE number = 2 FOR UPDATE")
        completing = asyncio.ensure_future(receiver.complete_batch(deliveries))
        await until(lambda: server.query("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
        await asyncio.to_thread(other.execute, "SELECT 1 FROM pairmq.message WHERE number = 1 FOR UPDATE")
        outcomes = await completing
    assert [error and (error.kind, error.maybe_applied) for error in outcomes] == [(FailureKind.TRANSIENT, False)] * 2
    assert list(await receiver.complete_batch(deliveries)) == [None, None]


# Connections.


async def test_cancelled_calls_leave_no_connection_and_no_transaction_behind(server, connect, message):
    before = sessions(server)
    chance = random.Random(7)
    transport = connect(pool_size=4)
    await transport.admin.create(ORDERS)
    sender, receiver = transport.sender(ORDERS), transport.receiver(Source(ORDERS))

    async def cut_off(number: int) -> None:
        call = [
            lambda: sender.send(message(str(number))),
            lambda: sender.send_batch([message(str(number)) for _ in range(3)]),
            lambda: transport.admin.counts(Source(ORDERS)),
            lambda: transport.receiver(Source(ORDERS)).receive(2, 0.1),
        ][number % 4]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chance.random() * 0.05):
                await call()

    for _ in range(10):
        await asyncio.gather(*map(cut_off, range(20)))
    assert await asyncio.gather(*(transport.admin.exists(ORDERS) for _ in range(20))) == [True] * 20
    await receiver.receive(1, 0)
    # A server notices the end of a connection when it next reads.
    await until(lambda: len(sessions(server, but=before)) <= 4)
    assert not [state for state in sessions(server, but=before).values() if state.startswith("idle in transaction")]


@pytest.fixture
async def far(server: PostgresServer, connect: Callable[..., Transport]) -> AsyncIterator[tuple[Transport, TcpProxy]]:
    """A transport to the server over a link, and the link."""
    parts = urlsplit(server.url)
    with TcpProxy(parts.hostname or "", parts.port or 0) as link:
        link.slow(delay=0.05)
        transport = connect(link.rewrite(server.url))
        yield transport, link
        await transport.close()


async def test_sends_to_a_distant_server_do_not_wait_for_each_other(server, queue, far):
    transport, _ = far
    before = set(sessions(server))
    sender = transport.sender(queue)
    await sender.send(Message(b"first"))
    began = time.monotonic()
    batches = [[Message(b"%d" % (10 * n + m)) for m in range(10)] for n in range(20)]
    assert await asyncio.gather(*map(sender.send_batch, batches)) == [[None] * 10] * 20
    assert time.monotonic() - began < 1.5  # where each by itself takes 0.1 s
    assert len(sessions(server, but=before)) == 1
    receiver = transport.receiver(Source(queue))
    received = [each.message.body for each in await receiver.receive(300, 5.0)]
    assert received == [b"first", *(b"%d" % n for n in range(200))]  # the order of the calls


async def test_send_that_is_cancelled_leaves_those_that_share_its_connection_alone(server, queue, far):
    transport, _ = far
    before = set(sessions(server))
    sender = transport.sender(queue)
    await sender.send(Message(b"first"))
    sends = [asyncio.create_task(sender.send(Message(b"%d" % n))) for n in range(5)]
    await asyncio.sleep(0.01)
    sends[1].cancel()
    sends[4].cancel()
    ended = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(each) for each in ended] == [type(None), asyncio.CancelledError] + [type(None)] * 2 + [
        asyncio.CancelledError
    ]
    await sender.send(Message(b"last"))
    await until(lambda: len(sessions(server, but=before)) == 1)  # the other one had an answer on its way


async def test_sends_that_share_a_connection_are_in_doubt_when_it_is_lost(server, queue, far):
    transport, link = far
    sender = transport.sender(queue)
    await sender.send(Message(b"first"))
    sends = [asyncio.create_task(sender.send(Message(b"%d" % n))) for n in range(5)]
    await asyncio.sleep(0.01)
    link.cut()
    for each in await asyncio.gather(*sends, return_exceptions=True):
        assert isinstance(each, TransportError)
        assert (each.kind, each.reason, each.maybe_applied) == (
            FailureKind.UNAVAILABLE,
            FailureReason.CONNECTION,
            True,
        )
    link.restore()
    await sender.send(Message(b"last"))


async def test_send_that_the_server_refuses_leaves_those_that_share_its_connection_alone(server, queue, far):
    transport, _ = far
    good, missing = transport.sender(queue), transport.sender(Entity("missing"))
    await good.send(Message(b"first"))
    ended = await asyncio.gather(
        good.send(Message(b"1")), missing.send(Message(b"2")), good.send(Message(b"3")), return_exceptions=True
    )
    assert ended[0] is ended[2] is None
    assert isinstance(ended[1], TransportError)
    assert ended[1].reason is FailureReason.NOT_FOUND


async def test_a_session_that_has_lost_its_prepared_statements_is_replaced(transport, queue, message):
    """As behind a pooler that resets sessions: it answered "does not exist" to each call until the process ended."""
    sender = transport.sender(queue)
    await sender.send(message())
    await transport._pool.run([("DEALLOCATE ALL", {})])
    with pytest.raises(TransportError) as caught:
        await sender.send(message())
    assert caught.value.kind is FailureKind.UNAVAILABLE
    await sender.send(message())


async def test_idle_pool_survives_the_end_of_its_connections(server, queue, transport, message):
    await asyncio.gather(*(transport.admin.exists(queue) for _ in range(10)))
    server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'messenger'")
    await until(lambda: not sessions(server))
    await transport.sender(queue).send(message("no error: nothing was sent over a connection that has ended"))


async def test_waiting_receiver_is_notified_by_another_process(connect, message):
    reading, sending = connect(poll_interval=60), connect()
    await sending.admin.create(ORDERS)
    receiver = reading.receiver(Source(ORDERS))
    waiting = asyncio.ensure_future(receiver.receive(1, PATIENCE))
    await asyncio.sleep(0.5)
    await sending.sender(ORDERS).send(message("hello"))
    async with asyncio.timeout(30):
        assert [delivery.message.body for delivery in await waiting] == [b"hello"]


async def test_waiting_receiver_is_notified_when_the_listening_connection_was_lost(server, connect, message):
    reading, sending = connect(poll_interval=60), connect()
    await sending.admin.create(ORDERS)
    waiting = asyncio.ensure_future(reading.receiver(Source(ORDERS)).receive(1, PATIENCE))
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN pairmq'"
    await until(lambda: server.query(listening) == [(1,)])
    server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN pairmq'")
    await until(lambda: server.query(listening) == [(1,)])
    await sending.sender(ORDERS).send(message("hello"))
    async with asyncio.timeout(30):
        assert len(await waiting) == 1


async def test_waiting_receiver_finds_what_it_was_not_notified_of(server, connect, message):
    """A process may be killed between the commit and the notification."""
    reading = connect(poll_interval=0.2)
    await reading.admin.create(ORDERS)
    waiting = asyncio.ensure_future(reading.receiver(Source(ORDERS)).receive(1, PATIENCE))
    await asyncio.sleep(0.5)
    server.query("INSERT INTO pairmq.message (shelf, header, body) SELECT id, '{}', 'hello' FROM pairmq.source")
    async with asyncio.timeout(30):
        assert [delivery.message.body for delivery in await waiting] == [b"hello"]


async def test_receiver_that_took_all_waits_for_more_without_asking_again(connect, message, monkeypatch):
    looks: list[bool] = []  # whether each has ended
    look = PostgresReceiver._look

    async def counted(self: PostgresReceiver, most: int) -> object:
        looks.append(False)
        found = await look(self, most)
        looks[-1] = True
        return found

    monkeypatch.setattr(PostgresReceiver, "_look", counted)
    reading, sending = connect(poll_interval=60), connect()
    await sending.admin.create(ORDERS, QueueProperties(lock_duration=300))
    sender, receiver = sending.sender(ORDERS), reading.receiver(Source(ORDERS))
    for number in range(3):
        waiting = asyncio.ensure_future(receiver.receive(10, PATIENCE))
        await until(lambda: len(looks) >= 2 and all(looks))  # it listens, and waits
        await sender.send(message(str(number)))
        async with asyncio.timeout(30):
            (delivery,) = await waiting
        assert delivery.message.body == str(number).encode()
    assert len(looks) == 5, "one before it listens, one as it begins to, and one a message"
    await sender.send_batch([message("a"), message("b")])
    assert len(await receiver.receive(1, PATIENCE)) == 1
    assert len(await receiver.receive(1, PATIENCE)) == 1, "there may be more than the one that was asked for"
    assert len(await receiver.receive(10, 0)) == 0
    assert len(looks) == 8


async def test_idle_receivers_ask_no_more_than_once_a_poll_interval(server, connect):
    transport = connect(poll_interval=60)
    await transport.admin.create(ORDERS)
    waiting = [asyncio.ensure_future(transport.receiver(Source(ORDERS)).receive(1, PATIENCE)) for _ in range(5)]
    await asyncio.sleep(1.0)
    server.query("SELECT pg_stat_clear_snapshot()")
    statement = "SELECT sum(calls) FROM (SELECT xact_commit AS calls FROM pg_stat_database WHERE datname = 'queues') x"
    await asyncio.sleep(1.5)  # what a session has done is reported a second later
    before = server.query(statement)[0][0]
    await asyncio.sleep(3)
    after = server.query(statement)[0][0]
    assert after - before <= 8, "the test's own transactions, and those of the server"
    assert server.query("SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN pairmq'") == [(1,)]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


# Messages.


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_arrays_reach_the_server_as_they_are(connect, count):
    texts, blobs, numbers = ["", "ä", "a" * 70_000], [b"", b"\0\xff", b"b" * 70_000], [-(2**63), 0, 2**63 - 1]
    sent = [texts[:count], blobs[:count], numbers[:count]]
    arrays = {"texts": Texts(sent[0]), "blobs": Blobs(sent[1]), "numbers": Numbers(sent[2])}
    statement = "SELECT %(texts)b::text[], %(blobs)b::bytea[], %(numbers)b::bigint[]"
    (((*found,),),) = await connect()._pool.run([(statement, arrays)])
    assert found == sent


async def test_batch_of_any_size_is_one_statement(server, queue, transport, message):
    before = server.query("SELECT count(DISTINCT xmin::text) FROM pairmq.message")[0][0]
    assert list(await transport.sender(queue).send_batch([message("x") for _ in range(900)])) == [None] * 900
    assert server.query("SELECT count(DISTINCT xmin::text) FROM pairmq.message")[0][0] - before == 1
    deliveries = await transport.receiver(Source(queue)).receive(900, 0)
    assert len(deliveries) == 900
    assert server.query("SELECT count(DISTINCT xmin::text) FROM pairmq.message") == [(1,)]


async def test_row_of_another_program_is_dead_lettered_and_the_next_one_delivered(server, queue, transport, message):
    server.query("INSERT INTO pairmq.message (shelf, header, body) SELECT id, 'no header', '' FROM pairmq.source")
    await transport.sender(queue).send(message("next"))
    receiver, reported = transport.receiver(Source(queue)), []
    receiver.on_dead_lettered = reported.append
    (delivery,) = await receiver.receive(1, PATIENCE)
    assert delivery.message.body == b"next"
    (dead,) = await transport.receiver(Source(queue, dead_letter=True)).receive(1, PATIENCE)
    assert dead.dead_letter_reason == "malformed"
    assert [each.message for each in reported] == [dead.message]


@pytest.mark.parametrize("path", ["orders'; DROP SCHEMA pairmq CASCADE; --", 'a"b', "%s", "ä/世界", "pairmq.message"])
async def test_name_of_a_queue_is_a_value(transport, message, path):
    entity = Entity(path)
    await transport.admin.create(entity)
    await transport.sender(entity).send(message("hello"))
    (delivery,) = await transport.receiver(Source(entity)).receive(1, PATIENCE)
    assert delivery.message.body == b"hello"
    assert await transport.admin.list_entities() == [entity]


async def test_texts_that_no_column_holds_are_carried(transport, message):
    entity = Entity("by-session")
    await transport.admin.create(entity, QueueProperties(requires_session=True))
    sent = message("hello", session_id="a\0ß", subject="nul \0")
    await transport.sender(entity).send(sent)
    receiver = await transport.accept_session(Source(entity), wait=PATIENCE)
    assert receiver is not None
    assert receiver.session_id == "a\0ß"
    (delivery,) = await receiver.receive(1, PATIENCE)
    assert delivery.message == sent
    await receiver.dead_letter(delivery, "nul \0", "lone \ud800")
    (dead,) = await transport.receiver(Source(entity, dead_letter=True)).receive(1, PATIENCE)
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("nul \ufffd", "lone ?")


async def test_receive_is_not_slowed_by_what_is_scheduled(server, queue, transport, message):
    server.query(
        "INSERT INTO pairmq.message (shelf, due_at, header, body)"
        " SELECT id, now() + interval '1 hour', '{}', '' FROM pairmq.source, generate_series(1, 50000)"
    )
    await transport.sender(queue).send(message("now"))
    receiver = transport.receiver(Source(queue))
    began = time.process_time()
    (delivery,) = await receiver.receive(1, PATIENCE)
    assert delivery.message.body == b"now"
    assert time.process_time() - began < 5
    assert (await transport.admin.counts(Source(queue))).scheduled == 50000


async def test_doctor_hears_of_settings_that_lose_messages(server, connect):
    risks = [risk.text for risk in await connect().admin.confirm_risks()]
    assert [risk.partition(":")[0] for risk in risks] == ["fsync is off"], "of this server, which lives for a test"
    server.query("ALTER ROLE messenger SET synchronous_commit = off")
    try:
        risks = [risk.text for risk in await connect(listen="false").admin.confirm_risks()]
    finally:
        server.query("ALTER ROLE messenger RESET synchronous_commit")
    assert [risk.partition(" is ")[0] for risk in risks] == ["synchronous_commit", "fsync", "listen"]
