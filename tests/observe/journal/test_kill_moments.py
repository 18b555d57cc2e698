"""The writer of a journal is killed at any moment, and at each step of its work: what was flushed is there, once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from journal_dying import ADOPTED, STEPS
from journal_events import rows
from pairmq.observe.journal import recover, segments, statistics

# Each life is a process that imports Arrow, which takes its time on a busy machine.
pytestmark = [pytest.mark.real_server, pytest.mark.usefixtures("without_pandas")]

SUPPORT = Path(__file__).parents[2] / "support"


def killed(directory: Path, *step: str, after: float | None = None) -> tuple[str, int]:
    """Let a process write until it ends by SIGKILL.

    Args:
        directory: the journal's.
        step: at which it kills itself, and at which time.
        after: seconds from its first flush until it is killed, for one that does not.

    Returns:
        The name of its run, and the highest number that it was told is flushed; -1 for none.
    """
    command = [sys.executable, str(SUPPORT / "journal_dying.py"), str(directory), *step]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name, flushed = child.stdout.readline().strip(), -1
        for line in child.stdout:
            if after is not None and flushed < 0:
                time.sleep(after)  # the kill meets whatever it does just then
                child.kill()
            if line.endswith("\n"):
                flushed = int(line)
        assert child.wait(60) == -signal.SIGKILL
    return name, flushed


def check(directory: Path, lives: dict[str, int]) -> None:
    """Of each life: all that it was told is flushed, every row once, and numbers without a gap."""
    found = rows(directory)
    for process, flushed in lives.items():
        own = [row for row in found if row["process"] == process]
        assert [int(row["text"]) for row in own] == list(range(len(own))), "an event is missing, or stands twice"
        assert len(own) > flushed, "an event is lost that was flushed"
    told = statistics(directory)
    assert (told.repeated, told.open_parts) == (0, 0)
    holes = {span.process: (span.missing, span.dropped) for span in told.processes if span.missing or span.dropped}
    assert holes == {}, "rows are missing that others came after"


def whole(directory: Path) -> None:
    """Whatever a reader sees is a whole segment, also before anything is recovered."""
    for path in segments(directory):
        with pq.ParquetFile(path) as file:
            assert file.read().num_rows == file.metadata.num_rows > 0


def test_five_kills_at_any_moment_lose_nothing_that_was_flushed_and_double_nothing(tmp_path):
    """Each life writes beside the recovery of what the one before it has left, and is killed in the middle of both."""
    dice = random.Random(20)
    lives: dict[str, int] = {}
    for _ in range(5):
        lives |= dict([killed(tmp_path, after=dice.uniform(0.0, 0.3))])
        whole(tmp_path)
    assert recover(tmp_path).failed == {}
    check(tmp_path, lives)
    assert list((tmp_path / "_open").iterdir()) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_loses_nothing_that_was_flushed_and_doubles_nothing(tmp_path, step):
    lives = dict([killed(tmp_path, step, "3")])
    whole(tmp_path)
    assert recover(tmp_path).failed == {}
    check(tmp_path, lives)
    assert list((tmp_path / "_open").iterdir()) == []


def test_a_killed_recovery_leaves_it_to_the_next(tmp_path):
    """The next journal of the directory has the dead one's part in its hand, and dies."""
    lives = dict([killed(tmp_path, "half a frame is written", "3"), killed(tmp_path, ADOPTED, "1")])
    assert list((tmp_path / "_open").glob("*.part")), "there was nothing to recover"
    whole(tmp_path)
    assert recover(tmp_path).failed == {}
    check(tmp_path, {process: flushed for process, flushed in lives.items() if process})


def test_what_several_lives_left_is_recovered_by_the_next_start_however_often_that_is_killed(tmp_path):
    """One life after another dies, each at another step: at the end nothing is left to do."""
    lives = dict([killed(tmp_path, step, str(count)) for count, step in enumerate(STEPS, start=2)])
    whole(tmp_path)
    assert recover(tmp_path).failed == {}
    check(tmp_path, lives)
    assert list((tmp_path / "_open").iterdir()) == []
