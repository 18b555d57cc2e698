"""The outbox and the inbox in PostgreSQL: what a transaction of the application commits is sent, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from pairmq import Deduplicator, Entity, Message, Pair, PairOptions, SendRefused
from pairmq import sync as blocking
from pairmq.model import Source, TransportError
from pairmq_postgres import PostgresInbox
from pairmq_postgres.testing import PostgresServer

pytestmark = pytest.mark.real_server

PATIENCE = 200.0
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
async def pair(primary: str, secondary: str) -> AsyncIterator[Pair]:
    async with Pair.connect(primary, secondary, options=replace(OPTIONS, enable_syphon=True)) as pair:
        await pair.primary.admin.create(Entity("orders"))
        yield pair


async def arrived(pair: Pair, count: int) -> list[bytes]:
    """So many bodies from the primary, and what is there besides once the outbox is empty."""
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE), pair.receiver("orders") as receiver:
        while len(found) < count:
            for delivery in await receiver.receive(100, PATIENCE):
                found.append(delivery.body)
                await delivery.complete()
        while await waiting(pair):
            await asyncio.sleep(0.01)
        return found + [delivery.body for delivery in await receiver.receive(100, 0)]


async def waiting(pair: Pair) -> int:
    assert pair.outbox_queue is not None
    return (await pair.secondary.admin.counts(Source(pair.outbox_queue))).pending


def of_sqlalchemy(server: PostgresServer) -> str:
    return server.url.replace("postgresql://", "postgresql+psycopg://", 1)


INSERT = "INSERT INTO orders VALUES (:item)"
Order = Callable[[Any, str], Any]


async def with_psycopg(server: PostgresServer, order: Order) -> None:
    with psycopg.connect(server.url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        for item, ends in (("kept", connection.commit), ("lost", connection.rollback)):
            connection.execute("INSERT INTO orders VALUES (%s)", (item,))
            await order(connection, item)
            ends()


async def with_async_psycopg(server: PostgresServer, order: Order) -> None:
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True, row_factory=dict_row) as connection:
        for item in ("kept", "lost"):
            with contextlib.suppress(KeyError):
                async with connection.transaction():
                    await order(connection, item)
                    await connection.execute("INSERT INTO orders VALUES (%s)", (item,))
                    if item == "lost":
                        raise KeyError


async def with_sqlalchemy_core(server: PostgresServer, order: Order) -> None:
    engine = create_engine(of_sqlalchemy(server))
    with engine.connect() as connection:
        for item, ends in (("kept", connection.commit), ("lost", connection.rollback)):
            await order(connection, item)
            connection.execute(text(INSERT), {"item": item})
            ends()
    engine.dispose()


async def with_sqlalchemy_session(server: PostgresServer, order: Order) -> None:
    engine = create_engine(of_sqlalchemy(server))
    with Session(engine) as session:
        for item, ends in (("kept", session.commit), ("lost", session.rollback)):
            await order(session, item)
            session.execute(text(INSERT), {"item": item})
            ends()
    engine.dispose()


async def with_sqlalchemy_async_core(server: PostgresServer, order: Order) -> None:
    engine = create_async_engine(of_sqlalchemy(server))
    async with engine.connect() as connection:
        for item, ends in (("kept", connection.commit), ("lost", connection.rollback)):
            await order(connection, item)
            await connection.execute(text(INSERT), {"item": item})
            await ends()
    await engine.dispose()


async def with_sqlalchemy_async_session(server: PostgresServer, order: Order) -> None:
    engine = create_async_engine(of_sqlalchemy(server))
    async with AsyncSession(engine) as session:
        for item, ends in (("kept", session.commit), ("lost", session.rollback)):
            await order(session, item)
            await session.execute(text(INSERT), {"item": item})
            await ends()
    await engine.dispose()


@pytest.mark.parametrize(
    "with_connection",
    [
        with_psycopg,
        with_async_psycopg,
        with_sqlalchemy_core,
        with_sqlalchemy_session,
        with_sqlalchemy_async_core,
        with_sqlalchemy_async_session,
    ],
    ids=lambda function: function.__name__,
)
async def test_outbox_sends_what_was_committed_and_nothing_else(pair: Pair, server: PostgresServer, with_connection):
    outbox = pair.outbox("orders")

    async def order(connection: Any, item: str) -> None:
        await outbox.send(Message(item.encode()), connection=connection)

    await with_connection(server, order)
    assert server.query("SELECT item FROM public.orders") == [("kept",)]
    assert await arrived(pair, 1) == [b"kept"]


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


def closed(server: PostgresServer) -> psycopg.Connection:
    connection = psycopg.connect(server.url)
    connection.close()
    return connection


def committing_itself(server: PostgresServer) -> psycopg.Connection:
    return psycopg.connect(server.url, autocommit=True)


def failed(server: PostgresServer) -> psycopg.Connection:
    connection = psycopg.connect(server.url)
    with contextlib.suppress(psycopg.Error):
        connection.execute("SELECT nonsense")
    return connection


def other_database(server: PostgresServer) -> psycopg.Connection:
    return psycopg.connect(**server.parameters("postgres"))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (closed, "it is closed"),
        (committing_itself, "it commits each statement by itself"),
        (failed, "its transaction has failed"),
        (other_database, "another database"),
    ],
)
async def test_outbox_refuses_a_connection_that_can_commit_nothing(pair: Pair, server: PostgresServer, make, text):
    with contextlib.closing(make(server)) as connection, pytest.raises(SendRefused, match=text):
        await pair.outbox("orders").send(Message(b"1"), connection=connection)
    assert await waiting(pair) == 0


async def test_outbox_refuses_what_is_not_a_connection(pair: Pair):
    with pytest.raises(TypeError, match="is not a connection of psycopg 3"):
        await pair.outbox("orders").send(Message(b"1"), connection=object())


def test_blocking_outbox_refuses_a_connection_of_asyncio(primary: str, secondary: str, server: PostgresServer):
    with blocking.Pair.connect(primary, secondary, options=OPTIONS) as pair:

        async def use() -> None:
            async with await psycopg.AsyncConnection.connect(server.url) as connection:
                with pytest.raises(TypeError, match="is for asyncio"):
                    await asyncio.to_thread(pair.outbox("orders").send, Message(b"1"), connection=connection)

        asyncio.run(use())


async def test_outbox_refuses_a_failed_session_of_sqlalchemy(pair: Pair, server: PostgresServer):
    engine = create_engine(of_sqlalchemy(server))
    with Session(engine) as session:
        with contextlib.suppress(Exception):
            session.execute(text("SELECT nonsense"))
        with pytest.raises(SendRefused, match="its transaction has failed"):
            await pair.outbox("orders").send(Message(b"1"), connection=session)
    engine.dispose()


# The inbox.


async def delivery_of(pair: Pair, message_id: str) -> Any:
    await pair.sender("orders").send(Message(b"effect", message_id=message_id))
    (delivery,) = await pair.receiver("orders").receive(1, PATIENCE)
    return delivery


async def test_inbox_applies_an_effect_once_and_again_when_it_was_rolled_back(pair: Pair, server: PostgresServer):
    once = Deduplicator(PostgresInbox())
    seen: list[bool] = []
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        for ends in (connection.rollback, connection.commit, connection.commit):
            delivery = await delivery_of(pair, "same")
            async with once.first(delivery, connection=connection) as first:
                seen.append(first)
                if first:
                    await connection.execute("INSERT INTO orders VALUES ('effect')")
            await ends()
            await delivery.complete()
    assert seen == [True, True, False]
    assert server.query("SELECT item FROM public.orders") == [("effect",)]


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


async def test_inbox_and_outbox_commit_together(pair: Pair, server: PostgresServer):
    once, outbox = Deduplicator(PostgresInbox()), pair.outbox("orders")
    engine = create_async_engine(of_sqlalchemy(server))
    delivery = await delivery_of(pair, "order")
    for ends in ("rollback", "commit", "commit"):
        async with engine.connect() as connection, once.first(delivery, connection=connection) as first:
            if first:
                await outbox.send(Message(b"shipment"), connection=connection)
            await getattr(connection, ends)()
    await delivery.complete()
    await engine.dispose()
    assert await arrived(pair, 1) == [b"shipment"]
