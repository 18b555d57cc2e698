"""A transport that hands every call on to another one: what a defect is put into, to see whether a suite finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing import MemoryBroker, memory_broker
from pairmq.testing.conformance import Harness, Interruption
from pairmq.transport import (
    Admin,
    Capabilities,
    Endpoint,
    QueueCounts,
    QueuePositions,
    QueueProperties,
    Receiver,
    Sender,
    SessionReceiver,
    Transport,
)

T = TypeVar("T")

LIMIT = 150_000
"""Bytes of a message: few enough that the tests of limits are not about the machine."""


class PlainSender(Sender):
    def __init__(self, transport: PlainTransport, entity: Entity) -> None:
        self.transport = transport
        self.entity = entity
        self.inner = transport.inner.sender(entity)

    async def send(self, message: Message) -> None:
        self.transport.check_size(message)
        await self.inner.send(message)

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        refused: dict[int, TransportError] = {}
        for position, message in enumerate(messages):
            try:
                self.transport.check_size(message)
            except TransportError as error:
                refused[position] = error
        fitting = [message for position, message in enumerate(messages) if position not in refused]
        outcomes = iter(await self.inner.send_batch(fitting))
        return [refused[position] if position in refused else next(outcomes) for position in range(len(messages))]

    async def close(self) -> None:
        await self.inner.close()


class PlainReceiver(Receiver):
    def __init__(self, transport: PlainTransport, source: Source) -> None:
        self.transport = transport
        self.source = source
        self.inner = transport.inner.receiver(source)

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        return await self.inner.receive(max_messages, wait)

    async def complete(self, delivery: Delivery) -> None:
        await self.inner.complete(delivery)

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        return await self.inner.complete_batch(deliveries)

    async def abandon(self, delivery: Delivery) -> None:
        await self.inner.abandon(delivery)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self.inner.dead_letter(delivery, reason, description)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        return await self.inner.renew_lock(delivery)

    async def close(self) -> None:
        await self.inner.close()


class OneAtATime(PlainReceiver):
    """No defect: it holds one message, and asks for the next when that is settled."""

    _held: Delivery | None = None

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        if self._held is not None:
            await asyncio.sleep(wait)
            return []
        given = await super().receive(1, wait)
        self._held = given[0] if given else None
        return given

    async def complete(self, delivery: Delivery) -> None:
        await super().complete(delivery)
        self._held = None

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        self._held = None
        return await super().complete_batch(deliveries)


class PlainAdmin(Admin):
    def __init__(self, transport: PlainTransport) -> None:
        self.transport = transport
        self.inner = transport.inner.admin

    async def check(self) -> None:
        await self.inner.check()

    async def exists(self, entity: Entity) -> bool:
        return await self.inner.exists(entity)

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        return await self.inner.create(entity, properties)

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        return await self.inner.create_subscription(topic, name)

    async def properties(self, entity: Entity) -> QueueProperties:
        return await self.inner.properties(entity)

    async def counts(self, source: Source) -> QueueCounts:
        return await self.inner.counts(source)

    async def positions(self, entity: Entity) -> QueuePositions:
        return await self.inner.positions(entity)

    async def delete(self, entity: Entity) -> bool:
        return await self.inner.delete(entity)

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        return await self.inner.list_entities(prefix)

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        return await self.inner.peek(source, max_messages)

    async def purge(self, source: Source) -> int:
        return await self.inner.purge(source)

    async def probe(self, entity: Entity) -> None:
        await self.inner.probe(entity)

    def is_system_entity(self, entity: Entity) -> bool:
        return self.inner.is_system_entity(entity)


class PlainTransport(Transport):
    def __init__(self, inner: Transport, defect: Defect) -> None:
        super().__init__(self.endpoint_of(inner))
        self.inner = inner
        self.defect = defect
        self._admin = defect.admin(self)

    @staticmethod
    def endpoint_of(inner: Transport) -> Endpoint:
        return inner.endpoint

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, max_message_bytes=LIMIT, **self.defect.claims)

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return self.defect.sender(self, entity)

    def receiver(self, source: Source) -> Receiver:
        return self.defect.receiver(self, source)

    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        return await self.inner.accept_session(source, session_id, wait=wait)

    def measure(self, message: Message) -> int:
        return self.inner.measure(message)

    def check_size(self, message: Message) -> None:
        if self.measure(message) > LIMIT:
            raise TransportError("too large", FailureKind.REFUSED, FailureReason.TOO_LARGE)

    async def _close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True)
class Defect:
    """What is wrong with a transport.

    Args:
        name: of the class with the defect, or of the claim.
        caught_by: ``Suite.test`` of each test that has to fail.
        sender: in place of the sound one; likewise receiver, admin, transport.
        claims: capabilities that differ from the sound ones.
    """

    name: str
    caught_by: tuple[str, ...]
    sender: type[PlainSender] = PlainSender
    receiver: type[PlainReceiver] = PlainReceiver
    admin: type[PlainAdmin] = PlainAdmin
    transport: type[PlainTransport] = PlainTransport
    claims: dict[str, Any] = field(default_factory=dict)


DEFECTS: list[Defect] = []
_PARTS: dict[type, str] = {
    PlainSender: "sender",
    PlainReceiver: "receiver",
    PlainAdmin: "admin",
    PlainTransport: "transport",
}


def caught_by(*tests: str) -> Callable[[type[T]], type[T]]:
    """Enter a class with a defect, and the tests of the suites that have to catch it, each by itself."""

    def enter(defective: type[T]) -> type[T]:
        (part,) = (name for base, name in _PARTS.items() if issubclass(defective, base))
        DEFECTS.append(Defect(defective.__name__, tests, **{part: defective}))  # type: ignore[arg-type]
        return defective

    return enter


def false_claim(*tests: str, **claims: object) -> None:
    """Enter a claim or disclaimer that is not true."""
    ((name, value),) = claims.items()
    DEFECTS.append(Defect(f"{name}={value}", tests, claims=claims))


class DefectiveHarness(Harness):
    """``memory://`` behind a transport with a defect, under a URL with a password."""

    lock_duration = 2.0
    time_limit = 15.0

    def __init__(self, defect: Defect) -> None:
        self.defect = defect
        self._broker: MemoryBroker | None = None

    @property
    def broker(self) -> MemoryBroker:
        assert self._broker is not None
        return self._broker

    async def make(self) -> str:
        self._broker = memory_broker()
        return f"defective://user:pass%2Fword@{self._broker.name}"

    async def interrupt(self, how: Interruption) -> None:
        await (self.broker.stop() if how is Interruption.STOP else self.broker.hang())

    async def crash(self) -> None:
        await self.broker.forget()  # nothing of it is durable
        await self.broker.stop()

    async def refuse_writes(self) -> bool:
        await self.broker.refuse()
        return True

    async def lose_confirms(self) -> bool:
        await self.broker.lose_confirms()
        return True

    async def restore(self) -> None:
        await self.broker.restore()

    def transport(self, url: str) -> Transport:
        inner = memory_broker(urlsplit(url).hostname)
        return self.defect.transport(inner.transport(), self.defect)
