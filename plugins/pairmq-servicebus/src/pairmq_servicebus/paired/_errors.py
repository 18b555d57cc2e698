"""PairMQ's errors as the ones that azure-servicebus raises, so that existing except clauses keep their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from pairmq import (
    BacklogUnavailable,
    EntityNotFound,
    FailureKind,
    FailureReason,
    LockLost,
    MessageTooLarge,
    PairMQError,
    PrimaryUnavailable,
    Receipt,
    ReservedPropertyError,
    SendError,
    SendUnknown,
    TransportError,
    Unauthorized,
)


class NotAllowedError(ServiceBusAuthorizationError, ServiceBusAuthenticationError):
    """The service does not let this key or identity in, or not do this.

    It is both of the client's classes, as the answer does not always show which of the two it was.
    """

    def __init__(self, message: str, **kwargs: Any) -> None:
        ServiceBusError.__init__(self, message, retryable=True, **kwargs)


class NotReachableError(ServiceBusConnectionError, ServiceBusCommunicationError):
    """The primary can't be reached and nothing else took the message.

    It is both of the client's classes: one is for a connection that was lost, one for a connection never made.
    """

    def __init__(self, message: str, **kwargs: Any) -> None:
        ServiceBusError.__init__(self, message, retryable=True, **kwargs)


class ReservedNameError(ServiceBusError, ValueError):
    """The message has an application property of a name that a pair needs for itself (``x-ms-path`` and its like)."""


class SendOutcomeUnknownError(OperationTimeoutError):
    """The message may have been accepted, or not: a confirmation was lost, and nothing else took it.

    Send it again under the same ``message_id`` if a second copy is harmless, or if the entity detects duplicates.
    """

    def __init__(self, message: str, **kwargs: Any) -> None:
        super().__init__(message=message, **kwargs)


@dataclass(frozen=True, slots=True)
class SendFailure:
    """One message of a list or batch that was not accepted, or perhaps not.

    Args:
        index: its place in the list or batch, counted from 0.
        message_id: its id; None if it was refused before it had one.
        error: why, as if it had been sent alone; its ``__cause__`` is PairMQ's error.
    """

    index: int
    message_id: str | None
    error: ServiceBusError


class PairedBatchError(ServiceBusError):
    """Some messages of a list or batch were not accepted; the others were, and should not be sent again.

    ``failures`` are the messages that were not accepted, in order, and ``receipts`` those of the others. Where all of
    them failed alike it is that error's class too: ``except MessageSizeExceededError`` still works.
    """

    def __init__(self, message: str, failures: Sequence[SendFailure], receipts: Sequence[Receipt]) -> None:
        ServiceBusError.__init__(self, message, error=failures[0].error)
        self.failures = tuple(failures)
        self.receipts = tuple(receipts)


_BY_REASON: Final[dict[FailureReason, type[ServiceBusError]]] = {
    FailureReason.NOT_FOUND: MessagingEntityNotFoundError,
    FailureReason.UNAUTHORIZED: NotAllowedError,
    FailureReason.TOO_LARGE: MessageSizeExceededError,
    FailureReason.QUOTA: ServiceBusQuotaExceededError,
    FailureReason.DISABLED: MessagingEntityDisabledError,
    FailureReason.TIMEOUT: OperationTimeoutError,
    FailureReason.CONNECTION: NotReachableError,
    FailureReason.CLOSED: NotReachableError,
}

_BY_ERROR: Final[tuple[tuple[type[PairMQError], type[ServiceBusError]], ...]] = (
    (LockLost, MessageLockLostError),
    (SendUnknown, SendOutcomeUnknownError),
    (MessageTooLarge, MessageSizeExceededError),
    (EntityNotFound, MessagingEntityNotFoundError),
    (Unauthorized, NotAllowedError),
    (ReservedPropertyError, ReservedNameError),
    # Its last cause is the secondary's, and would be taken for the primary's.
    (BacklogUnavailable, NotReachableError),
)

_MOST_NAMED = 20
_batch_classes: dict[type[ServiceBusError], type[PairedBatchError]] = {}


def as_client_error(error: PairMQError) -> ServiceBusError:
    """Make the client's error of PairMQ's, which is its ``__cause__``."""
    kind = _kind(error)
    made = _make(kind, str(error), error)
    made.__cause__ = error
    return made


def batch_error(results: Sequence[Receipt | SendError]) -> ServiceBusError:
    """Make the one error of several messages of which at least one failed; a single message's own error."""
    failures = [
        SendFailure(index, result.message_id, as_client_error(result))
        for index, result in enumerate(results)
        if not isinstance(result, Receipt)
    ]
    if len(results) == 1:
        return failures[0].error
    receipts = [result for result in results if isinstance(result, Receipt)]
    kinds = {type(failure.error) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else ServiceBusError
    made = _batch_class(kind)(_words(failures, len(results)), failures, receipts)
    made.__cause__ = failures[0].error.__cause__
    return made


def _kind(error: PairMQError) -> type[ServiceBusError]:
    for kind, chosen in _BY_ERROR:
        if isinstance(error, kind):
            return chosen
    causes = error.causes if isinstance(error, SendError) else (error,)
    failures = [cause for cause in causes if isinstance(cause, TransportError)]
    if not failures:
        return OperationTimeoutError if isinstance(error, PrimaryUnavailable) else ServiceBusError
    last = failures[-1]
    if last.kind is FailureKind.BUSY:
        return ServiceBusServerBusyError
    return _BY_REASON.get(last.reason, ServiceBusError)


def _make(kind: type[ServiceBusError], text: str, error: Exception) -> ServiceBusError:
    if kind in (ServiceBusError, ReservedNameError, NotAllowedError, NotReachableError, SendOutcomeUnknownError):
        return kind(text, error=error)
    return kind(message=text, error=error)


def _batch_class(kind: type[ServiceBusError]) -> type[PairedBatchError]:
    if kind is ServiceBusError:
        return PairedBatchError
    if kind not in _batch_classes:
        name, own = f"PairedBatch{kind.__name__}", {"__doc__": PairedBatchError.__doc__}
        _batch_classes[kind] = type(name, (PairedBatchError, kind), own)
    return _batch_classes[kind]


def _words(failures: Sequence[SendFailure], total: int) -> str:
    named = [f"message {failure.index} ({failure.error.__cause__})" for failure in failures[:_MOST_NAMED]]
    if len(failures) > _MOST_NAMED:
        named.append(f"and {len(failures) - _MOST_NAMED} more, see .failures")
    unknown = sum(isinstance(failure.error, SendOutcomeUnknownError) for failure in failures)
    doubt = f", {unknown} of these perhaps all the same" if unknown else ""
    accepted = total - len(failures)
    return (
        f"{len(failures)} of {total} messages were not accepted{doubt}; the other {accepted} were, "
        f"and should not be sent again: {'; '.join(named)}"
    )
