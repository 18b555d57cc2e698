"""An iterator over a pair's events, bounded in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from pairmq.model.events import Event, PairEnded, Warned

_CAPACITY = 10_000


class EventStream(AsyncIterator[Event]):
    """Yields events as they happen, and ends with the pair.

    A reader that is slower than the events misses the oldest; a `Warned` event in their place says how many.

    Args:
        left: called when its reader has closed it. The producer holds the stream weakly, so that one that is dropped
            without being closed is collected.
        waited_for: holds it while a reader waits, as the reader's task may have no other reference.
        capacity: events that wait for the reader, at most.
    """

    def __init__(
        self,
        left: Callable[[EventStream], None],
        waited_for: dict[object, EventStream],
        capacity: int = _CAPACITY,
    ) -> None:
        self._left = left
        self._waited_for = waited_for
        self._events: deque[Event] = deque()
        self._capacity = capacity
        self._missed = 0
        self._ended = False
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """Take one event."""
        if len(self._events) >= self._capacity:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        self._ended = self._ended or isinstance(event, PairEnded)
        self._arrived.set()

    def end(self) -> None:
        """Let the reader end once it has read the queued events."""
        self._ended = True
        self._arrived.set()

    async def aclose(self) -> None:
        """Take no more events, drop the queued ones, and end a waiting reader. Idempotent."""
        self._events.clear()
        self.end()
        self._left(self)

    async def __anext__(self) -> Event:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            wait = object()
            self._waited_for[wait] = self
            try:
                await self._arrived.wait()
            finally:
                del self._waited_for[wait]
        if self._missed:
            missed, self._missed = self._missed, 0
            first = self._events[0]
            text = f"{missed} events were missed: read faster, or use an observer"
            return Warned(at=first.at, pair=first.pair, subject="events", text=text)
        return self._events.popleft()
