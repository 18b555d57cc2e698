"""The minutes of each entity whose messages may have left a row in a hole of the journal."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.pipeline.transforms._fact import COUNT, FLAG, NUMBER, schema_of, typed
from pairmq.pipeline.transforms._rows import MINUTE, SLACK
from pairmq.pipeline.transforms.messages import arrived_at

ARRIVALS = schema_of(
    {
        "place": COUNT,
        "minute": COUNT,
        "delivered_at": NUMBER,
        "last_delivered_at": NUMBER,
        "known_from": NUMBER,
        "known_until": NUMBER,
    }
)
"""One row for each entity and minute (counted since 1970) in which messages arrived, see `minute_of`.

``delivered_at`` and ``last_delivered_at`` are of those that arrived at the primary; from ``known_from`` to
``known_until`` the journal tells of any of them.
"""

BLIND = schema_of({"place": COUNT, "minute": COUNT, "unseen": FLAG, "untold": FLAG})
"""``unseen`` where a delivery may be in a hole, ``untold`` where anything may be that would explain what is known."""


def minute_of() -> Column:
    """The minute, counted since 1970, in which a message of `MESSAGES` arrived at the primary.

    Of one that did not, for all that the journal tells, it is the minute in which it was delivered, or else refused.
    """
    return F.floor(F.coalesce(arrived_at(), "last_delivered_at", "first_sent_at") / MINUTE)


def arrivals(messages: DataFrame) -> DataFrame:
    """Tell what is known of the messages of each minute: when they were delivered first and last, sent and seen.

    Args:
        messages: of `MESSAGES`.

    Returns:
        As `ARRIVALS`.
    """
    home = F.col("home_at").isNotNull()
    dated = messages.withColumn("minute", minute_of()).filter(F.col("minute").isNotNull())
    arrived = dated.groupBy("place", "minute").agg(
        F.min(F.when(home, F.col("delivered_at"))).alias("delivered_at"),
        F.max(F.when(home, F.col("last_delivered_at"))).alias("last_delivered_at"),
        F.min(F.least("called_at", "first_sent_at", "delivered_at", "home_at")).alias("known_from"),
        F.max(F.greatest("first_sent_at", "last_delivered_at")).alias("known_until"),
    )
    return typed(arrived, ARRIVALS)


def blind_minutes(arrived: DataFrame, spans: DataFrame, *, patience: float) -> DataFrame:
    """Tell the minutes of which it holds: a row about a message that arrived then may be in a hole.

    It was delivered by when the patience was over after a delivery of one that had arrived later by more than the
    patience. Consumers may have been away for long, so that this is long after it arrived.

    What explains the rows that are there, another send of the same id for one, happened no more than the patience
    before the first of them or after the last.

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
    settled = arrived.withColumns(
        {
            "by": F.floor((by + patience) / MINUTE),
            "since": F.floor((F.col("known_from") - patience) / MINUTE),
            "until": F.floor((F.col("known_until") + patience) / MINUTE),
        }
    )
    # Of the holes that ended in a minute or after it, the earliest begin: no message needs to meet every hole.
    ends = spans.select(
        F.floor((F.col("ended") + SLACK) / MINUTE).alias("minute"), F.floor(F.col("began") / MINUTE).alias("began")
    )
    nothing = F.lit(None).cast("long").alias("began")
    asked = settled.select(F.explode(F.array("minute", "since")).alias("minute"), nothing).distinct()
    onwards = Window.partitionBy(F.lit(0)).orderBy("minute").rangeBetween(0, Window.unboundedFollowing)
    earliest = asked.unionByName(ends).withColumn("began", F.min("began").over(onwards)).distinct()
    met = settled
    for name in ("minute", "since"):
        begun = earliest.select(F.col("minute").alias(name), F.col("began").alias(f"{name}_began"))
        met = met.join(F.broadcast(begun), name, "left")
    unseen = F.coalesce(F.col("minute_began") <= F.col("by"), F.lit(False))
    untold = F.coalesce(F.col("since_began") <= F.col("until"), F.lit(False))
    blind = met.withColumn("unseen", unseen).withColumn("untold", untold).filter(F.col("unseen") | F.col("untold"))
    return typed(blind, BLIND)
