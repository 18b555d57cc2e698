"""What the report says is what the tables say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from journal_by_hand import BACKLOG, PAIR
from pairmq.model import ConfigurationError
from pairmq.pipeline import reporting
from pairmq.pipeline.reporting import report
from pairmq.pipeline.transforms import FAULTS, Verdict
from tables_by_hand import SCHEMAS, hour, instant, message, outage, process, reads, side, write_tables


@pytest.fixture
def outaged(tmp_path):
    """100 s of one queue, of which 20 were an outage: 70 sends home, 20 diverted, one of each other kind."""
    rows = [message(f"m{at}", at=at, delivered_at=instant(at + 0.1)) for at in range(40)]
    late = {"took": 2.0, "delivered_at": instant(61)}
    rows += [message(f"m{at}", at=at, diverted_at=at, moved_at=65 + at / 10, **late) for at in range(40, 60)]
    rows += [message(f"m{at}", at=at, took=0.5) for at in range(70, 100)]
    rows += [
        message("gone", "lost", at=30.5),
        message("never", "refused", at=45.5, accepted_at=None, called_at=None, accepted_primary=0, refused=1),
        message("perhaps", "unknown", at=46.5, accepted_at=None, called_at=None, accepted_primary=0, unknown=1),
    ]
    return write_tables(
        tmp_path / "tables",
        reconciliation=rows,
        episodes=[outage(at=40, over=42, up=60, ended=75, diverted=20, peak_backlog=20, time_to_divert=2.0)],
        availability=[hour(primary=71, backlog=20, refused=1, unknown=1)],
        consumers=[
            reads(at=0, primary=40, secondary=20, watched=80.0, unread=8.0, longest_unread=6.0),
            reads(at=3600, primary=30, watched=20.0, unread=2.0, longest_unread=5.0),
            reads("calm", watched=100.0),
        ],
        backlog=[{"pair": PAIR, "queue": BACKLOG, "minute": instant(0), "depth": 20}],
        cost=[side("primary", sends=91, receives=70, pings=3, price="1.5"), side("secondary", sends=20, price="0.25")],
        order=[{"pair": PAIR, "entity": "orders", "order_key": "sender:s", "delivered": 90, "overtaken": 20}],
        processes=[process(last=100)],
    )


@pytest.fixture
def content(outaged):
    written = report(outaged)
    assert json.loads(written.document.read_text()) == written.content
    return written.content


def test_messages_are_counted_by_verdict(content):
    assert content["messages"]["by_verdict"] == {"delivered": 90, "lost": 1, "refused": 1, "unknown": 1}


def test_the_lost_message_is_named_with_its_entity_and_its_send(content):
    assert content["faults"] == {
        "lost": {
            "count": 1,
            "messages": [
                {
                    "pair": PAIR,
                    "entity": "orders",
                    "message_id": "gone",
                    "first_sent_at": "2026-02-02T00:00:30.500Z",
                    "backlog_queue": None,
                    "sent_by": "sender",
                }
            ],
        }
    }


def test_availability_is_that_of_the_table(content):
    told = content["availability"]
    assert (told["attempted"], told["refused"], told["unknown"]) == (93, 1, 1)
    assert told["availability"] == pytest.approx(91 / 93)
    assert told["primary_availability"] == pytest.approx(71 / 93)


def test_consumers_are_those_of_the_table_with_how_soon_messages_were_handled(content, outaged):
    orders, calm = content["consumers"]
    assert (orders["from_primary"], orders["from_secondary"]) == (70, 20)
    assert (orders["watched"], orders["unread"], orders["longest_unread"]) == (100, 10, 6)
    assert orders["availability"] == pytest.approx(0.9)
    assert (orders["handled"]["messages"], orders["handled"]["longest"]) == (40, pytest.approx(0.1))
    assert (orders["handled_diverted"]["messages"], orders["handled_diverted"]["longest"]) == (20, 21)
    assert (calm["entity"], calm["availability"], calm["handled"], calm["handled_diverted"]) == ("calm", 1, None, None)
    section = (outaged / "report.html").read_text().partition("<h2>How available each queue with continuity")[2]
    assert "orders</th>" in section.partition("calm</th>")[0]
    assert "90.0" in section.partition("calm</th>")[0]


def test_without_continuity_there_is_nothing_about_consumers(tmp_path):
    written = report(
        write_tables(tmp_path / "tables", reconciliation=[message("a", at=1)], processes=[process(last=9)])
    )
    assert written.content["consumers"] == []
    assert "with continuity" not in written.page.read_text()


def test_the_outage_is_as_long_as_the_entity_was_out(content):
    assert (content["outages"]["count"], content["outages"]["open"], content["outages"]["seconds"]) == (1, 0, 20)
    (longest,) = content["outages"]["longest"]
    assert (longest["downtime"], longest["drain_time"], longest["peak_backlog"]) == (18, 15, 20)


def test_operations_and_prices_are_summed_by_side(content):
    assert content["cost"] == {
        "source": "counted",
        "priced": True,
        "sides": {
            "primary": {"sends": 91, "receives": 70, "pings": 3, "operations": 164, "price": "1.5000"},
            "secondary": {"sends": 20, "receives": 0, "pings": 0, "operations": 20, "price": "0.2500"},
        },
    }


def test_latencies_are_reported_by_phase(content):
    latency = content["latency"]
    assert {phase: each["sends"] for phase, each in latency.items()} == {
        "before": 41,
        "outage": 20,
        "draining": 6,
        "after": 24,
        "backlog": 20,
    }
    longest = {phase: round(each["longest"], 3) for phase, each in latency.items()}
    assert longest == {"before": 0.01, "outage": 2.0, "draining": 0.5, "after": 0.5, "backlog": 29.0}
    assert 0.01 <= latency["before"]["p50"] <= 0.0102


def test_every_send_is_in_its_slot(content):
    series = content["series"]["overview"]
    slot, counts = series["slot_seconds"], series["backlog"]
    assert sum(series["primary"]) == 71
    assert (sum(counts), sum(series["refused"]), sum(series["unknown"]), sum(series["moved"])) == (20, 1, 1, 20)
    first = next(index for index, count in enumerate(counts) if count)
    assert series["from"] == "2026-02-02T00:00:00.000Z"
    assert first * slot <= 40 < (first + 1) * slot


def test_the_depth_is_that_of_the_messages_at_every_instant(content):
    series = content["series"]["overview"]
    at = {round(slot * series["slot_seconds"]): depth for slot, depth in enumerate(series["depth"])}
    assert (at[39], at[50], at[64], at[80]) == (0, 11, 20, 0)


def test_the_head_says_it_in_a_sentence(content):
    assert content["headline"] == "1 accepted message is lost."
    assert "Of 93 messages, 90 arrived" in content["sentence"]


def test_what_is_not_known_is_reported_with_its_reason(tmp_path):
    tables = write_tables(
        tmp_path / "tables",
        reconciliation=[
            message("a", "delivery not observed", at=1.0),
            message("b", "unproven", at=2.0),
            message("c", "duplicated, unproven", at=3.0),
        ],
        processes=[
            process("p1", last=9, missing=3, sample_healthy=0.1),
            process("p2", last=9, dropped=4, misdated=2),
            process("p3", last=5, ended="killed"),
            process("p4", last=9, ended="open"),
        ],
        cost=[side("primary", sends=1, source="estimated")],
        bad=[{"path": "segment-x.parquet", "problem": "it is cut short"}],
        unfinished=[{"path": "_open/p4-000000.part", "changed_at": 1.0}],
    )
    unknowns = {each["kind"]: each for each in report(tables).content["unknowns"]}
    assert {kind: each["count"] for kind, each in unknowns.items()} == {
        "bad-segments": 1,
        "missing-rows": 3,
        "dropped-events": 4,
        "misdated-rows": 2,
        "unfinished-parts": 1,
        "killed": 1,
        "running": 1,
        "sampled": 1,
        "not-observed": 1,
        "unproven": 1,
        "unproven-copies": 1,
        "estimated-cost": 1,
    }
    assert unknowns["bad-segments"]["names"] == ["segment-x.parquet: it is cut short"]
    assert unknowns["killed"]["names"] == ["p3"]
    assert unknowns["not-observed"]["names"] == ["orders"]


def test_a_hole_in_the_journal_is_not_called_good(tmp_path):
    tables = write_tables(
        tmp_path / "tables", reconciliation=[message("a", at=1)], processes=[process(last=9, missing=1)]
    )
    assert report(tables).content["verdict"] == "incomplete"


def test_tables_that_are_not_those_of_the_run_are_reported(outaged):
    file = outaged / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"messages": {"delivered": 5}}))
    assert "changed-tables" in {each["kind"] for each in report(outaged).content["unknowns"]}


def test_outages_of_two_processes_at_one_time_are_one_time_out(tmp_path):
    both = [
        outage(at=10, over=12, up=30, ended=31),
        outage(at=20, over=22, up=40, ended=41, process="other"),
        outage("prices", at=60, over=61, up=None),
    ]
    tables = write_tables(tmp_path / "tables", episodes=both, processes=[process(last=100)])
    content = report(tables).content
    assert (content["outages"]["seconds"], content["outages"]["open"]) == (70, 1)
    assert {each["entity"]: each["seconds_out"] for each in content["entities"]} == {"orders": 30, "prices": 40}


@pytest.mark.parametrize(("why", "seconds"), [("journal ends", 90), ("process killed", 40), ("pair closed", 40)])
def test_an_outage_that_did_not_end_is_reported_as_far_as_it_is_known(tmp_path, why, seconds):
    tables = write_tables(
        tmp_path / "tables",
        episodes=[outage(at=10, over=12, up=None, open_because=why)],
        processes=[process(last=50), process("other", last=100)],
    )
    assert report(tables).content["outages"]["seconds"] == seconds


def test_an_entity_that_fails_again_was_draining_until_then(tmp_path):
    tables = write_tables(
        tmp_path / "tables",
        reconciliation=[message("a", at=25)],
        episodes=[
            outage(at=40, over=42, up=50, ended=60),
            outage(at=10, over=12, up=20, open_because="failed again"),
        ],
        processes=[process(last=100)],
    )
    content = report(tables).content
    assert content["outages"]["seconds"] == 20
    assert list(content["latency"]) == ["draining"]


def test_long_slots_have_the_depth_of_a_backlog_that_came_and_went_within(tmp_path):
    day = 86_400.0
    rows = [message(f"m{at}", at=day + at, diverted_at=day + at, moved_at=day + 300 + at) for at in range(60)]
    tables = write_tables(tmp_path / "tables", reconciliation=rows, processes=[process(last=30 * day)])
    series = report(tables).content["series"]["overview"]
    assert series["slot_seconds"] > 3600
    assert max(series["depth"]) == 60
    assert sum(1 for each in series["depth"] if each) == 1


def test_a_short_outage_in_a_long_time_gets_a_closer_look(tmp_path):
    day = 86_400.0
    rows = [message(f"m{number}", at=day + number, diverted_at=day + number) for number in range(60)]
    tables = write_tables(
        tmp_path / "tables",
        reconciliation=rows,
        episodes=[outage(at=day, over=day + 1, up=day + 60, ended=day + 70)],
        processes=[process(last=30 * day)],
    )
    close = report(tables).content["series"]["close_up"]
    assert close["slot_seconds"] <= 1
    assert sum(close["backlog"]) == 60
    assert max(close["depth"]) == 60


def test_tables_of_an_older_run_are_to_be_made_again(outaged):
    path = outaged / "reconciliation" / "part-0.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["evidence"]), path)
    with pytest.raises(ConfigurationError, match=r"no column evidence.*make it again"):
        report(outaged)


def test_a_message_without_evidence_was_accepted_by_the_primary(tmp_path):
    schema = SCHEMAS["reconciliation"]
    row = {"pair": PAIR, "entity": "orders", "message_id": "a", "verdict": "delivered", "accepted_at": instant(5)}
    tables = write_tables(
        tmp_path / "tables",
        reconciliation=pa.Table.from_pylist([row], schema=schema),
        processes=[process(last=9)],
    )
    assert sum(report(tables).content["series"]["overview"]["primary"]) == 1


def test_an_empty_journal_has_a_report_too(tmp_path):
    content = report(write_tables(tmp_path / "tables")).content
    assert (content["headline"], content["verdict"]) == ("The journal has no messages.", "good")
    assert content["series"] == {"overview": None, "close_up": None}


def test_the_reference_names_what_the_document_holds(content):
    text = (Path(__file__).parents[2] / "docs" / "reference" / "pipeline.md").read_text()
    section = text.partition("## The report\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \| ", section, re.MULTILINE)
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == list(content)
    for inner in (
        content["availability"],
        content["consumers"][0],
        content["latency"]["before"],
        content["series"]["overview"],
    ):
        assert {name for name in inner if f"`{name}`" not in section} == set()
    sources = "".join(path.read_text() for path in Path(reporting.__file__).parent.glob("*.py"))
    kinds = set(re.findall(r'Caveat\(\s*"([a-z-]+)"', sources))
    kinds |= {"unproven", "unproven-copies", "unknown", "not-journalled"}
    assert {kind for kind in kinds if f"`{kind}`" not in section} == set()


def test_every_verdict_has_its_words(tmp_path):
    rows = [message(verdict.name, verdict.value, at=at) for at, verdict in enumerate(Verdict)]
    found = report(write_tables(tmp_path / "tables", reconciliation=rows, processes=[process(last=100)]))
    assert "a verdict that this version does not know" not in found.page.read_text()
    assert set(found.content["faults"]) == {verdict.value for verdict in FAULTS}


def test_more_sends_than_messages_are_explained(tmp_path):
    rows = [message(f"m{at}", at=at) for at in range(20)]

    def said(folder: str, **sends: float) -> str:
        tables = write_tables(
            tmp_path / folder, reconciliation=rows, availability=[hour(**sends)], processes=[process(last=100)]
        )
        return str(report(tables).content["sentence"])

    assert "They took 23 sends: each send of a message counts" in said("again", primary=20, refused=3)
    assert "They took" not in said("once", primary=20)
