"""Sending to one queue or topic: a transfer of one message or of a batch, and the service's answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender as Client

from pairmq.model import Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.transport import Sender, behind_failed, raise_failure
from pairmq_servicebus import _codec, _direct, _entities, _errors, _private
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._codec import Parts, measure, without_body
from pairmq_servicebus._entities import SESSION
from pairmq_servicebus._outbox import Answered, Chain, Outbox, Parcel
from pairmq_servicebus._values import PING_CONTENT_TYPE

MAX_PROPERTY_BYTES = 64 * 1024
"""Of all properties of a message together (the same page)."""


class ClientSendLink:
    """A sender of the client that is open."""

    def __init__(self, namespace: Namespace, client: Client, max_batch_bytes: int, took: float) -> None:
        self._namespace = namespace
        self.client = client
        self._handler = _private.handler_of(client)
        _private.fix_answers(client)
        self.max_batch_bytes = max_batch_bytes
        self.took = took
        self.max_message_bytes = _private.max_message_bytes(client)
        self._broken = False

    @property
    def credit(self) -> int:
        return _private.credit_of(self.client)

    def usable(self) -> bool:
        return not self._broken and _private.handler_of(self.client) is self._handler and _private.is_open(self.client)

    def unread(self) -> bool:
        return _private.unread(self.client)

    async def look(self) -> None:
        await _private.look(self.client)

    def drop(self) -> None:
        self._namespace.discard(self.client)

    async def close(self) -> None:
        await self._namespace.farewell(self.client)

    async def begin(self, messages: Sequence[Parts], answered: Answered) -> None:
        if _direct.is_traced():
            await self._send_traced(messages, answered)
        elif len(messages) == 1:
            await _direct.begin(self.client, _direct.encoded(self.client, messages[0]), answered)
        else:
            await _direct.begin(self.client, _direct.batch_of(self.client, messages), answered)
            # The service reads it while the next one is encoded.
            await self._do(_direct.write)

    async def progress(self) -> None:
        await self._do(_direct.progress)

    async def _do(self, work: Callable[[Client], Awaitable[None]]) -> None:
        try:
            await work(self.client)
        except BaseException:
            self._broken = True
            raise

    async def _send_traced(self, messages: Sequence[Parts], answered: Answered) -> None:
        """Send by the public sender, which makes the spans, and has one transfer under way at a time."""
        error: Exception | None = None
        try:
            await self.client.send_messages(
                _codec.encode(messages[0]) if len(messages) == 1 else await self._batch(messages)
            )
        except Exception as failed:
            error = failed
        answered(error)

    async def _batch(self, messages: Sequence[Parts]) -> ServiceBusMessageBatch:
        batch = await self.client.create_message_batch()
        for parts in messages:
            batch.add_message(_codec.encode(parts))
        return batch


async def open_send_link(namespace: Namespace, entity: Entity, doing: str) -> ClientSendLink:
    """Open a link to send on. Raises `TransportError`."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    client = namespace.new_sender(entity)
    await namespace.open(client, doing)
    try:
        most = (await client.create_message_batch()).max_size_in_bytes
    except Exception as error:
        namespace.discard(client)
        raise_failure(_errors.failure(error, doing))
    link = ClientSendLink(namespace, client, most, loop.time() - began)
    namespace.message_limits[entity] = link.max_message_bytes
    known = namespace.max_message_bytes
    namespace.max_message_bytes = min(link.max_message_bytes, known or link.max_message_bytes)
    return link


class BusSender(Sender):
    """Sends to one queue or topic. Raises `TransportError`, reason *malformed*, if Service Bus can't have the name."""

    def __init__(self, namespace: Namespace, entity: Entity) -> None:
        _entities.check(entity)
        doing = f"send to {entity}"
        self._namespace = namespace
        self._entity = entity
        self._doing = doing
        self._box = Outbox(
            lambda: open_send_link(namespace, entity, doing), doing, limit=namespace.url.operation_timeout
        )
        namespace.open_objects.add(self)

    async def send(self, message: Message) -> None:
        parcel = self._parcel(message)
        outcome = await self._box.send(parcel)
        if outcome is not None and _lacks_session(parcel, outcome) and await self._wants_sessions():
            outcome = await self._box.send(self._parcel(message))
        if outcome is not None:
            raise outcome
        if message.session_id is None:
            self._namespace.single_consumers.with_sessions.discard(self._entity)  # it is another queue by now

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await self._send_all(messages, ordered=False)

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await self._send_all(messages, ordered=True)

    async def _send_all(self, messages: Sequence[Message], *, ordered: bool) -> list[TransportError | None]:
        packed = self._packed(messages, ordered=ordered)
        outcomes = await self._send_packed(packed)
        lacking = [
            isinstance(parcel, Parcel) and outcome is not None and _lacks_session(parcel, outcome)
            for parcel, outcome in zip(packed, outcomes, strict=True)
        ]
        if any(lacking) and await self._wants_sessions():
            again = [
                at
                for at, (message, outcome) in enumerate(zip(messages, outcomes, strict=True))
                if lacking[at] or (ordered and message.session_id is None and outcome is not None)
            ]
            second = await self._send_packed(self._packed([messages[at] for at in again], ordered=ordered))
            for at, outcome in zip(again, second, strict=True):
                outcomes[at] = outcome
        return outcomes

    def _packed(self, messages: Sequence[Message], *, ordered: bool) -> list[Parcel | TransportError]:
        """Pack messages; where order is to be kept, those of one session are one chain."""
        packed: list[Parcel | TransportError] = []
        chains: dict[str | None, Chain] = {}
        cut: dict[str | None, TransportError] = {}
        for message in messages:
            session = message.session_id
            if session in cut:
                packed.append(behind_failed(cut[session]))
                continue
            try:
                parcel = self._parcel(message)
            except TransportError as error:
                packed.append(error)
                if ordered:
                    cut[session] = error
                continue
            if ordered:
                parcel.chain = chains.setdefault(session, Chain())
            packed.append(parcel)
        return packed

    async def _send_packed(self, packed: Sequence[Parcel | TransportError]) -> list[TransportError | None]:
        parcels = [parcel for parcel in packed if isinstance(parcel, Parcel)]
        answers = iter(await self._box.send_all(parcels) if parcels else ())
        return [next(answers) if isinstance(parcel, Parcel) else parcel for parcel in packed]

    async def _wants_sessions(self) -> bool:
        """Whether what was refused without a session can be sent again: it was a queue with one consumer at a time."""
        known = self._namespace.single_consumers
        return known.knows(self._entity) or await known.learn(self._entity)

    async def close(self) -> None:
        self._namespace.open_objects.discard(self)
        await self._box.close()

    def _parcel(self, message: Message) -> Parcel:
        if self._namespace.closed or self._box.closed:
            raise _errors.closed(self._doing)
        return _pack(self._namespace, self._entity, message, self._doing)


def check_message(namespace: Namespace, entity: Entity, message: Message) -> None:
    """Raise `TransportError` for a message that Service Bus would never deliver, as far as it is known by now.

    The tier decides how large a message may be, and only a link shows: before the first one to an entity none is too
    large here. Likewise for sessions, which its settings show: they are read when it refuses a message without one.
    """
    _pack(namespace, entity, message, f"send to {entity}")
    if message.session_id is None and entity in namespace.single_consumers.with_sessions:
        text = "it requires sessions, and the message has no session id"
        raise _errors.refused(f"send to {entity}", text, FailureReason.NOT_SUPPORTED)


def _pack(namespace: Namespace, entity: Entity, message: Message, doing: str) -> Parcel:
    """Pack a message."""
    if message.content_type == PING_CONTENT_TYPE:
        text = f"Service Bus takes messages of content type {message.content_type} and never delivers them"
        raise _errors.refused(doing, text, FailureReason.MALFORMED)
    single_consumer = namespace.single_consumers.knows(entity)
    parts = _codec.take_apart(message, single_consumer=single_consumer)
    size = measure(parts)
    of_properties = without_body(size, parts)
    if of_properties > MAX_PROPERTY_BYTES:
        text = f"its properties have {of_properties} bytes, and Service Bus takes at most {MAX_PROPERTY_BYTES}"
        raise _errors.refused(doing, text, FailureReason.TOO_LARGE)
    most = namespace.message_limits.get(entity)
    if most is not None and size > most:
        text = f"it has {size} bytes with its properties, this link takes at most {most}"
        raise _errors.refused(doing, text, FailureReason.TOO_LARGE)
    return Parcel(parts, size, SESSION if single_consumer else message.session_id or message.partition_key)


def _lacks_session(parcel: Parcel, refusal: TransportError) -> bool:
    """Whether a message may have been refused because it has no session id, and certainly was not stored."""
    certain = refusal.kind is FailureKind.REFUSED and not refusal.maybe_applied
    return "group_id" not in parcel.parts.properties and certain and refusal.reason is FailureReason.NOT_SUPPORTED
