"""Lanes: their names, when the syphon reads them, and what a consumer gets of one (SPEC 11)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given

from pairmq import ConfigurationError, Entity, Message, PairOptions
from pairmq.core import Diversion, divert, lane_name, lane_path
from pairmq.core.lanes import LaneStep, LaneWatch, Outcome, TwoSides, drained_since, from_lane
from pairmq.core.pump import Poison
from pairmq.core.record import Configuration, Record
from pairmq.core.rotation import Rotation
from pairmq.testing.strategies import entity_paths

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def configuration(*continuity: str) -> Configuration:
    return Configuration("contoso", ("memory", "contoso"), "{primary}/b/{index}", 2, "none", continuity)


# ------------------------------------------------------------------------------------------------------------- names


@given(entity_paths(max_length=40))
def test_a_lanes_name_gives_its_queue_back(path):
    assert lane_path(lane_name("contoso", path)) == path


def test_lanes_of_queues_that_differ_in_case_differ_where_the_broker_ignores_case():
    assert lane_name("contoso", "Orders").lower() != lane_name("contoso", "orders").lower()


@pytest.mark.parametrize(
    "name", ["orders", "a/x-pairmq-lane", "a/x-pairmq-lane/Orders", "a/x-pairmq-lane/~ff", "a/b/0"]
)
def test_a_name_that_no_lane_has_gives_no_queue(name):
    assert lane_path(name) is None


def test_a_lane_counts_as_a_backlog_queue_of_its_primary():
    options, name = PairOptions(), lane_name("contoso", "orders")
    assert (options.is_backlog_queue(name), options.primary_of_backlog_queue(name)) == (True, "contoso")


# ----------------------------------------------------------------------------------------------------------- options


def test_continuity_refuses_order_and_gives_the_reason():
    with pytest.raises(ConfigurationError, match="still holds of a session must be handled before"):
        PairOptions(continuity=("orders",), ordering="session")


@pytest.mark.parametrize(
    "patterns", [("../orders",), ("a\n*",), ("x" * 261 + "*",), tuple(f"{n:0250}*" for n in range(40))]
)
def test_continuity_refuses_patterns_that_no_queue_matches_or_no_record_holds(patterns):
    with pytest.raises(ConfigurationError, match="continuity"):
        PairOptions(continuity=patterns)


def test_continuity_is_sorted_so_that_processes_agree():
    assert PairOptions(continuity=["b", "a", "b"]).continuity == ("a", "b")


# ---------------------------------------------------------------------------------------------------------- rotation


def test_a_send_uses_its_lane_before_any_shared_queue_and_no_other_lane():
    rotation = Rotation(2, 30)
    lane, other = rotation.add_lane(), rotation.add_lane()
    assert rotation.attempt(0, 0.0, lane=lane) == (lane, False)
    assert rotation.take_out(lane, 0)
    assert rotation.attempt(0, 0.9, lane=lane) == (1, False)
    assert {rotation.attempt(0, chance / 10)[0] for chance in range(10)} == {0, 1}
    for index in (0, 1, other):
        rotation.take_out(index, 0)
    tried = {rotation.attempt(9, 0.0, lane=lane)[0] for _ in range(4)}
    assert tried == {0, 1, lane, None}


def test_a_lane_that_works_again_is_no_shared_queue():
    rotation = Rotation(1, 30)
    lane = rotation.add_lane()
    rotation.take_out(lane, 0)
    assert (rotation.in_use, rotation.lanes_in_use, rotation.out) == ((0,), (), (lane,))
    assert rotation.put_back(lane)
    assert (rotation.in_use, rotation.lanes_in_use, rotation.out) == ((0,), (lane,), ())


def test_a_lane_in_use_is_enough_for_a_send_of_its_queue():
    rotation = Rotation(1, 30)
    lane = rotation.add_lane()
    rotation.take_out(0, 0)
    assert (rotation.takes(lane=lane), rotation.takes()) == (True, False)


# -------------------------------------------------------------------------------------------------------- the syphon


def test_the_syphon_reads_a_lane_after_a_while_without_progress():
    watch = LaneWatch(5)
    watch.seen(9, 10)
    assert not watch.may_read(14)
    watch.seen(9, 14)
    assert watch.may_read(15)


def test_progress_of_consumers_makes_the_syphon_wait_anew():
    watch = LaneWatch(5)
    for pending, now in ((9, 0), (8, 4), (8, 8)):
        watch.seen(pending, now)
    assert not watch.may_read(8.9)
    assert watch.may_read(9)


def test_what_the_syphon_itself_reads_is_no_progress_of_consumers():
    watch = LaneWatch(5)
    watch.seen(200, 0)
    watch.received(100, 0, 5)
    watch.seen(100, 6)
    assert watch.may_read(6)


def test_a_lane_that_is_all_locked_by_consumers_is_left_to_them():
    watch = LaneWatch(5)
    watch.seen(2, 0)
    watch.received(0, 0, 6)
    assert not watch.may_read(10)


def test_a_syphon_without_patience_reads_a_lane_at_once():
    watch = LaneWatch(0)
    watch.seen(1, 7)
    assert watch.may_read(7)


def test_an_empty_lane_is_looked_at_less_and_less_often():
    watch = LaneWatch(5)
    waits = []
    for now in range(6):
        watch.seen(0, now)
        waits.append(watch.next_look(now))
    assert waits == [10, 20, 40, 60, 60, 60]


def test_the_syphon_looks_asks_the_primary_and_reads_on_until_the_lane_gives_nothing():
    watch = LaneWatch(5)
    step = partial(watch.step, stuck=False, is_open=True)
    assert step(0, 0) is LaneStep.LOOK
    watch.seen(9, 0)
    assert step(0, 0) is LaneStep.WAIT
    assert (watch.wait(0, 0), step(5, 0)) == (5, LaneStep.LOOK)
    watch.seen(9, 5)
    assert (step(5, 0), step(5, 0, primary_answers=True)) == (LaneStep.ASK, LaneStep.READ)
    watch.received(3, 0, 5)
    assert step(5, 3) is LaneStep.READ
    watch.received(0, 3, 5)
    assert (step(5, 3), watch.wait(5, 3)) == (LaneStep.WAIT, 1)
    assert step(6, 0) is LaneStep.LOOK


@pytest.mark.parametrize("known", [{"is_open": False}, {"is_open": True, "primary_answers": False}])
def test_the_syphon_reads_no_lane_while_the_primary_takes_no_messages(known):
    watch = LaneWatch(0)
    watch.seen(1, 0)
    assert watch.step(0, 0, stuck=False, **known) is LaneStep.WAIT


def test_the_syphon_releases_what_can_not_be_delivered_before_anything_else():
    watch = LaneWatch(0)
    watch.received(1, 0, 0)
    assert watch.step(0, 1, stuck=True, is_open=False) is LaneStep.LET_GO
    watch.let_go()
    assert watch.step(0, 0, stuck=False, is_open=False) is LaneStep.LOOK


def test_an_entity_is_drained_when_its_lane_is_and_no_count_of_it_has_failed():
    assert [drained_since(7.0, lane) for lane in (0, 1, None)] == [7.0, None, None]
    assert drained_since(None, 0) is None


# ------------------------------------------------------------------------------------------------- sides of a receiver


def test_both_sides_are_asked_while_a_call_waits_whatever_the_other_one_does():
    sides = TwoSides()
    call = sides.begin(0, 60)
    sides.primary.answers(1)
    sides.lane.fails(1, 0.5, refused=False)
    assert [sides.wants(side, 2) for side in (sides.primary, sides.lane)] == [True, True]
    assert [sides.poll(side, 2) for side in (sides.primary, sides.lane)] == [58, 0]
    assert sides.lane.retry_at > 1
    assert sides.outcome(call, 2, raises=True, ended=False) is Outcome.WAIT
    sides.end(call)
    assert not sides.wants(sides.lane, 2)


def test_a_call_is_over_when_both_sides_were_asked_since_it_began():
    sides = TwoSides()
    call = sides.begin(10, 0)
    sides.primary.answers(10)
    assert sides.outcome(call, 10, raises=True, ended=False) is Outcome.WAIT
    assert sides.wants(sides.lane, 10)
    sides.lane.answers(10)
    assert sides.outcome(call, 10, raises=True, ended=False) is Outcome.OVER


@pytest.mark.parametrize(
    ("raises", "was_read", "refused", "lane_lost", "ended", "outcome"),
    [
        (True, True, False, True, False, Outcome.FAIL),
        (False, True, False, True, False, Outcome.WAIT),
        (True, True, False, False, False, Outcome.WAIT),
        (False, False, True, False, False, Outcome.FAIL),
        (False, True, True, False, False, Outcome.WAIT),
        (False, True, False, True, True, Outcome.FAIL),
    ],
)
def test_a_call_fails_while_neither_side_can_be_read_or_no_wait_would_help(
    raises, was_read, refused, lane_lost, ended, outcome
):
    sides = TwoSides()
    if was_read:
        sides.primary.answers(0)
    call = sides.begin(1, 60)
    assert sides.primary.fails(2, 0.5, refused=refused)
    assert not sides.primary.fails(3, 0.5, refused=refused)
    if lane_lost:
        sides.lane.fails(2, 0.5, refused=False)
    assert sides.outcome(call, 3, raises=raises, ended=ended) is outcome


def test_sides_give_messages_in_turn():
    sides = TwoSides()
    assert [sides.lane_first() for _ in range(4)] == [False, True, False, True]


# --------------------------------------------------------------------------------------------------------- consumers


def enveloped(message: Message, path: str = "orders") -> Message:
    return divert(message, Diversion(Entity(path), NOW, "sender", 1))


def test_a_consumer_gets_the_message_that_was_sent():
    message = Message(b"1", "id", session_id="s", time_to_live=5.0, application_properties={"a": 1})
    assert from_lane(enveloped(message), Entity("orders"), PairOptions(), NOW + timedelta(hours=1)) == message


def test_a_consumer_gets_what_is_left_of_the_time_to_live_where_time_in_the_backlog_counts():
    options = PairOptions(ttl_policy="elapse")
    wrapped = enveloped(Message(b"1", time_to_live=5.0))
    got = from_lane(wrapped, Entity("orders"), options, NOW + timedelta(seconds=2))
    assert isinstance(got, Message)
    assert got.time_to_live == pytest.approx(3.0)
    late = from_lane(wrapped, Entity("orders"), options, NOW + timedelta(seconds=5))
    assert isinstance(late, Poison)
    assert late.reason == "TTLExpiredException"


@pytest.mark.parametrize(
    ("message", "reason"),
    [(Message(b"1"), "malformed-envelope"), (enveloped(Message(b"1"), "prices"), "destination-not-allowed")],
)
def test_a_consumer_gets_nothing_that_does_not_belong_to_its_queue(message, reason):
    got = from_lane(message, Entity("orders"), PairOptions(), NOW)
    assert isinstance(got, Poison)
    assert got.reason == reason


# -------------------------------------------------------------------------------------------------------- the record


def test_processes_with_another_continuity_are_found():
    own, other = configuration("orders"), configuration("orders", "prices")
    record = Record.read([own.message().body, other.message().body])
    assert record.configurations == (own, other)
    assert any(text.startswith("continuity is 'orders' here") for text in record.differences(own))
    assert record.other_lanes(own) == (lane_name("contoso", "prices"),)


def test_a_lane_of_a_pattern_is_known_by_the_record():
    own = configuration("orders.*")
    record = Record.read([own.message().body, own.lane_message("orders.eu").body, own.lane_message("orders.eu").body])
    assert (record.lane_paths(own), record.problems, record.copies) == (("orders.eu",), (), 1)
    assert record.other_lanes(own) == (lane_name("contoso", "orders.eu"),)


def test_a_lane_of_another_primary_is_not_read():
    own = configuration("*")
    foreign = Configuration("fabrikam", ("memory", "fabrikam"), "{primary}/b/{index}", 2, "none", ("*",))
    assert Record.read([foreign.lane_message("orders").body]).other_lanes(own) == ()
