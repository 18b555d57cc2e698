"""Instants and durations as whole microseconds, which SQLite keeps exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def since_1970(instant: datetime) -> int:
    """An instant in microseconds since 1970; whole numbers all the way, so that it is exact."""
    return (instant - _EPOCH) // _MICROSECOND


def instant(microseconds: int) -> datetime:
    """The inverse of `since_1970`; what no calendar holds is cut to the year 9999."""
    try:
        return _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def microseconds_of(seconds: float) -> int:
    """A duration in microseconds, at least one."""
    return max(round(seconds * 1_000_000), 1)
