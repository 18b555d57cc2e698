"""Made journals whose truth is known, edited: clocks that are set while a process runs, and files that are missing.

Each edit has a copy of the journal of its own, in another pair and on other days, so that one run judges all of them.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import duck
from pairmq.pipeline import reporting, run

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
DAYS = 3 * 86_400.0
HOUR = 3600.0
FAULTS = ("lost", "phantom", "duplicated, unexplained", "out of order")

_SPEC = importlib.util.spec_from_file_location("journal_generator", ROOT / "benchmarks" / "journal_generator.py")
generator = sys.modules["journal_generator"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generator)
PLAN = generator.Plan(
    events=2_400,
    hours=4.0,
    outages=2,
    outage_seconds=300.0,
    senders=2,
    entities=2,
    queues=2,
    faults=dict.fromkeys(("lost", "lost_in_backlog", "duplicated", "reordered", "phantom"), 2),
)
BEGAN, ENDED = generator.START, generator.START + 4 * HOUR


@dataclass(frozen=True)
class Edit:
    """One way to spoil a journal.

    Args:
        process: whose clock is set, or whose rows are removed; all those whose names begin so.
        shift: by how many seconds its clock is wrong at true instants.
        kept: which of its rows are there, by their share of all.
        read: whether its rows have readings of a clock that can't be set.
        error: what the table ``processes`` should say of its clock, and how exactly it can.
        unproven: whether messages of it can't be judged.
        impossible: whether some of the numbers in its rows, of all processes, can't be.
        halved: whether half of what it consumed another program did, of which nothing is in the journal.
        noted: whom all others saw writing to the end, as their segments say.
    """

    process: str
    shift: Callable[[np.ndarray], np.ndarray] | None = None
    kept: Callable[[np.ndarray], np.ndarray] | None = None
    read: bool = False
    error: tuple[float, float] = (0.0, 0.01)
    unproven: bool = True
    impossible: bool = False
    halved: bool = False
    noted: str = ""


def from_then(share: float, seconds: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda at: np.where(at >= BEGAN + share * 4 * HOUR, seconds, 0.0)


def between(first: float, last: float, seconds: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda at: np.where((at >= first) & (at < last), seconds, 0.0)


_DRAIN = next(iter(generator.Generator(PLAN, Path()).outages))
EDITS = {
    # Its hole reaches back to where the journal begins.
    "1970 at first": Edit("sender-1", between(0, BEGAN + 600, -BEGAN), read=True, unproven=False),
    "untouched": Edit("sender-0", unproven=False),
    "a sender's clock goes back": Edit("sender-1", from_then(0.6, -HOUR), error=(HOUR, 1)),
    "a sender's clock goes forward": Edit("sender-1", from_then(0.6, HOUR), error=(HOUR, 1)),
    "a consumer's first segment": Edit("consumer-0", kept=lambda share: share > 0.3),
    "all of a consumer": Edit("consumer-0", kept=lambda share: share > 1),
    "two steps": Edit("sender-1", between(BEGAN + HOUR, BEGAN + 3 * HOUR, HOUR), read=True, error=(HOUR, 1)),
    "drift": Edit("sender-1", lambda at: 0.01 * (at - BEGAN), error=(144, 7)),
    "a receiver in a drain": Edit("consumer-0", between(_DRAIN.up + 30, np.inf, -600.0), error=(600, 60)),
    "a receiver in a drain, read": Edit(
        "consumer-0", between(_DRAIN.up + 30, np.inf, 900.0), read=True, error=(900, 1)
    ),
    "a middle segment and a step": Edit(
        "sender-1", from_then(0.5, HOUR), lambda share: (share < 0.3) | (share > 0.4), read=True, error=(HOUR, 1)
    ),
    "numbers that can't be": Edit("sender-1", read=True, unproven=False, impossible=True),
    "all consumers": Edit("consumer-", kept=lambda share: share > 1, unproven=False),
    "one of two consumers": Edit("consumer-0", halved=True, noted="consumer-0-too"),
    "a consumer's last segments": Edit("consumer-0", kept=lambda share: share < 0.6, noted="consumer-0"),
    "less than clocks differ": Edit("sender-1", from_then(0.5, -0.4), read=True, error=(0.4, 0.01), unproven=False),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All edited copies, in one journal."""
    folder = tmp_path_factory.mktemp("edited")
    generator.generate(folder, PLAN)
    rows = pa.concat_tables(
        [pq.read_table(path, partitioning=None) for path in (folder / "journal").rglob("*.parquet")]
    )
    (folder / "all").mkdir()
    for number, (name, edit) in enumerate(EDITS.items()):
        for process, table in edited(rows, edit):
            owner = run_of(name, process)
            others = {} if process == edit.noted else {run_of(name, edit.noted): ENDED + number * DAYS}
            path = folder / "all" / f"segment-{owner}-000001.parquet"
            write(path, moved(table, name, owner, number), others if edit.noted else {})
    return folder


def run_of(name: str, process: str) -> str:
    """A name as runs have it, with the start."""
    began = datetime.fromtimestamp(BEGAN + list(EDITS).index(name) * DAYS, UTC)
    return f"{name.replace(' ', '-')}.{process}-7-{began:%Y%m%dT%H%M%SZ}-00000000"


def edited(rows: pa.Table, edit: Edit) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each process, in order; no consumer got anything in the last minutes, what was sent is in flight."""
    for process in pc.unique(rows["process"]).to_pylist():
        table = rows.filter(pc.equal(rows["process"], process)).sort_by("seq")
        late = pc.and_(pc.equal(table["kind"], "MessageDelivered"), pc.greater(table["at"], ENDED - 400))
        table = table.filter(pc.invert(late))
        if edit.halved and process == edit.process:
            read = pc.equal(table["kind"], "MessageDelivered")
            table = table.filter(pc.invert(pc.and_(read, pc.equal(pc.bit_wise_and(table["message_key"], 1), 1))))
        at = table["at"].to_numpy()
        shift = edit.shift(at) if process == edit.process and edit.shift else np.zeros(len(at))
        values = {
            "seq": pa.array(np.arange(len(at))),
            "at": pa.array(at + shift),
            "received_at": pc.if_else(pc.is_valid(table["received_at"]), pa.array(at + shift), None),
            "clock": pa.array(1000.0 + shift) if edit.read else pa.nulls(len(at), pa.float64()),
        }
        for column, array in values.items():
            table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), array)
        if process.startswith(edit.process) and edit.kept:
            table = table.filter(pa.array(edit.kept(np.arange(len(at)) / len(at))))
        yield process, with_impossible_numbers(table) if edit.impossible else table


def with_impossible_numbers(table: pa.Table) -> pa.Table:
    """Put others in the place of every seventh number in some columns."""
    which = pa.array(np.arange(len(table)) % 7 == 0)
    for column in ("elapsed", "received_at", "clock", "waited", "seconds", "sends", "receives", "attempts"):
        floating = pa.types.is_floating(table[column].type)
        numbers = (np.nan, np.inf, -np.inf, 1e300, -1e300) if floating else (2**63 - 1, -(2**63))
        others = pa.array(itertools.islice(itertools.cycle(numbers), len(table)), table[column].type)
        values = pc.if_else(pc.and_(which, pc.is_valid(table[column])), others, table[column])
        table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), values)
    return table


def moved(table: pa.Table, name: str, process: str, number: int) -> pa.Table:
    """The same in a pair and on days of its own; an instant that can't be stays as it is."""
    size = len(table)
    values = {
        "pair": pc.if_else(pc.equal(table["pair"], ""), "", name),
        "process": pa.repeat(process, size),
        "host": pc.if_else(pc.is_valid(table["host"]), process, None),
    }
    for column in ("at", "received_at"):
        values[column] = pc.if_else(
            pc.greater(table[column], BEGAN / 2), pc.add(table[column], number * DAYS), table[column]
        )
    for column, array in values.items():
        table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), array)
    return table


def write(path: Path, table: pa.Table, others: dict[str, float]) -> None:
    if len(table):
        pq.write_table(table.replace_schema_metadata({"pairmq.others": json.dumps(others)}), path)


@pytest.fixture(scope="module")
def report(spark, made):
    return run(made / "all", made / "tables", spark=spark, patience=PATIENCE)


@pytest.fixture(scope="module")
def found(report, made):
    """The verdicts by pair and message."""
    verdicts: dict[str, dict[str, str]] = {name: {} for name in EDITS}
    for row in pq.read_table(made / "tables" / "reconciliation").to_pylist():
        verdicts[row["pair"]][row["message_id"]] = row["verdict"]
    return verdicts


@pytest.fixture(scope="module")
def truth(made, found):
    """Of each message; what the untouched copy shows to be in flight was not lost."""
    told = {row["message_id"]: row["verdict"] for row in pq.read_table(made / "truth").to_pylist()}
    return told | {name: verdict for name, verdict in found["untouched"].items() if verdict == "in flight"}


def test_the_untouched_copy_has_the_verdicts_of_the_truth(found, truth):
    wrong = Counter((truth[name], verdict) for name, verdict in found["untouched"].items() if truth[name] != verdict)
    assert wrong == {}
    assert 20 < Counter(found["untouched"].values())["in flight"] < 200


@pytest.mark.parametrize("name", EDITS)
def test_edited_journal_makes_no_false_fault_and_hides_no_loss(name, found, truth):
    faults = {(message, verdict) for message, verdict in found[name].items() if verdict in FAULTS}
    assert {each for each in faults if truth[each[0]] != each[1]} == set()
    lost = [found[name][message] for message, verdict in truth.items() if verdict == "lost" and message in found[name]]
    # Of what was sent in a missing segment, or is dated 1970, nothing is known but how it arrived; and of a pair whose
    # consumers may keep no journal no more is known, of which there is a warning.
    assert set(lost) <= {"lost", "unproven", *(["delivery not observed"] if name == "all consumers" else [])}
    assert len(lost) >= 2


def test_clock_of_each_process_is_as_wrong_as_it_was_made(report, made):
    errors = {row["process"]: row["clock_error"] for row in pq.read_table(made / "tables" / "processes").to_pylist()}
    for name, edit in EDITS.items():
        right, exactly = edit.error
        assert errors.pop(run_of(name, edit.process), 0.0) == pytest.approx(right, abs=exactly), name
    assert max(errors.values()) < 0.01
    assert set(report.clocks) == {run_of(name, edit.process) for name, edit in EDITS.items() if edit.error[0] > 1}


def test_missing_rows_are_counted_from_the_first_number_and_missing_consumers_are_named(report, found, made):
    missing = {row["process"]: row["missing"] for row in pq.read_table(made / "tables" / "processes").to_pylist()}
    lacks = {name for name, count in missing.items() if count}
    assert lacks == {
        run_of("a consumer's first segment", "consumer-0"),
        run_of("a middle segment and a step", "sender-1"),
        run_of("1970 at first", "sender-1"),
    }
    assert report.absent == [("all of a consumer", "orders-0")]
    assert report.missing_programs == [
        run_of("a consumer's last segments", "consumer-0"),
        run_of("one of two consumers", "consumer-0-too"),
    ]
    assert report.verdict == "lost"
    for name in ("a consumer's first segment", "all of a consumer", "one of two consumers"):
        counted = Counter(found[name].values())
        assert counted["delivery not observed"] == 0
        assert counted["unproven"] > 100
    for name, edit in EDITS.items():
        unproven = Counter(found[name].values())["unproven"]
        assert (unproven > 0) is edit.unproven, name


def test_report_names_wrong_clocks_and_missing_consumers(report, made):
    page = reporting.report(made / "tables", made / "report.html")
    told = {each["kind"]: each for each in page.content["unknowns"]}
    assert told["clock-errors"]["count"] == len(report.clocks)
    assert "by up to 1 h" in told["clock-errors"]["text"]
    assert told["absent-consumers"]["names"] == ["orders-0"]
    assert told["missing-programs"]["names"] == report.missing_programs


def test_another_engine_gives_the_same_verdicts(report, found, made):
    # DuckDB is asked in plain SQL, which an impossible number would end, and knows no footers.
    asked = [name for name, edit in EDITS.items() if not edit.impossible and not edit.noted]
    files = tuple(f"segment-{run_of(name, '').partition('.')[0]}." for name in asked)
    segments = [str(path) for path in sorted((made / "all").iterdir()) if path.name.startswith(files)]
    with duck.opened(segments, patience=PATIENCE) as connection:
        theirs: dict[str, dict[str, str]] = {name: {} for name in EDITS}
        for row in duck.asked(connection, duck.VERDICTS, patience=PATIENCE):
            theirs[row["pair"]][row["message_id"]] = row["verdict"]
    for name in asked:
        differ = Counter(
            (verdict, theirs[name].get(message))
            for message, verdict in found[name].items()
            if theirs[name].get(message) != verdict
        )
        assert differ == {}, name
