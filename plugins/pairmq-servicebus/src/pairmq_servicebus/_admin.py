"""Administration: over HTTP, and where a key may not do that, as far as links tell (Service Bus documentation: SAS)."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessageState
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import Admin, QueueCounts, QueueProperties
from pairmq_servicebus import _codec, _errors, _names
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._descriptions import fewer_deliveries, properties_of, queue_settings, topic_settings
from pairmq_servicebus._http import AdminClient
from pairmq_servicebus._lane import Lane, OpenLink
from pairmq_servicebus._probe import Probe
from pairmq_servicebus._purge import purge
from pairmq_servicebus._receiver import open_receive_link
from pairmq_servicebus._receiving import ReceiveLink, delivery_of
from pairmq_servicebus._sender import open_send_link

T = TypeVar("T")

_MOST_LOOKERS = 16  # links for peeking that are kept
_LOOKER_IDLE = 60.0  # s
_MOST_PEEKED = 250  # messages the service shows at once


class BusAdmin(Admin):
    """Looks after a namespace's queues and topics.

    Most of it needs the claim *Manage*. With a key that may only send and listen, `exists`, `create` of what exists
    already, `properties` and `check` go by links instead; see each.

    Args:
        namespace: the transport's.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._http = AdminClient(namespace)
        self._probe = Probe(namespace)
        self._lookers: dict[Source, Lane[ReceiveLink]] = {}
        self._asked: dict[Entity, QueueProperties] = {}

    async def check(self) -> None:
        """Ask the administration for the namespace; where that can't be had, try to attach a link to no entity.

        The refusal of the link shows that the namespace is there and lets this key or identity in.
        """
        doing = "check the namespace"
        try:
            await self._ask(doing, lambda client: client.get_namespace_properties())
        except TransportError as error:
            if error.kind is FailureKind.BUSY or error.reason is FailureReason.CLOSED:
                raise
            if await self._has_link(Entity(f"pairmq-check-{uuid.uuid4().hex}"), doing):
                raise AssertionError("an entity of a random name exists") from None

    async def exists(self, entity: Entity) -> bool:
        """Ask the administration, or for a key without *Manage*, attach a link."""
        _names.check(entity)
        doing = f"look for {entity}"
        try:
            await self._describe(entity, doing)
        except TransportError as error:
            if error.reason is FailureReason.UNAUTHORIZED:
                return await self._has_link(entity, doing)
            if error.reason is not FailureReason.NOT_FOUND:
                raise
            return False
        return True

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Make a queue or topic; the service keeps to every setting, or refuses it by its rules.

        ``lock_duration`` None becomes 60 s, since no lock here is bound to a connection; ``max_delivery_count`` None
        becomes 2**31 - 1, or 2000 where a server refuses that. A key without *Manage* can make nothing: where the
        entity exists, this is no error.
        """
        _names.check(entity)
        doing = f"create {entity}"
        if properties is not None and properties.single_consumer:
            text = "single_consumer: Service Bus has sessions instead, and can't tell what of a queue is settled"
            raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
        if entity.kind is EntityKind.TOPIC:
            if properties is not None and properties.requires_session:
                text = "requires_session is a setting of a topic's subscriptions"
                raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
            settings = topic_settings(properties, doing)
        else:
            settings = queue_settings(properties, doing)

        async def make(client: ServiceBusAdministrationClient) -> None:
            if entity.kind is EntityKind.TOPIC:
                await client.create_topic(entity.path, **settings)
            else:
                await client.create_queue(entity.path, **settings)

        try:
            try:
                await self._ask(doing, make)
            except TransportError as error:
                if error.reason is not FailureReason.MALFORMED or not fewer_deliveries(settings):
                    raise
                await self._ask(doing, make)
        except TransportError as error:
            if error.reason is FailureReason.ALREADY_EXISTS:
                return await self._was_there(entity, doing, error)
            if error.reason is not FailureReason.UNAUTHORIZED:
                raise
            if await self._has_link(entity, doing):
                self._asked[entity] = properties or QueueProperties()
                return False
            text = f"{doing}: this key or identity may not (it lacks the claim Manage): make it first, or use another"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.UNAUTHORIZED) from None
        return True

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Make a subscription of a topic, with dead-lettering of what expires."""
        source = Source(topic, subscription=name)
        _names.check_source(source)
        doing = f"create subscription {source}"
        try:
            await self._ask(
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
            return await self._describe(entity, doing)
        except TransportError as error:
            if error.reason is not FailureReason.UNAUTHORIZED or not await self._has_link(entity, doing):
                raise
            return self._asked.get(entity, QueueProperties())

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

        counts = await self._ask(doing, ask)
        return QueueCounts(active=counts.dead_letter) if source.dead_letter else counts

    async def delete(self, entity: Entity) -> bool:
        _names.check(entity)
        doing, topic = f"delete {entity}", entity.kind is EntityKind.TOPIC
        try:
            # The service deletes whatever has the name: a topic is no queue to PairMQ.
            await self._describe(entity, doing)
            await self._ask(
                doing,
                lambda client: client.delete_topic(entity.path) if topic else client.delete_queue(entity.path),
            )
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                return False
            raise
        self._asked.pop(entity, None)
        return True

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        async def ask(client: ServiceBusAdministrationClient) -> list[Entity]:
            names = [(queue.name, EntityKind.QUEUE) async for queue in client.list_queues()]
            names += [(topic.name, EntityKind.TOPIC) async for topic in client.list_topics()]
            return [
                Entity(name, kind) for name, kind in names if name.startswith(prefix) and not _names.is_system(name)
            ]

        return sorted(await self._ask("list the entities", ask), key=lambda entity: entity.path)

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages, locked and deferred ones included, scheduled ones not.

        A source with sessions can't be looked at as a whole: reason *not-supported*.
        """
        _names.check_source(source)
        doing = f"peek into {source}"

        async def look(link: ReceiveLink) -> list[Delivery]:
            found: list[Delivery] = []
            number = 1
            while len(found) < max_messages:
                most = min(max_messages - len(found), _MOST_PEEKED)
                messages = await link.client.peek_messages(most, sequence_number=number)
                if not messages:
                    break
                for message in messages:
                    if message.state is not ServiceBusMessageState.SCHEDULED:
                        decoded = _codec.decode_leniently(message.raw_amqp_message, dead_letter=source.dead_letter)
                        found.append(delivery_of(message, decoded, None))
                # Of what the client can't decode the number may be missing: they only grow, so that this is no more.
                number = max(number + len(messages), *(1 + (message.sequence_number or 0) for message in messages))
            return found

        return await self._looker(source).call(look, self._namespace.url.operation_timeout, doing)

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
        for lane in self._lookers.values():
            await lane.close()
        await self._http.close()

    async def _ask(self, doing: str, question: Callable[[ServiceBusAdministrationClient], Awaitable[T]]) -> T:
        if self._namespace.closed:
            raise _errors.closed(doing)
        try:
            return await question(self._http.get())
        except Exception as error:
            failed = _errors.failure(error, doing, maybe_applied=True)
            raise failed from failed.__cause__

    async def _describe(self, entity: Entity, doing: str) -> QueueProperties:
        async def ask(client: ServiceBusAdministrationClient) -> QueueProperties:
            try:
                if entity.kind is EntityKind.TOPIC:
                    return properties_of(await client.get_topic(entity.path))
                return properties_of(await client.get_queue(entity.path))
            except AttributeError:
                # The client stumbles over the description of an entity of the other kind.
                raise ResourceNotFoundError(f"there is no {entity.kind} of that name") from None

        return await self._ask(doing, ask)

    async def _was_there(self, entity: Entity, doing: str, error: TransportError) -> bool:
        """After a conflict: False when the entity is there. Another change under way is a conflict, too."""
        if await self.exists(entity):
            return False
        text = f"{doing}: the name is taken by an entity of the other kind, or another change of it is under way"
        raise TransportError(text, FailureKind.REFUSED, FailureReason.ALREADY_EXISTS) from error

    async def _has_link(self, entity: Entity, doing: str) -> bool:
        """Whether a link can be attached to it, for sending, or for a key that may only listen, for receiving."""
        try:
            link: OpenLink = await open_send_link(self._namespace, entity, doing)
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                return False
            if error.reason is not FailureReason.UNAUTHORIZED or entity.kind is EntityKind.TOPIC:
                raise
            try:
                link = await open_receive_link(self._namespace, Source(entity), doing)
            except TransportError as second:
                if second.reason is FailureReason.NOT_FOUND:
                    return False
                raise
        self._namespace.spawn(link.close())
        return True

    def _looker(self, source: Source) -> Lane[ReceiveLink]:
        lane = self._lookers.pop(source, None)
        if lane is None:
            doing = f"look into {source}"
            lane = Lane(lambda: open_receive_link(self._namespace, source, doing), doing, idle_limit=_LOOKER_IDLE)
            if len(self._lookers) >= _MOST_LOOKERS:
                oldest = self._lookers.pop(next(iter(self._lookers)))
                self._namespace.spawn(oldest.close())
        self._lookers[source] = lane
        return lane


def _counts(active: int | None, scheduled: int | None, dead_letter: int | None) -> QueueCounts:
    return QueueCounts(active=active or 0, scheduled=scheduled or 0, dead_letter=dead_letter or 0)
