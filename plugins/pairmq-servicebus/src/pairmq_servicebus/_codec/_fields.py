"""The one application property of our own: what Service Bus would not bring back exactly, as JSON.

| in `FIELDS` | when |
|---|---|
| ``ttl`` | the time-to-live, where it is no whole number of milliseconds, or longer than 49.7 days |
| ``scheduled`` | the scheduled instant, where it has fractions of a millisecond |
| ``priority`` | always when set: Service Bus does not keep AMQP's |
| ``types`` | notes of application properties' types, see `pairmq_servicebus._codec._values` |
| ``hidden`` | the user's own properties of a name that this plugin uses itself; in a backlog also those that Service |
|            | Bus overwrites when it dead-letters |
| ``session`` | the message's own session id, in a queue with one consumer at a time |
| ``partition`` | its partition key there: Service Bus takes none but the session id beside one |

Anybody may have written into it, so that everything that is read from it is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from pairmq.model import MAX_TIME_TO_LIVE
from pairmq_servicebus._codec._values import Malformed, as_text

FIELDS: Final = "x-pairmq-fields"
"""The application property for what Service Bus would not bring back exactly."""

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
"""Of messages that Service Bus takes and never delivers (SPEC 6.2)."""

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"

DIVERTED: Final = "x-ms-path"
"""An application property of every message in a backlog queue, and of no other (SPEC 5.6)."""

PARTITION_KEY: Final = b"x-opt-partition-key"
SCHEDULED_TIME: Final = b"x-opt-scheduled-enqueue-time"

MOST_MS: Final = 2**32 - 1
"""The longest time-to-live that AMQP's header holds, in milliseconds: 49.7 days."""

LAST_INSTANT: Final = 253_402_243_199_000
"""What the client takes as the end of time, in milliseconds since 1970."""

ENDLESS: Final = LAST_INSTANT - 2 * 86_400_000
"""An end of life from here on is Service Bus' way of saying *unlimited*."""


def dump(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def load(value: Any) -> dict[str, Any]:
    """Read the property; ``types`` and ``hidden`` hold texts by name then, the others are checked when asked for."""
    if value is None:
        return {}
    try:
        fields = json.loads(as_text(value))
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise damaged()
    for name in ("types", "hidden"):
        entry = fields.get(name, {})
        if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
            raise damaged()
    return fields


def text(fields: Mapping[str, Any], name: str) -> str | None:
    """Return an entry that is a string; None if it is missing."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise damaged()
    return value


def seconds(written: Any) -> float:
    try:
        value = float(written)
    except (TypeError, ValueError):
        raise damaged() from None
    if not math.isfinite(value) or not 0 < value <= MAX_TIME_TO_LIVE:
        raise damaged()
    return value


def damaged() -> Malformed:
    """The error of a property that somebody else has written."""
    return Malformed(f"its application property {FIELDS} is damaged")
