"""Percentiles of durations from a histogram, so that any number of them takes the same memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pairmq.pipeline.reporting._values import Counts, Latency, Numbers

_STEP = math.log(1.02)
_LEAST, _MOST = 1e-6, 1e6  # s: what is below or above falls into the first or last bucket
_BUCKETS = math.ceil(math.log(_MOST / _LEAST) / _STEP) + 1


class Histogram:
    """Counts of durations in buckets 2 % wide, for several rows.

    Args:
        rows: how many histograms.
    """

    def __init__(self, rows: int) -> None:
        self._counts = np.zeros((rows, _BUCKETS), np.int64)
        self._longest = np.full(rows, np.nan)

    def add(self, rows: Counts, seconds: Numbers) -> None:
        """Count durations; those that are not a number are left out.

        Args:
            rows: for each, whose histogram.
            seconds: as many.
        """
        known = ~np.isnan(seconds)
        rows, seconds = rows[known], seconds[known]
        buckets = np.ceil(np.log(np.clip(seconds, _LEAST, _MOST) / _LEAST) / _STEP - 1e-9).astype(np.int64)
        flat = np.bincount(rows * _BUCKETS + buckets, minlength=self._counts.size)
        self._counts += flat.reshape(self._counts.shape)
        np.fmax.at(self._longest, rows, seconds)

    def count(self, row: int) -> int:
        """How many durations one histogram has."""
        return int(self._counts[row].sum())

    def longest(self) -> Numbers:
        """The longest of each, exactly; not a number where there is none."""
        return self._longest

    def quantiles(self, shares: Sequence[float]) -> list[Numbers]:
        """For each share, the duration that so many don't exceed, in each histogram; 2 % too high at most."""
        below = self._counts.cumsum(axis=1)
        total = below[:, -1]
        found = []
        for share in shares:
            reached = below >= np.maximum(np.ceil(total * share - 1e-9), 1)[:, None]
            bound = _LEAST * np.exp(reached.argmax(axis=1) * _STEP)
            found.append(np.where(total > 0, np.fmin(bound, self._longest), np.nan))
        return found


def latency_of(histogram: Histogram, row: int) -> Latency | None:
    """Sum one histogram up; None if it is empty."""
    count = histogram.count(row)
    if not count:
        return None
    p50, p95, p99 = (float(each[row]) for each in histogram.quantiles((0.5, 0.95, 0.99)))
    return Latency(count, p50, p95, p99, float(histogram.longest()[row]))
