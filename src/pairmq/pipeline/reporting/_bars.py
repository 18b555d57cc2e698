"""Plots that stand in the rows of tables: the table beside them says the same in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from pairmq.pipeline.reporting._svg import across, element
from pairmq.pipeline.reporting._values import Latency

_HEIGHT = 12
_LEAST_SEEN = 0.004  # of the width: a part that is not nothing is not drawn as nothing


def bar(parts: Sequence[tuple[str, float]], whole: float) -> Markup:
    """Draw one bar of coloured parts.

    Args:
        parts: class and amount of each, from the left.
        whole: the amount that would fill all of the width.
    """
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


def scale_of(latencies: Sequence[Latency]) -> tuple[float, float]:
    """The powers of ten, as exponents, between which all of them are."""
    least = min(each.p50 for each in latencies)
    most = max(each.longest for each in latencies)
    low = math.floor(math.log10(max(least, 1e-6)))
    return low, max(low + 1, math.ceil(math.log10(max(most, 1e-6))))


def reach(latency: Latency, scale: tuple[float, float], class_: str) -> Markup:
    """Draw from where to where durations reach, on a scale by powers of ten: half, 99 %, and the longest."""

    def place(seconds: float) -> float:
        return min(1.0, max(0.0, (math.log10(max(seconds, 1e-6)) - scale[0]) / (scale[1] - scale[0])))

    half, most, longest = place(latency.p50), place(latency.p99), place(latency.longest)
    lines = [
        element("line", x1=across(each), x2=across(each), y1=0, y2=_HEIGHT, class_="grid")
        for each in (number / (scale[1] - scale[0]) for number in range(int(scale[1] - scale[0]) + 1))
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
