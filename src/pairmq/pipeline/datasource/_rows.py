"""A message as a row and back: one schema for browsing, for streams and for writing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from pairmq.core import restore
from pairmq.model import ConfigurationError, Delivery, EnvelopeError, Message, PairMQError, property_json
from pairmq.pipeline.schema import arrow_schema

_TEXT: Final = t.StringType()
_PROPERTIES: Final = t.MapType(t.StringType(), t.StringType())

_SENT: Final[dict[str, t.DataType]] = {
    "message_id": _TEXT,
    "body": t.BinaryType(),
    "session_id": _TEXT,
    "time_to_live": t.DoubleType(),
    "scheduled_enqueue_at": t.TimestampType(),
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "correlation_id": _TEXT,
    "subject": _TEXT,
    "to": _TEXT,
    "reply_to": _TEXT,
    "reply_to_session_id": _TEXT,
    "partition_key": _TEXT,
    "priority": t.IntegerType(),
    "application_properties": _PROPERTIES,
}
"""What a message holds; these columns are written."""

_FOUND: Final[dict[str, t.DataType]] = {
    "side": _TEXT,
    "queue": _TEXT,
    "entity": _TEXT,
    "sequence_number": _TEXT,
    "enqueued_at": t.TimestampType(),
    "delivery_count": t.IntegerType(),
    "dead_letter_reason": _TEXT,
    "dead_letter_description": _TEXT,
    "diverted_at": t.TimestampType(),
    "maybe_duplicate": t.BooleanType(),
    "envelope_error": _TEXT,
}
"""What is known of a message where it was read; a writer leaves these columns alone."""

SCHEMA: Final = t.StructType([t.StructField(name, type_) for name, type_ in (_SENT | _FOUND).items()])
"""The columns of every message that is read."""

ARROW_SCHEMA: Final = arrow_schema(SCHEMA)
"""The same for Arrow, as Spark asks for it."""

_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_TAKEN: Final[Mapping[str, tuple[tuple[type[t.DataType], ...], str]]] = {
    "body": ((t.BinaryType, t.StringType), "binary or string"),
    "time_to_live": ((*_WHOLE, t.FloatType, t.DoubleType, t.DayTimeIntervalType), "seconds or an interval"),
    "scheduled_enqueue_at": ((t.TimestampType,), "timestamp (with time zone)"),
    "priority": (_WHOLE, "a whole number"),
}
"""What a writer takes in a column, and how it is called; strings everywhere else."""


class RowRefused(PairMQError, ValueError):
    """A row that no message can be made of; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where messages are read."""

    side: str  # ``primary`` or ``secondary``
    queue: str  # the name of what is read
    entity: str  # its path
    backlog: bool = False  # whether it is a backlog queue, whose messages belong elsewhere


def to_batch(deliveries: Iterable[Delivery], place: Place) -> pa.RecordBatch:
    """Make rows of deliveries; those of a backlog queue are shown as they were sent, if their envelope is valid."""
    rows = [_row(delivery, place) for delivery in deliveries]
    return pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA)


def _row(delivery: Delivery, place: Place) -> dict[str, object]:
    message = delivery.message
    row: dict[str, object] = {"entity": place.entity}
    if place.backlog:
        row["entity"] = None
        try:
            message, diversion = restore(message)
        except EnvelopeError as error:
            row["envelope_error"] = str(error)
        else:
            row["entity"] = str(diversion.entity)
            row["diverted_at"] = diversion.diverted_at
            row["maybe_duplicate"] = diversion.maybe_duplicate
    row.update((name, getattr(message, name)) for name in _SENT)
    row["application_properties"] = [(k, property_json.encode(v)) for k, v in message.application_properties.items()]
    for name in ("enqueued_at", "delivery_count", "dead_letter_reason", "dead_letter_description"):
        row[name] = getattr(delivery, name)
    return row | {"side": place.side, "queue": place.queue, "sequence_number": delivery.sequence_number or None}


@dataclass(frozen=True, slots=True)
class RowReader:
    """Makes messages of a data frame's rows; picklable."""

    columns: tuple[str, ...]  # those that go into messages

    @classmethod
    def of(cls, schema: t.StructType) -> RowReader:
        """Look a data frame's schema over; says what to do where a column is missing, unknown or of a wrong type."""
        found = {field.name: field.dataType for field in schema.fields}
        if "message_id" not in found:
            raise ConfigurationError(
                "there is no column message_id: a retried task must send its messages under the same ids. Make one of "
                "the columns that make a row unique, such as sha2(to_json(struct(...)), 256)"
            )
        if "body" not in found:
            raise ConfigurationError("there is no column body: it holds the payload, binary or string")
        unknown = sorted(found.keys() - _SENT.keys() - _FOUND.keys())
        if unknown:
            raise ConfigurationError(
                f"unknown column {', '.join(unknown)}: known are {', '.join(_SENT)}; drop it, or put it into body"
            )
        for name, type_ in found.items():
            if name in _SENT:
                _check_type(name, type_)
        return cls(tuple(name for name in _SENT if name in found))

    def messages(self, batch: pa.RecordBatch) -> Iterator[Message]:
        """Make a message of each row, up to the one for which it raises `RowRefused`."""
        columns = {name: batch.column(name).to_pylist() for name in self.columns}
        for index in range(batch.num_rows):
            yield self._message({name: column[index] for name, column in columns.items()})

    def _message(self, values: dict[str, Any]) -> Message:
        message_id, body, properties = values["message_id"], values["body"], values.get("application_properties")
        if message_id is None:
            raise RowRefused("a row has no message_id: every row needs one that is the same when it is sent again")
        if body is None:
            raise RowRefused(f"row {message_id!r}: body is null; an empty one is X''")
        if isinstance(body, str):
            values["body"] = body.encode()
        try:
            if properties is not None:
                values["application_properties"] = {name: _from_json(name, text) for name, text in properties}
            else:
                values.pop("application_properties", None)
            return Message(**values)
        except (TypeError, ValueError) as error:
            raise RowRefused(f"row {message_id!r}: {error}") from None


def _check_type(name: str, type_: t.DataType) -> None:
    if name == "application_properties":
        inner = (type_.keyType, type_.valueType) if isinstance(type_, t.MapType) else ()
        fits = bool(inner) and all(isinstance(one, t.StringType) for one in inner)
        wanted = "map<string,string>"
    else:
        kinds, wanted = _TAKEN.get(name, ((t.StringType,), "string"))
        fits = isinstance(type_, kinds)
    if not fits:
        raise ConfigurationError(f"column {name} is {type_.simpleString()}: it must be {wanted}")


def _from_json(name: str, text: str | None) -> object:
    if text is None:
        return None
    try:
        return property_json.decode(text)
    except ValueError as error:
        raise ValueError(
            f"application property {name!r} is not JSON ({error}): write a string with its quotes"
        ) from None
