"""A process that is killed loses no more than a flush interval, and nothing is ever there twice."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from journal_events import rows, texts, until, warned
from pairmq.observe.journal import Journal, JournalOptions, recover, segments

# Each starts processes that import Arrow, which takes its time on a busy machine; one of them many.
SUPPORT = Path(__file__).parents[2] / "support"
FLUSH = 0.05
ONE_PART = ("max_rows=5000000", "max_bytes=1000000000", "max_age=3600")
"""However long a test is held up, what was written by then is in one part."""


pytestmark = [pytest.mark.real_server, pytest.mark.usefixtures("without_pandas")]  # programs that are killed

LEAVE = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from journal_events import warned
from pairmq.observe.journal import Journal, JournalOptions
one = Journal(sys.argv[2], JournalOptions(flush_interval=0.001))
for number in range(int(sys.argv[3])):
    one.on_event(warned(str(number)))
    one.flush(30)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Program:
    """The writing program, and what it said when."""

    def __init__(self, directory: Path, *options: str) -> None:
        command = [sys.executable, str(SUPPORT / "journal_program.py"), str(directory), f"flush_interval={FLUSH}"]
        self.child = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        self.process = self.child.stdout.readline().strip()
        self.said: list[tuple[float, int]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.endswith("\n"):
                self.said.append((time.monotonic(), int(line)))

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        self._reader.join()
        assert self.child.stdout is not None
        self.child.stdout.close()

    def taken(self, before: float) -> int:
        """The highest number that was surely handed over before an instant."""
        return max((number for at, number in self.said if at <= before), default=-1)


@contextmanager
def writing(directory: Path, *options: str) -> Iterator[Program]:
    program = Program(directory, *options)
    try:
        yield program
    finally:
        program.kill()


def check(directory: Path, process: str, at_least: int) -> None:
    """Every event up to some point, once."""
    found = [row for row in rows(directory) if row["process"] == process]
    numbers = [int(row["text"]) for row in found]
    assert numbers == list(range(len(numbers))), "an event is missing, or stands twice"
    assert len(numbers) > at_least, "an event that was handed over long before is lost"
    # Number 0 is the journal's own first row.
    assert [row["seq"] for row in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_process_loses_nothing_that_was_flushed(tmp_path, seed):
    dice = random.Random(seed)
    with writing(tmp_path, "max_rows=400", "max_age=0.3") as program:
        until(lambda: len(program.said) > 20)
        time.sleep(dice.random())  # the kill meets whatever it does just then
        # Whether the interval was kept is asked elsewhere: here, that what is in the files outlives the process.
        until(lambda: _flushed(tmp_path, program.process) >= 0)
        flushed = _flushed(tmp_path, program.process)
        program.child.kill()
    recover(tmp_path)
    check(tmp_path, program.process, flushed)


def _flushed(directory: Path, process: str) -> int:
    """The highest number that a kill at this moment would leave: what a copy of the parts holds."""
    with tempfile.TemporaryDirectory() as copy:
        folder = Path(copy, "_open")
        folder.mkdir()
        for path in sorted((directory / "_open").glob(f"{process}-*.part")):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(path, folder)
        recover(copy)
        return max((int(row["text"]) for row in rows(Path(copy))), default=-1)


def test_an_event_is_in_the_operating_system_s_hands_after_a_flush_interval(tmp_path):
    """Nobody asks for a flush, and the events after it do not come: it is written all the same."""
    with writing(tmp_path) as program:
        until(lambda: len(program.said) > 3)
        taken = program.taken(time.monotonic())
        until(lambda: _flushed(tmp_path, program.process) >= taken)
    recover(tmp_path)
    check(tmp_path, program.process, taken)


def test_the_next_journal_recovers_what_a_killed_one_left(tmp_path):
    with writing(tmp_path) as program:
        until(lambda: _flushed(tmp_path, program.process) >= 100)
    with_next = Journal(tmp_path, JournalOptions(flush_interval=0.01))
    with_next.on_event(warned("next"))
    assert with_next.close(60)
    assert list((tmp_path / "_open").iterdir()) == []
    check(tmp_path, program.process, 100)


def test_what_a_living_process_writes_is_left_alone(tmp_path):
    with writing(tmp_path, *ONE_PART) as program:
        until(lambda: _flushed(tmp_path, program.process) >= 100)
        found = recover(tmp_path)
        assert (found.parts, found.kept, found.failed) == (0, 1, {})
        reached = _flushed(tmp_path, program.process)
        until(lambda: _flushed(tmp_path, program.process) > reached)
    assert recover(tmp_path).parts == 1
    check(tmp_path, program.process, reached)


RECOVER = "import sys; from pairmq.observe.journal import recover; print('ready', flush=True); recover(sys.argv[1])"


def test_a_killed_recovery_neither_loses_nor_doubles(tmp_path):
    """Recoveries are killed after ever more time, until one of them gets to its end."""
    with writing(tmp_path, "max_rows=1000000") as program:
        until(lambda: _flushed(tmp_path, program.process) >= 3000)
        flushed = _flushed(tmp_path, program.process)
    delay = 0.001
    for _ in range(30):
        child = subprocess.Popen([sys.executable, "-c", RECOVER, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        try:
            child.wait(delay)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
        if child.returncode == 0:
            break
        delay *= 2.2
    assert child.returncode == 0, "no recovery came to its end"
    check(tmp_path, program.process, flushed)
    assert list((tmp_path / "_open").iterdir()) == []


STEPS = ("parquet", "rename", "unlink")


@pytest.mark.parametrize("step", STEPS)
def test_a_recovery_that_stops_at_any_step_is_finished_by_the_next(tmp_path, monkeypatch, step):
    with writing(tmp_path, *ONE_PART) as program:
        until(lambda: _flushed(tmp_path, program.process) >= 100)
    unlink = Path.unlink

    class Killed(BaseException):
        pass

    def stop(*arguments: object, **values: object) -> None:
        raise Killed

    def stop_at_a_part(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".part":
            raise Killed
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        if step == "parquet":
            patch.setattr(pq, "write_table", stop)
        elif step == "rename":
            patch.setattr(Path, "rename", stop)
        else:
            patch.setattr(Path, "unlink", stop_at_a_part)
        with pytest.raises(Killed):
            recover(tmp_path)
    assert recover(tmp_path).parts == 1
    check(tmp_path, program.process, 100)
    assert list((tmp_path / "_open").iterdir()) == []


@pytest.mark.parametrize("cut", [1, 5, 11, 12, 13, 100])
def test_a_torn_end_is_cut_and_the_rest_is_kept(tmp_path, cut):
    _, part = _left_behind(tmp_path)
    data = part.read_bytes()
    part.write_bytes(data[:-cut])
    found = recover(tmp_path)
    assert found.torn > 0
    assert texts(tmp_path) == ["0", "1"]


@pytest.mark.parametrize("where", [-3, -40, -200])
def test_bytes_that_are_not_what_was_written_are_not_taken_for_rows(tmp_path, where):
    """Such as the zeros that a file system may show after a power cut."""
    part = _left_behind(tmp_path)[1]
    data = bytearray(part.read_bytes())
    data[where] ^= 0xFF
    part.write_bytes(data)
    found = recover(tmp_path)
    assert (found.failed, texts(tmp_path)) == ({}, ["0", "1"])
    assert found.torn > 0


def test_a_part_whose_head_is_damaged_stays_as_it_is(tmp_path):
    part = _left_behind(tmp_path)[1]
    data = bytearray(part.read_bytes())
    data[20] ^= 0xFF
    part.write_bytes(data)
    assert recover(tmp_path).failed == {part: "it has no head"}
    assert part.read_bytes() == data


def forbid(monkeypatch: pytest.MonkeyPatch, path: Path, *, to_readers: bool) -> None:
    """Let a file be another user's, which root would not notice."""
    known = os.open

    def ask(asked: Path, flags: int, *mode: int) -> int:
        if Path(asked) == path and (to_readers or flags & os.O_RDWR):
            raise PermissionError(errno.EACCES, "Permission denied", str(asked))
        return known(asked, flags, *mode)

    monkeypatch.setattr(os, "open", ask)


def test_a_part_that_may_not_be_opened_does_not_stop_the_others(tmp_path, monkeypatch):
    _, part = _left_behind(tmp_path)
    first = part.with_name("0-000000.part")
    first.write_text("another user's")
    part.with_name("gone-000000.2023-11-14.tmp").write_text("half")
    forbid(monkeypatch, first, to_readers=True)
    found = recover(tmp_path)
    assert list(found.failed) == [first]
    assert "Permission denied" in found.failed[first]
    assert (found.parts, texts(tmp_path)) == (1, ["0", "1", "2"])
    assert list((tmp_path / "_open").iterdir()) == [first]


@pytest.mark.parametrize("alive", [False, True])
def test_another_user_s_part_is_recovered_if_it_may_be_read_and_its_process_is_dead(tmp_path, monkeypatch, alive):
    _, part = _left_behind(tmp_path)
    forbid(monkeypatch, part, to_readers=False)
    with part.open("rb") as owner:
        if alive:
            fcntl.flock(owner, fcntl.LOCK_EX)
        found = recover(tmp_path)
    assert found.failed == {}
    assert (found.parts, found.kept) == ((0, 1) if alive else (1, 0))
    assert part.exists() is alive


def test_a_foreign_file_is_left_where_it_is(tmp_path):
    (tmp_path / "_open").mkdir()
    for name in ("notes.txt", "x.part", ".hidden-000001.part", "a-1.part"):
        (tmp_path / "_open" / name).write_text("mine")
    assert recover(tmp_path).parts == 0
    assert len(list((tmp_path / "_open").iterdir())) == 4


def test_a_part_under_another_name_is_refused(tmp_path):
    """The name of a segment is made of the part's: it must not be somebody's choice."""
    _, part = _left_behind(tmp_path)
    part.rename(part.with_name("another-000007.part"))
    found = recover(tmp_path)
    assert list(found.failed.values()) == ["its head belongs to another part"]
    assert segments(tmp_path) == []


def test_another_machine_s_part_is_left_unless_asked_for(tmp_path, monkeypatch):
    _left_behind(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    found = recover(tmp_path)
    assert (found.parts, found.kept) == (0, 1)
    assert recover(tmp_path, all_hosts=True).parts == 1
    assert texts(tmp_path) == ["0", "1", "2"]


def test_what_a_killed_process_left_empty_is_swept_up(tmp_path):
    (tmp_path / "_open").mkdir()
    (tmp_path / "_open" / "host-1-000000.part").write_text("")
    (tmp_path / "_open" / "host-1-000001.2023-11-14.tmp").write_text("half")
    assert recover(tmp_path).failed == {}
    assert list((tmp_path / "_open").iterdir()) == []


def test_a_mark_that_a_killed_process_did_not_finish_is_swept_up(tmp_path):
    (tmp_path / "_open").mkdir()
    left = tmp_path / "_open" / "host-1-000003.lost-1-2-3-4.new"
    young = left.with_name("host-1-000004.lost-1-2-3-4.new")
    held = left.with_name("host-1-000005.lost-1-2-3-4.new")
    for path in (left, young, held):
        path.write_text("")
    for path in (left, held):
        os.utime(path, (1, 1))
    with held.open("rb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        assert recover(tmp_path).failed == {}
    assert sorted((tmp_path / "_open").iterdir()) == [young, held]


def _left_behind(directory: Path) -> tuple[str, Path]:
    """A part with three rows, a row a batch, as a killed process leaves it; its process and its path."""
    name, data = _part_of_a_killed_process()
    part = directory / "_open" / name
    part.parent.mkdir()
    part.write_bytes(data)
    return name, part


@functools.cache
def _part_of_a_killed_process() -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", LEAVE, str(SUPPORT), directory, "3"]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        (part,) = (Path(directory) / "_open").iterdir()
        return part.name, part.read_bytes()


def test_a_part_that_is_taken_for_a_dead_one_s_while_it_is_made_is_made_again(journal, tmp_path, monkeypatch, caplog):
    """Between the making of a file and its lock, a recovery may find it."""
    flock, swept = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not swept:
            swept.append(recover(tmp_path))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    one = journal()
    one.on_event(warned("kept"))
    assert one.flush(30)
    assert swept
    assert [path.suffix for path in (tmp_path / "_open").iterdir()] == [".part"], "a kill would lose it"
    assert one.close(30)
    assert texts(tmp_path) == ["kept"]
    assert caplog.records == []
