"""The keys of an entity in Redis.

Every key of one entity holds the same ``{path}``, so that Redis keeps them together (a *hash tag*) and one
Lua script may use them all. Curly brackets in a path would end the tag early, or let one entity's keys run
into another's, and are refused. A queue's and a topic's stream have different names, so that a sender of
the wrong kind finds no stream and gets an error, at no cost.

===========================  ======================================================================
``pairmq:{orders}:meta``     hash: kind and settings; the entity exists when this does
``pairmq:{orders}:queue``    stream of a queue's messages (``:topic`` for a topic), with its consumer groups
``pairmq:{orders}:dead``     stream of dead-lettered messages (``:dead:name`` for a subscription)
``pairmq:{orders}:waiting``  stream of scheduled messages
``pairmq:{orders}:due``      sorted set: id in ``waiting``, by the instant it is due in ms
===========================  ======================================================================
"""

from __future__ import annotations

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Source, TransportError

META_PATTERN = b"pairmq:{*}:meta"
"""Matches every entity's meta key."""

QUEUE_GROUP = b"pairmq"
"""The consumer group of queues and dead-letter queues; a subscription's group has the subscription's name."""

_BRACKETS = frozenset("{}")


class EntityKeys:
    """The keys of one entity; reason *malformed* when its path holds a curly bracket."""

    __slots__ = ("dead", "due", "entity", "meta", "stream", "waiting")

    def __init__(self, entity: Entity) -> None:
        _check_brackets(entity.path)
        base = f"pairmq:{{{entity.path}}}:".encode()
        self.entity = entity
        self.meta = base + b"meta"
        self.stream = base + entity.kind.value.encode()
        self.dead = base + b"dead"
        self.waiting = base + b"waiting"
        self.due = base + b"due"

    def dead_of(self, subscription: str) -> bytes:
        return self.dead + b":" + subscription.encode()


class SourceKeys:
    """What the scripts that read a source need: its keys, its mode and its consumer group. Raises as `EntityKeys`."""

    __slots__ = ("group", "keys", "mode", "source", "stream")

    def __init__(self, source: Source) -> None:
        entity = EntityKeys(source.entity)
        self.source = source
        dead = entity.dead
        self.group = QUEUE_GROUP
        if source.subscription is not None:
            _check_brackets(source.subscription)
            dead = entity.dead_of(source.subscription)
            if not source.dead_letter:
                self.group = source.subscription.encode()
        if source.dead_letter:
            self.mode = b"dead"
        else:
            self.mode = b"topic" if source.entity.kind is EntityKind.TOPIC else b"queue"
        self.stream = dead if source.dead_letter else entity.stream
        self.keys = (self.stream, dead, entity.meta, entity.due, entity.waiting)


def path_of(meta_key: bytes) -> str | None:
    """Parse an entity's path from its meta key; None when it is not one."""
    prefix, suffix = b"pairmq:{", b"}:meta"
    if not (meta_key.startswith(prefix) and meta_key.endswith(suffix)):
        return None
    return meta_key[len(prefix) : -len(suffix)].decode(errors="replace")


def _check_brackets(path: str) -> None:
    if not _BRACKETS.isdisjoint(path):
        raise TransportError(
            "the name holds { or }, which Redis uses to keep keys together: use other characters",
            FailureKind.REFUSED,
            FailureReason.MALFORMED,
        )
