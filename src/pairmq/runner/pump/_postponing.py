"""Making room in a pump's hand: held messages go to the tail of their queue, so that those behind come into sight.

Again by send, confirm, complete, so that no delivery count is spent on an outage (ADR 5), and not again at once where a
confirmation was lost (ADR 12).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from pairmq.core import MAYBE_DUPLICATE, PairOptions
from pairmq.model import Message, TransportError
from pairmq.runner._clock import Clock
from pairmq.runner._gates import Gates
from pairmq.runner.pump._holding import is_there
from pairmq.runner.pump._intake import Intake
from pairmq.runner.pump._item import Item, Settlement
from pairmq.runner.pump._lines import Line, Lines
from pairmq.runner.pump._waits import pause
from pairmq.transport import Sender, Transport


class Postponing:
    """Postpones what waits in the lines of a pump.

    Args:
        intake: where it is in hand.
        lines: where it waits.
        primary: asked whether it is there at all.
        secondary: tells whether it can schedule.
        tail: the secondary's sender to the queue itself.
        gates: the destinations' gates.
        options: the pair's.
        clock: time.
        stopping: set when the pump is to end.
    """

    def __init__(
        self,
        intake: Intake,
        lines: Lines,
        primary: Transport,
        secondary: Transport,
        tail: Sender,
        gates: Gates,
        options: PairOptions,
        clock: Clock,
        stopping: asyncio.Event,
    ) -> None:
        self._reader = intake.reader
        self._hand = intake.hand
        self._settler = intake.settler
        self._lines = lines
        self._primary = primary
        self._tail = tail
        self._gates = gates
        self._clock = clock
        self._stopping = stopping
        self._wait = min(60.0, max(1.0, options.ping_primary_interval))
        # What waits for its time where nobody can count it would let the backlog look empty (SPEC 4.5).
        self._schedules = secondary.capabilities.scheduling and secondary.capabilities.counts_scheduled
        self._primary_was_away = False

    async def make_room(self) -> bool:
        """Postpone what waits in the fullest line that can't go on; tells whether anything was."""
        now = self._clock.now()
        shut = [(sum(item.copy_after <= now for item in line.items), line) for line in self._lines.shut if line.items]
        if not shut:
            return False
        if not await is_there(self._primary, self._reader):
            self._primary_was_away = True
            return False
        _, line = max(shut, key=lambda each: each[0])
        gate = line.gate
        if self._primary_was_away:
            self._primary_was_away = False
            gate.try_after = 0.0
        if await self._gates.try_now(gate):
            return False  # its line moves on by itself
        # What was copied before has to be gone from its place first, or the next round would copy it again.
        return not self._settler.unsettled and bool(line.items) and await self._postpone(line)

    async def _postpone(self, line: Line) -> bool:
        """Put what waits in a line at the tail of the queue, to be seen again later; tells whether any was."""
        # Taken out before anything is awaited: should the gate open meanwhile, no one else may send them.
        now = self._clock.now()
        items = [item for item in line.items if item.copy_after <= now]
        if not items:
            return False
        staying = [item for item in line.items if item.copy_after > now]
        line.items.clear()
        line.items.extend(staying)
        items = await self._hand.fresh(items)
        copies = [self._copy(item) for item in items]
        results = await self._reader.each(self._tail.send_batch(copies), len(copies))
        sent: list[Settlement] = []
        rest: list[Item] = []
        for item, result in zip(items, results, strict=True):
            if result is None:
                sent.append(Settlement(item, _nothing))
            else:
                if result.maybe_applied:
                    # Each trial may have left a copy, and each copy would be copied in its turn.
                    item.unknown = True
                    item.copy_after = self._clock.now() + self._wait * 2 ** min(item.copies, 10)
                    item.copies += 1
                rest.append(item)
        await self._settler.settle(sent)
        if rest:
            self._lines.put_back(line, rest)
        else:
            self._lines.end_if_empty(line)
        if sent and not self._schedules:
            await pause(min(self._wait, 1.0), self._stopping)  # they are visible again at once: don't spin
        return bool(sent)

    def _copy(self, item: Item) -> Message:
        copy = item.delivery.message
        if item.unknown or item.delivery.delivery_count > 1:
            # The copy starts with a delivery count of its own: what this one told must not be forgotten.
            copy = replace(copy, application_properties={**copy.application_properties, MAYBE_DUPLICATE: "true"})
        if self._schedules:
            copy = replace(copy, scheduled_enqueue_at=self._clock.instant() + timedelta(seconds=self._wait))
        return copy


def _nothing(_: Item, __: TransportError | None) -> None:
    """A settlement that nobody waits for."""
