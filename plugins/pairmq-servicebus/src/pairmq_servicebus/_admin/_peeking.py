"""Showing what a source holds without locking it."""

from __future__ import annotations

from collections.abc import Sequence

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage

from pairmq.model import Delivery, FailureReason, Source, TransportError
from pairmq_servicebus import _codec
from pairmq_servicebus._admin._browsing import browse_oldest
from pairmq_servicebus._admin._positions import Positions
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._lane import Lanes
from pairmq_servicebus._receiving import ReceiveLink, delivery_of, open_receive_link
from pairmq_servicebus._single_consumer import is_queue_itself


class Peek:
    """Shows the messages of one namespace's queues and subscriptions.

    Args:
        namespace: the transport's.
        positions: browses queues with one consumer at a time.
    """

    def __init__(self, namespace: Namespace, positions: Positions) -> None:
        self._namespace = namespace
        self._positions = positions
        self._lanes: Lanes[Source, ReceiveLink] = Lanes(
            namespace, lambda source: open_receive_link(namespace, source, f"look into {source}")
        )

    async def peek(self, source: Source, most: int) -> list[Delivery]:
        """Show the oldest messages; as `BusAdmin.peek`."""
        known = self._namespace.single_consumers
        if is_queue_itself(source) and known.knows(source.entity):
            return [_shown(message) for message in await self._positions.browse(source.entity, most)]
        try:
            return await self._look(source, most)
        except TransportError as error:
            if error.reason is not FailureReason.NOT_SUPPORTED or not is_queue_itself(source):
                raise
            if not await known.learn(source.entity):
                raise
        return await self.peek(source, most)

    async def close(self) -> None:
        """Close its links; never raises."""
        await self._lanes.close()

    async def _look(self, source: Source, most: int) -> list[Delivery]:
        """Show what a receiver's link may look at: of a source with sessions, nothing."""

        async def look(link: ReceiveLink) -> list[Delivery]:
            async def show(first: int, count: int) -> Sequence[ServiceBusReceivedMessage]:
                return await link.client.peek_messages(count, sequence_number=first)

            found = await browse_oldest(show, _is_visible, most)
            return [_shown(message, dead_letter=source.dead_letter) for message in found]

        lane = self._lanes.get(source)
        return await lane.call(look, self._namespace.url.operation_timeout, f"peek into {source}")


def _is_visible(message: ServiceBusReceivedMessage) -> bool:
    return message.state is not ServiceBusMessageState.SCHEDULED


def _shown(message: ServiceBusReceivedMessage, *, dead_letter: bool = False) -> Delivery:
    return delivery_of(message, _codec.decode_leniently(message.raw_amqp_message, dead_letter=dead_letter), None)
