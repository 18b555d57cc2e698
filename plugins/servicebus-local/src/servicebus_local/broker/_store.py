"""The store of the broker, in a file.

It sees integers and bytes only, and groups that are whole or not there. It is SQLite with a
write-ahead log, synced at every commit. Every group is one transaction, so a process that is killed at any instant
leaves whole groups only (SQLite documentation: "Atomic Commit In SQLite", "Write-Ahead Logging"). Each row carries a
checksum of its own, for SQLite does not notice when a page changes on the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar
from zlib import crc32

FILE_NAME = "broker.sqlite3"
_VERSION = 1
_MARK = 0x70614D51
"""In the file's header, so that no other database is taken for one of ours."""
_BUSY_SECONDS = 5.0

_TABLES = """
CREATE TABLE entity (identity INTEGER PRIMARY KEY, record BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE message (key INTEGER PRIMARY KEY, source INTEGER NOT NULL, checksum INTEGER NOT NULL, meta BLOB NOT NULL,
    content BLOB NOT NULL);
CREATE TABLE number (source INTEGER PRIMARY KEY, following INTEGER NOT NULL);
CREATE TABLE session (source INTEGER NOT NULL, session BLOB NOT NULL, at INTEGER NOT NULL, checksum INTEGER NOT NULL,
    state BLOB NOT NULL, PRIMARY KEY (source, session)) WITHOUT ROWID;
CREATE TABLE duplicate (entity INTEGER NOT NULL, message BLOB NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (entity, message)) WITHOUT ROWID;
"""

_T = TypeVar("_T")


class StoreError(Exception):
    """The store cannot be read or written; the text names the file."""


@dataclass(frozen=True, slots=True)
class Changes:
    """One group of changes, to be applied in this order and wholly; instants are microseconds of unix time."""

    # Identity and record; `None` removes it with its sessions and duplicate history.
    entities: list[tuple[int, bytes | None]] = field(default_factory=list)
    # Key, source, what is known of the message, content; replaces what has the key.
    messages: list[tuple[int, int, bytes, bytes]] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    # Source and the first sequence number that may not have been given away.
    numbers: list[tuple[int, int]] = field(default_factory=list)
    # Source, session id, instant, state; `None` removes it.
    sessions: list[tuple[int, bytes, int, bytes | None]] = field(default_factory=list)
    # Entity and the instant before which its duplicate history is dropped.
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    duplicates: list[tuple[int, bytes, int]] = field(default_factory=list)  # entity, message id, instant

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that a store holds, as in `Changes`; messages in the order of their keys."""

    entities: list[tuple[int, bytes]] = field(default_factory=list)
    messages: list[tuple[int, int, bytes, bytes]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    sessions: list[tuple[int, bytes, int, bytes]] = field(default_factory=list)
    duplicates: list[tuple[int, bytes, int]] = field(default_factory=list)


class SqliteStore:
    """Keeps everything in one file of a directory (SQLite documentation: "Write-Ahead Logging").

    ``scalar_types``: subclasses of int, float, str and bytes that values read back shall have again. For
    ``busy_timeout`` seconds it waits for a process that is just about to end.
    """

    def __init__(
        self, directory: Path | str, scalar_types: Iterable[type] = (), *, busy_timeout: float = _BUSY_SECONDS
    ) -> None:
        self._busy_timeout = busy_timeout
        self.path = Path(directory) / FILE_NAME
        self.scalar_types = tuple(scalar_types)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._error(error) from error
        self._db = self._guard(self._connect)
        try:
            self._guard(self._open)
        except StoreError:
            self._db.close()
            raise

    def load(self) -> Loaded:
        return self._guard(self._load)

    def write(self, changes: Changes) -> None:
        """Makes a group durable: it is when this returns, and nothing of it is there when this raises."""
        self._guard(lambda: self._write(changes))

    def damaged(self, what: str) -> StoreError:
        """The error for content that was read but makes no sense, which names the file."""
        return StoreError(f"the store {self.path} is damaged: {what}")

    def close(self) -> None:
        """Closes the file; everything written stays. Closing twice is no error."""
        self._guard(self._db.close)

    def _connect(self) -> sqlite3.Connection:
        # Transactions are begun and ended here, by hand. Only one thread at a time uses the store, whichever it is.
        return sqlite3.connect(self.path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)

    def _open(self) -> None:
        db = self._db
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        mark, version = self._pragma("application_id"), self._pragma("user_version")
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and mark != _MARK:
            raise StoreError(f"{self.path} is not a store of this broker")
        if version > _VERSION:
            raise StoreError(f"the store {self.path} has version {version}, and this program knows {_VERSION}")
        mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(f"the store {self.path} is on a file system without write-ahead logging")
        db.execute("PRAGMA synchronous=FULL")
        if tables:
            return
        db.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            if statement.strip():
                db.execute(statement)
        db.execute(f"PRAGMA application_id={_MARK}")
        db.execute(f"PRAGMA user_version={_VERSION}")
        db.execute("COMMIT")

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _load(self) -> Loaded:
        db = self._db
        entities = []
        for identity, checksum, record in db.execute("SELECT identity, checksum, record FROM entity"):
            self._check(checksum, f"entity {identity}", record)
            entities.append((identity, record))
        messages = []
        rows = db.execute("SELECT key, source, checksum, meta, content FROM message ORDER BY key")
        for key, source, checksum, meta, content in rows:
            self._check(checksum, f"message {key}", meta, content)
            messages.append((key, source, meta, content))
        sessions = []
        for source, session, at, checksum, state in db.execute(
            "SELECT source, session, at, checksum, state FROM session"
        ):
            self._check(checksum, "a session", session, state)
            sessions.append((source, session, at, state))
        numbers = dict(db.execute("SELECT source, following FROM number").fetchall())
        duplicates = db.execute("SELECT entity, message, at FROM duplicate").fetchall()
        return Loaded(entities, messages, numbers, sessions, duplicates)

    def _check(self, checksum: object, what: str, *blobs: object) -> None:
        value = 0
        for blob in blobs:
            if not isinstance(blob, bytes):
                raise self.damaged(f"{what} holds something other than bytes")
            value = crc32(blob, value)
        if value != checksum:
            raise self.damaged(f"the checksum of {what} is wrong")

    def _write(self, changes: Changes) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            self._apply(changes)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _apply(self, changes: Changes) -> None:
        db = self._db
        for identity, record in changes.entities:
            if record is None:
                db.execute("DELETE FROM entity WHERE identity = ?", (identity,))
                db.execute("DELETE FROM duplicate WHERE entity = ?", (identity,))
                sources = (2 * identity, 2 * identity + 1)
                db.execute("DELETE FROM session WHERE source IN (?, ?)", sources)
                db.execute("DELETE FROM number WHERE source IN (?, ?)", sources)
            else:
                db.execute("INSERT OR REPLACE INTO entity VALUES (?, ?, ?)", (identity, record, crc32(record)))
        db.executemany(
            "INSERT OR REPLACE INTO message VALUES (?, ?, ?, ?, ?)",
            [
                (key, source, crc32(content, crc32(meta)), meta, content)
                for key, source, meta, content in changes.messages
            ],
        )
        db.executemany("DELETE FROM message WHERE key = ?", [(key,) for key in changes.removed])
        db.executemany("INSERT OR REPLACE INTO number VALUES (?, ?)", changes.numbers)
        for source, session, at, state in changes.sessions:
            if state is None:
                db.execute("DELETE FROM session WHERE source = ? AND session = ?", (source, session))
            else:
                row = (source, session, at, crc32(state, crc32(session)), state)
                db.execute("INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?)", row)
        db.executemany("DELETE FROM duplicate WHERE entity = ? AND at < ?", changes.forgotten)
        db.executemany("INSERT OR REPLACE INTO duplicate VALUES (?, ?, ?)", changes.duplicates)

    def _guard(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return StoreError(f"the store {self.path} is in use by another process")
        return StoreError(f"the store {self.path} cannot be used: {error}")
