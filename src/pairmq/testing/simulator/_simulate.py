"""Simulations from a seed, from a scenario, cut down to what still fails, and of many seeds on several processors."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, TypeVar

from pairmq.testing.judge import Verdict, waits_of
from pairmq.testing.simulator._generate import scenario_of
from pairmq.testing.simulator._judge import judged
from pairmq.testing.simulator._loop import check
from pairmq.testing.simulator._report import TAIL, Counts, Report, counted, story_of
from pairmq.testing.simulator._scenario import Scenario, Settings, Setup
from pairmq.testing.simulator._world import World

T = TypeVar("T")


def simulate(settings: Settings) -> Report:
    """Simulate what some settings ask for.

    The same settings give the same report in every process, and with ``trace`` the same trace, byte by byte.

    Returns:
        What was found; a failed simulation is a report with violations, never an exception.
    """
    return replay(scenario_of(settings), trace=settings.trace)


def replay(scenario: Scenario, *, trace: bool = False) -> Report:
    """Simulate a scenario, as `simulate`."""
    lines: list[str] = []
    history = World(scenario, lines.append if trace else None).run()
    violations = tuple(judged(history))
    story: tuple[str, ...] = ()
    if violations:
        first = violations[0]
        if not trace:
            # Run again with a trace: to write one each time would cost more than all else.
            World(scenario, lines.append).run()
            lines = [line for line in lines if float(line.split(" ", 1)[0]) <= first.at + 1e-6][-TAIL:]
        if first.message is not None:
            story = story_of(history, first.message)
    hours = history.ended_at / 3600
    return Report(scenario, violations, counted(history), hours, waits_of(history), story, tuple(lines))


def shrink(
    scenario: Scenario,
    *,
    most_runs: int = 300,
    progress: Callable[[int, Scenario], None] | None = None,
) -> Scenario:
    """Cut a scenario that fails down to a small one that fails in the same way, by ``most_runs`` simulations at most.

    First its end, then its faults, then its sends, then its senders and processes, each in halves, quarters and so on.
    One that does not fail is returned as it is.
    """
    return _Shrinker(scenario, most_runs, progress).run()


class _Shrinker:
    def __init__(self, scenario: Scenario, most_runs: int, progress: Callable[[int, Scenario], None] | None) -> None:
        self._best = scenario
        self._left = most_runs
        self._runs = 0
        self._progress = progress
        self._wanted: Verdict | None = None
        first = self._first(scenario)
        if first is not None:
            self._wanted = first[0]

    def run(self) -> Scenario:
        if self._wanted is None:
            return self._best
        self._cut_the_end()
        size = None
        while size != (size := self._size()) and self._left > 0:
            self._cut("faults", self._best.faults)
            self._cut("traffic", self._best.traffic)
        self._cut_people()
        self._make_plain()
        return self._best

    def _size(self) -> tuple[int, int]:
        return len(self._best.faults), len(self._best.traffic)

    def _first(self, scenario: Scenario) -> tuple[Verdict, float] | None:
        """The first violation's verdict and instant; of the wanted verdict, once that is known."""
        self._runs += 1
        self._left -= 1
        for violation in judged(World(scenario).run()):
            if self._wanted in (None, violation.verdict):
                return violation.verdict, violation.at
        return None

    def _fails(self, scenario: Scenario) -> bool:
        if self._left <= 0 or self._first(scenario) is None:
            return False
        self._best = scenario
        if self._progress is not None:
            self._progress(self._runs, scenario)
        return True

    def _fails_with(self, **changes: Any) -> bool:
        """Whether it fails with changes of its setup."""
        return self._fails(replace(self._best, setup=replace(self._best.setup, **changes)))

    def _cut_the_end(self) -> None:
        first = self._first(self._best)
        if first is None or first[1] >= self._best.seconds:
            return
        for more in (1.0, 30.0, 300.0):
            end = min(self._best.seconds, first[1] + more)
            faults = tuple(fault for fault in self._best.faults if fault.at < end)
            traffic = tuple(shipment for shipment in self._best.traffic if shipment.at < end)
            if self._fails(replace(self._best, seconds=end, faults=faults, traffic=traffic)):
                return

    def _cut(self, name: str, parts: tuple[T, ...]) -> None:
        """Leave out as many as can be, in ever smaller pieces."""
        if parts and self._fails(replace(self._best, **{name: ()})):  # type: ignore[arg-type]
            return
        piece = max(1, len(parts) // 2)
        while parts and self._left > 0:
            start = 0
            while start < len(parts):
                shorter = parts[:start] + parts[start + piece :]
                if self._fails(replace(self._best, **{name: shorter})):  # type: ignore[arg-type]
                    parts = shorter
                else:
                    start += piece
            if piece == 1:
                return
            piece //= 2

    def _make_plain(self) -> None:
        """Take back, one by one, what sets this scenario's setup apart, and make its bursts small."""
        plain: dict[str, Any] = {each.name: each.default for each in fields(Setup)}
        for name in ("latency", "jitter", "most_bytes", "primary_lacks"):
            if getattr(self._best.setup, name) != plain[name]:
                self._fails_with(**{name: plain[name]})
        for index in range(len(self._best.setup.processes)):
            differences: dict[str, Any] = dict.fromkeys(self._best.setup.processes[index].own_options)
            if self._best.setup.processes[index].skew:
                differences["skew"] = 0.0
            for name, usual in differences.items():
                self._fails_with(processes=_changed(self._best.setup.processes, index, **{name: usual}))
        for index in range(len(self._best.traffic)):
            while (count := self._best.traffic[index].count) > 1:
                traffic = _changed(self._best.traffic, index, count=count // 2)
                if not self._fails(replace(self._best, traffic=traffic)):
                    break

    def _cut_people(self) -> None:
        active = {shipment.sender for shipment in self._best.traffic}
        self._fails_with(senders=tuple(each for each in self._best.setup.senders if each.name in active))
        for process in self._best.setup.processes:
            fewer = tuple(each for each in self._best.setup.processes if each is not process)
            faults = tuple(fault for fault in self._best.faults if fault.process != process.name)
            senders = tuple(each for each in self._best.setup.senders if each.process != process.name)
            if fewer and len(fewer) < len(self._best.setup.processes):
                setup = replace(self._best.setup, processes=fewer, senders=senders)
                names = {each.name for each in senders}
                traffic = tuple(shipment for shipment in self._best.traffic if shipment.sender in names)
                self._fails(replace(self._best, setup=setup, faults=faults, traffic=traffic))


def _changed(parts: tuple[Any, ...], index: int, **changes: Any) -> tuple[Any, ...]:
    return (*parts[:index], replace(parts[index], **changes), *parts[index + 1 :])


_EVERY = 0.1  # s between two looks at whether Ctrl-C was pressed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed, small enough to travel between processes; the text is for people, and empty when all was
    well."""

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
    report: Report = simulate(settings)
    return Outcome(settings, report.counts, report.hours, report.to_dict(), "" if report.ok else report.text())


def campaign(runs: Sequence[Settings], *, jobs: int = 1) -> Iterator[Outcome]:
    """Simulate many settings in so many processes, 1 for this one; outcomes come as they are ready, in no order with
    several.

    Leaving early, by Ctrl-C too, ends the processes.
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
    """Block Ctrl-C, which processes that are made meanwhile inherit: it would end them with a traceback each."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return {pool.submit(outcome_of, each) for each in runs}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
