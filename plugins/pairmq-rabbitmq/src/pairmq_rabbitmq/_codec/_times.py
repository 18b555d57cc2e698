"""Lifetimes and instants as AMQP's types and as text, and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import ceil

from pairmq.model import MAX_TIME_TO_LIVE

_MAX_EXPIRATION_MS = 2**32 - 1  # the longest that RabbitMQ takes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)
# pamqp takes a later timestamp for milliseconds.
_MAX_TIMESTAMP = 2**32 - 1
_LAST_TIMESTAMP = _EPOCH + _MAX_TIMESTAMP * _SECOND

_EXPIRATION = re.compile(r"\+?[0-9]{1,20}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")


def lifetime(seconds: float, *, scheduled: bool) -> tuple[str | None, str | None]:
    """Write a time to live.

    Args:
        seconds: how long.
        scheduled: whether the message waits for its time first.

    Returns:
        The property ``expiration``, and the header ``ttl`` where that alone does not tell the time exactly.
    """
    if scheduled:
        # It waits in a queue that expiration would empty too early.
        return None, seconds_text(seconds)
    ms = round(seconds * 1000) if seconds < _MAX_EXPIRATION_MS else 0
    exact = ms > 0 and ms / 1000 == seconds
    if not exact:
        ms = ceil(seconds * 1000)
    if ms > _MAX_EXPIRATION_MS:
        return None, seconds_text(seconds)
    return str(ms), None if exact else seconds_text(seconds)


def seconds_text(seconds: float) -> str:
    """Write seconds to the microsecond."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def expiration_seconds(text: str) -> float | None:
    """Read the property ``expiration``; None if it is no number of milliseconds that a Message can hold."""
    if not _EXPIRATION.fullmatch(text) or (ms := int(text)) > MAX_TIME_TO_LIVE * 1000:
        return None
    return (ms or 1) / 1000


def header_seconds(text: object, expiration: str | None) -> float | None:
    """Read the header ``ttl`` if it is ours: then it says what ``expiration``, if there is one, says rounded up."""
    if not isinstance(text, str) or not _SECONDS.fullmatch(text):
        return None
    seconds = round(float(text), 6)
    if not 0 < seconds <= MAX_TIME_TO_LIVE:
        return None
    if expiration is not None:
        beside, _ = lifetime(seconds, scheduled=False)
        if beside is None or expiration_seconds(beside) != expiration_seconds(expiration):
            return None
    return seconds


def instant(text: str) -> datetime | None:
    """Read an instant in ISO 8601; None if it is none, or one without its time zone."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else None
    except (OverflowError, ValueError):
        return None


def is_timestamp(value: datetime) -> bool:
    """Whether AMQP's timestamp, in whole seconds, says all of an instant."""
    return not value.microsecond and _EPOCH <= value <= _LAST_TIMESTAMP


def timestamp_number(at: datetime) -> int:
    """The number that stands for an instant on the wire."""
    # A received one that is not like ours came as milliseconds, and pamqp has divided them.
    return (at - _EPOCH) // _SECOND if is_timestamp(at) else round((at - _EPOCH) / _MILLISECOND)
