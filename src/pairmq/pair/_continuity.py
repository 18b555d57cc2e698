"""Receiving from a queue with continuity: the primary's queue and its lane, side by side (SPEC 11.3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from pairmq.core import LANE_POLL, Backoff, Poison, from_lane
from pairmq.model import (
    Delivery,
    FailureKind,
    FailureReason,
    LockLost,
    Message,
    PairClosed,
    PairFaulted,
    Source,
    TransportError,
)
from pairmq.model.events import MessageDeadLettered, ReceiverChanged, Side
from pairmq.pair._arguments import count, seconds
from pairmq.pair._receiver import ASKED, PairDelivery, PairReceiver
from pairmq.runner import Clock, Engine
from pairmq.transport import Endpoint, Receiver, Transport, start_task

T = TypeVar("T")

_BACKOFF = Backoff(first=0.1, factor=2.0, cap=5.0)
_HELD = 60.0  # s since the last call for which what is there stays locked; then another consumer may have it
_RENEWED = 20.0  # s between two renewals of these locks, at most
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
        """What was sent."""
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
        """The message's body."""
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
    """One broker's part of a receiver: polls while a call waits, and reads on after it was lost.

    Args:
        owner: the receiver.
        name: which broker.
        transport: of it.
        source: what is read there.
        receiver: of the transport.
    """

    def __init__(
        self, owner: ContinuousReceiver, name: Side, transport: Transport, source: Source, receiver: Receiver
    ) -> None:
        self.owner = owner
        self.name = name
        self.transport = transport
        self.source = source
        self.receiver = receiver
        self.ready: deque[PairDelivery] = deque()
        self.failure: TransportError | None = None
        """Why it can't be read; None while it can."""
        self.failed_at = self.answered_at = self.asked_at = float("-inf")
        self.polls = self.was_read = False
        self._retry = 0
        self._retry_at = float("-inf")
        self._taken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Poll until something is there, or no call waits any more."""
        if self._task is None:
            self._task = start_task(self._run(), name=f"receive {self.source} of the {self.name}")
            self._task.add_done_callback(self._ended)

    def take(self) -> PairDelivery | None:
        """The oldest delivery that is there."""
        if not self.ready:
            return None
        self._taken.set()
        return self.ready.popleft()

    def stop(self) -> asyncio.Task[None] | None:
        """Poll no more."""
        self.ready.clear()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def _ended(self, _: object) -> None:
        self._task = None
        self.owner.wake()

    async def _run(self) -> None:
        owner, clock = self.owner, self.owner.clock
        while owner.wants(self):
            await asyncio.sleep(max(0.0, self._retry_at - clock.now()))
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
        """One long poll; a short one after a failure, to learn soon that the broker is back."""
        owner = self.owner
        self.asked_at = now = owner.clock.now()
        wait = 0.0 if self.failure is not None else owner.wait(now)
        self.polls = True
        try:
            deliveries = await owner.limited(self.receiver.receive(owner.most, wait), wait)
        finally:
            self.polls = False
        return self._given(deliveries, owner.clock.wall())

    def _given(self, deliveries: Sequence[Delivery], received_at: float) -> Sequence[PairDelivery]:
        return [PairDelivery(delivery, self.receiver, self.owner, received_at) for delivery in deliveries]

    def _lost(self, error: TransportError) -> None:
        owner = self.owner
        before, self.failure = self.failure, error.with_traceback(None)
        self.failed_at = owner.clock.now()
        self._retry_at = self.failed_at + _BACKOFF.wait(self._retry, owner.clock.chance())
        self._retry += 1
        if before is None:
            owner.emit(ReceiverChanged, entity=owner.source.entity, side=self.name, open=False, error=str(error))
        owner.wake()

    def _works(self) -> None:
        owner = self.owner
        self.was_read, self.answered_at, self._retry = True, owner.clock.now(), 0
        if self.failure is not None:
            self.failure = None
            owner.emit(ReceiverChanged, entity=owner.source.entity, side=self.name, open=True)
        owner.wake()

    async def _hold(self) -> None:
        """Keep the locks of what is there until it is taken; after a while release it, for others to handle."""
        clock = self.owner.clock
        ends_at = clock.now() + _HELD
        while self.ready:
            self._taken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(ends_at, clock.now() + self._renewal_due())):
                    await self._taken.wait()
                ends_at = clock.now() + _HELD
                continue
            held = tuple(self.ready)
            if clock.now() >= ends_at:
                self.ready.clear()
            for delivery in held:
                try:
                    if delivery in self.ready:
                        await delivery.renew_lock()
                    else:
                        await self.owner.limited(self.receiver.abandon(delivery.locked))
                except (TransportError, LockLost):  # it is redelivered, or may be
                    with contextlib.suppress(ValueError):
                        self.ready.remove(delivery)

    def _renewal_due(self) -> float:
        locks = [delivery.delivery.locked_until for delivery in self.ready]
        now = self.owner.clock.instant()
        left = [(until - now).total_seconds() / 2 for until in locks if until is not None]
        return min([_RENEWED, *(max(1.0, each) for each in left)]) if left else _HELD


class _LaneSide(_Side):
    """The secondary's part, which reads the queue's lane."""

    def __init__(self, owner: ContinuousReceiver, engine: Engine, lane: int) -> None:
        source = Source(engine.backlog.queue(lane))
        super().__init__(owner, Side.SECONDARY, engine.secondary, source, engine.secondary.receiver(source))
        self.id = owner.clock.new_id()
        self._backlog = engine.backlog
        self._lane = lane

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
            owner.emit(
                MessageDeadLettered,
                queue=self.source.entity.path,
                entity=owner.source.entity.path,
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
        first = _Side(self, Side.PRIMARY, engine.primary, source, self._receiver)
        self._sides: tuple[_Side, _Side] = (first, _LaneSide(self, engine, lane))
        self._changed = asyncio.Event()
        self._calls: list[tuple[float, float]] = []  # when each that waits began, and ends
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        engine.readers.add(self)

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
            found = await self._receive(1, LANE_POLL, raises=False)
            if found:
                return found[0]

    async def _receive(self, most: int, wait: float, *, raises: bool) -> list[PairDelivery]:
        began = self.clock.now()
        call = began, began + wait
        self._calls.append(call)
        try:
            while True:
                self._engine.check_open()
                if self._closed:
                    raise TransportError("the receiver is closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
                found = self._take(most)
                if found:
                    return found
                self._raise_failure(call, raises=raises)
                if self._is_over(call):
                    return []
                self.most = max(most, self._prefetch)
                for side in self._sides:
                    if self.wants(side):
                        side.start()
                changed = self._changed
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(max(call[1], self.clock.now() + ASKED / 4)):
                        await changed.wait()
        finally:
            self._calls.remove(call)

    def _take(self, most: int) -> list[PairDelivery]:
        """What is there, of both sides in turn."""
        found: list[PairDelivery] = []
        while len(found) < most and any(side.ready for side in self._sides):
            delivery = self._sides[0].take()
            if delivery is not None:
                found.append(delivery)
            self._sides = self._sides[1], self._sides[0]
        return found

    def _raise_failure(self, call: tuple[float, float], *, raises: bool) -> None:
        """Raise what no wait would change, and, for a single receive, that neither side can be read."""
        primary = next(side for side in self._sides if side.name is Side.PRIMARY)
        failure = primary.failure
        if failure is None:
            return
        wrong = failure.kind is FailureKind.REFUSED and not primary.was_read
        lost = all(side.failure is not None for side in self._sides)
        # A side that was lost before is tried once more first: a caller's loop must not spin.
        tried = any(side.failed_at >= call[0] for side in self._sides) or self._is_over(call)
        if wrong or (lost and raises and tried) or all(side.transport.ended for side in self._sides):
            raise failure

    def _is_over(self, call: tuple[float, float]) -> bool:
        """Whether a call has waited long enough, and both sides were asked since it began."""
        began, ends_at = call
        now = self.clock.now()
        return now >= ends_at and all(self._was_asked(side, began, now) for side in self._sides)

    @staticmethod
    def _was_asked(side: _Side, began: float, now: float) -> bool:
        if max(side.answered_at, side.failed_at) >= began:
            return True
        # A poll that has been under way for a while would have found what is there.
        return now >= (side.asked_at if side.polls else began) + ASKED

    # For its sides.

    async def limited(self, operation: Awaitable[T], more: float = 0.0) -> T:
        """Await an operation, for its time limit and ``more`` seconds at most."""
        return await self._limits.run(operation, self.clock.now() + more + self.options.attempt_timeout)

    def wants(self, side: _Side) -> bool:
        """Whether a side is to poll: a call waits, or has not learned yet what is there."""
        now = self.clock.now()
        return not self._closed and any(
            now < ends_at or max(side.answered_at, side.failed_at) < began for began, ends_at in self._calls
        )

    def wait(self, now: float) -> float:
        """Seconds of a long poll that begins now."""
        longest = max((ends_at for _, ends_at in self._calls), default=now)
        return min(LANE_POLL, max(0.0, longest - now))

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
        task = start_task(work, name="receiver")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """The pair closes: poll no more."""
        for side in self._sides:
            side.stop()
        self.wake()

    async def close(self) -> None:
        """Release unsettled messages on both sides; idempotent, never raises."""
        self._closed = True
        tasks = [task for side in self._sides if (task := side.stop()) is not None]
        self.wake()
        if tasks or self._tasks:
            await asyncio.wait((*tasks, *self._tasks), timeout=_CLOSE)
        # Side by side: a broker that hangs must not keep what is held at the other one.
        closing = (start_task(side.receiver.close(), name=f"close {side.source}") for side in self._sides)
        await asyncio.gather(*closing)
