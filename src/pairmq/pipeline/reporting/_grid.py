"""Cuts a time in slots, and finds the times that are worth a closer look."""

from __future__ import annotations

from collections.abc import Sequence

from pairmq.pipeline.reporting._values import Grid, Span

SLOTS = 160
"""At most: as many as can be told apart on a narrow screen too."""

_WIDTHS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400),
)
_CLOSE_ENOUGH = 10  # slots of the overview that the longest outage covers: more show it well

MINUTE = 60.0


def grid_of(span: Span) -> Grid:
    """Cut a time into slots of a width that people count in, which begin at its multiples.

    Args:
        span: what to cut; the grid covers all of it.
    """
    seconds = max(span.seconds, SLOTS * _WIDTHS[0] / 2)
    width = next((each for each in _WIDTHS if seconds <= (SLOTS - 1) * each), None)
    if width is None:
        width = -(-seconds // ((SLOTS - 1) * 86_400)) * 86_400
    began = span.began // width * width
    slots = int((span.ended - began) // width) + 1
    return Grid(began, width, slots)


def closer(grid: Grid, out: Sequence[Span], drained: Sequence[Span]) -> Grid | None:
    """Choose what a closer look is worth: the longest outage, with what came before and after it.

    Args:
        grid: of all of the time.
        out: when any entity was out.
        drained: when any backlog was drained.

    Returns:
        None where the grid shows it well enough.
    """
    if not out or grid.width < 1:
        return None
    longest = max(out, key=lambda span: span.seconds)
    # Its drain belongs to it, but a drain of hours must not make the outage small again.
    ends = [span.ended for span in drained if longest.began <= span.began <= longest.ended + 1]
    ended = min(max([longest.ended, *ends]), longest.ended + 3 * max(longest.seconds, 10.0))
    margin = max(0.2 * (ended - longest.began), 2.0)
    if ended - longest.began > _CLOSE_ENOUGH * grid.width:
        return None
    return grid_of(Span(max(grid.began, longest.began - margin), min(grid.ended, ended + margin)))
