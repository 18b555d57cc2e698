"""Rounds in which contenders take turns, and what is reported of them: medians, spreads and ratios.

A machine that others use too changes its speed from minute to minute. So contenders run one after the other in every
round, in another order each time, and what counts is the ratio of their medians; an absolute figure says little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

Contender: TypeAlias = Callable[[], Awaitable[float]]
Figures: TypeAlias = dict[str, list[float]]


def arguments(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that such a benchmark has in any case."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each contender, after one to warm up")
    parser.add_argument("--json", action="store_true")
    return parser


async def interleaved(contenders: Mapping[str, Contender], rounds: int, *, warm_up: bool = True) -> Figures:
    """What each contender measured, once a round; the first round warms up and is not reported."""
    found: Figures = {name: [] for name in contenders}
    for number in range(rounds + warm_up):
        order = list(contenders) if number % 2 else list(contenders)[::-1]
        for name in order:
            found[name].append(await contenders[name]())
            print(f"{number}: {name} {found[name][-1]:,.0f}", file=sys.stderr)
    return {name: values[warm_up:] for name, values in found.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, and how far the rounds lay apart."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The ratio of two contenders' medians, and the least and the greatest of a round."""
    each = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(ours) / statistics.median(theirs), "min": min(each), "max": max(each)}


def report(figures: Figures, pairs: Sequence[tuple[str, str]], unit: str, *, as_json: bool) -> None:
    """Print the contenders and the ratios of pairs of them.

    Args:
        figures: as `interleaved` gave them.
        pairs: which contender is compared with which.
        unit: of the figures.
        as_json: for programs.
    """
    spreads = {name: spread(values) for name, values in figures.items()}
    ratios = {f"{ours} / {theirs}": ratio(figures[ours], figures[theirs]) for ours, theirs in pairs}
    if as_json:
        print(json.dumps({"unit": unit, "contenders": spreads, "ratios": ratios}))
        return
    width = max(map(len, (*spreads, *ratios)))
    for name, of in spreads.items():
        print(f"{name:{width}}  {of['median']:>10,.0f} {unit} (from {of['min']:,.0f} to {of['max']:,.0f})")
    for name, of in ratios.items():
        print(f"{name:{width}}  {of['median']:>10.2f} (from {of['min']:.2f} to {of['max']:.2f})")
