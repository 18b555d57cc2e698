"""Pieces of SVG that scale by themselves: places across are in percent, heights in pixels, text keeps its size.

Every text and every value is escaped where it enters; nothing else makes markup. No style attribute is used, which the
page's policy would not allow: colours come from classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from pairmq.pipeline.reporting._values import Numbers

WIDE = 1000
"""Units across of a drawing that is stretched to the width of the page."""


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Make an element.

    Args:
        name: its name.
        children: texts, which are escaped, and markup, which is not.
        attributes: ``class_`` stands for ``class``, other underscores for hyphens; those that are None are left out.
    """
    told = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, told, Markup("").join(map(escape, children)))


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
    """Draw a staircase; where a height is not a number there is none. None if none is."""
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
    runs = []
    first = None
    for slot, one in enumerate([*chosen.tolist(), False]):
        if one and first is None:
            first = slot
        elif not one and first is not None:
            runs.append((first, slot))
            first = None
    return runs
