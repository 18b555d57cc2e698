"""Many seeds, on several processors."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pairmq.testing.simulator._interrupts import check
from pairmq.testing.simulator._report import Counts, Report
from pairmq.testing.simulator._scenario import Settings
from pairmq.testing.simulator._simulate import simulate

_EVERY = 0.1  # s between two looks at whether Ctrl-C was pressed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed, small enough to travel between processes.

    Args:
        settings: what was simulated.
        counts: how much.
        hours: of virtual time.
        result: the report as `Report.to_dict` gives it.
        text: the report for people; empty when all was well.
    """

    settings: Settings
    counts: Counts
    hours: float
    result: dict[str, Any]
    text: str

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return bool(self.result["ok"])


def outcome_of(settings: Settings) -> Outcome:
    """Simulate, and keep what matters."""
    report: Report = simulate(settings)
    return Outcome(settings, report.counts, report.hours, report.to_dict(), "" if report.ok else report.text())


def campaign(runs: Sequence[Settings], *, jobs: int = 1) -> Iterator[Outcome]:
    """Simulate many settings; outcomes come as they are ready, in no order with several jobs.

    Args:
        runs: what to simulate.
        jobs: processes; 1 stays in this one.

    Yields:
        One outcome each. Leaving early, by Ctrl-C too, ends the processes.
    """
    if jobs == 1 or len(runs) < 2:
        for each in runs:
            yield outcome_of(each)
            check()
        return
    # Not forked: the parent may have an event loop, threads and signal handlers of its own.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(runs)), mp_context=context, initializer=_begin)
    try:
        waiting = iter(runs)
        # A few at a time: all of them at once would have to be taken back one by one on Ctrl-C.
        running: set[Future[Outcome]] = _submit(pool, islice(waiting, 2 * jobs))
        while running:
            done, running = wait(running, timeout=_EVERY, return_when=FIRST_COMPLETED)
            check()
            running |= _submit(pool, islice(waiting, len(done)))
            for future in done:
                yield future.result()
    finally:
        # None of them holds anything that must be kept. The pool's own thread is waited for: an interpreter that ends
        # while that thread closes its pipe writes to the closed pipe (seen with Python 3.11).
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """Begin a process: it ends with the one that made it, and collections of garbage leave its imports out."""
    threading.Thread(target=_end_with_parent, name="pairmq-simulate-parent", daemon=True).start()
    gc.collect()
    gc.freeze()


def _end_with_parent() -> None:
    """A parent that is killed can't end its processes, which would wait for work that never comes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _submit(pool: ProcessPoolExecutor, runs: Iterable[Settings]) -> set[Future[Outcome]]:
    """Hand runs to the pool, whose processes, when they are made for it, leave Ctrl-C to this one.

    They inherit what is blocked. Were they to see to it themselves, a Ctrl-C that comes before would end them with a
    traceback each; one that comes meanwhile reaches this process afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return {pool.submit(outcome_of, each) for each in runs}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
