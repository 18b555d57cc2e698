"""The table ``processes``: which runs of which programs kept the journal, what of it is missing, and how each ended."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import EventsDropped, JournalClosed, JournalOpened
from pairmq.pipeline.transforms._fact import COUNT, NUMBER, TEXT, Measure, digest
from pairmq.pipeline.transforms._rows import MINUTE, dated, how_many, of_kind, start_of
from pairmq.pipeline.transforms._table import Field, Table

GONE = 86_400.0
"""Seconds for which a machine may be silent while the journal goes on, before its open processes count as killed.

With no such limit, one machine that never comes back would end all proofs of loss for good.
"""


def _dated(rows: DataFrame) -> DataFrame:
    """Nothing of a row whose instant can't be counts, but that it is there."""
    known = {"minute": start_of(MINUTE), "seq": F.col("seq"), "at": F.col("at")}
    return rows.select(
        "process",
        *(F.when(dated(), value).alias(name) for name, value in known.items()),
        F.when(dated(), 0).otherwise(1).alias("misdated"),
    )


MINUTES = digest(
    "minutes",
    _dated,
    {"process": TEXT, "minute": COUNT},
    {
        "rows": Measure(COUNT, "sum", lambda: 1 - F.col("misdated")),
        "misdated": Measure(COUNT, "sum", lambda: F.col("misdated")),
        "first_seq": Measure(COUNT, "min", lambda: F.col("seq")),
        "last_seq": Measure(COUNT, "max", lambda: F.col("seq")),
        "first_at": Measure(NUMBER, "min", lambda: F.col("at")),
        "last_at": Measure(NUMBER, "max", lambda: F.col("at")),
    },
)
"""Rows of each process and minute: small, whatever the journal's size, and enough to find every gap.

The rows of a process whose instants can't be have a row of their own, without a minute.
"""

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
        Field("missing", "count", "rows between its first and its last that are not in the journal, or are misdated"),
        Field("misdated", "count", "rows that count for nothing, as no event was before 2020 or will be after 2100"),
        Field("dropped", "count", "events that it could not write, as it says itself"),
        Field(
            "ended",
            "text",
            "`closed`: in good order; `killed`: without a word, and the journal of its machine goes on, or that of "
            "others for a day; `open`: it may be running, or its latest rows have not come yet",
        ),
    ),
)


def processes(minutes: DataFrame, notes: DataFrame, *, patience: float) -> DataFrame:
    """Tell of every process.

    Args:
        minutes: of `MINUTES`.
        notes: of `NOTES`.
        patience: seconds that the journal of its machine must go on after a process's last row for it to count as
            killed; where the whole machine is silent, the journal of others must go on for `GONE`.

    Returns:
        The table `PROCESSES`.
    """
    return PROCESSES.of(told_of(minutes, notes, patience))


def told_of(minutes: DataFrame, notes: DataFrame, patience: float) -> DataFrame:
    """The columns of the table ``processes``, instants as seconds, and ``journal_end``."""
    counted = minutes.groupBy("process").agg(
        F.sum("rows").alias("rows"),
        F.sum("misdated").alias("misdated"),
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
    # The silence of a whole machine says nothing at first: what was written there may not have come yet.
    goes_on = F.max("last_at").over(Window.partitionBy(_machine()))
    gone = (goes_on - F.col("last_at") > patience) | (F.col("journal_end") - goes_on > GONE)
    ended = F.when(F.col("closed") > 0, "closed").when(gone, "killed").otherwise("open")
    return told.withColumn("ended", ended)


def _machine() -> Column:
    """Where a process ran, as it says, or else as its name does; one that tells neither is taken to be alone."""
    named = F.regexp_extract("process", "^(.+)-[0-9]+-[0-9]{8}T[0-9]{6}Z-", 1)
    return F.coalesce("host", F.when(named != "", named), "process")
