"""A message as the fields of a stream entry, and back, exactly.

One letter a field, and only those that are set, so that *unset* and *empty* stay different. The body is always
included: an entry without it is not PairMQ's. Application properties are one JSON object, in which JSON's
own types represent str, bool, int, float (Python keeps 1, 1.0 and true apart), None and tuples, and an object
with one tagged member represents the rest, nested mappings included. Fields that this version does not know are
ignored, so that a newer one may add some; names that begin with ``!`` are the dead-letter queue's. It is no `Notation`
of `pairmq.model.property_json`: entries that are stored have instants as whole numbers, and a tag on each mapping.

Any client of Redis can put anything into a stream: decoding raises `MalformedEntry` and nothing
else, and evaluates nothing.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any
from uuid import UUID

from pairmq.model import MAX_ID_LENGTH, MAX_NESTING, Message, PropertyValue

TTL_FIELD = b"t"
"""The time-to-live's field. It always comes first: the scripts read it there and nowhere else."""

_BODY = b"b"
_ID = b"i"
_SCHEDULED = b"e"
_PRIORITY = b"y"
_PROPERTIES = b"a"
_TEXTS: tuple[tuple[bytes, str], ...] = (
    (b"i", "message_id"),
    (b"s", "session_id"),
    (b"c", "content_type"),
    (b"n", "content_encoding"),
    (b"r", "correlation_id"),
    (b"l", "subject"),
    (b"o", "to"),
    (b"p", "reply_to"),
    (b"q", "reply_to_session_id"),
    (b"k", "partition_key"),
)
_TEXT_NAMES = dict(_TEXTS)
_LETTERS = tuple(_TEXT_NAMES)
_PLAIN = frozenset((_BODY, _ID, _PROPERTIES, b"c", b"n", b"r", b"l", b"p"))
_texts_of = attrgetter(*_TEXT_NAMES.values())
_SMALL_NUMBER = re.compile(rb"[0-9]{1,3}")
_DECIMAL = re.compile(r"-?[0-9]{1,10}(\.[0-9]{1,16})?(E-[0-9]{1,3})?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class MalformedEntry(Exception):
    """A stream entry that is not a message of PairMQ; the text says why in a sentence."""


def encode(message: Message) -> list[bytes]:
    fields: list[bytes] = []
    put = fields.append
    if message.time_to_live is not None:
        put(TTL_FIELD)
        put(repr(message.time_to_live).encode())  # repr of a float is parsed to the same float
    put(_BODY)
    put(message.body)
    for letter, text in zip(_LETTERS, _texts_of(message), strict=True):
        if text is not None:
            put(letter)
            put(text.encode())
    if message.scheduled_enqueue_at is not None:
        put(_SCHEDULED)
        put(str(_microseconds(message.scheduled_enqueue_at)).encode())
    if message.priority is not None:
        put(_PRIORITY)
        put(str(message.priority).encode())
    if message.application_properties:
        put(_PROPERTIES)
        put(_write({key: _tagged(value) for key, value in message.application_properties.items()}).encode())
    return fields


def decode(fields: Sequence[bytes]) -> Message:
    try:
        found = dict(zip(fields[::2], fields[1::2], strict=True))
        body = found.get(_BODY)
        if body is None:
            raise MalformedEntry("the entry has no body field: it was not written by PairMQ")
        message_id = found.get(_ID)
        if _PLAIN.issuperset(found) and (message_id is None or 0 < len(message_id) <= MAX_ID_LENGTH):
            properties = _plain_properties(found.get(_PROPERTIES, b"{}"))
            if properties is not None:
                get = found.get
                return Message.of_checked(
                    body,
                    _text(message_id),
                    content_type=_text(get(b"c")),
                    content_encoding=_text(get(b"n")),
                    correlation_id=_text(get(b"r")),
                    subject=_text(get(b"l")),
                    reply_to=_text(get(b"p")),
                    priority=None,
                    application_properties=properties,
                )
        values: dict[str, Any] = {}
        for name, value in found.items():
            if name in _TEXT_NAMES:
                values[_TEXT_NAMES[name]] = value.decode()
            elif name == TTL_FIELD:
                values["time_to_live"] = float(value)
            elif name == _SCHEDULED:
                values["scheduled_enqueue_at"] = _EPOCH + int(value) * _MICROSECOND
            elif name == _PRIORITY:
                values["priority"] = _small_number(value)
            elif name == _PROPERTIES:
                values["application_properties"] = _decode_properties(value)
        return Message(body, **values)
    except MalformedEntry:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # The values are untrusted and so is the text: it is cut, and never holds more than one field
        # of it.
        raise MalformedEntry(f"{type(error).__name__}: {error}"[:200]) from error


def decode_leniently(fields: Sequence[bytes]) -> Message:
    """Show an entry that may be malformed to a person: fields that can't be read
    become properties.
    """
    try:
        return decode(fields)
    except MalformedEntry:
        pairs = [(n, v) for n, v in zip(fields[::2], fields[1::2], strict=False) if not n.startswith(b"!")]
        raw = {f"raw:{name.decode(errors='replace')}"[:128]: value for name, value in pairs if name != _BODY}
        message_id = dict(pairs).get(_ID, b"").decode(errors="replace")[:MAX_ID_LENGTH] or None
        return Message(dict(pairs).get(_BODY, b""), message_id, application_properties=raw)


def size(message: Message) -> int:
    return sum(map(len, encode(message)))


def due_at_ms(message: Message) -> int:
    """The first whole millisecond at which a scheduled message is due, since 1970 UTC."""
    if message.scheduled_enqueue_at is None:
        raise ValueError("the message is not scheduled")
    return -(-_microseconds(message.scheduled_enqueue_at) // 1000)


def instant(ms: float) -> datetime:
    """Milliseconds since 1970 UTC as an instant; what exceeds the calendar is cut to the year 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND  # integers throughout: exact


def _tagged(value: PropertyValue) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"d": _microseconds(value)}
    if isinstance(value, UUID):
        return {"u": value.hex}
    if isinstance(value, Decimal):
        return {"n": str(value).upper()}  # a caller's decimal context may write a small e
    if isinstance(value, tuple):
        return [_tagged(entry) for entry in value]
    return {"m": {key: _tagged(entry) for key, entry in value.items()}}


def _decode_properties(value: bytes) -> dict[str, PropertyValue]:
    decoded = _read(value.decode())
    if not isinstance(decoded, dict):
        raise MalformedEntry("the application properties are not a JSON object")
    # Most are text, all of the envelope's.
    return {key: entry if type(entry) is str else _untagged(entry, 0) for key, entry in decoded.items()}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _plain_properties(value: bytes) -> dict[str, PropertyValue] | None:
    """Read properties that are all short names of text, as nearly all are; None for others, to be read with all checks.

    Without an escape in it, any valid UTF-8 is text that every broker can hold.
    """
    text = value.decode()
    if "\\" in text:
        return None
    decoded, end = _read_at(text)
    if end != len(text) or type(decoded) is not dict:
        return None
    for name, entry in decoded.items():
        if type(entry) is not str or not 0 < len(name) <= MAX_ID_LENGTH:
            return None
    return decoded


def _untagged(value: object, depth: int) -> PropertyValue:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return tuple([_untagged(entry, _deeper(depth)) for entry in value])
    if isinstance(value, dict) and len(value) == 1:
        ((tag, inner),) = value.items()
        if tag == "b" and isinstance(inner, str):
            return base64.b64decode(inner, validate=True)
        if tag == "d" and type(inner) is int:
            return _EPOCH + inner * _MICROSECOND
        if tag == "u" and isinstance(inner, str):
            return UUID(hex=inner)
        if tag == "n" and isinstance(inner, str) and _DECIMAL.fullmatch(inner):
            return Decimal(inner)
        if tag == "m" and isinstance(inner, dict):
            return {key: _untagged(entry, _deeper(depth)) for key, entry in inner.items()}
    raise MalformedEntry("an application property has a type that PairMQ does not write")


def _deeper(depth: int) -> int:
    if depth >= MAX_NESTING:
        raise MalformedEntry(f"an application property is nested more than {MAX_NESTING} deep")
    return depth + 1


def _small_number(value: bytes) -> int:
    # int() alone accepts signs, spaces and underscores too.
    if not _SMALL_NUMBER.fullmatch(value):
        raise MalformedEntry("the priority is not a whole number from 0 to 255")
    return int(value)


def _no_constant(name: str) -> float:
    raise MalformedEntry(f"an application property is {name}")


# With options, `json.dumps` and `json.loads` would create one of these for each message.
_write = json.JSONEncoder(separators=(",", ":")).encode
_decoder = json.JSONDecoder(parse_constant=_no_constant)
_read, _read_at = _decoder.decode, _decoder.raw_decode
