"""How a simulated broker can fail."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pairmq.model import Entity, FailureKind, FailureReason, TransportError


class Fault(enum.Enum):
    """What a simulated broker does instead of its work."""

    DOWN = "refuse the connection"
    HANG = "never answer"
    BUSY = "throttle"
    TRANSIENT = "fail in passing"
    REFUSE = "say no"
    UNAUTHORIZED = "say no to this user"
    CONFIRM_LOST = "do it, and lose the confirmation"
    LOST_BEFORE = "lose the connection before doing it"
    SLOW = "answer late"
    BUG = "raise what no transport should"


class Operation(enum.Flag):
    """What a fault strikes."""

    SEND = enum.auto()
    RECEIVE = enum.auto()
    SETTLE = enum.auto()
    ADMIN = enum.auto()
    PROBE = enum.auto()
    ALL = SEND | RECEIVE | SETTLE | ADMIN | PROBE


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that was asked for.

    Args:
        fault: what happens.
        operations: what it strikes.
        entities: the paths that it strikes; None for all, and for operations on the broker itself.
        delay: seconds that SLOW takes.
        left: how often it strikes still; negative for always.
    """

    fault: Fault
    operations: Operation
    entities: frozenset[str] | None
    delay: float
    left: list[int]

    def takes(self, operation: Operation, entity: Entity | None) -> bool:
        """Whether it strikes an operation; that counts as once."""
        if not operation & self.operations or self.left[0] == 0:
            return False
        if self.entities is not None and (entity is None or entity.path not in self.entities):
            return False
        self.left[0] -= 1
        return True


def lost_connection() -> TransportError:
    """A connection that broke with an operation under way."""
    text = "connection lost"
    return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.CONNECTION, maybe_applied=True)
