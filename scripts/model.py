#!/usr/bin/env python3
"""Search the core in small worlds: every hazard planted, and every world with the real rules.

    python scripts/model.py                writes a table
    python scripts/model.py --hazard 7     prints the stories of one hazard
    python scripts/model.py --check        compares what was found with what is kept, as `.ci/run` does
    python scripts/model.py --write        keeps what was found for docs/explanation/model.md, if all is well

Exit status: 0 when each planted hazard was found and each world is clean, and --check found no difference; 1 when not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from core_search import (
    HAZARDS,
    WORLDS,
    Check,
    Counterexample,
    Design,
    Found,
    Hazard,
    World,
    search,
    system,
)

FOUND = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "model.json"


@dataclass(frozen=True)
class Search:
    """One search and how long it took."""

    found: Found
    seconds: float


def planted(hazard: Hazard, check: Check) -> Search:
    """Look for what a naive behaviour breaks."""
    return _timed(hazard.planted(check), check)


def mended(world: World) -> Search:
    """Look for anything wrong with the real rules."""
    return _timed(Design(world), None)


def _timed(design: Design, check: Check | None) -> Search:
    began = time.monotonic()
    found = search(system(design), only=check.verdict if check else None)
    return Search(found, time.monotonic() - began)


def record(hazards: dict[tuple[int, int], Search], worlds: dict[str, Search]) -> dict[str, object]:
    """Put what was found into the form that the documents are written from: no times, which differ each time."""
    return {
        "hazards": {
            str(hazard.number): [
                _record(check, hazards[hazard.number, place].found) for place, check in _checks(hazard)
            ]
            for hazard in HAZARDS
        },
        "worlds": {
            world.name: {
                key: value for key, value in asdict(worlds[world.name].found).items() if key != "counterexample"
            }
            for world in WORLDS
        },
    }


def _checks(hazard: Hazard) -> list[tuple[int, Check]]:
    return list(enumerate(hazard.checks))


def _record(check: Check, found: Found) -> dict[str, object]:
    kept: dict[str, object] = {"world": check.world.name, "verdict": check.verdict.value, "states": found.states}
    counterexample = found.counterexample
    if counterexample is not None:
        kept |= {"story": counterexample.story, "then": counterexample.then, "again": counterexample.again}
    return kept


def story_of(counterexample: Counterexample) -> str:
    """Write a story, a line for each step."""
    lines = [f"{number:4}. {text}" for number, text in enumerate(counterexample.story, 1)]
    lines.append(f"      {counterexample.verdict}")
    if counterexample.then:
        lines += ["      what can still happen:", *(f"      - {text}" for text in counterexample.then)]
    if counterexample.again:
        lines += ["      and then, again and again:", *(f"      - {text}" for text in counterexample.again)]
    return "\n".join(lines)


def print_stories(number: int) -> int:
    """Print the stories of one hazard."""
    hazard = next(each for each in HAZARDS if each.number == number)
    print(f"{hazard.number}. {hazard.name}\nnaive: {hazard.naive.value}\nrule:  {hazard.rule} (SPEC {hazard.clauses})")
    missing = 0
    for check in hazard.checks:
        result = planted(hazard, check)
        print(f'\nIn the world "{check.world.name}", {check.world.about}:')
        missing += result.found.counterexample is None
        print(story_of(result.found.counterexample) if result.found.counterexample else "      nothing was found")
    return 1 if missing else 0


def _line(hazard: Hazard, check: Check, trial: Search, clean: Search) -> str:
    counterexample = trial.found.counterexample
    story = f"{counterexample.length} steps" if counterexample else "NOT FOUND"
    state = "clean" if clean.found.counterexample is None else "NOT CLEAN"
    return (
        f"{hazard.number:3}  {hazard.name[:58]:58}  {check.verdict:21}  {story:>9}  {trial.found.states:7}"
        f"  {check.world.name:21}  {state:>9}  {clean.found.states:7}  {trial.seconds:5.1f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Search everything, or print the stories of one hazard."""
    parser = argparse.ArgumentParser(description="search the core in small worlds")
    parser.add_argument(
        "--hazard", type=int, choices=[hazard.number for hazard in HAZARDS], metavar="N", help="a story"
    )
    parser.add_argument("--json", action="store_true", help="what was found, on stdout as JSON")
    parser.add_argument("--write", action="store_true", help="keep it in docs/explanation/model.json")
    parser.add_argument("--check", action="store_true", help="compare it with docs/explanation/model.json")
    options = parser.parse_args(arguments)
    if options.hazard is not None:
        if options.json or options.write or options.check:
            parser.error("--hazard prints a story: it can't be combined with --json, --write or --check")
        return print_stories(options.hazard)
    worlds = {}
    for world in WORLDS:
        worlds[world.name] = clean = mended(world)
        found = clean.found
        verdict = "clean" if found.counterexample is None else story_of(found.counterexample)
        line = f"{world.name:21}  {found.states:7} states  {found.edges:8} steps  {clean.seconds:5.1f} s  {verdict}"
        print(line, file=sys.stderr, flush=True)
    hazards = {(hazard.number, place): planted(hazard, check) for hazard in HAZARDS for place, check in _checks(hazard)}
    kept = record(hazards, worlds)
    if options.json:
        print(json.dumps(kept, indent=1))
    else:
        head = f"{'#':>3}  {'hazard, planted':58}  {'found as':21}  {'in':>9}  {'states':>7}"
        print(f"{head}  {'in the world':21}  {'fixed':>9}  {'states':>7}  {'s':>5}")
        for hazard in HAZARDS:
            for place, check in _checks(hazard):
                print(_line(hazard, check, hazards[hazard.number, place], worlds[check.world.name]))
    missed = sum(trial.found.counterexample is None for trial in hazards.values())
    unclean = sum(each.found.counterexample is not None for each in worlds.values())
    print(
        f"{len(hazards) - missed} of {len(hazards)} planted found in {_seconds(hazards)}; "
        f"{len(worlds) - unclean} of {len(worlds)} worlds clean in {_seconds(worlds)}",
        file=sys.stderr,
    )
    if missed or unclean:
        return 1
    if options.check and json.loads(json.dumps(kept)) != json.loads(FOUND.read_text(encoding="utf-8")):
        print(f"{FOUND.name} holds other numbers or stories: run scripts/model.py --write", file=sys.stderr)
        return 1
    if options.write:
        FOUND.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {FOUND.name}; now run scripts/generate_docs.py", file=sys.stderr)
    return 0


def _seconds(searches: Mapping[Any, Search]) -> str:
    return f"{sum(each.seconds for each in searches.values()):.1f} s"


if __name__ == "__main__":
    sys.exit(main())
