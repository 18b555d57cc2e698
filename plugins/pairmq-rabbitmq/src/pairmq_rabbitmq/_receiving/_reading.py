"""Reading a message that came: what a caller gets of it, or why nobody is to get it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pairmq_rabbitmq import _codec, _header, _plain
from pairmq_rabbitmq._receiving._settling import Locked


def read(locked: Locked, dead: bool) -> tuple[str, str] | None:
    """Decode a message once.

    Args:
        locked: the message; what was read is noted there.
        dead: whether it comes from a dead-letter queue, where every message is shown somehow.

    Returns:
        Reason and description if nobody is to get it; else None.
    """
    if locked.message is not None:
        return None
    plain = None if dead else _plain.read(locked.header, locked.body)
    if plain is not None:
        locked.message, before = plain
        locked.count = _codec.count_of(before, locked.redelivered)
        return None
    locked.count = _codec.delivery_count(locked.properties, locked.redelivered)
    if dead:
        locked.message = _codec.decode_leniently(locked.properties, locked.body)
        return None
    headers = locked.properties.headers
    if headers and _header.UNREADABLE in headers:
        return "malformed", f"its properties can't be read: {headers[_header.UNREADABLE]!s}"
    try:
        message = _codec.decode(locked.properties, locked.body)
    except _codec.MalformedMessage as problem:
        return "malformed", str(problem)
    if message.scheduled_enqueue_at is not None and message.time_to_live is not None:
        # It came by way of a queue for waiting, where the broker could not let it expire at the right time.
        try:
            end = message.scheduled_enqueue_at + timedelta(seconds=message.time_to_live)
        except OverflowError:
            end = None
        if end is not None and datetime.now(UTC) > end:
            return "expired", f"its time to live of {message.time_to_live:g} s after its scheduled time is over"
    locked.message = message
    return None
