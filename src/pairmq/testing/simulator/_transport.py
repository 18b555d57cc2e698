"""The transport of a simulation: the contract of `pairmq.transport`, over the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from pairmq.memory import Operation, Queue, StateAdmin, StateReceiver, StateTransport, Stored
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing.history import CONFIRMED, CUT, Attempt, WriteResult
from pairmq.testing.simulator._broker import Broker, Poll
from pairmq.testing.simulator._network import WAITING, Connection, Request
from pairmq.testing.simulator._scenario import RECEIVE, SEND, SETTLE, number_of, size_of
from pairmq.transport import (
    Admin,
    Capabilities,
    Endpoint,
    QueueCounts,
    QueuePositions,
    QueueProperties,
    Receiver,
    Sender,
    outcomes_in_order,
)

# Whether the running task is an application's: all else is the syphon's.
SENDING: ContextVar[bool] = ContextVar("pairmq simulation sending", default=False)
CONSUMING: ContextVar[bool] = ContextVar("pairmq simulation consuming", default=False)


class SimulatedLink(StateTransport):
    """One process's connection to one broker; without a ``lock_duration`` locks last as long as it does."""

    connection: Connection

    def __init__(self, connection: Connection, capabilities: Capabilities, lock_duration: float | None) -> None:
        name = connection.broker.name
        self._opened = connection
        super().__init__(connection.broker, Endpoint(name, ("simulation", name), f"simulation://{name}"))
        self.lock_duration = lock_duration
        self._capabilities = capabilities
        self._admin = _Admin(self)

    def connect(self) -> Connection:
        return self._opened

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def admin(self) -> Admin:
        return self._admin

    @property
    def broker(self) -> Broker:
        return self.connection.broker

    def sender(self, entity: Entity) -> Sender:
        return _Sender(self, entity)

    def receiver(self, source: Source) -> Receiver:
        return _Receiver(self, source)

    def measure(self, message: Message) -> int:
        return size_of(message)

    async def _close(self) -> None:
        self.connection.network.end_connection(self.connection)


class _Sender(Sender):
    def __init__(self, link: SimulatedLink, entity: Entity) -> None:
        self._link = link
        self._entity = entity

    async def send(self, message: Message) -> None:
        error = (await self._write((message,)))[0]
        if error is not None:
            raise error

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await self._write(tuple(messages)) if messages else []

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await self._write(tuple(messages), in_order=True) if messages else []

    async def close(self) -> None:
        pass

    async def _write(self, messages: tuple[Message, ...], *, in_order: bool = False) -> list[TransportError | None]:
        link, connection = self._link, self._link.connection
        history, loop, life = connection.network.history, connection.network.loop, connection.life.name
        attempt = Attempt(
            number=len(history.attempts),
            life=life,
            broker=link.broker.name,
            entity=self._entity,
            syphon=not SENDING.get(),
            messages=tuple(map(number_of, messages)),
            at=loop.time(),
            tick=history.tick(),
        )
        history.attempts.append(attempt)
        if history.trace is not None:
            ids = " ".join(str(message.message_id) for message in messages)
            history.say(life, f"writes {ids} to {link.broker.name} {self._entity}, attempt {attempt.number}")
        results: list[TransportError | None]
        noted: tuple[WriteResult, ...] = ()

        def apply(request: Request) -> list[TransportError | None]:
            def store(index: int, message: Message) -> TransportError | None:
                return self._store(message, attempt.number, bool(request.spoilt >> index & 1))

            return outcomes_in_order(messages, store) if in_order else list(map(store, range(len(messages)), messages))

        try:
            results = await connection.request(SEND, self._entity.path, apply, len(messages))
            noted = tuple(CONFIRMED if result is None else WriteResult.of(result) for result in results)
        except TransportError as error:
            results = [error] * len(messages)
            noted = (WriteResult.of(error),) * len(messages)
        except BaseException:
            noted = (CUT,) * len(messages)
            raise
        finally:
            if not connection.dead:
                attempt.results = noted
                attempt.ended_at, attempt.end_tick = loop.time(), history.tick()
                if history.trace is not None:
                    history.say(life, f"attempt {attempt.number}: {'; '.join(dict.fromkeys(map(str, noted)))}")
        return results

    def _store(self, message: Message, attempt: int, refused: bool) -> TransportError | None:
        link = self._link
        try:
            link.check_message(self._entity, message)
            if refused:
                return TransportError("this one was not taken", FailureKind.UNAVAILABLE, FailureReason.OTHER)
            link.broker.store(self._entity, message, attempt)
        except TransportError as error:
            return error
        return None


class _Receiver(StateReceiver):
    def __init__(self, link: SimulatedLink, source: Source) -> None:
        super().__init__(link, source)
        self._link = link
        self._path = source.entity.path
        self._consumer = CONSUMING.get()
        self.connection = link.connection

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        network, broker = self.connection.network, self._link.broker

        def apply(request: Request) -> Any:
            queue = broker.state.source(self._source)

            def answer(found: list[Delivery] | TransportError) -> None:
                timer.cancel()
                request.stop = None
                network.answer(request, found)

            def stop() -> None:
                timer.cancel()
                request.stop = None
                broker.forget_poll(queue, poll)

            def expire() -> None:
                stop()
                network.answer(request, [])

            name = self.connection.life.name
            poll = Poll(self, name, self._consumer, max_messages, answer, lambda: network.reachable(request))
            timer = network.loop.later(wait, expire)
            request.stop = stop
            broker.poll(queue, poll)
            return WAITING

        found: list[Delivery] = await self.connection.request(RECEIVE, self._path, apply)
        return found

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        results = await super().complete_batch(deliveries)
        for each in results:
            if each is not None:
                self.connection.trouble(SETTLE, self._path, WriteResult.of(each))
        return results

    def _completed(self, queue: Queue, stored: Stored, now: float) -> None:
        self._link.broker.complete(queue, stored)

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle(delivery, lambda queue, stored, now: self._link.broker.abandon(queue, stored))

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._settle(delivery, lambda queue, stored, now: self._link.broker.dead_letter(queue, stored, reason))

    async def close(self) -> None:
        broker = self._link.broker
        if self.connection.ended:
            return
        try:
            async with asyncio.timeout(1.5):
                await self.connection.request(SETTLE, self._path, lambda _: broker.release_all(self))
        except (TransportError, TimeoutError):
            # What can't be released is redelivered when the locks expire; those without a duration when the broker sees
            # that the receiver's channel is gone.
            if self._link.lock_duration is None:
                self.connection.network.loop.later(1.0, broker.release_all, self)


class _Admin(StateAdmin):
    """Manages the queues, whose copies the broker knows."""

    def __init__(self, link: SimulatedLink) -> None:
        super().__init__(link)
        self._link = link

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        wanted = replace(properties or QueueProperties(), lock_duration=self._link.lock_duration)
        return await self._call(entity, lambda now: self._link.broker.create(entity, wanted))

    async def counts(self, source: Source) -> QueueCounts:
        broker = self._link.broker
        counts = await self._call(source.entity, lambda now: broker.counts(broker.state.source(source)))
        return counts if self._link.capabilities.counts_scheduled else replace(counts, scheduled=0)

    async def positions(self, entity: Entity) -> QueuePositions:
        broker = self._link.broker
        return await self._call(entity, lambda now: broker.positions(broker.state.find(entity)))

    async def delete(self, entity: Entity) -> bool:
        return await self._call(entity, lambda now: self._link.broker.delete(entity))

    async def purge(self, source: Source) -> int:
        raise TransportError("purge is not supported", FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)

    async def probe(self, entity: Entity) -> None:
        broker = self._link.broker
        await self._call(entity, lambda now: broker.counts(broker.state.find(entity)), Operation.PROBE)

    def is_system_entity(self, entity: Entity) -> bool:
        return entity.path.startswith("system/")
