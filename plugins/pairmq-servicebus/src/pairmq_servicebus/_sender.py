"""Sending to one queue or topic: a transfer of one message or of a batch, and the service's answer to it."""

from __future__ import annotations

from collections.abc import Sequence

from azure.servicebus.aio import ServiceBusSender as Client

from pairmq.model import Entity, FailureReason, Message, TransportError
from pairmq.transport import Sender
from pairmq_servicebus import _codec, _errors, _names, _private
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._codec import Parts
from pairmq_servicebus._measure import measure, without_body
from pairmq_servicebus._outbox import Outbox, Parcel

MAX_MESSAGE_BYTES = 256 * 1024
"""Of the tier Standard (Service Bus documentation: Quotas); a link to a Premium namespace tells more."""

MAX_PROPERTY_BYTES = 64 * 1024
"""Of all properties of a message together (the same page)."""


class ClientSendLink:
    """A sender of the client that is open.

    Args:
        namespace: it belongs to.
        client: it.
        max_batch_bytes: of one batch.
    """

    def __init__(self, namespace: Namespace, client: Client, max_batch_bytes: int) -> None:
        self._namespace = namespace
        self._client = client
        self._handler = _private.handler_of(client)
        _private.mend_answers(client)
        self.max_batch_bytes = max_batch_bytes
        self.max_message_bytes = _private.max_message_bytes(client)

    def usable(self) -> bool:
        return _private.handler_of(self._client) is self._handler and _private.is_open(self._client)

    def unread(self) -> bool:
        return _private.unread(self._client)

    async def look(self) -> None:
        await _private.look(self._client)

    def drop(self) -> None:
        self._namespace.discard(self._client)

    async def close(self) -> None:
        await self._namespace.farewell(self._client)

    async def send(self, messages: Sequence[Parts]) -> None:
        if len(messages) == 1:
            await self._client.send_messages(_codec.encode(messages[0]))
            return
        batch = await self._client.create_message_batch()
        for parts in messages:
            batch.add_message(_codec.encode(parts))
        await self._client.send_messages(batch)


async def open_send_link(namespace: Namespace, entity: Entity, doing: str) -> ClientSendLink:
    """Open a link to send on.

    Raises:
        TransportError: it can't be opened.
    """
    client = namespace.new_sender(entity)
    await namespace.open(client, doing)
    try:
        most = (await client.create_message_batch()).max_size_in_bytes
    except Exception as error:
        namespace.discard(client)
        failed = _errors.failure(error, doing)
        raise failed from failed.__cause__
    link = ClientSendLink(namespace, client, most)
    known = namespace.max_message_bytes
    namespace.max_message_bytes = min(link.max_message_bytes, known or link.max_message_bytes)
    return link


class BusSender(Sender):
    """Sends to one queue or topic.

    Args:
        namespace: the transport's.
        entity: where to.

    Raises:
        TransportError: reason *malformed* when Service Bus can't have such a name.
    """

    def __init__(self, namespace: Namespace, entity: Entity) -> None:
        _names.check(entity)
        doing = f"send to {entity}"
        self._namespace = namespace
        self._doing = doing
        self._box = Outbox(
            lambda: open_send_link(namespace, entity, doing), doing, limit=namespace.url.operation_timeout
        )
        namespace.open_objects.add(self)

    async def send(self, message: Message) -> None:
        outcome = await self._box.send(self._parcel(message))
        if outcome is not None:
            raise outcome

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        packed: list[Parcel | TransportError] = []
        for message in messages:
            try:
                packed.append(self._parcel(message))
            except TransportError as error:
                packed.append(error)
        parcels = [parcel for parcel in packed if isinstance(parcel, Parcel)]
        outcomes = iter(await self._box.send_all(parcels) if parcels else ())
        return [next(outcomes) if isinstance(parcel, Parcel) else parcel for parcel in packed]

    async def close(self) -> None:
        self._namespace.open_objects.discard(self)
        await self._box.close()

    def _parcel(self, message: Message) -> Parcel:
        """Pack a message.

        Raises:
            TransportError: Service Bus would not deliver it.
        """
        if self._namespace.closed or self._box.closed:
            raise _errors.closed(self._doing)
        if message.content_type == _codec.PING_CONTENT_TYPE:
            text = f"Service Bus takes messages of content type {message.content_type} and never delivers them"
            raise _errors.refused(self._doing, text, FailureReason.MALFORMED)
        parts = _codec.take_apart(message)
        size = measure(parts)
        of_properties = without_body(size, parts)
        if of_properties > MAX_PROPERTY_BYTES:
            text = f"its properties have {of_properties} bytes, and Service Bus takes at most {MAX_PROPERTY_BYTES}"
            raise _errors.refused(self._doing, text, FailureReason.TOO_LARGE)
        return Parcel(parts, size, message.session_id or message.partition_key)
