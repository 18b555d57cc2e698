"""Many queues counted by one call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pairmq.model import Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.transport._transport import Transport
from pairmq.transport._values import QueueCounts

_AT_ONCE = 8


async def counts_of(
    transport: Transport, queues: Sequence[Entity], time_limit: float
) -> tuple[QueueCounts | TransportError, ...]:
    """Count every queue, a few at a time; one that fails keeps nobody from knowing the others.

    Args:
        transport: the queues' broker.
        queues: which.
        time_limit: seconds for each.

    Returns:
        For each queue, in the same order, what it holds, or why it could not be asked.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(queue: Entity) -> QueueCounts | TransportError:
        async with turns:
            try:
                async with asyncio.timeout(time_limit):
                    return await transport.admin.counts(Source(queue))
            except TransportError as error:
                return error
            except TimeoutError:
                text = f"no answer within {time_limit:g} s"
                return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)

    return tuple(await asyncio.gather(*(one(queue) for queue in queues)))
