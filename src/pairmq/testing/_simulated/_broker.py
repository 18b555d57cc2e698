"""A simulated broker as its connections see it: what it keeps, and the faults that it is struck by."""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections import Counter
from dataclasses import dataclass, field

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing._loop import WALL_EPOCH
from pairmq.transport import Capabilities, QueueProperties


class Fault(enum.Enum):
    """What a simulated broker does instead of its work."""

    DOWN = "refuse the connection"
    HANG = "never answer"
    BUSY = "throttle"
    TRANSIENT = "fail in passing"
    REFUSE = "say no"
    UNAUTHORIZED = "say no to this user"
    CONFIRM_LOST = "do it, and lose the confirmation"
    LOST_BEFORE = "lose the connection before doing it"
    SLOW = "answer late"
    BUG = "raise what no transport should"


class Operation(enum.Flag):
    """What a fault strikes."""

    SEND = enum.auto()
    RECEIVE = enum.auto()
    SETTLE = enum.auto()
    ADMIN = enum.auto()
    PROBE = enum.auto()
    ALL = SEND | RECEIVE | SETTLE | ADMIN | PROBE


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that was asked for.

    Args:
        fault: what happens.
        operations: what it strikes.
        entities: the paths that it strikes; None for all, and for operations on the broker itself.
        delay: seconds that SLOW takes.
        left: how often it strikes still; negative for always.
    """

    fault: Fault
    operations: Operation
    entities: frozenset[str] | None
    delay: float
    left: list[int]

    def takes(self, operation: Operation, entity: Entity | None) -> bool:
        """Whether it strikes an operation; that counts as once."""
        if not operation & self.operations or self.left[0] == 0:
            return False
        if self.entities is not None and (entity is None or entity.path not in self.entities):
            return False
        self.left[0] -= 1
        return True


def lost_connection() -> TransportError:
    """A connection that broke with an operation under way."""
    text = "connection lost"
    return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.CONNECTION, maybe_applied=True)


@dataclass(slots=True)
class Stored:
    """A message that a queue holds."""

    number: int
    message: Message
    enqueued_at: float
    visible_at: float
    expires_at: float | None
    deliveries: int = 0
    locked_until: float | None = None
    reason: str | None = None
    description: str | None = None
    holder: object = None


@dataclass(slots=True)
class Queue:
    """A queue or subscription; of a topic, its settings and its subscriptions."""

    properties: QueueProperties
    stored: dict[int, Stored] = field(default_factory=dict)
    dead: dict[int, Stored] = field(default_factory=dict)
    subscriptions: dict[str, Queue] = field(default_factory=dict)


class Broker:
    """One broker process.

    Args:
        name: in its endpoint.
        latency: seconds that each operation takes.
        capabilities: what its transports claim.
    """

    def __init__(self, name: str, *, latency: float = 0.001, capabilities: Capabilities | None = None) -> None:
        self.name = name
        self.latency = latency
        self.capabilities = capabilities or Capabilities(
            max_message_bytes=1 << 20,
            topics=True,
            scheduling=True,
            counts_scheduled=True,
            time_to_live=True,
            dead_letter=True,
            lock_renewal=True,
            probes=True,
            peek=True,
            ordered_consumer=True,
            quiet_peek=True,
            durable=True,
        )
        self.operations: Counter[str] = Counter()
        self.queues: dict[Entity, Queue] = {}
        self._numbers = itertools.count(1)
        self._strikes: list[Strike] = []
        self._changed = asyncio.Event()

    async def act(self, operation: Operation, entity: Entity | None, *, count: bool = True) -> bool:
        """Spend the time of one operation and apply the faults; returns whether its confirmation will be lost."""
        self.operations[str(operation.name)] += count
        await asyncio.sleep(self.latency)
        for strike in self._strikes:
            if strike.takes(operation, entity):
                return await self._suffer(strike)
        return False

    async def _suffer(self, strike: Strike) -> bool:
        match strike.fault:
            case Fault.DOWN:
                raise TransportError("connection refused", FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
            case Fault.HANG:
                while strike in self._strikes:
                    self._changed.clear()
                    await self._changed.wait()
                raise lost_connection()
            case Fault.BUSY:
                raise TransportError("too many requests", FailureKind.BUSY)
            case Fault.TRANSIENT:
                raise TransportError("try again", FailureKind.TRANSIENT)
            case Fault.REFUSE:
                raise TransportError("no such entity", FailureKind.REFUSED, FailureReason.NOT_FOUND)
            case Fault.UNAUTHORIZED:
                raise TransportError("wrong password", FailureKind.REFUSED, FailureReason.UNAUTHORIZED)
            case Fault.LOST_BEFORE:
                raise lost_connection()
            case Fault.SLOW:
                await asyncio.sleep(strike.delay)
            case Fault.BUG:
                raise RuntimeError("a driver's own exception")
        return strike.fault is Fault.CONFIRM_LOST

    def find(self, entity: Entity) -> Queue:
        """The entity's data, or the refusal that it has none."""
        queue = self.queues.get(entity)
        if queue is None:
            raise TransportError(f"no such entity: {entity}", FailureKind.REFUSED, FailureReason.NOT_FOUND)
        return queue

    def store(self, entity: Entity, message: Message) -> None:
        """Append a message to a queue, or to each subscription of a topic."""
        queue = self.find(entity)
        for target in queue.subscriptions.values() if entity.kind is EntityKind.TOPIC else (queue,):
            now = asyncio.get_running_loop().time()
            at = message.scheduled_enqueue_at
            visible_at = now if at is None else max(now, at.timestamp() - WALL_EPOCH)
            lives = message.time_to_live or target.properties.default_time_to_live
            number = self.next_number()
            expires_at = None if lives is None else visible_at + lives
            target.stored[number] = Stored(number, message, now, visible_at, expires_at)
        self.notify()

    def source(self, source: Source) -> tuple[Queue, dict[int, Stored]]:
        """What a source reads."""
        queue = self.find(source.entity)
        if source.subscription is not None:
            if source.subscription not in queue.subscriptions:
                raise TransportError(f"no such source: {source}", FailureKind.REFUSED, FailureReason.NOT_FOUND)
            queue = queue.subscriptions[source.subscription]
        return queue, queue.dead if source.dead_letter else queue.stored

    async def changed(self, until: float) -> None:
        """Wait until something is stored or released, or an instant of the loop's clock."""
        self._changed.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            pass

    def next_number(self) -> int:
        """The next place in the order of all that is stored: more than any message has."""
        return next(self._numbers)

    def notify(self) -> None:
        """Wake up those who wait for `changed`."""
        self._changed.set()
