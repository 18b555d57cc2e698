"""A journal ends with its process, and is not its child's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from journal_events import OWN, rows, texts, until, warned
from pairmq.model import ConfigurationError
from pairmq.observe.journal import (
    Journal,
    JournalClosedError,
    JournalObserver,
    JournalOptions,
    read_rows,
    recover,
    shared_journal,
    statistics,
)

SUPPORT = str(Path(__file__).parents[2] / "support")
START = """
import atexit, os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from journal_events import warned
from pairmq.observe.journal import *
journal = Journal(sys.argv[2], JournalOptions(flush_interval=60, max_age=3600))
"""


def run(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", START + program, SUPPORT, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def kinds(directory: Path) -> list[str]:
    return [row["kind"] for row in sorted(read_rows(directory), key=lambda row: (row["process"], row["seq"]))]


@pytest.mark.real_server  # a program, which journals as those do that stay in the first tier
def test_a_program_that_just_ends_has_its_journal(tmp_path):
    ended = run(tmp_path, "journal.on_event(warned('last'))")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert kinds(tmp_path) == ["JournalOpened", "Warned", "JournalClosed"]


@pytest.mark.real_server  # a program, which journals as those do that stay in the first tier
def test_a_program_that_fails_has_its_journal(tmp_path):
    assert run(tmp_path, "journal.on_event(warned('last')); raise SystemExit(3)").returncode == 3
    assert texts(tmp_path) == ["last"]


@pytest.mark.real_server  # a program, which journals as those do that stay in the first tier
def test_a_program_without_events_is_not_held_up(tmp_path):
    assert run(tmp_path, "").returncode == 0
    assert list(read_rows(tmp_path)) == []


TERMINATE = "journal.on_event(warned('last')); os.kill(os.getpid(), signal.SIGTERM); time.sleep(50)"


def test_sigterm_writes_the_journal_and_ends_the_process_as_ever(tmp_path):
    ended = run(tmp_path, "flush_on_sigterm()\n" + TERMINATE)
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, "")
    assert kinds(tmp_path) == ["JournalOpened", "Warned", "JournalClosed"]


@pytest.mark.real_server  # a program, which journals as those do that stay in the first tier
def test_sigterm_goes_on_to_the_program_s_own_handler(tmp_path):
    own = "signal.signal(signal.SIGTERM, lambda number, frame: (print('own'), sys.exit(7)))\nflush_on_sigterm()\n"
    ended = run(tmp_path, own + TERMINATE)
    assert (ended.returncode, ended.stdout) == (7, "own\n")
    assert texts(tmp_path) == ["last"]


@pytest.mark.real_server  # a program, which journals as those do that stay in the first tier
def test_a_program_that_ignores_sigterm_goes_on(tmp_path):
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nflush_on_sigterm()\n"
    went_on = "journal.on_event(warned('a')); os.kill(os.getpid(), signal.SIGTERM); journal.on_event(warned('b'))"
    assert run(tmp_path, ignoring + went_on).returncode == 0
    assert texts(tmp_path) == ["a", "b"]


@pytest.mark.real_server  # a program
def test_a_signal_in_the_midst_of_an_event_does_not_stop_the_end(tmp_path):
    """Whatever the main thread holds when the signal comes, the writer must get on."""
    program = """
flush_on_sigterm()
held = threading.Event()
def signals():
    held.wait()
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=signals, daemon=True).start()
with journal._changed:  # as on_event does now and then
    journal.on_event(warned('held'))
    held.set()
    while True:
        time.sleep(0.01)
"""
    assert run(tmp_path, program).returncode == -signal.SIGTERM
    assert texts(tmp_path) == ["held"]


FORK = """
journal.on_event(warned('parent before'))
assert journal.flush(30)
journal.on_event(warned('parent unflushed'))
child = os.fork()
if not child:
    journal.on_event(warned('child'))
    assert journal.close(30)
    os._exit(0)
os.waitpid(child, 0)
journal.on_event(warned('parent after'))
"""


def test_a_forked_child_journals_for_itself(tmp_path):
    assert run(tmp_path, FORK).stderr == ""
    by_process: dict[str, list[str]] = {}
    for row in rows(tmp_path, "Warned"):
        by_process.setdefault(row["process"], []).append(row["text"])
    assert sorted(by_process.values()) == [["child"], ["parent before", "parent unflushed", "parent after"]]
    assert not any(span.missing for span in statistics(tmp_path).processes)


@pytest.mark.real_server  # a program that is killed
def test_a_forked_child_does_not_keep_its_dead_parent_s_part_alive(tmp_path):
    program = """
journal.on_event(warned('parent'))
assert journal.flush(30)
if not os.fork():
    os.close(0), os.close(1), os.close(2)
    time.sleep(50)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(tmp_path, program).returncode == -signal.SIGKILL
    assert recover(tmp_path).parts == 1
    assert texts(tmp_path) == ["parent"]


@pytest.mark.real_server  # two programs
def test_two_processes_share_a_directory(tmp_path):
    program = "for number in range(500): journal.on_event(warned(f'{os.getpid()} {number}'))"
    children = [
        subprocess.Popen([sys.executable, "-c", f"{START}\n{program}", SUPPORT, str(tmp_path)]) for _ in range(2)
    ]
    assert [child.wait(150) for child in children] == [0, 0]
    by_process: dict[str, list[str]] = {}
    for row in rows(tmp_path, "Warned"):
        by_process.setdefault(row["process"], []).append(row["text"].split()[1])
    assert list(by_process.values()) == [[str(number) for number in range(500)]] * 2


# --------------------------------------------------------------------------- in one process


def test_a_closed_journal_takes_nothing_more(journal):
    one = journal()
    one.on_event(warned())
    assert one.close(30)
    with pytest.raises(JournalClosedError, match="is closed"):
        one.on_event(warned())


def test_closing_twice_is_closing_once(journal, tmp_path):
    one = journal()
    one.on_event(warned())
    assert one.close(30)
    assert one.close(30)
    assert kinds(tmp_path).count("JournalClosed") == 1


def test_a_flush_hands_everything_over(journal, tmp_path):
    one = journal(flush_interval=60.0)
    one.on_event(warned())
    assert one.flush(30)
    (part,) = (tmp_path / "_open").iterdir()
    assert b"look" in part.read_bytes()


def test_a_flush_without_events_returns_at_once(journal):
    assert journal(flush_interval=60.0).flush(1)


def test_a_directory_has_one_journal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = shared_journal(tmp_path / "x"), shared_journal("x")
    assert one is other
    with pytest.raises(ConfigurationError, match="in use with other options"):
        shared_journal("x", JournalOptions(max_age=1.0))


async def test_a_shared_journal_closes_with_its_last_pair(tmp_path):
    first, second = JournalObserver(tmp_path), JournalObserver(tmp_path)
    assert first.journal is second.journal
    await first.close()
    first.on_event(warned("second is there"))
    await second.close()
    with pytest.raises(JournalClosedError):
        second.on_event(warned("too late"))
    assert JournalObserver(tmp_path).journal is not first.journal


async def test_closing_an_observer_twice_leaves_other_journals_open(tmp_path):
    first, second = JournalObserver(tmp_path), JournalObserver(tmp_path)
    await first.close()
    await first.close()
    second.on_event(warned())
    await second.close()


async def test_a_journal_that_was_given_stays_open(journal):
    one = journal()
    observer = JournalObserver(one)
    observer.on_event(warned())
    await observer.close()
    one.on_event(warned())


def test_no_thread_is_left_after_a_close(tmp_path):
    before = set(threading.enumerate())  # a journal of another test may live yet
    one = Journal(tmp_path)
    one.on_event(warned())
    assert one.close(30)
    until(lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith("journal")])


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"flush_interval": 0}, "flush_interval is 0: it must be 0.001 to 60"),
        ({"sample_healthy": 1.5}, "sample_healthy is 1.5: it must be 0 to 1"),
        ({"max_rows": 0.5}, "max_rows is 0.5: it must be a whole number from 1 to 5000000"),
        ({"on_full": "wait a bit"}, "on_full is 'wait a bit': it must be 'wait' or 'drop'"),
        ({"compression": "lzma"}, "compression is 'lzma'"),
        ({"fsync": 1}, "fsync is 1: it must be True or False"),
    ],
)
def test_a_bad_option_is_named(values, error):
    with pytest.raises(ConfigurationError, match=f"journal option {error}"):
        JournalOptions(**values)


@pytest.mark.parametrize("system", ["Linux", "macOS"])
def test_fsync_writes_the_same(journal, tmp_path, monkeypatch, system):
    if system == "macOS":
        monkeypatch.delattr(os, "fdatasync")
    one = journal(fsync=True)
    one.on_event(warned("safe"))
    assert one.close(30)
    assert texts(tmp_path) == ["safe"]
    assert one.dropped == 0


def test_with_fsync_the_part_s_name_is_on_the_disk_too(journal, tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    one = journal(fsync=True)
    one.on_event(warned("safe"))
    assert one.flush(30)
    assert {tmp_path.stat().st_ino, (tmp_path / "_open").stat().st_ino} <= set(synced)


def test_the_journal_s_own_rows_name_its_process(journal, tmp_path):
    one = journal()
    one.on_event(warned())
    assert one.close(30)
    opened = next(row for row in read_rows(tmp_path) if row["kind"] == OWN[0])
    assert opened["process"] == one.process
    assert str(opened["pid"]) in one.process
