"""The table ``reconciliation``: what became of each message, and the evidence for it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import BacklogQueueChecked, Cause, PairOpened, StateChanged
from pairmq.pipeline.transforms._late import late_messages
from pairmq.pipeline.transforms._rows import MINUTE, of_kind
from pairmq.pipeline.transforms._table import Field, Table
from pairmq.pipeline.transforms.evidence import MESSAGE, key_of, words
from pairmq.pipeline.transforms.verdicts import move_may_be_missing, reasons, verdict

SLACK = 1.0
"""Seconds by which the clocks of two machines may differ."""

RECONCILIATION = Table(
    "reconciliation",
    "a message: an id, in one entity of one pair",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "where it belongs; null where a dead-lettered message's could not be read"),
        Field("message_id", "text", "its id"),
        Field("message_key", "count", "the id's hash, as in the journal"),
        Field("verdict", "text", "what became of it"),
        Field("late", "text", "`designed` or `fault` if it was delivered behind a message that was sent later"),
        Field("reason", "text", "why it was dead-lettered"),
        Field("hole", "yes or no", "the journal has a hole where a row about it may have been"),
        Field("sender", "text", "the id of the sender object"),
        Field(
            "session_key", "count", "its session's hash: `xxhash64` of the session id, which the table `order` tells"
        ),
        Field("backlog_queue", "text", "the backlog queue that accepted it"),
        Field("time_to_live", "number", "seconds"),
        Field("sends", "count", "sends of it that ended"),
        Field("accepted_primary", "count", "of these, accepted by the primary"),
        Field("accepted_backlog", "count", "of these, accepted by a backlog queue"),
        Field("refused", "count", "of these, refused"),
        Field("unknown", "count", "of these, with an unknown outcome"),
        Field("failures", "count", "failed attempts"),
        Field("doubts", "count", "of these, those that the broker may have taken all the same"),
        Field("moves", "count", "times that a syphon brought it home"),
        Field("moves_again", "count", "of these, after a syphon had got it before"),
        Field("moves_unfinished", "count", "of these, without completing it in the backlog"),
        Field("set_aside", "count", "times that a syphon dead-lettered it"),
        Field("deliveries", "count", "times that a consumer settled it in any way"),
        Field("completed", "count", "of these, completed"),
        Field("redelivered", "count", "of these, delivered before"),
        Field("unconfirmed", "count", "completions that the broker did not confirm"),
        Field("dead_lettered", "count", "times that a consumer dead-lettered it, or read it from a dead-letter queue"),
        Field("surplus", "count", "completions after the first; of a topic, in the same subscription"),
        Field("reasons", "count", "second copies that the journal explains"),
        Field("first_sent_at", "instant", "its first send ended"),
        Field("accepted_at", "instant", "its first receipt"),
        Field("diverted_at", "instant", "its first receipt of a backlog queue"),
        Field("moved_at", "instant", "a syphon first brought it home"),
        Field("set_aside_at", "instant", "a syphon first dead-lettered it"),
        Field("home_at", "instant", "it last arrived at the primary: accepted there, or brought home"),
        Field("delivered_at", "instant", "a consumer first settled it"),
        Field("last_delivered_at", "instant", "a consumer last settled it"),
        Field("sent_by", "text", "the process that sent it"),
        Field("moved_by", "text", "the process that moved it or set it aside"),
        Field("delivered_by", "text", "the process that consumed it"),
    ),
)

OBSERVATION = Table(
    "observation",
    "an entity, and how much of it the journal can tell",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the queue or topic"),
        Field("messages", "count", "messages in the reconciliation"),
        Field("observed_from", "instant", "the first of the delivered messages arrived; null if none was seen"),
        Field("observed_until", "instant", "the last of them arrived"),
        Field(
            "drained_from",
            "instant",
            "the latest instant of which is known that all diverted before it has left the backlog",
        ),
    ),
)


def reconciliation(gathered: DataFrame, spans: DataFrame, rows: DataFrame, *, patience: float) -> DataFrame:
    """Judge every message.

    Args:
        gathered: of `evidence`; read several times, so that it pays to have it written down.
        spans: of `holes`, likewise.
        rows: the journal's, each once.
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost.

    Returns:
        The table `RECONCILIATION`.
    """
    judged = (
        gathered.join(late_messages(gathered, _strict_pairs(rows)), [*MESSAGE], "left")
        .withColumn("patience", F.lit(patience))
        .withColumn("slack", F.lit(SLACK))
        .withColumn("last_known", F.floor(F.col("home_at") / MINUTE))
        .join(F.broadcast(_blind_minutes(spans, patience)), "last_known", "left")
        .crossJoin(F.broadcast(rows.agg(F.max("at").alias("journal_end"))))
        .join(F.broadcast(_sight(gathered)), ["pair", "entity"], "left")
        .join(F.broadcast(_emptied(rows, spans)), ["pair", "entity"], "left")
        .join(F.broadcast(_remade(rows, spans)), ["pair", "backlog_queue"], "left")
        .withColumn("hole", _hole())
        .withColumn("reasons", reasons())
        .withColumn("verdict", verdict())
        .withColumn("session_key", F.col("session_id"))
    )
    dictionary = words(rows)
    for name in ("sender", "backlog_queue", "reason", "sent_by", "moved_by", "delivered_by"):
        texts = F.broadcast(dictionary.select(F.col("key").alias(name), F.col("word").alias(f"{name}_word")))
        judged = judged.join(texts, name, "left").withColumn(name, F.col(f"{name}_word"))
    return RECONCILIATION.of(judged)


def observation(reconciled: DataFrame, rows: DataFrame) -> DataFrame:
    """Tell how much of each entity the journal can tell.

    Args:
        reconciled: the table ``reconciliation``.
        rows: the journal's, each once.

    Returns:
        The table `OBSERVATION`.
    """
    seconds = (F.unix_micros("home_at") / 1_000_000).alias("home_at")
    messages = reconciled.select("pair", "entity", "deliveries", seconds)
    drains = _drains(rows).groupBy("pair", "entity").agg(F.max("drained_from").alias("drained_from"))
    return OBSERVATION.of(_sight(messages).join(F.broadcast(drains), ["pair", "entity"], "left"))


def _sight(messages: DataFrame) -> DataFrame:
    """Between which arrivals the deliveries of an entity are journalled."""
    arrived = F.when(F.col("deliveries") > 0, F.col("home_at"))
    return messages.groupBy("pair", "entity").agg(
        F.count("*").alias("messages"), F.min(arrived).alias("observed_from"), F.max(arrived).alias("observed_until")
    )


def _drains(rows: DataFrame) -> DataFrame:
    """Before when whatever was diverted has left the backlog, by entity."""
    drained = of_kind(StateChanged) & (F.col("cause") == Cause.DRAINED.value)
    # All queues were seen empty while the entity was draining: nothing from before that was left in them.
    return (
        rows.filter(drained)
        .select(
            "pair", "entity", (F.col("at") - F.col("lasted")).alias("drained_from"), F.col("at").alias("drained_at")
        )
        .distinct()
    )


def _hole() -> Column:
    """Whether the row that would tell what became of a message may have been in a hole of the journal."""
    return F.when(F.col("home_at").isNull(), move_may_be_missing()).otherwise(F.coalesce("blind", F.lit(False)))


def _emptied(rows: DataFrame, spans: DataFrame) -> DataFrame:
    """When all backlog queues were seen empty: what was diverted before ``since`` had left them.

    Returns:
        ``pair``, ``entity`` and ``emptied``, an array of ``since`` and ``hole``, see `_with_hole_before`.
    """
    found = _with_hole_before(_drains(rows), "drained_at", spans)
    each = F.struct(F.col("drained_from").alias("since"), "hole")
    return found.groupBy("pair", "entity").agg(F.collect_list(each).alias("emptied"))


def _remade(rows: DataFrame, spans: DataFrame) -> DataFrame:
    """When each backlog queue was last made; what was in it before is gone."""
    made = rows.filter(of_kind(BacklogQueueChecked) & F.col("created"))
    queues = made.groupBy("pair", key_of("queue").alias("backlog_queue")).agg(F.max("at").alias("remade_at"))
    return _with_hole_before(queues, "remade_at", spans).withColumnRenamed("hole", "remade_hole")


def _with_hole_before(facts: DataFrame, instant: str, spans: DataFrame) -> DataFrame:
    """Add ``hole``, the end of the last hole that began before an instant: an earlier message's row may be in it."""
    earlier = facts.join(F.broadcast(spans), F.col("began") <= F.col(instant) + SLACK, "left")
    return earlier.groupBy(*facts.columns).agg(F.max("ended").alias("hole"))


def _strict_pairs(rows: DataFrame) -> DataFrame:
    """The pairs that promise order."""
    ordering = F.get_json_object("options", "$.ordering")
    return rows.filter(of_kind(PairOpened) & (ordering == "session")).select("pair").distinct()


def _blind_minutes(spans: DataFrame, patience: float) -> DataFrame:
    """The minutes of which it holds: a message that arrived then may have been moved or delivered in a hole."""
    minutes = F.sequence(F.floor((F.col("began") - patience) / MINUTE), F.floor((F.col("ended") + SLACK) / MINUTE))
    return spans.select(F.explode(minutes).alias("last_known")).distinct().withColumn("blind", F.lit(True))
