"""Administration: entities are rows, and counts are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import Admin, QueueCounts, QueuePositions, QueueProperties
from pairmq_sqlite._receiver import delivery_of
from pairmq_sqlite._store import Settings, Store, microseconds_of, shown
from pairmq_sqlite._worker import Context

T = TypeVar("T")


class SQLiteAdmin(Admin):
    def __init__(self, context: Context) -> None:
        self._calls = context.calls()

    async def check(self) -> None:
        """Open the file and get hold of its write lock, without writing."""
        await self._run(lambda store: None, "check the file")

    async def exists(self, entity: Entity) -> bool:
        return await self._run(lambda store: store.exists(entity), f"look for {entity}")

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Create a queue or topic; the effect of each setting is in the README.

        ``lock_duration``, ``max_delivery_count``, ``default_time_to_live``, ``dead_letter_on_expiration`` and
        ``single_consumer`` are supported. The others are stored and returned by `properties`, without effect. A lock
        duration of None becomes 60 s: there is no connection that a lock could be bound to.
        """
        doing = f"create {entity}"
        settings = _settings_of(properties or QueueProperties(), doing)
        return await self._run(lambda store: store.create(entity, settings), doing)

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Make a subscription, with the topic's settings. A topic without any drops what it is sent."""
        source = Source(topic, subscription=name)  # checks the name
        return await self._run(lambda store: store.subscribe(topic, name), f"create subscription {source}")

    async def properties(self, entity: Entity) -> QueueProperties:
        settings = await self._run(lambda store: store.settings(entity), f"read the settings of {entity}")
        return QueueProperties.from_json(settings.as_json)

    async def counts(self, source: Source) -> QueueCounts:
        """Count exactly, in one step. Ended locks count as active, expired messages as dead-lettered or gone."""
        return await self._run(lambda store: store.counts(store.place(source)), f"count {source}")

    async def positions(self, entity: Entity) -> QueuePositions:
        """Count exactly, in one step: a message's position is its row's number, which grows throughout the file."""
        return await self._run(lambda store: store.positions(store.place(Source(entity))), f"look how far {entity} is")

    async def delete(self, entity: Entity) -> bool:
        return await self._run(lambda store: store.delete(entity), f"delete {entity}")

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        return await self._run(lambda store: store.entities(prefix), "list the entities")

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages, locked ones too, then the scheduled ones; of a malformed one what can be read."""
        most = max(max_messages, 1)
        rows = await self._run(lambda store: store.peek(store.place(source), most), f"peek into {source}")
        return [delivery_of(row, shown(row.header, row.body)) for row in rows]

    async def purge(self, source: Source) -> int:
        return await self._run(lambda store: store.purge(store.place(source)), f"purge {source}")

    async def probe(self, entity: Entity) -> None:
        """Store a message of 64 KiB and remove it within a transaction, then commit a mark of the transport's own.

        It proves that the file exists and that this user may write it, that no other process keeps it locked, that the
        entity exists, that its tables can take a message within the file's size limit, and, by the mark, that a commit
        reaches the disk now. No consumer ever sees it: the message is removed before the transaction ends.

        It cannot prove that the disk has room for a message: the mark is small, and goes into space that the log may
        have already. A disk that is almost full can pass the probe and refuse the send that follows.
        """
        await self._run(lambda store: store.probe(entity), f"probe {entity}")

    def is_system_entity(self, entity: Entity) -> bool:
        """SQLite has no entities of its own, and this transport makes none: nothing is reserved."""
        return False

    async def _run(self, work: Callable[[Store], T], doing: str) -> T:
        return await self._calls.run(work, doing)


def _settings_of(asked: QueueProperties, doing: str) -> Settings:
    if asked.requires_session:
        text = f"{doing}: requires_session: a SQLite queue can't be read one session at a time"
        raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
    kept = asked.checked(doing)
    count, lives = kept.max_delivery_count, kept.default_time_to_live
    return Settings(
        lock_duration=microseconds_of(kept.lock_duration or 0.0),
        max_delivery_count=None if count is None else int(count),
        default_time_to_live=None if lives is None else microseconds_of(lives),
        dead_letter_on_expiration=kept.dead_letter_on_expiration,
        single_consumer=kept.single_consumer,
        as_json=kept.to_json(),
    )
