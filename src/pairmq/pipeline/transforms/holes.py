"""The holes of the journal: times of which it may lack rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import EventsDropped, JournalClosed
from pairmq.pipeline.transforms._fact import NUMBER, TEXT, schema_of, typed
from pairmq.pipeline.transforms._rows import SLACK, of_kind
from pairmq.pipeline.transforms.processes import told_of

DEATH = 120.0
"""Seconds after its last row within which a process that was killed may have done something that nobody wrote down.

A pair writes a row every minute, which is in a segment a minute later unless the journal's ``max_age`` is longer.
"""

HOLES = schema_of({"began": NUMBER, "ended": NUMBER})
"""Seconds since 1970 UTC."""

_UNREAD = schema_of({"process": TEXT, "began": NUMBER, "ended": NUMBER})


@dataclass(frozen=True, slots=True)
class Unread:
    """A file of the journal that is not read: rows of this process may be missing.

    Args:
        process: whose rows its name says it has.
        began: the earliest instant at which they may have been written, seconds since 1970 UTC; None for any.
        ended: the latest.
    """

    process: str
    began: float | None
    ended: float | None


def holes(minutes: DataFrame, notes: DataFrame, *, patience: float, unread: Sequence[Unread] = ()) -> DataFrame:
    """Tell in which minutes something may have happened that the journal does not tell.

    Rows are missing; events were dropped; a process was killed, with what it had not written yet; or one may be
    running, and has not written its latest rows; or a file is not read.

    Args:
        minutes: of `MINUTES`.
        notes: of `NOTES`.
        patience: as for `processes`.
        unread: the files of which nothing is known.

    Returns:
        ``began`` and ``ended`` of each hole, seconds since 1970 UTC.
    """
    told = told_of(minutes, notes, patience)
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
    # Rows are numbered from 0: those before the first that is there are missing as well.
    starts = minutes.groupBy("process").agg(F.min("first_seq").alias("first_seq"), F.min("first_at").alias("ended"))
    journal = minutes.agg(F.min("first_at").alias("journal_began"))
    headless = starts.filter("first_seq > 0").crossJoin(F.broadcast(journal))
    heads = headless.select(F.least(F.coalesce(_started_at(), "journal_began"), "ended").alias("began"), "ended")
    dropped = notes.filter(of_kind(EventsDropped)).select(F.col("since").alias("began"), F.col("at").alias("ended"))
    spans = ends.unionByName(gaps).unionByName(heads).unionByName(dropped)
    if unread:
        spans = spans.unionByName(_not_read(minutes, notes, unread))
    return typed(spans.withColumn("ended", F.greatest("began", "ended")), HOLES)


def _started_at() -> Column:
    """When a process began its journal, as its name says; null if it does not say so."""
    told = F.regexp_extract("process", "-([0-9]{8}T[0-9]{6}Z)-", 1)
    return F.try_to_timestamp(told, F.lit("yyyyMMdd'T'HHmmssX")).cast("double")


def _not_read(minutes: DataFrame, notes: DataFrame, unread: Sequence[Unread]) -> DataFrame:
    """The times of the files that are not read, but for those of processes that lack nothing: these were copies."""
    files = minutes.sparkSession.createDataFrame([(each.process, each.began, each.ended) for each in unread], _UNREAD)
    closed = notes.filter(of_kind(JournalClosed)).select("process").distinct()
    whole = (
        minutes.groupBy("process")
        .agg(F.max("last_seq").alias("last_seq"), F.sum("rows").alias("rows"))
        .filter(F.col("last_seq") + 1 == F.col("rows"))
        .join(closed, "process", "left_semi")
    )
    journal = minutes.agg(F.min("first_at").alias("first_at"), F.max("last_at").alias("last_at"))
    missed = files.join(whole, "process", "left_anti").crossJoin(journal.filter(F.col("first_at").isNotNull()))
    return missed.select(F.coalesce("began", "first_at").alias("began"), F.coalesce("ended", "last_at").alias("ended"))


def with_hole_before(found: DataFrame, columns: Sequence[str], instant: str, spans: DataFrame) -> DataFrame:
    """Add ``hole``, the end of the last hole that began before an instant: an earlier message's row may be in it.

    Args:
        found: rows without equals.
        columns: all of its columns; a declarative pipeline forbids to ask for them.
        instant: one of them.
        spans: of `holes`.
    """
    earlier = found.join(F.broadcast(spans), F.col("began") <= F.col(instant) + SLACK, "left")
    return earlier.groupBy(*columns).agg(F.max("ended").alias("hole"))
