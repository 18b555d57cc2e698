"""The table: every (state, symbol) pair of an entity, and what happens.

Theory. An entity is two facts that are kept apart: the primary's *health* and the *backlog*. A plain chain of four
states forgets the backlog when a draining entity fails and recovers, and the messages in it are stranded; here no
health row can touch the backlog, and no backlog row the health. What people see is derived from both
(`visible`).

Rules.

1. `EntityMachine` turns each input into one *symbol*, using its guards: the epoch (is the result late?), the clock (is
   a deadline reached?), the options (is the interval 0?) and its counters (was that ping the last one needed?). The
   guards answer questions; only this table decides.
2. A pair without a row is impossible: the machine raises `ImpossibleInputError` and stays as it was.
3. A row whose health differs from its state's starts a new epoch, except UP after TRIAL: both accept sends, and a
   canary's success must not make the other sends of its time late.
4. A late result has a row in every state, and it never moves one (SPEC 4.6).
5. Nothing here knows the time, a random number, or a broker.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from pairmq.model import EntityState
from pairmq.model.events import Cause


class Health(enum.Enum):
    """Whether the primary's entity takes messages, as far as this process knows."""

    UP = "up"
    TRIAL = "trial"
    """Up by a ping's word alone: the first real message is the canary (SPEC 4.8)."""
    FAILING = "failing"
    DOWN = "down"
    HELD = "held"
    """Down by an operator's word: no pings (SPEC 4.7)."""


class Backlog(enum.Enum):
    """Whether messages of the entity may lie in backlog queues."""

    CLEAN = "clean"
    DIRTY = "dirty"


def visible(health: Health, backlog: Backlog) -> EntityState:
    """Derive the state that people see from the two facts (SPEC 4)."""
    # No table: an enum's members are hashed by a function of Python, and each send asks for this several times.
    if health is _UP or health is _TRIAL:
        return EntityState.HEALTHY if backlog is _CLEAN else EntityState.DRAINING
    return EntityState.FAILING if health is _FAILING else EntityState.FAILED_OVER


_UP, _TRIAL, _FAILING, _CLEAN = Health.UP, Health.TRIAL, Health.FAILING, Backlog.CLEAN


class Symbol(enum.IntEnum):
    """An input, after the guards."""

    ROUTE = 0
    ACCEPTED = 1
    FAILED = 2
    FAILED_AT_ONCE = 3
    NEUTRAL = 4
    LATE = 5
    INTERVAL_OVER = 6
    PING_DUE = 7
    PING_GOOD = 8
    PING_RECOVERED = 9
    PING_BAD = 10
    PING_OVERDUE = 11
    NOT_DUE = 12
    MARK_HEALTHY = 13
    FORCE_FAILOVER = 14
    HOLD = 15
    ANSWERED = 16
    PING_REFUSED = 17


MEANING: dict[Symbol, str] = {
    Symbol.ROUTE: "a send asks where to go",
    Symbol.ACCEPTED: "the primary confirmed a send",
    Symbol.FAILED: "a failure that counts toward failover",
    Symbol.FAILED_AT_ONCE: "the same, with `failover_interval` 0",
    Symbol.NEUTRAL: "cancelled, refused before the broker saw it, or cut short by a deadline: no evidence",
    Symbol.ANSWERED: "the broker refused or throttled a send: it responds",
    Symbol.LATE: "the result of an attempt or ping of an earlier epoch",
    Symbol.INTERVAL_OVER: "the failover interval has elapsed",
    Symbol.PING_DUE: "a ping is due, or requested by a send that no backlog queue accepts",
    Symbol.PING_GOOD: "a successful ping; more are needed",
    Symbol.PING_RECOVERED: "the last successful ping that was needed",
    Symbol.PING_BAD: "a failed ping",
    Symbol.PING_REFUSED: "the broker refused one ping after another: the entity does not exist",
    Symbol.PING_OVERDUE: "a ping timed out",
    Symbol.NOT_DUE: "the timer fired early, or a ping was requested too soon",
    Symbol.MARK_HEALTHY: "operator: mark healthy",
    Symbol.FORCE_FAILOVER: "operator: fail over",
    Symbol.HOLD: "operator: stay failed over",
}


class Do(enum.Enum):
    """What a row asks for besides the new state."""

    TO_PRIMARY = "send to primary"
    TO_BACKLOG = "send to backlog"
    COUNT_SENT = "count a success"
    COUNT_FAILED = "count a failure"
    COUNT_LATE = "count it as late"
    START_INTERVAL = "start the failover interval"
    STOP_INTERVAL = "stop the failover interval"
    START_PINGS = "start pings"
    START_PINGS_LATER = "start pings after one interval"
    STOP_PINGS = "stop pings"
    PING = "ping"
    NEXT_PING = "plan the next ping"
    CANCEL_PING = "cancel the ping"


class Row(NamedTuple):
    """One decision: the next health, what to do, and the cause that the event names if the state changes."""

    next: Health
    does: tuple[Do, ...] = ()
    cause: Cause | None = None


UP, TRIAL, FAILING, DOWN, HELD = Health.UP, Health.TRIAL, Health.FAILING, Health.DOWN, Health.HELD
_S = Symbol

HEALTH: dict[Health, dict[Symbol, Row]] = {
    UP: {
        _S.ROUTE: Row(UP, (Do.TO_PRIMARY,)),
        _S.ACCEPTED: Row(UP, (Do.COUNT_SENT,)),
        _S.FAILED: Row(FAILING, (Do.COUNT_FAILED, Do.START_INTERVAL), Cause.SEND_FAILED),
        _S.FAILED_AT_ONCE: Row(DOWN, (Do.COUNT_FAILED, Do.START_PINGS), Cause.SEND_FAILED),
        _S.NEUTRAL: Row(UP),
        _S.ANSWERED: Row(UP),
        _S.LATE: Row(UP, (Do.COUNT_LATE,)),
        _S.NOT_DUE: Row(UP),
        _S.MARK_HEALTHY: Row(UP),
        _S.FORCE_FAILOVER: Row(DOWN, (Do.START_PINGS_LATER,), Cause.FORCED),
        _S.HOLD: Row(HELD, (), Cause.HELD),
    },
    TRIAL: {
        _S.ROUTE: Row(TRIAL, (Do.TO_PRIMARY,)),
        _S.ACCEPTED: Row(UP, (Do.COUNT_SENT,)),
        # The canary: a ping's word against a real message's. No second failover interval is spent on it.
        _S.FAILED: Row(DOWN, (Do.COUNT_FAILED, Do.START_PINGS), Cause.FIRST_SEND_FAILED),
        _S.FAILED_AT_ONCE: Row(DOWN, (Do.COUNT_FAILED, Do.START_PINGS), Cause.FIRST_SEND_FAILED),
        _S.NEUTRAL: Row(TRIAL),
        _S.ANSWERED: Row(TRIAL),
        _S.LATE: Row(TRIAL, (Do.COUNT_LATE,)),
        _S.NOT_DUE: Row(TRIAL),
        _S.MARK_HEALTHY: Row(UP),
        _S.FORCE_FAILOVER: Row(DOWN, (Do.START_PINGS_LATER,), Cause.FORCED),
        _S.HOLD: Row(HELD, (), Cause.HELD),
    },
    FAILING: {
        _S.ROUTE: Row(FAILING, (Do.TO_PRIMARY,)),
        _S.ACCEPTED: Row(UP, (Do.COUNT_SENT, Do.STOP_INTERVAL), Cause.SEND_SUCCEEDED),
        _S.FAILED: Row(FAILING, (Do.COUNT_FAILED,)),
        # FAILED_AT_ONCE has no row: with an interval of 0 no entity is ever FAILING.
        _S.NEUTRAL: Row(FAILING),
        # Refused messages are never diverted (SPEC 3.6), nor are throttled ones: where nothing else follows a failure,
        # the interval must not run out over them.
        _S.ANSWERED: Row(UP, (Do.STOP_INTERVAL,), Cause.SEND_REFUSED),
        _S.LATE: Row(FAILING, (Do.COUNT_LATE,)),
        _S.INTERVAL_OVER: Row(DOWN, (Do.STOP_INTERVAL, Do.START_PINGS), Cause.INTERVAL_OVER),
        _S.NOT_DUE: Row(FAILING),
        _S.MARK_HEALTHY: Row(UP, (Do.STOP_INTERVAL,), Cause.MARKED_HEALTHY),
        _S.FORCE_FAILOVER: Row(DOWN, (Do.STOP_INTERVAL, Do.START_PINGS_LATER), Cause.FORCED),
        _S.HOLD: Row(HELD, (Do.STOP_INTERVAL,), Cause.HELD),
    },
    # Sends to the primary are disabled while DOWN and HELD (SPEC 4.3): no attempt of these epochs exists, so that
    # ACCEPTED, FAILED, NEUTRAL and ANSWERED have no rows.
    DOWN: {
        _S.ROUTE: Row(DOWN, (Do.TO_BACKLOG,)),
        _S.LATE: Row(DOWN, (Do.COUNT_LATE,)),
        _S.PING_DUE: Row(DOWN, (Do.PING,)),
        _S.PING_GOOD: Row(DOWN, (Do.NEXT_PING,)),
        _S.PING_RECOVERED: Row(TRIAL, (Do.STOP_PINGS,), Cause.PING_RECOVERED),
        _S.PING_BAD: Row(DOWN, (Do.NEXT_PING,)),
        # The broker works: its sends must be refused there, as those of an entity that never failed over (SPEC 3.6).
        _S.PING_REFUSED: Row(TRIAL, (Do.STOP_PINGS,), Cause.PING_REFUSED),
        _S.PING_OVERDUE: Row(DOWN, (Do.CANCEL_PING, Do.NEXT_PING)),
        _S.NOT_DUE: Row(DOWN),
        _S.MARK_HEALTHY: Row(UP, (Do.STOP_PINGS,), Cause.MARKED_HEALTHY),
        _S.FORCE_FAILOVER: Row(DOWN),
        _S.HOLD: Row(HELD, (Do.STOP_PINGS,), Cause.HELD),
    },
    HELD: {
        _S.ROUTE: Row(HELD, (Do.TO_BACKLOG,)),
        _S.LATE: Row(HELD, (Do.COUNT_LATE,)),
        _S.NOT_DUE: Row(HELD),
        _S.MARK_HEALTHY: Row(UP, (), Cause.MARKED_HEALTHY),
        _S.FORCE_FAILOVER: Row(DOWN, (Do.START_PINGS_LATER,), Cause.FORCED),
        _S.HOLD: Row(HELD),
    },
}


class BacklogSymbol(enum.Enum):
    """What can happen to the backlog fact."""

    DIVERT = "a send is routed to the backlog"
    DRAINED = "every queue was seen empty since the entity recovered and the last diverted send ended"
    NOT_DRAINED = "queues were seen empty, but too early to count"
    CAME_UP_UNTRACKED = "the entity came up in a process without a syphon"


BACKLOG: dict[Backlog, dict[BacklogSymbol, Backlog]] = {
    Backlog.CLEAN: {
        BacklogSymbol.DIVERT: Backlog.DIRTY,
        BacklogSymbol.DRAINED: Backlog.CLEAN,
        BacklogSymbol.NOT_DRAINED: Backlog.CLEAN,
        BacklogSymbol.CAME_UP_UNTRACKED: Backlog.CLEAN,
    },
    Backlog.DIRTY: {
        BacklogSymbol.DIVERT: Backlog.DIRTY,
        BacklogSymbol.DRAINED: Backlog.CLEAN,
        BacklogSymbol.NOT_DRAINED: Backlog.DIRTY,
        # The process with the syphon drains these, whatever state this process is in (SPEC 7.5).
        BacklogSymbol.CAME_UP_UNTRACKED: Backlog.CLEAN,
    },
}


def starts_epoch(before: Health, after: Health) -> bool:
    """Return whether a change of health starts a new epoch (rule 3)."""
    return before is not after and not (before is TRIAL and after is UP)
