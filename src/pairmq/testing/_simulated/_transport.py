"""Connections to a simulated broker: sending, reading under peek-lock, administration.

`SimulatedBroker`, at the end, is the broker as a test sees it: how it is made to fail, and what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pairmq.memory import Queue, Stored
from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing._simulated._broker import Broker, Fault, Operation, Strike, lost_connection
from pairmq.transport import (
    Admin,
    Capabilities,
    Endpoint,
    QueueCounts,
    QueuePositions,
    QueueProperties,
    Receiver,
    Sender,
    Transport,
    outcomes_in_order,
)


class Connection(Protocol):
    """A connection to a simulated broker."""

    broker: Broker

    async def act(self, operation: Operation, entity: Entity | None = None, *, count: bool = True) -> bool:
        """One operation over it; returns whether its confirmation will be lost."""

    def check_message(self, entity: Entity, message: Message) -> None:
        """Refuse what the broker could never take."""


class SimulatedTransport(Transport):
    """A connection to a simulated broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(Endpoint(broker.name, ("simulated", broker.name), f"simulated://{broker.name}"))
        self.broker = broker

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

    async def _close(self) -> None:
        pass

    async def act(self, operation: Operation, entity: Entity | None = None, *, count: bool = True) -> bool:
        """One operation over this connection."""
        self._check()
        lost = await self.broker.act(operation, entity, count=count)
        self._check()
        return lost

    def _check(self) -> None:
        if self.ended:
            raise TransportError("the connection is closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)


class SimulatedSender(Sender):
    """Sends to one entity."""

    def __init__(self, connection: Connection, entity: Entity) -> None:
        self._connection = connection
        self._entity = entity
        self._closed = False

    async def send(self, message: Message) -> None:
        lost = await self._act()
        self._store(message)
        if lost:
            raise lost_connection()

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        try:
            lost = await self._act()
        except TransportError as error:
            return [error] * len(messages)
        return [self._stored(message) or (lost_connection() if lost else None) for message in messages]

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        try:
            lost = await self._act()
        except TransportError as error:
            return [error] * len(messages)
        outcomes = outcomes_in_order(messages, lambda _, message: self._stored(message))
        return [outcome or (lost_connection() if lost else None) for outcome in outcomes]

    def _stored(self, message: Message) -> TransportError | None:
        try:
            self._store(message)
        except TransportError as error:
            return error
        return None

    async def close(self) -> None:
        self._closed = True

    async def _act(self) -> bool:
        self._check()
        lost = await self._connection.act(Operation.SEND, self._entity)
        self._check()
        return lost

    def _check(self) -> None:
        if self._closed:
            raise TransportError("the sender is closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)

    def _store(self, message: Message) -> None:
        self._connection.check_message(self._entity, message)
        self._connection.broker.store(self._entity, message)


class SimulatedReceiver(Receiver):
    """Reads one source."""

    def __init__(self, connection: Connection, source: Source) -> None:
        self._connection = connection
        self._source = source

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        loop, broker = asyncio.get_running_loop(), self._connection.broker
        ends_at = loop.time() + wait
        await self._connection.act(Operation.RECEIVE, self._source.entity)
        while True:
            queue = self._queue()
            found = queue.take(self, max_messages, broker.now())
            if found or loop.time() >= ends_at:
                return [broker.state.delivery(stored) for stored in found]
            await broker.changed(min(ends_at, queue.next_change()))
            # The faults that came meanwhile strike a poll under way too; it is still one receive.
            await self._connection.act(Operation.RECEIVE, self._source.entity, count=False)

    async def complete(self, delivery: Delivery) -> None:
        lost = await self._connection.act(Operation.SETTLE, self._source.entity)
        queue = self._queue()
        queue.complete(self._held(queue, delivery))
        self._settled(queue)
        if lost:
            raise lost_connection()

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        results: list[TransportError | None] = []
        for delivery in deliveries:
            try:
                await self.complete(delivery)
                results.append(None)
            except TransportError as error:
                results.append(error)
        return results

    async def abandon(self, delivery: Delivery) -> None:
        await self._connection.act(Operation.SETTLE, self._source.entity)
        queue = self._queue()
        queue.abandon(self._held(queue, delivery))
        self._connection.broker.notify()

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._connection.act(Operation.SETTLE, self._source.entity)
        queue = self._queue()
        queue.bury(self._held(queue, delivery), reason, description)
        self._settled(queue)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        await self._connection.act(Operation.SETTLE, self._source.entity)
        queue, broker = self._queue(), self._connection.broker
        until = queue.renew(self._held(queue, delivery), broker.now())
        return replace(delivery, locked_until=broker.state.instant(until))

    async def close(self) -> None:
        try:
            queue = self._queue()
        except TransportError:
            return
        if queue.release_all(self):
            self._connection.broker.notify()

    def _queue(self) -> Queue:
        return self._connection.broker.state.source(self._source)

    def _held(self, queue: Queue, delivery: Delivery) -> Stored:
        return queue.held(delivery.lock_token, self, self._connection.broker.now())

    def _settled(self, queue: Queue) -> None:
        if queue.properties.single_consumer:
            self._connection.broker.notify()  # it may be another one's turn


class SimulatedAdmin(Admin):
    """Manages its queues."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._broker = connection.broker

    async def check(self) -> None:
        await self._connection.act(Operation.ADMIN)

    async def exists(self, entity: Entity) -> bool:
        await self._connection.act(Operation.ADMIN, entity)
        return entity in self._broker.queues

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        await self._connection.act(Operation.ADMIN, entity)
        if properties is not None and properties.requires_session:
            text = f"create {entity}: requires_session: the simulated broker has no sessions"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        if properties is not None and properties.single_consumer and not self._broker.capabilities.ordered_consumer:
            text = f"create {entity}: single_consumer: this broker has none"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        return self._broker.state.create(entity, properties or QueueProperties())

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        await self._connection.act(Operation.ADMIN, topic)
        return self._broker.state.subscribe(topic, name)

    async def properties(self, entity: Entity) -> QueueProperties:
        await self._connection.act(Operation.ADMIN, entity)
        return self._broker.state.find(entity).properties

    async def counts(self, source: Source) -> QueueCounts:
        await self._connection.act(Operation.ADMIN, source.entity)
        counts = self._broker.state.source(source).counts(self._broker.now())
        return counts if self._broker.capabilities.counts_scheduled else replace(counts, scheduled=0)

    async def positions(self, entity: Entity) -> QueuePositions:
        await self._connection.act(Operation.ADMIN, entity)
        return self._broker.state.find(entity).positions(self._broker.now())

    async def delete(self, entity: Entity) -> bool:
        await self._connection.act(Operation.ADMIN, entity)
        return bool(self._broker.state.delete(entity))

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        await self._connection.act(Operation.ADMIN)
        return sorted((e for e in self._broker.queues if e.path.startswith(prefix)), key=str)

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        await self._connection.act(Operation.ADMIN, source.entity)
        state = self._broker.state
        shown = state.source(source).oldest(max_messages, self._broker.now())
        return [state.delivery(stored, is_peek=True) for stored in shown]

    async def purge(self, source: Source) -> int:
        await self._connection.act(Operation.ADMIN, source.entity)
        return self._broker.state.source(source).purge()

    async def probe(self, entity: Entity) -> None:
        await self._connection.act(Operation.PROBE, entity)
        self._broker.state.find(entity)

    def is_system_entity(self, entity: Entity) -> bool:
        return entity.path.startswith("system/")


class SimulatedBroker(Broker):
    """One broker process, with its data, and its faults.

    Args:
        name: in its endpoint.
        latency: seconds that each operation takes.
        capabilities: what its transports claim.
    """

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
        strike = Strike(fault, operations, names, delay, [-1 if times is None else times])
        self._strikes.append(strike)
        self.notify()

    def heal(self) -> None:
        """End all faults; data is as it was."""
        self._strikes.clear()
        self.notify()

    def messages(self, path: str, kind: str = "queue") -> list[Message]:
        """What a queue holds, oldest first, locked or not."""
        return self.queues[Entity(path, EntityKind(kind))].messages()

    def dead_letters(self, path: str) -> list[tuple[Message, str | None]]:
        """What a queue's dead-letter queue holds, with the reasons."""
        return [(stored.message, stored.reason) for stored in self.queues[Entity(path)].dead.stored.values()]
