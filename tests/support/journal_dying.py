"""A program that journals at its full rate until it is killed, or kills itself at a chosen step of the journal's work.

``journal_dying.py DIR [STEP COUNT]``: the step at which it ends by SIGKILL, and at which time that it comes there. It
writes the name of its run to stdout, then the highest number that it had handed over when a flush said that all is in
the operating system's hands.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq

from journal_events import warned
from pairmq.observe.journal import Journal, JournalOptions

AT_ONCE = 50  # events between two flushes
OPTIONS = JournalOptions(flush_interval=0.001, max_rows=200)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody outlives SIGKILL")


def instead(owner: Any, name: str, act: Callable[..., Any], count: int) -> None:
    """Call ``act`` with the function and its arguments at its call of a number, and let all others go on."""
    known, calls = getattr(owner, name), itertools.count(1)

    def function(*arguments: Any, **values: Any) -> Any:
        if next(calls) == count:
            return act(known, *arguments, **values)
        return known(*arguments, **values)

    setattr(owner, name, function)


def before(known: Callable[..., Any], *_: Any, **__: Any) -> None:
    die()


def after(known: Callable[..., Any], *arguments: Any, **values: Any) -> None:
    known(*arguments, **values)
    die()


def half_a_frame(known: Callable[..., int], descriptor: int, data: memoryview, offset: int) -> None:
    known(descriptor, data[: len(data) // 2], offset)
    die()


def half_a_segment(known: Callable[..., Any], table: Any, path: Path, **values: Any) -> None:
    known(table, path, **values)
    os.truncate(path, path.stat().st_size // 2)
    die()


STEPS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a part has no head yet": (fcntl, "flock", before),
    "half a frame is written": (os, "pwrite", half_a_frame),
    "half a segment is written aside": (pq, "write_table", half_a_segment),
    "a segment is whole and not in place": (Path, "rename", before),
    "a segment is in place and its part still there": (Path, "rename", after),
    "a part is deleted": (Path, "unlink", after),
}
"""Where it may end: what is replaced, and what is done there."""

ADOPTED = "a dead one's part is in hand"


def main() -> None:
    directory, *step = sys.argv[1:]
    if step and step[0] == ADOPTED:
        known = fcntl.flock

        def lock(descriptor: int, operation: int) -> None:
            known(descriptor, operation)
            if operation & fcntl.LOCK_NB:  # a living one waits
                die()

        fcntl.flock = lock
    elif step:
        owner, name, act = STEPS[step[0]]
        instead(owner, name, act, int(step[1]))
    journal = Journal(directory, OPTIONS)
    print(journal.process, flush=True)
    for number in itertools.count():
        journal.on_event(warned(str(number)))
        if number % AT_ONCE == 0 and journal.flush(30):
            print(number, flush=True)


if __name__ == "__main__":
    main()
