"""The primary's side of a pump: send, confirm, complete, always in this order (SPEC 7.1).

The `Screen` keeps back what must not be delivered, the `Ledger` keeps what came of each message, the `Window` says how
much may be in hand while messages flow, and the `Transfer` sends and has it confirmed.

Of a queue with one consumer at a time order is kept (SPEC 8): what belongs to one key goes home one message an
operation, so that none is stored while an earlier one is in doubt.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pairmq.core import Backoff, Diversion, PairOptions, elapsed_time_to_live
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._gates import Gate, Gates, RateLimit
from pairmq.runner._limits import pause
from pairmq.runner.pump._hand import Intake, Item, Settlement, adapted
from pairmq.transport import Sender, Transport

_REMEMBERED = 10_000  # messages that came home and may come again, because their completion was lost

_AHEAD = 5  # batches in hand at most while messages are small, so that neither broker waits for the other
_SMALL = 1 << 13  # bytes of a body, on a batch's average
HOME_AT_ONCE = 2  # batches in one operation at most: when it is cut off, nobody knows of any of them

_OPERATION_BYTES = 1 << 20  # of bodies, from which on an operation takes no further message; as much as a send's

_LOOK_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)

# Refusals that are not the message's fault: they pass when an operator has mended them, so the message waits. Any
# other refusal would come again for ever.
_NOT_POISON = frozenset((FailureReason.UNAUTHORIZED, FailureReason.QUOTA, FailureReason.DISABLED, FailureReason.CLOSED))


class Poison(NamedTuple):
    """Why a message is dead-lettered."""

    reason: str
    description: str


class Screen:
    """Keeps back messages whatever their destination would say of them (SPEC 5.8, 7.4).

    Args:
        primary: knows its own system entities.
        options: the pair's.
        clock: time.
    """

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
        """Tell whether a message's time has run out in the backlog, where that counts."""
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
        """The messages as they are sent home, with the time that they have left."""
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
    """Makes the settlements of what was sent, or is not to be sent, and keeps account of them.

    Args:
        queue: the backlog queue.
        clock: time.
        emit: takes events.
    """

    def __init__(self, queue: Entity, clock: Clock, emit: Emitter) -> None:
        self.moved = 0
        self.dead_lettered = 0
        self._queue = queue
        self._clock = clock
        self._emit = emit
        self._home: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    def is_home(self, item: Item) -> bool:
        """Whether it came home before and its completion was lost: to send it again would make a second copy."""
        return item.identity in self._home

    def came_home(self, item: Item) -> Settlement:
        """It has come home: until its completion is confirmed, it may come again."""
        self._home[item.identity] = None
        if len(self._home) > _REMEMBERED:
            self._home.popitem(last=False)
        return Settlement(item, self._moved)

    def came_again(self, item: Item) -> Settlement:
        """It was delivered again, and `is_home`."""
        return Settlement(item, self._completed)

    def poison(self, item: Item, path: str | None, poison: Poison) -> Settlement:
        """It is not to be delivered to ``path``; None where the message does not tell its destination."""

        def done(item: Item, error: TransportError | None) -> None:
            if error is not None:
                return  # it comes again, and so does this
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
            self._home.pop(item.identity, None)


class Window:
    """A batch, or several while more than that is there, is small, and flows.

    Args:
        rate: of the syphon.
        batch: messages a receive.
    """

    def __init__(self, rate: RateLimit, batch: int) -> None:
        self._rate = rate
        self._wanted = batch
        self._ahead = False

    @property
    def batch(self) -> int:
        """Messages of one receive at most."""
        return self._rate.most_at_once(self._wanted)

    @property
    def home_at_once(self) -> int:
        """Messages that are taken from one line at once, at most; its gate says how many an operation carries."""
        return self.batch if self._rate.limits else self._wanted * HOME_AT_ONCE

    @property
    def most(self) -> int:
        """Messages in hand from which no more are received; a batch that was asked for may come on top."""
        return self.batch * _AHEAD if self._ahead else self.batch

    @property
    def ahead(self) -> int:
        """Messages that the broker may lock here before they are asked for."""
        return self.most if self._ahead else 0

    def received(self, deliveries: Sequence[Delivery], *, flows: bool) -> None:
        """Widen or narrow it by what a receive gave.

        Args:
            deliveries: all of it.
            flows: every destination that was tried takes messages. What is read ahead and can't go on is given back,
                and delivered once more: that must not happen again and again because one destination is away while
                others flow (SPEC 7.3).
        """
        full = len(deliveries) == self.batch
        size = sum(len(delivery.message.body) for delivery in deliveries)
        goes_on = full or (self._ahead and bool(deliveries))
        self._ahead = goes_on and flows and not self._rate.limits and size <= _SMALL * len(deliveries)

    def narrow(self) -> None:
        """Have no more than a batch in hand."""
        self._ahead = False


class Transfer:
    """Sends items of one backlog queue home and settles them.

    Args:
        intake: where they are in hand.
        screen: finds those whose time has run out.
        ledger: keeps what came of them.
        home: gives the primary's sender to an entity.
        forget: drops what is kept for a destination that does not exist; paths in a backlog queue are anyone's words.
        gates: the destinations' gates.
        rate: of the syphon.
        options: the pair's.
        clock: time and chance.
        stopping: set when the pump is to end.
    """

    def __init__(
        self,
        intake: Intake,
        screen: Screen,
        ledger: Ledger,
        home: Callable[[Entity], Sender],
        forget: Callable[[Entity], None],
        gates: Gates,
        rate: RateLimit,
        options: PairOptions,
        clock: Clock,
        stopping: asyncio.Event,
    ) -> None:
        self.flows = False
        """The last send came home."""
        self._reader = intake.reader
        self._hand = intake.hand
        self._settler = intake.settler
        self._screen = screen
        self._ledger = ledger
        self._home = home
        self._forget = forget
        self._gates = gates
        self._rate = rate
        self._ceiling = options.syphon_batch * HOME_AT_ONCE
        self._clock = clock
        self._stopping = stopping

    async def bring_home(self, gate: Gate, items: list[Item]) -> list[Item]:
        """Send, have it confirmed, complete; returns the items that the destination did not take, in order."""
        gate.users += 1
        try:
            while items:
                if gate.held:
                    return items  # since the last operation
                part, items = self._next(gate, items)
                left = await self._bring_part(gate, part)
                if left:
                    return left + items
            return []
        finally:
            gate.users -= 1

    def _next(self, gate: Gate, items: list[Item]) -> tuple[list[Item], list[Item]]:
        """What goes in one operation, and what is left, each in order: where order is kept, one message a key."""
        ordered = self._reader.ordered
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

    async def _bring_part(self, gate: Gate, items: list[Item]) -> list[Item]:
        """The same in one operation."""
        if not await self._rate.take(len(items), self._stopping) or gate.held:
            return items
        due, overdue = self._screen.unexpired(await self._hand.fresh(items))
        while overdue:
            if not await self._put_aside([self._expired(item, poison) for item, poison in overdue]):
                return [item for item in items if not item.lost]
            # Where order is kept that has taken a while, and with it the others' time.
            due, overdue = self._screen.unexpired(await self._hand.fresh(due)) if self._reader.ordered else (due, [])
        items = self._not_home(due)
        if not items:
            return []
        began_at = self._clock.now()
        results = await self._reader.each(self._send(gate.entity, self._screen.outgoing(items)), len(items))
        gate.most = adapted(gate.most, len(items), results, self._reader.share(began_at), self._ceiling)
        self._tell(gate, results)
        return await self._settle(gate, items, results)

    async def _send(self, entity: Entity, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """One operation at the primary; one entry each, None for confirmed."""
        sender = self._home(entity)
        if len(messages) > 1:
            return await sender.send_batch(messages)
        await sender.send(messages[0])
        return (None,)

    def _tell(self, gate: Gate, results: Sequence[TransportError | None]) -> None:
        """Open or shut a destination's gate by what it said."""
        failures = [result for result in results if result is not None and not _is_poison(result)]
        self.flows = not failures
        if None in results:
            self._gates.delivered(gate)
        if failures:
            if any(result is not None and result.maybe_applied for result in results):
                # A primary that takes messages and does not say so gets one copy at each trial, not a whole batch.
                gate.most = 1
            self._gates.shut(gate, failures[-1])

    async def _settle(self, gate: Gate, items: Sequence[Item], results: Sequence[TransportError | None]) -> list[Item]:
        """Complete what came home, and set poison aside; returns the others."""
        home: list[Settlement] = []
        poison: list[Settlement] = []
        left: list[Item] = []
        for item, result in zip(items, results, strict=True):
            if result is None:
                home.append(self._ledger.came_home(item))
            elif _is_poison(result):
                poison.append(self._ledger.poison(item, gate.entity.path, Poison(result.reason.value, str(result))))
                # Where others come home, or could, the destination is in order, and so is the sender that they use.
                if result.reason is FailureReason.NOT_FOUND and None not in results:
                    self._forget(gate.entity)
            else:
                item.unknown = item.unknown or result.maybe_applied
                left.append(item)
        if not self._reader.ordered:
            self._settler.settle_soon(home + poison)
            return left
        self._settler.settle_soon(home)
        if not await self._put_aside(poison):
            left = [settlement.item for settlement in poison] + left
        return left

    async def _put_aside(self, settlements: Sequence[Settlement]) -> bool:
        """Settle what is not delivered; where order is kept, what stands behind it waits until that is confirmed.

        Returns:
            Whether the next ones may go.
        """
        if not settlements:
            return True
        if not self._reader.ordered:
            self._settler.settle_soon(settlements)
            return True
        await self._settler.settle(settlements)
        retry = 0
        while any(self._hand.holds(settlement.item) for settlement in settlements):
            if self._stopping.is_set() or self._hand.broken:
                return False
            await pause(_LOOK_BACKOFF.wait(retry, self._clock.chance()), self._stopping)
            retry += 1
        return not self._hand.broken

    def _not_home(self, items: list[Item]) -> list[Item]:
        """Set aside what came home while it was held: its lock was lost unseen, and it was delivered here again."""
        aside = [item for item in items if self._ledger.is_home(item)]
        if not aside:
            return items
        self._settler.settle_soon([self._ledger.came_again(item) for item in aside])
        gone = set(map(id, aside))
        return [item for item in items if id(item) not in gone]

    def _expired(self, item: Item, poison: Poison) -> Settlement:
        path = None if item.diversion is None else item.diversion.entity.path
        return self._ledger.poison(item, path, poison)


def _is_poison(error: TransportError) -> bool:
    return error.kind is FailureKind.REFUSED and error.reason not in _NOT_POISON
