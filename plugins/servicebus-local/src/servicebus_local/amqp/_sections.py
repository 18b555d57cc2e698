"""Messages: their sections apart and together (AMQP 1.0 specification, part 3, section 3.2).

The sections that a broker reads are decoded, the body and the footer only cut out: their sizes alone are checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from servicebus_local.amqp import _fields
from servicebus_local.amqp._decode import decode_value, skip_value
from servicebus_local.amqp._encode import encode_into
from servicebus_local.amqp._fields import BINARY, BOOLEAN, FIELDS, MESSAGE_ID, SYMBOL, TEXT, TIMESTAMP, UINT
from servicebus_local.amqp._types import AmqpDecodeError, Timestamp, UByte, ULong

BATCH_FORMAT: Final = 0x80013700
"""The message format of a batch: a message whose data sections are messages (Azure Service Bus protocol guide)."""

_HEADER, _DELIVERY, _ANNOTATIONS, _PROPERTIES, _APPLICATION = 0x70, 0x71, 0x72, 0x73, 0x74
_DATA, _SEQUENCE, _VALUE, _FOOTER = 0x75, 0x76, 0x77, 0x78

_NAMES = {
    "amqp:header:list": _HEADER,
    "amqp:delivery-annotations:map": _DELIVERY,
    "amqp:message-annotations:map": _ANNOTATIONS,
    "amqp:properties:list": _PROPERTIES,
    "amqp:application-properties:map": _APPLICATION,
    "amqp:data:binary": _DATA,
    "amqp:amqp-sequence:list": _SEQUENCE,
    "amqp:amqp-value:*": _VALUE,
    "amqp:footer:map": _FOOTER,
}


@dataclass(frozen=True, slots=True)
class Header:
    """How the message is to be delivered; the time to live is in milliseconds (part 3, section 3.2.1)."""

    durable: bool = False
    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool | None = False
    delivery_count: int = 0


@dataclass(frozen=True, slots=True)
class Properties:
    """What the sender set once and for all (part 3, section 3.2.4)."""

    message_id: Any = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: Timestamp | None = None
    creation_time: Timestamp | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


@dataclass(frozen=True, slots=True)
class Sections:
    """A message taken apart.

    Args:
        header, delivery_annotations, message_annotations, properties, application_properties: decoded; None if absent.
        raw_properties, raw_application_properties: the same as bytes, descriptor included; empty if absent.
        raw_body: all body sections as they came; empty without any.
        data: the contents of the data sections.
        raw_footer: the footer as it came; empty if absent.
    """

    header: Header | None
    delivery_annotations: dict[Any, Any] | None
    message_annotations: dict[Any, Any] | None
    properties: Properties | None
    application_properties: dict[Any, Any] | None
    raw_properties: bytes
    raw_application_properties: bytes
    raw_body: bytes
    data: list[bytes]
    raw_footer: bytes


_HEADERS = _fields.Composite(_HEADER, "amqp:header:list", Header, BOOLEAN, _fields.whole(8, UByte), UINT, BOOLEAN, UINT)
_PROPERTY_LIST = _fields.Composite(
    _PROPERTIES,
    "amqp:properties:list",
    Properties,
    *(MESSAGE_ID, BINARY, TEXT, TEXT, TEXT, MESSAGE_ID, SYMBOL, SYMBOL, TIMESTAMP, TIMESTAMP, TEXT, UINT, TEXT),
)


def split_message(payload: bytes) -> Sections:
    """Take an encoded message apart.

    Returns:
        Its sections.

    Raises:
        AmqpDecodeError: it is malformed, or its sections are out of order or there twice.
    """
    size = len(payload)
    decoded: dict[int, Any] = {}
    raw: dict[int, bytes] = {}
    data: list[bytes] = []
    body = body_start = body_end = 0
    last = offset = 0
    while offset < size:
        start = offset
        code, offset = _section_code(payload, offset)
        if code > last:
            last = code
        elif code == _DELIVERY and code not in decoded:
            # Azure's Python client writes the delivery annotations behind everything else.
            pass
        elif code != last or code not in (_DATA, _SEQUENCE):
            raise AmqpDecodeError(f"The section 0x{code:02x} of a message is out of order or there twice.")
        if code <= _APPLICATION:
            value, offset = decode_value(payload, offset)
            decoded[code] = value
            if code >= _PROPERTIES:
                raw[code] = payload[start:offset]
            continue
        if code == _FOOTER:
            offset = _end_of(payload, offset, (0xC1, 0xD1), "map")
            raw[code] = payload[start:offset]
            continue
        if body_end not in (0, start):
            raise AmqpDecodeError("The body of a message is in several places.")
        if not body_end:
            body_start = start
            body = code
        elif code != body:
            raise AmqpDecodeError("A message has bodies of several kinds.")
        if code == _DATA:
            if payload[offset : offset + 1] not in (b"\xa0", b"\xb0"):
                raise AmqpDecodeError("A data section is not binary.")
            content, offset = decode_value(payload, offset)
            data.append(content)
        elif code == _SEQUENCE:
            offset = _end_of(payload, offset, (0x45, 0xC0, 0xD0), "list")
        else:
            offset = skip_value(payload, offset)
        body_end = offset
    return Sections(
        header=_HEADERS.read(decoded[_HEADER]) if _HEADER in decoded else None,
        delivery_annotations=_map(decoded, _DELIVERY),
        message_annotations=_map(decoded, _ANNOTATIONS),
        properties=_PROPERTY_LIST.read(decoded[_PROPERTIES]) if _PROPERTIES in decoded else None,
        application_properties=_map(decoded, _APPLICATION),
        raw_properties=raw.get(_PROPERTIES, b""),
        raw_application_properties=raw.get(_APPLICATION, b""),
        raw_body=payload[body_start:body_end],
        data=data,
        raw_footer=raw.get(_FOOTER, b""),
    )


def split_batch(payload: bytes) -> list[bytes]:
    """Give the messages of a batch (message format `BATCH_FORMAT`).

    Returns:
        The encoded messages, in order.

    Raises:
        AmqpDecodeError: the message around them is malformed or has no data sections.
    """
    messages = split_message(payload).data
    if not messages:
        raise AmqpDecodeError("A batch has no messages.")
    return messages


def encode_header(header: Header) -> bytes:
    """Give the bytes of a header section, with all of its fields."""
    out = bytearray()
    _HEADERS.write_into(out, header)
    return bytes(out)


def encode_properties(properties: Properties) -> bytes:
    """Give the bytes of a properties section, with all of its fields."""
    out = bytearray()
    _PROPERTY_LIST.write_into(out, properties)
    return bytes(out)


def encode_annotations(annotations: dict[Any, Any]) -> bytes:
    """Give the bytes of a message annotations section; texts as keys are written as symbols."""
    return _section(_ANNOTATIONS, FIELDS.write(annotations))


def encode_application_properties(properties: dict[str, Any]) -> bytes:
    """Give the bytes of an application properties section."""
    return _section(_APPLICATION, properties)


def encode_message(
    *,
    header: Header | None = None,
    message_annotations: dict[Any, Any] | None = None,
    properties: Properties | None = None,
    application_properties: dict[str, Any] | None = None,
    body: Any = None,
) -> bytes:
    """Put a message together.

    Args:
        header, message_annotations, properties, application_properties: left out when None.
        body: bytes become a data section, everything else an amqp-value section.

    Returns:
        The encoded message.

    Raises:
        TypeError: AMQP has no type for a value.
        ValueError: a value does not fit its type.
    """
    parts = []
    if header is not None:
        parts.append(encode_header(header))
    if message_annotations is not None:
        parts.append(encode_annotations(message_annotations))
    if properties is not None:
        parts.append(encode_properties(properties))
    if application_properties is not None:
        parts.append(encode_application_properties(application_properties))
    parts.append(_section(_DATA if type(body) is bytes else _VALUE, body))
    return b"".join(parts)


def _section(code: int, value: Any) -> bytes:
    out = bytearray((0x00, 0x53, code))
    encode_into(out, value)
    return bytes(out)


def _section_code(payload: bytes, offset: int) -> tuple[int, int]:
    head = payload[offset : offset + 3]
    if len(head) == 3 and head[0] == 0x00 and head[1] == 0x53:
        code = head[2]
        offset += 3
    elif head[:1] == b"\x00":
        descriptor, offset = decode_value(payload, offset + 1)
        code = _NAMES.get(descriptor, 0) if isinstance(descriptor, str) else 0
        code = int(descriptor) if isinstance(descriptor, ULong) else code
    else:
        raise AmqpDecodeError("A section of a message has no descriptor.")
    if not _HEADER <= code <= _FOOTER:
        raise AmqpDecodeError("A message has a section that there is not.")
    return code, offset


def _end_of(payload: bytes, offset: int, codes: tuple[int, ...], what: str) -> int:
    if offset >= len(payload) or payload[offset] not in codes:
        raise AmqpDecodeError(f"A section of a message is no {what}.")
    return skip_value(payload, offset)


def _map(decoded: dict[int, Any], code: int) -> dict[Any, Any] | None:
    value = decoded.get(code)
    if code in decoded and type(value) is not dict:
        raise AmqpDecodeError(f"The section 0x{code:02x} of a message is not a map.")
    return value
