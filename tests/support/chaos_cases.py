"""What the rows of a chaos run's journal tell of each message, put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos_rows import Told
from pairmq.model import EntityKind
from pairmq.model.events import (
    AttemptFailed,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    SendCompleted,
    SendOutcome,
    Settlement,
)

SLACK = 1.0
"""Seconds to which clocks agree."""

Message = tuple[str, str, str]
"""Pair, entity and id."""
Place = tuple[str, str]
"""Pair, and an entity or a backlog queue of it."""


@dataclass(slots=True)
class Case:
    """What the rows tell of one message, in the order of their instants within each list."""

    sends: list[SendCompleted] = field(default_factory=list)
    failures: list[AttemptFailed] = field(default_factory=list)
    moves: list[MessageMoved] = field(default_factory=list)
    aside: list[MessageDeadLettered] = field(default_factory=list)
    deliveries: list[tuple[str, MessageDelivered]] = field(default_factory=list)
    """With the process that settled it."""

    def ended(self, outcome: SendOutcome) -> list[SendCompleted]:
        return [send for send in self.sends if send.outcome is outcome]

    @property
    def accepted(self) -> list[SendCompleted]:
        return [*self.ended(SendOutcome.PRIMARY), *self.ended(SendOutcome.BACKLOG)]

    @property
    def unknown(self) -> bool:
        return bool(self.ended(SendOutcome.UNKNOWN))

    @property
    def settled(self) -> list[MessageDelivered]:
        return [each for _, each in self.deliveries]

    @property
    def completed(self) -> list[MessageDelivered]:
        return [each for each in self.settled if each.settlement is Settlement.COMPLETED]

    @property
    def given_up(self) -> bool:
        return any(each.settlement is Settlement.DEAD_LETTERED for each in self.settled)

    @property
    def home_at(self) -> float | None:
        """When it last arrived at the primary."""
        return max((each.at for each in (*self.ended(SendOutcome.PRIMARY), *self.moves)), default=None)

    @property
    def diverted_at(self) -> float | None:
        return max((each.at for each in self.ended(SendOutcome.BACKLOG)), default=None)


def cases_of(rows: Iterable[Told]) -> dict[Message, Case]:
    """Put the rows to their messages."""
    found: dict[Message, Case] = defaultdict(Case)
    for row in rows:
        event = row.event
        match event:
            case SendCompleted() if event.message_id:
                found[event.pair, event.entity.path, event.message_id].sends.append(event)
            case AttemptFailed() if event.message_id:
                found[event.pair, event.entity.path, event.message_id].failures.append(event)
            case MessageMoved() if event.message_id:
                found[event.pair, event.entity.path, event.message_id].moves.append(event)
            case MessageDeadLettered() if event.message_id:
                assert event.entity is not None, "chaos makes no message whose destination can't be read"
                found[event.pair, event.entity, event.message_id].aside.append(event)
            case MessageDelivered() if event.message_id:
                assert event.entity.kind is EntityKind.QUEUE
                assert not event.dead_letter
                found[event.pair, event.entity.path, event.message_id].deliveries.append((row.process, event))
    return found


def queues_of(case: Case) -> set[str | None]:
    """The backlog queues that accepted it."""
    return {send.backlog_queue for send in case.ended(SendOutcome.BACKLOG)}
