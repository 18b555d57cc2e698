"""Events as flat rows: the one source of the journal's schema, for its writer, its readers and its documents.

Every event becomes one row of one wide table. A field is a column of the same name, and two kinds of event that have a
field of one name share its column; an entity takes two. All of it is derived from the dataclasses of
`pairmq.model.events`, so that a new field can't be forgotten: it is a new column, and a test asks for a new
`SCHEMA_VERSION`.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType, NoneType
from typing import Any, BinaryIO, Literal, get_args, get_origin, get_type_hints

from pairmq.model import events
from pairmq.model._entity import Entity, EntityKind
from pairmq.model.events import Event

SCHEMA_VERSION = 4
"""Raised with every change of `COLUMNS`. A column is never renamed, and never gets another type."""

ColumnType = Literal["string", "int64", "float64", "bool", "list<string>"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table; null in rows whose kind lacks the field. It is of all ``kinds`` if none is named."""

    name: str
    type: ColumnType
    nullable: bool
    meaning: str
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """Where a kind of event has the value of a column: in an attribute, or in a part of that."""

    column: str
    name: str
    part: str | None = None


_ORDER = (
    events.SendCompleted,
    events.MessageDelivered,
    events.MessageMoved,
    events.AttemptFailed,
    events.StateChanged,
    events.PingCompleted,
    events.MessageDeadLettered,
    events.RotationChanged,
    events.DestinationChanged,
    events.SyphonFailed,
    events.BacklogQueueChecked,
    events.OperationsCounted,
    events.ReceiverChanged,
    events.Warned,
    events.PairOpened,
    events.PairEnded,
    events.JournalOpened,
    events.EventsDropped,
    events.JournalClosed,
)

KINDS: Mapping[str, type[Event]] = MappingProxyType({kind.__name__: kind for kind in _ORDER})
"""Every kind of event by its name, which is what the column ``kind`` holds; the most frequent ones first."""

# Fields whose names mean something else in another kind, or in the table itself.
_NAMES: Mapping[tuple[type[Event], str], str] = {
    (events.AttemptFailed, "kind"): "failure_kind",
    (events.AttemptFailed, "late"): "late_attempt",
}

_ENTITY_KIND = "entity_kind"

# Where the docstrings say the same in many words.
_MEANINGS = {
    "entity": "path of the queue or topic that the event is about",
    _ENTITY_KIND: "`queue` or `topic`",
    "message_id": "the message's id; empty or null if it has none",
}

_COMMON = (
    Column("kind", "string", False, "the kind of event: the name of its class"),
    Column("at", "float64", False, "wall-clock seconds since 1970 UTC"),
    Column("pair", "string", False, "the pair's name, `primary>secondary`; empty for the journal's own events"),
    Column("process", "string", False, "the run of a process that wrote the row: host, process id, start and chance"),
    Column(
        "seq",
        "int64",
        False,
        "the row's number in its process, from 0; a gap shows rows that are lost. With `process` it names the row",
    ),
    Column(
        "clock",
        "float64",
        True,
        "seconds of the wall clock minus those of a clock that can't be set, when the row was written: changes where "
        "the wall clock is set. Null in segments before version 4",
    ),
    Column("message_key", "int64", True, "64-bit hash of `message_id`, the same everywhere: cheaper to group by"),
)


def _type_of(hint: Any) -> ColumnType:
    if get_origin(hint) is tuple:
        return "list<string>"
    known: tuple[tuple[type, ColumnType], ...] = (
        (str, "string"),
        (bool, "bool"),
        (int, "int64"),
        (float, "float64"),
    )
    for python, logical in known:
        if issubclass(hint, python):
            return logical
    raise TypeError(f"an event's field of type {hint!r} has no column type: add one")


def _bare(hint: Any) -> Any:
    """A type without its ``| None``."""
    kept = [entry for entry in get_args(hint) if entry is not NoneType]
    return kept[0] if len(kept) == 1 and NoneType in get_args(hint) else hint


_HINTS: Mapping[type[Event], Mapping[str, Any]] = {
    kind: {name: _bare(hint) for name, hint in get_type_hints(kind).items()} for kind in _ORDER
}


def _fields_of(kind: type[Event]) -> Iterator[Field]:
    for entry in fields(kind):
        name = _NAMES.get((kind, entry.name), entry.name)
        if _HINTS[kind][entry.name] is Entity:
            yield Field(name, entry.name, "path")
            yield Field(_ENTITY_KIND, entry.name, "kind")
        else:
            yield Field(name, entry.name)


FIELDS: Mapping[type[Event], tuple[Field, ...]] = MappingProxyType({kind: tuple(_fields_of(kind)) for kind in _ORDER})
"""For each kind of event, where the value of each of its columns is."""


def _meanings(kind: type[Event]) -> dict[str, str]:
    """The texts of a docstring's ``Args:``, each on one line; none where Python dropped the docstrings."""
    _, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\nArgs:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", rest, re.MULTILINE)
    return {name: " ".join(text.split()).replace("``", "`").rstrip(".") for name, text in entries}


def _derived() -> Iterator[Column]:
    """The columns that come from the events' fields, in the order of `KINDS`."""
    types: dict[str, ColumnType] = {}
    texts: dict[str, dict[str, str]] = {}
    for kind in _ORDER:
        meanings = _meanings(kind)
        for field in FIELDS[kind]:
            hint = _HINTS[kind][field.name]
            logical: ColumnType = "string" if hint is Entity else _type_of(hint)
            if types.setdefault(field.column, logical) != logical:
                raise TypeError(
                    f"{kind.__name__}.{field.name} is a {logical}, but not in another kind: name it in _NAMES"
                )
            text = _MEANINGS.get(field.column) or meanings.get(field.name, "")
            texts.setdefault(field.column, {})[kind.__name__] = text
    common = {column.name for column in _COMMON}
    for name, by_kind in texts.items():
        if name not in common:
            yield Column(name, types[name], True, _joined(by_kind), tuple(by_kind))


def _joined(by_kind: Mapping[str, str]) -> str:
    meanings: dict[str, list[str]] = {}
    for kind, text in by_kind.items():
        meanings.setdefault(text, []).append(kind)
    if len(meanings) == 1:
        return next(iter(meanings))
    return "; ".join(f"{', '.join(kinds)}: {text}" for text, kinds in meanings.items())


def _columns() -> tuple[Column, ...]:
    """What most queries read comes first: a reader of the file's head gets it at once."""
    named = {column.name: column for column in (*_COMMON, *_derived())}
    first = ("kind", "at", "pair", "entity", _ENTITY_KIND, "process", "seq", "message_id", "message_key")
    return (*(named.pop(name) for name in first), *named.values())


COLUMNS: tuple[Column, ...] = _columns()
"""All columns, in the order of the segments."""


def row_of(event: Event) -> dict[str, Any]:
    """Give an event's row: its columns by name, without ``process`` and ``seq`` and what the kind of event lacks."""
    row: dict[str, Any] = {"kind": type(event).__name__}
    for field in FIELDS[type(event)]:
        value = getattr(event, field.name)
        if field.part is not None and value is not None:
            value = getattr(value, field.part)
        row[field.column] = value.value if isinstance(value, enum.Enum) else value
    if "message_id" in row:
        row["message_key"] = message_key(row["message_id"])
    return row


def event_of(row: Mapping[str, Any]) -> Event:
    """Give the event of a row, the inverse of `row_of`; a missing column is null, one that the kind lacks ignored.

    Raises `ValueError` for a kind or value that it can't have: a newer PairMQ may have written the row.
    """
    kind = KINDS.get(row.get("kind") or "")
    if kind is None:
        raise ValueError(f"no kind of event is named {row.get('kind')!r}: a newer PairMQ may have written the row")
    values: dict[str, Any] = {}
    for entry in fields(kind):
        name = _NAMES.get((kind, entry.name), entry.name)
        hint, value = _HINTS[kind][entry.name], row.get(name)
        if value is None:
            values[entry.name] = None
        elif hint is Entity:
            values[entry.name] = Entity(value, EntityKind(row.get(_ENTITY_KIND) or EntityKind.QUEUE))
        elif get_origin(hint) is tuple:
            values[entry.name] = tuple(value)
        else:
            values[entry.name] = hint(value) if issubclass(hint, enum.Enum) else value
    return kind(**values)


_SELF_HASHED = re.compile(r"[0-9a-f]{32}")


def message_key(message_id: str | None) -> int | None:
    """Hash a message id to a signed 64-bit number that is the same in every process, on every machine; None has none.

    An id of 32 lower-case hexadecimal digits, such as PairMQ gives, is random already: its halves, combined by
    exclusive or, are its hash. Any other is hashed by BLAKE2b. That any two of 10 million ids share a key has a chance
    of 1 in 400 000.
    """
    if message_id is None:
        return None
    if _SELF_HASHED.fullmatch(message_id):
        raw = bytes.fromhex(message_id)
        return _signed(raw[:8]) ^ _signed(raw[8:])
    return _signed(hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


_SEAL = b"PMQF"
_FROM_END = 2  # what `os.SEEK_END` is
_ENDING = 8  # bytes behind a footer: its length and Parquet's four letters
_USUAL = 1 << 16  # bytes that nearly every segment's end has room in


def sealed(end: bytes) -> bytes:
    """Put a checksum in front of a segment's end, from its footer on: Parquet has checksums of pages alone.

    Readers find a footer by its length, and pages by their places, so that none looks at what is between the two.
    """
    return _SEAL + zlib.crc32(end).to_bytes(4, "little") + end


def end_of(segment: BinaryIO) -> bytes:
    """Read a segment's end, from its footer on, in one call where it is of usual length.

    Raises `ValueError` where its checksum is another; segments of earlier versions, and of other programs, have none.
    """
    size = segment.seek(0, _FROM_END)
    end = _last(segment, size, _USUAL)
    length = int.from_bytes(end[-_ENDING : -_ENDING + 4], "little") + _ENDING
    room = len(_SEAL) + 4 + length
    if len(end) < room <= size:
        end = _last(segment, size, room)
    seal, found = end[-room:-length], end[-length:]
    if seal.startswith(_SEAL) and seal + found != sealed(found):
        raise ValueError("its footer is damaged: the checksum is another")
    return found


def _last(file: BinaryIO, size: int, length: int) -> bytes:
    file.seek(max(0, size - length))
    return file.read()
