"""The table ``reconciliation``: what became of each message, and the evidence for it.

The evidence is gathered first: what the notes say of each message that met with something out of the ordinary. The
rules in ``verdicts`` judge it.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
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
from pairmq.pipeline.transforms._rows import (
    PLACE,
    SLACK,
    ended_as,
    extended,
    first_at,
    grouped,
    key_of,
    last_at,
    of_kind,
)
from pairmq.pipeline.transforms.facts import (
    ABOUT_MESSAGES,
    ARRIVED_AT,
    COMPLETED,
    MESSAGE,
    ORDINARY,
    READ_BY_CONSUMER,
    text_of,
)
from pairmq.pipeline.transforms.places import MINUTE_OF
from pairmq.pipeline.transforms.processes import with_hole_before
from pairmq.pipeline.transforms.verdicts import FLAGS, Verdict, verdict

_READ = "CASE WHEN delivered_at IS NULL THEN 0 ELSE 1 END"

RECONCILIATION = Table(
    "reconciliation",
    "a message: an id, in one entity of one pair",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "where it belongs; null where a dead-lettered message's could not be read"),
        Field("message_id", "text", "its id"),
        Field("verdict", "text", "what became of it"),
        Field(
            "late",
            "text",
            "`designed` or `fault` if it was delivered behind a message that was sent later; `unproven` for a fault "
            "where `hole`, or that a clock's error may explain",
        ),
        Field("sender", "text", "the id of the sender object"),
        Field("session_key", "count", "its session's hash: `xxhash64` of the session id, which the table `order` has"),
        Field("time_to_live", "number", "seconds"),
        Field("called_at", "instant", "the first call of a send that was accepted"),
        Field("accepted_at", "instant", "its first receipt"),
        Field("delivered_at", "instant", "a consumer first settled it"),
        Field("sent_by", "text", "the process that sent it"),
        Field("delivered_by", "text", "the process that consumed it"),
        Field("reason", "text", "why it was dead-lettered", "NULL"),
        Field(
            "hole",
            "yes or no",
            "the journal has a hole where a row about it may have been, or a clock that was set hides when it arrived",
            "false",
        ),
        Field(
            "backlog_queue",
            "text",
            "the backlog queue that accepted it, or the outbox that stored it: from then, `first_sent_at`, to "
            "`moved_at` it took until the primary had it",
            "NULL",
        ),
        Field("sends", "count", "sends of it that ended", "1"),
        Field("accepted_primary", "count", "of these, accepted by the primary", "1"),
        Field("accepted_backlog", "count", "of these, accepted by a backlog queue", "0"),
        Field("refused", "count", "of these, refused", "0"),
        Field("unknown", "count", "of these, with an unknown outcome", "0"),
        Field("failures", "count", "failed attempts", "0"),
        Field("doubts", "count", "of these, those that the broker may have accepted anyway", "0"),
        Field("moves", "count", "times that a syphon moved it to the primary", "0"),
        Field("moves_again", "count", "of these, after a syphon had received it before", "0"),
        Field("moves_unfinished", "count", "of these, without completing it in the backlog", "0"),
        Field("set_aside", "count", "times that a syphon dead-lettered it", "0"),
        Field("deliveries", "count", "times that a consumer settled it in any way", _READ),
        Field("completed", "count", "of these, completed", _READ),
        Field("redelivered", "count", "of these, delivered before", "0"),
        Field("unconfirmed", "count", "completions that the broker did not confirm", "0"),
        Field(
            "dead_lettered", "count", "times that a consumer dead-lettered it, or read it from a dead-letter queue", "0"
        ),
        Field("surplus", "count", "completions after the first; of a topic, in the same subscription", "0"),
        Field("reasons", "count", "second copies that the journal explains", "0"),
        Field("first_sent_at", "instant", "its first send ended", "accepted_at"),
        Field("diverted_at", "instant", "its first receipt of a backlog queue", "NULL"),
        Field("moved_at", "instant", "a syphon first moved it to the primary", "NULL"),
        Field("set_aside_at", "instant", "a syphon first dead-lettered it", "NULL"),
        Field(
            "arrived_at",
            "instant",
            "it last arrived at the primary: accepted there, or moved there; of a scheduled one, no earlier than it "
            "was due",
            "accepted_at",
        ),
        Field("last_delivered_at", "instant", "a consumer last settled it", "delivered_at"),
        Field("moved_by", "text", "the process that moved or dead-lettered it", "NULL"),
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


_FAILED, _MOVED, _SET_ASIDE = map(of_kind, (AttemptFailed, MessageMoved, MessageDeadLettered))
_GIVEN_UP = f"{READ_BY_CONSUMER} AND settlement = '{Settlement.DEAD_LETTERED.value}'"
_COUNTED = {
    "accepted_backlog": ended_as(SendOutcome.BACKLOG),
    "refused": ended_as(SendOutcome.REFUSED),
    "unknown": ended_as(SendOutcome.UNKNOWN, SendOutcome.OUTBOX),  # it may have been rolled back
    "failures": _FAILED,
    "doubts": f"{_FAILED} AND maybe_applied",
    "marked": f"kind = '{SendCompleted.__name__}' AND maybe_duplicate",
    "moves": _MOVED,
    "moves_again": f"{_MOVED} AND redelivered",
    "moves_unfinished": f"{_MOVED} AND NOT completed",
    "moves_marked": f"{_MOVED} AND maybe_duplicate",
    "set_aside": _SET_ASIDE,
    "redelivered": f"{READ_BY_CONSUMER} AND delivery_count > 1",
    "unconfirmed": f"{COMPLETED} AND error IS NOT NULL",
    "dead_lettered": f"({_GIVEN_UP}) OR (kind = '{MessageDelivered.__name__}' AND dead_letter)",
}
"""Which notes of a message are counted, in SQL; what none is about counts as never."""

_INSTANTS = ("diverted_at", "last_diverted_at", "moved_at", "last_moved_at", "set_aside_at", "remade_at", "remade_hole")
_TEXTS = ("backlog_queue", "reason", "moved_by")
_MOST_STRAYS = 100_000


def _with(gathered: DataFrame, found: DataFrame, *identity: str) -> DataFrame:
    """Look up what was found of few messages, by the hash of the id alone.

    Spark finds a number several times as fast as a row with a text in it. Only where the number is there the rest is
    compared, in a way that Spark does not take for an equality and look up as well.
    """
    theirs = {name: f"its_{name}" for name in ("message_key", *identity)}
    same = " AND ".join(f"{name} BETWEEN its_{name} AND its_{name}" for name in identity)
    met = F.expr(f"message_key = its_message_key AND {same}")
    return gathered.join(found.withColumnsRenamed(theirs), met, "left").drop(*theirs.values())


def _named(gathered: DataFrame, column: str, names: DataFrame, *others: str) -> DataFrame:
    """Put a text in the place of its key, given the ``name`` of each ``key``."""
    theirs = names.selectExpr(f"key AS {column}", f"name AS {column}_name", *others)
    return extended(gathered.join(theirs, column, "left"), **{column: f"{column}_name"})


def _second(notes: DataFrame) -> DataFrame:
    """Completions of a topic's message in the same subscription, after the first."""
    noted = notes.filter(f"{ABOUT_MESSAGES} AND {COMPLETED} AND subscription IS NOT NULL")
    message = (f"{PLACE} AS place", *MESSAGE[1:])
    copies = grouped(noted, (*message, "subscription"), "count(*) AS n").filter("n > 1")
    return grouped(copies, MESSAGE, "sum(n - 1) AS copies")


def _strays(notes: DataFrame) -> DataFrame:
    """What was dead-lettered with a destination that could not be read, where its id is known all the same.

    A message that is missing would look lost. A backlog queue may be filled with broken messages by any client: there
    is a bound.
    """
    return grouped(
        notes.filter(f"{_SET_ASIDE} AND entity IS NULL AND message_id <> ''"),
        ("pair", "message_key", "message_id"),
        "count(*) AS strays",
        "min_by(reason, xxhash64(reason)) AS stray_reason",
        "min(at) AS stray_at",
    ).limit(_MOST_STRAYS)


_SENDS = "accepted_primary + accepted_backlog + refused + unknown"
_MET = {
    "plain": "failures IS NULL AND strays IS NULL AND accepted_primary = 1 AND deliveries <= 1 "
    "AND completed = deliveries AND due_at IS NULL",
    "strays": "CASE WHEN entity IS NOT NULL THEN strays END",
    "surplus": "coalesce(copies, 0) + greatest(completed - by_subscription - 1, 0)",
    **{name: f"coalesce({name}, 0)" for name in _COUNTED},
}
_GATHERED = {
    "sends": _SENDS,
    "set_aside": "set_aside + coalesce(strays, 0)",
    "reason": "CASE WHEN strays IS NOT NULL THEN coalesce(reason, stray_reason) ELSE reason END",
    "set_aside_at": "CASE WHEN strays IS NOT NULL THEN least(set_aside_at, stray_at) ELSE set_aside_at END",
    # Two instants may be wrong: one of the message, and one of any process that wrote of its place. Of a message that
    # was moved, or sent twice, it is not known whose clock dated its arrival.
    "doubt": f"clock_error + CASE WHEN {_SENDS} + moves > 1 THEN clock_error ELSE coalesce(sender_error, 0D) END",
}
"""What the flags of the verdicts ask for; plain is what the journal has one send of, accepted by the primary, and one
completion or none."""


_USUAL = "accepted_primary = 1 AND deliveries = 1 AND completed = 1 AND due_at IS NULL"
"""What nearly every message is, and delivered by the rules, if nothing else is known of it and no hole near."""


def reconciliation(
    messages: DataFrame,
    notes: DataFrame,
    names: DataFrame,
    places: DataFrame,
    troubles: DataFrame,
    late: DataFrame,
    blind: DataFrame,
    processes: DataFrame,
    *,
    patience: float,
    divided: bool = True,
) -> DataFrame:
    """Judge every message.

    Nearly all are plain, and known to be delivered before any rule is asked; only the others meet all that is known.
    Not divided, the rules judge all of them, with the same result. Everything but the messages is small in a journal of
    ordinary days, so that Spark sends it to where these are.
    """
    known = extended(messages, minute=MINUTE_OF, arrived_at=ARRIVED_AT, session_key="session")
    programs = processes.selectExpr(f"{key_of('process')} AS key", "process AS name", "clock_error AS sender_error")
    senders = text_of(names, "sender")

    def named(gathered: DataFrame) -> DataFrame:
        gathered = _named(gathered, "sent_by", programs, "sender_error")
        return _named(_named(gathered, "delivered_by", programs), "sender", senders)

    second, strays = _second(notes), _strays(notes)
    rest, usual = known, None
    if divided:
        # By the hash alone: one more that shares it is judged by the rules, too.
        apart = reduce(DataFrame.union, (each.select("message_key") for each in (troubles, second, late, strays)))
        marked = (
            extended(known, usual=f"coalesce({_USUAL}, false)")
            .join(apart.distinct().selectExpr("*", "true AS apart"), "message_key", "left")
            .join(blind.selectExpr("place", "minute", "true AS unsure"), ["place", "minute"], "left")
        )
        plain = "usual AND apart IS NULL AND unsure IS NULL"
        own = F.broadcast(places.select("place", "pair", "entity"))
        usual = marked.filter(plain).drop("usual", "apart", "unsure").join(own, "place", "left")
        rest = marked.filter(f"NOT ({plain})").drop("usual", "apart", "unsure")
    # Each has a place. After an inner join Spark does not see that all rows are together, and sends them around.
    gathered = extended(rest, patience=f"{patience}D", slack=f"{SLACK}D")
    gathered = gathered.join(F.broadcast(places), "place", "left")
    for found in (troubles, second):
        gathered = _with(gathered, found, "place", "message_id")
    gathered = _with(gathered, late, "place", "position", "accepted_at")
    gathered = _with(gathered, F.broadcast(strays), "pair", "message_id")
    judged = named(gathered).join(blind, ["place", "minute"], "left")
    for flags in (_MET, _GATHERED, *FLAGS):
        judged = extended(judged, **flags)
    unusual = RECONCILIATION.of(extended(judged, verdict=verdict()), "NOT plain")
    if usual is None:
        return unusual
    delivered = extended(named(usual), verdict=f"'{Verdict.DELIVERED}'", late="NULL")
    return RECONCILIATION.of(delivered, usual=True).unionByName(unusual)


TROUBLES = schema_of(
    {
        "place": COUNT,
        "message_key": COUNT,
        "message_id": TEXT,
        **dict.fromkeys(_COUNTED, COUNT),
        **dict.fromkeys(_INSTANTS, NUMBER),
        **dict.fromkeys(_TEXTS, TEXT),
    }
)
"""One row for each message that is in the notes."""


def troubles(notes: DataFrame, spans: DataFrame, *, patience: float) -> DataFrame:
    """Aggregate the notes of each message.

    ``remade_at`` is when its backlog queue was last made anew, and ``remade_hole`` the end of the last hole of the
    journal before the patience was over after that.
    """
    stored, diverted = ended_as(SendOutcome.BACKLOG, SendOutcome.OUTBOX), ended_as(SendOutcome.BACKLOG)
    unusual = notes.filter(f"NOT {ORDINARY}")
    gathered = grouped(
        unusual.filter(ABOUT_MESSAGES),
        (f"{PLACE} AS place", *MESSAGE[1:], "pair"),
        *(f"count_if({condition}) AS {name}" for name, condition in _COUNTED.items()),
        f"{first_at(diverted)} AS diverted_at",
        f"{last_at(diverted)} AS last_diverted_at",
        f"{first_at(_MOVED)} AS moved_at",
        f"{last_at(_MOVED)} AS last_moved_at",
        f"{first_at(_SET_ASIDE)} AS set_aside_at",
        # The texts themselves would have to be sorted: several times as dear as to compare numbers.
        f"min(CASE WHEN {stored} THEN {key_of('backlog_queue')} END) AS backlog_queue",
        f"min(CASE WHEN {_SET_ASIDE} OR ({_GIVEN_UP}) THEN {key_of('reason')} END) AS reason",
        f"min(CASE WHEN {_MOVED} OR {_SET_ASIDE} THEN {key_of('process')} END) AS moved_by",
    )
    gathered = gathered.join(F.broadcast(_remade(notes, spans, patience)), ["pair", "backlog_queue"], "left")
    said = unusual.select("process", "backlog_queue", "reason").distinct()  # few: what follows is done for each word
    words = said.selectExpr("explode(array(process, backlog_queue, reason)) AS word").distinct()
    for name in _TEXTS:
        texts = words.selectExpr(f"{key_of('word')} AS {name}", f"word AS {name}_word")
        gathered = extended(gathered.join(texts, name, "left"), **{name: f"{name}_word"})
    return typed(gathered, TROUBLES)


def _remade(notes: DataFrame, spans: DataFrame, patience: float) -> DataFrame:
    """When each backlog queue was last made; what was in it before is gone."""
    made = notes.filter(f"{of_kind(BacklogQueueChecked)} AND created")
    queues = grouped(made, ("pair", f"{key_of('queue')} AS backlog_queue"), "max(at) AS remade_at")
    hidden = with_hole_before(queues, ("pair", "backlog_queue", "remade_at"), "remade_at", spans, patience)
    return hidden.withColumnRenamed("hole", "remade_hole")
