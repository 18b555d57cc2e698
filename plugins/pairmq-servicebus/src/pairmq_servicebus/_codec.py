"""Messages as Service Bus carries them, both ways, every field without loss; and their size.

A field of PairMQ's messages is the AMQP field of that name (Service Bus documentation: AMQP 1.0 protocol guide,
"Messages"). What does not come back by itself stands once more, exactly, in one application property of our own: see
`pairmq_servicebus._values`. A message that needs none of it has none.

Service Bus counts a message with its headers and properties. The sums of its size follow the client's encoder, which
writes the header and the properties with all their fields and the smallest form of each value (AMQP 1.0 part 1.6, part
3.2).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from pairmq.model import MAX_ID_LENGTH, MAX_PRIORITY, Message, PropertyValue
from pairmq_servicebus import _values
from pairmq_servicebus._entities import SESSION
from pairmq_servicebus._private import BINARY, LONG, TIMESTAMP, UNREADABLE, typed, untyped

_OWN = frozenset((_values.FIELDS, UNREADABLE))
_OVERWRITTEN = frozenset((_values.DEAD_LETTER_REASON, _values.DEAD_LETTER_DESCRIPTION))


@dataclass(frozen=True, slots=True)
class Parts:
    """A message in AMQP's sections, as the client's encoder takes them; the time-to-live in ms."""

    header: dict[str, int]
    annotations: dict[bytes, Any]
    properties: dict[str, Any]
    application: dict[str, Any]
    body: bytes


def take_apart(message: Message, *, single_consumer: bool = False) -> Parts:
    header: dict[str, int] = {}
    annotations: dict[bytes, Any] = {}
    fields: dict[str, Any] = {}
    properties = {name: value for name, value in _properties(message) if value is not None}
    if message.time_to_live is not None:
        _put_time_to_live(message.time_to_live, header, properties, fields)
    if message.scheduled_enqueue_at is not None:
        milliseconds, exact = _values.to_milliseconds(message.scheduled_enqueue_at)
        annotations[_values.SCHEDULED_TIME] = typed(TIMESTAMP, milliseconds)
        if not exact:
            fields["scheduled"] = message.scheduled_enqueue_at.isoformat()
    if single_consumer or message.session_id == SESSION:
        _put_session(message, properties, fields)
    elif message.partition_key is not None:
        annotations[_values.PARTITION_KEY] = message.partition_key
    if message.priority is not None:
        header["priority"] = fields["priority"] = message.priority
    application = _application(message.application_properties, fields)
    return Parts(header, annotations, properties, application, message.body)


def encode(parts: Parts) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(
        data_body=parts.body,
        header=AmqpMessageHeader(**parts.header) if parts.header else None,  # type: ignore[arg-type]
        properties=AmqpMessageProperties(**parts.properties) if parts.properties else None,
        annotations=parts.annotations or None,  # type: ignore[arg-type]  # the client's own keys are bytes
        application_properties=parts.application or None,
    )


def _properties(message: Message) -> tuple[tuple[str, str | None], ...]:
    return (
        ("message_id", message.message_id),
        ("group_id", message.session_id),
        ("content_type", message.content_type),
        ("content_encoding", message.content_encoding),
        ("correlation_id", message.correlation_id),
        ("subject", message.subject),
        ("to", message.to),
        ("reply_to", message.reply_to),
        ("reply_to_group_id", message.reply_to_session_id),
    )


def _put_time_to_live(
    seconds: float, header: dict[str, int], properties: dict[str, Any], fields: dict[str, Any]
) -> None:
    microseconds = round(seconds * 1_000_000)
    milliseconds = -(-microseconds // 1000)  # never earlier than asked for
    if milliseconds > _values.MOST_MS:
        # The header has no room for it. Service Bus then goes by the two instants (AMQP 1.0, part 3.2.4).
        created = int(time.time() * 1000)
        properties["creation_time"] = created
        properties["absolute_expiry_time"] = min(created + milliseconds, _values.LAST_INSTANT)
    else:
        header["time_to_live"] = milliseconds
    if milliseconds > _values.MOST_MS or microseconds % 1000:
        fields["ttl"] = repr(seconds)


def _put_session(message: Message, properties: dict[str, Any], fields: dict[str, Any]) -> None:
    properties["group_id"] = SESSION
    if message.session_id is not None:
        fields["session"] = message.session_id
    if message.partition_key is not None:
        fields["partition"] = message.partition_key


def _application(given: Mapping[str, PropertyValue], fields: dict[str, Any]) -> dict[str, Any]:
    application: dict[str, Any] = {}
    types: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for name, value in given.items():
        if name in _OWN:
            hidden[name] = _values.to_json(value)
            continue
        if name in _OVERWRITTEN and _values.DIVERTED in given:
            # The service overwrites it when it dead-letters, and what a backlog dead-letters may be requeued.
            # Elsewhere it is carried as it is, with no note: tools that send dead letters again go by it.
            hidden[name] = _values.to_json(value)
        application[name], note = _values.to_wire(value)
        if note is not None:
            types[name] = note
    if types:
        fields["types"] = types
    if hidden:
        fields["hidden"] = hidden
    if fields:
        application[_values.FIELDS] = _values.dump(fields)
    return application


_NO_PROPERTIES: Mapping[str, PropertyValue] = {}


@dataclass(frozen=True, slots=True)
class Decoded:
    message: Message
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None


def decode(raw: AmqpAnnotatedMessage, *, dead_letter: bool = False) -> Decoded:
    """Read a message that came from the service, ours or another sender's. Raises `Malformed`.

    The reason of one from a dead-letter queue is the service's and not the sender's.
    """
    application = {_values.as_text(key): value for key, value in (raw.application_properties or {}).items()}
    if UNREADABLE in application:
        raise _values.Malformed(f"it can't be decoded: {application[UNREADABLE]!r}"[:300])
    fields = _values.load(application.pop(_values.FIELDS, None))
    reason = description = None
    if dead_letter:
        reason = _text_or_none(application.pop(_values.DEAD_LETTER_REASON, None))
        description = _text_or_none(application.pop(_values.DEAD_LETTER_DESCRIPTION, None))
    try:
        message = Message(
            _body(raw), **_fields_of(raw, fields), application_properties=_application_of(application, fields)
        )
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, _values.Malformed):
            raise error from None
        raise _values.Malformed(f"it has a field out of range: {error}") from None
    return Decoded(message, reason, description)


def decode_leniently(raw: AmqpAnnotatedMessage, *, dead_letter: bool = False) -> Decoded:
    """Read a message that is only looked at: of one that can't be read, the body and the id."""
    try:
        return decode(raw, dead_letter=dead_letter)
    except _values.Malformed:
        body, found = raw.body, raw.properties and raw.properties.message_id
        text = found.decode(errors="replace") if isinstance(found, bytes) else str(found or "")
        message_id = text[:MAX_ID_LENGTH] or None
        if raw.body_type is AmqpMessageBodyType.DATA:
            return Decoded(Message(b"".join(part for part in body if isinstance(part, bytes)), message_id))
        return Decoded(Message(repr(body).encode("utf-8", "replace"), message_id))


def _application_of(application: Mapping[str, Any], fields: Mapping[str, Any]) -> Mapping[str, PropertyValue]:
    if not application and not fields:
        return _NO_PROPERTIES
    types = fields.get("types", {})
    values = {name: _values.from_wire(value, types.get(name)) for name, value in application.items()}
    for name, text in fields.get("hidden", {}).items():
        values[name] = _values.from_json(text)
    return values


def _fields_of(raw: AmqpAnnotatedMessage, fields: Mapping[str, Any]) -> dict[str, Any]:
    properties = raw.properties or AmqpMessageProperties()
    annotations: Mapping[Any, Any] = raw.annotations or {}
    return {
        "message_id": _text_or_none(properties.message_id) or None,
        "session_id": _session_id(properties, fields),
        "time_to_live": _time_to_live(raw, fields),
        "scheduled_enqueue_at": _scheduled(annotations, fields),
        "content_type": _text_or_none(properties.content_type),
        "content_encoding": _text_or_none(properties.content_encoding),
        "correlation_id": _text_or_none(properties.correlation_id),
        "subject": _text_or_none(properties.subject),
        "to": _text_or_none(properties.to),
        "reply_to": _text_or_none(properties.reply_to),
        "reply_to_session_id": _text_or_none(properties.reply_to_group_id) or None,
        "partition_key": _partition_key(annotations, properties, fields),
        "priority": _priority(raw, fields),
    }


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _values.as_text(value)


def _time_to_live(raw: AmqpAnnotatedMessage, fields: Mapping[str, Any]) -> float | None:
    exact = fields.get("ttl")
    if exact is not None:
        return _values.seconds(exact)
    properties = raw.properties
    milliseconds = raw.header.time_to_live if raw.header else None
    if properties and properties.absolute_expiry_time and properties.creation_time:
        lasting = properties.absolute_expiry_time - properties.creation_time
        if properties.absolute_expiry_time >= _values.ENDLESS:
            return None
        if milliseconds is None or (milliseconds == _values.MOST_MS and lasting > _values.MOST_MS):
            milliseconds = lasting
    if not milliseconds or milliseconds < 0 or milliseconds >= _values.ENDLESS:
        return None
    return float(milliseconds / 1000)


def _scheduled(annotations: Mapping[Any, Any], fields: Mapping[str, Any]) -> datetime | None:
    exact = _values.text(fields, "scheduled")
    if exact is not None:
        return _values.from_iso(exact)
    value = annotations.get(_values.SCHEDULED_TIME)
    return _values.from_milliseconds(value) if isinstance(value, int) else None


def _session_id(properties: AmqpMessageProperties, fields: Mapping[str, Any]) -> str | None:
    session = _text_or_none(properties.group_id) or None
    return _values.text(fields, "session") if session == SESSION else session


def _partition_key(
    annotations: Mapping[Any, Any], properties: AmqpMessageProperties, fields: Mapping[str, Any]
) -> str | None:
    key = _text_or_none(annotations.get(_values.PARTITION_KEY)) or None
    session = _text_or_none(properties.group_id) or None
    if session == SESSION:
        return _values.text(fields, "partition")
    # Another sender may have set two that differ, which Service Bus forbids: the session is what counts.
    return None if key is not None and session is not None and key != session else key


def _priority(raw: AmqpAnnotatedMessage, fields: Mapping[str, Any]) -> int | None:
    exact = fields.get("priority")
    if exact is not None:
        if type(exact) is not int or not 0 <= exact <= MAX_PRIORITY:
            raise _values.damaged()
        return exact
    value = raw.header.priority if raw.header else None
    return value if isinstance(value, int) and 0 <= value <= MAX_PRIORITY else None


def _body(raw: AmqpAnnotatedMessage) -> bytes:
    """The body's bytes; of one that is no data, the text of its value as JSON (strings without quotes)."""
    body = raw.body
    if raw.body_type is AmqpMessageBodyType.DATA:
        return b"".join(part if isinstance(part, bytes) else str(part).encode() for part in body)
    if raw.body_type is AmqpMessageBodyType.SEQUENCE:
        return _values.as_json([entry for part in body for entry in part]).encode()
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str | Decimal):
        return str(body).encode()
    return _values.as_json(body).encode()


_SECTION = 3  # bytes of a section's descriptor
_HEADER_FIELDS = 5
_PROPERTY_FIELDS = 13
_TIMESTAMP = 9
_INSTANTS = frozenset(("creation_time", "absolute_expiry_time"))


def measure(parts: Parts) -> int:
    """Give the encoded size in bytes: never less than the client's encoder writes, and at most a few bytes more."""
    size = _SECTION + _variable(len(parts.body))
    if parts.header:
        # A priority is an octet, a time-to-live at most four, each with its constructor.
        size += _SECTION + _compound(_HEADER_FIELDS + len(parts.header) * 4)
    if parts.annotations:
        size += _SECTION + _compound(
            sum(_text(key.decode()) + _value(value) for key, value in parts.annotations.items())
        )
    if parts.properties or "time_to_live" in parts.header:
        size += _SECTION + _compound(_properties_size(parts))
    if parts.application:
        size += _SECTION + _compound(
            sum(_text(name) + _value(value) for name, value in parts.application.items()), len(parts.application) * 2
        )
    return size


def without_body(size: int, parts: Parts) -> int:
    """Give what of a message's size is not the body: the header and all properties."""
    return size - _SECTION - _variable(len(parts.body))


def _properties_size(parts: Parts) -> int:
    size = _PROPERTY_FIELDS  # a null each
    for name, value in parts.properties.items():
        size += _TIMESTAMP - 1 if name in _INSTANTS else _text(value) - 1
    if "time_to_live" in parts.header:
        size += 2 * (_TIMESTAMP - 1)  # the client adds both instants
    return size


def _value(value: Any) -> int:
    type_, inner = untyped(value)
    if type_ is None:
        if isinstance(inner, str):
            return _text(inner)
        if inner is None:
            return 1
        if isinstance(inner, bool):
            return 2
        if isinstance(inner, int):
            return 2 if -128 <= inner < 128 else 5
        return 9 if isinstance(inner, float) else 17  # a double, or a UUID
    if type_ == BINARY:
        return _variable(len(inner))
    if type_ == LONG:
        return 2 if -128 <= inner < 128 else 9
    assert type_ == TIMESTAMP  # noqa: S101 - there are no others
    return _TIMESTAMP


def _text(text: str) -> int:
    return _variable(len(text) if text.isascii() else len(text.encode()))


def _variable(length: int) -> int:
    return length + (2 if length <= 255 else 5)


def _compound(size: int, count: int = 0) -> int:
    return size + (3 if size < 255 and count <= 255 else 9)
