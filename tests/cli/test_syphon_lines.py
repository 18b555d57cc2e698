"""What `pairmq syphon` says of a backlog that does not move, in few lines and with the reason."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import typer

from pairmq.cli._backlog import Depths
from pairmq.cli._signals import Stop
from pairmq.cli._syphon import Failures, SyphonEnd, SyphonJob, SyphonProgress, _indexes
from pairmq.model import Entity
from pairmq.model.events import SyphonFailed
from pairmq.pair import Pair
from pairmq.transport import Depth, QueueCounts

QUEUES = [f"east/x-servicebus-transfer/{index}" for index in range(10)]


def failed(queue: str, error: str = "{queue}: connection refused", retry_after: float = 2.0) -> SyphonFailed:
    return SyphonFailed(at=0.0, pair="", queue=queue, error=error.format(queue=queue), retry_after=retry_after)


def test_a_dead_secondary_is_one_line_when_it_begins_and_one_when_it_is_over():
    failures = Failures()
    lines = [
        failures.failed(failed(queue), second + index / 10)
        for second in range(0, 24, 3)
        for index, queue in enumerate(QUEUES)
    ]
    assert [line for line in lines if line] == [f"{QUEUES[0]}: {QUEUES[0]}: connection refused; trying again"]
    assert failures.ended(22.5, counted_at=22.2) is None, "a pump may be about to fail again"
    assert failures.ended(30.0, counted_at=20.0) is None, "no count has been good since"
    assert failures.ended(30.0, counted_at=29.0) == "the secondary responds again, after 80 failures in 21.9 s"
    assert failures.ended(31.0, counted_at=29.0) is None


def test_a_new_reason_is_a_line_of_its_own():
    failures = Failures()
    assert failures.failed(failed(QUEUES[0]), 0.0)
    assert failures.failed(failed(QUEUES[1], "{queue}: wrong password"), 1.0) is not None
    assert failures.failed(failed(QUEUES[2], "{queue}: wrong password"), 1.0) is None


def test_a_queue_that_fails_again_and_again_between_good_counts_is_not_reported_each_time():
    failures, lines = Failures(), []
    for second in range(0, 600, 10):
        lines += [failures.failed(failed(QUEUES[0]), float(second)), failures.ended(second + 8.0, second + 7.0)]
    assert len([line for line in lines if line]) == 2


def test_many_reasons_are_bounded():
    failures = Failures()
    lines = [failures.failed(failed(QUEUES[0], f"{number}"), 0.0) for number in range(1000)]
    assert len([line for line in lines if line]) == 20


@pytest.fixture
def job(monkeypatch) -> SyphonJob:
    for name in ("moved", "outbox_moved"):
        monkeypatch.setattr(Pair, name, 0)  # of a pair that is not open
    pair = Pair.connect("memory://lines-east", "memory://lines-west", enable_syphon=True)
    made = SyphonJob(pair, lambda: pair.secondary, until_empty=True, interval=10.0, json=False)
    made._depths = Depths((Depth(Entity(QUEUES[0]), QueueCounts(active=0, locked=100)),))
    made._depths_at = time.monotonic()
    return made


def test_messages_that_others_hold_locked_are_said_to_be_locked(job):
    job._moved_at = time.monotonic() - 5
    assert job.progress().line() == "moved 0, left 100, 100 locked elsewhere; a killed syphon's locks end within 60 s"
    assert job.progress().record()["locked"] == 100


def test_nothing_is_said_of_locks_while_messages_move_or_wait_for_their_destination(job):
    job._moved_at = time.monotonic()
    assert "locked" not in job.progress().line()
    job._moved_at = time.monotonic() - 5
    job._shut["orders"] = "down"
    assert "locked" not in job.progress().line()


def test_an_old_count_is_shown_with_its_age(job):
    job._depths_at = time.monotonic() - 25
    assert "left 100 (counted 25." in job.progress().line()
    assert job.progress().record()["left_age"] >= 25


def test_outbox_in_use_is_no_progress_of_the_backlog(job, monkeypatch):
    job.until_empty = False
    assert job._count_due(100.0)
    assert job._count_due(100.5), "once more when messages have stopped moving"
    for name in ("moved", "outbox_moved"):
        monkeypatch.setattr(Pair, name, 700)
    assert not job._count_due(101.0), "all queues would be counted twice a second for as long as the outbox is in use"
    monkeypatch.setattr(Pair, "moved", 701)
    assert job._count_due(101.5)
    job._moved_at = time.monotonic()
    assert job.progress().line() == "moved 701 (700 of the outbox), left 100"
    assert job.progress().record()["outbox_moved"] == 700


def test_several_processes_are_shown_as_one():
    parts = [
        SyphonProgress(moved=5, per_second=2.0, pending={"q/0": 3}, locked=1, shut=("orders",), counted=1.0),
        SyphonProgress(moved=7, per_second=3.0, pending={"q/1": 4, "q/0": 3}, dead_lettered=1, failures=2, failing=4.0),
    ]
    together = SyphonProgress.of_all(parts)
    assert together.line() == (
        "moved 12, left 7, 5.0/s, the secondary fails for 4.0 s (2 failures), dead-lettered 1, shut: orders"
    )
    assert (together.record()["left"], together.record()["seconds_to_go"]) == (7, None)


def test_how_long_it_takes_is_said_only_while_no_broker_fails():
    goes_on = SyphonProgress(moved=5, per_second=2.0, pending={"q/0": 3})
    assert goes_on.line() == "moved 5, left 3, 2.0/s, about 1.5 s to go"
    assert goes_on.record()["seconds_to_go"] == 1.5
    for fails in ({"failing": 2.0, "failures": 1}, {"shut": ("orders",)}):
        assert "to go" not in replace(goes_on, **fails).line()
        assert replace(goes_on, **fails).record()["seconds_to_go"] is None


def test_what_one_process_does_not_know_all_do_not_know():
    assert SyphonProgress.of_all([SyphonProgress(pending={"q/0": 3}), SyphonProgress()]).left is None


@pytest.mark.parametrize(("text", "indexes"), [(None, (0, 1, 2, 3)), ("2", (2,)), ("3,0-1", (0, 1, 3))])
def test_queues_are_chosen_by_index_and_range(text, indexes):
    assert _indexes(text, 4) == indexes


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "4", "2-1", "0,,1", "1.5"])
def test_wrong_indexes_are_refused(text):
    with pytest.raises(typer.BadParameter, match="--queues: "):
        _indexes(text, 4)


DRAWN = """
from rich.live import Live
from pairmq.cli._output import stderr_console
from pairmq.cli._signals import _end_at_once
live = Live(console=stderr_console(), transient=True, auto_refresh=False)
live.start()
live.update("moved 5, left 100", refresh=True)
_end_at_once(2)
"""


def test_the_prompt_after_a_second_ctrl_c_stands_on_a_line_of_its_own():
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with os.fdopen(theirs, "wb", 0) as terminal:
        program = subprocess.Popen([sys.executable, "-c", DRAWN], stdout=terminal, stderr=terminal, env=environment)
        assert program.wait(60) == 130
    shown = os.read(ours, 65536)
    os.close(ours)
    line, _, rest = shown.rpartition(b"\n")
    assert line.rstrip().endswith(b"moved 5, left 100")
    assert rest == b"\x1b[?25h"


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        (SyphonProgress(unknown="redis://b: no answer within 10 s"), "(redis://b: no answer within 10 s)"),
        (SyphonProgress(), "(the queues were not counted)"),
    ],
)
def test_end_gives_the_reason_and_advice_when_what_is_left_is_unknown(capsys, progress, why):
    stop = Stop()
    stop.signal = signal.SIGTERM
    assert SyphonEnd(progress, emptied=False).report(stop, until_empty=False, json=False) == 0
    said = capsys.readouterr().err
    assert why in said
    assert "pairmq backlog list" in said
