"""Administration: entities are keys, settings are a hash, counts are exact."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import Admin, ConfirmRisk, QueueCounts, QueuePositions, QueueProperties, Scope
from pairmq_redis import _codec, _errors, _scripts
from pairmq_redis._context import Context
from pairmq_redis._keys import META_PATTERN, QUEUE_GROUP, EntityKeys, SourceKeys, path_of
from pairmq_redis._receiver import delivery_of
from pairmq_redis._scripts import Script
from pairmq_redis._wire import Command, Reply

_SCAN_STEP = b"1000"


class RedisAdmin(Admin):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._scope = Scope(context.scope)

    async def check(self) -> None:
        await self._everywhere("check the connection", (b"PING",))

    async def exists(self, entity: Entity) -> bool:
        keys = EntityKeys(entity)
        doing = f"look for {entity}"
        kind, stream = await self._context.run(
            self._context.control, self._scope, [(b"HGET", keys.meta, b"kind"), (b"EXISTS", keys.stream)], doing
        )
        if kind != entity.kind.value.encode():
            return False
        return entity.kind is EntityKind.TOPIC or bool(stream)

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Create a queue or topic; the effect of each setting in Redis is in the README.

        ``lock_duration``, ``max_delivery_count``, ``default_time_to_live``, ``dead_letter_on_expiration``
        and, for a queue, ``single_consumer`` are supported. The others are stored and returned by `properties`, and
        have no effect: Redis has no quota for one stream, deletes no idle one, and always batches. A lock
        duration of None becomes 60 s, since no lock here is bound to a connection.
        """
        keys = EntityKeys(entity)
        doing = f"create {entity}"
        asked = properties or QueueProperties()
        if asked.requires_session:
            text = f"{doing}: requires_session: a Redis queue can't be read one session at a time"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        kept = asked.checked(doing)
        lock_ms = math.ceil((kept.lock_duration or 0.0) * 1000)
        count, ttl = kept.max_delivery_count, kept.default_time_to_live
        arguments = [
            entity.kind.value.encode(),
            b"%d" % lock_ms,
            b"" if count is None else b"%d" % count,
            b"" if ttl is None else repr(float(ttl)).encode(),
            b"1" if kept.dead_letter_on_expiration else b"0",
            kept.to_json().encode(),
            QUEUE_GROUP,
            b"1" if kept.single_consumer else b"0",
        ]
        all_keys = (keys.stream, keys.dead, keys.meta)
        return bool(await self._script(_scripts.CREATE, all_keys, arguments, doing, replicate=True))

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Create a subscription. A topic without any discards what it is sent, as no subscription would keep it."""
        source = SourceKeys(Source(topic, subscription=name))
        stream, dead, meta, _, _ = source.keys
        doing = f"create subscription {source.source}"
        arguments = [source.group, QUEUE_GROUP]
        return bool(await self._script(_scripts.SUBSCRIBE, (stream, dead, meta), arguments, doing, replicate=True))

    async def properties(self, entity: Entity) -> QueueProperties:
        keys = EntityKeys(entity)
        doing = f"read the settings of {entity}"
        kind, stored = await self._run(doing, (b"HMGET", keys.meta, b"kind", b"settings"))
        if kind != entity.kind.value.encode():
            raise _errors.not_found(doing)
        return QueueProperties.from_json(stored)

    async def counts(self, source: Source) -> QueueCounts:
        """Count exactly, in one step. Ended locks count as active, and so do expired messages until a
        receiver finds them.

        For a topic, ``scheduled`` counts the whole topic's, and ``active`` is found by walking over what the
        subscription has not read.
        """
        active, locked, scheduled, dead = await self._source_script(_scripts.COUNT, source, f"count {source}")
        return QueueCounts(active=active, locked=locked, scheduled=scheduled, dead_letter=dead)

    async def positions(self, entity: Entity) -> QueuePositions:
        """The positions are ids of the queue's stream, from which an entry is removed once settled. Exact, in one step.

        A scheduled message has no position before it is due.
        """
        doing = f"look at {entity}"
        oldest, newest = await self._source_script(_scripts.POSITIONS, Source(entity), doing)
        return QueuePositions(_position(oldest) if oldest else None, _position(newest))

    async def delete(self, entity: Entity) -> bool:
        keys = EntityKeys(entity)
        all_keys = (keys.stream, keys.dead, keys.meta, keys.due, keys.waiting)
        return bool(await self._script(_scripts.DELETE, all_keys, [entity.kind.value.encode()], f"delete {entity}"))

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        escaped = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix).encode()
        pattern = META_PATTERN.replace(b"{*", b"{" + escaped + b"*")
        doing = "list the entities"
        found = set[bytes]()
        for node in await self._context.nodes(self._scope, doing):
            cursor = b"0"
            while True:
                scan = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _SCAN_STEP, b"TYPE", b"hash")
                cursor, keys = (await self._context.run(node, self._scope, [scan], doing))[0]
                cursor = cursor if isinstance(cursor, bytes) else b"%d" % cursor
                found.update(keys)
                if cursor == b"0":
                    break
        if not found:
            return []
        metas = sorted(found)
        kinds = await self._context.run(
            self._context.control, self._scope, [(b"HGET", meta, b"kind") for meta in metas], doing
        )
        entities = [_entity_of(path_of(meta), kind) for meta, kind in zip(metas, kinds, strict=True)]
        return sorted((e for e in entities if e and e.path.startswith(prefix)), key=lambda entity: entity.path)

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages, locked ones too, then the scheduled ones; a malformed one shows raw fields."""
        wanted = b"%d" % max(max_messages, 1)
        entries = await self._source_script(_scripts.PEEK, source, f"peek into {source}", wanted)
        return [delivery_of(id_, _codec.decode_leniently(fields), fields, None) for id_, fields in entries]

    async def purge(self, source: Source) -> int:
        return int(await self._source_script(_scripts.PURGE, source, f"purge {source}"))

    async def probe(self, entity: Entity) -> None:
        """Write a message to the entity's own stream and remove it, in one script.

        It proves that the server is reachable and accepts this user, that the entity exists and is of this
        kind, and that the server accepts writes to this very stream at this moment: out of memory, a full or
        failing disk (``MISCONF``), a master turned replica and a revoked permission refuse the script just
        as they refuse a send. With ``wait_replicas`` it proves that so many replicas follow. No consumer
        ever sees it: readers are served only after a script has ended.

        It cannot prove that the next, larger message fits into memory, nor that what is written now is on
        the disk (see ``appendfsync``), nor that this server is still the master that other clients see.
        """
        keys = EntityKeys(entity)
        kind = entity.kind.value.encode()
        await self._script(_scripts.PROBE, (keys.stream, keys.meta), [kind], f"probe {entity}", replicate=True)

    async def confirm_risks(self, queue: Entity | None = None) -> Sequence[ConfirmRisk]:
        """Check the server's persistence, eviction and replication; a queue has no risks of its own."""
        if queue is not None:
            return ()
        doing = "read the server's settings"
        try:
            settings_of = ((b"CONFIG", b"GET", name) for name in (b"appendfsync", b"save"))
            nodes = await self._everywhere(doing, (b"INFO", b"everything"), *settings_of)
        except TransportError as error:
            if error.kind is not FailureKind.REFUSED:
                raise
            text = (
                f"this user may not read the server's settings, so that it is unknown what a confirm is worth: {error}"
            )
            return (ConfirmRisk(text, "allow it CONFIG GET and INFO, or check appendonly and maxmemory-policy"),)
        risks: dict[ConfirmRisk, None] = {}  # of all nodes of a cluster, each once
        for info, *settings in nodes:
            appendfsync, save = (each[1].decode() if isinstance(each, list) and each[1:] else "" for each in settings)
            found = _risks(_sections(info), appendfsync, save, self._context.url.wait_replicas)
            risks.update(dict.fromkeys(found))
        return tuple(risks)

    async def _run(self, doing: str, command: Command) -> Reply:
        return (await self._context.run(self._context.control, self._scope, [command], doing))[0]

    async def _everywhere(self, doing: str, *commands: Command) -> list[list[Reply]]:
        """Run commands at each server; replies by server."""
        nodes = await self._context.nodes(self._scope, doing)
        return [await self._context.run(node, self._scope, commands, doing) for node in nodes]

    async def _script(
        self, script: Script, keys: tuple[bytes, ...], arguments: list[bytes], doing: str, *, replicate: bool = False
    ) -> Reply:
        return await self._context.script(
            self._context.control, self._scope, script, keys, arguments, doing, replicate=replicate
        )

    async def _source_script(self, script: Script, source: Source, doing: str, *arguments: bytes) -> Reply:
        keys = SourceKeys(source)
        kind = (await self._run(doing, (b"HGET", keys.keys[2], b"kind"))) if source.dead_letter else None
        if kind is not None and kind != source.entity.kind.value.encode():
            raise _errors.not_found(doing)
        return await self._script(script, keys.keys, [keys.mode, keys.group, b"", *arguments], doing)


def _sections(info: Reply) -> dict[str, str]:
    lines = info.decode("utf-8", "replace").splitlines() if isinstance(info, bytes) else ()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _risks(info: dict[str, str], appendfsync: str, save: str, wait_replicas: int) -> Iterator[ConfirmRisk]:
    if info.get("aof_enabled") == "0":
        kept = f"all since the last snapshot (save {save})" if save else "everything, as it makes no snapshots either"
        text = f"appendonly is no: a server that ends loses {kept}"
        yield ConfirmRisk(text, "CONFIG SET appendonly yes, and in its configuration file")
    elif appendfsync and appendfsync != "always":
        much = "the last second" if appendfsync == "everysec" else "the last half minute or so"
        text = f"appendfsync is {appendfsync}: a machine that crashes or loses power loses {much}"
        yield ConfirmRisk(text, "CONFIG SET appendfsync always, which makes each send wait for the disk, or accept it")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        # Queues never expire, so the volatile policies evict only the claims of deduplicators.
        victims = "claims of deduplicators" if policy.startswith("volatile-") else "whole queues"
        when = "when it is full" if info.get("maxmemory", "0") != "0" else "as soon as maxmemory is set"
        text = f"maxmemory-policy is {policy}: {when}, the server deletes {victims}"
        yield ConfirmRisk(text, "CONFIG SET maxmemory-policy noeviction: a full server then refuses sends")
    if info.get("role") == "master" and info.get("connected_slaves", "0") != "0" and not wait_replicas:
        text = "it has replicas, and confirms before they have a message: a failover may lose the last ones"
        yield ConfirmRisk(text, "add ?wait_replicas=1 to its URL")


def _position(id_: bytes) -> int:
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds) << 64 | int(number)


def _entity_of(path: str | None, kind: bytes | None) -> Entity | None:
    try:
        return Entity(path or "", EntityKind((kind or b"").decode()))
    except ValueError:
        return None  # another program's key
