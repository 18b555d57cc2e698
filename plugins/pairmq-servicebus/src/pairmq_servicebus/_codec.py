"""Messages as Service Bus carries them, both ways, every field without loss.

A field of PairMQ's messages is the AMQP field of that name (Service Bus documentation: AMQP 1.0 protocol guide,
"Messages"). What does not come back by itself stands once more, exactly, in one application property of our own, as
JSON: `FIELDS`. A message that needs none of it has none.

| in `FIELDS` | when |
|---|---|
| ``ttl`` | the time-to-live, where it is no whole number of milliseconds, or longer than 49.7 days |
| ``scheduled`` | the scheduled instant, where it has fractions of a millisecond |
| ``priority`` | always when set: Service Bus does not keep AMQP's |
| ``types`` | notes of application properties' types, see `pairmq_servicebus._values` |
| ``hidden`` | the user's own properties of a name that Service Bus or this plugin uses itself |
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from pairmq.model import MAX_PRIORITY, MAX_TIME_TO_LIVE, Message, PropertyValue
from pairmq_servicebus import _values
from pairmq_servicebus._private import TIMESTAMP, UNREADABLE, typed
from pairmq_servicebus._values import Malformed

FIELDS: Final = "x-pairmq-fields"
"""The application property for what Service Bus would not bring back exactly."""

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
"""Of messages that Service Bus takes and never delivers (SPEC 6.2)."""

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"

PARTITION_KEY: Final = b"x-opt-partition-key"
SCHEDULED_TIME: Final = b"x-opt-scheduled-enqueue-time"

_OWN = frozenset((FIELDS, UNREADABLE, DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION))
_MOST_MS = 2**32 - 1  # that AMQP's header holds: 49.7 days
_LAST_INSTANT = 253_402_243_199_000  # ms: what the client takes as the end of time
_ENDLESS = _LAST_INSTANT - 2 * 86_400_000  # ms: an end from here on is Service Bus' way of saying *unlimited*
_NO_PROPERTIES: Mapping[str, PropertyValue] = {}


@dataclass(frozen=True, slots=True)
class Parts:
    """A message in AMQP's sections, as the client's encoder takes them.

    Args:
        header: ``time_to_live`` in ms and ``priority``.
        annotations: symbols to values.
        properties: AMQP's message properties.
        application: the application properties.
        body: one data section.
    """

    header: dict[str, int]
    annotations: dict[bytes, Any]
    properties: dict[str, Any]
    application: dict[str, Any]
    body: bytes


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message as it was read.

    Args:
        message: it.
        dead_letter_reason: why it was dead-lettered; None for one that was not.
        dead_letter_description: the same in a sentence.
    """

    message: Message
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None


def take_apart(message: Message) -> Parts:
    """Put a message into AMQP's sections."""
    header: dict[str, int] = {}
    annotations: dict[bytes, Any] = {}
    fields: dict[str, Any] = {}
    properties = {name: value for name, value in _properties(message) if value is not None}
    if message.time_to_live is not None:
        _put_time_to_live(message.time_to_live, header, properties, fields)
    if message.scheduled_enqueue_at is not None:
        milliseconds, exact = _values.to_milliseconds(message.scheduled_enqueue_at)
        annotations[SCHEDULED_TIME] = typed(TIMESTAMP, milliseconds)
        if not exact:
            fields["scheduled"] = _values.to_iso(message.scheduled_enqueue_at)
    if message.partition_key is not None:
        annotations[PARTITION_KEY] = message.partition_key
    if message.priority is not None:
        header["priority"] = fields["priority"] = message.priority
    application = _application(message.application_properties, fields)
    return Parts(header, annotations, properties, application, message.body)


def encode(parts: Parts) -> AmqpAnnotatedMessage:
    """Make the client's message."""
    return AmqpAnnotatedMessage(
        data_body=parts.body,
        header=AmqpMessageHeader(**parts.header) if parts.header else None,  # type: ignore[arg-type]
        properties=AmqpMessageProperties(**parts.properties) if parts.properties else None,
        annotations=parts.annotations or None,  # type: ignore[arg-type]  # the client's own keys are bytes
        application_properties=parts.application or None,
    )


def decode(raw: AmqpAnnotatedMessage, *, dead_letter: bool = False) -> Decoded:
    """Read a message that came from the service, ours or another sender's.

    Args:
        raw: as the client decoded it.
        dead_letter: it came from a dead-letter queue, so that its reason is the service's and not the sender's.

    Returns:
        The message, and why it was dead-lettered.

    Raises:
        Malformed: it can't be read.
    """
    application = {_values.as_text(key): value for key, value in (raw.application_properties or {}).items()}
    if UNREADABLE in application:
        raise Malformed(f"it can't be decoded: {application[UNREADABLE]!r}"[:300])
    fields = _fields(application.pop(FIELDS, None))
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


# Writing.


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
    if milliseconds > _MOST_MS:
        # The header has no room for it. Service Bus then goes by the two instants (AMQP 1.0, part 3.2.4).
        created = int(time.time() * 1000)
        properties["creation_time"] = created
        properties["absolute_expiry_time"] = min(created + milliseconds, _LAST_INSTANT)
    else:
        header["time_to_live"] = milliseconds
    if milliseconds > _MOST_MS or microseconds % 1000:
        fields["ttl"] = repr(seconds)


def _application(given: Mapping[str, PropertyValue], fields: dict[str, Any]) -> dict[str, Any]:
    application: dict[str, Any] = {}
    types: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for name, value in given.items():
        if name in _OWN:
            hidden[name] = _values.to_json(value)
            continue
        application[name], note = _values.to_wire(value)
        if note is not None:
            types[name] = note
    if types:
        fields["types"] = types
    if hidden:
        fields["hidden"] = hidden
    if fields:
        application[FIELDS] = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return application


# Reading.


def _fields(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        fields = json.loads(_values.as_text(value))
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Malformed(f"its application property {FIELDS} is damaged")
    for name in ("types", "hidden"):
        entry = fields.get(name, {})
        if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
            raise Malformed(f"its application property {FIELDS} is damaged")
    return fields


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
        "session_id": _text_or_none(properties.group_id) or None,
        "time_to_live": _time_to_live(raw, fields),
        "scheduled_enqueue_at": _scheduled(annotations, fields),
        "content_type": _text_or_none(properties.content_type),
        "content_encoding": _text_or_none(properties.content_encoding),
        "correlation_id": _text_or_none(properties.correlation_id),
        "subject": _text_or_none(properties.subject),
        "to": _text_or_none(properties.to),
        "reply_to": _text_or_none(properties.reply_to),
        "reply_to_session_id": _text_or_none(properties.reply_to_group_id) or None,
        "partition_key": _partition_key(annotations, properties),
        "priority": _priority(raw, fields),
    }


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _values.as_text(value)


def _time_to_live(raw: AmqpAnnotatedMessage, fields: Mapping[str, Any]) -> float | None:
    exact = fields.get("ttl")
    if exact is not None:
        return _number(exact)
    properties = raw.properties
    milliseconds = raw.header.time_to_live if raw.header else None
    if properties and properties.absolute_expiry_time and properties.creation_time:
        lasting = properties.absolute_expiry_time - properties.creation_time
        if properties.absolute_expiry_time >= _ENDLESS:
            return None
        if milliseconds is None or (milliseconds == _MOST_MS and lasting > _MOST_MS):
            milliseconds = lasting
    if not milliseconds or milliseconds < 0 or milliseconds >= _ENDLESS:
        return None
    return float(milliseconds / 1000)


def _number(text: Any) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise Malformed(f"its application property {FIELDS} is damaged") from None
    if not math.isfinite(value) or not 0 < value <= MAX_TIME_TO_LIVE:
        raise Malformed(f"its application property {FIELDS} is damaged")
    return value


def _scheduled(annotations: Mapping[Any, Any], fields: Mapping[str, Any]) -> datetime | None:
    exact = fields.get("scheduled")
    if exact is not None:
        if not isinstance(exact, str):
            raise Malformed(f"its application property {FIELDS} is damaged")
        return _values.from_iso(exact)
    value = annotations.get(SCHEDULED_TIME)
    return _values.from_milliseconds(value) if isinstance(value, int) else None


def _partition_key(annotations: Mapping[Any, Any], properties: AmqpMessageProperties) -> str | None:
    key = _text_or_none(annotations.get(PARTITION_KEY)) or None
    session = _text_or_none(properties.group_id) or None
    # Another sender may have set two that differ, which Service Bus forbids: the session is what counts.
    return None if key is not None and session is not None and key != session else key


def _priority(raw: AmqpAnnotatedMessage, fields: Mapping[str, Any]) -> int | None:
    exact = fields.get("priority")
    if exact is not None:
        if type(exact) is not int or not 0 <= exact <= MAX_PRIORITY:
            raise Malformed(f"its application property {FIELDS} is damaged")
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
