"""The waits of one receiver, which end when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pairmq.model import TransportError
from pairmq.transport import Scope, start_task


class Waits:
    """Of one receiver."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._ended: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def until(self, *futures: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait for the first of some futures, or the end of the receiver, or ``seconds``; none is cancelled."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            self._scope.add(self)
        await asyncio.wait((*futures, self._ended), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def begin(self, operation: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let something go on, whether or not a caller waits, until `cancel`."""
        task = start_task(operation)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel what goes on."""
        for task in self._tasks:
            task.cancel()

    def end(self, error: TransportError) -> None:
        """End all waits, and those that come; the scope calls it."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
