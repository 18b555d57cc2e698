"""Administration of a simulated broker."""

from __future__ import annotations

import asyncio
import itertools

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.testing._simulated._broker import Queue
from pairmq.testing._simulated._connection import Connection
from pairmq.testing._simulated._faults import Operation
from pairmq.transport import Admin, QueueCounts, QueuePositions, QueueProperties


class SimulatedAdmin(Admin):
    """Looks after its queues."""

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
