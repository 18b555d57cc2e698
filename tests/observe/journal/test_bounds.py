"""A slow disk slows, a failing one costs events that are counted, and neither stops the reporter of an event."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import threading
import time

import pyarrow.parquet as pq
import pytest

from journal_events import EPOCH, rows, texts, until, warned
from pairmq.model import ConfigurationError
from pairmq.observe.journal import Journal, JournalOptions, flush_on_sigterm, recover, segments, statistics


class Disk:
    """What stands between a journal, which alone writes by `os.pwrite`, and its disk; it can be stopped, and fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.problem: Exception | None = None
        self.torn = False
        self.calls = 0
        self.works = threading.Event()
        self.works.set()
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.write)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.calls += 1
        self.works.wait(60)
        problem = self.problem  # once, as the test takes it away while the journal's thread is here
        if problem is not None:
            if self.torn:
                self._write(descriptor, data[:7], offset)
            raise problem
        return self._write(descriptor, data, offset)


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


def none_left(thread: threading.Thread) -> None:
    """What the system says when it gives no thread more."""
    raise RuntimeError("can't start new thread")


def fill(one: Journal, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        one.on_event(warned(str(number)))


def full(one: Journal, disk: Disk) -> int:
    """Stop the disk while a batch is being written, and fill the buffer; tells how many events went in."""
    fill(one, 1)
    assert one.flush(30)
    disk.works.clear()
    calls = disk.calls
    fill(one, 1, 1)
    until(lambda: disk.calls > calls and not one._buffer)
    fill(one, one.options.max_buffered, 2)
    return one.options.max_buffered + 2


def test_a_full_buffer_lets_the_next_event_wait_for_room(journal, disk, tmp_path):
    one = journal(max_buffered=10, stall_timeout=60.0)
    count = full(one, disk)
    waiting = threading.Thread(target=one.on_event, args=(warned(str(count)),))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "it did not wait"
    disk.works.set()
    waiting.join(60)
    assert not waiting.is_alive(), "it waits although there is room"
    assert one.close(30)
    assert texts(tmp_path) == [str(number) for number in range(count + 1)]
    assert one.dropped == 0


def test_a_disk_that_hangs_does_not_block_the_program_forever(journal, disk, tmp_path, caplog):
    one = journal(max_buffered=10, stall_timeout=0.05)
    count = full(one, disk)
    fill(one, 500, count)  # with 50 ms for each it would take longer than the test may
    assert one.dropped == 500
    assert sum("hangs" in record.getMessage() for record in caplog.records) == 1
    disk.works.set()
    assert one.flush(30)
    one.on_event(warned("again"))
    assert one.close(30)
    assert texts(tmp_path) == [*(str(number) for number in range(count)), "again"]


def test_what_was_dropped_is_in_the_journal(journal, disk, tmp_path):
    one = journal(max_buffered=10, on_full="drop")
    count = full(one, disk)
    before = time.time()
    fill(one, 7, count)
    disk.works.set()
    assert one.flush(30)
    fill(one, 1)
    assert one.close(30)
    (dropped,) = rows(tmp_path, "EventsDropped")
    assert dropped["count"] == 7
    assert before - 1 <= dropped["since"] <= time.time() + 1
    (closed,) = rows(tmp_path, "JournalClosed")
    assert closed["dropped"] == 7


def test_dropped_events_leave_a_gap_in_the_numbers(journal, disk, tmp_path):
    one = journal(max_buffered=10, on_full="drop")
    count = full(one, disk)
    fill(one, 7, count)
    disk.works.set()
    assert one.close(30)
    (span,) = statistics(tmp_path).processes
    assert (span.missing, span.dropped) == (7, 7)


def test_dropping_does_not_wait(journal, disk):
    one = journal(max_buffered=10, on_full="drop", stall_timeout=60.0)
    count = full(one, disk)
    fill(one, 100, count)
    assert one.dropped == 100
    disk.works.set()


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.ENOENT])
def test_a_disk_that_fails_is_reported_once_and_tried_again(journal, disk, tmp_path, caplog, code, torn):
    one = journal()
    one.on_event(warned("before"))
    assert one.flush(30)
    disk.problem, disk.torn, tried = OSError(code, os.strerror(code)), torn, disk.calls
    one.on_event(warned("meanwhile"))
    until(lambda: disk.calls >= tried + 3)
    disk.problem = None
    until(lambda: one.flush(1))
    one.on_event(warned("after"))
    assert one.close(30)
    assert texts(tmp_path) == ["before", "meanwhile", "after"]
    assert one.dropped == 0
    assert sum("can't be written" in record.getMessage() for record in caplog.records) == 1


def test_a_defect_below_the_journal_does_not_end_it(journal, disk, tmp_path, caplog):
    one = journal(max_buffered=10, stall_timeout=60.0)
    disk.problem = TypeError("planted")
    one.on_event(warned("meanwhile"))
    until(lambda: disk.calls >= 2)
    disk.problem = None
    until(lambda: one.flush(1))
    assert one.close(30)
    assert texts(tmp_path) == ["meanwhile"]
    (told,) = (record for record in caplog.records if "can't be written" in record.getMessage())
    assert told.exc_info, "where it comes from is not told"


def test_without_a_thread_no_caller_waits_and_the_next_event_tries_again(journal, tmp_path, monkeypatch, caplog):
    one = journal(max_buffered=10, stall_timeout=60.0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        fill(one, 12)
    assert one.dropped == 2
    assert any("can't start new thread" in record.getMessage() for record in caplog.records)
    fill(one, 1, 12)  # the buffer is full, and only now there is a thread again
    assert one.close(30)
    assert one.dropped in (2, 3)
    assert texts(tmp_path)[:10] == [str(number) for number in range(10)]


def test_what_no_thread_wrote_is_counted_at_the_end(journal, tmp_path, monkeypatch):
    one = journal()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        fill(one, 3)
        assert one.close(30)
    assert one.dropped == 3
    assert texts(tmp_path) == []


def test_a_thread_that_comes_late_writes_what_waited(journal, tmp_path, monkeypatch):
    one = journal()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        fill(one, 3)
    fill(one, 1, 3)
    assert one.close(30)
    assert texts(tmp_path) == ["0", "1", "2", "3"]
    assert one.dropped == 0


def test_no_caller_waits_while_the_disk_fails(journal, disk):
    one = journal(max_buffered=10, stall_timeout=60.0)
    disk.problem = OSError(errno.ENOSPC, "full")
    one.on_event(warned())
    until(lambda: disk.calls)
    until(lambda: not one.flush(5))
    fill(one, 1000)
    assert one.dropped >= 980
    disk.problem = None


def test_a_close_gives_up_a_disk_that_fails(tmp_path, disk, caplog):
    one = Journal(tmp_path, JournalOptions(flush_interval=0.01))
    disk.problem = OSError(errno.ENOSPC, "full")
    fill(one, 3)
    assert one.close(30)
    assert one.dropped >= 3
    assert any("events unwritten" in record.getMessage() for record in caplog.records)


def test_memory_is_bounded_whatever_comes(journal, disk):
    one = journal(max_buffered=1000, on_full="drop")
    full(one, disk)
    fill(one, 20_000)
    assert len(one._buffer) <= 1000
    disk.works.set()


# --------------------------------------------------------------------------- real trouble


def test_a_directory_that_can_t_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"journal directory .*file/journal: Not a directory"):
        Journal(tmp_path / "file" / "journal")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_directory_that_can_t_be_written_to_is_refused_at_once(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="journal directory"):
        Journal(tmp_path / "journal")


def test_a_directory_that_is_deleted_costs_nothing(journal, tmp_path):
    """What was written is in the open file, and becomes a segment in a directory made anew."""
    one = journal()
    one.on_event(warned("before"))
    assert one.flush(30)
    (part,) = (tmp_path / "_open").iterdir()
    part.unlink()
    (tmp_path / "_open").rmdir()
    one.on_event(warned("after", EPOCH))
    assert one.close(30)
    assert texts(tmp_path) == ["before", "after"]


def test_a_segment_that_can_t_be_written_is_made_later(journal, tmp_path, monkeypatch, caplog):
    full = threading.Event()
    full.set()
    write = pq.write_table

    def failing(*arguments, **named):
        if full.is_set():
            raise OSError(errno.ENOSPC, "full")
        write(*arguments, **named)

    monkeypatch.setattr(pq, "write_table", failing)
    one = journal(max_rows=1)
    one.on_event(warned("first"))
    until(lambda: any("is left unchanged" in record.getMessage() for record in caplog.records))
    assert segments(tmp_path) == []
    full.clear()
    one.on_event(warned("second"))
    assert one.close(30)
    assert texts(tmp_path) == ["first", "second"]


def lost_with_a_full_disk(make_journal, disk: Disk) -> Journal:
    """A journal whose disk takes one event, then is full until it has closed."""
    one = make_journal()
    one.on_event(warned("before"))
    assert one.flush(30)
    disk.problem = OSError(errno.ENOSPC, "full")
    fill(one, 5)
    until(lambda: one._failing)
    assert one.close(30)
    disk.problem = None
    return one


def test_a_journal_knows_what_a_full_disk_cost_it_when_it_is_recovered(journal, disk, tmp_path, caplog):
    lost_with_a_full_disk(journal, disk)
    assert statistics(tmp_path).unwritten == 5
    found = recover(tmp_path)
    assert (found.lost, found.failed) == (5, {})
    (row,) = rows(tmp_path, "EventsDropped")
    assert row["count"] == 5
    assert row["since"] <= row["at"]
    (span,) = statistics(tmp_path).processes
    assert (span.missing, span.dropped, span.ended) == (5, 5, True)
    assert statistics(tmp_path).unwritten == 0
    assert list((tmp_path / "_open").iterdir()) == []
    assert texts(tmp_path) == ["before"]
    assert any("5 events unwritten" in record.getMessage() for record in caplog.records)


def test_a_loss_that_is_recovered_twice_is_counted_once(journal, disk, tmp_path):
    lost_with_a_full_disk(journal, disk)
    (mark,) = (tmp_path / "_open").glob("*.lost-*")
    recover(tmp_path)
    mark.touch()
    recover(tmp_path)
    assert len(rows(tmp_path, "EventsDropped")) == 1


def test_the_mark_of_a_living_journal_is_left_alone(journal, disk, tmp_path):
    one = journal()
    disk.problem = OSError(errno.ENOSPC, "full")
    fill(one, 1)
    until(lambda: statistics(tmp_path).unwritten)
    assert recover(tmp_path).lost == 0
    disk.problem = None
    until(lambda: one.flush(1))
    assert statistics(tmp_path).unwritten == 0
    assert one.close(30)
    assert recover(tmp_path).lost == 0
    assert texts(tmp_path) == ["0"]


def test_a_recovery_leaves_a_mark_alone_while_it_is_made(journal, disk, tmp_path, monkeypatch):
    lost: list[int] = []
    flock = fcntl.flock

    def beside(descriptor: int, operation: int) -> None:
        is_mark = ".lost-" in os.readlink(f"/proc/self/fd/{descriptor}")
        if is_mark and operation == fcntl.LOCK_EX:  # a recovery asks without waiting
            lost.append(recover(tmp_path).lost)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", beside)
    one = journal()
    disk.problem = OSError(errno.ENOSPC, "full")
    fill(one, 1)
    until(lambda: lost)
    assert lost == [0]
    disk.problem = None
    until(lambda: one.flush(1))
    assert recover(tmp_path).lost == 0


def test_a_journal_that_never_wrote_a_row_leaves_word_of_them(journal, disk, tmp_path):
    disk.problem = OSError(errno.ENOSPC, "full")
    one = journal()
    fill(one, 3)
    until(lambda: one._failing)
    assert one.close(30)
    disk.problem = None
    assert recover(tmp_path).lost == one.dropped
    (span,) = statistics(tmp_path).processes
    assert span.dropped == one.dropped


def test_the_mark_counts_what_was_dropped_while_the_buffer_was_full(journal, disk, tmp_path):
    one = journal(max_buffered=10, on_full="drop")
    disk.problem = OSError(errno.ENOSPC, "full")
    fill(one, 1)
    until(lambda: one._failing)
    fill(one, 30)
    assert one.close(30)
    disk.problem = None
    assert one.dropped >= 31
    assert recover(tmp_path).lost == one.dropped


def test_a_journal_whose_directory_became_a_file_counts_what_was_in_it(tmp_path, caplog):
    folder = tmp_path / "journal"
    one = Journal(folder, JournalOptions(flush_interval=0.01))
    fill(one, 3)
    assert one.flush(30)
    shutil.rmtree(folder)
    folder.write_text("")
    fill(one, 2, 3)
    assert one.close(30)
    assert one.dropped == 6  # and the row of its opening
    assert any("was deleted: its 4 events are lost" in record.getMessage() for record in caplog.records)


def test_a_journal_whose_files_are_deleted_keeps_their_rows(journal, tmp_path):
    one = journal()
    fill(one, 3)
    assert one.flush(30)
    shutil.rmtree(tmp_path / "_open")
    fill(one, 2, 3)
    until(lambda: texts(tmp_path) == ["0", "1", "2"])  # at the next row, not at the end
    assert one.close(30)
    assert (texts(tmp_path), one.dropped) == (["0", "1", "2", "3", "4"], 0)


@pytest.fixture
def ended(monkeypatch):
    """Ends the program by SIGTERM, but that it goes on."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    yield lambda: signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_a_journal_that_is_not_written_in_time_at_the_end_of_the_program_is_reported(journal, disk, ended, caplog):
    one = journal()
    disk.works.clear()
    fill(one, 1)
    until(lambda: disk.calls)
    flush_on_sigterm(0.01)
    ended()
    disk.works.set()
    assert any("was not written in" in record.getMessage() for record in caplog.records)
    assert one.close(30)
