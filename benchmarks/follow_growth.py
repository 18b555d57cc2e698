"""What a refresh of `pairmq pipeline run --follow` costs as the journal grows, beside a run that makes the tables anew.

The journal has a day at a constant rate, with outages and faults, and arrives in time. At some hours of it the follower
takes what the last minutes have brought; before that, in another refresh, all that came earlier. Processor time, Java's
and Python's, which a machine that others use too changes less than time on the clock. In the end both must have the
same tables.

Run it with: make bench-one NAME=follow_growth ARGS="--events 1000000"
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from journal_generator import FAULTS, ROWS_A_MESSAGE, START, Plan, generate
from pipeline_speed import java, processor_time

from pairmq.pipeline import run
from pairmq.pipeline.follow import follow
from pairmq.pipeline.session import session
from pairmq.pipeline.transforms import TABLES

LAST = 5  # minutes whose rows a measured refresh takes
HOURS = (1, 3, 6, 12, 18, 24)


def make(folder: Path, events: int) -> None:
    """Make a journal with a segment of each process for every five minutes."""
    pieces = 24 * 60 // LAST
    plan = Plan(events=events, faults=dict.fromkeys(FAULTS, 20), at_once=int(events / ROWS_A_MESSAGE / pieces) + 1)
    generate(folder, plan)
    (folder / "journal").rename(folder / "written")


def arrive(folder: Path, until: float) -> int:
    """Put the segments in place that were ended by an instant; gives how many rows these have."""
    rows = 0
    for path in sorted((folder / "written").rglob("*.parquet")):
        at = pq.read_table(path, columns=["at"], partitioning=None)["at"]
        if pc.max(at).as_py() <= until:
            there = folder / "journal" / path.relative_to(folder / "written")
            there.parent.mkdir(parents=True, exist_ok=True)
            path.rename(there)
            rows += len(at)
    return rows


def different(one: Path, other: Path) -> list[str]:
    """The tables that are not the same, but for the last digits of numbers."""
    found = []
    for table in TABLES:
        files = [f"read_parquet('{folder / table.name}/*.parquet', union_by_name=true)" for folder in (one, other)]
        columns = ", ".join(
            f'round("{name}", 6)' if str(type_) == "DOUBLE" else f'"{name}"'
            for name, type_, *_ in duckdb.sql(f"DESCRIBE SELECT * FROM {files[0]}").fetchall()  # noqa: S608  # ours
        )
        ours, theirs = (f"SELECT {columns} FROM {each}" for each in files)  # noqa: S608  # likewise
        if duckdb.sql(f"({ours} EXCEPT ALL {theirs}) UNION ALL ({theirs} EXCEPT ALL {ours}) LIMIT 1").fetchall():
            found.append(table.name)
    return found


def measure(folder: Path, hours: tuple[int, ...]) -> list[dict[str, float]]:
    """The processor time of both at some hours, and the time on the clock."""
    found = []
    (folder / "journal").mkdir(exist_ok=True)
    with session() as spark:
        jvm = java()

        def timed(what: object) -> tuple[float, float]:
            began, used = time.perf_counter(), processor_time(jvm)
            what()  # type: ignore[operator]
            return processor_time(jvm) - used, time.perf_counter() - began

        def look() -> None:
            follow(folder / "journal", folder / "tables", spark=spark, once=True)

        def whole() -> None:
            run(folder / "journal", folder / "anew", spark=spark)

        total = 0
        for hour in hours:
            until = START + hour * 3600.0
            total += arrive(folder, until - LAST * 60)
            look()
            total += (new := arrive(folder, until + 120 if hour < max(hours) else float("inf")))
            ours, clock = timed(look)
            theirs, their_clock = timed(whole)
            found.append(
                {
                    "hours": hour,
                    "rows": total,
                    "new rows": new,
                    "refresh": ours,
                    "refresh on the clock": clock,
                    "run": theirs,
                    "run on the clock": their_clock,
                }
            )
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    if wrong := different(folder / "tables", folder / "anew"):
        raise RuntimeError(f"not the same: {wrong}")
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="rows of the day")
    parser.add_argument("--hours", type=int, nargs="+", default=HOURS, help="at which both are measured")
    parser.add_argument("--rounds", type=int, default=1, help="journals, one after the other")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines: dict[str, dict[str, list[float]]] = {"a refresh": {}, "a run of the whole journal": {}}
    for _ in range(arguments.rounds):
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make(folder, arguments.events)
            for each in measure(folder, tuple(arguments.hours)):
                for name, what in zip(lines, ("refresh", "run"), strict=True):
                    lines[name].setdefault(f"{each['hours']:g}", []).append(each[what])
    curves = {
        name: {
            hours: {"median": sorted(values)[len(values) // 2], "min": min(values), "max": max(values)}
            for hours, values in of.items()
        }
        for name, of in lines.items()
    }
    if arguments.json:
        unit = "seconds of processor time"
        over = f"hours of the journal, at {arguments.events / 86_400:,.1f} rows a second"
        print(json.dumps({"unit": unit, "over": over, "ours": ["a refresh"], "lines": curves}))
    else:
        for name, of in curves.items():
            print(name, ", ".join(f"{hours} h {values['median']:.1f} s" for hours, values in of.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
