"""The plot of what happened: states, sends, backlog and latency, one below the other over the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from pairmq.pipeline.reporting._svg import (
    across,
    count_ticks,
    element,
    power_ticks,
    stairs,
    steps,
    stretched,
    text,
    time_ticks,
)
from pairmq.pipeline.reporting._values import Grid, Key, Numbers, Series, Span, Spans
from pairmq.pipeline.reporting._words import clock, date, duration, grouped, named

MOST_ROWS = 8
"""Entities whose states are drawn."""

_GAP = 20  # px
_NAME = 30  # characters of an entity's name beside its state


def course(series: Series, spans: Mapping[Key, Spans], rows: Sequence[Key], names: Mapping[Key, str]) -> Markup:
    """Draw it, with the states of the entities in the rows, in this order."""
    grid = series.grid
    top = len(rows) * ROW + 14
    panels = (sends_panel(series), backlog_panel(series), latency_panel(series))
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
    label = clock(began, grid.width) if grid.width < 3600 else f"{date(began)} {clock(began)}"
    parts = [element("line", x1=across(x), x2=across(x), y1=0, y2=bottom - 12, class_="cross")]
    for number, panel in enumerate(panels):
        y = top + number * (HEAD + PLOT + _GAP)
        parts.append(element("rect", y=y + 17, width="100%", height=19, class_="veil"))
        parts.append(text(panel.readouts[slot], 0, y + 30, class_="legend"))
    parts.append(element("rect", y=bottom - 11, width="100%", height=16, class_="veil"))
    end = "start" if x < 0.1 else "end" if x > 0.9 else "middle"
    parts.append(text(label, x, bottom, class_="tick strong", end=end))
    area = element("rect", x=across(slot / grid.slots), width=across(1 / grid.slots), y=0, height=bottom, class_="area")
    return element("g", area, element("g", *parts, class_="tip"), class_="hit")


def name_of(key: Key, several: bool) -> str:
    """What an entity is called beside its state; with its pair where there are several."""
    name = named(key.entity, _NAME)
    return f"{name} · {named(key.pair, _NAME)}" if several else name


PLOT, HEAD = 104, 40
"""Pixels of a plot's height, and of the head above it."""

_MOST_PEAKS = 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot with its head and its scale."""

    title: str
    legend: Sequence[tuple[str, str]]  # class and word of each colour
    ticks: Sequence[tuple[float, str]]  # share of the height, and label, of each line
    marks: Sequence[Markup | None]  # what is drawn, in a drawing of the plot's height
    readouts: Sequence[str]  # for each slot what its values are
    notes: Sequence[tuple[float, float, str]] = ()  # texts within the plot: share of the width, y, words

    def drawn(self, y: float) -> Sequence[Markup]:
        """Draw it, its head at this height."""
        base = y + HEAD
        legend = [part for class_, word in self.legend for part in (element("tspan", "■", class_=class_), f" {word}  ")]
        return (
            text(self.title, 0, y + 12, class_="title"),
            element("text", *legend, x=0, y=y + 30, class_="legend"),
            *(
                element(
                    "line", x1=0, x2="100%", y1=base + PLOT * (1 - share), y2=base + PLOT * (1 - share), class_="grid"
                )
                for share, _ in self.ticks
            ),
            element("line", x1=0, x2="100%", y1=base + PLOT, y2=base + PLOT, class_="axis"),
            stretched(PLOT, base, *(mark for mark in self.marks if mark is not None)),
            *(
                text(label, 0, base + PLOT * (1 - share) + (11 if share > 0.95 else -3), class_="tick halo")
                for share, label in self.ticks
                if label
            ),
            *(
                text(words, share, base + high, class_="tick halo", end="end" if share > 0.5 else "start")
                for share, high, words in self.notes
            ),
        )


class _Unit(NamedTuple):
    """What messages are counted in: a second, a minute, or an hour."""

    seconds: float
    word: str
    sign: str

    def of(self, value: float) -> str:
        text = grouped(value) if value >= 9.95 or value == int(value) else f"{value:.2g}"
        return f"{text}/{self.sign}"


_UNITS = (_Unit(1.0, "a second", "s"), _Unit(60.0, "a minute", "min"), _Unit(3600.0, "an hour", "h"))


def sends_panel(series: Series) -> Panel:
    """Plot where sends went."""
    unit = _unit(series)
    width = series.grid.width / unit.seconds
    rates = [(name, getattr(series, name) / width) for name in ("primary", "backlog", "unknown", "refused")]
    moved = series.moved / width
    total = np.sum([each for _, each in rates], axis=0)
    top, lines = _rate_scale(np.maximum(total, moved))
    marks, low = [], np.zeros(series.grid.slots)
    for name, each in rates:
        high = low + each
        marks.append(steps(_y(high, top), _y(low, top), class_=f"fill {name}"))
        low = high
    for class_ in ("line casing", "line moved"):
        marks.append(stairs(_y(np.where(moved > 0, moved, np.nan), top), class_=class_))
    legend = [(f"ink-{name}", name) for name, each in rates if each.any() or name in ("primary", "backlog")]
    legend += [("ink-moved", "moved back")] if moved.any() else []
    readouts = [
        f"{unit.of(rates[0][1][slot])} primary, {unit.of(rates[1][1][slot])} backlog"
        + "".join(f", {unit.of(each[slot])} {name}" for name, each in rates[2:] if each[slot])
        + (f", {unit.of(moved[slot])} moved back" if moved[slot] else "")
        for slot in range(series.grid.slots)
    ]
    # The bars of an ordinary day would lie under the label of a line further down.
    ticks = [(value / top, unit.of(value) if value == lines[-1] else "") for value in lines]
    peaks = _cut_peaks(np.maximum(total, moved), top, unit)
    return Panel(f"Sends {unit.word}, by destination", legend, ticks, marks, readouts, peaks)


def _rate_scale(rates: Numbers) -> tuple[float, Sequence[float]]:
    """The top of the scale, and its lines: the burst of what waited for the failover must not flatten the rest."""
    some = rates[rates > 0]
    if not len(some):
        return 1.0, (1.0,)
    most, usual = float(some.max()), float(np.quantile(some, 0.9))
    wanted = most if most <= 3 * usual else 2 * usual
    lines = count_ticks(wanted) if wanted >= 1 else (wanted,)
    return max(lines[-1], wanted), lines


def _cut_peaks(rates: Numbers, top: float, unit: _Unit) -> Sequence[tuple[float, float, str]]:
    high = [int(slot) for slot in np.argsort(-rates, kind="stable")[:_MOST_PEAKS] if rates[slot] > top * 1.001]
    kept: list[int] = []
    for slot in high:
        if all(abs(slot - other) > len(rates) / 6 for other in kept):
            kept.append(slot)
    return [((slot + (slot < len(rates) / 2)) / len(rates), 11, f" ▲ {unit.of(float(rates[slot]))} ") for slot in kept]


def backlog_panel(series: Series) -> Panel:
    """Plot how many messages were in the backlog."""
    depth = series.depth.astype(np.float64)
    lines = count_ticks(float(depth.max()))
    top = lines[-1]
    mark = steps(_y(depth, top), _y(np.zeros(len(depth)), top), class_="fill backlog")
    notes = [] if depth.any() else [(0.0, PLOT / 2, "  nothing was diverted")]
    return Panel(
        "Messages in the backlog",
        [("ink-backlog", "waiting to be moved to the primary")],
        [(value / top, grouped(value)) for value in lines] if depth.any() else [],
        [mark],
        [f"{grouped(each)} in the backlog" for each in depth],
        notes,
    )


def latency_panel(series: Series) -> Panel:
    """Plot how long accepted sends took, by powers of ten."""
    known = series.p50[~np.isnan(series.p50)]
    title = "Send latency, from call to receipt"
    if not len(known):
        notes = [(0.0, PLOT / 2, "  the tables do not record when sends were called")]
        return Panel(title, [], [], [], [""] * series.grid.slots, notes)
    lines = power_ticks(float(known.min()), float(np.nanmax(series.longest)))
    low, high = np.log10(lines[0]), np.log10(lines[-1])

    def y(values: Numbers) -> Numbers:
        share: Numbers = (np.log10(np.clip(values, lines[0], lines[-1])) - low) / (high - low)
        return PLOT * (1 - share)

    empty = np.isnan(series.p50)
    bottoms, tops = np.where(empty, 0.0, y(series.p50)), np.where(empty, 0.0, y(series.p99))
    readouts = [
        "no sends"
        if empty[slot]
        else f"half within {duration(float(series.p50[slot]))}, 99 % within {duration(float(series.p99[slot]))}, "
        f"longest {duration(float(series.longest[slot]))}"
        for slot in range(series.grid.slots)
    ]
    every = max(1, -(-len(lines) // 5))
    # Labels stand above their lines, but for that of the top line, which would be among the legend.
    labelled = {index for index in range(1, len(lines) - 2) if index % every == 0} | {len(lines) - 1}
    ticks = [
        ((np.log10(value) - low) / (high - low), duration(value).replace(".0 s", " s") if index in labelled else "")
        for index, value in enumerate(lines)
    ]
    return Panel(
        title,
        [("ink-half", "half within"), ("ink-band", "to 99 % within"), ("ink-longest", "longest")],
        ticks,
        [
            stairs(y(series.longest), class_="line longest"),
            steps(tops, bottoms, class_="fill band"),
            stairs(y(series.p50), class_="line half"),
        ],
        readouts,
    )


def _y(values: Numbers, top: float) -> Numbers:
    heights: Numbers = PLOT * (1 - np.minimum(values, top) / top)
    return heights


def _unit(series: Series) -> _Unit:
    """The shortest unit of time in which the busiest slot has a message."""
    rate = float(np.max(series.primary + series.backlog + series.moved, initial=0)) / series.grid.width
    return next((unit for unit in _UNITS if rate * unit.seconds >= 1), _UNITS[-1])


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
    # The heights distinguish the states without colours.
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
