"""How many sends of a pair may be in flight (SPEC 2, ``max_pending_sends``)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from pairmq.model import TransportError
from pairmq.runner._limits import TimeLimits


class Admission:
    """A first-come-first-served gate, counted in messages, that costs nothing while it is open.

    Args:
        limit: messages in flight at most.
        limits: ends waits: thousands may end at one instant.
    """

    def __init__(self, limit: int, limits: TimeLimits) -> None:
        self.limit = limit
        self._limits = limits
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
        turn = asyncio.get_running_loop().create_future()
        self._queue[turn] = min(messages, self.limit)
        try:
            await self._limits.run(_came(turn), deadline)
        except TransportError:
            pass  # too late, unless the turn came at this very instant
        except asyncio.CancelledError:
            if self._has_come(turn):
                self.leave(messages)
            raise
        return self._has_come(turn)

    def leave(self, messages: int) -> None:
        """Make room again."""
        self._free += min(messages, self.limit)
        self._let_in()

    def _has_come(self, turn: asyncio.Future[None]) -> bool:
        """Whether a turn came that is waited for no longer."""
        if turn not in self._queue:
            return True
        del self._queue[turn]
        # A large batch at the head may have held up smaller sends that fit.
        self._let_in()
        return False

    def _let_in(self) -> None:
        while self._queue:
            turn, messages = next(iter(self._queue.items()))
            if messages > self._free:
                return
            del self._queue[turn]
            self._free -= messages
            if not turn.done():  # else it is about to be given up, and learns that it came
                turn.set_result(None)


async def _came(turn: asyncio.Future[None]) -> None:
    await turn
