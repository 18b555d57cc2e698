"""The outbox and the inbox: what is stored through a connection of the caller's, in the caller's transaction."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pairmq.model import Entity, Message
from pairmq.transport import Inbox, OtherDatabase, encode_header, raise_failure, unusable
from pairmq_postgres import _errors, _sql
from pairmq_postgres._errors import NoSuchEntity
from pairmq_postgres._sender import Headers

_CHUNK_BYTES = 8 * 1024 * 1024
_UNFIT: dict[int, str] = {
    TransactionStatus.INERROR: "its transaction has failed",
    TransactionStatus.ACTIVE: "it is busy with another statement",
    TransactionStatus.UNKNOWN: "it is closed",
}
_READS = "its transaction only reads: begin one that writes, on a server that is no standby"


class CallersTransactions:
    """Stores messages through connections of callers; see `pairmq.transport.Transactional.store`.

    Args:
        headers: of messages that were measured.
        notify: the commit wakes receivers.
    """

    def __init__(self, headers: Headers, *, notify: bool) -> None:
        self._headers = headers
        self._notify = notify
        self._known: WeakSet[Any] = WeakSet()  # each leads to one server for its life

    async def store(self, database: object, queue: Entity, messages: Sequence[Message], connection: Any) -> None:
        """Store messages, each chunk in one statement."""
        _check(connection)
        doing = f"store in {queue}"
        try:
            if connection not in self._known:
                cursor = await _run(connection, _sql.DATABASE, {})
                found = cursor.fetchone()
                if (await found if inspect.isawaitable(found) else found) != database:
                    raise OtherDatabase
                self._known.add(connection)
            place = {"path": queue.path, "kind": queue.kind.value, "notify": self._notify}
            for chunk in (messages,) if len(messages) == 1 else _chunks(messages):
                if len(chunk) == 1:
                    one = {**place, "header": self._headers.of(chunk[0]), "body": chunk[0].body}
                    stored = await _run(connection, _sql.STORE_ONE, one)
                else:
                    headers = [encode_header(message) for message in chunk]
                    many = {**place, "headers": headers, "bodies": [message.body for message in chunk]}
                    stored = await _run(connection, _sql.STORE, many)
                if not stored.rowcount:
                    raise NoSuchEntity
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise unusable(_READS) from error
        except (psycopg.Error, NoSuchEntity) as error:
            raise_failure(_errors.failure(error, doing))


class PostgresInbox(Inbox):
    """Keeps claims in the table ``pairmq.inbox`` of the consumer's database, which ``pairmq postgres migrate`` makes.

    The connections are of psycopg 3, or of SQLAlchemy or Django over it.
    """

    async def claim(self, key: str, window: float, connection: Any) -> bool:
        _check(connection)
        try:
            found = await _run(connection, _sql.CLAIM, {"key": key, "window": timedelta(seconds=window)})
            return bool(found.rowcount)
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise unusable(_READS) from error
        except psycopg.Error as error:
            raise_failure(_errors.failure(error, "claim a message"))


def _check(connection: Any) -> None:
    """Refuse what has no transaction that could be committed.

    Raises:
        TypeError: it is not a connection of psycopg 3.
        TransportError: it is closed, commits each statement by itself, or its transaction has failed.
    """
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise TypeError(f"{kind} is not a connection of psycopg 3: give one, or one of SQLAlchemy or Django over it")
    status = connection.pgconn.transaction_status
    if status in _UNFIT:
        raise unusable(_UNFIT[status])
    if status == TransactionStatus.IDLE and connection.autocommit:
        raise unusable("it commits each statement by itself: begin a transaction first")


async def _run(connection: Any, statement: Any, parameters: dict[str, Any]) -> Any:
    # Cursors of the driver's own kind: the caller's may put parameters into the text, or make anything of a row. Such a
    # cursor has all of its answer, and nothing on the server that would have to be closed.
    if isinstance(connection, psycopg.Connection):
        return psycopg.Cursor(connection, row_factory=tuple_row).execute(statement, parameters, binary=True)
    return await psycopg.AsyncCursor(connection, row_factory=tuple_row).execute(statement, parameters, binary=True)


def _chunks(messages: Sequence[Message]) -> list[list[Message]]:
    chunks: list[list[Message]] = [[]]
    size = 0
    for message in messages:
        if chunks[-1] and size + len(message.body) > _CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(message)
        size += len(message.body)
    return chunks
