"""The states of each entity over the time of a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from pairmq.pipeline.reporting._svg import across, element, text
from pairmq.pipeline.reporting._values import Grid, Key, Span, Spans
from pairmq.pipeline.reporting._words import duration

ROW = 38
"""Pixels of one entity's row."""

_BAR = 14  # px
_THINNEST = 0.003  # of the width: a shorter outage is drawn this wide, so that it is seen
_MOST_PIECES = 150
_CELLS = 400


def states(grid: Grid, spans: Spans, name: str, y: float) -> Markup:
    """Draw one entity's row at a height."""
    out = sum(min(span.ended, grid.ended) - max(span.began, grid.began) for span in spans.out if _meets(span, grid))
    line = y + 18
    parts = [
        text(name, 0, y + 12, class_="title"),
        text(f"out for {duration(out)}" if out > 0 else "never out", 1, y + 12, class_="tick", end="end"),
        element("rect", x=0, width="100%", y=line + _BAR - 4, height=4, rx=1, class_="healthy"),
    ]
    # The heights tell the states apart without their colours.
    for class_, which, high in (
        ("draining", spans.draining, 8),
        ("failing", spans.failing, 11),
        ("over", spans.failed_over, 14),
    ):
        parts += [
            element("rect", x=across(x), width=across(w), y=line + _BAR - high, height=high, class_=class_)
            for x, w in pieces(which, grid)
        ]
    return element("g", *parts)


def pieces(spans: Sequence[Span], grid: Grid) -> Sequence[tuple[float, float]]:
    """Where times are on the page: place and width. Many are drawn in cells, so that a page has a bound."""
    shares = sorted((grid.share(span.began), grid.share(span.ended)) for span in spans if _meets(span, grid))
    if len(shares) > _MOST_PIECES:
        cells = sorted(
            {cell for x, end in shares for cell in range(int(x * _CELLS), min(_CELLS, int(end * _CELLS) + 1))}
        )
        shares = [(cell / _CELLS, (cell + 1) / _CELLS) for cell in cells]
    found: list[tuple[float, float]] = []
    for x, end in shares:
        width = max(end - x, _THINNEST)
        x = min(x, 1 - width)
        if found and x <= found[-1][0] + found[-1][1] + 1e-9:
            before = found.pop()
            x, width = before[0], max(before[1], x + width - before[0])
        found.append((x, width))
    return found


def drawn_wider(spans: Mapping[Key, Spans], rows: Sequence[Key], grid: Grid) -> bool:
    """Whether an outage is too short for its place."""
    least = _THINNEST * (grid.ended - grid.began)
    return any(span.seconds < least and _meets(span, grid) for key in rows for span in spans.get(key, Spans()).out)


def _meets(span: Span, grid: Grid) -> bool:
    return span.ended > grid.began and span.began < grid.ended
