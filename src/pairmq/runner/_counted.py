"""Counts what a pair asks of its two brokers, so that the cost can be counted instead of guessed.

The methods of a counted transport hand on the coroutines of the real one instead of awaiting them, so that no further
coroutine is between an operation and its broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pairmq.core import PairOptions
from pairmq.model import Delivery, Entity, Message, Source, TransportError
from pairmq.model.events import OperationsCounted, Side
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._limits import TimeLimits
from pairmq.transport import (
    Admin,
    AdminWrapper,
    ConfirmRisk,
    QueueCounts,
    QueuePositions,
    QueueProperties,
    Receiver,
    ReceiverWrapper,
    Sender,
    SenderWrapper,
    SessionReceiver,
    Transport,
    TransportWrapper,
)

REPORT_INTERVAL = 60.0
"""Seconds between two `OperationsCounted` of one side."""

T = TypeVar("T")
Call = Coroutine[Any, Any, T]


class Operations:
    """How often one broker was asked for what since the last report."""

    __slots__ = ("admin", "pings", "receives", "sends", "settlements")

    def __init__(self) -> None:
        self.sends = self.receives = self.settlements = self.pings = self.admin = 0

    def take(self) -> dict[str, int]:
        """Give the counts by name, and begin anew."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        self.__init__()  # type: ignore[misc]  # exactly what a new one is
        return counts


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What the parts of an engine share; ``limits`` bound their operations."""

    primary: CountedTransport
    secondary: CountedTransport
    options: PairOptions
    clock: Clock
    emit: Emitter
    limits: TimeLimits


class OperationsReport:
    """Reports the counts of both sides every minute, while events are observed, and at the end."""

    def __init__(self, sides: Mapping[Side, Operations], clock: Clock, emit: Emitter) -> None:
        self._sides = sides
        self._clock = clock
        self._emit = emit
        self._since = clock.now()

    async def run(self) -> None:
        """Report, again and again, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            self.report()

    def report(self) -> None:
        """Report what was counted since the last time; nothing while no events are observed."""
        if not self._emit.active:
            return
        now = self._clock.now()
        for side, operations in self._sides.items():
            self._emit(OperationsCounted, side=side, seconds=now - self._since, **operations.take())
        self._since = now


class CountedSender(SenderWrapper):
    """Counts what is sent with it; a send of one message may count in ``operations`` itself, and use ``inner``."""

    def __init__(self, inner: Sender, operations: Operations) -> None:
        super().__init__(inner)
        self.operations = operations

    def send(self, message: Message) -> Call[None]:
        self.operations.sends += 1
        return self.inner.send(message)

    def send_batch(self, messages: Sequence[Message]) -> Call[Sequence[TransportError | None]]:
        self.operations.sends += 1
        return self.inner.send_batch(messages)

    def send_in_order(self, messages: Sequence[Message]) -> Call[Sequence[TransportError | None]]:
        self.operations.sends += 1
        return self.inner.send_in_order(messages)


class _Receiver(ReceiverWrapper):
    def __init__(self, inner: Receiver, operations: Operations) -> None:
        super().__init__(inner)
        self._operations = operations

    def receive(self, max_messages: int, wait: float) -> Call[list[Delivery]]:
        self._operations.receives += 1
        return self.inner.receive(max_messages, wait)

    def complete(self, delivery: Delivery) -> Call[None]:
        self._operations.settlements += 1
        return self.inner.complete(delivery)

    def complete_batch(self, deliveries: Sequence[Delivery]) -> Call[Sequence[TransportError | None]]:
        self._operations.settlements += 1
        return self.inner.complete_batch(deliveries)

    def abandon(self, delivery: Delivery) -> Call[None]:
        self._operations.settlements += 1
        return self.inner.abandon(delivery)

    def dead_letter(self, delivery: Delivery, reason: str, description: str) -> Call[None]:
        self._operations.settlements += 1
        return self.inner.dead_letter(delivery, reason, description)

    def renew_lock(self, delivery: Delivery) -> Call[Delivery]:
        self._operations.settlements += 1
        return self.inner.renew_lock(delivery)


class _Admin(AdminWrapper):
    def __init__(self, inner: Admin, operations: Operations) -> None:
        super().__init__(inner)
        self._operations = operations

    def check(self) -> Call[None]:
        self._operations.admin += 1
        return self.inner.check()

    def exists(self, entity: Entity) -> Call[bool]:
        self._operations.admin += 1
        return self.inner.exists(entity)

    def create(self, entity: Entity, properties: QueueProperties | None = None) -> Call[bool]:
        self._operations.admin += 1
        return self.inner.create(entity, properties)

    def create_subscription(self, topic: Entity, name: str) -> Call[bool]:
        self._operations.admin += 1
        return self.inner.create_subscription(topic, name)

    def properties(self, entity: Entity) -> Call[QueueProperties]:
        self._operations.admin += 1
        return self.inner.properties(entity)

    def counts(self, source: Source) -> Call[QueueCounts]:
        self._operations.admin += 1
        return self.inner.counts(source)

    def positions(self, entity: Entity) -> Call[QueuePositions]:
        self._operations.admin += 1
        return self.inner.positions(entity)

    def delete(self, entity: Entity) -> Call[bool]:
        self._operations.admin += 1
        return self.inner.delete(entity)

    def list_entities(self, prefix: str = "") -> Call[list[Entity]]:
        self._operations.admin += 1
        return self.inner.list_entities(prefix)

    def peek(self, source: Source, max_messages: int) -> Call[list[Delivery]]:
        self._operations.admin += 1
        return self.inner.peek(source, max_messages)

    def purge(self, source: Source) -> Call[int]:
        self._operations.admin += 1
        return self.inner.purge(source)

    def probe(self, entity: Entity) -> Call[None]:
        self._operations.pings += 1
        return self.inner.probe(entity)

    def confirm_risks(self, queue: Entity | None = None) -> Call[Sequence[ConfirmRisk]]:
        self._operations.admin += 1
        return self.inner.confirm_risks(queue)


class CountedTransport(TransportWrapper):
    """Counts what is asked of a transport. It is the same connection: both end together."""

    def __init__(self, inner: Transport, operations: Operations) -> None:
        super().__init__(inner)
        self._operations = operations
        self._admin = _Admin(inner.admin, operations)

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> CountedSender:
        return CountedSender(self.inner.sender(entity), self._operations)

    def receiver(self, source: Source) -> Receiver:
        return _Receiver(self.inner.receiver(source), self._operations)

    def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> Call[SessionReceiver | None]:
        self._operations.receives += 1
        return self.inner.accept_session(source, session_id, wait=wait)
