"""Which destinations the syphon delivers to: one gate each, shut while the destination is unavailable (SPEC 7.3, 7.5).

The gates know nothing of the entity machines: another process may have diverted the messages, and this one may never
have sent to the entity (SPEC 7.5). A machine that recovers in this process only opens its entity's gate sooner. Where
an operator holds an entity's gate shut as well, only the operator opens it.

The rate limit bounds what goes through all of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from pairmq.core import Backoff
from pairmq.model import Entity, FailureKind, TransportError
from pairmq.model.events import DestinationChanged
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.transport import start_task

_BY_OPERATOR = "held by an operator"
_MOST = 1000
"""Gates that are kept without users. Paths in a backlog queue are untrusted input, and each costs memory."""


class Gate:
    """One destination's gate."""

    __slots__ = ("entity", "failures", "held", "most", "opened", "probing", "try_after", "users")

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self.failures = 0
        self.held = False  # by an operator: no probe opens it
        self.opened = asyncio.Event()
        self.opened.set()
        self.probing: asyncio.Task[None] | None = None
        self.try_after = 0.0
        self.most = 1_000_000  # messages in one operation; grows and shrinks with what the destination can take
        self.users = 0  # sends under way, and lines that wait

    @property
    def is_open(self) -> bool:
        """Whether messages go through."""
        return self.opened.is_set()

    def left(self, _: object) -> None:
        """One user less: a task that has ended."""
        self.users -= 1


class Gates:
    """The gates of all destinations that this syphon has seen; shared by its pumps.

    Args:
        probe: finds out whether a destination accepts writes, within a time limit of its own.
        longest_wait: seconds between probes at most.
        clock: time and chance.
        emit: takes events.
        dropped: called with a destination whose gate was dropped, so that nothing else is kept for it either.
    """

    def __init__(
        self,
        probe: Callable[[Entity], Awaitable[None]],
        longest_wait: float,
        clock: Clock,
        emit: Emitter,
        dropped: Callable[[Entity], None],
    ) -> None:
        self._probe = probe
        self._backoff = Backoff(first=min(0.5, longest_wait), factor=2.0, cap=longest_wait, jitter=0.2)
        self._clock = clock
        self._emit = emit
        self._dropped = dropped
        self._gates: OrderedDict[Entity, Gate] = OrderedDict()  # the one asked for last is last
        self._troubled: set[Gate] = set()  # failed, and have not taken a message since
        self._held: set[Gate] = set()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.any_opened = asyncio.Event()

    @property
    def all_deliver(self) -> bool:
        """Whether every destination that failed or is held, and that messages wait for, has taken one since."""
        if self._troubled:
            self._troubled = {gate for gate in self._troubled if gate.users or not gate.is_open}
        return not self._troubled and not any(gate.users for gate in self._held)

    @property
    def held(self) -> frozenset[Entity]:
        """The destinations that an operator holds."""
        return frozenset(gate.entity for gate in self._held)

    def of(self, entity: Entity) -> Gate:
        """The gate of a destination, open until it fails."""
        gate = self._gates.get(entity)
        if gate is None:
            gate = self._gates[entity] = Gate(entity)
            self._drop_idle(besides=gate)
        self._gates.move_to_end(entity)
        return gate

    def shut(self, gate: Gate, error: TransportError) -> None:
        """Deliver nothing more to a destination that failed, until a probe says that it is back."""
        if not gate.is_open or self._closed:
            return
        self._gates.setdefault(gate.entity, gate)  # it may have been forgotten while a message was on its way
        gate.opened.clear()
        self._troubled.add(gate)
        self._emit(DestinationChanged, entity=gate.entity, open=False, error=str(error))
        task = gate.probing = start_task(self._watch(gate), name=f"syphon probe {gate.entity}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hold(self, entity: Entity) -> None:
        """Deliver nothing more to a destination until `release`, whatever probes say of it (SPEC 4.7)."""
        gate = self.of(entity)
        if gate.held or self._closed:
            return
        gate.held = True
        self._held.add(gate)
        gate.opened.clear()
        task, gate.probing = gate.probing, None
        if task is not None:
            task.cancel()
        self._emit(DestinationChanged, entity=entity, open=False, error=_BY_OPERATOR)

    def release(self, entity: Entity) -> None:
        """End a `hold`: what waits is sent at once, and finds out whether the destination takes it."""
        gate = self._gates.get(entity)
        if gate is not None and gate.held:
            gate.held = False
            self._held.discard(gate)
            gate.failures = 0
            self._open(gate)

    def delivered(self, gate: Gate) -> None:
        """A delivery was confirmed: the next failure starts from short waits again."""
        gate.failures = 0
        self._troubled.discard(gate)

    def recovered(self, entity: Entity) -> None:
        """This process's own ping found the entity working."""
        gate = self._gates.get(entity)
        if gate is not None:
            self._open(gate)

    def forget(self, entity: Entity) -> None:
        """Drop an open gate: its destination does not exist, and forged ones must not fill the memory."""
        if entity in self._gates and self._gates[entity].is_open:
            del self._gates[entity]

    def _drop_idle(self, besides: Gate) -> None:
        """Drop the gates without users that were not asked for the longest, while there are too many.

        What is lost with a shut one is that it is shut: the next message to it finds that out again.
        """
        excess = len(self._gates) - _MOST
        if excess <= 0:
            return
        idle = (gate for gate in self._gates.values() if not gate.users and not gate.held and gate is not besides)
        for gate in list(itertools.islice(idle, excess)):
            del self._gates[gate.entity]
            self._open(gate)
            self._dropped(gate.entity)

    async def close(self) -> None:
        """Stop all probes."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=1)

    async def try_now(self, gate: Gate) -> bool:
        """Ask a shut destination now instead of at its next turn; returns whether its gate is open.

        Not more often than its growing waits allow: probes may go on being good while messages are not taken.
        """
        now = self._clock.now()
        if gate.is_open or gate.held or now < gate.try_after:
            return gate.is_open
        gate.try_after = now + self._backoff.wait(gate.failures, 0.0)
        gate.failures += 1
        if await self._answers(gate.entity):
            self._open(gate)
        return gate.is_open

    async def _watch(self, gate: Gate) -> None:
        while True:
            wait = self._backoff.wait(gate.failures, self._clock.chance())
            await asyncio.sleep(wait)
            gate.failures += 1
            gate.try_after = self._clock.now() + wait
            if await self._answers(gate.entity):
                self._open(gate)
                return

    async def _answers(self, entity: Entity) -> bool:
        try:
            await self._probe(entity)
        except TransportError as error:
            # "No such entity" and the like: the next delivery finds out and dead-letters what it must.
            return error.kind is FailureKind.REFUSED
        return True

    def _open(self, gate: Gate) -> None:
        if gate.is_open or gate.held:
            return
        task, gate.probing = gate.probing, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        gate.opened.set()
        self.any_opened.set()
        self._emit(DestinationChanged, entity=gate.entity, open=True)


class RateLimit:
    """Spreads messages evenly in time; shared by all pumps of a syphon.

    Args:
        per_second: messages a second at most; None for no limit.
    """

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._free_at = 0.0

    @property
    def limits(self) -> bool:
        """Whether there is a limit at all."""
        return self._per_second is not None

    async def take(self, messages: int, stopping: asyncio.Event) -> bool:
        """Wait until that many more messages may go; False when ``stopping`` came first."""
        if self._per_second is None:
            return not stopping.is_set()
        now = asyncio.get_running_loop().time()
        starts_at = max(now, self._free_at)
        self._free_at = starts_at + messages / self._per_second
        try:
            async with asyncio.timeout_at(starts_at):
                await stopping.wait()
        except TimeoutError:
            return True
        return False

    def most_at_once(self, wanted: int) -> int:
        """How many messages one operation should carry, so that a low rate is not spent in bursts of many seconds."""
        return wanted if self._per_second is None else max(1, min(wanted, int(self._per_second)))
