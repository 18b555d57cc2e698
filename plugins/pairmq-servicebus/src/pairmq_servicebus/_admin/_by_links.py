"""What a key that may only send or listen can find out of an entity: whether links can be attached to it."""

from __future__ import annotations

from pairmq.model import Entity, EntityKind, FailureReason, Source, TransportError
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._lane import OpenLink
from pairmq_servicebus._receiving import open_receive_link
from pairmq_servicebus._sender import open_send_link


async def has_link(namespace: Namespace, entity: Entity, doing: str) -> bool:
    """Whether a link can be attached to it, for sending, or for a key that may only listen, for receiving.

    Raises:
        TransportError: it can't be told.
    """
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
    """Whether a queue requires sessions, which shows when a receiver without one is refused.

    Raises:
        TransportError: it can't be told.
    """
    try:
        link = await open_receive_link(namespace, Source(queue), doing)
    except TransportError as error:
        if error.reason is not FailureReason.NOT_SUPPORTED:
            raise
        return True
    namespace.spawn(link.close())
    return False
