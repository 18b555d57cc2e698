"""What the journal tells of each message: how often which kind of row, and when first; no judgement yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pairmq.model import EntityKind
from pairmq.model.events import (
    AttemptFailed,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    SendCompleted,
    SendOutcome,
    Settlement,
)
from pairmq.pipeline.transforms._rows import ended_as, of_kind

MESSAGE = ("pair", "entity", "message_key", "message_id")
"""What makes a message: one id may be sent to several entities, and is a message of its own in each."""

_MOST_STRAYS = 100_000


@dataclass(frozen=True, slots=True)
class _Clue:
    """One thing to know of a message.

    Args:
        value: what one row tells of it.
        joined: how rows are put together: ``sum``, ``min`` or ``max``.
    """

    value: Column
    joined: str


def evidence(rows: DataFrame) -> DataFrame:
    """Gather what the journal tells of each message.

    Args:
        rows: the journal's, each once.

    Returns:
        One row for each message that has an id: `MESSAGE`, and a column for each clue. Instants are seconds since
        1970 UTC. Texts that repeat are their keys, see `key_of`: a group's texts would have to be sorted, which takes
        several times as long as adding up numbers.
    """
    told = rows.filter(
        of_kind(SendCompleted, AttemptFailed, MessageMoved, MessageDeadLettered, MessageDelivered)
        & F.col("message_id").isNotNull()
        & (F.col("message_id") != "")
    )
    clues = _clues()
    # Each subscription of a topic gets a copy of its own: only a second one in the same subscription is too many.
    of_subscription = of_kind(MessageDelivered) & F.col("subscription").isNotNull()
    values = [clue.value.alias(name) for name, clue in clues.items()]
    single = told.filter(~of_subscription).select(*MESSAGE, *values, *_surplus(F.lit(0)))
    together = (
        told.filter(of_subscription)
        .select(*MESSAGE, "subscription", *values)
        .groupBy(*MESSAGE, "subscription")
        .agg(*_joined(clues))
        .select(*MESSAGE, *clues, *_surplus(F.col("completed")))
    )
    every = clues | {name: _Clue(F.col(name), "sum") for name in ("surplus", "by_subscription")}
    gathered = single.unionByName(together).groupBy(*MESSAGE).agg(*_joined(every))
    in_queue = F.greatest(F.col("completed") - F.col("by_subscription") - 1, F.lit(0))
    return _with_strays(gathered.withColumn("surplus", F.col("surplus") + in_queue).drop("by_subscription"), rows)


def _joined(clues: Mapping[str, _Clue]) -> list[Column]:
    functions = {"sum": F.sum, "min": F.min, "max": F.max}
    return [functions[clue.joined](name).alias(name) for name, clue in clues.items()]


def _surplus(completed: Column) -> tuple[Column, Column]:
    """Completions in one subscription: those after the first, and all."""
    return F.greatest(completed - 1, F.lit(0)).cast("long").alias("surplus"), completed.cast("long").alias(
        "by_subscription"
    )


def key_of(column: str) -> Column:
    """A number for a text that repeats; null for null."""
    return F.when(F.col(column).isNotNull(), F.xxhash64(column))


def words(rows: DataFrame) -> DataFrame:
    """Give the texts of the keys: ``key`` and ``word``. Sessions are not among them, which may be as many as messages.

    Args:
        rows: the journal's, each once.
    """
    columns = ("process", "sender", "backlog_queue", "reason")
    known = rows.filter(of_kind(SendCompleted, MessageMoved, MessageDeadLettered, MessageDelivered))
    each = known.select(*columns).distinct().select(F.explode(F.array(*columns)).alias("word")).distinct()
    return each.filter(F.col("word").isNotNull()).select(key_of("word").alias("key"), "word")


def _clues() -> dict[str, _Clue]:
    sent, moved, aside = of_kind(SendCompleted), of_kind(MessageMoved), of_kind(MessageDeadLettered)
    read = of_kind(MessageDelivered)
    delivered, buried = read & ~F.col("dead_letter"), read & F.col("dead_letter")
    completed = delivered & (F.col("settlement") == Settlement.COMPLETED.value)
    given_up = delivered & (F.col("settlement") == Settlement.DEAD_LETTERED.value)
    home, diverted = ended_as(SendOutcome.PRIMARY), ended_as(SendOutcome.BACKLOG)
    counts = {
        "sends": sent,
        "accepted_primary": home,
        "accepted_backlog": diverted,
        "refused": ended_as(SendOutcome.REFUSED),
        "unknown": ended_as(SendOutcome.UNKNOWN),
        "failures": of_kind(AttemptFailed),
        "doubts": of_kind(AttemptFailed) & F.col("maybe_applied"),
        "marked": sent & F.col("maybe_duplicate"),
        "moves": moved,
        "moves_again": moved & F.col("redelivered"),
        "moves_unfinished": moved & ~F.col("completed"),
        "set_aside": aside,
        "deliveries": delivered,
        "completed": completed,
        "unconfirmed": completed & F.col("error").isNotNull(),
        "redelivered": delivered & (F.col("delivery_count") > 1),
        "dead_lettered": given_up | buried,
        "of_topic": F.col("entity_kind") == EntityKind.TOPIC.value,
        "placed": delivered & _broker_position().isNotNull(),
    }
    texts = {
        "backlog_queue": ("backlog_queue", diverted),
        "sender": ("sender", sent),
        "session_id": ("session_id", sent),
        "reason": ("reason", aside | given_up),
        "sent_by": ("process", sent),
        "moved_by": ("process", moved | aside),
        "delivered_by": ("process", delivered),
    }
    at = F.col("at")
    instants = {
        "first_sent_at": (sent, at, "min"),
        "accepted_at": (home | diverted, at, "min"),
        "called_at": (home | diverted, at - F.col("elapsed"), "min"),
        "home_at": (home | moved, at, "max"),
        "diverted_at": (diverted, at, "min"),
        "last_diverted_at": (diverted, at, "max"),
        "moved_at": (moved, at, "min"),
        "set_aside_at": (aside, at, "min"),
        "delivered_at": (delivered, at, "min"),
        "last_delivered_at": (delivered, at, "max"),
        "position": (delivered, _position(), "min"),
        "time_to_live": (sent, F.col("time_to_live"), "max"),
    }
    return {
        **{name: _Clue(F.when(condition, 1).otherwise(0).cast("long"), "sum") for name, condition in counts.items()},
        **{name: _Clue(F.when(condition, value), joined) for name, (condition, value, joined) in instants.items()},
        **{name: _Clue(F.when(condition, key_of(column)), "min") for name, (column, condition) in texts.items()},
    }


def _broker_position() -> Column:
    """The broker's own position of a delivery in its queue, written as ``17`` or as ``1700000000000-3``."""
    text = F.col("sequence_number")
    major, minor = F.split_part(text, F.lit("-"), F.lit(1)), F.split_part(text, F.lit("-"), F.lit(2))
    pair = F.try_add(F.try_multiply(major.try_cast("long"), F.lit(1 << 20)), minor.try_cast("long"))
    return F.when(text.contains("-"), pair).otherwise(text.try_cast("long"))


def _position() -> Column:
    """The same; where the broker tells none, the instant at which the consumer got it, in microseconds."""
    return F.coalesce(_broker_position(), (F.coalesce("received_at", "at") * 1_000_000).cast("long"))


def _with_strays(gathered: DataFrame, rows: DataFrame) -> DataFrame:
    """Enter what was set aside with a destination that nobody could read, where its id is known all the same.

    Such a message would look lost. Anybody may fill a backlog queue with broken messages: there is a bound.
    """
    strays = (
        rows.filter(of_kind(MessageDeadLettered) & F.col("entity").isNull() & (F.col("message_id") != ""))
        .groupBy("pair", "message_key", "message_id")
        .agg(F.count("*").alias("strays"), F.min(key_of("reason")).alias("stray_reason"), F.min("at").alias("stray_at"))
        .limit(_MOST_STRAYS)
    )
    known = gathered.join(F.broadcast(strays), ["pair", "message_key", "message_id"], "left")
    owned = F.col("entity").isNotNull() & F.col("strays").isNotNull()
    return (
        known.withColumn("set_aside", F.col("set_aside") + F.when(owned, F.col("strays")).otherwise(0))
        .withColumn("reason", F.when(owned, F.coalesce("reason", "stray_reason")).otherwise(F.col("reason")))
        .withColumn("set_aside_at", F.when(owned, F.least("set_aside_at", "stray_at")).otherwise(F.col("set_aside_at")))
        .drop("strays", "stray_reason", "stray_at")
    )
