"""Opening a link to receive on, as its source wants it."""

from __future__ import annotations

from pairmq.model import FailureReason, Source, TransportError
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._receiving._consumer_link import open_consumer_link
from pairmq_servicebus._receiving._link import ReceiveLink, open_client
from pairmq_servicebus._single_consumer import is_queue_itself


async def open_receive_link(namespace: Namespace, source: Source, doing: str) -> ReceiveLink:
    """Open a link to receive on.

    Raises:
        TransportError: it can't be opened.
    """
    return ReceiveLink(namespace, *await open_client(namespace, source, doing))


async def open_link(namespace: Namespace, source: Source, doing: str) -> ReceiveLink:
    """Open a link to receive on, as the source wants it: as its only consumer where it is such a queue.

    Raises:
        TransportError: it can't be opened.
    """
    known, queue = namespace.single_consumers, source.entity
    if not is_queue_itself(source):
        return await open_receive_link(namespace, source, doing)
    if not known.knows(queue):
        try:
            return await open_receive_link(namespace, source, doing)
        except TransportError as error:
            if error.reason is not FailureReason.NOT_SUPPORTED or not await known.learn(queue):
                raise
    try:
        return await open_consumer_link(namespace, source, doing)
    except TransportError as error:
        if error.reason in (FailureReason.NOT_SUPPORTED, FailureReason.NOT_FOUND):
            known.forget(queue)  # it was made anew, as another kind of queue
        raise
