"""Rows that are in no segment yet: what they may tell is a hole, for a run (`test_batch.py`) and for a follower."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from facts_by_hand import tables_of
from journal_by_hand import START, Journal, rows_of, segment_table
from pairmq.pipeline.follow import follow
from pairmq.pipeline.journal_io import open_parts
from pairmq.pipeline.transforms import Settings, Unfinished
from pairmq.pipeline.transforms.processes import UNWRITTEN

PATIENCE = 300.0
STARTED = "host-7-20260202T000001Z-00000000"
"""The name of a process that began a second after `START`."""


def spans(spark, *journals: Journal, parts: dict[str, float]) -> list[tuple[float, float]]:
    """The holes of a journal in which nothing happens after second 5000, seconds after `START`."""
    rows = rows_of(spark, *journals, Journal("end").opened().closed(5000))
    unfinished = tuple(Unfinished(process, START + at) for process, at in parts.items())
    found = tables_of(rows, Settings(patience=PATIENCE, unfinished=unfinished))["holes"].collect()
    return sorted((round(row.began - START, 3), round(row.ended - START, 3)) for row in found)


def test_a_part_hides_what_its_process_did_between_its_last_row_and_the_last_change_of_the_part(spark):
    killed = Journal("killed").opened().sent(500, "a")
    assert (500, 1200 + UNWRITTEN) in spans(spark, killed, parts={"killed": 1200})


def test_a_part_of_a_process_without_rows_hides_what_it_did_since_it_began(spark):
    assert spans(spark, parts={STARTED: 1200}) == [(1, 1200 + UNWRITTEN)]


def test_a_part_of_a_process_of_which_nothing_is_known_hides_all_since_the_journal_began(spark):
    assert spans(spark, Journal("first").opened(-50).closed(0), parts={"odd": 1200}) == [(-50, 1200 + UNWRITTEN)]


def test_a_part_that_a_process_left_over_which_lacks_nothing_hides_nothing(spark):
    whole = Journal("whole").opened().sent(500, "a").closed(600)
    assert spans(spark, whole, parts={"whole": 1200}) == []


def test_parts_are_found_wherever_a_journal_is(tmp_path):
    for place in ("_open", "one/_open", "_work/_open", ".hidden/_open"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / f"{STARTED}-000003.part").touch()
    for name in ("p-1.part", "p-000001.2026-02-02.tmp", "notes.txt"):
        (tmp_path / "_open" / name).touch()
    os.utime(tmp_path / "_open" / f"{STARTED}-000003.part", (0, START))
    first, second = open_parts(tmp_path)
    assert (first.process, first.changed_at) == (STARTED, START)
    assert second.path.relative_to(tmp_path).parts[0] == "one"


@pytest.fixture(scope="module")
def journal(tmp_path_factory) -> Path:
    """``m`` and ``n`` are overtaken; a process that has never finished a segment may have consumed them."""
    folder = tmp_path_factory.mktemp("unfinished") / "journal"
    (folder / "_open").mkdir(parents=True)
    sender = Journal("sender").opened().sent(1, "first").sent(1000, "m").sent(1600, "n").sent(2000, "last").closed(5000)
    consumer = Journal("consumer").opened().delivered(2, "first").delivered(2001, "last").closed(5000)
    for told in (sender, consumer):
        pq.write_table(segment_table(told), folder / f"segment-{told.process}-000000.parquet")
    (folder / "_open" / f"{STARTED}-000000.part").touch()
    return folder


@pytest.mark.usefixtures("verdicts_alone")
def test_a_follower_calls_nothing_lost_that_a_part_may_have(spark, journal, tmp_path):
    (part,) = (journal / "_open").iterdir()
    os.utime(part, (0, START + 1100))
    found = []

    def note(refreshed):
        report = refreshed.report
        found.append((dict(report.verdicts), [each.path for each in report.unfinished]))
        # Nothing new comes to it: that the part is another one has to be enough.
        os.utime(part, (0, START + 800))

    follow(journal, tmp_path, spark=spark, patience=PATIENCE, until_idle=0.0, on_refresh=note)
    verdicts = ({"unproven": 1, "lost": 1}, {"lost": 2})
    assert found == [({"delivered": 2} | each, [part]) for each in verdicts]
