"""The event loop of a simulation: virtual time, one order of everything, and processes that can be killed.

Plain asyncio depends on memory addresses: `asyncio.wait` iterates over a set of futures, and a set orders them by their
hash. Here tasks and futures have sequence numbers for hashes, so that one seed gives one run, everywhere.

A *killed* process is a group of tasks that never run again, not even their ``finally`` blocks. Every task knows its
owner by a context variable, and so does every callback, by the context that it carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple

from pairmq.testing._loop import DeadlockError, VirtualTimeLoop

_asked = False


def check() -> None:
    """Raise `KeyboardInterrupt` if Ctrl-C was pressed inside `interrupts_noted`."""
    if _asked:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts_noted() -> Iterator[None]:
    """Let Ctrl-C end simulations at their next step, and nothing else; outside the main thread no signal comes."""
    global _asked
    before = None
    with contextlib.suppress(ValueError):
        before = signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        _asked = False
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _note(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OWNER: ContextVar[object | None] = ContextVar("pairmq simulation owner", default=None)
"""The process that a task belongs to; None for the world itself."""


class SimulationTask(asyncio.Task[Any]):
    """A task whose hash is its number, and that knows its owner."""

    __slots__ = ("number", "owner")

    number: int
    owner: object | None

    def __hash__(self) -> int:
        # While asyncio makes it, it has no number yet: it is added to a set that is never iterated over.
        return self.number


class SimulationFuture(asyncio.Future[Any]):
    """A future whose hash is a number, given when it is first asked for."""

    __slots__ = ("number",)

    number: int

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            self.number = -next(_futures)
            return self.number


class _Timer(asyncio.TimerHandle):
    """Of two for one instant none is before the other."""

    __slots__ = ()

    _scheduled: bool
    __eq__ = object.__eq__
    __hash__ = object.__hash__


_futures = itertools.count(1)

_MOST_CLOSINGS = 100


def _close(coroutine: Any) -> None:
    """Run a coroutine to its end: half closed, the garbage collector would close it amid another simulation."""
    for _ in range(_MOST_CLOSINGS):
        if coroutine.cr_frame is None:
            return
        with contextlib.suppress(Exception, asyncio.CancelledError, GeneratorExit):
            coroutine.close()


_MOST_ROUNDS = 200_000


class StuckError(RuntimeError):
    """Tasks go on and on without waiting for anything."""


# As asyncio's: when timers that were cancelled are looked for in all of the heap.
_MANY_TIMERS = 100
_LONGEST_WAIT = 24 * 3600.0


class SimulationLoop(VirtualTimeLoop):
    """The loop of one simulation. Run it by `run`, which leaves nothing behind.

    `call_at`, `call_soon` and `_run_once` are asyncio's without what no simulation needs, and give the same order. No
    file is ever ready, and timers are compared by their instants alone.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[tuple[float, _Timer]]
    _timer_cancelled_count: int

    eager = False
    """Whether tasks take their first step before they are returned, as by `asyncio.eager_task_factory`."""

    def __init__(self) -> None:
        super().__init__()
        self._rounds = 0
        global _futures
        _futures = itertools.count(1)
        self._tasks_made = itertools.count(1)
        self._graveyard: list[SimulationTask] = []
        self.world = copy_context()
        self.set_task_factory(self._make_task if self.eager else None)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        timer = _Timer(when, callback, args, self, context)
        timer._scheduled = True
        heappush(self._scheduled, (when, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._jumping.now + delay, callback, *args, context=context)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        """Run rounds until the loop is to stop: asyncio asks for them one by one."""
        scheduled, ready, jumping, resolution = self._scheduled, self._ready, self._jumping, self._clock_resolution
        now = jumping.now
        while True:
            check()
            if len(scheduled) > _MANY_TIMERS and self._timer_cancelled_count > len(scheduled) / 2:
                for _, timer in scheduled:
                    timer._scheduled = not timer._cancelled
                scheduled[:] = [entry for entry in scheduled if not entry[1]._cancelled]
                heapify(scheduled)
                self._timer_cancelled_count = 0
            else:
                while scheduled and scheduled[0][1]._cancelled:
                    self._timer_cancelled_count -= 1
                    heappop(scheduled)[1]._scheduled = False
            self._rounds += 1
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                if not scheduled:
                    raise DeadlockError("every task waits, and no timer is set")
                if (wait := scheduled[0][0] - now) > 0:
                    now = jumping.now = now + min(wait, _LONGEST_WAIT)
                    self._rounds = 0
            if self._rounds > _MOST_ROUNDS:
                raise StuckError(f"{_MOST_ROUNDS} rounds of the loop and no time has passed")
            ends_at = now + resolution
            while scheduled and scheduled[0][0] < ends_at:
                timer = heappop(scheduled)[1]
                timer._scheduled = False
                ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
            if self._stopping:  # type: ignore[attr-defined]
                return

    def create_future(self) -> asyncio.Future[Any]:
        return SimulationFuture(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Make a numbered task; not by a factory, so that what asks for one finds none."""
        task: asyncio.Task[T] = self._make_task(self, coro, context)
        if name is not None:
            task.set_name(str(name))
        return task

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        context: Context | None = None,
    ) -> SimulationTask:
        # Numbered before asyncio's own constructor enters it into a set.
        task = SimulationTask.__new__(SimulationTask)
        task.number = next(self._tasks_made)
        task.owner = OWNER.get() if context is None else context.get(OWNER)
        more = {"eager_start": True} if self.eager and self.is_running() else {}
        task.__init__(coroutine, loop=loop, context=context, **more)  # type: ignore[misc]
        return task

    def later(self, seconds: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        """Call something of the world's, which outlives the process that asks for it."""
        when = self._jumping.now + seconds
        return self.call_at(when, callback, *arguments, context=self.world)

    def kill(self, owner: object) -> None:
        """Let no code of ``owner`` run again."""
        for task in self.tasks_of(owner):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio would complain of each
            # Its coroutine must not be collected: that would run its finally blocks.
            self._graveyard.append(task)
        for handle in (*self._ready, *(timer for _, timer in self._scheduled)):
            context: Context | None = handle._context  # type: ignore[attr-defined]
            if context is not None and context.get(OWNER) is owner:
                handle.cancel()

    def tasks_of(self, owner: object) -> list[SimulationTask]:
        """The tasks of an owner that have not ended, oldest first."""
        dead = {task.number for task in self._graveyard}
        return [task for task in self._all_tasks() if task.owner is owner and task.number not in dead]

    def _all_tasks(self) -> list[SimulationTask]:
        found = [task for task in asyncio.all_tasks(self) if isinstance(task, SimulationTask)]
        return sorted(found, key=lambda task: task.number)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run to the end of ``main``; what else is there stays as it is, until `bury`."""
        try:
            asyncio.set_event_loop(self)
            return self.run_until_complete(main)
        finally:
            asyncio.set_event_loop(None)

    def bury(self) -> None:
        """Let go of all tasks that are left, and close.

        Their finally blocks run now, as Python gives no way around that: see to it first that they change nothing.
        """
        self.set_exception_handler(lambda loop, context: None)
        buried: set[int] = set()
        # Finally blocks may make tasks of their own, and want a running loop for it.
        asyncio._set_running_loop(self)
        try:
            while found := [task for task in self._all_tasks() if task.number not in buried]:
                for task in found:
                    buried.add(task.number)
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
        self._ready.clear()
        self._scheduled.clear()
        self._graveyard.clear()
        self.close()
