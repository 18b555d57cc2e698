"""Which messages were delivered after one that was sent later: the order of first copies (SPEC 8.1).

The table ``order`` counts them for each session, or sender.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import DestinationChanged, SyphonFailed
from pairmq.pipeline.transforms._fact import COUNT, NUMBER, TEXT, Field, Table, schema_of, typed
from pairmq.pipeline.transforms._rows import PLACE, SLACK, extended, grouped, key_of, of_kind
from pairmq.pipeline.transforms.facts import text_of

DESIGNED, FAULT = "designed", "fault"
"""Allowed by the options, or against them."""

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

_ORDERED = "place, coalesce(session, sender), CASE WHEN placed > 0 THEN 0L ELSE got_first_by END"
"""Whose order counts is the session's, else the sender's. Without the broker's positions the order of two receivers'
messages is unknown."""

_STRUCK = f"""exists(struck, each -> (each.entity = entity OR each.queue = route)
AND each.at BETWEEN diverted_at - {SLACK}D AND last_moved_at + {SLACK}D)"""


def late(messages: DataFrame, troubles: DataFrame, places: DataFrame, notes: DataFrame) -> DataFrame:
    """Find the messages whose first copy was behind that of a message that was sent later.

    Sent later means: its send was called after the earlier one had its receipt. Two sends that were in flight together
    have no order. Lateness by the design of ``ordering="none"`` is distinguished from faults: a diverted message may be
    overtaken by all but those that were diverted after it to the same backlog queue, and where something failed on the
    way to the primary by these, too (SPEC 7.7). In places that are ``strict``, everything late is a fault.
    """
    # A scheduled message is meant to be overtaken. All of these are sorted: numbers alone.
    stood = messages.filter(
        "position IS NOT NULL AND (placed > 0 OR got_first_by = got_first_by_other) AND due_at IS NULL "
        "AND accepted_at IS NOT NULL AND coalesce(session, sender) IS NOT NULL"
    ).selectExpr(
        "place", "message_key", "position", "accepted_at", "called_at", "accepted_primary > 0 AS direct",
        f"xxhash64({_ORDERED}) AS lane",
    )  # fmt: skip
    # A diverted one is looked at once more, among those of its backlog queue.
    few = extended(stood, ahead=_latest_call_ahead("lane")).filter("ahead > accepted_at OR NOT direct")
    ways = troubles.filter("backlog_queue IS NOT NULL").selectExpr(
        "place", "message_key", "backlog_queue", "diverted_at", "last_moved_at", "moves_again"
    )
    known = few.join(ways, ["place", "message_key"], "left")
    known = extended(known, route="CASE WHEN NOT direct THEN backlog_queue END")
    behind = extended(known, ahead_in_queue=_latest_call_ahead("lane, route")).filter("ahead > accepted_at")
    # A pump that stops, for its destination or its queue, puts messages back behind others.
    stops = notes.filter(of_kind(DestinationChanged, SyphonFailed))
    struck = grouped(stops, ("pair",), "collect_list(struct(entity, queue, at)) AS struck")
    named = behind.join(F.broadcast(places.select("place", "pair", "entity", "strict")), "place", "left")
    judged = named.join(F.broadcast(struck), "pair", "left")
    undisturbed = f"moves_again = 0 AND last_moved_at IS NOT NULL AND NOT coalesce({_STRUCK}, false)"
    fault = f"direct OR strict OR (route IS NOT NULL AND ahead_in_queue > accepted_at AND {undisturbed})"
    late = f"CASE WHEN {fault} THEN '{FAULT}' ELSE '{DESIGNED}' END"
    return typed(extended(judged, late=late, late_by="ahead - accepted_at"), LATE)


def _latest_call_ahead(lane: str) -> str:
    """Messages at one position, such as those that a consumer got at once, are not ahead of each other."""
    ahead = "RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    return f"max(called_at) OVER (PARTITION BY {lane} ORDER BY position {ahead})"


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
    """Count by session and sender what was late."""
    # Few are late: the rest of the table is not looked at.
    late = reconciled.filter("late IS NOT NULL").selectExpr(
        f"{PLACE} AS place",
        "session_key AS session",
        f"CASE WHEN session_key IS NULL THEN {key_of('sender')} END AS sender",
        *("message_id", "late", "unix_micros(accepted_at) / 1000000 AS accepted_at"),
    )
    fault = f"CASE WHEN late = '{FAULT}' THEN accepted_at END"
    late = grouped(
        late,
        _LANE,
        f"count_if(late = '{DESIGNED}') AS overtaken",
        f"count_if(late = '{FAULT}') AS out_of_order",
        f"min_by(message_id, {fault}) AS first_out_of_order",
        f"min({fault}) AS first_out_of_order_at",
    )
    owned = counted.filter("delivered > 0 AND (session IS NOT NULL OR sender IS NOT NULL)")
    known = grouped(owned, _LANE, "sum(delivered) AS delivered")
    same = F.expr(" AND ".join(f"k.{name} <=> l.{name}" for name in _LANE))
    joined = (
        known.alias("k")
        .join(late.alias("l"), same, "left")
        .selectExpr(
            *(f"k.{name}" for name in (*_LANE, "delivered")),
            *(f"coalesce({name}, 0) AS {name}" for name in ("overtaken", "out_of_order")),
            *("first_out_of_order", "first_out_of_order_at"),
        )
    )
    for owner in ("sender", "session"):
        texts = text_of(names, owner).selectExpr(f"key AS {owner}", f"name AS {owner}_name")
        joined = joined.join(texts, owner, "left")
    named = joined.join(F.broadcast(places.select("place", "pair", "entity")), "place")
    owner = "CASE WHEN session IS NULL THEN concat('sender:', sender_name) ELSE concat('session:', session_name) END"
    return ORDER.of(extended(named, order_key=owner))
