"""A made journal whose truth is known: every fault is found and nothing else, and another engine agrees."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from datetime import UTC
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

import duck
from pairmq.pipeline import reporting, run
from pairmq.pipeline.transforms import RECONCILIATION

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
EACH = 3


_SPEC = importlib.util.spec_from_file_location("journal_generator", ROOT / "benchmarks" / "journal_generator.py")
generator = sys.modules["journal_generator"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generator)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A journal of four hours with three outages, five kinds of files, and a few messages of every fault."""
    folder = tmp_path_factory.mktemp("made")
    plan = generator.Plan(
        events=24_000,
        hours=6.0,
        outages=3,
        outage_seconds=300.0,
        senders=2,
        entities=2,
        queues=2,
        faults=dict.fromkeys(generator.FAULTS, EACH),
        gap=True,
        torn=2,
        copied=2,
        at_once=4_000,
    )
    generator.generate(folder, plan)
    return folder


def begun(spark):
    """How many queries and stages the session has begun."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    known = spark._jsparkSession.sharedState().statusStore().executionsList()
    latest = max((known.apply(number).executionId() for number in range(known.size())), default=-1)
    return latest + 1, context.dagScheduler().nextStageId()


@pytest.fixture(scope="module")
def ran(spark, made):
    """The report, and the numbers of queries and stages that it took."""
    queries, stages = begun(spark)
    report = run(made / "journal", made / "tables", spark=spark, patience=PATIENCE)
    more, further = begun(spark)
    return report, more - queries, further - stages


@pytest.fixture(scope="module")
def report(ran):
    return ran[0]


def table(made, name):
    return pq.read_table(made / "tables" / name).to_pylist()


@pytest.fixture(scope="module")
def other(made):
    """The other engine, with the segments that are whole."""
    whole = [str(p) for p in sorted((made / "journal").rglob("*.parquet")) if "-90000" not in p.name]
    with duck.opened(whole, patience=PATIENCE) as connection:
        yield connection


def asked(other, query):
    return duck.asked(other, query, patience=PATIENCE)


def by(rows, *keys):
    return {tuple(seconds(row[key]) for key in keys): row for row in rows}


def seconds(value):
    return value.replace(tzinfo=UTC).timestamp() if hasattr(value, "timestamp") else value


def test_every_message_has_the_verdict_that_it_should_have(report, made):
    truth = {row["message_id"]: row["verdict"] for row in pq.read_table(made / "truth").to_pylist()}
    found = {row["message_id"]: row["verdict"] for row in table(made, "reconciliation")}
    wrong = Counter(
        (truth.get(message), verdict) for message, verdict in found.items() if truth.get(message) != verdict
    )
    assert wrong == {}
    assert found.keys() == truth.keys()


def test_a_run_has_few_queries_and_stages(ran):
    _, queries, stages = ran
    assert queries <= 9  # one of them finds the rows that two segments have
    assert stages <= 40


def test_every_planted_fault_is_counted_and_named(report):
    assert report.lost == 2 * EACH
    for verdict in ("duplicated, unexplained", "out of order", "phantom"):
        assert report.verdicts[verdict] == EACH
        assert len(report.faults[verdict]) == EACH


def test_torn_segments_are_named_and_copied_rows_count_once(report, made):
    assert sorted(bad.path.name[-14:] for bad in report.bad) == ["900000.parquet", "900001.parquet"]
    assert report.rows == json.loads((made / "plan.json").read_text())["rows"]


def test_missing_rows_are_reported(report):
    assert report.missing == 10


def test_the_run_file_says_what_the_report_says(report, made):
    assert json.loads((made / "tables" / "run.json").read_text()) == json.loads(json.dumps(report.to_dict()))
    assert report.verdict == "lost"


@pytest.fixture(scope="module")
def page(report, made):
    return reporting.report(made / "tables", made / "report.html")


def test_the_page_and_the_report_report_the_same_of_the_messages(page, report):
    assert page.content["messages"]["by_verdict"] == report.verdicts
    assert page.lost == report.lost
    assert "changed-tables" not in {each["kind"] for each in page.content["unknowns"]}


def test_instants_and_durations_of_the_page_are_those_of_the_tables(page, made):
    def instant(at):
        return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"

    names = ("entity", "downtime", "drain_time", "diverted", "cause")
    made_of = [(instant(row["started_at"]), *(row[name] for name in names)) for row in table(made, "episodes")]
    told = [(row["started_at"], *(row[name] for name in names)) for row in page.content["outages"]["longest"]]
    assert len(told) == min(len(made_of), 10)
    assert set(told) <= set(made_of)


def test_operations_of_the_page_are_those_of_the_tables(page, made):
    counted = Counter()
    for row in table(made, "cost"):
        counted[row["side"]] += row["operations"]
    assert {side: told["operations"] for side, told in page.content["cost"]["sides"].items()} == counted


def test_nothing_but_tables_is_left(report, made):
    from pairmq.pipeline.transforms import TABLES

    found = {path.name for path in (made / "tables").iterdir() if not path.name.startswith("_lock")}
    assert found == {table.name for table in TABLES} | {"run.json"}


def test_every_outage_is_the_one_that_was_made(report, made):
    truth = by(pq.read_table(made / "episodes.parquet").to_pylist(), "process", "entity", "started_at")
    found = {}
    for row in table(made, "episodes"):
        found[row["process"], row["entity"], round(seconds(row["started_at"]), 3)] = row
    assert {(p, e, round(s, 3)) for p, e, s in truth} == found.keys()
    for (process, entity, start), wanted in truth.items():
        row = found[process, entity, round(start, 3)]
        for name in ("failed_over_at", "up_at", "ended_at"):
            assert seconds(row[name]) == pytest.approx(wanted[name], abs=1e-5)
        assert row["diverted"] == wanted["diverted"]


def test_the_verdicts_agree_with_those_of_another_engine(report, made, other):
    theirs = {(row["entity"], row["message_id"]): row["verdict"] for row in asked(other, duck.VERDICTS)}
    ours = {(row["entity"], row["message_id"]): row["verdict"] for row in table(made, "reconciliation")}
    assert ours == theirs


def test_what_is_left_out_of_the_reconciliation_is_filled_in_by_its_query(report, made, other):
    same = {"accepted_primary": "at_primary", "accepted_backlog": "in_backlog", "moves": "moved", "deliveries": "seen"}
    same |= {
        "completed": "done",
        "arrived_at": "home",
        "first_sent_at": "first_sent",
        "last_delivered_at": "last_settled",
    }
    filled = duckdb.sql(RECONCILIATION.in_full(f"'{made}/tables/reconciliation/*.parquet'")).arrow().read_all()
    theirs = by(asked(other, duck.VERDICTS), "entity", "message_id")
    for row in filled.to_pylist():
        their = theirs[row["entity"], row["message_id"]]
        assert {name: seconds(row[name]) for name in same} == pytest.approx(
            {name: their[each] for name, each in same.items()}, abs=1e-5
        )


def test_the_outages_agree_with_those_of_another_engine(report, made, other):
    theirs = by(asked(other, duck.EPISODES), "process", "entity", "number")
    ours = by(table(made, "episodes"), "process", "entity", "number")
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        assert row["diverted"] == theirs[key]["diverted"]
        for name in ("started_at", "failed_over_at", "up_at", "ended_at"):
            assert seconds(row[name]) == pytest.approx(theirs[key][name], abs=1e-5)


def test_availability_agrees_with_that_of_another_engine(report, made, other):
    theirs = by(asked(other, duck.AVAILABILITY), "entity", "hour")
    ours = by(table(made, "availability"), "entity", "hour")
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        for name in ("attempted", "accepted_primary", "accepted_backlog", "refused", "unknown"):
            assert row[name] == theirs[key][name]
        assert row["latency_p50"] == pytest.approx(theirs[key]["p50"], rel=0.021)
        assert row["latency_p99"] == pytest.approx(theirs[key]["p99"], rel=0.021)
        assert row["latency_max"] == theirs[key]["most"]


def test_the_backlog_agrees_with_that_of_another_engine(report, made, other):
    theirs = by(asked(other, duck.BACKLOG), "queue", "minute")
    ours = by([row for row in table(made, "backlog") if row["depth"] > 0], "queue", "minute")
    assert {key: (row["depth"], row["oldest_age"]) for key, row in ours.items()} == {
        key: (row["depth"], row["oldest_age"]) for key, row in theirs.items()
    }


def test_the_syphons_work_agrees_with_that_of_another_engine(report, made, other):
    theirs = by(asked(other, duck.SYPHON), "entity", "hour")
    ours = by(table(made, "syphon"), "entity", "hour")
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        assert (row["moved"], row["dead_lettered"]) == (theirs[key]["moved"], theirs[key]["dead_lettered"])
        assert row["lag_max"] == theirs[key]["most"]
        assert row["lag_p95"] == pytest.approx(theirs[key]["p95"], rel=0.021)


def test_the_cost_agrees_with_that_of_another_engine(report, made, other):
    theirs = {key: row["operations"] for key, row in by(asked(other, duck.COST), "side", "day").items()}
    ours = {key: row["operations"] for key, row in by(table(made, "cost"), "side", "day").items()}
    # Days on which nothing was asked of a side have a row all the same.
    assert {key: count for key, count in ours.items() if count} == theirs


def test_the_rotation_agrees_with_that_of_another_engine(report, made, other):
    theirs = sorted((row["process"], row["queue"], row["out_of_use"]) for row in asked(other, duck.ROTATION))
    ours = sorted((row["process"], row["queue"], row["out_of_use"]) for row in table(made, "rotation"))
    assert ours == [(process, queue, pytest.approx(time, abs=1e-5)) for process, queue, time in theirs]


def test_the_order_agrees_with_that_of_another_engine(report, made, other):
    theirs = {key: row["delivered"] for key, row in by(asked(other, duck.ORDER), "entity", "order_key").items()}
    assert {key: row["delivered"] for key, row in by(table(made, "order"), "entity", "order_key").items()} == theirs


def test_what_is_observed_agrees_with_another_engine(report, made, other):
    theirs = by(asked(other, duck.OBSERVATION), "entity")
    ours = by(table(made, "observation"), "entity")
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        assert row["messages"] == theirs[key]["messages"]
        for name in ("observed_from", "observed_until", "drained_from"):
            assert seconds(row[name]) == pytest.approx(theirs[key][name], abs=1e-5)


def test_the_processes_agree_with_those_of_another_engine(report, made, other):
    theirs = by(asked(other, duck.PROCESSES), "process")
    ours = by(table(made, "processes"), "process")
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        for name in ("rows", "missing", "host", "pid", "ended"):
            assert row[name] == theirs[key][name]
