"""What failover should do about each failure."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from pairmq.model import FailureKind, FailureReason
from pairmq_postgres._errors import NotSent, SchemaVersion, failure, leads_elsewhere

TRANSIENT, UNAVAILABLE, REFUSED = FailureKind.TRANSIENT, FailureKind.UNAVAILABLE, FailureKind.REFUSED


@pytest.mark.parametrize(
    ("error", "kind", "reason", "maybe_applied"),
    [
        (errors.SerializationFailure(), TRANSIENT, FailureReason.OTHER, False),
        (errors.DeadlockDetected(), TRANSIENT, FailureReason.OTHER, False),
        (errors.LockNotAvailable(), TRANSIENT, FailureReason.OTHER, False),
        (errors.AdminShutdown(), TRANSIENT, FailureReason.CONNECTION, True),
        (errors.CannotConnectNow(), TRANSIENT, FailureReason.CONNECTION, False),
        (errors.TooManyConnections(), TRANSIENT, FailureReason.CONNECTION, False),
        (errors.ReadOnlySqlTransaction(), UNAVAILABLE, FailureReason.OTHER, False),
        (errors.DiskFull(), UNAVAILABLE, FailureReason.QUOTA, False),
        (errors.OutOfMemory(), UNAVAILABLE, FailureReason.QUOTA, False),
        (errors.QueryCanceled(), UNAVAILABLE, FailureReason.TIMEOUT, False),
        (errors.IoError(), UNAVAILABLE, FailureReason.OTHER, False),
        (errors.InsufficientPrivilege(), REFUSED, FailureReason.UNAUTHORIZED, False),
        (errors.InvalidPassword(), REFUSED, FailureReason.UNAUTHORIZED, False),
        (errors.UndefinedTable(), REFUSED, FailureReason.DISABLED, False),
        (errors.UndefinedColumn(), REFUSED, FailureReason.DISABLED, False),
        (errors.InvalidCatalogName(), REFUSED, FailureReason.DISABLED, False),
        (SchemaVersion(), REFUSED, FailureReason.DISABLED, False),
        (errors.ProtocolViolation("server conn crashed?"), UNAVAILABLE, FailureReason.CONNECTION, True),
        (errors.ProtocolViolation("query_wait_timeout"), UNAVAILABLE, FailureReason.CONNECTION, False),
        (
            errors.ProtocolViolation("server login has been failing, try again later (server_login_retry)"),
            UNAVAILABLE,
            FailureReason.CONNECTION,
            False,
        ),
        (errors.ConnectionFailure("the server is lost"), UNAVAILABLE, FailureReason.CONNECTION, True),
        (errors.ProgramLimitExceeded(), REFUSED, FailureReason.TOO_LARGE, False),
        (psycopg.OperationalError("the connection is lost"), UNAVAILABLE, FailureReason.CONNECTION, True),
        (NotSent(psycopg.OperationalError("connection refused")), UNAVAILABLE, FailureReason.CONNECTION, False),
        (NotSent(OSError("no route")), UNAVAILABLE, FailureReason.CONNECTION, False),
        (
            NotSent(psycopg.OperationalError('root certificate file "/tls/ca.pem" does not exist')),
            UNAVAILABLE,
            FailureReason.CONNECTION,
            False,
        ),
        (
            NotSent(psycopg.OperationalError('FATAL:  database "queues" does not exist')),
            REFUSED,
            FailureReason.DISABLED,
            False,
        ),
        (
            NotSent(psycopg.OperationalError("FATAL:  sorry, too many clients already")),
            TRANSIENT,
            FailureReason.CONNECTION,
            False,
        ),
        (
            NotSent(psycopg.OperationalError("FATAL:  the database system is starting up")),
            TRANSIENT,
            FailureReason.CONNECTION,
            False,
        ),
    ],
)
def test_failure_has_a_kind(error, kind, reason, maybe_applied):
    made = failure(error, "send to orders")
    assert (made.kind, made.reason, made.maybe_applied) == (kind, reason, maybe_applied)


def test_missing_table_names_the_command_that_makes_it():
    assert "run `pairmq postgres migrate`" in str(failure(errors.UndefinedTable(), "send to orders"))


def test_connection_is_dropped_when_its_server_only_reads():
    assert leads_elsewhere(errors.ReadOnlySqlTransaction())
    assert not leads_elsewhere(errors.DiskFull())


@pytest.mark.parametrize("error", [errors.InvalidSqlStatementName(), errors.FeatureNotSupported()])
def test_connection_is_dropped_with_an_answer_that_may_be_about_its_session(error):
    """Its prepared statements are gone, or the plan does not fit a changed table: it would answer so forever."""
    assert leads_elsewhere(error)
    assert failure(error, "send to orders").kind is UNAVAILABLE
