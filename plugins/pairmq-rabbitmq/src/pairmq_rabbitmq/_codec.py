"""A message as AMQP 0-9-1 properties and body, and back, exactly; readable to those who know nothing of PairMQ.

What AMQP 0-9-1 has a property for travels as that property, the rest as headers that are named after AMQP 1.0 and
Service Bus (``group-id``, ``to``, ``x-opt-partition-key`` and the like), application properties as headers of their
own names. Three things need more than that, and only messages that need it carry it:

- a property that would be taken for something else on the way, or be taken away (``CC`` sends copies elsewhere,
  ``group-id`` is the session), stands in the table ``application-properties``, where nobody acts on it; so does one
  whose name is too long for a table: then the whole is an array of names and values in turn;
- a value that AMQP has no type for is readable text, and the table ``application-property-types`` says what it was. It
  has the shape of the headers themselves: members by name, elements by their index, and under the name ``""`` that an
  array was a mapping;
- text too long for an AMQP property stands in a header instead.

`Basic.Properties` of pamqp writes floats with half of their digits, cuts names to 128 bytes and leaves empty texts
out. So what is made here knows how to write itself, and has to be sent as it is, not copied field by field.

Anyone may put anything into a queue: decoding raises `MalformedMessage` and nothing else.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from math import ceil
from typing import Any, Final
from uuid import UUID

from pamqp.commands import Basic

from pairmq.model import MAX_ID_LENGTH, MAX_NESTING, MAX_TIME_TO_LIVE, Message, PropertyValue
from pairmq_rabbitmq._header import UNREADABLE

MAX_EXPIRATION_MS: Final = 2**32 - 1
"""The longest ``expiration`` in milliseconds that RabbitMQ takes."""

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""A ``reply_to`` that RabbitMQ acts on: it closes a channel that has no consumer of this name."""

MAX_REASON_LENGTH: Final = 1024
"""Characters of a dead-letter reason or description that are kept."""

_MAX_SHORT = 255  # bytes of a property's text, and of a name in a table
_MAX_SHORT_LETTERS = _MAX_SHORT // 4  # that many letters fit, whatever they are

# Bytes around the properties in a content header frame: frame header and end octet, class, weight, body size.
_FRAME_BYTES = 8 + 12

_SHELTER = "application-properties"
_TYPES = "application-property-types"
_MAP = "map"
_TTL = "ttl"
_SCHEDULED = "x-opt-scheduled-enqueue-time"
_REASON, _DESCRIPTION = "x-dead-letter-reason", "x-dead-letter-description"
DELIVERY_COUNT: Final = "x-delivery-count"
"""Header in which a quorum queue tells how often a message was given out before."""

# Field of Message, property of AMQP, header for what does not fit there.
_TEXTS: tuple[tuple[str, str, str], ...] = (
    ("message_id", "message_id", "message-id"),
    ("content_type", "content_type", "content-type"),
    ("content_encoding", "content_encoding", "content-encoding"),
    ("correlation_id", "correlation_id", "correlation-id"),
    ("reply_to", "reply_to", "reply-to"),
    ("subject", "message_type", "subject"),
)
# Field of Message, its header, and whether it is an id, which is never empty.
_HEADERS: tuple[tuple[str, str, bool], ...] = (
    ("session_id", "group-id", True),
    ("reply_to_session_id", "reply-to-group-id", True),
    ("to", "to", False),
    ("partition_key", "x-opt-partition-key", True),
)
# Properties of AMQP that a Message has no field for.
_APP_ID, _TIMESTAMP, _USER_ID, _CLUSTER_ID = "amqp.app_id", "amqp.timestamp", "amqp.user_id", "amqp.cluster_id"

_ROUTING = frozenset(("CC", "BCC"))
_BROKER_COUNTS = frozenset((DELIVERY_COUNT, "x-acquired-count"))
# The mark is ours: an application's own header of that name must not be taken for it.
_BROKER_MADE = frozenset(("x-death", _REASON, _DESCRIPTION, UNREADABLE)) | _BROKER_COUNTS
_BROKER_PREFIXES = ("x-first-death-", "x-last-death-")
_MAPPING = frozenset(
    (_SHELTER, _TYPES, _TTL, _SCHEDULED, *(header for _, _, header in _TEXTS), *(header for _, header, _ in _HEADERS))
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)
# pamqp takes a later timestamp for milliseconds.
_MAX_TIMESTAMP = 2**32 - 1
_LAST_TIMESTAMP = _EPOCH + _MAX_TIMESTAMP * _SECOND

_EXPIRATION = re.compile(r"\+?[0-9]{1,20}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")

_PLAIN, _SHELTERED, _SENT_AS_PROPERTY = range(3)
_SIMPLE = frozenset((str, int, bool, float, type(None)))
_NATIVE = _SIMPLE | {Decimal}


class MalformedMessage(ValueError):
    """A message that PairMQ can't represent as it is; the text says why in a sentence."""


@dataclass(frozen=True, slots=True)
class Death:
    """Why RabbitMQ dead-lettered a message, the last time that it did.

    Args:
        reason: ``expired``, ``rejected``, ``maxlen`` or ``delivery_limit``.
        queue: where it was.
        original_expiration: seconds of its ``expiration``, which RabbitMQ took away; None if it had none.
    """

    reason: str
    queue: str
    original_expiration: float | None = None


class _Properties(Basic.Properties):
    """Properties that lose nothing on the wire."""

    # No __slots__ here: pamqp goes by this attribute, and would find no properties in an empty one.

    def marshal(self) -> bytes:
        return _marshalled(self)


# --------------------------------------------------------------------------- to the wire


def encode(message: Message, *, login: str) -> Basic.Properties:
    """Write a message's properties; its body is the body.

    Args:
        message: any message.
        login: the user of the connection that it goes over; RabbitMQ refuses a ``user_id`` of another one.

    Returns:
        The properties, to be sent as they are: a field-by-field copy may lose digits and names.
    """
    headers: dict[str, Any] = {}
    properties = _blank()
    for field, attribute, header in _TEXTS:
        text = getattr(message, field)
        if text is None:
            continue
        if (len(text) > _MAX_SHORT_LETTERS or text == DIRECT_REPLY_TO) and _unfit(header, text):
            headers[header] = text
            # A returned message is known by its message_id, so that it has one in any case.
            text = _digest(text) if header == "message-id" else None
        setattr(properties, attribute, text)
    for field, header, _ in _HEADERS:
        text = getattr(message, field)
        if text is not None:
            headers[header] = text
    properties.priority = message.priority
    if message.time_to_live is not None:
        _put_time_to_live(properties, headers, message.time_to_live, scheduled=message.scheduled_enqueue_at is not None)
    if message.scheduled_enqueue_at is not None:
        headers[_SCHEDULED] = message.scheduled_enqueue_at.isoformat(timespec="microseconds")
    if message.application_properties:
        _put_properties(properties, headers, message.application_properties, login)
    if headers:
        properties.headers = headers
    return properties


def header_size(properties: Basic.Properties) -> int:
    """Measure the content header frame, which must not be longer than the connection's ``frame_max``.

    Args:
        properties: as `encode` made them, or as they were received.

    Returns:
        Bytes of the whole frame, with its own header and end.

    Raises:
        ValueError: properties that can't be written; never those of `encode`.
    """
    return _FRAME_BYTES + len(_marshalled(properties))


def size(message: Message, *, login: str = "") -> int:
    """Measure a message as it is sent.

    Args:
        message: any message.
        login: as for `encode`; it makes a difference of a few bytes to messages with ``amqp.user_id``.

    Returns:
        Bytes of its body and of its content header frame. RabbitMQ's own bound counts the body only.
    """
    return len(message.body) + header_size(encode(message, login=login))


def _blank() -> _Properties:
    # What pamqp's constructor would do, without its checks: this is on the path of every send.
    properties = object.__new__(_Properties)
    properties.content_type = None
    properties.content_encoding = None
    properties.headers = None
    properties.delivery_mode = 2
    properties.priority = None
    properties.correlation_id = None
    properties.reply_to = None
    properties.expiration = None
    properties.message_id = None
    properties.timestamp = None
    properties.message_type = None
    properties.user_id = None
    properties.app_id = None
    properties.cluster_id = ""
    return properties


def _fits_short(text: str) -> bool:
    return len(text) <= _MAX_SHORT_LETTERS or len(text.encode()) <= _MAX_SHORT


def _unfit(header: str, text: str) -> bool:
    """Whether a text travels in a header because its property can't hold it."""
    return not _fits_short(text) or (header == "reply-to" and text == DIRECT_REPLY_TO)


def _digest(message_id: str) -> str:
    return hashlib.sha256(message_id.encode()).hexdigest()


def _put_time_to_live(properties: _Properties, headers: dict[str, Any], seconds: float, *, scheduled: bool) -> None:
    if scheduled:
        # It waits in a queue that expiration would empty too early.
        headers[_TTL] = _seconds_text(seconds)
        return
    ms = round(seconds * 1000) if seconds < MAX_EXPIRATION_MS else 0
    exact = ms > 0 and ms / 1000 == seconds
    if not exact:
        ms = ceil(seconds * 1000)
        headers[_TTL] = _seconds_text(seconds)
    if ms <= MAX_EXPIRATION_MS:
        properties.expiration = str(ms)
    else:
        headers[_TTL] = _seconds_text(seconds)


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


@lru_cache(maxsize=1024)
def _place(name: str) -> int:
    """Where an application property of this name goes."""
    if name in _MAPPING or name in _BROKER_MADE or name in _ROUTING or name.startswith(_BROKER_PREFIXES):
        return _SHELTERED
    if not _fits_short(name):
        return _SHELTERED
    return _SENT_AS_PROPERTY if name in (_APP_ID, _TIMESTAMP, _USER_ID) else _PLAIN


def is_plain(name: str) -> bool:
    """Whether a header of this name is an application property and nothing else."""
    return _place(name) == _PLAIN


def _put_properties(
    properties: _Properties, headers: dict[str, Any], values: Mapping[str, PropertyValue], login: str
) -> None:
    sheltered: dict[str, PropertyValue] | None = None
    types: dict[str, Any] | None = None
    for name, value in values.items():
        place = _place(name)
        if place != _PLAIN:
            if place == _SHELTERED:
                sheltered = sheltered or {}
                sheltered[name] = value
                continue
            if _put_extra(properties, name, value, login):
                continue
        if type(value) in _NATIVE:
            headers[name] = value
            continue
        headers[name], node = _to_wire(value)
        if node is not None:
            types = types or {}
            types[name] = node
    if sheltered:
        if all(map(_fits_short, sheltered)):
            headers[_SHELTER], node = _table_to_wire(sheltered)
        else:
            headers[_SHELTER], node = _pairs_to_wire(sheltered)
        if node is not None:
            types = types or {}
            types[_SHELTER] = node
    if types:
        headers[_TYPES] = types


def _put_extra(properties: _Properties, name: str, value: PropertyValue, login: str) -> bool:
    """Send a value as AMQP's own property if it can be one."""
    if name == _TIMESTAMP:
        if isinstance(value, datetime) and _is_timestamp(value):
            properties.timestamp = value
            return True
    elif isinstance(value, str) and _fits_short(value):
        if name == _APP_ID:
            properties.app_id = value
            return True
        if value == login and login:  # _USER_ID
            properties.user_id = value
            return True
    return False


def _is_timestamp(value: datetime) -> bool:
    return not value.microsecond and _EPOCH <= value <= _LAST_TIMESTAMP


def _to_wire(value: PropertyValue) -> tuple[Any, Any]:
    """Bring a value to pamqp's types.

    Returns:
        The value, and what the types' tree says of it; None if it speaks for itself.
    """
    if type(value) in _NATIVE:
        return value, None
    if isinstance(value, bytes):
        return bytearray(value), None
    if isinstance(value, datetime):
        return (value, None) if _is_timestamp(value) else (value.isoformat(), "datetime")
    if isinstance(value, UUID):
        return str(value), "uuid"
    if isinstance(value, tuple):
        return _array_to_wire(value)
    assert isinstance(value, Mapping)  # noqa: S101  # for mypy; Message has checked it
    if all(map(_fits_short, value)):
        return _table_to_wire(value)
    array, node = _pairs_to_wire(value)
    return array, {"": _MAP, **(node or {})}


def _array_to_wire(values: tuple[PropertyValue, ...]) -> tuple[list[Any], dict[str, Any] | None]:
    pairs = [_to_wire(value) for value in values]
    nodes = {str(index): node for index, (_, node) in enumerate(pairs) if node is not None}
    return [value for value, _ in pairs], nodes or None


def _table_to_wire(values: Mapping[str, PropertyValue]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    table: dict[str, Any] = {}
    nodes: dict[str, Any] = {}
    for name, value in values.items():
        table[name], node = _to_wire(value)
        if node is not None:
            nodes[name] = node
    return table, nodes or None


def _pairs_to_wire(values: Mapping[str, PropertyValue]) -> tuple[list[Any], dict[str, Any] | None]:
    # A name too long for a table can't be its key: names and values stand in turn.
    return _array_to_wire(tuple(part for pair in values.items() for part in pair))


# --------------------------------------------------------------------------- bytes

_OCTETS = [bytes((number,)) for number in range(_MAX_SHORT + 1)]
_pack_flags = struct.Struct(">H").pack
_pack_length = struct.Struct(">I").pack
_pack_timestamp = struct.Struct(">Q").pack
_pack_string = struct.Struct(">cI").pack
_pack_int32 = struct.Struct(">ci").pack
_pack_int64 = struct.Struct(">cq").pack
_pack_double = struct.Struct(">cd").pack
_pack_decimal = struct.Struct(">cBi").pack


def _marshalled(properties: Basic.Properties) -> bytes:
    """Write the flags and the properties that are set, as pamqp does, but nothing is left out, cut or rounded."""
    flags = 0
    parts = [b""]
    put = parts.append
    try:
        if (text := properties.content_type) is not None:
            flags |= 0x8000
            put(_short(text))
        if (text := properties.content_encoding) is not None:
            flags |= 0x4000
            put(_short(text))
        if (headers := properties.headers) is not None:
            flags |= 0x2000
            put(_field(headers)[1:])  # without its type
        if (number := properties.delivery_mode) is not None:
            flags |= 0x1000
            put(_OCTETS[number])
        if (number := properties.priority) is not None:
            flags |= 0x0800
            put(_OCTETS[number])
        if (text := properties.correlation_id) is not None:
            flags |= 0x0400
            put(_short(text))
        if (text := properties.reply_to) is not None:
            flags |= 0x0200
            put(_short(text))
        if (text := properties.expiration) is not None:
            flags |= 0x0100
            put(_short(text))
        if (text := properties.message_id) is not None:
            flags |= 0x0080
            put(_short(text))
        if (at := properties.timestamp) is not None:
            flags |= 0x0040
            put(_timestamp(at))
        if (text := properties.message_type) is not None:
            flags |= 0x0020
            put(_short(text))
        if (text := properties.user_id) is not None:
            flags |= 0x0010
            put(_short(text))
        if (text := properties.app_id) is not None:
            flags |= 0x0008
            put(_short(text))
        if text := properties.cluster_id:  # pamqp's "not set" is the empty text here
            flags |= 0x0004
            put(_short(text))
    except (IndexError, struct.error) as error:
        raise ValueError(f"a property or header does not fit AMQP 0-9-1: {error}") from error
    parts[0] = _pack_flags(flags)
    return b"".join(parts)


def _short(text: str) -> bytes:
    raw = text.encode()
    return _OCTETS[len(raw)] + raw


def _field(value: Any) -> bytes:
    """Write one value of a table, its type first; one call for each level, as received ones may nest deep."""
    kind = type(value)
    raw: bytes
    if kind is str:
        raw = value.encode()
        return _pack_string(b"S", len(raw)) + raw
    if kind is int:
        # The two types that every client knows.
        return _pack_int32(b"I", value) if -0x80000000 <= value <= 0x7FFFFFFF else _pack_int64(b"l", value)
    if kind is bool:
        return b"t\x01" if value else b"t\x00"
    if kind is float:
        return _pack_double(b"d", value)
    if value is None:
        return b"V"
    parts: list[bytes] = []
    if kind is dict:
        for name, entry in value.items():
            raw = name.encode()
            parts += (_OCTETS[len(raw)], raw, _field(entry))
        raw = b"".join(parts)
        return _pack_string(b"F", len(raw)) + raw
    if kind is list:
        for entry in value:
            parts.append(_field(entry))
        raw = b"".join(parts)
        return _pack_string(b"A", len(raw)) + raw
    if kind is bytearray:
        return _pack_string(b"x", len(value)) + bytes(value)
    if kind is datetime:
        return b"T" + _timestamp(value)
    if kind is Decimal:
        sign, digits, exponent = value.as_tuple()
        # Not by arithmetic: that would depend on the thread's decimal context.
        return _pack_decimal(b"D", -exponent, int(Decimal((sign, digits, 0))))
    if kind is bytes:
        return _pack_string(b"S", len(value)) + bytes(value)  # a received string that is no UTF-8
    raise ValueError(f"AMQP 0-9-1 has no type for a {kind.__name__}")


def _timestamp(at: datetime) -> bytes:
    # A received one that is not like ours came as milliseconds, and pamqp has divided them.
    return _pack_timestamp((at - _EPOCH) // _SECOND if _is_timestamp(at) else round((at - _EPOCH) / _MILLISECOND))


# --------------------------------------------------------------------------- from the wire


def decode(properties: Basic.Properties, body: bytes) -> Message:
    """Read a message.

    Args:
        properties: as received; anyone may have written them.
        body: its bytes.

    Returns:
        The message. Properties that a Message has no field for are application properties ``amqp.…``; an
        ``expiration`` of 0 becomes a time to live of 1 ms, as 0 is none. What the broker noted is left out.

    Raises:
        MalformedMessage: a Message can't hold it; the text says what is wrong.
    """
    try:
        values, application_properties = _read(properties, _raise)
        if application_properties:
            return Message(body, application_properties=application_properties, **values)
        return Message(body, **values)
    except MalformedMessage:
        raise
    except Exception as error:  # the values come from outside, and a receiver must survive each of them
        raise MalformedMessage((str(error) or type(error).__name__)[:300]) from error


def decode_leniently(properties: Basic.Properties, body: bytes) -> Message:
    """Show a message that may be malformed, so that a person can look at it: what a Message can't hold is left out.

    Args:
        properties: as received.
        body: its bytes.

    Returns:
        The message; its body is always there.
    """
    try:
        return decode(properties, body)
    except MalformedMessage:
        pass
    try:
        values, application_properties = _read(properties, lambda _: None)
    except Exception:
        return Message(bytes(body))
    fields = {name: value for name, value in values.items() if _holds(**{name: value})}
    if not _holds(**fields):
        fields.pop("partition_key", None)  # differs from the session id
    kept = {name: value for name, value in application_properties.items() if _holds_property(name, value)}
    return Message(bytes(body), application_properties=kept, **fields)


def _raise(problem: str) -> None:
    raise MalformedMessage(problem)


def _holds(**fields: Any) -> bool:
    try:
        Message(**fields)
    except Exception:
        return False
    return True


def _holds_property(name: str, value: Any) -> bool:
    return _holds(application_properties={name: value})


def _read(properties: Basic.Properties, refuse: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the fields of a message.

    Args:
        properties: as received.
        refuse: called with what is wrong; returns if it is to be left out.

    Returns:
        Values by their field of Message, and application properties, both unchecked.
    """
    values: dict[str, Any] = {}
    for field, attribute, _ in _TEXTS:
        text = getattr(properties, attribute)
        if text is not None:
            values[field] = text
    if not values.get("message_id", True):
        del values["message_id"]  # an empty one is none
    if properties.priority is not None:
        values["priority"] = properties.priority
    if properties.expiration is not None:
        seconds = _expiration_seconds(properties.expiration)
        if seconds is not None:
            values["time_to_live"] = seconds
        else:
            refuse("the property expiration is no number of milliseconds")

    own: dict[str, Any] = {}
    if properties.headers:
        mapped: dict[str, Any] = {}
        simple = True
        for name, value in properties.headers.items():
            if _place(name) == _SHELTERED:
                if name in _MAPPING:
                    mapped[name] = value
                    continue
                if name in _BROKER_MADE or name.startswith(_BROKER_PREFIXES):
                    continue
            own[name] = value
            if type(value) not in _SIMPLE:
                simple = False
        if mapped:
            own = _read_mapped(properties, mapped, values, own, refuse)
        elif not simple:
            own = _converted(own, {}, refuse)
    if (at := properties.timestamp) is not None:
        own[_TIMESTAMP] = at
    if (text := properties.app_id) is not None:
        own[_APP_ID] = text
    if (text := properties.user_id) is not None:
        own[_USER_ID] = text
    if text := properties.cluster_id:
        own[_CLUSTER_ID] = text
    return values, own


def _expiration_seconds(text: str) -> float | None:
    if not _EXPIRATION.fullmatch(text) or (ms := int(text)) > MAX_TIME_TO_LIVE * 1000:
        return None
    return (ms or 1) / 1000


def _read_mapped(
    properties: Basic.Properties,
    mapped: dict[str, Any],
    values: dict[str, Any],
    own: dict[str, Any],
    refuse: Callable[[str], None],
) -> dict[str, Any]:
    """Read the headers whose names PairMQ uses; one that PairMQ would not have written so is the application's.

    Args:
        properties: the properties, for what stands in them.
        mapped: these headers.
        values: fields of Message, completed here.
        own: the other headers, completed here.
        refuse: as for `_read`.

    Returns:
        The application properties.
    """
    for field, _, header in _TEXTS:
        if header in mapped:
            text = mapped[header]
            there = values.get(field)
            free = there is None or (field == "message_id" and isinstance(text, str) and there == _digest(text))
            if free and isinstance(text, str) and _unfit(header, text):
                values[field] = text
            else:
                own[header] = text
    for field, header, is_id in _HEADERS:
        if header in mapped:
            text = mapped[header]
            if not isinstance(text, str) or (is_id and not text):
                own[header] = text
            elif is_id and len(text) > MAX_ID_LENGTH:
                refuse(f"the header {header} has {len(text)} characters: at most {MAX_ID_LENGTH} are allowed")
            else:
                values[field] = text
    if _TTL in mapped:
        seconds = _header_seconds(mapped[_TTL], properties.expiration)
        if seconds is None:
            own[_TTL] = mapped[_TTL]
        else:
            values["time_to_live"] = seconds
    if _SCHEDULED in mapped:
        at = mapped[_SCHEDULED]
        if isinstance(at, str):
            parsed = _instant(at)
            if parsed is None:
                refuse(f"the header {_SCHEDULED} is no instant with its time zone in ISO 8601")
            else:
                values["scheduled_enqueue_at"] = parsed
        elif isinstance(at, datetime):
            values["scheduled_enqueue_at"] = at
        else:
            own[_SCHEDULED] = at

    types = mapped.get(_TYPES)
    if not (isinstance(types, dict) and types):
        if _TYPES in mapped:
            own[_TYPES] = types
        types = {}
    if _SHELTER not in mapped:
        return _converted(own, types, refuse)
    shelter = mapped[_SHELTER]
    sheltered = _sheltered(shelter)
    if sheltered is None or not sheltered.keys().isdisjoint(own):
        own[_SHELTER] = shelter
        return _converted(own, types, refuse)
    types = dict(types)
    node = types.pop(_SHELTER, None)
    found = _converted(own, types, refuse)
    if node is None:
        node = {}
    elif not isinstance(node, dict):
        refuse(_misfit(_SHELTER))
        node = {}
    if isinstance(shelter, list):
        node = _by_name(shelter, node, refuse)
    return _converted(sheltered, node, refuse) | found


def _header_seconds(text: object, expiration: str | None) -> float | None:
    """Read the header ``ttl`` if it is ours: then it says what ``expiration``, if there is one, says rounded up."""
    if not isinstance(text, str) or not _SECONDS.fullmatch(text):
        return None
    seconds = round(float(text), 6)
    if not 0 < seconds <= MAX_TIME_TO_LIVE:
        return None
    if expiration is not None:
        other = _Properties()
        _put_time_to_live(other, {}, seconds, scheduled=False)
        if other.expiration is None or _expiration_seconds(other.expiration) != _expiration_seconds(expiration):
            return None
    return seconds


def _instant(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else None
    except (OverflowError, ValueError):
        return None


def _sheltered(shelter: object) -> dict[str, Any] | None:
    """Read the header of sheltered properties; None if it is not of our making."""
    if isinstance(shelter, dict):
        found = shelter
        ours = bool(found)
    elif isinstance(shelter, list) and len(shelter) % 2 == 0 and all(isinstance(name, str) for name in shelter[::2]):
        found = dict(zip(shelter[::2], shelter[1::2], strict=True))
        ours = len(found) * 2 == len(shelter) and not all(map(_fits_short, found))
    else:
        return None
    return found if ours and all(_place(name) == _SHELTERED for name in found) else None


def _by_name(pairs: list[Any], node: dict[str, Any], refuse: Callable[[str], None]) -> dict[str, Any]:
    """Turn what the types' tree says of names and values in turn, by index, into the same by name."""
    named = {}
    for index, inner in node.items():
        if _INDEX.fullmatch(index) and int(index) < len(pairs) and int(index) % 2:
            named[pairs[int(index) - 1]] = inner
        else:
            refuse(_misfit(_SHELTER))
    return named


def _converted(values: dict[str, Any], types: Mapping[str, Any], refuse: Callable[[str], None]) -> dict[str, Any]:
    """Bring values to the types of application properties."""
    found = {}
    for name, value in values.items():
        node = types.get(name)
        try:
            found[name] = value if node is None and type(value) in _SIMPLE else _from_wire(value, node, name, 0)
        except MalformedMessage as error:
            refuse(str(error))
            if node is not None and type(value) in _SIMPLE:
                found[name] = value  # at least as it came
    for name in types:
        if name not in values:
            refuse(_misfit(name))
    return found


def _from_wire(value: Any, node: Any, name: str, depth: int) -> Any:
    """Bring one value, and what is in it, to the types of application properties.

    Args:
        value: as pamqp gave it.
        node: what the types' tree says of it.
        name: the property's, for the error.
        depth: how many containers it stands in.

    Raises:
        MalformedMessage: it nests too deep, or is not what the tree says.
    """
    if node is not None and type(node) is not dict:
        return _from_text(value, node, name)
    if isinstance(value, dict | list):
        if depth == MAX_NESTING:
            raise MalformedMessage(f"the header {name[:128]!r} is nested more than {MAX_NESTING} deep")
        node = node or {}
        if isinstance(value, dict):
            if not node.keys() <= value.keys():
                raise MalformedMessage(_misfit(name))
            return {key: _from_wire(entry, node.get(key), name, depth + 1) for key, entry in value.items()}
        return _from_array(value, node, name, depth)
    if node is not None:
        raise MalformedMessage(_misfit(name))
    return bytes(value) if isinstance(value, bytearray) else value


def _from_array(values: list[Any], node: dict[str, Any], name: str, depth: int) -> Any:
    nodes = dict(node)
    kind = nodes.pop("", None)
    if not all(_INDEX.fullmatch(index) and int(index) < len(values) for index in nodes):
        raise MalformedMessage(_misfit(name))
    found = [_from_wire(value, nodes.get(str(index)), name, depth + 1) for index, value in enumerate(values)]
    if kind is None:
        return tuple(found)
    names = found[::2]
    if kind != _MAP or len(found) % 2 or not all(isinstance(key, str) for key in names) or len(set(names)) < len(names):
        raise MalformedMessage(_misfit(name))
    return dict(zip(names, found[1::2], strict=True))


def _from_text(value: Any, kind: Any, name: str) -> Any:
    if isinstance(value, str):
        if kind == "uuid":
            try:
                return UUID(value)
            except ValueError:
                pass
        elif kind == "datetime":
            at = _instant(value)
            if at is not None:
                return at
    raise MalformedMessage(_misfit(name))


def _misfit(name: str) -> str:
    return f"the header {_TYPES} does not fit the property {name[:128]!r}"


# --------------------------------------------------------------------------- what the broker says


def death(properties: Basic.Properties) -> Death | None:
    """Read why the broker dead-lettered a message, the last time that it did.

    Args:
        properties: as received.

    Returns:
        The reason; None for a message that it never dead-lettered, or if what it says can't be read.
    """
    headers = properties.headers
    if not headers:
        return None
    deaths = headers.get("x-death")
    found = [entry for entry in deaths if isinstance(entry, dict)] if isinstance(deaths, list) else []
    last = {key: headers.get(f"x-last-death-{key}") for key in ("reason", "queue")}
    # The newest stands first, but RabbitMQ 4 also names it, and has an order of its own for those of one instant.
    named = [entry for entry in found if all(entry.get(key) == value for key, value in last.items())]
    entry: dict[str, Any] = (named or found or [last])[0]
    reason, queue, expiration = entry.get("reason"), entry.get("queue"), entry.get("original-expiration")
    if not isinstance(reason, str) or not isinstance(queue, str):
        return None
    return Death(reason, queue, _expiration_seconds(expiration) if isinstance(expiration, str) else None)


def delivery_count(properties: Basic.Properties, redelivered: bool) -> int:
    """Tell how many times a message was delivered.

    Args:
        properties: as received.
        redelivered: the delivery's flag, which is all that classic queues tell.

    Returns:
        The number with this delivery, at least 1; from a classic queue 2 means *more than once*.
    """
    count = properties.headers.get(DELIVERY_COUNT) if properties.headers else None
    return count_of(count if type(count) is int and count >= 0 else None, redelivered)


def count_of(before: int | None, redelivered: bool) -> int:
    """The same, of how often the broker says that it gave the message out before; None if it does not say."""
    if before is not None:
        return before + 1
    return 2 if redelivered else 1


def with_dead_letter(
    properties: Basic.Properties, reason: str, description: str, *, login: str = ""
) -> Basic.Properties:
    """Copy a received message's properties for its dead-letter queue.

    What the broker would act on once more is put out of its reach, and reads the same: the message must not expire in
    the dead-letter queue, go to its ``CC`` again or be refused for another user's ``user_id``.

    Args:
        properties: as received; they are left as they are.
        reason: a word or two; cut to `MAX_REASON_LENGTH`.
        description: a sentence; cut likewise.
        login: as for `encode`.

    Returns:
        The copy, to be sent as it is.
    """
    copy = _blank()
    for attribute in Basic.Properties.__slots__:
        setattr(copy, attribute, getattr(properties, attribute))
    headers: dict[str, Any] = dict(properties.headers or {})
    for name in _BROKER_COUNTS:
        headers.pop(name, None)  # of the queue that it leaves
    for name in _ROUTING & headers.keys():
        _shelter(headers, name)
    if copy.user_id is not None and copy.user_id != login:
        headers[_USER_ID] = copy.user_id
        copy.user_id = None
    if copy.expiration is not None:
        seconds = _expiration_seconds(copy.expiration)
        if _TTL in headers:
            exact = _header_seconds(headers[_TTL], copy.expiration)
            if exact is None:
                _shelter(headers, _TTL)
            else:
                seconds = exact
        if seconds is not None:
            headers[_TTL] = _seconds_text(seconds)
        copy.expiration = None
    headers[_REASON] = _cut(reason)
    headers[_DESCRIPTION] = _cut(description)
    copy.headers = headers
    copy.delivery_mode = 2
    return copy


def dead_letter_reason(properties: Basic.Properties) -> tuple[str | None, str | None]:
    """Read why a message is in a dead-letter queue.

    Args:
        properties: as received.

    Returns:
        Reason and description as `with_dead_letter` wrote them; else the broker's reason in PairMQ's words, without a
        description; None for what is not known.
    """
    headers = properties.headers or {}
    reason, description = headers.get(_REASON), headers.get(_DESCRIPTION)
    if isinstance(reason, str):
        return reason, description if isinstance(description, str) else None
    found = death(properties)
    if found is None:
        return None, None
    return {"maxlen": "max-length", "delivery_limit": "max-delivery-count"}.get(found.reason, found.reason), None


def _shelter(headers: dict[str, Any], name: str) -> None:
    """Move a foreign header to where nobody acts on it and `decode` finds it."""
    value = headers.pop(name)
    shelter = headers.get(_SHELTER)
    if shelter is None:
        headers[_SHELTER] = {name: value}
    elif (_sheltered(shelter) or {name: None}).keys() >= {name}:
        headers[_SHELTER] = {_SHELTER: shelter, name: value}  # an application's own of this name
    elif isinstance(shelter, list):
        headers[_SHELTER] = [*shelter, name, value]
    else:
        headers[_SHELTER] = {**shelter, name: value}


def _cut(text: str) -> str:
    return text[:MAX_REASON_LENGTH].encode(errors="replace").decode()
