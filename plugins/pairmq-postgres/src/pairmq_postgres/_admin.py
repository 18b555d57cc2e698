"""Administration: entities are rows, and counts are exact."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import Admin, ConfirmRisk, QueueCounts, QueuePositions, QueueProperties
from pairmq_postgres import _errors, _sql
from pairmq_postgres._connection import Rows, Statement
from pairmq_postgres._errors import NoSuchEntity, OtherKind, SchemaVersion
from pairmq_postgres._pool import Calls
from pairmq_postgres._receiver import delivery_of, place_of, shown
from pairmq_postgres._schema import VERSION

_PROBE = bytes(64 * 1024)
_SAFE_COMMITS = ("on", "remote_apply")


class PostgresAdmin(Admin):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def check(self) -> None:
        """Read the version of the schema from a server that takes writes."""
        doing = "check the database"
        if await self._run(doing, (_sql.CHECK, {})) != [(VERSION,)]:
            raise self._failure(SchemaVersion(), doing)

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Create a queue or topic; the effect of each setting is in the README.

        ``max_size_megabytes``, ``auto_delete_after`` and ``batched_operations`` are stored and returned by
        `properties`, without effect. A lock duration of None becomes 60 s: no lock here is bound to a connection.
        """
        doing = f"create {entity}"
        if await self._run(doing, (_sql.CREATE, _created(entity, properties or QueueProperties(), doing))):
            return True
        await self._settings(entity, doing)
        return False

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Create a subscription, with the topic's settings. A topic without any discards what it is sent."""
        source = Source(topic, subscription=name)  # checks the name
        ((made,),) = await self._found(f"create subscription {source}", (_sql.SUBSCRIBE, place_of(source)))
        return made is not None

    async def properties(self, entity: Entity) -> QueueProperties:
        return QueueProperties.from_json(await self._settings(entity, f"read the settings of {entity}"))

    async def counts(self, source: Source) -> QueueCounts:
        """Count exactly, in one step. Ended locks count as active, expired messages as dead-lettered or gone.

        All messages of the queue are visited, in an index.
        """
        (row,) = await self._found(f"count {source}", (_sql.COUNTS, place_of(source)))
        return QueueCounts(*row)

    async def positions(self, entity: Entity) -> QueuePositions:
        """Exact, in one step: a message's position is its row's number, which grows throughout the database."""
        doing = f"find how far {entity} has been settled"
        if entity.kind is not EntityKind.QUEUE:
            raise self._failure(NoSuchEntity(), doing)
        (row,) = await self._found(doing, (_sql.POSITIONS, place_of(Source(entity))))
        return QueuePositions(*row)

    async def delete(self, entity: Entity) -> bool:
        ((count,),) = await self._run(f"delete {entity}", (_sql.DELETE, _named(entity)))
        return bool(count)

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        rows = await self._run("list the entities", (_sql.LIST, {"prefix": prefix}))
        return [Entity(path, EntityKind(kind)) for path, kind in rows]

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages, locked ones too, then the scheduled ones; of a malformed one what can be read."""
        place = {**place_of(source), "most": max(max_messages, 1), "worn": None}
        rows = await self._found(f"peek into {source}", (_sql.SWEEP, place), (_sql.PEEK, place))
        return [delivery_of(row, shown(*row[5:7])) for row in rows if row[0] is not None]

    async def purge(self, source: Source) -> int:
        ((count,),) = await self._found(f"purge {source}", (_sql.PURGE, place_of(source)))
        return int(count)

    async def probe(self, entity: Entity) -> None:
        """Store a message of 64 KiB where no consumer looks, and remove it, in one transaction that is committed.

        It proves that a server can be reached that takes writes, that this role may store and remove messages, that the
        entity exists, that there was room for a message, and that a commit reaches the disk, and the standbys that
        commits wait for.

        It cannot prove that there is room for the next one.
        """
        doing = f"probe {entity}"
        if not await self._run(doing, (_sql.PROBE, {**_named(entity), "body": _PROBE}), (_sql.PROBED, {}), at=0):
            raise self._failure(NoSuchEntity(), doing)

    async def confirm_risks(self, queue: Entity | None = None) -> Sequence[ConfirmRisk]:
        """Report what this role's sessions have: settings of the server, the database and the role."""
        if queue is not None:
            return ()
        rows = await self._run("read the server's settings", (_sql.RISKS, {}))
        found: dict[str, str] = dict(rows)
        risks = []
        if found.get("synchronous_commit") not in _SAFE_COMMITS:
            text = f"synchronous_commit is {found.get('synchronous_commit')}: a crash may lose what was just confirmed"
            risks.append(ConfirmRisk(text, "set it to on, for the server, the database or the role"))
        for name in ("fsync", "full_page_writes"):
            if found.get(name) != "on":
                text = f"{name} is {found.get(name)}: a power failure may lose or damage the whole database"
                risks.append(ConfirmRisk(text, "set it to on in postgresql.conf"))
        if not self._calls.pool.url.listen:
            seconds = self._calls.pool.url.poll_interval
            text = f"listen is false: receivers are not notified, and find a message up to {seconds:g} s late"
            risks.append(ConfirmRisk(text, "nothing is lost by it; connect without PgBouncer's transaction mode"))
        return risks

    async def _settings(self, entity: Entity, doing: str) -> str:
        rows = await self._found(doing, (_sql.SETTINGS, {"path": entity.path}))
        ((kind, settings),) = rows
        if kind != entity.kind.value:
            raise self._failure(OtherKind() if doing.startswith("create") else NoSuchEntity(), doing)
        return str(settings)

    async def _found(self, doing: str, *statements: Statement) -> Rows:
        """Run statements, of which the last one has a row for whatever exists."""
        rows = await self._run(doing, *statements)
        if not rows:
            raise self._failure(NoSuchEntity(), doing)
        return rows

    async def _run(self, doing: str, *statements: Statement, at: int = -1) -> Rows:
        return (await self._calls.run(doing, *statements))[at]

    def _failure(self, error: BaseException, doing: str) -> TransportError:
        return _errors.failure(error, doing)


def _named(entity: Entity) -> dict[str, Any]:
    return {"path": entity.path, "kind": entity.kind.value}


def _created(entity: Entity, asked: QueueProperties, doing: str) -> dict[str, Any]:
    kept = asked.checked(doing)
    if kept.requires_session and kept.single_consumer:
        text = f"{doing}: requires_session and single_consumer: a session has a single consumer anyway"
        raise TransportError(text, FailureKind.REFUSED, FailureReason.MALFORMED)
    count, lives = kept.max_delivery_count, kept.default_time_to_live
    return {
        **_named(entity),
        "lock_duration": timedelta(seconds=kept.lock_duration or 0.0),
        "max_delivery_count": None if count is None else int(count),
        "default_time_to_live": None if lives is None else timedelta(seconds=lives),
        "dead_letter_on_expiration": kept.dead_letter_on_expiration,
        "requires_session": kept.requires_session,
        "single_consumer": kept.single_consumer,
        "settings": kept.to_json(),
    }
