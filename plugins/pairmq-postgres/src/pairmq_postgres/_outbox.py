"""The outbox and the inbox: what is stored through a connection of the caller's, in the caller's transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn
from weakref import ref

import psycopg

from pairmq.model import Entity, Message
from pairmq.transport import Inbox, OtherDatabase, encode_header, in_chunks, raise_failure, unusable
from pairmq_postgres import _errors, _sql
from pairmq_postgres._drivers import Driver, Shelf, driver_of, translated
from pairmq_postgres._errors import NoSuchEntity
from pairmq_postgres._sender import Headers

_CHUNK_BYTES = 8 * 1024 * 1024
_READS = "its transaction only reads: begin one that writes, on a server that is no standby"


class CallersTransactions:
    """Stores messages through connections of callers; see `pairmq.transport.Transactional.store`."""

    def __init__(self, headers: Headers, *, notify: bool) -> None:
        self._headers = headers
        self._notify = notify
        self._known: set[ref[Any]] = set()  # connections: each leads to one server for its life
        # By a queue's path; and by database, as the same number is another queue's elsewhere.
        self._shelves: dict[tuple[object, str], Shelf] = {}

    async def store(self, database: object, queue: Entity, messages: Sequence[Message], connection: Any) -> None:
        """Store messages, each chunk in one statement."""
        driver = driver_of(connection)
        try:
            if not self._is_known(connection):
                if await driver.row(connection, _sql.DATABASE, {}) != database:
                    raise OtherDatabase
                with contextlib.suppress(TypeError):  # one that a pool of asyncpg lends: it is asked each time
                    self._known.add(ref(connection, self._known.discard))
            for chunk in in_chunks(messages, lambda message: len(message.body), len(messages), _CHUNK_BYTES):
                shelf = self._shelves.get((database, queue.path))
                if shelf is None or not await self._stored(driver, connection, shelf, chunk):
                    # It is the first, or the queue was deleted, and may have been made anew.
                    shelf = await self._find(queue, driver, connection)
                    self._shelves[database, queue.path] = shelf
                    if not await self._stored(driver, connection, shelf, chunk):
                        raise NoSuchEntity
        except OtherDatabase:
            raise
        except Exception as error:
            _raise(error, f"store in {queue}")

    async def _stored(self, driver: Driver, connection: Any, shelf: Shelf, chunk: Sequence[Message]) -> int:
        """Store messages by one statement; 0 if the queue was deleted."""
        if len(chunk) == 1:
            return await driver.store_one(connection, shelf, self._headers.of(chunk[0]), chunk[0].body)
        rows = {
            "headers": [encode_header(message) for message in chunk],
            "bodies": [message.body for message in chunk],
        }
        return await driver.run(connection, _sql.STORE, {**shelf._asdict(), **rows})

    async def _find(self, queue: Entity, driver: Driver, connection: Any) -> Shelf:
        """Find out what statements have to know of a queue. Raises `NoSuchEntity`."""
        row = await driver.row(connection, _sql.SHELF, {"path": queue.path, "kind": queue.kind.value})
        if row is None:
            raise NoSuchEntity
        number, made, in_order = row
        return Shelf(in_order, number, str(made), queue.path if self._notify else None)

    def _is_known(self, connection: object) -> bool:
        try:
            return ref(connection) in self._known
        except TypeError:
            return False


class PostgresInbox(Inbox):
    """Keeps claims in the table ``pairmq.inbox`` of the consumer's database, which ``pairmq postgres migrate`` makes.

    The connections are of psycopg 3, psycopg2 or asyncpg, or of SQLAlchemy or Django over these.
    """

    async def claim(self, key: str, window: float, connection: Any) -> bool:
        driver = driver_of(connection)
        try:
            return bool(await driver.run(connection, _sql.CLAIM, {"key": key, "window": timedelta(seconds=window)}))
        except Exception as error:
            _raise(error, "claim a message")


def _raise(error: Exception, doing: str) -> NoReturn:
    found = translated(error)
    if isinstance(found, psycopg.errors.ReadOnlySqlTransaction):
        raise unusable(_READS) from error
    if isinstance(found, psycopg.Error | NoSuchEntity):
        raise_failure(_errors.failure(found, doing))
    raise found
