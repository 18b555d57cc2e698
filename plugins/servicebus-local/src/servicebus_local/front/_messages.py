"""Messages between the wire and the broker.

A message is kept as it came, byte for byte. On its way out only what the broker adds is made anew: the header, the
message annotations, and application properties where a settlement or the dead-letter queue added some.
The annotations' names and types are those of the Service Bus documentation, "AMQP 1.0 in Azure Service Bus".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from servicebus_local.amqp import (
    BATCH_FORMAT,
    AmqpDecodeError,
    Header,
    Int,
    Long,
    Sections,
    Symbol,
    Timestamp,
    UInt,
    encode_annotations,
    encode_application_properties,
    encode_header,
    split_batch,
    split_message,
)
from servicebus_local.broker import Incoming, Stored

_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_PARTITION_KEY = Symbol("x-opt-partition-key")
_MAX_UINT = 2**32 - 1
_LATEST_MS = 253_402_300_799_999
"""The last instant of the year 9999, beyond which clients can't read."""


def incoming(payload: bytes, message_format: int) -> list[Incoming]:
    if message_format == BATCH_FORMAT:
        return [_incoming(inner) for inner in split_batch(payload)]
    if message_format:
        raise AmqpDecodeError(f"messages of format {message_format:#x} are not known here")
    return [_incoming(payload)]


def _incoming(payload: bytes) -> Incoming:
    sections = split_message(payload)
    properties = sections.properties
    annotations = sections.message_annotations or {}
    scheduled = annotations.get(_SCHEDULED)
    found = Incoming(
        content=payload,
        size=len(payload),
        time_to_live=_time_to_live(sections),
        scheduled_at=scheduled / 1000 if isinstance(scheduled, int) else None,
        partition_key=_text(annotations.get(_PARTITION_KEY)),
        properties=sections.application_properties or {},
    )
    if properties is not None:
        found.session_id, found.reply_to_session_id = properties.group_id, properties.reply_to_group_id
        for name in ("message_id", "reply_to", "to", "subject", "correlation_id", "content_type"):
            setattr(found, name, getattr(properties, name))
    return found


def _time_to_live(sections: Sections) -> float | None:
    """The header's, or where that has no room for it (49 days) the time between two instants of the properties."""
    properties = sections.properties
    if properties is not None and properties.absolute_expiry_time is not None and properties.creation_time is not None:
        lives: float = properties.absolute_expiry_time - properties.creation_time
        if lives > _MAX_UINT:
            return lives / 1000
    if sections.header is None or sections.header.ttl is None:
        return None
    return sections.header.ttl / 1000


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def outgoing(message: Stored, *, locked: bool = True) -> bytes:
    sections = split_message(message.content)
    sent = sections.header
    header = Header(
        durable=True if sent is None else sent.durable,
        priority=None if sent is None else sent.priority,
        ttl=None if sent is None or sent.ttl is None else UInt(sent.ttl),
        first_acquirer=False,
        delivery_count=UInt(message.delivery_count),
    )
    annotations: dict[Any, Any] = dict(sections.message_annotations or {})
    annotations[Symbol("x-opt-sequence-number")] = Long(message.sequence_number)
    annotations[Symbol("x-opt-enqueued-time")] = instant(message.enqueued_at)
    annotations[Symbol("x-opt-message-state")] = Int(message.state)
    annotations[Symbol("x-opt-enqueue-sequence-number")] = Long(
        message.enqueued_sequence_number or message.sequence_number
    )
    if locked and message.lock_token is not None:
        annotations[Symbol("x-opt-locked-until")] = instant(message.locked_until)
    if message.dead_letter_source is not None:
        annotations[Symbol("x-opt-deadletter-source")] = message.dead_letter_source
    return b"".join((
        encode_header(header),
        encode_annotations(annotations),
        sections.raw_properties,
        _application_properties(message, sections),
        sections.raw_body,
        sections.raw_footer,
    ))  # fmt: skip


def _application_properties(message: Stored, sections: Sections) -> bytes:
    added: dict[str, Any] = dict(message.added_properties)
    if message.dead_letter_reason is not None:
        added["DeadLetterReason"] = message.dead_letter_reason
    if message.dead_letter_description is not None:
        added["DeadLetterErrorDescription"] = message.dead_letter_description
    if not added:
        return sections.raw_application_properties
    return encode_application_properties({**(sections.application_properties or {}), **added})


def instant(seconds: float) -> Timestamp:
    """Make an AMQP timestamp of seconds of Unix time; what never comes is the end of the year 9999."""
    return Timestamp(_LATEST_MS if math.isinf(seconds) else min(int(seconds * 1000), _LATEST_MS))


def plain_properties(properties: Mapping[Any, Any] | None) -> dict[str, object]:
    return {str(name): value for name, value in (properties or {}).items()}
