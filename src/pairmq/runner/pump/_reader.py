"""The receiver of one backlog queue, each of whose operations is bounded in time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from pairmq.core import PairOptions
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.runner._clock import Clock
from pairmq.runner._limits import TimeLimits
from pairmq.transport import Receiver, Transport

T = TypeVar("T")


class Reader:
    """Reads one backlog queue, through one receiver after another.

    Args:
        queue: the backlog queue.
        secondary: its transport.
        options: the pair's.
        clock: time.
    """

    def __init__(self, queue: Entity, secondary: Transport, options: PairOptions, clock: Clock) -> None:
        self.queue = queue
        self.lock_duration: float | None = None
        """Seconds; None while the queue was not asked, and where locks last as long as the connection."""
        self.asked = asyncio.Event()
        """The queue has told its properties."""
        self.ordered = False
        """The queue has one consumer at a time: what is read of it goes home in order (SPEC 8)."""
        self._secondary = secondary
        self._options = options
        self._clock = clock
        self._receiver: Receiver | None = None
        self._ending = False
        self._polls = TimeLimits()
        self._limits = TimeLimits()

    def end_by(self, instant: float) -> None:
        """End the long poll under way now, and let no other operation last longer than ``instant``."""
        self._ending = True
        self.cut_poll()
        self._limits.end_by(instant)

    def cut_poll(self) -> None:
        """End the long poll under way, and let none begin until `detach`."""
        self._polls.end_by(self._clock.now())

    def lock_ends_at(self, begun_at: float) -> float:
        """When a lock ends that began, or was renewed, at an instant of the loop's clock."""
        return math.inf if self.lock_duration is None else begun_at + self.lock_duration

    @property
    def time_limit(self) -> float:
        """Seconds that an operation at either broker may take: less than half of a lock (SPEC 7.6)."""
        limit = self._options.attempt_timeout
        return limit if self.lock_duration is None else min(limit, 0.45 * self.lock_duration)

    async def limited(self, operation: Awaitable[T]) -> T:
        """Await an operation at either broker, within its time limit."""
        return await self._limits.run(operation, self._clock.now() + self.time_limit)

    def share(self, began_at: float) -> float:
        """What an operation has taken of its time limit that began at an instant of the loop's clock."""
        return (self._clock.now() - began_at) / self.time_limit

    async def each(
        self, operation: Awaitable[Sequence[TransportError | None]], count: int
    ) -> Sequence[TransportError | None]:
        """The same for an operation on several messages; one entry each, None for done.

        Args:
            operation: gives the entries; when it fails as a whole, that is what came of each.
            count: messages.
        """
        try:
            return await self.limited(operation)
        except TransportError as error:
            return [error] * count

    async def open(self) -> None:
        """Ask the queue for its properties, once for each receiver.

        Raises:
            TransportError: the queue can't be asked.
        """
        if self._receiver is None:
            properties = await self.limited(self._secondary.admin.properties(self.queue))
            self.lock_duration = properties.lock_duration
            self.ordered = properties.single_consumer
            self.asked.set()
            self._receiver = self._secondary.receiver(Source(self.queue))

    async def receive(self, most: int, ahead: int) -> list[Delivery]:
        """One long poll.

        Args:
            most: deliveries at most.
            ahead: messages that the broker may lock here before they are asked for, a hint.

        Raises:
            TransportError: the queue can't be read.
        """
        if self._receiver is None:
            raise _gone()
        wait = self._options.syphon_receive_wait
        limit = self._clock.now() + wait + self._options.attempt_timeout
        self._receiver.read_ahead(ahead)
        return await self._polls.run(self._receiver.receive(most, wait), limit)

    def read_ahead(self, messages: int) -> None:
        """Change the hint of the last `receive`."""
        if self._receiver is not None:
            self._receiver.read_ahead(messages)

    async def complete(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        """Complete deliveries; one entry each, None for done."""
        if self._receiver is None:
            return [_gone()] * len(deliveries)
        return await self.each(self._receiver.complete_batch(deliveries), len(deliveries))

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> TransportError | None:
        """Dead-letter a delivery; gives None for done."""
        if self._receiver is None:
            return _gone()
        try:
            await self.limited(self._receiver.dead_letter(delivery, reason, description))
        except TransportError as error:
            return error
        return None

    async def renew(self, delivery: Delivery) -> Delivery:
        """Renew a delivery's lock.

        Raises:
            TransportError: it was not renewed, or not surely.
        """
        if self._receiver is None:
            raise _gone()
        return await self.limited(self._receiver.renew_lock(delivery))

    def detach(self) -> Receiver | None:
        """Give up the receiver: nothing of what it gave is settled any more. The next `open` makes another one."""
        receiver, self._receiver = self._receiver, None
        if not self._ending:
            self._polls = TimeLimits()
        return receiver


def _gone() -> TransportError:
    return TransportError("the receiver was closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
