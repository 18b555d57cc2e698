"""How long to wait before trying again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Backoff:
    """Capped exponential waiting with jitter."""

    first: float = 0.05  # seconds before the first retry
    factor: float = 2.0  # by how much each wait grows
    cap: float = 2.0  # longest wait in seconds
    jitter: float = 0.5  # share of a wait, in [0, 1], that chance takes off it, so that many do not strike together

    def wait(self, retry: int, chance: float) -> float:
        """Return the seconds to wait before a retry, by a random number in [0, 1)."""
        # A large exponent would overflow long after the cap is reached.
        full = min(self.cap, self.first * self.factor ** min(retry, 60))
        return full * (1 - self.jitter * chance)


class Pace:
    """Spreads what many ask for at one instant to ``rate`` a second, but for the first ``burst``."""

    __slots__ = ("_apart", "_full_at", "_head_start")

    def __init__(self, rate: float, burst: float) -> None:
        self._apart = 1 / rate
        self._head_start = burst / rate
        self._full_at = 0.0

    def is_free(self, now: float) -> bool:
        """Return whether one more would not have to wait."""
        return self._full_at - now <= self._head_start

    def delay(self, now: float) -> float:
        """Take a turn; return the seconds until it comes, 0 for most."""
        turn = max(self._full_at, now)
        self._full_at = turn + self._apart
        return max(0.0, turn - now - self._head_start)


TRANSIENT_RETRIES = 3
"""Retries of a transient failure, after which it counts as unavailable (SPEC 3.6)."""

TRIALS: Final = Backoff(first=0.05, factor=2.0, cap=2.0)
"""Delays between attempts at a broker that sends are waiting for: short after a blip, no load in an outage."""
