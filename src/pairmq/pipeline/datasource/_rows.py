"""A message as a row and back: one schema for browsing, for streams and for writing.

A message's id can be made of its row's own values, so that a row that is sent again has the id that it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from pairmq.core import restore
from pairmq.model import ConfigurationError, Delivery, EnvelopeError, Message, PairMQError, property_json

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

ARROW_SCHEMA: Final = to_arrow_schema(SCHEMA, timezone="UTC")
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
    """Where messages are read.

    Args:
        side: ``primary`` or ``secondary``.
        queue: the name of what is read.
        entity: its path.
        backlog: whether it is a backlog queue, whose messages belong elsewhere.
    """

    side: str
    queue: str
    entity: str
    backlog: bool = False


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
    row["side"] = place.side
    row["queue"] = place.queue
    row["sequence_number"] = delivery.sequence_number or None
    row["enqueued_at"] = delivery.enqueued_at
    row["delivery_count"] = delivery.delivery_count
    row["dead_letter_reason"] = delivery.dead_letter_reason
    row["dead_letter_description"] = delivery.dead_letter_description
    return row


@dataclass(frozen=True, slots=True)
class RowReader:
    """Makes messages of a data frame's rows; picklable.

    Args:
        columns: those that go into messages.
        id_from: the columns that message ids are made of; empty where there is a column ``message_id``.
        id_prefix: what such an id begins with.
        text_properties: values of application properties are strings as they stand, not JSON.
    """

    columns: tuple[str, ...]
    id_from: tuple[str, ...] = ()
    id_prefix: str = ""
    text_properties: bool = False

    @classmethod
    def of(
        cls, schema: t.StructType, *, id_from: tuple[str, ...] = (), id_prefix: str = "", text_properties: bool = False
    ) -> RowReader:
        """Look a data frame's schema over.

        Raises:
            ConfigurationError: a column is missing, unknown or of a wrong type; says what to do.
        """
        found = {field.name: field.dataType for field in schema.fields}
        for name in id_from:
            if name not in found:
                raise ConfigurationError(f"message_id_from names {name}, but there is no such column")
            if not isinstance(found[name], KEY_TYPES):
                raise ConfigurationError(
                    f"message_id_from names {name}, which is {found[name].simpleString()}: which can't be an id"
                )
        if id_from and "message_id" in found:
            raise ConfigurationError("there is a column message_id and an option message_id_from: omit one")
        if not id_from and "message_id" not in found:
            raise ConfigurationError(
                "there is no column message_id: a retried task must send its messages under the same ids. "
                "Add the column, or name the columns that make a row unique in the option message_id_from"
            )
        if "body" not in found:
            raise ConfigurationError("there is no column body: it holds the payload, binary or string")
        unknown = sorted(found.keys() - _SENT.keys() - _FOUND.keys() - set(id_from))
        if unknown:
            raise ConfigurationError(
                f"unknown column {', '.join(unknown)}: known are {', '.join(_SENT)}; drop it, or put it into body"
            )
        for name, type_ in found.items():
            if name in _SENT:
                _check_type(name, type_)
        return cls(tuple(name for name in _SENT if name in found), id_from, id_prefix, text_properties)

    def messages(self, batch: pa.RecordBatch) -> Iterator[Message]:
        """Make a message of each row.

        Raises:
            RowRefused: a row breaks a rule; those before it have been given.
        """
        columns = {name: batch.column(name).to_pylist() for name in self.columns}
        keys = [batch.column(name).to_pylist() for name in self.id_from]
        for index in range(batch.num_rows):
            values: dict[str, Any] = {name: column[index] for name, column in columns.items()}
            if self.id_from:
                key = [column[index] for column in keys]
                if all(part is None for part in key):
                    raise RowRefused(
                        f"a row has null in {', '.join(self.id_from)}: which can't be part of a message id"
                    )
                values["message_id"] = derived_id(self.id_prefix, self.id_from, key)
            yield self._message(values)

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
                take = _as_text if self.text_properties else _from_json
                values["application_properties"] = {name: take(name, text) for name, text in properties}
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


def _as_text(name: str, text: str | None) -> str | None:
    return text


def _from_json(name: str, text: str | None) -> object:
    if text is None:
        return None
    try:
        return property_json.decode(text)
    except ValueError as error:
        raise ValueError(
            f"application property {name!r} is not JSON ({error}): write a string with its quotes, "
            "or set the option properties to text"
        ) from None


KEY_TYPES: Final = (
    t.BinaryType,
    t.BooleanType,
    t.ByteType,
    t.DateType,
    t.DecimalType,
    t.IntegerType,
    t.LongType,
    t.ShortType,
    t.StringType,
    t.TimestampType,
)
"""Types of columns that an id may be made of; not floating point, as a sum in another order would be another id."""

_DIGITS = 32  # 128 bits: two rows of a trillion share an id with a chance of one in 10**15


def derived_id(prefix: str, names: Sequence[str], values: Sequence[object]) -> str:
    """Make a message id of the values that make a row unique.

    Args:
        prefix: what it begins with.
        names: the columns' names; other columns with the same values give another id.
        values: one each, of `KEY_TYPES`' Python types or None.

    Returns:
        The prefix and 32 hexadecimal digits of a SHA-256; the same in every process and version.
    """
    digest = hashlib.sha256()
    for name, value in zip(names, values, strict=True):
        for part in (name.encode(), *_parts(value)):
            # Lengths, so that ("ab", "c") and ("a", "bc") are not the same.
            digest.update(b"%d:" % len(part))
            digest.update(part)
    return prefix + digest.hexdigest()[:_DIGITS]


def _parts(value: object) -> tuple[bytes, bytes]:
    """The value's kind, so that 1 and "1" are not the same, and what it holds."""
    if value is None:
        return b"null", b""
    if isinstance(value, bytes):
        return b"bytes", value
    if isinstance(value, str):
        return b"text", value.encode()
    if isinstance(value, bool):
        return b"bool", str(value).encode()
    if isinstance(value, int):
        return b"int", str(value).encode()
    if isinstance(value, Decimal):
        return b"decimal", format(value, "f").encode()
    if isinstance(value, datetime):
        return b"instant", value.astimezone(UTC).isoformat(timespec="microseconds").encode()
    if isinstance(value, date):
        return b"date", value.isoformat().encode()
    raise TypeError(f"an id can't be made of a {type(value).__name__}")
