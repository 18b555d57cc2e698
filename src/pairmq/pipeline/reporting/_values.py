"""The values of a report, small for tables of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]


ROUND = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400),
)
"""Seconds that people count in."""


class Key(NamedTuple):
    """An entity of a pair; the entity is None if it could not be read."""

    pair: str
    entity: str | None


class Span(NamedTuple):
    """A time, in seconds since 1970 UTC."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Outage:
    """One row of the table ``episodes``; see the reference for what the columns mean."""

    process: str
    key: Key
    started_at: float
    failed_over_at: float | None
    up_at: float | None
    ended_at: float | None
    until: float  # its end; if it is open, how far it is known
    open_because: str | None
    cause: str | None
    failure_kind: str | None
    time_to_divert: float | None
    downtime: float | None
    time_to_recover: float | None
    drain_time: float | None
    diverted: int
    refused: int
    unknown: int
    peak_backlog: int

    @property
    def out(self) -> float:
        """Seconds until the primary took messages of it again, or until the journal ended."""
        return (self.until if self.up_at is None else self.up_at) - self.started_at


@dataclass(frozen=True, slots=True)
class Spans:
    """In what state one entity was, of all processes together: the times in which any of them saw it so."""

    failing: Sequence[Span] = ()  # it failed, and failover was not engaged
    failed_over: Sequence[Span] = ()  # sends were diverted
    draining: Sequence[Span] = ()  # it took messages again, and the backlog was not empty
    out: Sequence[Span] = ()  # failing or failed over

    @property
    def seconds_out(self) -> float:
        return sum(span.seconds for span in self.out)


@dataclass(frozen=True, slots=True)
class Outages:
    """The table ``episodes``."""

    count: int
    still_open: int  # not ended where the journal ends
    worst: Sequence[Outage]  # the longest ones, listed individually
    spans: Mapping[Key, Spans]
    union: Sequence[Span]  # when any entity was out


@dataclass(slots=True)
class Sends:
    """Sends by how they ended, of an entity or of all; fractions where only a part was journalled."""

    attempted: float = 0.0
    accepted_primary: float = 0.0
    accepted_backlog: float = 0.0
    refused: float = 0.0
    unknown: float = 0.0

    @property
    def availability(self) -> float | None:
        """The part that was accepted; None without sends."""
        return min(1.0, (self.accepted_primary + self.accepted_backlog) / self.attempted) if self.attempted else None

    @property
    def primary_availability(self) -> float | None:
        """What it would have been without the backlog."""
        return min(1.0, self.accepted_primary / self.attempted) if self.attempted else None


@dataclass(frozen=True, slots=True)
class Availability:
    """The table ``availability``."""

    total: Sends
    entities: Mapping[Key, Sends]


@dataclass(slots=True)
class Reads:
    """What the consumers of one queue with continuity read, of the table ``consumers``; times in seconds."""

    from_primary: int = 0
    from_secondary: int = 0
    watched: float = 0.0
    unread: float = 0.0
    longest_unread: float = 0.0

    @property
    def availability(self) -> float | None:
        """The part of the time in which they could read either broker; None if none is known to have run."""
        return max(0.0, 1 - self.unread / self.watched) if self.watched else None


@dataclass(slots=True)
class Operations:
    """What was asked of one side."""

    sends: int = 0
    receives: int = 0
    pings: int = 0
    price: Decimal = Decimal()

    @property
    def operations(self) -> int:
        """What brokers charge for."""
        return self.sends + self.receives + self.pings


@dataclass(frozen=True, slots=True)
class Cost:
    """The table ``cost``."""

    sides: Mapping[str, Operations]  # by ``primary`` and ``secondary``
    source: str | None  # ``counted``, ``estimated`` or ``mixed``; None without operations
    priced: bool  # whether there was a price list


@dataclass(frozen=True, slots=True)
class Order:
    """The table ``order``."""

    delivered: int  # messages that were accepted and delivered
    overtaken: int  # of these, overtaken by newer ones as ``ordering="none"`` has it


@dataclass(frozen=True, slots=True)
class Grid:
    """A time cut in slots of one width."""

    began: float
    width: float
    slots: int

    @property
    def ended(self) -> float:
        """Where the last slot ends."""
        return self.began + self.width * self.slots

    def share(self, at: float) -> float:
        """Where an instant is, from 0 to 1; those outside are at the ends."""
        return min(1.0, max(0.0, (at - self.began) / (self.width * self.slots)))


@dataclass(frozen=True, slots=True)
class Series:
    """What happened in each slot of a grid."""

    grid: Grid
    primary: Counts  # messages accepted by the primary, by the instant of their receipt
    backlog: Counts  # by a backlog queue
    refused: Counts
    unknown: Counts
    moved: Counts  # to the primary by a syphon
    depth: Counts  # most messages in the backlog
    p50: Numbers  # seconds from call to receipt of half of those accepted; not a number in a slot without any
    p99: Numbers
    longest: Numbers


@dataclass(frozen=True, slots=True)
class Latency:
    """How long accepted sends took in one phase; seconds, 2 % too high at most but for the longest."""

    sends: int
    p50: float
    p95: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A message with a verdict that breaks a promise."""

    key: Key
    message_id: str
    first_sent_at: float | None
    backlog_queue: str | None
    sent_by: str | None


@dataclass(frozen=True, slots=True)
class Messages:
    """The table ``reconciliation``."""

    verdicts: Mapping[str, int]  # messages of each
    by_entity: Mapping[Key, Mapping[str, int]]
    faults: Mapping[str, Sequence[Fault]]  # the first ones of each verdict that is a fault, oldest first
    # Of queues with continuity, from the receipt of a message to its first settlement: of those that the primary
    # accepted at once, and of those that were diverted.
    handled: Mapping[Key, tuple[Latency | None, Latency | None]]
    # By phase; without sends if the tables do not record when they were called. ``backlog`` is the time from divert to
    # the move to the primary.
    latencies: Mapping[str, Latency]
    overview: Series | None  # all of the time
    close_up: Series | None  # the longest outage; None where the overview shows it well enough

    @property
    def count(self) -> int:
        return sum(self.verdicts.values())


@dataclass(frozen=True, slots=True)
class Program:
    """One row of the table ``processes``, of one whose journal is not whole."""

    process: str
    missing: int
    dropped: int
    ended: str


@dataclass(frozen=True, slots=True)
class Programs:
    """The table ``processes``."""

    count: int
    rows: int  # of the journal
    missing: int  # rows that are not in it
    dropped: int  # events that were never written
    misdated: int  # rows that count for nothing, as their instants can't be
    ended: Mapping[str, int]  # programs by how they ended
    sampled: int  # those that keep only a part of the healthy sends
    incomplete: Sequence[Program]  # the first few whose journals are not whole, or that were killed
    first_at: float | None  # the first row of any; None without rows
    last_at: float | None
    lasts: Mapping[str, float]  # the last row of each program


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything from the tables of one directory."""

    run: Mapping[str, Any]  # the document ``run.json``
    programs: Programs
    outages: Outages
    availability: Availability
    consumers: Mapping[Key, Reads]  # of queues with continuity, those first that could not be read for longest
    cost: Cost
    order: Order
    messages: Messages
