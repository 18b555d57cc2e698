"""The outbox and the inbox in PostgreSQL: what a transaction of the application commits is sent, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2.extensions
import pytest
from psycopg.rows import dict_row
from psycopg2.extras import DictCursor
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox_tests import PATIENCE, Database, OutboxTests, arrived, delivery_of, waiting
from pairmq import Deduplicator, Entity, Message, Pair, PairOptions, SendRefused
from pairmq import sync as blocking
from pairmq.model import FailureReason, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import encode_header
from pairmq_postgres import PostgresInbox, _drivers, _outbox, _sender
from pairmq_postgres.testing import EMPTY, PostgresServer

pytestmark = pytest.mark.real_server

OPTIONS = PairOptions(backlog_queue_count=1, attempt_timeout=20.0, failover_interval=0, ping_primary_interval=0.2)
PROGRAM = Path(__file__).with_name("outbox_program.py")


@pytest.fixture
def primary(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/primary.db?poll_interval=0.02&name=primary"


@pytest.fixture
def secondary(server: PostgresServer) -> str:
    server.query(
        "CREATE TABLE IF NOT EXISTS public.orders (item text)",
        "GRANT ALL ON public.orders TO PUBLIC",
        "TRUNCATE public.orders, pairmq.inbox",
    )
    return f"{server.url}?connect_timeout=30"


@pytest.fixture
def database(secondary: str, server: PostgresServer) -> Database:
    return Database(
        sqlalchemy=of_sqlalchemy(server),
        sqlalchemy_async=of_sqlalchemy(server),
        insert="INSERT INTO orders VALUES (%s)",
        connect=lambda: psycopg.connect(server.url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor),
        connect_async=lambda: connected(server),
        connect_elsewhere=lambda: psycopg.connect(**server.parameters("postgres")),
        connect_committing=lambda: psycopg.connect(server.url, autocommit=True),
        items=lambda: [item for (item,) in server.query("SELECT item FROM public.orders")],
        inbox=PostgresInbox,
    )


@contextlib.asynccontextmanager
async def connected(server: PostgresServer) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        yield connection


def of_sqlalchemy(server: PostgresServer) -> str:
    return server.url.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture
async def pair(primary: str, secondary: str) -> AsyncIterator[Pair]:
    async with Pair.connect(primary, secondary, options=replace(OPTIONS, enable_syphon=True)) as pair:
        await pair.primary.admin.create(Entity("orders"))
        yield pair


class TestPostgresOutbox(OutboxTests):
    pass


class TestPostgresOutboxOverOtherDrivers(OutboxTests):
    """psycopg2 where a connection blocks, and asyncpg where it is awaited; each by itself and below SQLAlchemy."""

    @pytest.fixture
    def database(self, secondary: str, server: PostgresServer, database: Database) -> Database:
        connect = partial(psycopg2.connect, connection_factory=Psycopg2Connection)
        return replace(
            database,
            sqlalchemy=server.url.replace("postgresql://", "postgresql+psycopg2://", 1),
            sqlalchemy_async=server.url.replace("postgresql://", "postgresql+asyncpg://", 1),
            connect=lambda: connect(server.url, cursor_factory=DictCursor),
            connect_async=lambda: over_asyncpg(server),
            connect_elsewhere=lambda: connect(**{**server.parameters("postgres"), "options": None}),
            connect_committing=lambda: committing(connect(server.url)),
        )


class Psycopg2Connection(psycopg2.extensions.connection):
    def execute(self, statement: str, parameters: tuple[object, ...]) -> None:
        self.cursor().execute(statement, parameters)


def committing(connection: Psycopg2Connection) -> Psycopg2Connection:
    connection.autocommit = True
    return connection


class AsyncpgConnection(asyncpg.Connection):
    """One that begins its next transaction when one ends."""

    async def begin(self) -> None:
        self.begun = self.transaction()
        await self.begun.start()

    async def commit(self) -> None:
        await self.begun.commit()
        await self.begin()

    async def rollback(self) -> None:
        await self.begun.rollback()
        await self.begin()

    async def execute(self, statement: str, *parameters: tuple[object, ...], timeout: float | None = None) -> str:
        values = parameters[0] if parameters else ()
        return await super().execute(statement.replace("%s", "$1"), *values, timeout=timeout)


@contextlib.asynccontextmanager
async def over_asyncpg(server: PostgresServer) -> AsyncIterator[AsyncpgConnection]:
    connection = await asyncpg.connect(server.url, connection_class=AsyncpgConnection)
    await connection.begin()
    yield connection
    await connection.close()


async def test_outbox_sends_what_was_committed_in_a_block_of_psycopg(pair: Pair, database: Database, server):
    outbox = pair.outbox("orders")
    connect = psycopg.AsyncConnection.connect
    async with await connect(server.url, autocommit=True, row_factory=dict_row) as connection:
        for item in ("kept", "lost"):
            with contextlib.suppress(KeyError):
                async with connection.transaction():
                    await outbox.send(Message(item.encode()), connection=connection)
                    await connection.execute(database.insert, (item,))
                    if item == "lost":
                        raise KeyError
    assert database.items() == ["kept"]
    assert await arrived(pair, 1) == [b"kept"]


async def test_outbox_encodes_a_message_once(pair: Pair, server, monkeypatch: pytest.MonkeyPatch):
    outbox = pair.outbox("orders")
    encoded: list[Message] = []

    def counted(message: Message) -> str:
        encoded.append(message)
        return encode_header(message)

    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await outbox.send(Message(b"first"), connection=connection)
        for module in (_sender, _outbox):
            monkeypatch.setattr(module, "encode_header", counted)
        await outbox.send(Message(b"second"), connection=connection)
        monkeypatch.undo()
    assert len([message for message in encoded if message.body == b"second"]) == 1
    assert sorted(await arrived(pair, 2)) == [b"first", b"second"]


DJANGO = """
import sys
import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

primary, secondary = sys.argv[1:3]
found = conninfo_to_dict(secondary.partition("?")[0])
names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
database = {"ENGINE": "django.db.backends.postgresql", **{names[name]: value for name, value in found.items()}}
settings.configure(DATABASES={"default": database}, USE_TZ=True)
django.setup()
from django.db import connection, transaction
from pairmq import Message, SendRefused
from pairmq.sync import Pair

with Pair.connect(primary, secondary, backlog_queue_count=1, attempt_timeout=30) as pair:
    outbox = pair.outbox("orders")
    with transaction.atomic():
        outbox.send(Message(b"kept"), connection=connection)
        try:
            with transaction.atomic():
                outbox.send(Message(b"lost"), connection=connection)
                raise KeyError
        except KeyError:
            pass
    try:
        outbox.send(Message(b"no transaction"), connection=connection)
    except SendRefused as error:
        print(error)
"""


async def test_django_sends_what_its_transaction_committed(pair: Pair, primary: str, secondary: str):
    command = [sys.executable, "-W", "error", "-c", DJANGO, primary, secondary]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert "it commits each statement by itself: begin a transaction first" in ended.stdout
    assert await arrived(pair, 1) == [b"kept"]


# Kills.


@pytest.mark.parametrize(("when", "says", "found"), [("before", "stored", []), ("after", "committed", [b"after"])])
async def test_outbox_of_a_killed_process_sends_what_was_committed(
    pair: Pair, primary: str, secondary: str, when: str, says: str, found: list[bytes]
):
    command = (sys.executable, str(PROGRAM), primary, secondary, when)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert (await process.stdout.readline()).decode().strip() == says
        process.kill()
        await process.wait()
    await pair.sender("orders").send(Message(b"direct"))
    assert sorted(await arrived(pair, 1 + len(found))) == sorted([b"direct", *found])


async def test_outbox_sends_what_was_committed_before_the_server_was_killed(pair: Pair, server: PostgresServer):
    outbox = pair.outbox("orders")
    lost, kept = psycopg.connect(server.url), psycopg.connect(server.url)
    await outbox.send(Message(b"lost"), connection=lost)
    await outbox.send(Message(b"kept"), connection=kept)
    kept.commit()
    server.kill()
    with pytest.raises(psycopg.OperationalError):
        lost.commit()
    server.start()
    lost.close()
    kept.close()
    with psycopg.connect(server.url) as connection:  # of a server that was started since the pair asked
        await outbox.send(Message(b"later"), connection=connection)
    assert sorted(await arrived(pair, 2)) == [b"kept", b"later"]


# What the pair makes of it.


async def test_outbox_wakes_the_syphon_by_the_commit(primary: str, secondary: str, server: PostgresServer):
    options = replace(OPTIONS, enable_syphon=True)
    async with Pair.connect(primary, f"{secondary}&poll_interval=60", options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        with psycopg.connect(server.url) as connection:
            await pair.outbox("orders").send(Message(b"0"), connection=connection)
            connection.commit()
            assert await arrived(pair, 1) == [b"0"]  # it listens from now on
            await asyncio.sleep(0.5)
            async with asyncio.timeout(55):  # before the next poll
                await pair.outbox("orders").send(Message(b"1"), connection=connection)
                connection.commit()
                assert await arrived(pair, 1) == [b"1"]


async def test_outbox_sends_at_once_what_was_committed_by_several_side_by_side(
    primary: str, secondary: str, server: PostgresServer
):
    """Of transactions that are open at the same time one notifies, and the syphon looks again for the others."""
    options = replace(OPTIONS, enable_syphon=True)
    side_by_side = [psycopg.connect(server.url) for _ in range(3)]
    async with Pair.connect(primary, f"{secondary}&poll_interval=60", options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        notified: list[int] = []
        with psycopg.connect(server.url, autocommit=True) as listening:
            listening.execute("LISTEN pairmq")
            # By polls ten rounds would take ten minutes. On a busy machine most take more than a twentieth of a second.
            while len(notified) < 10 or (min(notified) > 1 and len(notified) < 100):
                for connection in side_by_side:
                    await pair.outbox("orders").send(Message(b"1"), connection=connection)
                for connection in side_by_side:
                    connection.commit()
                    await asyncio.sleep(0.02)
                assert await arrived(pair, 3) == [b"1"] * 3
                listening.execute("SELECT 1")
                outbox = [each for each in listening.notifies(timeout=0) if each.payload == pair.outbox_queue.path]
                notified.append(len(outbox))
        assert min(notified) == 1
    for connection in side_by_side:
        connection.close()


async def test_a_transaction_that_stores_for_long_holds_a_few_locks(pair: Pair, server: PostgresServer):
    """The server's table of locks has room for some thousands."""
    with psycopg.connect(server.url) as connection:
        for _ in range(5):
            await pair.outbox("orders").send(Message(b"1"), connection=connection)
            await asyncio.sleep(0.06)
        pid = connection.info.backend_pid
        locks = server.query("SELECT pid, classid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'")
    assert len([each for each in locks if each[0] == pid]) == 1


async def test_connections_of_the_transport_do_not_depend_on_defaults_of_the_role(
    secondary: str, server: PostgresServer
):
    """With snapshots of serializable transactions, receivers would fail one another."""
    defaults = {"default_transaction_isolation": "serializable", "statement_timeout": "1", "timezone": "Asia/Kathmandu"}
    with psycopg.connect(**server.parameters(), autocommit=True) as owner:
        for name, value in defaults.items():
            owner.execute(psycopg.sql.SQL(f"ALTER ROLE messenger SET {name} = '{value}'"))  # type: ignore[arg-type]
        try:
            transport = registry.transport(secondary)
            shown = await transport._pool.run([(f"SHOW {name}", {}) for name in defaults])  # type: ignore[attr-defined]
            await transport.close()
        finally:
            owner.execute("ALTER ROLE messenger RESET ALL")
    assert [rows[0][0] for rows in shown] == ["read committed", "0", "UTC"]


async def test_ordered_outbox_does_not_pass_a_transaction_that_is_open(
    primary: str, secondary: str, server: PostgresServer
):
    """The first row's transaction commits last (SPEC 12.5)."""
    options = replace(OPTIONS, enable_syphon=True, ordering="session")
    async with Pair.connect(primary, secondary, options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        outbox = pair.outbox("orders")
        first, second = psycopg.connect(server.url), psycopg.connect(server.url)
        with first, second:
            await outbox.send(Message(b"1", session_id="a"), connection=first)
            await outbox.send(Message(b"2", session_id="a"), connection=second)
            second.commit()
            receiver = pair.receiver("orders")
            assert await receiver.receive(10, 2.0) == []
            assert await waiting(pair) == 1
            first.commit()
            assert await arrived(pair, 2) == [b"1", b"2"]


async def test_outbox_and_inbox_need_no_more_rights_than_documented(pair: Pair, server: PostgresServer):
    page = (Path(__file__).parents[3] / "docs/how-to/send-with-a-transaction.md").read_text("utf-8")
    grants = [line.partition(" --")[0] for line in page.splitlines() if line.startswith("GRANT ")]
    assert len(grants) == 4
    with psycopg.connect(**server.parameters(), autocommit=True) as owner:
        for statement in ("DROP OWNED BY app", "DROP ROLE app"):
            with contextlib.suppress(psycopg.errors.UndefinedObject):
                owner.execute(statement)
        for statement in ("CREATE ROLE app LOGIN PASSWORD 'app'", *grants):
            owner.execute(psycopg.sql.SQL(statement))  # type: ignore[arg-type]  # of the document
    delivery = await delivery_of(pair, "1")
    with psycopg.connect(server.url_of("app", "app")) as connection:
        async with Deduplicator(PostgresInbox()).first(delivery, connection=connection) as first:
            assert first
            await pair.outbox("orders").send(Message(b"allowed"), connection=connection)
    await delivery.complete()
    assert await arrived(pair, 1) == [b"allowed"]


# What is refused: one error, and nothing stored.


async def test_outbox_refuses_a_connection_whose_transaction_has_failed(pair: Pair, server: PostgresServer):
    with psycopg.connect(server.url) as connection:
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT nonsense")
        with pytest.raises(SendRefused, match="its transaction has failed"):
            await pair.outbox("orders").send(Message(b"1"), connection=connection)
    assert await waiting(pair) == 0


async def test_outbox_and_inbox_refuse_a_transaction_that_only_reads(pair: Pair, server: PostgresServer):
    delivery = await delivery_of(pair)
    with psycopg.connect(server.url) as connection:
        connection.read_only = True
        with pytest.raises(SendRefused, match="its transaction only reads"):
            await pair.outbox("orders").send(Message(b"1"), connection=connection)
        connection.rollback()
        with pytest.raises(TransportError, match="its transaction only reads"):
            await Deduplicator(PostgresInbox()).first(delivery, connection=connection).__aenter__()
    await delivery.complete()
    assert await waiting(pair) == 0


@pytest.mark.parametrize("begun", [False, True])
async def test_outbox_and_inbox_refuse_a_connection_in_pipeline_mode(pair: Pair, server: PostgresServer, begun: bool):
    """Whether a row was stored, or a claim was the first, is known only when the pipeline ends."""
    delivery = await delivery_of(pair)
    with psycopg.connect(server.url) as connection, connection.pipeline():
        if begun:
            connection.execute("SELECT 1")
        with pytest.raises(SendRefused, match="it is in pipeline mode"):
            await pair.outbox("orders").send(Message(b"1"), connection=connection)
        with pytest.raises(TransportError, match="it is in pipeline mode"):
            await Deduplicator(PostgresInbox()).first(delivery, connection=connection).__aenter__()
    await delivery.complete()
    assert await waiting(pair) == 0


async def test_outbox_is_part_of_a_two_phase_commit_where_nothing_notifies(primary: str):
    with PostgresServer(settings={"fsync": "off", "max_prepared_transactions": "2"}) as server:
        async with Pair.connect(primary, f"{server.url}?listen=false", options=OPTIONS) as pair:
            with psycopg.connect(server.url) as connection:
                for ends in (connection.tpc_commit, connection.tpc_rollback):
                    connection.tpc_begin(connection.xid(1, "transfer", "shop"))
                    await pair.outbox("orders").send(Message(b"1"), connection=connection)
                    connection.tpc_prepare()
                    ends()
                    assert await waiting(pair) == 1


async def test_outbox_undoes_what_a_savepoint_undoes(pair: Pair, server: PostgresServer):
    outbox = pair.outbox("orders")
    with psycopg.connect(server.url) as connection:
        await outbox.send(Message(b"1"), connection=connection)
        with connection.transaction(force_rollback=True):
            await outbox.send(Message(b"2"), connection=connection)
        with connection.transaction():
            await outbox.send(Message(b"3"), connection=connection)
    assert sorted(await arrived(pair, 2)) == [b"1", b"3"]


def test_blocking_outbox_refuses_a_connection_of_asyncio(primary: str, secondary: str, server: PostgresServer):
    with blocking.Pair.connect(primary, secondary, options=OPTIONS) as pair:

        async def use() -> None:
            async with await psycopg.AsyncConnection.connect(server.url) as connection:
                await refused(connection)
            async with asyncpg.create_pool(server.url, min_size=1) as pool, pool.acquire() as lent:
                await refused(lent)

        async def refused(connection: object) -> None:
            with pytest.raises(TypeError, match="is for asyncio"):
                await asyncio.to_thread(pair.outbox("orders").send, Message(b"1"), connection=connection)

        asyncio.run(use())


async def test_outbox_takes_connections_of_a_pool_of_asyncpg(pair: Pair, database: Database, server: PostgresServer):
    outbox = pair.outbox("orders")
    async with asyncpg.create_pool(server.url, min_size=1, max_size=2) as pool:
        with pytest.raises(TypeError, match="is not a connection"):
            await outbox.send(Message(b"a pool"), connection=pool)
        async with pool.acquire() as connection:
            with pytest.raises(SendRefused, match="it commits each statement by itself"):
                await outbox.send(Message(b"no transaction"), connection=connection)
            for item in ("kept", "lost"):
                with contextlib.suppress(KeyError):
                    async with connection.transaction():
                        await outbox.send_batch([Message(item.encode())] * 3, connection=connection)
                        await connection.execute("INSERT INTO orders VALUES ($1)", item)
                        if item == "lost":
                            raise KeyError
            async with connection.transaction():
                with pytest.raises(asyncpg.PostgresError):
                    await connection.execute("SELECT 1 / 0")
                with pytest.raises(SendRefused, match="its transaction has failed"):
                    await outbox.send(Message(b"failed"), connection=connection)
            async with connection.transaction(readonly=True):
                with pytest.raises(SendRefused, match="its transaction only reads"):
                    await outbox.send(Message(b"reads"), connection=connection)
        with pytest.raises(SendRefused, match="released back to the pool"):
            await outbox.send(Message(b"late"), connection=connection)
    assert database.items() == ["kept"]
    assert await arrived(pair, 3) == [b"kept"] * 3


async def test_outbox_refuses_a_failed_session_of_sqlalchemy(pair: Pair, server: PostgresServer):
    engine = create_engine(of_sqlalchemy(server))
    with Session(engine) as session:
        with contextlib.suppress(Exception):
            session.execute(text("SELECT nonsense"))
        with pytest.raises(SendRefused, match="its transaction has failed"):
            await pair.outbox("orders").send(Message(b"1"), connection=session)
    engine.dispose()


async def test_outbox_does_not_store_in_another_queue_that_got_the_number_of_its_own(connect, server: PostgresServer):
    transport, queue, other = connect(), Entity("outbox"), Entity("other")
    await transport.admin.create(queue)
    database = await transport.database()
    with psycopg.connect(server.url) as connection:
        await transport.store(database, queue, [Message(b"1")], connection)
        connection.commit()
        server.query(EMPTY)
        await transport.admin.create(other)
        for messages in ([Message(b"2")], [Message(b"3"), Message(b"4")]):
            with pytest.raises(TransportError) as raised:
                await transport.store(database, queue, messages, connection)
            assert raised.value.reason is FailureReason.NOT_FOUND
        await transport.admin.create(queue)
        await transport.store(database, queue, [Message(b"5")], connection)
    assert [each.message.body for each in await transport.admin.peek(Source(queue), 10)] == [b"5"]
    assert await transport.admin.peek(Source(other), 10) == []


async def test_outbox_stores_in_a_queue_that_was_deleted_and_made_anew(connect, server: PostgresServer):
    transport, queue = connect(), Entity("outbox")
    await transport.admin.create(queue)
    database = await transport.database()
    with psycopg.connect(server.url) as connection:
        await transport.store(database, queue, [Message(b"1")], connection)
        connection.commit()
        await transport.admin.delete(queue)
        await transport.admin.create(queue)
        await transport.store(database, queue, [Message(b"2"), Message(b"3")], connection)
        await transport.store(database, queue, [Message(b"4")], connection)
    assert [each.message.body for each in await transport.admin.peek(Source(queue), 10)] == [b"2", b"3", b"4"]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_outbox_stores_all_texts_by_a_connection_of_any_encoding(
    pair: Pair, server: PostgresServer, encoding: str
):
    message = Message(b"\xff", subject="ä世界", application_properties={"ü": "世"})
    with psycopg.connect(server.url) as connection:
        connection.execute(psycopg.sql.SQL("SET client_encoding TO {}").format(encoding))
        await pair.outbox("orders").send(message, connection=connection)
        await pair.outbox("orders").send_batch([message], connection=connection)
    async with asyncio.timeout(PATIENCE), pair.receiver("orders") as receiver:
        for _ in range(2):
            (delivery,) = await receiver.receive(1, PATIENCE)
            assert (delivery.message.subject, delivery.message.application_properties) == ("ä世界", {"ü": "世"})
            await delivery.complete()


# What is stored first in a transaction begins it.


@dataclass
class Storing:
    """Stores in a queue by one connection, blocking or not, by which that was done before."""

    transport: Any
    database: object
    connection: Any

    async def store(self, body: bytes) -> None:
        await self.transport.store(self.database, Entity("outbox"), [Message(body)], self.connection)

    async def execute(self, statement: str) -> Any:
        """The first value of the answer, if there is one."""
        cursor = await ended(self.connection.execute(statement))
        return (await ended(cursor.fetchone()))[0] if cursor.description else None

    async def commit(self) -> None:
        await ended(self.connection.commit())

    async def rollback(self) -> None:
        await ended(self.connection.rollback())

    async def stored(self) -> list[bytes]:
        return [each.message.body for each in await self.transport.admin.peek(Source(Entity("outbox")), 100)]


async def ended(result: Any) -> Any:
    """What a call returned, or, of a connection that is awaited, what that comes to."""
    return (await result) if inspect.isawaitable(result) else result


@pytest.fixture(params=["blocking", "asyncio"])
async def storing(connect, server: PostgresServer, request: pytest.FixtureRequest) -> AsyncIterator[Storing]:
    transport = connect()
    await transport.admin.create(Entity("outbox"))
    kind: Any = psycopg.Connection if request.param == "blocking" else psycopg.AsyncConnection
    connection = await ended(kind.connect(server.url))
    found = Storing(transport, await transport.database(), connection)
    for _ in range(2):
        await found.store(b"before")
        await found.rollback()
    yield found
    await ended(connection.close())


async def test_storing_begins_a_transaction_in_one_round_trip(storing: Storing, tmp_path: Path):
    await storing.store(b"1")
    await storing.commit()
    trace = tmp_path / "trace"
    with trace.open("wb") as file:
        storing.connection.pgconn.trace(file.fileno())
        await storing.store(b"2")
        storing.connection.pgconn.untrace()
    assert trace.read_text().count("ReadyForQuery") == 1
    await storing.commit()
    assert await storing.stored() == [b"1", b"2"]


async def test_storing_begins_the_transaction_that_the_connection_is_set_to(storing: Storing):
    await ended(storing.connection.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE))
    await storing.store(b"1")
    assert await storing.execute("SHOW transaction_isolation") == "serializable"


async def test_storing_outlasts_the_loss_of_what_is_prepared(storing: Storing):
    await storing.store(b"1")
    await storing.commit()
    for body in (b"2", b"3"):
        await storing.execute("DEALLOCATE ALL")
        await storing.commit()
        await storing.store(body)
        await storing.commit()
    assert await storing.stored() == [b"1", b"2", b"3"]


async def test_storing_does_without_a_prepared_statement_whose_name_is_taken(storing: Storing):
    """As where a proxy prepares for several clients in one session."""
    await storing.execute("DEALLOCATE ALL")
    await storing.commit()
    await storing.store(b"1")
    await storing.execute("PREPARE pairmq_store_one AS SELECT 1")
    await storing.commit()
    for body in (b"2", b"3"):
        await storing.store(body)
        await storing.commit()
    assert await storing.stored() == [b"1", b"2", b"3"]
    assert (
        await storing.execute("SELECT statement FROM pg_prepared_statements") == "PREPARE pairmq_store_one AS SELECT 1"
    )


async def test_storing_first_finds_out_that_the_queue_was_made_anew(storing: Storing):
    await storing.transport.admin.delete(Entity("outbox"))
    with pytest.raises(TransportError) as raised:
        await storing.store(b"1")
    assert raised.value.reason is FailureReason.NOT_FOUND
    await storing.rollback()
    await storing.transport.admin.create(Entity("outbox"))
    await storing.store(b"2")
    await storing.commit()
    assert await storing.stored() == [b"2"]


async def test_storing_first_reports_that_the_connection_was_lost(storing: Storing, server: PostgresServer):
    pid = storing.connection.info.backend_pid
    server.query(f"SELECT pg_terminate_backend({pid}, 60000)")
    with pytest.raises(TransportError, match="the server is shutting down"):
        await storing.store(b"1")
    assert storing.connection.closed


@pytest.mark.parametrize("storing", ["asyncio"], indirect=True)
async def test_storing_first_can_be_cancelled_and_rolled_back(storing: Storing, server: PostgresServer):
    with psycopg.connect(**server.parameters()) as other:
        other.execute("LOCK TABLE pairmq.message")
        task = asyncio.ensure_future(storing.store(b"1"))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        async with asyncio.timeout(PATIENCE):
            while server.query(waiting) == [(0,)]:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await storing.rollback()
    await storing.store(b"2")
    await storing.commit()
    assert await storing.stored() == [b"2"]


# What is stored behind another statement goes by what psycopg has prepared, without a cursor.


async def stored_behind(storing: Storing, body: bytes) -> None:
    assert await storing.execute("SELECT 1") == 1
    await storing.store(body)


@pytest.fixture
async def prepared(storing: Storing) -> Storing:
    """By now psycopg has prepared the statement: it does so for the sixth time."""
    for _ in range(6):
        await stored_behind(storing, b"0")
        await storing.commit()
    await storing.transport.admin.purge(Source(Entity("outbox")))
    return storing


async def test_storing_behind_a_statement_needs_no_cursor(prepared: Storing, monkeypatch: pytest.MonkeyPatch):
    """Fails, too, where psycopg's private parts have changed, by which it is known what is prepared."""
    assert await prepared.execute("SELECT 1") == 1
    monkeypatch.setattr(type(_drivers.driver_of(prepared.connection)), "run", None)
    await prepared.store(b"1")
    await prepared.store(b"2")
    await prepared.commit()
    assert await prepared.stored() == [b"1", b"2"]


@pytest.mark.parametrize("loss", ["rollback", "savepoint", "DEALLOCATE ALL"])
async def test_storing_behind_a_statement_outlasts_the_loss_of_what_is_prepared(prepared: Storing, loss: str):
    """Psycopg 3.2 itself does not notice ``DEALLOCATE ALL``, and fails by statements of its own then."""
    await stored_behind(prepared, b"before")
    await prepared.commit()
    await stored_behind(prepared, b"1")
    if loss == "rollback":
        await prepared.rollback()
        await stored_behind(prepared, b"1")
    elif loss == "savepoint":
        await undone(prepared.connection, prepared.store(b"undone"))
    else:
        await prepared.execute(loss)
    for _ in range(8):
        await stored_behind(prepared, b"2")
    await prepared.commit()
    assert await prepared.stored() == [b"before", b"1", *[b"2"] * 8]


async def undone(connection: Any, operation: Any) -> None:
    """Run an operation, and undo it alone."""
    if isinstance(connection, psycopg.Connection):
        with connection.transaction(force_rollback=True):
            await operation
    else:
        async with connection.transaction(force_rollback=True):
            await operation


async def test_storing_behind_a_statement_can_fail_and_be_rolled_back(prepared: Storing, server: PostgresServer):
    await prepared.execute("SET LOCAL lock_timeout = 1")
    with psycopg.connect(**server.parameters()) as other:
        other.execute("LOCK TABLE pairmq.message")
        with pytest.raises(TransportError, match="lock timeout"):
            await prepared.store(b"1")
    with pytest.raises(TransportError, match="its transaction has failed"):
        await prepared.store(b"2")
    await prepared.rollback()
    await stored_behind(prepared, b"3")
    await prepared.commit()
    assert await prepared.stored() == [b"3"]


async def test_storing_behind_a_statement_finds_out_that_the_queue_was_made_anew(prepared: Storing):
    await prepared.execute("SELECT 1")
    await prepared.transport.admin.delete(Entity("outbox"))
    await prepared.transport.admin.create(Entity("outbox"))
    await prepared.store(b"1")
    await prepared.commit()
    assert await prepared.stored() == [b"1"]


# The inbox.


async def test_inbox_waits_for_a_transaction_that_has_claimed_the_message(pair: Pair, server: PostgresServer):
    once = Deduplicator(PostgresInbox())
    delivery = await delivery_of(pair, "same")
    connect = psycopg.AsyncConnection.connect
    async with await connect(server.url) as one, await connect(server.url) as other:
        async with once.first(delivery, connection=one) as first:
            assert first

        async def second() -> bool:
            async with once.first(delivery, connection=other) as first:
                return first

        task = asyncio.ensure_future(second())
        await asyncio.sleep(0.3)
        assert not task.done()
        await one.rollback()
        assert await task


async def test_inbox_forgets_what_is_over_with_later_claims(pair: Pair, server: PostgresServer):
    with psycopg.connect(server.url) as connection:
        for number in range(20):
            delivery = await delivery_of(pair, str(number))
            async with Deduplicator(PostgresInbox(), window=1e-6).first(delivery, connection=connection) as first:
                assert first
            connection.commit()
            await delivery.complete()
    ((left,),) = server.query("SELECT count(*) FROM pairmq.inbox")
    assert left <= 2


async def test_inbox_without_its_table_says_what_makes_it(pair: Pair, server: PostgresServer):
    delivery = await delivery_of(pair, "1")
    first = Deduplicator(PostgresInbox()).first
    with psycopg.connect(**server.parameters("postgres")) as connection, pytest.raises(TransportError) as raised:
        async with first(delivery, connection=connection):
            pass
    assert "run `pairmq postgres migrate`" in str(raised.value)
