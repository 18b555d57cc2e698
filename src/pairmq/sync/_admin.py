"""The administration of a pair's brokers for programs without asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pairmq import pair as asynchronous
from pairmq.model import Delivery, Entity, Source
from pairmq.sync._loop import run
from pairmq.transport import Admin as AsynchronousAdmin
from pairmq.transport import Endpoint, QueueCounts, QueueProperties, Transport

T = TypeVar("T")


class Side:
    """One of a pair's two brokers.

    Args:
        attached: gives the open pair.
        of: its transport.
        endpoint: the broker.
    """

    def __init__(
        self,
        attached: Callable[[], Awaitable[asynchronous.Pair]],
        of: Callable[[asynchronous.Pair], Transport],
        endpoint: Endpoint,
    ) -> None:
        self._attached = attached
        self._of = of
        self._endpoint = endpoint

    @property
    def endpoint(self) -> Endpoint:
        """The broker."""
        return self._endpoint

    @property
    def admin(self) -> Admin:
        """Its administration."""

        async def admin() -> AsynchronousAdmin:
            return self._of(await self._attached()).admin

        return Admin(admin)

    def __repr__(self) -> str:
        return f"Side({self._endpoint.url!r})"


class Admin:
    """Manages a broker's entities; every method as that of `pairmq.transport.Admin`, blocking.

    Args:
        attached: gives the administration of the open pair's transport.
    """

    def __init__(self, attached: Callable[[], Awaitable[AsynchronousAdmin]]) -> None:
        self._attached = attached

    def check(self) -> None:
        """Make one round trip to the broker."""
        self._run(lambda admin: admin.check())

    def exists(self, entity: Entity) -> bool:
        """Return whether the entity exists."""
        return self._run(lambda admin: admin.exists(entity))

    def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Make a queue or topic, durable; an existing one is left as it is, and False returned.

        Args:
            entity: what to make.
            properties: settings; None for the broker's defaults with peek-lock and dead-lettering.

        Raises:
            TransportError: it could not be made.
        """
        return self._run(lambda admin: admin.create(entity, properties))

    def create_subscription(self, topic: Entity, name: str) -> bool:
        """Make a subscription of a topic that gets every message from now on; as `create`."""
        return self._run(lambda admin: admin.create_subscription(topic, name))

    def properties(self, entity: Entity) -> QueueProperties:
        """Read a queue's settings."""
        return self._run(lambda admin: admin.properties(entity))

    def counts(self, source: Source) -> QueueCounts:
        """Count what a queue or subscription holds."""
        return self._run(lambda admin: admin.counts(source))

    def delete(self, entity: Entity) -> bool:
        """Delete an entity with all it holds; False when it did not exist."""
        return self._run(lambda admin: admin.delete(entity))

    def list_entities(self, prefix: str = "") -> list[Entity]:
        """List the entities whose path starts with ``prefix``."""
        return self._run(lambda admin: admin.list_entities(prefix))

    def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages without locking or changing them."""
        return self._run(lambda admin: admin.peek(source, max_messages))

    def purge(self, source: Source) -> int:
        """Delete the messages of a queue or dead-letter queue, and return their number."""
        return self._run(lambda admin: admin.purge(source))

    def probe(self, entity: Entity) -> None:
        """Find out whether the entity accepts writes, in a way that no consumer sees."""
        self._run(lambda admin: admin.probe(entity))

    def _run(self, operation: Callable[[AsynchronousAdmin], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            return await operation(await self._attached())

        return run(asked())
