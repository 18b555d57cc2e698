"""All of a message but its body as one JSON object, and back, exactly: for brokers without properties of their own.

JSON has fewer types than a message's properties, so that each value is written with the name of its type before it:
``["int", 7]``, ``["bytes", "aGk="]``, ``["list", [["none"], ["str", "x"]]]``. A field that is not set is not written,
which keeps *unset* and *empty* apart. Fields that this version does not know are ignored, so that a later one may add
some.

What is stored is untrusted input: decoding raises `MalformedHeader` and nothing else, and evaluates nothing. What
Python makes of the JSON goes through `Message`, which checks every field once more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from json.encoder import encode_basestring_ascii as _quoted
from operator import attrgetter
from typing import Any
from uuid import UUID

from pairmq.model import MAX_ID_LENGTH, MAX_NESTING, Message, PropertyValue

_PLAIN_FIELDS = (
    "message_id",
    "session_id",
    "time_to_live",
    "content_type",
    "content_encoding",
    "correlation_id",
    "subject",
    "to",
    "reply_to",
    "reply_to_session_id",
    "partition_key",
    "priority",
)
_SCHEDULED, _PROPERTIES = "scheduled_enqueue_at", "application_properties"
_MOST_SHOWN = 200
_USUAL_TEXTS = frozenset(("message_id", "content_type", "content_encoding", "correlation_id", "subject", "reply_to"))

_plain_values = attrgetter(*_PLAIN_FIELDS)
_json = json.JSONEncoder(separators=(",", ":")).encode  # non-ASCII letters are escaped: one letter is one byte
_read_json = json.JSONDecoder().raw_decode


class MalformedHeader(Exception):
    """It is not a message of PairMQ; the text says why in a sentence."""


def encode_header(message: Message) -> str:
    """Write all of a message but its body, as ASCII: what its length is in characters, it is in bytes."""
    # Texts, as nearly all are, by the encoder's own function for them: an encoder makes another one for each call.
    parts = [
        f'"{name}":{_quoted(value) if type(value) is str else _json(value)}'
        for name, value in zip(_PLAIN_FIELDS, _plain_values(message), strict=True)
        if value is not None
    ]
    if message.scheduled_enqueue_at is not None:
        parts.append(f'"{_SCHEDULED}":"{message.scheduled_enqueue_at.isoformat()}"')
    if message.application_properties:
        properties = [
            f'{_quoted(name)}:["str",{_quoted(value)}]'
            if type(value) is str
            else f"{_quoted(name)}:{_json(_written(value))}"
            for name, value in message.application_properties.items()
        ]
        parts.append(f'"{_PROPERTIES}":{{{",".join(properties)}}}')
    return f"{{{','.join(parts)}}}"


def decode_header(header: object, body: object) -> Message:
    """Read a message.

    Args:
        header: what `encode_header` wrote, or anything else that was stored in its place.
        body: the message's body, or anything else.

    Raises:
        MalformedHeader: it is not a message of PairMQ.
    """
    if not isinstance(header, str) or not isinstance(body, bytes):
        raise MalformedHeader("it has no header and body: it was not written by PairMQ")
    try:
        fields, end = _read_json(header)
        if end != len(header):
            raise ValueError("something follows its JSON")
        _typed(fields, dict)
        if (usual := _usual(fields, body)) is not None:
            return usual
        values: dict[str, Any] = {name: fields[name] for name in _PLAIN_FIELDS if name in fields}
        if _SCHEDULED in fields:
            values[_SCHEDULED] = datetime.fromisoformat(fields[_SCHEDULED])
        if _PROPERTIES in fields:
            values[_PROPERTIES] = {name: _read(value, 0) for name, value in fields[_PROPERTIES].items()}
        return Message(body, **values)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # The text comes from outside: it is cut.
        raise MalformedHeader(f"{type(error).__name__}: {error}"[:_MOST_SHOWN]) from error


def _usual(fields: dict[str, Any], body: bytes) -> Message | None:
    """Read a message with nothing but ids and properties of ASCII text, as nearly all have; None if it has more."""
    properties: dict[str, PropertyValue] = {}
    for name, value in fields.items():
        if name in _USUAL_TEXTS:
            if type(value) is not str or not value.isascii():
                return None
        elif name == _PROPERTIES:
            for key, written in value.items():
                if type(written) is not list or len(written) != 2 or written[0] != "str":
                    return None
                text = written[1]
                if type(text) is not str or not (text.isascii() and key.isascii() and key):
                    return None
                properties[key] = text
        else:
            return None
    get = fields.get
    message_id = get("message_id")
    if message_id is not None and not 1 <= len(message_id) <= MAX_ID_LENGTH:
        return None
    texts = get("content_type"), get("content_encoding"), get("correlation_id"), get("subject"), get("reply_to")
    return Message.of_checked(body, message_id, *texts, None, properties)


# One row a type, read in both directions: a type that is added to one can't be forgotten in the other. The types are
# compared exactly, as bool is an int.
_TYPES: tuple[tuple[str, type, Callable[[Any], object], Callable[[Any], PropertyValue]], ...] = (
    ("str", str, str, lambda text: _typed(text, str)),
    ("bool", bool, bool, lambda value: _typed(value, bool)),
    ("int", int, int, lambda value: _typed(value, int)),
    ("float", float, float, lambda value: _typed(value, float)),
    ("bytes", bytes, lambda raw: base64.b64encode(raw).decode(), lambda text: base64.b64decode(text, validate=True)),
    ("decimal", Decimal, str, lambda text: Decimal(_typed(text, str))),
    ("datetime", datetime, datetime.isoformat, datetime.fromisoformat),
    ("uuid", UUID, str, UUID),
)
_WRITERS = {kind: (tag, write) for tag, kind, write, _ in _TYPES}
_READERS = {tag: read for tag, _, _, read in _TYPES}


def _written(value: PropertyValue) -> list[object]:
    if value is None:
        return ["none"]
    if isinstance(value, tuple):
        return ["list", [_written(entry) for entry in value]]
    if isinstance(value, Mapping):
        return ["map", {name: _written(entry) for name, entry in value.items()}]
    tag, write = _WRITERS[type(value)]
    return [tag, write(value)]


def _read(written: Any, depth: int) -> PropertyValue:
    if depth > MAX_NESTING:
        raise ValueError(f"an application property is nested more than {MAX_NESTING} deep")
    tag, *rest = _typed(written, list)
    if tag == "none":
        return None
    (value,) = rest
    if tag == "list":
        return tuple([_read(entry, depth + 1) for entry in value])
    if tag == "map":
        return {name: _read(entry, depth + 1) for name, entry in value.items()}
    return _READERS[tag](value)


def _typed(value: Any, kind: type) -> Any:
    """Let pass what JSON has read as the type that must stand there."""
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} stands where a {kind.__name__} belongs")
    return value
