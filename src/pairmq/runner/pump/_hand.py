"""What a pump has received and not yet settled, and the locks on it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from pairmq.core import Diversion
from pairmq.model import Delivery, FailureReason, Message, TransportError
from pairmq.runner._clock import Clock
from pairmq.runner.pump._batches import slices
from pairmq.runner.pump._item import Item
from pairmq.runner.pump._reader import Reader
from pairmq.transport import start_task

_UNKNOWN_LOCK = 15.0  # s: how long a lock is taken to last until the queue was asked
_AT_ONCE = 25  # renewals side by side, each under a time limit of its own


class Hand:
    """The items of one backlog queue that this pump holds under locks, which it renews.

    Args:
        reader: of the queue.
        clock: time.
        changed: told when something was lost.
    """

    def __init__(self, reader: Reader, clock: Clock, changed: Callable[[], None]) -> None:
        self.broken = False
        """A lock was lost that order rests on: nothing of what is in hand may go on, until `drop_all`."""
        self._reader = reader
        self._clock = clock
        self._changed = changed
        self._items: dict[int, Item] = {}
        self._places: dict[str, Item] = {}
        """The same by their position in the queue, where the broker tells it."""
        self._renewals: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def start(self) -> None:
        """Begin to renew locks."""
        self._renewals = start_task(self._renew_locks(), name=f"locks {self._reader.queue}")

    async def stop(self) -> None:
        """Renew locks no more."""
        if self._renewals is not None:
            self._renewals.cancel()
            await asyncio.wait((self._renewals,), timeout=1)

    # What is in it.

    def take(self, delivery: Delivery, message: Message, diversion: Diversion | None, came_at: float) -> Item:
        """Keep a delivery that came at an instant in hand: its lock is renewed until it is settled."""
        item = Item(delivery, message, diversion, self._reader.lock_ends_at(came_at))
        self._items[id(item)] = item
        if delivery.sequence_number:
            self._places[delivery.sequence_number] = item
        return item

    def takes_over(self, delivery: Delivery, message: Message, diversion: Diversion) -> bool:
        """Whether a delivery is of what is in hand already; its item then goes on under the new lock.

        The broker gives a message out again when its lock was lost, which nobody may have noticed yet. To treat it as
        another one would make a second copy.
        """
        item = self._places.get(delivery.sequence_number)
        # The position alone is not enough: it may come again when a queue was made anew.
        if item is None or (item.message, item.diversion) != (message, diversion):
            return False
        item.delivery, item.locked_until = delivery, self._reader.lock_ends_at(self._clock.now())
        return True

    def holds(self, item: Item) -> bool:
        """Whether an item is still in hand."""
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
        """Lose an item that is in its place neither: where order is kept, nothing goes on that stands behind it.

        Whatever is in hand is given back, and comes again in its order, elsewhere maybe.
        """
        if item.lost:
            return  # who lost it has done so already; what is in hand by now came later
        self.lose(item)
        if not self._reader.ordered or self.broken:
            return
        self.broken = True
        for other in self._items.values():
            other.lost = True
        self._reader.cut_poll()
        self._changed()

    def doubt(self) -> None:
        """Where order is kept, let nothing go on before its lock was renewed: one that came home had lost its own.

        Somebody else may hold the whole queue by now. What this pump went on to send would still stand in order, each
        being sent after the one before it was confirmed; but all of it would be sent twice, and what the other one sets
        aside would appear out of its place.
        """
        if self._reader.ordered and self._reader.lock_duration is not None:
            for item in self._items.values():
                item.locked_until = -math.inf

    def drop_all(self) -> None:
        """Begin anew: what is in hand is lost to this pump."""
        for item in self._items.values():
            item.lost = True
        self.broken = False
        self._items.clear()
        self._places.clear()

    # Locks.

    async def fresh(self, items: Sequence[Item]) -> list[Item]:
        """Those whose locks outlast one more operation, renewed if need be; the others come again (SPEC 7.6)."""
        margin = 0.5 * (self._reader.lock_duration or 0.0)
        now = self._clock.now()
        stale = [item for item in items if not item.lost and item.locked_until - now < margin]
        renewed = set(map(id, await self._renew(stale)))
        for item in stale:
            if id(item) not in renewed:
                self.miss(item)
        return [item for item in items if not item.lost]

    async def _renew_locks(self) -> None:
        # The first lock may be shorter than any wait that is chosen before the queue was asked.
        await self._reader.asked.wait()
        while True:
            duration = self._reader.lock_duration
            await asyncio.sleep((duration or _UNKNOWN_LOCK) / 3)
            tried: set[Item] = set()
            # Some at a time, those that end soonest first: while a slow broker renews them, more may come.
            while duration is not None and (due := self._due(duration, tried)):
                tried.update(due)
                await self._renew(due)

    def _due(self, duration: float, tried: set[Item]) -> list[Item]:
        before = self._clock.now() + duration * 5 / 6
        due = [item for item in self._items.values() if item.locked_until < before and item not in tried]
        return sorted(due, key=lambda item: item.locked_until)[:_AT_ONCE]

    async def _renew(self, items: Sequence[Item]) -> list[Item]:
        """Renew locks, some side by side; gives the items whose renewal was confirmed."""
        renewed: list[Item] = []
        for part in slices(items, _AT_ONCE):
            outcomes = await asyncio.gather(*(self._renew_one(item) for item in part))
            renewed += [item for item, good in zip(part, outcomes, strict=True) if good]
        return renewed

    async def _renew_one(self, item: Item) -> bool:
        if not self.holds(item):
            return False
        ends_at, used = self._reader.lock_ends_at(self._clock.now()), item.delivery
        try:
            renewed = await self._reader.renew(used)
        except TransportError as error:
            if item.delivery is not used:
                return self.holds(item)  # it was delivered again meanwhile, and has another lock
            if error.reason is FailureReason.LOCK_LOST:
                self.miss(item)
            return False
        if item.delivery is used:
            item.delivery, item.locked_until = renewed, ends_at
        return True
