"""A limit on messages a second (SPEC 7.8, ``max_rate``)."""

from __future__ import annotations

import asyncio


class RateLimit:
    """Spreads messages evenly in time; shared by all pumps of a syphon.

    Args:
        per_second: messages a second at most; None for no limit.
    """

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._free_at = 0.0

    @property
    def limits(self) -> bool:
        """Whether there is a limit at all."""
        return self._per_second is not None

    async def take(self, messages: int, stopping: asyncio.Event) -> bool:
        """Wait until that many more messages may go; False when ``stopping`` came first."""
        if self._per_second is None:
            return not stopping.is_set()
        now = asyncio.get_running_loop().time()
        starts_at = max(now, self._free_at)
        self._free_at = starts_at + messages / self._per_second
        try:
            async with asyncio.timeout_at(starts_at):
                await stopping.wait()
        except TimeoutError:
            return True
        return False

    def most_at_once(self, wanted: int) -> int:
        """How many messages one operation should carry, so that a low rate is not spent in bursts of many seconds."""
        return wanted if self._per_second is None else max(1, min(wanted, int(self._per_second)))
