"""Outages, availability, the backlog, the syphon, rotation, order and cost of one day that a person can follow."""

from __future__ import annotations

import io
import random
import re
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

import duck
from facts_by_hand import tables_of
from journal_by_hand import (
    BACKLOG,
    DRAINING,
    FAILED_OVER,
    FAILING,
    HEALTHY,
    START,
    Journal,
    rows_of,
    second,
    segment_table,
)
from pairmq.model import Entity, Price
from pairmq.model.events import Cause, Side
from pairmq.pipeline.transforms import FACTS, STEPS, TABLES, Settings, Unfinished, Unread
from pairmq.pipeline.transforms.facts import digests_of_file

PATIENCE = 300.0
HOUR = 3600.0


def host() -> Journal:
    """Sends, hosts the syphon, and sees an outage from second 100 to second 400; then one that passes by itself."""
    told = Journal("host").opened().pair_opened(0.5)
    told.sent(10, "a").sent(20, "b", "refused", state=HEALTHY)
    told.changed(100, HEALTHY, FAILING, Cause.SEND_FAILED).failed(100.1, "c")
    told.changed(110, FAILING, FAILED_OVER, Cause.INTERVAL_OVER)
    told.sent(112, "c", "backlog", attempts=2, elapsed=12.0).pinged(120, ok=False)
    told.sent(130, "d", "backlog").rotated(140, in_use=False, left=9).sent(150, "e", "unknown")
    told.rotated(200, in_use=True, left=10).pinged(299, ok=True)
    told.changed(300, FAILED_OVER, DRAINING, Cause.PING_RECOVERED)
    told.moved(310, "c", waited=198.0).moved(320, "d", waited=190.0, redelivered=True)
    told.changed(400, DRAINING, HEALTHY, Cause.DRAINED, lasted=100.0)
    told.sent(500, "f", "refused", state=HEALTHY)
    told.changed(600, HEALTHY, FAILING, Cause.SEND_FAILED).changed(603, FAILING, HEALTHY, Cause.SEND_SUCCEEDED)
    told.counted(660, Side.PRIMARY, sends=7, receives=1, settlements=2, pings=2, admin=3)
    told.counted(660, Side.SECONDARY, sends=2, receives=40, settlements=2, admin=1)
    return told.pair_ended(700).closed(701)


def killed() -> Journal:
    """Sees the outage too, diverts one message, and is killed before it ends; counts nothing."""
    told = Journal("killed").opened(1).sent(10, "x")
    told.changed(101, HEALTHY, FAILING, Cause.SEND_FAILED).changed(111, FAILING, FAILED_OVER, Cause.INTERVAL_OVER)
    return told.sent(115, "y", "backlog").rotated(116, in_use=False, left=9)


def sampling() -> Journal:
    """Keeps a quarter of its healthy sends; sends in the second hour, and is alive to the end of the journal."""
    told = Journal("sampling").opened(2, sample=0.25)
    told.sent(HOUR + 10, "s1", elapsed=0.1).sent(HOUR + 11, "s2", elapsed=0.1).sent(HOUR + 12, "s3", "unknown")
    told.changed(HOUR + 20, HEALTHY, FAILED_OVER, Cause.FORCED)
    return told.set_aside(HOUR + 30, None).set_aside(HOUR + 31, "y")


PRICES = {"primary": Price(Decimal("0.80"), Decimal(30)), "secondary": Price(Decimal(100_000))}


@pytest.fixture(scope="module")
def made(spark):
    rows = rows_of(spark, host(), killed(), sampling()).cache()
    return tables_of(rows, Settings(patience=PATIENCE, prices=PRICES))


@pytest.fixture(scope="module")
def episodes(made):
    return {(row.process, row.number): row for row in made["episodes"].collect()}


def test_an_outage_is_reported_from_the_first_failure_to_the_drained_backlog(episodes):
    row = episodes["host", 1]
    instants = (row.started_at, row.failed_over_at, row.up_at, row.ended_at)
    assert [second(each) for each in instants] == [100, 110, 300, 400]
    durations = (row.detection, row.time_to_divert, row.downtime, row.time_to_recover, row.drain_time)
    assert durations == pytest.approx((10, 12, 190, 200, 100))
    assert (row.cause, row.failure_kind, row.open_because) == (Cause.SEND_FAILED, "unavailable", None)


def test_an_outage_counts_what_happened_within_it_and_nothing_else(episodes):
    row = episodes["host", 1]
    assert (row.diverted, row.refused, row.unknown, row.pings, row.pings_good) == (2, 0, 1, 2, 1)


def test_the_peak_of_the_backlog_is_that_of_all_processes(episodes):
    assert episodes["host", 1].peak_backlog == 3


def test_an_outage_that_passes_before_failover_has_no_failover(episodes):
    row = episodes["host", 2]
    assert (row.failed_over_at, row.detection, row.downtime) == (None, None, None)
    assert (second(row.ended_at), row.time_to_recover) == (603, pytest.approx(3))


def test_an_open_outage_says_why_it_is_open(episodes):
    assert episodes["killed", 1].ended_at is None
    assert {key: row.open_because for key, row in episodes.items()} == {
        ("host", 1): None,
        ("host", 2): None,
        ("killed", 1): "process killed",
        ("sampling", 1): "journal ends",
    }


@pytest.fixture(scope="module")
def availability(made):
    return {second(row.hour): row for row in made["availability"].collect()}


def test_every_send_of_an_hour_is_counted_by_its_end(availability):
    row = availability[0]
    counts = (row.attempted, row.accepted_primary, row.accepted_backlog, row.refused, row.unknown)
    assert counts == (8, 2, 3, 2, 1)
    shares = (row.availability, row.primary_availability, row.share_diverted)
    assert shares == pytest.approx((5 / 8, 2 / 8, 3 / 8))


def test_latencies_are_those_of_accepted_sends_to_two_percent(availability):
    row = availability[0]
    assert row.latency_p50 == pytest.approx(0.010, rel=0.02)
    assert availability[HOUR].latency_p50 == pytest.approx(0.1, rel=0.02)
    assert row.latency_p99 == row.latency_max == 12.0


def test_a_sampled_send_counts_for_those_that_were_not_kept(availability):
    row = availability[HOUR]
    assert (row.accepted_primary, row.unknown, row.attempted) == (8, 1, 9)


def test_what_never_leaves_stays_in_the_depth(spark):
    told = Journal().opened().sent(10, "a", "backlog").sent(20, "b", "backlog").moved(70, "a").closed(200)
    depths = [
        (row.depth, row.oldest_age) for row in tables_of(rows_of(spark, told))["backlog"].orderBy("minute").collect()
    ]
    assert depths == [(2, 60), (1, 120), (1, 180), (1, 240)]


@pytest.fixture(scope="module")
def backlog(made):
    return {int(second(row.minute) // 60): row for row in made["backlog"].collect()}


def test_the_depth_is_reported_for_every_minute_in_which_there_is_one(backlog):
    depths = {minute: row.depth for minute, row in backlog.items()}
    assert depths == {1: 2, 2: 3, 3: 3, 4: 3, 5: 1, **dict.fromkeys(range(6, 60), 1), 60: 0}


def test_the_flows_of_a_minute_are_reported(backlog):
    flows = {
        minute: (row.diverted, row.moved, row.dead_lettered)
        for minute, row in backlog.items()
        if row.diverted or row.moved or row.dead_lettered
    }
    assert flows == {1: (2, 0, 0), 2: (1, 0, 0), 5: (0, 2, 0), 60: (0, 0, 2)}


def test_what_was_never_diverted_makes_no_depth(backlog):
    assert {minute: row.unmatched for minute, row in backlog.items() if row.unmatched} == {60: 1}


def test_the_oldest_age_is_that_of_the_oldest_that_is_left(backlog):
    ages = {minute: row.oldest_age for minute, row in backlog.items()}
    assert (ages[1], ages[2], ages[4], ages[5], ages[59], ages[60]) == (60, 120, 240, 300, 3540, None)


def test_the_syphons_work_is_reported_by_hour(made):
    found = {second(row.hour): row for row in made["syphon"].collect()}
    row = found[0]
    assert (row.moved, row.redelivered, row.unfinished, row.dead_lettered) == (2, 1, 0, 0)
    assert row.lag_p50 == pytest.approx(190, rel=0.02)
    assert row.lag_max == 198
    assert (found[HOUR].moved, found[HOUR].dead_lettered, found[HOUR].lag_p50) == (0, 2, None)


def test_each_time_that_a_queue_is_out_of_use_is_reported(made):
    found = {row.process: row for row in made["rotation"].collect()}
    row = found["host"]
    assert (row.queue, second(row.left_at), second(row.returned_at), row.out_of_use) == (BACKLOG, 140, 200, 60)
    assert (found["killed"].returned_at, found["killed"].out_of_use, found["killed"].in_use) == (None, 0, 9)


def test_counted_operations_are_preferred_and_guesses_are_called_so(made):
    found = {row.side: row for row in made["cost"].collect()}
    row = found["primary"]
    # host counted 7 + 1 + 2; killed: one send; sampling: two sends that stand for eight.
    assert (row.sends, row.receives, row.pings, row.operations, row.source) == (7 + 1 + 8, 1, 2, 19, "mixed")
    assert (row.operations_price, row.base_price, row.price) == (Decimal("0.0000"), 1, 1)
    row = found["secondary"]
    # host counted 2 + 40; killed diverted one; sampling's syphon received two.
    assert (row.sends, row.receives, row.settlements, row.operations) == (3, 42, 4, 45)
    assert row.operations_price == Decimal("4.5000")


def test_processes_show_how_they_ended_and_what_is_missing(spark):
    first = Journal("closed").opened(0).skip(2).sent(1, "a").closed(1000, dropped=0)
    second_ = Journal("killed").opened(5).dropped(9, 4, since=6)
    told = tables_of(rows_of(spark, first, second_), Settings(patience=60.0))
    found = {row.process: row for row in told["processes"].collect()}
    assert (found["closed"].ended, found["closed"].rows, found["closed"].missing) == ("closed", 3, 2)
    assert (found["killed"].ended, found["killed"].dropped, found["killed"].host) == ("killed", 4, "here")


CONTINUITY = '{"continuity": ["ord*"]}'


def timed() -> list[Journal]:
    """Two programs that consume, of which the second one leaves early."""
    one = Journal("one", pair="timed").opened(0).pair_opened(1, options=CONTINUITY)
    one.delivered(10, "a").delivered(11, "b", entity=Entity("other")).receiver(100, Side.PRIMARY, opened=False)
    one.delivered(150, "c", side=Side.SECONDARY).receiver(200, Side.SECONDARY, opened=False)
    one.receiver(HOUR + 50, Side.SECONDARY, opened=True).closed(HOUR + 100)
    # Beside it until 300, and reading all the time; what it lost last ends with it.
    two = Journal("two", pair="timed").opened(0).delivered(20, "d")
    return [one, two.receiver(299, Side.SECONDARY, opened=False).closed(300)]


def without_continuity() -> Journal:
    told = Journal("without", pair="without continuity").opened()
    return told.pair_opened(1, options='{"continuity": ["or_ers", "%", "news"]}').delivered(2, "a").closed(3)


def ended() -> Journal:
    told = Journal("ended", pair="ended").opened(0)
    for at in (10, 110):
        told.receiver(at, Side.PRIMARY, opened=False).receiver(at + 10, Side.SECONDARY, opened=False)
        told.pair_ended(at + 30)
    return told.closed(200)


@pytest.fixture(scope="module")
def consuming() -> list[Journal]:
    """By hand and drawn, each in a pair of its own: one query tells of all."""
    drawn_ones = (journal for number in range(150) for journal in drawn(number))
    return [*timed(), without_continuity(), ended(), *drawn_ones]


@pytest.fixture(scope="module")
def consumers(spark, consuming):
    return tables_of(rows_of(spark, *consuming))["consumers"].collect()


def test_consumers_are_timed_while_none_of_them_reads_either_broker(consumers):
    found = {second(row.hour): row for row in consumers if row.pair == "timed"}
    first, later = found[0], found[HOUR]
    assert {row.entity for row in found.values()} == {"orders"}
    assert [(row.from_primary, row.from_secondary) for row in (first, later)] == [(2, 1), (0, 0)]
    assert [(row.watched, row.unread) for row in (first, later)] == [(HOUR, HOUR - 300), (100, 50)]
    assert first.longest_unread == later.longest_unread == HOUR - 300 + 50
    assert (first.availability, later.availability) == pytest.approx((300 / HOUR, 0.5))


def test_a_queue_without_continuity_has_no_row_among_consumers(consumers):
    assert [row for row in consumers if row.pair == "without continuity"] == []


def test_a_pair_that_ends_has_lost_no_broker_any_more(consumers):
    (row,) = (row for row in consumers if row.pair == "ended")
    assert (row.watched, row.unread, row.longest_unread) == (200, 40, 20)


def drawn(number: int) -> list[Journal]:
    """Some programs that consume from a queue of a pair of their own, for an hour or two."""
    draw, journals = random.Random(number), []
    pair = f"pair {number}"
    for name in range(draw.randint(1, 3)):
        told = Journal(f"{number}-{name}", pair=pair)
        at = draw.uniform(0, 2 * HOUR)
        told.opened(at).pair_opened(at, options=draw.choice((CONTINUITY, '{"continuity": []}', "{}")))
        for message in range(draw.randint(0, 20)):
            at += draw.choice((0.0, 7.0, 300.0))
            side = draw.choice((*Side,))
            match draw.randrange(8):
                case 0:
                    told.pair_ended(at)
                case 1 | 2:
                    told.delivered(at, f"m{message}", side=draw.choice((None, None, side)))
                case _:
                    told.receiver(at, side, opened=draw.random() < 0.4)
        journals.append(told.closed(at + draw.choice((0.0, 50.0))))
    return journals


def test_consumers_agree_with_another_engine(consumers, consuming, tmp_path):
    pq.write_table(segment_table(*consuming), tmp_path / "all.parquet")
    with duck.opened([str(tmp_path / "all.parquet")], patience=PATIENCE) as connection:
        theirs = [tuple(row.values()) for row in duck.asked(connection, duck.CONSUMERS, patience=PATIENCE)]
    ours = [(row.pair, row.entity, second(row.hour) + START, *row[3:8]) for row in consumers]
    assert len(ours) > 200
    assert sum(row[6] > 0 for row in ours) > 50
    for mine, other in zip(sorted(ours), sorted(theirs), strict=True):
        assert mine == (*other[:3], *(pytest.approx(value, abs=1e-5) for value in other[3:]))


@pytest.mark.parametrize(
    ("told", "planned"),
    [
        (Journal().opened().pair_opened(1, options='{"continuity": []}').sent(1, "a").delivered(2, "a"), set()),
        (Journal().opened().pair_opened(1, options=CONTINUITY), {"consumers"}),
        (Journal().opened().delivered(2, "a", side=Side.SECONDARY), {"consumers"}),
        (Journal().opened().receiver(2, Side.PRIMARY, opened=False), {"consumers"}),
        (Journal().opened().delivered(2, "a", delivery_count=2), {"troubles"}),
        (Journal().opened().failed(2, "a"), {"troubles"}),
        (Journal().opened().sent(2, "a", "backlog"), {"troubles", "backlog"}),
        (Journal().opened().moved(2, "a"), {"troubles", "backlog", "syphon"}),
        (Journal().opened().set_aside(2, "a"), {"troubles", "backlog", "syphon"}),
        (Journal().opened().rotated(2, in_use=False, left=1), {"rotation"}),
        (Journal().opened().changed(2, HEALTHY, FAILED_OVER, Cause.FORCED), {"episodes"}),
    ],
)
def test_a_table_is_planned_where_anything_of_it_happened(told, planned):
    file = io.BytesIO()
    pq.write_table(segment_table(told), file)
    facts = {name: part for each in digests_of_file(file) for name, part in each.items()}
    found = {
        step.name
        for step in STEPS
        if any(facts[name].filter(condition).num_rows for name, condition in step.only_with.items())
    }
    assert found == planned


def test_order_is_counted_by_session_else_by_sender(spark):
    told = Journal().opened()
    told.sent(1, "a", session_id="x").sent(2, "b", session_id="x").sent(3, "c").sent(4, "d", "backlog").sent(9, "e")
    told.delivered(10, "b").delivered(11, "a").delivered(12, "c").delivered(13, "e").moved(14, "d").delivered(15, "d")
    made = tables_of(rows_of(spark, told.closed(20)).cache(), Settings(patience=60.0))
    found = {row.order_key: row for row in made["order"].collect()}
    row = found["session:x"]
    assert (row.delivered, row.overtaken, row.out_of_order, row.first_out_of_order) == (2, 0, 1, "a")
    assert second(row.first_out_of_order_at) == 1
    row = found["sender:s1"]
    assert (row.delivered, row.overtaken, row.out_of_order, row.first_out_of_order) == (3, 1, 0, None)
    observed = {row.entity: row for row in made["observation"].collect()}["orders"]
    assert (observed.messages, second(observed.observed_from), second(observed.observed_until)) == (5, 1, 14)


def test_every_table_has_exactly_its_columns(made):
    for table in TABLES:
        found = [(field.name, field.dataType) for field in made[table.name].schema]
        assert found == [(field.name, field.dataType) for field in table.schema], table.name


def test_the_peak_of_a_backlog_is_seen_where_it_comes_and_goes_within_a_second(spark):
    told = Journal("quick").opened().changed(100, HEALTHY, FAILED_OVER, Cause.SEND_FAILED)
    for number in range(4):
        told.sent(101.1 + number / 100, f"m{number}", "backlog")
    told.changed(101.5, FAILED_OVER, DRAINING, Cause.PING_RECOVERED)
    for number in range(4):
        told.moved(101.6 + number / 100, f"m{number}")
    told.changed(101.9, DRAINING, HEALTHY, Cause.DRAINED).closed(102)
    (row,) = tables_of(rows_of(spark, told), Settings(patience=PATIENCE))["episodes"].collect()
    assert row.peak_backlog == 4


def test_no_frame_of_a_window_begins_anew_with_every_row(spark):
    """Spark adds up such a frame anew for every row: time grows with the square of the rows."""
    empty = {each.name: spark.createDataFrame([], each.schema) for each in (*FACTS, *STEPS)}
    settings = Settings(unread=(Unread("p", None, None),), unfinished=(Unfinished("p", 0.0),))
    plans = {step.name: step.make(empty, settings)._jdf.queryExecution().analyzed().toString() for step in STEPS}
    frames = {name: re.findall(r"specifiedwindowframe\(\w+, ([^,]+), ([^)]+\))", plan) for name, plan in plans.items()}
    assert {"holes", "processes", "rotation", "blind"} <= {name for name, found in frames.items() if found}
    anew = {
        name
        for name, found in frames.items()
        if any("unboundedfollowing" in end and "unboundedpreceding" not in begin for begin, end in found)
    }
    assert anew == set()
