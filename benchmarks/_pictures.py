"""The figures of one benchmark as a picture: a bar for each median, a line for how far the rounds lay apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

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


def draw_lines(title: str, figures: Mapping[str, Any], path: Path) -> None:
    """Write a PNG with a line for each contender, over what was varied: median and spread.

    Args:
        title: above them.
        figures: with ``lines``: of each contender, of each setting, ``median``, ``min`` and ``max``; ``over``: what the
            settings are.
        path: of the picture.
    """
    lines: dict[str, dict[str, dict[str, float]]] = figures["lines"]
    picture = Figure(figsize=(7.5, 4), dpi=90, layout="constrained")
    axes = picture.subplots()
    styles: dict[str, int] = {}
    for name, settings in lines.items():
        ours = name in figures["ours"]
        style = styles[str(ours)] = styles.get(str(ours), -1) + 1
        places, of = [float(setting) for setting in settings], settings.values()
        look = {"color": _OURS if ours else _THEIRS, "linestyle": ("-", "--", ":", "-.")[style % 4]}
        axes.plot(places, [o["median"] for o in of], marker="osv^D"[style % 5], markersize=4, label=name, **look)
        axes.fill_between(places, [o["min"] for o in of], [o["max"] for o in of], color=look["color"], alpha=0.08)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(figures["over"], color=_INK)
    axes.set_ylabel(figures["unit"], color=_INK)
    axes.set_title(title, loc="left", fontsize=11, color=_INK)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    picture.savefig(path)


def draw_tails(title: str, figures: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of the share of sends that took longer than so many milliseconds, both axes logarithmic.

    Args:
        title: above them.
        figures: with ``tails``: points of each contender, whose names begin with one of ``kinds``, a picture each.
        path: of the picture.
    """
    kinds = figures["kinds"]
    picture = Figure(figsize=(3 * len(kinds), 3.2), dpi=90, layout="constrained")
    picture.suptitle(title, x=0.01, ha="left", fontsize=11, color=_INK)
    every = picture.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(every, kinds, strict=True):
        for name, points in figures["tails"].items():
            of, _, contender = name.partition(", ")
            if of == kind:
                look = {"color": _OURS if contender == "PairMQ" else _THEIRS}
                axes.step(
                    [ms for ms, _ in points], [share for _, share in points], where="post", label=contender, **look
                )
        axes.set(xscale="log", yscale="log")
        # Of a range of few decades matplotlib would name each tick, one over the other.
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(f"{kind}: {figures['unit']}", color=_INK)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    every[0].set_ylabel("share that took longer", color=_INK)
    picture.savefig(path)
