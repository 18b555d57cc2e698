"""Messages as JSON, for programs that read a command's output."""

from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from pairmq.model import Delivery, PropertyValue

_NAMES = frozenset(("base64", "datetime", "uuid", "decimal", "mapping"))


def delivery_record(delivery: Delivery) -> dict[str, Any]:
    """A delivery as a JSON object: the body in base64, what is not set left out."""
    message = delivery.message
    record: dict[str, Any] = {
        "message_id": message.message_id,
        "body": base64.b64encode(message.body).decode("ascii"),
        "session_id": message.session_id,
        "time_to_live": message.time_to_live,
        "scheduled_enqueue_at": _instant(message.scheduled_enqueue_at),
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "correlation_id": message.correlation_id,
        "subject": message.subject,
        "to": message.to,
        "reply_to": message.reply_to,
        "reply_to_session_id": message.reply_to_session_id,
        "partition_key": message.partition_key,
        "priority": message.priority,
        "application_properties": {k: _plain(v) for k, v in message.application_properties.items()} or None,
        "delivery_count": delivery.delivery_count,
        "sequence_number": delivery.sequence_number or None,
        "enqueued_at": _instant(delivery.enqueued_at),
        "dead_letter_reason": delivery.dead_letter_reason,
        "dead_letter_description": delivery.dead_letter_description,
    }
    return {key: value for key, value in record.items() if value is not None}


def _plain(value: PropertyValue) -> Any:
    """A property as JSON; what JSON has no type for is an object that names it."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    nested = {key: _plain(entry) for key, entry in value.items()}
    # One that looks like those above is named as well, so that a program can tell them apart.
    return {"mapping": nested} if len(nested) == 1 and not _NAMES.isdisjoint(nested) else nested


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
