"""One pump of the syphon: brings the messages of one backlog queue home (SPEC 7).

The order is always send, confirm, complete: a crash anywhere can bring a second copy and can lose nothing. A
destination that is unavailable does not stop the others: its messages are held under renewed locks until it is back.
There is room for one batch of held messages; when that is full and the primary as such is there, they go to the tail of
the same queue to make room for those behind them, again by send, confirm, complete, so that no delivery count is spent
on an outage.
"""

from __future__ import annotations

import asyncio
from collections import deque
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
from pairmq.runner._intake import Intake, Item
from pairmq.runner._rate import RateLimit
from pairmq.transport import Sender, Transport

_BACKOFF = Backoff(first=0.25, factor=2.0, cap=30.0)
_ROOM_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)

# Refusals that are not the message's fault: they pass when an operator has mended them, so the message waits. Any
# other refusal would come again for ever.
_NOT_POISON = frozenset((FailureReason.UNAUTHORIZED, FailureReason.QUOTA, FailureReason.DISABLED, FailureReason.CLOSED))


class Pump:
    """The pump of one backlog queue.

    Args:
        queue: the backlog queue.
        primary: where messages belong; never the pair's own sender, so that none can loop (SPEC 7.2).
        secondary: where they wait.
        home: gives the primary's sender to an entity, shared by all pumps.
        forget: drops what is kept for an entity that does not exist; paths in a backlog queue are anyone's words.
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
        self._tail = tail
        self._gates = gates
        self._rate = rate
        self._options = options
        self._clock = clock
        self._emit = emit
        self._intake = Intake(queue, secondary, options, clock, emit)
        self._stopping = asyncio.Event()
        self._held: dict[Entity, deque[Item]] = {}
        self._redeliveries: dict[Entity, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

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
        self._intake.end_by(self._clock.now() + grace)
        if self._task is not None:
            await _end((self._task,), grace)
        await _end(tuple(self._redeliveries.values()), 0)
        # Closing gives back what was not settled; it is bounded by the transport's contract.
        await self._intake.close()

    # Receiving.

    async def _run(self) -> None:
        retry = 0
        while not self._stopping.is_set():
            try:
                await self._make_room()
                deliveries = await self._intake.receive(self._rate.most_at_once(self._options.syphon_batch))
                if deliveries:
                    await self._move(deliveries)
                retry = 0
            except Exception as error:
                # A pump never ends by an error: the backlog would be stranded.
                if self._stopping.is_set():
                    return
                wait = _BACKOFF.wait(retry, self._clock.chance())
                retry += 1
                self._emit(SyphonFailed, queue=self.queue.path, error=_text(error), retry_after=wait)
                await self._begin_anew()
                await self._pause(wait)

    async def _begin_anew(self) -> None:
        """Let go of everything in hand: after an error of the queue nothing of it can be settled."""
        await self._intake.reset()
        await _end(tuple(self._redeliveries.values()), 0)
        self._redeliveries.clear()
        self._held.clear()

    # Moving.

    async def _move(self, deliveries: Sequence[Delivery]) -> None:
        groups: dict[Entity, list[Item]] = {}
        poison: list[tuple[Delivery, str | None, str, str]] = []
        for delivery in deliveries:
            try:
                message, diversion = restore(delivery.message)
            except EnvelopeError as error:
                poison.append((delivery, None, "malformed-envelope", str(error)))
                continue
            problem = self._problem(message, diversion)
            if problem is not None:
                poison.append((delivery, diversion.entity.path, *problem))
                continue
            item = self._intake.take(delivery, message, diversion)
            groups.setdefault(diversion.entity, []).append(item)
        for delivery, path, reason, description in poison:
            await self._dead_letter(delivery, path, reason, description)
        await asyncio.gather(*(self._deliver(entity, items) for entity, items in groups.items()))

    def _problem(self, message: Message, diversion: Diversion) -> tuple[str, str] | None:
        """Reason and description if the message must not be delivered, whatever the destination says."""
        entity = diversion.entity
        forbidden = self._primary.admin.is_system_entity(entity) or self._options.is_backlog_queue(entity.path)
        if forbidden or not self._options.allows(entity.path):
            return "destination-not-allowed", f"{entity} is not among the pair's allowed_entities"
        left = self._time_left(message, diversion)
        if left is not None and left <= 0:
            text = f"its time-to-live of {message.time_to_live} s ran out in the backlog (ttl_policy is 'elapse')"
            return "TTLExpiredException", text
        return None

    def _time_left(self, message: Message, diversion: Diversion) -> float | None:
        """Seconds left to live, where the time in the backlog counts; None where it does not."""
        if self._options.ttl_policy == "restore":
            return None
        return elapsed_time_to_live(message, diversion, self._clock.instant())

    async def _deliver(self, entity: Entity, items: list[Item]) -> None:
        gate = self._gates.of(entity)
        # Behind held messages of the same destination even an open gate has to be waited at, for order.
        if gate.is_open and entity not in self._held:
            items = await self._send_home(gate, items)
        if items:
            self._hold(gate, items)

    async def _send_home(self, gate: Gate, items: list[Item]) -> list[Item]:
        """Send, have it confirmed, complete; returns the items that the destination did not take, in order."""
        await self._rate.take(len(items))
        items = [item for item in items if not item.lost and not await self._expired(item)]
        if not items:
            return []
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
        done, left, failure = [], [], None
        for item, result in zip(items, results, strict=True):
            if result is None:
                done.append(item)
            elif result.kind is FailureKind.REFUSED and result.reason not in _NOT_POISON:
                if result.reason is FailureReason.NOT_FOUND:
                    self._forget(gate.entity)
                await self._dead_letter(item.delivery, gate.entity.path, result.reason.value, str(result), item)
            else:
                item.unknown = item.unknown or result.maybe_applied
                left.append(item)
                failure = result
        if done:
            self._gates.delivered(gate)
            await self._complete(gate.entity, done)
        if failure is not None:
            self._gates.shut(gate, failure)
        return left

    async def _expired(self, item: Item) -> bool:
        """Set an item aside whose time-to-live ran out while it was held."""
        problem = self._problem(item.message, item.diversion) if self._options.ttl_policy == "elapse" else None
        if problem is not None:
            await self._dead_letter(item.delivery, item.diversion.entity.path, *problem, item)
        return problem is not None

    def _outgoing(self, item: Item) -> Message:
        left = self._time_left(item.message, item.diversion)
        return item.message if left is None else replace(item.message, time_to_live=max(left, 1e-6))

    async def _complete(self, entity: Entity, items: list[Item]) -> None:
        outcomes = await self._intake.complete(items)
        wall = self._clock.instant()
        for item, outcome in zip(items, outcomes, strict=True):
            self.moved += 1
            if outcome is not None:
                self._emit(SyphonFailed, queue=self.queue.path, error=f"complete: {outcome}", retry_after=0.0)
            if self._emit.active:
                self._emit(
                    MessageMoved,
                    queue=self.queue.path,
                    entity=entity,
                    message_id=item.message.message_id or "",
                    waited=max(0.0, (wall - item.diversion.diverted_at).total_seconds()),
                    maybe_duplicate=item.unknown,
                    redelivered=item.delivery.delivery_count > 1,
                    completed=outcome is None,
                )

    async def _dead_letter(
        self, delivery: Delivery, path: str | None, reason: str, description: str, item: Item | None = None
    ) -> None:
        """Set poison aside, and say so."""
        if not await self._intake.dead_letter(delivery, reason, description, item):
            return
        self.dead_lettered += 1
        self._emit(
            MessageDeadLettered,
            queue=self.queue.path,
            entity=path,
            message_id=delivery.message.message_id,
            reason=reason,
            description=description,
        )

    # Holding messages of unavailable destinations.

    def _hold(self, gate: Gate, items: list[Item]) -> None:
        held = self._held.get(gate.entity)
        if held is not None:
            held.extend(items)
            return
        held = self._held[gate.entity] = deque(items)
        task = asyncio.create_task(self._redeliver(gate, held), name=f"redeliver {gate.entity}")
        self._redeliveries[gate.entity] = task

    async def _redeliver(self, gate: Gate, held: deque[Item]) -> None:
        """Deliver what is held for a destination, in order, whenever its gate is open."""
        retry = 0
        while held:
            await gate.opened.wait()
            batch = [held.popleft() for _ in range(min(len(held), self._options.syphon_batch))]
            try:
                left = await self._send_home(gate, batch)
                retry = 0
            except Exception as error:
                left = [item for item in batch if self._intake.holds(item)]
                wait = _BACKOFF.wait(retry, self._clock.chance())
                retry += 1
                self._emit(SyphonFailed, queue=self.queue.path, error=_text(error), retry_after=wait)
                held.extendleft(reversed(left))
                await self._pause(wait)
                continue
            held.extendleft(reversed(left))
        if self._held.get(gate.entity) is held:
            del self._held[gate.entity]
            del self._redeliveries[gate.entity]

    async def _make_room(self) -> None:
        """Wait, or postpone, while as many messages are held as one batch has."""
        retry, asked = 0, False
        while sum(map(len, self._held.values())) >= self._options.syphon_batch and not self._stopping.is_set():
            self._gates.any_opened.clear()
            shut = [entity for entity in self._held if not self._gates.of(entity).is_open]
            postponed = 0
            if shut and await self._primary_is_there():
                worst = max(shut, key=lambda entity: len(self._held[entity]))
                if not asked:
                    # The whole primary may have just come back, and nothing needs to be postponed. Asked only once,
                    # as a probe may go on being good while messages are not taken.
                    asked = True
                    await self._gates.try_now(self._gates.of(worst))
                elif worst in self._held:
                    postponed = await self._postpone(worst)
            elif shut:
                asked = False
            if not postponed:
                # The whole primary is away, or the secondary: no other destination could be served either.
                await self._wait_for_gate(_ROOM_BACKOFF.wait(retry, self._clock.chance()))
                retry += 1

    async def _primary_is_there(self) -> bool:
        try:
            await self._intake.limited(self._primary.admin.check())
        except TransportError:
            return False
        return True

    async def _postpone(self, entity: Entity) -> int:
        """Put what is held for a destination at the tail of the queue, to be seen again later; tells how many."""
        held = self._held[entity]
        # Taken out before anything is awaited: should the gate open meanwhile, no one else may send them.
        items = [item for item in held if not item.lost]
        held.clear()
        scheduling = self._secondary.capabilities.scheduling
        wait = min(60.0, max(1.0, self._options.ping_primary_interval))
        copies = [self._postponed(item, wait if scheduling else None) for item in items]
        try:
            results = await self._intake.limited(self._tail.send_batch(copies))
        except TransportError as error:
            results = [error] * len(items)
        sent = [item for item, result in zip(items, results, strict=True) if result is None]
        rest = [item for item, result in zip(items, results, strict=True) if result is not None]
        if sent:
            await self._intake.complete(sent)
        if rest:
            if self._held.get(entity) is held:
                held.extendleft(reversed(rest))
            else:
                self._hold(self._gates.of(entity), rest)
        if sent and not scheduling:
            await self._pause(min(wait, 1.0))  # they are visible again at once: don't spin
        return len(sent)

    def _postponed(self, item: Item, wait: float | None) -> Message:
        copy = item.delivery.message
        if item.unknown:
            copy = replace(copy, application_properties={**copy.application_properties, MAYBE_DUPLICATE: "true"})
        if wait is not None:
            copy = replace(copy, scheduled_enqueue_at=self._clock.instant() + timedelta(seconds=wait))
        return copy

    # Small helpers.

    async def _pause(self, seconds: float) -> None:
        await _first((self._stopping.wait(),), seconds)

    async def _wait_for_gate(self, seconds: float) -> None:
        await _first((self._stopping.wait(), self._gates.any_opened.wait()), seconds)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def _first(waits: Sequence[Awaitable[object]], seconds: float) -> None:
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
