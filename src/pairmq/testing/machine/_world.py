"""The world of a machine: two brokers, the process under test, a syphon, and virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import Context, copy_context
from dataclasses import replace
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

from pairmq.core import PairOptions
from pairmq.model import Entity, EntityState
from pairmq.pair import Pair, _active
from pairmq.runner import Clock
from pairmq.testing._loop import DeadlockError, virtual_wall
from pairmq.testing._pairs import make_entities
from pairmq.testing.judge import drained_within
from pairmq.testing.machine._judge import BrokenPromise, Key, Ledger, RecordingBroker, key_of
from pairmq.testing.simulator._loop import OWNER, SimulationLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_EXACT = 0.05  # s: virtual time has no excuse for more
_LOCK = 60.0  # s that a lock of a backlog queue lasts, which a killed syphon leaves behind


class _Loop(SimulationLoop):
    """Lets nothing wake a killed process: its tasks wait for futures of brokers, which live on."""

    def __init__(self) -> None:
        super().__init__()
        self._dead: set[object] = set()

    def kill(self, owner: object) -> None:
        super().kill(owner)
        self._dead.add(owner)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        if context is not None and context.get(OWNER) in self._dead:
            handle.cancel()
        return handle


class Process:
    """One process with a pair; it can be closed, or killed."""

    def __init__(self, world: World, name: str, options: PairOptions) -> None:
        self.name = name
        numbers = itertools.count(1)
        clock = Clock(virtual_wall, Random(name), lambda: f"{name}-{next(numbers)}")
        self.pair = Pair(world.primary.transport(), world.secondary.transport(), options, clock=clock)
        self.pair.subscribe(world.ledger.take)


class World:
    """Everything that a machine acts on.

    Args:
        options: of the pair; ``enable_syphon`` is set where the syphon is.
        entities: made on the primary.
        beside: the syphon is a process of its own.
        patience: virtual seconds that anything may take.
    """

    def __init__(self, options: PairOptions, entities: Iterable[Entity], *, beside: bool, patience: float) -> None:
        self.options = options
        self.ledger = Ledger()
        self.primary = RecordingBroker("primary", self.ledger)
        self.secondary = RecordingBroker("secondary", self.ledger)
        self._beside = beside
        self._patience = patience
        self._loop = _Loop()
        self._lives: Iterator[int] = itertools.count(1)
        self._started: list[asyncio.Task[Any]] = []
        self.ledger.follow(self._loop.time)
        self.held: set[Entity] = set()
        self.syphon: Process | None = None
        try:
            self.wait_for(make_entities(self.primary, entities), None)
            self.start_syphon()
            self.process = self._start("process", replace(options, enable_syphon=not beside))
        except BaseException:
            self.bury()
            raise

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._loop.time()

    # Coroutines.

    def wait_for(self, coroutine: Coroutine[Any, Any, T], owner: Process | None) -> T:
        """Run a coroutine of a process to its end; None for one of the world's."""
        task = self.begin(coroutine, owner)
        try:
            return self._loop.run(self._in_time(task))
        except DeadlockError:
            raise BrokenPromise(f"{_name(task)} hangs: every task waits, and no timer is set") from None

    def begin(self, coroutine: Coroutine[Any, Any, T], owner: Process | None) -> asyncio.Task[T]:
        """Start a coroutine; it goes on whenever time passes, and dies with its process."""
        context = copy_context()
        context.run(OWNER.set, owner)
        return self._loop.create_task(coroutine, context=context)

    def later(self, seconds: float, callback: Callable[..., object], *arguments: object) -> None:
        """Call an action of the world, and run its loop."""
        self._loop.later(seconds, callback, *arguments)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Wait for a task before anything is judged."""
        self._started.append(task)

    async def _in_time(self, task: asyncio.Task[T]) -> T:
        await asyncio.wait((task,), timeout=self._patience)
        if not task.done():
            raise BrokenPromise(f"{_name(task)} hangs: it has not ended within {self._patience:g} virtual seconds")
        return task.result()

    # Processes.

    def _start(self, name: str, options: PairOptions) -> Process:
        process = Process(self, f"{name} {next(self._lives)}", options)
        self.wait_for(process.pair.open(), process)
        self.ledger.note(f"{process.name} has opened its pair")
        return process

    def start_syphon(self) -> None:
        """Start the process of the syphon, where it has one."""
        if self._beside:
            self.syphon = self._start("syphon", replace(self.options, enable_syphon=True))

    def restart(self) -> None:
        """Close the pair of the process under test, and open another one on the same brokers."""
        self._close(self.process)
        self._begin_anew()

    def crash(self) -> None:
        """Kill the process under test, and start it again."""
        self.kill(self.process)
        self._begin_anew()

    def crash_syphon(self) -> None:
        """Kill the process of the syphon, and start it again."""
        if self.syphon is not None:
            self.kill(self.syphon)
            self.start_syphon()

    def _begin_anew(self) -> None:
        self.held.clear()  # a new pair knows nothing of an operator's word
        self.process = self._start("process", replace(self.options, enable_syphon=not self._beside))

    def kill(self, process: Process) -> None:
        """End a process: no code of it runs again, and what it has locked stays so until the lock ends."""
        self.ledger.note(f"{process.name} is killed")
        self.ledger.cut_off = self.ledger.cut_off or process.pair.in_flight > 0
        dead = self._loop.tasks_of(process)
        self._started = [task for task in self._started if task not in dead]
        self._loop.kill(process)
        _active.release(process.pair.primary, process.pair.secondary)

    def _close(self, process: Process) -> None:
        before = self.now
        self.ledger.note(f"{process.name} closes its pair")
        self.wait_for(process.pair.close(), process)
        over = self.now - before - process.pair.options.close_grace - process.pair.options.attempt_timeout
        if over > _EXACT:
            raise BrokenPromise(f"closing the pair took {over:.3f} s more than its grace and one attempt")

    # The end.

    def heal(self) -> None:
        """End all faults, and all holds of operators."""
        self.ledger.note("everything is healed")
        self.primary.heal()
        self.secondary.heal()
        self.wait_for(self._release(), self.process)

    async def _release(self) -> None:
        for entity in sorted(self.held, key=str):
            self.process.pair.mark_healthy(entity.path, kind=entity.kind.value)
        self.held.clear()

    def converge(self) -> None:
        """Let time pass until all is drained and healthy, then close everything.

        Raises:
            BrokenPromise: it is not within a bound, something hangs, or a task is left.
        """
        ends_at = self.now + self._bound()
        for task in self._started:
            # What it raised was its own business: what began it could look.
            self.wait_for(_ended(task), None)
        while problem := self._unsettled():
            if self.now >= ends_at:
                text, keys = problem
                raise self.broken(f"{self._bound():g} virtual seconds after everything was healed {text}", keys)
            self.wait_for(asyncio.sleep(1.0), None)
        processes = [self.process] if self.syphon is None else [self.process, self.syphon]
        for process in processes:
            self._close(process)
            left = [task for task in self._loop.tasks_of(process) if not task.done()]
            if left:
                raise BrokenPromise(f"{process.name} has ended and left {left[0]!r} behind")

    def broken(self, text: str, keys: Iterable[Key]) -> BrokenPromise:
        """The exception for a problem, with the story of some messages."""
        return BrokenPromise("\n".join([text, *self.ledger.story(*keys)]))

    def _bound(self) -> float:
        waiting = sum(len(self.secondary.messages(queue.path)) for queue in self.process.pair.backlog_queues)
        return drained_within(self.options, waiting, _LOCK)

    def _unsettled(self) -> tuple[str, tuple[Key, ...]] | None:
        """What is not yet as it should be, and the messages that it is about."""
        for queue in self.process.pair.backlog_queues:
            messages = self.secondary.messages(queue.path) if queue in self.secondary.queues else []
            if messages:
                keys = tuple(key_of(queue, message) for message in messages)
                return f"backlog queue {queue} still holds {len(messages)} messages, {keys[0][1]!r} first", keys
        for process in (self.process, self.syphon):
            for entity, state in () if process is None else sorted(process.pair.states().items(), key=str):
                if state is not EntityState.HEALTHY:
                    return f"{entity} is still {state.value} in {process.name if process else ''}", ()
        return None

    def bury(self) -> None:
        """Close everything, in any state."""
        for process in (getattr(self, "process", None), self.syphon):
            if process is not None:
                _active.release(process.pair.primary, process.pair.secondary)
        self._loop.bury()


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not complain of it


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", repr(task))
