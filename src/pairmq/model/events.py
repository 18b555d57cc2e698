"""PairMQ's events (SPEC 10.1).

Observers, `Pair.events` and the journal all get the same objects, and must not change them. They are not frozen, as one
is made for every send, and a frozen one takes several times as long. None contains a body, a password or a key.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pairmq.model._entity import Entity
from pairmq.model._outcome import EntityState


class Cause(enum.StrEnum):
    """The cause of a change of an entity's state."""

    SEND_FAILED = "send failed"
    SEND_SUCCEEDED = "send succeeded"
    SEND_REFUSED = "send refused by the broker"
    INTERVAL_OVER = "failover interval over"
    FIRST_SEND_FAILED = "first send after recovery failed"
    PING_RECOVERED = "ping recovered"
    PING_REFUSED = "ping refused: no such entity"
    MARKED_HEALTHY = "marked healthy"
    FORCED = "failover forced"
    HELD = "held"
    DRAINED = "backlog drained"
    ORDER_KEPT = "a send diverted to keep its order"


class SendOutcome(enum.StrEnum):
    """The outcomes of a send (SPEC 3.1, 12.2)."""

    PRIMARY = "accepted-primary"
    BACKLOG = "accepted-backlog"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    OUTBOX = "stored-outbox"
    """Stored in a transaction of the caller's: whether that is committed, the sender does not learn."""


class Settlement(enum.StrEnum):
    """How a consumer settled a delivery."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    DEAD_LETTERED = "dead-lettered"


class Side(enum.StrEnum):
    """The two brokers of a pair."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Event:
    """Fields of every event.

    Args:
        at: wall-clock seconds since 1970 UTC.
        pair: the pair's name, ``primary>secondary``.
    """

    at: float
    pair: str


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class StateChanged(Event):
    """An entity's visible state changed (SPEC 4.9).

    Args:
        entity: the entity.
        previous: the state it left.
        current: the state it entered.
        cause: why.
        epoch: the machine's epoch after the change.
        lasted: seconds spent in ``previous``.
        sent: operations that the primary accepted while in ``previous``; a batch is one operation.
        diverted: operations routed to the backlog while in ``previous``.
        failed: failed operations that count toward failover while in ``previous``.
        late: late results while in ``previous`` (SPEC 4.6).
        error: the primary's last failure, where a failure is the cause; else None.
    """

    entity: Entity
    previous: EntityState
    current: EntityState
    cause: Cause
    epoch: int
    lasted: float
    sent: int = 0
    diverted: int = 0
    failed: int = 0
    late: int = 0
    error: str | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class SendCompleted(Event):
    """A send ended.

    Args:
        entity: the message's destination.
        message_id: its id; empty if it was refused before it had one.
        outcome: the result.
        backlog_queue: the backlog queue, or outbox, that accepted it, else None.
        attempts: operations at a broker.
        elapsed: seconds from call to end.
        maybe_duplicate: a second copy may exist.
        size: bytes of the body.
        error: the error's class name, None when accepted.
        sender: the id of the sender object.
        sequence: the send's number at that sender, from 0, in the order in which sends were called.
        session_id: the message's session, None if it has none.
        time_to_live: seconds that the message may live, None for no limit.
        state: the entity's state when the send ended, as this process saw it.
        scheduled_enqueue_at: the instant before which no consumer sees the message, seconds since 1970 UTC; None if it
            is seen at once.
    """

    entity: Entity
    message_id: str
    outcome: SendOutcome
    backlog_queue: str | None
    attempts: int
    elapsed: float
    maybe_duplicate: bool
    size: int
    error: str | None = None
    sender: str | None = None
    sequence: int | None = None
    session_id: str | None = None
    time_to_live: float | None = None
    state: EntityState | None = None
    scheduled_enqueue_at: float | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class AttemptFailed(Event):
    """One attempt of a send failed; the send itself may still be accepted.

    Args:
        entity: the message's destination.
        message_id: its id.
        queue: the backlog queue that was tried, None for the primary.
        kind: the failure's kind (SPEC 3.6).
        error: the transport's error.
        maybe_applied: the broker may still hold the message.
        late: the attempt was made in an earlier epoch, so it did not affect the state.
    """

    entity: Entity
    message_id: str
    queue: str | None
    kind: str
    error: str
    maybe_applied: bool
    late: bool = False


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class PingCompleted(Event):
    """A ping of a failed-over entity ended (SPEC 6).

    Args:
        entity: which one.
        ok: it proved that the entity accepts messages.
        elapsed: seconds it took.
        error: what failed, None when ok.
    """

    entity: Entity
    ok: bool
    elapsed: float
    error: str | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class RotationChanged(Event):
    """A backlog queue left or joined the queues in use (SPEC 5.4, 5.5).

    Args:
        queue: its name.
        in_use: whether it is used from now on.
        left: how many queues are in use now.
        error: why it left, None when it joined.
    """

    queue: str
    in_use: bool
    left: int
    error: str | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class BacklogQueueChecked(Event):
    """A backlog queue was created or found when pairing (SPEC 5.1, 5.3).

    Args:
        queue: its name.
        created: it did not exist before.
        differences: settings that differ from the requested ones, one sentence each: an existing queue's, or what an
            operator's policy makes of a new one.
    """

    queue: str
    created: bool
    differences: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class MessageMoved(Event):
    """The syphon moved a message to the primary: confirmed by the primary, then completed in the backlog (SPEC 7.1).

    Args:
        queue: the backlog queue that it was in.
        entity: the destination.
        message_id: its id.
        waited: seconds from divert to delivery.
        maybe_duplicate: the primary may hold a copy already: the sender marked it so, or the syphon could not report a
            write of its own.
        redelivered: the message had been delivered to a syphon before, so that this may be a second copy.
        completed: it was removed from the backlog; if not, the syphon will deliver a second copy.
    """

    queue: str
    entity: Entity
    message_id: str
    waited: float
    maybe_duplicate: bool
    redelivered: bool
    completed: bool = True


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class MessageDeadLettered(Event):
    """A message of a backlog queue was dead-lettered: it can't be delivered (SPEC 7.4), or not be decoded.

    Args:
        queue: the backlog queue in whose dead-letter queue it is now.
        entity: the destination's path, None if it could not be read.
        message_id: its id, None if it had none.
        reason: a word or two.
        description: a sentence.
    """

    queue: str
    entity: str | None
    message_id: str | None
    reason: str
    description: str


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class DestinationChanged(Event):
    """The syphon stopped or resumed delivering to a destination (SPEC 7.3).

    Args:
        entity: the destination.
        open: whether it delivers to it from now on.
        error: why not, None when open.
    """

    entity: Entity
    open: bool
    error: str | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class SyphonFailed(Event):
    """A pump got an error from the secondary, and will retry (SPEC 7).

    Args:
        queue: the pump's backlog queue.
        error: the transport's error.
        retry_after: seconds until the retry.
    """

    queue: str
    error: str
    retry_after: float


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Warned(Event):
    """Something that an operator should check, without interruption of service.

    Args:
        subject: what it is about: an entity, a queue, an option.
        text: a sentence that says what to do.
    """

    subject: str
    text: str


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class MessageDelivered(Event):
    """A consumer settled a delivery.

    Args:
        entity: the queue or topic that it was read from.
        subscription: the topic's subscription, None for a queue.
        dead_letter: it was read from the dead-letter queue.
        message_id: its id, None if it has none.
        delivery_count: how many times it was delivered, including this time.
        sequence_number: its position at the broker as text; empty if the broker has none.
        settlement: the requested settlement.
        received_at: wall-clock seconds since 1970 UTC at which the consumer received it; None if unknown.
        reason: why it was dead-lettered, else None.
        error: why the broker did not confirm the settlement, so that the message may be redelivered; None when it did.
        receiver: the id of the receiver object: each gets messages in its own order. None in a journal of PairMQ's that
            did not report it.
        side: the broker that it came from: the secondary where a lane gave it (SPEC 11). None where no pair received
            it, and in a journal of PairMQ's that did not report it.
    """

    entity: Entity
    subscription: str | None
    dead_letter: bool
    message_id: str | None
    delivery_count: int
    sequence_number: str
    settlement: Settlement
    received_at: float | None
    reason: str | None = None
    error: str | None = None
    receiver: str | None = None
    side: Side | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class OperationsCounted(Event):
    """The pair's operations at one of its brokers in the last interval; a batch is one operation.

    Args:
        side: which broker.
        seconds: length of the interval.
        sends: sends and batches of them.
        receives: long polls.
        settlements: completions, abandonments, dead-letters and renewed locks.
        pings: probes of an entity.
        admin: everything else, e.g. creating, inspecting and counting queues.
    """

    side: Side
    seconds: float
    sends: int
    receives: int
    settlements: int
    pings: int
    admin: int


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class ReceiverChanged(Event):
    """A receiver of a queue with continuity lost one of the two brokers that it reads, or reads it again (SPEC 11.3).

    Args:
        entity: the queue.
        side: which broker.
        open: whether it reads it from now on.
        error: why not, None when open.
    """

    entity: Entity
    side: Side
    open: bool
    error: str | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class PairOpened(Event):
    """A pair is ready for sends; `PairEnded` is its counterpart, and a pair that does not open has neither.

    Args:
        primary: the primary's URL without its password.
        secondary: the secondary's URL without its password.
        version: PairMQ's.
        options: all options as a JSON object.
    """

    primary: str
    secondary: str
    version: str
    options: str


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class PairEnded(Event):
    """A pair that had opened closed, or faulted (SPEC 9): the counterpart of its `PairOpened`.

    Args:
        fault: why it faulted; None for an ordinary close.
        unknown: sends that ended as unknown because the close grace had elapsed.
    """

    fault: str | None = None
    unknown: int = 0


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class JournalOpened(Event):
    """A process began to keep its journal; ``pair`` is empty. One without a `JournalClosed` was killed, or still runs.

    Args:
        host: the machine's name.
        pid: the process's number there.
        version: PairMQ's.
        sample_healthy: the part of healthy sends that the journal keeps, 0 to 1.
    """

    host: str
    pid: int
    version: str
    sample_healthy: float


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class EventsDropped(Event):
    """The journal could not keep events: its buffer was full and its disk failed or was too slow; ``pair`` is empty.

    Args:
        count: how many.
        since: wall-clock seconds since 1970 UTC of the first of them.
    """

    count: int
    since: float


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class JournalClosed(Event):
    """A process ended its journal in good order; ``pair`` is empty.

    Args:
        dropped: events that it could not keep, in all.
    """

    dropped: int
