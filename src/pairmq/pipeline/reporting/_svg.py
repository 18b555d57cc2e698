"""Pieces of SVG that scale by themselves: places across are in percent, heights in pixels, text keeps its size.

Every text and every value is escaped where it enters; nothing else makes markup. No style attribute is used, which the
page's policy would not allow: colours come from classes.

The pieces are elements, the places of a plot's lines, and the small plots in the rows of tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from pairmq.pipeline.reporting._values import ROUND, Grid, Latency, Numbers
from pairmq.pipeline.reporting._words import clock

WIDE = 1000
"""Units across of a drawing that is stretched to the width of the page."""


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Make an element of texts, which are escaped, and markup, which is not.

    In names of attributes ``class_`` means ``class``, other underscores mean hyphens; None values are omitted.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, Markup("").join(map(escape, children)))


def across(share: float) -> str:
    """A place or a width from 0 to 1 as percent."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


def text(words: str, x: float, y: float, *, class_: str | None = None, end: str = "start") -> Markup:
    """A line of text at a share of the width."""
    return element("text", words, x=across(x), y=y, class_=class_, text_anchor=None if end == "start" else end)


def stretched(height: float, y: float, *children: str) -> Markup:
    """A drawing with `WIDE` units across, stretched to the width of what it is in."""
    return element(
        "svg", *children, y=y, width="100%", height=height, viewBox=f"0 0 {WIDE} {height:g}", preserveAspectRatio="none"
    )


def steps(tops: Numbers, bottoms: Numbers, *, class_: str) -> Markup | None:
    """Fill between two staircases, one step for each slot; slots without a height are left out. None if all are."""
    many = len(tops)
    parts: list[str] = []
    for first, after in _runs(tops < bottoms - 1e-9):
        parts.append(f"M{_x(first, many)} {bottoms[first]:.1f}")
        parts += [f"V{tops[slot]:.1f}H{_x(slot + 1, many)}" for slot in range(first, after)]
        parts += [f"V{bottoms[slot]:.1f}H{_x(slot, many)}" for slot in range(after - 1, first - 1, -1)]
        parts.append("Z")
    return element("path", d="".join(parts), class_=class_) if parts else None


def stairs(heights: Numbers, *, class_: str) -> Markup | None:
    """Draw a staircase, with gaps at NaN heights. None if all are NaN."""
    many = len(heights)
    parts = []
    for first, after in _runs(~np.isnan(heights)):
        parts.append(f"M{_x(first, many)} {heights[first]:.1f}")
        parts += [f"V{heights[slot]:.1f}H{_x(slot + 1, many)}" for slot in range(first, after)]
    return element("path", d="".join(parts), class_=class_) if parts else None


def _x(slot: int, many: int) -> str:
    return f"{WIDE * slot / many:.1f}".removesuffix(".0")


def _runs(chosen: NDArray[np.bool_]) -> Sequence[tuple[int, int]]:
    """Where one chosen slot follows another: the first of each run, and the one after its last."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


_DAY = 86_400.0
_TICKS = 8
_NARROW_TICKS = 4


class Tick(NamedTuple):
    """A line across time."""

    share: float  # where it is, from 0 to 1
    label: str
    always: bool  # whether narrow screens have room for the label too


def time_ticks(grid: Grid) -> Sequence[Tick]:
    """Choose round instants within a grid."""
    seconds = grid.ended - grid.began
    step = next((each for each in ROUND if seconds / each <= _TICKS), None)
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
    moment = datetime.fromtimestamp(at, UTC)
    if step >= _DAY or (step >= 3600 and moment.hour == 0 and moment.minute == 0):
        return f"{moment.day} {moment:%b}"
    if step >= 60:
        return f"{moment:%H:%M}"
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


_HEIGHT = 12
_LEAST_SEEN = 0.004  # of the width: a part that is not nothing is not drawn as nothing


def bar(parts: Sequence[tuple[str, float]], whole: float) -> Markup:
    """Draw one bar of coloured parts."""
    drawn = [element("rect", width="100%", height=_HEIGHT, rx=2, class_="rail")]
    x = 0.0
    for class_, amount in parts:
        if amount <= 0 or whole <= 0:
            continue
        width = max(amount / whole, _LEAST_SEEN)
        x = min(x, 1 - _LEAST_SEEN)
        drawn.append(element("rect", x=across(x), width=across(min(width, 1 - x)), height=_HEIGHT, class_=class_))
        x += width
    return element("svg", *drawn, class_="bar", width="100%", height=_HEIGHT, aria_hidden="true")


def reach(latency: Latency, scale: Sequence[float], class_: str) -> Markup:
    """Draw from where to where durations reach, on a scale by powers of ten: half, 99 %, and the longest."""
    low, high = math.log10(scale[0]), math.log10(scale[-1])

    def place(seconds: float) -> float:
        return min(1.0, max(0.0, (math.log10(max(seconds, 1e-6)) - low) / (high - low)))

    half, most, longest = place(latency.p50), place(latency.p99), place(latency.longest)
    lines = [
        element("line", x1=across(each), x2=across(each), y1=0, y2=_HEIGHT, class_="grid") for each in map(place, scale)
    ]
    return element(
        "svg",
        *lines,
        element("line", x1=across(half), x2=across(longest), y1=6, y2=6, class_="whisker"),
        element(
            "rect", x=across(half), width=across(max(most - half, _LEAST_SEEN)), y=2, height=8, rx=2, class_=class_
        ),
        element("circle", cx=across(half), cy=6, r=4, class_="knob"),
        element("line", x1=across(longest), x2=across(longest), y1=2, y2=10, class_="whisker"),
        class_="bar reach",
        width="100%",
        height=_HEIGHT,
        aria_hidden="true",
    )
