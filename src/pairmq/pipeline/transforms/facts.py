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

from dataclasses import replace

from pyspark.sql import Column, DataFrame
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
    Measure,
    digest,
    schema_of,
)
from pairmq.pipeline.transforms._rows import (
    DAY,
    HOUR,
    MINUTE,
    bucket_of,
    dated,
    ended_as,
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


def _slim(rows: DataFrame) -> DataFrame:
    """What of each row counts, in few numbers: these rows are all sent to where their message is put together."""
    sent, moved, read = of_kind(SendCompleted), of_kind(MessageMoved), delivered()
    home, diverted = ended_as(SendOutcome.PRIMARY), ended_as(SendOutcome.BACKLOG)
    first, placed = read & (F.col("delivery_count") == 1), _broker_position().isNotNull()
    flags = {
        _SENT: sent,
        _HOME: home,
        _DIVERTED: diverted,
        _MOVED: moved,
        _READ: read,
        _FIRST: first,
        _COMPLETED: completed(),
        _SUBSCRIBED: completed() & F.col("subscription").isNotNull(),
        _PLACED: read & placed,
    }
    each = [F.when(condition, F.lit(bit)).otherwise(F.lit(0)) for bit, condition in flags.items()]
    bits = each[0]
    for column in each[1:]:
        bits = bits + column
    return rows.filter(about_messages()).select(
        place().alias("place"),
        "message_key",
        "message_id",
        bits.alias("bits"),
        "at",
        F.when(home | diverted, F.col("at") - F.col("elapsed")).alias("called_at"),
        # If the broker reports no positions, only the first of all deliveries shows a message's place.
        F.when(first | (read & placed), _position()).alias("position"),
        F.when(sent, F.col("time_to_live")).alias("time_to_live"),
        F.when(home | diverted, F.col("scheduled_enqueue_at")).alias("due_at"),
        F.when(sent, key_of("sender")).alias("sender"),
        F.when(sent, key_of("session_id")).alias("session"),
        key_of("process").alias("process"),
        # With two receivers in one process, locked messages of one are overtaken by those of the other.
        F.when(read, F.coalesce(key_of("receiver"), key_of("process"))).alias("receiver"),
    )


def _is(*flags: int) -> Column:
    return F.col("bits").bitwiseAND(sum(flags)) != 0


def _count(flag: int) -> Measure:
    return Measure(COUNT, "sum", lambda: F.when(_is(flag), 1).otherwise(0))


MESSAGES = digest(
    "messages",
    _slim,
    {"place": COUNT, "message_key": COUNT, "message_id": TEXT},
    {
        "accepted_primary": _count(_HOME),
        "deliveries": _count(_READ),
        "completed": _count(_COMPLETED),
        "by_subscription": _count(_SUBSCRIBED),
        "placed": _count(_PLACED),
        "first_sent_at": Measure(NUMBER, "min", lambda: F.when(_is(_SENT), F.col("at"))),
        "accepted_at": Measure(NUMBER, "min", lambda: F.when(_is(_HOME, _DIVERTED), F.col("at"))),
        "called_at": Measure(NUMBER, "min", lambda: F.col("called_at")),
        "home_at": Measure(NUMBER, "max", lambda: F.when(_is(_HOME, _MOVED), F.col("at"))),
        "delivered_at": Measure(NUMBER, "min", lambda: F.when(_is(_READ), F.col("at"))),
        "last_delivered_at": Measure(NUMBER, "max", lambda: F.when(_is(_READ), F.col("at"))),
        "position": Measure(COUNT, "min", lambda: F.col("position")),
        "time_to_live": Measure(NUMBER, "max", lambda: F.col("time_to_live")),
        "due_at": Measure(NUMBER, "max", lambda: F.col("due_at")),
        "sender": Measure(COUNT, "min", lambda: F.col("sender")),
        "session": Measure(COUNT, "min", lambda: F.col("session")),
        "sent_by": Measure(COUNT, "min", lambda: F.when(_is(_SENT), F.col("process"))),
        "delivered_by": Measure(COUNT, "min", lambda: F.when(_is(_READ), F.col("process"))),
        # Two different ones: it is unknown which instant belongs to the position.
        "got_first_by": Measure(COUNT, "min", lambda: F.when(_is(_FIRST), F.col("receiver"))),
        "got_first_by_other": Measure(COUNT, "max", lambda: F.when(_is(_FIRST), F.col("receiver"))),
    },
    spread_by="message_key",
)
"""One row for each message that has an id; texts that repeat are their keys, see `key_of`.

A group's texts would have to be sorted, which takes several times as long as adding up numbers.
"""

COPIES = digest(
    "copies",
    lambda rows: rows.filter(about_messages() & completed() & F.col("subscription").isNotNull()).select(
        place().alias("place"), "message_key", "message_id", key_of("subscription").alias("subscription")
    ),
    {"place": COUNT, "message_key": COUNT, "message_id": TEXT, "subscription": COUNT},
    {"completed": Measure(COUNT, "sum", lambda: F.lit(1))},
    spread_by="message_key",
)
"""Completions of each message in each subscription, which gets a copy of its own: only a second one is too many."""


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


def _position() -> Column:
    """The same; if the broker reports none, the instant at which the consumer received it, in microseconds."""
    return F.coalesce(_broker_position(), (F.coalesce("received_at", "at") * 1_000_000).cast("long"))


DELIVERED = "delivered"
"""The outcome of a delivery, beside those of sends."""


def _ended(rows: DataFrame) -> DataFrame:
    accepted = F.col("outcome").isin(SendOutcome.PRIMARY.value, SendOutcome.BACKLOG.value)
    latency = F.when(accepted, F.col("elapsed"))
    return rows.filter(of_kind(SendCompleted, MessageDelivered)).select(
        "process",
        "pair",
        "entity",
        "entity_kind",
        start_of(HOUR).alias("hour"),
        F.coalesce("outcome", F.lit(DELIVERED)).alias("outcome"),
        F.coalesce(_may_be_sampled(), F.lit(False)).alias("sampled"),
        bucket_of(latency).alias("bucket"),
        latency.alias("latency"),
    )


def _may_be_sampled() -> Column:
    """Whether a send's row also represents others, as its process samples the healthy ones."""
    return (
        ended_as(SendOutcome.PRIMARY)
        & (F.col("state") == "healthy")
        & (F.col("attempts") == 1)
        & ~F.col("maybe_duplicate")
    )


TRAFFIC = digest(
    "traffic",
    _ended,
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
    {
        "rows": Measure(COUNT, "sum", lambda: F.lit(1)),
        "most": Measure(NUMBER, "max", lambda: F.col("latency")),
    },
)
"""Sends by their outcome, and deliveries, by hour and bucket of the latency: small for a journal of any size."""


NAMES = digest(
    "names",
    lambda rows: (
        rows.filter(of_kind(SendCompleted))
        .select(F.explode(F.array("sender", "session_id")).alias("name"))
        .filter(F.col("name").isNotNull())
        .select(key_of("name").alias("key"), "name")
    ),
    {"key": COUNT, "name": TEXT},
    {},
)
"""The texts of senders and sessions by their keys."""


def _dated(rows: DataFrame) -> DataFrame:
    """Nothing of a row whose instant can't be counts, but that it is there."""
    known = {"minute": start_of(MINUTE), "seq": F.col("seq"), "at": F.col("at")}
    return rows.select(
        "process",
        *(F.when(dated(), value).alias(name) for name, value in known.items()),
        F.when(dated(), 0).otherwise(1).alias("misdated"),
    )


MINUTES = digest(
    "minutes",
    _dated,
    {"process": TEXT, "minute": COUNT},
    {
        "rows": Measure(COUNT, "sum", lambda: 1 - F.col("misdated")),
        "misdated": Measure(COUNT, "sum", lambda: F.col("misdated")),
        "first_seq": Measure(COUNT, "min", lambda: F.col("seq")),
        "last_seq": Measure(COUNT, "max", lambda: F.col("seq")),
        "first_at": Measure(NUMBER, "min", lambda: F.col("at")),
        "last_at": Measure(NUMBER, "max", lambda: F.col("at")),
    },
)
"""Rows of each process and minute: small for a journal of any size, and enough to find every gap.

The rows of a process whose instants can't be have a row of their own, without a minute.
"""


_RARE = (
    AttemptFailed,
    BacklogQueueChecked,
    DestinationChanged,
    EventsDropped,
    JournalClosed,
    JournalOpened,
    MessageDeadLettered,
    MessageMoved,
    PairEnded,
    PairOpened,
    PingCompleted,
    RotationChanged,
    StateChanged,
    SyphonFailed,
)

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
    "reason",
    "dead_letter",
    "delivery_count",
    "settlement",
    "in_use",
    "left",
    "created",
    "host",
    "pid",
    "version",
    "sample_healthy",
    "since",
    "count",
)


def _ordinary() -> Column:
    """Whether a send or a delivery is an ordinary, healthy one."""
    sent = (F.col("outcome") == SendOutcome.PRIMARY.value) & ~F.col("maybe_duplicate")
    read = completed() & (F.col("delivery_count") <= 1) & F.col("error").isNull()
    return F.coalesce(F.when(of_kind(SendCompleted), sent).otherwise(read), F.lit(False))


def _out_of_the_ordinary(rows: DataFrame) -> DataFrame:
    told = rows.filter(of_kind(*_RARE) | (of_kind(SendCompleted, MessageDelivered) & ~_ordinary()))
    return told.select(*_NOTE_COLUMNS, F.get_json_object("options", "$.ordering").alias("ordering"))


_ROW_TYPES = {field.name: field.dataType for field in rows_schema()}

NOTES = Fact(
    "notes",
    schema_of({**{name: _ROW_TYPES[name] for name in _NOTE_COLUMNS}, "ordering": TEXT}),
    of=_out_of_the_ordinary,
    merged=lambda facts: facts,
)
"""Rows of the journal, with the columns that any table needs of them, and ``ordering``, a pair's option."""


def _operations(side: Side, name: str) -> Measure:
    return Measure(COUNT, "sum", lambda: F.when(F.col("side") == side.value, F.col(name)))


OPERATION_COUNTS = ("sends", "receives", "pings", "settlements", "admin")

OPERATIONS = digest(
    "operations",
    lambda rows: rows.filter(of_kind(OperationsCounted)).withColumn("day", start_of(DAY)),
    {"process": TEXT, "pair": TEXT, "day": COUNT},
    {
        "reports": Measure(COUNT, "sum", lambda: F.lit(1)),
        **{f"{side.value}_{name}": _operations(side, name) for side in Side for name in OPERATION_COUNTS},
    },
)
"""What processes counted themselves, by day."""


def _of_dated(fact: Fact) -> Fact:
    """The same without the rows of a wrong clock: one would stretch the journal by years."""
    return replace(fact, of=lambda rows: fact.of(rows.filter(dated())))


FACTS: tuple[Fact, ...] = (
    _of_dated(NOTES),
    MINUTES,  # counts these rows
    *map(_of_dated, (TRAFFIC, OPERATIONS, NAMES, MESSAGES, COPIES)),
)
