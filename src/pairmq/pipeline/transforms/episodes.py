"""The table ``episodes``: every outage of an entity, as one process saw it, from the first failure to the end."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model import EntityState
from pairmq.model.events import (
    AttemptFailed,
    MessageDeadLettered,
    MessageMoved,
    PairEnded,
    PingCompleted,
    SendCompleted,
    SendOutcome,
    StateChanged,
)
from pairmq.pipeline.transforms._fact import Field, Table
from pairmq.pipeline.transforms._rows import HOUR, ended_as, first_at, how_many, of_kind

EPISODES = Table(
    "episodes",
    "one outage of an entity, as one process saw it: from the first failure until it was healthy again",
    (
        Field("process", "text", "who saw it"),
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the queue or topic"),
        Field("entity_kind", "text", "`queue` or `topic`"),
        Field("number", "count", "counts the outages of this entity in this process, from 1"),
        Field("started_at", "instant", "the entity left the states in which it takes messages"),
        Field("cause", "text", "what started it"),
        Field("failure_kind", "text", "the kind of the first failed attempt at the primary within it"),
        Field("failed_over_at", "instant", "failover was engaged; null for an outage that passed before"),
        Field("up_at", "instant", "the entity took messages again"),
        Field(
            "ended_at", "instant", "it was healthy again, its backlog drained where that is known; null if it is open"
        ),
        Field(
            "open_because",
            "text",
            "null if it ended, else `failed again`, `pair closed`, `process killed` or `journal ends`",
        ),
        Field("detection", "number", "seconds from the start to failover"),
        Field("time_to_divert", "number", "seconds from the start to the first receipt of a backlog queue"),
        Field("downtime", "number", "seconds from failover to up"),
        Field("time_to_recover", "number", "seconds from the start to up"),
        Field("drain_time", "number", "seconds from up to the end"),
        Field("diverted", "count", "sends that a backlog queue accepted within it"),
        Field("refused", "count", "sends refused within it"),
        Field("unknown", "count", "sends with an unknown outcome within it"),
        Field("pings", "count", "pings tried"),
        Field("pings_good", "count", "pings that succeeded"),
        Field(
            "peak_backlog",
            "count",
            "most messages of the entity in the backlog at once within it, of all processes together",
        ),
    ),
)

_UP = (EntityState.HEALTHY.value, EntityState.DRAINING.value)
_KEY = ("process", "pair", "entity")


def episodes(notes: DataFrame, processes: DataFrame) -> DataFrame:
    """Find every outage."""
    found = _found(notes)
    found = found.join(F.broadcast(_ends(notes, processes)), ["process", "pair"], "left")
    killed = F.col("process_ended") == "killed"
    why = (
        F.when(F.col("ended_at").isNotNull(), F.lit(None))
        .when(F.col("next_started_at").isNotNull(), "failed again")
        .when(F.col("pair_ended_at") >= F.col("started_at"), "pair closed")
        .when(killed, "process killed")
        .otherwise("journal ends")
    )
    found = found.withColumn("open_because", why)
    until = F.coalesce("ended_at", "next_started_at", "pair_ended_at", "last_at")
    found = found.withColumn("until", F.greatest(until, F.col("started_at")))
    found = _with_peaks(found, notes)
    spans = {
        "detection": "failed_over_at - started_at",
        "time_to_divert": "diverted_at - started_at",
        "downtime": "up_at - failed_over_at",
        "time_to_recover": "up_at - started_at",
        "drain_time": "ended_at - up_at",
    }
    return EPISODES.of(found.withColumns({name: F.expr(span) for name, span in spans.items()}))


def _found(notes: DataFrame) -> DataFrame:
    """Number the outages of each entity and process by the rows that start one, and gather each.

    Sends that the primary accepted, also marked ones, are not included, and need not be sorted.
    """
    changed, sent = of_kind(StateChanged), of_kind(SendCompleted)
    unusual = sent & (F.col("outcome") != SendOutcome.PRIMARY.value)
    some = notes.filter(changed | unusual | of_kind(AttemptFailed, PingCompleted)).select(
        *(*_KEY, "entity_kind", "kind", "seq", "at"),
        *("previous", "current", "cause", "outcome", "failure_kind", "queue", "ok"),
    )
    starts = changed & F.col("previous").isin(*_UP) & ~F.col("current").isin(*_UP)
    so_far = Window.partitionBy(*_KEY).orderBy("seq").rowsBetween(Window.unboundedPreceding, 0)
    some = some.withColumns(
        {
            "number": F.sum(F.when(starts, 1).otherwise(0)).over(so_far),
            "state": F.last(F.when(changed, F.col("current")), ignorenulls=True).over(so_far),
        }
    )
    within = some.filter((F.col("number") > 0) & (changed | (F.col("state") != EntityState.HEALTHY.value)))
    at_primary = of_kind(AttemptFailed) & F.col("queue").isNull()
    gathered = within.groupBy(*_KEY, "number").agg(
        F.max("entity_kind").alias("entity_kind"),
        first_at(starts).alias("started_at"),
        F.max(F.when(starts, F.col("cause"))).alias("cause"),
        F.min_by("failure_kind", F.when(at_primary, F.col("seq"))).alias("failure_kind"),
        first_at(changed & (F.col("current") == EntityState.FAILED_OVER.value)).alias("failed_over_at"),
        first_at(changed & F.col("current").isin(*_UP)).alias("up_at"),
        first_at(changed & (F.col("current") == EntityState.HEALTHY.value)).alias("ended_at"),
        first_at(ended_as(SendOutcome.BACKLOG)).alias("diverted_at"),
        how_many(ended_as(SendOutcome.BACKLOG)).alias("diverted"),
        how_many(ended_as(SendOutcome.REFUSED)).alias("refused"),
        how_many(ended_as(SendOutcome.UNKNOWN)).alias("unknown"),
        how_many(of_kind(PingCompleted)).alias("pings"),
        how_many(of_kind(PingCompleted) & F.col("ok")).alias("pings_good"),
    )
    following = Window.partitionBy(*_KEY).orderBy("number")
    return gathered.withColumn("next_started_at", F.lead("started_at").over(following))


def _ends(notes: DataFrame, processes: DataFrame) -> DataFrame:
    """How each process ended, and when it closed each of its pairs."""
    last = F.unix_micros("last_at") / 1_000_000
    ends = processes.select("process", F.col("ended").alias("process_ended"), last.alias("last_at"))
    closed = notes.filter(of_kind(PairEnded)).groupBy("process", "pair").agg(F.max("at").alias("pair_ended_at"))
    pairs = notes.filter(of_kind(StateChanged)).select("process", "pair").distinct()
    return pairs.join(F.broadcast(ends), "process", "left").join(F.broadcast(closed), ["process", "pair"], "left")


def _with_peaks(found: DataFrame, notes: DataFrame) -> DataFrame:
    """Add the greatest backlog of each outage.

    The depth is summed up by seconds, so that it is small, each with the highest that it was within it, and met with
    the outages hour by hour, so that a long journal with many outages does not meet each second with each of them.
    """
    gone = of_kind(MessageMoved) & F.col("completed") | of_kind(MessageDeadLettered)
    change = F.when(ended_as(SendOutcome.BACKLOG), 1).otherwise(-1)
    flows = notes.filter(ended_as(SendOutcome.BACKLOG) | gone).select(
        "pair", "entity", F.floor("at").alias("second"), "at", change.alias("change")
    )
    within = Window.partitionBy("pair", "entity", "second").orderBy("at", "change")
    within = within.rowsBetween(Window.unboundedPreceding, 0)
    seconds = (
        flows.withColumn("rise", F.sum("change").over(within))
        .groupBy("pair", "entity", "second")
        .agg(F.sum("change").alias("change"), F.max("rise").alias("rise"))
    )
    so_far = Window.partitionBy("pair", "entity").orderBy("second").rowsBetween(Window.unboundedPreceding, 0)
    depths = seconds.select(
        "pair",
        "entity",
        F.floor(F.col("second") / HOUR).alias("hour"),
        "second",
        (F.sum("change").over(so_far) - F.col("change") + F.col("rise")).alias("depth"),
    )
    hours = F.sequence(F.floor(F.col("started_at") / HOUR), F.floor(F.col("until") / HOUR))
    spans = found.select(*_KEY, "number", "started_at", "until", F.explode(hours).alias("hour"))
    inside = (F.col("second") >= F.floor("started_at")) & (F.col("second") <= F.floor("until"))
    peaks = (
        spans.join(depths, ["pair", "entity", "hour"])
        .filter(inside)
        .groupBy(*_KEY, "number")
        .agg(F.max("depth").alias("peak"))
    )
    with_peaks = found.join(peaks, [*_KEY, "number"], "left")
    return with_peaks.withColumn("peak_backlog", F.greatest(F.coalesce("peak", F.lit(0)), F.lit(0)))
