"""How many messages one operation carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pairmq.model import FailureReason, TransportError

T = TypeVar("T")

_DOUBLES, _GROWS = 0.25, 0.5
"""Shares of the time limit below which the next operation may carry twice as many messages, or one more."""


def adapted(most: int, tried: int, errors: Sequence[TransportError | None], took: float, ceiling: int) -> int:
    """How many messages the next operation should carry.

    An operation that hits its time limit tells of none of its messages what became of it: if the same number were tried
    again, a slow broker would never get anywhere. So fewer, until it fits; and more only while that will fit too, or
    the limit would be hit again and again, each time with second copies of what was done before it.

    Args:
        most: messages that this one might carry.
        tried: messages that it did carry.
        errors: one entry each, None for done.
        took: share of its time limit that it took.
        ceiling: of the result.
    """
    if any(error is not None and error.reason is FailureReason.TIMEOUT for error in errors):
        return max(1, tried // 2)
    if tried < most or took >= _GROWS or None not in errors:  # it does not show that more would fit
        return most
    return min(ceiling, most * 2 if took < _DOUBLES else most + 1)


def slices(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Cut a sequence into parts of at most ``size``."""
    return [items[start : start + size] for start in range(0, len(items), size)]
