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

from pairmq.core import Backoff, PairOptions, restore
from pairmq.model import Delivery, Entity, EnvelopeError, FailureReason, TransportError
from pairmq.model.events import SyphonFailed
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._gates import Gates
from pairmq.runner._rate import RateLimit
from pairmq.runner.pump._holding import Holding
from pairmq.runner.pump._intake import Intake
from pairmq.runner.pump._item import Item, Settlement
from pairmq.runner.pump._ledger import Ledger
from pairmq.runner.pump._lines import Lines
from pairmq.runner.pump._postponing import Postponing
from pairmq.runner.pump._screen import Poison, Screen
from pairmq.runner.pump._transfer import Transfer
from pairmq.runner.pump._waits import end, first, pause
from pairmq.runner.pump._window import Window
from pairmq.transport import Sender, Transport, start_task

_BACKOFF = Backoff(first=0.25, factor=2.0, cap=10.0)  # as long as a drain may pause after the secondary is back
_ROOM_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)


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
