"""How much is in the backlog, as far as it can be counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pairmq.cli._common import at_broker
from pairmq.model import Entity, FailureReason, TransportError
from pairmq.transport import QueueCounts, Transport, counts_of

MISSING = (
    "a program that opens the pair makes them; if programs of the pair run already, the secondary was emptied or "
    "replaced, and what these queues held is lost: see 'The secondary is lost' in the documentation"
)
"""What to do about backlog queues that do not exist."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What one queue holds.

    Args:
        queue: which one.
        counts: None when it does not exist or could not be asked.
        error: why it could not be asked; None when it was, or does not exist.
    """

    queue: Entity
    counts: QueueCounts | None
    error: str | None = None

    @property
    def missing(self) -> bool:
        """Whether it does not exist."""
        return self.counts is None and self.error is None


@dataclass(frozen=True, slots=True)
class Depths:
    """What all backlog queues hold.

    Args:
        queues: one entry each, by their index.
    """

    queues: tuple[Depth, ...]

    @property
    def pending(self) -> int | None:
        """Messages still to be moved; None when a queue could not be asked."""
        return None if self.error is not None else self.seen

    @property
    def seen(self) -> int:
        """Messages still to be moved, in the queues that answered."""
        return sum(depth.counts.pending for depth in self.queues if depth.counts is not None)

    @property
    def locked(self) -> int:
        """Of `seen`, those that somebody has received and not yet settled; 0 where the broker does not count them."""
        return sum(depth.counts.locked for depth in self.queues if depth.counts is not None)

    @property
    def dead_letter(self) -> int | None:
        """Messages set aside; None when a queue could not be asked."""
        if self.error is not None:
            return None
        return sum(depth.counts.dead_letter for depth in self.queues if depth.counts is not None)

    @property
    def error(self) -> str | None:
        """Why a queue could not be asked; None when all answered."""
        return next((depth.error for depth in self.queues if depth.error is not None), None)

    @property
    def name(self) -> str:
        """The names of all queues as one: ``contoso/x-servicebus-transfer/{0…9}``."""
        names = [depth.queue.path for depth in self.queues]
        if len(names) == 1:
            return names[0]
        at = next(i for i, (zero, one) in enumerate(zip(names[0], names[1], strict=False)) if zero != one)
        before, after = names[0][:at], names[0][at + 1 :]
        row = next((i for i, name in enumerate(names) if name != f"{before}{i}{after}"), len(names))
        more = f", {', '.join(names[row:])}" if row < len(names) else ""
        return f"{before}{{0…{row - 1}}}{after}{more}"

    @property
    def known_empty(self) -> bool:
        """Whether every queue answered and none holds anything to be moved."""
        return self.pending == 0


async def count_queues(transport: Transport, queues: Sequence[Entity], time_limit: float) -> Depths:
    """Count every queue; what fails is told in the result."""
    told = await counts_of(transport, queues, time_limit)
    return Depths(tuple(_depth(transport, *each) for each in zip(queues, told, strict=True)))


def _depth(transport: Transport, queue: Entity, told: QueueCounts | TransportError) -> Depth:
    if isinstance(told, QueueCounts):
        return Depth(queue, told)
    missing = told.reason is FailureReason.NOT_FOUND
    return Depth(queue, None, None if missing else at_broker(transport, told))
