"""One pump of the syphon: moves the messages of one backlog queue back to the primary (SPEC 7).

`pairmq.core.pump` decides. Its lines have a task each while anything is in them, which sends what is in the line, in
order, one operation after the other, while more is received and what was delivered is completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from pairmq.core import Backoff, lane_path
from pairmq.core.gates import Gate
from pairmq.core.lanes import LaneStep, LaneWatch
from pairmq.core.pump import REPORTED_DOUBT, DestinationLine, Item, Next, PumpMachine, Room
from pairmq.model import Entity, FailureReason, Message, Source, TransportError
from pairmq.model.events import SyphonFailed, Warned
from pairmq.runner._counted import EngineContext
from pairmq.runner._gates import GateKeeper, RateLimit
from pairmq.runner._limits import end, first, pause
from pairmq.runner.pump._reader import BacklogReader
from pairmq.transport import Sender, start_task

_BACKOFF = Backoff(first=0.25, factor=2.0, cap=10.0)  # as long as a drain may pause after the secondary is back
_ROOM_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)
_LINE_BACKOFF = Backoff(first=0.25, factor=2.0, cap=30.0)
_LOOK_BACKOFF = Backoff(first=0.1, factor=2.0, cap=2.0)


@dataclass(frozen=True, slots=True)
class PumpContext:
    """What all pumps of a syphon share."""

    engine: EngineContext
    # Gives the primary's sender to an entity while it is used; never the pair's own, so that none can loop (SPEC 7.2).
    sender: Callable[[Entity], AbstractContextManager[Sender]]
    # Drops what is kept for a destination that does not exist; paths in a backlog queue are untrusted input.
    forget: Callable[[Entity], None]
    gates: GateKeeper
    rate: RateLimit | None  # of the syphon, if it has a limit


class Pump:
    """The pump of one backlog queue; ``tail`` is the secondary's sender to it, ``missing`` is called when it does not
    exist any more, so that it is made again."""

    def __init__(
        self, queue: Entity, tail: Sender, missing: Callable[[TransportError], None], context: PumpContext
    ) -> None:
        self.queue = queue
        self._tail = tail
        self._missing = missing
        self._context = context
        self._engine = engine = context.engine
        self._clock = engine.clock
        path = lane_path(queue.path)
        self._lane_entity = None if path is None else Entity(path)
        capabilities = engine.secondary.capabilities
        self.machine = PumpMachine(
            engine.options,
            context.gates.gates,
            engine.primary.admin.is_system_entity,
            ordered_batches=engine.primary.capabilities.ordered_batches,
            lane=path is not None,
            schedules=capabilities.scheduling and capabilities.counts_scheduled,
        )
        self._lane = LaneWatch(engine.options.lane_patience)
        self._reader = BacklogReader(queue, engine, self.machine, self._changed)
        if self._lane_entity is not None:
            self._reader.wait = 0.0  # a poll under way would take messages from consumers
        self._stopping = asyncio.Event()
        self._moved_on = asyncio.Event()
        self._received = asyncio.Event()
        self._lines: dict[DestinationLine, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = start_task(self._run(), name=f"pump {self.queue}")
        self._reader.start()

    async def stop(self, grace: float) -> None:
        """Receive nothing more, finish what is on its way within ``grace`` seconds, release the rest (SPEC 9.1)."""
        self._stopping.set()
        ends_at = self._clock.now() + grace
        self._reader.end_by(ends_at)
        if self._task is not None:
            await end([self._task], grace)
        await end(tuple(self._lines.values()), max(0.0, ends_at - self._clock.now()))
        await self._reader.close(max(0.0, ends_at - self._clock.now()))

    def _changed(self) -> None:
        if self.machine.broken:
            self._reader.cut_poll()
        self._moved_on.set()

    async def _run(self) -> None:
        retry = 0
        while not self._stopping.is_set():
            try:
                if self._lane_entity is not None:
                    await self._leave_to_consumers(self._lane_entity)
                await self._make_room()
                if self._stopping.is_set() or self.machine.lets_go:
                    continue
                held = 0 if self._lane_entity is None else len(self.machine)
                deliveries = await self._reader.receive()
                if deliveries:  # into the lines of their destinations, or settled
                    settle, begun = self.machine.received(deliveries, self._clock.now(), self._clock.instant())
                    self._received.set()
                    self._reader.settler.settle_soon(settle)
                    self._start(begun)
                if self._lane_entity is not None:
                    self._lane.received(len(deliveries), held, self._clock.now())
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

    # A lane is its consumers' first (SPEC 11.4).

    async def _leave_to_consumers(self, entity: Entity) -> None:
        """Return when the syphon is to read the lane: its consumers do not, and the primary takes messages."""
        lane, machine, gates = self._lane, self.machine, self._context.gates.gates
        answers: bool | None = None
        self._moved_on.clear()
        while not self._stopping.is_set():
            now, held = self._clock.now(), len(machine)
            is_open = gates.lets_through(entity)
            step = lane.step(now, held, stuck=machine.stuck, is_open=is_open, primary_answers=answers)
            answers = None
            if step is LaneStep.READ:
                return
            if step is LaneStep.LET_GO:
                await self._begin_anew()
            elif step is LaneStep.LOOK:
                counts = await self._reader.limited(self._engine.secondary.admin.counts(Source(self.queue)))
                lane.seen(counts.pending, self._clock.now())
            elif step is LaneStep.ASK:
                answers = await self._primary_answers()
            else:
                await pause(lane.wait(now, held), self._stopping, self._moved_on)
                self._moved_on.clear()

    async def _begin_anew(self) -> None:
        """Let go of everything that is locked: after an error of the queue nothing of it can be settled."""
        works = self.machine.begin_anew()
        self._lane.let_go()
        sending = [task for line, task in self._lines.items() if line.taken]
        for line, task in self._lines.items():
            if not line.taken:
                task.cancel()
        self._lines.clear()
        if works:
            ends_at = self._clock.now() + self._engine.options.attempt_timeout
            await end(sending, self._engine.options.attempt_timeout)
            await self._reader.settler.finish(ends_at)
        await self._reader.reset()
        # Nothing more is sent of it, and what is under way may end: cut off, it would be sent once more when it is
        # redelivered, and nothing would show that it was delivered.
        await end(sending, self._engine.options.attempt_timeout)

    def _failed(self, error: BaseException, retry_after: float) -> None:
        text = str(error) or type(error).__name__
        self._engine.emit(SyphonFailed, queue=self.queue.path, error=text, retry_after=retry_after)

    def _start(self, lines: Iterable[DestinationLine]) -> None:
        for line in lines:
            task = self._lines[line] = start_task(self._deliver(line), name=f"deliver {line.gate.entity.path}")
            task.add_done_callback(partial(self._left, line))
            self._context.gates.drop_idle()

    def _left(self, line: DestinationLine, _: object) -> None:
        self._lines.pop(line, None)
        self._context.gates.gates.leave(line.gate)

    # Room: there has to be some for more to be received.

    async def _make_room(self) -> None:
        """Wait, or postpone, while too much is held or unsettled, or enough is on its way."""
        retry = 0
        machine, gates = self.machine, self._context.gates
        while not self._stopping.is_set() and not machine.broken and not machine.lets_go:
            room = machine.room(self._clock.now())
            if room is Room.ASK:
                answers = await self._primary_answers()
                room = machine.room(self._clock.now(), primary_answers=answers)
            if room is Room.ENOUGH:
                return
            if room is Room.SOON:
                self._moved_on.clear()
                await first((self._stopping.wait(), self._moved_on.wait()))
                continue
            self._reader.read_ahead(0)
            gates.any_opened.clear()
            if room is Room.NONE or not await self._postpone():
                # Else the whole primary is unavailable, or the secondary, and no other destination could be served.
                wait = _ROOM_BACKOFF.wait(retry, self._clock.chance())
                await pause(wait, self._stopping, gates.any_opened)
                retry += 1

    async def _primary_answers(self) -> bool:
        try:
            await self._reader.limited(self._engine.primary.admin.check())
        except TransportError:
            return False
        return True

    async def _postpone(self) -> bool:
        """Put what waits in the fullest line that can't go on at the tail of the queue; returns whether any was."""
        machine, reader = self.machine, self._reader
        line = machine.fullest(self._clock.now())
        if line is None or not machine.primary_seen(line, answers=await self._primary_answers()):
            return False
        if not line.gate.is_open and await self._context.gates.try_now(line.gate):
            return False  # it moves on by itself
        items = machine.postpone(line, self._clock.now())
        if stale := machine.stale(items, self._clock.now()):
            await reader.refresh(stale)
            items = [item for item in items if not item.lost]
        copies = machine.copies(items, self._clock.now(), self._clock.instant())
        results: Sequence[TransportError | None] = ()
        if copies:
            results, _ = await reader.each(self._tail.send_batch(copies), len(copies))
        settle, begun = machine.copied(line, items, results, self._clock.now())
        if begun is not None:
            self._start([begun])
        elif not machine.is_current(line) and line in self._lines:
            self._lines[line].cancel()
        await reader.settler.settle(settle)
        if settle and (wait := machine.wait_after_copies(self._clock.now())):
            await pause(wait, self._stopping)
        return bool(settle)

    # Sending: send, have it confirmed, complete.

    async def _deliver(self, line: DestinationLine) -> None:
        """Send what is in a line, in order, whenever its gate is open."""
        machine = self.machine
        retry = 0
        while not self._stopping.is_set() and (step := machine.next(line, self._clock.now())) is not Next.END:
            if step is Next.WAIT:
                self._moved_on.set()  # there may be something to be decided about a full line that waits
                if line.gate.is_open:  # what is in it is in doubt
                    self._received.clear()
                    now = self._clock.now()
                    await pause(machine.ready_at(line, now) - now, self._received, self._stopping)
                else:
                    await first((self._context.gates.wait_open(line.gate), self._stopping.wait()))
                continue
            wait = 0.0
            try:
                await self._send(line.gate, machine.take(line, self._clock.now()))
                retry = 0
            except Exception as error:
                wait = _LINE_BACKOFF.wait(retry, self._clock.chance())
                retry += 1
                self._failed(error, wait)
            finally:
                machine.ended(line)
                self._moved_on.set()
            if wait:
                await pause(wait, self._stopping)

    async def _send(self, gate: Gate, items: Sequence[Item]) -> None:
        """Send items in one operation, and settle what was stored, or is not to be sent."""
        context, machine, reader = self._context, self.machine, self._reader
        if context.rate is not None:
            await context.rate.take(len(items), self._stopping)
        if self._stopping.is_set() or not gate.is_open:
            return  # it was shut, or is held, while these waited for their turn
        settle = items
        while settle:
            # Where order is kept a dead-letter has taken a while, and with it the others' time.
            if stale := machine.stale(items, self._clock.now()):
                await reader.refresh(stale)
            items, settle = machine.screened(items, self._clock.instant())
            if settle and not await self._settle(settle):
                return
        if not items:
            return
        messages = machine.outgoing(items, self._clock.instant())
        results, took = await reader.each(self._send_to_primary(gate.entity, messages), len(items))
        sent = machine.sent(gate, items, results, took, self._clock.now())
        if sent.doubtful:
            self._report_doubt(gate, sent.doubtful)
        if sent.failure is not None:
            context.gates.shut(gate, sent.failure)
        elif gate.on_trial:
            context.gates.end_trial(gate)
        if sent.unknown_entity:
            context.forget(gate.entity)
        await self._settle(sent.settle)

    def _report_doubt(self, gate: Gate, doubtful: Sequence[tuple[Item, int, float]]) -> None:
        for item, attempts, wait in doubtful:
            if wait >= REPORTED_DOUBT:
                text = (
                    f"message {item.message.message_id!r} was sent to {gate.entity} {attempts} times and never "
                    f"confirmed: each time may have left a copy there; the next attempt is in {wait:.0f} s"
                )
                self._engine.emit(Warned, subject=str(gate.entity), text=text)

    async def _send_to_primary(self, entity: Entity, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """One operation at the primary; one entry each, None for confirmed."""
        with self._context.sender(entity) as sender:
            if len(messages) > 1:
                return await (sender.send_in_order if self.machine.in_order else sender.send_batch)(messages)
            await sender.send(messages[0])
            return (None,)

    async def _settle(self, items: Sequence[Item]) -> bool:
        """Settle items, and wait where what is behind them may not go on before; returns whether it may."""
        machine = self.machine
        if not machine.waits_for(items):
            self._reader.settler.settle_soon(items)
            return True
        await self._reader.settler.settle(items)
        retry = 0
        while machine.waits_for(items):
            if self._stopping.is_set() or machine.broken:
                return False
            await pause(_LOOK_BACKOFF.wait(retry, self._clock.chance()), self._stopping)
            retry += 1
        return not machine.broken
