"""Which backlog queues are in use (SPEC 5.4, 5.5), by example and against a plain model."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pairmq.core.rotation import Missing, Rotation, unfit
from pairmq.transport import QueueProperties
from patient_examples import examples


@pytest.fixture
def rotation() -> Rotation:
    return Rotation(3, retry_interval=30)


def chosen(rotation: Rotation, kept: int | None, chance: float) -> int | None:
    """The queue in use for a sender, at an instant at which no trial is due."""
    return rotation.attempt(-1.0, chance, kept)[0]


def test_all_queues_are_in_use_at_the_beginning(rotation: Rotation):
    assert (rotation.in_use, rotation.out, rotation.next_deadline()) == ((0, 1, 2), (), None)


def test_a_lane_is_retried_sooner_at_first_and_then_as_the_others(rotation: Rotation):
    lane = rotation.add_lane()
    rotation.take_out(lane, now=0)
    rotation.take_out(0, now=0)
    retries = []
    while (now := rotation.next_deadline()) is not None and now < 90:
        retries += [(now, index) for index in rotation.due(now)]
    assert [now for now, index in retries if index == lane] == [1, 3, 7, 15, 31, 61]
    assert [now for now, index in retries if index == 0] == [30, 60]


@pytest.mark.parametrize("count", [0, -1])
def test_a_rotation_has_at_least_one_queue(count: int):
    with pytest.raises(ValueError, match=f"count is {count}: at least 1"):
        Rotation(count, 30)


def test_a_sender_keeps_its_queue(rotation: Rotation):
    assert [chosen(rotation, 1, chance) for chance in (0.0, 0.5, 0.999)] == [1, 1, 1]


def test_a_sender_without_a_queue_gets_any_by_chance(rotation: Rotation):
    assert [chosen(rotation, None, chance) for chance in (0.0, 0.34, 0.999)] == [0, 1, 2]


def test_a_sender_whose_queue_is_out_gets_another_one(rotation: Rotation):
    rotation.take_out(1, now=0)
    assert {chosen(rotation, 1, chance / 10) for chance in range(10)} == {0, 2}


def test_all_senders_learn_that_a_queue_is_out(rotation: Rotation):
    rotation.take_out(0, now=0)
    assert [chosen(rotation, kept, 0.0) for kept in (0, None, 1, 2)] == [1, 1, 1, 2]


def test_none_is_left_when_all_queues_are_out(rotation: Rotation):
    for index in range(3):
        rotation.take_out(index, now=0)
    assert [chosen(rotation, kept, 0.5) for kept in (None, 1)] == [None, None]


def test_only_the_first_failure_takes_a_queue_out(rotation: Rotation):
    assert [rotation.take_out(1, now=0), rotation.take_out(1, now=5)] == [True, False]


def test_more_failures_of_a_queue_that_is_out_do_not_postpone_its_retry(rotation: Rotation):
    rotation.take_out(1, now=0)
    rotation.take_out(1, now=29)
    assert rotation.next_deadline() == 30


def test_a_queue_is_tried_again_after_the_interval_and_not_before(rotation: Rotation):
    rotation.take_out(1, now=0)
    assert [rotation.due(29.999), rotation.due(30)] == [(), (1,)]


def test_a_queue_that_fails_its_retry_is_tried_once_more_an_interval_later(rotation: Rotation):
    rotation.take_out(1, now=0)
    rotation.due(31)
    assert (rotation.due(60.999), rotation.due(61)) == ((), (1,))


def test_a_queue_that_is_due_stays_out_until_it_is_put_back(rotation: Rotation):
    rotation.take_out(1, now=0)
    rotation.due(30)
    assert rotation.in_use == (0, 2)


def test_a_queue_that_works_again_is_in_use_as_before(rotation: Rotation):
    rotation.take_out(1, now=0)
    assert rotation.put_back(1)
    assert (rotation.in_use, rotation.out, rotation.next_deadline()) == ((0, 1, 2), (), None)


def test_a_queue_in_use_can_not_be_put_back(rotation: Rotation):
    assert not rotation.put_back(1)
    assert rotation.in_use == (0, 1, 2)


def test_a_sender_whose_queue_came_back_keeps_it_again(rotation: Rotation):
    rotation.take_out(1, now=0)
    rotation.put_back(1)
    assert chosen(rotation, 1, 0.0) == 1


# Trials by sends (SPEC 5.5).


def all_out(rotation: Rotation) -> None:
    for index in range(3):
        rotation.take_out(index, now=0)


def test_a_trial_waits_a_moment_after_the_failure(rotation: Rotation):
    all_out(rotation)
    assert [rotation.trial(0.049), rotation.trial(0.05)] == [None, 0]


def test_one_send_at_a_time_tries_a_queue(rotation: Rotation):
    all_out(rotation)
    for index in range(3):
        assert rotation.trial(1) == index
        rotation.begin_trial(index)
    assert rotation.trial(1) is None


def test_a_trial_is_of_the_queue_that_has_waited_longest(rotation: Rotation):
    for index in (2, 1, 0):
        rotation.take_out(index, now=float(3 - index))
    assert rotation.trial(9) == 2


def test_trials_wait_longer_each_time_and_at_most_two_seconds(rotation: Rotation):
    all_out(rotation)
    now, waits = 10.0, []
    for _ in range(8):
        assert rotation.trial(now, 1) == 1
        rotation.begin_trial(1)
        rotation.end_trial(1, now, 0.0, works=False)
        wait = next(step for step in range(1, 1000) if rotation.trial(now + step / 100, 1) is not None) / 100
        waits.append(wait)
        now += wait
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_a_trial_without_an_answer_leaves_the_queue_to_the_next_send(rotation: Rotation):
    all_out(rotation)
    rotation.begin_trial(1)
    rotation.end_trial(1, 0.05, 0.0, works=None)
    assert rotation.trial(0.05, 1) == 1


def test_a_trial_of_a_queue_that_came_back_meanwhile_changes_nothing(rotation: Rotation):
    all_out(rotation)
    rotation.begin_trial(1)
    rotation.put_back(1)
    rotation.end_trial(1, 1, 0.0, works=False)
    assert (rotation.in_use, rotation.out) == ((1,), (0, 2))


def test_a_trial_that_succeeds_brings_its_queue_back_and_hastens_the_others(rotation: Rotation):
    all_out(rotation)
    assert rotation.attempt(1, 0.0, only=1) == (1, True)
    assert rotation.end_trial(1, 1, 0.0, works=True)
    assert (rotation.in_use, rotation.due(1)) == ((1,), (0, 2))


def test_an_attempt_takes_a_queue_in_use_before_it_tries_another_one(rotation: Rotation):
    rotation.take_out(1, now=0)
    assert rotation.attempt(9, 0.0, kept=1) == (0, False)


def test_an_attempt_waits_when_others_try_every_queue(rotation: Rotation):
    all_out(rotation)
    assert [rotation.attempt(1, 0.0)[0] for _ in range(4)] == [0, 1, 2, None]


def test_a_refused_send_makes_a_retry_due_as_often_as_a_send_would_try(rotation: Rotation):
    all_out(rotation)
    assert [rotation.try_soon(1, 0.0) for _ in range(4)] == [True, True, True, False]
    assert rotation.due(1) == (0, 1, 2)


# Missing queues (SPEC 5.5).


def test_a_missing_queue_is_created_at_once(rotation: Rotation):
    assert rotation.missing(1, now=5)


def test_a_queue_that_vanishes_again_is_not_created_at_once(rotation: Rotation):
    rotation.missing(1, now=5)
    rotation.created(1, now=5)
    assert [rotation.missing(1, now=34), rotation.missing(1, now=35)] == [False, True]


def test_a_queue_that_was_never_missing_was_not_created(rotation: Rotation):
    rotation.created(1, now=5)
    assert rotation.not_found(1, 0, now=6) is Missing.MAKE


def test_a_queue_that_was_made_since_a_send_began_is_not_made_again(rotation: Rotation):
    assert rotation.not_found(1, 4, now=5) is Missing.MAKE
    rotation.created(1, now=6)
    assert [rotation.not_found(1, began_at, now=7) for began_at in (4, 6, 6.5)] == [
        Missing.MADE,
        Missing.MADE,
        Missing.AGAIN,
    ]
    assert rotation.not_found(1, 36, now=36) is Missing.MAKE


def test_a_missing_queue_that_is_taken_out_is_retried_at_once_unless_it_vanished_again(rotation: Rotation):
    rotation.take_out(1, now=5, missing=True)
    assert rotation.due(5) == (1,)
    rotation.created(1, now=6)
    rotation.put_back(1)
    rotation.take_out(1, now=7, missing=True)
    assert [rotation.due(7), rotation.due(37)] == [(), (1,)]


def test_a_probe_tries_what_a_send_would_try(rotation: Rotation):
    rotation.take_out(rotation.add_lane(), now=0)
    rotation.take_out(1, now=0)
    assert rotation.tried(trials=True) == (0, 2)
    all_out(rotation)
    assert [rotation.tried(trials=True), rotation.tried(trials=False)] == [(0, 1, 2), ()]


@pytest.mark.parametrize(
    ("properties", "ordered", "why"),
    [
        (QueueProperties(), False, None),
        (QueueProperties(keeps_completed=True), False, "keeps messages that are completed"),
        (QueueProperties(forwards_to="other"), False, "forwards its messages to other"),
        (QueueProperties(drops_duplicates=True), False, "drops messages with an id"),
        (QueueProperties(requires_session=True), False, "requires sessions"),
        (QueueProperties(), True, "can be read by several consumers"),
        (QueueProperties(single_consumer=True), True, None),
    ],
)
def test_what_can_not_be_a_backlog_queue(properties: QueueProperties, ordered: bool, why: str | None):
    found = unfit(properties, ordered=ordered)
    assert found is why if why is None else found is not None and found.startswith(why)


def test_a_queue_in_use_needs_no_trial(rotation: Rotation):
    rotation.take_out(0, now=0)
    assert [rotation.takes(), rotation.takes(0), rotation.takes(1), rotation.trial(9, 1)] == [True, False, True, None]


def test_a_retry_can_be_due_at_once(rotation: Rotation):
    rotation.take_out(0, now=5, missing=True)
    rotation.take_out(1, now=5)
    assert rotation.due(5) == (0,)
    rotation.hasten(6)
    assert rotation.due(6) == (0, 1)


@given(st.integers(1, 1000), st.floats(0, 1, exclude_max=True))
def test_any_chance_names_a_queue(count: int, chance: float):
    assert chosen(Rotation(count, 30), None, chance) in range(count)


def test_chance_is_fair():
    rotation = Rotation(10, 30)
    picked = Counter(chosen(rotation, None, number / 1000) for number in range(1000))
    assert picked == dict.fromkeys(range(10), 100)


class AgainstADictionary(RuleBasedStateMachine):
    """The model: one dictionary of each queue's next retry, None while it is in use."""

    @initialize(count=st.integers(1, 6), interval=st.sampled_from([0.5, 30.0]))
    def begin(self, count: int, interval: float) -> None:
        self.rotation = Rotation(count, interval)
        self.interval = interval
        self.now = 0.0
        self.retry: dict[int, float | None] = dict.fromkeys(range(count))

    @rule(seconds=st.sampled_from([0.0, 0.25, 0.5, 29.0, 30.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(pick=st.integers(0, 5))
    def a_queue_fails(self, pick: int) -> None:
        index = pick % len(self.retry)
        was_in_use = self.retry[index] is None
        assert self.rotation.take_out(index, self.now) is was_in_use
        if was_in_use:
            self.retry[index] = self.now + self.interval

    @rule(pick=st.integers(0, 5))
    def a_queue_works_again(self, pick: int) -> None:
        index = pick % len(self.retry)
        assert self.rotation.put_back(index) is (self.retry[index] is not None)
        self.retry[index] = None

    @rule()
    def queues_are_tried_again(self) -> None:
        ready = tuple(index for index, at in self.retry.items() if at is not None and at <= self.now)
        assert self.rotation.due(self.now) == ready
        self.retry.update(dict.fromkeys(ready, self.now + self.interval))

    @rule(kept=st.none() | st.integers(0, 5), chance=st.floats(0, 1, exclude_max=True))
    def a_sender_chooses(self, kept: int | None, chance: float) -> None:
        kept = None if kept is None else kept % len(self.retry)
        found = chosen(self.rotation, kept, chance)
        if kept is not None and self.retry[kept] is None:
            assert found == kept
        elif None not in self.retry.values():
            assert found is None
        else:
            assert found is not None
            assert self.retry[found] is None

    @invariant()
    def both_agree(self) -> None:
        assert self.rotation.in_use == tuple(index for index, at in self.retry.items() if at is None)
        assert self.rotation.out == tuple(index for index, at in self.retry.items() if at is not None)
        assert self.rotation.next_deadline() == min((at for at in self.retry.values() if at is not None), default=None)


TestAgainstADictionary = AgainstADictionary.TestCase
TestAgainstADictionary.settings = settings(max_examples=examples(100), deadline=None)
