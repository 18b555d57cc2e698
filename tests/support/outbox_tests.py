"""What holds of an outbox and an inbox in any database: a plugin's tests inherit it, and say how to reach theirs.

They bring the fixtures ``primary`` and ``database``, and ``pair``, whose primary has the queue ``orders``; the database
has a table ``orders`` with one column. SQLAlchemy is imported by the tests that use it, not by each process of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from pairmq import Deduplicator, Entity, Message, Pair, Receipt, Route, SendRefused
from pairmq.model import Source
from pairmq.transport import Inbox

PATIENCE = 200.0
INSERT = "INSERT INTO orders VALUES (:item)"
Order = Callable[[Any, str], Any]
"""Sends an item by a connection."""


@dataclass(frozen=True)
class Database:
    """A database with an outbox, and an application's table beside it."""

    sqlalchemy: str  # its URL there
    sqlalchemy_async: str
    insert: str  # by the driver itself
    connect: Callable[..., Any]
    connect_async: Callable[[], AbstractAsyncContextManager[Any]]
    connect_elsewhere: Callable[[], Any]  # to another database
    connect_committing: Callable[[], Any]  # so that each statement is committed by itself
    items: Callable[[], Sequence[str]]  # in the application's table
    inbox: Callable[[], Inbox]


async def arrived(pair: Pair, count: int, queue: str = "orders") -> list[bytes]:
    """So many bodies from the primary, and what is there besides once the outbox is empty."""
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE), pair.receiver(queue) as receiver:
        while len(found) < count:
            for delivery in await receiver.receive(100, PATIENCE):
                found.append(delivery.body)
                await delivery.complete()
        while await waiting(pair):
            await asyncio.sleep(0.01)
        return found + [delivery.body for delivery in await receiver.receive(100, 0)]


async def waiting(pair: Pair) -> int:
    """Messages in the outbox."""
    assert pair.outbox_queue is not None
    return (await pair.secondary.admin.counts(Source(pair.outbox_queue))).pending


async def delivery_of(pair: Pair, message_id: str = "same") -> Any:
    """A message that came through the pair, whose effect an inbox can claim."""
    await pair.sender("orders").send(Message(b"effect", message_id=message_id))
    (delivery,) = await pair.receiver("orders").receive(1, PATIENCE)
    return delivery


async def with_driver(database: Database, order: Order) -> None:
    with contextlib.closing(database.connect()) as connection:
        for item, ends in (("kept", connection.commit), ("lost", connection.rollback)):
            connection.execute(database.insert, (item,))
            await order(connection, item)
            ends()


async def with_async_driver(database: Database, order: Order) -> None:
    async with database.connect_async() as connection:
        for item, ends in (("kept", connection.commit), ("lost", connection.rollback)):
            await order(connection, item)  # before anything else has begun the transaction
            await connection.execute(database.insert, (item,))
            await ends()


async def with_sqlalchemy_core(database: Database, order: Order) -> None:
    from sqlalchemy import create_engine

    engine = create_engine(database.sqlalchemy)
    with engine.connect() as connection:
        await _in_sqlalchemy(connection, order)
    engine.dispose()


async def with_sqlalchemy_session(database: Database, order: Order) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine(database.sqlalchemy)
    with Session(engine) as session:
        await _in_sqlalchemy(session, order)
    engine.dispose()


async def _in_sqlalchemy(connection: Any, order: Order) -> None:
    from sqlalchemy import text

    for item, ends in (("kept", connection.commit), ("lost", connection.rollback)):
        await order(connection, item)
        connection.execute(text(INSERT), {"item": item})
        ends()


async def with_sqlalchemy_async_core(database: Database, order: Order) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(database.sqlalchemy_async)
    async with engine.connect() as connection:
        await _in_async_sqlalchemy(connection, order)
    await engine.dispose()


async def with_sqlalchemy_async_session(database: Database, order: Order) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(database.sqlalchemy_async)
    async with AsyncSession(engine) as session:
        await _in_async_sqlalchemy(session, order)
    await engine.dispose()


async def _in_async_sqlalchemy(connection: Any, order: Order) -> None:
    from sqlalchemy import text

    for item, ends in (("kept", connection.commit), ("lost", connection.rollback)):
        await order(connection, item)
        await connection.execute(text(INSERT), {"item": item})
        await ends()


def closed(database: Database) -> Any:
    connection = database.connect()
    connection.close()
    return connection


class OutboxTests:
    """The tests."""

    @pytest.mark.parametrize(
        "with_connection",
        [
            with_driver,
            with_async_driver,
            with_sqlalchemy_core,
            with_sqlalchemy_session,
            with_sqlalchemy_async_core,
            with_sqlalchemy_async_session,
        ],
        ids=lambda function: function.__name__,
    )
    async def test_outbox_sends_what_was_committed_and_nothing_else(self, pair: Pair, database, with_connection):
        outbox = pair.outbox("orders")
        receipts: list[Receipt] = []

        async def order(connection: Any, item: str) -> None:
            receipts.append(await outbox.send(Message(item.encode()), connection=connection))

        await with_connection(database, order)
        assert {receipt.route for receipt in receipts} == {Route.OUTBOX}
        assert list(database.items()) == ["kept"]
        assert await arrived(pair, 1) == [b"kept"]

    async def test_outbox_keeps_a_property_without_a_value_beside_texts(self, pair: Pair, database):
        properties = {"text": "a text", "nothing": None}
        with contextlib.closing(database.connect()) as connection:
            message = Message(b"1", application_properties=properties)
            await pair.outbox("orders").send(message, connection=connection)
            connection.commit()
        async with asyncio.timeout(PATIENCE), pair.receiver("orders") as receiver:
            (delivery,) = await receiver.receive(1, PATIENCE)
        assert delivery.message.application_properties == properties

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (closed, "it is closed"),
            (lambda database: database.connect_committing(), "it commits each statement by itself"),
            (lambda database: database.connect_elsewhere(), "another database"),
        ],
        ids=["closed", "committing-itself", "other-database"],
    )
    async def test_outbox_refuses_a_connection_that_can_commit_nothing(self, pair: Pair, database, make, text):
        with contextlib.closing(make(database)) as connection, pytest.raises(SendRefused, match=text):
            await pair.outbox("orders").send(Message(b"1"), connection=connection)
        assert await waiting(pair) == 0

    @pytest.mark.parametrize("connection", [object(), None, "a name"])
    async def test_outbox_refuses_what_is_not_a_connection(self, pair: Pair, connection: object):
        with pytest.raises(TypeError, match="is not a connection"):
            await pair.outbox("orders").send(Message(b"1"), connection=connection)

    async def test_inbox_applies_an_effect_once_and_again_when_it_was_rolled_back(self, pair: Pair, database):
        once = Deduplicator(database.inbox())
        seen: list[bool] = []
        async with database.connect_async() as connection:
            for ends in (connection.rollback, connection.commit, connection.commit):
                delivery = await delivery_of(pair)
                async with once.first(delivery, connection=connection) as first:
                    seen.append(first)
                    if first:
                        await connection.execute(database.insert, ("effect",))
                await ends()
                await delivery.complete()
        assert seen == [True, True, False]
        assert list(database.items()) == ["effect"]

    async def test_inbox_and_outbox_commit_together(self, pair: Pair, database):
        from sqlalchemy.ext.asyncio import create_async_engine

        await pair.primary.admin.create(Entity("shipments"))
        once, outbox = Deduplicator(database.inbox()), pair.outbox("shipments")
        engine = create_async_engine(database.sqlalchemy_async)
        for ends in ("rollback", "commit", "commit"):
            delivery = await delivery_of(pair)
            async with engine.connect() as connection, once.first(delivery, connection=connection) as first:
                if first:
                    await outbox.send(Message(b"shipment"), connection=connection)
                await getattr(connection, ends)()
            await delivery.complete()
        await engine.dispose()
        assert await arrived(pair, 1, "shipments") == [b"shipment"]
