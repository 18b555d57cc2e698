"""The table ``reconciliation``: what became of each message, and the evidence for it.

The evidence is gathered first: what the notes say of each message that met with something out of the ordinary. The
rules in ``verdicts`` judge it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from pairmq.pipeline.transforms._fact import COUNT, NUMBER, TEXT, Field, Table, schema_of, typed
from pairmq.pipeline.transforms._rows import SLACK, ended_as, first_at, how_many, last_at, of_kind, place
from pairmq.pipeline.transforms.facts import (
    MESSAGE,
    about_messages,
    arrived_at,
    completed,
    delivered,
    key_of,
    ordinary,
    senders,
)
from pairmq.pipeline.transforms.order import ARRIVAL, FAULT, UNPROVEN
from pairmq.pipeline.transforms.places import minute_of
from pairmq.pipeline.transforms.processes import with_hole_before
from pairmq.pipeline.transforms.verdicts import (
    clock_may_deceive,
    move_may_be_missing,
    reasons,
    send_may_be_left_out,
    verdict,
)

RECONCILIATION = Table(
    "reconciliation",
    "a message: an id, in one entity of one pair",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "where it belongs; null where a dead-lettered message's could not be read"),
        Field("message_id", "text", "its id"),
        Field("message_key", "count", "the id's hash, as in the journal"),
        Field("verdict", "text", "what became of it"),
        Field(
            "late",
            "text",
            "`designed` or `fault` if it was delivered behind a message that was sent later; `unproven` for a fault "
            "where `hole`, or that a clock's error may explain",
        ),
        Field("reason", "text", "why it was dead-lettered"),
        Field(
            "hole",
            "yes or no",
            "the journal has a hole where a row about it may have been, or a clock that was set hides when it arrived",
            "false",
        ),
        Field("sender", "text", "the id of the sender object"),
        Field("session_key", "count", "its session's hash: `xxhash64` of the session id, which the table `order` has"),
        Field(
            "backlog_queue",
            "text",
            "the backlog queue that accepted it, or the outbox that stored it: from then, `first_sent_at`, to "
            "`moved_at` it took until the primary had it",
        ),
        Field("time_to_live", "number", "seconds"),
        Field("sends", "count", "sends of it that ended", "1"),
        Field("accepted_primary", "count", "of these, accepted by the primary", "0"),
        Field("accepted_backlog", "count", "of these, accepted by a backlog queue", "0"),
        Field("refused", "count", "of these, refused", "0"),
        Field("unknown", "count", "of these, with an unknown outcome", "0"),
        Field("failures", "count", "failed attempts", "0"),
        Field("doubts", "count", "of these, those that the broker may have accepted anyway", "0"),
        Field("moves", "count", "times that a syphon moved it to the primary", "0"),
        Field("moves_again", "count", "of these, after a syphon had received it before", "0"),
        Field("moves_unfinished", "count", "of these, without completing it in the backlog", "0"),
        Field("set_aside", "count", "times that a syphon dead-lettered it", "0"),
        Field("deliveries", "count", "times that a consumer settled it in any way", "0"),
        Field("completed", "count", "of these, completed", "0"),
        Field("redelivered", "count", "of these, delivered before", "0"),
        Field("unconfirmed", "count", "completions that the broker did not confirm", "0"),
        Field(
            "dead_lettered", "count", "times that a consumer dead-lettered it, or read it from a dead-letter queue", "0"
        ),
        Field("surplus", "count", "completions after the first; of a topic, in the same subscription", "0"),
        Field("reasons", "count", "second copies that the journal explains", "0"),
        Field("called_at", "instant", "the first call of a send that was accepted"),
        Field("first_sent_at", "instant", "its first send ended", "accepted_at"),
        Field("accepted_at", "instant", "its first receipt"),
        Field("diverted_at", "instant", "its first receipt of a backlog queue"),
        Field("moved_at", "instant", "a syphon first moved it to the primary"),
        Field("set_aside_at", "instant", "a syphon first dead-lettered it"),
        Field(
            "home_at",
            "instant",
            "it last arrived at the primary: accepted there, or moved there; of a scheduled one, no earlier than it "
            "was due",
            "CASE WHEN accepted_primary > 0 THEN accepted_at END",
        ),
        Field("delivered_at", "instant", "a consumer first settled it"),
        Field("last_delivered_at", "instant", "a consumer last settled it", "delivered_at"),
        Field("sent_by", "text", "the process that sent it"),
        Field("moved_by", "text", "the process that moved or dead-lettered it"),
        Field("delivered_by", "text", "the process that consumed it"),
    ),
)

OBSERVATION = Table(
    "observation",
    "an entity, and how much of it the journal covers",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the queue or topic"),
        Field("messages", "count", "messages in the reconciliation"),
        Field(
            "absent",
            "yes or no",
            "no delivery of it is in the journal, but deliveries of other entities of its pair are: the journal of its "
            "consumers is missing, or they keep none",
        ),
        Field("observed_from", "instant", "the first of the delivered messages arrived; null if none was seen"),
        Field("observed_until", "instant", "the last of them arrived, no later than it was delivered"),
        Field(
            "drained_from",
            "instant",
            "the latest instant of which is known that all diverted before it has left the backlog",
        ),
    ),
)


def reconciliation(
    messages: DataFrame,
    notes: DataFrame,
    counts: DataFrame,
    *,
    places: DataFrame,
    troubles: DataFrame,
    late: DataFrame,
    blind: DataFrame,
    processes: DataFrame,
    patience: float,
) -> DataFrame:
    """Judge every message.

    All but the messages are small in a journal of ordinary days, so that Spark sends them to where the messages are.

    Args:
        messages: of `MESSAGES`.
        notes: of `NOTES`.
        counts: of `COUNTS`.
        places: of `places`.
        troubles: of `troubles`.
        late: of `late`.
        blind: of `blind_minutes`.
        processes: the table.
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost.
    """
    # Each has a place. After an inner join Spark does not see that all rows are together, and sends them around.
    gathered = messages.withColumn("home_at", arrived_at()).join(F.broadcast(places), "place", "left")
    for found, identity in ((troubles, MESSAGE), (_surplus(notes), MESSAGE), (late, ARRIVAL)):
        gathered = _with(gathered, found, identity)
    never = {name: F.coalesce(name, F.lit(0)) for name in COUNTS}
    in_queue = F.greatest(F.col("completed") - F.col("by_subscription") - 1, F.lit(0))
    gathered = gathered.withColumns({**never, "surplus": F.coalesce("surplus", F.lit(0)) + in_queue})
    sends = F.col("accepted_primary") + F.col("accepted_backlog") + F.col("refused") + F.col("unknown")
    judged = (
        _with_strays(gathered.withColumn("sends", sends), _strays(notes))
        .withColumn("patience", F.lit(patience))
        .withColumn("slack", F.lit(SLACK))
        .withColumn("minute", minute_of())
        .join(_sent_by(processes), "sent_by", "left")
        .withColumn("doubt", _doubt())
        .join(blind, ["place", "minute"], "left")
        .withColumn("hole", _hole())
        .withColumn("untold", F.col("hole") | send_may_be_left_out())
        .withColumn("late", F.when((F.col("late") == FAULT) & _may_be_in_order(), UNPROVEN).otherwise(F.col("late")))
        .withColumn("reasons", reasons())
        .withColumn("verdict", verdict())
        .withColumn("session_key", F.col("session"))
    )
    judged = judged.withColumn("sent_by", F.col("sent_by_name"))
    names = processes.select(key_of("process").alias("key"), F.col("process").alias("name"))
    for column, dictionary in (("sender", senders(counts)), ("delivered_by", names)):
        texts = dictionary.select(F.col("key").alias(column), F.col("name").alias(f"{column}_name"))
        judged = judged.join(texts, column, "left").withColumn(column, F.col(f"{column}_name"))
    return RECONCILIATION.of(judged)


def _sent_by(processes: DataFrame) -> DataFrame:
    return processes.select(
        key_of("process").alias("sent_by"),
        F.col("process").alias("sent_by_name"),
        F.col("clock_error").alias("sender_error"),
    )


def _doubt() -> Column:
    """Seconds by which two instants may be wrong: one of this message, and one of any process that wrote of its place.

    Of a message that was moved, or sent twice, it is not known whose clock dated its arrival.
    """
    several = F.col("sends") + F.col("moves") > 1
    own = F.when(several, F.col("clock_error")).otherwise(F.coalesce("sender_error", F.lit(0.0)))
    return own + F.col("clock_error")


def _may_be_in_order() -> Column:
    """Whether a fault of the order is unproven: by a hole, or as the instants of those concerned may be wrong."""
    by_clock = (F.col("doubt") > 0) & ((F.col("late_by") <= F.col("doubt")) | (F.col("placed") == 0))
    return F.col("hole") | F.coalesce(by_clock, F.lit(False))


def _with(gathered: DataFrame, found: DataFrame, identity: Sequence[str]) -> DataFrame:
    """Add what was found of few messages, looked up by the hash of the id alone.

    Spark finds a number several times as fast as a row with a text in it. Only where the number is there the rest is
    compared, in a way that Spark does not take for an equality and look up as well.
    """
    theirs = {name: f"found_{name}" for name in identity}
    met = F.col("message_key") == F.col("found_message_key")
    for name in identity:
        if name != "message_key":
            met &= F.col(name).between(F.col(theirs[name]), F.col(theirs[name]))
    return gathered.join(found.withColumnsRenamed(theirs), met, "left").drop(*theirs.values())


def _surplus(notes: DataFrame) -> DataFrame:
    """Second completions in the same subscription."""
    copies = notes.filter(about_messages() & completed() & F.col("subscription").isNotNull())
    copies = copies.withColumn("place", place()).groupBy(*MESSAGE, "subscription").agg(F.count("*").alias("completed"))
    second = copies.filter(F.col("completed") > 1)
    return second.groupBy(*MESSAGE).agg(F.sum(F.col("completed") - 1).alias("surplus"))


def _with_strays(gathered: DataFrame, strays: DataFrame) -> DataFrame:
    """Enter what was dead-lettered with a destination that could not be read."""
    known = _with(gathered, F.broadcast(strays), ("pair", "message_key", "message_id"))
    owned = F.col("entity").isNotNull() & F.col("strays").isNotNull()
    return known.withColumns(
        {
            "set_aside": F.col("set_aside") + F.when(owned, F.col("strays")).otherwise(0),
            "reason": F.when(owned, F.coalesce("reason", "stray_reason")).otherwise(F.col("reason")),
            "set_aside_at": F.when(owned, F.least("set_aside_at", "stray_at")).otherwise(F.col("set_aside_at")),
        }
    )


def _hole() -> Column:
    """Whether the row that explains a message's fate may have been in a hole of the journal."""
    away, accepted = F.col("home_at").isNull(), F.col("accepted_at").isNotNull()
    # What was accepted by a backlog queue and delivered was moved back somehow: a row of it is missing.
    told = F.coalesce("untold", F.lit(False)) | (away & accepted)
    unseen = F.coalesce("unseen", F.lit(False)) | clock_may_deceive()
    waiting = F.when(away, move_may_be_missing()).otherwise(unseen)
    return F.when(accepted & (F.col("deliveries") == 0), waiting).otherwise(told)


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


def troubles(notes: DataFrame, spans: DataFrame, *, patience: float) -> DataFrame:
    """Aggregate the notes of each message.

    Args:
        notes: of `NOTES`.
        spans: of `holes`.
        patience: seconds for which a syphon may hold a message that has left its queue.

    Returns:
        As `TROUBLES`. Instants are seconds since 1970 UTC. ``remade_at`` is when its backlog queue was last made anew,
        and ``remade_hole`` the end of the last hole of the journal before the patience was over after that.
    """
    unusual = notes.filter(~ordinary())
    gathered = (
        unusual.filter(about_messages())
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
            F.min(F.when(_stored(), key_of("backlog_queue"))).alias("backlog_queue"),
            F.min(F.when(of_kind(MessageDeadLettered) | _given_up(), key_of("reason"))).alias("reason"),
            F.min(F.when(of_kind(MessageMoved, MessageDeadLettered), key_of("process"))).alias("moved_by"),
        )
    )
    gathered = gathered.join(F.broadcast(_remade(notes, spans, patience)), ["pair", "backlog_queue"], "left")
    words = unusual.select(F.explode(F.array("process", "backlog_queue", "reason")).alias("word")).distinct()
    for name in _TEXTS:
        texts = words.select(key_of("word").alias(name), F.col("word").alias(f"{name}_word"))
        gathered = gathered.join(texts, name, "left").withColumn(name, F.col(f"{name}_word"))
    return typed(gathered, TROUBLES)


def _strays(notes: DataFrame) -> DataFrame:
    """Find what was dead-lettered with a destination that could not be read, where its id is known all the same.

    A message that is missing would look lost. A backlog queue may be filled with broken messages by any client: there
    is a bound.
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
    return found.limit(_MOST_STRAYS)


def _conditions() -> dict[str, Column]:
    moved = of_kind(MessageMoved)
    return {
        "accepted_backlog": ended_as(SendOutcome.BACKLOG),
        "refused": ended_as(SendOutcome.REFUSED),
        "unknown": ended_as(SendOutcome.UNKNOWN) | ended_as(SendOutcome.OUTBOX),  # it may have been rolled back
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


def _stored() -> Column:
    return ended_as(SendOutcome.BACKLOG) | ended_as(SendOutcome.OUTBOX)


def _given_up() -> Column:
    return delivered() & (F.col("settlement") == Settlement.DEAD_LETTERED.value)


def _remade(notes: DataFrame, spans: DataFrame, patience: float) -> DataFrame:
    """When each backlog queue was last made; what was in it before is gone."""
    made = notes.filter(of_kind(BacklogQueueChecked) & F.col("created"))
    queues = made.groupBy("pair", key_of("queue").alias("backlog_queue")).agg(F.max("at").alias("remade_at"))
    columns = ("pair", "backlog_queue", "remade_at")
    hidden = with_hole_before(queues, columns, "remade_at", spans, patience=patience)
    return hidden.withColumnRenamed("hole", "remade_hole")
