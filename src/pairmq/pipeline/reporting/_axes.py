"""Where the lines of a plot are: instants, counts, and durations by powers of ten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from pairmq.pipeline.reporting._values import Grid
from pairmq.pipeline.reporting._words import clock

_STEPS = (
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0, 43_200.0),
)
_DAY = 86_400.0
_TICKS = 8
_NARROW_TICKS = 4


class Tick(NamedTuple):
    """A line across time.

    Args:
        share: where it is, from 0 to 1.
        label: what stands there.
        always: whether narrow screens have room for the label too.
    """

    share: float
    label: str
    always: bool


def time_ticks(grid: Grid) -> Sequence[Tick]:
    """Choose round instants within a grid."""
    seconds = grid.ended - grid.began
    step = next((each for each in _STEPS if seconds / each <= _TICKS), None)
    if step is None:
        step = math.ceil(seconds / _TICKS / _DAY) * _DAY
    first = math.ceil(grid.began / step - 1e-9)
    ticks = []
    number = first
    # At the very edge a label would be cut.
    while number * step <= grid.ended - 0.02 * seconds:
        if number * step >= grid.began + 0.02 * seconds:
            ticks.append(number * step)
        number += 1
    # On a narrow screen half a label is wider than these margins.
    roomy = [at for at in ticks if 0.08 < grid.share(at) < 0.92]
    kept = set(roomy[:: max(1, math.ceil(len(roomy) / _NARROW_TICKS))])
    return [Tick(grid.share(at), _label(at, step), at in kept) for at in ticks]


def _label(at: float, step: float) -> str:
    told = datetime.fromtimestamp(at, UTC)
    if step >= _DAY or (step >= 3600 and told.hour == 0 and told.minute == 0):
        return f"{told.day} {told:%b}"
    if step >= 60:
        return f"{told:%H:%M}"
    return clock(at, step)


def count_ticks(most: float) -> Sequence[float]:
    """Choose a round top for a scale from 0, and a line in its middle."""
    if most <= 1:
        return (1,)
    power = 10 ** math.floor(math.log10(most))
    top = next(factor * power for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if factor * power >= most)
    if top < 4 or top != int(top):
        return (math.ceil(top),)
    return (top / 2, top) if top % 2 == 0 else (top,)


def power_ticks(least: float, most: float) -> Sequence[float]:
    """Choose powers of ten that hold all durations between them, two at least."""
    low = math.floor(math.log10(max(least, 1e-6)) + 1e-9)
    high = math.ceil(math.log10(max(most, 1e-6)) - 1e-9)
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]
