"""The plot of what happened: states, sends, backlog and latency, one below the other over the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from pairmq.pipeline.reporting import _panels
from pairmq.pipeline.reporting._axes import time_ticks
from pairmq.pipeline.reporting._panels import HEAD, PLOT, Panel
from pairmq.pipeline.reporting._states import ROW, pieces, states
from pairmq.pipeline.reporting._svg import across, element, text
from pairmq.pipeline.reporting._values import Key, Series, Spans
from pairmq.pipeline.reporting._words import clock, date, named

MOST_ROWS = 8
"""Entities whose states are drawn."""

_GAP = 20  # px
_NAME = 30  # characters of an entity's name beside its state


def course(series: Series, spans: Mapping[Key, Spans], rows: Sequence[Key], names: Mapping[Key, str]) -> Markup:
    """Draw it.

    Args:
        series: what happened in each slot.
        spans: the states of the entities.
        rows: whose states are drawn, in this order.
        names: what they are called.

    Returns:
        One ``svg`` element, as wide as what it is in.
    """
    grid = series.grid
    top = len(rows) * ROW + 14
    panels = (_panels.sends(series), _panels.backlog(series), _panels.latency(series))
    height = top + len(panels) * (HEAD + PLOT + _GAP) + 4
    # After the labels of the states, which must not be veiled.
    drawn = [states(grid, spans.get(key, Spans()), names[key], number * ROW) for number, key in enumerate(rows)]
    union = [span for key in rows for span in spans.get(key, Spans()).out]
    plots = []
    for number, panel in enumerate(panels):
        y = top + number * (HEAD + PLOT + _GAP)
        shade = [
            element("rect", x=across(x), width=across(w), y=y + HEAD, height=PLOT, class_="shade")
            for x, w in pieces(union, grid)
        ]
        plots.append(element("g", *shade, *panel.drawn(y)))
    bottom = height - _GAP + 10
    ticks = time_ticks(grid)
    lines = [
        element("line", x1=across(tick.share), x2=across(tick.share), y1=0, y2=bottom - 12, class_="grid")
        for tick in ticks
    ]
    labels = [
        text(tick.label, tick.share, bottom, class_="tick" if tick.always else "tick wide", end="middle")
        for tick in ticks
    ]
    hits = [_hit(series, panels, slot, top, bottom) for slot in range(grid.slots)]
    title = f"States, sends, backlog and latency from {date(grid.began)} {clock(grid.began)} to {clock(grid.ended)} UTC"
    return element(
        "svg",
        *lines,
        *drawn,
        *plots,
        *labels,
        *hits,
        class_="course",
        width="100%",
        height=height,
        role="img",
        aria_label=title,
    )


def _hit(series: Series, panels: Sequence[Panel], slot: int, top: float, bottom: float) -> Markup:
    """What is shown while the pointer is on a slot: a line across all plots, and the values in place of the legends."""
    grid = series.grid
    x = (slot + 0.5) / grid.slots
    began = grid.began + slot * grid.width
    told = clock(began, grid.width) if grid.width < 3600 else f"{date(began)} {clock(began)}"
    parts = [element("line", x1=across(x), x2=across(x), y1=0, y2=bottom - 12, class_="cross")]
    for number, panel in enumerate(panels):
        y = top + number * (HEAD + PLOT + _GAP)
        parts.append(element("rect", y=y + 17, width="100%", height=19, class_="veil"))
        parts.append(text(panel.readouts[slot], 0, y + 30, class_="legend"))
    parts.append(element("rect", y=bottom - 11, width="100%", height=16, class_="veil"))
    end = "start" if x < 0.1 else "end" if x > 0.9 else "middle"
    parts.append(text(told, x, bottom, class_="tick strong", end=end))
    area = element("rect", x=across(slot / grid.slots), width=across(1 / grid.slots), y=0, height=bottom, class_="area")
    return element("g", area, element("g", *parts, class_="tip"), class_="hit")


def name_of(key: Key, several: bool) -> str:
    """What an entity is called beside its state; with its pair where there are several."""
    name = named(key.entity, _NAME)
    return f"{name} · {named(key.pair, _NAME)}" if several else name
