"""How fast the backlog empties, and when it will be empty."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

_WINDOW = 20.0
"""Seconds over which the speed is taken."""

_STALE = 10.0
"""Seconds after which a count says nothing of the speed any more."""

MOST_SAMPLES = 600
"""Counts that are kept for the plot of the depth."""


class Sample(NamedTuple):
    """What was counted at one instant.

    Args:
        at: wall-clock seconds since 1970 UTC.
        pending: messages in all backlog queues.
        moved: messages that this process had moved by then.
    """

    at: float
    pending: int
    moved: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a drain is.

    Args:
        peak: the most that was counted since the backlog was empty the last time.
        per_second: messages that leave the backlog in a second; 0 when none were seen to leave.
        seconds_left: until it is empty at that pace; None when that can't be told.
    """

    peak: int
    per_second: float
    seconds_left: float | None


class Drain:
    """Takes counts of the backlog, and tells the speed at which it empties.

    Args:
        own: this process moves the messages, and so knows how many; else the speed is what the counts fall by, which
            new messages hide.
    """

    def __init__(self, *, own: bool) -> None:
        self.samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._own = own
        self._peak = 0

    def counted(self, sample: Sample) -> None:
        """Take one count."""
        self.samples.append(sample)
        self._peak = max(self._peak, sample.pending) if sample.pending else 0

    def progress(self, now: float, *, stopped: bool = False) -> Progress:
        """Report how far it is, by the last counts.

        Args:
            now: wall-clock seconds since 1970 UTC; old counts tell of no speed.
            stopped: nothing can move, as a broker does not answer.
        """
        if not self.samples:
            return Progress(0, 0.0, None)
        last = self.samples[-1]
        if stopped or now - last.at > _STALE:
            return Progress(self._peak, 0.0, None)
        first = next(each for each in self.samples if last.at - each.at <= _WINDOW)
        seconds = last.at - first.at
        left = last.moved - first.moved if self._own else first.pending - last.pending
        per_second = max(0.0, left / seconds) if seconds > 0 else 0.0
        seconds_left = last.pending / per_second if per_second and last.pending else None
        return Progress(self._peak, per_second, seconds_left)
