"""The outbox and the inbox in a file: what a transaction of the application commits is sent, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from outbox_tests import PATIENCE, Database, OutboxTests, arrived, delivery_of, waiting
from pairmq import (
    ConfigurationError,
    Deduplicator,
    Entity,
    EntityState,
    MemoryClaims,
    Message,
    MessageTooLarge,
    Pair,
    PairOptions,
    ReservedPropertyError,
    Route,
    SendRefused,
)
from pairmq import sync as blocking
from pairmq.model.events import SendCompleted, SendOutcome
from pairmq.plugins import BrokerControl, registry
from pairmq_sqlite import SQLiteInbox

OPTIONS = PairOptions(
    backlog_queue_count=1, attempt_timeout=30.0, enable_syphon=True, failover_interval=0, ping_primary_interval=0.1
)


@pytest.fixture
def primary() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def secondary(path: Path) -> str:
    return f"sqlite://{path}?poll_interval=0.02"


@pytest.fixture
async def pair(primary: str, secondary: str, path: Path) -> AsyncIterator[Pair]:
    async with Pair.connect(primary, secondary, options=OPTIONS) as pair:
        await pair.primary.admin.create(Entity("orders"))
        make_table(path)
        yield pair


@pytest.fixture
def blocking_pair(primary: str, secondary: str, path: Path) -> Iterator[blocking.Pair]:
    with blocking.Pair.connect(primary, secondary, options=OPTIONS) as pair:
        pair.primary.admin.create(Entity("orders"))
        make_table(path)
        yield pair


@pytest.fixture
def database(path: Path) -> Database:
    return Database(
        sqlalchemy=f"sqlite:///{path}",
        sqlalchemy_async=f"sqlite+aiosqlite:///{path}",
        insert="INSERT INTO orders VALUES (?)",
        connect=lambda: sqlite3.connect(path),
        connect_async=lambda: connected(path),
        connect_elsewhere=lambda: sqlite3.connect(":memory:"),
        connect_committing=lambda: sqlite3.connect(path, isolation_level=None),
        items=lambda: items(path),
        inbox=SQLiteInbox,
    )


@contextlib.asynccontextmanager
async def connected(path: Path) -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(path) as connection:
        connection.row_factory = lambda _, row: {"row": row}
        yield connection


def make_table(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (item TEXT)")


def items(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [item for (item,) in connection.execute("SELECT item FROM orders ORDER BY rowid")]


class TestSQLiteOutbox(OutboxTests):
    pass


def test_outbox_leaves_no_transaction_open_when_it_refuses(blocking_pair: blocking.Pair, path: Path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(SendRefused):
            blocking_pair.outbox("orders").send(Message(b"1"), connection=connection)
        assert not connection.in_transaction


def test_blocking_outbox_does_not_wake_the_loop_when_no_observer_wants_its_sends(
    blocking_pair: blocking.Pair, path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[object] = []
    here = threading.get_ident()
    outbox = blocking_pair.outbox("orders")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        outbox.send(Message(b"0"), connection=connection)
        connection.commit()
        wake = asyncio.BaseEventLoop.call_soon_threadsafe

        def counted(loop: asyncio.BaseEventLoop, action: Callable[..., object], *arguments: object, **options: Any):
            if threading.get_ident() == here:
                calls.append(action)
            return wake(loop, action, *arguments, **options)

        monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", counted)
        outbox.send(Message(b"1"), connection=connection)
        monkeypatch.undo()
        connection.rollback()
    assert calls == []


def through_sqlalchemy(path: Path):
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    return create_engine(f"sqlite:///{path}", poolclass=NullPool).connect()


@pytest.mark.parametrize("through", [sqlite3.connect, through_sqlalchemy])
def test_blocking_outbox_sends_what_was_committed_and_nothing_else(blocking_pair: blocking.Pair, path: Path, through):
    outbox = blocking_pair.outbox("orders")
    with contextlib.closing(through(path)) as connection:
        outbox.send(Message(b"0"), connection=connection)
        connection.commit()
        outbox.send(Message(b"lost"), connection=connection)
        connection.rollback()
        receipts = outbox.send_batch([Message(b"1"), Message(b"2")], connection=connection)
        connection.commit()
    assert [receipt.route for receipt in receipts] == [Route.OUTBOX] * 2
    found: list[bytes] = []
    with blocking_pair.receiver("orders") as receiver:
        while len(found) < 3:
            found += [delivery.body for delivery in receiver.receive(10, PATIENCE)]
    assert found == [b"0", b"1", b"2"]


DJANGO = """
import sys
import django
from django.conf import settings

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[2]}}, USE_TZ=True)
django.setup()
from django.db import DatabaseError, connection, transaction
from pairmq import Entity, Message, PairOptions, SendRefused
from pairmq.sync import Pair

options = PairOptions(backlog_queue_count=1, attempt_timeout=30, enable_syphon=True)
with Pair.connect("memory://django", sys.argv[1], options=options) as pair:
    pair.primary.admin.create(Entity("orders"))
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
    with transaction.atomic():
        try:
            with transaction.atomic(savepoint=False):
                connection.cursor().execute("SELECT nonsense")
        except DatabaseError:
            pass
        try:
            outbox.send(Message(b"failed"), connection=connection)
        except SendRefused as error:
            print(error)
    with pair.receiver("orders") as receiver:
        print([delivery.body for delivery in receiver.receive(10, 100)], receiver.receive(10, 0.2))
"""


def test_django_sends_what_its_transaction_committed(secondary: str, path: Path):
    command = [sys.executable, "-W", "error", "-c", DJANGO, secondary, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    no_transaction, failed, found = ended.stdout.splitlines()
    assert no_transaction.endswith("it commits each statement by itself: begin a transaction first")
    assert failed.endswith("its transaction has failed")
    assert found == "[b'kept'] []"


# What the pair makes of it.


async def test_outbox_keeps_every_field_and_the_order(pair: Pair, path: Path):
    messages = [
        Message(b"%d" % number, time_to_live=3600.0, priority=3, subject="s", application_properties={"n": number})
        for number in range(5)
    ]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        receipts = await pair.outbox("orders").send_batch(messages, connection=connection)
        connection.commit()
    assert {receipt.backlog_queue for receipt in receipts} == {pair.outbox_queue.path}
    found: list[Message] = []
    async with asyncio.timeout(PATIENCE), pair.receiver("orders") as receiver:
        while len(found) < 5:
            found += [delivery.message for delivery in await receiver.receive(10, PATIENCE)]
    sent = [message.with_id(receipt.message_id) for message, receipt in zip(messages, receipts, strict=True)]
    assert found == sent


async def test_outbox_waits_for_the_primary_and_makes_no_entity_draining(pair: Pair, path: Path, primary: str):
    async with asyncio.timeout(PATIENCE):
        await pair.sender("orders").send(Message(b"direct"))
        while pair.state("orders") is not EntityState.HEALTHY:
            await asyncio.sleep(0.01)
        control = control_of(primary)
        await control.stop()
        changes: list[object] = []
        pair.subscribe(changes.append, per_message=False)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            await pair.outbox("orders").send(Message(b"stored"), connection=connection)
            connection.commit()
        while not any(type(event).__name__ == "DestinationChanged" for event in changes):
            await asyncio.sleep(0.01)
        assert await waiting(pair) == 1
        assert pair.state("orders") is EntityState.HEALTHY
        await control.restore()
    assert await arrived(pair, 2) == [b"direct", b"stored"]
    assert not any(type(event).__name__ == "StateChanged" for event in changes)


def control_of(url: str) -> BrokerControl:
    make = registry.transport_record(url).broker_control
    assert make is not None
    return make(url)


async def test_outbox_reports_a_send_that_may_yet_be_rolled_back(pair: Pair, path: Path):
    events: list[SendCompleted] = []
    pair.subscribe(lambda event: events.append(event) if isinstance(event, SendCompleted) else None)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        receipt = await pair.outbox("orders").send(Message(b"1"), connection=connection)
        connection.rollback()
    (event,) = events
    assert (event.outcome, event.message_id) == (SendOutcome.OUTBOX, receipt.message_id)
    assert event.backlog_queue == receipt.backlog_queue == pair.outbox_queue.path


async def test_sender_alone_leaves_what_it_stored_to_a_later_syphon(primary: str, secondary: str, path: Path):
    alone = PairOptions(backlog_queue_count=1, attempt_timeout=30.0)
    async with Pair.connect(primary, secondary, options=alone) as pair:
        await pair.primary.admin.create(Entity("orders"))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            await pair.outbox("orders").send(Message(b"1"), connection=connection)
            connection.commit()
        assert await waiting(pair) == 1
    async with Pair.connect(primary, secondary, options=OPTIONS) as pair:
        assert await arrived(pair, 1) == [b"1"]


async def test_outbox_queue_that_was_deleted_is_made_again(pair: Pair, path: Path):
    await pair.secondary.admin.delete(pair.outbox_queue)
    outbox = pair.outbox("orders")
    async with asyncio.timeout(PATIENCE):
        while True:
            again = contextlib.suppress(SendRefused)  # which says that it is made again
            with contextlib.closing(sqlite3.connect(path)) as connection, again:
                await outbox.send(Message(b"1"), connection=connection)
                connection.commit()
                break
            await asyncio.sleep(0.01)
    assert await arrived(pair, 1) == [b"1"]


async def left_running(connection: aiosqlite.Connection, statement: str, call: Coroutine[Any, Any, object]) -> None:
    """Cancel a call when it waits for a statement that the connection's thread has not run yet."""
    free = threading.Event()
    loop = asyncio.get_running_loop()
    execute = connection._conn.execute

    def held(sql: str, *arguments: Any) -> object:
        if sql == statement:
            loop.call_soon_threadsafe(task.cancel)
            free.wait(PATIENCE)
        return execute(sql, *arguments)

    connection._connection = Held(connection._conn, held)
    task = asyncio.create_task(call)
    with pytest.raises(asyncio.CancelledError):
        await task
    connection._connection = connection._conn.held
    loop.call_later(0.05, free.set)


class Held:
    def __init__(self, held: sqlite3.Connection, execute: Callable[..., object]) -> None:
        self.held, self.execute = held, execute

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)


async def test_outbox_sends_after_a_send_whose_begin_was_cancelled(pair: Pair, path: Path):
    outbox = pair.outbox("orders")
    async with connected(path) as connection:
        await outbox.send(Message(b"0"), connection=connection)
        await connection.commit()
        await left_running(connection, "BEGIN IMMEDIATE", outbox.send(Message(b"lost"), connection=connection))
        await outbox.send(Message(b"1"), connection=connection)
        await connection.commit()
    assert await arrived(pair, 2) == [b"0", b"1"]


async def test_inbox_claims_after_a_claim_whose_begin_was_cancelled(pair: Pair, path: Path):
    inbox = SQLiteInbox()
    async with connected(path) as connection:
        await left_running(connection, "BEGIN IMMEDIATE", inbox.claim("key", 60.0, connection))
        assert await inbox.claim("key", 60.0, connection)
        await connection.commit()


# What is refused: one error, and nothing stored.


def test_blocking_outbox_refuses_a_connection_of_asyncio(blocking_pair: blocking.Pair, path: Path):
    with pytest.raises(TypeError, match="is for asyncio"):
        blocking_pair.outbox("orders").send(Message(b"1"), connection=aiosqlite.connect(path))


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Message(bytes(300 * 1024 * 1024)), MessageTooLarge),
        (Message(b"", application_properties={"x-ms-path": "other"}), ReservedPropertyError),
    ],
    ids=["too-large", "reserved"],
)
async def test_outbox_stores_nothing_of_a_batch_with_a_message_that_is_refused(pair: Pair, path: Path, bad, error):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        with pytest.raises(error):
            await pair.outbox("orders").send_batch([Message(b"good"), bad], connection=connection)
        connection.commit()
    assert await waiting(pair) == 0


async def test_pair_has_no_outbox_when_its_secondary_is_not_a_database(primary: str):
    async with Pair.connect(primary, f"memory://{uuid.uuid4().hex}") as pair:
        assert pair.outbox_queue is None
        with pytest.raises(ConfigurationError, match="an outbox needs a database as the secondary"):
            pair.outbox("orders")


# The inbox.


def test_inbox_waits_for_another_writer_in_a_transaction_that_was_begun_to_read(path: Path):
    """Django's are."""
    inbox = SQLiteInbox()

    def claimed(key: str, connection: sqlite3.Connection) -> bool:
        connection.execute("BEGIN")
        with pytest.raises(StopIteration) as end:
            inbox.claim(key, 60.0, connection).send(None)
        connection.commit()
        return end.value.value

    with (
        contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as connection,
        contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as other,
    ):
        assert claimed("0", connection)
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE other (number INTEGER)")
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.2, other.commit).start()
        assert claimed("1", connection)


async def test_inbox_forgets_an_id_when_its_window_is_over(pair: Pair, path: Path):
    seen = []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for _ in range(2):
            delivery = await delivery_of(pair)
            async with Deduplicator(SQLiteInbox(), window=1e-6).first(delivery, connection=connection) as first:
                seen.append(first)
            connection.commit()
            await asyncio.sleep(0.001)
    assert seen == [True, True]


async def test_deduplicator_has_either_leases_or_transactions(pair: Pair):
    delivery = await delivery_of(pair)
    with pytest.raises(ConfigurationError, match="works in transactions only"):
        async with Deduplicator(SQLiteInbox()).once(delivery):
            pass
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(ConfigurationError, match="needs an inbox"),
    ):
        async with Deduplicator(MemoryClaims()).first(delivery, connection=connection):
            pass


def test_blocking_inbox_claims_in_the_callers_transaction(blocking_pair: blocking.Pair, path: Path):
    blocking_pair.sender("orders").send(Message(b"1"))
    once = blocking.Deduplicator(SQLiteInbox())
    with blocking_pair.receiver("orders") as receiver, contextlib.closing(sqlite3.connect(path)) as connection:
        (delivery,) = receiver.receive(1, PATIENCE)
        seen = []
        for _ in range(2):
            with connection, once.first(delivery, connection=connection) as first:
                seen.append(first)
        delivery.complete()
    once.close()
    assert seen == [True, False]
