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
    for place, median in enumerate(medians):
        axes.annotate(f"{median:,.0f}", (0, place), (4, 0), textcoords="offset points", va="center", color="white")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{figures['unit']} (median; least and greatest round)", color=_INK)
    axes.set_title(title, loc="left", fontsize=11, color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path)
