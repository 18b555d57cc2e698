"""The outbox and the inbox: what is stored through a connection of the caller's, in the caller's transaction."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

from pairmq.model import Entity, Message
from pairmq.transport import Inbox, OtherDatabase, encode_header, raise_failure, unusable
from pairmq_sqlite import _errors
from pairmq_sqlite._errors import NoSuchEntity
from pairmq_sqlite._store import microseconds_of, now_us

_LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, from Python 3.12 on

_STORE = """
INSERT INTO message (shelf, enqueued_at, free_at, header, body)
SELECT s.id, :now, 0, :header, :body FROM shelf s JOIN entity e ON e.id = s.entity
WHERE e.path = :path AND e.kind = :kind AND s.subscription = '' AND NOT s.dead_letter
"""

_INBOX = (
    "CREATE TABLE IF NOT EXISTS pairmq_inbox (key TEXT PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS pairmq_inbox_until ON pairmq_inbox (until)",
)
_FORGET = """
DELETE FROM pairmq_inbox WHERE key IN (SELECT key FROM pairmq_inbox WHERE until <= :now ORDER BY until LIMIT 10)
"""
_CLAIM = "INSERT INTO pairmq_inbox (key, until) VALUES (:key, :until) ON CONFLICT DO NOTHING"


async def store(file: tuple[int, int], queue: Entity, messages: Sequence[Message], connection: Any) -> None:
    """Store messages in a queue; see `pairmq.transport.Transactional.store`. ``file`` is device and inode; the
    messages have no time-to-live and no schedule."""
    doing = f"store in {queue}"
    try:
        _check(connection)
        if await _file(connection) != file:
            raise OtherDatabase
        await _begin(connection)
        await _run(connection, "SAVEPOINT pairmq")
        try:
            for message in messages:
                values = {"now": now_us(), "path": queue.path, "kind": queue.kind.value, "body": message.body}
                if not await _run(connection, _STORE, {**values, "header": encode_header(message)}):
                    raise NoSuchEntity
        except BaseException:
            if connection.in_transaction:  # which SQLite has ended itself if the disk is full
                await _run(connection, "ROLLBACK TO pairmq")
                await _run(connection, "RELEASE pairmq")
            raise
        await _run(connection, "RELEASE pairmq")
    except (sqlite3.Error, NoSuchEntity) as error:
        raise_failure(_errors.failure(error, doing))


class SQLiteInbox(Inbox):
    """Keeps claims in the table ``pairmq_inbox`` of the consumer's SQLite database, which it makes if it is missing.

    The connections are of sqlite3 or aiosqlite, or of SQLAlchemy or Django over them.
    """

    async def claim(self, key: str, window: float, connection: Any) -> bool:
        try:
            _check(connection)
            await _rows(connection, "SELECT 1")
            await _begin(connection)
            now = now_us()
            try:
                # The first statement has to write: one that reads, as of Django's transactions, fixes what can be seen,
                # and if another process writes then, SQLite refuses to write at once instead of waiting.
                await _run(connection, _FORGET, {"now": now})
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                for statement in _INBOX:
                    await _run(connection, statement)
            return await _run(connection, _CLAIM, {"key": key, "until": now + microseconds_of(window)}) == 1
        except sqlite3.Error as error:
            raise_failure(_errors.failure(error, "claim a message"))


def _check(connection: Any) -> None:
    if not isinstance(connection, sqlite3.Connection) and not _is_aiosqlite(connection):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise TypeError(f"{kind} is not a connection to SQLite: give one of sqlite3, aiosqlite, SQLAlchemy or Django")
    try:
        legacy = getattr(connection, "autocommit", _LEGACY) == _LEGACY
        commits_itself = connection.isolation_level is None if legacy else True
        if commits_itself and not connection.in_transaction:
            raise unusable("it commits each statement by itself: begin a transaction first")
    except (sqlite3.ProgrammingError, ValueError) as error:
        raise unusable("it is closed") from error


async def _begin(connection: Any) -> None:
    """Begin a transaction, as the connection's first statement would, if it is in none.

    Another statement must have been awaited just before: what a cancelled call has left to aiosqlite's thread is done
    then, and may have begun or ended one.
    """
    _check(connection)
    if not connection.in_transaction:
        # By reading first it would miss what others write before it does, and fail.
        await _run(connection, "BEGIN IMMEDIATE")


async def _file(connection: Any) -> tuple[int, int] | None:
    """Device and inode of a connection's main database."""
    path = (await _rows(connection, "PRAGMA database_list"))[0][2]
    try:
        status = os.stat(path)
    except OSError:
        return None  # in memory, or deleted
    return status.st_dev, status.st_ino


async def _rows(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(statement)
    cursor = cursor if isinstance(connection, sqlite3.Connection) else await cursor
    cursor.row_factory = None  # the caller's may make anything of a row
    rows = cursor.fetchall()
    return list(rows if isinstance(connection, sqlite3.Connection) else await rows)


async def _run(connection: Any, statement: str, values: dict[str, Any] | None = None) -> int:
    cursor = connection.execute(statement, values or {})
    cursor = cursor if isinstance(connection, sqlite3.Connection) else await cursor
    return int(cursor.rowcount)


def _is_aiosqlite(connection: object) -> bool:
    module = sys.modules.get("aiosqlite")
    return module is not None and isinstance(connection, module.Connection)
