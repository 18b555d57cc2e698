"""The way to the brokers, and what goes wrong on it.

A request takes half of its time to arrive, is applied at the broker, and its answer takes the other half. Conditions
(faults that last) are consulted when it arrives, and again, if the broker hangs, when the response leaves. The caller
may have ended by then: a write in flight is still applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from pairmq.memory import Calls, Link, Operation
from pairmq.model import Entity, FailureKind, FailureReason, TransportError
from pairmq.testing.history import CUT, Life, WriteResult
from pairmq.testing.simulator._broker import Broker
from pairmq.testing.simulator._history import History, Trouble
from pairmq.testing.simulator._loop import SimulationLoop
from pairmq.testing.simulator._scenario import CONDITIONS, PROBE, SEND, SETTLE, WRITES, Fault

T = TypeVar("T")

_TAKEN_BY_MASTERS = (SEND, SETTLE, PROBE)
_RECONNECTED = 1.0  # s after which all that was under way on a lost connection has failed, and is tried again

WAITING = object()
"""What `Request.apply` returns when the broker will answer later."""


@dataclass(slots=True, eq=False)
class Request:
    """One operation of a client at its broker."""

    connection: Connection
    operation: str
    path: str
    apply: Callable[[Request], Any]
    parts: int  # messages in it
    future: asyncio.Future[Any]  # the client waits for it
    spoilt: int = 0  # a bit for each message that the broker will not take
    applied: bool = False
    answered: bool = False
    stop: Callable[[], None] | None = None  # takes back what waits at the broker

    @property
    def abandoned(self) -> bool:
        """Whether the caller has stopped waiting for the response."""
        return self.connection.dead or self.future.done()


class Connection(Link):
    """What one transport has open to one broker; the history takes every failure."""

    def __init__(self, network: Network, broker: Broker, life: Life) -> None:
        self.network = network
        self.broker = broker
        self.life = life
        self.process = life.process
        self.dead = False
        self.ended = False
        self.demoted = False
        """Its broker's role has moved: it answers reads and refuses writes, until the client connects anew."""
        self.pending: dict[Request, None] = {}

    async def request(self, operation: str, path: str, apply: Callable[[Request], Any], parts: int = 1) -> Any:
        """Ask the broker for something, and wait for the answer, however long that takes. Raises `TransportError`."""
        try:
            if self.ended:
                raise closed()
            request = Request(self, operation, path, apply, parts, self.network.loop.create_future())
            self.network.submit(request)
            try:
                return await request.future
            except asyncio.CancelledError:
                self.network.cancelled(request)
                raise
        except TransportError as error:
            self.trouble(operation, path, WriteResult.of(error))
            raise
        except asyncio.CancelledError:
            self.trouble(operation, path, CUT)
            raise

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
        """See `pairmq.memory.Link`."""
        name, path = str(operation.name).lower(), "" if entity is None else entity.path
        done: T = await self.request(name, path, lambda _: act(self.network.loop.time()))
        return done

    def trouble(self, operation: str, path: str, result: WriteResult) -> None:
        if self.dead:
            return
        network, broker = self.network, self.broker.name
        history, life = network.history, self.life.name
        history.troubles.append(Trouble(network.loop.time(), history.tick(), life, broker, path, operation, result))
        if history.trace is not None:
            history.say(life, f"{operation} at {broker} {path}: {result}")


class Condition:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.chance = Random(fault.seed)  # one of its own: other faults may come and go without changing it
        self.operations = CONDITIONS[fault.kind]
        self.held: list[Callable[[], None]] = []

    def covers(self, connection: Connection, path: str) -> bool:
        fault = self.fault
        return (not fault.process or fault.process == connection.process) and (not fault.entity or fault.entity == path)

    def strikes(self, request: Request) -> bool:
        return (
            request.operation in self.operations
            and self.covers(request.connection, request.path)
            and (self.fault.share >= 1 or self.chance.random() < self.fault.share)
        )


class Network:
    """All ways, in seconds there and back; jitter is a share, and the way there always varies by a quarter."""

    def __init__(
        self, loop: SimulationLoop, history: History, latencies: dict[str, float], chance: Random, jitter: float = 0.0
    ) -> None:
        self.loop = loop
        self.history = history
        self._half = {name: seconds / 2 for name, seconds in latencies.items()}
        self._jitter = jitter
        self._chance = chance.random
        self._dropping = chance
        self._conditions: dict[str, list[Condition]] = {name: [] for name in latencies}
        self.connections: list[Connection] = []

    # Requests.

    def submit(self, request: Request) -> None:
        connection = request.connection
        connection.pending[request] = None
        spread = max(0.25, self._jitter)
        way = self._half[connection.broker.name] * (1 + spread * (2 * self._chance() - 1))
        self.loop.later(way, self._arrive, request)

    def cancelled(self, request: Request) -> None:
        """The caller has given up. A waiting operation at the broker ends too, unless the broker can't be reached."""
        request.connection.pending.pop(request, None)
        if request.stop is not None and not self._hangs(request):
            request.stop()

    def answer(self, request: Request, result: Any, delay: float = 0.0) -> None:
        """Let an answer leave, ``delay`` seconds from now; an exception is raised where it arrives."""
        way = self._half[request.connection.broker.name]
        if self._jitter:
            way *= 1 + self._jitter * (2 * self._chance() - 1)
        self.loop.later(way + delay, self._deliver, request, result)

    def _arrive(self, request: Request) -> None:
        connection = request.connection
        if request.answered:
            return  # its connection was lost, with it
        if request.abandoned and request.operation not in WRITES:
            return
        for condition in self._conditions[connection.broker.name]:
            if condition.strikes(request):
                self._suffer(condition, request)
                return
        if connection.demoted and request.operation in _TAKEN_BY_MASTERS:
            self._refuse_demoted(request)
            return
        self._apply(request)

    def _refuse_demoted(self, request: Request) -> None:
        """The client learns that the broker takes no writes, and connects to the one that is."""
        connection = request.connection
        self.history.disturbed.append((self.loop.time(), self.loop.time() + _RECONNECTED))
        self.history.reconnects.append((self.history.tick(), connection.life.name, connection.broker.name))
        self._finish(request, failure("READONLY: the broker is not the master any more", FailureReason.CONNECTION))
        connection.demoted = False
        self.drop(connection, self._dropping)

    def _apply(self, request: Request, delay: float = 0.0) -> None:
        if request.answered:
            return  # its connection was lost while the broker was slow
        request.applied = True
        try:
            result = request.apply(request)
        except TransportError as error:
            result = error
        if result is not WAITING:
            self.answer(request, result, delay)

    def _deliver(self, request: Request, result: Any) -> None:
        if request.abandoned or request.answered:
            return
        condition = self._hanging(request)
        if condition is not None:
            condition.held.append(lambda: self._deliver(request, result))
            return
        self._finish(request, result)

    def _finish(self, request: Request, result: Any) -> None:
        request.answered = True
        request.connection.pending.pop(request, None)
        if request.abandoned:
            return
        if isinstance(result, TransportError):
            request.future.set_exception(result)
        else:
            request.future.set_result(result)

    # Faults.

    def _suffer(self, condition: Condition, request: Request) -> None:
        fault, chance = condition.fault, condition.chance
        match fault.kind:
            case "refuse":
                self.answer(request, failure("connection refused", FailureReason.CONNECTION))
            case "hang":
                condition.held.append(lambda: self._after_hang(condition, request))
            case "slow":
                delay = fault.delay * (0.5 + chance.random())
                if chance.random() < 0.5:
                    self._apply(request, delay)
                else:
                    self.loop.later(delay, self._apply, request)
            case "lost-before":
                self.answer(request, lost())
            case "lost-after":
                self._apply_unseen(request)
                self.answer(request, lost())
            case "late":
                self.loop.later(fault.delay * (0.5 + chance.random()), self._apply_unseen, request)
                self.answer(request, lost())
            case "partial":
                # The broker takes some of a batch.
                request.spoilt = chance.getrandbits(request.parts) if request.parts > 1 else 0
                self._apply(request)
            case _:
                self.answer(request, _REFUSALS[fault.kind]())

    def _apply_unseen(self, request: Request) -> None:
        """Apply a write without a response."""
        request.applied = True
        try:
            request.apply(request)
        except TransportError:
            return

    def _after_hang(self, condition: Condition, request: Request) -> None:
        if not request.abandoned:
            self._arrive(request)
        elif request.operation in WRITES and not request.answered and condition.chance.random() < 0.5:
            # It lay in a buffer all the time (hazard 16).
            self._apply_unseen(request)

    def _hanging(self, request: Request) -> Condition | None:
        for condition in self._conditions[request.connection.broker.name]:
            # A share of hanging operations is decided on arrival; an answer that has left is not struck again.
            if condition.fault.kind == "hang" and condition.fault.share >= 1 and condition.strikes(request):
                return condition
        return None

    def _hangs(self, request: Request) -> bool:
        return self._hanging(request) is not None

    def reachable(self, request: Request) -> bool:
        """Whether a response would reach a call waiting at a broker; one hit by a fault while waiting gets an error."""
        if request.abandoned or request.answered:
            return False
        return not self._hangs(request)

    # What the world does.

    def begin(self, condition: Condition) -> None:
        fault = condition.fault
        self._conditions[fault.broker].append(condition)
        for connection in tuple(self.connections):
            if connection.broker.name != fault.broker:
                continue
            if fault.kind == "refuse" and condition.covers(connection, ""):
                self.drop(connection, condition.chance)
            if fault.kind in ("queue-out", "unauthorized"):
                self._strike_polls(condition, connection)

    def end(self, condition: Condition) -> None:
        conditions = self._conditions[condition.fault.broker]
        if condition in conditions:
            conditions.remove(condition)
            for action in condition.held:
                action()
            condition.held.clear()

    def demote(self, fault: Fault) -> None:
        """Let the role of a broker move: open connections lead to one that takes no writes."""
        for connection in self.connections:
            connection.demoted |= connection.broker.name == fault.broker and fault.process in ("", connection.process)

    def drop(self, connection: Connection, chance: Random) -> None:
        """Break a connection: everything under way on it is lost, applied or not."""
        for request in tuple(connection.pending):
            if not request.applied and request.operation in WRITES and chance.random() < 0.5:
                self._apply_unseen(request)
            if request.stop is not None:
                request.stop()
            self._finish(request, lost())
        self._locks_end_with(connection)

    def end_connection(self, connection: Connection) -> None:
        if connection.ended:
            return
        connection.ended = True
        if connection in self.connections:
            self.connections.remove(connection)
        for request in tuple(connection.pending):
            if request.stop is not None:
                request.stop()
            if not request.applied and request.operation in WRITES and self._chance() < 0.5:
                self._apply_unseen(request)
            self._finish(request, closed())
        self._locks_end_with(connection)

    def kill(self, connection: Connection, chance: Random) -> None:
        """Its process has ended: responses are dropped, and requests in flight may or may not arrive."""
        connection.dead = connection.ended = True
        if connection in self.connections:
            self.connections.remove(connection)
        for request in tuple(connection.pending):
            if request.stop is not None:
                request.stop()
            if chance.random() < 0.5:
                request.answered = True  # it never arrives
        self._locks_end_with(connection)

    def open(self, broker: Broker, life: Life) -> Connection:
        connection = Connection(self, broker, life)
        self.connections.append(connection)
        return connection

    def _locks_end_with(self, connection: Connection) -> None:
        """Locks without a duration last as long as their connection, and the broker needs a moment to see its end."""
        for queue in connection.broker.queues.values():
            if queue.properties.lock_duration is None:
                for stored in queue.locked:
                    if getattr(stored.lock and stored.lock.holder, "connection", None) is connection:
                        self.loop.later(0.5, connection.broker.end_lock, queue, stored, stored.lock)

    def _strike_polls(self, condition: Condition, connection: Connection) -> None:
        for request in tuple(connection.pending):
            if request.stop is not None and condition.strikes(request):
                request.stop()
                self._finish(request, _REFUSALS[condition.fault.kind]())


def failure(text: str, reason: FailureReason, *, applied: bool = False) -> TransportError:
    return TransportError(text, FailureKind.UNAVAILABLE, reason, maybe_applied=applied)


def lost() -> TransportError:
    """A connection that broke with an operation under way."""
    return failure("connection lost", FailureReason.CONNECTION, applied=True)


def closed() -> TransportError:
    """A connection that this side closed."""
    return failure("the connection is closed", FailureReason.CLOSED, applied=True)


_REFUSALS: dict[str, Callable[[], TransportError]] = {
    "reject": lambda: failure("the broker takes no messages", FailureReason.OTHER),
    "queue-out": lambda: failure("the queue has no leader", FailureReason.OTHER),
    "busy": lambda: TransportError("too many requests", FailureKind.BUSY),
    "transient": lambda: TransportError("try again", FailureKind.TRANSIENT),
    "quota": lambda: TransportError("the queue is full", FailureKind.REFUSED, FailureReason.QUOTA),
    "unauthorized": lambda: TransportError("wrong password", FailureKind.REFUSED, FailureReason.UNAUTHORIZED),
}
