"""The hazards of a naive failover that the core's decisions rule out, one by one.

Each was found as a short counterexample in a model of the naive design; each test is that story, told to the real core.
"""

from __future__ import annotations

import inspect

import pytest

from pairmq.core import PairOptions
from pairmq.core.lanes import EmptyWatch
from pairmq.core.machine import EntityMachine
from pairmq.core.signals import (
    DIVERT_ENDED,
    FORCE_FAILOVER,
    HOLD,
    MARK_HEALTHY,
    ROUTE_REQUESTED,
    BacklogSeenEmpty,
    Changed,
    LateResult,
    PingFailed,
    PingSucceeded,
    PrimaryAbandoned,
    PrimaryAccepted,
    PrimaryFailed,
    SendPing,
    TimerFired,
    ToBacklog,
    ToPrimary,
)
from pairmq.core.transitions import Backlog, Health
from pairmq.model import EntityState, FailureKind

UNAVAILABLE = FailureKind.UNAVAILABLE


@pytest.fixture
def options() -> PairOptions:
    return PairOptions(failover_interval=10, ping_primary_interval=60, ping_timeout=10, flap_window=300)


@pytest.fixture
def syphon(options: PairOptions) -> EntityMachine:
    """An entity in a process that hosts the syphon, with a backlog that was seen empty once."""
    machine = EntityMachine(options, 0, tracks_backlog=True)
    machine.handle(BacklogSeenEmpty(0), 0)
    return machine


@pytest.fixture
def sender(options: PairOptions) -> EntityMachine:
    """An entity in a process that only sends."""
    return EntityMachine(options, 0)


def fail_over(machine: EntityMachine, at: float) -> float:
    """Lose the primary at an instant, and wait for the failover; the instant when it is down."""
    machine.handle(ROUTE_REQUESTED, at)
    machine.handle(PrimaryFailed(machine.epoch, UNAVAILABLE), at)
    if machine.health is Health.FAILING:
        at = machine.next_deadline() or at
        machine.handle(TimerFired(), at)
    assert machine.health is Health.DOWN
    return at


def recover(machine: EntityMachine) -> tuple[float, int]:
    """Answer pings with success until the entity is back; the instant, and how many it took."""
    now, pings = 0.0, 0
    while machine.health is Health.DOWN:
        now = machine.next_deadline() or now
        (ping,) = machine.handle(TimerFired(), now)
        assert isinstance(ping, SendPing)
        machine.handle(PingSucceeded(ping.number), now)
        pings += 1
    return now, pings


# ----------------------------------------------------------- "drained" is said while a diverted send is in flight


def test_a_backlog_is_never_drained_while_a_diverted_send_is_in_flight(syphon: EntityMachine):
    """Hazard: "drained" is said while a diverted send is in flight; what it leaves is stranded."""
    down_at = fail_over(syphon, 1)
    syphon.handle(ROUTE_REQUESTED, down_at)  # still in flight when the entity is back
    now, _ = recover(syphon)
    assert syphon.handle(BacklogSeenEmpty(now + 1), now + 2) == ()
    assert syphon.state is EntityState.DRAINING


def test_a_backlog_is_drained_only_by_a_look_that_began_after_the_last_diverted_send_ended(syphon: EntityMachine):
    """Hazard: "drained" is said of a look at the queues that the last diverted send came after."""
    down_at = fail_over(syphon, 1)
    syphon.handle(ROUTE_REQUESTED, down_at)
    now, _ = recover(syphon)
    syphon.handle(DIVERT_ENDED, now + 10)
    assert syphon.handle(BacklogSeenEmpty(now + 9), now + 11) == ()
    assert syphon.backlog is Backlog.DIRTY
    syphon.handle(BacklogSeenEmpty(now + 10), now + 12)
    assert syphon.backlog is Backlog.CLEAN


def test_the_first_of_two_diverted_sends_to_end_does_not_settle_the_backlog(syphon: EntityMachine):
    """Hazard: "drained" is said while a diverted send is in flight, though another one has ended."""
    down_at = fail_over(syphon, 1)
    syphon.handle(ROUTE_REQUESTED, down_at)
    syphon.handle(ROUTE_REQUESTED, down_at)
    now, _ = recover(syphon)
    syphon.handle(DIVERT_ENDED, now + 1)
    syphon.handle(BacklogSeenEmpty(now + 2), now + 3)
    assert syphon.backlog is Backlog.DIRTY


def test_a_look_that_began_before_the_entity_came_back_drains_nothing(syphon: EntityMachine):
    """Hazard: "drained" is said of a look from the outage, during which sends were still diverted."""
    down_at = fail_over(syphon, 1)
    syphon.handle(ROUTE_REQUESTED, down_at)
    syphon.handle(DIVERT_ENDED, down_at)
    now, _ = recover(syphon)
    syphon.handle(BacklogSeenEmpty(now - 0.001), now + 1)
    assert syphon.backlog is Backlog.DIRTY


def test_the_backlog_is_dirty_before_the_first_diverted_send_leaves(syphon: EntityMachine):
    """Hazard: "drained" is said between the routing of a diverted send and its leaving."""
    down_at = fail_over(syphon, 1)
    assert syphon.backlog is Backlog.CLEAN
    (effect,) = syphon.handle(ROUTE_REQUESTED, down_at)
    assert isinstance(effect, ToBacklog)
    assert syphon.backlog is Backlog.DIRTY


# -------------------------------------------------------------------- an await between routing and registering a send


def test_a_send_is_in_flight_as_soon_as_it_is_routed(sender: EntityMachine):
    """Hazard: something happens between routing and registering a send, which then is missing from the counts."""
    sender.handle(ROUTE_REQUESTED, 1)
    assert sender.sending == 1
    sender.handle(HOLD, 2)
    sender.handle(ROUTE_REQUESTED, 3)
    assert (sender.sending, sender.diverting) == (1, 1)


def test_the_machine_has_no_step_that_could_be_interrupted():
    """Hazard: an await between routing and registering a send."""
    members = [member for _, member in inspect.getmembers(EntityMachine, inspect.isfunction)]
    assert [m.__name__ for m in members if inspect.iscoroutinefunction(m) or inspect.isgeneratorfunction(m)] == []


# ----------------------------------------------------- process A failed over, process B hosts the syphon and did not


def test_a_syphon_that_never_failed_over_still_starts_with_a_dirty_backlog(options: PairOptions):
    """Hazard: another process diverted; the one that hosts the syphon saw no outage and calls the backlog empty."""
    machine = EntityMachine(options, 0, tracks_backlog=True)
    assert machine.state is EntityState.DRAINING


def test_a_process_without_a_syphon_does_not_wait_for_a_backlog_that_it_cannot_see(sender: EntityMachine):
    """Hazard: a sender that waits for its own syphon, which runs in another process, drains for ever."""
    down_at = fail_over(sender, 1)
    sender.handle(ROUTE_REQUESTED, down_at)
    sender.handle(DIVERT_ENDED, down_at)
    recover(sender)
    assert sender.state is EntityState.HEALTHY


# ---------------------------------------------------------- one chain of four states: FAILING forgets DRAINING


def test_a_draining_entity_that_fails_and_recovers_is_still_draining(syphon: EntityMachine):
    """Hazard: in a plain chain of four states a success in FAILING leads to HEALTHY, and the backlog is stranded."""
    down_at = fail_over(syphon, 1)
    syphon.handle(ROUTE_REQUESTED, down_at)
    syphon.handle(DIVERT_ENDED, down_at)
    now, _ = recover(syphon)
    syphon.handle(ROUTE_REQUESTED, now)
    syphon.handle(PrimaryAccepted(syphon.epoch), now)  # the canary
    syphon.handle(ROUTE_REQUESTED, now + 400)
    syphon.handle(PrimaryFailed(syphon.epoch, UNAVAILABLE), now + 401)
    assert syphon.state is EntityState.FAILING
    syphon.handle(ROUTE_REQUESTED, now + 402)
    syphon.handle(PrimaryAccepted(syphon.epoch), now + 403)
    assert syphon.state is EntityState.DRAINING


def test_an_operators_word_does_not_forget_the_backlog(syphon: EntityMachine):
    """Hazard: `mark_healthy` in the middle of a failover jumps over the draining, and the backlog is stranded."""
    down_at = fail_over(syphon, 1)
    syphon.handle(ROUTE_REQUESTED, down_at)
    syphon.handle(DIVERT_ENDED, down_at)
    syphon.handle(MARK_HEALTHY, down_at + 1)
    assert syphon.state is EntityState.DRAINING


# --------------------------------------------------------------- an unreachable backlog queue counted as empty


def test_a_queue_that_was_never_reached_is_not_empty():
    """Hazard: an unreachable backlog queue is counted as empty."""
    watch = EmptyWatch(3)
    watch.seen_empty(0, 1.0)
    assert watch.seen_empty(2, 2.0) is None


def test_a_queue_that_can_no_longer_be_reached_takes_the_emptiness_back():
    """Hazard: a queue seen empty once counts for ever, although it can't be reached now."""
    watch = EmptyWatch(2)
    watch.seen_empty(0, 1.0)
    watch.seen_empty(1, 2.0)
    watch.not_empty(0)
    assert watch.all_since() is None


def test_all_queues_are_empty_only_since_the_oldest_of_their_looks():
    """Hazard: the newest look speaks for a queue that was looked at before the last diverted send."""
    watch = EmptyWatch(3)
    watch.seen_empty(0, 30.0)
    watch.seen_empty(1, 10.0)
    assert watch.seen_empty(2, 20.0) == 10.0


def test_an_unreachable_queue_keeps_the_entity_draining(syphon: EntityMachine):
    """Hazard: with one queue out of reach the entity is called healthy, and that queue's messages are stranded."""
    watch = EmptyWatch(2)
    down_at = fail_over(syphon, 1)
    syphon.handle(ROUTE_REQUESTED, down_at)
    syphon.handle(DIVERT_ENDED, down_at)
    watch.seen_empty(1, 0.5)  # before the outage; out of reach since
    now, _ = recover(syphon)
    since = watch.seen_empty(0, now + 1)
    assert since == 0.5
    syphon.handle(BacklogSeenEmpty(since), now + 2)
    assert syphon.state is EntityState.DRAINING


# ------------------------------------------------------------- a restart, or a close in mid-drain, forgets the backlog


def test_a_restarted_process_drains_before_it_is_healthy(options: PairOptions):
    """Hazard: a restart in mid-drain forgets the backlog."""
    restarted = EntityMachine(options, 5000, tracks_backlog=True)
    assert restarted.state is EntityState.DRAINING
    assert restarted.handle(BacklogSeenEmpty(4999), 5001) == ()
    (change,) = restarted.handle(BacklogSeenEmpty(5000), 5002)
    assert isinstance(change, Changed)
    assert restarted.state is EntityState.HEALTHY


# --------------------------------------------------------------------- a stale result of an old send moves the state


def test_a_late_success_never_leaves_failed_over(syphon: EntityMachine):
    """Hazard: the success of a send from before the outage ends the failover, and sends run into a dead broker."""
    syphon.handle(ROUTE_REQUESTED, 0)
    down_at = fail_over(syphon, 1)
    assert syphon.handle(PrimaryAccepted(0), down_at + 1) == (LateResult(0),)
    assert syphon.state is EntityState.FAILED_OVER


def test_a_late_failure_never_fails_a_recovered_entity_again(syphon: EntityMachine):
    """Hazard: the failure of a send from before the outage starts the next one after the recovery."""
    syphon.handle(ROUTE_REQUESTED, 0)
    fail_over(syphon, 1)
    now, _ = recover(syphon)
    syphon.handle(PrimaryFailed(0, UNAVAILABLE), now + 1)
    assert syphon.health is Health.TRIAL
    assert syphon.next_deadline() is None


def test_a_success_from_before_the_first_failure_does_not_end_the_failing(sender: EntityMachine):
    """Hazard: a result of an earlier epoch stops the failover interval, although no send works any more."""
    sender.handle(ROUTE_REQUESTED, 0)
    sender.handle(ROUTE_REQUESTED, 0)
    sender.handle(PrimaryFailed(0, UNAVAILABLE), 1)
    sender.handle(PrimaryAccepted(0), 2)
    assert sender.state is EntityState.FAILING
    assert sender.next_deadline() == 11


def test_a_late_answer_of_an_overdue_ping_does_not_end_the_failover(sender: EntityMachine):
    """Hazard: a stale ping's success, minutes old, ends the failover."""
    down_at = fail_over(sender, 1)
    sender.handle(TimerFired(), down_at)
    sender.handle(TimerFired(), down_at + 10)  # overdue
    sender.handle(PingSucceeded(1), down_at + 11)
    assert sender.state is EntityState.FAILED_OVER


# -------------------------------------------------------------- pings pass while sends are refused (quota, and so on)


def test_the_first_send_after_a_recovery_is_a_canary(sender: EntityMachine):
    """Hazard: pings pass while sends are refused; each recovery would then cost another whole failover interval."""
    fail_over(sender, 1)
    now, _ = recover(sender)
    sender.handle(ROUTE_REQUESTED, now)
    sender.handle(PrimaryFailed(sender.epoch, UNAVAILABLE), now + 1)
    assert sender.state is EntityState.FAILED_OVER


def test_an_entity_whose_pings_pass_while_its_sends_fail_is_tried_ever_more_rarely(sender: EntityMachine):
    """Hazard: pings pass while sends are refused, and the entity flaps for ever."""
    now, asked, waited = 1.0, [], []
    for _ in range(6):
        down_at = fail_over(sender, now)
        waited.append(((sender.next_deadline() or 0) - down_at) / 60)
        now, pings = recover(sender)
        asked.append(pings)
    assert asked == [1, 2, 4, 8, 8, 8]
    assert waited == [0, 1, 2, 4, 4, 4]


def test_a_failed_ping_begins_the_count_of_good_ones_anew(sender: EntityMachine):
    """Hazard: good pings are summed up over an unstable hour, so that a flapping entity is called well."""
    fail_over(sender, 1)
    now, _ = recover(sender)
    fail_over(sender, now)
    assert sender.pings_needed == 2
    for good in (True, False, True):
        now = sender.next_deadline() or now
        (ping,) = sender.handle(TimerFired(), now)
        assert isinstance(ping, SendPing)
        sender.handle(PingSucceeded(ping.number) if good else PingFailed(ping.number), now)
    assert sender.state is EntityState.FAILED_OVER


def test_an_overdue_ping_begins_the_count_of_good_ones_anew(sender: EntityMachine):
    """Hazard: a ping that hangs counts neither way, so that a broker that hangs half of the time is called well."""
    fail_over(sender, 1)
    now, _ = recover(sender)
    fail_over(sender, now)
    for number in (2, 3, 4):
        now = sender.next_deadline() or now
        sender.handle(TimerFired(), now)
        if number == 3:
            sender.handle(TimerFired(), now + 10)
        else:
            sender.handle(PingSucceeded(number), now)
    assert sender.state is EntityState.FAILED_OVER


def test_an_outage_after_the_flap_window_is_an_ordinary_one(sender: EntityMachine):
    """Hazard: the growing wait never shrinks again, and an entity that was unstable once is tried late for ever."""
    fail_over(sender, 1)
    now, _ = recover(sender)
    fail_over(sender, now)
    now, _ = recover(sender)
    sender.handle(ROUTE_REQUESTED, now)
    sender.handle(PrimaryAccepted(sender.epoch), now)
    down_at = fail_over(sender, now + 300)
    assert (sender.pings_needed, sender.next_deadline()) == (1, down_at)


def test_a_flap_window_of_zero_switches_the_rule_off():
    """Hazard: with the rule switched off, a failure at the very instant of the recovery still counts as a flap."""
    machine = EntityMachine(PairOptions(flap_window=0), 0)
    fail_over(machine, 1)
    now, _ = recover(machine)
    fail_over(machine, now)
    assert machine.pings_needed == 1


# --------------------------------------------------------------------- a cancelled send is reported as not sent


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_cancelled_send_moves_nothing(sender: EntityMachine, fails_first: bool):
    """Hazard: a cancelled send counts as a failure, or as a success, of the primary."""
    if fails_first:
        sender.handle(ROUTE_REQUESTED, 0)
        sender.handle(PrimaryFailed(0, UNAVAILABLE), 0)
    state, deadline = sender.state, sender.next_deadline()
    sender.handle(ROUTE_REQUESTED, 1)
    assert sender.handle(PrimaryAbandoned(sender.epoch), 2) == ()
    assert (sender.state, sender.next_deadline(), sender.sending) == (state, deadline, 0)


def test_a_cancelled_canary_proves_nothing(sender: EntityMachine):
    """Hazard: a cancelled send is taken for the canary's answer."""
    fail_over(sender, 1)
    now, _ = recover(sender)
    sender.handle(ROUTE_REQUESTED, now)
    sender.handle(PrimaryAbandoned(sender.epoch), now)
    assert sender.health is Health.TRIAL


# ------------------------------------------------------------------------------------ the timer fires in mid-send


def test_the_failover_interval_ends_with_a_send_in_flight(sender: EntityMachine):
    """Hazard: the timer waits for the send in flight, and a broker that hangs is never failed over."""
    sender.handle(ROUTE_REQUESTED, 0)
    sender.handle(PrimaryFailed(0, UNAVAILABLE), 0)
    sender.handle(ROUTE_REQUESTED, 1)
    sender.handle(TimerFired(), 10)
    assert (sender.state, sender.sending) == (EntityState.FAILED_OVER, 1)


def test_a_success_after_the_timer_fired_is_counted_and_the_state_stays(sender: EntityMachine):
    """Hazard: the timer fires in mid-send and the send's late success leads into the wrong state."""
    sender.handle(ROUTE_REQUESTED, 0)
    sender.handle(PrimaryFailed(0, UNAVAILABLE), 0)
    (route,) = sender.handle(ROUTE_REQUESTED, 1)
    assert isinstance(route, ToPrimary)
    sender.handle(TimerFired(), 10)
    assert sender.handle(PrimaryAccepted(route.epoch), 11) == (LateResult(route.epoch),)
    assert (sender.state, sender.sending) == (EntityState.FAILED_OVER, 0)


def test_after_the_timer_fired_no_send_is_routed_to_the_primary(sender: EntityMachine):
    """Hazard: the timer fires in mid-send and the next send still goes to the dead primary."""
    fail_over(sender, 0)
    (route,) = sender.handle(ROUTE_REQUESTED, 11)
    assert isinstance(route, ToBacklog)


# ------------------------------------------------------------ a breaker whose trial is never finished stays open


def test_a_ping_that_is_never_answered_is_followed_by_another(sender: EntityMachine):
    """Hazard: a trial that never ends keeps the breaker open for ever."""
    down_at = fail_over(sender, 0)
    sender.handle(TimerFired(), down_at)
    sender.handle(TimerFired(), down_at + 10)
    (ping,) = sender.handle(TimerFired(), down_at + 70)
    assert isinstance(ping, SendPing)


def test_a_good_ping_is_not_cancelled_by_its_own_success(sender: EntityMachine):
    """Hazard: the task that brings the good news is told to stop in the middle of telling it."""
    sender.handle(FORCE_FAILOVER, 0)
    sender.handle(TimerFired(), 60)
    (effect,) = sender.handle(PingSucceeded(1), 61)
    assert isinstance(effect, Changed)
