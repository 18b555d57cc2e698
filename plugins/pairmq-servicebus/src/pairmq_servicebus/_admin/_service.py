"""Questions to the administration, answered in PairMQ's words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairmq.model import Entity, EntityKind
from pairmq.transport import QueueProperties
from pairmq_servicebus import _errors
from pairmq_servicebus._admin._descriptions import properties_of
from pairmq_servicebus._admin._http import AdminClient
from pairmq_servicebus._client import Namespace

T = TypeVar("T")


class Service:
    """Asks the administration of one namespace; needs the claim *Manage*.

    Args:
        namespace: the transport's.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._http = AdminClient(namespace)

    async def ask(self, doing: str, question: Callable[[ServiceBusAdministrationClient], Awaitable[T]]) -> T:
        """Ask something.

        Args:
            doing: in words, for errors.
            question: what to ask of the client; its exceptions become the error.

        Raises:
            TransportError: it was refused, or the administration could not be reached.
        """
        if self._namespace.closed:
            raise _errors.closed(doing)
        try:
            return await question(self._http.get())
        except Exception as error:
            failed = _errors.failure(error, doing, maybe_applied=True)
            raise failed from failed.__cause__

    async def describe(self, entity: Entity, doing: str) -> QueueProperties:
        """Read an entity's settings, and take note of whether it is a queue with one consumer at a time.

        Raises:
            TransportError: as `ask`; reason *not-found* also for an entity of the other kind.
        """

        async def question(client: ServiceBusAdministrationClient) -> QueueProperties:
            try:
                if entity.kind is EntityKind.TOPIC:
                    return properties_of(await client.get_topic(entity.path))
                found = properties_of(await client.get_queue(entity.path))
                self._namespace.single_consumers.note(entity, found.single_consumer)
                return found
            except AttributeError:
                # The client stumbles over the description of an entity of the other kind.
                raise ResourceNotFoundError(f"there is no {entity.kind} of that name") from None

        return await self.ask(doing, question)

    async def close(self) -> None:
        """Close its connections; never raises."""
        await self._http.close()
