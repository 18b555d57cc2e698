"""All tables of a made journal by Spark, as `pairmq pipeline run` makes them, beside the same questions put to DuckDB.

The two run by turns in one program, on the same files and the same number of cores. Spark is measured with a session
that has run once, and its start apart. The peak is that of Java's process, as the kernel counts it.

Run it with: make bench-pipeline ARGS="--events 10000000"
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from pairmq.pipeline import run
from pairmq.pipeline.session import session

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests" / "pipeline")]
import duck  # noqa: E402  # the tests' own queries
from journal_generator import Plan, generate  # noqa: E402

QUERIES = (duck.VERDICTS, duck.EPISODES, duck.AVAILABILITY, duck.BACKLOG, duck.SYPHON, duck.COST, duck.ROTATION)


def by_duckdb(journal: Path, out: Path, cores: int) -> float:
    """Seconds that DuckDB takes to write its answers."""
    began = time.perf_counter()
    connection = duckdb.connect(config={"threads": cores})
    rows = duck.ROWS.format(journal=[str(path) for path in sorted(journal.rglob("*.parquet"))])
    # Here no row is there twice, and the Spark side knows that from the files' footers.
    rows = rows.replace("row_number() OVER (PARTITION BY process, seq) AS copy", "1 AS copy")
    for number, query in enumerate(QUERIES):
        text = query.format(rows=rows, late=duck.LATE_AT_ONCE, patience=300.0)
        connection.sql(f"COPY ({text}) TO '{out / str(number)}.parquet' (COMPRESSION zstd)")
    connection.close()
    return time.perf_counter() - began


def peak_of_java() -> float:
    """GiB that this process's Java has had in memory at most."""
    most = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if fields["Name"].strip() == "java" and int(fields["PPid"]) == os.getpid():
            most = max(most, int(fields["VmHWM"].split()[0]))
    return most / 2**20


def measure(events: int, cores: int, rounds: int, folder: Path) -> dict[str, float]:
    """One journal, some rounds of both."""
    made = generate(folder, Plan(events=events, hours=max(24.0, events / 500_000)))
    began = time.perf_counter()
    with session(cores=cores) as spark:
        started = time.perf_counter() - began
        began = time.perf_counter()
        run(folder / "journal", folder / "tables", spark=spark)
        cold = time.perf_counter() - began
        warm, duck_times = [], []
        (folder / "duck").mkdir()
        for _ in range(rounds):
            duck_times.append(by_duckdb(folder / "journal", folder / "duck", cores))
            began = time.perf_counter()
            run(folder / "journal", folder / "tables", spark=spark)
            warm.append(time.perf_counter() - began)
        peak = peak_of_java()
    spark_time, duck_time = statistics.median(warm), statistics.median(duck_times)
    return {
        "events": made["rows"],
        "cores": cores,
        "start": started,
        "cold": cold,
        "spark": spark_time,
        "duckdb": duck_time,
        "ratio": spark_time / duck_time,
        "microseconds an event": spark_time / made["rows"] * 1e6,
        "peak GiB": peak,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for cores in arguments.cores:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(arguments.events, cores, arguments.rounds, Path(folder))
        if arguments.json:
            print(json.dumps(found))
        else:
            print(", ".join(f"{name} {value:,.2f}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
