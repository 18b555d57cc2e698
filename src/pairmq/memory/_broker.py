"""A broker in this process: the state, its clock, the faults that it has on request, and the way to it.

There is one broker per name and process; what it holds lives as long as the process, or until `Broker.forget`. A
transport belongs to one event loop, a broker to none: loops one after another, or in several threads, may share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pairmq.memory._state import Queue, State, Stored
from pairmq.model import Entity, FailureKind, FailureReason, TransportError
from pairmq.transport import nothing_sent

T = TypeVar("T")

_REFUSALS = {
    "unavailable": (FailureKind.UNAVAILABLE, FailureReason.QUOTA, "the broker is out of memory"),
    "busy": (FailureKind.BUSY, FailureReason.OTHER, "the broker is busy"),
    "refused": (FailureKind.REFUSED, FailureReason.UNAUTHORIZED, "the broker does not allow this user to do that"),
}
_NOT_OPEN = -1


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a broker."""

    stopped: bool = False
    hanging: bool = False
    delay: float = 0.0
    refusal: str = ""
    loses_confirms: bool = False
    applied: bool = True


_SOUND = Fault()


class Operation(enum.Flag):
    """What a call asks a broker for."""

    SEND = enum.auto()
    RECEIVE = enum.auto()
    SETTLE = enum.auto()
    ADMIN = enum.auto()
    PROBE = enum.auto()
    ALL = SEND | RECEIVE | SETTLE | ADMIN | PROBE


class StateBroker:
    """A broker's state, and those who wait until it changes."""

    def __init__(self, name: str, state: State) -> None:
        self.name = name
        self.state = state
        self.lock = threading.RLock()
        # In their order, so that one who has waited longer looks first.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._readers: dict[Queue, dict[asyncio.Future[None], None]] = {}

    def now(self) -> float:
        """The clock of its state: seconds since 1970 UTC."""
        return time.time()

    def enter(self, future: asyncio.Future[None], queue: Queue | None = None) -> None:
        """Wake a future at the next fault, or when a queue may have more to receive."""
        with self.lock:
            self._waiting[future] = None
            if queue is not None:
                self._readers.setdefault(queue, {})[future] = None

    def leave(self, future: asyncio.Future[None], queue: Queue | None = None) -> None:
        """Undo `enter`."""
        with self.lock:
            self._waiting.pop(future, None)
            readers = None if queue is None else self._readers.get(queue)
            if queue is not None and readers is not None:
                readers.pop(future, None)
                if not readers:
                    del self._readers[queue]

    def wake(self, *queues: Queue) -> None:
        """Let the receivers of some queues look again; called with the lock held."""
        if self._readers:
            for queue in queues:
                self.wake_all(self._readers.get(queue, ()))

    def wake_for(self, stored: Iterable[Stored]) -> None:
        """Let the receivers of messages look that were stored; called with the lock held."""
        if self._readers:
            for each in stored:
                self.wake(each.queue)

    def wake_all(self, futures: Iterable[asyncio.Future[None]] | None = None) -> None:
        """Let some of those who wait look again, or all; called with the lock held."""
        running = asyncio._get_running_loop()
        for future in tuple(self._waiting if futures is None else futures):
            loop = future.get_loop()
            if loop is running:
                _end(future)
            else:
                try:
                    loop.call_soon_threadsafe(_end, future)
                except RuntimeError:  # that loop is closed, and its tasks leave nothing any more
                    for queue in (None, *self._readers):
                        self.leave(future, queue)


class Broker(StateBroker):
    """One broker in this process, and the control over it (`pairmq.plugins.BrokerControl`)."""

    def __init__(self, name: str) -> None:
        super().__init__(name, State())
        self.fault = _SOUND
        self.life = 0
        """Raised whenever all connections are dropped."""
        self._late: list[Callable[[], object]] = []

    async def stop(self) -> None:
        """Drop every connection and refuse new ones; what is stored stays."""
        self._change(Fault(stopped=True), drop=True)

    async def hang(self) -> None:
        """Take connections and calls, and answer none until `restore`.

        What it had been sent is done then, also for callers that have left, as by a real server that wakes up.
        """
        self._change(Fault(hanging=True))

    async def slow(self, delay: float) -> None:
        """Answer each call ``delay`` seconds late."""
        if not delay >= 0:
            raise ValueError(f"delay is {delay!r} s: it must be 0 or more")
        self._change(Fault(delay=delay))

    async def refuse(self, *, kind: str = "unavailable") -> None:
        """Fail sends, probes and creations; receivers go on."""
        if kind not in _REFUSALS:
            raise ValueError(f"kind is {kind!r}: use one of {', '.join(_REFUSALS)}")
        self._change(Fault(refusal=kind))

    async def lose_confirms(self, *, applied: bool = True) -> None:
        """Drop the connection instead of confirming a send, a probe or a creation, done or not."""
        self._change(Fault(loses_confirms=True, applied=applied))

    async def restore(self) -> None:
        with self.lock:
            late, self._late = self._late, []
            for act in late:
                with contextlib.suppress(TransportError):
                    act()
        self._change(_SOUND)

    async def forget(self) -> None:
        """End every fault, drop every connection, and lose all data."""
        with self.lock:
            self.state = State()
            self._change(_SOUND, drop=True)

    def _change(self, fault: Fault, *, drop: bool = False) -> None:
        with self.lock:
            self.fault = fault
            if drop:
                self.life += 1
                self._late.clear()
            self.wake_all()

    def do_late(self, act: Callable[[], object]) -> None:
        """Take a call whose caller has left before the answer."""
        with self.lock:
            if self.fault.hanging:
                self._late.append(act)
            elif self.fault.delay:
                with contextlib.suppress(TransportError):
                    act()


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Calls:
    """The calls of a sender, a receiver or an administration, which end when it is closed."""

    def __init__(self, broker: StateBroker) -> None:
        self.closed = False
        self._broker = broker
        self._waiting: dict[asyncio.Future[None], None] = {}

    def close(self) -> None:
        """End what waits, and refuse more."""
        self.closed = True
        for future in self._waiting:
            _end(future)

    def check(self, *, sent: bool = False) -> None:
        """Raise `TransportError`, reason *closed*, if it is closed."""
        if self.closed:
            text = "the connection was closed"
            raise TransportError(text, FailureKind.UNAVAILABLE, FailureReason.CLOSED, maybe_applied=sent)

    def enter(self, queue: Queue | None = None) -> asyncio.Future[None]:
        """Begin to wait: for a fault, the close, or more in a queue."""
        future = asyncio.get_running_loop().create_future()
        self._broker.enter(future, queue)
        self._waiting[future] = None
        return future

    async def wait(
        self, future: asyncio.Future[None], seconds: float | None = None, queue: Queue | None = None
    ) -> None:
        """Wait for what was entered, at most so long."""
        timer = None if seconds is None else future.get_loop().call_later(seconds, _end, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(future, None)
            self._broker.leave(future, queue)


class Link(Protocol):
    """The way of a sender's, a receiver's or an administration's calls to a broker."""

    async def call(
        self,
        calls: Calls,
        act: Callable[[float], T],
        operation: Operation,
        entity: Entity | None = None,
        *,
        stores: bool = False,
        again: bool = False,
    ) -> T:
        """Let the broker do one step, in a later turn of the loop.

        Args:
            calls: those of the object, which end when it is closed.
            act: the step; takes the present, on the clock of the broker's state.
            operation: what kind of step it is.
            entity: whose; None for the broker itself.
            stores: it stores something on the caller's behalf, which a broker may refuse, or not confirm.
            again: it repeats a look of the same receive.

        Raises:
            TransportError: the broker is unavailable or refuses, the object was closed, or as ``act``.
        """


class Connection(Link):
    """One connection to a broker; opened by the first call, dropped by a stop and by a call whose end is unknown."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._life = _NOT_OPEN

    async def call(
        self,
        calls: Calls,
        act: Callable[[float], T],
        operation: Operation,
        entity: Entity | None = None,
        *,
        stores: bool = False,
        again: bool = False,
    ) -> T:
        """See `Link`. A hanging broker does it when it wakes up, though the caller has left, unless it is a receive."""
        broker = self.broker
        calls.check()
        if self._life != broker.life or broker.fault.stopped:
            await self._open(calls)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as cancellation:
            nothing_sent(cancellation)
            raise
        calls.check()
        if broker.fault is not _SOUND or self._life != broker.life:
            await self._get_through(calls, act, stores, operation is not Operation.RECEIVE)
        with broker.lock:
            done = act(time.time())
        if stores:
            await asyncio.sleep(0)  # the confirmation's way: who is cancelled now does not know of it
        return done

    async def _open(self, calls: Calls) -> None:
        broker, delayed = self.broker, False
        try:
            while self._life != broker.life or broker.fault.stopped:
                fault = broker.fault
                if fault.stopped:
                    text = f"memory://{broker.name}: connection refused"
                    raise TransportError(text, FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
                if fault.hanging or (fault.delay and not delayed):
                    delayed = True
                    await calls.wait(calls.enter(), None if fault.hanging else fault.delay)
                    calls.check()
                else:
                    self._life = broker.life
        except asyncio.CancelledError as cancellation:
            nothing_sent(cancellation)
            raise

    async def _get_through(self, calls: Calls, act: Callable[[float], object], stores: bool, outlives: bool) -> None:
        """Suffer the fault that the broker has, as a call that it was sent."""
        broker, life, delayed = self.broker, self._life, False
        try:
            while True:
                fault = broker.fault
                if broker.life != life:
                    raise self._lost()
                if not fault.hanging and (delayed or not fault.delay):
                    break
                delayed = True
                await calls.wait(calls.enter(), None if fault.hanging else fault.delay)
                calls.check(sent=True)
        except (asyncio.CancelledError, TransportError):
            self._life = _NOT_OPEN
            if outlives and broker.life == life:
                broker.do_late(lambda: act(time.time()))
            raise
        if stores and fault.refusal:
            kind, reason, text = _REFUSALS[fault.refusal]
            raise TransportError(text, kind, reason)
        if stores and fault.loses_confirms:
            if fault.applied:
                with broker.lock:
                    act(time.time())
            raise self._lost()

    def _lost(self) -> TransportError:
        self._life = _NOT_OPEN
        text = f"memory://{self.broker.name}: the connection was lost"
        return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.CONNECTION, maybe_applied=True)


_brokers: dict[str, Broker] = {}
_brokers_lock = threading.Lock()


def broker_named(name: str) -> Broker:
    """The broker of a name; made by the first call."""
    with _brokers_lock:
        if name not in _brokers:
            _brokers[name] = Broker(name)
        return _brokers[name]
