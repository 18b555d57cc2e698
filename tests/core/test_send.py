"""A send as a pure machine (SPEC 3, 5.4, 5.5, 8, 9.1): where it goes, for how long, and what its results mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pairmq.core import PairOptions
from pairmq.core.backoff import TRANSIENT_RETRIES
from pairmq.core.machine import ImpossibleInputError
from pairmq.core.order import DrainView, Key, KeyOrder, KeyRoute, Look, LookAt
from pairmq.core.rotation import Rotation
from pairmq.core.send import (
    FAIR_TRIAL,
    TRIALS_AT_ONCE,
    Admission,
    Attempt,
    Check,
    Choice,
    Done,
    EntityLine,
    Fate,
    Job,
    RoundTrip,
    SendMachine,
    SendRules,
    Step,
    Wait,
    is_answer,
    not_found,
    worst_kind,
)
from pairmq.core.signals import ToBacklog, ToPrimary
from pairmq.model import (
    BacklogUnavailable,
    EntityState,
    FailureKind,
    FailureReason,
    Message,
    PrimaryUnavailable,
    Route,
    SendRefused,
    SendUnknown,
    TransportError,
)

HEALTHY, FAILING, FAILED_OVER = EntityState.HEALTHY, EntityState.FAILING, EntityState.FAILED_OVER


def failure(
    kind: FailureKind, reason: FailureReason = FailureReason.OTHER, *, maybe_applied: bool = False
) -> TransportError:
    return TransportError(f"{kind.value}: {reason.value}", kind, reason, maybe_applied=maybe_applied)


TRANSIENT = failure(FailureKind.TRANSIENT)
BUSY = failure(FailureKind.BUSY)
DOWN = failure(FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
LATE = failure(FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, maybe_applied=True)
MISSING = failure(FailureKind.REFUSED, FailureReason.NOT_FOUND)
TOO_LARGE = failure(FailureKind.REFUSED, FailureReason.TOO_LARGE)


class Entity:
    """Routes as the machine of an entity does in a state that a test sets; also the only sender to it."""

    def __init__(self, seen: EntityState = HEALTHY) -> None:
        self.seen = seen
        self.queue: int | None = None
        self.lane: int | None = None

    def route(self) -> ToPrimary | ToBacklog:
        return ToBacklog(1) if self.seen is FAILED_OVER else ToPrimary(1)

    def divert(self) -> ToBacklog:
        return ToBacklog(1)


class Sending:
    """One send, driven by hand: it began at 100 s."""

    def __init__(
        self,
        seen: EntityState = HEALTHY,
        *,
        messages: int = 1,
        timeout: float = 60.0,
        queues: int = 2,
        clean: bool | None = None,
        chance: float = 0.0,
        **options: Any,
    ) -> None:
        self.entity = Entity(seen)
        self.rotation = Rotation(queues, 30.0)
        self.rules = SendRules(PairOptions(**options), self.rotation, lambda: chance)
        self.jobs = [Job(Message(b"x", message_id=str(number)), number) for number in range(messages)]
        key = Key(KeyOrder(0.0, fresh=bool(clean)), queue=0, now=0.0)
        key.lined_up = 1
        self.key = None if clean is None else KeyRoute(key, DrainView())
        self.now, self.deadline = 100.0, 100.0 + timeout
        self.machine = SendMachine(self.rules, self.entity, self.entity, self.jobs, self.now, self.deadline, self.key)

    def start(self) -> Step:
        return self.past_checks(self.machine.start(self.now))

    def past_checks(self, step: Step) -> Step:
        """All messages fit the backlog."""
        return self.machine.checked((), self.now) if isinstance(step, Check) else step

    def resume(self, seconds: float = 0.0, lead: float = 0.0, *, changed: bool = False) -> Step:
        self.now += seconds
        return self.past_checks(self.machine.resume(self.now, lead, changed=changed))

    def primary(self, *results: TransportError | None, seen: EntityState | None = None) -> Step:
        """The attempt at the primary has these results, and the entity's machine moved."""
        self.machine.primary_ended(results)
        self.entity.seen = seen or self.entity.seen
        return self.resume()

    def backlog(self, *results: TransportError | None) -> Step:
        self.machine.backlog_ended(results, self.now)
        return self.resume()


def route_of(step: Step) -> Route:
    assert isinstance(step, Attempt), step
    return step.route


def choice_of(step: Step) -> Choice | None:
    assert isinstance(step, Attempt), step
    return step.choice


# Where it goes.


@pytest.mark.parametrize("seen", [HEALTHY, EntityState.DRAINING, FAILING])
def test_a_send_goes_to_the_primary_when_its_entity_is_not_failed_over(seen):
    assert route_of(Sending(seen).start()) is Route.PRIMARY


def test_a_send_goes_to_the_backlog_when_its_entity_is_failed_over():
    assert route_of(Sending(FAILED_OVER).start()) is Route.BACKLOG


def test_an_attempt_carries_the_epoch_of_its_route():
    step = Sending().start()
    assert isinstance(step, Attempt)
    assert step.epoch == 1


def test_a_send_without_messages_is_done_at_once():
    assert Sending(messages=0).start() == Done()


def test_a_send_to_a_healthy_entity_needs_no_machine_for_its_first_attempt():
    sending = Sending()
    first = sending.rules.at_once(sending.entity, sending.jobs, 100.0, 160.0)
    assert first == sending.start()


def test_nothing_is_sent_at_once_when_there_is_no_message():
    sending = Sending(messages=0)
    assert sending.rules.at_once(sending.entity, sending.jobs, 100.0, 160.0) is None


def test_nothing_is_sent_at_once_when_the_deadline_has_passed():
    sending = Sending()
    assert sending.rules.at_once(sending.entity, sending.jobs, 160.0, 160.0) is None


# Whether it waits in line for others.


def crowd(sends: int, silent_since: float | None, elsewhere: int = 0) -> EntityLine[str]:
    """Sends in flight that no broker has answered for a while."""
    line: EntityLine[str] = EntityLine()
    line.sends, line.silent_since, line.elsewhere = sends, silent_since, elsewhere
    return line


@pytest.mark.parametrize(
    ("sends", "silent_since", "waits"),
    [
        (TRIALS_AT_ONCE, 99.8, True),
        (TRIALS_AT_ONCE - 1, 99.8, False),  # too few to find out when a broker answers
        (TRIALS_AT_ONCE, 99.95, False),  # they may just have begun
        (TRIALS_AT_ONCE, None, False),  # answered
    ],
)
def test_a_send_waits_in_line_behind_enough_others_that_have_no_answer(sends, silent_since, waits):
    line = crowd(sends, silent_since)
    assert Sending().rules.lets_in(line, 100.0) is not waits
    assert line.sends == sends + (not waits)


def test_what_began_before_the_entity_failed_over_is_not_counted():
    assert Sending().rules.lets_in(crowd(150 + TRIALS_AT_ONCE - 1, 90.0, elsewhere=150), 100.0)
    assert not Sending().rules.lets_in(crowd(150 + TRIALS_AT_ONCE, 90.0, elsewhere=150), 100.0)


@pytest.mark.parametrize("side", ["to_primary", "to_backlog"])
def test_no_send_waits_in_line_for_answers_that_a_distant_broker_can_not_have_given_yet(side):
    rules = Sending().rules
    getattr(rules, side).answered(0.5)
    assert rules.lets_in(crowd(TRIALS_AT_ONCE, 99.0), 100.0)
    assert not rules.lets_in(crowd(TRIALS_AT_ONCE, 95.0), 100.0)


def test_no_send_waits_in_line_when_failures_are_raised():
    rules = Sending(while_failing="raise").rules
    assert rules.lets_in(crowd(TRIALS_AT_ONCE, 90.0), 100.0)


def lined_up(*turns: str, sends: int = TRIALS_AT_ONCE) -> EntityLine[str]:
    line = crowd(sends, 90.0)
    for turn in turns:
        line.stand(turn, 90.0, 103.0)
    return line


def ended(line: EntityLine[str]) -> bool:
    """End one of the sends in flight: whether another one waits."""
    admission: Admission[str] = Admission(1)
    assert admission.try_enter(1)
    return admission.leave(1, line)


def test_a_send_that_ends_lets_the_first_in_line_go_on():
    line = lined_up("a", "b")
    assert (ended(line), line.sends, line.next(100.0, 0.0)) == (True, TRIALS_AT_ONCE - 1, "a")


def test_a_send_that_ends_lets_no_one_go_on_when_no_one_waits():
    line = lined_up()
    assert (ended(line), line.next(100.0, 0.0)) == (False, None)


def test_an_answer_lets_all_in_line_go_on():
    line = lined_up("a", "b")
    assert (list(line.answered()), line.silent_since, list(line.answered())) == (["a", "b"], None, [])


def test_a_failover_lets_as_many_go_on_as_may_find_out_whatever_hangs_at_the_primary():
    line = lined_up("a")
    assert (line.failed_over(), line.elsewhere) == (TRIALS_AT_ONCE, TRIALS_AT_ONCE)
    assert Sending().rules.lets_in(line, 100.0)


def test_what_hung_at_the_primary_when_the_entity_failed_over_is_counted_until_it_ends():
    line = lined_up(sends=2)
    line.failed_over()
    ended(line)
    assert (line.sends, line.elsewhere) == (1, 1)


def test_a_scout_takes_the_place_of_no_other():
    line = lined_up("a")
    assert line.scout()
    assert line.next(100.0, 0.0) == "a"
    assert Sending().rules.lets_in(line, 100.0)


def test_no_scout_goes_on_when_no_one_waits():
    line = lined_up()
    assert (line.scout(), line.elsewhere) == (False, 0)


def test_a_turn_that_is_given_up_is_not_in_line_any_more():
    line = lined_up("a", "b")
    assert [line.leave("a"), line.leave("a"), line.next(100.0, 0.0), line.leave("b")] == [True, False, "b", False]


def test_a_send_in_line_without_the_time_for_an_attempt_waits_for_its_deadline_or_an_answer():
    line = lined_up("a", "b")  # until 103
    line.stand("c", 90.0, 110.0)
    assert (line.next(100.0, 4.0), line.next(100.0, 4.0)) == ("c", None)
    assert (line.leave("b"), list(line.answered()), list(line.answered())) == (True, ["a"], [])


def test_a_send_in_line_has_the_time_for_an_attempt_while_few_are_in_flight():
    assert lined_up("a").next(102.9, 0.0) == "a"


def test_a_send_that_waits_may_begin_an_attempt_in_the_first_half_of_its_time_whatever_others_cost():
    """As one that did not wait may."""
    line = lined_up()
    line.stand("a", 90.0, 111.0)
    assert line.next(100.0, 1000.0) == "a"
    admission = waiting(1, 1, 1, deadline=111.0)
    admission.leave(1)
    assert let_in(admission, 100.0, lead=1000.0) == [(0, True)]
    admission.leave(1)
    assert let_in(admission, 101.0, lead=1000.0) == [(1, False)]


# How many are in flight at all.


def waiting(limit: int, *needs: int, deadline: float = 200.0) -> Admission[int]:
    """All places are taken; further calls wait for as many messages as they need."""
    admission: Admission[int] = Admission(limit)
    assert admission.try_enter(limit)
    for turn, messages in enumerate(needs):
        assert not admission.try_enter(messages)
        admission.stand(turn, messages, 90.0, deadline)
    return admission


def let_in(admission: Admission[int], now: float = 100.0, lead: float = 0.0, most: int = 50) -> list[tuple[int, bool]]:
    return admission.let_in(now, lead, most, lambda turn: True)


def test_there_is_room_for_the_limit():
    admission: Admission[int] = Admission(3)
    assert [admission.try_enter(2), admission.try_enter(2), admission.try_enter(1)] == [True, False, True]
    assert admission.in_flight == 3


def test_a_batch_that_is_larger_than_the_limit_enters_alone():
    admission: Admission[int] = Admission(3)
    assert [admission.try_enter(5), admission.try_enter(1), admission.in_flight] == [True, False, 3]
    assert not admission.leave(5)
    assert admission.in_flight == 0


def test_who_waits_is_let_in_first_come_first_served():
    admission = waiting(3, 2, 3, 1)
    assert admission.leave(2)
    assert let_in(admission) == [(0, True)]
    admission.leave(1)
    assert not admission.try_enter(1)  # although there is room: the second one needs all places
    assert let_in(admission) == []
    admission.leave(2)
    assert let_in(admission) == [(1, True)]


def test_one_that_waits_no_longer_does_not_hold_up_those_behind_it():
    admission = waiting(3, 3, 1)
    admission.leave(1)
    assert [admission.give_up(0), admission.give_up(0), let_in(admission)] == [True, False, [(1, True)]]


def test_some_are_let_in_at_once_and_then_more():
    admission = waiting(4, 1, 1, 1)
    admission.leave(4)
    assert [let_in(admission, most=2), let_in(admission, most=2)] == [[(0, True), (1, True)], [(2, True)]]


def test_those_with_less_time_left_than_all_ends_take_wait_for_their_deadlines():
    admission = waiting(2, 1, 1, 1, deadline=101.0)
    admission.stand(3, 2, 90.0, 200.0)
    admission.leave(2)
    assert let_in(admission, lead=2.0) == [(0, False), (1, False), (2, False), (3, True)]
    assert [admission.give_up(turn) for turn in (0, 0, 3)] == [True, False, False]
    assert (let_in(admission, lead=0.5), admission.in_flight) == ([], 2)


def test_one_that_gave_up_this_moment_is_let_in_to_learn_it():
    admission = waiting(1, 1, deadline=101.0)
    admission.leave(1)
    assert admission.let_in(100.0, 2.0, 50, lambda turn: False) == [(0, True)]


# What came of it.


@pytest.mark.parametrize("result", [None, BUSY, TRANSIENT, MISSING])
def test_what_a_broker_returned_is_an_answer(result):
    assert is_answer((DOWN, result))


def test_a_failure_to_reach_a_broker_is_no_answer():
    assert not is_answer((DOWN, LATE))


@pytest.mark.parametrize(("result", "answered"), [(None, True), (BUSY, True), (DOWN, False)])
def test_the_outcome_of_an_attempt_says_whether_a_broker_answered(result, answered):
    sending = Sending()
    sending.start()
    assert sending.machine.primary_ended([result]).answered is answered
    sending = Sending(FAILED_OVER)
    sending.start()
    assert sending.machine.backlog_ended([result], 100.0).answered is answered


def test_what_found_no_queue_is_sent_once_more():
    assert not_found((None, MISSING, DOWN, MISSING)) == [1, 3]


def given_up(*failures: TransportError, **known: TransportError | None) -> list[str]:
    job = Job(Message(b"x"))
    for failed in failures:
        job.failed(failed)
    job.give_up(**{"primary": None, "backlog": None, "fault": None, **known})
    return [str(cause) for cause in job.causes]


def test_a_send_that_is_given_up_names_what_is_known_of_both_brokers():
    assert given_up(LATE, primary=DOWN, backlog=BUSY) == [str(DOWN), str(LATE), str(BUSY)]


def test_a_cause_is_named_once():
    again = failure(FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
    assert given_up(DOWN, primary=again, backlog=again, fault=TRANSIENT) == [str(DOWN), str(TRANSIENT)]


# For how long.


def test_an_attempt_gets_half_of_the_time_left():
    step = Sending(timeout=4.0, attempt_timeout=10.0).start()
    assert isinstance(step, Attempt)
    assert step.until == 102.0


def test_an_attempt_gets_the_attempt_timeout_at_most():
    step = Sending(timeout=60.0, attempt_timeout=10.0).start()
    assert isinstance(step, Attempt)
    assert step.until == 110.0


def test_an_attempt_gets_all_of_the_last_stretch():
    step = Sending(timeout=0.09).start()
    assert isinstance(step, Attempt)
    assert step.until == pytest.approx(100.09)


def test_an_attempt_gets_more_than_half_when_the_broker_is_known_to_need_it():
    sending = Sending(timeout=1.0)
    sending.rules.to_primary.cut_off(0.4)
    step = sending.start()
    assert isinstance(step, Attempt)
    assert step.until == pytest.approx(100.8)


def test_no_attempt_begins_at_the_deadline():
    sending = Sending(timeout=1.0)
    sending.start()
    sending.primary(DOWN)
    assert sending.resume(1.0) == Done(PrimaryUnavailable, "the deadline passed")


def test_a_send_gives_up_when_its_last_wait_ends_a_tick_early():
    sending = Sending(timeout=1.0)
    sending.start()
    sending.primary(DOWN)
    assert sending.resume(1.0 - 1e-9) == Done(PrimaryUnavailable, "the deadline passed")


def test_a_send_waits_for_its_deadline_when_it_takes_all_of_its_time_to_end_what_runs():
    sending = Sending(timeout=4.0)
    sending.start()
    sending.primary(DOWN)
    assert sending.resume(3.5, lead=0.6) == Wait(sending.deadline, last=True)
    assert sending.resume(0.4) == Done(PrimaryUnavailable, "the deadline passed")


def test_a_change_lets_a_send_go_on_that_waits_for_its_deadline():
    sending = Sending(timeout=4.0)
    sending.start()
    sending.primary(DOWN)
    sending.resume(3.5, lead=0.6)
    assert route_of(sending.resume(0.1, lead=0.6, changed=True)) is Route.PRIMARY


def test_a_send_begins_attempts_for_half_of_its_time_at_least():
    sending = Sending(timeout=4.0)
    sending.start()
    sending.primary(DOWN)
    assert route_of(sending.resume(1.9, lead=100.0)) is Route.PRIMARY


def test_a_round_trip_is_needed_once_it_was_measured():
    trip = RoundTrip()
    trip.answered(0.2)
    assert trip.needed == pytest.approx(0.6)


def test_a_broker_is_far_by_its_quickest_answer_lately():
    rules = Sending().rules
    assert not rules.far
    rules.to_primary.took(0.5)
    assert rules.far
    for seconds in (0.01, 2.0, 0.4):
        rules.to_primary.answered(seconds)
        assert not rules.far
    rules.to_backlog.answered(0.3)
    assert rules.far  # the other one is
    rules.to_backlog.answered(0.0)
    assert not rules.far
    for _ in range(1000):
        rules.to_primary.answered(0.1)
    assert rules.far  # it is another network by now


def test_a_batch_has_less_in_flight_over_a_link_that_shows_to_be_narrow():
    rules = Sending(attempt_timeout=10.0).rules
    rules.to_primary.answered(0.3)
    seen = []
    for seconds in (2.7, 2.9, 9.0, 9.0, 2.7, 0.3, 0.3):
        rules.took(rules.to_primary, seconds)
        seen.append(rules.room >> 20)
    assert seen == [4, 2, 1, 1, 1, 2, 4]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6)), max_size=30))
def test_no_broker_is_known_to_need_more_than_a_fair_trial(seen):
    trip = RoundTrip()
    for answered, seconds in seen:
        (trip.answered if answered else trip.cut_off)(seconds)
    assert 0.0 <= trip.needed <= FAIR_TRIAL


# What the results of an attempt at the primary mean.


def judged(results: Sequence[TransportError | None], after: int = 0) -> Any:
    """What an attempt means, after others that failed in passing."""
    sending = Sending(messages=len(results))
    sending.start()
    for _ in range(after):
        sending.primary(*[TRANSIENT] * len(results))
    return sending.machine.primary_ended(results)


def test_a_confirmed_message_is_accepted():
    assert judged([None]) == (True, None, (Fate.ACCEPTED,), True)


def test_one_accepted_message_of_a_batch_shows_that_the_primary_accepts_messages():
    outcome = judged([DOWN, None, TOO_LARGE])
    assert (outcome.accepted, outcome.evidence) == (True, None)
    assert outcome.fates == [Fate.AGAIN, Fate.ACCEPTED, Fate.REFUSED]


def test_a_failure_is_evidence_about_the_entity():
    assert judged([DOWN]) == (False, DOWN, [Fate.AGAIN], False)


@pytest.mark.parametrize(("timeout", "later", "counts"), [(2.0, 0.0, True), (2.0, 1.5, False), (60.0, 50.0, True)])
def test_a_time_out_with_little_of_a_sends_time_left_is_no_evidence(timeout, later, counts):
    sending = Sending(timeout=timeout)
    sending.start()
    if later:
        sending.primary(DOWN)
        assert route_of(sending.resume(later)) is Route.PRIMARY
    assert (sending.machine.primary_ended([LATE]).evidence is LATE) is counts


def test_a_time_out_of_a_throttled_send_is_no_evidence():
    sending = Sending(timeout=0.5)
    sending.rules.to_primary.answered(0.3)  # so that it gets more than half
    sending.start()
    sending.primary(BUSY)
    assert sending.machine.primary_ended([LATE]).evidence is None


def test_a_lost_connection_is_evidence_however_little_time_is_left():
    sending = Sending(timeout=2.0)
    sending.start()
    sending.primary(DOWN)
    assert route_of(sending.resume(1.5)) is Route.PRIMARY
    assert sending.machine.primary_ended([DOWN]).evidence is DOWN


def test_the_worst_failure_of_a_batch_is_the_evidence():
    assert judged([BUSY, TRANSIENT, DOWN]).evidence is DOWN


def test_a_refusal_by_the_broker_is_evidence_that_it_responds():
    assert judged([TOO_LARGE, MISSING]).evidence is MISSING


def test_a_refusal_that_a_client_may_give_alone_is_no_evidence():
    assert judged([TOO_LARGE]) == (False, None, [Fate.REFUSED], True)


def test_a_transient_failure_is_no_evidence_until_it_outlives_its_retries():
    found = [judged([TRANSIENT], count).evidence for count in range(TRANSIENT_RETRIES + 1)]
    assert found == [None] * TRANSIENT_RETRIES + [TRANSIENT]


def test_transient_failures_in_a_row_count_as_unavailable_after_their_retries():
    sending = Sending(while_failing="raise")
    sending.start()
    for _ in range(TRANSIENT_RETRIES):
        assert isinstance(sending.primary(TRANSIENT), Wait)
        sending.resume(2.0)
    assert isinstance(sending.primary(TRANSIENT), Done)


def test_another_result_between_transient_failures_begins_their_count_anew():
    sending = Sending(while_failing="raise")
    sending.start()
    for result in [*[TRANSIENT] * TRANSIENT_RETRIES, BUSY, TRANSIENT]:
        assert isinstance(sending.primary(result), Wait)
        sending.resume(2.0)


@pytest.mark.parametrize(
    ("results", "worst"),
    [
        ([None], None),
        ([MISSING], None),
        ([BUSY, MISSING], FailureKind.BUSY),
        ([BUSY, TRANSIENT], FailureKind.TRANSIENT),
        ([BUSY, TRANSIENT, DOWN], FailureKind.UNAVAILABLE),
    ],
)
def test_the_worst_kind_of_a_batch_decides(results, worst):
    assert worst_kind(results) is worst


# What comes next.


def test_a_send_that_failed_waits_and_tries_again():
    sending = Sending()
    sending.start()
    assert sending.primary(DOWN, seen=FAILING) == Wait(100.05)
    assert route_of(sending.resume(0.05)) is Route.PRIMARY


def test_waits_grow_up_to_two_seconds():
    sending = Sending()
    sending.start()
    waits = []
    for _ in range(8):
        step = sending.primary(BUSY)
        assert isinstance(step, Wait)
        waits.append(step.until - sending.now)
        sending.resume(waits[-1])
    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


def test_a_wait_ends_at_the_deadline():
    sending = Sending(timeout=0.03)
    sending.start()
    assert sending.primary(BUSY) == Wait(100.03, last=True)


def test_the_backlog_is_tried_at_once_when_the_entity_has_failed_over():
    sending = Sending()
    sending.start()
    assert route_of(sending.primary(DOWN, seen=FAILED_OVER)) is Route.BACKLOG


def test_a_send_is_refused_at_the_first_failure_when_while_failing_is_raise():
    sending = Sending(while_failing="raise")
    sending.start()
    done = sending.primary(DOWN, seen=FAILING)
    assert done == Done(PrimaryUnavailable, "the primary failed and while_failing is 'raise'")


def test_those_that_were_not_accepted_go_round_again():
    sending = Sending(messages=3)
    sending.start()
    sending.primary(None, DOWN, TOO_LARGE)
    step = sending.resume(0.1)
    assert isinstance(step, Attempt)
    assert step.jobs == [sending.jobs[1]]


def test_a_send_is_done_when_each_message_has_its_result():
    sending = Sending(messages=2)
    sending.start()
    assert sending.primary(None, TOO_LARGE) == Done()


def test_what_an_earlier_attempt_may_have_left_ends_as_unknown():
    sending = Sending()
    sending.start()
    sending.primary(LATE)
    sending.primary(DOWN)
    assert sending.jobs[0].ends_as(PrimaryUnavailable) is SendUnknown


def test_what_was_never_in_doubt_ends_as_refused():
    sending = Sending()
    sending.start()
    sending.primary(DOWN)
    assert sending.jobs[0].ends_as(PrimaryUnavailable) is PrimaryUnavailable


def test_a_send_keeps_its_first_failure_and_the_last_nine():
    job = Job(Message(b"x"))
    failures = [failure(FailureKind.BUSY) for _ in range(20)]
    for each in failures:
        job.failed(each)
    assert job.causes == (failures[0], *failures[-9:])


# What the results of an attempt at a backlog queue mean.


def diverted(*results: TransportError | None, **options: Any) -> tuple[Sending, Any]:
    sending = Sending(FAILED_OVER, messages=len(results), **options)
    assert route_of(sending.start()) is Route.BACKLOG
    return sending, sending.machine.backlog_ended(results, sending.now)


def test_a_queue_that_confirms_one_message_works():
    _, outcome = diverted(TOO_LARGE, None)
    assert outcome == (True, True, [Fate.REFUSED, Fate.ACCEPTED], True)


def test_a_message_at_fault_says_nothing_about_the_queue():
    _, outcome = diverted(TOO_LARGE)
    assert outcome == (None, False, [Fate.REFUSED], True)


def test_a_queue_that_failed_is_left_and_another_one_is_tried_at_once():
    sending, outcome = diverted(DOWN)
    assert outcome == (False, False, [Fate.LEAVE], False)
    assert route_of(sending.resume()) is Route.BACKLOG


def test_a_queue_that_refuses_this_user_is_left():
    _, outcome = diverted(failure(FailureKind.REFUSED, FailureReason.UNAUTHORIZED))
    assert outcome.fates == [Fate.LEAVE]


def test_a_queue_may_hold_what_timed_out():
    _, outcome = diverted(LATE)
    assert outcome.maybe_there


def test_a_time_out_after_a_fair_trial_takes_the_queue_out_of_use():
    _, outcome = diverted(LATE, attempt_timeout=1.0)
    assert outcome.fates == [Fate.LEAVE]


def test_a_time_out_by_the_sends_own_deadline_leaves_the_queue_in_use_for_others():
    _, outcome = diverted(LATE, timeout=1.5)
    assert outcome.fates == [Fate.ELSEWHERE]


def test_a_short_attempt_timeout_is_a_fair_trial():
    _, outcome = diverted(LATE, timeout=1.5, attempt_timeout=0.5)
    assert outcome.fates == [Fate.LEAVE]


def test_a_throttled_queue_is_left_for_another_one_after_its_retries():
    sending = Sending(FAILED_OVER)
    sending.start()
    for _ in range(TRANSIENT_RETRIES):
        step = sending.backlog(BUSY)
        assert isinstance(step, Wait)
        assert step.queue
        sending.resume(2.0)
    assert sending.machine.backlog_ended([BUSY], sending.now).fates == [Fate.LEAVE]


def test_the_last_queue_is_waited_for_when_it_is_throttled():
    sending = Sending(FAILED_OVER, queues=1)
    sending.start()
    for _ in range(TRANSIENT_RETRIES + 5):
        assert isinstance(sending.backlog(BUSY), Wait)
        sending.resume(2.0)


def test_a_send_waits_when_others_try_every_queue():
    sending = Sending(FAILED_OVER, clean=True)
    for index in (0, 1):
        sending.rotation.take_out(index, 90.0)
        sending.rotation.begin_trial(index)
    assert isinstance(sending.start(), Wait)
    assert sending.key is not None
    assert sending.key.clean  # nothing can have been stored


def test_a_key_that_keeps_diverting_waits_when_its_queue_takes_nothing():
    sending = Sending(clean=False)
    sending.start()
    for index in (0, 1):
        sending.rotation.take_out(index, 102.0)
    assert sending.machine.looked(None, 102.0) == Check(sending.jobs)
    assert isinstance(sending.machine.checked((), 102.0), Wait)
    assert sending.resume(1.0) == LookAt(0, 103.0)  # with a new patience


# Which backlog queue an attempt takes.


def test_a_sender_keeps_the_backlog_queue_that_was_chosen_at_random():
    sending = Sending(FAILED_OVER, chance=0.9)
    assert choice_of(sending.start()) == Choice(1, trial=False, rests=False)
    sending.rules.chance = lambda: 0.0
    again = SendMachine(sending.rules, sending.entity, sending.entity, [Job(Message(b"x"))], 100.0, 160.0)
    assert choice_of(again.start(100.0)) == Choice(1, trial=False, rests=False)


def test_a_key_uses_its_own_queue_on_which_its_order_rests_and_its_sender_keeps_none():
    sending = Sending(FAILED_OVER, clean=True, chance=0.9)
    assert choice_of(sending.start()) == Choice(0, trial=False, rests=True)
    assert sending.entity.queue is None


def test_a_sender_keeps_no_queue_that_was_too_slow_for_one_of_its_sends():
    sending = Sending(FAILED_OVER, timeout=1.0, chance=0.9)
    sending.start()
    sending.machine.backlog_ended([LATE], 100.5)
    assert sending.entity.queue is None


def test_a_lane_is_tried_first_and_once_when_it_is_too_slow_for_the_send():
    entity, rules = Entity(FAILED_OVER), Sending().rules
    entity.queue, entity.lane = 1, rules.rotation.add_lane()
    machine = SendMachine(rules, entity, entity, [Job(Message(b"x"))], 100.0, 101.0)
    assert choice_of(machine.start(100.0)) == Choice(entity.lane, trial=False, rests=False)
    machine.backlog_ended([LATE], 100.5)
    assert choice_of(machine.resume(100.5)) == Choice(1, trial=False, rests=False)
    assert (entity.queue, entity.lane) == (1, 2)  # of other sends


@pytest.mark.parametrize("began", [False, True])
def test_what_was_cut_off_may_be_in_the_backlog_when_its_operation_had_begun(began):
    sending = Sending(FAILED_OVER, clean=True)
    sending.start()
    sending.machine.backlog_cut_off(100.5, began=began)
    assert sending.key is not None
    assert sending.key.clean is not began


@pytest.mark.parametrize(("last", "behind", "in_vain"), [(True, 8.1, True), (True, 7.9, False), (False, 9.0, False)])
def test_a_last_wait_is_in_vain_when_the_ends_of_others_are_late_by_most_of_it(last, behind, in_vain):
    assert Wait(110.0, last=last).is_in_vain(100.0, behind) is in_vain


# Without a queue in use.


def without_queues(**options: Any) -> Sending:
    sending = Sending(FAILED_OVER, queues=1, **options)
    sending.rotation.take_out(0, 100.0, chance=0.0)
    return sending


def test_a_send_waits_for_both_brokers_when_no_queue_is_due():
    assert without_queues().start() == Wait(100.05, queue=True, nowhere=True)


def test_a_send_that_waits_for_a_queue_checks_first_whether_the_queue_could_hold_it():
    sending = without_queues()
    assert sending.machine.start(100.0) == Check(sending.jobs)


def test_a_message_that_no_queue_could_hold_does_not_wait_for_one():
    sending = without_queues(messages=2)
    sending.machine.start(100.0)
    assert isinstance(sending.machine.checked(sending.jobs[:1], 100.0), Wait)
    assert sending.machine.pending == sending.jobs[1:]


def test_a_send_is_done_when_no_queue_could_hold_any_of_its_messages():
    sending = without_queues()
    sending.machine.start(100.0)
    assert sending.machine.checked(sending.jobs, 100.0) == Done()


def test_a_send_tries_a_queue_itself_when_one_is_due():
    sending = without_queues()
    sending.start()
    assert route_of(sending.resume(0.05)) is Route.BACKLOG


def test_a_send_is_refused_at_once_without_a_queue_when_while_failing_is_raise():
    done = without_queues(while_failing="raise").start()
    assert done == Done(BacklogUnavailable, "no backlog queue takes messages", diverting=True, nowhere=True)


def test_a_send_that_waited_in_vain_says_what_it_waited_for():
    sending = without_queues()
    sending.start()
    done = sending.resume(60.0)
    assert done == Done(BacklogUnavailable, "no backlog queue takes messages until the deadline", diverting=True)


# Order.


def test_a_clean_key_goes_to_the_primary():
    assert route_of(Sending(clean=True).start()) is Route.PRIMARY


def test_a_dirty_key_looks_at_its_queue_first():
    assert Sending(clean=False).start() == LookAt(0, 102.0)


def test_a_dirty_key_is_diverted_when_its_queue_does_not_answer():
    sending = Sending(clean=False)
    sending.start()
    assert route_of(sending.machine.looked(None, 102.0)) is Route.BACKLOG


def test_a_key_goes_to_the_primary_when_its_queue_is_seen_empty():
    sending = Sending(clean=False)
    sending.start()
    step = sending.past_checks(sending.machine.looked(Look(100.0, None, 0), 100.1))
    assert route_of(step) is Route.PRIMARY


def test_a_key_waits_while_its_queue_drains():
    sending = Sending(clean=False)
    sending.start()
    assert sending.machine.looked(Look(100.0, 5, 9), 100.1) == Wait(pytest.approx(100.11))


def test_a_key_is_diverted_when_its_wait_is_over():
    sending = Sending(clean=False)
    sending.start()
    sending.machine.looked(Look(100.0, 5, 9), 100.1)
    assert route_of(sending.resume(2.0)) is Route.BACKLOG


def test_a_diverted_key_is_dirty_from_before_its_send_leaves():
    sending = Sending(FAILED_OVER, clean=True)
    sending.start()
    assert sending.key is not None
    assert not sending.key.clean


def test_a_key_is_not_diverted_after_the_deadline_when_its_look_came_late():
    sending = Sending(clean=False, timeout=1.0)
    sending.start()
    assert sending.machine.looked(None, 101.0) == Done(BacklogUnavailable, "the deadline passed", diverting=True)


def test_a_key_waits_for_its_only_queue_when_that_failed():
    sending = Sending(FAILED_OVER, clean=True)
    sending.start()
    assert isinstance(sending.backlog(DOWN), Wait)


def test_a_send_without_order_looks_at_nothing():
    sending = Sending()
    with pytest.raises(ImpossibleInputError):
        sending.machine.looked(None, 100.0)


# Close.


def test_a_closing_pair_moves_the_deadline_forward():
    sending = Sending()
    sending.rules.end_by(101.0, "the pair closed")
    step = sending.start()
    assert isinstance(step, Attempt)
    assert step.until == 100.5


def test_a_closing_pair_never_moves_the_deadline_back():
    sending = Sending(timeout=1.0)
    sending.rules.end_by(200.0, "the pair closed")
    assert isinstance(sending.start(), Attempt)
    sending.primary(BUSY)
    assert sending.resume(1.0) == Done(SendRefused, "the pair closed")


def test_a_wait_ends_when_the_pair_is_closed():
    sending = Sending()
    sending.start()
    sending.rules.end_by(100.02, "the pair closed")
    assert sending.primary(DOWN) == Wait(100.02, last=True)


def test_what_a_closing_pair_gives_up_is_reported():
    sending = Sending(while_failing="raise")
    sending.start()
    sending.rules.end_by(105.0, "the pair faulted: x")
    assert sending.primary(DOWN) == Done(SendRefused, "the pair faulted: x")


# Whatever happens.

FAILURES = st.sampled_from([None, TRANSIENT, BUSY, DOWN, LATE, MISSING, TOO_LARGE])
STATES = st.sampled_from(list(EntityState))


class Driven(Sending):
    """Brokers and an entity that do anything, in a time that goes on."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        super().__init__(
            data.draw(STATES),
            messages=data.draw(st.integers(1, 3)),
            timeout=data.draw(st.floats(0.01, 3.0)),
            clean=data.draw(st.sampled_from([None, False, True])),
            chance=data.draw(st.sampled_from([0.0, 0.5])),
            while_failing=data.draw(st.sampled_from(["wait", "raise"])),
            attempt_timeout=data.draw(st.sampled_from([0.5, 10.0])),
        )
        self.results: dict[Job, int] = dict.fromkeys(self.jobs, 0)

    def drive(self) -> None:
        step = self.machine.start(self.now)
        for _ in range(1000):
            if isinstance(step, Done):
                self.ended(step)
                return
            step = self.carried_out(step)
        raise AssertionError("it goes on forever")

    def carried_out(self, step: Step) -> Step:
        if isinstance(step, Check):
            unfit = [job for job in step.jobs if self.data.draw(st.integers(0, 9)) == 0]
            for job in unfit:
                self.results[job] += 1
            return self.machine.checked(unfit, self.now)
        if isinstance(step, LookAt):
            assert step.until <= self.deadline
            began = self.now
            self.pass_until(step.until)
            look = self.data.draw(st.sampled_from([None, Look(began, None, 0), Look(began, 1, 2)]))
            return self.machine.looked(look, self.now)
        if isinstance(step, Wait):
            assert step.until <= self.deadline
            self.pass_until(step.until)
        elif isinstance(step, Attempt):
            self.attempted(step)
        self.entity.seen = self.data.draw(STATES)
        if self.data.draw(st.integers(0, 9)) == 0:
            instant = self.now + self.data.draw(st.floats(0.0, 1.0))
            self.rules.end_by(instant, "the pair closed")
            self.deadline = min(self.deadline, instant)
        return self.machine.resume(self.now)

    def pass_until(self, until: float) -> None:
        left = max(0.0, until - self.now)
        self.now += max(min(left, 0.001), left * self.data.draw(st.sampled_from([0.1, 0.5, 1.0])))

    def attempted(self, attempt: Attempt) -> None:
        assert self.now < self.deadline
        assert attempt.until <= self.deadline + 1e-9
        left, share = self.deadline - self.now, attempt.until - self.now
        assert left < 0.1 or share <= left / 2 + 1e-9
        assert attempt.jobs
        assert not any(self.results[job] for job in attempt.jobs)
        results = [self.data.draw(FAILURES) for _ in attempt.jobs]
        self.pass_until(attempt.until)
        outcome: Any
        if attempt.route is Route.PRIMARY:
            outcome = self.machine.primary_ended(results)
        else:
            outcome = self.machine.backlog_ended(results, self.now)
        for job, result, fate in zip(attempt.jobs, results, outcome.fates, strict=True):
            assert (fate is Fate.ACCEPTED) is (result is None)
            if fate in (Fate.ACCEPTED, Fate.REFUSED):
                self.results[job] += 1
            elif fate is Fate.LEAVE and self.rotation.in_use:
                self.rotation.take_out(self.rotation.in_use[0], self.now)

    def ended(self, done: Done) -> None:
        for job in self.machine.pending:
            assert done.refusal is not None
            assert (job.ends_as(done.refusal) is SendUnknown) is job.unknown
            self.results[job] += 1
        assert set(self.results.values()) == {1}
        assert self.now <= self.deadline + 1e-9


@settings(deadline=None)
@given(st.data())
def test_every_message_gets_one_result_by_the_deadline_whatever_happens(data):
    Driven(data).drive()
