"""Simulations from a seed, from a scenario, and cut down to what still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from pairmq.testing.judge import waits_of
from pairmq.testing.simulator._generate import scenario_of
from pairmq.testing.simulator._judge import judged
from pairmq.testing.simulator._report import TAIL, Report, counted, story_of
from pairmq.testing.simulator._scenario import Scenario, Settings, Setup
from pairmq.testing.simulator._world import World

T = TypeVar("T")


def simulate(settings: Settings) -> Report:
    """Simulate what some settings ask for.

    The same settings give the same report in every process, and with ``trace`` the same trace, byte by byte.

    Args:
        settings: seed, hours, mode and faults.

    Returns:
        What was found; a failed simulation is a report with violations, never an exception.
    """
    return replay(scenario_of(settings), trace=settings.trace)


def replay(scenario: Scenario, *, trace: bool = False) -> Report:
    """Simulate a scenario.

    Args:
        scenario: made by `scenario_of`, read from a file, or by hand.
        trace: keep the whole trace in the report.

    Returns:
        As `simulate`.
    """
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
    """Cut a scenario that fails down to a small one that still fails in the same way.

    First its end, then its faults, then its sends, then its senders and processes, each in halves, quarters and so on.

    Args:
        scenario: one with violations.
        most_runs: simulations to spend at most.
        progress: called with the number of runs and the smallest scenario so far.

    Returns:
        The smallest one found; the scenario itself if it does not fail.
    """
    return _Shrinker(scenario, most_runs, progress).run()


class _Shrinker:
    def __init__(self, scenario: Scenario, most_runs: int, progress: Callable[[int, Scenario], None] | None) -> None:
        self._best = scenario
        self._left = most_runs
        self._runs = 0
        self._progress = progress
        first = self._first(scenario)
        self._wanted = None if first is None else first[0]

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

    def _first(self, scenario: Scenario) -> tuple[Any, float] | None:
        """The first violation's verdict and instant; of the wanted verdict, once that is known."""
        self._runs += 1
        self._left -= 1
        wanted = getattr(self, "_wanted", None)
        for violation in judged(World(scenario).run()):
            if wanted is None or violation.verdict is wanted:
                return violation.verdict, violation.at
        return None

    def _fails(self, scenario: Scenario) -> bool:
        if self._left <= 0 or self._first(scenario) is None:
            return False
        self._best = scenario
        if self._progress is not None:
            self._progress(self._runs, scenario)
        return True

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
                self._fails(replace(self._best, setup=replace(self._best.setup, **{name: plain[name]})))
        for index in range(len(self._best.setup.processes)):
            for name in self._best.setup.processes[index].own_options:
                plans = list(self._best.setup.processes)
                plans[index] = replace(plans[index], **{name: None})  # type: ignore[arg-type]
                self._fails(replace(self._best, setup=replace(self._best.setup, processes=tuple(plans))))
        for index in range(len(self._best.traffic)):
            smaller = True
            while smaller and (count := self._best.traffic[index].count) > 1:
                shipments = list(self._best.traffic)
                shipments[index] = replace(shipments[index], count=count // 2)
                smaller = self._fails(replace(self._best, traffic=tuple(shipments)))

    def _cut_people(self) -> None:
        setup = self._best.setup
        active = {shipment.sender for shipment in self._best.traffic}
        quiet = replace(setup, senders=tuple(each for each in setup.senders if each.name in active))
        self._fails(replace(self._best, setup=quiet))
        for process in self._best.setup.processes:
            fewer = tuple(each for each in self._best.setup.processes if each is not process)
            faults = tuple(fault for fault in self._best.faults if fault.process != process.name)
            senders = tuple(each for each in self._best.setup.senders if each.process != process.name)
            if fewer and len(fewer) < len(self._best.setup.processes):
                setup = replace(self._best.setup, processes=fewer, senders=senders)
                names = {each.name for each in senders}
                traffic = tuple(shipment for shipment in self._best.traffic if shipment.sender in names)
                self._fails(replace(self._best, setup=setup, faults=faults, traffic=traffic))
