"""What is known of each entity as a whole, of each session or sender in it, and of its minutes.

A minute counts where messages that arrived in it may have left a row in a hole of the journal.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F

from pairmq.model import EntityKind
from pairmq.model.events import Cause, JournalOpened, PairOpened, StateChanged
from pairmq.pipeline.transforms._fact import COUNT, FLAG, NUMBER, TEXT, schema_of, typed
from pairmq.pipeline.transforms._rows import MINUTE, PLACE, SLACK, extended, grouped, of_kind
from pairmq.pipeline.transforms.facts import ABOUT_MESSAGES, ARRIVED_AT, DELIVERED, FROM_LANE
from pairmq.pipeline.transforms.processes import with_hole_before

ARRIVALS = schema_of(
    {
        "place": COUNT,
        "session": COUNT,
        "sender": COUNT,
        "minute": COUNT,
        "messages": COUNT,
        "delivered": COUNT,
        **dict.fromkeys(("observed_from", "observed_until", "delivered_at", "last_delivered_at"), NUMBER),
        **dict.fromkeys(("known_from", "known_until"), NUMBER),
    }
)
"""One row for the messages of one session, or of one sender without sessions, in one entity and one minute.

The minute is that of their arrival, counted since 1970, see `MINUTE_OF`. ``delivered_at`` and ``last_delivered_at``
are of those that arrived at the primary; from ``known_from`` to ``known_until`` the journal has any of them.
"""

PLACES = schema_of(
    {
        "place": COUNT,
        "pair": TEXT,
        "entity": TEXT,
        "of_topic": FLAG,
        "strict": FLAG,
        "messages": COUNT,
        "observed_from": NUMBER,
        "observed_until": NUMBER,
        "drained_from": NUMBER,
        "emptied": types.ArrayType(schema_of({"since": NUMBER, "drained_at": NUMBER, "hole": NUMBER})),
        "least_kept": NUMBER,
        "journal_end": NUMBER,
        "clock_error": NUMBER,
        "lacking": FLAG,
        "absent": FLAG,
        "consumed": FLAG,
    }
)
"""One row for each entity of a pair that has messages.

``strict`` where order is promised; ``observed_from`` and ``observed_until`` are the first and the last arrival of what
was delivered; ``emptied`` holds when all backlog queues were seen empty: at ``drained_at`` what was diverted before
``since`` had left them, or was in a syphon's hands, and ``hole`` is the end of the last hole of the journal before the
patience was over after that; ``least_kept`` is the least part of the healthy sends that any process keeps;
``clock_error`` is the worst of the processes that wrote about it; ``lacking`` where rows of a process that consumed
from it are missing, and ``absent`` where it has no delivery at all, but another entity of its pair has; ``consumed``
where it has a delivery, be it from a lane.
"""


MINUTE_OF = f"floor(coalesce({ARRIVED_AT}, last_delivered_at, first_sent_at) / {MINUTE})"
"""The minute, counted since 1970, in which a message of `MESSAGES` arrived at the primary, in SQL.

Of one that did not, according to the journal, it is the minute in which it was delivered, or else refused.
"""


def arrivals(messages: DataFrame) -> DataFrame:
    """Count the messages, and compute when they were delivered first and last, sent and seen."""
    arrived = f"CASE WHEN deliveries > 0 THEN {ARRIVED_AT} END"
    counted = grouped(
        messages,
        # Whose order counts: the session's, else the sender's.
        ("place", "session", "CASE WHEN session IS NULL THEN sender END AS sender", f"{MINUTE_OF} AS minute"),
        "count(*) AS messages",
        "count_if(deliveries > 0 AND accepted_at IS NOT NULL) AS delivered",
        f"min({arrived}) AS observed_from",
        # It was there when it was delivered, regardless of its sender's clock.
        f"max(least({arrived}, last_delivered_at)) AS observed_until",
        "min(CASE WHEN arrived_at IS NOT NULL THEN delivered_at END) AS delivered_at",
        "max(CASE WHEN arrived_at IS NOT NULL THEN last_delivered_at END) AS last_delivered_at",
        "min(least(called_at, first_sent_at, delivered_at, arrived_at)) AS known_from",
        "max(greatest(first_sent_at, last_delivered_at)) AS known_until",
    )
    return typed(counted, ARRIVALS)


_NAMED = ("process", "pair", "entity", "entity_kind")


def places(
    counted: DataFrame,
    traffic: DataFrame,
    notes: DataFrame,
    spans: DataFrame,
    processes: DataFrame,
    *,
    patience: float,
) -> DataFrame:
    """Compute the places of each entity.

    For as long as the patience, in seconds, a syphon may hold a message that has left its queue.
    """
    noted = notes.filter(f"({ABOUT_MESSAGES}) OR entity IS NOT NULL").selectExpr(*_NAMED, "false AS reads")
    seen = traffic.selectExpr(*_NAMED, f"outcome IN ('{DELIVERED}', '{FROM_LANE}') AS reads")
    named = (
        seen.distinct()
        .unionByName(noted.distinct())
        .join(F.broadcast(processes.select("process", "clock_error", "missing", "dropped")), "process", "left")
    )
    known = grouped(
        named,
        ("pair", "entity"),
        f"max(coalesce(entity_kind = '{EntityKind.TOPIC}', false)) AS of_topic",
        "coalesce(max(clock_error), 0D) AS clock_error",
        "max(reads AND missing + dropped > 0) AS lacking",
        "max(reads) AS consumed",
    )
    sums = ("sum(messages) AS messages", "min(observed_from) AS observed_from", "max(observed_until) AS observed_until")
    # All queues were seen empty while the entity was draining: nothing from before that was left in them.
    drains = notes.filter(f"{of_kind(StateChanged)} AND cause = '{Cause.DRAINED}'").selectExpr(
        f"{PLACE} AS place", "at - lasted AS since", "at AS drained_at"
    )
    hidden = with_hole_before(drains.distinct(), ("place", "since", "drained_at"), "drained_at", spans, patience)
    when = "collect_list(struct(since, drained_at, hole)) AS emptied"
    emptied = grouped(hidden, ("place",), "max(since) AS drained_from", when)
    strict = notes.filter(f"{of_kind(PairOpened)} AND ordering = 'session'").selectExpr("pair", "true AS strict")
    kept = grouped(notes.filter(of_kind(JournalOpened)), (), "min(sample_healthy) AS least_kept")
    end = grouped(processes, (), "max(unix_micros(last_at) / 1000000 - clock_error) AS journal_end")
    known_places = (
        extended(known, place=PLACE)
        .join(grouped(counted, ("place",), *sums), "place")
        .join(F.broadcast(emptied), "place", "left")
        .join(F.broadcast(strict.distinct()), "pair", "left")
        .crossJoin(F.broadcast(end))
        .crossJoin(F.broadcast(kept))
    )
    watched = "count(observed_from) OVER (PARTITION BY pair) > 0"
    return typed(
        extended(
            known_places,
            strict="coalesce(strict, false)",
            absent=f"{watched} AND observed_from IS NULL AND NOT of_topic",
        ),
        PLACES,
    )


BLIND = schema_of({"place": COUNT, "minute": COUNT, "unseen": FLAG, "untold": FLAG})
"""``unseen`` where a delivery may be in a hole, ``untold`` where any row may be that would explain the known ones."""


def blind_minutes(arrived: DataFrame, spans: DataFrame, *, patience: float) -> DataFrame:
    """Compute the minutes for which a row about a message that arrived then may be in a hole.

    It was delivered by when the patience was over after a delivery of one that had arrived later by more than the
    patience. Consumers may have been stopped for long, so that this is long after it arrived.

    What explains existing rows, e.g. another send of the same id, happened no more than the patience before the first
    of them or after the last.
    """
    arrived = grouped(
        arrived.filter("minute IS NOT NULL"),
        ("place", "minute"),
        *(f"min({name}) AS {name}" for name in ("delivered_at", "known_from")),
        *(f"max({name}) AS {name}" for name in ("last_delivered_at", "known_until")),
    )
    # Backwards: of frames without an end Spark computes each anew.
    surely_later = (
        "OVER (PARTITION BY place ORDER BY minute DESC "
        f"RANGE BETWEEN UNBOUNDED PRECEDING AND {int(patience // MINUTE) + 2} PRECEDING)"
    )
    by = f"coalesce(min(delivered_at) {surely_later}, max(last_delivered_at) OVER (PARTITION BY place))"
    settled = extended(
        arrived,
        by=f"floor(({by} + {patience}D) / {MINUTE})",
        since=f"floor((known_from - {patience}D) / {MINUTE})",
        until=f"floor((known_until + {patience}D) / {MINUTE})",
    )
    # Of the holes that ended in a minute or after it, the earliest begin: no message needs to meet every hole.
    ends = spans.selectExpr(f"floor((ended + {SLACK}D) / {MINUTE}) AS minute", f"floor(began / {MINUTE}) AS began")
    asks = settled.selectExpr(
        "place", "minute", "stack(2, minute, by, true, since, until, false) AS (asked, until, near)"
    )
    asked = asks.selectExpr("asked AS minute", "CAST(NULL AS bigint) AS began").distinct()
    onwards = "min(began) OVER (PARTITION BY 0 ORDER BY minute DESC RANGE UNBOUNDED PRECEDING)"
    earliest = asked.unionByName(ends).selectExpr("minute AS asked", f"{onwards} AS began").distinct()
    met = asks.join(F.broadcast(earliest), "asked").filter("began <= until")
    blind = grouped(met, ("place", "minute"), "max(near) AS unseen", "NOT min(near) AS untold")
    return typed(blind, BLIND)
