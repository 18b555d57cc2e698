"""Runs one entity's machine: its timer, its pings, and the sends that wait for it to move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from pairmq.core import signals
from pairmq.core.backoff import Pace
from pairmq.core.machine import EntityMachine
from pairmq.core.send import SCOUTED, EntityLine
from pairmq.model import Entity, EntityState, FailureKind, TransportError
from pairmq.model.events import Cause, PingCompleted, StateChanged, Warned
from pairmq.runner._counted import CountedSender, EngineContext
from pairmq.runner._limits import TimeLimits, Waiter, remembered
from pairmq.transport import start_task

_UP = frozenset((EntityState.HEALTHY, EntityState.DRAINING))
_FAILURES = frozenset((Cause.SEND_FAILED, Cause.INTERVAL_OVER, Cause.FIRST_SEND_FAILED))


class EntityRunner:
    """One machine in its surroundings.

    Every method that gives the machine an input is synchronous: between a decision and its registration no other task
    can run (SPEC 4.6). ``on_change`` is called with each change, after the sends that wait were woken.
    """

    # A pair may know a hundred thousand entities.
    __slots__ = (
        "__weakref__",
        "_armed_for",
        "_closed",
        "_context",
        "_has_turn",
        "_loop",
        "_on_change",
        "_pace",
        "_ping_task",
        "_pings",
        "_scout",
        "_timer",
        "_waiters",
        "entity",
        "kept",
        "last_failure",
        "line",
        "machine",
        "recent",
        "route",
        "seen",
        "spare",
    )

    def __init__(
        self,
        entity: Entity,
        machine: EntityMachine,
        context: EngineContext,
        pace: Pace,
        on_change: Callable[[EntityRunner, signals.Changed], None],
    ) -> None:
        self.entity = entity
        self.machine = machine
        self.route = machine.route
        """Routes one attempt and registers it as in flight."""
        self.last_failure: TransportError | None = None
        """Of the primary, until the entity is up again and it takes a message."""
        self.seen = machine.state
        """The state as it was last announced: `state`, without the work, for the report of every send."""
        self.line: EntityLine[Waiter] = EntityLine()
        """The sends in flight, and those that wait in line."""
        self.kept = self.recent = False
        self.spare: list[CountedSender] = []
        """Of the primary, that no sender object has: these three are for `KnownEntities`."""
        self._context = context
        self._pace = pace
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._has_turn = False  # among the pings of all entities
        self._ping_task: asyncio.Task[None] | None = None
        self._pings = True
        self._scout: asyncio.TimerHandle | None = None  # while sends wait in line
        self._waiters: set[Waiter] | None = None  # most entities never have any
        self._closed = False

    @property
    def state(self) -> EntityState:
        """The state that people see."""
        return self.machine.state

    # Inputs of sends. The healthy path runs through route and accepted, once a send each.

    def divert(self) -> signals.ToBacklog:
        """Register one attempt at the backlog, whatever the health (SPEC 8.3)."""
        effects = self.machine.handle(signals.DIVERT_REQUESTED, self._loop.time())
        self._carry_out(effects[1:])
        return effects[0]  # type: ignore[return-value]  # the first one is the route

    def accepted(self, epoch: int) -> None:
        """The primary confirmed an attempt."""
        effects = self.machine.accepted(epoch, self._loop.time())
        if effects:
            self._carry_out(effects)
        self.line.silent_since = None
        if self.line.turns:
            self.answered()
        if self.last_failure is not None and self.seen in _UP:
            self.last_failure = None

    def failed(self, epoch: int, error: TransportError) -> bool:
        """An attempt at the primary failed or was refused there; returns whether the result came late (SPEC 4.6)."""
        if error.kind is not FailureKind.REFUSED:
            self.last_failure = remembered(error)
        return self._handle(signals.PrimaryFailed(epoch, error.kind))

    def abandoned(self, epoch: int) -> None:
        """An attempt at the primary was given up without a verdict."""
        self._handle(signals.PrimaryAbandoned(epoch))

    # The sends in flight, and the line of those that wait while no broker answers.

    def stand_in_line(self, started: float, deadline: float) -> Waiter:
        """What is set when a send that waits in line, until its deadline at most, may look again."""
        turn: Waiter = self._loop.create_future()
        self.line.stand(turn, started, deadline)
        if self._scout is None:
            self._scout = self._loop.call_later(SCOUTED, self._send_scout)
        return turn

    def leave_line(self, turn: Waiter) -> None:
        """A send gives up waiting: if it could have gone on, the next one does."""
        if not self.line.leave(turn) and turn.done() and not turn.cancelled() and turn.result():
            self.next_turn()

    def _send_scout(self) -> None:
        self._scout = None
        if not self._closed and self.line.scout():
            self._scout = self._loop.call_later(SCOUTED, self._send_scout)
            self.next_turn()

    def next_turn(self) -> None:
        """Let the first in line go on that has time for an attempt, and has not given up this moment."""
        while (turn := self.line.next(self._loop.time(), self._context.limits.lead)) is not None:
            if not turn.done():
                turn.set_result(True)
                return

    def answered(self) -> None:
        """A broker has answered a send, or is known to work: all in line go on."""
        if turns := self.line.answered():
            TimeLimits.wake(turns)

    # Inputs of others.

    def backlog_seen_empty(self, since: float) -> None:
        """Every backlog queue was seen empty by checks that began at or after ``since``."""
        self._handle(signals.BacklogSeenEmpty(since))

    def operator(self, word: signals.Input) -> None:
        """An operator's order (SPEC 4.7)."""
        self._handle(word)

    def want_ping(self) -> None:
        """A send waits for the primary as much as for the backlog: the machine decides whether to ping now.

        Not while very many are sent: it wants one again if it still waits then.
        """
        now = self._loop.time()
        if self._pace.is_free(now):
            effects = self.machine.handle(signals.PingWanted(self._context.clock.chance()), now)
            if effects:
                self._pace.delay(now)
            self._carry_out(effects)

    async def wait_for_change(self, until: float, besides: set[Waiter] | None = None, *, last: bool = False) -> bool:
        """Return whether there was a change of the entity until ``until`` of the loop's clock, at its instant.

        Futures in ``besides`` are set at another change that ends the wait. The ``last`` wait of a send may end a
        little early, where thousands end together.
        """
        waiter = self._loop.create_future()
        waiters = self._waiters = self._waiters or set()
        waiters.add(waiter)
        if besides is not None:
            besides.add(waiter)
        try:
            return await self._context.limits.wait(waiter, until, exact=not last) is not None
        finally:
            waiters.discard(waiter)
            if besides is not None:
                besides.discard(waiter)

    def wake(self) -> None:
        """Let every send that waits look again."""
        TimeLimits.wake(self._waiters or ())

    def stop_pings(self) -> None:
        """Stop pinging, as the pair closes (SPEC 6.4); the sends that are left may still find failover."""
        self._pings = False
        if self._ping_task is not None:
            self._ping_task.cancel()

    async def close(self) -> None:
        """Stop the timer and the ping; the sends that wait are woken."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._ping_task = self._ping_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=1)
        if self._scout is not None:
            self._scout.cancel()
        self.wake()

    # The machine's effects.

    def _handle(self, input: signals.Input) -> bool:
        effects = self.machine.handle(input, self._loop.time())
        self._carry_out(effects)
        return bool(effects) and isinstance(effects[0], signals.LateResult)

    def _carry_out(self, effects: Iterable[signals.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, signals.Changed):
                self._announce(effect)
            elif isinstance(effect, signals.SendPing) and self._pings:
                self._ping_task = start_task(self._ping(effect.number), name=f"ping {self.entity}", loop=self._loop)
            elif isinstance(effect, signals.StopPing) and self._ping_task is not None:
                self._ping_task.cancel()
        self._arm()

    def _announce(self, change: signals.Changed) -> None:
        self.seen = change.current
        failure = self.last_failure if change.cause in _FAILURES else None
        error = None if failure is None else str(failure)
        self._context.emit(StateChanged, entity=self.entity, **change._asdict(), error=error)
        if change.cause is Cause.PING_REFUSED:
            self._context.emit(
                Warned,
                subject=str(self.entity),
                text=f"the primary has no such {self.entity.kind.value}, so that sends to it are refused again; of "
                f"{change.diverted} that were diverted meanwhile the syphon dead-letters what the backlog accepted: "
                "make it (pairmq entity create), then pairmq backlog requeue",
            )
        self.wake()
        if change.current in _UP:
            self.answered()
        elif change.current is EntityState.FAILED_OVER is not change.previous:
            for _ in range(self.line.failed_over()):
                self.next_turn()
        self._on_change(self, change)

    def _arm(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline == self._armed_for or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = deadline
        self._has_turn = False
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        if self.machine.awaits_ping and not self._has_turn:
            # Thousands of entities fail over together, and each would be pinged at that instant.
            self._has_turn = True
            delay = self._pace.delay(self._loop.time())
            if delay:
                self._timer = self._loop.call_later(delay, self._fire)
                return
        self._timer = self._armed_for = None
        # A loop may call a timer up to one clock tick early; the machine would not take that for its deadline.
        deadline = self.machine.next_deadline()
        now = self._loop.time() if deadline is None else max(deadline, self._loop.time())
        self._carry_out(self.machine.handle(signals.TimerFired(self._context.clock.jitter()), now))

    async def _ping(self, number: int) -> None:
        started = self._loop.time()
        error: str | None = None
        try:
            await self._context.primary.admin.probe(self.entity)
        except asyncio.CancelledError:
            # Overdue, or no longer wanted: the machine knows already, and asked for this.
            self._context.emit(
                PingCompleted,
                entity=self.entity,
                ok=False,
                elapsed=self._loop.time() - started,
                error="no answer within the time limit, or no longer wanted",
            )
            raise
        except Exception as failure:
            error = str(failure) or type(failure).__name__
            ended = signals.ping_ended(number, failure, self._context.clock.jitter())
        else:
            ended = signals.ping_ended(number, None, self._context.clock.jitter())
        self._context.emit(
            PingCompleted, entity=self.entity, ok=error is None, elapsed=self._loop.time() - started, error=error
        )
        effects = self.machine.handle(ended, self._loop.time())
        if any(isinstance(effect, signals.PingsUnauthorized) for effect in effects):
            self._context.emit(
                Warned,
                subject=str(self.entity),
                text=f"its pings are refused, and until one succeeds its sends are diverted: {error}; `pairmq ping -e "
                f"{self.entity.path}` tries again",
            )
        self._carry_out(effects)
