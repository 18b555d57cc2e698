"""What happened in a simulation: the history of its messages, and what was done to brokers and processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pairmq.model import Entity
from pairmq.testing import history
from pairmq.testing.history import Copy, WriteResult
from pairmq.testing.simulator._scenario import Fault, Scenario


@dataclass(slots=True)
class Gap:
    """A time in which a queue did not exist; ``until`` is None to the end."""

    at: float
    broker: str
    entity: Entity
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """An operation that failed or got no answer; ``path`` is the queue's."""

    at: float
    tick: int
    life: str
    broker: str
    path: str
    operation: str
    result: WriteResult


@dataclass(slots=True)
class History(history.History):
    """All facts of one simulation."""

    scenario: Scenario
    trace: Callable[[str], None] | None = None
    clock: Callable[[], float] = lambda: 0.0
    troubles: list[Trouble] = field(default_factory=list)
    strokes: list[tuple[float, int, Fault]] = field(default_factory=list)
    """Each fault that came to pass: its instant, its tick."""
    gaps: list[Gap] = field(default_factory=list)
    forged: list[Copy] = field(default_factory=list)
    emptied: list[float] = field(default_factory=list)
    """The instants at which the secondary lost all queues, the pair's record too, and no message of a backlog."""
    crashes: list[tuple[float, str]] = field(default_factory=list)
    healed_at: float | None = None
    drained_at: float | None = None
    bound: float = 0.0
    undrained: tuple[str, ...] = ()
    """What was still not as it should be when the bound was reached, in words."""
    reconnects: list[tuple[int, str, str]] = field(default_factory=list)
    """The ticks at which a process dropped its connection to a broker whose role had moved, with both names."""
    ended_at: float = 0.0
    disturbed: list[tuple[float, float]] = field(default_factory=list)
    """Times in which something was wrong, beside those of the strokes."""

    def say(self, who: str, what: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.clock():.6f} {who} {what}")
