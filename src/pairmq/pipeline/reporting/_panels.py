"""The plots below the states: sends, the backlog and latency, each with its head and its own scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from pairmq.pipeline.reporting._axes import count_ticks, power_ticks
from pairmq.pipeline.reporting._svg import element, stairs, steps, stretched, text
from pairmq.pipeline.reporting._values import Numbers, Series
from pairmq.pipeline.reporting._words import duration, grouped

PLOT, HEAD = 104, 40
"""Pixels of a plot's height, and of the head above it."""

_MOST_PEAKS = 3


class Panel:
    """One plot with its head and its scale.

    Args:
        title: above it.
        legend: class and word of each colour.
        ticks: share of the height, and label, of each line.
        marks: what is drawn, in a drawing of the plot's height.
        readouts: for each slot what its values are.
        notes: texts within the plot: share of the width, y, words.
    """

    def __init__(
        self,
        title: str,
        legend: Sequence[tuple[str, str]],
        ticks: Sequence[tuple[float, str]],
        marks: Sequence[Markup | None],
        readouts: Sequence[str],
        notes: Sequence[tuple[float, float, str]] = (),
    ) -> None:
        self._title, self._legend, self._ticks = title, legend, ticks
        self._marks, self._notes = marks, notes
        self.readouts = readouts

    def drawn(self, y: float) -> Sequence[Markup]:
        """Draw it, its head at this height."""
        base = y + HEAD
        legend = [
            part for class_, word in self._legend for part in (element("tspan", "■", class_=class_), f" {word}  ")
        ]
        return (
            text(self._title, 0, y + 12, class_="title"),
            element("text", *legend, x=0, y=y + 30, class_="legend"),
            *(
                element(
                    "line", x1=0, x2="100%", y1=base + PLOT * (1 - share), y2=base + PLOT * (1 - share), class_="grid"
                )
                for share, _ in self._ticks
            ),
            element("line", x1=0, x2="100%", y1=base + PLOT, y2=base + PLOT, class_="axis"),
            stretched(PLOT, base, *(mark for mark in self._marks if mark is not None)),
            *(
                text(label, 0, base + PLOT * (1 - share) + (11 if share > 0.95 else -3), class_="tick halo")
                for share, label in self._ticks
                if label
            ),
            *(
                text(words, share, base + high, class_="tick halo", end="end" if share > 0.5 else "start")
                for share, high, words in self._notes
            ),
        )


class _Unit(NamedTuple):
    """What messages are counted in: a second, a minute, or an hour."""

    seconds: float
    word: str
    sign: str

    def of(self, value: float) -> str:
        """Write a rate."""
        text = grouped(value) if value >= 9.95 or value == int(value) else f"{value:.2g}"
        return f"{text}/{self.sign}"


_UNITS = (_Unit(1.0, "a second", "s"), _Unit(60.0, "a minute", "min"), _Unit(3600.0, "an hour", "h"))


def sends(series: Series) -> Panel:
    """Plot where sends went."""
    unit = _unit(series)
    width = series.grid.width / unit.seconds
    stack = [
        ("primary", "primary", series.primary),
        ("backlog", "backlog", series.backlog),
        ("unknown", "unknown", series.unknown),
        ("refused", "refused", series.refused),
    ]
    rates = [(class_, word, counts / width) for class_, word, counts in stack]
    moved = series.moved / width
    total = np.sum([each for *_, each in rates], axis=0)
    top, lines = _rate_scale(np.maximum(total, moved))
    marks, low = [], np.zeros(series.grid.slots)
    for class_, _, each in rates:
        high = low + each
        marks.append(steps(_y(high, top), _y(low, top), class_=f"fill {class_}"))
        low = high
    for class_ in ("line casing", "line moved"):
        marks.append(stairs(_y(np.where(moved > 0, moved, np.nan), top), class_=class_))
    legend = [(f"ink-{class_}", word) for class_, word, each in rates if each.any() or class_ in ("primary", "backlog")]
    legend += [("ink-moved", "brought home")] if moved.any() else []
    readouts = [
        f"{unit.of(rates[0][2][slot])} primary, {unit.of(rates[1][2][slot])} backlog"
        + "".join(f", {unit.of(each[slot])} {word}" for _, word, each in rates[2:] if each[slot])
        + (f", {unit.of(moved[slot])} brought home" if moved[slot] else "")
        for slot in range(series.grid.slots)
    ]
    # The bars of an ordinary day would lie under the label of a line further down.
    ticks = [(value / top, unit.of(value) if value == lines[-1] else "") for value in lines]
    peaks = _cut_peaks(np.maximum(total, moved), top, unit)
    return Panel(f"Sends {unit.word}, by where they went", legend, ticks, marks, readouts, peaks)


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


def backlog(series: Series) -> Panel:
    """Plot how many messages were in the backlog."""
    depth = series.depth.astype(np.float64)
    lines = count_ticks(float(depth.max()))
    top = lines[-1]
    mark = steps(_y(depth, top), _y(np.zeros(len(depth)), top), class_="fill backlog")
    notes = [] if depth.any() else [(0.0, PLOT / 2, "  nothing was diverted")]
    return Panel(
        "Messages in the backlog",
        [("ink-backlog", "waiting to be brought home")],
        [(value / top, grouped(value)) for value in lines] if depth.any() else [],
        [mark],
        [f"{grouped(each)} in the backlog" for each in depth],
        notes,
    )


def latency(series: Series) -> Panel:
    """Plot how long accepted sends took, by powers of ten."""
    known = series.p50[~np.isnan(series.p50)]
    title = "Send latency, from call to receipt"
    if not len(known):
        notes = [(0.0, PLOT / 2, "  the tables do not tell when sends were called")]
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
