"""A message as AMQP properties, and these as the bytes of a content header frame, without loss.

pamqp's `Basic.Properties` loses half the digits of a float, cuts names to 128 bytes and omits empty strings. So the
properties made here serialize themselves, and have to be sent as they are, not copied field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from pamqp.commands import Basic

from pairmq.model import Message, PropertyValue
from pairmq_rabbitmq._codec import _layout
from pairmq_rabbitmq._codec._values import NATIVE, pairs_to_wire, table_to_wire, to_wire

# Bytes around the properties in a content header frame: frame header and end octet, class, weight, body size.
_FRAME_BYTES = 8 + 12

_OCTETS = [bytes((number,)) for number in range(_layout.MAX_SHORT + 1)]
_pack_flags = struct.Struct(">H").pack
_pack_timestamp = struct.Struct(">Q").pack
_pack_string = struct.Struct(">cI").pack
_pack_int32 = struct.Struct(">ci").pack
_pack_int64 = struct.Struct(">cq").pack
_pack_double = struct.Struct(">cd").pack
_pack_decimal = struct.Struct(">cBi").pack


def encode(message: Message, *, login: str, delayed: bool = False, priority_aside: bool = False) -> Basic.Properties:
    """Write a message's properties, to be sent as they are: a field-by-field copy may lose digits and names.

    RabbitMQ refuses a ``user_id`` that is not the login of the connection. A ``delayed`` message goes through delay
    queues, where it must not expire. With ``priority_aside`` the target queue must treat it as a message without
    priority.
    """
    headers: dict[str, Any] = {}
    properties = blank()
    for field, attribute, header in _layout.TEXTS:
        text = getattr(message, field)
        if text is None:
            continue
        if (len(text) > _layout.MAX_SHORT_LETTERS or text == _layout.DIRECT_REPLY_TO) and _layout.unfit(header, text):
            headers[header] = text
            # A returned message is matched by its message_id, so it always needs one.
            text = _layout.digest(text) if header == "message-id" else None
        setattr(properties, attribute, text)
    for field, header, _ in _layout.HEADERS:
        text = getattr(message, field)
        if text is not None:
            headers[header] = text
    if not priority_aside:
        properties.priority = message.priority
    elif message.priority is not None:
        headers[_layout.PRIORITY] = message.priority
    if message.time_to_live is not None:
        properties.expiration, exactly = _layout.lifetime(message.time_to_live, delayed=delayed)
        if exactly is not None:
            headers[_layout.TTL] = exactly
    if message.scheduled_enqueue_at is not None:
        headers[_layout.SCHEDULED] = message.scheduled_enqueue_at.isoformat(timespec="microseconds")
    if message.application_properties:
        _put_properties(properties, headers, message.application_properties, login)
    if headers:
        properties.headers = headers
    return properties


def size(message: Message, *, login: str = "") -> int:
    """Bytes of a message's body and content header frame as it is sent; RabbitMQ's own bound counts the body only."""
    return len(message.body) + header_size(encode(message, login=login))


def _put_properties(
    properties: Properties, headers: dict[str, Any], values: Mapping[str, PropertyValue], login: str
) -> None:
    sheltered: dict[str, PropertyValue] | None = None
    types: dict[str, Any] | None = None
    for name, value in values.items():
        where = _layout.place(name)
        if where != _layout.PLAIN:
            if where == _layout.SHELTERED:
                sheltered = sheltered or {}
                sheltered[name] = value
                continue
            if _put_extra(properties, name, value, login):
                continue
        if type(value) in NATIVE:
            headers[name] = value
            continue
        headers[name], node = to_wire(value)
        if node is not None:
            types = types or {}
            types[name] = node
    if sheltered:
        if all(map(_layout.fits_short, sheltered)):
            headers[_layout.SHELTER], node = table_to_wire(sheltered)
        else:
            headers[_layout.SHELTER], node = pairs_to_wire(sheltered)
        if node is not None:
            types = types or {}
            types[_layout.SHELTER] = node
    if types:
        headers[_layout.TYPES] = types


def _put_extra(properties: Properties, name: str, value: PropertyValue, login: str) -> bool:
    """Send a value as AMQP's own property if it fits one."""
    if name == _layout.TIMESTAMP:
        if isinstance(value, datetime) and _layout.is_timestamp(value):
            properties.timestamp = value
            return True
    elif isinstance(value, str) and _layout.fits_short(value):
        if name == _layout.APP_ID:
            properties.app_id = value
            return True
        if value == login and login:  # USER_ID
            properties.user_id = value
            return True
    return False


class Properties(Basic.Properties):
    """Properties that are serialized without loss."""

    # No __slots__ here: pamqp reads this attribute, and would find no properties in an empty one.

    def marshal(self) -> bytes:
        return marshalled(self)


def header_size(properties: Basic.Properties) -> int:
    """Bytes of the content header frame, which must not be longer than the connection's ``frame_max``."""
    return _FRAME_BYTES + len(marshalled(properties))


def blank() -> Properties:
    """Create properties of which only the persistent delivery mode is set."""
    # As pamqp's constructor does, without its checks: this is on the path of every send.
    properties = object.__new__(Properties)
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


def marshalled(properties: Basic.Properties) -> bytes:
    """Serialize the flags and the properties that are set, as pamqp does, but without omitting, cutting or rounding."""
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
            put(_pack_timestamp(_layout.timestamp_number(at)))
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
    """Serialize one value of a table, its type first; one call for each level, as received ones may nest deep."""
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
        return b"T" + _pack_timestamp(_layout.timestamp_number(value))
    if kind is Decimal:
        sign, digits, exponent = value.as_tuple()
        # Not by arithmetic, which would depend on the thread's decimal context.
        return _pack_decimal(b"D", -exponent, int(Decimal((sign, digits, 0))))
    if kind is bytes:
        return _pack_string(b"S", len(value)) + bytes(value)  # a received string that is not UTF-8
    raise ValueError(f"AMQP 0-9-1 has no type for a {kind.__name__}")
