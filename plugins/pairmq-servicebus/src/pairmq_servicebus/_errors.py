"""The one place where the client's exceptions and the service's conditions become failure kinds (SPEC 3.6).

What decides is the AMQP condition (Service Bus documentation: AMQP errors in Azure Service Bus), else the status of a
management response, else the exception's class. The client's own opinion of what may be retried is not used: it
contradicts its class names. Rows that need an explanation:

- An unknown condition is *unavailable*: taken for a refusal, it would lose what failover can still save.
- *Refused* and *busy* are certain only as the answer to the transfer itself. The same condition on a link that was
  detached during a send says nothing about the message, unless it is its size, or there is no such entity.
- A full entity is *unavailable*, as with the other products: no message fits until consumers make room, and that
  is what the backlog is for. As the answer to a transfer it is certain: the message was not taken.
- The service's own time-out and internal error leave a send in doubt, even as answers.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Final

from azure.core import exceptions as core
from azure.servicebus import exceptions as client

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq_servicebus import _private

_BUSY, _REFUSED, _UNAVAILABLE = FailureKind.BUSY, FailureKind.REFUSED, FailureKind.UNAVAILABLE

_NOT_ALLOWED = "the namespace does not let this key or identity in, or not do this: check key and claims"
_GONE = "its lock has ended, and it will be delivered again"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a condition means, and what to say instead of the service's words."""

    kind: FailureKind
    reason: FailureReason
    text: str | None = None


_CONNECTION = Verdict(_UNAVAILABLE, FailureReason.CONNECTION)
_UNAUTHORIZED = Verdict(_REFUSED, FailureReason.UNAUTHORIZED, _NOT_ALLOWED)
_NOT_FOUND = Verdict(_REFUSED, FailureReason.NOT_FOUND)
_LOCK_LOST = Verdict(_REFUSED, FailureReason.LOCK_LOST, _GONE)
_MALFORMED = Verdict(_REFUSED, FailureReason.MALFORMED)
_NOT_SUPPORTED = Verdict(_REFUSED, FailureReason.NOT_SUPPORTED)
_INTERNAL = Verdict(_UNAVAILABLE, FailureReason.OTHER)
_TIMEOUT = Verdict(_UNAVAILABLE, FailureReason.TIMEOUT)
_THROTTLED = Verdict(_BUSY, FailureReason.OTHER)
_EXISTS = Verdict(_REFUSED, FailureReason.ALREADY_EXISTS)

CONDITIONS: Final[dict[str, Verdict]] = {
    # who we are
    "amqp:unauthorized-access": _UNAUTHORIZED,
    "com.microsoft:auth-failed": _UNAUTHORIZED,
    # where to
    "amqp:not-found": _NOT_FOUND,
    "amqp:resource-deleted": _NOT_FOUND,
    "com.microsoft:message-not-found": _NOT_FOUND,
    "com.microsoft:session-not-found": _NOT_FOUND,
    "com.microsoft:entity-disabled": Verdict(_REFUSED, FailureReason.DISABLED),
    "com.microsoft:entity-already-exists": _EXISTS,
    "amqp:not-allowed": _NOT_SUPPORTED,
    "amqp:not-implemented": _NOT_SUPPORTED,
    # what
    "amqp:link:message-size-exceeded": Verdict(_REFUSED, FailureReason.TOO_LARGE),
    "com.microsoft:argument-error": _MALFORMED,
    "com.microsoft:argument-out-of-range": _MALFORMED,
    "amqp:invalid-field": _MALFORMED,
    "amqp:decode-error": _MALFORMED,
    "amqp:precondition-failed": Verdict(_REFUSED, FailureReason.OTHER),
    "com.microsoft:precondition-failed": Verdict(_REFUSED, FailureReason.OTHER),
    # locks
    "com.microsoft:message-lock-lost": _LOCK_LOST,
    "com.microsoft:session-lock-lost": Verdict(_REFUSED, FailureReason.LOCK_LOST, "the lock of its session has ended"),
    "com.microsoft:session-cannot-be-locked": Verdict(_BUSY, FailureReason.OTHER, "another receiver has the session"),
    "amqp:resource-locked": _THROTTLED,
    # how much
    "amqp:resource-limit-exceeded": Verdict(_UNAVAILABLE, FailureReason.QUOTA),
    "com.microsoft:server-busy": _THROTTLED,
    # whether at all
    "com.microsoft:timeout": _TIMEOUT,
    "com.microsoft:operation-cancelled": _INTERNAL,
    "com.microsoft:container-close": _CONNECTION,
    "amqp:internal-error": _INTERNAL,
    "amqp:link:detach-forced": _CONNECTION,
    "amqp:link:stolen": _CONNECTION,
    "amqp:link:redirect": _CONNECTION,
    "amqp:link:transfer-limit-exceeded": _CONNECTION,
    "amqp:connection:forced": _CONNECTION,
    "amqp:connection:redirect": _CONNECTION,
    "amqp:connection:framing-error": _CONNECTION,
    "amqp:session:window-violation": _CONNECTION,
    "amqp:session:errant-link": _CONNECTION,
    "amqp:session:handle-in-use": _CONNECTION,
    "amqp:session:unattached-handle": _CONNECTION,
    "amqp:illegal-state": _CONNECTION,
    "amqp:frame-size-too-small": _CONNECTION,
    # the client's own, of failures that it saw itself
    "amqp:socket-error": _CONNECTION,
    "amqp:unknown-error": _CONNECTION,
    "amqp:vendor-error": _CONNECTION,
    "amqp:client-error": _CONNECTION,
}
"""What each condition means."""

STATUSES: Final[dict[int, Verdict]] = {
    400: _MALFORMED,
    401: _UNAUTHORIZED,
    403: _UNAUTHORIZED,
    404: _NOT_FOUND,
    408: _TIMEOUT,
    409: _EXISTS,
    410: _LOCK_LOST,
    413: Verdict(_REFUSED, FailureReason.TOO_LARGE),
    429: _THROTTLED,
    503: _THROTTLED,
    504: _TIMEOUT,
}
"""What a status of the administration, or of a management answer without a condition, means; other 5xx are failures of
the service, and *unavailable*, other 4xx are *refused*."""

_CLASSES: Final[tuple[tuple[type[BaseException], Verdict], ...]] = (
    (client.OperationTimeoutError, _TIMEOUT),
    (client.MessageLockLostError, _LOCK_LOST),
    (client.MessageAlreadySettled, Verdict(_REFUSED, FailureReason.LOCK_LOST, "it was settled before")),
    (client.SessionLockLostError, CONDITIONS["com.microsoft:session-lock-lost"]),
    (client.SessionCannotBeLockedError, CONDITIONS["com.microsoft:session-cannot-be-locked"]),
    (client.MessageSizeExceededError, CONDITIONS["amqp:link:message-size-exceeded"]),
    (client.ServiceBusQuotaExceededError, CONDITIONS["amqp:resource-limit-exceeded"]),
    (client.ServiceBusServerBusyError, _THROTTLED),
    (client.MessagingEntityDisabledError, CONDITIONS["com.microsoft:entity-disabled"]),
    (client.MessagingEntityNotFoundError, _NOT_FOUND),
    (client.MessageNotFoundError, _NOT_FOUND),
    (client.MessagingEntityAlreadyExistsError, _EXISTS),
    (client.ServiceBusAuthorizationError, _UNAUTHORIZED),
    (client.ServiceBusAuthenticationError, _UNAUTHORIZED),
    (client.ServiceBusConnectionError, _CONNECTION),
    (client.ServiceBusCommunicationError, _CONNECTION),
    (core.ClientAuthenticationError, _UNAUTHORIZED),
    (core.ResourceNotFoundError, _NOT_FOUND),
    (core.ResourceExistsError, _EXISTS),
    (core.ServiceRequestTimeoutError, _TIMEOUT),
    (core.ServiceResponseTimeoutError, _TIMEOUT),
    (TimeoutError, Verdict(_UNAVAILABLE, FailureReason.TIMEOUT, "the service did not answer in time")),
    # Who answers there is not the namespace: nothing was sent, and the backlog keeps the messages until it is fixed.
    (ssl.SSLCertVerificationError, _CONNECTION),
)

# Said by the client, whatever failed: the status or the class shows more.
_CLIENTS_OWN = frozenset(("amqp:client-error", "amqp:unknown-error", "amqp:socket-error", "amqp:vendor-error"))
_SECRET = re.compile(r"((?:sig|SharedAccessKey|SharedAccessSignature|access_token)\s*=\s*)[^&;\s'\"]+", re.IGNORECASE)


def verdict(error: BaseException) -> Verdict:
    """Say what an exception of the client, of its HTTP side, or of Python means."""
    status = None
    named = condition(error)
    if isinstance(error, client.ServiceBusCommunicationError):
        return _CONNECTION  # amqp:not-found of a connection is no missing entity, but a host that is no namespace
    if isinstance(error, client.ServiceBusError):
        status = _private.status_of(error)
    elif isinstance(error, core.HttpResponseError):
        status = error.status_code
    if named is not None and named not in _CLIENTS_OWN:
        return CONDITIONS.get(named, _INTERNAL)
    if status is not None and (known := _by_status(status)) is not None:
        return known
    return next((found for kind, found in _CLASSES if isinstance(error, kind)), _CONNECTION)


def condition(error: BaseException) -> str | None:
    """The AMQP condition behind an exception of the client; None without one."""
    return _private.condition_of(error) if isinstance(error, client.ServiceBusError) else None


def failure(error: BaseException, doing: str, *, maybe_applied: bool = False) -> TransportError:
    """Make the transport error of what the client reported, its cause set; a `TransportError` is returned as it is."""
    if isinstance(error, TransportError):
        return error
    found = verdict(error)
    text = found.text or scrubbed(_words(error))
    made = TransportError(f"{doing}: {text}", found.kind, found.reason, maybe_applied=maybe_applied)
    # What the service says about a refused user may quote the token that it was shown. `raise_failure` keeps to it.
    made.__cause__ = None if found.reason is FailureReason.UNAUTHORIZED or _quotes_a_secret(error) else error
    return made


def _quotes_a_secret(error: BaseException | None) -> bool:
    """Whether an exception, or one behind it, shows a key or signature."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if _SECRET.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def send_failure(error: BaseException, doing: str) -> TransportError:
    """Make the error of a send that had been given to an open link; says for certain only what is certain."""
    found = failure(error, doing, maybe_applied=True)
    certain = found.kind in (_REFUSED, _BUSY) or found.reason is FailureReason.QUOTA
    answered = _private.was_answered(error) and certain
    found.maybe_applied = not (answered or found.reason in (FailureReason.TOO_LARGE, FailureReason.NOT_FOUND))
    return found


def again(error: TransportError) -> TransportError:
    """Make another one like it, for another caller: an exception that is raised twice gathers both tracebacks."""
    copy = TransportError(str(error), error.kind, error.reason, maybe_applied=error.maybe_applied)
    copy.__cause__ = error.__cause__
    return copy


def closed(doing: str, *, maybe_applied: bool = False) -> TransportError:
    return TransportError(
        f"{doing}: the connection was closed", _UNAVAILABLE, FailureReason.CLOSED, maybe_applied=maybe_applied
    )


def timed_out(doing: str, *, maybe_applied: bool = False) -> TransportError:
    return TransportError(
        f"{doing}: the service did not answer in time", _UNAVAILABLE, FailureReason.TIMEOUT, maybe_applied=maybe_applied
    )


def lock_lost(doing: str) -> TransportError:
    return TransportError(f"{doing}: {_GONE}", _REFUSED, FailureReason.LOCK_LOST)


def refused(doing: str, text: str, reason: FailureReason) -> TransportError:
    """Make the error of something that certainly was not done and can't be."""
    return TransportError(f"{doing}: {text}", _REFUSED, reason)


def scrubbed(text: str) -> str:
    return _SECRET.sub(r"\1***", text)


def _by_status(status: int) -> Verdict | None:
    if status in STATUSES:
        return STATUSES[status]
    if 400 <= status < 500:
        return Verdict(_REFUSED, FailureReason.OTHER)
    return _INTERNAL if status >= 500 else None


def _words(error: BaseException) -> str:
    text = str(getattr(error, "message", None) or error) or type(error).__name__
    return " ".join(text.split())
