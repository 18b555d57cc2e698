"""Values of application properties: as AMQP carries them, and as text where it does not; and the one of our own.

The one application property of our own: what Service Bus would not bring back exactly, as JSON.

| in `FIELDS` | when |
|---|---|
| ``ttl`` | the time-to-live, where it is no whole number of milliseconds, or longer than 49.7 days |
| ``scheduled`` | the scheduled instant, where it has fractions of a millisecond |
| ``priority`` | always when set: Service Bus does not keep AMQP's |
| ``types`` | notes of application properties' types, see `pairmq_servicebus._values` |
| ``hidden`` | the user's own properties of a name that this plugin uses itself; in a backlog also those that Service |
|            | Bus overwrites when it dead-letters |
| ``session`` | the message's own session id, in a queue with one consumer at a time |
| ``partition`` | its partition key there: Service Bus takes none but the session id beside one |

Any client may have written into it, so that everything that is read from it is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, DecimalException
from typing import Any, Final
from uuid import UUID

from pairmq.model import MAX_NESTING, MAX_TIME_TO_LIVE, PropertyValue
from pairmq.model.property_json import Notation
from pairmq_servicebus._private import BINARY, LONG, TIMESTAMP, typed

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)
_JSON: Final = Notation({bytes: "$bytes", datetime: "$datetime", Decimal: "$decimal", UUID: "$uuid"}, mapping="$map")
to_json = _JSON.encode


class Malformed(ValueError):
    """A message that can't be read: a client wrote into a property that is PairMQ's, or a field that AMQP forbids."""


def to_wire(value: PropertyValue) -> tuple[Any, str | None]:
    """Give what the client encodes, and the note that brings it back."""
    kind = type(value)
    if kind is str or kind is bool or value is None or kind is float or kind is UUID:
        return value, None
    if kind is int:
        # As the client does by itself: a consumer of today that expects an int of 32 bits must go on getting one.
        return (value if value in _INT32 else typed(LONG, value)), None
    if kind is bytes:
        return typed(BINARY, value), "bytes"
    if isinstance(value, datetime):
        milliseconds, rest = divmod(value - _EPOCH, _MILLISECOND)
        return (value.isoformat() if rest else typed(TIMESTAMP, milliseconds)), "datetime"
    if isinstance(value, Decimal):
        return str(value), "decimal"
    return to_json(value), "json"


def from_wire(value: Any, note: str | None, depth: int = 0) -> PropertyValue:
    """Bring a value back that the client has decoded, by the note of its type; None for another sender's, or without
    need."""
    if note is not None:
        return _noted(value, note)
    if isinstance(value, bytes):
        return text_or_bytes(value)
    if value is None or isinstance(value, str | bool | UUID):
        return value
    if isinstance(value, int):
        return value if value in _INT64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return str(value)
    if depth >= MAX_NESTING:
        raise Malformed(f"it has an application property nested more than {MAX_NESTING} deep")
    # AMQP forbids these as application properties; some senders write them all the same.
    if isinstance(value, Mapping):
        return {as_text(key): from_wire(entry, None, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return tuple(from_wire(entry, None, depth + 1) for entry in value)
    return str(value)


def text_or_bytes(value: bytes) -> str | bytes:
    """A string, if it may be one: the client does not distinguish strings from binaries."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def as_text(value: Any) -> str:
    """A name, key or identifier of any AMQP type, as text. Raises `Malformed` for binary that is not UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Malformed("it has an identifier or name that is no UTF-8") from None
    return str(value)


def from_json(text: str) -> PropertyValue:
    try:
        return _JSON.decode(text)
    except ValueError as error:
        raise Malformed(f"it has an application property that can't be read: {error}") from None


def as_json(value: Any) -> str:
    """Write whatever another sender's body holds as JSON, for people and programs to read."""
    return to_json(from_wire(value, None))


def from_iso(text: str) -> datetime:
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise Malformed("it has an instant that can't be read") from None
    if value.tzinfo is None:
        raise Malformed("it has an instant without a time zone")
    return value.astimezone(UTC)


def from_milliseconds(value: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        raise Malformed("it has an instant outside the years 1 to 9999") from None


def to_milliseconds(value: datetime) -> tuple[int, bool]:
    """Milliseconds since 1970, rounded up, and whether nothing was rounded."""
    milliseconds, rest = divmod(value - _EPOCH, _MILLISECOND)
    return milliseconds + bool(rest), not rest


def _noted(value: Any, note: str) -> PropertyValue:
    if note == "bytes" and isinstance(value, bytes):
        return value
    if note == "datetime" and isinstance(value, int):
        return from_milliseconds(value)
    if isinstance(value, bytes | str):
        text = as_text(value)
        if note == "datetime":
            return from_iso(text)
        if note == "decimal":
            return _decimal(text)
        if note == "json":
            return from_json(text)
    raise Malformed(f"it has an application property that is not what its note says: {note[:40]!r}")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except DecimalException:
        raise Malformed("it has a decimal number that can't be read") from None


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
    """The error of a property that another client has written."""
    return Malformed(f"its application property {FIELDS} is damaged")
