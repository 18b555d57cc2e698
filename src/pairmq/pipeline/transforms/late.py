"""Which messages were delivered after one that was sent later: the order of first copies (SPEC 8.1)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import DestinationChanged, SyphonFailed
from pairmq.pipeline.transforms._fact import COUNT, NUMBER, TEXT, schema_of, typed
from pairmq.pipeline.transforms._rows import SLACK, of_kind
from pairmq.pipeline.transforms.messages import MESSAGE

DESIGNED, FAULT, UNPROVEN = "designed", "fault", "unproven"
"""By the options; against them; or against them, unless the journal has lost what would tell otherwise."""

LATE = schema_of({"place": COUNT, "message_key": COUNT, "position": COUNT, "accepted_at": NUMBER, "late": TEXT})
"""One row for each late message, told by numbers only: two of one key, place and instant are the same."""

ARRIVAL = ("place", "message_key", "position", "accepted_at")
"""What tells one of these from all other messages."""

_LANE = ("place", "order_key", "seen_by")


def late(messages: DataFrame, troubles: DataFrame, places: DataFrame, notes: DataFrame) -> DataFrame:
    """Find the messages whose first copy stood behind that of a message that was sent later.

    Sent later means: its send was called after the earlier one had its receipt. Two sends that were in flight together
    have no order. What is late by the design of ``ordering="none"`` is told apart from faults: a diverted message may
    be overtaken by all but those that were diverted after it to the same backlog queue, and where something failed on
    its way home by these, too (SPEC 7.7).

    Args:
        messages: of `MESSAGES`.
        troubles: of `troubles`.
        places: of `places`: where ``strict``, everything late is a fault.
        notes: of `NOTES`.

    Returns:
        As `LATE`, each ``designed`` or ``fault``.
    """
    stood = F.col("position").isNotNull() & (_placed() | (F.col("got_first_by") == F.col("got_first_by_other")))
    # Whoever schedules a message asks for others to overtake it.
    known = messages.filter(
        stood & F.col("due_at").isNull() & F.col("accepted_at").isNotNull() & _order_key().isNotNull()
    )
    ordered = known.select(*ARRIVAL, *_lane(), "called_at", (F.col("accepted_primary") > 0).alias("at_primary"))
    behind = _overtaken(ordered, _LANE)
    # Few messages are diverted, so that this second look is cheap.
    way = ("route", "diverted_at", "last_moved_at", "moves_again")
    ways = troubles.filter(F.col("backlog_queue").isNotNull()).withColumnRenamed("backlog_queue", "route")
    diverted = known.filter(F.col("accepted_primary") == 0).join(ways.select(*MESSAGE, *way), [*MESSAGE])
    diverted = diverted.select(*ARRIVAL, *_lane(), "called_at", *way)
    in_queue = _undisturbed(_overtaken(diverted, (*_LANE, "route")), places, notes)
    in_queue = in_queue.select(*ARRIVAL, F.lit(True).alias("in_queue"))
    strict = F.broadcast(places.filter("strict").select("place", "strict"))
    judged = behind.join(in_queue, [*ARRIVAL], "left").join(strict, "place", "left")
    fault = F.col("at_primary") | F.col("in_queue") | F.col("strict")
    return typed(judged.withColumn("late", F.when(fault, FAULT).otherwise(DESIGNED)), LATE)


def _order_key() -> Column:
    """Whose order counts: the key of the session, else that of the sender."""
    return F.coalesce("session", "sender")


def _placed() -> Column:
    return F.col("placed") > 0


def _lane() -> tuple[Column, Column]:
    # Without the broker's positions nobody can tell the order of what two receivers have read.
    seen_by = F.when(_placed(), F.lit(0)).otherwise(F.col("got_first_by"))
    return _order_key().alias("order_key"), seen_by.alias("seen_by")


def _overtaken(known: DataFrame, lane: tuple[str, ...]) -> DataFrame:
    """Those with a message ahead of them whose send was called after they had their receipt.

    Messages at one position, such as those that a consumer got at once, are not ahead of each other.
    """
    ahead = Window.partitionBy(*lane).orderBy("position").rangeBetween(Window.unboundedPreceding, -1)
    return known.withColumn("latest_call", F.max("called_at").over(ahead)).filter("latest_call > accepted_at")


def _undisturbed(diverted: DataFrame, places: DataFrame, notes: DataFrame) -> DataFrame:
    """Those on whose way home nothing failed: no pump stopped for its destination or queue, or got it twice.

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
