"""The messages of a simulation, which carry their numbers."""

from __future__ import annotations

from datetime import timedelta

from pairmq.model import Message
from pairmq.testing.simulator._broker import instant
from pairmq.testing.simulator._scenario import Shipment

_NUMBER = slice(1, 9)
_SCHEDULED = 90.0  # s that a scheduled message waits
_TIMES_TO_LIVE = {"ttl": 3600.125, "short-ttl": 4.5}


def number_of(message: Message) -> int | None:
    """Read a message's number from its body; None for one that was never sent."""
    body = message.body
    return int(body[_NUMBER]) if body[:1] == b"m" else None


def size_of(message: Message) -> int:
    """Count the bytes of a message that a simulated broker's limit is about."""
    properties = message.application_properties
    return len(message.body) + sum(len(key) + len(str(value)) for key, value in properties.items())


def made(shipment: Shipment, number: int, owner: str | None = None) -> Message:
    """The message of a number."""
    body = b"m%08d" % number
    fields = shipment.fields
    time_to_live = next((seconds for name, seconds in _TIMES_TO_LIVE.items() if name in fields), None)
    return Message(
        body.ljust(shipment.size, b"."),
        message_id=None if "no-id" in fields else f"id-{number}",
        session_id=_session(number, owner) if "session" in fields else None,
        time_to_live=time_to_live,
        scheduled_enqueue_at=instant(shipment.at) + timedelta(seconds=_SCHEDULED) if "schedule" in fields else None,
        priority=number % 10 if "priority" in fields else None,
        subject="simulation" if "property" in fields else None,
        application_properties={"number": number, "text": "n"} if "property" in fields else {},
    )


def _session(number: int, owner: str | None) -> str:
    return f"session-{number % 7}" if owner is None else f"{owner}-{number % 3}"
