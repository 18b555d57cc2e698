"""The figures of one benchmark as a picture: a bar for each median, a line for how far the rounds lay apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_OURS, _THEIRS = "#1f6f8b", "#7d868e"
_INK = "#333333"


def draw(title: str, figures: Mapping[str, Any], path: Path) -> None:
    """Write a PNG.

    Args:
        title: above it.
        figures: as the benchmark prints them with ``--json``.
        path: of the picture.
    """
    contenders: dict[str, dict[str, float]] = figures["contenders"]
    ours = {name.partition(" / ")[0] for name in figures["ratios"]} or set(contenders)
    picture = Figure(figsize=(7.5, 1.2 + 0.42 * len(contenders)), dpi=90, layout="constrained")
    axes = picture.subplots()
    names = list(contenders)
    medians = [contenders[name]["median"] for name in names]
    spreads = [
        [median - contenders[name]["min"] for name, median in zip(names, medians, strict=True)],
        [contenders[name]["max"] - median for name, median in zip(names, medians, strict=True)],
    ]
    colours = [_OURS if name in ours else _THEIRS for name in names]
    axes.barh(names, medians, xerr=spreads, color=colours, height=0.62, ecolor=_INK, error_kw={"linewidth": 1})
    ends = [contenders[name]["max"] for name in names]
    for place, (median, end) in enumerate(zip(medians, ends, strict=True)):
        axes.annotate(f"{median:,.0f}", (end, place), (5, 0), textcoords="offset points", va="center", color=_INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(ends))  # room for the words
    axes.set_xlabel(f"{figures['unit']} (median; least and greatest round)", color=_INK)
    axes.set_title(title, loc="left", fontsize=11, color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path)


def draw_curves(title: str, figures: Mapping[str, Any], path: Path) -> None:
    """Write a PNG with a curve for each thing that grows: median and spread, both axes logarithmic.

    Args:
        title: above them.
        figures: with ``curves``: of what grows, of each setting, ``median``, ``min`` and ``max``.
        path: of the picture.
    """
    curves: dict[str, dict[str, dict[str, float]]] = figures["curves"]
    picture = Figure(figsize=(3 * len(curves), 3), dpi=90, layout="constrained")
    picture.suptitle(title, x=0.01, ha="left", fontsize=11, color=_INK)
    every = picture.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, (what, settings) in zip(every, curves.items(), strict=True):
        places = [int(setting) for setting in settings]
        of = settings.values()
        axes.fill_between(places, [o["min"] for o in of], [o["max"] for o in of], color=_OURS, alpha=0.2, linewidth=0)
        axes.plot(places, [o["median"] for o in of], color=_OURS, marker="o", markersize=4)
        axes.set(xscale="log", yscale="log")
        axes.set_xlabel(what, color=_INK)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_ylabel(figures["unit"], color=_INK)
    picture.savefig(path)
