"""Test the tests: plant bugs in a copy of the source, one at a time, and see whether the simulation or a test finds it.

Run it with: .venv/bin/python scripts/mutants.py [--seeds 100] [--hours 1] [--jobs 2] [--first] [--state FILE]
[--only NAME ...]
With --first only tests of the first tier look for them, those of the simulation too, in the hours that it simulates.
With --state each result is kept in a file, and the same command goes on where it was stopped; delete the file after a
change of the source.
Exit status: 0 when all of them were found, 1 when not, 130 for Ctrl-C. The bugs themselves are in `planted`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planted import MUTANTS, Mutant
from planted.mutant import ROOT

LIMIT = 1800  # s for one mutant

# What runs in each copy: seeds until one fails, safety and liveness in turn. Not `simulate`, which runs a seed that
# fails once more, for a story that is not read here.
CHILD = """
import json, sys
from pairmq.testing.simulator import Settings
from pairmq.testing.simulator._generate import scenario_of
from pairmq.testing.simulator._judge import judged
from pairmq.testing.simulator._world import World
for seed in range(int(sys.argv[1])):
    mode = "liveness" if seed % 2 else "safety"
    settings = Settings(seed=seed, hours=float(sys.argv[2]), mode=mode, ordering=sys.argv[3])
    first = next(iter(judged(World(scenario_of(settings)).run())), None)
    if first is not None:
        print(json.dumps({"by": f"seed {seed}, {first.verdict.value}", "text": first.text}))
        break
"""
# As `make test` runs it, with the tests of whatever tier they are.
PYTEST = [
    "-m",
    "pytest",
    "-q",
    "-x",
    "-c",
    str(ROOT / "pyproject.toml"),
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
    f"--ignore={ROOT / 'tests/core/test_docs.py'}",  # it compares pages with the code: it finds any change
]
FIRST = (
    "tests/core",
    "tests/runner",
    "tests/pair",
    "tests/simulator",
    "tests/testing/test_machine.py",
    "tests/hostile",
)
"""What of the first tier looks for those that the simulation has to find otherwise: one after the other."""
TESTS_FAILED = 1  # pytest's exit status
FAILED = re.compile(r"^FAILED \S*?([^/\s]+\.py::.*?)(?: - (.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Found:
    """What came of one mutant: what found it, if anything did, and in which words."""

    mutant: Mutant
    by: str | None
    text: str
    seconds: float


def hunt(mutant: Mutant, seeds: int, hours: float, first: bool = False) -> Found:
    """Plant one bug in a copy of the source and let those look for it who have to find it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pairmq-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(mutant.source, copy)  # with what is compiled, but of what is planted
        (copy / mutant.place).write_text(mutant.planted(), "utf-8")
        try:
            if mutant.tests:
                by, text = _tested(mutant.tests, copy, first)
            elif first:
                by, text = _tested_by_rooms(mutant, copy)
            else:
                by, text = _simulated(mutant, copy, seeds, hours)
        except subprocess.TimeoutExpired:
            by, text = None, f"no end within {LIMIT} s"
    return Found(mutant, by, text, time.monotonic() - began)


def _simulated(mutant: Mutant, copy: Path, seeds: int, hours: float) -> tuple[str | None, str]:
    ended = _run(copy, ["-c", CHILD, str(seeds), str(hours), mutant.ordering])
    if ended.returncode:
        return None, f"it does not run: {_last_line(ended)}"
    if not ended.stdout.strip():
        return None, f"not within {seeds} seeds"
    result = json.loads(ended.stdout)
    return result["by"], result["text"]


def _tested_by_rooms(mutant: Mutant, copy: Path) -> tuple[str | None, str]:
    """Ask the nearest tests first: most are found there, and to import all others takes far longer."""
    place = Path(mutant.file)
    room = place.parts[2]
    namesakes = sorted(ROOT.glob(f"tests/{room}/test_{place.stem.removeprefix('_')}*.py"))
    rooms = sorted(FIRST, key=lambda folder: room not in folder)
    for tests in ([str(path.relative_to(ROOT)) for path in namesakes], *([each] for each in rooms)):
        by, text = _tested(tests, copy, first=True) if tests else (None, "")
        if by:
            break
    return by, text


def _tested(tests: Sequence[str], copy: Path, first: bool) -> tuple[str | None, str]:
    more = ["--tier", "first"] if first else []
    # All tiers draw four times the examples of the first one.
    ended = _run(copy, [*PYTEST, *more, *(str(ROOT / test) for test in tests)], look="0.25" if first else "1")
    failed = FAILED.search(ended.stdout)
    if ended.returncode == TESTS_FAILED and failed:
        return failed[1], failed[2] or ""
    return None, _last_line(ended)


def _last_line(ended: subprocess.CompletedProcess[str]) -> str:
    lines = (ended.stdout + ended.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit status {ended.returncode}"


def _run(copy: Path, arguments: Sequence[str], look: str = "1") -> subprocess.CompletedProcess[str]:
    """Run Python with the copy in place of what is installed; what it writes beside it goes with the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "PAIRMQ_TEST_LOOK": look}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=copy.parent
    )


def _kept(state: Path | None) -> dict[str, tuple[str | None, str, float]]:
    """The results that an earlier run kept, by name."""
    if state is None or not state.exists():
        return {}
    return {name: (by, text, seconds) for name, by, text, seconds in map(json.loads, state.read_text().splitlines())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt all of them, and print a table."""
    parser = argparse.ArgumentParser(description="plant bugs, and see whether the simulation or a test finds each")
    parser.add_argument("--seeds", type=int, default=100, help="seeds for each that the simulation has to find (100)")
    parser.add_argument("--hours", type=float, default=1.0, help="virtual hours a seed (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    parser.add_argument("--first", action="store_true", help="by tests of the first tier alone")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--json", action="store_true", help="results on stdout as JSON")
    parser.add_argument("--state", type=Path, help="keep results in this file, and hunt only what is not in it")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not options.only or any(part in each.name for part in options.only)]
    kept = _kept(options.state)
    results = [Found(each, *kept[each.name]) for each in chosen if each.name in kept]
    if results:
        print(f"{len(results)} results are in {options.state}", file=sys.stderr)
    left = [each for each in chosen if each.name not in kept]
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    try:
        for found in pool.map(lambda mutant: hunt(mutant, options.seeds, options.hours, options.first), left):
            results.append(found)
            by = f"found by {found.by}" if found.by else f"NOT FOUND: {found.text}"
            print(f"{found.seconds:5.0f} s  {found.mutant.name}: {by}", file=sys.stderr, flush=True)
            if options.state:
                with options.state.open("a") as file:
                    print(json.dumps([found.mutant.name, found.by, found.text, found.seconds]), file=file)
    except KeyboardInterrupt:  # those that run have got it as well
        return 130
    finally:
        pool.shutdown(cancel_futures=True)
    if options.json:
        outcomes = [
            {"name": each.mutant.name, "by": each.by, "text": each.text, "seconds": each.seconds} for each in results
        ]
        print(json.dumps(outcomes, indent=1))
    missed = sum(found.by is None for found in results)
    print(f"{len(results)} planted, {missed} not found", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
