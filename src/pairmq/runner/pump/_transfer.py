"""Bringing messages home: send, confirm, complete, always in this order (SPEC 7.1).

Of a queue with one consumer at a time order is kept (SPEC 8): what belongs to one key goes home one message an
operation, so that none is stored while an earlier one is in doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pairmq.core import Backoff, PairOptions
from pairmq.model import Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.runner._clock import Clock
from pairmq.runner._gates import Gate, Gates
from pairmq.runner._rate import RateLimit
from pairmq.runner.pump._batches import adapted
from pairmq.runner.pump._intake import Intake
from pairmq.runner.pump._item import Item, Settlement
from pairmq.runner.pump._ledger import Ledger
from pairmq.runner.pump._screen import Poison, Screen
from pairmq.runner.pump._waits import pause
from pairmq.runner.pump._window import HOME_AT_ONCE
from pairmq.transport import Sender

_BYTES = 1 << 20  # of bodies, from which on an operation takes no further message; as much as a send's

_LOOK_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)

# Refusals that are not the message's fault: they pass when an operator has mended them, so the message waits. Any
# other refusal would come again for ever.
_NOT_POISON = frozenset((FailureReason.UNAUTHORIZED, FailureReason.QUOTA, FailureReason.DISABLED, FailureReason.CLOSED))


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
            if count >= gate.most or size >= _BYTES:
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
