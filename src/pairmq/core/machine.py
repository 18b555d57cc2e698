"""The machine of one entity: inputs in, effects out, time as a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pairmq.core import signals as i
from pairmq.core.backoff import TRIALS
from pairmq.core.options import PairOptions
from pairmq.core.signals import (
    Changed,
    Effect,
    Input,
    LateResult,
    PingsUnauthorized,
    SendPing,
    StopPing,
    ToBacklog,
    ToPrimary,
)
from pairmq.core.transitions import (
    BACKLOG,
    HEALTH,
    Backlog,
    BacklogSymbol,
    Do,
    Health,
    Row,
    Symbol,
    starts_epoch,
    visible,
)
from pairmq.model import EntityState, FailureKind
from pairmq.model.events import Cause

MOST_PINGS_NEEDED: Final = 8
"""Cap of the consecutive good pings that a flapping entity needs (SPEC 4.8)."""

REFUSED_PINGS: Final = 3
"""Pings in a row that are refused as "no such entity" until that is believed: a broker that starts may not know its
entities yet. As many that are refused for want of a right are reported: that does not pass by itself."""

PING_JITTER: Final = 0.1
"""Share of the ping interval by which a ping may come early or late (SPEC 4.8)."""

_RUNNING = (Health.UP, Health.TRIAL)
_AWAY = (Health.DOWN, Health.HELD)
_ROUTE, _ACCEPTED, _TO_PRIMARY = Symbol.ROUTE, Symbol.ACCEPTED, Do.TO_PRIMARY  # every healthy send's; as in `core.pump`
_NOTHING: tuple[Effect, ...] = ()


class ImpossibleInputError(AssertionError):
    """The input can't happen in this state: the runner has a bug; the machine stays as it was."""


class EntityMachine:
    """Decides for one entity where sends go, when it fails over and when it is back (SPEC 4, 6.1, 6.3, 6.4).

    It does nothing by itself: hand it every fact with the instant it happened, carry out the effects in their order,
    and fire its timer at `next_deadline`. Instants are seconds of one monotonic clock.

    One that ``tracks_backlog`` hears `BacklogSeenEmpty`, in a process with a syphon. It starts dirty, as an earlier
    process may have left messages (SPEC 4.5), unless its backlog was ``drained`` since the pair began.
    """

    __slots__ = (
        "_asked_pings",
        "_diverted",
        "_entered_at",
        "_failed",
        "_good_pings",
        "_interval_ends_at",
        "_late",
        "_next_ping_at",
        "_options",
        "_ping",
        "_ping_ends_at",
        "_ping_wanted_from",
        "_pings",
        "_recovered_at",
        "_refused_pings",
        "_rows",
        "_sent",
        "_settled_at",
        "_to_primary",
        "_tracks_backlog",
        "_unauthorized_pings",
        "backlog",
        "diverting",
        "epoch",
        "health",
        "pings_needed",
        "sending",
    )

    def __init__(
        self, options: PairOptions, now: float, *, tracks_backlog: bool = False, drained: bool = False
    ) -> None:
        self._options = options
        self._tracks_backlog = tracks_backlog
        self.health = Health.UP
        self.backlog = Backlog.DIRTY if tracks_backlog and not drained else Backlog.CLEAN
        self.epoch = 0  # how many times the health has changed; attempts carry it
        self.sending = self.diverting = 0  # attempts in flight, at the primary and at the backlog
        self._rows = HEALTH[Health.UP]
        self._to_primary = ToPrimary(0)
        self._settled_at = now
        self._interval_ends_at: float | None = None
        self._next_ping_at: float | None = None
        self._ping: int | None = None
        self._ping_ends_at: float | None = None
        self._pings = 0
        self.pings_needed = 1  # good ones in a row, which the present failover, or the last one, needs to end
        self._good_pings = 0
        self._refused_pings = self._unauthorized_pings = 0
        self._asked_pings = 0
        self._ping_wanted_from = now
        self._recovered_at: float | None = None
        self._entered_at = now
        self._sent = self._diverted = self._failed = self._late = 0

    @property
    def state(self) -> EntityState:
        """The state that people see."""
        return visible(self.health, self.backlog)

    @property
    def awaits_drain(self) -> bool:
        """Whether it wants to hear when the backlog is empty."""
        return self.backlog is Backlog.DIRTY and self.health in _RUNNING

    @property
    def awaits_ping(self) -> bool:
        """Whether `next_deadline` is that of a ping to be sent, which may come later than that."""
        return self._next_ping_at is not None and self._ping is None and self._interval_ends_at is None

    def is_as_new(self, now: float) -> bool:
        """Return whether a new machine would decide the same from now on, so that this one may be dropped."""
        return (
            self.health is Health.UP
            and self.backlog is Backlog.CLEAN
            and not self.sending
            and not self.diverting
            and not self._flaps(now)
        )

    def next_deadline(self) -> float | None:
        """Return the instant at which `TimerFired` is due; None if no timer is set."""
        if self._interval_ends_at is not None:
            return self._interval_ends_at
        if self._ping is not None:
            return self._ping_ends_at
        return self._next_ping_at

    def handle(self, input: Input, now: float) -> tuple[Effect, ...]:
        """Take one fact and decide: what to do, in order, often nothing. ``now`` is never earlier than in the call
        before. What can't happen in this state raises `ImpossibleInputError`, and changes nothing."""
        return _HANDLERS[type(input)](self, input, now)

    # What every send gives it, without an input to be made and looked up.

    def route(self) -> ToPrimary | ToBacklog:
        """`RouteRequested`."""
        if self._rows[_ROUTE].does[0] is _TO_PRIMARY:
            self.sending += 1
            return self._to_primary
        self.diverting += 1
        self._diverted += 1
        # Dirty from before the first diverted send leaves (SPEC 4.5); no one sees it change while failed over.
        self.backlog = BACKLOG[self.backlog][BacklogSymbol.DIVERT]
        return ToBacklog(self.epoch)

    def accepted(self, epoch: int, now: float) -> tuple[Effect, ...]:
        """`PrimaryAccepted`. On the healthy path nothing moves, only counters."""
        row = self._rows.get(_ACCEPTED)
        if row is None or row.next is not self.health or epoch != self.epoch or not self.sending:
            return self._on_result(epoch, _ACCEPTED, now)
        self.sending -= 1
        self._sent += 1
        return _NOTHING

    def divert_ended(self, now: float) -> None:
        """`DivertEnded`."""
        if self.diverting == 0:
            raise ImpossibleInputError("a diverted attempt ended without one in flight")
        self.diverting -= 1
        if self.diverting == 0:
            self._settled_at = now

    # One handler an input: it asks the guards which symbol the input is.

    def _on_route(self, _: i.RouteRequested, now: float) -> tuple[Effect, ...]:
        return (self.route(),)

    def _on_divert_requested(self, _: i.DivertRequested, now: float) -> tuple[Effect, ...]:
        before = self.state
        self.diverting += 1
        self._diverted += 1
        # Without a syphon here nothing but coming up makes a backlog clean: an entity that is not down stays as it is.
        if self._tracks_backlog or self.health in _AWAY:
            self.backlog = BACKLOG[self.backlog][BacklogSymbol.DIVERT]
        return (ToBacklog(self.epoch), *self._changed(before, Cause.ORDER_KEPT, now))

    def _on_accepted(self, input: i.PrimaryAccepted, now: float) -> tuple[Effect, ...]:
        return self.accepted(input.epoch, now)

    def _on_failed(self, input: i.PrimaryFailed, now: float) -> tuple[Effect, ...]:
        kind = input.kind
        if kind is FailureKind.REFUSED or (kind is FailureKind.BUSY and not self._options.failover_on_busy):
            symbol = Symbol.ANSWERED
        elif self._options.failover_interval == 0:
            symbol = Symbol.FAILED_AT_ONCE
        else:
            symbol = Symbol.FAILED
        return self._on_result(input.epoch, symbol, now)

    def _on_abandoned(self, input: i.PrimaryAbandoned, now: float) -> tuple[Effect, ...]:
        return self._on_result(input.epoch, Symbol.NEUTRAL, now)

    def _on_result(self, epoch: int, symbol: Symbol, now: float) -> tuple[Effect, ...]:
        if self.sending == 0 or epoch > self.epoch:
            raise ImpossibleInputError(f"a result of epoch {epoch} without an attempt in flight, in epoch {self.epoch}")
        row = self._row(symbol if epoch == self.epoch else Symbol.LATE)
        self.sending -= 1
        if epoch != self.epoch:
            self._late += 1
            return (LateResult(epoch),)
        if row.next is self.health:
            if symbol is not Symbol.NEUTRAL and symbol is not Symbol.ANSWERED:
                self._failed += 1
            return _NOTHING
        return self._apply(row, now)

    def _on_divert_ended(self, _: i.DivertEnded, now: float) -> tuple[Effect, ...]:
        self.divert_ended(now)
        return _NOTHING

    def _on_timer(self, input: i.TimerFired, now: float) -> tuple[Effect, ...]:
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            symbol = Symbol.NOT_DUE
        elif self._interval_ends_at is not None:
            symbol = Symbol.INTERVAL_OVER
        elif self._ping is not None:
            symbol = Symbol.PING_OVERDUE
            self._good_pings = self._refused_pings = 0
        else:
            symbol = Symbol.PING_DUE
        return self._apply(self._row(symbol), now, input.jitter)

    def _on_ping_wanted(self, input: i.PingWanted, now: float) -> tuple[Effect, ...]:
        if self.health is not Health.DOWN or self._ping is not None or now < self._ping_wanted_from:
            return self._apply(self._row(Symbol.NOT_DUE), now)
        self._ping_wanted_from = now + TRIALS.wait(self._asked_pings, input.chance)
        self._asked_pings += 1
        return self._apply(self._row(Symbol.PING_DUE), now)

    def _on_ping_succeeded(self, input: i.PingSucceeded, now: float) -> tuple[Effect, ...]:
        if not self._is_current_ping(input.number):
            return self._late_ping()
        self._good_pings += 1
        self._refused_pings = self._unauthorized_pings = 0
        recovered = self._good_pings >= self.pings_needed
        row = self._row(Symbol.PING_RECOVERED if recovered else Symbol.PING_GOOD)
        self._ping = self._ping_ends_at = None  # it has answered: nothing is left to cancel
        return self._apply(row, now, input.jitter)

    def _on_ping_failed(self, input: i.PingFailed, now: float) -> tuple[Effect, ...]:
        if not self._is_current_ping(input.number):
            return self._late_ping()
        self._good_pings = self._refused_pings = 0
        effects = self._apply(self._row(Symbol.PING_BAD), now, input.jitter)
        self._unauthorized_pings = self._unauthorized_pings + 1 if input.unauthorized else 0
        return (*effects, PingsUnauthorized(self.epoch)) if self._unauthorized_pings == REFUSED_PINGS else effects

    def _on_ping_refused(self, input: i.PingRefused, now: float) -> tuple[Effect, ...]:
        if not self._is_current_ping(input.number):
            return self._late_ping()
        self._good_pings = self._unauthorized_pings = 0
        self._refused_pings += 1
        believed = self._refused_pings >= REFUSED_PINGS
        row = self._row(Symbol.PING_REFUSED if believed else Symbol.PING_BAD)
        self._ping = self._ping_ends_at = None  # as of one that succeeded
        return self._apply(row, now, input.jitter)

    def _on_seen_empty(self, input: i.BacklogSeenEmpty, now: float) -> tuple[Effect, ...]:
        counts = self.health in _RUNNING and self.diverting == 0 and input.since >= self._settled_at
        before = self.state
        symbol = BacklogSymbol.DRAINED if counts else BacklogSymbol.NOT_DRAINED
        self.backlog = BACKLOG[self.backlog][symbol]
        return self._changed(before, Cause.DRAINED, now)

    def _on_operator(self, input: i.Operated, now: float) -> tuple[Effect, ...]:
        return self._apply(self._row(input.symbol), now)

    # Carrying a row out.

    def _row(self, symbol: Symbol) -> Row:
        row = self._rows.get(symbol)
        if row is None:
            raise ImpossibleInputError(f"{symbol.name} in {self.health.name}")
        return row

    def _apply(self, row: Row, now: float, jitter: float = 0.0) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        before, left = self.state, self.health
        for action in row.does:
            self._do(action, now, jitter, effects)
        if row.next is not left:
            self._enter(row.next, now)
            if row.cause is not None:
                effects.extend(self._changed(before, row.cause, now, operator=row.cause in _BY_OPERATOR))
        return tuple(effects)

    def _do(self, action: Do, now: float, jitter: float, effects: list[Effect]) -> None:
        match action:
            case Do.COUNT_SENT:
                self._sent += 1
            case Do.COUNT_FAILED:
                self._failed += 1
            case Do.START_INTERVAL:
                self._interval_ends_at = now + self._options.failover_interval
            case Do.STOP_INTERVAL:
                self._interval_ends_at = None
            case Do.START_PINGS:
                self._asked_pings, self._ping_wanted_from = 0, now
                self._plan_first_ping(now)
            case Do.START_PINGS_LATER:
                # An operator's decision holds for one interval, against any other request.
                self._asked_pings, self._ping_wanted_from = 0, now + self._options.ping_primary_interval
                self.pings_needed, self._good_pings, self._refused_pings = 1, 0, 0
                self._next_ping_at = now + self._options.ping_primary_interval
            case Do.PING:
                self._pings += 1
                self._ping, self._next_ping_at = self._pings, None
                self._ping_ends_at = now + self._options.ping_timeout
                effects.append(SendPing(self.epoch, self._pings))
            case Do.NEXT_PING:
                self._ping = self._ping_ends_at = None
                self._next_ping_at = now + self._options.ping_primary_interval * (1 + PING_JITTER * jitter)
            case Do.STOP_PINGS | Do.CANCEL_PING:
                if self._ping is not None:
                    effects.append(StopPing(self.epoch, self._ping))
                self._ping = self._ping_ends_at = self._next_ping_at = None
            case _:  # pragma: no cover
                raise ImpossibleInputError(f"{action.name} does not apply to this path")

    def _plan_first_ping(self, now: float) -> None:
        """A ping at once (SPEC 6.1), but an entity that flaps is asked for more, and later (SPEC 4.8)."""
        self.pings_needed = min(MOST_PINGS_NEEDED, self.pings_needed * 2) if self._flaps(now) else 1
        self._good_pings = self._refused_pings = 0
        self._next_ping_at = now + self._options.ping_primary_interval * (self.pings_needed // 2)

    def _flaps(self, now: float) -> bool:
        """Whether a failure now would come too soon after a recovery (SPEC 4.8)."""
        # "<", so that a window of 0 switches the rule off, also for a failure at the very instant of the recovery.
        return self._recovered_at is not None and now - self._recovered_at < self._options.flap_window

    def _enter(self, health: Health, now: float) -> None:
        left, self.health = self.health, health
        self._rows = HEALTH[health]
        if starts_epoch(left, health):
            self.epoch += 1
            self._to_primary = ToPrimary(self.epoch)
        if left in _AWAY and health in _RUNNING:
            self._recovered_at = self._settled_at = now
            if not self._tracks_backlog:
                self.backlog = BACKLOG[self.backlog][BacklogSymbol.CAME_UP_UNTRACKED]

    def _changed(self, before: EntityState, cause: Cause, now: float, *, operator: bool = False) -> tuple[Effect, ...]:
        after = self.state
        if after is before and not operator:
            return _NOTHING
        change = Changed(
            epoch=self.epoch,
            previous=before,
            current=after,
            cause=cause,
            lasted=now - self._entered_at,
            sent=self._sent,
            diverted=self._diverted,
            failed=self._failed,
            late=self._late,
        )
        self._entered_at = now
        self._sent = self._diverted = self._failed = self._late = 0
        return (change,)

    def _is_current_ping(self, number: int) -> bool:
        if number > self._pings:
            raise ImpossibleInputError(f"a result of ping {number}, which was never sent")
        return self._ping == number

    def _late_ping(self) -> tuple[Effect, ...]:
        self._late += 1
        return (LateResult(self.epoch),)


_BY_OPERATOR = frozenset((Cause.FORCED, Cause.HELD, Cause.MARKED_HEALTHY))

# Any: each handler takes the input type of its own key.
_HANDLERS: dict[type, Callable[[EntityMachine, Any, float], tuple[Effect, ...]]] = {
    i.RouteRequested: EntityMachine._on_route,
    i.DivertRequested: EntityMachine._on_divert_requested,
    i.PrimaryAccepted: EntityMachine._on_accepted,
    i.PrimaryFailed: EntityMachine._on_failed,
    i.PrimaryAbandoned: EntityMachine._on_abandoned,
    i.DivertEnded: EntityMachine._on_divert_ended,
    i.TimerFired: EntityMachine._on_timer,
    i.PingWanted: EntityMachine._on_ping_wanted,
    i.PingSucceeded: EntityMachine._on_ping_succeeded,
    i.PingFailed: EntityMachine._on_ping_failed,
    i.PingRefused: EntityMachine._on_ping_refused,
    i.BacklogSeenEmpty: EntityMachine._on_seen_empty,
    i.Operated: EntityMachine._on_operator,
}
