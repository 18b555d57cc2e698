"""Where the engine's time and randomness come from."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime


def _random_id() -> str:
    return os.urandom(16).hex()  # as many digits as a UUID has, in a third of the time


class Clock:
    """Two clocks and the dice; a simulation brings its own.

    Intervals are measured by the event loop's clock, so that a loop with virtual time needs nothing else. ``wall``
    gives seconds since 1970 UTC. Ids are made without ``rng``, whose numbers forks would share.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        new_id: Callable[[], str] = _random_id,
    ) -> None:
        self.wall = wall
        self.new_id = new_id
        self._rng = rng or random.Random()  # noqa: S311  # spreads load, guards nothing
        self.chance = self._rng.random
        """Gives a random number in [0, 1)."""

    @staticmethod
    def now() -> float:
        """The event loop's monotonic clock, in seconds."""
        # None in a thread of the caller's, and where a loop was dropped with its sends, and the collector ends this
        # one. An error to be caught, as `get_running_loop` raises it, would cost more than the rest.
        loop = asyncio._get_running_loop()
        return time.monotonic() if loop is None else loop.time()

    def instant(self) -> datetime:
        """The wall clock as a datetime in UTC."""
        return datetime.fromtimestamp(self.wall(), UTC)

    def jitter(self) -> float:
        """A random number in [-1, 1)."""
        return 2 * self._rng.random() - 1
