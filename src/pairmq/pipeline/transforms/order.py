"""The table ``order``: how many messages of each session, or sender, were delivered behind later ones."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.pipeline.transforms._rows import place
from pairmq.pipeline.transforms._table import Field, Table
from pairmq.pipeline.transforms.late import DESIGNED, FAULT
from pairmq.pipeline.transforms.messages import key_of

ORDER = Table(
    "order",
    "the messages of one session, or of one sender without sessions, in one entity",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the queue or topic"),
        Field("order_key", "text", "`session:` and the session, else `sender:` and the sender's id"),
        Field("delivered", "count", "messages that were accepted and delivered"),
        Field("overtaken", "count", 'of these, overtaken as `ordering="none"` has it: new sends pass the backlog'),
        Field("out_of_order", "count", "of these, overtaken otherwise, and no hole of the journal may hide why"),
        Field("first_out_of_order", "text", "the id of the first of them"),
        Field("first_out_of_order_at", "instant", "its receipt"),
    ),
)


_LANE = ("place", "session", "sender")


def order(reconciled: DataFrame, counted: DataFrame, places: DataFrame, names: DataFrame) -> DataFrame:
    """Count by session and sender what was late.

    Args:
        reconciled: the table ``reconciliation``.
        counted: of `lanes`.
        places: of `places`.
        names: of `NAMES`.

    Returns:
        The table `ORDER`.
    """
    fault = F.col("late") == FAULT
    accepted = F.unix_micros("accepted_at") / 1_000_000
    sender = F.when(F.col("session_key").isNull(), key_of("sender"))
    # Few are late: the rest of the table is not looked at.
    late = reconciled.filter(F.col("late").isNotNull()).select(
        place().alias("place"),
        F.col("session_key").alias("session"),
        sender.alias("sender"),
        "message_id",
        "late",
        accepted.alias("accepted_at"),
    )
    late = late.groupBy(*_LANE).agg(
        F.count_if(F.col("late") == DESIGNED).alias("overtaken"),
        F.count_if(fault).alias("out_of_order"),
        F.min_by("message_id", F.when(fault, F.col("accepted_at"))).alias("first_out_of_order"),
        F.min(F.when(fault, F.col("accepted_at"))).alias("first_out_of_order_at"),
    )
    known = counted.filter((F.col("delivered") > 0) & (F.col("session").isNotNull() | F.col("sender").isNotNull()))
    same = [F.col(f"k.{name}").eqNullSafe(F.col(f"l.{name}")) for name in _LANE]
    joined = (
        known.alias("k")
        .join(late.alias("l"), same, "left")
        .select(
            *(f"k.{name}" for name in (*_LANE, "delivered")),
            *(F.coalesce(name, F.lit(0)).alias(name) for name in ("overtaken", "out_of_order")),
            "first_out_of_order",
            "first_out_of_order_at",
        )
    )
    owner = F.when(F.col("session").isNull(), F.concat(F.lit("sender:"), "name"))
    owner = owner.otherwise(F.concat(F.lit("session:"), "name"))
    keyed = joined.withColumn("key", F.coalesce("session", "sender")).join(names, "key", "left")
    told = keyed.join(F.broadcast(places.select("place", "pair", "entity")), "place")
    return ORDER.of(told.withColumn("order_key", owner))
