"""The outages that a chaos run's journal must tell of, entity by entity and process by process."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaos_holes import ends_of
from chaos_rows import Told
from pairmq.model import EntityState
from pairmq.model.events import AttemptFailed, Event, PairEnded, PingCompleted, SendCompleted, SendOutcome, StateChanged

TAKING = (EntityState.HEALTHY, EntityState.DRAINING)
"""The states in which an entity takes messages."""

Seer = tuple[str, str, str]
"""Process, pair and entity."""


@dataclass(slots=True)
class Episode:
    """An outage; the names are those of the table's columns, instants are seconds since 1970 UTC."""

    process: str
    pair: str
    entity: str
    number: int
    started_at: float
    cause: str
    failure_kind: str | None = None
    failed_over_at: float | None = None
    up_at: float | None = None
    ended_at: float | None = None
    open_because: str | None = None
    diverted: int = 0
    refused: int = 0
    unknown: int = 0
    pings: int = 0
    pings_good: int = 0

    def take(self, event: Event) -> None:
        """Enter what happened within it."""
        match event:
            case StateChanged():
                if event.current is EntityState.FAILED_OVER and self.failed_over_at is None:
                    self.failed_over_at = event.at
                if event.current in TAKING and self.up_at is None:
                    self.up_at = event.at
                if event.current is EntityState.HEALTHY and self.ended_at is None:
                    self.ended_at = event.at
            case SendCompleted():
                self.diverted += event.outcome is SendOutcome.BACKLOG
                self.refused += event.outcome is SendOutcome.REFUSED
                self.unknown += event.outcome is SendOutcome.UNKNOWN
            case PingCompleted():
                self.pings += 1
                self.pings_good += event.ok
            case AttemptFailed() if event.queue is None and self.failure_kind is None:
                self.failure_kind = event.kind


def episodes_of(rows: Sequence[Told], patience: float) -> dict[tuple[str, str, str, int], Episode]:
    """Find every outage, by process, pair, entity and number."""
    ends = ends_of(rows, patience)
    seen: dict[Seer, list[Event]] = defaultdict(list)
    closed: dict[tuple[str, str], float] = {}
    for row in sorted(rows, key=lambda each: each.seq):
        match row.event:
            case StateChanged() | SendCompleted() | PingCompleted() | AttemptFailed() as event:
                seen[row.process, event.pair, event.entity.path].append(event)
            case PairEnded() as event:
                closed[row.process, event.pair] = max(event.at, closed.get((row.process, event.pair), 0.0))
    found = {}
    for seer, events in seen.items():
        several = list(_of(seer, events))
        for episode, following in itertools.zip_longest(several, several[1:]):
            if episode.ended_at is None:
                ended = closed.get(seer[:2])
                if following is not None:
                    episode.open_because = "failed again"
                elif ended is not None and ended >= episode.started_at:
                    episode.open_because = "pair closed"
                else:
                    episode.open_because = "process killed" if ends[seer[0]] == "killed" else "journal ends"
            found[*seer, episode.number] = episode
    return found


def _of(seer: Seer, events: Iterable[Event]) -> Iterable[Episode]:
    episode: Episode | None = None
    state: EntityState | None = None
    number = 0
    for event in events:
        if isinstance(event, StateChanged):
            state = event.current
            if event.previous in TAKING and event.current not in TAKING:
                if episode is not None:
                    yield episode
                number += 1
                episode = Episode(*seer, number, event.at, event.cause.value)
            if episode is not None:
                episode.take(event)
        elif episode is not None and state is not EntityState.HEALTHY:
            episode.take(event)
    if episode is not None:
        yield episode
