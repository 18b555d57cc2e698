"""The judge of a chaos run's journal: what each message's verdict must be, by the document on reconciliation.

It is given the rows that must be in the journal (`chaos_rows`), made of the ledgers, and works message by message in
plain Python. Nothing is shared with the pipeline, so that the two can disagree.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaos_cases import SLACK, Case, Message, Place, cases_of, queues_of
from chaos_holes import Holes, holes_of, minute
from chaos_order import late_of, troubles_of
from chaos_rows import Told
from pairmq.model.events import BacklogQueueChecked, Cause, SendOutcome, StateChanged


class Judge:
    """Judges the messages of a journal."""

    def __init__(self, rows: Sequence[Told], patience: float) -> None:
        self.cases = cases_of(rows)
        self._patience = patience
        self._holes: Holes = holes_of(rows, patience)
        self._known = _known_of(self.cases)
        self._late = {
            message: "unproven" if found == "fault" and self._may_lack_a_reason(message) else found
            for message, found in late_of(self.cases, troubles_of(rows)).items()
        }
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
        self._surely: dict[Place, float] = defaultdict(lambda: -math.inf)
        """Of each entity: the last such instant, if no message came later than it was delivered."""
        self._deliveries: dict[Place, list[tuple[float, float, float]]] = defaultdict(list)
        """Of each entity and message: when it had arrived, was first settled, and last."""
        # By whole minutes, one that came this many later came later by more than the patience.
        self._step = int(patience // 60) + 2
        for (pair, entity, _), case in self.cases.items():
            if case.deliveries and case.home_at is not None:
                self._seen[pair, entity].append(case.home_at)
                settled = [each.at for each in case.settled]
                self._surely[pair, entity] = max(self._surely[pair, entity], min(case.home_at, max(settled)))
                self._deliveries[pair, entity].append((case.home_at, min(settled), max(settled)))

    def verdicts(self) -> dict[Message, str]:
        """The verdict of each message."""
        return {message: self.verdict(message) for message in self.cases}

    def verdict(self, message: Message) -> str:
        """The verdict of one."""
        case = self.cases[message]
        if not case.accepted:
            found = _not_accepted(case)
            return "not journalled" if found == "phantom" and self._may_lack_a_reason(message) else found
        if len(case.completed) > 1:
            if len(case.completed) - 1 <= reasons(case):
                return "duplicated, explained"
            return f"duplicated, {'unproven' if self._may_lack_a_reason(message) else 'unexplained'}"
        if case.deliveries:
            if self._late.get(message) == "fault":
                return "out of order"
            if case.completed:
                return "delivered"
            return "dead-lettered" if case.given_up else "unsettled"
        return self._in_backlog(message[:2], case) if case.home_at is None else self._at_primary(message[:2], case)

    def late(self, message: Message) -> str | None:
        """``designed``, ``fault`` or ``unproven`` if it was delivered behind a message that was sent later."""
        return self._late.get(message)

    def _may_lack_a_reason(self, message: Message) -> bool:
        """Whether a row that would explain the others may be missing: chaos leaves no send out by sampling."""
        case = self.cases[message]
        if case.accepted and case.home_at is None:
            return True  # it came home from the backlog, and nothing tells how
        known = self._known[message[:2], _arrival(case)]
        return self._holes.meet(known.first - self._patience, known.last + self._patience)

    def _in_backlog(self, entity: Place, case: Case) -> str:
        """Diverted, never moved, never delivered."""
        if case.aside:
            expired = min(each.reason for each in case.aside) == "TTLExpiredException"
            return "expired" if expired else "dead-lettered"
        at = case.diverted_at
        assert at is not None
        # Each is an instant at which the message had left the backlog, whoever knows how, or was in a syphon's hands:
        # what became of it was told when the patience was over.
        gone = [seen for since, seen in self._drains[entity] if since > at + SLACK]
        gone += [
            made
            for (pair, queue), made in self._made.items()
            if pair == entity[0] and queue in queues_of(case) and made > at + SLACK
        ]
        told_by = [left + self._patience for left in gone if left + self._patience <= self._ends_at]
        if not told_by:
            return "diverted"
        return "unproven" if all(self._holes.between(at, by + SLACK) for by in told_by) else "lost"

    def _at_primary(self, entity: Place, case: Case) -> str:
        """It arrived there, and was not delivered."""
        at, seen = case.home_at, self._seen[entity]
        assert at is not None
        if not seen or at < min(seen):
            return "delivery not observed"
        lives = max((send.time_to_live for send in case.sends if send.time_to_live is not None), default=math.inf)
        if at + lives <= self._ends_at:
            return "expired"
        if at + self._patience < self._surely[entity]:
            return "unproven" if self._holes.hide(at, self._delivered_by(entity, at)) else "lost"
        return "in flight"

    def _delivered_by(self, entity: Place, home_at: float) -> float:
        """By when it must have been delivered, if it ever was, as far as whole minutes tell."""
        later = [at for home, at, _ in self._deliveries[entity] if minute(home) >= minute(home_at) + self._step]
        return (min(later) if later else max(last for _, _, last in self._deliveries[entity])) + self._patience


def _arrival(case: Case) -> int:
    """The minute in which it arrived, for all that is told; else of its last delivery, or of its first send's end."""
    settled, sent = [each.at for each in case.settled], [each.at for each in case.sends]
    at = case.home_at if case.home_at is not None else max(settled) if settled else min(sent, default=0.0)
    return minute(at)


@dataclass(slots=True)
class _Known:
    """Between which instants the rows tell of the messages that arrived in one minute."""

    first: float = math.inf
    last: float = -math.inf


def _known_of(cases: dict[Message, Case]) -> dict[tuple[Place, int], _Known]:
    found: dict[tuple[Place, int], _Known] = defaultdict(_Known)
    for message, case in cases.items():
        settled, sent = [each.at for each in case.settled], [each.at for each in case.sends]
        begins = [*settled, *sent, *(each.at - each.elapsed for each in case.accepted)]
        begins += [case.home_at] if case.home_at is not None else []
        known = found[message[:2], _arrival(case)]
        known.first = min(known.first, *begins, math.inf)
        known.last = max(known.last, *settled, min(sent, default=-math.inf))
    return found


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


def counted(verdicts: Iterable[str]) -> dict[str, int]:
    """How often each verdict."""
    return dict(Counter(verdicts))
