"""The judge of a simulation: that of messages, that of pairs, and what only simulated brokers show, such as locks."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pairmq.core import lane_path
from pairmq.model import Entity
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing.history import PRIMARY, SECONDARY, Handling, Handover, Reading, Result, Sent
from pairmq.testing.judge import Verdict, Violation, messages_judged
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._judge_pair import Facts, pair_judged
from pairmq.testing.simulator._scenario import BLIPS, lasts, merged, size_of

_SEEN = 30.0  # s after which a message that was not handled is late, whatever happens later
_RECONNECTED = 15.0  # s within which receivers read again what was lost for a while
_ROUND_TRIPS = 4.0  # of a receive: there and back, as late as ways may be, and a poll that has just ended


class Prompt(NamedTuple):
    """A message that a lane accepted while the secondary and a consumer were up."""

    number: int
    accepted_at: float
    waited: float
    """Seconds until it was handled or had run out, or until it was clear that it was not."""
    late: bool


def prompt(history: History) -> Iterator[Prompt]:
    """The messages that lanes accepted while the secondary and a consumer were up, whatever the primary did."""
    setup = history.scenario.setup
    if not setup.options.get("continuity"):
        return
    readings, handlings = _readings(history), _handlings(history)
    troubles = _troubles(history)
    starts = [start for start, _ in troubles]
    seen = {each.number: each.at for each in reversed(history.handlings)}
    # Where the clock of a process is wrong, a message may run out at once; `_expired` asks whether that is right.
    for copy in history.copies:
        if copy.reason == "TTLExpiredException" and copy.message_number is not None and copy.gone_at is not None:
            seen[copy.message_number] = min(copy.gone_at, seen.get(copy.message_number, copy.gone_at))
    two_receives = 2 * (_ROUND_TRIPS * setup.latency[1] + 0.05)
    for sent in history.sent.values():
        accepted_at = sent.ended_at
        if sent.result is not Result.BACKLOG or accepted_at is None or lane_path(sent.queue or "") is None:
            continue
        handled_at = seen.get(sent.number, history.ended_at)
        until = min(handled_at, accepted_at + _SEEN)
        at = bisect.bisect_right(starts, until)
        if any(end >= accepted_at for _, end in troubles[max(0, at - 1) : at]):
            continue
        if not any(begin + _RECONNECTED <= accepted_at and end >= until for begin, end in readings[sent.entity]):
            continue
        # A consumer that is busy with another message takes this one later.
        busy = sum(
            max(0.0, min(until, end) - max(accepted_at, each.at))
            for each, end in handlings[sent.entity]
            if each.at <= until and end >= accepted_at
        )
        waited = max(0.0, handled_at - accepted_at)
        yield Prompt(sent.number, accepted_at, waited, waited > two_receives + busy)


def _readings(history: History) -> dict[Entity, list[tuple[float, float]]]:
    """When consumers read each queue, of processes whose options give it a lane."""
    setup = history.scenario.setup
    options = {plan.name: setup.options_of(plan) for plan in setup.processes}
    lives = {life.name: life for life in history.lives}
    found: dict[Entity, list[tuple[float, float]]] = defaultdict(list)
    for each in history.readings:
        if options[lives[each.life].process].continues(each.entity.path):
            found[each.entity].append((each.at, _end(history, each)))
    return found


def _end(history: History, reading: Reading) -> float:
    life = next(each for each in history.lives if each.name == reading.life)
    ends = (reading.until, life.closing_at, life.ended_at, history.ended_at)
    return min(each for each in ends if each is not None)


def _handlings(history: History) -> dict[Entity, list[tuple[Handling, float]]]:
    found: dict[Entity, list[tuple[Handling, float]]] = defaultdict(list)
    for each in history.handlings:
        found[each.entity].append((each, each.at if each.ended_at is None else each.ended_at))
    return found


def _troubles(history: History) -> list[tuple[float, float]]:
    """When the secondary, or the way to it, was not up, and for as long as messages may stay locked after that."""
    after = _RECONNECTED + (history.scenario.setup.lock_duration or 5.0)
    spans = []
    for at, _, fault in history.strokes:
        if fault.broker != PRIMARY or fault.kind in BLIPS:
            spans.append((at, at + lasts(fault) + after))
    spans += [(first, last + after) for first, last in history.disturbed]
    spans += [
        (gap.at, (history.ended_at if gap.until is None else gap.until) + after)
        for gap in history.gaps
        if gap.broker == SECONDARY
    ]
    return merged(spans)


_LATE = 0.01  # of what lanes accept may be handled later than within two receives
_SETTLED = 25.0  # s without any fault within which a completion must have been tried again


def judged(history: History) -> list[Violation]:
    """Find everything that is wrong in a history, oldest first."""
    facts = Facts(history)
    found = [*messages_judged(facts), *pair_judged(facts), *_late_in_lanes(history)]
    for sent in history.sent.values():
        found += _origins(facts, sent)
        found += [
            *_expired(facts, sent),
            *_redelivered(facts, sent),
            *_expired_locks(facts, sent),
            *_stuck(facts, sent),
            *_never_fits(facts, sent),
        ]
    return sorted(found, key=lambda violation: violation.at)


def _expired(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """Where the time in the backlog counts, what has run out of it is not delivered, and nothing else has expired."""
    backlog, lives = facts.at_secondary[sent.number], sent.message.time_to_live
    if not backlog or lives is None or facts.options.ttl_policy != "elapse":
        return
    diverted_at = max(copy.at for copy in backlog if not facts.is_syphons(copy))
    due = sent.message.scheduled_enqueue_at
    due_at = 0.0 if due is None else due.timestamp() - WALL_EPOCH  # its time begins then
    first_at, last_at = max(due_at, sent.at), max(due_at, diverted_at)
    for attempt, _ in facts.by_syphon[sent.number]:
        if attempt.broker == PRIMARY and attempt.at > last_at + lives + facts.walls:
            waited = attempt.at - last_at
            text = f"{sent.number} lives {lives:g} s, and was sent to the primary {waited:.3f} s after its time began"
            yield Violation(Verdict.PHANTOM, attempt.at, text, sent.number)
    for copy in backlog:
        expired_at = copy.gone_at if copy.reason == "TTLExpiredException" else None
        if expired_at is not None and expired_at < first_at + lives - facts.walls:
            text = f"{sent.number} lives {lives:g} s, and expired {expired_at - first_at:.3f} s after its time began"
            yield Violation(Verdict.LOST, expired_at, text, sent.number)

    # What a consumer has under lock does not expire any more, as at any broker.
    for copy in backlog:
        for each in copy.handovers:
            if each.consumer and each.at > last_at + lives + facts.walls and _was_handled(facts, sent, each):
                waited = each.at - last_at
                text = f"{sent.number} lives {lives:g} s, and a lane gave it {waited:.3f} s after its time began"
                yield Violation(Verdict.PHANTOM, each.at, text, sent.number)


def _was_handled(facts: Facts, sent: Sent, given: Handover) -> bool:
    return any(
        (given.life, given.position, SECONDARY) == (each.life, each.position, each.side) and given.tick < each.tick
        for each in facts.handlings[sent.number]
    )


def _origins(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """A delivery names the broker that gave it (SPEC 11.3)."""
    for handling in facts.handlings[sent.number]:
        copies = facts.at_primary if handling.side == PRIMARY else facts.at_secondary
        if not any(
            (each.consumer, each.life, each.position) == (True, handling.life, handling.position)
            for copy in copies[sent.number]
            for each in copy.handovers
            if each.tick < handling.tick
        ):
            text = f"{sent.number} was handled by {handling.life} as from the {handling.side}, which had not given it"
            yield Violation(Verdict.STATE, handling.at, text, sent.number)


def _late_in_lanes(history: History) -> Iterator[Violation]:
    """Of what lanes accept while the secondary and a consumer are up 99 % are handled within two receives."""
    found = list(prompt(history))
    late = [each for each in found if each.late]
    if len(late) > len(found) * _LATE:
        first = late[0]
        text = (
            f"of {len(found)} messages that lanes accepted while the secondary and a consumer were up {len(late)} were "
            f"not handled within two receives; the first one, {first.number}, waited {first.waited:.3f} s or more"
        )
        yield Violation(Verdict.LATE, first.accepted_at + first.waited, text, first.number)


# What fits.


def _never_fits(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """What the primary can never hold is refused in every state: no backlog queue takes it (SPEC 3.8)."""
    setup, message = facts.history.scenario.setup, sent.message
    problem = None
    if size_of(message) > setup.most_bytes[0]:
        problem = f"takes at most {setup.most_bytes[0]} bytes, and it has {size_of(message)}"
    elif "time_to_live" in setup.primary_lacks and message.time_to_live is not None:
        problem = "keeps no time-to-live"
    elif "scheduling" in setup.primary_lacks and message.scheduled_enqueue_at is not None:
        problem = "keeps no schedule"
    if problem and facts.at_secondary[sent.number]:
        copy = facts.at_secondary[sent.number][0]
        text = f"{copy.entity} took {sent.number}, and the primary can never hold it: it {problem}"
        yield Violation(Verdict.STATE, copy.at, text, sent.number)


# Locks.


def _redelivered(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """A message is delivered again only if something has ended its lock."""
    for copy in (*facts.at_secondary[sent.number], *facts.at_primary[sent.number]):
        for index in range(1, len(copy.handovers)):
            if not facts.redelivery_explained(copy, index):
                at = copy.handovers[index].at
                text = f"{sent.number}, copy {copy.number}, was delivered by the {copy.broker} again for no reason"
                yield Violation(Verdict.DUPLICATE, at, text, sent.number)


def _expired_locks(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """A syphon sends nothing under an expired lock (SPEC 7.6)."""
    backlog = facts.at_secondary[sent.number]
    for attempt, _ in facts.by_syphon[sent.number]:
        if attempt.broker == PRIMARY and backlog and all(facts.has_run_out(copy, attempt) for copy in backlog):
            text = f"the syphon of {attempt.life} sent {sent.number} to the primary under an expired lock"
            yield Violation(Verdict.DUPLICATE, attempt.at, text, sent.number)


def _stuck(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """Moved messages are completed as soon as the secondary responds again."""
    backlog = facts.at_secondary[sent.number]
    if len(backlog) != 1:
        return  # with several, the copy of an attempt is unknown
    copy = backlog[0]
    for index, handover in enumerate(copy.handovers):
        life = facts.lives.get(handover.life)
        if life is None or handover.consumer:
            continue
        following = copy.handovers[index + 1].at if index + 1 < len(copy.handovers) else copy.gone_at
        ends = (following, life.ended_at, life.closing_at, facts.history.ended_at)
        until = min(each for each in ends if each is not None)
        for attempt, result in facts.by_syphon[sent.number]:
            if not result.confirmed or attempt.life != life.name or attempt.tick < handover.tick:
                continue
            calm = facts.calm_for(attempt.ended_at or attempt.at, until, _SETTLED)
            if calm is not None and not facts.began_anew(life, copy, attempt.tick):
                text = (
                    f"{sent.number} reached the primary, but was not completed as copy {copy.number} in {_SETTLED:g} "
                    "calm seconds"
                )
                yield Violation(Verdict.NOT_DRAINED, calm, text, sent.number)
                return
