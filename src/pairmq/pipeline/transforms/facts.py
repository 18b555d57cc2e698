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

import contextlib
import errno
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, types
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
from pairmq.pipeline.schema import arrow_schema, rows_schema
from pairmq.pipeline.transforms._fact import COUNT, FLAG, NUMBER, TEXT, Fact, schema_of, typed
from pairmq.pipeline.transforms._rows import (
    DAY,
    EARLIEST,
    HOUR,
    LATEST,
    MINUTE,
    PLACE,
    buckets_of,
    extended,
    grouped,
    key_of,
    of_kind,
)

MESSAGE = ("place", "message_key", "message_id")
"""What makes a message: one id may be sent to several entities, and is a message of its own in each."""

_SENT, _DIRECT, _DIVERTED, _MOVED, _READ, _FIRST, _COMPLETED, _SUBSCRIBED, _PLACED = (1 << bit for bit in range(9))


ABOUT_MESSAGES = (
    f"{of_kind(SendCompleted, AttemptFailed, MessageMoved, MessageDeadLettered, MessageDelivered)} "
    "AND message_id IS NOT NULL AND message_id <> ''"
)
"""A row is about a message that has an id, in SQL."""

READ_BY_CONSUMER = f"kind = '{MessageDelivered.__name__}' AND NOT dead_letter"
"""It is a delivery from the queue itself."""

COMPLETED = f"{READ_BY_CONSUMER} AND settlement = '{Settlement.COMPLETED.value}'"
"""It is one that its consumer completed."""

ORDINARY = (
    f"coalesce(CASE WHEN {of_kind(SendCompleted)} THEN outcome = '{SendOutcome.PRIMARY.value}' AND NOT maybe_duplicate "
    f"ELSE {COMPLETED} AND delivery_count <= 1 AND error IS NULL END, false)"
)
"""It is an ordinary, healthy send or delivery."""


_BITS = f"""
CASE kind
WHEN '{SendCompleted.__name__}' THEN CASE outcome
  WHEN '{SendOutcome.PRIMARY.value}' THEN {_SENT | _DIRECT}
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


_MAJOR, _MINOR = (f"split_part(sequence_number, '-', {part})" for part in (1, 2))
_POSITION = (
    "CASE WHEN contains(sequence_number, '-') "
    f"THEN try_add(try_multiply(try_cast({_MAJOR} AS bigint), {1 << 20}L), try_cast({_MINOR} AS bigint)) "
    "ELSE try_cast(sequence_number AS bigint) END"
)
"""The broker's own position of a delivery in its queue, written as ``17`` or as ``1700000000000-3``."""

_RECEIVED = f"CASE WHEN received_at BETWEEN {EARLIEST}D AND {LATEST}D THEN received_at ELSE at END"


def _slim(rows: DataFrame) -> DataFrame:
    """What of each row counts, in few numbers: these rows are all sent to where their message is put together.

    Its kind is looked at once, and what only some rows have for those alone. Rows of a wrong clock are left out: one
    would stretch the journal by years.
    """
    known = rows.filter(f"{ABOUT_MESSAGES} AND at BETWEEN {EARLIEST}D AND {LATEST}D")
    known = extended(extended(known, broker_position=_POSITION), bits=_BITS)
    # If the broker reports none, the instant at which the consumer received it, in microseconds.
    position = f"coalesce(broker_position, CAST(({_RECEIVED}) * 1000000 AS bigint))"
    due = f"CASE WHEN scheduled_enqueue_at IS NOT NULL THEN least(scheduled_enqueue_at, {LATEST}D) END"
    values = {
        "called_at": ((_DIRECT, _DIVERTED), f"CASE WHEN abs(elapsed) <= {LATEST}D THEN at - elapsed END"),
        # If the broker reports no positions, only the first of all deliveries shows a message's place.
        "position": ((_FIRST, _PLACED), position),
        "time_to_live": ((_SENT,), "time_to_live"),
        "due_at": ((_DIRECT, _DIVERTED), due),
        "sender": ((_SENT,), key_of("sender")),
        "session": ((_SENT,), key_of("session_id")),
        # With two receivers in one process, locked messages of one are overtaken by those of the other.
        "receiver": ((_READ,), f"coalesce({key_of('receiver')}, {key_of('process')})"),
    }
    return known.selectExpr(
        *(f"{PLACE} AS place", "message_key", "message_id", "bits", "at", f"{key_of('process')} AS process"),
        *(f"{_where(flags, value)} AS {name}" for name, (flags, value) in values.items()),
    )


def _where(flags: Sequence[int], value: str) -> str:
    return f"CASE WHEN bits & {sum(flags)} != 0 THEN {value} END"


def _count(flag: int) -> tuple[types.DataType, str, str]:
    return COUNT, "sum", f"CASE WHEN bits & {flag} != 0 THEN 1 ELSE 0 END"


_OF_MESSAGES: dict[str, tuple[types.DataType, str, str]] = {
    "accepted_primary": _count(_DIRECT),
    "deliveries": _count(_READ),
    "completed": _count(_COMPLETED),
    "by_subscription": _count(_SUBSCRIBED),
    "placed": _count(_PLACED),
    "first_sent_at": (NUMBER, "min", _where((_SENT,), "at")),
    "accepted_at": (NUMBER, "min", _where((_DIRECT, _DIVERTED), "at")),
    "called_at": (NUMBER, "min", "called_at"),
    "arrived_at": (NUMBER, "max", _where((_DIRECT, _MOVED), "at")),
    "delivered_at": (NUMBER, "min", _where((_READ,), "at")),
    "last_delivered_at": (NUMBER, "max", _where((_READ,), "at")),
    "position": (COUNT, "min", "position"),
    "time_to_live": (NUMBER, "max", "time_to_live"),
    "due_at": (NUMBER, "max", "due_at"),
    "sender": (COUNT, "min", "sender"),
    "session": (COUNT, "min", "session"),
    "sent_by": (COUNT, "min", _where((_SENT,), "process")),
    "delivered_by": (COUNT, "min", _where((_READ,), "process")),
    # Two different ones: it is unknown which instant belongs to the position.
    "got_first_by": (COUNT, "min", _where((_FIRST,), "receiver")),
    "got_first_by_other": (COUNT, "max", _where((_FIRST,), "receiver")),
}
"""The type of each column, how rows and parts are put together, and the value of one row."""

_MESSAGES = schema_of(
    {
        "place": COUNT,
        "message_key": COUNT,
        "message_id": TEXT,
        **{name: type_ for name, (type_, *_) in _OF_MESSAGES.items()},
    }
)


def _by_message(frame: DataFrame, values: Mapping[str, str]) -> DataFrame:
    """Aggregate by message.

    Nearly every row has a key of its own, or shares it with another one: rows are first sent to where their key is put
    together. Adding up before would keep all of them in memory for nothing. As a hint, which a session for little data
    ignores: there all rows are together. Not every engine behind Spark Connect takes a hint of this kind.
    """
    if hasattr(frame.sparkSession, "_jsparkSession"):
        frame = frame.hint("repartition", F.col("message_key"))
    measures = (f"{_OF_MESSAGES[name][1]}({value}) AS {name}" for name, value in values.items())
    return typed(grouped(frame, MESSAGE, *measures), _MESSAGES)


MESSAGES = Fact(
    "messages",
    _MESSAGES,
    of=lambda rows: _by_message(_slim(rows), {name: value for name, (*_, value) in _OF_MESSAGES.items()}),
    merged=lambda facts: _by_message(facts, {name: name for name in _OF_MESSAGES}),
)
"""One row for each message that has an id; texts that repeat are their keys, see `key_of`.

A group's texts would have to be sorted, which takes several times as long as adding up numbers.
"""

ARRIVED_AT = "CASE WHEN arrived_at IS NOT NULL THEN greatest(arrived_at, due_at) END"
"""When a message of `MESSAGES` last arrived where consumers see it; null if it never did.

A scheduled one is there before, but invisible.
"""


DELIVERED, FROM_LANE = "delivered", "delivered from the secondary"
"""The outcomes of deliveries, beside those of sends."""


@dataclass(frozen=True, slots=True)
class Small:
    """A fact that is small for a journal of any size, but for its sessions: Arrow counts it, part by part."""

    name: str
    schema: types.StructType
    # What is not a key: ``sum``, ``min`` or ``max``, by which the values of rows, and of parts, are put together.
    measures: Mapping[str, str]
    of: Callable[[_Rows], pa.Table]  # the keys and measures of each row that counts
    distinct: bool = True  # whether rows of the same keys are one

    def merged(self, parts: pa.Table) -> pa.Table:
        """What parts, or rows, are together."""
        if not self.distinct:
            return parts.cast(arrow_schema(self.schema))
        keys = [name for name in self.schema.names if name not in self.measures]
        grouped = parts.group_by(keys, use_threads=False).aggregate([*self.measures.items()])
        names = {f"{name}_{how}": name for name, how in self.measures.items()}
        schema = arrow_schema(self.schema)
        return (
            grouped.rename_columns([names.get(each, each) for each in grouped.column_names])
            .select(schema.names)
            .cast(schema)
        )


class _Rows:
    """Some rows of the journal, and questions about them; none is answered by null.

    The columns are those of `READ`, texts that repeat as dictionaries.
    """

    def __init__(self, table: pa.RecordBatch) -> None:
        self.table = table
        at = self["at"]
        self.dated = _yes(pc.and_(pc.greater_equal(at, EARLIEST), pc.less_equal(at, LATEST)))
        self.sent = self.is_in("kind", SendCompleted.__name__)
        self.read = self.is_in("kind", MessageDelivered.__name__)
        primary = self.is_in("outcome", SendOutcome.PRIMARY.value)
        self.accepted = pc.and_(self.sent, self.is_in("outcome", SendOutcome.PRIMARY.value, SendOutcome.BACKLOG.value))
        unmarked = _no(self["maybe_duplicate"])
        # The row may also represent others, as its process samples the healthy sends.
        self.sampled = _all(
            self.sent, primary, self.is_in("state", "healthy"), _yes(pc.equal(self["attempts"], 1)), unmarked
        )
        done = _all(self.read, _no(self["dead_letter"]), self.is_in("settlement", Settlement.COMPLETED.value))
        self.copy = pc.and_(done, pc.is_valid(self["subscription"]))
        at_once = pc.and_(_yes(pc.less_equal(self["delivery_count"], 1)), pc.is_null(self["error"]))
        self.ordinary = pc.or_(_all(self.sent, primary, unmarked), pc.and_(done, at_once))

    def __getitem__(self, name: str) -> pa.Array:
        return self.table.column(name)

    def is_in(self, name: str, *texts: str) -> pa.Array:
        """Which rows have one of some texts in a column."""
        column = self[name]
        if not pa.types.is_dictionary(column.type):
            return pc.is_in(column, pa.array(texts))
        return _yes(pc.is_in(column.dictionary, pa.array(texts)).take(column.indices))

    def start_of(self, seconds: int) -> pa.Array:
        """The start of the day, hour or minute of each row; of a wrong clock's, nothing that means anything."""
        return pc.cast(
            pc.multiply(pc.floor(pc.divide(self["at"], float(seconds))), float(seconds)), "int64", safe=False
        )


def _yes(flags: pa.Array) -> pa.Array:
    return pc.fill_null(flags, False)


def _no(flags: pa.Array) -> pa.Array:
    return _yes(pc.invert(flags))


def _all(*flags: pa.Array) -> pa.Array:
    return reduce(pc.and_, flags)


def _minutes(rows: _Rows) -> pa.Table:
    sound = rows.dated

    def where_sound(column: pa.Array) -> pa.Array:
        return pc.if_else(sound, column, pa.scalar(None, column.type))

    return pa.table(
        {
            "process": rows["process"],
            "minute": where_sound(rows.start_of(MINUTE)),
            "rows": pc.cast(sound, "int64"),
            "misdated": pc.cast(pc.invert(sound), "int64"),
            **{name: where_sound(rows["seq"]) for name in ("first_seq", "last_seq")},
            **{name: where_sound(rows["at"]) for name in ("first_at", "last_at")},
            **{name: where_sound(rows["clock"]) for name in ("clock_low", "clock_high")},
        }
    )


MINUTES = Small(
    "minutes",
    schema_of(
        {
            "process": TEXT,
            **dict.fromkeys(("minute", "rows", "misdated", "first_seq", "last_seq"), COUNT),
            **dict.fromkeys(("first_at", "last_at", "clock_low", "clock_high"), NUMBER),
        }
    ),
    {
        **dict.fromkeys(("rows", "misdated"), "sum"),
        **dict.fromkeys(("first_seq", "first_at", "clock_low"), "min"),
        **dict.fromkeys(("last_seq", "last_at", "clock_high"), "max"),
    },
    _minutes,
)
"""The rows of each process and minute, enough to find every gap; those whose instants can't be are counted without a
minute."""


_HOURLY = {
    **dict.fromkeys(("process", "pair", "entity", "entity_kind"), TEXT),
    "hour": COUNT,
    "outcome": TEXT,
    "sampled": FLAG,
    "rows": COUNT,
}


def _hourly(rows: _Rows) -> dict[str, pa.Array]:
    outcome = rows["outcome"]
    if pa.types.is_dictionary(outcome.type):
        outcome = outcome.dictionary_decode()
    return {
        **{name: rows[name] for name in ("process", "pair", "entity", "entity_kind")},
        "hour": rows.start_of(HOUR),
        "outcome": pc.coalesce(outcome, pc.if_else(rows.is_in("side", Side.SECONDARY.value), FROM_LANE, DELIVERED)),
        "sampled": rows.sampled,
        "rows": pc.cast(rows.dated, "int64"),
    }


def _traffic(rows: _Rows) -> pa.Table:
    return pa.table(_hourly(rows)).filter(pc.and_(rows.dated, pc.or_(rows.sent, rows.read)))


TRAFFIC = Small("traffic", schema_of(_HOURLY), {"rows": "sum"}, _traffic)
"""Sends by their outcome, and deliveries, by hour."""


def _latencies(rows: _Rows) -> pa.Table:
    most = pc.if_else(rows.accepted, rows["elapsed"], None)
    sends = pa.table({**_hourly(rows), "bucket": buckets_of(most), "most": most})
    return sends.filter(pc.and_(rows.dated, rows.sent))


LATENCIES = Small(
    "latencies", schema_of({**_HOURLY, "bucket": COUNT, "most": NUMBER}), {"rows": "sum", "most": "max"}, _latencies
)
"""Sends once more, also by the bucket of the latency: many rows, which one table needs; ``most`` is the longest."""


def _names(rows: _Rows) -> pa.Table:
    named = pc.or_(pc.is_valid(rows["sender"]), pc.is_valid(rows["session_id"]))
    which = _all(rows.dated, rows.sent, named)
    return pa.table({"sender": rows["sender"], "session": rows["session_id"]}).filter(which)


NAMES = Small("names", schema_of({"sender": TEXT, "session": TEXT}), {}, _names)
"""The texts of senders and sessions."""


def text_of(names: DataFrame, column: str) -> DataFrame:
    """The texts of senders, or sessions, as ``name``, by their ``key``."""
    named = names.filter(f"{column} IS NOT NULL").select(column).distinct()
    return named.selectExpr(f"{key_of(column)} AS key", f"{column} AS name")


OPERATION_COUNTS = ("sends", "receives", "pings", "settlements", "admin")


def _operations(rows: _Rows) -> pa.Table:
    counted = {
        **{name: rows[name] for name in ("process", "pair", "side")},
        "day": rows.start_of(DAY),
        "reports": pc.cast(rows.dated, "int64"),
        **{name: rows[name] for name in OPERATION_COUNTS},
    }
    return pa.table(counted).filter(pc.and_(rows.dated, rows.is_in("kind", OperationsCounted.__name__)))


OPERATIONS = Small(
    "operations",
    schema_of(
        {
            **dict.fromkeys(("process", "pair", "side"), TEXT),
            **dict.fromkeys(("day", "reports", *OPERATION_COUNTS), COUNT),
        }
    ),
    dict.fromkeys(("reports", *OPERATION_COUNTS), "sum"),
    _operations,
)
"""What processes counted themselves, by day; ``reports`` are the rows that say so."""


_RARE = (
    *(JournalOpened, JournalClosed, EventsDropped, PairOpened, PairEnded),
    *(StateChanged, AttemptFailed, PingCompleted, MessageMoved, MessageDeadLettered),
    *(BacklogQueueChecked, RotationChanged, DestinationChanged, ReceiverChanged, SyphonFailed),
)

_NOTE_COLUMNS = (
    *("kind", "at", "pair", "entity", "entity_kind", "process", "seq", "message_id", "message_key"),
    *("outcome", "backlog_queue", "maybe_duplicate"),  # of sends
    *("queue", "waited", "redelivered", "completed"),  # of moves
    *("failure_kind", "maybe_applied"),  # of attempts
    *("previous", "current", "cause", "lasted"),  # of states
    *("ok", "error", "open"),  # of pings and of what is open or not
    *("reason", "dead_letter", "delivery_count", "settlement", "subscription"),  # of deliveries
    *("in_use", "left", "created"),  # of backlog queues
    *("host", "pid", "version", "sample_healthy", "since", "count"),  # of journals
    *("side", "seconds"),
)


def _out_of_the_ordinary(rows: _Rows) -> pa.Table:
    # Each subscription gets a copy: only here the second one in the same subscription shows.
    unusual = pc.or_(pc.invert(rows.ordinary), rows.copy)
    known = rows.is_in("kind", *(kind.__name__ for kind in (*_RARE, SendCompleted, MessageDelivered)))
    counted = _all(rows.is_in("kind", OperationsCounted.__name__), rows.is_in("side", Side.PRIMARY.value))
    timed = pc.and_(counted, pc.is_null(rows["clock"]))
    few = rows.table.filter(_all(rows.dated, unusual, pc.or_(known, timed)))
    options = [_options(text.as_py()) for text in few.column("options").cast(pa.binary())]
    asked = {name: pa.array([each.get(name) for each in options], pa.string()) for name in _OPTIONS}
    return pa.table({**{name: few.column(name) for name in _NOTE_COLUMNS}, **asked})


def _options(text: bytes | None) -> dict[str, str | None]:
    """Those of a pair's options that tables need, as texts; nothing if they can't be read."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    known = {name: found.get(name) for name in _OPTIONS} if isinstance(found, dict) else {}
    return {
        name: each if isinstance(each, str | None) else json.dumps(each, ensure_ascii=False, separators=(",", ":"))
        for name, each in known.items()
    }


_OPTIONS = ("ordering", "continuity")
_ROW_TYPES = {field.name: field.dataType for field in rows_schema()}

NOTES = Small(
    "notes",
    schema_of({**{name: _ROW_TYPES[name] for name in _NOTE_COLUMNS}, **dict.fromkeys(_OPTIONS, TEXT)}),
    {},
    _out_of_the_ordinary,
    distinct=False,
)
"""Rows of the journal, with the columns that any table needs of them, and of a pair's options ``ordering``
and ``continuity``, the latter as JSON.

Also all completions in subscriptions; and where rows have no reading of the clocks, that a process counted the
operations of a primary, once a minute, which shows how its clock went.
"""

SMALL = (NOTES, MINUTES, TRAFFIC, OPERATIONS, LATENCIES, NAMES)

Digest = Mapping[str, pa.Table]
"""Small facts of some rows by their names."""

READ = tuple(
    dict.fromkeys(
        (*_NOTE_COLUMNS, *OPERATION_COUNTS, "clock", "state", "attempts", "elapsed", "options", "sender", "session_id")
    )
)
"""The columns of the journal that small facts are made of."""

_ARROW_READ = arrow_schema(schema_of({name: _ROW_TYPES[name] for name in READ}))
_SINGLE = ("message_id", "options")  # texts that repeat too rarely for a dictionary
_REPEATED = [each.name for each in _ARROW_READ if pa.types.is_string(each.type) and each.name not in _SINGLE]
_AT_ONCE = 1 << 17  # rows


def digests_of_file(file: Any) -> Iterator[Digest]:
    """The small facts of a segment, part by part."""
    footer = pq.read_metadata(file)
    there = footer.schema.names  # one of an earlier version lacks some, and Arrow refuses what is not there
    repeated = [name for name in _REPEATED if name in there]
    with pq.ParquetFile(file, metadata=footer, read_dictionary=repeated, page_checksum_verification=True) as opened:
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            # Most columns have values only in rows of few kinds: these are not looked at where there are none.
            filled = {
                group.column(column).path_in_schema
                for column in range(group.num_columns)
                if _has_values(group.column(column), opened.schema.column(column).physical_type)
            }
            names = [name for name in READ if name in filled]
            left = group.num_rows
            for batch in opened.iter_batches(_AT_ONCE, row_groups=[number], columns=names):
                columns = [
                    _of_type(batch.column(each.name), each.type) if each.name in filled
                    else pa.nulls(batch.num_rows, each.type)
                    for each in _ARROW_READ
                ]  # fmt: skip
                yield digest(pa.RecordBatch.from_arrays(columns, [*READ]))
                left -= batch.num_rows
            if left:  # pages have checksums, but not what is in front of each, such as its number of values
                raise OSError(errno.EIO, f"{left} rows of a segment can't be read")


def _has_values(chunk: pq.ColumnChunkMetaData, type_: str) -> bool:
    # Arrow ends the whole process when it is asked for the statistics of a chunk of another type than the column's.
    known = chunk.statistics if chunk.physical_type == type_ else None
    return known is None or known.null_count != chunk.num_values


def _of_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        wanted = pa.dictionary(column.type.index_type, wanted)
    return column if column.type == wanted else column.cast(wanted)


def write_small(digests: Iterable[Digest], files: Mapping[str, Any]) -> None:
    """Write what the small facts of all parts are together, each to its file."""
    waiting: dict[str, list[pa.Table]] = {small.name: [] for small in SMALL}
    with contextlib.ExitStack() as stack:
        writers = {
            small.name: stack.enter_context(pq.ParquetWriter(files[small.name], arrow_schema(small.schema)))
            for small in SMALL
        }
        for name, part in itertools.chain.from_iterable(each.items() for each in digests):
            small, parts = _SMALL[name], waiting[name]
            parts.append(part)
            if small.distinct and sum(each.num_rows for each in parts) <= _MANY:
                continue
            parts[:] = [small.merged(pa.concat_tables(parts))]
            # There may be as many as there are sessions, and twice is as good as once.
            if not small.measures and (not small.distinct or parts[0].num_rows > _MANY // 2):
                writers[name].write_table(parts.pop())
        for name, parts in waiting.items():
            if parts:
                writers[name].write_table(_SMALL[name].merged(pa.concat_tables(parts)))


_SMALL = {small.name: small for small in SMALL}
_MANY = 1 << 20  # rows that wait to be put together


def digest(rows: pa.RecordBatch) -> Digest:
    """The small facts of some rows, which have the columns `READ`."""
    columns = [
        column if name in ("at", "message_key") else _possible(column)
        for name, column in zip(READ, rows.columns, strict=True)
    ]
    asked = _Rows(pa.RecordBatch.from_arrays(columns, [*READ]))
    return {small.name: small.merged(small.of(asked)) for small in SMALL}


def _possible(column: pa.Array) -> pa.Array:
    """No seconds or counts that can't be, of another writer or a failing disk: one of them would end the whole run."""
    if column.null_count == len(column) or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return column
    most = LATEST if pa.types.is_floating(column.type) else 1 << 53
    return pc.if_else(pc.and_(pc.greater_equal(column, -most), pc.less_equal(column, most)), column, None)


def small_of(rows: DataFrame) -> DataFrame:
    """The small facts of each part of some rows, in one pass: the name of each, and its rows as a stream of Arrow's."""
    return rows.select(*READ).mapInArrow(_digests, "name string, facts binary")


def _digests(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in _gathered(batches):
        found = digest(rows)
        yield pa.RecordBatch.from_pydict({"name": [*found], "facts": [*map(_packed, found.values())]})


def _packed(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue())


def digests_of_parts(rows: pa.Table) -> Iterator[Digest]:
    """What was written of `small_of`, as it was given."""
    for row in rows.to_pylist():
        yield {row["name"]: pa.ipc.open_stream(row["facts"]).read_all()}


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put together what comes in small parts: what is counted of many rows at once is less."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= _AT_ONCE:
            yield _one(waiting)
            waiting = []
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    def column(name: str) -> pa.Array:
        found = pa.chunked_array([batch.column(name) for batch in batches]).combine_chunks()
        return found.dictionary_encode() if name in _REPEATED else found

    return pa.RecordBatch.from_arrays([column(name) for name in READ], [*READ])


FACTS: tuple[Small | Fact, ...] = (*SMALL, MESSAGES)
