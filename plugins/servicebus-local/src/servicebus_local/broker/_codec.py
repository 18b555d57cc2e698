"""Values to bytes and back for the store: JSON, with an object of one key where JSON has no word for a value.

Nothing that is read back can run code, and every value comes back with the type it had.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from servicebus_local.broker._values import NEVER, MessageState, Stored

_PLAIN = frozenset({str, int, float, bool, type(None)})
_FIELDS = (
    "size",
    "message_id",
    "session_id",
    "partition_key",
    "reply_to",
    "reply_to_session_id",
    "to",
    "subject",
    "correlation_id",
    "content_type",
    "time_to_live",
    "scheduled_at",
    "sequence_number",
    "enqueued_at",
    "expires_at",
    "delivery_count",
    "state",
    "dead_letter_reason",
    "dead_letter_description",
    "dead_letter_source",
    "enqueued_sequence_number",
    "hops",
    "properties",
    "added_properties",
)
_fields_of = attrgetter(*_FIELDS)
_STATE = _FIELDS.index("state")
_EXPIRES = _FIELDS.index("expires_at")


def to_micros(instant: float) -> int:
    """Unix seconds as whole microseconds."""
    return round(instant * 1_000_000)


def from_micros(micros: int) -> float:
    """Whole microseconds as unix seconds."""
    return micros / 1_000_000


def _wrap(value: object) -> object:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, UUID):
        return {"u": value.hex}
    if isinstance(value, datetime):
        return {"d": value.isoformat()}
    if isinstance(value, Mapping):
        return {"m": [[_wrap(key), _wrap(each)] for key, each in value.items()]}
    if isinstance(value, bytes | bytearray | memoryview):
        encoded = {"b": b64encode(value).decode("ascii")}
        return encoded if kind is bytes else {"t": [kind.__name__, encoded]}
    if isinstance(value, str):
        return {"t": [kind.__name__, str.__str__(value)]}
    if isinstance(value, int):
        return {"t": [kind.__name__, int(value)]}
    if isinstance(value, float):
        return {"t": [kind.__name__, float(value)]}
    if isinstance(value, Sequence):
        return [_wrap(each) for each in value]
    return None  # Nothing that a filter could compare; the message itself is in its content.


def encode(value: object) -> bytes:
    """A value as ASCII bytes; a value that a filter can't compare becomes `None`."""
    return json.dumps(_wrap(value), separators=(",", ":"), ensure_ascii=True).encode("ascii")


def encode_message(message: Stored) -> tuple[bytes, bytes]:
    """A message without its content, and the content."""
    row = list(map(_wrap, _fields_of(message)))
    row[_STATE] = int(message.state)
    if message.expires_at == NEVER:
        row[_EXPIRES] = None
    return json.dumps(row, separators=(",", ":"), ensure_ascii=True).encode("ascii"), message.content


class Decoder:
    """Reads what `encode` and `encode_message` wrote."""

    __slots__ = ("_types",)

    def __init__(self, scalar_types: Sequence[type] = ()) -> None:
        self._types: dict[str, Callable[[object], object]] = {kind.__name__: kind for kind in scalar_types}

    def decode(self, data: bytes) -> object:
        return self._unwrap(json.loads(data))

    def decode_message(self, data: bytes, content: bytes) -> Stored:
        row = json.loads(data)
        if not isinstance(row, list) or len(row) != len(_FIELDS):
            raise ValueError("not the row of a message")
        values: dict[str, Any] = dict(zip(_FIELDS, map(self._unwrap, row), strict=True))
        values["state"] = MessageState(row[_STATE])
        if values["expires_at"] is None:
            values["expires_at"] = NEVER
        return Stored(content=content, saved=True, **values)

    def _unwrap(self, value: object) -> object:
        if isinstance(value, list):
            return [self._unwrap(each) for each in value]
        if not isinstance(value, dict):
            return value
        (tag, inner), *more = value.items()
        if more:
            raise ValueError("an object with more than one key")
        if tag == "m":
            return {self._unwrap(key): self._unwrap(each) for key, each in inner}
        if tag == "b":
            return b64decode(inner, validate=True)
        if tag == "u":
            return UUID(hex=inner)
        if tag == "d":
            return datetime.fromisoformat(inner)
        if tag == "t":
            name, bare = inner
            plain = self._unwrap(bare)
            known = self._types.get(name)
            return plain if known is None else known(plain)
        raise ValueError(f"an object with the key '{tag}'")
