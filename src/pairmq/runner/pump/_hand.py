"""What a pump has received and not yet settled, and the locks on it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from pairmq.core import Diversion
from pairmq.model import Delivery, FailureReason, Message, TransportError
from pairmq.runner._clock import Clock
from pairmq.runner.pump._item import Item
from pairmq.runner.pump._reader import Reader
from pairmq.transport import start_task

_UNKNOWN_LOCK = 15.0  # s: how long a lock is taken to last until the queue was asked
_AT_ONCE = 25  # renewals side by side at least, each under a time limit of its own
_SOON = 0.001  # s


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
        self._took = 0.0  # s for the last renewals that were begun side by side
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
        item.renew_at = self._renew_at(came_at)
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
        now = self._clock.now()
        item.delivery, item.locked_until, item.renew_at = delivery, self._reader.lock_ends_at(now), self._renew_at(now)
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
        return (self._reader.lock_duration or _UNKNOWN_LOCK) / 3

    def _renew_at(self, begun_at: float) -> float:
        """When to renew a lock that began, or was to be renewed, at an instant of the loop's clock."""
        return math.inf if self._reader.lock_duration is None else begun_at + self._third

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
            renewed = await self._reader.renew(used)
        except TransportError as error:
            if item.delivery is not used:
                return self.holds(item)  # it was delivered again meanwhile, and has another lock
            if error.reason is FailureReason.LOCK_LOST:
                self.miss(item)
            return False
        if item.delivery is used:
            item.delivery, item.locked_until = renewed, self._reader.lock_ends_at(began_at)
        return True
