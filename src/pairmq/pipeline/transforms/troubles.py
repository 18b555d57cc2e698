"""What the notes tell of each message that met with something out of the ordinary; no judgement yet."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import (
    AttemptFailed,
    BacklogQueueChecked,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    SendCompleted,
    SendOutcome,
    Settlement,
)
from pairmq.pipeline.transforms._fact import COUNT, NUMBER, TEXT, schema_of, typed
from pairmq.pipeline.transforms._rows import ended_as, first_at, how_many, last_at, of_kind, place
from pairmq.pipeline.transforms.holes import with_hole_before
from pairmq.pipeline.transforms.messages import MESSAGE, about_messages, completed, delivered, key_of

COUNTS = (
    "accepted_backlog",
    "refused",
    "unknown",
    "failures",
    "doubts",
    "marked",
    "moves",
    "moves_again",
    "moves_unfinished",
    "moves_marked",
    "set_aside",
    "redelivered",
    "unconfirmed",
    "dead_lettered",
)
"""How often; what is not in the table counts as never."""

_INSTANTS = ("diverted_at", "last_diverted_at", "moved_at", "last_moved_at", "set_aside_at", "remade_at", "remade_hole")
_TEXTS = ("backlog_queue", "reason", "moved_by")
_MOST_STRAYS = 100_000

TROUBLES = schema_of(
    {
        "place": COUNT,
        "message_key": COUNT,
        "message_id": TEXT,
        **dict.fromkeys(COUNTS, COUNT),
        **dict.fromkeys(_INSTANTS, NUMBER),
        **dict.fromkeys(_TEXTS, TEXT),
    }
)
"""One row for each message that is in the notes."""

STRAYS = schema_of(
    {"pair": TEXT, "message_key": COUNT, "message_id": TEXT, "strays": COUNT, "stray_reason": TEXT, "stray_at": NUMBER}
)


def troubles(notes: DataFrame, spans: DataFrame, *, patience: float) -> DataFrame:
    """Gather what the notes tell of each message.

    Args:
        notes: of `NOTES`.
        spans: of `holes`.
        patience: seconds for which a syphon may hold a message that has left its queue.

    Returns:
        As `TROUBLES`. Instants are seconds since 1970 UTC. ``remade_at`` is when its backlog queue was last made anew,
        and ``remade_hole`` the end of the last hole of the journal before the patience was over after that.
    """
    gathered = (
        notes.filter(about_messages())
        .withColumn("place", place())
        .groupBy(*MESSAGE, "pair")
        .agg(
            *(how_many(condition).alias(name) for name, condition in _conditions().items()),
            first_at(ended_as(SendOutcome.BACKLOG)).alias("diverted_at"),
            last_at(ended_as(SendOutcome.BACKLOG)).alias("last_diverted_at"),
            first_at(of_kind(MessageMoved)).alias("moved_at"),
            last_at(of_kind(MessageMoved)).alias("last_moved_at"),
            first_at(of_kind(MessageDeadLettered)).alias("set_aside_at"),
            # The texts themselves would have to be sorted: several times as dear as to compare numbers.
            F.min(F.when(ended_as(SendOutcome.BACKLOG), key_of("backlog_queue"))).alias("backlog_queue"),
            F.min(F.when(of_kind(MessageDeadLettered) | _given_up(), key_of("reason"))).alias("reason"),
            F.min(F.when(of_kind(MessageMoved, MessageDeadLettered), key_of("process"))).alias("moved_by"),
        )
    )
    gathered = gathered.join(F.broadcast(_remade(notes, spans, patience)), ["pair", "backlog_queue"], "left")
    words = notes.select(F.explode(F.array("process", "backlog_queue", "reason")).alias("word")).distinct()
    for name in _TEXTS:
        texts = words.select(key_of("word").alias(name), F.col("word").alias(f"{name}_word"))
        gathered = gathered.join(texts, name, "left").withColumn(name, F.col(f"{name}_word"))
    return typed(gathered, TROUBLES)


def strays(notes: DataFrame) -> DataFrame:
    """Find what was set aside with a destination that nobody could read, where its id is known all the same.

    A message that is missing would look lost. Anybody may fill a backlog queue with broken messages: there is a bound.

    Args:
        notes: of `NOTES`.

    Returns:
        As `STRAYS`.
    """
    found = (
        notes.filter(of_kind(MessageDeadLettered) & F.col("entity").isNull() & (F.col("message_id") != ""))
        .groupBy("pair", "message_key", "message_id")
        .agg(
            F.count("*").alias("strays"),
            F.min_by("reason", key_of("reason")).alias("stray_reason"),
            F.min("at").alias("stray_at"),
        )
    )
    return typed(found.limit(_MOST_STRAYS), STRAYS)


def _conditions() -> dict[str, Column]:
    moved = of_kind(MessageMoved)
    return {
        "accepted_backlog": ended_as(SendOutcome.BACKLOG),
        "refused": ended_as(SendOutcome.REFUSED),
        "unknown": ended_as(SendOutcome.UNKNOWN),
        "failures": of_kind(AttemptFailed),
        "doubts": of_kind(AttemptFailed) & F.col("maybe_applied"),
        "marked": of_kind(SendCompleted) & F.col("maybe_duplicate"),
        "moves": moved,
        "moves_again": moved & F.col("redelivered"),
        "moves_unfinished": moved & ~F.col("completed"),
        "moves_marked": moved & F.col("maybe_duplicate"),
        "set_aside": of_kind(MessageDeadLettered),
        "redelivered": delivered() & (F.col("delivery_count") > 1),
        "unconfirmed": completed() & F.col("error").isNotNull(),
        "dead_lettered": _given_up() | (of_kind(MessageDelivered) & F.col("dead_letter")),
    }


def _given_up() -> Column:
    return delivered() & (F.col("settlement") == Settlement.DEAD_LETTERED.value)


def _remade(notes: DataFrame, spans: DataFrame, patience: float) -> DataFrame:
    """When each backlog queue was last made; what was in it before is gone."""
    made = notes.filter(of_kind(BacklogQueueChecked) & F.col("created"))
    queues = made.groupBy("pair", key_of("queue").alias("backlog_queue")).agg(F.max("at").alias("remade_at"))
    columns = ("pair", "backlog_queue", "remade_at")
    hidden = with_hole_before(queues, columns, "remade_at", spans, patience=patience)
    return hidden.withColumnRenamed("hole", "remade_hole")
