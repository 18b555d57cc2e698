"""The minutes of each entity of which the journal may lack the row that tells of a delivery."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pairmq.pipeline.transforms._fact import COUNT, NUMBER, schema_of, typed
from pairmq.pipeline.transforms._rows import MINUTE, SLACK
from pairmq.pipeline.transforms.messages import arrived_at

ARRIVALS = schema_of({"place": COUNT, "minute": COUNT, "delivered_at": NUMBER, "last_delivered_at": NUMBER})
"""One row for each entity and minute (counted since 1970) in which messages arrived at the primary."""

BLIND = schema_of({"place": COUNT, "minute": COUNT})


def arrivals(messages: DataFrame) -> DataFrame:
    """Tell when the messages that arrived in a minute were delivered first and last.

    Args:
        messages: of `MESSAGES`.

    Returns:
        As `ARRIVALS`.
    """
    home = messages.filter(F.col("home_at").isNotNull())
    arrived = home.groupBy("place", F.floor(arrived_at() / MINUTE).alias("minute")).agg(
        F.min("delivered_at").alias("delivered_at"), F.max("last_delivered_at").alias("last_delivered_at")
    )
    return typed(arrived, ARRIVALS)


def blind_minutes(arrived: DataFrame, spans: DataFrame, *, patience: float) -> DataFrame:
    """Tell the minutes of which it holds: a message that arrived then may have been delivered in a hole.

    It was delivered by when the patience was over after a delivery of one that had arrived later by more than the
    patience. Consumers may have been away for long, so that this is long after it arrived.

    Args:
        arrived: of `arrivals`.
        spans: of `holes`.
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost.

    Returns:
        As `BLIND`.
    """
    entity = Window.partitionBy("place")
    surely_later = entity.orderBy("minute").rangeBetween(int(patience // MINUTE) + 2, Window.unboundedFollowing)
    by = F.coalesce(F.min("delivered_at").over(surely_later), F.max("last_delivered_at").over(entity))
    settled = arrived.withColumn("by", F.floor((by + patience) / MINUTE))
    # Of the holes that ended in a minute or after it, the earliest begin: no message needs to meet every hole.
    ends = spans.select(
        F.floor((F.col("ended") + SLACK) / MINUTE).alias("minute"), F.floor(F.col("began") / MINUTE).alias("began")
    )
    minutes = arrived.select("minute", F.lit(None).cast("long").alias("began")).distinct()
    since = Window.partitionBy(F.lit(0)).orderBy("minute").rangeBetween(0, Window.unboundedFollowing)
    earliest = minutes.unionByName(ends).withColumn("began", F.min("began").over(since)).distinct()
    blind = settled.join(F.broadcast(earliest), "minute").filter(F.col("began") <= F.col("by"))
    return typed(blind, BLIND)
