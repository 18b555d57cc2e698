"""The calls of one object, which end when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport._tasks import start_task

T = TypeVar("T")


class Endable(Protocol):
    """A call in flight."""

    def end(self, error: TransportError) -> None:
        """Give up waiting, with this error; sets its ``maybe_applied`` to False where nothing was done."""


class Scope:
    """The calls of a sender, receiver, admin or transport: they end when it closes, and later ones are refused.

    Args:
        parent: the scope with which this one closes; usually `Transport.scope`.
        doing: what its calls do, for the error's text, such as ``send to orders``.
    """

    __slots__ = ("__weakref__", "_children", "_doing", "_error", "_in_flight", "_parent")

    def __init__(self, parent: Scope | None = None, doing: str = "") -> None:
        self._in_flight: set[Endable] = set()
        self._children: WeakSet[Scope] = WeakSet()  # a sender that is dropped without a close is not kept
        self._error: Callable[[bool], TransportError] | None = None
        self._parent = parent
        self._doing = doing
        if parent is not None:
            if not parent.closed:
                parent._children.add(self)
            else:
                self._error = self._closed if parent._error == parent._closed else parent._error

    @property
    def closed(self) -> bool:
        """Whether it has closed."""
        return self._error is not None

    def close(self, error: Callable[[bool], TransportError] | None = None) -> None:
        """End the calls in flight, and refuse later ones; idempotent.

        Args:
            error: makes the error of each call, from whether it may have been applied; one of reason *closed* when left
                out.
        """
        if self._error is not None:
            return
        self._error = error or self._closed
        if self._parent is not None:
            self._parent._children.discard(self)
        for child in tuple(self._children):
            child.close(error)
        for call in tuple(self._in_flight):
            call.end(self._error(True))

    def check(self) -> None:
        """Refuse a call of an object that has closed.

        Raises:
            TransportError: it has; certainly nothing was done.
        """
        if self._error is not None:
            raise self._error(False)

    def add(self, call: Endable) -> None:
        """Let a call end with this scope; at once if it has closed."""
        if self._error is not None:
            call.end(self._error(True))
        else:
            self._in_flight.add(call)

    def discard(self, call: Endable) -> None:
        """Forget a call that has ended."""
        self._in_flight.discard(call)

    async def race(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await an operation that writes nothing of a message, or the end of the scope.

        Raises:
            TransportError: the scope has closed; ``maybe_applied`` is False.
        """
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
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen, if it fails now

    def _closed(self, maybe_applied: bool) -> TransportError:
        text = f"{self._doing}: it was closed" if self._doing else "it was closed"
        return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.CLOSED, maybe_applied=maybe_applied)


class _Ending:
    def __init__(self) -> None:
        self.error: asyncio.Future[TransportError] = asyncio.get_running_loop().create_future()

    def end(self, error: TransportError) -> None:
        if not self.error.done():
            error.maybe_applied = False
            self.error.set_result(error)
