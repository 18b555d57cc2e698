"""The world of a machine: two brokers, the process under test, a syphon and virtual time; and its judge."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, Unpack

from pairmq.core import PairOptions
from pairmq.core.envelope import PATH
from pairmq.memory import Calls, Operation
from pairmq.model import Entity, EntityState, Message
from pairmq.model.events import (
    AttemptFailed,
    Event,
    MessageDeadLettered,
    MessageMoved,
    RotationChanged,
    SendCompleted,
    SendOutcome,
    StateChanged,
)
from pairmq.observe._log import describe
from pairmq.pair import Pair, _active
from pairmq.runner import Clock
from pairmq.testing._loop import WALL_EPOCH, DeadlockError, virtual_wall
from pairmq.testing._simulated import SimulatedBroker, make_entities
from pairmq.testing.history import Result
from pairmq.testing.judge import Account, difference, drained_within
from pairmq.testing.simulator._loop import OWNER, SimulationLoop

Key = tuple[str, str]
"""One message: the path of its entity, and its id."""


class Stored(NamedTuple):
    """A message that a broker has stored; ``confirmed``: its writer got the confirmation."""

    entity: Entity
    message: Message
    confirmed: bool
    deliveries: Callable[[], int]
    """Returns how often it was delivered to a receiver so far."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The tested code's promise, at a virtual second, that a message will arrive; identified by the machine."""

    at: float
    entity: Entity
    identity: Hashable


@dataclass(frozen=True, slots=True)
class Answer:
    """The result that the caller of a send got, and after how many seconds."""

    outcome: Result
    took: float


class RecordingBroker(SimulatedBroker):
    """A simulated broker that remembers each message that it has ever stored."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        super().__init__(name)
        self.copies: list[Stored] = []
        self._ledger = ledger
        self._losing = False

    async def act(self, operation: Operation, entity: Entity | None, calls: Calls, *, again: bool = False) -> bool:
        """As the broker does; whether the confirmation will be lost is noted, as storing follows in the same step."""
        self._losing = await super().act(operation, entity, calls, again=again)
        return self._losing

    def store(self, entity: Entity, message: Message) -> None:
        super().store(entity, message)
        stored = next(reversed(self.queues[entity].stored.values()), None)
        deliveries = (lambda: 0) if stored is None else lambda: stored.deliveries
        self.copies.append(Stored(entity, message, not self._losing, deliveries))
        suffix = ", and its confirmation is lost" if self._losing else ""
        self._ledger.note(f"the {self.name} stores it in {entity}{suffix}", key_of(entity, message))


class Ledger:
    """All that was said of messages, and the story of everything in its order."""

    def __init__(self) -> None:
        self.sends: dict[Key, list[SendCompleted]] = defaultdict(list)
        self.doubts: Counter[Key] = Counter()
        """Attempts at the primary that may have been applied although nothing confirmed them."""
        self.moved: dict[Key, list[MessageMoved]] = defaultdict(list)
        self.dead_lettered: dict[Key, list[MessageDeadLettered]] = defaultdict(list)
        self.originals: dict[Key, Message] = {}
        """What the machine itself has sent."""
        self.answers: dict[Key, list[Answer]] = defaultdict(list)
        self.promises: list[Promise] = []
        self.cut_off = False
        """A process was killed with sends in flight: their outcomes are unknown."""
        self._story: list[tuple[float, Key | None, str]] = []
        self._now: Callable[[], float] = lambda: 0.0

    def follow(self, now: Callable[[], float]) -> None:
        self._now = now

    def note(self, text: str, key: Key | None = None) -> None:
        """Add a line to the story: of one message, or of the whole world."""
        self._story.append((self._now(), key, text))

    def take(self, event: Event) -> None:
        """Enter what a pair reports."""
        key: Key | None = None  # of the whole world
        match event:
            case SendCompleted():
                key = (event.entity.path, event.message_id)
                self.sends[key].append(event)
            case AttemptFailed():
                key = (event.entity.path, event.message_id)
                self.doubts[key] += event.maybe_applied and event.queue is None
            case MessageMoved():
                key = (event.entity.path, event.message_id)
                self.moved[key].append(event)
            case MessageDeadLettered():
                key = (event.entity or "", event.message_id or "")
                self.dead_lettered[key].append(event)
            case StateChanged() | RotationChanged():
                pass
            case _:
                return
        self._story.append((event.at - WALL_EPOCH, key, describe(event)))

    def story(self, *keys: Key) -> list[str]:
        """The story of some messages, among all that struck the world."""
        return [f"{at:10.3f} s  {text}" for at, key, text in self._story if key is None or key in keys]


def key_of(entity: Entity, message: Message) -> Key:
    """The key of a message, also of one in its envelope."""
    return str(message.application_properties.get(PATH, entity.path)), message.message_id or ""


_EXACT = 0.05  # s: virtual time has no excuse for more


class BrokenPromise(AssertionError):
    """A promise was broken; the text says which, with the message's history."""


class Judge:
    """Finds what is wrong once everything has been healed and had its time."""

    def __init__(self, world: World, identity: Callable[[Message], Hashable]) -> None:
        self._ledger = world.ledger
        self._options = world.options
        self._identity = identity
        self._copies = world.primary.copies
        self._arrived: dict[Key, list[Stored]] = defaultdict(list)
        self._parked: dict[Key, list[Stored]] = defaultdict(list)
        for broker, copies in ((world.primary, self._arrived), (world.secondary, self._parked)):
            for copy in broker.copies:
                copies[key_of(copy.entity, copy.message)].append(copy)

    def problems(self) -> Iterator[tuple[str, tuple[Key, ...]]]:
        """Everything that is wrong, with the messages that it is about."""
        for key in {**self._ledger.sends, **self._arrived}:
            for _, text in self._account(key).judged(_named(key)):
                yield text, (key,)
            for problem in (self._untrue(key), self._altered(key)):
                if problem:
                    yield f"{_named(key)} {problem}", (key,)
        for promise in self._ledger.promises:
            yield from self._broken(promise)
        yield from self._mixed_up()

    # What PairMQ promises.

    def _account(self, key: Key) -> Account:
        ledger, arrived, parked = self._ledger, self._arrived[key], self._parked[key]
        sends, moves = ledger.sends.get(key, []), ledger.moved[key]
        results: list[Result | None] = [Result[send.outcome.name] for send in sends]
        if ledger.cut_off or (not sends and key in ledger.originals):
            results.append(None)
        confirmed = results.count(Result.PRIMARY)
        doubts = max(ledger.doubts[key], sum(not copy.confirmed for copy in arrived))
        brought = sum(copy.deliveries() for copy in parked)
        excused = self._rightly_dead_lettered(key)
        # A process that was killed with sends in flight reports none of them.
        announced = (
            ledger.cut_off
            or any(send.maybe_duplicate or send.outcome is SendOutcome.UNKNOWN for send in sends)
            or any(move.maybe_duplicate or move.redelivered or not move.completed for move in moves)
        )
        return Account(
            results,
            len(arrived),
            next((str(copy.entity) for copy in (*arrived, *parked)), ""),
            excused=excused,
            # A syphon that was closed in doubt does not report its attempt. If the message then expires, its
            # dead-letter explains the copies.
            announced=announced or (excused and not any(copy.confirmed for copy in arrived)),
            reasons=None if ledger.cut_off else (confirmed, doubts, brought),
        )

    def _rightly_dead_lettered(self, key: Key) -> bool:
        reasons = {event.reason for event in self._ledger.dead_lettered[key]}
        expired = self._options.ttl_policy == "elapse" and "TTLExpiredException" in reasons
        forbidden = not self._options.allows(key[0]) and "destination-not-allowed" in reasons
        return expired or forbidden

    def _altered(self, key: Key) -> str | None:
        original = self._ledger.originals.get(key)
        if original is None:
            return None
        for copy in self._arrived[key]:
            found = copy.message
            if self._options.ttl_policy == "elapse":
                found = replace(found, time_to_live=original.time_to_live)
            if problem := difference(original, found):
                return f"came to the primary altered: {problem}"
        return None

    def _untrue(self, key: Key) -> str | None:
        """The result that the caller of a send got must match the event, and be in time."""
        for answer, send in zip(self._ledger.answers.get(key, ()), self._ledger.sends.get(key, ()), strict=False):
            reported = Result[send.outcome.name]
            if answer.outcome is not reported:
                return f"was {answer.outcome} to its caller and {reported} to those who watch"
            if answer.took > self._options.send_timeout + _EXACT:
                return f"took {answer.took:.3f} s to send, and had {self._options.send_timeout:g} s"
        return None

    # What the tested code promises.

    def _broken(self, promise: Promise) -> Iterator[tuple[str, tuple[Key, ...]]]:
        there = [copy for copy in self._copies if copy.entity == promise.entity]
        found = [copy for copy in there if self._identity(copy.message) == promise.identity]
        keys = tuple(dict.fromkeys(key_of(copy.entity, copy.message) for copy in found))
        if not found:
            related = tuple(key for key in self._ledger.sends if key[0] == promise.entity.path)
            text = (
                f"your code promised {promise.identity!r} to {promise.entity} at {promise.at:.3f} s, and it never "
                "came. Did it take an exception for a success, or keep the message where a crash could reach it?"
            )
            yield text, related
        elif len(keys) > 1:
            ids = ", ".join(repr(key[1]) for key in keys)
            text = (
                f"{promise.identity!r} came to {promise.entity} under {len(keys)} message ids ({ids}): who drops "
                "second copies by their id keeps them all. Give a message its id once and for all."
            )
            yield text, keys

    def _mixed_up(self) -> Iterator[tuple[str, tuple[Key, ...]]]:
        """What was promised as several messages and has come under one id."""
        promised: defaultdict[Entity, set[Hashable]] = defaultdict(set)
        for promise in self._ledger.promises:
            promised[promise.entity].add(promise.identity)
        came: defaultdict[Key, dict[Hashable, None]] = defaultdict(dict)
        for copy in self._copies:
            # A machine's own `identity` need not know what other entities hold.
            if copy.entity in promised and (identity := self._identity(copy.message)) in promised[copy.entity]:
                came[key_of(copy.entity, copy.message)][identity] = None
        for key, (first, *others) in came.items():
            if others:
                text = (
                    f"{first!r} and {others[0]!r} came to {key[0]} under one message id ({key[1]!r}): who drops second "
                    "copies by their id keeps one of them. Give each message an id of its own."
                )
                yield text, (key,)


def _named(key: Key) -> str:
    return f"message {key[1]!r} to {key[0]}"


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

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
    """All a machine acts on; ``beside``: the syphon is a process of its own. ``patience`` is in virtual seconds."""

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
        return self._loop.time()

    # Coroutines.

    def wait_for(self, coroutine: Coroutine[Any, Any, T], owner: Process | None) -> T:
        """Run a coroutine of a process to its end; None for one of the world's."""
        task = self.begin(coroutine, owner)
        try:
            return self._loop.run(self._in_time(task))
        except DeadlockError:
            raise self.broken(f"{_name(task)} hangs: every task waits, and no timer is set", ()) from None

    def begin(self, coroutine: Coroutine[Any, Any, T], owner: Process | None) -> asyncio.Task[T]:
        """Start a coroutine; it goes on whenever time passes, and dies with its process."""
        context = copy_context()
        context.run(OWNER.set, owner)
        return self._loop.create_task(coroutine, context=context)

    def later(self, seconds: float, callback: Callable[..., object], *arguments: object) -> None:
        """Call an action of the world, and run its loop."""
        self._loop.later(seconds, callback, *arguments)

    def keep(self, task: asyncio.Task[Any]) -> None:
        self._started.append(task)

    async def _in_time(self, task: asyncio.Task[T]) -> T:
        await asyncio.wait((task,), timeout=self._patience)
        if not task.done():
            raise self.broken(f"{_name(task)} hangs: it has not ended within {self._patience:g} virtual seconds", ())
        return task.result()

    # Processes.

    def _start(self, name: str, options: PairOptions) -> Process:
        process = Process(self, f"{name} {next(self._lives)}", options)
        self.wait_for(process.pair.open(), process)
        self.ledger.note(f"{process.name} has opened its pair")
        return process

    def start_syphon(self) -> None:
        if self._beside:
            self.syphon = self._start("syphon", replace(self.options, enable_syphon=True))

    def restart(self) -> None:
        """Close the pair of the process under test, and open another one on the same brokers."""
        self._close(self.process)
        self._begin_anew()

    def crash(self) -> None:
        self.kill(self.process)
        self._begin_anew()

    def crash_syphon(self) -> None:
        if self.syphon is not None:
            self.kill(self.syphon)
            self.start_syphon()

    def _begin_anew(self) -> None:
        self.held.clear()  # a new pair knows no operator's decision
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
            raise self.broken(f"closing the pair took {over:.3f} s more than its grace and one attempt", ())

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
        """Let time pass until all is drained and healthy, then close it all. Raises `BrokenPromise`."""
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
                raise self.broken(f"{process.name} has ended and left {left[0]!r} behind", ())

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
