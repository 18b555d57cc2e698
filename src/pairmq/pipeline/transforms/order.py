"""The table ``order``: how many messages of each session, or sender, were delivered behind later ones."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.pipeline.transforms._late import DESIGNED, FAULT
from pairmq.pipeline.transforms._table import Field, Table
from pairmq.pipeline.transforms.evidence import key_of

ORDER = Table(
    "order",
    "the messages of one session, or of one sender without sessions, in one entity",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the queue or topic"),
        Field("order_key", "text", "`session:` and the session, else `sender:` and the sender's id"),
        Field("delivered", "count", "messages that were accepted and delivered"),
        Field("overtaken", "count", 'of these, overtaken as `ordering="none"` has it: new sends pass the backlog'),
        Field("out_of_order", "count", "of these, overtaken otherwise"),
        Field("first_out_of_order", "text", "the id of the first of them"),
        Field("first_out_of_order_at", "instant", "its receipt"),
    ),
)


def order(reconciled: DataFrame, rows: DataFrame) -> DataFrame:
    """Count by session and sender what was late.

    Args:
        reconciled: the table ``reconciliation``.
        rows: the journal's, each once.

    Returns:
        The table `ORDER`.
    """
    names = rows.filter(F.col("session_id").isNotNull()).select(key_of("session_id").alias("session_key"), "session_id")
    known = reconciled.filter((F.col("deliveries") > 0) & F.col("accepted_at").isNotNull())
    fault = F.col("late") == FAULT
    accepted = F.unix_micros("accepted_at") / 1_000_000
    known = known.filter(F.col("session_key").isNotNull() | F.col("sender").isNotNull())
    # The texts of sessions, which may be many, are only put to their keys once these are few.
    sender = F.when(F.col("session_key").isNull(), F.col("sender"))
    counted = known.groupBy("pair", "entity", "session_key", sender.alias("sender")).agg(
        F.count("*").alias("delivered"),
        F.count_if(F.col("late") == DESIGNED).alias("overtaken"),
        F.count_if(fault).alias("out_of_order"),
        F.min_by("message_id", F.when(fault, F.col("accepted_at"))).alias("first_out_of_order"),
        F.min(F.when(fault, accepted)).alias("first_out_of_order_at"),
    )
    owner = F.coalesce(F.concat(F.lit("session:"), "session_id"), F.concat(F.lit("sender:"), "sender"))
    return ORDER.of(counted.join(names.distinct(), "session_key", "left").withColumn("order_key", owner))
