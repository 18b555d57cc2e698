"""Every (health, symbol) pair: what is to happen is written down here once more, apart from the table.

Each row is driven through a real machine by real inputs; each pair without a row must raise and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest

from pairmq.core import PairOptions
from pairmq.core.machine import EntityMachine, ImpossibleInputError
from pairmq.core.signals import (
    DIVERT_ENDED,
    DIVERT_REQUESTED,
    FORCE_FAILOVER,
    HOLD,
    MARK_HEALTHY,
    ROUTE_REQUESTED,
    BacklogSeenEmpty,
    Changed,
    Input,
    LateResult,
    PingFailed,
    PingRefused,
    PingSucceeded,
    PingsUnauthorized,
    PrimaryAbandoned,
    PrimaryAccepted,
    PrimaryFailed,
    SendPing,
    StopPing,
    TimerFired,
    ToBacklog,
    ToPrimary,
    ping_ended,
)
from pairmq.core.transitions import (
    BACKLOG,
    HEALTH,
    MEANING,
    Backlog,
    BacklogSymbol,
    Health,
    Symbol,
    starts_epoch,
    visible,
)
from pairmq.model import EntityState, FailureKind, FailureReason, TransportError
from pairmq.model.events import Cause

OPTIONS = PairOptions(failover_interval=10, ping_primary_interval=60, ping_timeout=5, flap_window=300)
AT_ONCE = PairOptions(failover_interval=0, ping_primary_interval=60, ping_timeout=5, flap_window=300)

# The next health of every pair; a dot where the pair is impossible.
PAIRS = """
                 UP       TRIAL    FAILING  DOWN     HELD
ROUTE            UP       TRIAL    FAILING  DOWN     HELD
ACCEPTED         UP       UP       UP       .        .
FAILED           FAILING  DOWN     FAILING  .        .
FAILED_AT_ONCE   DOWN     DOWN     .        .        .
NEUTRAL          UP       TRIAL    FAILING  .        .
LATE             UP       TRIAL    FAILING  DOWN     HELD
INTERVAL_OVER    .        .        DOWN     .        .
PING_DUE         .        .        .        DOWN     .
PING_GOOD        .        .        .        DOWN     .
PING_RECOVERED   .        .        .        TRIAL    .
PING_BAD         .        .        .        DOWN     .
PING_REFUSED     .        .        .        TRIAL    .
PING_OVERDUE     .        .        .        DOWN     .
NOT_DUE          UP       TRIAL    FAILING  DOWN     HELD
MARK_HEALTHY     UP       UP       UP       UP       UP
FORCE_FAILOVER   DOWN     DOWN     DOWN     DOWN     DOWN
HOLD             HELD     HELD     HELD     HELD     HELD
ANSWERED         UP       TRIAL    UP       .        .
"""

# What each possible pair does. The machine enters its health as `in_health` says; the input comes at the instant in the
# third column; the deadline is an instant too. FAILING began at 995 (so its interval ends at 1005), DOWN waits for its
# ping of 1000 (or has ping 1 under way until 1003 where the symbol needs one).
ROWS = """
UP       ROUTE            1000   to-primary                        epoch+0   no-deadline
UP       ACCEPTED         1000   nothing                           epoch+0   no-deadline
UP       FAILED           1000   changed:SEND_FAILED               epoch+1   1010
UP       FAILED_AT_ONCE   1000   changed:SEND_FAILED               epoch+1   1000
UP       NEUTRAL          1000   nothing                           epoch+0   no-deadline
UP       ANSWERED         1000   nothing                           epoch+0   no-deadline
UP       LATE             1000   late                              epoch+0   no-deadline
UP       NOT_DUE          1000   nothing                           epoch+0   no-deadline
UP       MARK_HEALTHY     1000   nothing                           epoch+0   no-deadline
UP       FORCE_FAILOVER   1000   changed:FORCED                    epoch+1   1060
UP       HOLD             1000   changed:HELD                      epoch+1   no-deadline
TRIAL    ROUTE            1000   to-primary                        epoch+0   no-deadline
TRIAL    ACCEPTED         1000   nothing                           epoch+0   no-deadline
TRIAL    FAILED           1000   changed:FIRST_SEND_FAILED         epoch+1   1000
TRIAL    FAILED_AT_ONCE   1000   changed:FIRST_SEND_FAILED         epoch+1   1000
TRIAL    NEUTRAL          1000   nothing                           epoch+0   no-deadline
TRIAL    ANSWERED         1000   nothing                           epoch+0   no-deadline
TRIAL    LATE             1000   late                              epoch+0   no-deadline
TRIAL    NOT_DUE          1000   nothing                           epoch+0   no-deadline
TRIAL    MARK_HEALTHY     1000   nothing                           epoch+0   no-deadline
TRIAL    FORCE_FAILOVER   1000   changed:FORCED                    epoch+1   1060
TRIAL    HOLD             1000   changed:HELD                      epoch+1   no-deadline
FAILING  ROUTE            1000   to-primary                        epoch+0   1005
FAILING  ACCEPTED         1000   changed:SEND_SUCCEEDED            epoch+1   no-deadline
FAILING  FAILED           1000   nothing                           epoch+0   1005
FAILING  NEUTRAL          1000   nothing                           epoch+0   1005
FAILING  ANSWERED         1000   changed:SEND_REFUSED              epoch+1   no-deadline
FAILING  LATE             1000   late                              epoch+0   1005
FAILING  INTERVAL_OVER    1005   changed:INTERVAL_OVER             epoch+1   1005
FAILING  NOT_DUE          1000   nothing                           epoch+0   1005
FAILING  MARK_HEALTHY     1000   changed:MARKED_HEALTHY            epoch+1   no-deadline
FAILING  FORCE_FAILOVER   1000   changed:FORCED                    epoch+1   1060
FAILING  HOLD             1000   changed:HELD                      epoch+1   no-deadline
DOWN     ROUTE             999   to-backlog                        epoch+0   1000
DOWN     LATE              999   late                              epoch+0   1000
DOWN     PING_DUE         1000   ping:1                            epoch+0   1005
DOWN     PING_GOOD        1000   nothing                           epoch+0   1060
DOWN     PING_RECOVERED   1000   changed:PING_RECOVERED            epoch+1   no-deadline
DOWN     PING_BAD         1000   nothing                           epoch+0   1060
DOWN     PING_REFUSED     1000   changed:PING_REFUSED              epoch+1   no-deadline
DOWN     PING_OVERDUE     1003   stop-ping:1                       epoch+0   1063
DOWN     NOT_DUE           999   nothing                           epoch+0   1000
DOWN     MARK_HEALTHY      999   changed:MARKED_HEALTHY            epoch+1   no-deadline
DOWN     FORCE_FAILOVER    999   nothing                           epoch+0   1000
DOWN     HOLD              999   changed:HELD                      epoch+1   no-deadline
HELD     ROUTE            1000   to-backlog                        epoch+0   no-deadline
HELD     LATE             1000   late                              epoch+0   no-deadline
HELD     NOT_DUE          1000   nothing                           epoch+0   no-deadline
HELD     MARK_HEALTHY     1000   changed:MARKED_HEALTHY            epoch+1   no-deadline
HELD     FORCE_FAILOVER   1000   changed:FORCED                    epoch+1   1060
HELD     HOLD             1000   nothing                           epoch+0   no-deadline
"""

PINGED = (Symbol.PING_GOOD, Symbol.PING_RECOVERED, Symbol.PING_BAD, Symbol.PING_OVERDUE)
RESULTS = (Symbol.ACCEPTED, Symbol.FAILED, Symbol.FAILED_AT_ONCE, Symbol.NEUTRAL, Symbol.ANSWERED, Symbol.LATE)
RUNNING = (Health.UP, Health.TRIAL, Health.FAILING)


def _read_pairs() -> dict[tuple[Health, Symbol], Health | None]:
    head, *lines = (line.split() for line in PAIRS.strip().splitlines())
    return {
        (Health[column], Symbol[name]): None if cell == "." else Health[cell]
        for name, *cells in lines
        for column, cell in zip(head, cells, strict=True)
    }


class Expected(NamedTuple):
    health: Health
    symbol: Symbol
    at: float
    effect: str
    epochs: int
    deadline: float | None

    def __str__(self) -> str:
        return f"{self.health.name}-{self.symbol.name}"


def _read_rows() -> list[Expected]:
    rows = []
    for line in ROWS.strip().splitlines():
        health, symbol, at, effect, epochs, deadline = line.split()
        end = None if deadline == "no-deadline" else float(deadline)
        rows.append(Expected(Health[health], Symbol[symbol], float(at), effect, int(epochs[-1]), end))
    return rows


NEXT = _read_pairs()
EXPECTED = _read_rows()
POSSIBLE = {pair for pair, next_health in NEXT.items() if next_health is not None}
IMPOSSIBLE = sorted(set(NEXT) - POSSIBLE, key=str)


def slots(machine: EntityMachine) -> dict[str, Any]:
    return {name: getattr(machine, name) for name in EntityMachine.__slots__}


def feed(machine: EntityMachine, *facts: tuple[float, Input]) -> None:
    for at, fact in facts:
        machine.handle(fact, at)


def in_health(health: Health, symbol: Symbol | None = None, *, tracks_backlog: bool = False) -> EntityMachine:
    """Bring a machine into a health by real inputs.

    One attempt of epoch 0 is always in flight, and in UP, TRIAL and FAILING one of the present epoch. While DOWN or
    HELD one send was diverted and has ended. The last recovery is more than a flap window ago, but for PING_GOOD.
    """
    options = AT_ONCE if symbol is Symbol.FAILED_AT_ONCE else OPTIONS
    machine = EntityMachine(options, 0, tracks_backlog=tracks_backlog)
    feed(machine, (0, ROUTE_REQUESTED), (1, HOLD), (2, ROUTE_REQUESTED), (3, DIVERT_ENDED), (4, MARK_HEALTHY))
    if health is Health.TRIAL:
        feed(machine, (5, FORCE_FAILOVER), (65, TimerFired()), (66, PingSucceeded(1)))
    elif health is Health.HELD:
        feed(machine, (900, HOLD))
    elif health is Health.FAILING:
        feed(machine, (900, ROUTE_REQUESTED), (995, PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE)))
    elif health is Health.DOWN and symbol is Symbol.PING_GOOD:
        # A flap, so that one good ping is not enough: down at 911, its first ping after one interval.
        feed(machine, (900, HOLD), (901, MARK_HEALTHY), (901, ROUTE_REQUESTED))
        feed(machine, (901, PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE)), (911, TimerFired()))
        feed(machine, (998, TimerFired()))
    elif health is Health.DOWN and symbol is Symbol.PING_REFUSED:
        feed(machine, (818, FORCE_FAILOVER), (878, TimerFired()), (878, PingRefused(1)))
        feed(machine, (938, TimerFired()), (938, PingRefused(2)), (998, TimerFired()))
    elif health is Health.DOWN and symbol in PINGED:
        feed(machine, (938, FORCE_FAILOVER), (998, TimerFired()))
    elif health is Health.DOWN:
        feed(machine, (940, FORCE_FAILOVER))
    if health in RUNNING:
        feed(machine, (998, ROUTE_REQUESTED))
    else:
        feed(machine, (998, ROUTE_REQUESTED), (998, DIVERT_ENDED))
    assert machine.health is health
    return machine


INPUT_OF: dict[Symbol, Callable[[EntityMachine], Input]] = {
    Symbol.ROUTE: lambda _: ROUTE_REQUESTED,
    Symbol.ACCEPTED: lambda machine: PrimaryAccepted(machine.epoch),
    Symbol.FAILED: lambda machine: PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE),
    Symbol.FAILED_AT_ONCE: lambda machine: PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE),
    Symbol.NEUTRAL: lambda machine: PrimaryAbandoned(machine.epoch),
    Symbol.ANSWERED: lambda machine: PrimaryFailed(machine.epoch, FailureKind.REFUSED),
    Symbol.LATE: lambda _: PrimaryAccepted(0),
    Symbol.INTERVAL_OVER: lambda _: TimerFired(),
    Symbol.PING_DUE: lambda _: TimerFired(),
    Symbol.PING_GOOD: lambda _: PingSucceeded(1),
    Symbol.PING_RECOVERED: lambda _: PingSucceeded(1),
    Symbol.PING_BAD: lambda _: PingFailed(1),
    Symbol.PING_REFUSED: lambda _: PingRefused(3),
    Symbol.PING_OVERDUE: lambda _: TimerFired(),
    Symbol.NOT_DUE: lambda _: TimerFired(),
    Symbol.MARK_HEALTHY: lambda _: MARK_HEALTHY,
    Symbol.FORCE_FAILOVER: lambda _: FORCE_FAILOVER,
    Symbol.HOLD: lambda _: HOLD,
}


def told(effects: tuple[Any, ...]) -> str:
    """Write effects as the rows above do."""
    words = []
    for effect in effects:
        match effect:
            case ToPrimary():
                words.append("to-primary")
            case ToBacklog():
                words.append("to-backlog")
            case LateResult():
                words.append("late")
            case SendPing():
                words.append(f"ping:{effect.number}")
            case StopPing():
                words.append(f"stop-ping:{effect.number}")
            case Changed():
                words.append(f"changed:{effect.cause.name}")
    return " ".join(words) or "nothing"


class Outcome(NamedTuple):
    machine: EntityMachine
    effects: tuple[Any, ...]
    epochs: int


def outcome_of(row: Expected, *, tracks_backlog: bool = False) -> Outcome:
    machine = in_health(row.health, row.symbol, tracks_backlog=tracks_backlog)
    epoch = machine.epoch
    effects = machine.handle(INPUT_OF[row.symbol](machine), row.at)
    return Outcome(machine, effects, machine.epoch - epoch)


rows = pytest.mark.parametrize("row", EXPECTED, ids=str)


# ---------------------------------------------------------------------------------------------- the table as a whole


def test_the_written_pairs_are_all_pairs():
    assert set(NEXT) == set(product(Health, Symbol))


def test_the_table_has_a_row_for_each_possible_pair_and_for_no_other():
    assert {(health, symbol) for health, table in HEALTH.items() for symbol in table} == POSSIBLE


def test_each_possible_pair_is_tested():
    assert [(row.health, row.symbol) for row in EXPECTED if (row.health, row.symbol) not in POSSIBLE] == []
    assert {(row.health, row.symbol) for row in EXPECTED} == POSSIBLE


def test_every_symbol_has_a_meaning():
    assert set(MEANING) == set(Symbol)


# ------------------------------------------------------------------------------------------------------- health rows


@rows
def test_a_row_leads_to_its_health(row: Expected):
    assert outcome_of(row).machine.health is NEXT[row.health, row.symbol]


@rows
def test_a_row_has_its_effects_and_no_other(row: Expected):
    assert told(outcome_of(row).effects) == row.effect


@rows
def test_a_row_starts_a_new_epoch_or_not(row: Expected):
    assert outcome_of(row).epochs == row.epochs


@rows
def test_a_row_sets_the_next_deadline(row: Expected):
    assert outcome_of(row).machine.next_deadline() == row.deadline


@rows
def test_effects_carry_the_epoch_that_they_belong_to(row: Expected):
    machine, effects, _ = outcome_of(row)
    assert [e.epoch for e in effects if not isinstance(e, LateResult)] == [
        machine.epoch for e in effects if not isinstance(e, LateResult)
    ]


@rows
def test_a_change_has_the_states_as_people_see_them(row: Expected):
    machine = in_health(row.health, row.symbol)
    before = machine.state
    changes = [e for e in machine.handle(INPUT_OF[row.symbol](machine), row.at) if isinstance(e, Changed)]
    assert [(e.previous, e.current) for e in changes] == [(before, machine.state)] * len(changes)


@rows
def test_with_a_syphon_no_health_row_makes_the_backlog_clean(row: Expected):
    assert outcome_of(row, tracks_backlog=True).machine.backlog is Backlog.DIRTY


@rows
def test_without_a_syphon_the_backlog_is_dirty_while_failed_over_and_clean_as_soon_as_the_entity_is_up(row: Expected):
    was_diverted = row.health in (Health.DOWN, Health.HELD)
    stays_away = NEXT[row.health, row.symbol] in (Health.DOWN, Health.HELD)
    expected = Backlog.DIRTY if was_diverted and stays_away else Backlog.CLEAN
    assert outcome_of(row).machine.backlog is expected


@rows
def test_a_row_counts_what_is_in_flight(row: Expected):
    before = in_health(row.health, row.symbol)
    machine = outcome_of(row).machine
    sending, diverting = before.sending, before.diverting
    if row.symbol is Symbol.ROUTE and row.health in RUNNING:
        sending += 1
    elif row.symbol is Symbol.ROUTE:
        diverting += 1
    elif row.symbol in RESULTS:
        sending -= 1
    assert (machine.sending, machine.diverting) == (sending, diverting)


LATE_INPUTS: dict[str, Input] = {
    "success": PrimaryAccepted(0),
    "failure": PrimaryFailed(0, FailureKind.UNAVAILABLE),
    "transient": PrimaryFailed(0, FailureKind.TRANSIENT),
    "refusal": PrimaryFailed(0, FailureKind.REFUSED),
    "cancelled": PrimaryAbandoned(0),
}


@pytest.mark.parametrize("health", Health, ids=lambda health: health.name)
@pytest.mark.parametrize("fact", LATE_INPUTS.values(), ids=LATE_INPUTS)
def test_a_late_result_of_any_kind_changes_nothing_but_counters(health: Health, fact: Input):
    machine = in_health(health)
    before = slots(machine)
    assert machine.handle(fact, 999) == (LateResult(0),)
    assert slots(machine) == before | {"_late": before["_late"] + 1, "sending": before["sending"] - 1}


@pytest.mark.parametrize("health", Health, ids=lambda health: health.name)
@pytest.mark.parametrize("kind", [PingSucceeded, PingFailed, PingRefused])
def test_an_answer_to_an_earlier_ping_changes_nothing_but_a_counter(health: Health, kind: Callable[[int], Input]):
    machine = EntityMachine(OPTIONS, 0)
    feed(machine, (1, FORCE_FAILOVER), (61, TimerFired()), (66, TimerFired()))  # ping 1 is overdue
    if health is Health.HELD:
        feed(machine, (67, HOLD))
    elif health is Health.TRIAL:
        feed(machine, (126, TimerFired()), (127, PingSucceeded(2)))
    elif health is not Health.DOWN:
        feed(machine, (67, MARK_HEALTHY), (68, ROUTE_REQUESTED))
    if health is Health.FAILING:
        feed(machine, (69, PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE)))
    assert machine.health is health
    before = slots(machine)
    assert machine.handle(kind(1), 128) == (LateResult(machine.epoch),)
    assert slots(machine) == before | {"_late": before["_late"] + 1}


@pytest.mark.parametrize("between", [PingSucceeded, PingFailed, None])
def test_refused_pings_are_believed_only_in_a_row(between: Callable[[int], Input] | None):
    machine = EntityMachine(OPTIONS, 0)
    feed(machine, (0, HOLD), (1, MARK_HEALTHY), (1, ROUTE_REQUESTED))
    # A flap, so that one good ping ends nothing.
    feed(machine, (1, PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE)), (11, TimerFired()))
    for number in range(1, 6):
        deadline = machine.next_deadline()
        assert deadline is not None
        machine.handle(TimerFired(), deadline)
        if number == 3 and between is None:
            machine.handle(TimerFired(), deadline + OPTIONS.ping_timeout)  # overdue
        else:
            machine.handle(between(number) if number == 3 and between else PingRefused(number), deadline)
        assert machine.health is Health.DOWN


def refusal(reason: FailureReason) -> TransportError:
    return TransportError("no", FailureKind.REFUSED, reason)


@pytest.mark.parametrize(
    ("failure", "input"),
    [
        (None, PingSucceeded(1, 0.5)),
        (refusal(FailureReason.NOT_FOUND), PingRefused(1, 0.5)),
        (refusal(FailureReason.UNAUTHORIZED), PingFailed(1, 0.5, unauthorized=True)),
        (refusal(FailureReason.DISABLED), PingFailed(1, 0.5)),
        (ValueError("a transport's mistake"), PingFailed(1, 0.5)),
    ],
)
def test_what_came_of_a_ping(failure: Exception | None, input: Input):
    assert ping_ended(1, failure, 0.5) == input


@pytest.mark.parametrize("ended", [PingSucceeded, PingFailed, PingRefused])
def test_pings_without_a_right_are_reported_once_in_a_row(ended: Callable[[int], Input]):
    machine = EntityMachine(OPTIONS, 0)
    # A flap, so that one good ping ends nothing.
    feed(machine, (0, HOLD), (1, MARK_HEALTHY), (1, ROUTE_REQUESTED))
    feed(machine, (1, PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE)), (11, TimerFired()))
    reported = []
    for number in range(1, 10):
        deadline = machine.next_deadline()
        assert deadline is not None
        machine.handle(TimerFired(), deadline)
        answer = ended(number) if number == 5 else PingFailed(number, unauthorized=True)
        reported += [number] * (PingsUnauthorized(machine.epoch) in machine.handle(answer, deadline))
    assert reported == [3, 8]


def test_a_ping_under_way_is_stopped_when_an_operator_says_it_works():
    machine = in_health(Health.DOWN, Symbol.PING_BAD)
    assert told(machine.handle(MARK_HEALTHY, 1000)) == "stop-ping:1 changed:MARKED_HEALTHY"


def test_a_ping_under_way_is_stopped_by_a_hold():
    machine = in_health(Health.DOWN, Symbol.PING_BAD)
    assert told(machine.handle(HOLD, 1000)) == "stop-ping:1 changed:HELD"
    assert machine.next_deadline() is None


def test_a_forced_failover_leaves_a_ping_under_way_alone():
    machine = in_health(Health.DOWN, Symbol.PING_BAD)
    assert machine.handle(FORCE_FAILOVER, 1000) == ()
    assert machine.next_deadline() == 1003


# ------------------------------------------------------------------------------------ which input is which symbol


@pytest.mark.parametrize("kind", [FailureKind.UNAVAILABLE, FailureKind.TRANSIENT])
def test_an_unavailable_or_outlived_transient_failure_counts_toward_failover(kind: FailureKind):
    machine = in_health(Health.UP)
    machine.handle(PrimaryFailed(machine.epoch, kind), 1000)
    assert machine.health is Health.FAILING


@pytest.mark.parametrize("kind", [FailureKind.BUSY, FailureKind.REFUSED])
@pytest.mark.parametrize("health", [Health.UP, Health.TRIAL], ids=lambda health: health.name)
def test_throttling_and_a_refusal_leave_an_entity_that_is_up_alone(health: Health, kind: FailureKind):
    machine = in_health(health)
    before = slots(machine)
    assert machine.handle(PrimaryFailed(machine.epoch, kind), 1000) == ()
    assert slots(machine) == before | {"sending": before["sending"] - 1}


@pytest.mark.parametrize("kind", [FailureKind.BUSY, FailureKind.REFUSED])
def test_throttling_and_a_refusal_end_a_failing_interval_as_the_broker_responds(kind: FailureKind):
    machine = in_health(Health.FAILING)
    assert told(machine.handle(PrimaryFailed(machine.epoch, kind), 1000)) == "changed:SEND_REFUSED"
    assert machine.health is Health.UP
    assert machine.next_deadline() is None


@pytest.mark.parametrize("interval", [0, 10])
def test_throttling_counts_with_failover_on_busy(interval: float):
    machine = EntityMachine(PairOptions(failover_on_busy=True, failover_interval=interval), 0)
    feed(machine, (0, ROUTE_REQUESTED), (1, PrimaryFailed(0, FailureKind.BUSY)))
    assert machine.health is (Health.FAILING if interval else Health.DOWN)


def test_a_refusal_counts_for_nothing_even_where_throttling_counts():
    machine = EntityMachine(PairOptions(failover_on_busy=True), 0)
    feed(machine, (0, ROUTE_REQUESTED), (1, PrimaryFailed(0, FailureKind.REFUSED)))
    assert machine.health is Health.UP


@pytest.mark.parametrize("health", RUNNING, ids=lambda health: health.name)
def test_a_cancelled_attempt_says_nothing_about_the_primary(health: Health):
    machine = in_health(health)
    before = slots(machine)
    assert machine.handle(PrimaryAbandoned(machine.epoch), 1000) == ()
    assert slots(machine) == before | {"sending": before["sending"] - 1}


# ------------------------------------------------------------------------------------------------- impossible pairs


@pytest.mark.parametrize(("health", "symbol"), IMPOSSIBLE, ids=lambda value: value.name)
def test_an_impossible_pair_raises_and_changes_nothing(health: Health, symbol: Symbol):
    machine = in_health(health)
    before = slots(machine)
    with pytest.raises(ImpossibleInputError, match=f"{symbol.name} in {health.name}"):
        machine._row(symbol)
    assert slots(machine) == before


LIES: dict[str, Callable[[EntityMachine], Input]] = {
    "a success of the present epoch": lambda machine: PrimaryAccepted(machine.epoch),
    "a failure of the present epoch": lambda machine: PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE),
    "a throttling of the present epoch": lambda machine: PrimaryFailed(machine.epoch, FailureKind.BUSY),
    "a refusal of the present epoch": lambda machine: PrimaryFailed(machine.epoch, FailureKind.REFUSED),
    "a cancellation of the present epoch": lambda machine: PrimaryAbandoned(machine.epoch),
}
LIES_ANYWHERE: dict[str, Callable[[EntityMachine], Input]] = {
    "a success of an epoch to come": lambda machine: PrimaryAccepted(machine.epoch + 1),
    "a failure of an epoch to come": lambda machine: PrimaryFailed(machine.epoch + 1, FailureKind.UNAVAILABLE),
    "a cancellation of an epoch to come": lambda machine: PrimaryAbandoned(machine.epoch + 1),
    "a good ping never sent": lambda _: PingSucceeded(99),
    "a bad ping never sent": lambda _: PingFailed(99),
    "a refused ping never sent": lambda _: PingRefused(99),
    "the end of a diversion never begun": lambda _: DIVERT_ENDED,
}


@pytest.mark.parametrize("health", [Health.DOWN, Health.HELD], ids=lambda health: health.name)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_no_attempt_of_a_failed_over_epoch_can_end(health: Health, lie: Callable[[EntityMachine], Input]):
    machine = in_health(health)
    before = slots(machine)
    with pytest.raises(ImpossibleInputError):
        machine.handle(lie(machine), 999)
    assert slots(machine) == before


@pytest.mark.parametrize("health", Health, ids=lambda health: health.name)
@pytest.mark.parametrize("lie", LIES_ANYWHERE.values(), ids=LIES_ANYWHERE)
def test_a_fact_about_nothing_raises_and_changes_nothing(health: Health, lie: Callable[[EntityMachine], Input]):
    machine = in_health(health)
    before = slots(machine)
    with pytest.raises(ImpossibleInputError):
        machine.handle(lie(machine), 999)
    assert slots(machine) == before


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_result_without_an_attempt_in_flight_raises_and_changes_nothing(lie: Callable[[EntityMachine], Input]):
    machine = EntityMachine(OPTIONS, 0)
    before = slots(machine)
    with pytest.raises(ImpossibleInputError):
        machine.handle(lie(machine), 1)
    assert slots(machine) == before


# ----------------------------------------------------------------------------------------------------------- epochs


@pytest.mark.parametrize(("left", "entered"), list(product(Health, Health)), ids=lambda health: health.name)
def test_every_move_starts_an_epoch_but_that_of_a_confirmed_trial(left: Health, entered: Health):
    expected = left is not entered and (left, entered) != (Health.TRIAL, Health.UP)
    assert starts_epoch(left, entered) is expected


# ---------------------------------------------------------------------------------------------------------- backlog

BACKLOG_PAIRS = """
                    CLEAN   DIRTY
DIVERT              DIRTY   DIRTY
DRAINED             CLEAN   CLEAN
NOT_DRAINED         CLEAN   DIRTY
CAME_UP_UNTRACKED   CLEAN   CLEAN
"""


def test_the_backlog_table_is_as_written():
    head, *lines = (line.split() for line in BACKLOG_PAIRS.strip().splitlines())
    written = {
        (Backlog[column], BacklogSymbol[name]): Backlog[cell]
        for name, *cells in lines
        for column, cell in zip(head, cells, strict=True)
    }
    assert {(state, symbol): after for state, row in BACKLOG.items() for symbol, after in row.items()} == written


def test_the_written_backlog_pairs_are_all_pairs():
    assert {(state, symbol) for state, row in BACKLOG.items() for symbol in row} == set(product(Backlog, BacklogSymbol))


@pytest.mark.parametrize("tracks", [False, True])
def test_a_divert_makes_the_backlog_dirty(tracks: bool):
    machine = EntityMachine(OPTIONS, 0, tracks_backlog=tracks)
    feed(machine, (1, HOLD), (2, ROUTE_REQUESTED))
    assert machine.backlog is Backlog.DIRTY


def test_seen_empty_since_the_entity_came_back_makes_a_dirty_backlog_clean():
    machine = EntityMachine(OPTIONS, 0, tracks_backlog=True)
    assert told(machine.handle(BacklogSeenEmpty(0), 1)) == "changed:DRAINED"
    assert machine.backlog is Backlog.CLEAN


def test_seen_empty_leaves_a_clean_backlog_clean_without_an_effect():
    machine = EntityMachine(OPTIONS, 0, tracks_backlog=True)
    machine.handle(BacklogSeenEmpty(0), 1)
    assert machine.handle(BacklogSeenEmpty(1), 2) == ()
    assert machine.backlog is Backlog.CLEAN


@pytest.mark.parametrize("health", [Health.FAILING, Health.DOWN, Health.HELD], ids=lambda health: health.name)
def test_seen_empty_does_not_count_before_the_entity_is_back(health: Health):
    machine = in_health(health, tracks_backlog=True)
    assert machine.handle(BacklogSeenEmpty(999), 999) == ()
    assert machine.backlog is Backlog.DIRTY


@pytest.mark.parametrize("health", [Health.UP, Health.TRIAL], ids=lambda health: health.name)
def test_seen_empty_counts_once_the_entity_is_back(health: Health):
    machine = in_health(health, tracks_backlog=True)
    machine.handle(BacklogSeenEmpty(999), 999)
    assert machine.backlog is Backlog.CLEAN


def test_a_machine_starts_dirty_where_a_syphon_runs_and_clean_elsewhere():
    assert EntityMachine(OPTIONS, 0, tracks_backlog=True).backlog is Backlog.DIRTY
    assert EntityMachine(OPTIONS, 0, tracks_backlog=False).backlog is Backlog.CLEAN


def test_a_machine_of_an_entity_that_was_drained_starts_clean():
    assert EntityMachine(OPTIONS, 0, tracks_backlog=True, drained=True).backlog is Backlog.CLEAN


@pytest.mark.parametrize("tracks", [False, True])
@pytest.mark.parametrize("health", Health)
def test_only_a_machine_that_is_up_and_clean_with_nothing_in_flight_is_as_new(health: Health, tracks: bool):
    machine = in_health(health, tracks_backlog=tracks)
    flying = [0, machine.epoch] if health in (Health.UP, Health.TRIAL, Health.FAILING) else [0]
    for epoch in flying:
        assert not machine.is_as_new(10_000)
        if machine.sending:
            feed(machine, (1000, PrimaryAbandoned(epoch)))
    assert machine.sending == machine.diverting == 0
    assert machine.is_as_new(10_000) == (health is Health.UP and not tracks)
    feed(machine, (10_000, BacklogSeenEmpty(10_000)))
    assert machine.is_as_new(10_000) == (health is Health.UP)


def test_a_machine_is_as_new_once_no_failure_would_count_as_a_flap():
    machine = EntityMachine(OPTIONS, 0)
    feed(machine, (0, HOLD), (5, MARK_HEALTHY))
    assert not machine.is_as_new(5 + OPTIONS.flap_window - 1)
    assert machine.is_as_new(5 + OPTIONS.flap_window)


def test_a_machine_is_not_as_new_while_a_diverted_send_is_in_flight():
    machine = EntityMachine(OPTIONS, 0)
    feed(machine, (0, DIVERT_REQUESTED))
    assert not machine.is_as_new(1)
    feed(machine, (1, DIVERT_ENDED))
    assert machine.is_as_new(1)


# ---------------------------------------------------------------------------------------------- the state people see

VISIBLE = """
          CLEAN         DIRTY
UP        HEALTHY       DRAINING
TRIAL     HEALTHY       DRAINING
FAILING   FAILING       FAILING
DOWN      FAILED_OVER   FAILED_OVER
HELD      FAILED_OVER   FAILED_OVER
"""


def _read_visible() -> dict[tuple[Health, Backlog], EntityState]:
    head, *lines = (line.split() for line in VISIBLE.strip().splitlines())
    return {
        (Health[name], Backlog[column]): EntityState[cell]
        for name, *cells in lines
        for column, cell in zip(head, cells, strict=True)
    }


@pytest.mark.parametrize(("health", "backlog"), list(product(Health, Backlog)), ids=lambda value: value.name)
def test_the_state_people_see_is_derived_from_the_two_facts(health: Health, backlog: Backlog):
    assert visible(health, backlog) is _read_visible()[health, backlog]


def test_an_operators_decision_without_an_observer_is_logged():
    machine = in_health(Health.DOWN)
    (change,) = machine.handle(HOLD, 999)
    assert isinstance(change, Changed)
    assert (change.previous, change.current) == (EntityState.FAILED_OVER, EntityState.FAILED_OVER)


def test_a_change_carries_the_counts_of_the_state_that_it_ends_and_how_long_it_lasted():
    machine = EntityMachine(OPTIONS, 100)
    feed(machine, (101, ROUTE_REQUESTED), (102, ROUTE_REQUESTED), (103, ROUTE_REQUESTED), (104, ROUTE_REQUESTED))
    feed(machine, (105, PrimaryAccepted(0)), (106, PrimaryAccepted(0)))
    (failing,) = machine.handle(PrimaryFailed(0, FailureKind.UNAVAILABLE), 107)
    feed(machine, (108, PrimaryAccepted(0)), (109, ROUTE_REQUESTED))
    machine.handle(PrimaryFailed(1, FailureKind.UNAVAILABLE), 110)
    (down,) = machine.handle(TimerFired(), 117)
    feed(machine, (118, ROUTE_REQUESTED), (119, ROUTE_REQUESTED))
    up = machine.handle(MARK_HEALTHY, 120)[-1]
    told_counts = [(c.lasted, c.sent, c.diverted, c.failed, c.late) for c in (failing, down, up)]
    assert told_counts == [(7, 2, 0, 1, 0), (10, 0, 0, 1, 1), (3, 0, 2, 0, 0)]


def test_the_causes_of_all_rows_are_used():
    assert {row.cause for table in HEALTH.values() for row in table.values()} - {None} == set(Cause) - {
        Cause.DRAINED,
        Cause.ORDER_KEPT,
    }


# A divert for the order of a key: whatever the health (SPEC 8.3).


@pytest.mark.parametrize("tracks", [True, False])
@pytest.mark.parametrize("health", list(Health))
def test_a_divert_for_order_is_in_flight_in_every_health(health: Health, tracks: bool):
    machine = in_health(health, tracks_backlog=tracks)
    epoch = machine.epoch
    first, *rest = machine.handle(DIVERT_REQUESTED, 1000)
    assert (first, rest, machine.diverting) == (ToBacklog(epoch), [], 1)
    assert machine.health is health
    machine.handle(DIVERT_ENDED, 1000)
    assert machine.diverting == 0


@pytest.mark.parametrize("health", list(Health))
def test_without_a_syphon_a_divert_for_order_leaves_no_backlog_to_be_drained(health: Health):
    machine = in_health(health, tracks_backlog=False)
    machine.handle(DIVERT_REQUESTED, 1000)
    away = health in (Health.DOWN, Health.HELD)  # it is clean again when the entity comes up
    assert machine.backlog is (Backlog.DIRTY if away else Backlog.CLEAN)


def test_with_a_syphon_a_divert_for_order_makes_a_healthy_entity_drain():
    machine = EntityMachine(OPTIONS, 0, tracks_backlog=True)
    machine.handle(BacklogSeenEmpty(1), 2)
    _, change = machine.handle(DIVERT_REQUESTED, 3)
    assert isinstance(change, Changed)
    assert (change.previous, change.current) == (EntityState.HEALTHY, EntityState.DRAINING)
    assert (change.cause, change.diverted) == (Cause.ORDER_KEPT, 1)
    assert machine.handle(BacklogSeenEmpty(3), 4) == ()  # one is in flight
    machine.handle(DIVERT_ENDED, 5)
    assert machine.handle(BacklogSeenEmpty(5), 6)[0].cause is Cause.DRAINED
