"""The one place where PostgreSQL's failures become failure kinds (SPEC 3.6).

The first row that matches the SQLSTATE decides. Rows that need an explanation:

- *transient*: the same call may succeed in a moment. Two transactions were in each other's way, or the server ends,
  starts, or has no connection to spare. One that lasts becomes *unavailable* above.
- A server that only reads (a standby, or a primary that was replaced) and a full disk are *unavailable*: another broker
  can take the message. The former's connection is dropped, so that the next call asks all hosts. So is one with an
  answer that is not in the table: it may be about the session, as where its prepared statements are gone or do not
  fit the tables any more, and would be given for as long as that is kept.
- A missing database or table is *refused*, with the command that makes it. Its reason is *disabled*, as no message is
  at fault: a syphon waits until an operator makes the tables, or brings them to this version, and dead-letters nothing.
- PgBouncer reports nearly all that goes wrong with a server behind it as a protocol violation (08P01): *unavailable*.
  What was under way when it lost the server is in doubt; what still waited for a server was never sent.
- A server that answered with an error did nothing. One that was shut down may have: it may wait for a standby after its
  own commit. One that did not answer may have, if the statement had been sent.
- libpq reports why it could not connect as text, in the server's language. What is not understood is *unavailable*.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from pairmq.model import FailureKind, FailureReason, TransportError

_UNAVAILABLE, _REFUSED = FailureKind.UNAVAILABLE, FailureKind.REFUSED
_TRANSIENT = FailureKind.TRANSIENT


class NoSuchEntity(Exception):
    """There is no queue, topic or subscription of that name."""


class OtherKind(Exception):
    """There is a topic where a queue was asked for, or a queue where a topic was."""


class LockEnded(Exception):
    """Another receiver may have the message by now."""


class SessionsOnly(Exception):
    """The queue is read one session at a time."""


class NoSessions(Exception):
    """The queue has no sessions to accept."""


class SchemaVersion(Exception):
    """The schema is of another version than this package needs."""


@dataclass(frozen=True, slots=True)
class _Row:
    match: str | type[BaseException]  # the beginning of an SQLSTATE, or an exception
    kind: FailureKind
    reason: FailureReason
    text: str | None = None  # used instead of the server's text
    in_doubt: bool = False  # it may have been done all the same
    elsewhere: bool = False  # a new connection may lead to a server that can do it


_NOT_ALLOWED = "the server does not let this user in, or do this: check user, password, pg_hba.conf and grants"
_NO_SCHEMA = "the database lacks PairMQ's tables, or has those of another version: run `pairmq postgres migrate`"

_TABLE: tuple[_Row, ...] = (
    _Row(NoSuchEntity, _REFUSED, FailureReason.NOT_FOUND, "there is no such queue, topic or subscription"),
    _Row(OtherKind, _REFUSED, FailureReason.ALREADY_EXISTS, "there is an entity of another kind by this name"),
    _Row(LockEnded, _REFUSED, FailureReason.LOCK_LOST, "its lock has ended, and it will be delivered again"),
    _Row(SessionsOnly, _REFUSED, FailureReason.NOT_SUPPORTED, "it requires sessions: read it one session at a time"),
    _Row(NoSessions, _REFUSED, FailureReason.NOT_SUPPORTED, "it has no sessions"),
    _Row(SchemaVersion, _REFUSED, FailureReason.DISABLED, _NO_SCHEMA),
    _Row("40", _TRANSIENT, FailureReason.OTHER),  # serialization failure, deadlock
    _Row("55P03", _TRANSIENT, FailureReason.OTHER),  # lock not available
    _Row("57P01", _TRANSIENT, FailureReason.CONNECTION, "the server is shutting down", in_doubt=True, elsewhere=True),
    _Row("57P02", _TRANSIENT, FailureReason.CONNECTION, "the server has crashed", in_doubt=True, elsewhere=True),
    _Row("57P03", _TRANSIENT, FailureReason.CONNECTION, "the server can't be connected to now"),
    _Row("53300", _TRANSIENT, FailureReason.CONNECTION, "the server has no connection to spare"),
    _Row("25006", _UNAVAILABLE, FailureReason.OTHER, "the server only reads: it is a standby now", elsewhere=True),
    _Row("53", _UNAVAILABLE, FailureReason.QUOTA, "the server has no room or memory left"),
    _Row("57014", _UNAVAILABLE, FailureReason.TIMEOUT, "the server cancelled the statement"),
    _Row("28", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row("42501", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row("3D000", _REFUSED, FailureReason.DISABLED, "the server has no such database: check the URL's path"),
    _Row("3F000", _REFUSED, FailureReason.DISABLED, _NO_SCHEMA),
    _Row("42P01", _REFUSED, FailureReason.DISABLED, _NO_SCHEMA),
    _Row("42703", _REFUSED, FailureReason.DISABLED, _NO_SCHEMA),
    _Row("54", _REFUSED, FailureReason.TOO_LARGE),
    _Row("22", _REFUSED, FailureReason.MALFORMED),
    _Row("08", _UNAVAILABLE, FailureReason.CONNECTION, in_doubt=True),
    _Row(TimeoutError, _UNAVAILABLE, FailureReason.TIMEOUT, "the server did not answer in time", in_doubt=True),
    _Row(psycopg.errors.ConnectionTimeout, _UNAVAILABLE, FailureReason.TIMEOUT, "the server did not answer in time"),
    # An unknown failure counts as an outage: a refusal would lose what failover can still save.
    _Row(BaseException, _UNAVAILABLE, FailureReason.CONNECTION, in_doubt=True),
)

# What libpq says of a connection that was refused by the server; its SQLSTATE is not reported.
_AT_LOGIN = (
    ("certificate file", "08001"),  # of ours: one that does not exist says nothing about the database
    ("too many clients", "53300"),
    ("remaining connection slots", "53300"),
    ("too many connections", "53300"),
    ("the database system is", "57P03"),
    ("authentication failed", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("pg_hba.conf rejects", "28000"),
    ("requires a valid client certificate", "28000"),
    ("no password supplied", "28P01"),
    ("is not permitted to log in", "28000"),
    ("permission denied for database", "42501"),
    ('role "', "28000"),
    ("does not exist", "3D000"),
)


# What PgBouncer says to a client whose statement it has given to no server.
_IN_LINE = ("query_wait_timeout", "server login has been failing", "cannot connect to server", "server login failed")


class NotSent(Exception):
    """There was no connection: nothing was sent. ``cause`` is the driver's exception."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def failure(error: BaseException, doing: str) -> TransportError:
    """Make the transport error of what went wrong below, its cause set; to be raised or handed out. ``doing`` is what
    was tried, in words: ``send to orders``."""
    cause = error.cause if isinstance(error, NotSent) else error
    row = _row(error)
    text = row.text or " ".join(str(cause).split()) or type(cause).__name__
    answered = _state(cause) is not None
    in_doubt = row.in_doubt and not isinstance(error, NotSent) and (not answered or _ended(row, text))
    made = TransportError(f"{doing}: {text}", row.kind, row.reason, maybe_applied=in_doubt)
    # The server's text about a refused login names the user.
    made.__cause__ = None if row.reason is FailureReason.UNAUTHORIZED else cause
    return made


def _ended(row: _Row, text: str) -> bool:
    """Whether an answer says that the session ended, with a commit that may have been under way."""
    return row.match in ("57P01", "57P02") or (row.match == "08" and not any(words in text for words in _IN_LINE))


def leads_elsewhere(error: BaseException) -> bool:
    """Return whether a failure is about the server, so that a new connection may lead to one that can do it."""
    return _row(error).elsewhere


def _row(error: BaseException) -> _Row:
    cause = error.cause if isinstance(error, NotSent) else error
    state = _state(cause)
    if state is None and isinstance(error, NotSent):
        state = next((code for words, code in _AT_LOGIN if words in str(cause)), None)
    if state is not None:
        fits = [row for row in _TABLE if isinstance(row.match, str) and state.startswith(row.match)]
        return fits[0] if fits else _Row(state, _UNAVAILABLE, FailureReason.OTHER, elsewhere=True)
    return next(row for row in _TABLE if not isinstance(row.match, str) and isinstance(cause, row.match))


def _state(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None
