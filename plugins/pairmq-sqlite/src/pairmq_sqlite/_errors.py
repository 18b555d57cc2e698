"""The one place where failures become failure kinds (SPEC 3.6): errors cross a boundary once.

Below, in `_database` and `_store`, SQLite raises its exceptions and PairMQ raises a few of its own. Above, only
`TransportError` is known. The first row of the table that matches decides. The question that each row answers is *what
should failover do about it*:

- **unavailable**: no client can use this broker now, and another one can take the message. Locked for longer than a
  client waits, a full disk, a damaged file, a directory that was unmounted: all the same to a sender.
- **refused**: it fails wherever it is sent, or the configuration has to be fixed. Diverting such a message would
  only hide the mistake. A file that belongs to another program is one. Its reason is *disabled*, as no message is at
  fault: a syphon waits, and dead-letters nothing.
- **busy** and **transient** are for brokers that ask clients to wait. SQLite does not throttle. `_worker` waits for the
  file's lock, within ``busy_timeout``; after that, the file is unavailable.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from pairmq.model import FailureKind, FailureReason, TransportError

_UNAVAILABLE, _REFUSED = FailureKind.UNAVAILABLE, FailureKind.REFUSED


class NoSuchEntity(Exception):
    """There is no queue, topic or subscription of that name."""


class OtherKind(Exception):
    """There is a topic where a queue was asked for, or a queue where a topic was."""


class LockEnded(Exception):
    """Another receiver may have the message by now."""


class FileFull(Exception):
    """The file holds as much as the URL lets it."""


class FileGone(Exception):
    """The file was deleted, moved or replaced while it was in use."""


class NotOurs(Exception):
    """The file is a database of another program."""


class LaterVersion(Exception):
    """The file was made by a later version of this package, or an application has set its ``user_version``."""


class NoSharedMemory(Exception):
    """The file system can't share memory between processes, which several processes at one file need."""


class ReadOnlyDisk(Exception):
    """The file is on a disk that is mounted read-only, as the kernel does with one that fails."""


class Failed(Exception):
    """How the worker hands a failure on; ``maybe_applied`` if it may have been done all the same."""

    def __init__(self, cause: BaseException, *, maybe_applied: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.maybe_applied = maybe_applied


@dataclass(frozen=True, slots=True)
class _Row:
    match: int | type[BaseException]  # a primary result code of SQLite, or an exception
    kind: FailureKind
    reason: FailureReason
    text: str | None = None  # what to say instead of the exception's own words


_TABLE: tuple[_Row, ...] = (
    _Row(NoSuchEntity, _REFUSED, FailureReason.NOT_FOUND, "there is no such queue, topic or subscription"),
    _Row(OtherKind, _REFUSED, FailureReason.ALREADY_EXISTS, "there is an entity of another kind by this name"),
    _Row(LockEnded, _REFUSED, FailureReason.LOCK_LOST, "its lock has ended, and it will be delivered again"),
    _Row(FileFull, _UNAVAILABLE, FailureReason.QUOTA, "the file has reached its max_megabytes"),
    _Row(FileGone, _UNAVAILABLE, FailureReason.CONNECTION, "the file was deleted, moved or replaced while in use"),
    _Row(NotOurs, _REFUSED, FailureReason.DISABLED, "the file is not a broker of this transport: name another one"),
    _Row(
        LaterVersion,
        _REFUSED,
        FailureReason.DISABLED,
        "a later version made this file: upgrade this package; or, if an application has set PRAGMA user_version, "
        "which is PairMQ's in this file: set it back to 1",
    ),
    _Row(NoSharedMemory, _REFUSED, FailureReason.DISABLED, "the file must be on a local disk, not on a network's"),
    _Row(ReadOnlyDisk, _UNAVAILABLE, FailureReason.OTHER, "the disk is mounted read-only"),
    _Row(sqlite3.SQLITE_BUSY, _UNAVAILABLE, FailureReason.TIMEOUT, "another process holds the file locked"),
    _Row(sqlite3.SQLITE_LOCKED, _UNAVAILABLE, FailureReason.TIMEOUT, "another process holds the file locked"),
    _Row(sqlite3.SQLITE_PROTOCOL, _UNAVAILABLE, FailureReason.TIMEOUT, "another process holds the file locked"),
    _Row(sqlite3.SQLITE_INTERRUPT, _UNAVAILABLE, FailureReason.CLOSED, "it was closed"),
    _Row(sqlite3.SQLITE_FULL, _UNAVAILABLE, FailureReason.QUOTA, "the disk is full"),
    # A disk that fails is often mounted read-only by the kernel: an outage. A file that *this user* may not write is
    # found out before SQLite opens it, and is a PermissionError.
    _Row(
        sqlite3.SQLITE_READONLY, _UNAVAILABLE, FailureReason.OTHER, "the file can't be written: is the disk read-only?"
    ),
    _Row(sqlite3.SQLITE_CANTOPEN, _UNAVAILABLE, FailureReason.CONNECTION, "the file can't be opened"),
    _Row(sqlite3.SQLITE_CORRUPT, _UNAVAILABLE, FailureReason.OTHER, "the file is damaged: restore it from a backup"),
    _Row(sqlite3.SQLITE_NOTADB, _REFUSED, FailureReason.DISABLED, "the file is not a database: name another one"),
    _Row(sqlite3.SQLITE_TOOBIG, _REFUSED, FailureReason.TOO_LARGE),
    _Row(PermissionError, _REFUSED, FailureReason.UNAUTHORIZED, "this user may not read and write the file"),
    _Row(FileNotFoundError, _UNAVAILABLE, FailureReason.CONNECTION, "there is no such file or directory"),
    # An unknown failure counts as an outage: a refusal would lose what failover can still save.
    _Row(BaseException, _UNAVAILABLE, FailureReason.OTHER),
)

_CERTAIN_COMMITS = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL))
_BROKEN = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN))


def failure(error: BaseException, doing: str) -> TransportError:
    """Make the transport error of what went wrong below, its cause set; to be raised or handed out. ``doing`` is what
    was tried, in words: ``send to orders``."""
    cause, in_doubt = (error.cause, error.maybe_applied) if isinstance(error, Failed) else (error, False)
    row = next(row for row in _TABLE if _fits(row, cause))
    text = row.text or str(cause) or type(cause).__name__
    made = TransportError(f"{doing}: {text}", row.kind, row.reason, maybe_applied=in_doubt)
    made.__cause__ = cause
    return made


def is_locked(error: BaseException) -> bool:
    """Return whether another connection holds the file's lock, so that nothing was done and waiting may help."""
    return code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def is_broken(error: BaseException) -> bool:
    """Return whether the connection must not be used again."""
    return isinstance(error, sqlite3.ProgrammingError) or code_of(error) in _BROKEN


def is_certain(error: BaseException) -> bool:
    """Return whether a COMMIT that failed this way has stored nothing for certain.

    A write or sync that the operating system reports as failed may have reached the disk in part or whole.
    """
    return code_of(error) in _CERTAIN_COMMITS


def code_of(error: BaseException) -> int | None:
    """SQLite's primary result code, without the extension in the higher bits; None for another exception."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _fits(row: _Row, error: BaseException) -> bool:
    return code_of(error) == row.match if isinstance(row.match, int) else isinstance(error, row.match)
