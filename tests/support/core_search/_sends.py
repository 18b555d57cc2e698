"""The sending half of a process: the machines of its entity and of its sends, driven as the runner drives them.

What a naive design does otherwise is a subclass of the machine whose rule it breaks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar, Final, NamedTuple

from core_search._cells import Outputs, View
from core_search._design import Design, Naive
from core_search._state import HOME
from pairmq.core import PairOptions
from pairmq.core.lanes import EmptyWatch
from pairmq.core.machine import EntityMachine
from pairmq.core.order import DrainView, Key, KeyOrder, KeyRoute, Look, LookAt, Way
from pairmq.core.rotation import Rotation
from pairmq.core.send import Attempt, Check, Done, Fate, Job, SendMachine, SendRules, Step, Wait
from pairmq.core.signals import (
    DIVERT_ENDED,
    DIVERT_REQUESTED,
    ROUTE_REQUESTED,
    BacklogSeenEmpty,
    Changed,
    Effect,
    Input,
    PingFailed,
    PingSucceeded,
    PrimaryAbandoned,
    PrimaryAccepted,
    PrimaryFailed,
    SendPing,
    TimerFired,
    ToBacklog,
    ToPrimary,
)
from pairmq.core.transitions import HEALTH, Backlog, Do, Health, Row, Symbol
from pairmq.model import EntityState, FailureKind, FailureReason, Message, Route, SendUnknown, TransportError
from pairmq.model.events import Cause

TICK: Final = 1e-6
"""Between two facts: so little that nothing is due by it alone. What takes time is due when the search says so."""

_LONG: Final = 1e6
_MESSAGE: Final = Message(b"", "m")


def failure(kind: FailureKind, reason: FailureReason, *, maybe_applied: bool = False) -> TransportError:
    """One that machines keep, and need not copy."""
    return TransportError(str(reason), kind, reason, maybe_applied=maybe_applied)


FAILURES: Final[dict[str, TransportError]] = {
    "refuses": failure(FailureKind.UNAVAILABLE, FailureReason.CONNECTION),
    "silent": failure(FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, maybe_applied=True),
    "cut": failure(FailureKind.UNAVAILABLE, FailureReason.CONNECTION, maybe_applied=True),
    "poison": failure(FailureKind.REFUSED, FailureReason.NOT_FOUND),
    "lock lost": failure(FailureKind.REFUSED, FailureReason.LOCK_LOST),
}


class Facts(NamedTuple):
    """What can be seen of a sending half from outside: what its sends wait for, as (message, for what)."""

    health: Health
    dirty: bool
    misled: bool
    looked: int
    waits: tuple[tuple[int, str], ...]
    out: tuple[int, ...]
    unregistered: tuple[int, ...]


class Sending:
    """The machines of one process that sends, and what its sends wait for."""

    VIEW: ClassVar[dict[str, View]] = dict.fromkeys(("design", "now", "rules", "steps", "_out", "_woken"))

    def __init__(self, design: Design, process: int) -> None:
        world = design.world
        options = options_of(design)
        self.design = design
        self.now = 0.0
        kind = _MACHINES.get(next((each for each in design.naive if each in _MACHINES), None), EntityMachine)
        clean = design.does(Naive.RESTART_IS_CLEAN)
        self.entity = kind(options, 0.0, tracks_backlog=world.hosts[process], drained=clean)
        self.rotation = Rotation(world.queues, options.backlog_retry_interval)
        self.rules = SendRules(options, self.rotation, float)
        self.watch = EmptyWatch(world.queues)
        self.looked = 0
        self.key = Key(KeyOrder(0.0, fresh=clean), 0, 0.0) if world.ordered else None
        self.queue: int | None = None
        self.lane: int | None = None
        self.sends: dict[int, SendMachine] = {}
        self.steps: dict[int, Step] = {}
        self.at: dict[int, tuple[int, bool]] = {}
        self.misled = False
        self.unregistered: list[int] = []
        self._out: list[tuple[Any, ...]] = []
        self._woken: list[tuple[int, Wait]] = []

    def shared(self) -> Iterable[object]:
        """What never changes."""
        return self.design, options_of(self.design), *FAILURES.values(), *HEALTH.values()

    def order(self) -> Hashable:
        """What is to be known of instants, and of numbers that count for a while only.

        Of each attempt, whether its epoch is the present one; of each queue that the round of looks has seen, whether
        that was since the entity was settled; whether a failure now would be a flap; good pings, while pings are sent.
        """
        entity, settled = self.entity, self.entity._settled_at
        return (
            tuple(
                (number, step.route, step.epoch == entity.epoch)
                if isinstance(step, Attempt)
                else (number, type(step).__name__)
                for number, step in self.steps.items()
            ),
            tuple(since is not None and since >= settled for since in self.watch._since[: self.looked]),
            entity._flaps(self.now),
            entity._good_pings if entity.health is Health.DOWN else 0,
        )

    # What the search reports.

    def take(self, chance: float, what: str, *details: Any) -> Outputs:
        """Hand the machines one fact, and a choice of a queue."""
        self.now += TICK
        self.rules.chance = lambda: chance
        self._out, self._woken = [], []
        getattr(self, f"_on_{what}")(*details)
        while self._woken:
            number, step = self._woken.pop(0)
            if self.steps.get(number) is step:
                self._go_on(number, self.sends[number].resume(self.now, changed=True))
        out, self._out = tuple(self._out), []
        return out

    def _on_begin(self, number: int) -> None:
        job = (_Forgetful if self.design.does(Naive.UNMARKED_COPY) else Job)(_MESSAGE)
        key = None
        if self.key is not None:
            self.key.lined_up = 1
            kind = _Returning if self.design.does(Naive.RETURN_WITH_BACKLOG) else KeyRoute
            kind = _Anywhere if self.design.does(Naive.SESSION_OVER_QUEUES) else kind
            key = kind(self.key, DrainView())
        send = self.sends[number] = SendMachine(self.rules, self, self, [job], self.now, _LONG, key)
        self._go_on(number, send.start(self.now))

    def _on_ended(self, number: int, why: str | None, in_time: bool) -> None:
        """An attempt ended; not in time: at the deadline of its send."""
        send, step = self.sends[number], self.steps[number]
        assert isinstance(step, Attempt)
        error = None if why is None else FAILURES[why]
        job = send.pending[0]
        if step.route is Route.PRIMARY:
            outcome = send.primary_ended([error])
            if outcome.accepted:
                self._handle(PrimaryAccepted(step.epoch), step.epoch)
            elif outcome.evidence is None:
                self._handle(PrimaryAbandoned(step.epoch), step.epoch)
            else:
                self._handle(PrimaryFailed(step.epoch, outcome.evidence.kind), step.epoch)
            fate = outcome.fates[0]
        else:
            backlog = send.backlog_ended([error], self.now)
            queue = self.at[number][0]
            self._divert_ended(number, works=backlog.works)
            fate = backlog.fates[0]
            if fate is Fate.LEAVE:
                self.rotation.take_out(queue, self.now)
        if not send.pending:
            ending = "accepted" if fate is Fate.ACCEPTED else "unknown" if job.unknown else "refused"
            self._end(number, ending, marked=job.unknown)
        else:
            self._go_on(number, send.resume(self.now if in_time else _LONG))

    def _on_abandoned(self, number: int) -> None:
        """Its caller cancels it, or the grace of a close is over."""
        step = self.steps[number]
        if isinstance(step, Attempt):
            if step.route is Route.PRIMARY:
                self._handle(PrimaryAbandoned(step.epoch), step.epoch)
            else:
                self.sends[number].backlog_cut_off(self.now, began=True)
                self._divert_ended(number, works=None)
        self._end(number, "unknown", marked=True)

    def _on_later(self, number: int, how: str) -> None:
        """What a send waits for has taken its time; ``how``: until its pause, its patience or its deadline is over."""
        send, step = self.sends[number], self.steps[number]
        if isinstance(step, LookAt):
            self._go_on(number, send.looked(None, _LONG))
            return
        later = _LONG
        if how != "deadline" and isinstance(step, Wait):
            wait = None if send._key is None else send._key._wait
            # Without order it may be the turn of any queue that is out.
            later = self.now + 1000.0 if wait is None else step.until if how == "pause" else wait.ends_at
        self._go_on(number, send.resume(later), later)

    def _on_look(self, number: int, oldest: int | None, newest: int | None) -> None:
        look = None if newest is None else Look(self.now, oldest, newest)
        if look is None and self.design.does(Naive.UNREACHABLE_IS_EMPTY):
            look = Look(self.now, None, 0)
        self._go_on(number, self.sends[number].looked(look, self.now))

    def _on_interval(self) -> None:
        self._timer()

    def _on_ping(self, passes: bool) -> None:
        """The timer of the next ping, and at once its answer."""
        number = next(each.number for each in self._timer() if isinstance(each, SendPing))
        self._handle(PingSucceeded(number) if passes else PingFailed(number))

    def _on_seen(self, empty: bool) -> None:
        """One look of a round, at the next queue; with the last of them the backlog may be called empty (SPEC 4.5)."""
        if not empty:
            self.watch.not_empty(self.looked)
            self.looked = 0
            return
        since = self.watch.seen_empty(self.looked, self.now)
        self.looked = (self.looked + 1) % self.design.world.queues
        if not self.looked and since is not None:
            self._handle(BacklogSeenEmpty(since))

    def _on_back(self, index: int) -> None:
        self.rotation.put_back(index)

    def _on_registered(self, number: int) -> None:
        self.unregistered.remove(number)
        self.entity.diverting += 1

    # A send's steps.

    def _go_on(self, number: int, step: Step, later: float = 0.0) -> None:
        """Do what needs no broker, until the send waits for one, or for time."""
        send, now = self.sends[number], max(self.now, later)
        while True:
            self.steps[number] = step
            if isinstance(step, Check):
                step = send.checked((), now)
            elif isinstance(step, Attempt):
                job = send.pending[0]
                to: int | None = HOME
                if step.route is Route.BACKLOG:
                    choice = step.choice
                    assert choice is not None
                    to = choice.queue
                    self.at[number] = (to, choice.trial)
                    if self.design.does(Naive.AWAIT_BETWEEN_ROUTE_AND_REGISTER):
                        self.entity.diverting -= 1
                        self.unregistered.append(number)
                self._out.append(("send", number, to, job.unknown))
                return
            elif isinstance(step, Done):
                job = send.pending[0]
                unknown = step.refusal is not None and job.ends_as(step.refusal) is SendUnknown
                self._end(number, "unknown" if unknown else "refused", marked=job.unknown)
                return
            else:
                return

    def _end(self, number: int, ending: str, *, marked: bool) -> None:
        del self.sends[number], self.steps[number]
        self._out.append(("end", number, ending, marked))

    def _divert_ended(self, number: int, *, works: bool | None) -> None:
        if number in self.unregistered:
            self.unregistered.remove(number)
        else:
            self._handle(DIVERT_ENDED)
        queue, trial = self.at.pop(number, (0, False))
        if trial:
            self.rotation.end_trial(queue, self.now, 0.0, works=works)

    # The entity, as a send sees it, and its effects.

    @property
    def seen(self) -> EntityState:
        """Its state."""
        return self.entity.state

    def route(self) -> ToPrimary | ToBacklog:
        """Route one attempt and register it as in flight."""
        effect: ToPrimary | ToBacklog = self.entity.handle(ROUTE_REQUESTED, self.now)[0]  # type: ignore[assignment]
        return effect

    def divert(self) -> ToBacklog:
        """Register one attempt at the backlog, whatever the health."""
        effects = self.entity.handle(DIVERT_REQUESTED, self.now)
        self._carry_out(effects[1:])
        return effects[0]  # type: ignore[return-value]

    def _timer(self) -> tuple[Any, ...]:
        due = self.entity.next_deadline()
        assert due is not None
        effects = self.entity.handle(TimerFired(), due)
        self._carry_out(effects)
        return effects

    def _handle(self, input: Any, epoch: int | None = None) -> None:
        before, late = self.entity.health, epoch is not None and epoch != self.entity.epoch
        self._carry_out(self.entity.handle(input, self.now))
        if late and self.entity.health is not before:
            self.misled = True

    def _carry_out(self, effects: Iterable[Any]) -> None:
        if any(isinstance(each, Changed) for each in effects):
            # At once: a broker's answer takes longer than what the process can do by itself.
            self._woken += [(number, step) for number, step in self.steps.items() if isinstance(step, Wait)]


def facts(cell: Sending) -> Facts:
    """What can be seen of a sending half from outside."""
    entity = cell.entity
    return Facts(
        health=entity.health,
        dirty=entity.backlog is Backlog.DIRTY,
        misled=cell.misled,
        looked=cell.looked,
        waits=tuple((number, _kind(cell, number, step)) for number, step in cell.steps.items()),
        out=cell.rotation.out,
        unregistered=tuple(cell.unregistered),
    )


def _kind(cell: Sending, number: int, step: Step) -> str:
    if isinstance(step, LookAt):
        return "look"
    if isinstance(step, Wait):
        key = cell.sends[number]._key
        return "pause" if key is None or key._wait is None else "patience"
    return "attempt"


_OPTIONS: dict[str, PairOptions] = {}


def options_of(design: Design) -> PairOptions:
    """The options of a world, one object for all its machines."""
    name = design.world.name
    if name not in _OPTIONS:
        _OPTIONS[name] = PairOptions(
            backlog_queue_count=design.world.queues,
            ordering="session" if design.world.ordered else "none",
            ttl_policy="elapse" if design.world.expires else "restore",
            syphon_batch=2 if design.world.batches else 1,
            flap_window=design.world.flap_window,
        )
    return _OPTIONS[name]


# The naive designs.


class _Forgetful(Job):
    __slots__ = ()

    def failed(self, failure: TransportError) -> None:
        self.causes = (*self.causes, failure)


class _Returning(KeyRoute):
    __slots__ = ()

    def way(self, now: float, deadline: float) -> Way | LookAt:
        return Way.ROUTE


class _Anywhere(KeyRoute):
    __slots__ = ()

    @property
    def queue(self) -> int:
        return None  # type: ignore[return-value]


class _DrainedInFlight(EntityMachine):
    __slots__ = ()

    def handle(self, input: Input, now: float) -> tuple[Effect, ...]:
        if not isinstance(input, BacklogSeenEmpty):
            return super().handle(input, now)
        before, self.backlog = self.state, Backlog.CLEAN
        return self._changed(before, Cause.DRAINED, now)


class _OneChain(EntityMachine):
    __slots__ = ()

    def _enter(self, health: Health, now: float) -> None:
        if self.health is Health.FAILING and health is Health.UP:
            self.backlog = Backlog.CLEAN
        super()._enter(health, now)


class _WithoutEpochs(EntityMachine):
    __slots__ = ()

    def _on_result(self, epoch: int, symbol: Symbol, now: float) -> Any:
        return super()._on_result(self.epoch, symbol, now)

    def _row(self, symbol: Symbol) -> Row:
        if self.health is Health.DOWN and symbol is Symbol.ACCEPTED:
            return Row(Health.UP, (Do.COUNT_SENT, Do.STOP_PINGS), Cause.SEND_SUCCEEDED)
        if self.health is Health.DOWN and symbol not in HEALTH[Health.DOWN]:
            return Row(Health.DOWN)
        return super()._row(symbol)


class _Reopened(_WithoutEpochs):
    __slots__ = ()

    def _on_result(self, epoch: int, symbol: Symbol, now: float) -> Any:
        if self.health is Health.DOWN and symbol is Symbol.ACCEPTED:
            return super()._on_result(epoch, symbol, now)
        return EntityMachine._on_result(self, epoch, symbol, now)


class _PingsAtOnce(EntityMachine):
    __slots__ = ()

    def _row(self, symbol: Symbol) -> Row:
        row = super()._row(symbol)
        return row._replace(next=Health.UP) if row.next is Health.TRIAL else row

    def _flaps(self, now: float) -> bool:
        return False


_MACHINES: Final[dict[Naive | None, type[EntityMachine]]] = {
    Naive.DRAINED_IN_FLIGHT: _DrainedInFlight,
    Naive.ONE_CHAIN_OF_STATES: _OneChain,
    Naive.RESULTS_WITHOUT_EPOCHS: _WithoutEpochs,
    Naive.LATE_SUCCESS_REOPENS: _Reopened,
    Naive.PINGS_AT_ONCE: _PingsAtOnce,
}
