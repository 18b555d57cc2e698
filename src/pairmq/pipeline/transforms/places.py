"""What is known of each entity as a whole, and of the messages of each session or sender in it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F

from pairmq.model import EntityKind
from pairmq.model.events import Cause, JournalOpened, PairOpened, StateChanged
from pairmq.pipeline.transforms._fact import COUNT, FLAG, NUMBER, TEXT, schema_of, typed
from pairmq.pipeline.transforms._rows import of_kind, place
from pairmq.pipeline.transforms.holes import with_hole_before
from pairmq.pipeline.transforms.messages import about_messages, arrived_at

LANES = schema_of(
    {
        "place": COUNT,
        "session": COUNT,
        "sender": COUNT,
        "messages": COUNT,
        "delivered": COUNT,
        "observed_from": NUMBER,
        "observed_until": NUMBER,
    }
)
"""One row for the messages of one session, or of one sender without sessions, in one entity."""

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
    }
)
"""One row for each entity of a pair that has messages.

``strict`` where order is promised; ``observed_from`` and ``observed_until`` are the first and the last arrival of what
was delivered; ``emptied`` tells when all backlog queues were seen empty: at ``drained_at`` what was diverted before
``since`` had left them, or was in a syphon's hands, and ``hole`` is the end of the last hole of the journal before the
patience was over after that; ``least_kept`` is the least part of the healthy sends that any process keeps.
"""


def lanes(messages: DataFrame) -> DataFrame:
    """Count the messages of each session, or sender.

    Args:
        messages: of `MESSAGES`.

    Returns:
        As `LANES`.
    """
    read = F.col("deliveries") > 0
    arrived = F.when(read, arrived_at())
    # Whose order counts: the session's, else the sender's.
    sender = F.when(F.col("session").isNull(), F.col("sender"))
    counted = messages.groupBy("place", "session", sender.alias("sender")).agg(
        F.count("*").alias("messages"),
        F.count_if(read & F.col("accepted_at").isNotNull()).alias("delivered"),
        F.min(arrived).alias("observed_from"),
        # It was there when it was delivered, whatever the clock of its sender says.
        F.max(F.least(arrived, "last_delivered_at")).alias("observed_until"),
    )
    return typed(counted, LANES)


def places(
    counted: DataFrame,
    traffic: DataFrame,
    notes: DataFrame,
    minutes: DataFrame,
    spans: DataFrame,
    *,
    patience: float,
) -> DataFrame:
    """Tell of each entity.

    Args:
        counted: of `lanes`.
        traffic: of `TRAFFIC`.
        notes: of `NOTES`.
        minutes: of `MINUTES`.
        spans: of `holes`.
        patience: seconds for which a syphon may hold a message that has left its queue.

    Returns:
        As `PLACES`.
    """
    named = traffic.select("pair", "entity", "entity_kind").unionByName(
        notes.filter(about_messages()).select("pair", "entity", "entity_kind")
    )
    topic = F.coalesce(F.col("entity_kind") == EntityKind.TOPIC.value, F.lit(False))
    known = named.groupBy("pair", "entity").agg(F.max(topic).alias("of_topic")).withColumn("place", place())
    sight = counted.groupBy("place").agg(
        F.sum("messages").alias("messages"),
        F.min("observed_from").alias("observed_from"),
        F.max("observed_until").alias("observed_until"),
    )
    drains = notes.filter(_drained()).select(
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
    told = (
        known.join(sight, "place")
        .join(F.broadcast(emptied), "place", "left")
        .join(F.broadcast(strict.withColumn("strict", F.lit(True))), "pair", "left")
        .crossJoin(F.broadcast(minutes.agg(F.max("last_at").alias("journal_end"))))
        .crossJoin(F.broadcast(kept))
        .withColumn("strict", F.coalesce("strict", F.lit(False)))
    )
    return typed(told, PLACES)


def _drained() -> Column:
    return of_kind(StateChanged) & (F.col("cause") == Cause.DRAINED.value)
