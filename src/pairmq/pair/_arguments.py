"""Check what callers pass by number, before anything is sent or received."""

from __future__ import annotations

_LONGEST = 31_536_000.0  # s, a year: brokers and event loops can't count to infinity


def seconds(name: str, value: float, *, zero: bool = False) -> float:
    """Return a time limit as the loop's clock needs it; more than a year counts as a year.

    ``name`` is for the error: a `TypeError` for another type, a `ValueError` for one that is too small or NaN.
    """
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}: give a number of seconds")
    if not (value >= 0 if zero else value > 0):
        raise ValueError(f"{name} is {value!r}: it must be {'at least' if zero else 'more than'} 0 seconds")
    return float(min(value, _LONGEST))


def count(name: str, value: int) -> int:
    """Return a number of messages, at least 1; else `TypeError` or `ValueError`."""
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}: give a whole number")
    if value < 1:
        raise ValueError(f"{name} is {value!r}: it must be at least 1")
    return value
