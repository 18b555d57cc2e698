"""When rows become segments, what segments are called, and that a reader only ever sees whole ones."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from journal_events import EPOCH, rows, sent, texts, until, warned
from pairmq.model.records import SCHEMA_VERSION
from pairmq.observe.journal import JournalOptions, metadata, segments
from pairmq.observe.journal._layout import ProcessRun
from pairmq.observe.journal._part import Part
from pairmq.observe.journal._segments import make_segments
from pairmq.observe.journal._writer import Writer

RUN = ProcessRun("host-1-then-abc", "host", 1)
DAY = 86_400.0


class Hand:
    """A writer without threads, whose clock is moved by hand."""

    def __init__(self, directory: Path, **options: object) -> None:
        self.directory = directory
        self.now = 100.0
        self.made: list[Path] = []
        self.writer = Writer(directory, RUN, JournalOptions(**options), self._finished, lambda: self.now)

    def write(self, *events: object) -> None:
        frame = self.writer.frame(list(events))
        assert frame is not None
        self.writer.write(frame)

    def _finished(self, part: Part) -> None:
        self.made += make_segments(self.directory, part, "zstd")[0]


def test_a_part_becomes_a_segment_when_it_is_old_enough(tmp_path):
    hand = Hand(tmp_path, max_age=60.0)
    hand.write(warned())
    hand.now += 59.9
    hand.writer.finish_if_due()
    assert hand.made == []
    hand.now += 0.2
    hand.writer.finish_if_due()
    assert len(hand.made) == 1


def test_the_age_of_a_part_begins_with_its_first_row(tmp_path):
    hand = Hand(tmp_path, max_age=60.0)
    assert hand.writer.due_in is None
    hand.now += 1000
    hand.write(warned())
    assert hand.writer.due_in == 60.0


def test_rows_that_come_to_an_old_part_still_belong_to_it(tmp_path):
    hand = Hand(tmp_path, max_age=60.0)
    hand.write(warned("one"))
    hand.now += 61
    hand.write(warned("two"))
    assert len(hand.made) == 1
    assert texts(tmp_path) == ["one", "two"]


def test_a_part_becomes_a_segment_at_its_number_of_rows(tmp_path):
    hand = Hand(tmp_path, max_rows=3)
    hand.write(warned(), warned())
    assert hand.made == []
    hand.write(warned())
    assert [metadata(path)["rows"] for path in hand.made] == ["3"]


def test_a_part_becomes_a_segment_at_its_size(tmp_path):
    hand = Hand(tmp_path, max_bytes=10_000)
    hand.write(warned("x" * 5_000))
    assert hand.made == []
    hand.write(warned("x" * 5_000))
    assert len(hand.made) == 1


def test_segments_are_numbered_and_sorted_by_day(tmp_path):
    hand = Hand(tmp_path, max_rows=1)
    hand.write(warned(at=EPOCH))
    hand.write(warned(at=EPOCH + DAY))
    assert [str(path.relative_to(tmp_path)) for path in hand.made] == [
        "date=2023-11-14/segment-host-1-then-abc-000000.parquet",
        "date=2023-11-15/segment-host-1-then-abc-000001.parquet",
    ]


def test_a_part_over_midnight_becomes_two_segments(tmp_path):
    hand = Hand(tmp_path, max_rows=4)
    before, after = EPOCH + 6399.9, EPOCH + 6400.0
    hand.write(warned("a", before), warned("b", after), warned("c", before), warned("d", after))
    assert [path.parent.name for path in hand.made] == ["date=2023-11-14", "date=2023-11-15"]
    assert [pq.read_table(path, partitioning=None)["text"].to_pylist() for path in hand.made] == [
        ["a", "c"],
        ["b", "d"],
    ]
    assert texts(tmp_path) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("at", "date"), [(-5.0, "1970-01-01"), (1e15, "9999-12-31")])
def test_an_instant_that_no_calendar_has_is_at_its_end(tmp_path, at, date):
    hand = Hand(tmp_path, max_rows=1)
    hand.write(warned(at=at))
    assert [path.parent.name for path in hand.made] == [f"date={date}"]


def test_a_segment_says_whose_it_is(tmp_path):
    hand = Hand(tmp_path, max_rows=2, sample_healthy=0.25)
    hand.write(warned(), warned())
    hand.write(warned(), warned())
    found = metadata(hand.made[1])
    assert found.pop("version")
    assert found == {
        "schema_version": str(SCHEMA_VERSION),
        "process": RUN.name,
        "host": "host",
        "part": "1",
        "sample_healthy": "0.25",
        "first_seq": "2",
        "last_seq": "3",
        "rows": "2",
        "others": "{}",
    }


def test_rows_show_by_how_much_the_wall_clock_was_set_between_them(tmp_path, monkeypatch):
    hand, now = Hand(tmp_path, max_rows=4), time.time
    hand.write(warned("a"), warned("b"))
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    hand.write(warned("c"))
    monkeypatch.undo()
    hand.write(warned("d"))
    first, second, third, last = pq.read_table(hand.made[0], partitioning=None)["clock"].to_pylist()
    assert first == second
    assert [third - first, last - first] == pytest.approx([-3600, 0], abs=0.5)


def test_a_part_that_is_done_twice_gives_the_same_segment(tmp_path):
    """A process may be killed after its segment stands and before the part is deleted."""
    hand = Hand(tmp_path, max_rows=2)
    kept: list[bytes] = []
    hand.writer.finished = lambda part: kept.append(part.path.read_bytes()) or hand._finished(part)
    hand.write(warned("a"), warned("b"))
    (made,) = hand.made
    first = made.stat()
    again = tmp_path / "_open" / "host-1-then-abc-000000.part"
    again.write_bytes(kept[0])
    part = Part.adopt(again)
    assert part is not None
    assert make_segments(tmp_path, part, "zstd")[0] == [made]
    assert (made.stat().st_ino, made.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns), "it was written again"
    assert not again.exists()
    assert texts(tmp_path) == ["a", "b"]


def test_an_idle_journal_rolls_by_age(journal, tmp_path):
    one = journal(max_age=0.1)
    one.on_event(warned())
    until(lambda: segments(tmp_path))
    assert texts(tmp_path) == ["look"]


def test_a_reader_never_sees_half_a_segment(journal, tmp_path):
    """It lists and reads without pause while hundreds of segments are put in place."""
    one = journal(max_rows=20, flush_interval=0.001)
    stop, problems, looks = threading.Event(), [], 0

    def read() -> None:
        nonlocal looks
        while not stop.is_set():
            for path in tmp_path.glob("date=*/*"):
                try:
                    table = pq.read_table(path, partitioning=None)
                    assert table.num_rows == int(metadata(path)["rows"])
                except Exception as error:
                    problems.append((path.name, error))
            looks += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        number = 0
        while (looks < 30 or number < 1500) and not problems:
            for _ in range(50):
                one.on_event(sent(number))
                number += 1
            assert one.flush(30)
        assert one.close(60)
    finally:
        stop.set()
        reader.join()
    assert problems == []
    assert [row["sequence"] for row in rows(tmp_path)] == list(range(number))
    assert len(segments(tmp_path)) > 3
