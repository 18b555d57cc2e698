"""Values that describe transports and their queues."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace

from pairmq.model import Entity, FailureKind, FailureReason, TransportError

_NEVER = 2**31 - 1  # a delivery count that no message reaches
_MOST_DELIVERIES = 2**53  # beyond it not every reader of JSON keeps a number as it is


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport supports. The conformance suite tests both what is claimed and what is not.

    Args:
        max_message_bytes: largest message with its properties as `Transport.measure` counts it; None when unlimited.
        max_path_length: longest entity path in characters.
        topics: topics with subscriptions.
        sessions: receivers of one session.
        scheduling: `Message.scheduled_enqueue_at` is kept; a transport without it refuses such a message.
        counts_scheduled: `Admin.counts` includes scheduled messages; without it a queue that seems empty may still hold
            some, and the syphon schedules none.
        time_to_live: `Message.time_to_live` is kept; a transport without it refuses such a message.
        dead_letter: `Receiver.dead_letter` keeps reason and description, readable through a dead-letter source.
        lock_renewal: `Receiver.renew_lock` extends a lock; without it a lock lasts as long as its connection.
        probes: `Admin.probe` proves that an entity accepts writes.
        peek: `Admin.peek` shows messages without locking them.
        quiet_peek: a peek has no side effects: it neither delays consumers nor counts as a delivery. Required for
            periodic peeks, as by the dashboard.
        ordered_consumer: a queue made with ``QueueProperties.single_consumer`` is read by one consumer at a time, and
            `Admin.positions` reports how far it is settled: required of a secondary to keep order (SPEC 8).
        ordered_batches: `Sender.send_in_order` sends messages of a session that follow each other in one round trip;
            without it the syphon sends one message of a session at a time where order is kept.
        durable: an accepted message outlives the broker's process.
    """

    max_message_bytes: int | None = None
    max_path_length: int = 260
    topics: bool = False
    sessions: bool = False
    scheduling: bool = False
    counts_scheduled: bool = False
    time_to_live: bool = False
    dead_letter: bool = False
    lock_renewal: bool = False
    probes: bool = False
    peek: bool = False
    quiet_peek: bool = False
    ordered_consumer: bool = False
    ordered_batches: bool = False
    durable: bool = False


@dataclass(frozen=True, slots=True)
class ConfirmRisk:
    """A setting that allows a broker to lose confirmed messages.

    Args:
        text: the setting, and what may be lost.
        advice: what to set instead.
    """

    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One broker, as a URL names it.

    Args:
        name: a short name for people and for the backlog queues' names (SPEC 5.1), without secrets.
        identity: product, host, port and virtual host, or product and what the URL states (``?identity=…``); two
            endpoints of one identity are the same broker (SPEC 9.3).
        url: the URL with its password left out, fit for logs.
        scope: the machine that the identity is meant on, where the address is another broker on every machine
            (``localhost``); empty where it is the same one everywhere, and where the URL gives the name.
        former_names: names that backlog queues of this broker may still have: the default name of its address if the
            URL states a name or an identity, and those of its nodes if the URL names several.
        address: product, host, port and virtual host, if the URL states the identity; else empty, as they are the
            identity.
        nodes: such an address for each of the nodes, if the URL names several nodes of one cluster.
        by_default: the identity, and the scope if there is one, that the address has by itself; empty if the URL states
            neither name nor identity.
    """

    name: str
    identity: tuple[str, ...]
    url: str
    scope: str = ""
    former_names: tuple[str, ...] = ()
    address: tuple[str, ...] = ()
    nodes: tuple[tuple[str, ...], ...] = ()
    by_default: tuple[str, ...] = ()

    @property
    def addresses(self) -> frozenset[tuple[str, ...]]:
        """Where the broker is reached: product, host, port and virtual host of each node, of one in most cases."""
        return frozenset(self.nodes or (self.address or self.identity,))

    def is_same_broker(self, other: Endpoint) -> bool:
        """Whether both are one broker, by their identities or by an address that both have."""
        return self.identity == other.identity or not self.addresses.isdisjoint(other.addresses)

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class QueueProperties:
    """A queue's settings: requested when creating one, reported when reading one.

    None for a duration or count means unlimited; as reported, also that the broker has no such setting.

    Args:
        max_size_megabytes: bound on what the queue holds, in MB.
        max_delivery_count: deliveries after which the broker dead-letters a message.
        default_time_to_live: seconds a message lives unless it has its own time-to-live.
        auto_delete_after: seconds of idleness after which the broker deletes the queue.
        lock_duration: seconds a lock lasts unless renewed; None for as long as the connection.
        dead_letter_on_expiration: an expired message is dead-lettered instead of dropped.
        batched_operations: the broker may batch its writes.
        requires_session: every message must have a session id, and is read through `Transport.accept_session`.
        single_consumer: one receiver at a time gets messages, in order: while it holds a lock no other one gets any,
            and messages that it releases, or loses the locks of, are redelivered before anything newer.
        drops_when_full: a queue without room drops messages that it has accepted, instead of refusing new ones. Never
            requested; reported if the broker can be configured so.
        keeps_completed: a log, as a RabbitMQ stream is: a completed message stays in it, so that it can't be a backlog
            queue. Never requested, as ``drops_when_full``.
        forwards_to: the entity to which the broker passes on what is sent to the queue, so that it can't be a backlog
            queue. Never requested, as ``drops_when_full``.
        drops_duplicates: a message with an id that the queue has seen is accepted and dropped, so that it can't be a
            backlog queue, where messages of all entities lie together. Never requested, as ``drops_when_full``.
        unread: names of settings that the broker does not show to this user, whose values here mean nothing. Never
            requested.
    """

    max_size_megabytes: int | None = None
    max_delivery_count: int | None = None
    default_time_to_live: float | None = None
    auto_delete_after: float | None = None
    lock_duration: float | None = 60.0
    dead_letter_on_expiration: bool = True
    batched_operations: bool = True
    requires_session: bool = False
    single_consumer: bool = False
    drops_when_full: bool = False
    keeps_completed: bool = False
    forwards_to: str | None = None
    drops_duplicates: bool = False
    unread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "unread", tuple(self.unread))  # from JSON it is a list

    def checked(self, doing: str, longest: float = 10**9) -> QueueProperties:
        """Return the settings of a new queue whose broker keeps them exactly, and binds no lock to a connection.

        Args:
            doing: for the error's text, such as ``create queue orders``.
            longest: seconds of a duration at most.

        Returns:
            These, but with a lock duration of 60 s instead of None.

        Raises:
            TransportError: reason *malformed*: a duration or count that can't be kept. To accept it would be a promise
                that is broken later.
        """
        problem, count = "", self.max_delivery_count
        most = "" if longest == math.inf else f" and at most {longest}"
        for name in ("lock_duration", "default_time_to_live"):
            seconds = getattr(self, name)
            if seconds is not None and not 1e-6 <= seconds <= longest:
                problem = f"{name} is {seconds!r}: use seconds above 0{most}, or None"
        if count is not None and not (count % 1 == 0 and 1 <= count <= _MOST_DELIVERIES):
            problem = f"max_delivery_count is {count!r}: use a whole number from 1, or None"
        if problem:
            raise TransportError(f"{doing}: {problem}", FailureKind.REFUSED, FailureReason.MALFORMED)
        return self if self.lock_duration is not None else replace(self, lock_duration=60.0)

    def to_json(self) -> str:
        """Write all settings, for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes | None) -> QueueProperties:
        """Read settings back; those that a later version has added are left out, and what can't be read is the default.

        Args:
            text: what was stored; any program may have written it.
        """
        known = {entry.name for entry in fields(cls)}
        try:
            return cls(**{name: value for name, value in json.loads(text or "{}").items() if name in known})
        except (AttributeError, RecursionError, TypeError, ValueError):
            return cls()

    def differences(self, actual: QueueProperties) -> tuple[str, ...]:
        """Name each setting of an existing queue that differs from this one, as a sentence (SPEC 5.3).

        A delivery count without a limit satisfies a wish for 2**31 - 1 or more, which no message reaches either.

        Args:
            actual: as reported by `Admin.properties`.

        Returns:
            E.g. ``lock_duration is 30.0, asked for 60.0``; empty if they agree. Those that could not be read are one
            sentence.
        """
        found = []
        for entry in fields(self):
            if entry.name == "unread" or entry.name in actual.unread:
                continue
            wanted, is_ = getattr(self, entry.name), getattr(actual, entry.name)
            if entry.name == "max_delivery_count" and is_ is None and wanted is not None and wanted >= _NEVER:
                continue
            if wanted != is_:
                found.append(f"{entry.name} is {is_}, asked for {wanted}")
        if actual.unread:
            found.append(f"unknown, as the broker does not show it to this user: {', '.join(actual.unread)}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many messages a queue or subscription holds.

    Args:
        active: waiting to be received.
        locked: received and not yet settled, by any consumer; 0 if the broker counts them as active.
        scheduled: not yet due.
        dead_letter: in its dead-letter queue.
    """

    active: int = 0
    locked: int = 0
    scheduled: int = 0
    dead_letter: int = 0

    @property
    def pending(self) -> int:
        """All that are not dead-lettered: what a drain still has to move."""
        return self.active + self.locked + self.scheduled


@dataclass(frozen=True, slots=True)
class Depth:
    """What one queue holds, or why that is not known; without counts and error it does not exist.

    Args:
        queue: which one.
        counts: of its messages.
        error: why they could not be read; names the broker.
    """

    queue: Entity
    counts: QueueCounts | None = None
    error: str | None = None

    @property
    def missing(self) -> bool:
        """The broker knows no such queue."""
        return self.counts is None and self.error is None

    @property
    def pending(self) -> int | None:
        """Messages still to be moved; None when that is not known."""
        return None if self.error is not None else (self.counts or QueueCounts()).pending

    @property
    def dead_letter(self) -> int | None:
        """Messages dead-lettered; None when that is not known."""
        return None if self.error is not None else (self.counts or QueueCounts()).dead_letter


@dataclass(frozen=True, slots=True)
class QueuePositions:
    """How far a queue has been settled. Positions are whole numbers that grow in the order of delivery.

    Args:
        oldest: at most that of the oldest message that is not settled, locked ones included; None when nothing is left
            of what was confirmed before the question was asked, as in an empty queue.
        newest: at least that of every message whose send was confirmed before the question was asked.
    """

    oldest: int | None
    newest: int
