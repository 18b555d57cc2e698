"""A simulated broker as its connections see it: the state of the broker in memory, and the faults of operations."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from dataclasses import dataclass

from pairmq.memory import Queue, State
from pairmq.model import Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.testing._loop import WALL_EPOCH
from pairmq.transport import Capabilities


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
        self.state = State(epoch=WALL_EPOCH)
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

    @property
    def queues(self) -> dict[Entity, Queue]:
        """What it has, by entity."""
        return self.state.queues

    def store(self, entity: Entity, message: Message) -> None:
        """Append a message to a queue, or to each subscription of a topic."""
        self.state.store(entity, message, self.now())
        self.notify()

    async def changed(self, until: float) -> None:
        """Wait until something is stored or released, or an instant of the loop's clock."""
        self._changed.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            pass

    def notify(self) -> None:
        """Wake up those who wait for `changed`."""
        self._changed.set()

    @staticmethod
    def now() -> float:
        """The clock of its state, which is the loop's."""
        return asyncio.get_running_loop().time()
