"""The secondary's side of a pump: receiving from its backlog queue, keeping the locks, and settling.

The `BacklogReader` receives, bounds each operation in time, and renews locks; its `Settler` completes and dead-letters
until the broker has confirmed it (ADR 7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from pairmq.core import Backoff
from pairmq.core.pump import Item, Poison, PumpMachine, Report
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.model.events import MessageDeadLettered, MessageMoved, SyphonFailed
from pairmq.runner._counted import EngineContext
from pairmq.runner._limits import TimeLimits, settled_within
from pairmq.transport import Receiver, start_task

T = TypeVar("T")

_SETTLE_BACKOFF = Backoff(first=0.1, factor=2.0, cap=5.0)

_CLOSE_TIMEOUT = 3.0  # s; a transport promises 2


class BacklogReader:
    """Receives from one backlog queue, by one receiver after another, renews the locks, and settles what was received.

    ``changed`` is called whenever fewer messages may be locked, or more that can't be settled.
    """

    def __init__(self, queue: Entity, engine: EngineContext, machine: PumpMachine, changed: Callable[[], None]) -> None:
        self.queue = queue
        self.wait = engine.options.syphon_receive_wait
        """Seconds of a long poll."""
        self.settler = Settler(self, machine, engine, changed)
        self._machine = machine
        self._secondary = engine.secondary
        self._options = engine.options
        self._clock = engine.clock
        self._emit = engine.emit
        self._changed = changed
        self._asked = asyncio.Event()  # the queue, for its properties
        self._receiver: Receiver | None = None
        self._ahead = 0  # as it was asked to read ahead
        self._renewals: asyncio.Task[None] | None = None
        self._ending = False
        self._polls = TimeLimits()
        self._limits = TimeLimits()

    def start(self) -> None:
        """Begin to renew locks."""
        self._renewals = start_task(self._renew_locks(), name=f"locks {self.queue}")

    def end_by(self, instant: float) -> None:
        """End the long poll under way now, and let no other operation last longer than ``instant``."""
        self._ending = True
        self.cut_poll()
        self._limits.end_by(instant)

    def cut_poll(self) -> None:
        """End the long poll under way, and let none begin until `reset`."""
        if self._receiver is not None or self._ending:
            self._polls.end_by(self._clock.now())

    async def limited(self, operation: Awaitable[T]) -> T:
        """Await an operation at either broker, within its time limit."""
        return await self._limits.run(operation, self._clock.now() + self._machine.time_limit)

    async def each(
        self, operation: Awaitable[Sequence[TransportError | None]], count: int
    ) -> tuple[Sequence[TransportError | None], float]:
        """The same for an operation on several messages: one entry each, None for done, and the share of its time limit
        that it took. When it fails as a whole, that is what came of each."""
        began_at, limit = self._clock.now(), self._machine.time_limit
        try:
            results = await self._limits.run(operation, began_at + limit)
        except TransportError as error:
            results = [error] * count
        took = (self._clock.now() - began_at) / limit
        if len(results) != count:
            text = f"{len(results)} results for {count} messages"
            lost = TransportError(text, FailureKind.UNAVAILABLE, FailureReason.OTHER, maybe_applied=True)
            return [lost] * count, took
        return results, took

    async def receive(self) -> list[Delivery]:
        """One long poll, after a look at the queue's properties for each new receiver; when it raises, `reset`."""
        machine = self._machine
        if self._receiver is None:
            properties = await self.limited(self._secondary.admin.properties(self.queue))
            machine.opened(properties.lock_duration, ordered=properties.single_consumer)
            self._asked.set()
            self._receiver, self._ahead = self._secondary.receiver(Source(self.queue)), 0
            self._receiver.on_dead_lettered = self._dead_lettered
        if machine.broken:
            raise _order_lost()
        began_at = self._clock.now()
        limit = began_at + self.wait + self._options.attempt_timeout
        most = machine.receives
        if machine.ahead != self._ahead:
            self.read_ahead(machine.ahead)
        try:
            deliveries = await self._polls.run(self._receiver.receive(most, self.wait), limit)
        except TransportError:
            machine.receive_ended(most, None, self._clock.now() - began_at)
            raise
        machine.receive_ended(most, len(deliveries), self._clock.now() - began_at)
        if machine.broken:
            raise _order_lost()  # what came may stand behind what was lost
        return deliveries

    def _dead_lettered(self, delivery: Delivery) -> None:
        """The transport could not decode a message, and has dead-lettered it (SPEC 7.4)."""
        self._machine.dead_lettered += 1
        self._emit(
            MessageDeadLettered,
            delivery.message,
            queue=self.queue.path,
            entity=None,
            message_id=delivery.message.message_id,
            reason=delivery.dead_letter_reason,
            description=delivery.dead_letter_description,
        )

    def read_ahead(self, messages: int) -> None:
        """Let the broker lock so many messages here before they are asked for, a hint."""
        if self._receiver is not None:
            self._ahead = messages
            self._receiver.read_ahead(messages)

    async def complete(self, deliveries: Sequence[Delivery]) -> tuple[Sequence[TransportError | None], float]:
        if self._receiver is None:
            return [_gone()] * len(deliveries), 0.0
        return await self.each(self._receiver.complete_batch(deliveries), len(deliveries))

    async def dead_letter(self, delivery: Delivery, poison: Poison) -> TransportError | None:
        """Dead-letter a delivery; gives None for done."""
        if self._receiver is None:
            return _gone()
        try:
            await self.limited(self._receiver.dead_letter(delivery, *poison))
        except TransportError as error:
            return error
        return None

    async def refresh(self, stale: Sequence[Item]) -> None:
        """Renew locks that may not outlast one more operation; what has no good one then is redelivered (SPEC 7.6)."""
        machine = self._machine
        missed: list[Item] = []
        while stale:
            at_once = machine.renewals_at_once(len(stale))
            missed += await self._renew(stale[:at_once])
            stale = stale[at_once:]
        for item in missed:
            machine.miss(item)
        self._changed()

    async def _renew_locks(self) -> None:
        # The first lock may be shorter than any wait that is chosen before the queue was asked.
        await self._asked.wait()
        while True:
            now = self._clock.now()
            # A look at all again after each round: while they are renewed, more come.
            due = self._machine.to_renew(now)
            if due:
                await self._renew(due)
            else:
                await asyncio.sleep(self._machine.renewal_due_in(now))

    async def _renew(self, items: Sequence[Item]) -> list[Item]:
        """Renew locks side by side; gives the items without a good one."""
        began_at = self._clock.now()
        renewed = await asyncio.gather(*map(self._renew_one, items))
        self._machine.renewals_took(self._clock.now() - began_at)
        return [item for item, good in zip(items, renewed, strict=True) if not good]

    async def _renew_one(self, item: Item) -> bool:
        if not self._machine.is_held(item):
            return False
        began_at, used = self._clock.now(), item.delivery
        self._machine.renewing(item, began_at)
        try:
            if self._receiver is None:
                raise _gone()
            outcome: Delivery | TransportError = await self.limited(self._receiver.renew_lock(used))
        except TransportError as error:
            outcome = error
        good = self._machine.renewed(item, used, outcome, began_at)
        if not good:
            self._changed()
        return good

    async def close(self, grace: float) -> None:
        """Try for ``grace`` seconds to settle what is done, and release the rest."""
        await self.settler.finish(self._clock.now() + grace)
        if self._renewals is not None:
            self._renewals.cancel()
            await asyncio.wait((self._renewals,), timeout=1)
        await self.reset()

    async def reset(self) -> None:
        """Begin anew after an error: what is locked is lost to this pump, and will be redelivered."""
        receiver, self._receiver = self._receiver, None
        if not self._ending:
            self._polls = TimeLimits()
        await self.settler.stop_retries()
        self._machine.release()
        if receiver is not None:
            # A driver that cancels itself here would end the pump, with the backlog stranded.
            failed = await settled_within(_CLOSE_TIMEOUT, receiver.close)
            if failed is not None:
                self.settler.failed(f"close: {failed}")  # the broker releases what was locked when the locks end
        await self.settler.give_up()


def _gone() -> TransportError:
    return TransportError("the receiver was closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)


def _order_lost() -> TransportError:
    return TransportError("a lock was lost, and order with it", FailureKind.UNAVAILABLE, FailureReason.LOCK_LOST)


class Settler:
    """Settles items, each of which stays locked until the broker has confirmed it, or until the lock is lost."""

    def __init__(
        self, reader: BacklogReader, machine: PumpMachine, engine: EngineContext, changed: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._machine = machine
        self._clock = engine.clock
        self._emit = engine.emit
        self._changed = changed
        # A dict, not a set: the replay of a run needs them in the same order again.
        self._settlings: dict[asyncio.Task[None], None] = {}
        self._retries: asyncio.Task[None] | None = None

    def settle_soon(self, items: Sequence[Item]) -> None:
        """Settle items, in the background from the first attempt on."""
        if items:
            task = start_task(self.settle(items), name=f"settle {self._reader.queue.path}")
            self._settlings[task] = None
            task.add_done_callback(self._settled_soon)

    def _settled_soon(self, task: asyncio.Task[None]) -> None:
        del self._settlings[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(f"settle: {str(error) or type(error).__name__}")

    async def settle(self, items: Sequence[Item]) -> None:
        """Settle items; one attempt now, and more in the background for what fails in passing."""
        while items:
            operations, items = self._machine.settlements(items)
            if len(operations) == 1:
                await self._operation(operations[0])
            else:
                await asyncio.gather(*map(self._operation, operations))
        if self._machine.unsettled and self._retries is None:
            self._retries = start_task(self._retry(), name=f"settle {self._reader.queue.path}")

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

    async def give_up(self) -> None:
        """End what outlives the receiver, which must not settle anything later, and report what is left as failed."""
        if self._settlings:
            _, running = await asyncio.wait(self._settlings, timeout=1)
            for task in running:
                task.cancel()
        self._report(self._machine.give_up())

    async def _retry(self) -> None:
        try:
            retry = 0
            while self._machine.unsettled:
                await asyncio.sleep(_SETTLE_BACKOFF.wait(retry, self._clock.chance()))
                retry += 1
                await self.settle(tuple(self._machine.unsettled))
        finally:
            self._retries = None

    async def _operation(self, items: Sequence[Item]) -> None:
        """Complete items together, or dead-letter each of them."""
        used = [item.delivery for item in items]
        poison = [item.poison for item in items if item.poison is not None]
        if poison:
            outcomes = await asyncio.gather(*map(self._reader.dead_letter, used, poison))
            reports, failures = self._machine.settled(items, used, outcomes)
        else:
            errors, took = await self._reader.complete(used)
            reports, failures = self._machine.settled(items, used, errors, took)
        for text in dict.fromkeys(map(str, failures)):  # a hundred may have failed for one reason
            self.failed(f"settle: {text}")
        self._report(reports)
        self._changed()

    def _report(self, reports: Iterable[Report]) -> None:
        queue = self._reader.queue.path
        for item, completed in reports:
            message, diversion = item.message, item.diversion
            if item.poison is not None:
                self._emit(
                    MessageDeadLettered,
                    message,
                    queue=queue,
                    entity=None if diversion is None else diversion.entity.path,
                    message_id=message.message_id,
                    reason=item.poison.reason,
                    description=item.poison.description,
                )
            elif diversion is not None and self._emit.active:
                waited = (self._clock.instant() - diversion.diverted_at).total_seconds()
                self._emit(
                    MessageMoved,
                    message,
                    queue=queue,
                    entity=diversion.entity,
                    message_id=message.message_id or "",
                    waited=max(0.0, waited),
                    maybe_duplicate=item.unknown,
                    redelivered=item.delivery.delivery_count > 1,
                    completed=completed,
                )

    def failed(self, error: str) -> None:
        """Report an error that is no reason to end."""
        self._emit(SyphonFailed, queue=self._reader.queue.path, error=error, retry_after=0.0)
