"""One pump of the syphon: brings the messages of one backlog queue home (SPEC 7).

The order is always send, confirm, complete: a crash anywhere can bring a second copy and can lose nothing. The three go
on side by side for different messages: each destination has a line, which sends what stands in it, in order, one
operation after the other, while more is received and what has come home is completed.

A destination that is unavailable does not stop the others: its messages are held under renewed locks until it is back.
There is room for one batch of held messages; when that is full and the primary as such is there, they go to the tail of
the same queue to make room for those behind them, again by send, confirm, complete, so that no delivery count is spent
on an outage.

Of a queue with one consumer at a time order is kept (SPEC 8): what belongs to one key goes home one message an
operation, so that none is stored while an earlier one is in doubt; nothing goes to the tail; and when a lock is lost
all that is held is given back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from pairmq.core import MAYBE_DUPLICATE, Backoff, Diversion, PairOptions, elapsed_time_to_live, restore
from pairmq.model import (
    Delivery,
    Entity,
    EnvelopeError,
    FailureKind,
    FailureReason,
    Message,
    TransportError,
)
from pairmq.model.events import MessageDeadLettered, MessageMoved, SyphonFailed
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._gates import Gate, Gates
from pairmq.runner._intake import Intake, Item, Settlement, adapted
from pairmq.runner._rate import RateLimit
from pairmq.transport import Sender, Transport

_BACKOFF = Backoff(first=0.25, factor=2.0, cap=30.0)
_ROOM_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)

# Refusals that are not the message's fault: they pass when an operator has mended them, so the message waits. Any
# other refusal would come again for ever.
_NOT_POISON = frozenset((FailureReason.UNAUTHORIZED, FailureReason.QUOTA, FailureReason.DISABLED, FailureReason.CLOSED))

_REMEMBERED = 10_000  # messages that came home and may come again, because their completion was lost
_AHEAD = 5  # batches in hand at most while messages are small, so that neither broker waits for the other
_SMALL = 1 << 13  # bytes of a body, on a batch's average
_HOME_AT_ONCE = 2  # batches in one operation at most: when it is cut off, nobody knows of any of them


class _Line:
    """Messages on their way to one destination, in order; while its gate is shut they wait there."""

    __slots__ = ("entity", "items", "sending", "task")

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self.items: deque[Item] = deque()
        self.sending = False
        self.task: asyncio.Task[None] | None = None


class Pump:
    """The pump of one backlog queue.

    Args:
        queue: the backlog queue.
        primary: where messages belong; never the pair's own sender, so that none can loop (SPEC 7.2).
        secondary: where they wait.
        home: gives the primary's sender to an entity, shared by all pumps.
        forget: drops what is kept for a destination of poison; paths in a backlog queue are anyone's words.
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
        self.moved = 0
        self.dead_lettered = 0
        self._primary = primary
        self._secondary = secondary
        self._home = home
        self._forget = forget
        self._missing = missing
        self._tail = tail
        self._gates = gates
        self._rate = rate
        self._options = options
        self._clock = clock
        self._emit = emit
        self._moved_on = asyncio.Event()
        self._intake = Intake(queue, secondary, options, clock, emit, self._moved_on.set)
        self._stopping = asyncio.Event()
        self._lines: dict[Entity, _Line] = {}
        self._primary_was_away = False
        self._arrived: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._flows = False  # the last send came home
        self._ahead = False  # more than a batch may be in hand

    @property
    def in_hand(self) -> int:
        """Messages received and not yet settled."""
        return self._intake.in_hand

    def start(self) -> None:
        """Begin to pump."""
        self._task = asyncio.create_task(self._run(), name=f"pump {self.queue}")
        self._intake.start()

    async def stop(self, grace: float) -> None:
        """Receive nothing more, finish what is on its way within ``grace`` seconds, give the rest back (SPEC 9.1)."""
        self._stopping.set()
        ends_at = self._clock.now() + grace
        self._intake.end_by(ends_at)
        if self._task is not None:
            await _end([self._task], grace)
        lines = [line.task for line in self._lines.values() if line.task is not None]
        await _end(lines, max(0.0, ends_at - self._clock.now()))
        await self._intake.close(max(0.0, ends_at - self._clock.now()))

    # Receiving.

    async def _run(self) -> None:
        retry = 0
        while not self._stopping.is_set():
            try:
                await self._make_room()
                deliveries = await self._intake.receive(self._batch, self._most_in_hand if self._ahead else 0)
                self._move(deliveries)
                retry = 0
            except Exception as error:
                # A pump never ends by an error: the backlog would be stranded.
                if self._stopping.is_set():
                    return
                wait = _BACKOFF.wait(retry, self._clock.chance())
                retry += 1
                self._emit(SyphonFailed, queue=self.queue.path, error=_text(error), retry_after=wait)
                if isinstance(error, TransportError) and error.reason is FailureReason.NOT_FOUND:
                    self._missing(error)
                await self._begin_anew()
                await self._pause(wait)

    async def _begin_anew(self) -> None:
        """Let go of everything in hand: after an error of the queue nothing of it can be settled."""
        lines, self._lines = self._lines, {}
        await self._intake.reset()
        await _end([line.task for line in lines.values() if line.task is not None], 0)

    @property
    def _batch(self) -> int:
        """Messages of one receive at most."""
        return self._rate.most_at_once(self._options.syphon_batch)

    @property
    def _most_in_hand(self) -> int:
        """Messages in hand from which no more are received; a batch that was asked for may come on top."""
        return self._batch * _AHEAD if self._ahead else self._batch

    # Moving.

    def _move(self, deliveries: Sequence[Delivery]) -> None:
        """Put deliveries in the lines of their destinations, or aside."""
        full = len(deliveries) == self._batch
        size = sum(len(delivery.message.body) for delivery in deliveries)
        goes_on = full or (self._ahead and bool(deliveries))
        # What is read ahead and can't go on is given back, and delivered once more: that must not happen again and
        # again because one destination is away while others flow (SPEC 7.3).
        flows = self._flows and self._gates.all_deliver and not self._rate.limits
        self._ahead = goes_on and flows and size <= _SMALL * len(deliveries)
        now = self._clock.now()
        groups: dict[Entity, list[Item]] = {}
        aside: list[Settlement] = []
        for delivery in deliveries:
            try:
                message, diversion = restore(delivery.message)
            except EnvelopeError as error:
                item = self._intake.take(delivery, delivery.message, None, now)
                aside.append(self._poison(item, None, "malformed-envelope", str(error)))
                continue
            if self._intake.takes_over(delivery, message, diversion):
                continue
            item = self._intake.take(delivery, message, diversion, now)
            problem = self._problem(message, diversion, overdue=not self._intake.ordered)
            if problem is not None:
                aside.append(self._poison(item, diversion.entity.path, *problem))
            elif item.identity in self._arrived:
                # It came home before and its completion was lost: to send it again would make a second copy.
                aside.append(Settlement(item, self._completed_again))
            else:
                groups.setdefault(diversion.entity, []).append(item)
        self._intake.settle_soon(aside)
        for entity, items in groups.items():
            self._line_up(self._gates.of(entity), items)

    def _problem(self, message: Message, diversion: Diversion, *, overdue: bool = True) -> tuple[str, str] | None:
        """Reason and description if the message must not be delivered, whatever the destination says.

        Args:
            message: restored.
            diversion: of the same message.
            overdue: whether it counts that its time has run out. Where order is kept that is for its turn to find out:
                should it come again, to a process whose wall clock is behind, those behind it must still be there.
        """
        entity = diversion.entity
        if entity not in self._lines and not self._admits(entity):  # what has a line was looked at
            return "destination-not-allowed", f"{entity} is not among the pair's allowed_entities"
        left = self._time_left(message, diversion) if overdue else None
        if left is not None and left <= 0:
            text = f"its time-to-live of {message.time_to_live} s ran out in the backlog (ttl_policy is 'elapse')"
            return "TTLExpiredException", text
        return None

    def _admits(self, entity: Entity) -> bool:
        forbidden = self._primary.admin.is_system_entity(entity) or self._options.is_backlog_queue(entity.path)
        return not forbidden and self._options.allows(entity.path)

    def _time_left(self, message: Message, diversion: Diversion | None) -> float | None:
        """Seconds left to live, where the time in the backlog counts; None where it does not."""
        if self._options.ttl_policy == "restore" or diversion is None:
            return None
        return elapsed_time_to_live(message, diversion, self._clock.instant())

    async def _send_home(self, gate: Gate, items: list[Item]) -> list[Item]:
        """Send, have it confirmed, complete; returns the items that the destination did not take, in order."""
        gate.users += 1
        try:
            while items:
                part, items = self._next(gate, items)
                left = await self._send_part(gate, part)
                if left:
                    return left + items
            return []
        finally:
            gate.users -= 1

    def _next(self, gate: Gate, items: list[Item]) -> tuple[list[Item], list[Item]]:
        """What goes in one operation, and what is left, each in order: where order is kept, one message a key."""
        if not self._intake.ordered:
            return items[: gate.most], items[gate.most :]
        keys: set[tuple[bool, str]] = set()
        for count, item in enumerate(items):
            if item.key in keys or count >= gate.most:
                return items[:count], items[count:]
            keys.add(item.key)
        return items, []

    async def _send_part(self, gate: Gate, items: list[Item]) -> list[Item]:
        """The same in one operation."""
        if not await self._rate.take(len(items), self._stopping):
            return items
        due, overdue = self._unexpired(await self._intake.fresh(items))
        while overdue:
            if not await self._put_aside(overdue):
                return [item for item in items if not item.lost]
            # Where order is kept that has taken a while, and with it the others' time.
            due, overdue = self._unexpired(await self._intake.fresh(due)) if self._intake.ordered else (due, [])
        items = self._not_home(due)
        if not items:
            return []
        if self._options.ttl_policy == "restore":
            messages = [item.message for item in items]
        else:
            messages = [self._outgoing(item) for item in items]
        try:
            sender = self._home(gate.entity)
            if len(messages) == 1:
                await self._intake.limited(sender.send(messages[0]))
                results: Sequence[TransportError | None] = (None,)
            else:
                results = await self._intake.limited(sender.send_batch(messages))
        except TransportError as error:
            results = [error] * len(items)
        gate.most = adapted(gate.most, len(items), results, self._options.syphon_batch * _HOME_AT_ONCE)
        settlements: list[Settlement] = []
        left: list[Item] = []
        failure = None
        for item, result in zip(items, results, strict=True):
            if result is None:
                self._remember(item)
                settlements.append(Settlement(item, self._came_home))
            elif result.kind is FailureKind.REFUSED and result.reason not in _NOT_POISON:
                settlements.append(self._poison(item, gate.entity.path, result.reason.value, str(result)))
                self._forget(gate.entity)
            else:
                item.unknown = item.unknown or result.maybe_applied
                left.append(item)
                failure = result
        self._flows = failure is None
        if None in results:
            self._gates.delivered(gate)
        if failure is not None:
            if any(result is not None and result.maybe_applied for result in results):
                # A primary that takes messages and does not say so gets one copy at each trial, not a whole batch.
                gate.most = 1
            self._gates.shut(gate, failure)
        poison = [settlement for settlement in settlements if settlement.reason is not None]
        if self._intake.ordered and poison:
            self._intake.settle_soon([settlement for settlement in settlements if settlement.reason is None])
            if not await self._put_aside(poison):
                left = [settlement.item for settlement in poison] + left
        else:
            self._intake.settle_soon(settlements)
        return left

    async def _put_aside(self, settlements: Sequence[Settlement]) -> bool:
        """Settle what is not delivered; where order is kept, what stands behind it waits until that is confirmed.

        Returns:
            Whether the next ones may go.
        """
        if not settlements:
            return True
        if not self._intake.ordered:
            self._intake.settle_soon(settlements)
            return True
        await self._intake.settle(settlements)
        retry = 0
        while any(self._intake.holds(settlement.item) for settlement in settlements):
            if self._stopping.is_set() or self._intake.broken:
                return False
            await self._pause(_ROOM_BACKOFF.wait(retry, self._clock.chance()))
            retry += 1
        return not self._intake.broken

    def _not_home(self, items: list[Item]) -> list[Item]:
        """Set aside what came home while it was held: its lock was lost unseen, and it was delivered here again."""
        aside = [Settlement(item, self._completed_again) for item in items if item.identity in self._arrived]
        if not aside:
            return items
        self._intake.settle_soon(aside)
        gone = {id(settlement.item) for settlement in aside}
        return [item for item in items if id(item) not in gone]

    def _unexpired(self, items: list[Item]) -> tuple[list[Item], list[Settlement]]:
        """What has time left, and how the others are to leave the queue: they ran out of it while they were held."""
        if self._options.ttl_policy == "restore":
            return items, []
        aside: list[Settlement] = []
        for item in items:
            left = self._time_left(item.message, item.diversion)
            if left is not None and left <= 0 and item.diversion is not None:
                problem = self._problem(item.message, item.diversion)
                if problem is not None:
                    aside.append(self._poison(item, item.diversion.entity.path, *problem))
        gone = {id(settlement.item) for settlement in aside}
        return [item for item in items if id(item) not in gone], aside

    def _outgoing(self, item: Item) -> Message:
        left = self._time_left(item.message, item.diversion)
        return item.message if left is None else replace(item.message, time_to_live=max(left, 1e-6))

    # What settlements report.

    def _came_home(self, item: Item, error: TransportError | None) -> None:
        self.moved += 1
        self._completed_again(item, error)
        if self._emit.active and item.diversion is not None:
            waited = (self._clock.instant() - item.diversion.diverted_at).total_seconds()
            self._emit.of_message(
                item.message,
                MessageMoved,
                queue=self.queue.path,
                entity=item.diversion.entity,
                message_id=item.message.message_id or "",
                waited=max(0.0, waited),
                maybe_duplicate=item.unknown,
                redelivered=item.delivery.delivery_count > 1,
                completed=error is None,
            )

    def _remember(self, item: Item) -> None:
        """Until its completion is confirmed, the message may come again."""
        self._arrived[item.identity] = None
        if len(self._arrived) > _REMEMBERED:
            self._arrived.popitem(last=False)

    def _completed_again(self, item: Item, error: TransportError | None) -> None:
        if error is None:
            self._arrived.pop(item.identity, None)

    def _poison(self, item: Item, path: str | None, reason: str, description: str) -> Settlement:
        def done(item: Item, error: TransportError | None) -> None:
            if error is not None:
                return  # it comes again, and so does this
            self.dead_lettered += 1
            self._emit.of_message(
                item.message,
                MessageDeadLettered,
                queue=self.queue.path,
                entity=path,
                message_id=item.message.message_id,
                reason=reason,
                description=description,
            )

        return Settlement(item, done, reason, description)

    # Lines, and holding messages of unavailable destinations.

    def _line_up(self, gate: Gate, items: Sequence[Item]) -> None:
        line = self._lines.get(gate.entity)
        if line is None:
            line = self._lines[gate.entity] = _Line(gate.entity)
            line.task = asyncio.create_task(self._deliver(gate, line), name=f"deliver {gate.entity}")
            gate.users += 1  # a line must find the gate that it waits at
            line.task.add_done_callback(lambda _: gate.left())
        line.items.extend(items)

    async def _deliver(self, gate: Gate, line: _Line) -> None:
        """Send home what stands in a line, in order, whenever its gate is open."""
        retry = 0
        while line.items:
            if not gate.is_open:
                await _first((gate.opened.wait(), self._stopping.wait()))
                if self._stopping.is_set():
                    break
            most = self._batch if self._rate.limits else self._options.syphon_batch * _HOME_AT_ONCE
            batch = [line.items.popleft() for _ in range(min(len(line.items), most))]
            line.sending = True
            try:
                left = await self._send_home(gate, batch)
                line.items.extendleft(reversed(left))
                retry = 0
                if left and self._stopping.is_set():
                    break
            except Exception as error:
                line.items.extendleft(reversed([item for item in batch if self._intake.holds(item)]))
                wait = _BACKOFF.wait(retry, self._clock.chance())
                retry += 1
                self._emit(SyphonFailed, queue=self.queue.path, error=_text(error), retry_after=wait)
                await self._pause(wait)
            finally:
                line.sending = False
                self._moved_on.set()
        if self._lines.get(line.entity) is line:
            del self._lines[line.entity]

    @property
    def _held(self) -> int:
        """Messages that can't go on now."""
        lines = (line for line in self._lines.values() if not self._gates.of(line.entity).is_open)
        return sum(len(line.items) for line in lines) + self._intake.unsettled

    async def _make_room(self) -> None:
        """Wait, or postpone, while a whole batch is held or unsettled, or enough is on its way."""
        retry = 0
        while not self._stopping.is_set() and not self._intake.broken:
            if self._held >= self._options.syphon_batch:
                self._ahead = False
                self._intake.read_ahead(0)
                self._gates.any_opened.clear()
                if self._intake.ordered or not await self._made_some_room():
                    # The whole primary is away, or the secondary: no other destination could be served either.
                    await self._pause(_ROOM_BACKOFF.wait(retry, self._clock.chance()), self._gates.any_opened)
                    retry += 1
            elif self._intake.in_hand >= self._most_in_hand:
                self._moved_on.clear()
                await _first((self._stopping.wait(), self._moved_on.wait()))
            else:
                return

    async def _made_some_room(self) -> bool:
        now = self._clock.now()
        shut = [
            (sum(item.copy_after <= now for item in line.items), line)
            for line in self._lines.values()
            if line.items and not self._gates.of(line.entity).is_open
        ]
        if not shut:
            return False
        if not await self._primary_is_there():
            self._primary_was_away = True
            return False
        _, line = max(shut, key=lambda each: each[0])
        gate = self._gates.of(line.entity)
        if self._primary_was_away:
            self._primary_was_away = False
            gate.try_after = 0.0
        if await self._gates.try_now(gate):
            return False  # its line moves on by itself
        # What was copied before has to be gone from its place first, or the next round would copy it again.
        return not self._intake.unsettled and bool(line.items) and await self._postpone(line)

    async def _primary_is_there(self) -> bool:
        try:
            await self._intake.limited(self._primary.admin.check())
        except TransportError:
            return False
        return True

    async def _postpone(self, line: _Line) -> bool:
        """Put what waits in a line at the tail of the queue, to be seen again later; tells whether any was."""
        # Taken out before anything is awaited: should the gate open meanwhile, no one else may send them.
        now = self._clock.now()
        items = [item for item in line.items if item.copy_after <= now]
        if not items:
            return False
        staying = [item for item in line.items if item.copy_after > now]
        line.items.clear()
        line.items.extend(staying)
        items = await self._intake.fresh(items)
        # What waits for its time where nobody can count it would let the backlog look empty (SPEC 4.5).
        capabilities = self._secondary.capabilities
        scheduling = capabilities.scheduling and capabilities.counts_scheduled
        wait = min(60.0, max(1.0, self._options.ping_primary_interval))
        copies = [self._postponed(item, wait if scheduling else None) for item in items]
        try:
            results = await self._intake.limited(self._tail.send_batch(copies))
        except TransportError as error:
            results = [error] * len(items)
        sent: list[Settlement] = []
        rest: list[Item] = []
        for item, result in zip(items, results, strict=True):
            if result is None:
                sent.append(Settlement(item, _nothing))
            else:
                if result.maybe_applied:
                    # Each trial may have left a copy, and each copy would be copied in its turn.
                    item.unknown = True
                    item.copy_after = self._clock.now() + wait * 2 ** min(item.copies, 10)
                    item.copies += 1
                rest.append(item)
        await self._intake.settle(sent)
        if rest:
            if self._lines.get(line.entity) is line:
                line.items.extendleft(reversed(rest))
            else:
                self._line_up(self._gates.of(line.entity), rest)
        elif not line.items and not line.sending and line.task is not None:
            # Nobody is left in the line: a task that waits at the gate of every path ever seen would be a leak.
            line.task.cancel()
            if self._lines.get(line.entity) is line:
                del self._lines[line.entity]
        if sent and not scheduling:
            await self._pause(min(wait, 1.0))  # they are visible again at once: don't spin
        return bool(sent)

    def _postponed(self, item: Item, wait: float | None) -> Message:
        copy = item.delivery.message
        if item.unknown or item.delivery.delivery_count > 1:
            # The copy starts with a delivery count of its own: what this one told must not be forgotten.
            copy = replace(copy, application_properties={**copy.application_properties, MAYBE_DUPLICATE: "true"})
        if wait is not None:
            copy = replace(copy, scheduled_enqueue_at=self._clock.instant() + timedelta(seconds=wait))
        return copy

    # Small helpers.

    async def _pause(self, seconds: float, event: asyncio.Event | None = None) -> None:
        """Wait, but not beyond the end, nor beyond an event."""
        events = [self._stopping.wait()] if event is None else [self._stopping.wait(), event.wait()]
        await _first(events, seconds)


def _nothing(_: Item, __: TransportError | None) -> None:
    """A settlement that nobody waits for."""


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def _first(waits: Sequence[Awaitable[object]], seconds: float | None = None) -> None:
    """Return at the first of several events, or after ``seconds``."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _end(tasks: Sequence[asyncio.Task[None]], grace: float) -> None:
    """Let tasks end within ``grace`` seconds, then cancel them and wait a moment."""
    if not tasks:
        return
    _, running = await asyncio.wait(tasks, timeout=grace)
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=1)
