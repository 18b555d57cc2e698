"""Administration: over HTTP, and where a key may not do that, as far as links show (Service Bus documentation: SAS).

The `Service` asks the administration, the `Maker` makes entities, `Contents` looks into them, `purge` empties them, and
the `Probe` pings them: by a message that the service never delivers (SPEC 6.2).
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any, Final

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import Admin, QueueCounts, QueuePositions, QueueProperties
from pairmq_servicebus import _codec, _entities, _errors
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._codec import measure
from pairmq_servicebus._contents import Contents, purge
from pairmq_servicebus._lane import OpenLink
from pairmq_servicebus._outbox import Outbox, Parcel
from pairmq_servicebus._receive_link import open_receive_link
from pairmq_servicebus._sender import open_send_link
from pairmq_servicebus._service import Service, fewer_deliveries, queue_settings, topic_settings
from pairmq_servicebus._values import PING_CONTENT_TYPE

TIME_TO_LIVE: Final = 1.0
"""Seconds that a ping lives, should a server not know its content type."""

_IDLE = 120.0  # s after which a ping's link is closed; pings come every minute by default
_MOST_ENTITIES = 1000


class Probe:
    """Pings entities of one namespace.

    A ping is an empty message of content type ``application/vnd.ms-servicebus-ping`` and a time-to-live of 1 s, with a
    random session id where the entity requires sessions. What a ping that succeeds proves, at this moment:

    - the namespace is reachable, and lets this key or identity in and send to the entity;
    - the entity exists, is enabled for sending, and the service answers transfers to it: it took the ping as it takes
      any message, and is documented to drop it instead of delivering it.

    What it can't prove: that the entity's quota has room for the next message, as the service stores no ping; that a
    larger message fits; that a message with a session id, a schedule or duplicate detection is handled as well; that
    what is accepted is delivered. A server that does not know the content type stores the ping, and a consumer may see
    it within its second: the local server of this distribution knows it.

    Pings have links of their own, so that a send that hangs holds up none.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._boxes: dict[Entity, Outbox] = {}
        self._with_session: set[Entity] = set()

    async def probe(self, entity: Entity) -> None:
        if self._namespace.closed:
            raise _errors.closed(f"probe {entity}")
        box = self._box(entity)
        failed = await self._ping(box, entity)
        if failed is not None and self._may_want_session(entity, failed):
            self._with_session.add(entity)
            failed = await self._ping(box, entity)
            if failed is not None:
                self._with_session.discard(entity)
        if failed is not None:
            raise failed

    async def close(self) -> None:
        boxes = list(self._boxes.values())
        self._boxes.clear()
        if boxes:
            await asyncio.gather(*(box.close() for box in boxes))

    async def _ping(self, box: Outbox, entity: Entity) -> TransportError | None:
        parts = _codec.take_apart(
            Message(
                message_id=uuid.uuid4().hex,
                content_type=PING_CONTENT_TYPE,
                time_to_live=TIME_TO_LIVE,
                session_id=uuid.uuid4().hex if entity in self._with_session else None,
            )
        )
        return await box.send(Parcel(parts, measure(parts), None))

    def _may_want_session(self, entity: Entity, failed: TransportError) -> bool:
        """Whether a refusal may be about the missing session id; remembered, so that it is asked once."""
        about_message = failed.reason in (FailureReason.NOT_SUPPORTED, FailureReason.MALFORMED, FailureReason.OTHER)
        return about_message and not failed.maybe_applied and entity not in self._with_session

    def _box(self, entity: Entity) -> Outbox:
        box = self._boxes.get(entity)
        if box is None:
            doing, namespace = f"probe {entity}", self._namespace
            if len(self._boxes) >= _MOST_ENTITIES:
                namespace.spawn(self._boxes.pop(next(iter(self._boxes))).close())
            box = self._boxes[entity] = Outbox(
                lambda: open_send_link(namespace, entity, doing),
                doing,
                limit=namespace.url.operation_timeout,
                idle_limit=_IDLE,
            )
        return box


class BusAdmin(Admin):
    """Manages a namespace's queues and topics.

    Most of it needs the claim *Manage*. With a key that may only send and listen, `exists`, `create` of what exists
    already, `properties` and `check` use links instead; see each.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._service = Service(namespace)
        self._asked: dict[Entity, QueueProperties] = {}  # of entities whose settings can't be read
        self._probe = Probe(namespace)
        self._contents = Contents(namespace)
        namespace.single_consumers.ask = self.properties

    async def check(self) -> None:
        """Ask the administration for the namespace; where that can't be had, try to attach a link to no entity.

        The refusal of the link shows that the namespace is reachable and lets this key or identity in.
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
        _entities.check(entity)
        doing = f"look for {entity}"
        try:
            await self._service.describe(entity, doing)
        except TransportError as error:
            if error.reason is FailureReason.UNAUTHORIZED:
                return await has_link(self._namespace, entity, doing)
            if error.reason is not FailureReason.NOT_FOUND:
                raise
            return False
        return True

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Make a queue or topic; the service keeps to every setting, or refuses it by its rules.

        ``lock_duration`` None becomes 60 s, since no lock here is bound to a connection; ``max_delivery_count`` None
        becomes 2**31 - 1, or 2000 where a server refuses that. A key without *Manage* can make nothing: where the
        entity exists, this is no error. ``single_consumer`` makes a queue with sessions, which the tier Basic has
        not; see `pairmq_servicebus._entities`.
        """
        _entities.check(entity)
        doing = f"create {entity}"
        _check_sessions(entity, properties, doing)
        if entity.kind is EntityKind.TOPIC:
            settings = topic_settings(properties, doing)
        else:
            settings = queue_settings(properties, doing)
        single_consumer = properties is not None and properties.single_consumer
        try:
            await self._make(entity, settings, doing)
        except TransportError as error:
            if error.reason is FailureReason.ALREADY_EXISTS:
                return await self._was_there(entity, doing, error)
            if single_consumer and error.reason is FailureReason.MALFORMED:
                text = f"{error}; one consumer at a time needs sessions, which the tier Basic does not have"
                raise TransportError(text, error.kind, error.reason) from error
            if error.reason is not FailureReason.UNAUTHORIZED:
                raise
            if await has_link(self._namespace, entity, doing):
                await self._take_word(entity, properties or QueueProperties(), doing)
                return False
            text = f"{doing}: this key or identity may not (it lacks the claim Manage): make it first, or use another"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.UNAUTHORIZED) from None
        requires_session = properties is not None and properties.requires_session
        self._namespace.single_consumers.note(entity, single_consumer, requires_session=requires_session)
        return True

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Make a subscription of a topic, with dead-lettering of what expires."""
        source = Source(topic, subscription=name)
        _entities.check_source(source)
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
        """Read the settings. A key without *Manage* can't: it gets those that it asked for, or the defaults."""
        _entities.check(entity)
        doing = f"read the settings of {entity}"
        try:
            return await self._service.describe(entity, doing)
        except TransportError as error:
            if error.reason is not FailureReason.UNAUTHORIZED or not await has_link(self._namespace, entity, doing):
                raise
            return self._asked.get(entity, QueueProperties())

    async def counts(self, source: Source) -> QueueCounts:
        """Count as the service does: locked messages are among the active ones. ``scheduled`` shows a whole topic's."""
        _entities.check_source(source)
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
        """Browse up to a marker, see `pairmq_servicebus._contents`; needs the claims *Send* and *Listen*.

        Of queues with one consumer at a time only: a marker that is left behind would be delivered in any other.
        """
        _entities.check(entity)
        doing, known = f"look at {entity}", self._namespace.single_consumers
        if not known.knows(entity):
            await self._service.describe(entity, doing)
            if not known.knows(entity):
                text = "it was not made for one consumer at a time"
                raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
        try:
            return await self._contents.positions(entity)
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                known.forget(entity)
            raise

    async def delete(self, entity: Entity) -> bool:
        _entities.check(entity)
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
        self._asked.pop(entity, None)
        self._namespace.single_consumers.forget(entity)
        return True

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        async def ask(client: ServiceBusAdministrationClient) -> list[Entity]:
            names = [(queue.name, EntityKind.QUEUE) async for queue in client.list_queues()]
            names += [(topic.name, EntityKind.TOPIC) async for topic in client.list_topics()]
            return [
                Entity(name, kind) for name, kind in names if name.startswith(prefix) and not _entities.is_system(name)
            ]

        return sorted(await self._service.ask("list the entities", ask), key=lambda entity: entity.path)

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages, locked and deferred ones included, scheduled ones not.

        A source with sessions can't be looked at as a whole, unless it is a queue with one consumer at a time: reason
        *not-supported*.
        """
        _entities.check_source(source)
        return await self._contents.peek(source, max_messages)

    async def purge(self, source: Source) -> int:
        """Receive and delete until nothing comes; messages that others hold locked stay."""
        _entities.check_source(source)
        return await purge(self._namespace, source)

    async def probe(self, entity: Entity) -> None:
        _entities.check(entity)
        await self._probe.probe(entity)

    def is_system_entity(self, entity: Entity) -> bool:
        """Return whether a segment of the path begins with ``$``, as the service's own do."""
        return _entities.is_system(entity.path)

    async def close(self) -> None:
        await self._probe.close()
        await self._contents.close()
        await self._service.close()

    async def _make(self, entity: Entity, settings: dict[str, Any], doing: str) -> None:
        """Make it, with the most deliveries that the server takes."""

        async def make(client: ServiceBusAdministrationClient) -> None:
            if entity.kind is EntityKind.TOPIC:
                await client.create_topic(entity.path, **settings)
            else:
                await client.create_queue(entity.path, **settings)

        try:
            await self._service.ask(doing, make)
        except TransportError as error:
            if error.reason is not FailureReason.MALFORMED or not fewer_deliveries(settings):
                raise
            await self._service.ask(doing, make)

    async def _was_there(self, entity: Entity, doing: str, error: TransportError) -> bool:
        """After a conflict: False when the entity is there. Another change under way is a conflict, too."""
        if await self.exists(entity):
            return False
        text = f"{doing}: the name is taken by an entity of the other kind, or another change of it is under way"
        raise TransportError(text, FailureKind.REFUSED, FailureReason.ALREADY_EXISTS) from error

    async def _take_word(self, entity: Entity, asked: QueueProperties, doing: str) -> None:
        """Take settings that can't be read for those asked for, but for the one that order rests on."""
        if asked.single_consumer:
            if not await requires_session(self._namespace, entity, doing):
                asked = replace(asked, single_consumer=False)
            self._namespace.single_consumers.note(entity, asked.single_consumer)
        self._asked[entity] = asked


def _counts(active: int | None, scheduled: int | None, dead_letter: int | None) -> QueueCounts:
    return QueueCounts(active=active or 0, scheduled=scheduled or 0, dead_letter=dead_letter or 0)


def _check_sessions(entity: Entity, properties: QueueProperties | None, doing: str) -> None:
    """Refuse settings about sessions that an entity of this kind can't have."""
    if properties is None:
        return
    if entity.kind is EntityKind.TOPIC and (properties.requires_session or properties.single_consumer):
        name = "requires_session" if properties.requires_session else "single_consumer"
        raise _errors.refused(doing, f"{name} is not a setting of a topic", FailureReason.NOT_SUPPORTED)
    if properties.requires_session and properties.single_consumer:
        text = "single_consumer puts all messages into one session: it can't have requires_session, too"
        raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)


async def has_link(namespace: Namespace, entity: Entity, doing: str) -> bool:
    """Whether a link can be attached to it, for sending, or for a key that may only listen, for receiving."""
    try:
        link: OpenLink = await open_send_link(namespace, entity, doing)
    except TransportError as error:
        if error.reason is FailureReason.NOT_FOUND:
            return False
        if error.reason is not FailureReason.UNAUTHORIZED or entity.kind is EntityKind.TOPIC:
            raise
        try:
            link = await open_receive_link(namespace, Source(entity), doing)
        except TransportError as second:
            if second.reason is FailureReason.NOT_FOUND:
                return False
            raise
    namespace.spawn(link.close())
    return True


async def requires_session(namespace: Namespace, queue: Entity, doing: str) -> bool:
    """Whether a queue requires sessions, which shows when a receiver without one is refused."""
    try:
        link = await open_receive_link(namespace, Source(queue), doing)
    except TransportError as error:
        if error.reason is not FailureReason.NOT_SUPPORTED:
            raise
        return True
    namespace.spawn(link.close())
    return False
