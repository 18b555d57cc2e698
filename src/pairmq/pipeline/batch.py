"""One run: a journal in, tables out, each put in place whole."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from pairmq.model import ConfigurationError, Price
from pairmq.model.events import JournalClosed
from pairmq.pipeline import transforms
from pairmq.pipeline._swap import put_in_place
from pairmq.pipeline.journal_io import Contents, damaged, look_over, read_rows, spark_path
from pairmq.pipeline.report import Report
from pairmq.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE = 300.0
"""Seconds by which others of its queue may overtake a message before it counts as lost, unless told otherwise."""

RUN_FILE = "run.json"

_DAY = 86_400.0  # s
_NAMED = 20  # messages of each fault in the report
_WORK = "_work-"  # readers leave out names that begin with an underscore
_LOCK = "_lock"

Progress = Callable[[str, int, int], None]


def run(
    journal: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    cores: int | None = None,
    prices: Mapping[str, Price] | None = None,
    patience: float = PATIENCE,
    progress: Progress | None = None,
) -> Report:
    """Make all tables of a journal.

    Args:
        journal: the directory that processes keep it in; they may be writing.
        out: the directory of the tables, made where it is missing; each table is a directory of Parquet files in it.
        spark: a session to work in; a local one when left out, or the one that is active.
        cores: of a local session; all when left out.
        prices: of ``primary`` and ``secondary``.
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost.
        progress: told the name of each table before it is made, its number from 0, and how many there are.

    Returns:
        What was found, as ``run.json`` in ``out`` has it.

    Raises:
        PipelineUnavailable: PySpark or Java is missing.
        ConfigurationError: a directory can't be used, or another run is writing there.

    Interrupted, it leaves every table of ``out`` as the old or the new run made it, whole in either case.
    """
    if not patience >= 0:
        raise ConfigurationError(f"patience is {patience!r}: it must be 0 seconds or more")
    began = time.monotonic()
    contents = look_over(journal)
    with _work_folder(Path(out)) as work, session(spark, cores=cores) as mine:
        job = _Job(mine, work, dict(prices or {}), patience, progress or (lambda *_: None))
        try:
            facts = job.make(contents)
        except (PySparkException, Py4JJavaError):
            # Footers may be sound where pages are not: only now is it worth reading everything to see which.
            bad = damaged(contents)
            if not bad:
                raise
            contents = contents.without(bad)
            facts = job.make(contents)
        report = Report(
            version=importlib.metadata.version("pairmq"),
            spark=mine.version,
            patience=patience,
            segments=len(contents.segments),
            bad=contents.bad,
            seconds=time.monotonic() - began,
            **facts,
        )
        for table in transforms.TABLES:
            put_in_place(work / table.name, Path(out, table.name))
        written = work / RUN_FILE
        written.write_text(json.dumps(report.to_dict(), indent=1) + "\n", "utf-8")
        written.replace(Path(out, RUN_FILE))
    return report


@dataclass(frozen=True, slots=True)
class _Job:
    """What one run needs to make its tables."""

    spark: SparkSession
    work: Path
    prices: Mapping[str, Price]
    patience: float
    progress: Progress

    def make(self, contents: Contents) -> dict[str, Any]:
        """Write all tables into the work folder; gives what the report says of them."""
        rows = read_rows(self.spark, contents)
        reconciled = self.work / transforms.RECONCILIATION.name
        patience = self.patience

        def judged() -> DataFrame:
            # Written first, and read back: two more tables are made of it.
            return self.spark.read.schema(transforms.RECONCILIATION.schema).parquet(spark_path(reconciled))

        makers: dict[str, Callable[[], DataFrame]] = {
            "reconciliation": lambda: transforms.reconciliation(
                self._kept("evidence", transforms.evidence(rows)),
                self._kept("holes", self._holes(rows, contents)),
                rows,
                patience=patience,
            ),
            "episodes": lambda: transforms.episodes(rows, patience=patience),
            "availability": lambda: transforms.availability(rows),
            "backlog": lambda: transforms.backlog(rows),
            "syphon": lambda: transforms.syphon(rows),
            "rotation": lambda: transforms.rotation(rows),
            "order": lambda: transforms.order(judged(), rows),
            "cost": lambda: transforms.cost(
                rows, primary=self.prices.get("primary"), secondary=self.prices.get("secondary")
            ),
            "observation": lambda: transforms.observation(judged(), rows),
            "processes": lambda: transforms.processes(rows, patience=patience),
        }
        counts = {}
        for number, table in enumerate(transforms.TABLES):
            self.progress(table.name, number, len(transforms.TABLES))
            target = self.work / table.name
            makers[table.name]().write.mode("overwrite").option("compression", "zstd").parquet(spark_path(target))
            counts[table.name] = sum(pq.read_metadata(path).num_rows for path in target.glob("*.parquet"))
        return {"tables": counts, **self._facts(judged())}

    def _holes(self, rows: DataFrame, contents: Contents) -> DataFrame:
        """The journal's holes, and the days of the segments that are not read."""
        found = transforms.holes(rows, patience=self.patience)
        suspects = {bad.process for bad in contents.bad if bad.process is not None}
        if not suspects:
            return found
        told = rows.filter(F.col("process").isin(sorted(suspects))).groupBy("process")
        whole = told.agg((F.max("seq") + 1 == F.count("*")) & F.bool_or(F.col("kind") == JournalClosed.__name__))
        # Of a process that began, ended and lacks nothing in between, the bad file was a copy.
        missed = suspects - {process for process, complete in whole.collect() if complete}
        first, last = rows.agg(F.min("at"), F.max("at")).collect()[0]
        spans = []
        for bad in contents.bad:
            if bad.process in missed and first is not None:
                began = first if bad.day is None else bad.day.timestamp()
                spans.append((began, last if bad.day is None else began + _DAY))
        return found.unionByName(self.spark.createDataFrame(spans, found.schema)) if spans else found

    def _kept(self, name: str, frame: DataFrame) -> DataFrame:
        """Write down what is read several times; Spark would compute it each time anew."""
        path = spark_path(self.work / f"_{name}")
        frame.write.mode("overwrite").option("compression", "snappy").parquet(path)
        return self.spark.read.schema(frame.schema).parquet(path)

    def _facts(self, judged: DataFrame) -> dict[str, Any]:
        verdicts = {row["verdict"]: row["count"] for row in judged.groupBy("verdict").count().collect()}
        faults = {}
        for verdict in transforms.FAULTS:
            if verdicts.get(verdict.value):
                first = judged.filter(F.col("verdict") == verdict.value).orderBy("first_sent_at", "message_id")
                named = first.select("pair", "entity", "message_id").limit(_NAMED).collect()
                faults[verdict.value] = [tuple(row) for row in named]
        table = transforms.PROCESSES
        told = self.spark.read.schema(table.schema).parquet(spark_path(self.work / table.name))
        summed = told.agg(
            F.coalesce(F.sum("rows"), F.lit(0)),
            F.coalesce(F.sum("missing"), F.lit(0)),
            F.coalesce(F.sum("dropped"), F.lit(0)),
            F.unix_micros(F.min("first_at")) / 1_000_000,
            F.unix_micros(F.max("last_at")) / 1_000_000,
        ).collect()[0]
        names = ("rows", "missing", "dropped", "first_at", "last_at")
        ended = {row["ended"]: row["count"] for row in told.groupBy("ended").count().collect()}
        return {**dict(zip(names, summed, strict=True)), "processes": ended, "verdicts": verdicts, "faults": faults}


@contextlib.contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """Give a folder to write in, on the file system of the tables; deleted in the end, with those of killed runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(f"can't write tables to {out}: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(f"another run is writing tables to {out}") from None
        for left in out.glob(f"{_WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        work = out / f"{_WORK}{secrets.token_hex(4)}"
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(lock)
