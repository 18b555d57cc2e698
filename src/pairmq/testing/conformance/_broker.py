"""The broker of one test, in the words that tests use."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NoReturn
from uuid import uuid4

import pytest

from pairmq.model import Delivery, Entity, EntityKind, Message, Source, TransportError
from pairmq.testing.conformance.harness import Harness, Interruption
from pairmq.transport import Admin, Capabilities, QueueCounts, QueueProperties, Receiver, Sender, Transport

PATIENCE = 30.0
"""Seconds in which whatever must happen has happened, on a slow and busy machine too. Nothing waits that long."""

LONG_LOCK = 60.0
"""Seconds; for queues of tests in which no lock may end."""

_CLOSING = 30.0


class Broker:
    """A broker that runs, and what a test opened there.

    Args:
        harness: how it is made and interrupted.
        url: its address, as `Harness.make` told it.
    """

    def __init__(self, harness: Harness, url: str) -> None:
        self.harness = harness
        self.url = url
        self.transport = harness.transport(url)
        self._transports = [self.transport]
        self._numbers = itertools.count(1)
        self._senders: dict[Entity, Sender] = {}
        self._interrupted = False

    @property
    def capabilities(self) -> Capabilities:
        """What the transport claims."""
        return self.transport.capabilities

    @property
    def admin(self) -> Admin:
        """The first transport's administration."""
        return self.transport.admin

    def connect(self) -> Transport:
        """Make another transport, as another process would; closed at the end of the test."""
        transport = self.harness.transport(self.url)
        self._transports.append(transport)
        return transport

    # Entities and messages.

    async def queue(self, *, short_locks: bool = False, **properties: Any) -> Entity:
        """Make a queue.

        Args:
            short_locks: the shortest lock that the broker keeps to, for tests that wait for its end; asked for before
                anything is received. In all others no lock ends, however long the machine stands still.
            properties: the other settings.
        """
        if short_locks:
            self._shorten_locks()
        entity = Entity(f"orders-{next(self._numbers)}")
        duration = self.harness.lock_duration if short_locks else LONG_LOCK
        await self.admin.create(entity, QueueProperties(lock_duration=duration, **properties))
        return entity

    def _shorten_locks(self) -> None:
        url = self.harness.with_short_locks(self.url)
        if url != self.url:
            self.url = url
            self.transport = self.connect()

    async def topic(self, *subscriptions: str) -> Entity:
        """Make a topic with subscriptions."""
        entity = Entity(f"news-{next(self._numbers)}", EntityKind.TOPIC)
        await self.admin.create(entity)
        for name in subscriptions:
            await self.admin.create_subscription(entity, name)
        return entity

    def sender(self, entity: Entity) -> Sender:
        """A sender of the first transport."""
        return self.transport.sender(entity)

    def receiver(self, of: Entity | Source) -> Receiver:
        """A receiver of the first transport."""
        return self.transport.receiver(of if isinstance(of, Source) else Source(of))

    async def put(self, entity: Entity, *bodies: str, **fields: Any) -> list[Message]:
        """Send one message after the other, with ids of their own, over one sender that is kept for the whole test."""
        messages = [message(body, **fields) for body in bodies]
        if entity not in self._senders:  # opening one takes some brokers half a second
            self._senders[entity] = self.sender(entity)
        for each in messages:
            await self._senders[entity].send(each)
        return messages

    # Faults.

    async def stop(self) -> None:
        """Take the broker away: connections are refused."""
        await self._interrupt(Interruption.STOP)

    async def freeze(self) -> None:
        """Let the broker take everything and answer nothing."""
        await self._interrupt(Interruption.FREEZE)

    async def crash(self) -> None:
        """End the broker as violently as its harness can."""
        self._interrupted = True
        await self.harness.crash()

    async def refuse_writes(self) -> None:
        """Let the broker store nothing and answer what only reads; skips the test where the harness has no way."""
        self._interrupted = True
        if not await self.harness.refuse_writes():
            self._skip("refuse_writes")

    async def lose_confirms(self) -> None:
        """Let the broker store what is sent and confirm nothing; skips the test where the harness has no way."""
        self._interrupted = True
        if not await self.harness.lose_confirms():
            self._skip("lose_confirms")

    def _skip(self, method: str) -> NoReturn:
        name = type(self.harness).__name__
        pytest.skip(f"{name} can't do this to its broker: implement {name}.{method}() if there is a way")

    async def restore(self) -> None:
        """Bring it back."""
        await self.harness.restore()
        self._interrupted = False

    async def _interrupt(self, how: Interruption) -> None:
        self._interrupted = True
        await self.harness.interrupt(how)

    async def end(self) -> None:
        """Bring the broker back and close what the test opened."""
        try:
            if self._interrupted:
                await self.restore()
        finally:
            closing = [asyncio.ensure_future(transport.close()) for transport in self._transports]
            # Tests of closing say what is wrong with it; here it must only not hold up the run.
            await asyncio.wait(closing, timeout=_CLOSING)
            for task in closing:
                task.cancel()
            await asyncio.gather(*closing, return_exceptions=True)


def message(body: str | bytes = "", **fields: Any) -> Message:
    """Make a message with an id of its own."""
    content = body.encode() if isinstance(body, str) else body
    return Message(content, **{"message_id": uuid4().hex, **fields})


async def receive_one(receiver: Receiver, *, wait: float | None = None) -> Delivery:
    """Receive the one message that must come."""
    deliveries = await receiver.receive(1, PATIENCE if wait is None else wait)
    assert len(deliveries) == 1, f"received {len(deliveries)} messages where one had to come"
    return deliveries[0]


async def receive_all(receiver: Receiver, count: int) -> list[Delivery]:
    """Receive until so many have come, in as many calls as that takes; fewer when no more come."""
    found: list[Delivery] = []
    while len(found) < count:
        some = await receiver.receive(count - len(found), PATIENCE)
        if not some:
            break
        found += some
    return found


async def receive_some(receiver: Receiver, most: int) -> list[Delivery]:
    """Receive one, and what else a receiver is given that has settled nothing: it may be no more than one."""
    found = [await receive_one(receiver)]
    while len(found) < most and (some := await receiver.receive(most - len(found), 0.5)):
        found += some
    return found


async def drain(receiver: Receiver, count: int) -> list[Delivery]:
    """Receive and complete so many; fewer when no more come."""
    found: list[Delivery] = []
    while len(found) < count:
        some = await receiver.receive(count - len(found), PATIENCE)
        if not some:
            break
        found += some
        await receiver.complete_batch(some)
    return found


async def counted(admin: Admin, source: Source, expected: QueueCounts) -> QueueCounts:
    """Ask for counts until they are as expected, or patience ends; the last answer.

    A busy broker may tell a moment late what it has put away or copied (RabbitMQ tells 0 for a queue whose leader takes
    longer than 0.25 s). What waits in a queue itself has to be told at once: that is not for here.
    """
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        told = await admin.counts(source)
        if told == expected or asyncio.get_running_loop().time() > deadline:
            return told
        await asyncio.sleep(0.05)


_TESTABLE = 4 << 20
"""A larger limit than this many bytes is not tried: it would be the machine that fails."""

_UNLIMITED_SIZE = 1 << 20


def testable_limit(broker: Broker) -> int | None:
    """The size of the largest message; None without a limit, or beyond what a test may send."""
    most = broker.capabilities.max_message_bytes
    return most if most is not None and most <= _TESTABLE else None


def of_size(broker: Broker, size: int | None = None) -> Message:
    """A message that measures exactly so much; as much as a test may send where it is left out."""
    if size is None:
        size = testable_limit(broker) or _UNLIMITED_SIZE
    empty = message(b"", message_id="large")
    body = bytes(max(0, size - broker.transport.measure(empty)))
    # A longer body may need a longer length before it: what it measures more is taken off.
    for _ in range(4):
        found = Message(body, message_id="large")
        excess = broker.transport.measure(found) - size
        if not excess:
            return found
        body = bytes(len(body) - excess)
    raise AssertionError(f"no body makes measure() tell {size} bytes: it does not count the body byte by byte")


def refusal(broker: Broker, entity: Entity, message: Message) -> TransportError | None:
    """What `check_message` says of a message; None when it lets it pass."""
    try:
        broker.transport.check_message(entity, message)
    except TransportError as error:
        return error
    return None


def bodies(deliveries: list[Delivery]) -> list[str]:
    """What the deliveries say, in their order."""
    return [delivery.message.body.decode() for delivery in deliveries]
