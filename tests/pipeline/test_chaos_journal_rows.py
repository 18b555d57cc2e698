"""A journal is held against the ledger of the process that kept it: whatever differs is found."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from chaos_rows import checked_rows
from journal_events import sent, warned
from pairmq.observe.journal import segments
from pairmq.testing.chaos._journal import NotedJournal
from pairmq.testing.chaos._ledger import Ledger

EVENTS = 10


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Path]:
    """Ledgers and the journal of a process that ended in good order."""
    ledgers, directory = tmp_path / "ledgers", tmp_path / "journal"
    ledgers.mkdir()
    with Ledger(ledgers / "client-a-1.jsonl") as ledger:
        journal = NotedJournal(directory, ledger)
        for number in range(EVENTS):
            journal.on_event(sent(number, at=time.time()) if number % 2 else warned(str(number), at=time.time()))
        journal.finish()
    return ledgers, directory


def changed(directory: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    (path,) = segments(directory)
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def test_all_rows_of_a_process_that_ended_in_good_order_are_found(kept):
    rows, cut = checked_rows(*kept)
    assert len(rows) == EVENTS + 2  # the journal's own two
    assert set(cut.values()) == {0}


def test_a_missing_row_is_found(kept):
    changed(kept[1], lambda table: table.filter(pc.not_equal(table["seq"], 4)))
    with pytest.raises(AssertionError, match="a row is missing"):
        checked_rows(*kept)


def test_a_row_that_stands_twice_is_found(kept):
    changed(kept[1], lambda table: pa.concat_tables([table, table.slice(3, 1)]))
    with pytest.raises(AssertionError, match="is there twice"):
        checked_rows(*kept)


def test_an_end_that_is_missing_is_found_where_no_process_was_killed(kept):
    changed(kept[1], lambda table: table.slice(0, 6))
    with pytest.raises(AssertionError, match="not all of it is there"):
        checked_rows(*kept)


def test_a_row_that_says_something_else_is_found(kept):
    def change(table: pa.Table) -> pa.Table:
        outcomes = pc.replace_substring(table["outcome"], "accepted-primary", "refused")
        return table.set_column(table.schema.get_field_index("outcome"), "outcome", outcomes)

    changed(kept[1], change)
    with pytest.raises(AssertionError, match="another one than happened"):
        checked_rows(*kept)


def test_the_end_of_a_life_that_was_killed_may_be_missing_and_is_counted(kept):
    ledgers, directory = kept
    (ledger,) = ledgers.iterdir()
    ledger.write_text("".join(line for line in ledger.read_text().splitlines(True) if "journal-clos" not in line))
    changed(directory, lambda table: table.slice(0, 6))
    rows, cut = checked_rows(ledgers, directory)
    assert (len(rows), list(cut.values())) == (6, [EVENTS - 5])
