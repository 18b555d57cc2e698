"""The file and its tables: opened, checked, and written in transactions that are on the disk when they are committed.

Everything here blocks and belongs to the thread that made the object; only `Database.interrupt` may come from another.
SQLite's own waiting for locks is off: `_worker` waits, because it knows who has lost patience meanwhile. All instants
and durations are whole microseconds, instants since 1970 in UTC.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from functools import partial
from pathlib import Path

from pairmq_sqlite._errors import FileFull, FileGone, LaterVersion, NoSharedMemory, NotOurs, ReadOnlyDisk

APPLICATION_ID = 0x506D5131
"""In the file's header; distinguishes PairMQ's files from those of other programs ("PmQ1")."""

_TABLES = (
    """
    CREATE TABLE entity (
        id INTEGER PRIMARY KEY,
        path TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        lock_duration INTEGER NOT NULL,
        max_delivery_count INTEGER,
        default_time_to_live INTEGER,
        dead_letter_on_expiration INTEGER NOT NULL,
        single_consumer INTEGER NOT NULL,
        settings TEXT NOT NULL  -- all requested settings, as JSON, to be returned on request
    )
    """,
    # What holds messages: two for each queue and each subscription, one of them for dead letters.
    """
    CREATE TABLE shelf (
        id INTEGER PRIMARY KEY,
        entity INTEGER NOT NULL REFERENCES entity ON DELETE CASCADE,
        subscription TEXT NOT NULL,  -- empty for a queue's own
        dead_letter INTEGER NOT NULL,
        UNIQUE (entity, subscription, dead_letter)
    )
    """,
    # What is neither scheduled nor locked has a free_at of 0, not the instant at which it became free: when the clock
    # is set back, that instant is in the future again, and the message would not be delivered until then.
    # AUTOINCREMENT: a number is never reused, so that a late settlement can't affect a newer message. The body is the
    # last column: SQLite reads a row from its beginning, and a large body is on pages of its own.
    """
    CREATE TABLE message (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        shelf INTEGER NOT NULL REFERENCES shelf ON DELETE CASCADE,
        enqueued_at INTEGER NOT NULL,
        free_at INTEGER NOT NULL,  -- not delivered before: it is scheduled, or locked until then
        lock TEXT,  -- who received it last, and in which of its receives; empty until then and when released
        expires_at INTEGER,
        deliveries INTEGER NOT NULL DEFAULT 0,
        reason TEXT,
        description TEXT,
        header TEXT NOT NULL,
        body BLOB NOT NULL
    )
    """,
    # A receiver walks along a shelf in order. With free_at in the index, what it must pass over costs it no row.
    "CREATE INDEX message_order ON message (shelf, number, free_at)",
    # Whose turn it is at a queue with one consumer is asked at every look.
    "CREATE INDEX message_locked ON message (shelf, free_at) WHERE lock IS NOT NULL",
    # For finding what has to be put away, without looking at what has not.
    "CREATE INDEX message_expiring ON message (shelf, expires_at) WHERE expires_at IS NOT NULL",
    "CREATE INDEX message_returned ON message (shelf, deliveries) WHERE deliveries > 0",
    # The probe writes here for real (see `Store.probe`).
    "CREATE TABLE probe (id INTEGER PRIMARY KEY, at INTEGER NOT NULL)",
    "INSERT INTO probe (id, at) VALUES (1, 0)",
)

STEPS = (_TABLES,)
"""What leads from each version to the next, beginning with an empty file. A change to the tables adds a step."""

VERSION = len(STEPS)

_HEADER_BYTES = 100

_text = partial(str, encoding="utf-8", errors="surrogateescape")
"""Reads any text. SQLite checks none, and one that is no UTF-8 would fail the whole look at its queue, each time; as it
is, no message can have such a text, so that it is malformed."""

_Identity = tuple[int, int]
"""Device and inode: which file it is, whatever it is called."""


class Database:
    """An open database file of PairMQ, created if it does not exist.

    Its directory must exist. It is limited to ``max_megabytes``, or by the disk. ``known`` is the file that was used
    last time: if it is gone, no new one is created in its place, which would be empty, and would take messages that no
    consumer finds when the old file is available again.
    """

    def __init__(self, path: Path, *, max_megabytes: int | None = None, known: _Identity | None = None) -> None:
        self._path = path
        self._max_megabytes = max_megabytes
        _prepare(path, make=known is None)
        self.identity = _identity(path)
        # Transactions are begun and ended by us alone, so the module's own are switched off.
        self.connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        self.connection.text_factory = _text
        try:
            self._check_whose()
            self._set_up()
            self._log = path.with_name(f"{path.name}-wal")
            self._log_identity = _identity(self._log)
        except BaseException:
            self.connection.close()
            raise

    def begin(self) -> None:
        """Begin a transaction that holds the write lock from the start: no other process can write in between.

        `FileGone` if SQLite would go on writing to a file or a log that is no longer at its path.
        """
        self.connection.execute("BEGIN IMMEDIATE")
        if _identity(self._path) != self.identity or _identity(self._log) != self._log_identity:
            raise FileGone

    def commit(self) -> None:
        """End the transaction; with ``synchronous=FULL`` it is on the disk then."""
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """End the transaction, if there is one, as if it had never been."""
        if self.connection.in_transaction:  # some failures end it by themselves
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def mark(self) -> None:
        """Set the point to which `undo` goes back."""
        self.connection.execute("SAVEPOINT mark")

    def undo(self) -> None:
        """Take back what was done since `mark`, and the mark with it."""
        self.connection.execute("ROLLBACK TO mark")
        self.keep()

    def keep(self) -> None:
        """Let what was done since `mark` stand, if the transaction is committed."""
        self.connection.execute("RELEASE mark")

    def check_room(self) -> None:
        """Check that it does not exceed its limit. Raises `FileFull`.

        Not left to SQLite (``max_page_count``): a limit for everything would forbid receiving and completing as well,
        which write a little, and a full file could never be emptied.
        """
        if self._max_megabytes is None:
            return
        pages = self._pragma("page_count") - self._pragma("freelist_count")
        if pages * self._pragma("page_size") > self._max_megabytes * 1_000_000:
            raise FileFull

    def interrupt(self) -> None:
        """End the statement that runs; for another thread, while it is open."""
        self.connection.interrupt()

    def close(self) -> None:
        """Close the file; the last connection to close moves what is in the log to the file itself."""
        self.rollback()
        with contextlib.suppress(sqlite3.Error):
            # An interrupt that found no statement to end would end that move: a new statement makes SQLite forget it.
            self.connection.execute("SELECT 1")
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()

    def _check_whose(self) -> None:
        """Look at a file before anything is written to it, as it may be another program's."""
        if 0 < self._path.stat().st_size < _HEADER_BYTES:  # which SQLite would take for an empty file
            raise NotOurs
        # In a transaction, so that it is one look: another process may be making the tables at this moment.
        self.connection.execute("BEGIN")
        owner, version, empty = self._pragma("application_id"), self._pragma("user_version"), self._is_empty()
        self.connection.execute("COMMIT")
        if owner == APPLICATION_ID and not 1 <= version <= VERSION:
            raise LaterVersion
        if owner != APPLICATION_ID and not empty:
            raise NotOurs

    def _is_empty(self) -> bool:
        in_use = self._pragma("application_id") or self._pragma("user_version")
        return not in_use and self.connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None

    def _set_up(self) -> None:
        execute = self.connection.execute
        # A write-ahead log: a commit is one write and one sync, and a killed process leaves nothing to be undone.
        if execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise NoSharedMemory
        execute("PRAGMA synchronous = FULL")  # without it a power failure loses what was confirmed (SPEC 3.4)
        execute("PRAGMA foreign_keys = ON")
        execute("PRAGMA trusted_schema = OFF")  # an untrusted file can't have functions called
        if self._pragma("user_version") < VERSION:
            self._make_tables()

    def _make_tables(self) -> None:
        """Make the tables of a new file, or bring those of an earlier version up to this one's."""
        self.connection.execute("BEGIN IMMEDIATE")
        if self._pragma("application_id") == APPLICATION_ID or self._is_empty():
            for step in STEPS[self._pragma("user_version") :]:  # none if another process was faster
                for statement in step:
                    self.connection.execute(statement)
            self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
            self.connection.execute(f"PRAGMA user_version = {VERSION:d}")
        self.commit()

    def _pragma(self, name: str) -> int:
        return int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])


def _prepare(path: Path, *, make: bool) -> None:
    """Create the file if it does not exist, and ensure that this user may use it.

    SQLite neither reports why it can't open a file, nor lets the permissions of a new one be chosen.
    """
    if make:
        # A new file is private to its owner from the start. SQLite gives its log the same permissions.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            _sync_directory(path.parent)
    if os.statvfs(path).f_flag & os.ST_RDONLY:  # an outage, not a missing right
        raise ReadOnlyDisk
    if not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)):
        raise PermissionError(path)


def _sync_directory(directory: Path) -> None:
    """Put a new file's name on the disk: its contents would be lost without it."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _identity(path: Path) -> _Identity:
    # Never by opening it: a process that closes any handle of a file loses all its locks on it, SQLite's too.
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise FileGone from None
    return status.st_dev, status.st_ino
