"""How far a queue with one consumer at a time has been settled (SPEC 8.3), by browsing it behind a marker.

Browsing shows what a queue holds in the order of its sequence numbers, messages that somebody has locked and scheduled
ones included (Service Bus documentation: "Message browsing"). But what it does *not* show proves nothing: it reads the
log of the queue, is meant for diagnosis, and has been seen to show less than there was. So a look first schedules a
marker, whose sequence number the service tells at once, and then browses until it comes to it. What stands before the
marker is all that is not settled; when the marker itself does not appear, the look has failed and tells nothing.

The marker's number is greater than that of every message that was confirmed before. It is cancelled when the look is
over. One that was left behind, by a process that was killed in that moment, becomes an ordinary message half a minute
later, which receivers complete and hand to nobody.
"""

from __future__ import annotations

import contextlib
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusSender

from pairmq.model import Entity, FailureKind, FailureReason, TransportError
from pairmq.transport import QueuePositions
from pairmq_servicebus import _codec, _private
from pairmq_servicebus._admin._browsing import MOST_SHOWN, browse_oldest
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._lane import Lanes
from pairmq_servicebus._sender import ClientSendLink, open_send_link
from pairmq_servicebus._single_consumer import MARKER, SESSION

_DUE_IN = timedelta(seconds=30)  # a look is over long before, and clocks differ by less


class Positions:
    """Looks into the queues of one namespace.

    Args:
        namespace: the transport's.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._lanes: Lanes[Entity, ClientSendLink] = Lanes(
            namespace, lambda queue: open_send_link(namespace, queue, f"look at {queue}")
        )

    async def look(self, queue: Entity) -> QueuePositions:
        """Tell how far a queue with one consumer at a time has been settled.

        Raises:
            TransportError: the service could not be asked, or did not show all that the queue holds. A cancelled look
                may leave a marker behind.
        """

        async def ask(link: ClientSendLink) -> QueuePositions:
            return await _look(link.client, queue)

        lane = self._lanes.get(queue)
        return await lane.call(ask, self._namespace.url.operation_timeout, f"look at {queue}")

    async def browse(self, queue: Entity, most: int) -> list[ServiceBusReceivedMessage]:
        """Show the oldest messages, locked and deferred ones included, scheduled ones and markers not.

        Raises:
            TransportError: the service could not be asked.
        """

        async def ask(link: ClientSendLink) -> list[ServiceBusReceivedMessage]:
            return await browse_oldest(partial(_private.browse, link.client), _is_message, most)

        return await self._lanes.get(queue).call(ask, self._namespace.url.operation_timeout, f"peek into {queue}")

    async def close(self) -> None:
        """Close its links; never raises."""
        await self._lanes.close()


async def _look(client: ServiceBusSender, queue: Entity) -> QueuePositions:
    [number] = await client.schedule_messages(_codec.encode(_marker()), datetime.now(UTC) + _DUE_IN)
    try:
        oldest = await _oldest(client, number, queue)
    finally:
        # What was found is right all the same; a marker that stays is dealt with, see above.
        with contextlib.suppress(Exception):
            await client.cancel_scheduled_messages(number)
    return QueuePositions(oldest, number)


async def _oldest(client: ServiceBusSender, marker: int, queue: Entity) -> int | None:
    """The position of the oldest message that is not settled, up to a marker; None when there is none."""
    last, most = 0, 1
    while shown := await _private.browse(client, last + 1, most):
        for message in shown:
            number = message.sequence_number or last + 1  # of what can't be read, the lowest that it may have
            if number == marker:
                return None
            if number > marker:
                break
            # What others have sent there under a session of their own is read by nobody, and has no place in the order.
            if _is_message(message) and message.session_id in (SESSION, None):
                return number
            last = number
        else:
            most = min(10 * most, MOST_SHOWN)
            continue
        break
    text = f"look at {queue}: the service does not show the marker that it took, and may not show messages either"
    raise TransportError(text, FailureKind.UNAVAILABLE, FailureReason.OTHER)


def _is_message(message: ServiceBusReceivedMessage) -> bool:
    return message.state is not ServiceBusMessageState.SCHEDULED and message.content_type != MARKER


def _marker() -> _codec.Parts:
    properties = {"message_id": uuid.uuid4().hex, "group_id": SESSION, "content_type": MARKER}
    return _codec.Parts({}, {}, properties, {}, b"")
