"""Which messages were delivered after one that was sent later: the order of first copies (SPEC 8.1).

The table ``order`` counts them for each session, or sender.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import DestinationChanged, SyphonFailed
from pairmq.pipeline.transforms._fact import COUNT, NUMBER, TEXT, Field, Table, schema_of, typed
from pairmq.pipeline.transforms._rows import SLACK, of_kind, place
from pairmq.pipeline.transforms.facts import MESSAGE, key_of, senders, sessions

DESIGNED, FAULT, UNPROVEN = "designed", "fault", "unproven"
"""Allowed by the options; against them; or against them, unless explained by lost rows of the journal."""

LATE = schema_of(
    {
        "place": COUNT,
        "message_key": COUNT,
        "position": COUNT,
        "accepted_at": NUMBER,
        "late": TEXT,
        "late_by": NUMBER,
    }
)
"""One row for each late message, identified by numbers only: two of one key, place and instant are the same.

``late_by`` are the seconds from its receipt to the latest call of those ahead of it.
"""

ARRIVAL = ("place", "message_key", "position", "accepted_at")
"""The identity of a message."""

_RECEIVED_LANE = ("place", "order_key", "seen_by")


def late(messages: DataFrame, troubles: DataFrame, places: DataFrame, notes: DataFrame) -> DataFrame:
    """Find the messages whose first copy was behind that of a message that was sent later.

    Sent later means: its send was called after the earlier one had its receipt. Two sends that were in flight together
    have no order. Lateness by the design of ``ordering="none"`` is distinguished from faults: a diverted message may be
    overtaken by all but those that were diverted after it to the same backlog queue, and where something failed on the
    way to the primary by these, too (SPEC 7.7).

    Args:
        messages: of `MESSAGES`.
        troubles: of `troubles`.
        places: of `places`: where ``strict``, everything late is a fault.
        notes: of `NOTES`.
    """
    stood = F.col("position").isNotNull() & (_placed() | (F.col("got_first_by") == F.col("got_first_by_other")))
    # A scheduled message is meant to be overtaken.
    known = messages.filter(
        stood & F.col("due_at").isNull() & F.col("accepted_at").isNotNull() & _order_key().isNotNull()
    )
    ordered = known.select(*ARRIVAL, *_lane(), "called_at", (F.col("accepted_primary") > 0).alias("at_primary"))
    behind = _overtaken(ordered, _RECEIVED_LANE)
    # Few messages are diverted, so that this second look is cheap.
    way = ("route", "diverted_at", "last_moved_at", "moves_again")
    ways = troubles.filter(F.col("backlog_queue").isNotNull()).withColumnRenamed("backlog_queue", "route")
    diverted = known.filter(F.col("accepted_primary") == 0).join(ways.select(*MESSAGE, *way), [*MESSAGE])
    diverted = diverted.select(*ARRIVAL, *_lane(), "called_at", *way)
    in_queue = _undisturbed(_overtaken(diverted, (*_RECEIVED_LANE, "route")), places, notes)
    in_queue = in_queue.select(*ARRIVAL, F.lit(True).alias("in_queue"))
    strict = F.broadcast(places.filter("strict").select("place", "strict"))
    judged = behind.join(in_queue, [*ARRIVAL], "left").join(strict, "place", "left")
    fault = F.col("at_primary") | F.col("in_queue") | F.col("strict")
    by = F.col("latest_call") - F.col("accepted_at")
    return typed(judged.withColumn("late", F.when(fault, FAULT).otherwise(DESIGNED)).withColumn("late_by", by), LATE)


def _order_key() -> Column:
    """Whose order counts: the key of the session, else that of the sender."""
    return F.coalesce("session", "sender")


def _placed() -> Column:
    return F.col("placed") > 0


def _lane() -> tuple[Column, Column]:
    # Without the broker's positions the order of two receivers' messages is unknown.
    seen_by = F.when(_placed(), F.lit(0)).otherwise(F.col("got_first_by"))
    return _order_key().alias("order_key"), seen_by.alias("seen_by")


def _overtaken(known: DataFrame, lane: tuple[str, ...]) -> DataFrame:
    """Those with a message ahead of them whose send was called after they had their receipt.

    Messages at one position, such as those that a consumer got at once, are not ahead of each other.
    """
    ahead = Window.partitionBy(*lane).orderBy("position").rangeBetween(Window.unboundedPreceding, -1)
    return known.withColumn("latest_call", F.max("called_at").over(ahead)).filter("latest_call > accepted_at")


def _undisturbed(diverted: DataFrame, places: DataFrame, notes: DataFrame) -> DataFrame:
    """Those moved without a failure: no pump stopped for its destination or queue, or received it twice.

    A pump that stops puts messages back behind others.
    """
    failures = notes.filter(of_kind(DestinationChanged, SyphonFailed)).select(
        F.col("pair").alias("of"),
        F.col("entity").alias("destination"),
        F.col("queue").alias("source"),
        F.col("at").alias("struck_at"),
    )
    met = (
        (F.col("of") == F.col("pair"))
        & ((F.col("destination") == F.col("entity")) | (F.col("source") == F.col("route")))
        & F.col("struck_at").between(F.col("diverted_at") - SLACK, F.col("last_moved_at") + SLACK)
    )
    named = diverted.filter("last_moved_at IS NOT NULL AND moves_again = 0").join(
        F.broadcast(places.select("place", "pair", "entity")), "place"
    )
    return named.join(failures, met, "left_anti")


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


def order(reconciled: DataFrame, counted: DataFrame, places: DataFrame, counts: DataFrame) -> DataFrame:
    """Count by session and sender what was late.

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
    owned = counted.filter((F.col("delivered") > 0) & (F.col("session").isNotNull() | F.col("sender").isNotNull()))
    known = owned.groupBy(*_LANE).agg(F.sum("delivered").alias("delivered"))
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
    owner = F.when(F.col("session").isNull(), F.concat(F.lit("sender:"), "sender_name"))
    owner = owner.otherwise(F.concat(F.lit("session:"), "session_name"))
    known = joined.join(_named(senders(counts), "sender"), "sender", "left")
    known = known.join(_named(sessions(counts), "session"), "session", "left")
    told = known.join(F.broadcast(places.select("place", "pair", "entity")), "place")
    return ORDER.of(told.withColumn("order_key", owner))


def _named(names: DataFrame, owner: str) -> DataFrame:
    return names.select(F.col("key").alias(owner), F.col("name").alias(f"{owner}_name"))
