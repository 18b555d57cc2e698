"""Receiving from a queue with continuity: the primary's queue and its lane, side by side (SPEC 11.3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from pairmq.core.lanes import ASKED, HELD, LANE_POLL, Call, Outcome, ReadSide, TwoSides, from_lane
from pairmq.core.pump import Poison
from pairmq.model import Delivery, FailureKind, FailureReason, Message, PairClosed, PairFaulted, Source, TransportError
from pairmq.model.events import MessageDeadLettered, ReceiverChanged, Side
from pairmq.pair._arguments import count, seconds
from pairmq.pair._receiver import PairDelivery, PairReceiver
from pairmq.pair._renewals import Renewals
from pairmq.runner import Clock, Engine
from pairmq.transport import Endpoint, Receiver, Transport, start_task

T = TypeVar("T")

_CLOSE = 1.0  # s


class LaneDelivery(PairDelivery):
    """A message received from a lane: restored, and settled on the secondary."""

    __slots__ = ("_original", "_side")

    def __init__(self, delivery: Delivery, original: Message, side: _LaneSide, received_at: float) -> None:
        super().__init__(delivery, side.receiver, side.owner, received_at)
        self._original = original
        self._side = side

    @property
    def message(self) -> Message:
        return self._original

    @property
    def delivery(self) -> Delivery:
        """The delivery with its count, position and lock in the lane."""
        its = self._delivery
        return Delivery(
            self._original, its.lock_token, its.delivery_count, its.sequence_number, its.enqueued_at, its.locked_until
        )

    @property
    def body(self) -> bytes:
        return self._original.body

    @property
    def endpoint(self) -> Endpoint:
        """The broker that it was read from, without its password."""
        return self._side.transport.endpoint

    @property
    def origin(self) -> Side:
        """The broker that it was read from."""
        return Side.SECONDARY

    def _reported(self) -> tuple[Delivery, str]:
        # Positions of two brokers can't be compared, nor the order of what came from both.
        its = self.delivery
        return Delivery(its.message, its.lock_token, its.delivery_count), self._side.id


class _Side:
    """One broker's part of a receiver: polls while a call waits, and reads on after it was lost."""

    def __init__(
        self,
        owner: ContinuousReceiver,
        name: Side,
        state: ReadSide,
        transport: Transport,
        source: Source,
        receiver: Receiver,
    ) -> None:
        self.owner = owner
        self.name = name
        self.state = state
        self.transport = transport
        self.source = source
        self.receiver = receiver
        self.ready: deque[PairDelivery] = deque()
        self.failure: TransportError | None = None
        """Why it can't be read; None while it can."""
        self._taken = asyncio.Event()
        self._locks = Renewals(owner.clock, self._not_renewed)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Poll until something is there, or no call waits any more."""
        if self._task is None:
            self._task = start_task(self._run(), name=f"receive {self.source} of the {self.name}")
            self._task.add_done_callback(self._ended)

    def take(self) -> PairDelivery | None:
        if not self.ready:
            return None
        self._taken.set()
        taken = self.ready.popleft()
        self._locks.drop(taken)
        return taken

    def stop(self) -> asyncio.Task[None] | None:
        """Stop polling."""
        self.ready.clear()
        self._locks.clear()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def _ended(self, _: object) -> None:
        self._task = None
        self.owner.wake()

    async def _run(self) -> None:
        owner, clock = self.owner, self.owner.clock
        while owner.wants(self):
            await asyncio.sleep(max(0.0, self.state.retry_at - clock.now()))
            try:
                self.ready.extend(await self._poll())
            except Exception as error:
                if owner.has_ended():
                    return
                if not isinstance(error, TransportError):
                    error = TransportError(repr(error), FailureKind.UNAVAILABLE)
                self._lost(error)
                continue
            self._works()
            await self._hold()

    async def _poll(self) -> Sequence[PairDelivery]:
        owner = self.owner
        now = owner.clock.now()
        wait = owner.sides.poll(self.state, now)
        self.state.asks(now)
        try:
            deliveries = await owner.limited(self.receiver.receive(owner.most, wait), wait)
        finally:
            self.state.polls = False
        return self._given(deliveries, owner.clock.wall())

    def _given(self, deliveries: Sequence[Delivery], received_at: float) -> Sequence[PairDelivery]:
        return [PairDelivery(delivery, self.receiver, self.owner, received_at) for delivery in deliveries]

    def _lost(self, error: TransportError) -> None:
        owner = self.owner
        self.failure = error.with_traceback(None)
        refused = error.kind is FailureKind.REFUSED
        if self.state.fails(owner.clock.now(), owner.clock.chance(), refused=refused):
            owner.emit(ReceiverChanged, entity=owner.source.entity, side=self.name, open=False, error=str(error))
        owner.wake()

    def _works(self) -> None:
        owner = self.owner
        self.failure = None
        if self.state.answers(owner.clock.now()):
            owner.emit(ReceiverChanged, entity=owner.source.entity, side=self.name, open=True)
        owner.wake()

    async def _hold(self) -> None:
        """Keep the locks of what is there until it is taken; after a while release it, for others to handle."""
        self._locks.keep(self.ready)
        while self.ready:
            self._taken.clear()
            try:
                async with asyncio.timeout(HELD):
                    await self._taken.wait()
            except TimeoutError:
                released = tuple(self.ready)
                self.ready.clear()
                self._locks.clear()
                for delivery in released:
                    with contextlib.suppress(TransportError):  # it is redelivered
                        await self.owner.limited(self.receiver.abandon(delivery.locked))

    def _not_renewed(self, delivery: PairDelivery, error: Exception) -> bool:
        self.ready.remove(delivery)  # it is redelivered, or may be
        self._taken.set()
        return False


class _LaneSide(_Side):
    """The secondary's part, which reads the queue's lane."""

    def __init__(self, owner: ContinuousReceiver, engine: Engine, lane: int) -> None:
        source = Source(engine.backlog.queues[lane])
        receiver = engine.secondary.receiver(source)
        super().__init__(owner, Side.SECONDARY, owner.sides.lane, engine.secondary, source, receiver)
        self.id = owner.clock.new_id()
        self._backlog = engine.backlog
        self._lane = lane
        receiver.on_dead_lettered = lambda found: self._buried(
            found, Poison(found.dead_letter_reason or "", found.dead_letter_description or "")
        )

    async def _poll(self) -> Sequence[PairDelivery]:
        began_at = self.owner.clock.now()
        await self._backlog.check(self._lane)
        try:
            deliveries = await super()._poll()
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                await self._backlog.make_again(self._lane, began_at)
            raise
        return deliveries

    def _given(self, deliveries: Sequence[Delivery], received_at: float) -> Sequence[PairDelivery]:
        given: list[PairDelivery] = []
        owner = self.owner
        for delivery in deliveries:
            found = from_lane(delivery.message, owner.source.entity, owner.options, owner.clock.instant())
            if isinstance(found, Poison):
                owner.later(self._bury(delivery, found))
            else:
                given.append(LaneDelivery(delivery, found, self, received_at))
        return given

    async def _bury(self, delivery: Delivery, poison: Poison) -> None:
        """Dead-letter what is not a message of this queue, as the syphon would."""
        owner = self.owner
        with contextlib.suppress(TransportError):  # it is redelivered
            await owner.limited(self.receiver.dead_letter(delivery, *poison))
            self._buried(delivery, poison)

    def _buried(self, delivery: Delivery, poison: Poison) -> None:
        self.owner.emit(
            MessageDeadLettered,
            queue=self.source.entity.path,
            entity=self.owner.source.entity.path,
            message_id=delivery.message.message_id,
            reason=poison.reason,
            description=poison.description,
        )


class ContinuousReceiver(PairReceiver):
    """Reads a queue with continuity: on the primary, and its lane on the secondary (SPEC 11.3).

    It goes on while one of both can be read, reconnects to the other, and reports both as `ReceiverChanged`. `receive`
    raises only while neither can be read.
    """

    def __init__(self, engine: Engine, source: Source, lane: int, prefetch: int, clock: Clock) -> None:
        super().__init__(engine, engine.primary, source, prefetch, clock)
        self.clock = clock
        self.options = engine.options
        self.emit = engine.emit
        self.most = prefetch
        """Messages that a poll locks at most."""
        self.sides = TwoSides()
        """Decides which side is read."""
        first = _Side(self, Side.PRIMARY, self.sides.primary, engine.primary, source, self._receiver)
        self._sides: tuple[_Side, _Side] = (first, _LaneSide(self, engine, lane))
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        engine.readers[self] = None

    async def receive(self, max_messages: int = 1, wait: float = 60.0) -> list[PairDelivery]:
        """Receive up to ``max_messages`` of both sides, waiting for the first at most ``wait`` seconds.

        Args, returns and raises as `PairReceiver.receive`; a `TransportError` while neither side can be read.
        """
        count("max_messages", max_messages)
        wait = seconds("wait", wait, zero=True)
        self._engine.check_here()
        return await self._receive(max_messages, wait, raises=True)

    async def __anext__(self) -> PairDelivery:
        self._engine.check_here()
        while True:
            try:
                found = await self._receive(1, LANE_POLL, raises=False)
            except TransportError:
                if self._closed:
                    raise StopAsyncIteration from None
                raise
            if found:
                return found[0]

    async def _receive(self, most: int, wait: float, *, raises: bool) -> list[PairDelivery]:
        call = self.sides.begin(self.clock.now(), wait)
        try:
            while True:
                self._engine.check_open()
                if self._closed:
                    raise TransportError("the receiver is closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
                found = self._take(most)
                if found:
                    return found
                if self._is_over(call, raises=raises):
                    return []
                self.most = max(most, self._prefetch)
                for side in self._sides:
                    if self.wants(side):
                        side.start()
                changed = self._changed
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(max(call.ends_at, self.clock.now() + ASKED / 4)):
                        await changed.wait()
        finally:
            self.sides.end(call)

    def _read_ahead(self, messages: int) -> None:
        """Without effect: what one side had while the other's is handled would be released, and redelivered at once."""

    def _take(self, most: int) -> list[PairDelivery]:
        """What is there, of both sides in turn."""
        found: list[PairDelivery] = []
        while len(found) < most and any(side.ready for side in self._sides):
            delivery = self._sides[self.sides.lane_first()].take()
            if delivery is not None:
                found.append(delivery)
        return found

    def _is_over(self, call: Call, *, raises: bool) -> bool:
        """Whether a call that got nothing has ended; raises why the queue can't be read."""
        ended = all(side.transport.ended for side in self._sides)
        outcome = self.sides.outcome(call, self.clock.now(), raises=raises, ended=ended)
        failure = self._sides[0].failure
        if outcome is Outcome.FAIL and failure is not None:
            raise failure
        return outcome is Outcome.OVER

    # For its sides.

    async def limited(self, operation: Awaitable[T], more: float = 0.0) -> T:
        """Await an operation, for its time limit and ``more`` seconds at most."""
        return await self._limits.run(operation, self.clock.now() + more + self.options.attempt_timeout)

    def wants(self, side: _Side) -> bool:
        """Whether a side is to poll."""
        return not self._closed and self.sides.wants(side.state, self.clock.now())

    def wake(self) -> None:
        """Let the calls that wait look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def has_ended(self) -> bool:
        """Whether the pair or this receiver has ended."""
        try:
            self._engine.check_open()
        except (PairClosed, PairFaulted):
            return True
        return self._closed

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that no call waits for."""
        start_task(work, name="receiver", keep=self._tasks)

    def stop(self) -> None:
        """The pair closes: stop polling."""
        for side in self._sides:
            side.stop()
        self.wake()

    async def close(self) -> None:
        """Release unsettled messages on both sides; idempotent, never raises. Cancelling the call does not stop it."""
        self._closed = True
        if self._engine.is_gone:
            return
        if self._closing is None:
            self._closing = start_task(self._close(), name=f"close {self.source}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        tasks = [task for side in self._sides if (task := side.stop()) is not None]
        self.wake()
        if tasks or self._tasks:
            await asyncio.wait((*tasks, *self._tasks), timeout=_CLOSE)
        # Side by side: a broker that hangs must not keep what is held at the other one.
        closing = (start_task(side.receiver.close(), name=f"close {side.source}") for side in self._sides)
        await asyncio.gather(*closing)
