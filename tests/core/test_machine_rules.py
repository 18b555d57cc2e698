"""The machine against a plain model, written from the words of SPEC 4 and 6: any inputs, in any order, at any time."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import note, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pairmq.core import PairOptions
from pairmq.core.machine import EntityMachine, ImpossibleInputError
from pairmq.core.signals import (
    DIVERT_ENDED,
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
    PingWanted,
    PrimaryAbandoned,
    PrimaryAccepted,
    PrimaryFailed,
    SendPing,
    StopPing,
    TimerFired,
    ToBacklog,
    ToPrimary,
)
from pairmq.core.transitions import Backlog, Health
from pairmq.model import EntityState, FailureKind
from pairmq.model.events import Cause
from patient_examples import examples


class Book:
    """What SPEC says of one entity, with a book entry for each thing that it speaks of."""

    def __init__(self, options: PairOptions, now: float, syphon: bool) -> None:
        self.options = options
        self.syphon = syphon
        self.primary = "works"  # or "canary", "fails", "lost", "held"
        self.epoch = 0
        self.dirty = syphon  # 4.5: a pair starts dirty, but where no syphon runs
        self.attempts: list[int] = []  # the epochs of the sends under way to the primary
        self.diversions = 0  # sends under way to the backlog
        self.empty_counts_from = now  # 4.5: the entity came back, and the last diverted send ended
        self.interval_ends: float | None = None
        self.pings_sent = 0
        self.ping_under_way: int | None = None
        self.timer: float | None = None  # of the ping: its limit, or the instant of the next one
        self.needed, self.good, self.refused = 1, 0, 0
        self.asked, self.asked_again_from = 0, now
        self.came_back: float | None = None
        self.in_state_since = now
        self.counts = dict.fromkeys(("sent", "diverted", "failed", "late"), 0)

    # What people see

    @property
    def state(self) -> EntityState:
        if self.primary == "fails":
            return EntityState.FAILING
        if self.away:
            return EntityState.FAILED_OVER
        return EntityState.DRAINING if self.dirty else EntityState.HEALTHY

    @property
    def away(self) -> bool:
        return self.primary in ("lost", "held")

    @property
    def deadline(self) -> float | None:
        return self.interval_ends if self.primary == "fails" else self.timer

    # Moves

    def become(self, primary: str, cause: Cause, now: float) -> list[Any]:
        """Move to another condition of the primary: a new epoch, and an event with the counts of the last state."""
        before, was_away = self.state, self.away
        self.primary = primary
        self.epoch += 1
        self.interval_ends = None
        if was_away and not self.away:
            self.came_back = self.empty_counts_from = now
            self.dirty = self.dirty and self.syphon
        return self.tell(before, cause, now)

    def tell(self, before: EntityState, cause: Cause, now: float) -> list[Any]:
        event = Changed(self.epoch, before, self.state, cause, now - self.in_state_since, **self.counts)
        self.in_state_since = now
        self.counts = dict.fromkeys(self.counts, 0)
        return [event]

    def stop_pinging(self) -> list[Any]:
        stopped = [] if self.ping_under_way is None else [StopPing(self.epoch, self.ping_under_way)]
        self.ping_under_way = self.timer = None
        return stopped

    def lose(self, cause: Cause, now: float) -> list[Any]:
        """Fail over by the primary's own doing: a ping at once, but see 4.8."""
        window = self.options.flap_window
        if self.came_back is not None and now - self.came_back < window:
            self.needed = min(8, 2 * self.needed)
            wait = {2: 1, 4: 2, 8: 4}[self.needed] * self.options.ping_primary_interval
        else:
            self.needed, wait = 1, 0.0
        self.good = self.refused = self.asked = 0
        self.asked_again_from = now
        self.timer = now + wait
        return self.become("lost", cause, now)

    def after_ping(self, now: float, jitter: float) -> None:
        self.ping_under_way, self.refused = None, 0
        self.timer = now + self.options.ping_primary_interval * (1 + jitter / 10)

    # Inputs

    def route(self) -> list[Any]:
        if not self.away:
            self.attempts.append(self.epoch)
            return [ToPrimary(self.epoch)]
        self.diversions += 1
        self.counts["diverted"] += 1
        self.dirty = True
        return [ToBacklog(self.epoch)]

    def result(self, epoch: int, word: str, now: float) -> list[Any]:
        """``word``: accepted, fault (counts toward failover), refused (it responds) or nothing (no evidence)."""
        self.attempts.remove(epoch)
        if epoch != self.epoch:
            self.counts["late"] += 1
            return [LateResult(epoch)]
        if word == "nothing":
            return []
        if word == "refused":
            return self.become("works", Cause.SEND_REFUSED, now) if self.primary == "fails" else []
        self.counts["sent" if word == "accepted" else "failed"] += 1
        if word == "accepted":
            if self.primary == "fails":
                return self.become("works", Cause.SEND_SUCCEEDED, now)
            self.primary = "works"  # a canary is confirmed without anyone seeing it
            return []
        if self.primary == "canary":
            return self.lose(Cause.FIRST_SEND_FAILED, now)
        if self.primary == "fails":
            return []
        if self.options.failover_interval == 0:
            return self.lose(Cause.SEND_FAILED, now)
        effects = self.become("fails", Cause.SEND_FAILED, now)
        self.interval_ends = now + self.options.failover_interval
        return effects

    def divert_ended(self, now: float) -> list[Any]:
        self.diversions -= 1
        if self.diversions == 0:
            self.empty_counts_from = now
        return []

    def timer_fired(self, now: float, jitter: float) -> list[Any]:
        if self.deadline is None or now < self.deadline:
            return []
        if self.primary == "fails":
            return self.lose(Cause.INTERVAL_OVER, now)
        if self.ping_under_way is not None:  # 6.3: it hangs, so it failed
            stopped = [StopPing(self.epoch, self.ping_under_way)]
            self.good = 0
            self.after_ping(now, jitter)
            return stopped
        self.pings_sent += 1
        self.ping_under_way = self.pings_sent
        self.timer = now + self.options.ping_timeout
        return [SendPing(self.epoch, self.pings_sent)]

    def ping_wanted(self, now: float, chance: float) -> list[Any]:
        """A send waits in vain for the backlog: a ping at once, but not while one is under way, nor all the time."""
        if self.primary != "lost" or self.ping_under_way is not None or now < self.asked_again_from:
            return []
        self.asked_again_from = now + min(2.0, 0.05 * 2**self.asked) * (1 - chance / 2)
        self.asked += 1
        self.pings_sent += 1
        self.ping_under_way = self.pings_sent
        self.timer = now + self.options.ping_timeout
        return [SendPing(self.epoch, self.pings_sent)]

    def ping_answered(self, number: int, good: bool, now: float, jitter: float) -> list[Any]:
        if number != self.ping_under_way:
            self.counts["late"] += 1
            return [LateResult(self.epoch)]
        self.good = self.good + 1 if good else 0
        self.after_ping(now, jitter)
        if self.good < self.needed:
            return []
        self.timer = None
        return self.become("canary", Cause.PING_RECOVERED, now)

    def ping_refused(self, number: int, now: float, jitter: float) -> list[Any]:
        if number != self.ping_under_way:
            self.counts["late"] += 1
            return [LateResult(self.epoch)]
        self.good, refused = 0, self.refused + 1
        self.after_ping(now, jitter)
        self.refused = refused
        if refused < 3:
            return []
        self.timer = None
        return self.become("canary", Cause.PING_REFUSED, now)

    def seen_empty(self, since: float, now: float) -> list[Any]:
        back = self.primary in ("works", "canary")
        if not (self.dirty and back and self.diversions == 0 and since >= self.empty_counts_from):
            return []
        before, self.dirty = self.state, False
        return self.tell(before, Cause.DRAINED, now)

    def mark_healthy(self, now: float) -> list[Any]:
        if self.primary in ("works", "canary"):
            self.primary = "works"
            return []
        return [*self.stop_pinging(), *self.become("works", Cause.MARKED_HEALTHY, now)]

    def force_failover(self, now: float) -> list[Any]:
        if self.primary == "lost":
            return []
        self.needed, self.good, self.refused = 1, 0, 0
        self.asked, self.asked_again_from = 0, now + self.options.ping_primary_interval
        self.timer = now + self.options.ping_primary_interval
        return self.become("lost", Cause.FORCED, now)

    def hold(self, now: float) -> list[Any]:
        if self.primary == "held":
            return []
        return [*self.stop_pinging(), *self.become("held", Cause.HELD, now)]


def near(one: float | None, other: float | None) -> bool:
    return one is other if one is None or other is None else math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-9)


HEALTH_OF = {
    "works": Health.UP,
    "canary": Health.TRIAL,
    "fails": Health.FAILING,
    "lost": Health.DOWN,
    "held": Health.HELD,
}

pair_options = st.builds(
    PairOptions,
    failover_interval=st.sampled_from([0.0, 0.0, 8.0, 600.0]),
    ping_primary_interval=st.sampled_from([0.5, 64.0]),
    ping_timeout=st.sampled_from([0.25, 8.0, 120.0]),
    flap_window=st.sampled_from([0.0, 100.0, 86_400.0]),
    failover_on_busy=st.booleans(),
)
jitters = st.floats(-1, 1)
picks = st.integers(0, 1000)


class AgainstTheBook(RuleBasedStateMachine):
    @initialize(options=pair_options, syphon=st.booleans(), now=st.sampled_from([0.0, 4096.0]))
    def begin(self, options: PairOptions, syphon: bool, now: float) -> None:
        self.now = now
        self.book = Book(options, now, syphon)
        self.machine = EntityMachine(options, now, tracks_backlog=syphon)
        self.options = options
        self.instants = [now]
        self.last_epoch = 0
        self.diverted_while_away = False

    def feed(self, fact: Input, expected: list[Any]) -> tuple[Any, ...]:
        effects = self.machine.handle(fact, self.now)
        note(f"{self.now}: {fact} -> {effects}")
        assert list(effects) == expected
        return effects

    # Time

    @rule(seconds=st.sampled_from([0.125, 0.5, 1.0, 4.0, 8.0, 60.0, 64.0, 99.0, 100.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.instants.append(self.now)

    @rule(jitter=jitters)
    def the_timer_fires_whenever(self, jitter: float) -> None:
        self.feed(TimerFired(jitter), self.book.timer_fired(self.now, jitter))
        self.check_the_plan(jitter)

    @precondition(lambda self: self.machine.next_deadline() is not None)
    @rule(jitter=jitters)
    def the_timer_fires_on_time(self, jitter: float) -> None:
        deadline = self.machine.next_deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self.instants.append(self.now)
        assert self.feed(TimerFired(jitter), self.book.timer_fired(self.now, jitter)) != ()
        self.check_the_plan(jitter)

    def check_the_plan(self, jitter: float) -> None:
        """The book's sums and the machine's may differ in the last digit; then the machine's count."""
        assert near(self.machine.next_deadline(), self.book.deadline)
        if self.book.primary == "lost":
            self.book.timer = self.machine.next_deadline()

    # Sends

    @rule()
    def a_send_asks_where_to_go(self) -> None:
        (effect,) = self.feed(ROUTE_REQUESTED, self.book.route())
        if self.machine.health in (Health.DOWN, Health.HELD):
            assert type(effect) is ToBacklog
            self.diverted_while_away = True

    @precondition(lambda self: self.book.attempts)
    @rule(pick=picks)
    def the_primary_accepts(self, pick: int) -> None:
        epoch = self.pick_attempt(pick)
        self.feed(PrimaryAccepted(epoch), self.book.result(epoch, "accepted", self.now))

    @precondition(lambda self: self.book.attempts)
    @rule(pick=picks, kind=st.sampled_from(FailureKind))
    def the_primary_fails(self, pick: int, kind: FailureKind) -> None:
        epoch = self.pick_attempt(pick)
        counts = kind in (FailureKind.UNAVAILABLE, FailureKind.TRANSIENT)
        counts = counts or (kind is FailureKind.BUSY and self.options.failover_on_busy)
        word = "fault" if counts else "refused"
        self.feed(PrimaryFailed(epoch, kind), self.book.result(epoch, word, self.now))

    @precondition(lambda self: self.machine.epoch in self.book.attempts)
    @rule()
    def the_primary_is_lost(self) -> None:
        epoch = self.machine.epoch
        self.feed(PrimaryFailed(epoch, FailureKind.UNAVAILABLE), self.book.result(epoch, "fault", self.now))

    @precondition(lambda self: self.book.attempts)
    @rule(pick=picks)
    def a_caller_cancels(self, pick: int) -> None:
        epoch = self.pick_attempt(pick)
        self.feed(PrimaryAbandoned(epoch), self.book.result(epoch, "nothing", self.now))

    def pick_attempt(self, pick: int) -> int:
        return self.book.attempts[pick % len(self.book.attempts)]

    @precondition(lambda self: self.book.diversions)
    @rule()
    def a_diversion_ends(self) -> None:
        self.feed(DIVERT_ENDED, self.book.divert_ended(self.now))

    # Pings

    @precondition(lambda self: self.book.ping_under_way is not None)
    @rule(jitter=jitters, good=st.sampled_from([True, True, False]))
    def the_ping_is_answered(self, good: bool, jitter: float) -> None:
        number = self.book.ping_under_way
        assert number is not None
        answer = PingSucceeded(number, jitter) if good else PingFailed(number, jitter)
        self.feed(answer, self.book.ping_answered(number, good, self.now, jitter))
        self.check_the_plan(jitter)
        if self.book.primary == "lost":
            waits = (self.machine.next_deadline() or 0) - self.now
            assert 0.9 - 1e-9 <= waits / self.options.ping_primary_interval <= 1.1 + 1e-9

    @rule(chance=st.sampled_from([0.0, 0.5, 0.999]))
    def a_send_that_no_queue_takes_wants_a_ping(self, chance: float) -> None:
        self.feed(PingWanted(chance), self.book.ping_wanted(self.now, chance))
        self.check_the_plan(0.0)

    @precondition(lambda self: self.book.pings_sent)
    @rule(pick=picks, jitter=jitters)
    def some_ping_is_refused(self, pick: int, jitter: float) -> None:
        number = 1 + pick % self.book.pings_sent
        self.feed(PingRefused(number, jitter), self.book.ping_refused(number, self.now, jitter))
        self.check_the_plan(jitter)

    @precondition(lambda self: self.book.primary == "lost")
    @rule(jitter=jitters)
    def the_next_ping_is_refused(self, jitter: float) -> None:
        if self.book.ping_under_way is None:
            self.the_timer_fires_on_time(jitter)
        number = self.book.ping_under_way
        assert number is not None
        self.feed(PingRefused(number, jitter), self.book.ping_refused(number, self.now, jitter))
        self.check_the_plan(jitter)

    @precondition(lambda self: self.book.pings_sent)
    @rule(pick=picks, good=st.booleans())
    def some_ping_is_answered(self, pick: int, good: bool) -> None:
        number = 1 + pick % self.book.pings_sent
        if number != self.book.ping_under_way:
            answer = PingSucceeded(number) if good else PingFailed(number)
            self.feed(answer, self.book.ping_answered(number, good, self.now, 0))

    # Backlog

    @rule(pick=picks)
    def the_backlog_is_seen_empty(self, pick: int) -> None:
        since = self.instants[-1 - pick % min(len(self.instants), 6)]
        self.feed(BacklogSeenEmpty(since), self.book.seen_empty(since, self.now))

    @rule()
    def the_backlog_is_seen_empty_just_now(self) -> None:
        self.feed(BacklogSeenEmpty(self.now), self.book.seen_empty(self.now, self.now))

    # Operators

    @rule()
    def an_operator_says_that_it_works(self) -> None:
        self.feed(MARK_HEALTHY, self.book.mark_healthy(self.now))

    @rule()
    def an_operator_forces_a_failover(self) -> None:
        self.feed(FORCE_FAILOVER, self.book.force_failover(self.now))

    @rule()
    def an_operator_holds(self) -> None:
        self.feed(HOLD, self.book.hold(self.now))

    # What can't be

    @rule(kind=st.sampled_from(["attempt", "epoch to come", "ping", "diversion"]))
    def a_lie_is_refused(self, kind: str) -> None:
        lies: list[Input] = []
        if kind == "attempt" and (not self.book.attempts or self.book.away):
            lies = [PrimaryAccepted(self.machine.epoch), PrimaryFailed(self.machine.epoch, FailureKind.UNAVAILABLE)]
        elif kind == "epoch to come":
            lies = [PrimaryAccepted(self.machine.epoch + 1), PrimaryAbandoned(self.machine.epoch + 1)]
        elif kind == "ping":
            lies = [PingSucceeded(self.book.pings_sent + 1), PingFailed(self.book.pings_sent + 1)]
        elif kind == "diversion" and self.book.diversions == 0:
            lies = [DIVERT_ENDED]
        before = self.slots()
        for lie in lies:
            with pytest.raises(ImpossibleInputError):
                self.machine.handle(lie, self.now)
        assert self.slots() == before

    def slots(self) -> dict[str, Any]:
        return {name: getattr(self.machine, name) for name in EntityMachine.__slots__}

    # What always holds

    @invariant()
    def both_agree_on_what_can_be_seen(self) -> None:
        machine, book = self.machine, self.book
        assert (machine.state, machine.health) == (book.state, HEALTH_OF[book.primary])
        assert (machine.epoch, machine.backlog is Backlog.DIRTY) == (book.epoch, book.dirty)
        assert (machine.sending, machine.diverting) == (len(book.attempts), book.diversions)
        assert machine.pings_needed == book.needed
        assert near(machine.next_deadline(), book.deadline)

    @invariant()
    def an_epoch_never_decreases(self) -> None:
        assert self.machine.epoch >= self.last_epoch
        self.last_epoch = self.machine.epoch

    @invariant()
    def where_a_syphon_runs_the_backlog_is_dirty_while_a_diversion_is_under_way(self) -> None:
        if self.book.syphon and self.machine.diverting:
            assert self.machine.backlog is Backlog.DIRTY

    @invariant()
    def the_backlog_is_dirty_from_the_first_diversion_of_an_outage_to_its_end(self) -> None:
        if self.machine.health not in (Health.DOWN, Health.HELD):
            self.diverted_while_away = False
        if self.diverted_while_away:
            assert self.machine.backlog is Backlog.DIRTY

    @invariant()
    def no_outage_lacks_a_next_step(self) -> None:
        timed = self.machine.health in (Health.FAILING, Health.DOWN)
        assert (self.machine.next_deadline() is not None) is timed

    @invariant()
    def few_pings_are_asked_for(self) -> None:
        assert self.machine.pings_needed in (1, 2, 4, 8)


class EndlessFlaps(AgainstTheBook):
    """The same without operators, so that long chains of outages and recoveries come up often."""

    an_operator_says_that_it_works = None  # type: ignore[assignment]
    an_operator_forces_a_failover = None  # type: ignore[assignment]
    an_operator_holds = None  # type: ignore[assignment]

    @precondition(lambda self: not self.book.away)
    @rule(after=st.sampled_from([0.0, 0.5, 99.0, 100.0, 200.0]))
    def a_whole_outage(self, after: float) -> None:
        self.now += after
        self.feed(ROUTE_REQUESTED, self.book.route())
        self.the_primary_is_lost()
        if self.book.primary == "fails":
            self.the_timer_fires_on_time(0.0)
        while self.book.away:
            self.the_timer_fires_on_time(0.0)
            self.the_ping_is_answered(True, 0.0)


TestAgainstTheBook = AgainstTheBook.TestCase
TestAgainstTheBook.settings = settings(max_examples=examples(120), stateful_step_count=60, deadline=None)
TestEndlessFlaps = EndlessFlaps.TestCase
TestEndlessFlaps.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
