"""The secondary's side of a pump: receiving from its backlog queue, keeping the locks, and settling.

An `Item` is one message under its lock. The `QueueReceiver` receives, `LockedMessages` renews the locks on what was
received, the `Settler` completes and dead-letters until the broker has confirmed it (ADR 7), and the `BacklogReader`
starts and ends all three.
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
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._gates import GateKeeper, RateLimit
from pairmq.runner._limits import TimeLimits, settled_within
from pairmq.transport import Receiver, Sender, Transport, start_task

T = TypeVar("T")

_DOUBLES, _GROWS = 0.25, 0.5
"""Shares of the time limit below which the next operation may carry twice as many messages, or one more."""

_UNKNOWN_LOCK = 15.0  # s: how long a lock is taken to last until the queue was asked
_AT_ONCE = 25  # renewals at least, or dead-letters, side by side: each under a time limit of its own
_SOON = 0.001  # s

_FIRST_COMPLETED = 100  # deliveries completed in one operation, until that has shown to fit
_MOST_COMPLETED = 1000
_SETTLE_BACKOFF = Backoff(first=0.1, factor=2.0, cap=5.0)

_CLOSE_TIMEOUT = 3.0  # s; a transport promises 2


@dataclass(frozen=True, slots=True)
class PumpContext:
    """What all pumps of a syphon share.

    Args:
        primary: where messages belong.
        secondary: where they wait.
        sender: gives the primary's sender to an entity; never the pair's own, so that none can loop (SPEC 7.2).
        forget: drops what is kept for a destination that does not exist; paths in a backlog queue are untrusted input.
        gates: the destinations' gates.
        rate: of the syphon.
        options: the pair's.
        clock: time and chance.
        emit: takes events.
    """

    primary: Transport
    secondary: Transport
    sender: Callable[[Entity], Sender]
    forget: Callable[[Entity], None]
    gates: GateKeeper
    rate: RateLimit
    options: PairOptions
    clock: Clock
    emit: Emitter


class Item:
    """One message of a backlog queue, locked by this pump until it is settled; ``lost`` once its lock is.

    ``diversion`` is None for poison that has none; ``locked_until`` is an instant of the loop's clock, and so are
    ``renew_at``, when its lock is to be renewed, and ``copy_after``, before which no other copy of it is put at its
    queue's tail: there may be one, in doubt. Its ``identity`` names a diverted message wherever copies of it lie: its
    id, and its sender's number of it. Where order is kept, messages of one destination and ``key`` are sent one after
    another.
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
        "renew_at",
        "unknown",
    )

    def __init__(self, delivery: Delivery, message: Message, diversion: Diversion | None, locked_until: float) -> None:
        self.delivery = delivery
        self.message = message
        self.diversion = diversion
        self.locked_until = locked_until
        self.renew_at = locked_until
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
        item: which one.
        done: called once with the item, and None when the broker confirmed it, or why it will be delivered again.
        reason: of a dead-letter; None to complete.
        description: of a dead-letter.
    """

    item: Item
    done: Callable[[Item, TransportError | None], None]
    reason: str | None = None
    description: str = ""


def adapted(most: int, tried: int, errors: Sequence[TransportError | None], took: float, ceiling: int) -> int:
    """How many messages the next operation should carry.

    An operation that hits its time limit reports the outcome of none of its messages: if the same number were tried
    again, a slow broker would never get anywhere. So fewer, until it fits; and more only while that will fit too, or
    the limit would be hit again and again, each time with second copies of what was done before it.

    Args:
        most: messages that this one might carry.
        tried: messages that it did carry.
        errors: one entry each, None for done.
        took: share of its time limit that it took.
        ceiling: of the result.
    """
    if any(error is not None and error.reason is FailureReason.TIMEOUT for error in errors):
        return max(1, tried // 2)
    if tried < most or took >= _GROWS or None not in errors:  # it does not show that more would fit
        return most
    return min(ceiling, most * 2 if took < _DOUBLES else most + 1)


def slices(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Cut a sequence into parts of at most ``size``."""
    return [items[start : start + size] for start in range(0, len(items), size)]


class QueueReceiver:
    """Bounds each operation on one backlog queue in time, through one receiver after another."""

    def __init__(self, queue: Entity, secondary: Transport, options: PairOptions, clock: Clock) -> None:
        self.queue = queue
        self.lock_duration: float | None = None
        """Seconds; None while the queue was not asked, and where locks last as long as the connection."""
        self.asked = asyncio.Event()
        """The queue was asked for its properties."""
        self.ordered = False
        """The queue has one consumer at a time: what is read of it is sent in order (SPEC 8)."""
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


class LockedMessages:
    """Keeps the items of one backlog queue that this pump has locked, and renews their locks.

    Args:
        receiver: of the queue.
        clock: time.
        changed: called when something was lost.
    """

    def __init__(self, receiver: QueueReceiver, clock: Clock, changed: Callable[[], None]) -> None:
        self.broken = False
        """A lock was lost that order rests on: nothing of what is locked may go on, until `drop_all`."""
        self._receiver = receiver
        self._clock = clock
        self._changed = changed
        self._items: dict[int, Item] = {}
        self._places: dict[str, Item] = {}
        """The same by their position in the queue, where the broker gives it."""
        self._took = 0.0  # s for the last renewals that were begun side by side
        self._renewals: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def start(self) -> None:
        """Begin to renew locks."""
        self._renewals = start_task(self._renew_locks(), name=f"locks {self._receiver.queue}")

    async def stop(self) -> None:
        """Renew locks no more."""
        if self._renewals is not None:
            self._renewals.cancel()
            await asyncio.wait((self._renewals,), timeout=1)

    # The items.

    def take(self, delivery: Delivery, message: Message, diversion: Diversion | None, came_at: float) -> Item:
        """Keep a delivery that came at an instant: its lock is renewed until it is settled."""
        item = Item(delivery, message, diversion, self._receiver.lock_ends_at(came_at))
        item.renew_at = self._renew_at(came_at)
        self._items[id(item)] = item
        if delivery.sequence_number:
            self._places[delivery.sequence_number] = item
        return item

    def takes_over(self, delivery: Delivery, message: Message, diversion: Diversion) -> bool:
        """Whether a delivery is of an item that is here already, which then goes on under the new lock.

        The broker delivers a message again when its lock was lost, which this pump may not have noticed yet. To treat
        it as another one would make a second copy.
        """
        item = self._places.get(delivery.sequence_number)
        # The position alone is not enough: a queue that was made anew counts from the start.
        if item is None or (item.message, item.diversion) != (message, diversion):
            return False
        now = self._clock.now()
        item.delivery, item.locked_until = delivery, self._receiver.lock_ends_at(now)
        item.renew_at = self._renew_at(now)
        return True

    def holds(self, item: Item) -> bool:
        """Whether an item is still locked here."""
        return id(item) in self._items

    def let_go(self, item: Item) -> None:
        """It is settled, or lost."""
        self._items.pop(id(item), None)
        place = item.delivery.sequence_number
        if self._places.get(place) is item:
            del self._places[place]

    def lose(self, item: Item) -> None:
        """It will be delivered again; sending it from here as well would make a second copy."""
        item.lost = True
        self.let_go(item)
        self._changed()

    def miss(self, item: Item) -> None:
        """Lose an item that is not stored in the primary either: where order is kept, nothing behind it goes on.

        Whatever is locked is released, and redelivered in its order, to another process maybe.
        """
        if item.lost:
            return  # this was done when it was lost; what is locked by now came later
        self.lose(item)
        if not self._receiver.ordered or self.broken:
            return
        self.broken = True
        for other in self._items.values():
            other.lost = True
        self._receiver.cut_poll()
        self._changed()

    def doubt(self) -> None:
        """Where order is kept, let nothing go on before its lock was renewed: one that was sent had lost its own.

        Another process may hold the whole queue by now. What this pump went on to send would still be in order, each
        being sent after the one before it was confirmed; but all of it would be sent twice, and what the other one
        dead-letters would appear out of its place.
        """
        if self._receiver.ordered and self._receiver.lock_duration is not None:
            for item in self._items.values():
                item.locked_until = -math.inf

    def drop_all(self) -> None:
        """Begin anew: what is locked is lost to this pump."""
        for item in self._items.values():
            item.lost = True
        self.broken = False
        self._items.clear()
        self._places.clear()

    # Locks.

    async def fresh(self, items: Sequence[Item]) -> list[Item]:
        """Those whose locks outlast one more operation, renewed if need be; the others are redelivered (SPEC 7.6)."""
        margin = 0.5 * (self._receiver.lock_duration or 0.0)
        now = self._clock.now()
        stale = [item for item in items if not item.lost and item.locked_until - now < margin]
        renewed = set(map(id, await self._renew(stale)))
        for item in stale:
            if id(item) not in renewed:
                self.miss(item)
        return [item for item in items if not item.lost]

    async def _renew_locks(self) -> None:
        # The first lock may be shorter than any wait that is chosen before the queue was asked.
        await self._receiver.asked.wait()
        while True:
            now = self._clock.now()
            # Those that end soonest first, and a look at all again after each round: while they are renewed, more come.
            due = [item for item in self._items.values() if item.renew_at < now + _SOON]
            if due:
                due.sort(key=lambda item: item.locked_until)
                await self._renew_some(due[: self._at_once(len(due))])
            else:
                await asyncio.sleep(min([self._third, *(item.renew_at - now for item in self._items.values())]))

    @property
    def _third(self) -> float:
        """Seconds of a third of a lock, after which it is renewed, and within which all of them have to be."""
        return (self._receiver.lock_duration or _UNKNOWN_LOCK) / 3

    def _renew_at(self, begun_at: float) -> float:
        """When to renew a lock that began, or was to be renewed, at an instant of the loop's clock."""
        return math.inf if self._receiver.lock_duration is None else begun_at + self._third

    def _at_once(self, count: int) -> int:
        """How many renewals to begin side by side: more than a few where a broker is so far that it would take long."""
        return max(_AT_ONCE, math.ceil(count * self._took / self._third))

    async def _renew(self, items: Sequence[Item]) -> list[Item]:
        """Renew locks, some side by side; gives the items whose renewal was confirmed."""
        renewed: list[Item] = []
        while items:
            at_once = self._at_once(len(items))
            renewed += await self._renew_some(items[:at_once])
            items = items[at_once:]
        return renewed

    async def _renew_some(self, items: Sequence[Item]) -> list[Item]:
        began_at = self._clock.now()
        outcomes = await asyncio.gather(*(self._renew_one(item) for item in items))
        self._took = self._clock.now() - began_at
        return [item for item, good in zip(items, outcomes, strict=True) if good]

    async def _renew_one(self, item: Item) -> bool:
        if not self.holds(item):
            return False
        began_at, used = self._clock.now(), item.delivery
        item.renew_at = self._renew_at(began_at)
        try:
            renewed = await self._receiver.renew(used)
        except TransportError as error:
            if item.delivery is not used:
                return self.holds(item)  # it was redelivered meanwhile, and has another lock
            if error.reason is FailureReason.LOCK_LOST:
                self.miss(item)
            return False
        if item.delivery is used:
            item.delivery, item.locked_until = renewed, self._receiver.lock_ends_at(began_at)
        return True


class Settler:
    """Settles items, each of which stays locked until the broker has confirmed it, or until the lock is lost.

    A completion that failed in passing is tried again: giving the message up instead would bring a second copy of it.

    Args:
        receiver: of the queue.
        locked: the items.
        clock: time and chance.
        failed: takes the text of an error that is no reason to end.
        changed: called whenever something was settled, or failed to be.
    """

    def __init__(
        self,
        receiver: QueueReceiver,
        locked: LockedMessages,
        clock: Clock,
        failed: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._receiver = receiver
        self._locked = locked
        self._clock = clock
        self._failed = failed
        self._changed = changed
        self._most = _FIRST_COMPLETED
        self._unreported: dict[int, Settlement] = {}
        """All whose outcome was not reported yet, by their ids: each is reported once, however it ends."""
        self._unsettled: dict[int, Settlement] = {}
        """Those among them that failed in passing."""
        # A dict, not a set: the replay of a run needs them in the same order again.
        self._settlings: dict[asyncio.Task[None], None] = {}
        self._retries: asyncio.Task[None] | None = None

    @property
    def unsettled(self) -> int:
        """Settlements that failed and are being tried again."""
        return len(self._unsettled) + (self._retries is not None)

    def settle_soon(self, settlements: Sequence[Settlement]) -> None:
        """Settle items, in the background from the first attempt on."""
        if settlements:
            self._unreported.update((id(settlement), settlement) for settlement in settlements)
            task = start_task(self._settle(settlements), name=f"settle {self._receiver.queue}")
            self._settlings[task] = None
            task.add_done_callback(self._settled_soon)

    def _settled_soon(self, task: asyncio.Task[None]) -> None:
        del self._settlings[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(f"settle: {str(error) or type(error).__name__}")

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle items; one attempt now, and more in the background for what fails in passing."""
        self._unreported.update((id(settlement), settlement) for settlement in settlements)
        await self._settle(settlements)

    async def _settle(self, settlements: Sequence[Settlement]) -> None:
        await self._try(settlements)
        if self._unsettled and self._retries is None:
            self._retries = start_task(self._retry(), name=f"settle {self._receiver.queue}")

    async def finish(self, ends_at: float) -> None:
        """Go on settling until an instant of the loop's clock, or until all is settled."""
        left = ends_at - self._clock.now()
        if self._settlings and left > 0:
            await asyncio.wait(self._settlings, timeout=left)
        left = ends_at - self._clock.now()
        if self._retries is not None and left > 0:
            await asyncio.wait((self._retries,), timeout=left)

    async def stop_retries(self) -> None:
        """Try nothing again that has failed."""
        retries = self._retries
        if retries is not None:
            retries.cancel()
            await asyncio.wait((retries,), timeout=1)
            if retries.done() and self._retries is retries:
                self._retries = None  # cancelled before its first step, it ran no `finally`
        self._unsettled.clear()

    async def give_up(self) -> None:
        """End what outlives the receiver, which must not settle anything later, and report what is left as failed."""
        if self._settlings:
            _, running = await asyncio.wait(self._settlings, timeout=1)
            for task in running:
                task.cancel()
        error = TransportError("the receiver was closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
        for settlement in tuple(self._unreported.values()):
            self._report(settlement, error)

    def _report(self, settlement: Settlement, error: TransportError | None) -> None:
        if self._unreported.pop(id(settlement), None) is not None:
            settlement.done(settlement.item, error)

    async def _retry(self) -> None:
        try:
            retry = 0
            while self._unsettled:
                await asyncio.sleep(_SETTLE_BACKOFF.wait(retry, self._clock.chance()))
                retry += 1
                await self._try(list(self._unsettled.values()))
        finally:
            self._retries = None

    async def _try(self, settlements: Sequence[Settlement]) -> None:
        """One attempt for each."""
        completions: Sequence[Settlement] = [settlement for settlement in settlements if settlement.reason is None]
        while completions:
            part, completions = completions[: self._most], completions[self._most :]
            used = [settlement.item.delivery for settlement in part]
            began_at = self._clock.now()
            errors = await self._receiver.complete(used)
            self._most = adapted(self._most, len(part), errors, self._receiver.share(began_at), _MOST_COMPLETED)
            for settlement, delivery, error in zip(part, used, errors, strict=True):
                self._settled(settlement, delivery, error)
            self._changed()
        others = [settlement for settlement in settlements if settlement.reason is not None]
        for part in slices(others, _AT_ONCE):
            used = [settlement.item.delivery for settlement in part]
            outcomes = await asyncio.gather(
                *(
                    self._receiver.dead_letter(delivery, settlement.reason or "", settlement.description)
                    for settlement, delivery in zip(part, used, strict=True)
                )
            )
            for settlement, delivery, error in zip(part, used, outcomes, strict=True):
                self._settled(settlement, delivery, error)
            self._changed()

    def _settled(self, settlement: Settlement, used: Delivery, error: TransportError | None) -> None:
        """Take the outcome of an attempt; where it is worth another one, that is made later."""
        item = settlement.item
        if error is None:
            self._locked.let_go(item)
        elif error.reason is FailureReason.LOCK_LOST and item.delivery is not used and not item.lost:
            self._unsettled[id(settlement)] = settlement  # it was redelivered meanwhile, and has another lock
            return
        elif item.lost or error.reason in (FailureReason.LOCK_LOST, FailureReason.NOT_FOUND, FailureReason.CLOSED):
            if settlement.reason is not None:
                self._locked.miss(item)
            else:  # it is stored in the primary already
                self._locked.lose(item)
                if error.reason is FailureReason.LOCK_LOST:
                    self._locked.doubt()
        else:
            self._failed(f"settle: {error}")
            self._unsettled[id(settlement)] = settlement
            return
        self._unsettled.pop(id(settlement), None)
        self._report(settlement, error)


class BacklogReader:
    """Receives from one backlog queue and settles what was received.

    ``changed`` is called whenever fewer messages may be locked, or more that can't be settled.
    """

    def __init__(self, queue: Entity, context: PumpContext, changed: Callable[[], None]) -> None:
        clock = context.clock
        self.receiver = QueueReceiver(queue, context.secondary, context.options, clock)
        self.locked = LockedMessages(self.receiver, clock, changed)
        self.settler = Settler(self.receiver, self.locked, clock, self._failed, changed)
        self._queue = queue
        self._clock = clock
        self._emit = context.emit

    def start(self) -> None:
        """Begin to renew locks."""
        self.locked.start()

    async def receive(self, most: int, ahead: int) -> list[Delivery]:
        """One long poll.

        Args:
            most: deliveries at most.
            ahead: messages that the broker may lock here before they are asked for, a hint.

        Raises:
            TransportError: the queue can't be read, or order was lost with a lock: then `reset`.
        """
        await self.receiver.open()
        if self.locked.broken:
            raise _order_lost()
        deliveries = await self.receiver.receive(most, ahead)
        if self.locked.broken:
            raise _order_lost()  # what came may stand behind what was lost
        return deliveries

    async def close(self, grace: float) -> None:
        """Try for ``grace`` seconds to settle what is done, and release the rest."""
        await self.settler.finish(self._clock.now() + grace)
        await self.locked.stop()
        await self.reset()

    async def reset(self) -> None:
        """Begin anew after an error: what is locked is lost to this pump, and will be redelivered."""
        receiver = self.receiver.detach()
        await self.settler.stop_retries()
        self.locked.drop_all()
        if receiver is not None:
            # A driver that cancels itself here would end the pump, with the backlog stranded.
            failed = await settled_within(_CLOSE_TIMEOUT, receiver.close())
            if failed is not None:
                self._failed(f"close: {failed}")  # the broker releases what was locked when the locks end
        await self.settler.give_up()

    def _failed(self, error: str) -> None:
        self._emit(SyphonFailed, queue=self._queue.path, error=error, retry_after=0.0)


def _order_lost() -> TransportError:
    return TransportError("a lock was lost, and order with it", FailureKind.UNAVAILABLE, FailureReason.LOCK_LOST)
