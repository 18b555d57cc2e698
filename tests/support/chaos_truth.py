"""The judge of a chaos run's journal: what each message's verdict must be, by the document on reconciliation.

It is given the rows that must be in the journal (`chaos_rows`), made of the ledgers, and works message by message in
plain Python. Nothing is shared with the pipeline, so that the two can disagree.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chaos_holes import Holes, holes_of, minute
from chaos_rows import Told
from pairmq.model import EntityKind
from pairmq.model.events import (
    AttemptFailed,
    BacklogQueueChecked,
    Cause,
    DestinationChanged,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    SendCompleted,
    SendOutcome,
    Settlement,
    StateChanged,
    SyphonFailed,
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


class Judge:
    """Judges the messages of a journal.

    Args:
        rows: that it has.
        patience: seconds by which others may overtake a message before it counts as lost.
    """

    def __init__(self, rows: Sequence[Told], patience: float) -> None:
        self.cases = cases_of(rows)
        self._patience = patience
        self._holes: Holes = holes_of(rows, patience)
        self._late = late_of(self.cases, troubles_of(rows))
        self._ends_at = max(row.at for row in rows)
        self._drains: dict[Place, list[tuple[float, float]]] = defaultdict(list)
        """Of each entity: since when it was draining, and when its backlog was seen empty."""
        self._made: dict[Place, float] = {}
        """When each backlog queue was last made."""
        for row in rows:
            event = row.event
            if isinstance(event, StateChanged) and event.cause is Cause.DRAINED:
                self._drains[event.pair, event.entity.path].append((event.at - event.lasted, event.at))
            elif isinstance(event, BacklogQueueChecked) and event.created:
                queue = event.pair, event.queue
                self._made[queue] = max(event.at, self._made.get(queue, 0.0))
        self._seen: dict[Place, list[float]] = defaultdict(list)
        """Of each entity: when the messages that were delivered had arrived."""
        self._deliveries: dict[Place, list[tuple[float, float, float]]] = defaultdict(list)
        """Of each entity and message: when it had arrived, was first settled, and last."""
        # By whole minutes, one that came this many later came later by more than the patience.
        self._step = int(patience // 60) + 2
        for (pair, entity, _), case in self.cases.items():
            if case.deliveries and case.home_at is not None:
                self._seen[pair, entity].append(case.home_at)
                settled = [each.at for each in case.settled]
                self._deliveries[pair, entity].append((case.home_at, min(settled), max(settled)))

    def verdicts(self) -> dict[Message, str]:
        """The verdict of each message."""
        return {message: self.verdict(message) for message in self.cases}

    def verdict(self, message: Message) -> str:
        """The verdict of one."""
        case = self.cases[message]
        if not case.accepted:
            return _not_accepted(case)
        if len(case.completed) > 1:
            return f"duplicated, {'unexplained' if len(case.completed) - 1 > reasons(case) else 'explained'}"
        if case.deliveries:
            if self._late.get(message) == "fault":
                return "out of order"
            if case.completed:
                return "delivered"
            return "dead-lettered" if case.given_up else "unsettled"
        return self._in_backlog(message[:2], case) if case.home_at is None else self._at_primary(message[:2], case)

    def late(self, message: Message) -> str | None:
        """``designed`` or ``fault`` if it was delivered behind a message that was sent later."""
        return self._late.get(message)

    def _in_backlog(self, entity: Place, case: Case) -> str:
        """Diverted, never moved, never delivered."""
        if case.aside:
            expired = min(each.reason for each in case.aside) == "TTLExpiredException"
            return "expired" if expired else "dead-lettered"
        at = case.diverted_at
        assert at is not None
        # Each is an instant at which the message had left the backlog, whoever knows how.
        gone = [seen for since, seen in self._drains[entity] if since > at + SLACK]
        gone += [
            made
            for (pair, queue), made in self._made.items()
            if pair == entity[0] and queue in _queues(case) and made > at + SLACK
        ]
        if not gone:
            return "diverted"
        return "unproven" if all(self._holes.between(at, by + SLACK) for by in gone) else "lost"

    def _at_primary(self, entity: Place, case: Case) -> str:
        """It arrived there, and was not delivered."""
        at, seen = case.home_at, self._seen[entity]
        assert at is not None
        if not seen or at < min(seen):
            return "delivery not observed"
        lives = max((send.time_to_live for send in case.sends if send.time_to_live is not None), default=math.inf)
        if at + lives <= self._ends_at:
            return "expired"
        if at + self._patience < max(seen):
            return "unproven" if self._holes.hide(at, self._delivered_by(entity, at)) else "lost"
        return "in flight"

    def _delivered_by(self, entity: Place, home_at: float) -> float:
        """By when it must have been delivered, if it ever was, as far as whole minutes tell."""
        later = [at for home, at, _ in self._deliveries[entity] if minute(home) >= minute(home_at) + self._step]
        return (min(later) if later else max(last for _, _, last in self._deliveries[entity])) + self._patience


def _queues(case: Case) -> set[str | None]:
    return {send.backlog_queue for send in case.ended(SendOutcome.BACKLOG)}


def _not_accepted(case: Case) -> str:
    seen = bool(case.deliveries)
    if not case.unknown and case.ended(SendOutcome.REFUSED):
        return "phantom" if seen or case.moves else "refused"
    if case.unknown or case.failures:
        return "unknown, delivered" if seen else "unknown"
    set_aside = bool(case.aside) or case.given_up
    return "dead-lettered" if set_aside and not case.completed else "not journalled"


def reasons(case: Case) -> int:
    """How many second copies are explained; each reason explains one.

    A doubt of an attempt and the mark of the send that it belongs to are one reason.
    """
    doubts = sum(each.maybe_applied for each in case.failures)
    marks = sum(each.maybe_duplicate for each in case.sends)
    counted = (
        max(len(case.accepted) - 1, 0)
        + len(case.ended(SendOutcome.UNKNOWN))
        + max(doubts, marks)
        + sum(each.redelivered for each in case.moves)
        + sum(not each.completed for each in case.moves)
        + sum(each.delivery_count > 1 for each in case.settled)
        + sum(each.error is not None for each in case.completed)
    )
    # A syphon does not tell how many of its writes were in doubt.
    marked = any(each.maybe_duplicate for each in case.moves)
    return max(counted, len(case.completed) - 1) if marked else counted


# Order.


@dataclass(frozen=True, slots=True)
class _Stand:
    """Where a delivered message stood.

    Args:
        message: which one.
        receipt: when its sender knew that it was accepted.
        called: when its sender had called.
        queue: the backlog queue that it went through; None if the primary took it.
        disturbed: something failed on its way home.
        place: in the queue; or, where the broker tells none, when it was got.
    """

    message: Message
    receipt: float
    called: float
    queue: str | None
    disturbed: bool
    place: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Troubles:
    """When pumps had to stop.

    Args:
        destinations: instants at which one stopped or began to deliver to an entity.
        queues: instants at which one met an error of a backlog queue.
    """

    destinations: dict[Place, list[float]]
    queues: dict[Place, list[float]]

    def met(self, message: Message, case: Case) -> bool:
        """Whether a diverted message met one on its way home, as far as its way is known at all."""
        if not case.moves or any(each.redelivered for each in case.moves):
            return True
        began = min(each.at for each in case.ended(SendOutcome.BACKLOG)) - SLACK
        ended = max(each.at for each in case.moves) + SLACK
        struck = [*self.destinations.get(message[:2], ())]
        struck += [at for queue in _queues(case) for at in self.queues.get((message[0], queue or ""), ())]
        return any(began <= at <= ended for at in struck)


def troubles_of(rows: Iterable[Told]) -> Troubles:
    """Find them."""
    found = Troubles(defaultdict(list), defaultdict(list))
    for row in rows:
        if isinstance(row.event, DestinationChanged):
            found.destinations[row.event.pair, row.event.entity.path].append(row.event.at)
        elif isinstance(row.event, SyphonFailed):
            found.queues[row.event.pair, row.event.queue].append(row.event.at)
    return found


def late_of(cases: dict[Message, Case], troubles: Troubles) -> dict[Message, str]:
    """The messages behind one that was sent later, each pair of messages compared."""
    groups: dict[tuple[Place, str, str], list[_Stand]] = defaultdict(list)
    for message, case in cases.items():
        stood = _place(case)
        if case.accepted and stood is not None:
            seen_by, place = stood
            send = min(case.sends, key=lambda each: each.at)
            owner = f"session {send.session_id}" if send.session_id is not None else f"sender {send.sender}"
            diverted = not case.ended(SendOutcome.PRIMARY)
            groups[message[:2], owner, seen_by].append(
                _Stand(
                    message,
                    min(each.at for each in case.accepted),
                    min(each.at - each.elapsed for each in case.accepted),
                    next(iter(_queues(case))) if diverted else None,
                    diverted and troubles.met(message, case),
                    place,
                )
            )
    found: dict[Message, str] = {}
    for group in groups.values():
        for one, ahead in itertools.permutations(group, 2):
            if ahead.place < one.place and ahead.called > one.receipt:
                # New sends overtake the backlog by design, but not what was diverted later to the same queue.
                designed = one.queue is not None and (one.queue != ahead.queue or one.disturbed)
                found[one.message] = "designed" if designed and found.get(one.message) != "fault" else "fault"
    return found


def _place(case: Case) -> tuple[str, tuple[float, ...]] | None:
    """Whose order counts, and the place of the first copy; None if nobody can know it."""
    placed = [tuple(map(float, each.sequence_number.split("-"))) for each in case.settled if each.sequence_number]
    if placed:
        return "the broker's", min(placed)
    first = [(each.received_at or each.at, process) for process, each in case.deliveries if each.delivery_count == 1]
    if len({process for _, process in first}) != 1:
        return None
    at, process = min(first)
    return process, (at,)


def counted(verdicts: Iterable[str]) -> dict[str, int]:
    """How often each verdict."""
    return dict(Counter(verdicts))
