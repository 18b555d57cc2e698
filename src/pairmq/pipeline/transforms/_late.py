"""Which messages were delivered after one that was sent later: the order of first copies (SPEC 8.1)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.pipeline.transforms.evidence import MESSAGE

DESIGNED, FAULT = "designed", "fault"

_KEY = ("pair", "entity", "order_key", "seen_by")


def order_key() -> Column:
    """Whose order counts: the key of the session, else that of the sender."""
    return F.coalesce("session_id", "sender")


def late_messages(gathered: DataFrame, strict: DataFrame) -> DataFrame:
    """Find the messages whose first copy stood behind that of a message that was sent later.

    Sent later means: its send was called after the earlier one had its receipt. Two sends that were in flight together
    have no order. What is late by the design of ``ordering="none"`` is told apart from faults: a diverted message may
    be overtaken by all but those that were diverted after it to the same backlog queue.

    Args:
        gathered: of `evidence`.
        strict: ``pair`` of every pair with ``ordering="session"``, where everything late is a fault.

    Returns:
        `MESSAGE`, and ``late``: ``designed`` or ``fault``.
    """
    known = gathered.filter((F.col("deliveries") > 0) & F.col("accepted_at").isNotNull() & order_key().isNotNull())
    known = known.select(
        *MESSAGE,
        order_key().alias("order_key"),
        # Without the broker's positions nobody can tell the order of what two processes have read.
        F.when(F.col("placed") > 0, F.lit(0)).otherwise(F.col("delivered_by")).alias("seen_by"),
        F.when(F.col("accepted_primary") == 0, F.col("backlog_queue")).alias("route"),
        "position",
        "accepted_at",
        "called_at",
    )
    late = _overtaken(known, _KEY)
    # Few messages are diverted, so that this second look is cheap.
    in_queue = _overtaken(known.filter("route IS NOT NULL"), (*_KEY, "route")).select(
        *MESSAGE, F.lit(True).alias("in_queue")
    )
    judged = late.join(in_queue, [*MESSAGE], "left").join(
        F.broadcast(strict.withColumn("strict", F.lit(True))), "pair", "left"
    )
    fault = F.col("route").isNull() | F.col("in_queue") | F.col("strict")
    return judged.select(*MESSAGE, F.when(fault, FAULT).otherwise(DESIGNED).alias("late"))


def _overtaken(known: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Those with a message ahead of them whose send was called after they had their receipt."""
    ahead = Window.partitionBy(*key).orderBy("position").rowsBetween(Window.unboundedPreceding, -1)
    return known.withColumn("latest_call", F.max("called_at").over(ahead)).filter("latest_call > accepted_at")
