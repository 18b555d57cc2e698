"""The interfaces that every broker's adapter fulfils: Transport, Sender, Receiver, Admin.

Rules for all of them, which the conformance suite checks:

- **Asyncio, one loop.** Objects belong to the loop that first awaited them. Every method may be called concurrently
  with every other unless its text says otherwise.
- **No hidden retries.** A failure is raised at once as `TransportError`, with the kind of the transport's one mapping
  table (SPEC 3.6). Whether, when and where to try again is decided above. The client library's own retries and
  reconnections are switched off; the next call after a lost connection connects anew.
- **Time limits come from above** as cancellation (``asyncio.timeout``). A cancelled call returns control within a few
  milliseconds, even from a broker that never answers, and leaves the object usable: if the connection's state is in
  doubt, the transport drops the connection instead of waiting. A transport that had written nothing yet says so with
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
from types import TracebackType
from typing import Self

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport._values import Capabilities, ConfirmRisk, Endpoint, QueueCounts, QueuePositions, QueueProperties

_NOTHING_SENT = "pairmq_nothing_sent"

_AT_ONCE = 8


def nothing_sent(cancellation: asyncio.CancelledError) -> None:
    """Mark the cancellation of a send that had written nothing: whoever set the time limit then knows for certain.

    Args:
        cancellation: caught by the transport, which raises it again.
    """
    setattr(cancellation, _NOTHING_SENT, True)


def is_nothing_sent(timeout: BaseException) -> bool:
    """Tell whether the call that a time limit ended had marked its cancellation with `nothing_sent`.

    Args:
        timeout: what `asyncio.timeout` raised, or the cancellation itself.
    """
    cancellation = timeout.__cause__
    if isinstance(timeout, TimeoutError) and cancellation is None:
        # The first releases of Python 3.11 don't name the cancellation as the time-out's cause.
        cancellation = timeout.__context__
    return getattr(cancellation, _NOTHING_SENT, False) or getattr(timeout, _NOTHING_SENT, False)


class Sender(ABC):
    """Sends to one entity. Keep it open: brokers charge for opening."""

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

    @abstractmethod
    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """Send several messages, in order, as cheaply as the broker allows.

        Args:
            messages: any number; the transport cuts them to the broker's limits.

        Returns:
            One entry a message, in order: None for confirmed, else its failure. Messages confirmed stand in the
            entity in the order given.

        A cancelled call may have stored any part of them. Nothing but cancellation is raised.
        """

    async def make_ready(self) -> None:  # noqa: B027  # nothing to do is a good answer
        """Hint that a send may come whose first step should not be to connect, as the first diverted one.

        A transport may connect and open what its first send would; one that knows no use for the hint does nothing.

        Raises:
            TransportError: it could not. The next send tries anew.

        A cancelled call leaves the sender as it was.
        """

    @abstractmethod
    async def close(self) -> None:
        """Give up the link; idempotent, never raises, returns within 2 s whatever the broker does.

        Calls in flight end with `TransportError` of reason *closed*.
        """


class Receiver(ABC):
    """Reads one source under peek-lock: a delivery stays in the broker until it is completed.

    A delivery is settled through the receiver that gave it; any other one tells that the lock is lost, and leaves it.
    """

    @abstractmethod
    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        """Receive up to ``max_messages``, waiting for the first at most ``wait`` seconds (a long poll).

        Args:
            max_messages: at least 1.
            wait: seconds; 0 asks once and returns at once.

        Returns:
            Deliveries in the broker's order; empty when none came in time. It returns as soon as there is at least one.
            A stored message that can't be decoded never fails the call and never blocks the queue: the transport
            dead-letters it with reason ``malformed`` and goes on.

        Raises:
            TransportError: the source can't be read.

        Not to be called twice at the same time on one receiver. A cancelled call loses nothing: what it had fetched is
        delivered again, at the latest when the locks end.
        """

    def read_ahead(self, messages: int) -> None:  # noqa: B027  # nothing to do is a good answer
        """Hint that calls of `receive` will follow each other without a pause, as the syphon's do.

        A transport may let the broker lock messages here before they are asked for; the next calls of `receive` give
        them out in the broker's order. One that knows no use for the hint does nothing.

        Args:
            messages: as many at most, those given out and not yet settled included; 0 takes the hint back.
        """

    @abstractmethod
    async def complete(self, delivery: Delivery) -> None:
        """Remove a delivery from the broker for good, confirmed.

        Raises:
            TransportError: reason *lock-lost* when the lock had ended (it will be delivered again), or the broker could
                not be reached (it may be delivered again).
        """

    @abstractmethod
    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        """Complete several as cheaply as the broker allows; one entry each, None for done. Raises only cancellation."""

    @abstractmethod
    async def abandon(self, delivery: Delivery) -> None:
        """Give a delivery back at once, to be delivered again with its delivery count one higher.

        Raises:
            TransportError: as `complete`.
        """

    @abstractmethod
    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        """Move a delivery to the source's dead-letter queue, in one step or so that a crash can only leave two copies.

        Args:
            delivery: one that this receiver gave and that is not settled.
            reason: a word or two.
            description: a sentence; cut to what the broker takes.

        Raises:
            TransportError: as `complete`; reason *not-supported* without the capability.
        """

    @abstractmethod
    async def renew_lock(self, delivery: Delivery) -> Delivery:
        """Make the lock last its whole duration from now.

        Returns:
            The delivery with its new ``locked_until``; the old one settles just as well.

        Raises:
            TransportError: as `complete`; reason *not-supported* without the capability.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release what is not settled, so that others get it soon; idempotent, never raises, returns within 2 s."""


class SessionReceiver(Receiver):
    """Reads one session, which it has locked: nobody else gets its messages until the lock ends or this is closed.

    Deliveries come in the session's order. The locks of its messages are the session's: they last as long, and
    `renew_lock` of one renews it. When it is lost, every call raises `TransportError` of reason *lock-lost*, and what
    was not settled is delivered again to whoever gets the session next.
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
        """Make the lock last its whole duration from now, and tell until when.

        Raises:
            TransportError: reason *lock-lost*, or the broker could not be reached.
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
    """Looks after a broker's entities, and finds out whether they work."""

    @abstractmethod
    async def check(self) -> None:
        """Make one round trip to the broker, which shows that it is there and lets this user in.

        Raises:
            TransportError: it is not, or does not.
        """

    @abstractmethod
    async def exists(self, entity: Entity) -> bool:
        """Tell whether the entity exists.

        Raises:
            TransportError: the broker could not be asked.
        """

    @abstractmethod
    async def create(self, entity: Entity, properties: QueueProperties | None = None) -> bool:
        """Make a queue or topic, durable; an existing one is left exactly as it is.

        Args:
            entity: what to make.
            properties: settings, mapped to the broker's nearest (the transport documents the differences);
                None for the broker's defaults with peek-lock and dead-lettering.

        Returns:
            True when it was made, False when it existed.

        Raises:
            TransportError: neither; reason *not-supported* for ``requires_session`` without the sessions capability,
                and for ``single_consumer`` without ordered_consumer.
        """

    @abstractmethod
    async def create_subscription(self, topic: Entity, name: str) -> bool:
        """Make a subscription of a topic that gets every message from now on; as `create`.

        Raises:
            TransportError: reason *not-supported* without the topics capability, *not-found* without the topic.
        """

    @abstractmethod
    async def properties(self, entity: Entity) -> QueueProperties:
        """Read a queue's settings.

        Raises:
            TransportError: reason *not-found* when it does not exist.
        """

    @abstractmethod
    async def counts(self, source: Source) -> QueueCounts:
        """Count what a queue or subscription holds, now and exactly, messages locked by anyone included.

        A broker that does not tell what others hold locked counts what this process holds; its docs say so.

        Raises:
            TransportError: reason *not-found* when it does not exist.
        """

    async def positions(self, entity: Entity) -> QueuePositions:
        """Tell how far a queue has been settled by whomever (SPEC 8.3).

        It may tell less than is true, for a while, and never more: whoever asks gives up the protection of order on the
        strength of the answer. Positions are compared with others of the same object only.

        Raises:
            TransportError: reason *not-supported* without the ordered_consumer capability; *not-found* when the queue
                does not exist; or the broker could not be asked.
        """
        raise TransportError(
            f"{entity}: this transport can't tell how far a queue has been settled",
            FailureKind.REFUSED,
            FailureReason.NOT_SUPPORTED,
        )

    @abstractmethod
    async def delete(self, entity: Entity) -> bool:
        """Delete an entity with all it holds; False when it did not exist.

        Raises:
            TransportError: the broker did not.
        """

    @abstractmethod
    async def list_entities(self, prefix: str = "") -> list[Entity]:
        """List the entities whose path starts with ``prefix``, by path, dead-letter queues and system ones left out.

        Raises:
            TransportError: the broker could not be asked; reason *not-supported* where it has no way to tell.
        """

    @abstractmethod
    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        """Show the oldest messages without locking or changing them; their lock tokens settle nothing.

        Scheduled messages come last, where the broker can show them (``counts_scheduled`` says that it can count them).
        A broker that can't look without fetching may fetch messages and give them back at once, which may count as a
        delivery; its docs say so.

        Raises:
            TransportError: reason *not-supported* without the capability.
        """

    @abstractmethod
    async def purge(self, source: Source) -> int:
        """Delete what a queue or dead-letter queue holds, locked messages included where the broker can.

        Returns:
            How many.

        Raises:
            TransportError: the broker did not.
        """

    @abstractmethod
    async def probe(self, entity: Entity) -> None:
        """Find out whether the entity accepts writes, in a way that no consumer ever sees (SPEC 6.2).

        Each transport's docstring says what its probe proves and what it cannot.

        Raises:
            TransportError: it does not.
        """

    async def confirm_risks(self, queue: Entity | None = None) -> Sequence[ConfirmRisk]:
        """Find settings by which the broker may lose what it has confirmed; `pairmq doctor` warns of each.

        It only reads. What can't be read is a risk too: it is unknown then. Without an implementation there is none.

        Args:
            queue: one that exists, for the risks of this queue; None for those of the broker as a whole.

        Returns:
            The risks; none where a confirm is worth what the transport's documents say at best.

        Raises:
            TransportError: the broker could not be asked.
        """
        return ()

    @abstractmethod
    def is_system_entity(self, entity: Entity) -> bool:
        """Tell, without IO, whether the path is the broker's own or the transport's (SPEC 5.8)."""


class Transport(ABC):
    """One connection (or what the product calls one) to one broker.

    It ends in one of two ways: `close`, or `fault`, after which every call raises `TransportError` of reason *closed*.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._fault: BaseException | None = None
        self._ended = False
        self._listeners: list[Callable[[Transport], None]] = []

    @property
    def endpoint(self) -> Endpoint:
        """The broker that this transport talks to."""
        return self._endpoint

    @property
    def ended(self) -> bool:
        """Whether it is closed or faulted."""
        return self._ended

    @property
    def fault_cause(self) -> BaseException | None:
        """Why it faulted; None while open and after an ordinary close."""
        return self._fault

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can do; limits may become exact once connected."""

    @property
    @abstractmethod
    def admin(self) -> Admin:
        """The broker's administration."""

    @abstractmethod
    def sender(self, entity: Entity) -> Sender:
        """Make a sender; no IO.

        Raises:
            TransportError: kind refused, reason *not-supported*, when the transport has no such kind of entity;
                reason *malformed* when the path breaks a rule of this broker.
        """

    @abstractmethod
    def receiver(self, source: Source) -> Receiver:
        """Make a receiver; no IO. Raises as `sender`."""

    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        """Lock a session of a source, and read it alone.

        Args:
            source: a queue or subscription that was made with ``requires_session``.
            session_id: which one; None for any that has messages and that nobody has locked.
            wait: seconds to wait for one that is free.

        Returns:
            A receiver of that session; None when none was free in time.

        Raises:
            TransportError: reason *not-supported* without the sessions capability, or where the source has no sessions;
                else as `Receiver.receive`.

        A cancelled call may have locked a session, until that lock ends at the latest.
        """
        raise TransportError(
            f"{self._endpoint.identity[0]} has no sessions: {source} can't be read one session at a time",
            FailureKind.REFUSED,
            FailureReason.NOT_SUPPORTED,
        )

    @abstractmethod
    def measure(self, message: Message) -> int:
        """Tell, without IO, a message's size in bytes as ``Capabilities.max_message_bytes`` counts it."""

    def check_message(self, entity: Entity, message: Message) -> None:
        """Find out, without IO, that the broker can never take a message (SPEC 3.8).

        A pair asks it of the primary before a backlog queue takes a message, and of the secondary for its backlog form.
        A transport that refuses more than its capabilities tell says so here as well; a limit that it does not know
        before it is connected refuses nothing here.

        Args:
            entity: where the message is to go.
            message: as it would be sent.

        Raises:
            TransportError: kind refused, as `Sender.send` would raise it in every state of the broker.
        """
        capabilities = self.capabilities
        for field, kept in (
            ("time_to_live", capabilities.time_to_live),
            ("scheduled_enqueue_at", capabilities.scheduling),
        ):
            if not kept and getattr(message, field) is not None:
                raise TransportError(
                    f"send to {entity}: {self._endpoint} keeps no {field}: send the message without it",
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
        """Close all connections, senders and receivers; never raises, returns within 2 s whatever the broker does."""

    async def close(self) -> None:
        """Close everything; idempotent, never raises, returns within 2 s whatever the broker does."""
        if not self._ended:
            self._end()
        await self._close()

    async def fault(self, cause: BaseException) -> None:
        """End it for good because its partner is gone or it can never work again (SPEC 9.2).

        Args:
            cause: what `fault_cause` tells from now on.
        """
        if not self._ended:
            self._fault = cause
            self._end()
        await self._close()

    def on_end(self, listener: Callable[[Transport], None]) -> None:
        """Call ``listener`` once, synchronously, when the transport ends; at once if it has.

        Args:
            listener: must not raise and must not block.
        """
        if self._ended:
            listener(self)
        else:
            self._listeners.append(listener)

    def remove_on_end(self, listener: Callable[[Transport], None]) -> None:
        """Forget a listener; unknown ones are ignored."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _end(self) -> None:
        self._ended = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint.url!r})"


async def counts_of(
    transport: Transport, queues: Sequence[Entity], time_limit: float
) -> tuple[QueueCounts | TransportError, ...]:
    """Count every queue, a few at a time; one that fails keeps nobody from knowing the others.

    Args:
        transport: the queues' broker.
        queues: which.
        time_limit: seconds for each.

    Returns:
        For each queue, in the same order, what it holds, or why it could not be asked.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(queue: Entity) -> QueueCounts | TransportError:
        async with turns:
            try:
                async with asyncio.timeout(time_limit):
                    return await transport.admin.counts(Source(queue))
            except TransportError as error:
                return error
            except TimeoutError:
                text = f"no answer within {time_limit:g} s"
                return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)

    return tuple(await asyncio.gather(*(one(queue) for queue in queues)))
