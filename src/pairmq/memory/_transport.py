"""Transports to a broker whose state is in this process: ``memory://name``, and what it has in common with others."""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from pairmq.memory._broker import Broker, Calls, Connection, Link, Operation, StateBroker, broker_named
from pairmq.memory._state import Queue, Session, Stored
from pairmq.model import (
    ConfigurationError,
    Delivery,
    Entity,
    Message,
    PropertyValue,
    Source,
    TransportError,
)
from pairmq.transport import (
    ENDPOINT_OPTIONS,
    Admin,
    BrokerUrl,
    Capabilities,
    Endpoint,
    QueueCounts,
    QueuePositions,
    QueueProperties,
    Receiver,
    Sender,
    SessionReceiver,
    Transport,
    checked_name,
    chosen_endpoint,
    outcomes_in_order,
)

T = TypeVar("T")

CAPABILITIES = Capabilities(
    topics=True,
    sessions=True,
    scheduling=True,
    counts_scheduled=True,
    time_to_live=True,
    dead_letter=True,
    lock_renewal=True,
    probes=True,
    peek=True,
    quiet_peek=True,
    ordered_consumer=True,
    ordered_batches=True,
)
"""Everything that a transport can do, but nothing outlives the process."""

_TEXTS = (
    "message_id",
    "session_id",
    "content_type",
    "content_encoding",
    "correlation_id",
    "subject",
    "to",
    "reply_to",
    "reply_to_session_id",
    "partition_key",
)
_SHORTEST_WAIT = 0.001  # s; timers and the wall clock may differ


class StateTransport(Transport):
    """A transport to a broker whose state is in this process."""

    def __init__(self, broker: StateBroker, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.state_broker = broker
        self.connection = self.connect()
        self._parts: WeakKeyDictionary[Calls | StateReceiver, None] = WeakKeyDictionary()

    @abstractmethod
    def connect(self) -> Link:
        """A way to the broker."""

    def sender(self, entity: Entity) -> Sender:
        return StateSender(self, entity)

    def receiver(self, source: Source) -> Receiver:
        return StateReceiver(self, source)

    def new_calls(self, part: StateReceiver | None = None) -> Calls:
        """The calls of a new object, which end with this transport."""
        calls = Calls(self.state_broker)
        self._parts[part or calls] = None
        calls.closed = self.ended
        return calls

    async def _close(self) -> None:
        for part in list(self._parts):
            if isinstance(part, Calls):
                part.close()
            else:
                await part.close()


class MemoryTransport(StateTransport):
    """A transport to a broker in this process: ``memory://name``, with the options ``name`` and ``identity``.

    Raises:
        ConfigurationError: the URL is invalid.
    """

    capabilities = CAPABILITIES

    def __init__(self, url: str) -> None:
        name, endpoint = _parsed(url)
        self.broker = broker_named(name)
        super().__init__(self.broker, endpoint)
        self._admin = StateAdmin(self)

    def connect(self) -> Link:
        return Connection(self.broker)

    @property
    def admin(self) -> Admin:
        return self._admin

    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        receiver = MemorySessionReceiver(self, source)
        return receiver if await receiver.accept(session_id, wait) else None

    def measure(self, message: Message) -> int:
        return size_of(message)

    def check_message(self, entity: Entity, message: Message) -> None:
        super().check_message(entity, message)
        self.broker.state.check_session(entity, message)


class StateSender(Sender):
    """Sends to one entity."""

    def __init__(self, transport: StateTransport, entity: Entity) -> None:
        self._broker = transport.state_broker
        self._connection = transport.connection
        self._calls = transport.new_calls()
        self._entity = entity

    async def send(self, message: Message) -> None:
        store = partial(self._store, message)  # lighter than a lambda, while thousands wait
        await self._connection.call(self._calls, store, Operation.SEND, self._entity, stores=True)

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await self._store_all(messages, lambda store: _failures(store, messages))

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        def act(store: Callable[[Message], None]) -> list[TransportError | None]:
            return outcomes_in_order(messages, lambda _, message: _failures(store, (message,))[0])

        return await self._store_all(messages, act)

    async def _store_all(
        self,
        messages: Sequence[Message],
        act: Callable[[Callable[[Message], None]], list[TransportError | None]],
    ) -> list[TransportError | None]:
        def act_now(now: float) -> list[TransportError | None]:
            return act(lambda message: self._store(message, now))

        if not messages:
            return []
        try:
            return await self._connection.call(self._calls, act_now, Operation.SEND, self._entity, stores=True)
        except TransportError as error:
            return [error] * len(messages)

    async def close(self) -> None:
        self._calls.close()

    def _store(self, message: Message, now: float) -> None:
        broker = self._broker
        broker.wake_for(broker.state.store(self._entity, detached(message), now))


class StateReceiver(Receiver):
    """Reads one source."""

    def __init__(self, transport: StateTransport, source: Source) -> None:
        self._broker = transport.state_broker
        self._connection = transport.connect()
        self._source = source
        self._calls = transport.new_calls(self)
        self._locked = False

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        def look(queue: Queue, now: float) -> list[Delivery]:
            found = self._take(queue, max_messages, now)
            self._locked = self._locked or bool(found)
            return [detached_delivery(self._broker.state.delivery(stored)) for stored in found]

        return await self._until(look, wait) or []

    def _take(self, queue: Queue, most: int, now: float) -> list[Stored]:
        return queue.take(self, most, now)

    async def _until(self, look: Callable[[Queue, float], T], wait: float) -> T | None:
        """Repeat a look at the source until it returns something, at most so long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait

        def act(now: float) -> tuple[T | None, tuple[asyncio.Future[None], float, Queue] | None]:
            queue = self._broker.state.source(self._source)
            before = len(queue.dead.stored)
            found = look(queue, now)
            if len(queue.dead.stored) != before:
                self._broker.wake(queue.dead)
            left = deadline - loop.time()
            if found or left <= 0:
                return found, None
            # In the same step: what is stored from now on wakes it.
            soon = max(queue.next_change() - now, _SHORTEST_WAIT)
            return None, (self._calls.enter(queue), min(left, soon), queue)

        again = False
        while True:
            entity = self._source.entity
            found, waiting = await self._connection.call(self._calls, act, Operation.RECEIVE, entity, again=again)
            if waiting is None:
                return found
            await self._calls.wait(*waiting)
            again = True

    async def complete(self, delivery: Delivery) -> None:
        await self._settle(delivery, self._completed)

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        def act(now: float) -> list[TransportError | None]:
            queue = self._broker.state.source(self._source)
            return _failures(
                lambda delivery: self._completed(queue, queue.held(delivery.lock_token, self, now), now), deliveries
            )

        if not deliveries:
            return []
        try:
            return await self._connection.call(self._calls, act, Operation.SETTLE, self._source.entity)
        except TransportError as error:
            return [error] * len(deliveries)

    async def abandon(self, delivery: Delivery) -> None:
        def act(queue: Queue, stored: Stored, now: float) -> None:
            queue.abandon(stored)
            self._broker.wake(queue, queue.dead)

        await self._settle(delivery, act)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        def act(queue: Queue, stored: Stored, now: float) -> None:
            queue.bury(stored, reason, description)
            self._broker.wake(queue, queue.dead)

        await self._settle(delivery, act)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        until = await self._settle(delivery, lambda queue, stored, now: queue.renew(stored, now))
        return replace(delivery, locked_until=self._broker.state.instant(until))

    async def close(self) -> None:
        self._calls.close()
        broker = self._broker
        with broker.lock, contextlib.suppress(TransportError):  # its source was deleted
            if self._locked:
                queue = broker.state.source(self._source)
                if queue.release_all(self):
                    broker.wake(queue)
        self._locked = False

    def _completed(self, queue: Queue, stored: Stored, now: float) -> None:
        queue.complete(stored)
        if queue.properties.single_consumer:
            self._broker.wake(queue)  # it may be another one's turn

    async def _settle(self, delivery: Delivery, act: Callable[[Queue, Stored, float], T]) -> T:
        def settle(now: float) -> T:
            queue = self._broker.state.source(self._source)
            return act(queue, queue.held(delivery.lock_token, self, now), now)

        return await self._connection.call(self._calls, settle, Operation.SETTLE, self._source.entity)


class MemorySessionReceiver(StateReceiver, SessionReceiver):
    """Reads one session of a source."""

    _session: Session

    @property
    def session_id(self) -> str:
        return self._session.name

    @property
    def locked_until(self) -> datetime:
        return self._broker.state.instant(self._session.until) or datetime.max.replace(tzinfo=UTC)

    async def accept(self, name: str | None, wait: float) -> bool:
        """Lock a session; called once, before everything else."""
        found = await self._until(lambda queue, now: queue.accept(self, name, now), wait)
        if found is not None:
            self._session, self._locked = found, True
        return found is not None

    async def renew_session_lock(self) -> datetime:
        await self._with_session(lambda queue, session, now: queue.renew_session(session, now))
        return self.locked_until

    async def get_state(self) -> bytes | None:
        return await self._with_session(lambda queue, session, now: session.state)

    async def set_state(self, state: bytes | None) -> None:
        kept = None if state is None else bytes(state)
        await self._with_session(lambda queue, session, now: setattr(session, "state", kept))

    def _take(self, queue: Queue, most: int, now: float) -> list[Stored]:
        return queue.take(self, most, now, queue.held_session(self._session, self, now))

    async def _with_session(self, act: Callable[[Queue, Session, float], T]) -> T:
        def in_lock(now: float) -> T:
            queue = self._broker.state.source(self._source)
            return act(queue, queue.held_session(self._session, self, now), now)

        return await self._connection.call(self._calls, in_lock, Operation.SETTLE, self._source.entity)


class StateAdmin(Admin):
    """Manages queues and topics."""

    def __init__(self, transport: StateTransport) -> None:
        self._broker = transport.state_broker
        self._connection = transport.connection
        self._calls = transport.new_calls()

    async def check(self) -> None:
        await self._call(None, lambda now: None)

    async def exists(self, entity: Entity) -> bool:
        return await self._call(entity, lambda now: entity in self._broker.state.queues)

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Create a queue or topic.

        ``max_size_megabytes``, ``auto_delete_after`` and ``batched_operations`` are reported by `properties`, and have
        no effect. A lock duration of None becomes 60 s.
        """
        wanted = (properties or QueueProperties()).checked(f"create {entity}", math.inf)
        return await self._call(entity, lambda now: self._broker.state.create(entity, wanted), stores=True)

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Create a subscription. A topic without any discards what it is sent."""
        Source(topic, subscription=name)  # checks the name
        return await self._call(topic, lambda now: self._broker.state.subscribe(topic, name), stores=True)

    async def properties(self, entity: Entity) -> QueueProperties:
        return await self._call(entity, lambda now: self._broker.state.find(entity).properties)

    async def counts(self, source: Source) -> QueueCounts:
        """Count exactly; an expired message is active until a receiver meets it."""
        return await self._call(source.entity, lambda now: self._broker.state.source(source).counts(now))

    async def positions(self, entity: Entity) -> QueuePositions:
        """Exact; what is scheduled has no position before its time."""
        return await self._call(entity, lambda now: self._broker.state.find(entity).positions(now))

    async def delete(self, entity: Entity) -> bool:
        def act(now: float) -> bool:
            parts = self._broker.state.delete(entity)
            self._broker.wake(*parts)
            return bool(parts)

        return await self._call(entity, act)

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        found = await self._call(None, lambda now: list(self._broker.state.queues))
        return sorted((each for each in found if each.path.startswith(prefix)), key=lambda each: each.path)

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages, locked ones too, then the scheduled ones."""

        def act(now: float) -> list[Delivery]:
            shown = self._broker.state.source(source).oldest(max(max_messages, 1), now)
            return [detached_delivery(self._broker.state.delivery(stored, is_peek=True)) for stored in shown]

        return await self._call(source.entity, act)

    async def purge(self, source: Source) -> int:
        return await self._call(source.entity, lambda now: self._broker.state.source(source).purge())

    async def probe(self, entity: Entity) -> None:
        """Prove that the broker is reachable, takes writes, and has the entity. Nothing is stored."""
        await self._call(entity, lambda now: self._broker.state.find(entity), Operation.PROBE, stores=True)

    def is_system_entity(self, entity: Entity) -> bool:
        """Nothing is reserved."""
        return False

    async def _call(
        self,
        entity: Entity | None,
        act: Callable[[float], T],
        operation: Operation = Operation.ADMIN,
        *,
        stores: bool = False,
    ) -> T:
        return await self._connection.call(self._calls, act, operation, entity, stores=stores)


def control(url: str) -> Broker:
    """The control of the broker that a URL names; made by the first call.

    Raises:
        ConfigurationError: the URL is invalid.
    """
    return broker_named(_parsed(url)[0])


def detached(message: Message) -> Message:
    """A message of which nothing changes when the caller goes on to change the properties of its own."""
    properties = message.application_properties
    if not properties:
        return message
    return message.with_properties({name: _copied(value) for name, value in properties.items()})


def detached_delivery(delivery: Delivery) -> Delivery:
    """The same for a consumer: what it changes is not redelivered."""
    if not delivery.message.application_properties:
        return delivery
    return replace(delivery, message=detached(delivery.message))


def _copied(value: PropertyValue) -> PropertyValue:
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return value


def size_of(message: Message) -> int:
    """Bytes of a message's body, texts and application properties."""
    texts = (getattr(message, name) for name in _TEXTS)
    found = len(message.body) + sum(len(text.encode()) for text in texts if text is not None)
    return found + _size(message.application_properties)


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(name) + _size(each) for name, each in value.items())
    if isinstance(value, tuple):
        return sum(map(_size, value))
    return 8


def _failures(act: Callable[[T], object], items: Sequence[T]) -> list[TransportError | None]:
    """Do something with each item; one failure affects no other."""
    found: list[TransportError | None] = []
    for item in items:
        try:
            act(item)
            found.append(None)
        except TransportError as error:
            found.append(error)
    return found


def _parsed(url: str) -> tuple[str, Endpoint]:
    """Read ``memory://name[?options]``: the broker's name, and the endpoint. An error does not repeat its value."""
    read = BrokerUrl(url, "memory://name", "memory")
    broker = read.decoded(read.parts.netloc, "name")  # hostname would be in lower case
    if not broker or "@" in read.parts.netloc or read.parts.path not in ("", "/"):
        raise ConfigurationError(f"{read.where} does not name one broker: write it as {read.form}")
    options = read.options(*ENDPOINT_OPTIONS)
    name = checked_name(broker, f"the name of {read.where}")
    endpoint = Endpoint(name, ("memory", name), f"memory://{name}")
    return name, chosen_endpoint(endpoint, options, read.where)
