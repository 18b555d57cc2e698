"""The table ``syphon``: what came home from the backlog, and how long it had waited, by entity and hour."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.pipeline.transforms._quantiles import bucket_of, merged
from pairmq.pipeline.transforms._rows import HOUR, how_many, of_kind, start_of
from pairmq.pipeline.transforms._table import Field, Table

SYPHON = Table(
    "syphon",
    "the messages of one entity that the syphons moved or set aside within one hour",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the destination; null where it could not be read"),
        Field("hour", "instant", "start of the hour"),
        Field("moved", "count", "messages brought home"),
        Field("unfinished", "count", "of these, not completed in the backlog: a second copy will come"),
        Field("redelivered", "count", "of these, delivered to a syphon before: perhaps a second copy"),
        Field("maybe_duplicate", "count", "of these, marked by their sender: the primary may have had one"),
        Field("dead_lettered", "count", "messages set aside"),
        Field("lag_p50", "number", "seconds from divert to delivery of half of those moved; 2 % too high at most"),
        Field("lag_p95", "number", "the same of 95 %"),
        Field("lag_p99", "number", "the same of 99 %"),
        Field("lag_max", "number", "the longest, exactly"),
    ),
)

_KEYS = ("pair", "entity", "hour")
_COUNTS = ("moved", "unfinished", "redelivered", "maybe_duplicate", "dead_lettered")


def syphon(notes: DataFrame) -> DataFrame:
    """Count what syphons did by entity and hour.

    Args:
        notes: of `NOTES`.

    Returns:
        The table `SYPHON`.
    """
    moved = of_kind(MessageMoved)
    work = notes.filter(of_kind(MessageMoved, MessageDeadLettered)).withColumn("hour", start_of(HOUR))
    waited = F.when(moved, F.col("waited"))
    histogram = work.groupBy(*_KEYS, bucket_of(waited).alias("bucket")).agg(
        how_many(moved).cast("double").alias("weight"),
        F.max(waited).alias("most"),
        how_many(moved).alias("moved"),
        how_many(moved & ~F.col("completed")).alias("unfinished"),
        how_many(moved & F.col("redelivered")).alias("redelivered"),
        how_many(moved & F.col("maybe_duplicate")).alias("maybe_duplicate"),
        how_many(~moved).alias("dead_lettered"),
    )
    return SYPHON.of(merged(histogram, _KEYS, "lag", _COUNTS))
