"""All tables of a made journal by Spark, as `pairmq pipeline run` makes them, beside the same questions put to DuckDB.

The two run by turns in one program, on the same files and the same number of cores. Spark is measured with a session
that has run once, and its start apart. The peak is that of Java's process, as the kernel counts it. Beside the time on
the clock stands the processors' time, Java's and Python's, which a machine that others use too changes less. After each
round every verdict of Spark's is compared with the truth, which the maker of the journal wrote beside it.

DuckDB has the best of it: one scan into a narrow table, messages grouped by their hash. It answers the same questions,
but for percentiles by histogram, causes and peaks of outages, and files that can't be read.

Sail, which speaks Spark Connect, makes the same tables once, in a process of its own: add --sail build/sail/bin/python,
the Python of an environment that "make build/sail" makes.

Run it with: make bench-one NAME=pipeline_speed ARGS="--events 10000000", or for the curve of several sizes with:
make bench ARGS="--only pipeline_growth"
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from pairmq.pipeline import run
from pairmq.pipeline.batch import sized
from pairmq.pipeline.journal_io import look_over
from pairmq.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests" / "support")]
from journal_generator import FAULTS, Plan, generate  # noqa: E402

import duck  # noqa: E402  # the tests' own queries

SAIL = Path(__file__).parents[1] / "tests" / "support" / "sail_program.py"
PLANTED = 100  # messages of each kind of fault
DENSE = 1_000_000  # events; in a smaller journal of a day, a message that comes late may have no other to be behind of


def make(folder: Path, events: int) -> None:
    """Make a journal, and the truth."""
    faults = dict.fromkeys(FAULTS, PLANTED if events >= DENSE else 0)
    generate(folder, Plan(events=events, hours=max(24.0, events / 500_000), faults=faults))


def by_duckdb(journal: Path, out: Path, cores: int) -> None:
    """Have DuckDB write its answers."""
    files = [str(path) for path in sorted(journal.rglob("*.parquet"))]
    # Here no row is there twice, and the Spark side knows that from the files' footers.
    with duck.opened(files, patience=300.0, at_once=True, config={"threads": cores}) as connection:
        for number, query in enumerate(duck.TABLES):
            text = query.format(patience=300.0)
            connection.sql(f"COPY ({text}) TO '{out / str(number)}.parquet' (COMPRESSION zstd)")


def wrong_verdicts(folder: Path, tables: str = "tables") -> int:
    """How many messages have another verdict than the truth."""
    truth = duckdb.read_parquet(f"{folder}/truth/*.parquet").set_alias("truth")
    judged = duckdb.read_parquet(f"{folder}/{tables}/reconciliation/*.parquet").set_alias("judged")
    both = truth.join(judged, "truth.message_id = judged.message_id", how="outer")
    return len(both.filter("truth.verdict IS DISTINCT FROM judged.verdict"))


def java() -> Path:
    """Where the kernel describes this process's Java."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if fields["Name"].strip() == "java" and int(fields["PPid"]) == os.getpid():
            return entry
    raise RuntimeError("no Java runs below this process")


def peak(process: Path) -> float:
    """GiB that a process has had in memory at most."""
    (line,) = (line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20


def processor_time(java: Path) -> float:
    """Seconds of processors that Java and this process have used."""
    fields = (java / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()


def measure(folder: Path, cores: int, rounds: int) -> dict[str, float]:
    """One journal, some rounds of both; without a round, Spark alone, once."""
    contents = look_over(folder / "journal")
    rows = sum(segment.rows for segment in contents.segments)
    began = time.perf_counter()
    with session(cores=cores, settings=sized(contents, cores)) as spark:
        started, jvm = time.perf_counter() - began, java()
        cold = by_spark(folder, spark, jvm)
        times: dict[str, list[tuple[float, float]]] = {"spark": [], "duckdb": []}
        (folder / "duck").mkdir(exist_ok=True)
        for _ in range(rounds):
            began, used = time.perf_counter(), time.process_time()
            by_duckdb(folder / "journal", folder / "duck", cores)
            times["duckdb"].append((time.perf_counter() - began, time.process_time() - used))
            times["spark"].append(by_spark(folder, spark, jvm)[:2])
        most = peak(jvm)
    found = {"rows": rows, "cores": cores, "start": started, "cold": cold[0], "cold processors": cold[1]}
    found["cold microseconds a row"] = cold[1] / rows * 1e6
    for name, values in times.items():
        if values:
            for what, each in zip((name, f"{name} processors"), zip(*values, strict=True), strict=True):
                found |= {what: statistics.median(each), f"{what} least": min(each), f"{what} most": max(each)}
            found[f"{name} microseconds a row"] = found[f"{name} processors"] / rows * 1e6
    if rounds:
        found["ratio"] = found["spark"] / found["duckdb"]
        found["ratio of processors"] = found["spark processors"] / found["duckdb processors"]
    return {**found, "peak GiB": most, "peak GiB of Python": cold[2]}


def by_spark(folder: Path, spark: SparkSession, jvm: Path) -> tuple[float, float, float]:
    """Have Spark make all tables, and compare them with the truth.

    Gives seconds, those of processors, and the GiB that Python has had at most meanwhile.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    began, used = time.perf_counter(), processor_time(jvm)
    run(folder / "journal", folder / "tables", spark=spark)
    took = time.perf_counter() - began, processor_time(jvm) - used, peak(Path("/proc/self"))
    wrong = wrong_verdicts(folder)
    if wrong:
        raise RuntimeError(f"{wrong} verdicts are not the truth")
    return took


def by_sail(folder: Path, python: Path) -> dict[str, float]:
    """Have Sail make all tables, and compare them with the truth."""
    command = [python, SAIL, folder / "journal", folder / "sail"]
    program = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  # ours
    found = json.loads(program.stdout.splitlines()[-1])
    if wrong := wrong_verdicts(folder, "sail"):
        raise RuntimeError(f"{wrong} of Sail's verdicts are not the truth")
    used = found["seconds"]
    return {
        "sail processors": used,
        "sail microseconds a row": used / found["rows"] * 1e6,
        "sail peak GiB": found["peak_kib"] / 2**20,
    }


CURVES = {
    "rows, first run of a session": "cold microseconds a row",
    "rows, later runs": "spark microseconds a row",
    "rows, DuckDB": "duckdb microseconds a row",
}


def curves(runs: list[dict[str, float]]) -> dict[str, dict[str, dict[str, float]]]:
    """How what a row costs changes with the size of the journal."""
    found = {
        title: {f"{run['rows']}": dict.fromkeys(("median", "min", "max"), run[what]) for run in runs if what in run}
        for title, what in CURVES.items()
    }
    return {title: settings for title, settings in found.items() if settings}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000], help="of each journal")
    parser.add_argument("--cores", type=int, nargs="+", default=[2])
    parser.add_argument("--folder", type=Path, help="where the journal is, or is made, and stays")
    parser.add_argument(
        "--rounds", type=int, default=3, help="0: Spark alone, for journals that DuckDB has no memory for"
    )
    parser.add_argument("--sail", type=Path, help="a Python that has Sail")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runs = []
    for events in arguments.events:
        with contextlib.ExitStack() as stack:
            folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if not (folder / "journal").is_dir():
                make(folder, events)
            sail = by_sail(folder, arguments.sail) if arguments.sail else {}
            for cores in arguments.cores:
                runs.append(measure(folder, cores, arguments.rounds) | sail)
                if not arguments.json:
                    print(", ".join(f"{name} {value:,.2f}" for name, value in runs[-1].items()))
    if arguments.json:
        print(json.dumps({"unit": "microseconds a row", "curves": curves(runs), "runs": runs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
