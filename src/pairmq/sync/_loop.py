"""The background event loop, one per process, and the blocking calls to it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, Generic, TypeVar, cast

from pairmq.pair import Pair
from pairmq.transport import OwnThreads, start_task

T = TypeVar("T")

_THREAD = "pairmq"
_OWN_THREAD = (
    "a blocking call was made on PairMQ's own thread, which would wait for itself: "
    "let observers and subscribers hand their work to another thread"
)


class _Call(Generic[T]):
    """One operation on the loop."""

    def __init__(self, operation: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._operation = operation
        self._loop = loop
        # The operation runs in the caller's context, e.g. in its tracing span.
        self._context = copy_context()
        self._task: asyncio.Task[T] | None = None
        # A lock, not an event: that waits in Python code, which an exception of a signal handler can break.
        self._busy = threading.Lock()
        self._busy.acquire()

    def start(self) -> None:
        self._task = self._loop.create_task(self._operation, name="pairmq call", context=self._context)
        self._task.add_done_callback(lambda _: self._busy.release())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # interrupted before it was handed over
            self._operation.close()
            self._busy.release()

    def wait(self) -> None:
        with self._busy:
            pass

    @property
    def succeeded(self) -> bool:
        return self._task is not None and not self._task.cancelled() and self._task.exception() is None

    def result(self) -> T:
        assert self._task is not None  # noqa: S101  # it is done
        return self._task.result()


class _Loop:
    """An event loop and its thread, which ends with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(OwnThreads())
        self._ends: set[asyncio.Task[object]] = set()
        self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system gives no thread
            self._loop.close()
            raise

    @property
    def is_here(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def run(
        self,
        operation: Coroutine[Any, Any, T],
        unwanted: Callable[[T], Coroutine[Any, Any, object]] | None = None,
    ) -> T:
        if self.is_here:
            operation.close()
            raise RuntimeError(_OWN_THREAD)
        call = _Call(operation, self._loop)
        try:
            self._loop.call_soon_threadsafe(call.start)
            call.wait()
        except BaseException:
            # Ctrl-C, or an exception of a signal handler. The operation must have ended before it is caught; a second
            # one ends this wait, too.
            self._loop.call_soon_threadsafe(call.cancel)
            call.wait()
            if unwanted is not None and call.succeeded:
                self.run(unwanted(call.result()))
            raise
        return call.result()

    def finish(self, operation: Coroutine[Any, Any, object]) -> None:
        if not self.is_here:
            self.run(operation)
            return
        start_task(operation, "pairmq end", loop=self._loop, keep=self._ends)

    def soon(self, action: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(action, *arguments)

    def tasks(self) -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks(self._loop)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


_lock = threading.Lock()
_loop: _Loop | None = None
_generation = 0


def run(operation: Coroutine[Any, Any, T], *, unwanted: Callable[[T], Coroutine[Any, Any, object]] | None = None) -> T:
    """Run a coroutine on the event loop of this process's pairs, and wait for its end.

    For what is made of a pair, or beside one, in a program without asyncio. An exception that interrupts the wait, such
    as Ctrl-C's, cancels the coroutine, and is raised once that has ended.

    Args:
        operation: runs in the caller's context. What it opens belongs to this loop; a forked child has another one.
        unwanted: is given the result, to close it, where the coroutine ended just as the wait was interrupted.

    Returns:
        What the coroutine returns; its exceptions are raised.

    Raises:
        RuntimeError: it was called on the loop's own thread, as by an observer, and would wait for itself; or the
            system gives no thread.
    """
    try:
        loop = _current()
    except BaseException:
        operation.close()
        raise
    return loop.run(operation, unwanted)


def finish(operation: Coroutine[Any, Any, object]) -> None:
    """Run a generator's cleanup and wait for it; on the loop's own thread it is only started.

    A dropped generator is finalized by the garbage collector, in any thread.
    """
    _current().finish(operation)


def check_thread() -> None:
    """Raise `RuntimeError` on the loop's own thread."""
    if _current().is_here:
        raise RuntimeError(_OWN_THREAD)


def soon(action: Callable[..., object], *arguments: object) -> None:
    """Call something on this process's loop, without waiting for it."""
    _current().soon(action, *arguments)


def _current() -> _Loop:
    global _loop
    if _loop is None:
        with _lock:
            if _loop is None:
                _loop = _Loop()
    return _loop


# Forks.


class PerProcess(Generic[T]):
    """Something that lives on the loop, and that a forked child makes anew when it first asks for it."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._generation = _generation

    @property
    def is_here(self) -> bool:
        """Whether the value is of this process, and not one that a parent made."""
        return self._generation == _generation

    @property
    def value(self) -> T:
        """The value, even if made before a fork: for what never changes."""
        return self._value

    def get(self, make: Callable[[], T]) -> T:
        """Give the value; a parent's is replaced by a new one. To be called on the loop alone."""
        if not self.is_here:
            made = make()
            _keep_forever(self._value)
            self._value, self._generation = made, _generation
        return self._value


class OfPair(PerProcess[T]):
    """A sender, a receiver or an outbox: what the open pair makes, in a forked child anew."""

    def __init__(self, attached: Callable[[], Awaitable[Pair]], make: Callable[[Pair], T]) -> None:
        self._attached = attached
        self._make = make
        self._closed = False
        super().__init__(run(self._made()))

    async def _made(self) -> T:
        return self._make(await self._attached())

    async def own(self) -> T:
        """Give it, on the loop."""
        pair = await self._attached()
        inner = self.get(lambda: self._make(pair))
        if self._closed:
            await cast(Any, inner).close()  # a parent has closed it before it forked
        return inner

    def close(self) -> None:
        """Close it; what a parent made is the parent's to close."""
        self._closed = True
        if self.is_here:
            run(cast(Any, self.value).close())


def _keep_forever(thing: object) -> None:
    """Never destroy something of the parent's.

    Connections close when they are destroyed, and unregister from the loop, whose ``epoll`` is shared by parent and
    child: the parent would get no more events of its sockets.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    global _loop, _lock, _generation
    _lock = threading.Lock()  # another thread may have held it
    _generation += 1
    if _loop is not None:
        _keep_forever(_loop)
        for task in _loop.tasks():  # and, by their frames, all that they work on
            _keep_forever(task)
        _loop = None


os.register_at_fork(after_in_child=_in_child)
