"""Claims in this process's memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from pairmq.transport import Claim, ClaimStore


class _Lease(NamedTuple):
    token: str
    ends_at: float


class MemoryClaims(ClaimStore):
    """Claims in this process's memory, gone when it ends.

    For a single consumer process, or tests. Ids are forgotten when their window ends, or the oldest handled ones when
    there are too many; a held claim is never evicted.

    Args:
        entries: most ids that it remembers, about 200 bytes each.

    Raises:
        ValueError: ``entries`` is below 1.
    """

    def __init__(self, entries: int = 100_000) -> None:
        if entries < 1:
            raise ValueError(f"entries is {entries}: it must be at least 1")
        self._entries = entries
        self._held: dict[str, _Lease] = {}
        self._done: OrderedDict[str, float] = OrderedDict()
        """When each is forgotten, in the order of handling."""

    def __len__(self) -> int:
        """The number of ids that it remembers."""
        return len(self._held) + len(self._done)

    async def claim(self, key: str, token: str, lease: float) -> Claim:
        now = self._now()
        if self._is_done(key, now):
            return Claim.DONE
        held = self._held.get(key)
        if held is not None and held.token != token and held.ends_at > now:
            return Claim.HELD
        self._held[key] = _Lease(token, now + lease)
        return Claim.WON

    async def renew(self, key: str, token: str, lease: float) -> bool:
        if not self._is_own(key, token):
            return False
        self._held[key] = _Lease(token, self._now() + lease)
        return True

    async def confirm(self, key: str, token: str, window: float) -> bool:
        now = self._now()
        own = self._is_own(key, token) or self._is_done(key, now)
        self._held.pop(key, None)
        self._done[key] = now + window
        self._done.move_to_end(key)
        self._forget(now)
        return own

    async def release(self, key: str, token: str) -> None:
        if self._is_own(key, token):
            del self._held[key]

    async def close(self) -> None:
        """Nothing is open."""

    def _is_own(self, key: str, token: str) -> bool:
        held = self._held.get(key)
        return held is not None and held.token == token and held.ends_at > self._now()

    def _is_done(self, key: str, now: float) -> bool:
        return self._done.get(key, 0.0) > now

    def _forget(self, now: float) -> None:
        """Drop expired ids, oldest first, and the excess."""
        while self._done:
            oldest = next(iter(self._done))
            if self._done[oldest] > now and len(self) <= self._entries:
                break
            del self._done[oldest]
        if len(self._held) > self._entries:  # leases that ended and were not claimed again
            self._held = {key: held for key, held in self._held.items() if held.ends_at > now}

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
