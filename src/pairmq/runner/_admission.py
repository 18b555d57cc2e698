"""How many sends of a pair may be in flight (SPEC 2, ``max_pending_sends``)."""

from __future__ import annotations

import asyncio
from collections import deque


class Admission:
    """A first-come-first-served gate, counted in messages, that costs nothing while it is open.

    Args:
        limit: messages in flight at most.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def in_flight(self) -> int:
        """Messages in flight now."""
        return self.limit - self._free

    def try_enter(self, messages: int) -> bool:
        """Enter at once if there is room and no one waits; a batch larger than the limit enters alone."""
        messages = min(messages, self.limit)
        if self._queue or self._free < messages:
            return False
        self._free -= messages
        return True

    async def enter(self, messages: int, deadline: float) -> bool:
        """Wait for a turn until ``deadline``, an instant of the loop's clock; tells whether it came."""
        if self.try_enter(messages):
            return True
        loop = asyncio.get_running_loop()
        entry = (min(messages, self.limit), loop.create_future())
        self._queue.append(entry)
        try:
            await asyncio.wait((entry[1],), timeout=max(0.0, deadline - loop.time()))
        except asyncio.CancelledError:
            if entry[1].done():
                self.leave(messages)
            else:
                self._drop(entry)
            raise
        if entry[1].done():
            return True
        self._drop(entry)
        return False

    def leave(self, messages: int) -> None:
        """Make room again."""
        self._free += min(messages, self.limit)
        self._let_in()

    def _drop(self, entry: tuple[int, asyncio.Future[None]]) -> None:
        self._queue.remove(entry)
        # A large batch at the head may have held up smaller sends that fit.
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and self._queue[0][0] <= self._free:
            messages, turn = self._queue.popleft()
            self._free -= messages
            turn.set_result(None)
