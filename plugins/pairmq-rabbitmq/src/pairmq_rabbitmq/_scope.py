"""The calls and waits of one sender or receiver, which end when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from pairmq.model import TransportError
from pairmq.transport import start_task

T = TypeVar("T")


class Endable(Protocol):
    """Something in flight."""

    def end(self, error: TransportError) -> None:
        """Give up waiting, with this error."""


class Scope:
    """What ends together."""

    __slots__ = ("_error", "_in_flight")

    def __init__(self) -> None:
        self._in_flight: set[Endable] = set()
        self._error: Callable[[bool], TransportError] | None = None

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._error is not None

    def close(self, error: Callable[[bool], TransportError]) -> None:
        """End what is in flight, and all that comes.

        Args:
            error: makes the error; True when something may have been done.
        """
        if self._error is not None:
            return
        self._error = error
        for call in tuple(self._in_flight):
            call.end(error(True))

    def check(self) -> None:
        """Refuse to begin for an owner that has closed.

        Raises:
            TransportError: it has; certainly nothing was done.
        """
        if self._error is not None:
            raise self._error(False)

    def add(self, call: Endable) -> None:
        """Let something in flight end with this scope; at once if it has."""
        if self._error is not None:
            call.end(self._error(True))
        else:
            self._in_flight.add(call)

    def discard(self, call: Endable) -> None:
        """Forget what has ended."""
        self._in_flight.discard(call)

    async def race(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await something that writes nothing of a message, or the end of the scope."""
        if self._error is not None:
            operation.close()
            raise self._error(False)
        ending = _Ending()
        self._in_flight.add(ending)
        task = start_task(operation)
        try:
            await asyncio.wait((task, ending.error), return_when=asyncio.FIRST_COMPLETED)
            if ending.error.done():
                raise ending.error.result()
            return task.result()
        finally:
            self._in_flight.discard(ending)
            task.cancel()


class _Ending:
    def __init__(self) -> None:
        self.error: asyncio.Future[TransportError] = asyncio.get_running_loop().create_future()

    def end(self, error: TransportError) -> None:
        if not self.error.done():
            error.maybe_applied = False
            self.error.set_result(error)


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
