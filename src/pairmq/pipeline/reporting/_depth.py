"""How deep the backlog was in each slot: from the messages, or where slots are long, from the table of minutes."""

from __future__ import annotations

import numpy as np

from pairmq.pipeline.reporting._grid import MINUTE
from pairmq.pipeline.reporting._tables import NEVER, Directory, micros, numbers
from pairmq.pipeline.reporting._values import Counts, Grid

_FINER = 16  # parts of a slot at whose ends the messages are counted: a peak within a slot is seen nearly as high
_MOST_MINUTES = 20_000_000


class Depth:
    """The depth of all backlog queues together.

    Args:
        grid: its slots.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._change = np.zeros(grid.slots * _FINER + 1, np.int64)
        self._minutes: Counts | None = None

    def add(self, came: Counts, left: Counts) -> None:
        """Count messages: when each came, and when it left, in microseconds."""
        there = came != NEVER
        self._change += self._changes(came[there])
        self._change -= self._changes(left[there & (left != NEVER)])

    def take_minutes(self, tables: Directory) -> None:
        """Take the table ``backlog`` instead: the sum of all queues at the end of each minute."""
        first = int(self._grid.began // MINUTE)
        many = int(-(-self._grid.ended // MINUTE)) - first
        if many > _MOST_MINUTES:
            return
        depths = np.zeros(max(many, 1))
        for batch in tables.batches("backlog", ("minute", "depth")):
            minute = micros(batch.column("minute")) // 60_000_000 - first
            inside = (minute >= 0) & (minute < many)
            np.add.at(depths, minute[inside], numbers(batch.column("depth"))[inside])
        began, width = round(self._grid.began), round(self._grid.width)
        slot = np.clip(((np.arange(len(depths)) + first) * round(MINUTE) - began) // width, 0, self._grid.slots - 1)
        most = np.zeros(self._grid.slots)
        np.maximum.at(most, slot, depths)
        self._minutes = most.astype(np.int64)

    def most(self) -> Counts:
        """The most messages in each slot."""
        if self._minutes is not None:
            return self._minutes
        depth = self._change[:-1].cumsum().reshape(self._grid.slots, _FINER)
        found: Counts = np.maximum(depth.max(axis=1), 0)
        return found

    def _changes(self, at: Counts) -> Counts:
        """How many fall into each part of a slot; what was before the grid falls into the first, and counts on."""
        part = (at - round(self._grid.began * 1e6)) * _FINER // round(self._grid.width * 1e6)
        return np.bincount(np.clip(part, 0, self._grid.slots * _FINER), minlength=self._change.size)
