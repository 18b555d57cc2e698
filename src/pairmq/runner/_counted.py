"""Counts what a pair asks of its two brokers, so that the cost can be counted instead of guessed.

The methods of a counted transport hand on the coroutines of the real one instead of awaiting them, so that counting a
send costs one call of a function, and no further coroutine is between a send and its broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pairmq.model import Delivery, Entity, Message, Source, TransportError
from pairmq.model.events import OperationsCounted, Side
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.transport import (
    Admin,
    Capabilities,
    ConfirmRisk,
    QueueCounts,
    QueuePositions,
    QueueProperties,
    Receiver,
    Sender,
    SessionReceiver,
    Transport,
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


class _Sender(Sender):
    def __init__(self, inner: Sender, operations: Operations) -> None:
        self._inner = inner
        self._operations = operations

    def send(self, message: Message) -> Call[None]:
        self._operations.sends += 1
        return self._inner.send(message)

    def send_batch(self, messages: Sequence[Message]) -> Call[Sequence[TransportError | None]]:
        self._operations.sends += 1
        return self._inner.send_batch(messages)

    def make_ready(self) -> Call[None]:
        return self._inner.make_ready()

    def close(self) -> Call[None]:
        return self._inner.close()


class _Receiver(Receiver):
    def __init__(self, inner: Receiver, operations: Operations) -> None:
        self._inner = inner
        self._operations = operations

    def receive(self, max_messages: int, wait: float) -> Call[list[Delivery]]:
        self._operations.receives += 1
        return self._inner.receive(max_messages, wait)

    def read_ahead(self, messages: int) -> None:
        self._inner.read_ahead(messages)

    def complete(self, delivery: Delivery) -> Call[None]:
        self._operations.settlements += 1
        return self._inner.complete(delivery)

    def complete_batch(self, deliveries: Sequence[Delivery]) -> Call[Sequence[TransportError | None]]:
        self._operations.settlements += 1
        return self._inner.complete_batch(deliveries)

    def abandon(self, delivery: Delivery) -> Call[None]:
        self._operations.settlements += 1
        return self._inner.abandon(delivery)

    def dead_letter(self, delivery: Delivery, reason: str, description: str) -> Call[None]:
        self._operations.settlements += 1
        return self._inner.dead_letter(delivery, reason, description)

    def renew_lock(self, delivery: Delivery) -> Call[Delivery]:
        self._operations.settlements += 1
        return self._inner.renew_lock(delivery)

    def close(self) -> Call[None]:
        return self._inner.close()


class _Admin(Admin):
    def __init__(self, inner: Admin, operations: Operations) -> None:
        self._inner = inner
        self._operations = operations

    def check(self) -> Call[None]:
        self._operations.admin += 1
        return self._inner.check()

    def exists(self, entity: Entity) -> Call[bool]:
        self._operations.admin += 1
        return self._inner.exists(entity)

    def create(self, entity: Entity, properties: QueueProperties | None = None) -> Call[bool]:
        self._operations.admin += 1
        return self._inner.create(entity, properties)

    def create_subscription(self, topic: Entity, name: str) -> Call[bool]:
        self._operations.admin += 1
        return self._inner.create_subscription(topic, name)

    def properties(self, entity: Entity) -> Call[QueueProperties]:
        self._operations.admin += 1
        return self._inner.properties(entity)

    def counts(self, source: Source) -> Call[QueueCounts]:
        self._operations.admin += 1
        return self._inner.counts(source)

    def positions(self, entity: Entity) -> Call[QueuePositions]:
        self._operations.admin += 1
        return self._inner.positions(entity)

    def delete(self, entity: Entity) -> Call[bool]:
        self._operations.admin += 1
        return self._inner.delete(entity)

    def list_entities(self, prefix: str = "") -> Call[list[Entity]]:
        self._operations.admin += 1
        return self._inner.list_entities(prefix)

    def peek(self, source: Source, max_messages: int) -> Call[list[Delivery]]:
        self._operations.admin += 1
        return self._inner.peek(source, max_messages)

    def purge(self, source: Source) -> Call[int]:
        self._operations.admin += 1
        return self._inner.purge(source)

    def probe(self, entity: Entity) -> Call[None]:
        self._operations.pings += 1
        return self._inner.probe(entity)

    def confirm_risks(self, queue: Entity | None = None) -> Call[Sequence[ConfirmRisk]]:
        self._operations.admin += 1
        return self._inner.confirm_risks(queue)

    def is_system_entity(self, entity: Entity) -> bool:
        return self._inner.is_system_entity(entity)


class CountedTransport(Transport):
    """Stands before a transport and counts what is asked of it.

    It is the same connection: both end together, and closing the one closes the other.
    """

    def __init__(self, inner: Transport, operations: Operations) -> None:
        super().__init__(inner.endpoint)
        self._inner = inner
        self._operations = operations
        self._admin = _Admin(inner.admin, operations)

    @property
    def ended(self) -> bool:
        return self._inner.ended

    @property
    def fault_cause(self) -> BaseException | None:
        return self._inner.fault_cause

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return _Sender(self._inner.sender(entity), self._operations)

    def receiver(self, source: Source) -> Receiver:
        return _Receiver(self._inner.receiver(source), self._operations)

    def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> Call[SessionReceiver | None]:
        self._operations.receives += 1
        return self._inner.accept_session(source, session_id, wait=wait)

    def measure(self, message: Message) -> int:
        return self._inner.measure(message)

    def check_message(self, entity: Entity, message: Message) -> None:
        self._inner.check_message(entity, message)

    def close(self) -> Call[None]:
        return self._inner.close()

    def fault(self, cause: BaseException) -> Call[None]:
        return self._inner.fault(cause)

    def on_end(self, listener: Callable[[Transport], None]) -> None:
        self._inner.on_end(listener)

    def remove_on_end(self, listener: Callable[[Transport], None]) -> None:
        self._inner.remove_on_end(listener)

    async def _close(self) -> None:
        await self._inner.close()
