"""How many sends of a pair may be in flight (SPEC 2, ``max_pending_sends``)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict


class Admission:
    """A first-come-first-served gate, counted in messages, that costs nothing while it is open.

    Args:
        limit: messages in flight at most.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._queue: OrderedDict[asyncio.Future[None], int] = OrderedDict()

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
        turn = loop.create_future()
        self._queue[turn] = min(messages, self.limit)
        try:
            await asyncio.wait((turn,), timeout=max(0.0, deadline - loop.time()))
        except asyncio.CancelledError:
            if turn.done():
                self.leave(messages)
            else:
                self._drop(turn)
            raise
        if turn.done():
            return True
        self._drop(turn)
        return False

    def leave(self, messages: int) -> None:
        """Make room again."""
        self._free += min(messages, self.limit)
        self._let_in()

    def _drop(self, turn: asyncio.Future[None]) -> None:
        del self._queue[turn]
        # A large batch at the head may have held up smaller sends that fit.
        self._let_in()

    def _let_in(self) -> None:
        while self._queue:
            turn, messages = next(iter(self._queue.items()))
            if messages > self._free:
                return
            del self._queue[turn]
            self._free -= messages
            turn.set_result(None)
