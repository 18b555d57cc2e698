"""The table ``processes``: which runs of which programs kept the journal, what of it is missing, and how each ended."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import EventsDropped, JournalClosed, JournalOpened
from pairmq.pipeline.transforms._rows import MINUTE, first_at, how_many, of_kind, start_of
from pairmq.pipeline.transforms._table import Field, Table

DEATH = 60.0
"""Seconds after its last row within which a process that was killed may have done something that nobody wrote down."""

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


def processes(rows: DataFrame, *, patience: float) -> DataFrame:
    """Tell of every process.

    Args:
        rows: the journal's, each once.
        patience: seconds that the journal must go on after a process's last row for it to count as killed.

    Returns:
        The table `PROCESSES`.
    """
    return PROCESSES.of(_processes(_by_minute(rows), patience))


def holes(rows: DataFrame, *, patience: float) -> DataFrame:
    """Tell in which minutes something may have happened that the journal does not tell.

    Rows are missing; events were dropped; a process was killed, with what it had not written yet; or one may be
    running, and has not written its latest rows.

    Args:
        rows: the journal's, each once.
        patience: as for `processes`.

    Returns:
        ``began`` and ``ended`` of each hole, seconds since 1970 UTC.
    """
    minutes = _by_minute(rows)
    told = _processes(minutes, patience)
    ends = told.filter(F.col("ended") != "closed").select(
        F.col("last_at").alias("began"),
        F.when(F.col("ended") == "killed", F.col("last_at") + DEATH).otherwise(F.col("journal_end")).alias("ended"),
    )
    following = Window.partitionBy("process").orderBy("first_seq")
    broken = (
        minutes.join(F.broadcast(told.filter("missing > 0").select("process")), "process", "left_semi")
        .withColumn("next_seq", F.lead("first_seq").over(following))
        .withColumn("next_at", F.lead("first_at").over(following))
    )
    within = F.col("last_seq") - F.col("first_seq") + 1 > F.col("rows")
    after = F.col("next_seq") > F.col("last_seq") + 1
    gaps = broken.filter(within | after).select(
        F.when(within, F.col("first_at")).otherwise(F.col("last_at")).alias("began"),
        F.when(after, F.col("next_at")).otherwise(F.col("last_at")).alias("ended"),
    )
    dropped = rows.filter(of_kind(EventsDropped)).select(F.col("since").alias("began"), F.col("at").alias("ended"))
    spans = ends.unionByName(gaps).unionByName(dropped)
    return spans.withColumn("ended", F.greatest("began", "ended"))


def _by_minute(rows: DataFrame) -> DataFrame:
    """Rows of each process and minute: small, whatever the journal's size, and enough to find every gap."""
    opened, closed = of_kind(JournalOpened), of_kind(JournalClosed)
    return rows.groupBy("process", start_of(MINUTE).alias("minute")).agg(
        F.count("*").alias("rows"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.max(F.when(opened, F.col("host"))).alias("host"),
        F.max(F.when(opened, F.col("pid"))).alias("pid"),
        F.max(F.when(opened, F.col("version"))).alias("version"),
        F.min(F.when(opened, F.col("sample_healthy"))).alias("sample_healthy"),
        F.sum(F.when(of_kind(EventsDropped), F.col("count"))).alias("dropped"),
        first_at(closed).alias("closed_at"),
        how_many(closed).alias("closed"),
    )


def _processes(minutes: DataFrame, patience: float) -> DataFrame:
    told = minutes.groupBy("process").agg(
        F.sum("rows").alias("rows"),
        (F.max("last_seq") - F.min("first_seq") + 1 - F.sum("rows")).alias("missing"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.max("host").alias("host"),
        F.max("pid").alias("pid"),
        F.max("version").alias("version"),
        F.min("sample_healthy").alias("sample_healthy"),
        F.coalesce(F.sum("dropped"), F.lit(0)).alias("dropped"),
        F.sum("closed").alias("closed"),
    )
    told = told.withColumn("journal_end", F.max("last_at").over(Window.partitionBy()))
    gone = F.col("journal_end") - F.col("last_at") > patience
    ended = F.when(F.col("closed") > 0, "closed").when(gone, "killed").otherwise("open")
    return told.withColumn("ended", ended)
