"""Starting tasks, ending thousands of calls, and waking those that wait for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from itertools import islice
from typing import Any, TypeVar

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
