"""The one place where redis-py's exceptions and Redis' error replies become failure kinds (SPEC 3.6).

The first row that matches decides. Rows that need an explanation:

- Out of memory (``OOM``) is *unavailable*, although the server answers: as with publishers that a memory
  alarm blocks, no client can send until there is room, and that is what the backlog is for. The same
  applies to ``MISCONF`` (it can't write to its disk), ``READONLY`` (it became a replica) and ``NOREPLICAS``.
- ``BUSY`` (a script is running) passes by itself: *busy*. Too many clients is *unavailable*: this process
  can't connect.
- What is wrong with the server or with an entity's keys, not with a message, is *disabled*: a syphon waits until that
  is fixed, and dead-letters nothing.
- An unknown reply counts as an outage, with an unknown outcome (SPEC 3.6): a refusal would lose what failover can still
  save, and a proxy replies by itself when it loses a server.
- A server that answered with an error did not do what was asked. One that did not answer may have, if any
  byte had been sent.
- Some replies are about the server and not about the call: it is no master (any more), or does not know this client.
  The address may lead to another server by now (a failover behind a DNS name or a virtual IP), and a connection that is
  kept would never find out (SPEC 14.2). These rows are marked ``elsewhere``. ``NOREPLICAS`` is among them: a master
  that lost its replicas may be the old one, cut off. ``OOM``, ``MISCONF`` and ``NOPERM`` are not: a new connection to
  the same server gets the same reply, and a server that was replaced in such a state ends its connections or
  answers ``READONLY``.
"""

from __future__ import annotations

from dataclasses import dataclass

from redis import exceptions as driver

from pairmq.model import FailureKind, FailureReason, TransportError

_UNAVAILABLE, _REFUSED = FailureKind.UNAVAILABLE, FailureKind.REFUSED
_TRANSIENT, _BUSY = FailureKind.TRANSIENT, FailureKind.BUSY


class NotSent(Exception):
    """There was no connection: nothing was written. ``cause`` is the driver's exception, ``where`` a cluster's node."""

    where = ""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Unanswered(Exception):
    """A command was written and its answer never came. ``cause`` is the driver's exception."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _Row:
    match: str | type[BaseException]  # the first words of the error reply, or the driver's exception
    kind: FailureKind
    reason: FailureReason
    text: str | None = None  # used instead of the server's text
    elsewhere: bool = False  # a new connection may lead to a server that can do it
    in_doubt: bool = False  # it may have been done all the same


_NOT_ALLOWED = "the broker does not let this user in, or do this: check user, password and ACL"
_NO_ENTITY = "the broker has no such queue, topic or subscription"
_OTHER_KIND = "there is an entity of another kind by this name"
_NOT_OURS = "a key of it holds something else: rename or delete the key pairmq:{path}:…, or use another database"
_NO_DATABASE = "the server has no database of this number: check the URL's path"
_CLUSTER = "this is a node of a Redis Cluster: write the URL with redis+cluster:// or rediss+cluster://"

# redis-py removes the code from those replies that it knows, which are matched by class; which these are depends on
# its version.
_ANSWERS: tuple[_Row, ...] = (
    # NOAUTH and WRONGPASS: a new connection logs in again.
    _Row(driver.AuthenticationError, _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED, elsewhere=True),
    _Row(driver.AuthorizationError, _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row(driver.NoPermissionError, _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row("ERR AUTH", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row("AUTH ", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    # From a client that has not logged in the server reads no long command, and this is its only reply.
    _Row("Protocol error: unauthenticated", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row("ACL failure", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row("The user executing the script", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row(driver.BusyLoadingError, _UNAVAILABLE, FailureReason.OTHER, elsewhere=True),
    _Row("max number of clients", _UNAVAILABLE, FailureReason.CONNECTION),
    _Row(driver.MasterDownError, _UNAVAILABLE, FailureReason.OTHER, elsewhere=True),
    _Row("MASTERDOWN", _UNAVAILABLE, FailureReason.OTHER, elsewhere=True),
    _Row(driver.ClusterDownError, _UNAVAILABLE, FailureReason.OTHER, elsewhere=True),
    _Row("CLUSTERDOWN", _UNAVAILABLE, FailureReason.OTHER, elsewhere=True),
    _Row(driver.TryAgainError, _TRANSIENT, FailureReason.OTHER),
    _Row("TRYAGAIN", _TRANSIENT, FailureReason.OTHER),
    _Row(driver.ReadOnlyError, _UNAVAILABLE, FailureReason.OTHER, elsewhere=True),
    _Row("READONLY", _UNAVAILABLE, FailureReason.OTHER, elsewhere=True),
    _Row(driver.OutOfMemoryError, _UNAVAILABLE, FailureReason.QUOTA),
    _Row("OOM", _UNAVAILABLE, FailureReason.QUOTA),
    _Row("MISCONF", _UNAVAILABLE, FailureReason.OTHER),
    _Row("NOREPLICAS", _UNAVAILABLE, FailureReason.OTHER, elsewhere=True),
    _Row("BUSY ", _BUSY, FailureReason.OTHER),
    _Row("UNKILLABLE", _BUSY, FailureReason.OTHER),
    _Row("NOENTITY", _REFUSED, FailureReason.NOT_FOUND, _NO_ENTITY),
    _Row("NOGROUP", _REFUSED, FailureReason.NOT_FOUND, _NO_ENTITY),
    _Row("no such key", _REFUSED, FailureReason.NOT_FOUND, _NO_ENTITY),
    _Row("UNBLOCKED the stream key no longer exists", _REFUSED, FailureReason.NOT_FOUND, _NO_ENTITY),
    # It became a replica, or an operator did it.
    _Row("UNBLOCKED", _UNAVAILABLE, FailureReason.CONNECTION, elsewhere=True),
    _Row("The XGROUP subcommand requires the key", _REFUSED, FailureReason.NOT_FOUND, _NO_ENTITY),
    _Row("OTHERKIND", _REFUSED, FailureReason.ALREADY_EXISTS, _OTHER_KIND),
    _Row("WRONGTYPE", _REFUSED, FailureReason.DISABLED, _NOT_OURS),
    _Row("Protocol error: invalid bulk length", _REFUSED, FailureReason.TOO_LARGE),
    _Row("Elements are too large", _REFUSED, FailureReason.TOO_LARGE),
    _Row("string exceeds maximum allowed size", _REFUSED, FailureReason.TOO_LARGE),
    _Row(driver.MovedError, _REFUSED, FailureReason.DISABLED, _CLUSTER, elsewhere=True),
    _Row("MOVED", _REFUSED, FailureReason.DISABLED, _CLUSTER, elsewhere=True),
    _Row(driver.AskError, _REFUSED, FailureReason.DISABLED, _CLUSTER, elsewhere=True),
    _Row("ASK ", _REFUSED, FailureReason.DISABLED, _CLUSTER, elsewhere=True),
    _Row("unknown command", _REFUSED, FailureReason.DISABLED),
    _Row("DB index is out of range", _REFUSED, FailureReason.DISABLED, _NO_DATABASE),
    _Row(driver.ResponseError, _UNAVAILABLE, FailureReason.OTHER, in_doubt=True),
)

# No reply at all: ResponseError is not among these.
_SILENCES: tuple[_Row, ...] = (
    _Row(driver.TimeoutError, _UNAVAILABLE, FailureReason.TIMEOUT, "the broker did not answer in time"),
    _Row(TimeoutError, _UNAVAILABLE, FailureReason.TIMEOUT, "the broker did not answer in time"),
    _Row(driver.ConnectionError, _UNAVAILABLE, FailureReason.CONNECTION),
    _Row(OSError, _UNAVAILABLE, FailureReason.CONNECTION),
    _Row(driver.RedisError, _UNAVAILABLE, FailureReason.CONNECTION),
    _Row(BaseException, _UNAVAILABLE, FailureReason.CONNECTION),
)


def is_answer(error: BaseException) -> bool:
    """Return whether this is the server's own reply, so that the connection's other replies can still be read."""
    if isinstance(error, driver.ConnectionError):  # redis-py maps some error replies to a subclass of ConnectionError
        refusals = driver.AuthenticationError | driver.AuthorizationError | driver.BusyLoadingError
        return isinstance(error, refusals) or "max number of clients" in str(error)
    return isinstance(error, driver.ResponseError)


def is_unknown_script(reply: object) -> bool:
    """Return whether the server does not know a script by this name, and therefore ran nothing."""
    return isinstance(reply, driver.NoScriptError)


def leads_elsewhere(reply: Exception) -> bool:
    """Return whether an error reply is about the server, so that a new connection may lead to one that can do it."""
    return is_answer(reply) and next(row for row in _ANSWERS if _fits(row, reply)).elsewhere


def failure(error: BaseException, doing: str) -> TransportError:
    """Make the transport error of what the connection reported, its cause set; to be raised or handed out."""
    cause = error.cause if isinstance(error, NotSent | Unanswered) else error
    answered = is_answer(cause)
    row = next(row for row in (_ANSWERS if answered else _SILENCES) if _fits(row, cause))
    text = row.text or str(cause) or type(cause).__name__
    if isinstance(error, NotSent) and error.where:
        text = f"{error.where}: {text}"
    in_doubt = row.in_doubt and not isinstance(error, NotSent) if answered else isinstance(error, Unanswered)
    made = TransportError(
        f"{doing}: {text}",
        row.kind,
        row.reason,
        maybe_applied=in_doubt,
    )
    # Redis' text about a refused user names the user, which must not be in PairMQ's errors.
    made.__cause__ = None if row.reason is FailureReason.UNAUTHORIZED else cause
    return made


def closed(doing: str, *, maybe_applied: bool = False) -> TransportError:
    text = f"{doing}: the connection was closed"
    return TransportError(text, _UNAVAILABLE, FailureReason.CLOSED, maybe_applied=maybe_applied)


def lock_lost(doing: str) -> TransportError:
    text = f"{doing}: its lock has ended, and it will be delivered again"
    return TransportError(text, _REFUSED, FailureReason.LOCK_LOST)


def not_found(doing: str) -> TransportError:
    """Make the error of an entity that does not exist."""
    text = f"{doing}: the broker has no such queue or topic"
    return TransportError(text, _REFUSED, FailureReason.NOT_FOUND)


def _fits(row: _Row, error: BaseException) -> bool:
    if isinstance(row.match, type):
        return isinstance(error, row.match)
    text = str(error)
    return text.startswith((row.match, f"ERR {row.match}"))
