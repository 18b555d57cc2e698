"""How many messages one operation carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pairmq.model import FailureReason, TransportError

T = TypeVar("T")


def adapted(most: int, tried: int, errors: Sequence[TransportError | None], ceiling: int) -> int:
    """How many messages the next operation should carry.

    An operation that hits its time limit tells of none of its messages what became of it: if the same number were tried
    again, a slow broker would never get anywhere. So fewer, until it fits.
    """
    if any(error is not None and error.reason is FailureReason.TIMEOUT for error in errors):
        return max(1, tried // 2)
    return min(ceiling, most * 2)


def slices(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Cut a sequence into parts of at most ``size``."""
    return [items[start : start + size] for start in range(0, len(items), size)]
