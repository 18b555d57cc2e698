"""The primary's side of a pump: send, confirm, complete, always in this order (SPEC 7.1).

The `DeliveryPolicy` keeps back what must not be delivered, the `Ledger` keeps what came of each message, the `Window`
says how many may be locked while messages flow, and the `Transfer` sends and has it confirmed.

Of a queue with one consumer at a time order is kept (SPEC 8): of one key one message an operation is sent, so that none
is stored while an earlier one is in doubt.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pairmq.core import Backoff, Diversion, Gate, PairOptions, elapsed_time_to_live
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._gates import RateLimit
from pairmq.runner._limits import pause
from pairmq.runner.pump._reader import BacklogReader, Item, PumpContext, Settlement, adapted
from pairmq.transport import Transport

_REMEMBERED = 10_000  # messages that were delivered and may be redelivered, because their completion was lost

_AHEAD = 5  # batches locked at most while messages are small, so that neither broker waits for the other
_SMALL = 1 << 13  # bytes of a body, on a batch's average
BATCHES_AN_OPERATION = 2  # at most: when it is cut off, the outcome of all of them is unknown

_OPERATION_BYTES = 1 << 20  # of bodies, from which on an operation takes no further message; as much as a send's

_LOOK_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)

# Refusals that are not the message's fault: they pass when an operator has fixed them, so the message waits. Any other
# refusal would recur forever.
_NOT_POISON = frozenset((FailureReason.UNAUTHORIZED, FailureReason.QUOTA, FailureReason.DISABLED, FailureReason.CLOSED))


class Poison(NamedTuple):
    """Why a message is dead-lettered."""

    reason: str
    description: str


class DeliveryPolicy:
    """Decides which messages may be delivered, whatever their destination accepts (SPEC 5.8, 7.4)."""

    def __init__(self, primary: Transport, options: PairOptions, clock: Clock) -> None:
        self._primary = primary
        self._options = options
        self._clock = clock
        self._counts_time = options.ttl_policy != "restore"

    def admits(self, entity: Entity) -> bool:
        """Whether the syphon may deliver there at all."""
        forbidden = self._primary.admin.is_system_entity(entity) or self._options.is_backlog_queue(entity.path)
        return not forbidden and self._options.allows(entity.path)

    def overdue(self, message: Message, diversion: Diversion | None) -> Poison | None:
        """Why a message has expired in the backlog, where time counts there; None when it has not."""
        left = self._time_left(message, diversion)
        if left is None or left > 0:
            return None
        text = f"its time-to-live of {message.time_to_live} s ran out in the backlog (ttl_policy is 'elapse')"
        return Poison("TTLExpiredException", text)

    def unexpired(self, items: list[Item]) -> tuple[list[Item], list[tuple[Item, Poison]]]:
        """Part those that have time left from those that ran out of it while they were held."""
        if not self._counts_time:
            return items, []
        found = [(item, self.overdue(item.message, item.diversion)) for item in items]
        expired = [(item, poison) for item, poison in found if poison is not None]
        return [item for item, poison in found if poison is None], expired

    def outgoing(self, items: Sequence[Item]) -> list[Message]:
        """The messages as they are sent to the primary, with the time that they have left."""
        if not self._counts_time:
            return [item.message for item in items]
        return [self._shortened(item) for item in items]

    def _shortened(self, item: Item) -> Message:
        left = self._time_left(item.message, item.diversion)
        return item.message if left is None else replace(item.message, time_to_live=max(left, 1e-6))

    def _time_left(self, message: Message, diversion: Diversion | None) -> float | None:
        """Seconds left to live, where the time in the backlog counts; None where it does not."""
        if not self._counts_time or diversion is None:
            return None
        return elapsed_time_to_live(message, diversion, self._clock.instant())


class Ledger:
    """Makes the settlements of what was sent, or is not to be sent, and keeps account of them."""

    def __init__(self, queue: Entity, clock: Clock, emit: Emitter) -> None:
        self.moved = 0
        self.dead_lettered = 0
        self._queue = queue
        self._clock = clock
        self._emit = emit
        self._delivered: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    def was_delivered(self, item: Item) -> bool:
        """Whether it was, and its completion was lost: to send it again would make a second copy."""
        return item.identity in self._delivered

    def delivered(self, item: Item) -> Settlement:
        """The primary has confirmed it: until its completion is confirmed too, it may be redelivered."""
        self._delivered[item.identity] = None
        if len(self._delivered) > _REMEMBERED:
            self._delivered.popitem(last=False)
        return Settlement(item, self._moved)

    def redelivered(self, item: Item) -> Settlement:
        """It was received once more, and `was_delivered`."""
        return Settlement(item, self._completed)

    def poison(self, item: Item, path: str | None, poison: Poison) -> Settlement:
        """It is not to be delivered to ``path``; None where the message does not name its destination."""

        def done(item: Item, error: TransportError | None) -> None:
            if error is not None:
                return  # it is redelivered, and dead-lettered then
            self.dead_lettered += 1
            self._emit.of_message(
                item.message,
                MessageDeadLettered,
                queue=self._queue.path,
                entity=path,
                message_id=item.message.message_id,
                reason=poison.reason,
                description=poison.description,
            )

        return Settlement(item, done, poison.reason, poison.description)

    def _moved(self, item: Item, error: TransportError | None) -> None:
        self.moved += 1
        self._completed(item, error)
        if self._emit.active and item.diversion is not None:
            waited = (self._clock.instant() - item.diversion.diverted_at).total_seconds()
            self._emit.of_message(
                item.message,
                MessageMoved,
                queue=self._queue.path,
                entity=item.diversion.entity,
                message_id=item.message.message_id or "",
                waited=max(0.0, waited),
                maybe_duplicate=item.unknown,
                redelivered=item.delivery.delivery_count > 1,
                completed=error is None,
            )

    def _completed(self, item: Item, error: TransportError | None) -> None:
        if error is None:
            self._delivered.pop(item.identity, None)


class Window:
    """A batch, or several while more than that is there, is small, and flows."""

    def __init__(self, rate: RateLimit, batch: int) -> None:
        self._rate = rate
        self._wanted = batch
        self._ahead = False

    @property
    def batch(self) -> int:
        """Messages of one receive at most."""
        return self._rate.most_at_once(self._wanted)

    @property
    def line_batch(self) -> int:
        """Messages that are taken from one line at once, at most; its gate says how many an operation carries."""
        return self.batch if self._rate.limits else self._wanted * BATCHES_AN_OPERATION

    @property
    def most(self) -> int:
        """Messages locked from which on no more are received; a batch that was asked for may come on top."""
        return self.batch * _AHEAD if self._ahead else self.batch

    @property
    def ahead(self) -> int:
        """Messages that the broker may lock here before they are asked for."""
        return self.most if self._ahead else 0

    def received(self, deliveries: Sequence[Delivery], *, flows: bool) -> None:
        """Widen or narrow it by what a receive gave.

        Args:
            deliveries: all of it.
            flows: every destination that was tried takes messages. What is read ahead and can't go on is released, and
                redelivered: that must not happen again and again because one destination is unavailable while others
                flow (SPEC 7.3).
        """
        full = len(deliveries) == self.batch
        size = sum(len(delivery.message.body) for delivery in deliveries)
        goes_on = full or (self._ahead and bool(deliveries))
        self._ahead = goes_on and flows and not self._rate.limits and size <= _SMALL * len(deliveries)

    def narrow(self) -> None:
        """Have no more than a batch locked."""
        self._ahead = False


class Transfer:
    """Sends items of one backlog queue to the primary and settles them."""

    def __init__(
        self,
        reader: BacklogReader,
        policy: DeliveryPolicy,
        ledger: Ledger,
        context: PumpContext,
        stopping: asyncio.Event,
    ) -> None:
        self.flows = False
        """The last send was confirmed."""
        self._receiver = reader.receiver
        self._locked = reader.locked
        self._settler = reader.settler
        self._policy = policy
        self._ledger = ledger
        self._sender = context.sender
        self._forget = context.forget
        self._gates = context.gates
        self._rate = context.rate
        self._ceiling = context.options.syphon_batch * BATCHES_AN_OPERATION
        self._clock = context.clock
        self._stopping = stopping

    async def deliver(self, gate: Gate, items: list[Item]) -> list[Item]:
        """Send, have it confirmed, complete; returns the items that the destination did not take, in order."""
        gate.users += 1
        try:
            while items:
                if gate.held:
                    return items  # since the last operation
                part, items = self._next(gate, items)
                left = await self._deliver_part(gate, part)
                if left:
                    return left + items
            return []
        finally:
            gate.users -= 1

    def _next(self, gate: Gate, items: list[Item]) -> tuple[list[Item], list[Item]]:
        """What goes in one operation, and what is left, each in order: where order is kept, one message a key."""
        ordered = self._receiver.ordered
        keys: set[tuple[bool, str]] = set()
        size = 0
        for count, item in enumerate(items):
            if count >= gate.most or size >= _OPERATION_BYTES:
                return items[:count], items[count:]
            if ordered:
                if item.key in keys:
                    return items[:count], items[count:]
                keys.add(item.key)
            size += len(item.message.body)
        return items, []

    async def _deliver_part(self, gate: Gate, items: list[Item]) -> list[Item]:
        """The same in one operation."""
        if not await self._rate.take(len(items), self._stopping) or gate.held:
            return items
        due, overdue = self._policy.unexpired(await self._locked.fresh(items))
        while overdue:
            if not await self._dead_letter([self._expired(item, poison) for item, poison in overdue]):
                return [item for item in items if not item.lost]
            # Where order is kept that has taken a while, and with it the others' time.
            due, overdue = (
                self._policy.unexpired(await self._locked.fresh(due)) if self._receiver.ordered else (due, [])
            )
        items = self._undelivered(due)
        if not items:
            return []
        began_at = self._clock.now()
        results = await self._receiver.each(self._send(gate.entity, self._policy.outgoing(items)), len(items))
        gate.most = adapted(gate.most, len(items), results, self._receiver.share(began_at), self._ceiling)
        self._work_gate(gate, results)
        return await self._settle(gate, items, results)

    async def _send(self, entity: Entity, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """One operation at the primary; one entry each, None for confirmed."""
        sender = self._sender(entity)
        if len(messages) > 1:
            return await sender.send_batch(messages)
        await sender.send(messages[0])
        return (None,)

    def _work_gate(self, gate: Gate, results: Sequence[TransportError | None]) -> None:
        """Open or shut a destination's gate by what it answered."""
        failures = [result for result in results if result is not None and not _is_poison(result)]
        self.flows = not failures
        if None in results:
            self._gates.gates.delivered(gate)
        if failures:
            if any(result is not None and result.maybe_applied for result in results):
                # A primary that takes messages and does not confirm it gets one copy a trial, not a whole batch.
                gate.most = 1
            self._gates.shut(gate, failures[-1])

    async def _settle(self, gate: Gate, items: Sequence[Item], results: Sequence[TransportError | None]) -> list[Item]:
        """Complete what was delivered, and dead-letter poison; returns the others."""
        delivered: list[Settlement] = []
        poison: list[Settlement] = []
        left: list[Item] = []
        for item, result in zip(items, results, strict=True):
            if result is None:
                delivered.append(self._ledger.delivered(item))
            elif _is_poison(result):
                poison.append(self._ledger.poison(item, gate.entity.path, Poison(result.reason.value, str(result))))
                # Where others are delivered, or could be, the destination exists, and the sender that they use works.
                if result.reason is FailureReason.NOT_FOUND and None not in results:
                    self._forget(gate.entity)
            else:
                item.unknown = item.unknown or result.maybe_applied
                left.append(item)
        if not self._receiver.ordered:
            self._settler.settle_soon(delivered + poison)
            return left
        self._settler.settle_soon(delivered)
        if not await self._dead_letter(poison):
            left = [settlement.item for settlement in poison] + left
        return left

    async def _dead_letter(self, settlements: Sequence[Settlement]) -> bool:
        """Settle what is not delivered; where order is kept, what is behind it waits until that is confirmed.

        Returns:
            Whether the next ones may go.
        """
        if not settlements:
            return True
        if not self._receiver.ordered:
            self._settler.settle_soon(settlements)
            return True
        await self._settler.settle(settlements)
        retry = 0
        while any(self._locked.holds(settlement.item) for settlement in settlements):
            if self._stopping.is_set() or self._locked.broken:
                return False
            await pause(_LOOK_BACKOFF.wait(retry, self._clock.chance()), self._stopping)
            retry += 1
        return not self._locked.broken

    def _undelivered(self, items: list[Item]) -> list[Item]:
        """Complete what was delivered while it was held: its lock was lost unnoticed, and it was redelivered here."""
        again = [item for item in items if self._ledger.was_delivered(item)]
        if not again:
            return items
        self._settler.settle_soon([self._ledger.redelivered(item) for item in again])
        gone = set(map(id, again))
        return [item for item in items if id(item) not in gone]

    def _expired(self, item: Item, poison: Poison) -> Settlement:
        path = None if item.diversion is None else item.diversion.entity.path
        return self._ledger.poison(item, path, poison)


def _is_poison(error: TransportError) -> bool:
    return error.kind is FailureKind.REFUSED and error.reason not in _NOT_POISON
