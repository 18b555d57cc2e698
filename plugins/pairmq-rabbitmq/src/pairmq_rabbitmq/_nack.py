"""What it means that the broker did not take a message that it had read.

A queue that is full and rejects says so with a nack, and so does one whose process failed: the first has certainly not
stored the message, the second may have. Which queues reject is found out from their settings.
"""

from __future__ import annotations

import asyncio

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, TransportError
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._interrogation import interrogate
from pairmq_rabbitmq._properties import OVERFLOW

_TRUSTED = 60.0  # s


async def why_nacked(context: Context, entity: Entity, doing: str) -> TransportError:
    """Say why the broker did not take a message for an entity.

    How many messages the queue holds is kept for the probe. Of a topic's queues others may have taken the
    message.

    Args:
        context: of the transport.
        entity: where it should have gone.
        doing: in words, for the error.

    Returns:
        The error, in doubt unless the queue is known to reject what has no room.
    """
    text = f"{doing}: the broker rejected it"
    unavailable, quota = FailureKind.UNAVAILABLE, FailureReason.QUOTA
    if entity.kind is EntityKind.TOPIC:
        return TransportError(
            f"{text}: a queue that is bound to the topic is full", unavailable, quota, maybe_applied=True
        )
    try:
        waiting, _ = await context.count(entity.path, doing)
        rejects = await _rejects(context, entity.path, doing)
    except TransportError as error:
        return TransportError(f"{text}, and then {error}", unavailable, maybe_applied=True)
    context.full[entity.path] = max(waiting, context.full.get(entity.path, 0))
    if rejects:
        context.full_until.pop(entity.path, None)
        return TransportError(f"{text}: the queue is full (overflow is reject-publish)", unavailable, quota)
    # Of a queue that has failed the number says nothing about room: the probe shall not wait for ever.
    context.full_until[entity.path] = asyncio.get_running_loop().time() + _TRUSTED
    return TransportError(
        f"{text}: the queue is full, by a policy, or has failed", unavailable, quota, maybe_applied=True
    )


async def _rejects(context: Context, queue: str, doing: str) -> bool:
    """Whether a queue is known to reject what has no room; a policy that says so can't be seen."""
    now = asyncio.get_running_loop().time()
    rejects, until = context.rejecting.get(queue, (False, 0.0))
    if now >= until:
        try:
            found = await interrogate(context, queue, {OVERFLOW: "reject-publish"}, doing)
            rejects = found.arguments.get(OVERFLOW) == "reject-publish"
        except TransportError as error:
            if error.kind is not FailureKind.REFUSED:  # this user may not ask
                raise
            rejects = False
        context.rejecting[queue] = (rejects, now + _TRUSTED)
    return rejects
