"""Messages as JSON, for programs that read a command's output."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from pairmq.model import Delivery
from pairmq.model.property_json import plain


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
        "application_properties": {k: plain(v) for k, v in message.application_properties.items()} or None,
        "delivery_count": delivery.delivery_count,
        "sequence_number": delivery.sequence_number or None,
        "enqueued_at": _instant(delivery.enqueued_at),
        "dead_letter_reason": delivery.dead_letter_reason,
        "dead_letter_description": delivery.dead_letter_description,
    }
    return {key: value for key, value in record.items() if value is not None}


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
