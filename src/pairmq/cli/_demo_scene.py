"""What the demo shows: numbers that the run fills in and the view draws."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pairmq.cli._backlog_counts import Depths
from pairmq.cli._demo_tally import Tally
from pairmq.cli._errors import printable
from pairmq.cli._values import short_duration
from pairmq.model import Entity, EntityState
from pairmq.model.events import (
    DestinationChanged,
    Event,
    MessageDeadLettered,
    MessageMoved,
    PingCompleted,
    RotationChanged,
    SendCompleted,
    SendOutcome,
    StateChanged,
    SyphonFailed,
    Warned,
)

BUCKET = 0.2  # s of one column of the timeline
_KEPT_EVENTS = 200


@dataclass(slots=True)
class EntityScene:
    """One entity."""

    name: str
    state: EntityState = EntityState.HEALTHY
    since: float = 0.0
    primary: int = 0
    backlog: int = 0
    in_flight: int = 0
    delivered: int = 0


@dataclass(slots=True)
class Bucket:
    """What happened in one column of the timeline."""

    primary: int = 0
    backlog: int = 0
    moved: int = 0
    down: bool = False


@dataclass(slots=True)
class Happening:
    """One line of the list of events."""

    at: float
    text: str
    style: str = ""


@dataclass(slots=True)
class Scene:
    """Everything that the view draws.

    Args:
        primary: the primary's URL, without secrets.
        secondary: likewise.
        entities: one entry each.
        tally: the account of all messages.
        total: messages that will be sent.
        queues: how many backlog queues there are.
        pace: messages a second, as planned.
        staged: the demo itself takes the primary away; otherwise it is taken for down while an entity fails.
    """

    primary: str
    secondary: str
    entities: dict[Entity, EntityScene]
    tally: Tally
    total: int
    queues: int
    pace: float
    staged: bool = True
    finished: bool = False
    now: float = 0.0  # s since the start
    phase: str = "starting"
    primary_down: bool = False
    buckets: list[Bucket] = field(default_factory=lambda: [Bucket()])
    depths: Depths | None = None
    peak: int = 0
    moved: int = 0
    dead_lettered: int = 0
    happenings: deque[Happening] = field(default_factory=lambda: deque(maxlen=_KEPT_EVENTS))
    happened: int = 0
    _pings: dict[Entity, int] = field(default_factory=dict)

    def tick(self, now: float) -> None:
        """Move the present on."""
        self.now = now
        if not self.staged:
            bad = (EntityState.FAILING, EntityState.FAILED_OVER)
            self.primary_down = any(entity.state in bad for entity in self.entities.values())
        while len(self.buckets) <= int(now / BUCKET):
            self.buckets.append(Bucket(down=self.primary_down))

    def saw_depths(self, depths: Depths) -> None:
        """The backlog was counted."""
        self.depths = depths
        self.peak = max(self.peak, depths.seen)

    def primary_is(self, *, down: bool, text: str) -> None:
        """The primary was taken away, or brought back."""
        self.primary_down = down
        self.buckets[-1].down = down
        self.add(text, "bold red" if down else "bold green")

    def stopping(self) -> None:
        """The user or the system asked for an end."""
        self.phase = "stopping"

    def add(self, text: str, style: str = "") -> None:
        """Add a line to the list of events."""
        self.happenings.append(Happening(self.now, printable(text), style))
        self.happened += 1

    @property
    def failed_over(self) -> bool:
        """Whether any entity is."""
        return any(entity.state is EntityState.FAILED_OVER for entity in self.entities.values())

    @property
    def pending(self) -> int:
        """Messages in the backlog when last counted."""
        return 0 if self.depths is None else self.depths.seen

    def drain_rate(self) -> float:
        """Messages a second that the syphon has moved lately."""
        recent: Sequence[Bucket] = self.buckets[-11:-1] or self.buckets
        return sum(bucket.moved for bucket in recent) / (len(recent) * BUCKET)

    def on_event(self, event: Event) -> None:
        """Take in one event of the pair."""
        if isinstance(event, SendCompleted):
            entity = self.entities[event.entity]
            if event.outcome is SendOutcome.PRIMARY:
                entity.primary += 1
                self.buckets[-1].primary += 1
            elif event.outcome is SendOutcome.BACKLOG:
                entity.backlog += 1
                self.buckets[-1].backlog += 1
        elif isinstance(event, MessageMoved):
            self.moved += 1
            self.buckets[-1].moved += 1
            if event.maybe_duplicate or event.redelivered or not event.completed:
                self.tally.announced(event.message_id)
        elif isinstance(event, StateChanged):
            entity = self.entities[event.entity]
            entity.state, entity.since = event.current, self.now
            text = f"{event.entity}: {event.previous} → {event.current} ({event.cause})"
            if event.diverted:
                text += f", {event.diverted} diverted in {short_duration(event.lasted)}"
            self.add(text, STATE_STYLES[event.current])
        elif isinstance(event, PingCompleted):
            self._saw_ping(event)
        elif isinstance(event, RotationChanged):
            back = "is back in use" if event.in_use else f"is out of use: {event.error}"
            self.add(f"backlog queue {event.queue} {back}", "yellow")
        elif isinstance(event, DestinationChanged):
            text = "delivers again" if event.open else f"waits: {event.error}"
            self.add(f"syphon to {event.entity} {text}", "cyan" if event.open else "yellow")
        elif isinstance(event, MessageDeadLettered):
            self.dead_lettered += 1
            self.add(f"dead-lettered {event.message_id}: {event.reason}: {event.description}", "red")
        elif isinstance(event, SyphonFailed):
            self.add(f"syphon of {event.queue}: {event.error}", "yellow")
        elif isinstance(event, Warned):
            self.add(event.text, "yellow")

    def _saw_ping(self, event: PingCompleted) -> None:
        """Failed pings follow each other: only the first of a row is told, and how many there were."""
        failed = self._pings.get(event.entity, 0)
        if not event.ok:
            self._pings[event.entity] = failed + 1
            if not failed:
                self.add(f"{event.entity}: ping failed: {event.error}", "dim")
            return
        self._pings[event.entity] = 0
        after = f" after {failed} that failed" if failed else ""
        self.add(f"{event.entity}: ping answered in {short_duration(event.elapsed)}{after}", "green")


STATE_STYLES = {
    EntityState.HEALTHY: "green",
    EntityState.FAILING: "yellow",
    EntityState.FAILED_OVER: "red",
    EntityState.DRAINING: "cyan",
}
