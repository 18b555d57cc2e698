"""The event loop in the background, one for each process, and the calls that wait for it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_THREAD = "pairmq"


class _Call(Generic[T]):
    """One operation on its way through the loop."""

    def __init__(self, operation: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._operation = operation
        self._loop = loop
        # What the caller has in its context, such as the span that it is in, belongs to what it asks for.
        self._context = copy_context()
        self._task: asyncio.Task[T] | None = None
        self._done = threading.Event()

    def start(self) -> None:
        self._task = self._loop.create_task(self._operation, name="pairmq call", context=self._context)
        self._task.add_done_callback(lambda _: self._done.set())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # interrupted before it was handed over
            self._operation.close()
            self._done.set()

    def wait(self) -> None:
        self._done.wait()

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
        self._ends: set[asyncio.Task[object]] = set()
        self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
        self._thread.start()

    def run(
        self,
        operation: Coroutine[Any, Any, T],
        unwanted: Callable[[T], Coroutine[Any, Any, object]] | None = None,
    ) -> T:
        """See the module's `run`."""
        if threading.current_thread() is self._thread:
            operation.close()
            raise RuntimeError(
                "a blocking call was made on PairMQ's own thread, which would wait for itself: "
                "let observers and subscribers hand their work to another thread"
            )
        call = _Call(operation, self._loop)
        try:
            self._loop.call_soon_threadsafe(call.start)
            call.wait()
        except BaseException:
            # Ctrl-C, or what a signal's handler raises. Whoever catches it must not meet the operation still at work;
            # a second one ends this wait too.
            self._loop.call_soon_threadsafe(call.cancel)
            call.wait()
            if unwanted is not None and call.succeeded:
                self.run(unwanted(call.result()))
            raise
        return call.result()

    def finish(self, operation: Coroutine[Any, Any, object]) -> None:
        """See the module's `finish`."""
        if threading.current_thread() is not self._thread:
            self.run(operation)
            return
        task = self._loop.create_task(operation, name="pairmq end")
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    def soon(self, action: Callable[..., object], *arguments: object) -> None:
        """Call something on the loop, without waiting for it."""
        self._loop.call_soon_threadsafe(action, *arguments)

    def tasks(self) -> set[asyncio.Task[Any]]:
        """What has not ended on it."""
        return asyncio.all_tasks(self._loop)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


_lock = threading.Lock()
_loop: _Loop | None = None
_generation = 0


def run(operation: Coroutine[Any, Any, T], *, unwanted: Callable[[T], Coroutine[Any, Any, object]] | None = None) -> T:
    """Run a coroutine on this process's loop, and wait for its end.

    Args:
        operation: the coroutine.
        unwanted: called with its result where the wait was interrupted just as it ended, so that nobody takes it.

    Returns:
        Its result.

    Raises:
        BaseException: whatever it raises. What interrupts the wait cancels it, and is raised once it has ended.
        RuntimeError: called on the loop's own thread.
    """
    return _current().run(operation, unwanted)


def finish(operation: Coroutine[Any, Any, object]) -> None:
    """Run what ends a generator's work, and wait for it; on the loop's own thread it is begun and not waited for.

    A generator that nobody holds any more is ended wherever garbage is collected, and that may be there.
    """
    _current().finish(operation)


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
    """Something that lives on the loop, and that a forked child makes anew when it first asks for it.

    Args:
        value: of this process.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._generation = _generation

    @property
    def is_here(self) -> bool:
        """Whether the value is of this process, and not one that a parent made."""
        return self._generation == _generation

    @property
    def value(self) -> T:
        """The value, whoever made it: for what never changes."""
        return self._value

    def get(self, make: Callable[[], T]) -> T:
        """Give the value; a parent's is replaced by a new one. To be called on the loop alone."""
        if not self.is_here:
            made = make()
            _keep_for_ever(self._value)
            self._value, self._generation = made, _generation
        return self._value


def _keep_for_ever(thing: object) -> None:
    """Never destroy something of the parent's.

    Connections close themselves when they are destroyed, and tell so to the loop, whose ``epoll`` the parent and the
    child share: the parent would no longer hear of its sockets.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    global _loop, _lock, _generation
    _lock = threading.Lock()  # another thread may have held it
    _generation += 1
    if _loop is not None:
        _keep_for_ever(_loop)
        for task in _loop.tasks():  # and, by their frames, all that they work on
            _keep_for_ever(task)
        _loop = None


os.register_at_fork(after_in_child=_in_child)
