"""What enters an `EntityMachine`: facts, with the attempt's epoch or the ping's number; and what leaves it: what its
runner has to do, with the epoch that it belongs to."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pairmq.core.transitions import Symbol
from pairmq.model import EntityState, FailureKind, FailureReason, TransportError
from pairmq.model.events import Cause

# Named tuples, not dataclasses: they are frozen too, and are made in a third of the time, twice a send.


class RouteRequested(NamedTuple):
    """A send asks where to go; the attempt is in flight from now on, until one of the next four inputs (SPEC 4.6)."""


class DivertRequested(NamedTuple):
    """A send must go to the backlog in any state, to keep the order of its key (SPEC 8.3); in flight as a route."""


class PrimaryAccepted(NamedTuple):
    """The primary confirmed an attempt."""

    epoch: int


class PrimaryFailed(NamedTuple):
    """An attempt at the primary failed; a transient failure comes here once it has outlived its retries (SPEC 3.6).

    ``kind`` *refused* means that the broker itself said no: what a client finds out alone is a `PrimaryAbandoned`.
    """

    epoch: int
    kind: FailureKind


class PrimaryAbandoned(NamedTuple):
    """An attempt at the primary ended without evidence about it, such as by its caller's cancellation (SPEC 3.7)."""

    epoch: int


class DivertEnded(NamedTuple):
    """A diverted attempt is no longer in flight, however it ended."""


class TimerFired(NamedTuple):
    """`EntityMachine.next_deadline` may be reached. ``jitter``: a random number in [-1, 1] that spreads pings."""

    jitter: float = 0.0


class PingWanted(NamedTuple):
    """A send waits because no backlog queue takes it: the next ping should not (SPEC 5.5).

    ``chance``: a random number in [0, 1) that spreads such pings.
    """

    chance: float = 0.0


class PingSucceeded(NamedTuple):
    """A ping proved that the entity takes messages. ``number``: the ping's; ``jitter``: as in `TimerFired`."""

    number: int
    jitter: float = 0.0


class PingFailed(NamedTuple):
    """A ping failed. ``number``: the ping's; ``jitter``: as in `TimerFired`; ``unauthorized``: for want of a right."""

    number: int
    jitter: float = 0.0
    unauthorized: bool = False


class PingRefused(NamedTuple):
    """The broker refused a ping: the entity does not exist. ``number``: the ping's; ``jitter``: as in `TimerFired`."""

    number: int
    jitter: float = 0.0


def ping_ended(number: int, failure: Exception | None, jitter: float) -> PingSucceeded | PingFailed | PingRefused:
    """What came of a ping.

    Only "no such entity" is a refusal of the entity: another one may be of the ping alone, or pass while the backlog
    keeps the messages safe.
    """
    if failure is None:
        return PingSucceeded(number, jitter)
    reason = failure.reason if isinstance(failure, TransportError) else None
    if reason is FailureReason.NOT_FOUND:
        return PingRefused(number, jitter)
    return PingFailed(number, jitter, reason is FailureReason.UNAUTHORIZED)


class BacklogSeenEmpty(NamedTuple):
    """Every backlog queue was reached and seen empty, by checks that all began at or after the instant ``since``."""

    since: float


class Operated(NamedTuple):
    """An operator says that the entity works, or wants it failed over: with pings, or held without (SPEC 4.7)."""

    symbol: Symbol


Input: TypeAlias = (
    RouteRequested
    | DivertRequested
    | PrimaryAccepted
    | PrimaryFailed
    | PrimaryAbandoned
    | DivertEnded
    | TimerFired
    | PingWanted
    | PingSucceeded
    | PingFailed
    | PingRefused
    | BacklogSeenEmpty
    | Operated
)

ROUTE_REQUESTED = RouteRequested()
DIVERT_REQUESTED = DivertRequested()
DIVERT_ENDED = DivertEnded()
MARK_HEALTHY = Operated(Symbol.MARK_HEALTHY)
FORCE_FAILOVER = Operated(Symbol.FORCE_FAILOVER)
HOLD = Operated(Symbol.HOLD)


class ToPrimary(NamedTuple):
    """Send to the primary; answer with `PrimaryAccepted`, `PrimaryFailed` or `PrimaryAbandoned` of this epoch."""

    epoch: int


class ToBacklog(NamedTuple):
    """Send to a backlog queue; report its end with `DivertEnded`, whatever the outcome."""

    epoch: int


class SendPing(NamedTuple):
    """Probe the entity; answer with `PingSucceeded`, `PingFailed` or `PingRefused` of this number."""

    epoch: int
    number: int


class StopPing(NamedTuple):
    """Cancel the probe under way: it is overdue, or its answer no longer matters (SPEC 6.3, 6.4)."""

    epoch: int
    number: int


class PingsUnauthorized(NamedTuple):
    """Report that pings are refused for want of a right: a user who may send, but lacks a right that only a ping needs,
    would be failed over forever."""

    epoch: int


class LateResult(NamedTuple):
    """The input was a late result: journal it; it changed nothing (SPEC 4.6).

    ``epoch`` is the attempt's; of a ping, which has a number instead, the present one.
    """

    epoch: int


class Changed(NamedTuple):
    """The entity moved; wake the sends that wait on it.

    ``previous`` and ``current`` are equal where an operator's word changed what cannot be seen (held or not).
    The counts are those of the time in ``previous``.
    """

    epoch: int
    previous: EntityState
    current: EntityState
    cause: Cause
    lasted: float
    sent: int
    diverted: int
    failed: int
    late: int


Effect: TypeAlias = ToPrimary | ToBacklog | SendPing | StopPing | PingsUnauthorized | LateResult | Changed
