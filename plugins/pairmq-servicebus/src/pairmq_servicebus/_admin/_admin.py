"""Administration: over HTTP, and where a key may not do that, as far as links tell (Service Bus documentation: SAS)."""

from __future__ import annotations

import uuid

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import Admin, QueueCounts, QueuePositions, QueueProperties
from pairmq_servicebus import _errors, _names
from pairmq_servicebus._admin._by_links import has_link
from pairmq_servicebus._admin._making import Maker
from pairmq_servicebus._admin._peeking import Peek
from pairmq_servicebus._admin._positions import Positions
from pairmq_servicebus._admin._probe import Probe
from pairmq_servicebus._admin._purge import purge
from pairmq_servicebus._admin._service import Service
from pairmq_servicebus._client import Namespace


class BusAdmin(Admin):
    """Looks after a namespace's queues and topics.

    Most of it needs the claim *Manage*. With a key that may only send and listen, `exists`, `create` of what exists
    already, `properties` and `check` go by links instead; see each.

    Args:
        namespace: the transport's.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._service = Service(namespace)
        self._maker = Maker(namespace, self._service)
        self._probe = Probe(namespace)
        self._positions = Positions(namespace)
        self._peek = Peek(namespace, self._positions)
        namespace.single_consumers.ask = self.properties

    async def check(self) -> None:
        """Ask the administration for the namespace; where that can't be had, try to attach a link to no entity.

        The refusal of the link shows that the namespace is there and lets this key or identity in.
        """
        doing = "check the namespace"
        try:
            await self._service.ask(doing, lambda client: client.get_namespace_properties())
        except TransportError as error:
            if error.kind is FailureKind.BUSY or error.reason is FailureReason.CLOSED:
                raise
            if await has_link(self._namespace, Entity(f"pairmq-check-{uuid.uuid4().hex}"), doing):
                raise AssertionError("an entity of a random name exists") from None

    async def exists(self, entity: Entity) -> bool:
        """Ask the administration, or for a key without *Manage*, attach a link."""
        _names.check(entity)
        return await self._maker.exists(entity, f"look for {entity}")

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Make a queue or topic; the service keeps to every setting, or refuses it by its rules.

        ``lock_duration`` None becomes 60 s, since no lock here is bound to a connection; ``max_delivery_count`` None
        becomes 2**31 - 1, or 2000 where a server refuses that. A key without *Manage* can make nothing: where the
        entity exists, this is no error. ``single_consumer`` makes a queue with sessions, which the tier Basic has
        not; see `pairmq_servicebus._single_consumer`.
        """
        _names.check(entity)
        return await self._maker.create(entity, properties)

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Make a subscription of a topic, with dead-lettering of what expires."""
        source = Source(topic, subscription=name)
        _names.check_source(source)
        doing = f"create subscription {source}"
        try:
            await self._service.ask(
                doing,
                lambda client: client.create_subscription(topic.path, name, dead_lettering_on_message_expiration=True),
            )
        except TransportError as error:
            if error.reason is FailureReason.ALREADY_EXISTS:
                return False
            raise
        return True

    async def properties(self, entity: Entity) -> QueueProperties:
        """Read the settings. A key without *Manage* can't: it is told those that it asked for, or the defaults."""
        _names.check(entity)
        doing = f"read the settings of {entity}"
        try:
            return await self._service.describe(entity, doing)
        except TransportError as error:
            if error.reason is not FailureReason.UNAUTHORIZED or not await has_link(self._namespace, entity, doing):
                raise
            return self._maker.word(entity)

    async def counts(self, source: Source) -> QueueCounts:
        """Count as the service does: locked messages are among the active ones. ``scheduled`` tells a whole topic's."""
        _names.check_source(source)
        doing, path, subscription = f"count {source}", source.entity.path, source.subscription

        async def ask(client: ServiceBusAdministrationClient) -> QueueCounts:
            if subscription is None:
                queue = await client.get_queue_runtime_properties(path)
                return _counts(
                    queue.active_message_count, queue.scheduled_message_count, queue.dead_letter_message_count
                )
            found = await client.get_subscription_runtime_properties(path, subscription)
            topic = await client.get_topic_runtime_properties(path)
            return _counts(found.active_message_count, topic.scheduled_message_count, found.dead_letter_message_count)

        counts = await self._service.ask(doing, ask)
        return QueueCounts(active=counts.dead_letter) if source.dead_letter else counts

    async def positions(self, entity: Entity) -> QueuePositions:
        """Browse up to a marker, see `pairmq_servicebus._admin._positions`; needs the claims *Send* and *Listen*.

        Of queues with one consumer at a time only: a marker that is left behind would be delivered in any other.
        """
        _names.check(entity)
        doing, known = f"look at {entity}", self._namespace.single_consumers
        if not known.knows(entity):
            await self._service.describe(entity, doing)
            if not known.knows(entity):
                text = "it was not made for one consumer at a time"
                raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
        try:
            return await self._positions.look(entity)
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                known.forget(entity)
            raise

    async def delete(self, entity: Entity) -> bool:
        _names.check(entity)
        doing, topic = f"delete {entity}", entity.kind is EntityKind.TOPIC
        try:
            # The service deletes whatever has the name: a topic is no queue to PairMQ.
            await self._service.describe(entity, doing)
            await self._service.ask(
                doing,
                lambda client: client.delete_topic(entity.path) if topic else client.delete_queue(entity.path),
            )
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                return False
            raise
        self._maker.forget(entity)
        return True

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        async def ask(client: ServiceBusAdministrationClient) -> list[Entity]:
            names = [(queue.name, EntityKind.QUEUE) async for queue in client.list_queues()]
            names += [(topic.name, EntityKind.TOPIC) async for topic in client.list_topics()]
            return [
                Entity(name, kind) for name, kind in names if name.startswith(prefix) and not _names.is_system(name)
            ]

        return sorted(await self._service.ask("list the entities", ask), key=lambda entity: entity.path)

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages, locked and deferred ones included, scheduled ones not.

        A source with sessions can't be looked at as a whole, unless it is a queue with one consumer at a time: reason
        *not-supported*.
        """
        _names.check_source(source)
        return await self._peek.peek(source, max_messages)

    async def purge(self, source: Source) -> int:
        """Receive and delete until nothing comes; messages that others hold locked stay."""
        _names.check_source(source)
        return await purge(self._namespace, source)

    async def probe(self, entity: Entity) -> None:
        _names.check(entity)
        await self._probe.probe(entity)

    def is_system_entity(self, entity: Entity) -> bool:
        """Tell whether a segment of the path begins with ``$``, as the service's own do."""
        return _names.is_system(entity.path)

    async def close(self) -> None:
        """Close its connections; never raises."""
        await self._probe.close()
        await self._positions.close()
        await self._peek.close()
        await self._service.close()


def _counts(active: int | None, scheduled: int | None, dead_letter: int | None) -> QueueCounts:
    return QueueCounts(active=active or 0, scheduled=scheduled or 0, dead_letter=dead_letter or 0)
