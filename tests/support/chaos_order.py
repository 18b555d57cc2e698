"""Which messages of a chaos run were late: each pair of messages compared, by the document on reconciliation."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from chaos_cases import SLACK, Case, Message, Place, queues_of
from chaos_rows import Told
from pairmq.model.events import DestinationChanged, SendOutcome, SyphonFailed


@dataclass(frozen=True, slots=True)
class _Stand:
    """Where a delivered message stood."""

    message: Message
    receipt: float  # when its sender knew that it was accepted
    called: float  # when its sender had called
    queue: str | None  # the backlog queue that it went through; None if the primary took it
    disturbed: bool  # something failed on its way home
    place: tuple[float, ...]  # in the queue; or, where the broker tells none, when it was got


@dataclass(frozen=True, slots=True)
class Troubles:
    """When pumps had to stop."""

    destinations: dict[Place, list[float]]  # instants at which one stopped or began to deliver to an entity
    queues: dict[Place, list[float]]  # instants at which one met an error of a backlog queue

    def met(self, message: Message, case: Case) -> bool:
        """Whether a diverted message met one on its way home, as far as its way is known at all."""
        if not case.moves or any(each.redelivered for each in case.moves):
            return True
        began = min(each.at for each in case.ended(SendOutcome.BACKLOG)) - SLACK
        ended = max(each.at for each in case.moves) + SLACK
        struck = [*self.destinations.get(message[:2], ())]
        struck += [at for queue in queues_of(case) for at in self.queues.get((message[0], queue or ""), ())]
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
                    next(iter(queues_of(case))) if diverted else None,
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
    deliveries = [(each, each.receiver or process) for process, each in case.deliveries]
    first = [(each.received_at or each.at, receiver) for each, receiver in deliveries if each.delivery_count == 1]
    if len({receiver for _, receiver in first}) != 1:
        return None
    at, receiver = min(first)
    return receiver, (at,)
