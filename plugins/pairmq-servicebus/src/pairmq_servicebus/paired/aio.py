"""A client for asyncio, in the shape of ``azure.servicebus.aio``, that sends through a pair.

In a program that uses ``azure.servicebus.aio`` today::

    from pairmq_servicebus.paired.aio import PairedServiceBusClient as ServiceBusClient

    client = ServiceBusClient.from_connection_string(primary, secondary=secondary)

What comes from ``azure.servicebus.aio`` besides can be imported from here as well.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSession,
)

from pairmq import Entity, EntityState, Pair
from pairmq_servicebus.paired._convert import PairedMessageBatch, SingleMessage, make_batch
from pairmq_servicebus.paired._receiving import SharedReceiver, renew, settle_at_broker
from pairmq_servicebus.paired._sending import Handler, Messages, Sending, check_timeout, settle, taken
from pairmq_servicebus.paired._shared import Own, SharedClient, SharedSender

if TYPE_CHECKING:
    from pairmq.model.events import Event


__all__ = [
    "AutoLockRenewer",
    "PairedServiceBusClient",
    "PairedServiceBusReceiver",
    "PairedServiceBusSender",
    "ServiceBusReceiver",
    "ServiceBusSession",
]


class PairedServiceBusClient(
    SharedClient[
        AsyncTokenCredential,
        ServiceBusReceiver,
        ServiceBusSender,
        "PairedServiceBusSender",
        "PairedServiceBusReceiver",
    ]
):
    """``azure.servicebus.aio.ServiceBusClient`` whose senders fail over to a second broker.

    Senders send to the primary, and to backlog queues of the secondary while the primary is unavailable. Receivers of
    queues with ``continuity`` read these as well; other receivers, and all the rest, are the client's own, on the
    primary. Use one client for the life of a process: each has a pair of its
    own, with its own view of what is healthy. The pair opens at ``async with``, or at the first message. Arguments and
    errors are those of `pairmq_servicebus.paired.PairedServiceBusClient`.
    """

    _CLIENT = ServiceBusClient

    _closed = False

    @property
    def pair(self) -> Pair:
        """The pair: its states, events and switches (`Pair.state`, `Pair.events`, `Pair.hold` …)."""
        return self._pair

    def state(self, name: str, *, kind: str = "queue") -> EntityState:
        """The state of a queue or topic; healthy before its first message."""
        return self._pair.state(name, kind=kind) if self._opening.done else EntityState.HEALTHY

    def states(self) -> Mapping[Entity, EntityState]:
        """The states of all queues and topics that this client has sent to."""
        return self._pair.states() if self._opening.done else {}

    def on_event(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Give ``callback`` every event of the pair from now on; it must be quick, as sends wait for it. Returns what
        ends that."""
        return self._pair.subscribe(callback)

    async def close(self) -> None:
        """Close the pair, and the client with its receivers. Idempotent; sends in flight get ``close_grace``."""
        self._closed = True
        try:
            await self._opening.close()
        finally:
            await self._own.close()

    async def __aenter__(self) -> Self:
        await self._opening.wait()
        await self._own.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _is_closed(self) -> bool:
        return self._closed

    def _make_sender(self, sending: Sending, own: Own[ServiceBusSender]) -> PairedServiceBusSender:
        return PairedServiceBusSender(sending, own, self._on_receipt)

    def _make_receiver(
        self, queue: str, make_own: Callable[[], ServiceBusReceiver], given: Any
    ) -> PairedServiceBusReceiver:
        return PairedServiceBusReceiver(
            self._pair, self._opening, queue, self.fully_qualified_namespace, make_own, given
        )


T = TypeVar("T", ServiceBusSender, ServiceBusReceiver)


class _Handler(Handler[T]):
    async def close(self) -> None:
        """Take no more messages, and release what a receiver has not settled, on both sides. Idempotent."""
        self._closed = True
        await self._way.close()
        if self._own is not None:
            await self._own.close()

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class PairedServiceBusSender(_Handler[ServiceBusSender], SharedSender[ServiceBusSender]):
    """Sends to a queue or topic of the primary, or to the backlog while the primary is unavailable.

    Made by the client's ``get_queue_sender`` and ``get_topic_sender``. Any number of tasks may share one.
    """

    async def send_messages(self, message: Messages, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Send one message, several, or a batch, and return when all of them are accepted.

        Arguments and errors are those of `pairmq_servicebus.paired.PairedServiceBusSender.send_messages`.
        """
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_open()
        check_timeout(timeout)
        messages, single = taken(message)
        if messages:
            settle(await self._sending.deliver(messages, timeout, single=single), self._on_receipt)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> PairedMessageBatch:
        """Make an empty batch of at most 1 MiB, 256 KiB when left out; no I/O: it works without the primary."""
        self._check_open()
        return make_batch(max_size_in_bytes)

    async def schedule_messages(
        self, messages: SingleMessage | Iterable[SingleMessage], schedule_time_utc: datetime, **kwargs: Any
    ) -> list[int]:
        """Schedule messages at the primary itself: not covered by failover, as only it can give sequence numbers.

        A message with a ``scheduled_enqueue_time_utc``, given to `send_messages`, is covered. Raises whatever the
        client raises, above all while the primary is unavailable.
        """
        return await self._primary().schedule_messages(messages, schedule_time_utc, **kwargs)  # type: ignore[arg-type]

    async def cancel_scheduled_messages(self, sequence_numbers: int | list[int], **kwargs: Any) -> None:
        """Cancel what `schedule_messages` has scheduled, at the primary itself."""
        await self._primary().cancel_scheduled_messages(sequence_numbers, **kwargs)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self


class PairedServiceBusReceiver(_Handler[ServiceBusReceiver], SharedReceiver[ServiceBusReceiver]):
    """Reads a queue with continuity: the primary's, and its lane on the secondary, until both are gone for good.

    Made by the client's ``get_queue_receiver``. Any number of tasks may share one. Arguments and errors are those of
    `pairmq_servicebus.paired.PairedServiceBusReceiver`.
    """

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Receive messages of either broker; returns as soon as there are any."""
        count, wait = self._asked(max_message_count, max_wait_time)
        return [self._made(each) for each in await self.reading.receive(count, wait)] if count else []

    def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        self._check_open()
        return self

    async def __anext__(self) -> ServiceBusReceivedMessage:
        self._check_open()
        found = await self.reading.next(self._max_wait_time)
        if found is None:
            raise StopAsyncIteration
        return self._made(found)

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Remove a message from the broker that it came from."""
        await self._settle("complete", message)

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Release a message for redelivery."""
        await self._settle("abandon", message)

    async def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Move a message to the dead-letter queue of its queue or lane."""
        await self._settle("dead_letter", message, reason, error_description)

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Refuse to defer a message that this receiver has read."""
        await self._settle("defer", message)

    async def renew_message_lock(self, message: ServiceBusReceivedMessage, **kwargs: Any) -> datetime | None:
        """Renew a message's lock; returns until when it lasts."""
        if self._is_paired(message, "renew"):
            return await renew(message)
        return await self._primary().renew_message_lock(message, **kwargs)

    async def _settle(self, action: str, message: ServiceBusReceivedMessage, *arguments: str | None) -> None:
        if self._is_paired(message, action):
            await settle_at_broker(message, action, *arguments)
        else:
            await getattr(self._primary(), f"{action}_message")(message, *arguments)

    async def peek_messages(self, max_message_count: int = 1, **kwargs: Any) -> list[ServiceBusReceivedMessage]:
        """Look at messages of the primary's queue; as the client's own, which it is."""
        return await self._primary().peek_messages(max_message_count, **kwargs)

    async def receive_deferred_messages(
        self, sequence_numbers: int | list[int], **kwargs: Any
    ) -> list[ServiceBusReceivedMessage]:
        """Receive messages that another receiver has deferred at the primary; as the client's own, which it is."""
        return await self._primary().receive_deferred_messages(sequence_numbers, **kwargs)

    async def __aenter__(self) -> Self:
        self._check_open()
        await self.reading.open()
        return self
