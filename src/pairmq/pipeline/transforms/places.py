"""What is known of each entity as a whole, of each session or sender in it, and of its minutes.

A minute counts where messages that arrived in it may have left a row in a hole of the journal.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, types
from pyspark.sql import functions as F

from pairmq.model import EntityKind
from pairmq.model.events import Cause, JournalOpened, PairOpened, StateChanged
from pairmq.pipeline.transforms._fact import COUNT, FLAG, NUMBER, TEXT, schema_of, typed
from pairmq.pipeline.transforms._rows import MINUTE, SLACK, of_kind, place
from pairmq.pipeline.transforms.facts import DELIVERED, FROM_LANE, about_messages, arrived_at
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

The minute is that of their arrival, counted since 1970, see `minute_of`. ``delivered_at`` and ``last_delivered_at``
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


def minute_of() -> Column:
    """The minute, counted since 1970, in which a message of `MESSAGES` arrived at the primary.

    Of one that did not, according to the journal, it is the minute in which it was delivered, or else refused.
    """
    return F.floor(F.coalesce(arrived_at(), "last_delivered_at", "first_sent_at") / MINUTE)


def arrivals(messages: DataFrame) -> DataFrame:
    """Count the messages, and compute when they were delivered first and last, sent and seen."""
    read, is_there = F.col("deliveries") > 0, F.col("arrived_at").isNotNull()
    arrived = F.when(read, arrived_at())
    # Whose order counts: the session's, else the sender's.
    sender = F.when(F.col("session").isNull(), F.col("sender"))
    counted = messages.groupBy("place", "session", sender.alias("sender"), minute_of().alias("minute")).agg(
        F.count("*").alias("messages"),
        F.count_if(read & F.col("accepted_at").isNotNull()).alias("delivered"),
        F.min(arrived).alias("observed_from"),
        # It was there when it was delivered, regardless of its sender's clock.
        F.max(F.least(arrived, "last_delivered_at")).alias("observed_until"),
        F.min(F.when(is_there, F.col("delivered_at"))).alias("delivered_at"),
        F.max(F.when(is_there, F.col("last_delivered_at"))).alias("last_delivered_at"),
        F.min(F.least("called_at", "first_sent_at", "delivered_at", "arrived_at")).alias("known_from"),
        F.max(F.greatest("first_sent_at", "last_delivered_at")).alias("known_until"),
    )
    return typed(counted, ARRIVALS)


_NAMED = ("process", "pair", "entity", "entity_kind", "reads")


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
    noted = notes.filter(about_messages() | F.col("entity").isNotNull()).withColumn("reads", F.lit(False))
    seen = traffic.withColumn("reads", F.col("outcome").isin(DELIVERED, FROM_LANE)).select(*_NAMED).distinct()
    named = seen.unionByName(noted.select(*_NAMED).distinct()).join(
        F.broadcast(processes.select("process", "clock_error", "missing", "dropped")), "process", "left"
    )
    topic = F.coalesce(F.col("entity_kind") == EntityKind.TOPIC.value, F.lit(False))
    known = named.groupBy("pair", "entity").agg(
        F.max(topic).alias("of_topic"),
        F.coalesce(F.max("clock_error"), F.lit(0.0)).alias("clock_error"),
        F.max(F.col("reads") & (F.col("missing") + F.col("dropped") > 0)).alias("lacking"),
        F.max("reads").alias("consumed"),
    )
    known = known.withColumn("place", place())
    sight = counted.groupBy("place").agg(
        F.sum("messages").alias("messages"),
        F.min("observed_from").alias("observed_from"),
        F.max("observed_until").alias("observed_until"),
    )
    drained = of_kind(StateChanged) & (F.col("cause") == Cause.DRAINED.value)
    drains = notes.filter(drained).select(
        place().alias("place"), (F.col("at") - F.col("lasted")).alias("since"), F.col("at").alias("drained_at")
    )
    # All queues were seen empty while the entity was draining: nothing from before that was left in them.
    emptied = (
        with_hole_before(drains.distinct(), ("place", "since", "drained_at"), "drained_at", spans, patience=patience)
        .groupBy("place")
        .agg(
            F.max("since").alias("drained_from"),
            F.collect_list(F.struct("since", "drained_at", "hole")).alias("emptied"),
        )
    )
    strict = notes.filter(of_kind(PairOpened) & (F.col("ordering") == "session")).select("pair").distinct()
    kept = notes.filter(of_kind(JournalOpened)).agg(F.min("sample_healthy").alias("least_kept"))
    end = processes.agg(F.max(F.unix_micros("last_at") / 1_000_000 - F.col("clock_error")).alias("journal_end"))
    watched = F.count("observed_from").over(Window.partitionBy("pair")) > 0
    known_places = (
        known.join(sight, "place")
        .join(F.broadcast(emptied), "place", "left")
        .join(F.broadcast(strict.withColumn("strict", F.lit(True))), "pair", "left")
        .crossJoin(F.broadcast(end))
        .crossJoin(F.broadcast(kept))
        .withColumns(
            {
                "strict": F.coalesce("strict", F.lit(False)),
                "absent": watched & F.col("observed_from").isNull() & ~F.col("of_topic"),
            }
        )
    )
    return typed(known_places, PLACES)


BLIND = schema_of({"place": COUNT, "minute": COUNT, "unseen": FLAG, "untold": FLAG})
"""``unseen`` where a delivery may be in a hole, ``untold`` where any row may be that would explain the known ones."""


def blind_minutes(arrived: DataFrame, spans: DataFrame, *, patience: float) -> DataFrame:
    """Compute the minutes for which a row about a message that arrived then may be in a hole.

    It was delivered by when the patience was over after a delivery of one that had arrived later by more than the
    patience. Consumers may have been stopped for long, so that this is long after it arrived.

    What explains existing rows, e.g. another send of the same id, happened no more than the patience before the first
    of them or after the last.
    """
    arrived = (
        arrived.filter(F.col("minute").isNotNull())
        .groupBy("place", "minute")
        .agg(
            *(F.min(name).alias(name) for name in ("delivered_at", "known_from")),
            *(F.max(name).alias(name) for name in ("last_delivered_at", "known_until")),
        )
    )
    entity = Window.partitionBy("place")
    # Backwards: of frames without an end Spark computes each anew.
    backwards = entity.orderBy(F.desc("minute"))
    surely_later = backwards.rangeBetween(Window.unboundedPreceding, -int(patience // MINUTE) - 2)
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
    asks = settled.selectExpr(
        "place", "minute", "stack(2, minute, by, true, since, until, false) AS (asked, until, near)"
    )
    nothing = F.lit(None).cast("long").alias("began")
    asked = asks.select(F.col("asked").alias("minute"), nothing).distinct()
    onwards = Window.partitionBy(F.lit(0)).orderBy(F.desc("minute")).rangeBetween(Window.unboundedPreceding, 0)
    earliest = asked.unionByName(ends).withColumn("began", F.min("began").over(onwards)).distinct()
    met = asks.join(F.broadcast(earliest.withColumnRenamed("minute", "asked")), "asked").filter("began <= until")
    blind = met.groupBy("place", "minute").agg(F.max("near").alias("unseen"), (~F.min("near")).alias("untold"))
    return typed(blind, BLIND)
