"""The one place where aio-pika's exceptions and RabbitMQ's replies become failure kinds (SPEC 3.6).

The first row that matches decides. Rows that need an explanation:

- 404 has two meanings: there is no such queue, or its node is down, its leader gone, its process stopped. Only the
  first says anything about the message; the others are *unavailable*.
- A certificate that is not the broker's is *unavailable*: the server is not the broker, nothing was sent, and the
  backlog keeps the messages until it is fixed.
- A virtual host that is missing or closed to the user is *refused* like a wrong password: no message is at fault, so
  the syphon waits and dead-letters nothing (reasons *disabled* and *unauthorized*). So is one that is being deleted:
  no other has lost its default exchange, ``''``.
- Where the limit of connections is reached is *unavailable*, though RabbitMQ calls it "refused for user": others have
  taken the room, and may leave it.
- When a channel is closed with publishes in flight, all of them are in doubt, except one that was alone on it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from aiormq import exceptions as driver

from pairmq.model import FailureKind, FailureReason, TransportError

_UNAVAILABLE, _REFUSED = FailureKind.UNAVAILABLE, FailureKind.REFUSED


@dataclass(frozen=True, slots=True)
class _Row:
    match: type[BaseException]
    words: str  # contained in the broker's text; "" for any
    kind: FailureKind
    reason: FailureReason
    text: str | None = None  # used instead of the broker's text


_NOT_ALLOWED = "the broker does not let this user in, or do this: check user, password and permissions"
_NO_ROOM = "the broker lets no more connections or channels of this user or virtual host in: raise its limit"
_NO_VHOST = "the broker has no such virtual host, or it is closed: check the URL's path"

_ROWS: tuple[_Row, ...] = (
    # who we are
    _Row(driver.ProbableAuthenticationError, "", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row(driver.AuthenticationError, "", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row(driver.ChannelAccessRefused, "", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    # "access to vhost '/' refused for user 'app': connection limit (10) is reached": it may let this user in later.
    _Row(driver.ConnectionNotAllowed, "limit (", _UNAVAILABLE, FailureReason.QUOTA, _NO_ROOM),
    _Row(driver.ConnectionNotAllowed, "limit of (", _UNAVAILABLE, FailureReason.QUOTA, _NO_ROOM),
    _Row(driver.ConnectionClosed, "' is down", _UNAVAILABLE, FailureReason.OTHER, "the virtual host is down"),
    _Row(driver.ConnectionNotAllowed, "refused for user", _REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED),
    _Row(driver.ConnectionNotAllowed, "vhost", _REFUSED, FailureReason.DISABLED, _NO_VHOST),
    # where to
    _Row(driver.ChannelNotFoundEntity, "no exchange ''", _REFUSED, FailureReason.DISABLED, _NO_VHOST),
    _Row(driver.ChannelNotFoundEntity, "no queue", _REFUSED, FailureReason.NOT_FOUND),
    _Row(driver.ChannelNotFoundEntity, "no exchange", _REFUSED, FailureReason.NOT_FOUND),
    _Row(driver.ChannelNotFoundEntity, "", _UNAVAILABLE, FailureReason.OTHER),
    _Row(driver.ChannelLockedResource, "", _REFUSED, FailureReason.DISABLED),
    # what
    _Row(driver.ChannelPreconditionFailed, "message size", _REFUSED, FailureReason.TOO_LARGE),
    _Row(driver.ChannelPreconditionFailed, "unknown delivery tag", _REFUSED, FailureReason.LOCK_LOST),
    _Row(driver.ChannelPreconditionFailed, "acknowledgement", _UNAVAILABLE, FailureReason.CLOSED),
    _Row(driver.ChannelPreconditionFailed, "inequivalent", _REFUSED, FailureReason.ALREADY_EXISTS),
    _Row(driver.ChannelPreconditionFailed, "", _REFUSED, FailureReason.MALFORMED),
    _Row(driver.ChannelClosed, "CONTENT_TOO_LARGE", _REFUSED, FailureReason.TOO_LARGE),
    _Row(driver.ChannelClosed, "NOT_IMPLEMENTED", _REFUSED, FailureReason.NOT_SUPPORTED),
    # whether at all
    _Row(ssl.SSLCertVerificationError, "", _UNAVAILABLE, FailureReason.CONNECTION),
    _Row(TimeoutError, "", _UNAVAILABLE, FailureReason.TIMEOUT, "the broker did not answer in time"),
    _Row(asyncio.IncompleteReadError, "", _UNAVAILABLE, FailureReason.CONNECTION, "the broker closed the connection"),
    _Row(
        driver.IncompatibleProtocolError,
        "",
        _UNAVAILABLE,
        FailureReason.CONNECTION,
        "what answers there does not speak AMQP 0-9-1",
    ),
    # what the driver says of its own objects, which names the user
    _Row(RuntimeError, "", _UNAVAILABLE, FailureReason.CONNECTION, "the connection was closed"),
    _Row(BaseException, "", _UNAVAILABLE, FailureReason.CONNECTION),
)


class Unsent(Exception):
    """There was no connection to write to: certainly nothing was done. ``cause`` is the driver's exception."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def failure(error: BaseException, doing: str, *, maybe_applied: bool = True) -> TransportError:
    """Make the transport error of what the driver reported, its cause set.

    It may have been applied unless the error itself is certain: an `Unsent`, or the broker's refusal.
    """
    if isinstance(error, TransportError):
        return error
    cause = error.cause if isinstance(error, Unsent) else error
    if isinstance(cause, TransportError):
        return cause
    words = _words(cause)
    row = next(row for row in _ROWS if isinstance(cause, row.match) and row.words in words)
    certain = isinstance(error, Unsent) or row.kind is _REFUSED
    made = TransportError(
        f"{doing}: {row.text or words}", row.kind, row.reason, maybe_applied=maybe_applied and not certain
    )
    # RabbitMQ's text about a refused user names the user, which must not be in PairMQ's errors.
    made.__cause__ = None if row.reason is FailureReason.UNAUTHORIZED or "for user '" in words else cause
    return made


def closed(doing: str, *, maybe_applied: bool = False) -> TransportError:
    text = f"{doing}: the connection was closed"
    return TransportError(text, _UNAVAILABLE, FailureReason.CLOSED, maybe_applied=maybe_applied)


def blocked(doing: str) -> TransportError:
    """Make the error of a publish that was not written, because the broker does not read what publishers write."""
    text = f"{doing}: the broker blocks publishers (a memory or disk alarm)"
    return TransportError(text, _UNAVAILABLE, FailureReason.QUOTA)


def lock_lost(doing: str) -> TransportError:
    text = f"{doing}: its lock has ended, and it will be delivered again"
    return TransportError(text, _REFUSED, FailureReason.LOCK_LOST)


def refused(doing: str, text: str, reason: FailureReason) -> TransportError:
    """Make the error of something that certainly was not done and can't be."""
    return TransportError(f"{doing}: {text}", _REFUSED, reason)


def _words(error: BaseException) -> str:
    words = " ".join(str(argument) for argument in error.args if isinstance(argument, str) and argument)
    return words or str(error) or type(error).__name__
