"""PairMQ's exceptions."""

from __future__ import annotations

from collections.abc import Sequence

from pairmq.model._outcome import FailureKind, FailureReason


class PairMQError(Exception):
    """Base class of PairMQ's exceptions."""


class ConfigurationError(PairMQError, ValueError):
    """An invalid setting, URL, plugin or pairing; the text says what to change."""


class TransportError(PairMQError):
    """A failure at a broker; the client library's exception is its ``__cause__``.

    Args:
        message: what happened, without secrets.
        kind: what it means for failover (SPEC 3.6).
        reason: why, finer than the kind.
        maybe_applied: True if the broker may have applied the operation without confirming it; for a send, when a copy
            may exist.
    """

    def __init__(
        self,
        message: str,
        kind: FailureKind,
        reason: FailureReason = FailureReason.OTHER,
        *,
        maybe_applied: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason
        self.maybe_applied = maybe_applied

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is pickled by its arguments, and the kind is not among them.
        return _transport_error, (str(self), self.kind, self.reason, self.maybe_applied)

    def __repr__(self) -> str:
        return (
            f"TransportError({str(self)!r}, kind={self.kind}, reason={self.reason}, maybe_applied={self.maybe_applied})"
        )


def _transport_error(message: str, kind: FailureKind, reason: FailureReason, maybe_applied: bool) -> TransportError:
    return TransportError(message, kind, reason, maybe_applied=maybe_applied)


class SendError(PairMQError):
    """A send that did not end in a receipt.

    Args:
        message: what happened and what to do.
        entity: the message's destination.
        message_id: its id, None when it was refused before it had one.
        causes: the underlying failures, oldest first; of very many only the first and the last ones.
    """

    def __init__(
        self,
        message: str,
        *,
        entity: str | None = None,
        message_id: str | None = None,
        causes: Sequence[BaseException] = (),
    ) -> None:
        super().__init__(message)
        self.entity = entity
        self.message_id = message_id
        self.causes = tuple(causes)


class SendRefused(SendError):
    """No broker accepted the message: the caller's mistake, or none could (SPEC 3.1)."""


class MessageTooLarge(SendRefused):
    """The message, or its backlog form, is larger than a broker of the pair accepts (SPEC 3.8)."""


class EntityNotFound(SendRefused):
    """The primary has no such queue or topic."""


class Unauthorized(SendRefused):
    """The broker does not let this user send to the entity."""


class BacklogUnavailable(SendRefused):
    """Failed over, and no backlog queue accepted it by the deadline; ``causes`` has both brokers' failures (SPEC
    5.5)."""


class PrimaryUnavailable(SendRefused):
    """The primary failed and the message was not diverted: ``while_failing="raise"``, or the deadline passed first."""


class SendUnknown(SendError):
    """A confirmation was lost and no retry was accepted: the message may or may not be stored (SPEC 3.1)."""


class PairClosed(PairMQError):
    """The pair is closed or closing."""


class PairFaulted(PairMQError):
    """The pair lost a broker connection permanently; ``__cause__`` is the reason (SPEC 9.2)."""


class EnvelopeError(PairMQError):
    """A message from a backlog queue is not one that PairMQ diverted, or was damaged (SPEC 7.4)."""


class ReservedPropertyError(SendRefused):
    """The message already has an application property that PairMQ's own envelope uses (SPEC 5.7)."""


class LockLost(PairMQError):
    """A delivery can no longer be settled: its lock expired, and the broker will redeliver it."""
