"""Wrappers that pass every call on, so that what counts, records or breaks some of them overrides only these.

A method returns the coroutine of the inner object instead of awaiting it: a wrapper adds no coroutine to a call.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from pairmq.model import Delivery, Entity, Message, Source, TransportError
from pairmq.transport._transport import Admin, Receiver, Sender, SessionReceiver, Transport
from pairmq.transport._values import Capabilities, ConfirmRisk, Endpoint, QueueCounts, QueuePositions, QueueProperties

T = TypeVar("T")
Call = Coroutine[Any, Any, T]


class SenderWrapper(Sender):
    """Passes every call on to another sender.

    Args:
        inner: that sender; kept as the attribute ``inner``, as by the other wrappers.
    """

    def __init__(self, inner: Sender) -> None:
        self.inner = inner

    def send(self, message: Message) -> Call[None]:
        return self.inner.send(message)

    def send_batch(self, messages: Sequence[Message]) -> Call[Sequence[TransportError | None]]:
        return self.inner.send_batch(messages)

    def send_in_order(self, messages: Sequence[Message]) -> Call[Sequence[TransportError | None]]:
        return self.inner.send_in_order(messages)

    def make_ready(self) -> Call[None]:
        return self.inner.make_ready()

    def close(self) -> Call[None]:
        return self.inner.close()


class ReceiverWrapper(Receiver):
    """Passes every call on to another receiver.

    Args:
        inner: that receiver, whose reports of what it dead-letters itself are passed on.
    """

    def __init__(self, inner: Receiver) -> None:
        self.inner = inner
        inner.on_dead_lettered = self._pass_on

    def _pass_on(self, delivery: Delivery) -> None:
        if self.on_dead_lettered is not None:
            self.on_dead_lettered(delivery)

    def receive(self, max_messages: int, wait: float) -> Call[list[Delivery]]:
        return self.inner.receive(max_messages, wait)

    def read_ahead(self, messages: int) -> None:
        self.inner.read_ahead(messages)

    def complete(self, delivery: Delivery) -> Call[None]:
        return self.inner.complete(delivery)

    def complete_batch(self, deliveries: Sequence[Delivery]) -> Call[Sequence[TransportError | None]]:
        return self.inner.complete_batch(deliveries)

    def abandon(self, delivery: Delivery) -> Call[None]:
        return self.inner.abandon(delivery)

    def dead_letter(self, delivery: Delivery, reason: str, description: str) -> Call[None]:
        return self.inner.dead_letter(delivery, reason, description)

    def renew_lock(self, delivery: Delivery) -> Call[Delivery]:
        return self.inner.renew_lock(delivery)

    def close(self) -> Call[None]:
        return self.inner.close()


class AdminWrapper(Admin):
    """Passes every call on to another administration.

    Args:
        inner: that administration.
    """

    def __init__(self, inner: Admin) -> None:
        self.inner = inner

    def check(self) -> Call[None]:
        return self.inner.check()

    def exists(self, entity: Entity) -> Call[bool]:
        return self.inner.exists(entity)

    def create(self, entity: Entity, properties: QueueProperties | None = None) -> Call[bool]:
        return self.inner.create(entity, properties)

    def create_subscription(self, topic: Entity, name: str) -> Call[bool]:
        return self.inner.create_subscription(topic, name)

    def properties(self, entity: Entity) -> Call[QueueProperties]:
        return self.inner.properties(entity)

    def counts(self, source: Source) -> Call[QueueCounts]:
        return self.inner.counts(source)

    def positions(self, entity: Entity) -> Call[QueuePositions]:
        return self.inner.positions(entity)

    def delete(self, entity: Entity) -> Call[bool]:
        return self.inner.delete(entity)

    def list_entities(self, prefix: str = "") -> Call[list[Entity]]:
        return self.inner.list_entities(prefix)

    def peek(self, source: Source, max_messages: int) -> Call[list[Delivery]]:
        return self.inner.peek(source, max_messages)

    def purge(self, source: Source) -> Call[int]:
        return self.inner.purge(source)

    def probe(self, entity: Entity) -> Call[None]:
        return self.inner.probe(entity)

    def confirm_risks(self, queue: Entity | None = None) -> Call[Sequence[ConfirmRisk]]:
        return self.inner.confirm_risks(queue)

    def is_system_entity(self, entity: Entity) -> bool:
        return self.inner.is_system_entity(entity)


class TransportWrapper(Transport):
    """Passes every call on to another transport, and ends with it: closing or faulting the one ends the other.

    Args:
        inner: that transport.
        endpoint: reported in place of the inner one's.
    """

    def __init__(self, inner: Transport, endpoint: Endpoint | None = None) -> None:
        super().__init__(endpoint or inner.endpoint)
        self.inner = inner
        inner.on_end(self._end_with)

    @property
    def node(self) -> str | None:
        return self.inner.node

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def admin(self) -> Admin:
        return self.inner.admin

    def make_ready(self, *, sends: bool = False, receives: bool = False) -> Call[None]:
        return self.inner.make_ready(sends=sends, receives=receives)

    def sender(self, entity: Entity) -> Sender:
        return self.inner.sender(entity)

    def receiver(self, source: Source) -> Receiver:
        return self.inner.receiver(source)

    def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> Call[SessionReceiver | None]:
        return self.inner.accept_session(source, session_id, wait=wait)

    def measure(self, message: Message) -> int:
        return self.inner.measure(message)

    def check_message(self, entity: Entity, message: Message) -> None:
        self.inner.check_message(entity, message)

    def close(self) -> Call[None]:
        return self.inner.close()

    def fault(self, cause: BaseException) -> Call[None]:
        return self.inner.fault(cause)

    async def _close(self) -> None:
        await self.inner.close()

    def _end_with(self, inner: Transport) -> None:
        if not self._ended:
            self._fault = inner.fault_cause
            self._end()
