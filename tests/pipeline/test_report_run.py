"""From a journal to the page: what Spark wrote is what the report reads."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from journal_by_hand import DRAINING, FAILED_OVER, FAILING, HEALTHY, Journal, segment_table
from pairmq.model.events import Cause, Side
from pairmq.pipeline import run
from pairmq.pipeline.reporting import report

# By hand, and to the last value; that a page tells what a run has found, `test_generated.py` asks as well.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def told(spark, tmp_path_factory):
    """Ten sends home, an outage of 20 s with five diverted, one of which is lost, and ten sends home."""
    folder = tmp_path_factory.mktemp("told")
    journal = Journal().opened().pair_opened(1)
    for at in range(10, 20):
        journal.sent(at, f"m{at}").delivered(at + 0.5, f"m{at}")
    journal.changed(20, HEALTHY, FAILING, Cause.SEND_FAILED).changed(22, FAILING, FAILED_OVER, Cause.INTERVAL_OVER)
    for at in range(25, 30):
        journal.sent(at, f"m{at}", "backlog", elapsed=2.0)
    journal.changed(40, FAILED_OVER, DRAINING, Cause.PING_RECOVERED)
    for at in range(25, 29):
        journal.moved(at + 20, f"m{at}").delivered(at + 20.5, f"m{at}")
    journal.changed(60, DRAINING, HEALTHY, Cause.DRAINED, lasted=20)
    for at in range(70, 80):
        journal.sent(at, f"m{at}").delivered(at + 0.5, f"m{at}")
    for at, waited in ((81, 0.25), (82, 0.5)):
        journal.sent(at, f"m{at}", "outbox", backlog_queue="told/x-pairmq-outbox")
        journal.moved(at + waited, f"m{at}", queue="told/x-pairmq-outbox").delivered(at + 1, f"m{at}")
    journal.counted(80, Side.PRIMARY, sends=24, pings=3).counted(80, Side.SECONDARY, sends=5, receives=2)
    (folder / "journal").mkdir()
    pq.write_table(segment_table(journal.pair_ended(90).closed(90)), folder / "journal" / "sender.parquet")
    found = run(folder / "journal", folder / "tables", spark=spark, patience=5.0)
    return found, report(folder / "tables")


def test_the_run_and_the_report_report_the_same_of_the_messages(told):
    found, written = told
    assert found.verdicts == {"delivered": 24, "lost": 1, "unknown, delivered": 2}
    assert written.content["messages"]["by_verdict"] == found.verdicts
    assert written.lost == found.lost == 1
    assert "changed-tables" not in {each["kind"] for each in written.content["unknowns"]}
    assert [each["message_id"] for each in written.content["faults"]["lost"]["messages"]] == ["m29"]


def test_instants_and_durations_are_those_of_the_journal(told):
    _, written = told
    (outage,) = written.content["outages"]["longest"]
    assert outage["started_at"] == "2026-02-02T00:00:20.000Z"
    assert (outage["downtime"], outage["drain_time"], outage["diverted"]) == (18, 20, 5)
    latency = written.content["latency"]
    assert (latency["outage"]["sends"], latency["outage"]["longest"]) == (5, 2.0)
    assert (latency["before"]["sends"], latency["before"]["longest"]) == (10, 0.01)
    assert (latency["backlog"]["sends"], latency["backlog"]["longest"]) == (4, 20.0)


def test_the_report_says_how_long_it_took_from_the_outbox_to_the_primary(told):
    _, written = told
    outbox = written.content["latency"]["outbox"]
    assert (outbox["sends"], outbox["longest"]) == (2, 0.5)
    assert "from the outbox to the primary" in written.page.read_text()


def test_operations_are_those_that_were_counted(told):
    sides = told[1].content["cost"]["sides"]
    assert (sides["primary"]["operations"], sides["secondary"]["operations"]) == (27, 7)
