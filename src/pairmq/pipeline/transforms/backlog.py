"""Three tables of the backlog queues.

``backlog`` says minute by minute how deep each queue was and how old its oldest message, ``syphon`` by entity and hour
what was moved back and how long it had waited, and ``rotation`` each time that a process left a queue out of use.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import MessageDeadLettered, MessageMoved, RotationChanged, SendOutcome
from pairmq.pipeline.transforms._fact import Field, Table
from pairmq.pipeline.transforms._rows import (
    DAY,
    HOUR,
    MINUTE,
    bucket_of,
    ended_as,
    first_at,
    how_many,
    last_at,
    of_kind,
    percentiles,
    start_of,
    with_one,
)

BACKLOG = Table(
    "backlog",
    "a minute in which a backlog queue held messages, or messages entered or left it; of days (UTC) of which the "
    "journal has any row",
    (
        Field("pair", "text", "the pair's name"),
        Field("queue", "text", "the backlog queue"),
        Field("minute", "instant", "start of the minute"),
        Field("diverted", "count", "messages that it accepted in this minute"),
        Field("moved", "count", "messages that a syphon moved to the primary and completed"),
        Field("dead_lettered", "count", "messages that a syphon dead-lettered"),
        Field("unmatched", "count", "messages that left it in this minute, whose divert is not in the journal"),
        Field(
            "depth",
            "count",
            "messages in it at the minute's end: their divert is in the journal, their leaving not yet",
        ),
        Field(
            "oldest_age",
            "number",
            "seconds since the minute in which the oldest of these arrived; null if there are none",
        ),
    ),
)

_QUEUE = ("pair", "queue")


def backlog(notes: DataFrame, minutes: DataFrame) -> DataFrame:
    """Follow every backlog queue minute by minute.

    The depth is that of messages, not of events: what was diverted before the journal began would make a running sum of
    events wrong forever when it is moved, as would a second copy.
    """
    came, left = ended_as(SendOutcome.BACKLOG), of_kind(MessageMoved) & F.col("completed")
    aside = of_kind(MessageDeadLettered)
    flows = notes.filter(came | left | aside).select(
        "pair",
        F.when(came, F.col("backlog_queue")).otherwise(F.col("queue")).alias("queue"),
        "message_key",
        # Foreign messages without an id can't be identified: each counts as one.
        F.coalesce("message_id", F.concat_ws(":", "process", "seq")).alias("message_id"),
        *("kind", "outcome", "completed", "at"),
    )
    end = minutes.agg(F.floor(F.max("last_at") / MINUTE).alias("end"))
    days = minutes.select(F.floor(F.col("minute") / DAY).alias("day")).distinct()
    counts = flows.groupBy(*_QUEUE, start_of(MINUTE).alias("minute")).agg(
        how_many(came).alias("diverted"), how_many(left).alias("moved"), how_many(aside).alias("dead_lettered")
    )
    stays = flows.groupBy(*_QUEUE, "message_key", "message_id").agg(
        first_at(came).alias("came_at"), last_at(~came).alias("left_at")
    )
    # A clock that is behind must not let a message leave before it came.
    stays = stays.withColumn("left_at", F.when(F.col("left_at").isNotNull(), F.greatest("left_at", "came_at")))
    depths = _filled(_depths(counts, stays), end, days)
    oldest = _oldest(stays, end, days)
    result = depths.join(oldest, [*_QUEUE, "minute"], "left")
    age = F.when(F.col("depth") > 0, F.col("minute") + MINUTE - F.col("oldest"))
    return BACKLOG.of(result.withColumn("oldest_age", age))


_FLOWS = ("diverted", "moved", "dead_lettered", "unmatched")


def _depths(counts: DataFrame, stays: DataFrame) -> DataFrame:
    """Minutes in which something came or went, with the depth at their end."""
    came, left = (f"floor({name} / {MINUTE}) * {MINUTE}" for name in ("came_at", "left_at"))
    changes = stays.selectExpr(
        *_QUEUE,
        f"inline(array(struct({came} AS minute, 0 AS unmatched, 1 AS change), struct({left} AS minute, "
        "IF(came_at IS NULL, 1, 0) AS unmatched, IF(came_at IS NULL, 0, -1) AS change)))",
    ).filter("minute IS NOT NULL")
    # Zeros, not nulls: some engines have no sum of those without a type.
    counts = counts.selectExpr("*", "0 AS unmatched", "0 AS change")
    summed = (
        counts.unionByName(changes.selectExpr("*", *(f"0 AS {name}" for name in _FLOWS[:3])))
        .groupBy(*_QUEUE, "minute")
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (*_FLOWS, "change")))
    )
    so_far = Window.partitionBy(*_QUEUE).orderBy("minute").rowsBetween(Window.unboundedPreceding, 0)
    return summed.withColumn("depth", F.sum("change").over(so_far))


def _each_minute(spans: DataFrame, days: DataFrame) -> DataFrame:
    """Add ``each``, a minute from ``first`` to ``last``, both within.

    Only the days of the journal count: one row of a clock that is years off would fill all these years.
    """
    day = F.explode(F.sequence(F.floor(F.col("first") / DAY), F.floor(F.col("last") / DAY)))
    known = spans.withColumn("day", day).join(F.broadcast(days), "day", "left_semi")
    begins = F.greatest(F.col("first"), F.col("day") * DAY)
    ends = F.least(F.col("last"), (F.col("day") + 1) * DAY - MINUTE)
    return known.withColumn("each", F.explode(F.sequence(begins, ends, F.lit(MINUTE))))


def _filled(depths: DataFrame, end: DataFrame, days: DataFrame) -> DataFrame:
    """Add the minutes in which nothing happened while something was in the queue."""
    following = F.lead("minute").over(Window.partitionBy(*_QUEUE).orderBy("minute"))
    held = F.coalesce(following - MINUTE, F.greatest(F.col("end") * MINUTE, F.col("minute")))
    spans = with_one(depths.withColumn("first", F.col("minute")), end)
    spans = spans.withColumn("last", F.when(F.col("depth") > 0, held).otherwise(F.col("minute")))
    filled = _each_minute(spans, days).withColumn("begins", F.col("each") == F.col("minute"))
    return filled.select(
        *_QUEUE,
        F.col("each").alias("minute"),
        *(F.when(F.col("begins"), F.col(name)).otherwise(0).alias(name) for name in _FLOWS),
        "depth",
    )


def _oldest(stays: DataFrame, end: DataFrame, days: DataFrame) -> DataFrame:
    """Compute for each minute when the oldest message that was still there at its end had arrived.

    Messages are taken by the minute in which they came. One minute's messages are the oldest from the instant at which
    all older ones have left until they have left themselves: these spans don't overlap, so that each minute has one.
    """
    cohorts = (
        stays.filter(F.col("came_at").isNotNull())
        .groupBy(*_QUEUE, (F.floor(F.col("came_at") / MINUTE) * MINUTE).alias("came"))
        .agg(F.max("left_at").alias("gone"), F.max(F.col("left_at").isNull()).alias("stay"))
    )
    after_all = (F.col("end") + 1) * MINUTE + 1.0
    cohorts = with_one(cohorts, end).withColumn("gone", F.when(F.col("stay"), after_all).otherwise(F.col("gone")))
    older = Window.partitionBy(*_QUEUE).orderBy("came").rowsBetween(Window.unboundedPreceding, -1)
    cohorts = cohorts.withColumn("older_gone", F.max("gone").over(older))
    # The first minute at whose end all older ones have left, and the last at whose end one of these is there.
    first = F.greatest(F.col("came"), F.ceil(F.col("older_gone") / MINUTE) * MINUTE - MINUTE)
    last = F.ceil(F.col("gone") / MINUTE) * MINUTE - 2 * MINUTE
    spans = cohorts.withColumns({"first": first, "last": last}).filter(F.col("first") <= F.col("last"))
    return _each_minute(spans, days).select(*_QUEUE, F.col("each").alias("minute"), F.col("came").alias("oldest"))


SYPHON = Table(
    "syphon",
    "the messages of one entity that the syphons moved or dead-lettered within one hour",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the destination; null where it could not be read"),
        Field("hour", "instant", "start of the hour"),
        Field("moved", "count", "messages moved to the primary"),
        Field("unfinished", "count", "of these, not completed in the backlog: a second copy will follow"),
        Field("redelivered", "count", "of these, delivered to a syphon before: perhaps a second copy"),
        Field("maybe_duplicate", "count", "of these, marked by their sender: the primary may have had one"),
        Field("dead_lettered", "count", "messages dead-lettered"),
        Field("lag_p50", "number", "seconds from divert to delivery of half of those moved; 2 % too high at most"),
        Field("lag_p95", "number", "the same of 95 %"),
        Field("lag_p99", "number", "the same of 99 %"),
        Field("lag_max", "number", "the longest, exactly"),
    ),
)

_KEYS = ("pair", "entity", "hour")
_COUNTS = ("moved", "unfinished", "redelivered", "maybe_duplicate", "dead_lettered")


def syphon(notes: DataFrame) -> DataFrame:
    """Count what syphons did by entity and hour."""
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
    return SYPHON.of(percentiles(histogram, _KEYS, "lag", _COUNTS))


ROTATION = Table(
    "rotation",
    "one time that a backlog queue was out of a process's rotation",
    (
        Field("process", "text", "whose rotation"),
        Field("pair", "text", "the pair's name"),
        Field("queue", "text", "the backlog queue"),
        Field("left_at", "instant", "it was taken out of use"),
        Field("error", "text", "why"),
        Field("in_use", "count", "queues that were left"),
        Field("returned_at", "instant", "it was used again; null if it never was"),
        Field("out_of_use", "number", "seconds until then, else until the process's last row"),
    ),
)


def rotation(notes: DataFrame, minutes: DataFrame) -> DataFrame:
    """Find every time that a backlog queue was out of use."""
    changes = notes.filter(of_kind(RotationChanged)).select(
        "process", "pair", "queue", "seq", "at", F.col("in_use").alias("used"), "left", "error"
    )
    by_seq = Window.partitionBy("process", "pair", "queue").orderBy("seq")
    backwards = Window.partitionBy("process", "pair", "queue").orderBy(F.desc("seq"))
    later = backwards.rowsBetween(Window.unboundedPreceding, -1)
    returned = F.min(F.when(F.col("used"), F.col("at"))).over(later)
    changes = changes.withColumns({"returned_at": returned, "before": F.lag("used").over(by_seq)})
    # A queue that is said twice to be out of use left once.
    left = changes.filter(~F.col("used") & (F.col("before").isNull() | F.col("before")))
    ends = minutes.groupBy("process").agg(F.max("last_at").alias("last_at"))
    left = left.join(F.broadcast(ends), "process")
    out_of_use = F.coalesce("returned_at", "last_at") - F.col("at")
    return ROTATION.of(left.withColumns({"left_at": F.col("at"), "in_use": F.col("left"), "out_of_use": out_of_use}))
