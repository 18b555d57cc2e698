"""Facts of parts are the facts of the whole: however the rows are cut, the tables are the same."""

from __future__ import annotations

import importlib.util
import io
import math
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.testing import assertDataFrameEqual

from facts_by_hand import facts_of, frame_of, tables_of, tables_of_parts
from journal_by_hand import DRAINING, FAILED_OVER, HEALTHY, QUEUE, TOPIC, Journal, rows_of, segment_table
from pairmq.model.events import Cause, Side
from pairmq.pipeline.journal_io import look_over, new_rows, sift
from pairmq.pipeline.schema import arrow_schema
from pairmq.pipeline.transforms import FACTS, STEPS, TABLES, Settings
from pairmq.pipeline.transforms.facts import MESSAGES, SMALL, digests_of_file, write_small
from pairmq.pipeline.transforms.reconciliation import reconciliation

GENERATOR = Path(__file__).parents[2] / "benchmarks" / "journal_generator.py"
SETTINGS = Settings(patience=60.0)


def by_hand() -> list[Journal]:
    """A bit of everything: an outage, sessions, a topic, copies, strays, missing rows, dropped events, a sampler."""
    host = Journal("host").opened().pair_opened(0.5).checked(0.6, created=True)
    host.sent(1, "a", session_id="x").sent(2, "b", session_id="x").sent(3, "c", "refused").sent(4, "d", "unknown")
    host.sent(5, "t", entity=TOPIC).failed(6, "e", applied=True).sent(7, "e", maybe_duplicate=True).skip(2)
    host.changed(100, HEALTHY, FAILED_OVER, Cause.FORCED).sent(101, "f", "backlog").sent(102, "g", "backlog")
    host.pinged(110, ok=True).changed(111, FAILED_OVER, DRAINING, Cause.PING_RECOVERED).moved(112, "f", waited=11.0)
    host.set_aside(113, "g", entity=None).rotated(114, in_use=False, left=1).rotated(115, in_use=True, left=2)
    host.changed(120, DRAINING, HEALTHY, Cause.DRAINED, lasted=9.0).sent(121, "late", scheduled_enqueue_at=0.0)
    host.counted(130, Side.PRIMARY, sends=7).pair_ended(131).dropped(132, 3, since=131.5).closed(140)
    reader = Journal("reader").opened().delivered(8, "b").delivered(9, "a").delivered(10, "e").delivered(11, "e")
    for name in ("audit", "audit", "billing"):
        reader.delivered(12, "t", entity=TOPIC, subscription=name)
    reader.delivered(13, "d", "abandoned").delivered(14, "d", delivery_count=2).delivered(113, "f").closed(140)
    sampler = Journal("sampler").opened(1, sample=0.25).sent(20, "s", entity=QUEUE).sent(3700, "s2")
    return [host, reader, sampler]


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """A made journal with every fault."""
    spec = importlib.util.spec_from_file_location("journal_generator", GENERATOR)
    generator = sys.modules["journal_generator"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    folder = tmp_path_factory.mktemp("parts")
    plan = generator.Plan(
        events=3_000, hours=3.0, outages=3, outage_seconds=300.0, senders=2, entities=2, queues=2,
        faults=dict.fromkeys(generator.FAULTS, 2), gap=True,
    )  # fmt: skip
    generator.generate(folder, plan)
    return folder / "journal"


@pytest.fixture(scope="module", params=["by hand", pytest.param("generated", marks=pytest.mark.long)])
def both(request, spark):
    """All tables, from the facts of all rows and from those of parts."""
    if request.param == "by hand":
        rows = rows_of(spark, *by_hand()).cache()
    else:
        rows = new_rows(spark, sift(look_over(request.getfixturevalue("generated")).segments, {})).cache()
    yield tables_of(rows, SETTINGS), tables_of_parts(rows, 3, SETTINGS)
    spark.catalog.clearCache()


def test_small_facts_of_files_are_those_of_the_rows_that_spark_reads(generated, spark):
    contents = look_over(generated)
    files = {small.name: io.BytesIO() for small in SMALL}
    write_small((part for each in contents.segments for part in digests_of_file(each.path)), files)
    by_spark = facts_of(new_rows(spark, sift(contents.segments, {})))
    for small in SMALL:
        written = pq.read_table(files[small.name])
        assert written.num_rows > 0
        assert written.schema.equals(arrow_schema(small.schema))
        found = spark.createDataFrame(written)
        assertDataFrameEqual(found, by_spark[small.name])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e300, -5e9])
def test_a_number_that_can_not_be_is_in_no_small_fact(number):
    told = (
        Journal()
        .opened()
        .sent(1, "a", elapsed=number)
        .moved(2, "b", waited=number)
        .counted(3, Side.PRIMARY, sends=-(2**63))
    )
    for row in told.rows:
        row["clock"] = number
    written = io.BytesIO()
    pq.write_table(segment_table(told), written)
    (made,) = digests_of_file(written)
    assert {row["kind"]: row["waited"] for row in made["notes"].to_pylist()}["MessageMoved"] is None
    assert made["operations"].column("sends").to_pylist() == [None]
    assert made["latencies"].column("most").to_pylist() == [None]
    assert made["minutes"].column("clock_high").to_pylist() == [None]
    assert made["minutes"].column("rows").to_pylist() == [4]


def test_counted_operations_are_notes_only_where_no_reading_of_the_clocks_shows_how_a_clock_went(spark):
    without = Journal("without").counted(0, Side.PRIMARY, sends=3).counted(0, Side.SECONDARY, sends=4)
    read = Journal("read").counted(0, Side.PRIMARY, sends=5).counted(60, Side.PRIMARY, sends=6)
    for row in read.rows:
        row["clock"] = 0.25
    made = facts_of(rows_of(spark, without, read))
    assert [(row.process, row.side, row.seconds) for row in made["notes"].collect()] == [("without", "primary", 60.0)]
    found = {(row.process, row.side): (row.reports, row.sends) for row in made["operations"].collect()}
    assert found == {("without", "primary"): (1, 3), ("without", "secondary"): (1, 4), ("read", "primary"): (2, 11)}


# Tables are made of facts alone, each with jobs of its own, which together last as long as many other tests.
@pytest.mark.long
@pytest.mark.parametrize("name", [table.name for table in TABLES])
def test_a_table_of_merged_facts_is_that_of_all_rows(both, name):
    whole, parts = (made[name] for made in both)
    assertDataFrameEqual(parts, whole)


def test_messages_taken_for_plain_are_judged_as_the_rules_judge_them(both):
    made, _ = both
    between = {name: made[name] for name in ("places", "troubles", "late", "blind", "processes")}
    facts = [made[name] for name in ("messages", "notes", "names")]
    by_rules = reconciliation(*facts, **between, patience=SETTINGS.patience, divided=False)
    assert by_rules.filter("evidence IS NULL").count() > 0
    assertDataFrameEqual(made["reconciliation"], by_rules)


@pytest.mark.parametrize("name", [fact.name for fact in FACTS])
def test_merged_facts_are_those_of_all_rows(both, name):
    whole, parts = (made[name] for made in both)
    assertDataFrameEqual(parts, whole)


def test_facts_that_are_merged_already_stay_as_they_are(both, spark):
    _, parts = both
    assertDataFrameEqual(MESSAGES.merged(parts["messages"]), parts["messages"])
    for small in SMALL:
        assertDataFrameEqual(frame_of(spark, small, [parts[small.name].toArrow()]), parts[small.name])


def test_facts_and_steps_have_the_schemas_that_they_state(both):
    whole, _ = both
    for each in (*FACTS, *STEPS):
        found = [(field.name, field.dataType) for field in whole[each.name].schema]
        assert found == [(field.name, field.dataType) for field in each.schema], each.name


def test_every_step_finds_what_it_needs_before_it():
    known = {fact.name for fact in FACTS}
    for step in STEPS:
        assert set(step.needs) <= known, step.name
        assert step.name not in known
        known.add(step.name)


def test_every_table_is_made_by_a_step():
    assert {step.name for step in STEPS if step.is_table} == {table.name for table in TABLES}


def test_a_run_asks_few_queries():
    # Each takes planning, compiling and the start of tasks: for a small journal that is nearly all of the time.
    # One for messages, unless Spark keeps them: then they are made when they are first read. One more for the small
    # facts where this process can't read the journal itself.
    assert 1 + len({step.group or step.name for step in STEPS}) <= 8


def test_no_step_waits_for_a_table_that_it_does_not_need():
    # What is made by one query is there at once: a table that no step needs would hold up those that wait for others.
    needed = {name for step in STEPS for name in step.needs}
    groups = {step.group for step in STEPS if step.group is not None}
    assert len(groups) > 1
    for group in groups:
        assert len({step.name in needed for step in STEPS if step.group == group}) == 1, group


def test_steps_of_one_group_need_nothing_of_each_other():
    for step in STEPS:
        assert len({each.small for each in STEPS if each.group is not None and each.group == step.group}) <= 1
        group = {each.name for each in STEPS if each.group is not None and each.group == step.group}
        assert not group & set(step.needs), step.name
