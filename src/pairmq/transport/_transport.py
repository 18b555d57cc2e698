"""The interfaces that every transport implements: Transport, Sender, Receiver, Admin.

What must be written is abstract: `Sender.send`, `Receiver.receive` and `Receiver.complete`, `Admin.probe`, and of
`Transport` its ``capabilities``, ``admin``, ``sender`` and ``_close``. Everything else has a default: one that is built
on these, or one that raises *not-supported*. A transport that only sends needs no receiver, and can be a primary. A
secondary needs `Transport.receiver`, `Receiver.renew_lock`, `Admin.create`, `Admin.properties`, `Admin.counts` and
`Admin.purge`, too.

Rules for all of them, which the conformance suite checks:

- **Asyncio, one loop.** Objects belong to the loop that first awaited them. Every method may be called concurrently
  with every other unless its text says otherwise.
- **No hidden retries.** A failure is raised immediately as `TransportError`, with the kind from the transport's mapping
  table (SPEC 3.6). Whether, when and where to retry is decided above. The client library's own retries and
  reconnections are disabled; the next call after a lost connection reconnects.
- **Time limits come from above** as cancellation (``asyncio.timeout``). A cancelled call returns control within a few
  milliseconds, even with an unresponsive broker, and leaves the object usable: if the connection's state is in doubt,
  the transport drops the connection instead of waiting. A transport that had written nothing yet reports this with
  `nothing_sent`, so that a time-out while connecting leaves no doubt about a message.
- **Accepted means confirmed by the broker** (SPEC 3.4).
- **Lazy.** Making a sender, receiver or admin does no IO; the first call connects.
- **Nothing of a message is trusted**: never evaluated, unpickled, or used as a path.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NoReturn, Self

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport._batches import behind_failed, send_chunks
from pairmq.transport._scope import Scope, start_task
from pairmq.transport._values import (
    Capabilities,
    ConfirmRisk,
    Depth,
    Endpoint,
    QueueCounts,
    QueuePositions,
    QueueProperties,
)

_NO_ENTITY = Entity("pairmq-check")
"""A queue that `Admin.check` asks for: that it does not exist is an answer, too."""

_NOTHING_SENT = "pairmq_nothing_sent"

_AT_ONCE = 8


def nothing_sent(cancellation: asyncio.CancelledError) -> None:
    """Mark the cancellation of a send that had written nothing, so that the outcome is certain for the caller.

    Args:
        cancellation: caught by the transport, which raises it again.
    """
    setattr(cancellation, _NOTHING_SENT, True)


def is_nothing_sent(timeout: BaseException) -> bool:
    """Return whether a call that timed out had marked its cancellation with `nothing_sent`.

    Args:
        timeout: raised by `asyncio.timeout`, or the cancellation itself.
    """
    cancellation = timeout.__cause__
    if isinstance(timeout, TimeoutError) and cancellation is None:
        # The first releases of Python 3.11 don't name the cancellation as the time-out's cause.
        cancellation = timeout.__context__
    return getattr(cancellation, _NOTHING_SENT, False) or getattr(timeout, _NOTHING_SENT, False)


def _not_supported(text: str) -> TransportError:
    return TransportError(f"{text}: not supported by this transport", FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)


def raise_failure(failure: TransportError) -> NoReturn:
    """Raise an error that has its cause already.

    ``raise ... from error`` would replace it by the client library's exception, which may show a secret.

    Args:
        failure: to be raised, with its ``__cause__``.

    Raises:
        TransportError: always.
    """
    raise failure from failure.__cause__


class Sender(ABC):
    """Sends to one entity. Keep it open: brokers charge for opening.

    Attributes:
        scope: what ends the calls in flight when this closes; None for a transport that overrides `close`.
    """

    scope: Scope | None = None

    @abstractmethod
    async def send(self, message: Message) -> None:
        """Send one message and return when the broker has confirmed it.

        Args:
            message: has a message id. The transport carries every field of it unchanged to its own receivers.

        Raises:
            TransportError: the broker did not confirm. ``maybe_applied`` is True unless it is certain that the broker
                has not stored the message; *unavailable* failures before the first byte was written are certain.

        A cancelled call may or may not have stored the message.
        """

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """Send several messages, in order, as cheaply as the broker allows. The default sends one after the other.

        Args:
            messages: any number; the transport cuts them to the broker's limits.

        Returns:
            One entry per message, in order: None if confirmed, else its failure. Confirmed messages are stored in the
            order given.

        A cancelled call may have stored any part of them. Nothing but cancellation is raised.
        """
        return await send_chunks(([message] for message in messages), self.__send_one)

    async def __send_one(self, chunk: Sequence[Message]) -> Sequence[TransportError | None]:
        (message,) = chunk
        await self.send(message)
        return (None,)

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """Send several messages, and of each session none behind one that failed.

        That is more than `send_batch` promises, where one message may fail and a later one of its session be stored.
        Here what is stored of a session are its first messages, also where the outcome is in doubt: then none behind it
        is stored unless it is. Messages without a session id count as one session. While nothing fails all are stored
        in the order given. The default sends one after the other; a transport with the capability *ordered_batches*
        sends messages of a session that follow each other in one round trip, and with them those of other sessions.

        Args:
            messages: as for `send_batch`.

        Returns:
            As `send_batch`. No message is confirmed behind one of its session that is not: it has a failure, too,
            `behind_failed` if it was not sent.

        A cancelled call may have stored the first messages of any session.
        """
        outcomes: list[TransportError | None] = []
        failed: dict[str | None, TransportError] = {}
        for message in messages:
            outcome = failed.get(message.session_id)
            if outcome is not None:
                outcomes.append(behind_failed(outcome))
                continue
            try:
                await self.send(message)
            except TransportError as error:
                failed[message.session_id] = error
                outcomes.append(error)
            except asyncio.CancelledError as cancellation:
                if outcomes:  # that nothing was sent may be true of this message; of the batch it is not
                    raise asyncio.CancelledError(*cancellation.args) from None
                raise
            else:
                outcomes.append(None)
        return outcomes

    async def make_ready(self) -> None:  # noqa: B027  # optional
        """Hint that a send may follow that should not have to connect first, such as the first diverted one.

        A transport may connect and open what its first send needs, or ignore the hint.

        Raises:
            TransportError: it failed. The next send tries again.

        A cancelled call leaves the sender as it was.
        """

    async def close(self) -> None:
        """Close the link; idempotent, never raises, returns within 2 s even if the broker is unresponsive.

        Calls in flight end with `TransportError` of reason *closed*, as do later ones. The default closes ``scope``.
        """
        if self.scope is not None:
            self.scope.close()


class Receiver(ABC):
    """Reads one source under peek-lock: a delivery stays in the broker until it is completed.

    A delivery is settled through the receiver that returned it; any other one raises *lock-lost*, and leaves it.

    Attributes:
        scope: as `Sender.scope`.
        on_dead_lettered: set by who reads; called with each message that `receive` itself has dead-lettered, as a
            receiver of the dead-letter queue would return it, its ``message`` as far as it can be read.
    """

    scope: Scope | None = None
    on_dead_lettered: Callable[[Delivery], None] | None = None
    __releasing: asyncio.Task[None] | None = None

    @abstractmethod
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        """Receive up to ``max_messages``, waiting for the first at most ``wait`` seconds (a long poll).

        Args:
            max_messages: at least 1.
            wait: seconds; 0 polls once and returns immediately.

        Returns:
            Deliveries in the broker's order; empty if none arrived in time. It returns as soon as there is at least
            one. A stored message that can't be decoded never fails the call and never blocks the queue: the transport
            dead-letters it with reason ``malformed``, reports it (`dead_lettered`) and continues.

        Raises:
            TransportError: the source can't be read.

        Not to be called concurrently on one receiver. A cancelled call loses nothing: what it had fetched is
        redelivered, at the latest when the locks expire.
        """

    def dead_lettered(self, message: Message, reason: str, description: str, delivery_count: int = 1) -> None:
        """Report a message that `receive` itself has dead-lettered, once the broker has confirmed it.

        Args:
            message: as far as it can be read.
            reason: ``malformed``.
            description: a sentence.
            delivery_count: how many times it was delivered.
        """
        if self.on_dead_lettered is not None:
            self.on_dead_lettered(
                Delivery(message, None, delivery_count, dead_letter_reason=reason, dead_letter_description=description)
            )

    def read_ahead(self, messages: int) -> None:  # noqa: B027  # optional
        """Hint that `receive` will be called continuously, as by the syphon.

        A transport may prefetch messages, which the next calls of `receive` return in the broker's order, or ignore the
        hint.

        Args:
            messages: at most this many, including those returned and not yet settled; 0 cancels the hint.
        """

    @abstractmethod
    async def complete(self, delivery: Delivery) -> None:
        """Remove a message from the broker, confirmed.

        Raises:
            TransportError: reason *lock-lost* if the lock has expired (it will be redelivered), or the broker is
                unavailable (it may be redelivered).
        """

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        """Complete several as cheaply as the broker allows; one entry each, None on success. Raises only cancellation.

        The default completes one after the other.
        """
        outcomes: list[TransportError | None] = []
        for delivery in deliveries:
            try:
                await self.complete(delivery)
            except TransportError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    async def abandon(self, delivery: Delivery) -> None:
        """Release a message for immediate redelivery, with its delivery count incremented.

        Raises:
            TransportError: as `complete`; reason *not-supported* by default.
        """
        raise _not_supported("release a message for immediate redelivery")

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        """Move a delivery to the source's dead-letter queue, atomically, or so that a crash can only leave two copies.

        Args:
            delivery: returned by this receiver, not settled.
            reason: a word or two.
            description: a sentence; truncated to the broker's limit.

        Raises:
            TransportError: as `complete`; reason *not-supported* without the capability.
        """
        raise _not_supported("move a message to the dead-letter queue")

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        """Extend the lock to its full duration from now.

        Returns:
            The delivery with its new ``locked_until``; the old one can still be settled.

        Raises:
            TransportError: as `complete`; reason *not-supported* without the capability.
        """
        raise _not_supported("renew a lock")

    async def close(self) -> None:
        """Release unsettled messages for redelivery; idempotent, never raises, returns within 2 s.

        Calls in flight end with `TransportError` of reason *closed*, as do later ones. The default closes ``scope``,
        and has `_release` called.
        """
        if self.__releasing is None:
            if self.scope is not None:
                self.scope.close()
            self.__releasing = start_task(self._release())
        await asyncio.shield(self.__releasing)

    async def _release(self) -> None:  # noqa: B027  # optional
        """Release what is locked; never raises, returns within 2 s. The default leaves the locks to end by themselves.

        Called once, in a task of its own: a caller of `close` that is cancelled does not take it along.
        """


class SessionReceiver(Receiver):
    """Reads one session, which it has locked: no other consumer gets its messages until the lock ends or it is closed.

    Deliveries come in the session's order. The locks of its messages are the session's: they last as long, and
    `renew_lock` of one renews it. When it is lost, every call raises `TransportError` of reason *lock-lost*, and
    unsettled messages are redelivered to the session's next receiver.
    """

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session that it reads."""

    @property
    @abstractmethod
    def locked_until(self) -> datetime:
        """When the lock ends unless renewed."""

    @abstractmethod
    async def renew_session_lock(self) -> datetime:
        """Extend the lock to its full duration from now, and return its end.

        Raises:
            TransportError: reason *lock-lost*, or the broker is unavailable.
        """

    @abstractmethod
    async def get_state(self) -> bytes | None:
        """Read what `set_state` stored with the session; None when it has none.

        Raises:
            TransportError: as `renew_session_lock`.
        """

    @abstractmethod
    async def set_state(self, state: bytes | None) -> None:
        """Store a consumer's own data with the session, None to remove it; it outlives the messages.

        Raises:
            TransportError: as `renew_session_lock`; reason *too-large* beyond what a message may have.
        """


class Admin(ABC):
    """Manages a broker's entities, and probes them."""

    async def check(self) -> None:
        """Make one round trip to the broker, to check that it is reachable and accepts these credentials.

        The default asks for the `properties` of a queue that need not exist.

        Raises:
            TransportError: it is unavailable, or refuses them.
        """
        await self.exists(_NO_ENTITY)

    async def exists(self, entity: Entity) -> bool:
        """Return whether the entity exists. The default asks for its `properties`.

        Raises:
            TransportError: the broker could not be queried.
        """
        try:
            await self.properties(entity)
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                return False
            raise
        return True

    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Create a durable queue or topic; an existing one is left unchanged.

        Args:
            entity: the entity to create.
            properties: settings, mapped to the broker's nearest (the transport documents the differences);
                None for the broker's defaults with peek-lock and dead-lettering.

        Returns:
            True if it was created, False if it existed.

        Raises:
            TransportError: it failed; reason *not-supported* for ``requires_session`` without the sessions capability,
                and for ``single_consumer`` without ordered_consumer.
        """
        raise _not_supported(f"create {entity}")

    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Create a subscription of a topic that gets every message from now on; as `create`.

        Raises:
            TransportError: reason *not-supported* without the topics capability, *not-found* without the topic.
        """
        raise _not_supported(f"create the subscription {name} of {topic}")

    async def properties(self, entity: Entity) -> QueueProperties:
        """Read a queue's settings.

        Raises:
            TransportError: reason *not-found* when it does not exist.
        """
        raise _not_supported(f"read the settings of {entity}")

    async def counts(self, source: Source) -> QueueCounts:
        """Count the messages of a queue or subscription, now and exactly, including those locked by any consumer.

        If a broker does not report locks of other consumers, only this process's are counted; the transport documents
        this.

        Raises:
            TransportError: reason *not-found* when it does not exist.
        """
        raise _not_supported(f"count {source}")

    async def positions(self, entity: Entity) -> QueuePositions:
        """Return how far a queue has been settled, by any consumer (SPEC 8.3).

        It may report less than is true for a while, but never more: the caller relies on it to stop protecting order.
        Positions are comparable only within the same object.

        Raises:
            TransportError: reason *not-supported* without the ordered_consumer capability; *not-found* when the queue
                does not exist; or the broker could not be queried.
        """
        raise _not_supported(f"find how far {entity} has been settled")

    async def delete(self, entity: Entity) -> bool:
        """Delete an entity and its messages; False if it did not exist.

        Raises:
            TransportError: it failed.
        """
        raise _not_supported(f"delete {entity}")

    async def list_entities(self, prefix: str = "") -> list[Entity]:
        """List the entities whose path starts with ``prefix``, by path, without dead-letter queues and system entities.

        Raises:
            TransportError: the broker could not be queried; reason *not-supported* if it can't list entities.
        """
        raise _not_supported("list the entities")

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Return the oldest messages without locking or changing them; they can't be settled.

        Scheduled messages come last, if the broker can show them (``counts_scheduled``: it can count them). A transport
        may have to fetch messages and release them, which may count as a delivery; it documents this.

        Raises:
            TransportError: reason *not-supported* without the capability.
        """
        raise _not_supported(f"peek into {source}")

    async def purge(self, source: Source) -> int:
        """Delete the messages of a queue or dead-letter queue, including locked ones if the broker can.

        Returns:
            How many.

        Raises:
            TransportError: it failed.
        """
        raise _not_supported(f"purge {source}")

    @abstractmethod
    async def probe(self, entity: Entity) -> None:
        """Check that the entity accepts writes, invisibly to consumers (SPEC 6.2).

        Each transport documents what its probe proves and what it can't.

        Raises:
            TransportError: it does not.
        """

    async def confirm_risks(self, queue: Entity | None = None) -> Sequence[ConfirmRisk]:
        """Find settings that allow the broker to lose confirmed messages; `pairmq doctor` warns of each.

        Read-only. A setting that can't be read is reported as a risk, too. The default reports none.

        Args:
            queue: one that exists, for the risks of this queue; None for those of the broker as a whole.

        Returns:
            The risks; empty if a confirm has the full durability that the transport documents.

        Raises:
            TransportError: the broker could not be queried.
        """
        return ()

    def is_system_entity(self, entity: Entity) -> bool:
        """Return, without IO, whether the entity is internal to the broker or the transport (SPEC 5.8)."""
        return False


class Transport(ABC):
    """One connection (in the product's sense) to one broker.

    It ends in one of two ways: `close`, or `fault`, after which every call raises `TransportError` of reason *closed*.

    Attributes:
        scope: closed when the transport ends; that of a sender or receiver made with it as its parent closes with it.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.scope = Scope()
        self._fault: BaseException | None = None
        self._ended = False
        self._listeners: list[Callable[[Transport], None]] = []
        self.__closing: asyncio.Task[None] | None = None  # a subclass may have a name of its own like that

    @property
    def endpoint(self) -> Endpoint:
        """The broker that this transport talks to."""
        return self._endpoint

    @property
    def node(self) -> str | None:
        """The node of a cluster that it is connected to, such as ``host:port``; None where it is not, or where its URL
        names one host."""
        return None

    @property
    def ended(self) -> bool:
        """Whether it is closed or faulted."""
        return self._ended

    @property
    def fault_cause(self) -> BaseException | None:
        """Why it faulted; None while open and after a regular close."""
        return self._fault

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it supports; limits may become exact once connected."""

    @property
    @abstractmethod
    def admin(self) -> Admin:
        """The broker's administration."""

    async def make_ready(self, *, sends: bool = False, receives: bool = False) -> None:  # noqa: B027  # optional
        """Hint that sends or receives will follow that should not have to connect first, such as a drain's.

        A transport whose connections take several round trips may open them now, or ignore the hint. As
        `Sender.make_ready`, which knows the entity.

        Args:
            sends: to any entity.
            receives: from any source.

        Raises:
            TransportError: it failed. The next call tries again.

        A cancelled call leaves the transport as it was.
        """

    @abstractmethod
    def sender(self, entity: Entity) -> Sender:
        """Make a sender; no IO.

        Raises:
            TransportError: kind refused, reason *not-supported*, when the transport has no such kind of entity;
                reason *malformed* when the path breaks a rule of this broker.
        """

    def receiver(self, source: Source) -> Receiver:
        """Make a receiver; no IO. Raises as `sender`; reason *not-supported* in a transport that only sends."""
        raise _not_supported(f"receive from {source}")

    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        """Lock a session of a source, for exclusive reading.

        Args:
            source: a queue or subscription that was made with ``requires_session``.
            session_id: which one; None for any that has messages and is not locked.
            wait: seconds to wait for a free one.

        Returns:
            A receiver of that session; None if none was free in time.

        Raises:
            TransportError: reason *not-supported* without the sessions capability, or where the source has no sessions;
                else as `Receiver.receive`.

        A cancelled call may have locked a session, until that lock ends at the latest.
        """
        raise _not_supported(f"read {source} one session at a time")

    def measure(self, message: Message) -> int:
        """Return, without IO, a message's size in bytes as ``Capabilities.max_message_bytes`` counts it.

        The default counts the body alone; a transport whose broker counts headers, too, overrides it.
        """
        return len(message.body)

    def check_message(self, entity: Entity, message: Message) -> None:
        """Reject, without IO, a message that the broker can never accept (SPEC 3.8).

        A pair checks a message with the primary before diverting it, and its backlog form with the secondary. A
        transport that refuses more than its capabilities show overrides this; a limit that is unknown before connecting
        is not checked.

        Args:
            entity: the message's destination.
            message: as it would be sent.

        Raises:
            TransportError: kind refused, as `Sender.send` would raise it in every state of the broker.
        """
        capabilities = self.capabilities
        lacks = None
        if message.time_to_live is not None and not capabilities.time_to_live:
            lacks = "time_to_live"
        elif message.scheduled_enqueue_at is not None and not capabilities.scheduling:
            lacks = "scheduled_enqueue_at"
        if lacks is not None:
            raise TransportError(
                f"send to {entity}: {self._endpoint} does not support {lacks}: send the message without it",
                FailureKind.REFUSED,
                FailureReason.NOT_SUPPORTED,
            )
        most = capabilities.max_message_bytes
        if most is not None and (size := self.measure(message)) > most:
            raise TransportError(
                f"send to {entity}: the message has {size} bytes, {self._endpoint} takes at most {most}",
                FailureKind.REFUSED,
                FailureReason.TOO_LARGE,
            )

    @abstractmethod
    async def _close(self) -> None:
        """Close all connections, senders and receivers; never raises, returns within 2 s even if the broker is
        unresponsive.

        Called once, in a task of its own: a caller of `close` that is cancelled does not take it along.
        """

    async def close(self) -> None:
        """Close everything; idempotent, never raises, returns within 2 s even if the broker is unresponsive."""
        if not self._ended:
            self._end()
        await self.__close_once()

    async def fault(self, cause: BaseException) -> None:
        """Close it permanently because its partner is closed or it can't recover (SPEC 9.2).

        Args:
            cause: returned by `fault_cause` from now on.
        """
        if not self._ended:
            self._fault = cause
            self._end()
        await self.__close_once()

    async def __close_once(self) -> None:
        if self.__closing is None:
            self.__closing = start_task(self._close())
        await asyncio.shield(self.__closing)

    def on_end(self, listener: Callable[[Transport], None]) -> None:
        """Call ``listener`` once, synchronously, when the transport ends; immediately if it has.

        Args:
            listener: must not raise and must not block.
        """
        if self._ended:
            listener(self)
        else:
            self._listeners.append(listener)

    def remove_on_end(self, listener: Callable[[Transport], None]) -> None:
        """Remove a listener; unknown ones are ignored."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _end(self) -> None:
        self._ended = True
        self.scope.close()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint.url!r})"


async def counts_of(transport: Transport, queues: Sequence[Entity], time_limit: float) -> tuple[Depth, ...]:
    """Count every queue, a few at a time; failures are part of the result, and do not affect the others.

    Args:
        transport: the queues' broker.
        queues: which.
        time_limit: seconds for each.

    Returns:
        For each queue, in the same order, what it holds.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(queue: Entity) -> Depth:
        async with turns:
            try:
                async with asyncio.timeout(time_limit):
                    return Depth(queue, await transport.admin.counts(Source(queue)))
            except TransportError as error:
                if error.reason is FailureReason.NOT_FOUND:
                    return Depth(queue)
                text = str(error) or type(error).__name__
            except TimeoutError:
                text = f"no answer within {time_limit:g} s"
        return Depth(queue, error=text if transport.endpoint.url in text else f"{transport.endpoint}: {text}")

    return tuple(await asyncio.gather(*(one(queue) for queue in queues)))
