"""The gates of the syphon's destinations: their probes, and who waits at them; and the rate limit.

`pairmq.core.gates` decides which are open. The rate limit bounds what goes through all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from pairmq.core.backoff import Pace
from pairmq.core.gates import Gate, Gates, Probed
from pairmq.model import Entity, FailureReason, TransportError
from pairmq.model.events import DestinationChanged
from pairmq.runner._counted import EngineContext
from pairmq.runner._limits import TimeLimits
from pairmq.transport import start_task

_BY_OPERATOR = "held by an operator"


class GateKeeper:
    """Probes the destinations of shut gates, and wakes who waits at one; shared by the pumps of a syphon.

    One that is open on trial is reported as shut, and probed. ``dropped`` is called with a destination whose gate was
    dropped, so that nothing else is kept for it either.
    """

    def __init__(self, engine: EngineContext, pace: Pace, dropped: Callable[[Entity], None]) -> None:
        self.gates = Gates(engine.options.ping_primary_interval)
        self.any_opened = asyncio.Event()
        self._probe = engine.primary.admin.probe
        self._limits = TimeLimits(engine.options.ping_timeout)
        self._clock = engine.clock
        self._emit = engine.emit
        self._pace = pace
        self._dropped = dropped
        self._closed = False
        self._probes: dict[Gate, asyncio.Task[None]] = {}  # of those that are reported as shut
        self._why: dict[Gate, FailureReason] = {}  # as reported
        self._tasks: set[asyncio.Task[None]] = set()
        self._openings: dict[Gate, asyncio.Event] = {}

    @property
    def held(self) -> frozenset[Entity]:
        """The destinations that an operator holds."""
        return self.gates.held

    def drop_idle(self) -> None:
        """Drop gates without users while there are too many."""
        for gate in self.gates.drop_idle():
            if self.gates.open(gate):
                self._opened(gate)
            self._dropped(gate.entity)

    def shut(self, gate: Gate, error: TransportError) -> None:
        """Deliver nothing more to a destination that failed, until a probe reports that it is back."""
        if self._closed or not self.gates.shut(gate):
            return
        if self._why.get(gate) is not error.reason:
            self._why[gate] = error.reason
            self._emit(DestinationChanged, entity=gate.entity, open=False, error=str(error))
        if gate not in self._probes and not gate.is_open:
            name = f"syphon probe {gate.entity}"
            self._probes[gate] = start_task(self._watch(gate), name=name, keep=self._tasks)

    def hold(self, entity: Entity) -> None:
        """Deliver nothing more to a destination until `release`, whatever probes report (SPEC 4.7)."""
        gate = self.gates.of(entity)
        self.drop_idle()
        if not self._closed and self.gates.hold(gate):
            self._stop_probe(gate)
            self._emit(DestinationChanged, entity=entity, open=False, error=_BY_OPERATOR)

    def release(self, entity: Entity) -> None:
        """End a `hold`: what waits is sent at once, and finds out whether the destination takes it."""
        gate = self.gates.get(entity)
        if gate is not None and self.gates.release(gate):
            self._opened(gate)

    def recovered(self, entity: Entity) -> None:
        """This process's own ping found the entity working."""
        gate = self.gates.get(entity)
        if gate is not None and self.gates.open(gate):
            self._opened(gate)

    def end_trial(self, gate: Gate) -> None:
        """A destination took messages, or refused them for their own fault, through a gate that was open on trial."""
        if self.gates.open(gate):
            self._opened(gate)

    async def wait_open(self, gate: Gate) -> None:
        while not gate.is_open:
            await self._openings.setdefault(gate, asyncio.Event()).wait()

    async def try_now(self, gate: Gate) -> bool:
        """Ask a shut destination now instead of at its next turn; returns whether its gate is open."""
        if self.gates.may_try(gate, self._clock.now()):
            await self._ask(gate)
        return gate.is_open

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=1)

    async def _watch(self, gate: Gate) -> None:
        while self._probes.get(gate) is asyncio.current_task():
            wait = self.gates.wait(gate, self._clock.chance())
            await asyncio.sleep(wait)
            if delay := self._pace.delay(self._clock.now()):
                await asyncio.sleep(delay)
            self.gates.probing(gate, self._clock.now() + wait)
            await self._ask(gate)

    async def _ask(self, gate: Gate) -> None:
        try:
            await self._limits.run(self._probe(gate.entity))
            probed = self.gates.probed(gate, None, self._clock.now())
        except TransportError as error:
            probed = self.gates.probed(gate, error, self._clock.now())
        if probed is not Probed.NOTHING:
            self._opened(gate, on_trial=probed is Probed.TRIAL)

    def _opened(self, gate: Gate, *, on_trial: bool = False) -> None:
        opening = self._openings.pop(gate, None)
        if opening is not None:
            opening.set()
        self.any_opened.set()
        if not on_trial:
            self._stop_probe(gate)
            self._emit(DestinationChanged, entity=gate.entity, open=True)

    def _stop_probe(self, gate: Gate) -> None:
        self._why.pop(gate, None)
        task = self._probes.pop(gate, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()


class RateLimit:
    """Spreads messages evenly in time; shared by all pumps of a syphon."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = 0.0

    async def take(self, messages: int, stopping: asyncio.Event) -> None:
        """Wait until that many more messages may go, or until ``stopping``."""
        now = asyncio.get_running_loop().time()
        starts_at = max(now, self._free_at)
        self._free_at = starts_at + messages / self._per_second
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(starts_at):
                await stopping.wait()
