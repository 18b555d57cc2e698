"""Results of a send, of a receive, and of one attempt at a broker; and what a broker charges."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from pairmq.model._entity import Entity
from pairmq.model._message import Message, shown_record
from pairmq.model.drafts import draft_of


class Route(enum.StrEnum):
    """Where an accepted message went (SPEC 3.1)."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    OUTBOX = "outbox"
    """Stored in the caller's transaction: accepted when that commits (SPEC 12)."""


class EntityState(enum.StrEnum):
    """The state that people see, derived from an entity's health and backlog (SPEC 4)."""

    HEALTHY = "healthy"
    FAILING = "failing"
    FAILED_OVER = "failed-over"
    DRAINING = "draining"


class FailureKind(enum.StrEnum):
    """What a failed operation means for failover (SPEC 3.6)."""

    TRANSIENT = "transient"
    """Retried within the send; becomes unavailable when the retries are exhausted."""
    BUSY = "busy"
    """The broker throttles: retried, diverted only with ``failover_on_busy``."""
    UNAVAILABLE = "unavailable"
    """Time-out, connection lost, broker down, publisher blocked, no room, no leader: counts toward failover."""
    REFUSED = "refused"
    """The broker rejected the message or the user: raised to the caller, never diverted."""


class FailureReason(enum.StrEnum):
    """Why an operation failed, finer than its kind; selects the exception raised to the caller."""

    OTHER = "other"
    NOT_FOUND = "not-found"
    ALREADY_EXISTS = "already-exists"
    UNAUTHORIZED = "unauthorized"
    TOO_LARGE = "too-large"
    MALFORMED = "malformed"
    NOT_SUPPORTED = "not-supported"
    QUOTA = "quota"
    DISABLED = "disabled"
    LOCK_LOST = "lock-lost"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that one message was accepted, and where (SPEC 3.2); with `Route.OUTBOX`, once its transaction commits.

    Args:
        route: the primary, a backlog queue of the secondary, or its outbox.
        entity: the message's destination.
        message_id: its id, the same in every attempt.
        backlog_queue: the name of the backlog queue, or outbox, that holds it; None at the primary.
        attempts: how many times it was sent to a broker, including the accepted one.
        elapsed: seconds from the call to the receipt.
        maybe_duplicate: an earlier attempt's outcome is unknown, so the primary may hold a second copy.
    """

    route: Route
    entity: Entity
    message_id: str
    backlog_queue: str | None = None
    attempts: int = 1
    elapsed: float = 0.0
    maybe_duplicate: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Delivery:
    """A received message under its lock (peek-lock).

    Args:
        message: what was sent.
        lock_token: the transport's handle for settling it; opaque.
        delivery_count: how many times it was delivered, including this time; at least 1.
        sequence_number: its position at the broker as text, unique within the queue; empty if the broker has none.
        enqueued_at: when the broker accepted it, if reported.
        locked_until: when the lock ends unless renewed, by this machine's clock if the broker allows; None for a lock
            that lasts as long as the connection.
        dead_letter_reason: why it was dead-lettered, when read from a dead-letter queue.
        dead_letter_description: the same in a sentence.
    """

    message: Message
    lock_token: object = field(repr=False)
    delivery_count: int = 1
    sequence_number: str = ""
    enqueued_at: datetime | None = None
    locked_until: datetime | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None

    def __repr__(self) -> str:
        return shown_record(self)

    @staticmethod
    def of_checked(
        message: Message,
        lock_token: object,
        delivery_count: int = 1,
        sequence_number: str = "",
        enqueued_at: datetime | None = None,
        locked_until: datetime | None = None,
        dead_letter_reason: str | None = None,
        dead_letter_description: str | None = None,
    ) -> Delivery:
        """Make a delivery as the constructor does, at a fifth of the cost: transports make many thousands a second."""
        new = _DeliveryDraft()
        new.message = message
        new.lock_token = lock_token
        new.delivery_count = delivery_count
        new.sequence_number = sequence_number
        new.enqueued_at = enqueued_at
        new.locked_until = locked_until
        new.dead_letter_reason = dead_letter_reason
        new.dead_letter_description = dead_letter_description
        new.__class__ = Delivery
        made: Delivery = new
        return made


_DeliveryDraft = draft_of(Delivery)

DAYS_A_MONTH = 30
"""What the base charge of a `Price` is for."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one broker charges.

    Args:
        per_million: for a million operations.
        base: fixed charge for a month of 30 days.
    """

    per_million: Decimal = Decimal(0)
    base: Decimal = Decimal(0)
