"""Connections to a simulated broker: sending, reading under peek-lock, administration.

`SimulatedBroker`, at the end, is the broker as a test sees it: how it is made to fail, and what it holds.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol, cast

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing._simulated._broker import Broker, Fault, Operation, Queue, Stored, Strike, lost_connection
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
        results: list[TransportError | None] = []
        for message in messages:
            try:
                self._store(message)
                results.append(lost_connection() if lost else None)
            except TransportError as error:
                results.append(error)
        return results

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
        self._holding: set[int] = set()

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        await self._connection.act(Operation.RECEIVE, self._source.entity)
        while True:
            found = self._take(max_messages)
            if found or loop.time() >= ends_at:
                return found
            await self._connection.broker.changed(min(ends_at, self._next_instant()))
            # The faults that came meanwhile strike a poll under way too; it is still one receive.
            await self._connection.act(Operation.RECEIVE, self._source.entity, count=False)

    async def complete(self, delivery: Delivery) -> None:
        lost = await self._connection.act(Operation.SETTLE, self._source.entity)
        stored, messages = self._locked(delivery)
        del messages[stored.number]
        self._holding.discard(stored.number)
        self._settled()
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
        stored, _ = self._locked(delivery)
        self._release(stored)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._connection.act(Operation.SETTLE, self._source.entity)
        stored, messages = self._locked(delivery)
        queue, _ = self._connection.broker.source(self._source)
        del messages[stored.number]
        self._holding.discard(stored.number)
        queue.dead[stored.number] = replace(stored, locked_until=None, reason=reason, description=description)
        self._settled()

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        await self._connection.act(Operation.SETTLE, self._source.entity)
        stored, _ = self._locked(delivery)
        stored.locked_until = self._lock_ends_at()
        return replace(delivery, locked_until=_instant(stored.locked_until))

    async def close(self) -> None:
        try:
            _, messages = self._connection.broker.source(self._source)
        except TransportError:
            return
        for number in tuple(self._holding):
            if number in messages and messages[number].holder is self:  # or its lock ended, and another one has it
                self._release(messages[number])
        self._holding.clear()

    def _take(self, most: int) -> list[Delivery]:
        now = asyncio.get_running_loop().time()
        queue, messages = self._connection.broker.source(self._source)
        found = []
        if queue.properties.single_consumer and any(
            (stored.locked_until or 0.0) > now and stored.holder is not self for stored in messages.values()
        ):
            return []
        for stored in list(messages.values()):
            if stored.visible_at > now or (stored.locked_until is not None and stored.locked_until > now):
                continue
            if not self._source.dead_letter and stored.expires_at is not None and stored.expires_at <= now:
                del messages[stored.number]
                if queue.properties.dead_letter_on_expiration:
                    queue.dead[stored.number] = replace(stored, reason="TTLExpiredException")
                continue
            stored.deliveries += 1
            stored.locked_until = self._lock_ends_at()
            stored.holder = self
            self._holding.add(stored.number)
            found.append(
                Delivery(
                    message=stored.message,
                    lock_token=(stored.number, stored.deliveries),
                    delivery_count=stored.deliveries,
                    sequence_number=str(stored.number),
                    enqueued_at=_instant(stored.enqueued_at),
                    locked_until=_instant(stored.locked_until),
                    dead_letter_reason=stored.reason,
                    dead_letter_description=stored.description,
                )
            )
            if len(found) == most:
                break
        return found

    def _next_instant(self) -> float:
        _, messages = self._connection.broker.source(self._source)
        now = asyncio.get_running_loop().time()
        instants = (max(s.visible_at, s.locked_until or 0.0) for s in messages.values())
        return min((at for at in instants if at > now), default=float("inf"))

    def _locked(self, delivery: Delivery) -> tuple[Stored, dict[int, Stored]]:
        _, messages = self._connection.broker.source(self._source)
        number, count = cast("tuple[int, int]", delivery.lock_token)  # made by _take
        stored = messages.get(number)
        now = asyncio.get_running_loop().time()
        held = stored is not None and stored.deliveries == count and (stored.locked_until or 0.0) > now
        if stored is None or not held:
            raise TransportError("the lock is lost", FailureKind.REFUSED, FailureReason.LOCK_LOST)
        return stored, messages

    def _release(self, stored: Stored) -> None:
        stored.locked_until = None
        self._holding.discard(stored.number)
        self._connection.broker.notify()

    def _settled(self) -> None:
        queue, _ = self._connection.broker.source(self._source)
        if queue.properties.single_consumer:
            self._connection.broker.notify()  # it may be another one's turn

    def _lock_ends_at(self) -> float:
        queue, _ = self._connection.broker.source(self._source)
        return asyncio.get_running_loop().time() + (queue.properties.lock_duration or float(2**31))


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(WALL_EPOCH + seconds, UTC)


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
        if entity in self._broker.queues:
            return False
        self._broker.queues[entity] = Queue(properties or QueueProperties())
        return True

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        await self._connection.act(Operation.ADMIN, topic)
        queue = self._broker.find(topic)
        if name in queue.subscriptions:
            return False
        queue.subscriptions[name] = Queue(queue.properties)
        return True

    async def properties(self, entity: Entity) -> QueueProperties:
        await self._connection.act(Operation.ADMIN, entity)
        return self._broker.find(entity).properties

    async def counts(self, source: Source) -> QueueCounts:
        await self._connection.act(Operation.ADMIN, source.entity)
        queue, messages = self._broker.source(source)
        now = asyncio.get_running_loop().time()
        locked = sum(1 for s in messages.values() if s.locked_until is not None and s.locked_until > now)
        scheduled = sum(1 for s in messages.values() if s.visible_at > now)
        told = scheduled if self._broker.capabilities.counts_scheduled else 0
        return QueueCounts(len(messages) - locked - scheduled, locked, told, len(queue.dead))

    async def positions(self, entity: Entity) -> QueuePositions:
        await self._connection.act(Operation.ADMIN, entity)
        messages = self._broker.find(entity).stored
        newest = self._broker.next_number()
        return QueuePositions(min(messages, default=None), newest)

    async def delete(self, entity: Entity) -> bool:
        await self._connection.act(Operation.ADMIN, entity)
        return self._broker.queues.pop(entity, None) is not None

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        await self._connection.act(Operation.ADMIN)
        return sorted((e for e in self._broker.queues if e.path.startswith(prefix)), key=str)

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        await self._connection.act(Operation.ADMIN, source.entity)
        _, messages = self._broker.source(source)
        first = itertools.islice(messages.values(), max_messages)
        return [Delivery(s.message, None, max(1, s.deliveries), str(s.number)) for s in first]

    async def purge(self, source: Source) -> int:
        await self._connection.act(Operation.ADMIN, source.entity)
        _, messages = self._broker.source(source)
        count = len(messages)
        messages.clear()
        return count

    async def probe(self, entity: Entity) -> None:
        await self._connection.act(Operation.PROBE, entity)
        self._broker.find(entity)

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
        return [stored.message for stored in self.queues[Entity(path, EntityKind(kind))].stored.values()]

    def dead_letters(self, path: str) -> list[tuple[Message, str | None]]:
        """What a queue's dead-letter queue holds, with the reasons."""
        return [(stored.message, stored.reason) for stored in self.queues[Entity(path)].dead.values()]
