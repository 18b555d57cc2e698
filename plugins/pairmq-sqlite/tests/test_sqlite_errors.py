"""The one table: what each failure means for failover."""

from __future__ import annotations

import sqlite3

import pytest

from pairmq.model import FailureKind, FailureReason
from pairmq_sqlite import _errors
from pairmq_sqlite._errors import (
    Failed,
    FileFull,
    FileGone,
    LaterVersion,
    LockEnded,
    NoSharedMemory,
    NoSuchEntity,
    NotOurs,
    OtherKind,
)


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("SQLite's own words")
    error.sqlite_errorcode = code
    return error


EXTENDED_IOERR_FSYNC = sqlite3.SQLITE_IOERR | 4 << 8


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (NoSuchEntity(), FailureKind.REFUSED, FailureReason.NOT_FOUND),
        (OtherKind(), FailureKind.REFUSED, FailureReason.ALREADY_EXISTS),
        (LockEnded(), FailureKind.REFUSED, FailureReason.LOCK_LOST),
        (NotOurs(), FailureKind.REFUSED, FailureReason.DISABLED),
        (LaterVersion(), FailureKind.REFUSED, FailureReason.DISABLED),
        (NoSharedMemory(), FailureKind.REFUSED, FailureReason.DISABLED),
        (FileFull(), FailureKind.UNAVAILABLE, FailureReason.QUOTA),
        (FileGone(), FailureKind.UNAVAILABLE, FailureReason.CONNECTION),
        (PermissionError("x"), FailureKind.REFUSED, FailureReason.UNAUTHORIZED),
        (FileNotFoundError("x"), FailureKind.UNAVAILABLE, FailureReason.CONNECTION),
        (OSError(5, "Input/output error"), FailureKind.UNAVAILABLE, FailureReason.OTHER),
        (sqlite_error(sqlite3.SQLITE_BUSY), FailureKind.UNAVAILABLE, FailureReason.TIMEOUT),
        (sqlite_error(sqlite3.SQLITE_LOCKED), FailureKind.UNAVAILABLE, FailureReason.TIMEOUT),
        (sqlite_error(sqlite3.SQLITE_FULL), FailureKind.UNAVAILABLE, FailureReason.QUOTA),
        (sqlite_error(EXTENDED_IOERR_FSYNC), FailureKind.UNAVAILABLE, FailureReason.OTHER),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), FailureKind.UNAVAILABLE, FailureReason.CONNECTION),
        (sqlite_error(sqlite3.SQLITE_CORRUPT), FailureKind.UNAVAILABLE, FailureReason.OTHER),
        (sqlite_error(sqlite3.SQLITE_NOTADB), FailureKind.REFUSED, FailureReason.DISABLED),
        (sqlite_error(sqlite3.SQLITE_TOOBIG), FailureKind.REFUSED, FailureReason.TOO_LARGE),
        (sqlite_error(sqlite3.SQLITE_INTERRUPT), FailureKind.UNAVAILABLE, FailureReason.CLOSED),
        (ZeroDivisionError("a defect"), FailureKind.UNAVAILABLE, FailureReason.OTHER),
    ],
)
def test_each_failure_has_a_kind_and_a_reason(error, kind, reason):
    made = _errors.failure(error, "send to orders")
    assert (made.kind, made.reason, made.maybe_applied) == (kind, reason, False)
    assert str(made).startswith("send to orders: ")
    assert made.__cause__ is error


def test_a_file_system_that_turned_read_only_is_unavailable(tmp_path):
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    readonly = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with pytest.raises(sqlite3.Error) as caught:
        readonly.execute("INSERT INTO t VALUES (1)")
    readonly.close()
    assert _errors.failure(caught.value, "send").kind is FailureKind.UNAVAILABLE


def test_doubt_is_passed_on():
    error = Failed(sqlite_error(EXTENDED_IOERR_FSYNC), maybe_applied=True)
    assert _errors.failure(error, "send").maybe_applied


@pytest.mark.parametrize(
    ("code", "certain"),
    [
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_BUSY, True),
        (EXTENDED_IOERR_FSYNC, False),
        (sqlite3.SQLITE_CORRUPT, False),
    ],
)
def test_a_commit_whose_sync_failed_is_in_doubt(code, certain):
    assert _errors.is_certain(sqlite_error(code)) is certain
