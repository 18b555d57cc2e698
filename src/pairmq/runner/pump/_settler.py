"""Completing and dead-lettering, until the broker has confirmed it (ADR 7).

What is to be settled stays in hand, under a renewed lock, until then or until the lock is lost: a completion that
failed in passing is tried again, because giving the message up instead would bring a second copy of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pairmq.core import Backoff
from pairmq.model import Delivery, FailureKind, FailureReason, TransportError
from pairmq.runner._clock import Clock
from pairmq.runner.pump._batches import adapted, slices
from pairmq.runner.pump._hand import Hand
from pairmq.runner.pump._item import Settlement
from pairmq.runner.pump._reader import Reader
from pairmq.transport import start_task

_AT_ONCE = 25  # dead-letters side by side, each under a time limit of its own
_FIRST_COMPLETED = 100  # deliveries completed in one operation, until that has shown to fit
_MOST_COMPLETED = 1000
_BACKOFF = Backoff(first=0.1, factor=2.0, cap=5.0)


class Settler:
    """Settles what is in hand.

    Args:
        reader: of the queue.
        hand: what is in hand.
        clock: time and chance.
        failed: told of an error that is no reason to end.
        changed: told whenever something was settled, or failed to be.
    """

    def __init__(
        self,
        reader: Reader,
        hand: Hand,
        clock: Clock,
        failed: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._hand = hand
        self._clock = clock
        self._failed = failed
        self._changed = changed
        self._most = _FIRST_COMPLETED
        self._untold: dict[int, Settlement] = {}
        """All whose outcome nobody was told, by their ids: each is told once, however it ends."""
        self._unsettled: dict[int, Settlement] = {}
        """Those among them that failed in passing."""
        # A dict, not a set: whoever replays a run needs them in the same order again.
        self._settlings: dict[asyncio.Task[None], None] = {}
        self._retries: asyncio.Task[None] | None = None

    @property
    def unsettled(self) -> int:
        """Settlements that failed and are being tried again."""
        return len(self._unsettled) + (self._retries is not None)

    def settle_soon(self, settlements: Sequence[Settlement]) -> None:
        """Settle items, in the background from the first attempt on."""
        if settlements:
            self._untold.update((id(settlement), settlement) for settlement in settlements)
            task = start_task(self._settle(settlements), name=f"settle {self._reader.queue}")
            self._settlings[task] = None
            task.add_done_callback(self._settled_soon)

    def _settled_soon(self, task: asyncio.Task[None]) -> None:
        del self._settlings[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(f"settle: {str(error) or type(error).__name__}")

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle items; one attempt now, and more in the background for what fails in passing."""
        self._untold.update((id(settlement), settlement) for settlement in settlements)
        await self._settle(settlements)

    async def _settle(self, settlements: Sequence[Settlement]) -> None:
        await self._try(settlements)
        if self._unsettled and self._retries is None:
            self._retries = start_task(self._retry(), name=f"settle {self._reader.queue}")

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
        """End what outlives the receiver, which must not settle anything later, and tell everyone who waits."""
        if self._settlings:
            _, running = await asyncio.wait(self._settlings, timeout=1)
            for task in running:
                task.cancel()
        error = TransportError("the receiver was closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
        for settlement in tuple(self._untold.values()):
            self._tell(settlement, error)

    def _tell(self, settlement: Settlement, error: TransportError | None) -> None:
        if self._untold.pop(id(settlement), None) is not None:
            settlement.done(settlement.item, error)

    async def _retry(self) -> None:
        try:
            retry = 0
            while self._unsettled:
                await asyncio.sleep(_BACKOFF.wait(retry, self._clock.chance()))
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
            errors = await self._reader.complete(used)
            self._most = adapted(self._most, len(part), errors, self._reader.share(began_at), _MOST_COMPLETED)
            for settlement, delivery, error in zip(part, used, errors, strict=True):
                self._settled(settlement, delivery, error)
            self._changed()
        others = [settlement for settlement in settlements if settlement.reason is not None]
        for part in slices(others, _AT_ONCE):
            used = [settlement.item.delivery for settlement in part]
            outcomes = await asyncio.gather(
                *(
                    self._reader.dead_letter(delivery, settlement.reason or "", settlement.description)
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
            self._hand.let_go(item)
        elif error.reason is FailureReason.LOCK_LOST and item.delivery is not used and not item.lost:
            self._unsettled[id(settlement)] = settlement  # it was delivered again meanwhile, and has another lock
            return
        elif item.lost or error.reason in (FailureReason.LOCK_LOST, FailureReason.NOT_FOUND, FailureReason.CLOSED):
            if settlement.reason is not None:
                self._hand.miss(item)
            else:  # what came home is in its place already
                self._hand.lose(item)
                if error.reason is FailureReason.LOCK_LOST:
                    self._hand.doubt()
        else:
            self._failed(f"settle: {error}")
            self._unsettled[id(settlement)] = settlement
            return
        self._unsettled.pop(id(settlement), None)
        self._tell(settlement, error)
