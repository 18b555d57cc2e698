"""Making queues and topics, or finding that they are there, also with a key that may make nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, TransportError
from pairmq.transport import QueueProperties
from pairmq_servicebus import _errors
from pairmq_servicebus._admin._by_links import has_link, requires_session
from pairmq_servicebus._admin._descriptions import fewer_deliveries, queue_settings, topic_settings
from pairmq_servicebus._admin._service import Service
from pairmq_servicebus._client import Namespace


class Maker:
    """Makes entities of one namespace.

    Args:
        namespace: the transport's.
        service: its administration.
    """

    def __init__(self, namespace: Namespace, service: Service) -> None:
        self._namespace = namespace
        self._service = service
        self._asked: dict[Entity, QueueProperties] = {}

    async def create(self, entity: Entity, properties: QueueProperties | None) -> bool:
        """Make an entity; as `BusAdmin.create`."""
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
        self._namespace.single_consumers.note(entity, single_consumer)
        return True

    async def exists(self, entity: Entity, doing: str) -> bool:
        """Tell whether an entity is there; as `BusAdmin.exists`."""
        try:
            await self._service.describe(entity, doing)
        except TransportError as error:
            if error.reason is FailureReason.UNAUTHORIZED:
                return await has_link(self._namespace, entity, doing)
            if error.reason is not FailureReason.NOT_FOUND:
                raise
            return False
        return True

    def word(self, entity: Entity) -> QueueProperties:
        """What was asked for, of an entity whose settings can't be read; the defaults where nothing was."""
        return self._asked.get(entity, QueueProperties())

    def forget(self, entity: Entity) -> None:
        """It is gone."""
        self._asked.pop(entity, None)
        self._namespace.single_consumers.forget(entity)

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
        if await self.exists(entity, f"look for {entity}"):
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


def _check_sessions(entity: Entity, properties: QueueProperties | None, doing: str) -> None:
    """Refuse settings about sessions that an entity of this kind can't have."""
    if properties is None:
        return
    if entity.kind is EntityKind.TOPIC and (properties.requires_session or properties.single_consumer):
        name = "requires_session" if properties.requires_session else "single_consumer"
        raise _errors.refused(doing, f"{name} is no setting of a topic", FailureReason.NOT_SUPPORTED)
    if properties.requires_session and properties.single_consumer:
        text = "single_consumer puts all messages into one session: it can't have requires_session, too"
        raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
