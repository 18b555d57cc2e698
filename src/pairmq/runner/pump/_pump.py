"""One pump of the syphon: brings the messages of one backlog queue home (SPEC 7).

The order is always send, confirm, complete: a crash anywhere can bring a second copy and can lose nothing. The three go
on side by side for different messages: each destination has a line, which sends what stands in it, in order, one
operation after the other, while more is received and what has come home is completed.

A destination that is unavailable does not stop the others: its messages are held under renewed locks until it is back.
There is room for one batch of held messages; when that is full and the primary as such is there, they go to the tail of
the same queue to make room for those behind them, again by send, confirm, complete, so that no delivery count is spent
on an outage.

Of a queue with one consumer at a time order is kept (SPEC 8): what belongs to one key goes home one message an
operation, so that none is stored while an earlier one is in doubt; nothing goes to the tail, but several batches are
held; and when a lock is lost all that is held is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pairmq.core import MAYBE_DUPLICATE, Backoff, PairOptions, restore
from pairmq.model import Delivery, Entity, EnvelopeError, FailureReason, Message, TransportError
from pairmq.model.events import SyphonFailed
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._gates import Gates, RateLimit
from pairmq.runner._limits import end, first, pause
from pairmq.runner.pump._hand import Intake, Item, Reader, Settlement
from pairmq.runner.pump._lines import Line, Lines
from pairmq.runner.pump._transfer import Ledger, Poison, Screen, Transfer, Window
from pairmq.transport import Sender, Transport, start_task

_BATCHES_HELD: Final = 10
_MOST_HELD: Final = 1000
"""Messages under locks of a minute, and fewer in proportion under shorter ones: each lock costs a renewal in time."""
_BYTES_HELD: Final = 16 << 20
"""Of bodies, as each of many backlog queues may hold as much."""

_BACKOFF = Backoff(first=0.25, factor=2.0, cap=10.0)  # as long as a drain may pause after the secondary is back
_ROOM_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)


class Holding:
    """Says whether a pump may hold still more, so that it comes to the messages of other destinations.

    What is held keeps its order in its line, and comes again in its order should it be given back; so nothing speaks
    against it but memory, and the renewing of the locks.

    Args:
        intake: where it is in hand.
        lines: where it waits.
        primary: asked whether it is there at all: were it away, no other destination could be served either.
        batch: messages a receive; one is held in any case.
    """

    def __init__(self, intake: Intake, lines: Lines, primary: Transport, batch: int) -> None:
        self._reader = intake.reader
        self._settler = intake.settler
        self._lines = lines
        self._primary = primary
        self._batch = batch

    async def has_room(self) -> bool:
        """Whether one more batch may be received, although one is held."""
        if not self._reader.ordered or self._settler.unsettled >= self._batch:
            return False
        held = [item for line in self._lines.shut for item in line.items]
        if len(held) >= self._most or sum(len(item.message.body) for item in held) >= _BYTES_HELD:
            return False
        return await is_there(self._primary, self._reader)

    @property
    def _most(self) -> int:
        lock = self._reader.lock_duration
        return min(
            _BATCHES_HELD * self._batch, _MOST_HELD if lock is None else min(_MOST_HELD, int(_MOST_HELD * lock / 60))
        )


async def is_there(primary: Transport, reader: Reader) -> bool:
    """Whether the primary as such answers."""
    try:
        await reader.limited(primary.admin.check())
    except TransportError:
        return False
    return True


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


class Pump:
    """The pump of one backlog queue.

    Args:
        queue: the backlog queue.
        primary: where messages belong; never the pair's own sender, so that none can loop (SPEC 7.2).
        secondary: where they wait.
        home: gives the primary's sender to an entity, shared by all pumps.
        forget: drops what is kept for a destination that does not exist; paths in a backlog queue are anyone's words.
        missing: told when the queue itself is gone, so that it is made again.
        tail: the secondary's sender to the queue itself.
        gates: the destinations' gates, shared by all pumps.
        rate: shared by all pumps.
        options: the pair's.
        clock: time and chance.
        emit: takes events.
    """

    def __init__(
        self,
        queue: Entity,
        primary: Transport,
        secondary: Transport,
        home: Callable[[Entity], Sender],
        forget: Callable[[Entity], None],
        missing: Callable[[TransportError], None],
        tail: Sender,
        gates: Gates,
        rate: RateLimit,
        options: PairOptions,
        clock: Clock,
        emit: Emitter,
    ) -> None:
        self.queue = queue
        self._missing = missing
        self._gates = gates
        self._batch = options.syphon_batch
        self._attempt_timeout = options.attempt_timeout
        self._clock = clock
        self._emit = emit
        self._stopping = stopping = asyncio.Event()
        self._moved_on = moved_on = asyncio.Event()
        self._intake = intake = Intake(queue, secondary, options, clock, emit, moved_on.set)
        self._screen = screen = Screen(primary, options, clock)
        self._ledger = ledger = Ledger(queue, clock, emit)
        self._window = window = Window(rate, options.syphon_batch)
        self._transfer = Transfer(intake, screen, ledger, home, forget, gates, rate, options, clock, stopping)
        self._lines = lines = Lines(self._transfer, intake.hand, gates, window, clock, stopping, moved_on, self._failed)
        self._holding = Holding(intake, lines, primary, options.syphon_batch)
        self._postponing = Postponing(intake, lines, primary, secondary, tail, gates, options, clock, stopping)
        self._task: asyncio.Task[None] | None = None

    @property
    def moved(self) -> int:
        """Messages brought home so far."""
        return self._ledger.moved

    @property
    def dead_lettered(self) -> int:
        """Messages set aside so far."""
        return self._ledger.dead_lettered

    @property
    def in_hand(self) -> int:
        """Messages received and not yet settled."""
        return len(self._intake.hand)

    def start(self) -> None:
        """Begin to pump."""
        self._task = start_task(self._run(), name=f"pump {self.queue}")
        self._intake.start()

    async def stop(self, grace: float) -> None:
        """Receive nothing more, finish what is on its way within ``grace`` seconds, give the rest back (SPEC 9.1)."""
        self._stopping.set()
        ends_at = self._clock.now() + grace
        self._intake.reader.end_by(ends_at)
        if self._task is not None:
            await end([self._task], grace)
        await end(self._lines.tasks, max(0.0, ends_at - self._clock.now()))
        await self._intake.close(max(0.0, ends_at - self._clock.now()))

    async def _run(self) -> None:
        retry = 0
        while not self._stopping.is_set():
            try:
                await self._make_room()
                self._move(await self._intake.receive(self._window.batch, self._window.ahead))
                retry = 0
            except Exception as error:
                # A pump never ends by an error: the backlog would be stranded.
                if self._stopping.is_set():
                    return
                wait = _BACKOFF.wait(retry, self._clock.chance())
                retry += 1
                self._failed(error, wait)
                if isinstance(error, TransportError) and error.reason is FailureReason.NOT_FOUND:
                    self._missing(error)
                await self._begin_anew()
                await pause(wait, self._stopping)

    async def _begin_anew(self) -> None:
        """Let go of everything in hand: after an error of the queue nothing of it can be settled."""
        sending = self._lines.drop_all()
        await self._intake.reset()
        # Nothing more is sent of it, and what is under way may end: cut off, it would be sent once more when it comes
        # again, and nobody would know that it is home.
        await end(sending, self._attempt_timeout)

    def _failed(self, error: BaseException, retry_after: float) -> None:
        text = str(error) or type(error).__name__
        self._emit(SyphonFailed, queue=self.queue.path, error=text, retry_after=retry_after)

    # Receiving: there has to be room for more.

    @property
    def _held(self) -> int:
        """Messages that can't go on now."""
        return sum(len(line.items) for line in self._lines.shut) + self._intake.settler.unsettled

    async def _make_room(self) -> None:
        """Wait, or postpone, while too much is held or unsettled, or enough is on its way."""
        retry = 0
        reader, hand = self._intake.reader, self._intake.hand
        while not self._stopping.is_set() and not hand.broken:
            held = self._held
            if held >= self._batch and not await self._holding.has_room():
                self._window.narrow()
                reader.read_ahead(0)
                self._gates.any_opened.clear()
                if reader.ordered or not await self._postponing.make_room():
                    # The whole primary is away, or the secondary, and no other destination could be served either; or
                    # order forbids to make room.
                    wait = _ROOM_BACKOFF.wait(retry, self._clock.chance())
                    await pause(wait, self._stopping, self._gates.any_opened)
                    retry += 1
            elif len(hand) - (held if reader.ordered else 0) >= self._window.most:  # it holds beside what moves
                self._moved_on.clear()
                await first((self._stopping.wait(), self._moved_on.wait()))
            else:
                return

    # Moving: what was received gets into line, or is set aside.

    def _move(self, deliveries: Sequence[Delivery]) -> None:
        """Put deliveries in the lines of their destinations, or aside."""
        self._window.received(deliveries, flows=self._transfer.flows and self._gates.all_deliver)
        now = self._clock.now()
        hand, ledger = self._intake.hand, self._ledger
        groups: dict[Entity, list[Item]] = {}
        aside: list[Settlement] = []
        for delivery in deliveries:
            try:
                message, diversion = restore(delivery.message)
            except EnvelopeError as error:
                item = hand.take(delivery, delivery.message, None, now)
                aside.append(ledger.poison(item, None, Poison("malformed-envelope", str(error))))
                continue
            if hand.takes_over(delivery, message, diversion):
                continue
            item = hand.take(delivery, message, diversion, now)
            poison = self._poison(item, diversion.entity)
            if poison is not None:
                aside.append(ledger.poison(item, diversion.entity.path, poison))
            elif ledger.is_home(item):
                aside.append(ledger.came_again(item))
            else:
                groups.setdefault(diversion.entity, []).append(item)
        self._intake.settler.settle_soon(aside)
        for entity, items in groups.items():
            self._lines.line_up(entity, items)

    def _poison(self, item: Item, entity: Entity) -> Poison | None:
        """Why an item must not be delivered, whatever the destination says."""
        if entity not in self._lines and not self._screen.admits(entity):  # what has a line was looked at
            return Poison("destination-not-allowed", f"{entity} is not among the pair's allowed_entities")
        if self._intake.reader.ordered:
            # That its time has run out is for its turn to find out: should it come again, to a process whose wall clock
            # is behind, those behind it must still be there.
            return None
        return self._screen.overdue(item.message, item.diversion)
