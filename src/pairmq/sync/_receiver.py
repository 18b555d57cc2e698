"""What blocking applications receive with: always from the primary, under peek-lock; and each message handled once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from pairmq import pair as asynchronous
from pairmq.model import Delivery, LockLost, Message, PairMQError, Source
from pairmq.model.events import Event, Settlement, Side
from pairmq.sync._loop import OfPair, PerProcess, run
from pairmq.sync._sender import finished
from pairmq.transport import ClaimStore, Endpoint, Inbox


class PairDelivery:
    """A received message, locked for this receiver until it is settled by one of the methods below.

    It belongs to the process that received it: a forked child that tries to settle it gets `LockLost`.
    """

    __slots__ = ("_inner",)

    def __init__(self, inner: asynchronous.PairDelivery) -> None:
        self._inner = PerProcess(inner)

    @property
    def message(self) -> Message:
        """What was sent."""
        return self._inner.value.message

    @property
    def delivery(self) -> Delivery:
        """The delivery with its count, position and lock."""
        return self._inner.value.delivery

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self._inner.value.body

    @property
    def source(self) -> Source:
        """What it was read from."""
        return self._inner.value.source

    @property
    def endpoint(self) -> Endpoint:
        """The broker that it was read from, without its password."""
        return self._inner.value.endpoint

    @property
    def origin(self) -> Side:
        """The broker that it was read from: the primary, or for a queue with continuity maybe the secondary."""
        return self._inner.value.origin

    @property
    def settlement(self) -> Settlement | None:
        """How it was settled, or attempted to be if the broker did not confirm it; None before that."""
        return self._inner.value.settlement

    @property
    def settled(self) -> bool:
        """Whether the broker confirmed the `settlement`; otherwise the message may be redelivered."""
        return self._inner.value.settled

    def complete(self) -> None:
        """Remove the message from the broker.

        Raises:
            LockLost: the lock had ended, or it is another process's; the message is delivered again.
            TransportError: the broker is unavailable; the message may be redelivered.
        """
        self._settle(self._inner.value.complete)

    def abandon(self) -> None:
        """Release the message for immediate redelivery. Raises as `complete`."""
        self._settle(self._inner.value.abandon)

    def dead_letter(self, reason: str, description: str = "") -> None:
        """Move the message to the entity's dead-letter queue, with a reason. Raises as `complete`."""
        self._settle(lambda: self._inner.value.dead_letter(reason, description))

    def renew_lock(self) -> None:
        """Extend the lock to its full duration from now. Raises as `complete`."""
        self._settle(self._inner.value.renew_lock)

    def own(self) -> asynchronous.PairDelivery:
        """The delivery on the loop's side, for what else works with it there.

        Raises:
            LockLost: it is another process's.
        """
        if not self._inner.is_here:
            raise LockLost(f"message {self.message.message_id} was delivered to the parent process, before the fork")
        return self._inner.value

    def _settle(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.own()
        run(operation())

    def __repr__(self) -> str:
        return repr(self._inner.value)


class PairReceiver:
    """Reads one source of the primary; returned by `Pair.receiver`. Leaving its context releases unsettled messages.

    Iteration survives outages: while the primary is unavailable it waits and retries. `receive` raises instead. A
    `close`, as by another thread, ends it. Several threads may share a receiver.
    """

    def __init__(self, attached: Callable[[], Awaitable[asynchronous.Pair]], path: str, **arguments: Any) -> None:
        self._inner = OfPair(attached, lambda pair: pair.receiver(path, **arguments))
        self._sinks: tuple[Callable[[Event], None], ...] = ()

    @property
    def source(self) -> Source:
        """The source that it reads."""
        return self._inner.value.source

    def report_to(self, sink: Callable[[Event], None]) -> None:
        """Call ``sink`` with a `MessageDelivered` for each settlement; once only, and not if the pair does so already.

        Args:
            sink: called in the thread of the event loop; must be fast; its exceptions are raised where the delivery is
                settled.
        """
        self._sinks = (*self._sinks, sink)
        run(self._own())

    def receive(self, max_messages: int = 1, wait: float = 60.0) -> list[PairDelivery]:
        """Receive up to ``max_messages``, waiting for the first at most ``wait`` seconds.

        Args:
            max_messages: at least 1.
            wait: seconds; 0 polls once.

        Returns:
            Deliveries in the broker's order; empty if none arrived in time.

        Raises:
            TransportError: the primary can't be read now.
            PairClosed, PairFaulted: the pair or this receiver has ended.
            TypeError: ``max_messages`` is not a whole number, or ``wait`` not a number.
            ValueError: ``max_messages`` is below 1, or ``wait`` below 0.

        Interrupted, it loses nothing: what it had fetched is delivered again.
        """
        return [PairDelivery(each) for each in run(self._receive(max_messages, wait), unwanted=_given_back)]

    async def _receive(self, max_messages: int, wait: float) -> list[asynchronous.PairDelivery]:
        return await (await self._own()).receive(max_messages, wait)

    def __iter__(self) -> Iterator[PairDelivery]:
        return self

    def __next__(self) -> PairDelivery:
        found = run(self._next(), unwanted=_given_back)
        if not found:
            raise StopIteration
        return PairDelivery(found[0])

    async def _next(self) -> list[asynchronous.PairDelivery]:
        found = await anext(await self._own(), None)
        return [] if found is None else [found]

    def close(self) -> None:
        """Release unsettled messages; idempotent, never raises."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner.value)

    async def _own(self) -> asynchronous.PairReceiver:
        inner = await self._inner.own()
        for sink in self._sinks:
            inner.report_to(sink)
        return inner


async def _given_back(deliveries: list[asynchronous.PairDelivery]) -> None:
    for delivery in deliveries:
        with suppress(PairMQError):
            await delivery.abandon()


class Deduplicator:
    """Lets a consumer handle each message once, by its message id; arguments and errors are those of
    `pairmq.Deduplicator`.

        dedupe = Deduplicator(RedisClaims("redis://…"))
        for delivery in receiver:
            with dedupe.once(delivery) as first:
                if first:
                    handle(delivery.message)

    Any number of threads may share one. It belongs to the process that used it first: a forked child makes its own.

    Args:
        store: keeps what is known; this process's memory when left out. An inbox is for `first` only.
        window: seconds for which an id is remembered after its message was handled.
        lease: seconds after which a consumer that died loses its claim.
        scope: names the consumers that share their work.

    Raises:
        ValueError: ``window`` or ``lease`` is not above 0.
    """

    def __init__(
        self, store: ClaimStore | Inbox | None = None, *, window: float = 86_400.0, lease: float = 60.0, scope: str = ""
    ) -> None:
        self._inner = asynchronous.Deduplicator(store, window=window, lease=lease, scope=scope)

    @contextmanager
    def once(self, delivery: PairDelivery) -> Iterator[bool]:
        """Claim a delivery's message, and settle both the claim and the delivery when the inside has ended.

        Args:
            delivery: of `Pair.receiver`, not settled.

        Yields:
            True if the message is to be handled; False for a copy of one that was.

        Raises:
            TransportError: the store is unavailable, so it is unknown whether the message was handled.
            LockLost: it was delivered to the process that forked this one.
            BaseException: what the inside raises.
        """
        steps = self._inner.once(delivery.own())
        first = run(steps.__aenter__())
        try:
            yield first
        except BaseException as error:
            run(steps.__aexit__(type(error), error, error.__traceback__))
            raise
        else:
            run(steps.__aexit__(None, None, None))

    @contextmanager
    def first(self, delivery: PairDelivery, *, connection: Any) -> Iterator[bool]:
        """Claim a delivery's message in the consumer's own transaction, as `pairmq.Deduplicator.first` (SPEC 12.6).

        Args:
            delivery: of `Pair.receiver`; to be completed after the commit, also that of a copy.
            connection: as for `PairOutbox.send`, used in this thread.

        Yields:
            True if the message is to be handled; False for a copy of one that was.

        Raises:
            ConfigurationError: the store is not an inbox.
            LockLost: it was delivered to the process that forked this one.
            TransportError: the database refused; roll back.
            TypeError: it is not such a connection.
        """
        yield finished(self._inner._claim_in(delivery.own(), connection, blocking=True))

    def close(self) -> None:
        """Close the store; idempotent, never raises."""
        run(self._inner.close())
