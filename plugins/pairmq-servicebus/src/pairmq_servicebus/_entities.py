"""Entities: what Service Bus takes as a path, and queues with one consumer at a time (SPEC 8.2).

The rules for paths: Service Bus documentation, "Quotas" and "Naming rules for Microsoft.ServiceBus". Queues with one
consumer are queues that require sessions, used with one session for everything.

Service Bus delivers the messages of a session to one receiver at a time, in their order, and redelivers what that one
abandons before anything newer (Service Bus documentation: "Message sessions"). So such a queue is created with
``requires_session``, all that PairMQ sends there has the session id `SESSION`, and its receivers accept that session. A
message's own session id is stored separately, see `pairmq_servicebus._codec`.

A queue of this kind is marked in its user metadata. A transport knows those that it created or read the settings of; it
learns of the others when the service refuses a message or a receiver without a session.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from pairmq.model import Entity, EntityKind, FailureReason, Source, TransportError
from pairmq_servicebus import _errors

SESSION: Final = "x-pairmq-single-consumer"
"""The session id of all messages in such a queue."""

MARKER: Final = "application/vnd.pairmq.marker"
"""The content type of markers, which are no messages and never handed out: see `pairmq_servicebus._contents`."""

METADATA: Final = "pairmq: single-consumer"
"""What the user metadata of such a queue holds, among whatever else its owner writes there."""


class SingleConsumers:
    def __init__(self) -> None:
        self._known: dict[Entity, bool] = {}
        self.with_sessions: set[Entity] = set()
        """Queues whose messages need a session id of their own, as far as their settings were read."""
        self.ask: Callable[[Entity], Awaitable[object]] | None = None
        """Reads an entity's settings, and reports them to `note`; the administration sets it."""

    def note(self, entity: Entity, single_consumer: bool, *, requires_session: bool = False) -> None:
        self._known[entity] = single_consumer
        (self.with_sessions.add if requires_session else self.with_sessions.discard)(entity)

    def forget(self, entity: Entity) -> None:
        """The queue is gone, or another one than it was."""
        self._known.pop(entity, None)
        self.with_sessions.discard(entity)

    def knows(self, entity: Entity) -> bool:
        return self._known.get(entity, False)

    @property
    def any(self) -> bool:
        return any(self._known.values())

    async def learn(self, entity: Entity) -> bool:
        """Find out whether a queue that refuses what has no session is one of these; False if that is unknown."""
        if entity.kind is EntityKind.QUEUE and self.ask is not None and not self.knows(entity):
            try:
                await self.ask(entity)
            except TransportError:
                return False
        return self.knows(entity)


def is_queue_itself(source: Source) -> bool:
    """Whether a source is a queue, and no dead-letter queue or subscription: those have no sessions of ours."""
    return source.entity.kind is EntityKind.QUEUE and source.subscription is None and not source.dead_letter


MAX_SUBSCRIPTION_LENGTH: Final = 50

_PATH = re.compile(r"[A-Za-z0-9._~/-]+")
_SUBSCRIPTION = re.compile(r"[A-Za-z0-9._-]+")


def is_system(path: str) -> bool:
    """Whether a segment begins with ``$``, which is the service's own: ``$management``, ``$DeadLetterQueue``."""
    return any(segment.startswith("$") for segment in path.split("/"))


def check(entity: Entity, subscription: str | None = None) -> None:
    """Refuse a path that the service would refuse, as *malformed*; the text names the rule."""
    if not _PATH.fullmatch(entity.path):
        text = "Service Bus' paths have letters, digits and . - _ ~ in segments separated by /"
        raise _errors.refused(f"entity {entity}", text, FailureReason.MALFORMED)
    if subscription is not None and (
        not _SUBSCRIPTION.fullmatch(subscription) or len(subscription) > MAX_SUBSCRIPTION_LENGTH
    ):
        text = f"subscriptions' names have 1 to {MAX_SUBSCRIPTION_LENGTH} letters, digits and . - _"
        raise _errors.refused(f"subscription {subscription}", text, FailureReason.MALFORMED)


def check_source(source: Source) -> None:
    """Refuse a source that the service would refuse; as `check`."""
    check(source.entity, source.subscription)
