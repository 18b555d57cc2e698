"""The broker in memory for tests in virtual time: exact, deterministic, and able to fail in every way.

It keeps the transports' contract and nothing more. It stands beside the tests on real servers, not in their place.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pairmq.core import PairOptions
from pairmq.memory import (
    CAPABILITIES,
    Calls,
    Operation,
    Queue,
    State,
    StateAdmin,
    StateBroker,
    StateReceiver,
    StateSender,
    StateTransport,
)
from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.model.events import Event
from pairmq.pair import Pair
from pairmq.runner import Clock
from pairmq.testing._loop import WALL_EPOCH, VirtualTimeLoop, virtual_wall
from pairmq.transport import Admin, Capabilities, Endpoint, QueueCounts, QueueProperties, Receiver, Sender

T = TypeVar("T")


class Fault(enum.Enum):
    """What a simulated broker does instead of its work."""

    DOWN = "refuse the connection"
    HANG = "never answer"
    BUSY = "throttle"
    TRANSIENT = "fail in passing"
    REFUSE = "say no"
    UNAUTHORIZED = "say no to this user"
    POISON = "say no to this message"
    CONFIRM_LOST = "do it, and lose the confirmation"
    LOST_BEFORE = "lose the connection before doing it"
    SLOW = "answer late"
    BUG = "raise what no transport should"


@dataclass(frozen=True, slots=True)
class Strike:
    fault: Fault  # what happens
    operations: Operation  # what it strikes
    entities: frozenset[str] | None  # the paths that it strikes; None for all, and for operations on the broker itself
    delay: float  # seconds that SLOW takes
    left: list[int]  # how often it strikes still; negative for always

    def takes(self, operation: Operation, entity: Entity | None) -> bool:
        """Whether it strikes an operation; that counts as once."""
        if not operation & self.operations or self.left[0] == 0:
            return False
        if self.entities is not None and (entity is None or entity.path not in self.entities):
            return False
        self.left[0] -= 1
        return True


_FAILURES: dict[Fault, tuple[str, FailureKind, FailureReason]] = {
    Fault.DOWN: ("connection refused", FailureKind.UNAVAILABLE, FailureReason.CONNECTION),
    Fault.BUSY: ("too many requests", FailureKind.BUSY, FailureReason.OTHER),
    Fault.TRANSIENT: ("try again", FailureKind.TRANSIENT, FailureReason.OTHER),
    Fault.REFUSE: ("no such entity", FailureKind.REFUSED, FailureReason.NOT_FOUND),
    Fault.UNAUTHORIZED: ("wrong password", FailureKind.REFUSED, FailureReason.UNAUTHORIZED),
    Fault.POISON: ("malformed", FailureKind.REFUSED, FailureReason.MALFORMED),
}


def lost_connection() -> TransportError:
    """A connection that broke with an operation under way."""
    text = "connection lost"
    return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.CONNECTION, maybe_applied=True)


class SimulatedBroker(StateBroker):
    """One broker process, with its data, and its faults.

    Args:
        name: in its endpoint.
        latency: seconds that each operation takes.
        capabilities: what its transports claim.
    """

    def __init__(self, name: str, *, latency: float = 0.001, capabilities: Capabilities | None = None) -> None:
        super().__init__(name, State(epoch=WALL_EPOCH))
        self.latency = latency
        self.capabilities = capabilities or replace(
            CAPABILITIES, max_message_bytes=1 << 20, sessions=False, ordered_batches=False, durable=True
        )
        self.operations: Counter[str] = Counter()
        self._strikes: list[Strike] = []

    def transport(self) -> SimulatedTransport:
        """A new connection to it."""
        return SimulatedTransport(self)

    def fail(
        self,
        fault: Fault,
        operations: Operation = Operation.ALL,
        *,
        entities: Sequence[str] | None = None,
        times: int | None = None,
        delay: float = 1.0,
    ) -> None:
        """Add a fault; the first one that matches an operation strikes.

        Args:
            fault: what happens.
            operations: what it strikes.
            entities: the paths that it strikes; None for all, and for operations on the broker itself.
            times: how often it strikes; None until `heal`.
            delay: seconds that SLOW takes.
        """
        names = None if entities is None else frozenset(entities)
        self._strikes.append(Strike(fault, operations, names, delay, [-1 if times is None else times]))
        self.wake_all()

    def heal(self) -> None:
        """End all faults; data is as it was."""
        self._strikes.clear()
        self.wake_all()

    def messages(self, path: str, kind: str = "queue") -> list[Message]:
        """What a queue holds, oldest first, locked or not."""
        return self.queues[Entity(path, EntityKind(kind))].messages()

    def dead_letters(self, path: str) -> list[tuple[Message, str | None]]:
        """What a queue's dead-letter queue holds, with the reasons."""
        return [(stored.message, stored.reason) for stored in self.queues[Entity(path)].dead.stored.values()]

    @property
    def queues(self) -> dict[Entity, Queue]:
        """What it has, by entity."""
        return self.state.queues

    def store(self, entity: Entity, message: Message) -> None:
        """Append a message to a queue, or to each subscription of a topic."""
        self.wake_for(self.state.store(entity, message, self.now()))

    def now(self) -> float:
        """The clock of its state, which is the loop's."""
        return asyncio.get_running_loop().time()

    async def act(self, operation: Operation, entity: Entity | None, calls: Calls, *, again: bool = False) -> bool:
        """Spend the time of one operation and apply the faults; returns whether its confirmation will be lost."""
        self.operations[str(operation.name)] += not again  # the faults that came meanwhile strike a poll under way too
        await asyncio.sleep(self.latency)
        for strike in self._strikes:
            if strike.takes(operation, entity):
                return await self._suffer(strike, calls)
        return False

    async def _suffer(self, strike: Strike, calls: Calls) -> bool:
        match strike.fault:
            case Fault.HANG:
                while strike in self._strikes:
                    await calls.wait(calls.enter())
                    calls.check(sent=True)
                raise lost_connection()
            case Fault.LOST_BEFORE:
                raise lost_connection()
            case Fault.SLOW:
                await asyncio.sleep(strike.delay)
            case Fault.BUG:
                raise RuntimeError("a driver's own exception")
            case fault if fault in _FAILURES:
                raise TransportError(*_FAILURES[fault])
        return strike.fault is Fault.CONFIRM_LOST


class _Connection:
    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker

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
        calls.check()
        lost = await self._broker.act(operation, entity, calls, again=again)
        calls.check()
        done = act(self._broker.now())
        if lost and operation & (Operation.SEND | Operation.SETTLE):
            raise lost_connection()
        return done


class SimulatedTransport(StateTransport):
    """A connection to a simulated broker."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        super().__init__(broker, Endpoint(broker.name, ("simulated", broker.name), f"simulated://{broker.name}"))

    def connect(self) -> _Connection:
        return _Connection(self.broker)

    @property
    def capabilities(self) -> Capabilities:
        return self.broker.capabilities

    @property
    def admin(self) -> Admin:
        return SimulatedAdmin(self)

    def sender(self, entity: Entity) -> Sender:
        return SimulatedSender(self, entity)

    def receiver(self, source: Source) -> Receiver:
        return SimulatedReceiver(self, source)

    def measure(self, message: Message) -> int:
        return len(message.body) + sum(len(k) + len(str(v)) for k, v in message.application_properties.items())


class SimulatedSender(StateSender):
    """Sends to one entity."""

    def __init__(self, transport: SimulatedTransport, entity: Entity) -> None:
        super().__init__(transport, entity)
        self._transport = transport

    def _store(self, message: Message, now: float) -> None:
        self._transport.check_message(self._entity, message)
        self._transport.broker.store(self._entity, message)


class SimulatedReceiver(StateReceiver):
    """Reads one source."""

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        return await Receiver.complete_batch(self, deliveries)  # one operation each


class SimulatedAdmin(StateAdmin):
    """Manages its queues."""

    def __init__(self, transport: SimulatedTransport) -> None:
        super().__init__(transport)
        self._capabilities = transport.capabilities

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        wanted = properties or QueueProperties()

        def act(now: float) -> bool:
            for name, has in (("requires_session", False), ("single_consumer", self._capabilities.ordered_consumer)):
                if getattr(wanted, name) and not has:
                    text = f"create {entity}: {name}: this broker has none"
                    raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
            return self._broker.state.create(entity, wanted)

        return await self._call(entity, act)

    async def counts(self, source: Source) -> QueueCounts:
        counts = await super().counts(source)
        return counts if self._capabilities.counts_scheduled else replace(counts, scheduled=0)

    def is_system_entity(self, entity: Entity) -> bool:
        return entity.path.startswith("system/")


TEST_OPTIONS = PairOptions(
    backlog_queue_count=2,
    failover_interval=2.0,
    ping_primary_interval=5.0,
    enable_syphon=True,
    attempt_timeout=1.0,
    ping_timeout=1.0,
    send_timeout=20.0,
    syphon_receive_wait=60.0,
    backlog_retry_interval=5.0,
)
"""Options for tests in virtual time: an outage is over within a minute, and the syphon runs in the same process."""


@dataclass
class SimulatedPair:
    """An open pair, its two brokers, and what it reported.

    Args:
        pair: open, as long as its ``async with`` block.
        primary: fails on request: ``primary.fail(Fault.DOWN)``, ``primary.heal()``.
        secondary: likewise.
        events: everything that the pair reported so far, oldest first.
    """

    pair: Pair
    primary: SimulatedBroker
    secondary: SimulatedBroker
    events: list[Event] = field(default_factory=list)

    def delivered(self, entity: str | Entity) -> list[Message]:
        """What a queue of the primary holds, oldest first, locked or not."""
        return self.primary.messages(entity_named(entity).path)

    def backlog(self) -> list[Message]:
        """What lies in all backlog queues, each message in its envelope."""
        return [message for queue in self.pair.backlog_queues for message in self.secondary.messages(queue.path)]


@asynccontextmanager
async def simulated_pair(
    options: PairOptions | None = None, *, entities: Iterable[str | Entity] = ("orders",), seed: int = 0, **changes: Any
) -> AsyncIterator[SimulatedPair]:
    """Open a pair of two simulated brokers in virtual time, and close it.

        @in_virtual_time
        async def test_an_outage_of_an_hour():
            async with simulated_pair(failover_interval=30) as it:
                it.primary.fail(Fault.DOWN)
                receipt = await it.pair.sender("orders").send(Message(b"1"))
                assert receipt.route is Route.BACKLOG

    Args:
        options: the pair's; `TEST_OPTIONS` when left out.
        entities: made on the primary first; ``"topic:news"`` is a topic.
        seed: of jitter, and of which backlog queue a sender picks: one seed, one run.
        changes: single options by name, in the place of those.

    Raises:
        RuntimeError: the running loop's time is real: use `in_virtual_time` or `run_virtual`.
        ConfigurationError: an option is wrong.
    """
    if not isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
        raise RuntimeError(
            "simulated_pair needs virtual time: decorate the test with pairmq.testing.in_virtual_time, "
            "or run the coroutine by pairmq.testing.run_virtual"
        )
    primary, secondary = SimulatedBroker("primary"), SimulatedBroker("secondary")
    await make_entities(primary, entities)
    numbers = itertools.count(1)
    clock = Clock(virtual_wall, random.Random(seed), lambda: f"id-{next(numbers)}")
    chosen = replace(options or TEST_OPTIONS, **changes)
    made = SimulatedPair(Pair(primary.transport(), secondary.transport(), chosen, clock=clock), primary, secondary)
    made.pair.subscribe(made.events.append)
    async with made.pair:
        yield made


async def make_entities(broker: SimulatedBroker, entities: Iterable[str | Entity]) -> None:
    transport = broker.transport()
    for entity in entities:
        await transport.admin.create(entity_named(entity))
    await transport.close()


def entity_named(entity: str | Entity) -> Entity:
    """Read ``orders`` as a queue and ``topic:news`` as a topic."""
    if isinstance(entity, Entity):
        return entity
    kind, _, path = entity.rpartition(":")
    return Entity(path, EntityKind(kind)) if kind in tuple(EntityKind) else Entity(entity)
