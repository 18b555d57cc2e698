"""The secondary's side of a pump: one backlog queue's receiver, the locks of what is in hand, and their settling.

What is to be settled stays in hand, under a renewed lock, until the broker has confirmed it or the lock is lost: a
completion that failed in passing is tried again, because giving the message up instead would bring a second copy of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pairmq.core import Backoff, Diversion, PairOptions
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.model.events import SyphonFailed
from pairmq.runner._attempt import TimeLimits
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.transport import Receiver, Transport

T = TypeVar("T")

_UNKNOWN_LOCK = 15.0  # s: how long a lock is taken to last until the queue was asked
_AT_ONCE = 25  # settlements and renewals side by side, each under a time limit of its own
_MOST_COMPLETED = 1000  # deliveries completed in one operation
_BACKOFF = Backoff(first=0.1, factor=2.0, cap=5.0)


class Item:
    """One message in a pump's hand, locked until it is settled; ``lost`` once its lock is.

    ``diversion`` is None for poison that has none; ``locked_until`` is an instant of the loop's clock, and so is
    ``copy_after``, before which no other copy of it is put at its queue's tail: there may be one, in doubt. Its
    ``identity`` names a diverted message wherever copies of it lie: its id, and its sender's number of it. Where order
    is kept, messages of one destination and ``key`` go home one after another.
    """

    __slots__ = (
        "copies",
        "copy_after",
        "delivery",
        "diversion",
        "identity",
        "key",
        "locked_until",
        "lost",
        "message",
        "unknown",
    )

    def __init__(self, delivery: Delivery, message: Message, diversion: Diversion | None, locked_until: float) -> None:
        self.delivery = delivery
        self.message = message
        self.diversion = diversion
        self.locked_until = locked_until
        self.lost = False
        self.copies = 0
        self.copy_after = 0.0
        self.unknown = False
        self.identity = ("", "", 0)
        if diversion is not None:
            self.unknown = diversion.maybe_duplicate
            self.identity = (message.message_id or "", diversion.sender_id, diversion.sequence)
        session = message.session_id
        self.key = (False, self.identity[1]) if session is None else (True, session)


@dataclass(slots=True)
class Settlement:
    """How an item is to leave the queue: completed, or dead-lettered with a reason.

    Args:
        item: in hand.
        done: told once of the item, with None when the broker confirmed it, or why it will be delivered again.
        reason: of a dead-letter; None to complete.
        description: of a dead-letter.
    """

    item: Item
    done: Callable[[Item, TransportError | None], None]
    reason: str | None = None
    description: str = ""


class Intake:
    """Receives from one backlog queue and settles what was received.

    Args:
        queue: the backlog queue.
        secondary: its transport.
        options: the pair's.
        clock: time and chance.
        emit: takes events.
        let_go: told whenever something is no longer in hand.
    """

    def __init__(
        self,
        queue: Entity,
        secondary: Transport,
        options: PairOptions,
        clock: Clock,
        emit: Emitter,
        let_go: Callable[[], None],
    ) -> None:
        self.queue = queue
        self._secondary = secondary
        self._options = options
        self._clock = clock
        self._emit = emit
        self._told_of_room = let_go
        self._receiver: Receiver | None = None
        self._lock_duration: float | None = None
        self.ordered = False
        """The queue has one consumer at a time: what is read of it goes home in order (SPEC 8)."""
        self.broken = False
        """A lock was lost that order rests on: nothing of what is in hand may go on, until `reset`."""
        self._ending = False
        self._asked = asyncio.Event()
        self._polls = TimeLimits()
        self._limits = TimeLimits()
        self._most = _AT_ONCE * 4
        self._hand: dict[int, Item] = {}
        self._places: dict[str, Item] = {}
        """The same by their position in the queue, where the broker tells it."""
        self._unsettled: list[Settlement] = []
        # A dict, not a set: whoever replays a run needs them in the same order again.
        self._settlings: dict[asyncio.Task[None], None] = {}
        self._retries: asyncio.Task[None] | None = None
        self._renewals: asyncio.Task[None] | None = None

    @property
    def in_hand(self) -> int:
        """Messages received and not yet settled."""
        return len(self._hand)

    @property
    def unsettled(self) -> int:
        """Settlements that failed and are being tried again."""
        return len(self._unsettled) + (self._retries is not None)

    def start(self) -> None:
        """Begin to renew locks."""
        self._renewals = asyncio.create_task(self._renew_locks(), name=f"locks {self.queue}")

    def end_by(self, instant: float) -> None:
        """End the long poll under way now, and let no other operation last longer than ``instant``."""
        self._ending = True
        self._polls.end_by(self._clock.now())
        self._limits.end_by(instant)

    async def close(self, grace: float) -> None:
        """Try for ``grace`` seconds to settle what is done, and give the rest back."""
        ends_at = self._clock.now() + grace
        if self._settlings and grace > 0:
            await asyncio.wait(self._settlings, timeout=grace)
        left = ends_at - self._clock.now()
        if self._retries is not None and left > 0:
            await asyncio.wait((self._retries,), timeout=left)
        if self._renewals is not None:
            self._renewals.cancel()
            await asyncio.wait((self._renewals,), timeout=1)
        await self.reset()

    async def reset(self) -> None:
        """Begin anew after an error: what is in hand is lost to this pump, and will be delivered again."""
        receiver, self._receiver = self._receiver, None
        if self.broken and not self._ending:
            self._polls = TimeLimits()
        if self._retries is not None:
            self._retries.cancel()
            await asyncio.wait((self._retries,), timeout=1)
        unsettled, self._unsettled = self._unsettled, []
        for item in self._hand.values():
            item.lost = True
        self.broken = False
        self._hand.clear()
        self._places.clear()
        for settlement in unsettled:
            settlement.done(settlement.item, _gone())
        if receiver is not None:
            try:
                async with asyncio.timeout(3):  # a transport promises 2
                    await receiver.close()
            except Exception as error:
                # The broker gives back what it held when the locks end.
                self._failed(f"close: {str(error) or type(error).__name__}", 0.0)
        if self._settlings:
            # They have ended with the receiver; what hangs all the same must not settle anything later.
            _, running = await asyncio.wait(self._settlings, timeout=1)
            for task in running:
                task.cancel()

    async def limited(self, operation: Awaitable[T]) -> T:
        """Await an operation at either broker, for less than half of a lock (SPEC 7.6)."""
        limit = self._options.attempt_timeout
        if self._lock_duration is not None:
            limit = min(limit, 0.45 * self._lock_duration)
        return await self._limits.run(operation, self._clock.now() + limit)

    async def receive(self, most: int, ahead: int) -> list[Delivery]:
        """One long poll.

        Args:
            most: deliveries at most.
            ahead: messages that the broker may lock here before they are asked for, a hint.

        Raises:
            TransportError: the queue can't be read.
        """
        if self._receiver is None:
            properties = await self.limited(self._secondary.admin.properties(self.queue))
            self._lock_duration = properties.lock_duration
            self.ordered = properties.single_consumer
            self._asked.set()
            self._receiver = self._secondary.receiver(Source(self.queue))
        wait = self._options.syphon_receive_wait
        limit = self._clock.now() + wait + self._options.attempt_timeout
        self._receiver.read_ahead(ahead)
        if self.broken:
            raise _order_lost()
        deliveries = await self._polls.run(self._receiver.receive(most, wait), limit)
        if self.broken:
            raise _order_lost()  # what came may stand behind what was lost
        return deliveries

    def read_ahead(self, messages: int) -> None:
        """Change the hint of the last `receive`."""
        if self._receiver is not None:
            self._receiver.read_ahead(messages)

    def take(self, delivery: Delivery, message: Message, diversion: Diversion | None, came_at: float) -> Item:
        """Keep a delivery that came at an instant in hand: its lock is renewed until it is settled."""
        item = Item(delivery, message, diversion, self._lock_ends_at(came_at))
        self._hand[id(item)] = item
        if delivery.sequence_number:
            self._places[delivery.sequence_number] = item
        return item

    def _let_go(self, item: Item) -> None:
        self._hand.pop(id(item), None)
        place = item.delivery.sequence_number
        if self._places.get(place) is item:
            del self._places[place]

    def takes_over(self, delivery: Delivery, message: Message, diversion: Diversion) -> bool:
        """Whether a delivery is of what is in hand already; its item then goes on under the new lock.

        The broker gives a message out again when its lock was lost, which nobody may have noticed yet. To treat it as
        another one would make a second copy.
        """
        item = self._places.get(delivery.sequence_number)
        # The position alone is not enough: it may come again when a queue was made anew.
        if item is None or (item.message, item.diversion) != (message, diversion):
            return False
        item.delivery, item.locked_until = delivery, self._lock_ends_at(self._clock.now())
        return True

    def holds(self, item: Item) -> bool:
        """Whether an item is still in hand."""
        return id(item) in self._hand

    async def fresh(self, items: Sequence[Item]) -> list[Item]:
        """Those whose locks outlast one more operation, renewed if need be; the others come again (SPEC 7.6)."""
        margin = 0.5 * (self._lock_duration or 0.0)
        now = self._clock.now()
        stale = [item for item in items if not item.lost and item.locked_until - now < margin]
        renewed = set(map(id, await self._renew(stale)))
        for item in stale:
            if id(item) not in renewed:
                self._lose(item)
                self._break_off()
        return [item for item in items if not item.lost]

    # Settling.

    def settle_soon(self, settlements: Sequence[Settlement]) -> None:
        """Settle items, in the background from the first attempt on."""
        if settlements:
            task = asyncio.create_task(self.settle(settlements), name=f"settle {self.queue}")
            self._settlings[task] = None
            task.add_done_callback(self._settled_soon)

    def _settled_soon(self, task: asyncio.Task[None]) -> None:
        del self._settlings[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(f"settle: {str(error) or type(error).__name__}", 0.0)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle items; one attempt now, and more in the background for what fails in passing."""
        failed = await self._try(settlements)
        if failed:
            self._unsettled.extend(failed)
            if self._retries is None:
                self._retries = asyncio.create_task(self._retry(), name=f"settle {self.queue}")

    async def _retry(self) -> None:
        try:
            retry = 0
            while self._unsettled:
                await asyncio.sleep(_BACKOFF.wait(retry, self._clock.chance()))
                retry += 1
                # Emptied only when the attempt is over: whoever resets meanwhile must find them all.
                batch = list(self._unsettled)
                failed = await self._try(batch)
                left = {id(settlement) for settlement in failed}
                tried = {id(settlement) for settlement in batch}
                self._unsettled = [s for s in self._unsettled if id(s) not in tried or id(s) in left]
        finally:
            self._retries = None

    async def _try(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """One attempt for each; gives those that are worth another one."""
        failed: list[Settlement] = []
        completions: Sequence[Settlement] = [settlement for settlement in settlements if settlement.reason is None]
        while completions:
            part, completions = completions[: self._most], completions[self._most :]
            used = [settlement.item.delivery for settlement in part]
            errors = await self._complete(used)
            self._most = adapted(self._most, len(part), errors, _MOST_COMPLETED)
            for settlement, delivery, error in zip(part, used, errors, strict=True):
                self._settled(settlement, delivery, error, failed)
            self._told_of_room()
        others = [settlement for settlement in settlements if settlement.reason is not None]
        for part in _slices(others, _AT_ONCE):
            used = [settlement.item.delivery for settlement in part]
            outcomes = await asyncio.gather(*(self._dead_letter(settlement) for settlement in part))
            for settlement, delivery, error in zip(part, used, outcomes, strict=True):
                self._settled(settlement, delivery, error, failed)
            self._told_of_room()
        return failed

    def _settled(
        self, settlement: Settlement, used: Delivery, error: TransportError | None, failed: list[Settlement]
    ) -> None:
        item = settlement.item
        if error is None:
            self._let_go(item)
            settlement.done(item, None)
        elif error.reason is FailureReason.LOCK_LOST and item.delivery is not used and not item.lost:
            failed.append(settlement)  # it was delivered again meanwhile, and has another lock
        elif item.lost or error.reason in (FailureReason.LOCK_LOST, FailureReason.NOT_FOUND, FailureReason.CLOSED):
            self._lose(item)
            if settlement.reason is not None:  # what came home is in its place already
                self._break_off()
            settlement.done(item, error)
        else:
            self._failed(f"settle: {error}", 0.0)
            failed.append(settlement)

    async def _complete(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        receiver = self._receiver
        if receiver is None:
            return [_gone()] * len(deliveries)
        try:
            return await self.limited(receiver.complete_batch(deliveries))
        except TransportError as error:
            return [error] * len(deliveries)

    async def _dead_letter(self, settlement: Settlement) -> TransportError | None:
        if self._receiver is None:
            return _gone()
        delivery, reason = settlement.item.delivery, settlement.reason or ""
        try:
            await self.limited(self._receiver.dead_letter(delivery, reason, settlement.description))
        except TransportError as error:
            return error
        return None

    # Locks.

    def _lock_ends_at(self, begun_at: float) -> float:
        return math.inf if self._lock_duration is None else begun_at + self._lock_duration

    def _lose(self, item: Item) -> None:
        """It will be delivered again; sending it from here as well would make a second copy."""
        item.lost = True
        self._let_go(item)
        self._told_of_room()

    def _break_off(self) -> None:
        """Let nothing go on that stands behind what was lost just now: that comes again, elsewhere maybe.

        Whatever is in hand is given back, and comes again in its order.
        """
        if not self.ordered or self.broken:
            return
        self.broken = True
        for other in self._hand.values():
            other.lost = True
        self._polls.end_by(self._clock.now())
        self._told_of_room()

    async def _renew_locks(self) -> None:
        # The first lock may be shorter than any wait that is chosen before the queue was asked.
        await self._asked.wait()
        while True:
            duration = self._lock_duration
            await asyncio.sleep((duration or _UNKNOWN_LOCK) / 3)
            tried: set[Item] = set()
            # Some at a time, those that end soonest first: while a slow broker renews them, more may come.
            while duration is not None and (due := self._due(duration, tried)):
                tried.update(due)
                await self._renew(due)

    def _due(self, duration: float, tried: set[Item]) -> list[Item]:
        before = self._clock.now() + duration * 5 / 6
        due = [item for item in self._hand.values() if item.locked_until < before and item not in tried]
        return sorted(due, key=lambda item: item.locked_until)[:_AT_ONCE]

    async def _renew(self, items: Sequence[Item]) -> list[Item]:
        """Renew locks, some side by side; gives the items whose renewal was confirmed."""
        renewed: list[Item] = []
        for part in _slices(items, _AT_ONCE):
            outcomes = await asyncio.gather(*(self._renew_one(item) for item in part))
            renewed += [item for item, good in zip(part, outcomes, strict=True) if good]
        return renewed

    async def _renew_one(self, item: Item) -> bool:
        receiver = self._receiver
        if receiver is None or not self.holds(item):
            return False
        ends_at, used = self._lock_ends_at(self._clock.now()), item.delivery
        try:
            renewed = await self.limited(receiver.renew_lock(used))
        except TransportError as error:
            if item.delivery is not used:
                return self.holds(item)  # it was delivered again meanwhile, and has another lock
            if error.reason is FailureReason.LOCK_LOST:
                self._lose(item)
                self._break_off()
            return False
        if item.delivery is used:
            item.delivery, item.locked_until = renewed, ends_at
        return True

    def _failed(self, error: str, retry_after: float) -> None:
        self._emit(SyphonFailed, queue=self.queue.path, error=error, retry_after=retry_after)


def adapted(most: int, tried: int, errors: Sequence[TransportError | None], ceiling: int) -> int:
    """How many messages the next operation should carry.

    An operation that hits its time limit tells of none of its messages what became of it: if the same number were tried
    again, a slow broker would never get anywhere. So fewer, until it fits.
    """
    if any(error is not None and error.reason is FailureReason.TIMEOUT for error in errors):
        return max(1, tried // 2)
    return min(ceiling, most * 2)


def _order_lost() -> TransportError:
    return TransportError("a lock was lost, and order with it", FailureKind.UNAVAILABLE, FailureReason.LOCK_LOST)


def _gone() -> TransportError:
    return TransportError("the receiver was closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)


def _slices(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
