"""What messages are sent to and read from: entities and sources."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

MAX_PATH_LENGTH = 260
"""Longest entity path in characters, which is Service Bus's limit, the widest of the brokers that PairMQ pairs."""

# Patterns of allowed_entities use these letters (SPEC 5.8); a path with one would look like a pattern.
_PATTERN_LETTERS = frozenset("*?[]\\")


class EntityKind(enum.StrEnum):
    """The two shapes of an entity."""

    QUEUE = "queue"
    TOPIC = "topic"


_QUEUE = EntityKind.QUEUE  # to look one up takes a call


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue or topic of a broker, named by its path; all failover state is kept per entity (SPEC 1).

    Args:
        path: 1 to 260 characters in segments separated by ``/``; no control characters, no empty, ``.`` or ``..``
            segment, none of ``* ? [ ] \\``.
        kind: queue (the default) or topic, also as the text ``"queue"`` or ``"topic"``.

    Raises:
        ValueError: the path breaks one of these rules; the text names the rule.
    """

    path: str
    kind: EntityKind = EntityKind.QUEUE

    if TYPE_CHECKING:  # what the generated constructor accepts, by way of `__post_init__`

        def __init__(self, path: str, kind: EntityKind | Literal["queue", "topic"] = EntityKind.QUEUE) -> None: ...

    def __post_init__(self) -> None:
        problem = _path_problem(self.path)
        if problem:
            raise ValueError(f"entity path {_shown(self.path)}: {problem}")
        if type(self.kind) is not EntityKind:
            try:
                object.__setattr__(self, "kind", EntityKind(self.kind))
            except ValueError:
                raise ValueError(f"entity kind {self.kind!r}: use 'queue' or 'topic'") from None

    def __str__(self) -> str:
        return self.path if self.kind is _QUEUE else f"{self.kind}:{self.path}"


@dataclass(frozen=True, slots=True)
class Source:
    """What a receiver reads: a queue, a subscription of a topic, or the dead-letter queue of either.

    Args:
        entity: the queue or topic.
        subscription: the subscription's name; required for a topic, refused for a queue.
        dead_letter: read the dead-letter queue of it instead.

    Raises:
        ValueError: a topic without a subscription, or a queue with one.
    """

    entity: Entity
    subscription: str | None = None
    dead_letter: bool = False

    def __post_init__(self) -> None:
        if self.entity.kind is EntityKind.TOPIC:
            if not self.subscription:
                raise ValueError(f"topic {self.entity.path!r} is read through a subscription: name one")
            problem = _path_problem(self.subscription)
            if problem:
                raise ValueError(f"subscription {_shown(self.subscription)}: {problem}")
        elif self.subscription is not None:
            raise ValueError(f"queue {self.entity.path!r} has no subscriptions: omit it, or use kind='topic'")

    def __str__(self) -> str:
        name = self.entity.path if self.subscription is None else f"{self.entity.path}/{self.subscription}"
        return f"{name} (dead-letter)" if self.dead_letter else name


def _path_problem(path: object) -> str | None:
    """Return what is wrong with a path, or None."""
    if not isinstance(path, str):
        return f"is a {type(path).__name__}: give a string"
    if not path:
        return "is empty: name the queue or topic"
    if len(path) > MAX_PATH_LENGTH:
        return f"has {len(path)} characters: at most {MAX_PATH_LENGTH} are allowed"
    if not path.isprintable():
        return "holds a control or unprintable character: remove it"
    if not _PATTERN_LETTERS.isdisjoint(path):
        return "holds one of * ? [ ] \\, which are reserved for patterns: remove it"
    if any(segment in ("", ".", "..") for segment in path.split("/")):
        return "has an empty, '.' or '..' segment: write it as name or folder/name"
    return None


def _shown(path: object) -> str:
    text = repr(path)
    if "://" in text:  # a broker's URL in the wrong place may hold a password
        return "that is a URL"
    return text if len(text) <= 80 else f"{text[:60]}…"
