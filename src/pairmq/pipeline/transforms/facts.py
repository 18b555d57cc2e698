"""All facts of a journal: small, or as large as its messages, and enough to make every table of.

Rows are read only to make facts, and tables are made only of facts. So a journal that grows has to be read once, part
by part: the facts of its parts are merged, and the tables are the same as those of the whole.

Nearly every message is sent once, accepted by the primary, and completed once. The fact ``messages`` has just the
columns that such a message needs, because it is the only one that grows with the journal; what else may happen to a
message is in ``notes``. In a healthy journal these are few: nothing of what the primary accepts, and nothing of what
consumers complete at once, is among them. In an outage there is one for every diverted message, and one more when it
is moved back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F

from pairmq.model.events import (
    AttemptFailed,
    BacklogQueueChecked,
    DestinationChanged,
    EventsDropped,
    JournalClosed,
    JournalOpened,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    OperationsCounted,
    PairEnded,
    PairOpened,
    PingCompleted,
    ReceiverChanged,
    RotationChanged,
    SendCompleted,
    SendOutcome,
    Settlement,
    Side,
    StateChanged,
    SyphonFailed,
)
from pairmq.pipeline.schema import rows_schema
from pairmq.pipeline.transforms._fact import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Fact,
    schema_of,
    typed,
)
from pairmq.pipeline.transforms._rows import (
    HOUR,
    MINUTE,
    bucket_of,
    dated,
    of_kind,
    place,
    start_of,
)

MESSAGE = ("place", "message_key", "message_id")
"""What makes a message: one id may be sent to several entities, and is a message of its own in each."""

_SENT, _HOME, _DIVERTED, _MOVED, _READ, _FIRST, _COMPLETED, _SUBSCRIBED, _PLACED = (1 << bit for bit in range(9))


def about_messages() -> Column:
    """Whether a row is about a message that has an id."""
    known = of_kind(SendCompleted, AttemptFailed, MessageMoved, MessageDeadLettered, MessageDelivered)
    return known & F.col("message_id").isNotNull() & (F.col("message_id") != "")


def delivered() -> Column:
    """Whether a row is a delivery from the queue itself."""
    return of_kind(MessageDelivered) & ~F.col("dead_letter")


def completed() -> Column:
    """Whether a row is a delivery that its consumer completed."""
    return delivered() & (F.col("settlement") == Settlement.COMPLETED.value)


_BITS = f"""
CASE kind
WHEN '{SendCompleted.__name__}' THEN CASE outcome
  WHEN '{SendOutcome.PRIMARY.value}' THEN {_SENT | _HOME}
  WHEN '{SendOutcome.BACKLOG.value}' THEN {_SENT | _DIVERTED}
  ELSE {_SENT} END
WHEN '{MessageDelivered.__name__}' THEN CASE WHEN NOT dead_letter THEN {_READ}
  + CASE WHEN delivery_count = 1 THEN {_FIRST} ELSE 0 END
  + CASE WHEN settlement = '{Settlement.COMPLETED.value}' THEN {_COMPLETED} ELSE 0 END
  + CASE WHEN settlement = '{Settlement.COMPLETED.value}' AND subscription IS NOT NULL THEN {_SUBSCRIBED} ELSE 0 END
  + CASE WHEN broker_position IS NOT NULL THEN {_PLACED} ELSE 0 END
  ELSE 0 END
WHEN '{MessageMoved.__name__}' THEN {_MOVED}
ELSE 0 END
"""


def _slim(rows: DataFrame) -> DataFrame:
    """What of each row counts, in few numbers: these rows are all sent to where their message is put together.

    Its kind is looked at once, and what only some rows have for those alone.
    """
    known = rows.filter(about_messages()).withColumn("broker_position", _broker_position())
    known = known.withColumn("bits", F.expr(_BITS))
    # If the broker reports none, the instant at which the consumer received it, in microseconds.
    position = F.coalesce("broker_position", (F.coalesce("received_at", "at") * 1_000_000).cast("long"))
    return known.select(
        place().alias("place"),
        "message_key",
        "message_id",
        "bits",
        "at",
        F.when(_is(_HOME, _DIVERTED), F.col("at") - F.col("elapsed")).alias("called_at"),
        # If the broker reports no positions, only the first of all deliveries shows a message's place.
        F.when(_is(_FIRST, _PLACED), position).alias("position"),
        F.when(_is(_SENT), F.col("time_to_live")).alias("time_to_live"),
        F.when(_is(_HOME, _DIVERTED), F.col("scheduled_enqueue_at")).alias("due_at"),
        F.when(_is(_SENT), key_of("sender")).alias("sender"),
        F.when(_is(_SENT), key_of("session_id")).alias("session"),
        key_of("process").alias("process"),
        # With two receivers in one process, locked messages of one are overtaken by those of the other.
        F.when(_is(_READ), F.coalesce(key_of("receiver"), key_of("process"))).alias("receiver"),
    )


def _is(*flags: int) -> Column:
    return F.col("bits").bitwiseAND(sum(flags)) != 0


_Measure = tuple[types.DataType, Callable[[Column], Column], Callable[[], Column]]
"""The type of a column, how rows and parts are put together, and the value of one row."""


def _count(flag: int) -> _Measure:
    return COUNT, F.sum, lambda: F.when(_is(flag), 1).otherwise(0)


_OF_MESSAGES: dict[str, _Measure] = {
    "accepted_primary": _count(_HOME),
    "deliveries": _count(_READ),
    "completed": _count(_COMPLETED),
    "by_subscription": _count(_SUBSCRIBED),
    "placed": _count(_PLACED),
    "first_sent_at": (NUMBER, F.min, lambda: F.when(_is(_SENT), F.col("at"))),
    "accepted_at": (NUMBER, F.min, lambda: F.when(_is(_HOME, _DIVERTED), F.col("at"))),
    "called_at": (NUMBER, F.min, lambda: F.col("called_at")),
    "home_at": (NUMBER, F.max, lambda: F.when(_is(_HOME, _MOVED), F.col("at"))),
    "delivered_at": (NUMBER, F.min, lambda: F.when(_is(_READ), F.col("at"))),
    "last_delivered_at": (NUMBER, F.max, lambda: F.when(_is(_READ), F.col("at"))),
    "position": (COUNT, F.min, lambda: F.col("position")),
    "time_to_live": (NUMBER, F.max, lambda: F.col("time_to_live")),
    "due_at": (NUMBER, F.max, lambda: F.col("due_at")),
    "sender": (COUNT, F.min, lambda: F.col("sender")),
    "session": (COUNT, F.min, lambda: F.col("session")),
    "sent_by": (COUNT, F.min, lambda: F.when(_is(_SENT), F.col("process"))),
    "delivered_by": (COUNT, F.min, lambda: F.when(_is(_READ), F.col("process"))),
    # Two different ones: it is unknown which instant belongs to the position.
    "got_first_by": (COUNT, F.min, lambda: F.when(_is(_FIRST), F.col("receiver"))),
    "got_first_by_other": (COUNT, F.max, lambda: F.when(_is(_FIRST), F.col("receiver"))),
}
_MESSAGES = schema_of(
    {
        "place": COUNT,
        "message_key": COUNT,
        "message_id": TEXT,
        **{name: type_ for name, (type_, *_) in _OF_MESSAGES.items()},
    }
)


def _by_message(frame: DataFrame, values: Mapping[str, Column]) -> DataFrame:
    """Aggregate by message.

    Nearly every row has a key of its own, or shares it with another one: rows are first sent to where their key is put
    together. Adding up before would keep all of them in memory for nothing. As a hint, which a session for little data
    ignores: there all rows are together. Not every engine behind Spark Connect takes a hint of this kind.
    """
    if hasattr(frame.sparkSession, "_jsparkSession"):
        frame = frame.hint("repartition", F.col("message_key"))
    measures = (_OF_MESSAGES[name][1](value).alias(name) for name, value in values.items())
    return typed(frame.groupBy(*MESSAGE).agg(*measures), _MESSAGES)


MESSAGES = Fact(
    "messages",
    _MESSAGES,
    of=lambda rows: _by_message(_slim(rows), {name: value() for name, (*_, value) in _OF_MESSAGES.items()}),
    merged=lambda facts: _by_message(facts, {name: F.col(name) for name in _OF_MESSAGES}),
)
"""One row for each message that has an id; texts that repeat are their keys, see `key_of`.

A group's texts would have to be sorted, which takes several times as long as adding up numbers.
"""


def arrived_at() -> Column:
    """When a message of `MESSAGES` last arrived where consumers see it; null if it never did.

    A scheduled one is there before, but invisible.
    """
    return F.when(F.col("home_at").isNotNull(), F.greatest("home_at", "due_at"))


def key_of(column: str) -> Column:
    """A number for a text that repeats; null for null."""
    return F.when(F.col(column).isNotNull(), F.xxhash64(column))


def _broker_position() -> Column:
    """The broker's own position of a delivery in its queue, written as ``17`` or as ``1700000000000-3``."""
    text = F.col("sequence_number")
    major, minor = F.split_part(text, F.lit("-"), F.lit(1)), F.split_part(text, F.lit("-"), F.lit(2))
    pair = F.try_add(F.try_multiply(major.try_cast("long"), F.lit(1 << 20)), minor.try_cast("long"))
    return F.when(text.contains("-"), pair).otherwise(text.try_cast("long"))


DELIVERED, FROM_LANE = "delivered", "delivered from the secondary"
"""The outcomes of deliveries, beside those of sends."""


def _counting(
    name: str,
    keys: Mapping[str, types.DataType],
    measures: Mapping[str, tuple[types.DataType, Callable[[str], Column]]],
    of: Callable[[DataFrame], DataFrame],
) -> Fact:
    """A fact that counts: by keys, with measures of which each joins the values of rows, and of parts, alike."""
    schema = schema_of({**keys, **{each: type_ for each, (type_, _) in measures.items()}})

    def merged(facts: DataFrame) -> DataFrame:
        joined = [join(each).alias(each) for each, (_, join) in measures.items()]
        return typed(facts.groupBy(*keys).agg(*joined) if joined else facts.select(*keys).distinct(), schema)

    return Fact(name, schema, lambda rows: merged(of(rows)), merged)


def _minutes(rows: DataFrame) -> DataFrame:
    sound = F.col("is_sound")
    return rows.select("process", "seq", "at", "clock", dated().alias("is_sound")).select(
        "process",
        F.when(sound, start_of(MINUTE)).alias("minute"),
        F.when(sound, 1).otherwise(0).alias("rows"),
        F.when(sound, 0).otherwise(1).alias("misdated"),
        *(F.when(sound, F.col("seq")).alias(name) for name in ("first_seq", "last_seq")),
        *(F.when(sound, F.col("at")).alias(name) for name in ("first_at", "last_at")),
        *(F.when(sound, F.col("clock")).alias(name) for name in ("clock_low", "clock_high")),
    )


MINUTES = _counting(
    "minutes",
    {"process": TEXT, "minute": COUNT},
    {
        "rows": (COUNT, F.sum),
        "misdated": (COUNT, F.sum),
        "first_seq": (COUNT, F.min),
        "last_seq": (COUNT, F.max),
        "first_at": (NUMBER, F.min),
        "last_at": (NUMBER, F.max),
        "clock_low": (NUMBER, F.min),
        "clock_high": (NUMBER, F.max),
    },
    _minutes,
)
"""The rows of each process and minute, enough to find every gap; those whose instants can't be are counted without a
minute."""


def _traffic(rows: DataFrame) -> DataFrame:
    sent = of_kind(SendCompleted)
    accepted = F.col("outcome").isin(SendOutcome.PRIMARY.value, SendOutcome.BACKLOG.value)
    delivered = F.when(F.col("side") == Side.SECONDARY.value, FROM_LANE).otherwise(DELIVERED)
    ended = rows.filter(dated() & of_kind(SendCompleted, MessageDelivered))
    return ended.withColumn("most", F.when(sent & accepted, F.col("elapsed"))).select(
        "process",
        "pair",
        "entity",
        "entity_kind",
        start_of(HOUR).alias("hour"),
        F.coalesce("outcome", delivered).alias("outcome"),
        F.coalesce(sent & _may_be_sampled(), F.lit(False)).alias("sampled"),
        bucket_of(F.col("most")).alias("bucket"),
        "most",
        F.lit(1).alias("rows"),
    )


TRAFFIC = _counting(
    "traffic",
    {
        "process": TEXT,
        "pair": TEXT,
        "entity": TEXT,
        "entity_kind": TEXT,
        "hour": COUNT,
        "outcome": TEXT,
        "sampled": FLAG,
        "bucket": COUNT,
    },
    {"rows": (COUNT, F.sum), "most": (NUMBER, F.max)},
    _traffic,
)
"""Sends by their outcome, and deliveries, by hour and bucket of the latency; ``most`` is the longest latency."""


def _names(rows: DataFrame) -> DataFrame:
    named = rows.filter(dated() & of_kind(SendCompleted) & F.coalesce("sender", "session_id").isNotNull())
    return named.select("sender", F.col("session_id").alias("session"))


NAMES = _counting("names", {"sender": TEXT, "session": TEXT}, {}, _names)
"""The texts of senders and sessions."""


def _may_be_sampled() -> Column:
    """Whether a send's row also represents others, as its process samples the healthy ones."""
    return (
        (F.col("outcome") == SendOutcome.PRIMARY.value)
        & (F.col("state") == "healthy")
        & (F.col("attempts") == 1)
        & ~F.col("maybe_duplicate")
    )


COUNTS = (MINUTES, TRAFFIC, NAMES)
"""Small for a journal of any size, but for its sessions; each is counted of just the columns that it needs."""


def text_of(names: DataFrame, column: str) -> DataFrame:
    """The texts of senders, or sessions, as ``name``, by their ``key``."""
    named = names.filter(F.col(column).isNotNull()).select(column).distinct()
    return named.select(key_of(column).alias("key"), F.col(column).alias("name"))


_RARE = (
    AttemptFailed,
    BacklogQueueChecked,
    DestinationChanged,
    EventsDropped,
    JournalClosed,
    JournalOpened,
    MessageDeadLettered,
    MessageMoved,
    OperationsCounted,
    PairEnded,
    PairOpened,
    PingCompleted,
    ReceiverChanged,
    RotationChanged,
    StateChanged,
    SyphonFailed,
)

OPERATION_COUNTS = ("sends", "receives", "pings", "settlements", "admin")

_NOTE_COLUMNS = (
    "kind",
    "at",
    "pair",
    "entity",
    "entity_kind",
    "process",
    "seq",
    "message_id",
    "message_key",
    "outcome",
    "backlog_queue",
    "maybe_duplicate",
    "queue",
    "waited",
    "redelivered",
    "completed",
    "failure_kind",
    "maybe_applied",
    "previous",
    "current",
    "cause",
    "lasted",
    "ok",
    "error",
    "open",
    "reason",
    "dead_letter",
    "delivery_count",
    "settlement",
    "subscription",
    "in_use",
    "left",
    "created",
    "host",
    "pid",
    "version",
    "sample_healthy",
    "since",
    "count",
    "side",
    "seconds",
    *OPERATION_COUNTS,
)


def ordinary() -> Column:
    """Whether a send or a delivery is an ordinary, healthy one."""
    sent = (F.col("outcome") == SendOutcome.PRIMARY.value) & ~F.col("maybe_duplicate")
    read = completed() & (F.col("delivery_count") <= 1) & F.col("error").isNull()
    return F.coalesce(F.when(of_kind(SendCompleted), sent).otherwise(read), F.lit(False))


def _out_of_the_ordinary(rows: DataFrame) -> DataFrame:
    # Each subscription gets a copy: only here the second one in the same subscription shows.
    copy = completed() & F.col("subscription").isNotNull()
    # First what nearly every row is: to look for its kind among many takes longer.
    told = rows.filter((~ordinary() | copy) & of_kind(*_RARE, SendCompleted, MessageDelivered))
    return told.select(*_NOTE_COLUMNS, *(F.get_json_object("options", f"$.{name}").alias(name) for name in _OPTIONS))


_OPTIONS = ("ordering", "continuity")
_ROW_TYPES = {field.name: field.dataType for field in rows_schema()}

NOTES = Fact(
    "notes",
    schema_of({**{name: _ROW_TYPES[name] for name in _NOTE_COLUMNS}, **dict.fromkeys(_OPTIONS, TEXT)}),
    of=_out_of_the_ordinary,
    merged=lambda facts: facts,
)
"""Rows of the journal, with the columns that any table needs of them, and of a pair's options ``ordering``
and ``continuity``, the latter as JSON.

Also all completions in subscriptions, and what processes counted themselves, once a minute.
"""


def _of_dated(fact: Fact) -> Fact:
    """The same without the rows of a wrong clock: one would stretch the journal by years."""
    return replace(fact, of=lambda rows: fact.of(rows.filter(dated())))


FACTS: tuple[Fact, ...] = (_of_dated(NOTES), MINUTES, TRAFFIC, NAMES, _of_dated(MESSAGES))
