"""Starting tasks, waking those that wait for messages, and the calls of one object, which end when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from itertools import islice
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from pairmq.model import FailureKind, FailureReason, TransportError

T = TypeVar("T")

AT_ONCE = 25
"""What ends, or begins, in one turn of the loop at most where thousands may be meant."""


def start_task(
    work: Coroutine[Any, Any, T],
    name: str | None = None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    context: Context | None = None,
    keep: set[asyncio.Task[T]] | None = None,
) -> asyncio.Task[T]:
    """Start a task whose first step runs in a later iteration of the loop, under any task factory.

    A factory such as `asyncio.eager_task_factory` runs that step before the task is returned. What the caller goes on
    to set, and above all the attribute that keeps the task, would not be set yet, or be set after the task has ended.

    Args:
        work: what the task runs. It is closed when the task is cancelled before its first step.
        name: of the task; Python chooses one when left out.
        loop: where it runs; the running one when left out.
        context: in which it runs; a copy of the current one when left out.
        keep: has the task until it has ended. Without it the caller keeps the task: the loop keeps none.
    """
    loop = loop or asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        task = loop.create_task(work, name=name, context=context)
    else:
        task = loop.create_task(_in_a_later_turn(work), context=context)
        if name is not None:  # some factories turn a name that is None into the text
            task.set_name(name)
        task.add_done_callback(lambda _: work.close())
    if keep is not None:
        keep.add(task)
        task.add_done_callback(keep.discard)
    return task


async def _in_a_later_turn(work: Coroutine[Any, Any, T]) -> T:
    """Let the caller set what the work needs."""
    await asyncio.sleep(0)
    return await work


def in_turns(end: Callable[[T], object], calls: Iterable[T]) -> None:
    """End calls, of thousands a few in each turn of the loop: a caller that waits for one goes on to the next attempt.

    Args:
        end: called with each, the first few at once; a call may have ended by another way meanwhile.
        calls: what is in flight.
    """
    left = iter(calls)
    some = list(islice(left, AT_ONCE))
    for call in some:
        end(call)
    if len(some) == AT_ONCE:
        asyncio.get_running_loop().call_soon(in_turns, end, left)


class Arrivals:
    """Wakes the receivers of one event loop when something has arrived at a path."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def next(self, path: str) -> asyncio.Event:
        """Return the event that the next `notify` sets: get it *before* looking, as something may arrive in between.

        Args:
            path: of the entity, or of the subscription.
        """
        return self._events.setdefault(path, asyncio.Event())

    def notify(self, path: str) -> None:
        """Wake the receivers of a path."""
        event = self._events.pop(path, None)
        if event is not None:
            event.set()

    def notify_all(self) -> None:
        """Wake all receivers."""
        for path in tuple(self._events):
            self.notify(path)


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
