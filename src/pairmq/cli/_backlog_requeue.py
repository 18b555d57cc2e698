"""Brings dead-lettered messages of one backlog queue back into it: send, confirm, complete."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pairmq.cli._common import within
from pairmq.cli._output import warn
from pairmq.cli._signals import Stop
from pairmq.cli._values import plural
from pairmq.model import Delivery, Entity, Source
from pairmq.transport import Transport

_BATCH = 100


async def requeue_queue(transport: Transport, queue: Entity, time_limit: float, stop: Stop) -> AsyncIterator[int]:
    """Move everything that is in the queue's dead-letter queue now, or until a signal.

    Args:
        transport: the secondary's.
        queue: the backlog queue.
        time_limit: seconds of one operation.
        stop: ends it between two batches.

    Yields:
        How many messages were moved, batch by batch.

    Raises:
        TransportError: a message could not be sent, or the queue not be read; what was not confirmed is left where it
            is.
    """
    source = Source(queue, dead_letter=True)
    # What a running syphon sets aside again meanwhile is not moved a second time: it would never end.
    left = (await within(time_limit, transport.admin.counts(Source(queue)))).dead_letter
    receiver, sender = transport.receiver(source), transport.sender(queue)
    try:
        while left > 0 and not stop.asked:
            deliveries = await within(time_limit, receiver.receive(min(_BATCH, left), 0))
            if not deliveries:
                return
            left -= len(deliveries)
            results = await within(time_limit, sender.send_batch([one.message for one in deliveries]))
            sent: list[Delivery] = []
            failure = None
            for delivery, result in zip(deliveries, results, strict=True):
                if result is None:
                    sent.append(delivery)
                else:
                    failure = result
            completed = await within(time_limit, receiver.complete_batch(sent)) if sent else ()
            twice = sum(1 for result in completed if result is not None)
            if twice:
                warn(f"{queue}: {plural(twice, 'message')} requeued but not removed, so that a second copy is left")
            yield len(sent)
            if failure is not None:
                raise failure
    finally:
        await receiver.close()
        await sender.close()
