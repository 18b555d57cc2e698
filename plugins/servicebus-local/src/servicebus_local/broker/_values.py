"""Messages as a front hands them in, as the broker keeps them, and as bytes for the store.

For the store values become JSON, with an object of one key where JSON has no word for a value. Nothing that is read
back can run code, and every value comes back with the type it had.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from operator import attrgetter
from typing import Any
from uuid import UUID

MessageId = str | bytes | UUID | int | None

NEVER = math.inf
"""The instant that does not come: a message without a time to live expires then."""


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


class MessageState(IntEnum):
    """Where a message is in its life, with the service's numbers (Service Bus documentation: "Message browsing")."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True)
class Incoming:
    """A message as a front hands it in, decoded just as far as the broker looks."""

    content: bytes  # the encoded message, returned unchanged
    size: int  # bytes of the whole message with its properties, as quota and size limit count it
    message_id: MessageId = None  # what duplicates have in common; a string, bytes, a UUID or an unsigned integer
    session_id: str | None = None  # the session (AMQP `group-id`)
    partition_key: str | None = None  # must equal the session id where both are there
    reply_to: str | None = None  # for filters
    reply_to_session_id: str | None = None  # for filters (AMQP `reply-to-group-id`)
    to: str | None = None  # for filters
    subject: str | None = None  # for filters, where it is called the label
    correlation_id: MessageId = None  # for filters
    content_type: str | None = None  # for filters, and to recognise a ping
    time_to_live: float | None = None  # seconds; `None` leaves it to the entity
    scheduled_at: float | None = None  # unix seconds before which the message is not delivered
    properties: Mapping[str, object] = field(default_factory=dict)  # application properties, for filters only


@dataclass(slots=True)
class Stored(Incoming):
    """A message in a queue, a subscription or a dead-letter queue.

    It is the broker's own object and goes on changing: read it at once.
    """

    sequence_number: int = 0  # its place in this entity, never given to another message
    enqueued_at: float = 0.0  # unix seconds
    expires_at: float = NEVER  # unix seconds; infinity for never
    delivery_count: int = 0  # deliveries so far that ended without a settlement
    state: MessageState = MessageState.ACTIVE
    lock_token: UUID | None = None  # of the delivery that is open now
    locked_until: float = 0.0  # unix seconds; means something only with a token
    dead_letter_reason: str | None = None  # why it was dead-lettered, a word
    dead_letter_description: str | None = None  # the same in a sentence
    dead_letter_source: str | None = None  # the path of the entity that it was dead-lettered in
    # What settlements and rule actions changed; a front merges them at delivery.
    added_properties: dict[str, object] = field(default_factory=dict)
    enqueued_sequence_number: int = 0  # the first number it had, where it was moved since; else 0
    hops: int = 0  # how often it was forwarded
    key: int = 0  # its row in the store
    saved: bool = False  # whether the store has that row

    @property
    def current_properties(self) -> Mapping[str, object]:
        """Application properties with what was changed since the message was sent."""
        return {**self.properties, **self.added_properties} if self.added_properties else self.properties


def stored_from(incoming: Incoming, now: float, default_time_to_live: float | None) -> Stored:
    scheduled_at = incoming.scheduled_at
    waits = scheduled_at is not None and scheduled_at > now
    time_to_live = incoming.time_to_live
    if default_time_to_live is not None and (time_to_live is None or default_time_to_live < time_to_live):
        time_to_live = default_time_to_live
    enqueued_at = scheduled_at if waits and scheduled_at is not None else now
    return Stored(
        incoming.content,
        incoming.size,
        incoming.message_id,
        incoming.session_id,
        incoming.partition_key,
        incoming.reply_to,
        incoming.reply_to_session_id,
        incoming.to,
        incoming.subject,
        incoming.correlation_id,
        incoming.content_type,
        time_to_live,
        scheduled_at,
        incoming.properties,
        0,
        enqueued_at,
        NEVER if time_to_live is None else enqueued_at + time_to_live,
        0,
        MessageState.SCHEDULED if waits else MessageState.ACTIVE,
    )


def copy_of(message: Stored, now: float, default_time_to_live: float | None) -> Stored:
    copy = stored_from(message, now, default_time_to_live)
    copy.state = MessageState.ACTIVE
    copy.enqueued_at = now
    copy.expires_at = min(message.expires_at, NEVER if default_time_to_live is None else now + default_time_to_live)
    copy.dead_letter_reason = message.dead_letter_reason
    copy.dead_letter_description = message.dead_letter_description
    copy.dead_letter_source = message.dead_letter_source
    copy.added_properties = dict(message.added_properties)
    copy.enqueued_sequence_number = message.enqueued_sequence_number or message.sequence_number
    copy.hops = message.hops
    return copy


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
