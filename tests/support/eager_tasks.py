"""Tasks that take their first step before they are returned, as programs may want them from Python 3.12 on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any


class _Begun(Coroutine[Any, Any, Any]):
    """What is left of a coroutine whose first step was taken: gives first what came of that step."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._came: Callable[[], Any] | None = None

    def begin(self) -> None:
        """Take the first step."""
        try:
            waits_for = self._coroutine.send(None)
        except BaseException as end:
            self._came = lambda end=end: _raise(end)
        else:
            self._came = lambda: waits_for

    def send(self, value: Any) -> Any:
        came, self._came = self._came, None
        return came() if came is not None else self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        came, self._came = self._came, None
        if came is not None and self._coroutine.cr_frame is None:  # type: ignore[attr-defined]
            return came()  # it had ended before it was cancelled
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        """What is asked of a coroutine beside that: its frame, say, and what it waits for."""
        return getattr(self._coroutine, name)


def _raise(error: BaseException) -> None:
    raise error


def _emulated(loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: Any = None) -> asyncio.Task[Any]:
    """Make an eager task where Python has none; it is done a turn later than Python's own, if at once."""
    # anyio begins its own tasks later where it knows the factory of eager ones.
    by_anyio = getattr(coroutine, "__qualname__", "") == "TaskHandle._run_coro"
    if by_anyio or not loop.is_running() or asyncio._get_running_loop() is not loop:
        return asyncio.Task(coroutine, loop=loop, context=context)
    begun = _Begun(coroutine)
    own = copy_context() if context is None else context
    task = asyncio.Task(begun, loop=loop, context=own)
    outer = asyncio.current_task(loop)
    if outer is not None:
        asyncio.tasks._leave_task(loop, outer)
    asyncio.tasks._enter_task(loop, task)
    try:
        own.run(begun.begin)
    finally:
        asyncio.tasks._leave_task(loop, task)
        if outer is not None:
            asyncio.tasks._enter_task(loop, outer)
    return task


eager_task_factory: Callable[..., asyncio.Task[Any]] = (
    asyncio.eager_task_factory if sys.version_info >= (3, 12) else _emulated
)


def make_all_eager() -> None:
    """Let every loop that asyncio makes from now on have eager tasks."""
    plain = asyncio.BaseEventLoop.__init__

    def init(loop: asyncio.BaseEventLoop) -> None:
        plain(loop)
        loop.set_task_factory(eager_task_factory)

    asyncio.BaseEventLoop.__init__ = init  # type: ignore[method-assign]
    if sys.version_info >= (3, 12):
        from pairmq.testing.simulator._loop import SimulationLoop

        SimulationLoop.eager = True
