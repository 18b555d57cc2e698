"""Taking a message apart into AMQP's sections."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from pairmq.model import Message, PropertyValue
from pairmq_servicebus._codec import _values
from pairmq_servicebus._codec._fields import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    DIVERTED,
    FIELDS,
    LAST_INSTANT,
    MOST_MS,
    PARTITION_KEY,
    SCHEDULED_TIME,
    dump,
)
from pairmq_servicebus._private import TIMESTAMP, UNREADABLE, typed
from pairmq_servicebus._single_consumer import SESSION

_OWN = frozenset((FIELDS, UNREADABLE))
_OVERWRITTEN = frozenset((DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION))


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
        annotations[SCHEDULED_TIME] = typed(TIMESTAMP, milliseconds)
        if not exact:
            fields["scheduled"] = _values.to_iso(message.scheduled_enqueue_at)
    if single_consumer or message.session_id == SESSION:
        _put_session(message, properties, fields)
    elif message.partition_key is not None:
        annotations[PARTITION_KEY] = message.partition_key
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
    if milliseconds > MOST_MS:
        # The header has no room for it. Service Bus then goes by the two instants (AMQP 1.0, part 3.2.4).
        created = int(time.time() * 1000)
        properties["creation_time"] = created
        properties["absolute_expiry_time"] = min(created + milliseconds, LAST_INSTANT)
    else:
        header["time_to_live"] = milliseconds
    if milliseconds > MOST_MS or microseconds % 1000:
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
        if name in _OVERWRITTEN and DIVERTED in given:
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
        application[FIELDS] = dump(fields)
    return application
