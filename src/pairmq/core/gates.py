"""Which destinations the syphon delivers to: one gate each, shut while the destination is unavailable (SPEC 7.3, 7.5).

The gates know nothing of the entity machines: another process may have diverted the messages, and this one may never
have sent to the entity (SPEC 7.5). A machine that recovers in this process only opens its entity's gate sooner. Where
an operator holds an entity's gate shut as well, only the operator opens it.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict

from pairmq.core.backoff import Backoff
from pairmq.model import Entity, FailureKind, FailureReason, TransportError

_MOST = 1000
"""Gates that are kept without users. Paths in a backlog queue are untrusted input, and each costs memory."""
_MOST_MISSING = 10_000
"""Destinations that messages wait for because they do not exist; each costs as little as its path."""
_LOOKS = 3
"""For so many waits between probes, the longest, messages wait for a destination that does not exist."""

# Refusals that are not the message's fault: they pass when an operator has fixed them, so the message waits. Any other
# refusal would recur forever, but for "no such entity", as `Gates.is_poison` explains.
_NOT_POISON = frozenset((FailureReason.UNAUTHORIZED, FailureReason.QUOTA, FailureReason.DISABLED, FailureReason.CLOSED))


class Gate:
    """One destination's gate; `Gates` alone opens and shuts it."""

    __slots__ = ("entity", "failures", "held", "is_open", "most", "on_trial", "try_after", "users")

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self.failures = 0
        self.held = False  # by an operator: no probe opens it
        self.is_open = True
        self.on_trial = False  # open, although its destination was not found working
        self.try_after = 0.0
        self.most = 1_000_000  # messages in one operation; grows and shrinks with what the destination can take
        self.users = 0  # lines of pumps; while it has some, it is not dropped to make room for others


class Probed(enum.Enum):
    """What the answer to a probe has changed."""

    OPENED = "the destination was found working"
    TRIAL = "a delivery is to be tried"
    NOTHING = "it stays as it is"


class Gates:
    """The gates of all destinations that a syphon has seen; shared by its pumps.

    A method that returns whether it has changed anything wants the caller to act on it: to report it, to wake who waits
    at the gate, or to begin or end its probes.
    """

    def __init__(self, longest_wait: float) -> None:
        self._backoff = Backoff(first=min(0.5, longest_wait), factor=2.0, cap=longest_wait, jitter=0.2)
        self._patience = _LOOKS * longest_wait
        self._missing: dict[Entity, tuple[float, float]] = {}  # since when, and seen last; in the order of the latter
        self._gates: dict[Entity, Gate] = {}
        self._idle: OrderedDict[Gate, None] = OrderedDict()  # those without users; the one asked for last is last
        self._newest: Gate | None = None
        self._troubled: set[Gate] = set()  # failed, and have not taken a message since
        self._held: set[Gate] = set()

    def __len__(self) -> int:
        return len(self._gates)

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

    def get(self, entity: Entity) -> Gate | None:
        return self._gates.get(entity)

    def lets_through(self, entity: Entity) -> bool:
        """Whether a message to a destination could be delivered now, as far as is known."""
        gate = self._gates.get(entity)
        return gate is None or gate.is_open

    def of(self, entity: Entity) -> Gate:
        """The gate of a destination, open until it fails."""
        gate = self._gates.get(entity)
        if gate is None:
            gate = self._gates[entity] = Gate(entity)
        if not gate.users:
            self._idle[gate] = None
            self._idle.move_to_end(gate)
        self._newest = gate
        return gate

    def use(self, gate: Gate) -> None:
        """A line of a pump delivers through a gate, until `leave`."""
        gate.users += 1
        self._idle.pop(gate, None)

    def leave(self, gate: Gate) -> None:
        """A line that used a gate has ended."""
        gate.users -= 1
        if not gate.users and self._gates.get(gate.entity) is gate:
            self._idle[gate] = None

    def drop_idle(self) -> list[Gate]:
        """Drop the gates without users that were not asked for the longest, while there are too many.

        What is lost with a shut one is that it is shut: the next message to it finds that out again.
        """
        excess = len(self._gates) - _MOST
        if excess <= 0:
            return []
        idle = (gate for gate in self._idle if not gate.held and gate is not self._newest)
        dropped = list(itertools.islice(idle, excess))
        for gate in dropped:
            self._drop(gate)
        return dropped

    def forget(self, entity: Entity) -> None:
        """Drop an open gate: its destination does not exist, and forged ones must not fill the memory."""
        gate = self._gates.get(entity)
        if gate is not None and gate.is_open:
            self._drop(gate)

    def _drop(self, gate: Gate) -> None:
        del self._gates[gate.entity]
        self._idle.pop(gate, None)

    def shut(self, gate: Gate) -> bool:
        """Deliver nothing more to a destination that failed, until a probe reports that it is back."""
        if not gate.is_open:
            return False
        self._gates.setdefault(gate.entity, gate)  # it may have been forgotten while a message was on its way
        gate.is_open = gate.on_trial = False
        self._troubled.add(gate)
        return True

    def hold(self, gate: Gate) -> bool:
        """Deliver nothing more to a destination until `release`, whatever probes report (SPEC 4.7)."""
        if gate.held:
            return False
        gate.held = True
        gate.is_open = gate.on_trial = False
        self._held.add(gate)
        return True

    def release(self, gate: Gate) -> bool:
        """End a `hold`: what waits is sent at once, and finds out whether the destination takes it."""
        if not gate.held:
            return False
        gate.held = False
        self._held.discard(gate)
        gate.failures = 0
        return self.open(gate)

    def open(self, gate: Gate) -> bool:
        """Let messages through: the destination was found working, or a trial has ended well."""
        if gate.held or (gate.is_open and not gate.on_trial):
            return False
        gate.is_open, gate.on_trial = True, False
        return True

    def probed(self, gate: Gate, error: TransportError | None, now: float) -> Probed:
        """Take the answer to a probe, None for a good one.

        A refusal for a reason that is not the message's, such as a wrong password, shows only that the broker answers.
        A delivery may need fewer rights, so one is tried at each such probe: the gate is open *on trial*, and probed,
        until a delivery or a probe succeeds. After "no such entity" and the like the next delivery finds out, and what
        must be is dead-lettered.
        """
        if error is not None:
            poison = self.is_poison(gate.entity, error, now)
            if error.kind is not FailureKind.REFUSED:
                return Probed.NOTHING
            if not poison:
                if gate.is_open or gate.held:
                    return Probed.NOTHING
                gate.is_open = gate.on_trial = True
                return Probed.TRIAL
        return Probed.OPENED if self.open(gate) else Probed.NOTHING

    def delivered(self, gate: Gate) -> None:
        """A delivery was confirmed: the next failure starts from short waits again."""
        gate.failures = 0
        self._troubled.discard(gate)
        self._missing.pop(gate.entity, None)

    def is_poison(self, entity: Entity, error: TransportError, now: float) -> bool:
        """Return whether a message that failed at its destination would be refused forever.

        A broker that has lost its disk has no queues until the programs that use them make them again: messages wait
        for theirs while it has been missing for a short time only.
        """
        if error.kind is not FailureKind.REFUSED or error.reason is not FailureReason.NOT_FOUND:
            self._missing.pop(entity, None)
            return error.kind is FailureKind.REFUSED and error.reason not in _NOT_POISON
        since, seen = self._missing.pop(entity, (now, now))
        if now - seen > self._patience:
            since = now  # no process has looked for so long, and it may have existed meanwhile
        if len(self._missing) >= _MOST_MISSING:
            eldest = next(iter(self._missing))
            if now - self._missing[eldest][1] <= self._patience:
                return True  # forged paths: no more of them are waited for
            del self._missing[eldest]
        self._missing[entity] = (since, now)
        return now - since >= self._patience

    def wait(self, gate: Gate, chance: float) -> float:
        """Seconds until the next probe of a shut gate's destination."""
        return self._backoff.wait(gate.failures, chance)

    def probing(self, gate: Gate, try_after: float) -> None:
        """A probe begins; before ``try_after`` `may_try` asks for no other."""
        gate.failures += 1
        gate.try_after = try_after

    def may_try(self, gate: Gate, now: float) -> bool:
        """Whether a shut destination may be asked now instead of at its next turn.

        Not more often than its growing waits allow: probes may go on being good while messages are not taken.
        """
        if gate.is_open or gate.held or now < gate.try_after:
            return False
        self.probing(gate, now + self.wait(gate, 0.0))
        return True
