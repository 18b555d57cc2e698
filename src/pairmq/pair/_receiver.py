"""What applications receive with: always from the primary, under peek-lock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from pairmq.core import Backoff
from pairmq.core.lanes import ASKED
from pairmq.model import Delivery, FailureKind, FailureReason, LockLost, Message, Source, TransportError
from pairmq.model.events import Event, MessageDelivered, Settlement, Side, Warned
from pairmq.pair._arguments import count, seconds
from pairmq.runner import Clock, Engine, TimeLimits
from pairmq.transport import Endpoint, Receiver, Transport

T = TypeVar("T")

_POLL = 60.0  # s: one long poll of an iteration; only its cost depends on it
_BACKOFF = Backoff(first=0.1, factor=2.0, cap=5.0)


class Holder(Protocol):
    """Learns of each settlement of what a receiver gave."""

    def settles(self, delivery: PairDelivery) -> None:
        """One begins."""

    def settled(self, delivery: PairDelivery) -> None:
        """It has ended, whatever came of it."""


class PairDelivery:
    """A received message, locked for this receiver until it is settled by one of the methods below."""

    __slots__ = ("_delivery", "_giver", "_received_at", "_receiver", "_settled", "_settlement")

    def __init__(self, delivery: Delivery, receiver: Receiver, giver: PairReceiver, received_at: float) -> None:
        self._delivery = delivery
        self._receiver = receiver
        self._giver = giver
        self._received_at = received_at
        self._settlement: Settlement | None = None
        self._settled = False

    @property
    def message(self) -> Message:
        """What was sent."""
        return self._delivery.message

    @property
    def delivery(self) -> Delivery:
        """The delivery with its count, position and lock."""
        return self._delivery

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self._delivery.message.body

    @property
    def source(self) -> Source:
        """What it was read from."""
        return self._giver.source

    @property
    def endpoint(self) -> Endpoint:
        """The broker that it was read from, without its password."""
        return self._giver.endpoint

    @property
    def origin(self) -> Side:
        """The broker that it was read from: the primary, or for a queue with continuity maybe the secondary."""
        return Side.PRIMARY

    @property
    def settlement(self) -> Settlement | None:
        """How it was settled, or attempted to be if the broker did not confirm it; None before that."""
        return self._settlement

    @property
    def settled(self) -> bool:
        """Whether the broker confirmed the `settlement`; otherwise the message may be redelivered."""
        return self._settled

    async def complete(self) -> None:
        """Remove the message from the broker.

        Raises:
            LockLost: the lock has expired; the message is redelivered.
            TransportError: the broker is unavailable; the message may be redelivered.
            RuntimeError: in another event loop than the pair's.
        """
        self._check_loop()
        await self._settle(self._receiver.complete(self._delivery), Settlement.COMPLETED)

    async def abandon(self) -> None:
        """Release the message for immediate redelivery. Raises as `complete`."""
        self._check_loop()
        await self._settle(self._receiver.abandon(self._delivery), Settlement.ABANDONED)

    async def dead_letter(self, reason: str, description: str = "") -> None:
        """Move the message to the entity's dead-letter queue, with a reason. Raises as `complete`."""
        self._check_loop()
        operation = self._receiver.dead_letter(self._delivery, reason, description)
        await self._settle(operation, Settlement.DEAD_LETTERED, reason)

    async def renew_lock(self) -> None:
        """Extend the lock to its full duration from now. Raises as `complete`."""
        self._check_loop()
        with _lock_errors():
            self._delivery = await self._giver._limits.run(self._receiver.renew_lock(self._delivery))

    def _check_loop(self) -> None:
        # In another loop it would fail as a broker would, and drop the connection that other deliveries share.
        self._giver._engine.check_loop()

    async def _settle(self, operation: Awaitable[None], settlement: Settlement, reason: str | None = None) -> None:
        error: str | None = "cancelled"
        holder = self._giver.holder
        if holder is not None:
            holder.settles(self)
        if not self._settled:  # a later attempt changes nothing about what the broker has confirmed
            self._settlement = settlement
        try:
            with _lock_errors():
                await self._giver._limits.run(operation)
            self._settled = True
            error = None
        except LockLost as failure:
            error = str(failure)
            if self._settled and self._settlement is not None:
                error = f"it is {self._settlement.value} already, as its broker confirmed: settle a delivery once"
                raise LockLost(error) from failure
            raise
        except Exception as failure:
            error = str(failure) or type(failure).__name__
            raise
        finally:
            self._giver._settled(*self._reported(), self.origin, self._received_at, settlement, reason, error)
            if holder is not None:
                holder.settled(self)

    @property
    def locked(self) -> Delivery:
        """What the broker's receiver settles."""
        return self._delivery

    def _reported(self) -> tuple[Delivery, str]:
        """What events say of it, and of which reader."""
        return self._delivery, self._giver.id

    def __repr__(self) -> str:
        return f"PairDelivery({self._delivery!r})"


class PairReceiver:
    """Reads one source of the primary; returned by `Pair.receiver`. Leaving its context releases unsettled messages.

    Iteration survives outages: while the primary is unavailable it waits and retries. `receive` raises instead. A
    `close`, as by another task, ends it.
    """

    def __init__(self, engine: Engine, transport: Transport, source: Source, prefetch: int, clock: Clock) -> None:
        self._engine = engine
        self._transport = transport
        self._source = source
        self._prefetch = prefetch
        self._clock = clock
        self._receiver = transport.receiver(source)
        self._receiver.on_dead_lettered = self._dead_lettered
        self._id = clock.new_id()
        self._limits = TimeLimits(engine.options.attempt_timeout)
        self._turn = asyncio.Lock()
        self._asked_at = 0.0
        self._ready: deque[PairDelivery] = deque()
        self._closed = False
        self._sinks: tuple[Callable[[Event], None], ...] = ()
        self.holder: Holder | None = None
        """What keeps the locks of its deliveries; None where the application does."""

    def report_to(self, sink: Callable[[Event], None]) -> None:
        """Call ``sink`` with a `MessageDelivered` for each settlement; once only, and not if the pair does so already.

        Args:
            sink: must be fast; its exceptions are raised to the caller that settles the delivery.
        """
        if sink not in self._sinks and not self._engine.emit.has(sink):
            self._sinks = (*self._sinks, sink)

    @property
    def id(self) -> str:
        """The receiver's id in `MessageDelivered`."""
        return self._id

    @property
    def source(self) -> Source:
        """The source that it reads."""
        return self._source

    @property
    def endpoint(self) -> Endpoint:
        """The broker that it reads, without its password."""
        return self._transport.endpoint

    async def receive(self, max_messages: int = 1, wait: float = 60.0) -> list[PairDelivery]:
        """Receive up to ``max_messages``, waiting for the first at most ``wait`` seconds.

        Args:
            max_messages: at least 1.
            wait: seconds; 0 polls once.

        Returns:
            Deliveries in the broker's order; empty if none arrived in time.

        Raises:
            TransportError: the primary can't be read now.
            PairClosed, PairFaulted: the pair has ended.
            TypeError: ``max_messages`` is not a whole number, or ``wait`` not a number.
            ValueError: ``max_messages`` is below 1, or ``wait`` below 0.

        Any number of tasks may receive concurrently: one polls the broker, the others wait for their turn. A cancelled
        call loses nothing: what it had fetched is redelivered.
        """
        count("max_messages", max_messages)
        wait = seconds("wait", wait, zero=True)
        self._engine.check_here()
        ends_at = self._clock.now() + wait
        if self._turn.locked():
            # While another call waits there is nothing to receive, unless that call has only just started.
            try:
                async with asyncio.timeout_at(max(ends_at, self._asked_at + ASKED)):
                    await self._turn.acquire()
            except TimeoutError:
                return []
        else:
            await self._turn.acquire()  # at once
        try:
            return await self._ask(max_messages, max(0.0, ends_at - self._clock.now()))
        finally:
            self._turn.release()

    async def _ask(self, max_messages: int, wait: float) -> list[PairDelivery]:
        """One long poll, in turn: a transport's receiver must not be polled concurrently."""
        self._engine.check_here()
        receiver, self._asked_at = self._receiver, self._clock.now()
        limit = wait + self._engine.options.attempt_timeout
        deliveries = await self._limits.run(receiver.receive(max_messages, wait), self._asked_at + limit)
        now = self._clock.wall()
        return [PairDelivery(delivery, receiver, self, now) for delivery in deliveries]

    def _read_ahead(self, messages: int) -> None:
        """Let the broker lock so many here before they are asked for: they are taken at once, and renewed."""
        self._receiver.read_ahead(messages)

    def _dead_lettered(self, delivery: Delivery) -> None:
        """The transport could not decode a message, and has dead-lettered it."""
        message_id, reason = delivery.message.message_id, delivery.dead_letter_reason
        text = f"message {message_id or 'without a readable id'} is in its dead-letter queue now, as {reason}: "
        text += delivery.dead_letter_description or ""
        self._engine.emit(Warned, subject=str(self._source), text=text)
        now = self._clock.wall()
        self._settled(delivery, self._id, Side.PRIMARY, now, Settlement.DEAD_LETTERED, reason, None)

    def _settled(
        self,
        delivery: Delivery,
        reader: str,
        side: Side,
        received_at: float,
        settlement: Settlement,
        reason: str | None,
        error: str | None,
    ) -> None:
        emit = self._engine.emit
        if not emit.active and not self._sinks:
            return
        values: dict[str, Any] = {
            "entity": self._source.entity,
            "subscription": self._source.subscription,
            "dead_letter": self._source.dead_letter,
            "message_id": delivery.message.message_id,
            "delivery_count": delivery.delivery_count,
            "sequence_number": delivery.sequence_number,
            "settlement": settlement,
            "received_at": received_at,
            "reason": reason,
            "error": error,
            "receiver": reader,
            "side": side,
        }
        emit(MessageDelivered, delivery.message, **values)
        for sink in self._sinks:
            sink(MessageDelivered(at=self._clock.wall(), pair=emit.pair, **values))

    def __aiter__(self) -> AsyncIterator[PairDelivery]:
        return self

    async def __anext__(self) -> PairDelivery:
        retry = 0
        while not self._ready:
            try:
                async with self._turn:
                    if not self._ready:  # another task's poll may have brought some for all
                        self._ready.extend(await self._ask(self._prefetch, _POLL))
            except TransportError as error:
                self._engine.check_here()
                if self._closed:
                    raise StopAsyncIteration from None
                if error.kind is FailureKind.REFUSED or self._transport.ended:
                    raise
                await asyncio.sleep(_BACKOFF.wait(retry, self._clock.chance()))
                retry += 1
        return self._ready.popleft()

    async def close(self) -> None:
        """Release unsettled messages; idempotent, never raises."""
        self._closed = True
        self._ready.clear()
        if not self._engine.is_gone:
            await self._receiver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"PairReceiver({str(self._source)!r})"


class _lock_errors:  # used as a function
    """Turns the transport's word for a lost lock into the public one."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TransportError) and error.reason is FailureReason.LOCK_LOST:
            raise LockLost(str(error)) from error
