"""What a queue or subscription holds: how far it is settled, what can be shown of it, and how it is emptied.

Browsing shows what a queue holds in the order of its sequence numbers, locked and scheduled messages
included (Service Bus documentation: "Message browsing"). But what it does *not* show proves nothing: it reads the
log of the queue, is meant for diagnosis, and has been seen to show less than there was. So a look at how far a queue
with one consumer at a time has been settled (SPEC 8.3) first schedules a marker, whose sequence number the service
returns at once, and then browses until it comes to it. What is before the marker is all that is not settled; when the
marker itself does not appear, the look has failed and says nothing.

The marker's number is greater than that of every message that was confirmed before. It is cancelled when the look is
over. One that was left behind, by a process that was killed in that moment, becomes an ordinary message half a minute
later, which receivers complete and pass to no caller.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessageState, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import QueuePositions, raise_failure
from pairmq_servicebus import _codec, _errors, _private
from pairmq_servicebus._client import Namespace, ServiceClock
from pairmq_servicebus._entities import MARKER, SESSION, is_queue_itself
from pairmq_servicebus._lane import Lanes
from pairmq_servicebus._receive_link import ReceiveLink, open_receive_link
from pairmq_servicebus._sender import ClientSendLink, open_send_link
from pairmq_servicebus._settling import delivery_of

_DUE_IN = timedelta(seconds=30)  # a look is over long before

MOST_SHOWN: Final = 250
"""Messages that the service shows at once."""

_AT_ONCE = 500  # messages a receive
_QUIET = 1.0  # s without a message after which it is empty
_NO_SESSION = 1.0  # s without a free session after which none is left


class Contents:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._senders: Lanes[Entity, ClientSendLink] = Lanes(
            namespace, lambda queue: open_send_link(namespace, queue, f"look at {queue}")
        )
        self._receivers: Lanes[Source, ReceiveLink] = Lanes(
            namespace, lambda source: open_receive_link(namespace, source, f"look into {source}")
        )

    async def positions(self, queue: Entity) -> QueuePositions:
        """Report how far a queue with one consumer at a time is settled; a cancelled look may leave a marker behind."""

        async def ask(link: ClientSendLink) -> QueuePositions:
            return await _look(link.client, queue, self._namespace.clock)

        lane = self._senders.get(queue)
        return await lane.call(ask, self._namespace.url.operation_timeout, f"look at {queue}")

    async def peek(self, source: Source, most: int) -> list[Delivery]:
        known = self._namespace.single_consumers
        if is_queue_itself(source) and known.knows(source.entity):
            return [_shown(message) for message in await self._browse(source.entity, most)]
        try:
            return await self._show(source, most)
        except TransportError as error:
            if error.reason is not FailureReason.NOT_SUPPORTED or not is_queue_itself(source):
                raise
            if not await known.learn(source.entity):
                raise
        return await self.peek(source, most)

    async def close(self) -> None:
        await self._senders.close()
        await self._receivers.close()

    async def _browse(self, queue: Entity, most: int) -> list[ServiceBusReceivedMessage]:
        """Show the oldest messages, locked and deferred ones included, scheduled ones and markers not."""

        async def ask(link: ClientSendLink) -> list[ServiceBusReceivedMessage]:
            return await browse_oldest(partial(_private.browse, link.client), _is_message, most)

        return await self._senders.get(queue).call(ask, self._namespace.url.operation_timeout, f"peek into {queue}")

    async def _show(self, source: Source, most: int) -> list[Delivery]:
        """Show what a receiver's link may look at: of a source with sessions, nothing."""

        async def look(link: ReceiveLink) -> list[Delivery]:
            async def show(first: int, count: int) -> Sequence[ServiceBusReceivedMessage]:
                return await link.client.peek_messages(count, sequence_number=first)

            found = await browse_oldest(show, _is_visible, most)
            return [_shown(message, dead_letter=source.dead_letter) for message in found]

        lane = self._receivers.get(source)
        return await lane.call(look, self._namespace.url.operation_timeout, f"peek into {source}")


async def _look(client: ServiceBusSender, queue: Entity, clock: ServiceClock) -> QueuePositions:
    due = datetime.fromtimestamp(clock.now(), UTC) + _DUE_IN
    [number] = await client.schedule_messages(_codec.encode(_marker()), due)
    try:
        oldest = await _oldest(client, number, queue, clock)
    finally:
        # What was found is right all the same; a marker that stays is dealt with, see above.
        with contextlib.suppress(Exception):
            await client.cancel_scheduled_messages(number)
    return QueuePositions(oldest, number)


async def _oldest(client: ServiceBusSender, marker: int, queue: Entity, clock: ServiceClock) -> int | None:
    """The position of the oldest message that is not settled, up to a marker; None without one."""
    last, most = 0, 1
    while shown := await _private.browse(client, last + 1, most):
        for message in shown:
            number = message.sequence_number or last + 1  # of what can't be read, the lowest that it may have
            if message.state is not ServiceBusMessageState.SCHEDULED:
                clock.note(message.enqueued_time_utc)
            if number == marker:
                return None
            if number > marker:
                break
            # What others have sent there under a session of their own is never read, and has no place in the order.
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


def _is_visible(message: ServiceBusReceivedMessage) -> bool:
    return message.state is not ServiceBusMessageState.SCHEDULED


def _shown(message: ServiceBusReceivedMessage, *, dead_letter: bool = False) -> Delivery:
    return delivery_of(message, _codec.decode_leniently(message.raw_amqp_message, dead_letter=dead_letter), None)


async def browse_oldest(
    show: Callable[[int, int], Awaitable[Sequence[ServiceBusReceivedMessage]]],
    wanted: Callable[[ServiceBusReceivedMessage], bool],
    most: int,
) -> list[ServiceBusReceivedMessage]:
    """Browse, by asking for so many messages from a number on, until enough are found or no more are shown."""
    found: list[ServiceBusReceivedMessage] = []
    first = 1
    while len(found) < most:
        shown = await show(first, min(most - len(found), MOST_SHOWN))
        if not shown:
            break
        found += [message for message in shown if wanted(message)]
        # Of what the client can't decode the number may be missing: they only grow, so that this is no more.
        first = max(first + len(shown), *(1 + (message.sequence_number or 0) for message in shown))
    return found


async def purge(namespace: Namespace, source: Source) -> int:
    """Delete a source's messages that are not locked; one session after the other where it has sessions."""
    doing = f"purge {source}"
    try:
        return await _receive_all(namespace, source, doing)
    except TransportError as error:
        if error.reason is not FailureReason.NOT_SUPPORTED:
            raise
    removed = 0
    while True:
        try:
            removed += await _receive_all(
                namespace, source, doing, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=_NO_SESSION
            )
        except TransportError as error:
            if isinstance(error.__cause__, OperationTimeoutError):
                return removed
            raise


async def _receive_all(namespace: Namespace, source: Source, doing: str, **session: Any) -> int:
    client = namespace.new_receiver(source, delete=True, **session)
    limit = namespace.url.connect_timeout + (_NO_SESSION if session else 0.0)
    await namespace.open(client, doing, limit)
    _private.fix_arrivals(client)
    removed = 0
    try:
        while True:
            received = await client.receive_messages(_AT_ONCE, _QUIET)
            if not received:
                # What is sent from now on is not ours to delete.
                await _private.take_back_credit(client)
                break
            removed += len(received)
    except Exception as error:
        raise_failure(_errors.failure(error, doing, maybe_applied=True))
    finally:
        namespace.spawn(namespace.farewell(client))
    return removed
