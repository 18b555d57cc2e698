"""Reading a message that came from the service, ours or another sender's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties

from pairmq.model import MAX_PRIORITY, Message, PropertyValue
from pairmq_servicebus._codec import _fields, _values
from pairmq_servicebus._codec._fields import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    ENDLESS,
    MOST_MS,
    PARTITION_KEY,
    SCHEDULED_TIME,
)
from pairmq_servicebus._codec._values import Malformed
from pairmq_servicebus._private import UNREADABLE
from pairmq_servicebus._single_consumer import SESSION

_NO_PROPERTIES: Mapping[str, PropertyValue] = {}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message as it was read."""

    message: Message
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None


def decode(raw: AmqpAnnotatedMessage, *, dead_letter: bool = False) -> Decoded:
    """Read a message that came from the service, ours or another sender's. Raises `Malformed`.

    The reason of one from a dead-letter queue is the service's and not the sender's.
    """
    application = {_values.as_text(key): value for key, value in (raw.application_properties or {}).items()}
    if UNREADABLE in application:
        raise Malformed(f"it can't be decoded: {application[UNREADABLE]!r}"[:300])
    fields = _fields.load(application.pop(_fields.FIELDS, None))
    reason = description = None
    if dead_letter:
        reason = _text_or_none(application.pop(DEAD_LETTER_REASON, None))
        description = _text_or_none(application.pop(DEAD_LETTER_DESCRIPTION, None))
    try:
        message = Message(
            _body(raw), **_fields_of(raw, fields), application_properties=_application_of(application, fields)
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise error if isinstance(error, Malformed) else Malformed(f"it has a field out of range: {error}") from None
    return Decoded(message, reason, description)


def decode_leniently(raw: AmqpAnnotatedMessage, *, dead_letter: bool = False) -> Decoded:
    """Read a message for somebody who only looks: of one that can't be read, the body."""
    try:
        return decode(raw, dead_letter=dead_letter)
    except Malformed:
        body = raw.body
        if raw.body_type is AmqpMessageBodyType.DATA:
            return Decoded(Message(b"".join(part for part in body if isinstance(part, bytes))))
        return Decoded(Message(repr(body).encode("utf-8", "replace")))


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
        return _fields.seconds(exact)
    properties = raw.properties
    milliseconds = raw.header.time_to_live if raw.header else None
    if properties and properties.absolute_expiry_time and properties.creation_time:
        lasting = properties.absolute_expiry_time - properties.creation_time
        if properties.absolute_expiry_time >= ENDLESS:
            return None
        if milliseconds is None or (milliseconds == MOST_MS and lasting > MOST_MS):
            milliseconds = lasting
    if not milliseconds or milliseconds < 0 or milliseconds >= ENDLESS:
        return None
    return float(milliseconds / 1000)


def _scheduled(annotations: Mapping[Any, Any], fields: Mapping[str, Any]) -> datetime | None:
    exact = _fields.text(fields, "scheduled")
    if exact is not None:
        return _values.from_iso(exact)
    value = annotations.get(SCHEDULED_TIME)
    return _values.from_milliseconds(value) if isinstance(value, int) else None


def _session_id(properties: AmqpMessageProperties, fields: Mapping[str, Any]) -> str | None:
    session = _text_or_none(properties.group_id) or None
    return _fields.text(fields, "session") if session == SESSION else session


def _partition_key(
    annotations: Mapping[Any, Any], properties: AmqpMessageProperties, fields: Mapping[str, Any]
) -> str | None:
    key = _text_or_none(annotations.get(PARTITION_KEY)) or None
    session = _text_or_none(properties.group_id) or None
    if session == SESSION:
        return _fields.text(fields, "partition")
    # Another sender may have set two that differ, which Service Bus forbids: the session is what counts.
    return None if key is not None and session is not None and key != session else key


def _priority(raw: AmqpAnnotatedMessage, fields: Mapping[str, Any]) -> int | None:
    exact = fields.get("priority")
    if exact is not None:
        if type(exact) is not int or not 0 <= exact <= MAX_PRIORITY:
            raise _fields.damaged()
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
