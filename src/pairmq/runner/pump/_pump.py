"""One pump of the syphon: moves the messages of one backlog queue back to the primary (SPEC 7).

The order is always send, confirm, complete: a crash anywhere can bring a second copy and can lose nothing. The three go
on side by side for different messages: each destination has a line, which sends what is in it, in order, one operation
after the other, while more is received and what was delivered is completed.

A destination that is unavailable does not stop the others: its messages are held under renewed locks until it is back.
There is room for one batch of held messages; when that is full and the primary as such answers, they go to the tail of
the same queue to make room for those behind them, again by send, confirm, complete, so that no delivery count is spent
on an outage (ADR 5).

Of a queue with one consumer at a time order is kept (SPEC 8): of one key one message an operation is sent, so that none
is stored while an earlier one is in doubt; nothing goes to the tail, but several batches are held; and when a lock is
lost all that is held is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pairmq.core import MAYBE_DUPLICATE, Backoff, restore
from pairmq.model import Delivery, Entity, EnvelopeError, FailureReason, Message, TransportError
from pairmq.model.events import SyphonFailed
from pairmq.runner._limits import end, first, pause
from pairmq.runner.pump._lines import Line, Lines
from pairmq.runner.pump._reader import BacklogReader, Item, PumpContext, QueueReceiver, Settlement
from pairmq.runner.pump._transfer import DeliveryPolicy, Ledger, Poison, Transfer, Window
from pairmq.transport import Sender, Transport, start_task

_BATCHES_HELD: Final = 10
_MOST_HELD: Final = 1000
"""Messages under locks of a minute, and fewer in proportion under shorter ones: each lock costs a renewal in time."""
_BYTES_HELD: Final = 16 << 20
"""Of bodies, as each of many backlog queues may hold as much."""

_BACKOFF = Backoff(first=0.25, factor=2.0, cap=10.0)  # as long as a drain may pause after the secondary is back
_ROOM_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)


class HoldLimit:
    """Says whether a pump may hold still more where order forbids to postpone (SPEC 7.3, 8).

    What is held keeps its order in its line, and is redelivered in its order when it is released; so nothing but memory
    and the renewing of the locks bounds it.
    """

    def __init__(self, reader: BacklogReader, lines: Lines, context: PumpContext) -> None:
        self._receiver = reader.receiver
        self._settler = reader.settler
        self._lines = lines
        self._primary = context.primary
        self._batch = context.options.syphon_batch

    async def has_room(self) -> bool:
        """Whether one more batch may be received, although one is held."""
        if not self._receiver.ordered or self._settler.unsettled >= self._batch:
            return False
        held = [item for line in self._lines.shut for item in line.items]
        if len(held) >= self._most or sum(len(item.message.body) for item in held) >= _BYTES_HELD:
            return False
        return await _answers(self._primary, self._receiver)

    @property
    def _most(self) -> int:
        lock = self._receiver.lock_duration
        renewable = _MOST_HELD if lock is None else min(_MOST_HELD, int(_MOST_HELD * lock / 60))
        return min(_BATCHES_HELD * self._batch, renewable)


async def _answers(primary: Transport, receiver: QueueReceiver) -> bool:
    """Whether the primary as such does: if not, no other destination could be served either."""
    try:
        await receiver.limited(primary.admin.check())
    except TransportError:
        return False
    return True


class Requeue:
    """Puts held messages at the tail of their queue, so that those behind them come into sight.

    Again by send, confirm, complete, and not again at once where a confirmation was lost (ADR 12).
    """

    def __init__(
        self, reader: BacklogReader, lines: Lines, tail: Sender, context: PumpContext, stopping: asyncio.Event
    ) -> None:
        self._receiver = reader.receiver
        self._locked = reader.locked
        self._settler = reader.settler
        self._lines = lines
        self._primary = context.primary
        self._tail = tail
        self._gates = context.gates
        self._clock = context.clock
        self._stopping = stopping
        self._wait = min(60.0, max(1.0, context.options.ping_primary_interval))
        # Scheduled messages that can't be counted would let the backlog look empty (SPEC 4.5).
        capabilities = context.secondary.capabilities
        self._schedules = capabilities.scheduling and capabilities.counts_scheduled
        self._primary_was_unavailable = False

    async def make_room(self) -> bool:
        """Postpone what waits in the fullest line that can't go on; returns whether anything was."""
        now = self._clock.now()
        shut = [(sum(item.copy_after <= now for item in line.items), line) for line in self._lines.shut if line.items]
        if not shut:
            return False
        if not await _answers(self._primary, self._receiver):
            self._primary_was_unavailable = True
            return False
        _, line = max(shut, key=lambda each: each[0])
        gate = line.gate
        if self._primary_was_unavailable:
            self._primary_was_unavailable = False
            gate.try_after = 0.0
        if await self._gates.try_now(gate):
            return False  # its line moves on by itself
        # What was copied before has to be gone from its place first, or the next round would copy it again.
        return not self._settler.unsettled and bool(line.items) and await self._postpone(line)

    async def _postpone(self, line: Line) -> bool:
        """Put what waits in a line at the tail of the queue, to be seen again later; returns whether any was."""
        # Taken out before anything is awaited: should the gate open meanwhile, no one else may send them.
        now = self._clock.now()
        items = [item for item in line.items if item.copy_after <= now]
        if not items:
            return False
        staying = [item for item in line.items if item.copy_after > now]
        line.items.clear()
        line.items.extend(staying)
        items = await self._locked.fresh(items)
        copies = [self._copy(item) for item in items]
        results = await self._receiver.each(self._tail.send_batch(copies), len(copies))
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
            # The copy starts with a delivery count of its own: what this one showed must not be forgotten.
            copy = replace(copy, application_properties={**copy.application_properties, MAYBE_DUPLICATE: "true"})
        if self._schedules:
            copy = replace(copy, scheduled_enqueue_at=self._clock.instant() + timedelta(seconds=self._wait))
        return copy


def _nothing(_: Item, __: TransportError | None) -> None:
    """A settlement whose outcome needs no report."""


class Pump:
    """The pump of one backlog queue.

    Args:
        queue: the backlog queue.
        tail: the secondary's sender to it.
        missing: called when the queue itself does not exist any more, so that it is made again.
        context: what all pumps share.
    """

    def __init__(
        self, queue: Entity, tail: Sender, missing: Callable[[TransportError], None], context: PumpContext
    ) -> None:
        self.queue = queue
        options, clock, emit = context.options, context.clock, context.emit
        self._missing = missing
        self._gates = context.gates
        self._batch = options.syphon_batch
        self._attempt_timeout = options.attempt_timeout
        self._clock = clock
        self._emit = emit
        self._stopping = stopping = asyncio.Event()
        self._moved_on = moved_on = asyncio.Event()
        self._reader = reader = BacklogReader(queue, context, moved_on.set)
        self._policy = policy = DeliveryPolicy(context.primary, options, clock)
        self._ledger = ledger = Ledger(queue, clock, emit)
        self._window = window = Window(context.rate, options.syphon_batch)
        self._transfer = Transfer(reader, policy, ledger, context, stopping)
        self._lines = lines = Lines(self._transfer, reader.locked, window, context, stopping, moved_on, self._failed)
        self._hold_limit = HoldLimit(reader, lines, context)
        self._requeue = Requeue(reader, lines, tail, context, stopping)
        self._task: asyncio.Task[None] | None = None

    @property
    def moved(self) -> int:
        """Messages moved back to the primary so far."""
        return self._ledger.moved

    @property
    def dead_lettered(self) -> int:
        """Messages dead-lettered so far."""
        return self._ledger.dead_lettered

    @property
    def locked(self) -> int:
        """Messages received and not yet settled."""
        return len(self._reader.locked)

    def start(self) -> None:
        """Begin to pump."""
        self._task = start_task(self._run(), name=f"pump {self.queue}")
        self._reader.start()

    async def stop(self, grace: float) -> None:
        """Receive nothing more, finish what is on its way within ``grace`` seconds, release the rest (SPEC 9.1)."""
        self._stopping.set()
        ends_at = self._clock.now() + grace
        self._reader.receiver.end_by(ends_at)
        if self._task is not None:
            await end([self._task], grace)
        await end(self._lines.tasks, max(0.0, ends_at - self._clock.now()))
        await self._reader.close(max(0.0, ends_at - self._clock.now()))

    async def _run(self) -> None:
        retry = 0
        while not self._stopping.is_set():
            try:
                await self._make_room()
                self._move(await self._reader.receive(self._window.batch, self._window.ahead))
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
        """Let go of everything that is locked: after an error of the queue nothing of it can be settled."""
        sending = self._lines.drop_all()
        await self._reader.reset()
        # Nothing more is sent of it, and what is under way may end: cut off, it would be sent once more when it is
        # redelivered, and nothing would show that it was delivered.
        await end(sending, self._attempt_timeout)

    def _failed(self, error: BaseException, retry_after: float) -> None:
        text = str(error) or type(error).__name__
        self._emit(SyphonFailed, queue=self.queue.path, error=text, retry_after=retry_after)

    # Receiving: there has to be room for more.

    @property
    def _held(self) -> int:
        """Messages that can't go on now."""
        return sum(len(line.items) for line in self._lines.shut) + self._reader.settler.unsettled

    async def _make_room(self) -> None:
        """Wait, or postpone, while too much is held or unsettled, or enough is on its way."""
        retry = 0
        receiver, locked = self._reader.receiver, self._reader.locked
        while not self._stopping.is_set() and not locked.broken:
            held = self._held
            if held >= self._batch and not await self._hold_limit.has_room():
                self._window.narrow()
                receiver.read_ahead(0)
                self._gates.any_opened.clear()
                if receiver.ordered or not await self._requeue.make_room():
                    # The whole primary is unavailable, or the secondary, and no other destination could be served
                    # either; or order forbids to make room.
                    wait = _ROOM_BACKOFF.wait(retry, self._clock.chance())
                    await pause(wait, self._stopping, self._gates.any_opened)
                    retry += 1
            elif len(locked) - (held if receiver.ordered else 0) >= self._window.most:  # it holds beside what moves
                self._moved_on.clear()
                await first((self._stopping.wait(), self._moved_on.wait()))
            else:
                return

    # Moving: what was received gets into line, or is settled at once.

    def _move(self, deliveries: Sequence[Delivery]) -> None:
        """Put deliveries in the lines of their destinations, or settle them."""
        self._window.received(deliveries, flows=self._transfer.flows and self._gates.gates.all_deliver)
        now = self._clock.now()
        locked, ledger = self._reader.locked, self._ledger
        groups: dict[Entity, list[Item]] = {}
        settlements: list[Settlement] = []
        for delivery in deliveries:
            try:
                message, diversion = restore(delivery.message)
            except EnvelopeError as error:
                item = locked.take(delivery, delivery.message, None, now)
                settlements.append(ledger.poison(item, None, Poison("malformed-envelope", str(error))))
                continue
            if locked.takes_over(delivery, message, diversion):
                continue
            item = locked.take(delivery, message, diversion, now)
            poison = self._poison(item, diversion.entity)
            if poison is not None:
                settlements.append(ledger.poison(item, diversion.entity.path, poison))
            elif ledger.was_delivered(item):
                settlements.append(ledger.redelivered(item))
            else:
                groups.setdefault(diversion.entity, []).append(item)
        self._reader.settler.settle_soon(settlements)
        for entity, items in groups.items():
            self._lines.line_up(entity, items)

    def _poison(self, item: Item, entity: Entity) -> Poison | None:
        """Why an item must not be delivered, whatever the destination accepts."""
        if entity not in self._lines and not self._policy.admits(entity):  # what has a line was looked at
            return Poison("destination-not-allowed", f"{entity} is not among the pair's allowed_entities")
        if self._reader.receiver.ordered:
            # That its time has run out is for its turn to find out: should it be redelivered, to a process whose wall
            # clock is behind, those behind it must still be there.
            return None
        return self._policy.overdue(item.message, item.diversion)
