"""What leaves an `EntityMachine`: what its runner has to do, with the epoch that it belongs to."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pairmq.model import EntityState
from pairmq.model.events import Cause


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


Effect: TypeAlias = ToPrimary | ToBacklog | SendPing | StopPing | LateResult | Changed
