"""The table ``processes``: which runs of which programs kept the journal, what of it is missing, and how each ended."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import EventsDropped, JournalClosed, JournalOpened
from pairmq.pipeline.transforms._fact import COUNT, NUMBER, TEXT, Measure, digest
from pairmq.pipeline.transforms._rows import MINUTE, how_many, of_kind, start_of
from pairmq.pipeline.transforms._table import Field, Table

MINUTES = digest(
    "minutes",
    lambda rows: rows.select("process", start_of(MINUTE).alias("minute"), "seq", "at"),
    {"process": TEXT, "minute": COUNT},
    {
        "rows": Measure(COUNT, "sum", lambda: F.lit(1)),
        "first_seq": Measure(COUNT, "min", lambda: F.col("seq")),
        "last_seq": Measure(COUNT, "max", lambda: F.col("seq")),
        "first_at": Measure(NUMBER, "min", lambda: F.col("at")),
        "last_at": Measure(NUMBER, "max", lambda: F.col("at")),
    },
)
"""Rows of each process and minute: small, whatever the journal's size, and enough to find every gap."""

PROCESSES = Table(
    "processes",
    "a run of a program that kept a journal",
    (
        Field("process", "text", "the run's name"),
        Field("host", "text", "the machine"),
        Field("pid", "count", "the process's number there"),
        Field("version", "text", "PairMQ's"),
        Field("sample_healthy", "number", "the part of healthy sends that it kept, 0 to 1"),
        Field("first_at", "instant", "its first row"),
        Field("last_at", "instant", "its last row"),
        Field("rows", "count", "rows in the journal"),
        Field("missing", "count", "rows between its first and its last that are not in the journal"),
        Field("dropped", "count", "events that it could not write, as it says itself"),
        Field(
            "ended",
            "text",
            "`closed`: in good order; `killed`: without a word, and the journal goes on; `open`: it may be running",
        ),
    ),
)


def processes(minutes: DataFrame, notes: DataFrame, *, patience: float) -> DataFrame:
    """Tell of every process.

    Args:
        minutes: of `MINUTES`.
        notes: of `NOTES`.
        patience: seconds that the journal must go on after a process's last row for it to count as killed.

    Returns:
        The table `PROCESSES`.
    """
    return PROCESSES.of(told_of(minutes, notes, patience))


def told_of(minutes: DataFrame, notes: DataFrame, patience: float) -> DataFrame:
    """The columns of the table ``processes``, instants as seconds, and ``journal_end``."""
    counted = minutes.groupBy("process").agg(
        F.sum("rows").alias("rows"),
        (F.max("last_seq") - F.min("first_seq") + 1 - F.sum("rows")).alias("missing"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )
    opened, closed = of_kind(JournalOpened), of_kind(JournalClosed)
    said = (
        notes.filter(of_kind(JournalOpened, JournalClosed, EventsDropped))
        .groupBy("process")
        .agg(
            F.max(F.when(opened, F.col("host"))).alias("host"),
            F.max(F.when(opened, F.col("pid"))).alias("pid"),
            F.max(F.when(opened, F.col("version"))).alias("version"),
            F.min(F.when(opened, F.col("sample_healthy"))).alias("sample_healthy"),
            F.sum(F.when(of_kind(EventsDropped), F.col("count"))).alias("dropped"),
            how_many(closed).alias("closed"),
        )
    )
    told = counted.join(said, "process", "left").withColumn("dropped", F.coalesce("dropped", F.lit(0)))
    told = told.crossJoin(F.broadcast(minutes.agg(F.max("last_at").alias("journal_end"))))
    gone = F.col("journal_end") - F.col("last_at") > patience
    ended = F.when(F.col("closed") > 0, "closed").when(gone, "killed").otherwise("open")
    return told.withColumn("ended", ended)
