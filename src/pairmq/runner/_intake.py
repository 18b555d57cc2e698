"""The secondary's side of a pump: one backlog queue's receiver, the locks of what is in hand, and their settling."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from pairmq.core import Diversion, PairOptions
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.model.events import SyphonFailed
from pairmq.runner._attempt import TimeLimits
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.transport import Receiver, Transport

T = TypeVar("T")

_UNKNOWN_LOCK = 15.0  # s: how long a lock is taken to last until the queue was asked


class Item:
    """One message in a pump's hand, locked until it is settled; ``lost`` once its lock is."""

    __slots__ = ("delivery", "diversion", "lost", "message", "taken_at", "unknown")

    def __init__(self, delivery: Delivery, message: Message, diversion: Diversion, taken_at: float) -> None:
        self.delivery = delivery
        self.message = message
        self.diversion = diversion
        self.taken_at = taken_at
        self.lost = False
        self.unknown = diversion.maybe_duplicate


class Intake:
    """Receives from one backlog queue and settles what was received.

    Args:
        queue: the backlog queue.
        secondary: its transport.
        options: the pair's.
        clock: time.
        emit: takes events.
    """

    def __init__(self, queue: Entity, secondary: Transport, options: PairOptions, clock: Clock, emit: Emitter) -> None:
        self.queue = queue
        self._secondary = secondary
        self._options = options
        self._clock = clock
        self._emit = emit
        self._receiver: Receiver | None = None
        self._lock_duration: float | None = None
        self._polls = TimeLimits()
        self._limits = TimeLimits()
        self._hand: dict[int, Item] = {}
        self._renewals: asyncio.Task[None] | None = None

    @property
    def in_hand(self) -> int:
        """Messages received and not yet settled."""
        return len(self._hand)

    def start(self) -> None:
        """Begin to renew locks."""
        self._renewals = asyncio.create_task(self._renew_locks(), name=f"locks {self.queue}")

    def end_by(self, instant: float) -> None:
        """End the long poll under way now, and let no other operation last longer than ``instant``."""
        self._polls.end_by(self._clock.now())
        self._limits.end_by(instant)

    async def close(self) -> None:
        """Give back what is in hand."""
        if self._renewals is not None:
            self._renewals.cancel()
            await asyncio.wait((self._renewals,), timeout=1)
        await self.reset()

    async def reset(self) -> None:
        """Begin anew after an error: what is in hand is lost to this pump, and will be delivered again."""
        receiver, self._receiver = self._receiver, None
        for item in self._hand.values():
            item.lost = True
        self._hand.clear()
        if receiver is not None:
            await receiver.close()

    async def limited(self, operation: Awaitable[T]) -> T:
        """Await an operation at either broker, for less than half of a lock (SPEC 7.6)."""
        limit = self._options.attempt_timeout
        if self._lock_duration is not None:
            limit = min(limit, 0.45 * self._lock_duration)
        return await self._limits.run(operation, self._clock.now() + limit)

    async def receive(self, most: int) -> list[Delivery]:
        """One long poll.

        Raises:
            TransportError: the queue can't be read.
        """
        if self._receiver is None:
            properties = await self.limited(self._secondary.admin.properties(self.queue))
            self._lock_duration = properties.lock_duration
            self._receiver = self._secondary.receiver(Source(self.queue))
        wait = self._options.syphon_receive_wait
        limit = self._clock.now() + wait + self._options.attempt_timeout
        return await self._polls.run(self._receiver.receive(most, wait), limit)

    def take(self, delivery: Delivery, message: Message, diversion: Diversion) -> Item:
        """Keep a delivery in hand: its lock is renewed until it is settled."""
        item = Item(delivery, message, diversion, self._clock.now())
        self._hand[id(item)] = item
        return item

    def holds(self, item: Item) -> bool:
        """Whether an item is still in hand."""
        return id(item) in self._hand

    async def complete(self, items: Sequence[Item]) -> Sequence[TransportError | None]:
        """Complete items; they are out of hand whatever comes of it. One entry each, None for done."""
        receiver = self._receiver
        try:
            if receiver is None:
                raise TransportError("the receiver was closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
            return await self.limited(receiver.complete_batch([item.delivery for item in items]))
        except TransportError as error:
            return [error] * len(items)
        finally:
            for item in items:
                self._hand.pop(id(item), None)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str, item: Item | None = None) -> bool:
        """Set a delivery aside; tells whether that worked. If not, it comes again when its lock ends."""
        if item is not None:
            self._hand.pop(id(item), None)
        if self._receiver is None:
            return False
        try:
            await self.limited(self._receiver.dead_letter(delivery, reason, description))
        except TransportError as error:
            self._emit(SyphonFailed, queue=self.queue.path, error=f"dead-letter: {error}", retry_after=0.0)
            return False
        return True

    async def _renew_locks(self) -> None:
        while True:
            duration = self._lock_duration
            every = (duration or _UNKNOWN_LOCK) / 3
            await asyncio.sleep(every)
            if duration is not None and self._receiver is not None:
                await self._renew_once(self._receiver, every / 2)

    async def _renew_once(self, receiver: Receiver, age: float) -> None:
        """Renew the locks of what is in hand for longer than a moment."""
        now = self._clock.now()
        for item in [item for item in self._hand.values() if now - item.taken_at >= age]:
            if not self.holds(item) or self._receiver is not receiver:
                continue
            try:
                item.delivery = await self.limited(receiver.renew_lock(item.delivery))
            except TransportError as error:
                if error.reason is FailureReason.LOCK_LOST:
                    # It will be delivered again; sending it from here as well would make a second copy.
                    item.lost = True
                    self._hand.pop(id(item), None)
