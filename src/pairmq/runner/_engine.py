"""The engine of a pair: both transports, every entity, the backlog, the syphon, from start to close."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from types import MappingProxyType
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from pairmq._version import version
from pairmq.core import PairOptions, lane_path
from pairmq.core.backoff import Pace
from pairmq.core.machine import EntityMachine
from pairmq.core.signals import FORCE_FAILOVER, HOLD, MARK_HEALTHY, Changed, Input
from pairmq.core.switch import Order, SwitchAction, SwitchReport, alike, switch_action
from pairmq.model import ConfigurationError, Entity, EntityState, FailureKind, PairClosed, PairFaulted, TransportError
from pairmq.model.events import PairEnded, PairOpened, Side, Warned
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._counted import CountedTransport, EngineContext, Operations, OperationsReport
from pairmq.runner._drain import DrainWatch
from pairmq.runner._emitter import Emitter
from pairmq.runner._entity import EntityRunner
from pairmq.runner._job import MessageLimits, SenderState
from pairmq.runner._known import KnownEntities
from pairmq.runner._limits import TimeLimits, settled_within
from pairmq.runner._outbox import Outbox
from pairmq.runner._record import Agreement, RecordKeeper, find_agreement
from pairmq.runner._send import ELSEWHERE, SendProcedure
from pairmq.runner._switch import SwitchFollower, SwitchWriter
from pairmq.runner._syphon import Syphon
from pairmq.transport import Sender, Transactional, Transport, start_task

_TRANSPORT_CLOSE = 2.5  # s: a transport promises 2; one that breaks its promise is left behind

_FEW, _LISTED = 100, 10_000  # entities whose names are compared with one that is new, in a call and in a decision

_PINGS = 200.0  # a second at most, of all entities of a pair
_PINGS_AT_ONCE = 100.0

_WORDS: dict[str, Input] = {"mark_healthy": MARK_HEALTHY, "force_failover": FORCE_FAILOVER, "hold": HOLD}
_ACTIONS = {
    SwitchAction.HOLD: "hold",
    SwitchAction.FAILOVER: "force_failover",
    SwitchAction.RESUME: "mark_healthy",
}

T = TypeVar("T")


class Reader(Protocol):
    """A receiver with tasks of its own."""

    def stop(self) -> None:
        """The pair closes."""


class Engine:
    """Runs one pair. Make and start it inside a running loop. Only the backlog queues of these indexes are prepared and
    emptied by the syphon, all when left out."""

    def __init__(
        self,
        primary: Transport,
        secondary: Transport,
        options: PairOptions,
        clock: Clock,
        emit: Emitter,
        syphon_queues: Collection[int] | None = None,
    ) -> None:
        self.options = options
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        sides = {side: Operations() for side in Side}
        self._ends = primary, secondary
        # What is asked of the two is counted.
        self.primary = CountedTransport(primary, sides[Side.PRIMARY])
        self.secondary = CountedTransport(secondary, sides[Side.SECONDARY])
        self._operations = OperationsReport(sides, clock, emit)
        self._operations_task: asyncio.Task[None] | None = None
        self._clock = clock
        self.emit = emit
        self._context = context = EngineContext(
            self.primary, self.secondary, options, clock, emit, TimeLimits(options.attempt_timeout)
        )
        self._pings = Pace(_PINGS, _PINGS_AT_ONCE)
        self._known = KnownEntities(self.primary, self._new_runner, clock, _TRANSPORT_CLOSE)
        self.backlog = BacklogQueues(context, self._lane_in_use)
        sizes = MessageLimits(primary, secondary, clock, emit)
        self.sends = SendProcedure(context, self.backlog, sizes)
        self.outbox = Outbox(context, secondary, sizes) if isinstance(secondary, Transactional) else None
        """Of a secondary that stores in transactions of callers; else None."""
        self.syphon: Syphon | None = None
        self._syphon_queues = syphon_queues
        self._record = RecordKeeper(
            context,
            agreed=self._agreed,
            found=self._found,
            lost=self.backlog.make_all_again,
            conflict=self._faulted,
        )
        self._record_task: asyncio.Task[None] | None = None
        self._follower = SwitchFollower(context, self._obey, self._uses)
        self._follower_task: asyncio.Task[None] | None = None
        self._drain: DrainWatch | None = None
        self._drain_task: asyncio.Task[None] | None = None
        self._linked_faults: LinkedFaults | None = None
        self.readers: WeakKeyDictionary[Reader, None] = WeakKeyDictionary()
        """Work in the background of the pair, and stop when it closes, in the order in which they began."""
        self._endings: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._opened = False
        self.fault: BaseException | None = None
        """Why the pair has faulted; None while it has not."""

    async def start(self) -> None:
        """Make the backlog queues, look at the pair's record, and start the syphon if this process hosts it.

        Raises `ConfigurationError`: another primary has this one's name or backlog queues (SPEC 13.3); and
        `TransportError`: the secondary refuses to let the backlog queues be made.
        """
        if self.options.enable_syphon:
            self.syphon = Syphon(self._context, self.backlog, self._pings, self._syphon_queues, self.outbox)
            self.syphon.make_ready()
        await self._prepare()
        self._opened = True
        self.emit(
            PairOpened,
            primary=self.primary.endpoint.url,
            secondary=self.secondary.endpoint.url,
            version=version(),
            options=json.dumps(asdict(self.options)),
        )
        self._operations_task = start_task(self._operations.run(), name="operations report")
        if self.syphon is None:
            return
        if self._record_task is None or self._record.agreed:
            self.syphon.start()  # else once it is known whose backlog queues these are
        known = None if self._record_task is None else self._record.refresh
        self._drain = DrainWatch(self._context, self.backlog, self._known.runners, known)
        self._drain_task = start_task(self._drain.run(), name="drain watch")
        self._linked_faults = LinkedFaults(*self._ends, self.options.close_grace, self._faulted)

    async def _prepare(self) -> None:
        looks = []
        if self.options.control_interval:
            looks.append(start_task(self._follower.begin(), name="pair switch"))
        if self._syphon_queues is None:  # else what starts the processes that share the work has looked
            looks.append(start_task(self._record.begin(), name="pair record"))
        if self.outbox is not None:
            looks.append(start_task(self._prepare_outbox(self.outbox), name="outbox queue"))
        try:
            await self.backlog.prepare(self._syphon_queues)
            for look in looks:
                await look
        finally:
            for look in looks:
                look.cancel()
            if looks:
                await asyncio.wait(looks)
        if self.options.control_interval:
            self._follower_task = start_task(self._follower.run(), name="pair switch")
        if self._syphon_queues is None:
            self._record_task = start_task(self._record.run(), name="pair record")

    @staticmethod
    async def _prepare_outbox(outbox: Outbox) -> None:
        try:
            await outbox.ensure()
        except TransportError as error:
            if error.kind is FailureKind.REFUSED:
                raise
            outbox.missing(error)

    def _agreed(self) -> None:
        if self.syphon is not None and self._opened and self._closing is None:
            self.syphon.start()

    def _found(self, queue: Entity) -> None:
        if self.syphon is None or self._closing is not None:
            return
        path = lane_path(queue.path)
        if path is not None and self.options.continues(path):
            self.backlog.lane(Entity(path))
        else:
            self.syphon.add(queue)

    def _lane_in_use(self, lane: Entity) -> None:
        """A queue that a pattern of ``continuity`` names is used for the first time (SPEC 11.2)."""
        self._record.lane(lane)
        if self.syphon is not None and self._closing is None:
            self.syphon.add_lane(lane)

    def states(self) -> Mapping[Entity, EntityState]:
        """The states of all entities that are known: see `KnownEntities`."""
        return MappingProxyType({runner.entity: runner.state for runner in self._known.runners()})

    def state(self, entity: Entity) -> EntityState:
        """The state of one of them; one that is not known is healthy."""
        runner = self._known.find(entity)
        return EntityState.HEALTHY if runner is None else runner.state

    def runner(self, entity: Entity) -> EntityRunner:
        """The runner of an entity, made where it has none: at its first use, or since it was forgotten.

        Raises as `check_here`: one that was made elsewhere would have its timers there.
        """
        self.check_here()
        return self._known.runner(entity)

    def sender_state(self, entity: Entity) -> SenderState:
        """What a new sender object of an entity needs. Raises as `runner`, and `TransportError` for a bad path."""
        runner = self.runner(entity)
        return SenderState(runner, self._known.take(runner), self._clock.new_id(), self.backlog.lane(entity))

    def outbox_state(self, entity: Entity) -> tuple[Outbox, SenderState]:
        """What a new outbox object of an entity needs. Raises as `runner`; `ConfigurationError` without an outbox."""
        if self.outbox is None:
            raise ConfigurationError(
                f"{self.secondary.endpoint} can't store messages in transactions of yours: an outbox needs a database "
                "as the secondary, postgresql:// or sqlite://"
            )
        return self.outbox, SenderState(self.runner(entity), self.outbox.tail, self._clock.new_id())

    def drop_sender(self, state: SenderState) -> None:
        """Leave the link of a sender that was dropped to the next one of its entity; from any thread."""
        self._known.give(state.runner, state.primary)

    def end_sender(self, state: SenderState) -> asyncio.Task[None]:
        """Close the link of a sender that sends nothing any more; the task never fails, and ends with the pair."""
        return start_task(_end_link(state.primary), name="close sender", keep=self._endings)

    def operator(self, entity: Entity, word: str, *, syphon: bool = False) -> None:
        """Carry out ``mark_healthy``, ``force_failover`` or ``hold`` (SPEC 4.7); of an entity without use so far whose
        name is like that of another one, with a warning.

        Raises as `_operate`.
        """
        self.check_here()
        known = self._some_known(_FEW) if self._known.find(entity) is None else []
        meant = alike(entity, known) if len(known) < _FEW else ()  # who names so many is a program
        self._operate(entity, word, syphon=syphon)
        if meant:
            text = f"{word} of {entity}, which this process has not used: correct the name if {meant[0]} was meant"
            self.emit(Warned, subject=str(entity), text=text)

    def _operate(self, entity: Entity, word: str, *, syphon: bool) -> None:
        """Carry it out.

        With ``syphon`` this process's syphon delivers nothing to the entity either; in a process without a
        syphon that is a `ConfigurationError`, and nothing is done.
        """
        runner = self.runner(entity)
        if syphon and self.syphon is None:
            raise ConfigurationError(
                f"{entity} was not held: this process has no syphon that could be kept from delivering to it; hold it "
                "with syphon=True in the process that has one, and without here"
            )
        if self.syphon is not None and syphon:
            self.syphon.gates.hold(entity)
        runner.operator(_WORDS[word])
        if self.syphon is not None and not syphon:
            self.syphon.gates.release(entity)

    def _some_known(self, most: int) -> list[Entity]:
        return [runner.entity for runner in islice(self._known.runners(), most)]

    def _obey(self, order: Order) -> None:
        """Carry out what an operator has decided for all processes (SPEC 13.4)."""
        if self._closing is not None:
            return
        if order.action is SwitchAction.RESUME and self._known.find(order.entity) is None:
            if self.syphon is not None:
                self.syphon.gates.release(order.entity)
            return
        self._operate(order.entity, _ACTIONS[order.action], syphon=order.syphon and self.syphon is not None)

    def _uses(self, entity: Entity) -> bool:
        """Whether something is sent to an entity here, or the syphon delivers to it."""
        gates = None if self.syphon is None else self.syphon.gates.gates
        return self._known.find(entity) is not None or (gates is not None and gates.get(entity) is not None)

    async def switch(
        self,
        action: SwitchAction | str,
        entities: Sequence[Entity],
        *,
        syphon: bool,
        timeout: float | None,
        unknown: bool,
    ) -> SwitchReport:
        """Write an operator's decision, follow it here, and wait for the other processes; see `SwitchWriter`."""
        switch_action(action, entities, syphon=syphon)
        writer = SwitchWriter(self.primary.endpoint, self.secondary, self.options.attempt_timeout, self._clock)
        if not unknown:
            problem = await writer.check_names(
                self.primary, entities, is_used=self._uses, known=self._some_known(_LISTED), force="unknown=True"
            )
            if problem:
                self.emit(Warned, subject=f"{self.primary.endpoint.name}/switch", text=problem)
        decision = await writer.write(action, entities, syphon=syphon)
        with contextlib.suppress(TransportError):  # it has been written: what waits finds out
            await self._follower.look_and_report()
        return await writer.watch(decision, timeout)

    async def agreement(self, time_limit: float, *, everywhere: bool) -> Agreement:
        """Look for what other processes of the pair use, and let the syphon know; see `find_agreement`."""
        if self._record_task is not None:
            await self._record.refresh(everything=True)
        found = await find_agreement(
            self.primary.endpoint, self.secondary, self.options, time_limit, everywhere=everywhere
        )
        # What only looks needs less permission than what keeps the record.
        return found if found.unread is not None else replace(found, unread=self._record.unread)

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that runs the pair: nothing here is its own to close."""
        return os.getpid() != self._process

    @property
    def is_gone(self) -> bool:
        """Whether nothing here can be closed: it is inherited, or its tasks and connections ended with their loop."""
        return self._loop.is_closed() or self.is_inherited

    def check_open(self) -> None:
        """Raise `PairFaulted` or `PairClosed` when the pair has ended."""
        if self.fault is not None:
            raise PairFaulted(f"the pair has faulted: {self.fault}") from self.fault
        if self._closing is not None:
            raise PairClosed("the pair is closed")

    def check_here(self) -> None:
        """Raise `PairFaulted` or `PairClosed` when the pair has ended, `RuntimeError` in a loop that is not its own.

        Without this a call from a second loop, whose connections belong to the first, fails as a broker would.
        """
        if self._closing is not None:
            self.check_open()
        if asyncio._get_running_loop() is not self._loop:  # without an error to be caught, as in `Clock.now`
            raise RuntimeError(ELSEWHERE)

    def check_loop(self) -> None:
        """Raise `RuntimeError` where the pair's own loop does not run; of a pair that has ended, too."""
        if asyncio._get_running_loop() is not self._loop:
            raise RuntimeError(ELSEWHERE)

    async def close(self) -> None:
        """End the pair (SPEC 9.1): no new sends, those in flight end within ``close_grace``, both sides are closed.

        Idempotent; never raises and never hangs. Cancelling it does not stop the closing.
        """
        if self._closing is None:
            self.sends.end_by(self._clock.now() + self.options.close_grace)
            self._closing = start_task(self._close(), name="pair close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._linked_faults is not None:
            self._linked_faults.forget()
        grace = self.options.close_grace
        for runner in self._known.runners():
            runner.stop_pings()
            runner.wake()  # sends that wait between two attempts learn their new deadline
        for reader in tuple(self.readers):
            reader.stop()
        for task in (self._drain_task, self._operations_task, self._record_task, self._follower_task):
            if task is not None:
                task.cancel()
        stop_syphon = [self.syphon.stop(grace)] if self.syphon is not None else []
        # One second over the grace: what was interrupted at its end still has to give its results back.
        leave = [self._follower.leave()] if self.fault is None else []
        await _bounded(grace + 4, self.sends.wait_idle(grace + 1), *stop_syphon, *leave)
        await _bounded(2.5, self.sends.close(), *(runner.close() for runner in self._known.runners()))
        partner = [self._linked_faults.wait()] if self._linked_faults is not None else []
        outbox = [self.outbox.close()] if self.outbox is not None else []
        await _bounded(_TRANSPORT_CLOSE, self.backlog.close(), *outbox, self._known.close(), *self._endings, *partner)
        await _bounded(_TRANSPORT_CLOSE, self.primary.close(), self.secondary.close())
        self._operations.report()
        if self._opened:  # a count of the open pairs must not drop by one that never was
            fault = None if self.fault is None else str(self.fault)
            self.emit(PairEnded, fault=fault, unknown=self.sends.given_back)

    def _new_runner(self, entity: Entity) -> EntityRunner:
        tracks = self.options.enable_syphon
        # What was forgotten had been seen drained since the pair began, and nothing was diverted to it later.
        machine = EntityMachine(self.options, self._clock.now(), tracks_backlog=tracks, drained=self._known.forgot)
        if self._drain is not None and machine.awaits_drain:
            self._drain.wake()
        return EntityRunner(entity, machine, self._context, self._pings, self._entity_changed)

    def _entity_changed(self, runner: EntityRunner, change: Changed) -> None:
        self._known.keep(runner)
        if self._drain is not None:
            self._drain.wake()
        if self.syphon is not None and change.current in (EntityState.DRAINING, EntityState.HEALTHY):
            self.syphon.gates.recovered(runner.entity)

    def _faulted(self, cause: BaseException) -> None:
        self.fault = cause
        self.sends.end_by(self._clock.now(), cause)
        if self._closing is None:
            self._closing = start_task(self._close(), name="pair fault")


async def _end_link(sender: Sender) -> None:
    await settled_within(_TRANSPORT_CLOSE, sender.close)


async def _bounded(seconds: float, *steps: Awaitable[None]) -> None:
    """Take closing steps side by side for at most ``seconds``; a failing one does not stop the others."""
    if not steps:
        return
    tasks = [asyncio.ensure_future(step) for step in steps]
    _, running = await asyncio.wait(tasks, timeout=seconds)
    for task in running:
        task.cancel()
    await asyncio.gather(*(task for task in tasks if task.done()), return_exceptions=True)


class LinkedFaults:
    """Couples two connections that a process with a syphon needs both (SPEC 9.2).

    When one ends and the other does not within the grace, the other is faulted.
    """

    def __init__(
        self, primary: Transport, secondary: Transport, grace: float, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._pair = (primary, secondary)
        self._grace = grace
        self._on_fault = on_fault
        self._task: asyncio.Task[None] | None = None
        self._faulted = False
        self._loop = asyncio.get_running_loop()
        for transport in self._pair:
            transport.on_end(self._ended)

    def forget(self) -> None:
        """Stop watching: the pair closes both itself."""
        for transport in self._pair:
            transport.remove_on_end(self._ended)
        if self._task is not None and not self._faulted:
            self._task.cancel()

    async def wait(self) -> None:
        """Return when a partner that is being faulted has ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _ended(self, transport: Transport) -> None:
        if self._task is None:
            self._task = start_task(self._fault_the_other(transport), name="partner watch", loop=self._loop)

    async def _fault_the_other(self, ended: Transport) -> None:
        other = self._pair[1] if ended is self._pair[0] else self._pair[0]
        cause = ended.fault_cause
        if cause is None:
            await asyncio.sleep(self._grace)
            if other.ended and other.fault_cause is None:
                return  # closed one after the other, as they should be
            cause = ConnectionError(f"{ended.endpoint} was closed and its partner was not")
        # First of all: while the other one ends, which takes its time, its callers would hear that it takes nothing.
        self._faulted = True
        self._on_fault(cause)
        if not other.ended:
            await settled_within(_TRANSPORT_CLOSE, lambda: other.fault(cause))
