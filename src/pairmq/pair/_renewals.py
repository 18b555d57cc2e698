"""Keeping the locks of what waits to be handled, or is being handled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from pairmq.core import lanes
from pairmq.pair._receiver import PairDelivery
from pairmq.runner import Clock
from pairmq.transport import start_task

_TOGETHER = 0.5  # s: what is due within that goes along, so that thousands are not looked through for each of them


class Renewals:
    """Renews the locks of deliveries, each when half of its time is over, on the event loop that it is used on.

    ``failed`` says of a delivery whose lock could not be renewed whether it is tried again.
    """

    def __init__(self, clock: Clock, failed: Callable[[PairDelivery, Exception], bool]) -> None:
        self._clock = clock
        self._failed = failed
        self._due: dict[PairDelivery, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def keep(self, deliveries: Iterable[PairDelivery]) -> None:
        now, instant = self._clock.now(), self._clock.instant()
        for delivery in deliveries:
            until = delivery.locked.locked_until
            if until is not None:  # else the lock lasts as long as the connection
                self._due[delivery] = now + lanes.renewal_due((until - instant).total_seconds())
        self._schedule()

    def drop(self, delivery: PairDelivery) -> None:
        """Stop keeping the lock of this one."""
        self._due.pop(delivery, None)

    def clear(self) -> None:
        """Keep no lock any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def _schedule(self) -> None:
        if self._task is not None or not self._due:
            return
        due = min(self._due.values())
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._start)

    def _start(self) -> None:
        self._timer = None
        self._task = start_task(self._renew(), name="renew locks")
        self._task.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self._task = None
        self._schedule()

    async def _renew(self) -> None:
        until = self._clock.now() + _TOGETHER
        await asyncio.gather(*(self._renewed(delivery) for delivery, due in self._due.items() if due <= until))

    async def _renewed(self, delivery: PairDelivery) -> None:
        try:
            await delivery.renew_lock()
        except Exception as error:
            if delivery in self._due and not self._failed(delivery, error):
                self.drop(delivery)
        if self._due.pop(delivery, None) is not None:
            self.keep((delivery,))
