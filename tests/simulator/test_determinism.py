"""One seed, one trace, wherever it runs."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys

import pytest

from pairmq.testing.simulator import Settings, replay, scenario_of, simulate

PROGRAM = """
import hashlib
from pairmq.testing.simulator import Settings, simulate
for seed in (3, 8):
    report = simulate(Settings(seed=seed, hours=0.05, mode="liveness", trace=True))
    print(seed, len(report.trace), hashlib.sha256("\\n".join(report.trace).encode()).hexdigest())
"""


def digest(lines: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("mode", ["safety", "liveness"])
def test_a_seed_gives_the_same_trace_again(mode):
    settings = Settings(seed=5, hours=0.1, mode=mode, trace=True)
    first, second = simulate(settings), simulate(settings)
    assert len(first.trace) > 1000
    assert digest(first.trace) == digest(second.trace)
    assert first == second


@pytest.mark.search  # two programs
def test_a_seed_gives_the_same_trace_in_every_process():
    seen = set()
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PROGRAM]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=180)
        seen.add(ended.stdout)
    assert len(seen) == 1, seen


def test_watching_changes_nothing():
    settings = Settings(seed=11, hours=0.2)
    silent, watched = replay(scenario_of(settings)), replay(scenario_of(settings), trace=True)
    assert (silent.counts, silent.hours, silent.violations) == (watched.counts, watched.hours, watched.violations)


def test_what_ran_before_changes_nothing():
    """Whatever one simulation leaves to the garbage collector must not run in the middle of another."""
    seen: dict[int, set[str]] = {}
    thresholds = gc.get_threshold()
    try:
        for order, often in ((range(4), 5000), ((3, 1, 0, 2), 40)):
            gc.set_threshold(often, 5, 5)
            for seed in order:
                trace = simulate(Settings(seed=seed, hours=0.05, trace=True)).trace
                seen.setdefault(seed, set()).add(digest(trace))
    finally:
        gc.set_threshold(*thresholds)
    assert all(len(digests) == 1 for digests in seen.values())
    assert len(set().union(*seen.values())) == 4, "other seeds give other traces"
