"""Draws a Mermaid state diagram of four states as SVG, for a site whose pages fetch no script that could do it.

The states stand at the corners, in the order in which the diagram names them: left above, right above, right below,
left below. A line's causes are written along it. Colours are those of the page's text, light or dark.
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

WIDTH, HEIGHT = 860, 640
LINE = 17
HALF_WIDTH, HALF_HEIGHT = 66, 24

STATE = re.compile(r'state "(?P<text>[^"]+)" as (?P<name>\w+)')
MOVE = re.compile(r"(?P<left>\w+|\[\*\]) --> (?P<entered>\w+): (?P<causes>.+)")


class Point(NamedTuple):
    """A place on the drawing."""

    x: float
    y: float


CORNERS = (Point(90, 110), Point(WIDTH - 90, 110), Point(WIDTH - 90, HEIGHT - 110), Point(90, HEIGHT - 110))


def drawn(mermaid: str) -> str:
    """Draw a diagram.

    Args:
        mermaid: its text, with four states.

    Returns:
        An ``<svg>`` element.
    """
    states = {match["name"]: match["text"] for match in STATE.finditer(mermaid)}
    places = dict(zip(states, CORNERS, strict=True))
    parts = [
        f'<svg class="state-diagram" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="States: {html.escape(", ".join(states.values()))}; the moves between them are listed below.">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    for move in MOVE.finditer(mermaid):
        causes = move["causes"].split(" / ")
        if move["left"] == "[*]":
            parts.append(_beginning(places[move["entered"]], causes))
        elif move["left"] == move["entered"]:
            parts.append(_loop(places[move["left"]], causes))
        else:
            parts.append(_line(places[move["left"]], places[move["entered"]], causes))
    for name, text in states.items():
        x, y = places[name]
        parts.append(
            f'<rect x="{x - HALF_WIDTH}" y="{y - HALF_HEIGHT}" width="{2 * HALF_WIDTH}" height="{2 * HALF_HEIGHT}" '
            f'rx="8"/><text class="state" x="{x}" y="{y + 5}">{html.escape(text)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _beginning(at: Point, causes: list[str]) -> str:
    outwards = -1 if at.y < HEIGHT / 2 else 1
    y = at.y + outwards * 72
    dot = f'<circle cx="{at.x}" cy="{y}" r="6"/>'
    return dot + _path(f"M{at.x} {y}L{at.x} {at.y + outwards * HALF_HEIGHT}") + _text(Point(at.x + 14, y + 5), causes)


def _loop(at: Point, causes: list[str]) -> str:
    outwards = -1 if at.y < HEIGHT / 2 else 1
    y = at.y + outwards * HALF_HEIGHT
    far = y + outwards * 58
    curve = f"M{at.x - 18} {y}C{at.x - 44} {far} {at.x + 44} {far} {at.x + 18} {y}"
    return _path(curve) + _text(Point(at.x - 48, far - 6), causes, "end")


def _line(left: Point, entered: Point, causes: list[str]) -> str:
    """A line that keeps to the right of the straight way, so that the one back has its own."""
    across, down = entered.x - left.x, entered.y - left.y
    length = (across**2 + down**2) ** 0.5
    aside = Point(-down / length, across / length)
    bend = 34 if across and down else 26
    start = _edge(left, Point(across, down), aside)
    end = _edge(entered, Point(-across, -down), aside)
    middle = Point((start.x + end.x) / 2 + bend * aside.x, (start.y + end.y) / 2 + bend * aside.y)
    curve = f"M{start.x:.0f} {start.y:.0f}Q{middle.x:.0f} {middle.y:.0f} {end.x:.0f} {end.y:.0f}"
    share = 0.5 if not down else 0.33 if across else 0.28
    at = Point(*(_quadratic(start[axis], middle[axis], end[axis], share) for axis in (0, 1)))
    if not across and (aside.x < 0) == (left.x < WIDTH / 2):  # between the line and the border: no room for words
        outside = -9 - LINE * (len(causes) - 1) if aside.x < 0 else LINE
        return _path(curve) + _text(Point(at.x + outside, (start.y + end.y) / 2), causes, "middle", upwards=True)
    lift = LINE * (len(causes) - 1) / 2
    if across and down:  # off the line, which is not level
        lift = -12 if aside.y > 0 else 2 * lift + 6
    if not down:  # above or below it
        outwards = 10 if aside.y > 0 else -8 - LINE * (len(causes) - 1)
        return _path(curve) + _text(Point(at.x, at.y + outwards + (LINE - 4 if outwards > 0 else 0)), causes, "middle")
    beside = 9 if aside.x > 0 else -9
    return _path(curve) + _text(Point(at.x + beside, at.y + 4 - lift), causes, "start" if beside > 0 else "end")


def _edge(at: Point, towards: Point, aside: Point) -> Point:
    """Where a line leaves a state's box."""
    shift = 11
    if not towards.y:
        return Point(at.x + (HALF_WIDTH if towards.x > 0 else -HALF_WIDTH), at.y + shift * aside.y)
    x = at.x + shift * aside.x + (0 if not towards.x else (26 if towards.x > 0 else -26))
    return Point(x, at.y + (HALF_HEIGHT if towards.y > 0 else -HALF_HEIGHT))


def _quadratic(start: float, middle: float, end: float, share: float) -> float:
    return (1 - share) ** 2 * start + 2 * share * (1 - share) * middle + share**2 * end


def _path(curve: str) -> str:
    return f'<path class="move" d="{curve}" marker-end="url(#arrow)"/>'


def _text(at: Point, rows: list[str], anchor: str = "start", *, upwards: bool = False) -> str:
    spans = "".join(
        f'<tspan x="{at.x:.0f}" dy="{LINE if number else 0}">{html.escape(row)}</tspan>'
        for number, row in enumerate(rows)
    )
    turned = f' transform="rotate(-90 {at.x:.0f} {at.y:.0f})"' if upwards else ""
    return f'<text x="{at.x:.0f}" y="{at.y:.0f}" text-anchor="{anchor}"{turned}>{spans}</text>'
