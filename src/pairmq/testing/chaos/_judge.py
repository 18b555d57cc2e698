"""The judge of a chaos run: the simulator's, without facts known only of simulated brokers, plus the final contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pairmq.model import BacklogUnavailable, PrimaryUnavailable
from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.testing.chaos._books import Found, may_have_stored
from pairmq.testing.simulator._facts import Facts
from pairmq.testing.simulator._history import History, Result, Sent
from pairmq.testing.simulator._judge_ledger import ledger_judged
from pairmq.testing.simulator._judge_messages import left_wrongly
from pairmq.testing.simulator._judge_pair import pair_judged
from pairmq.testing.simulator._scenario import BLIPS, PRIMARY, SECONDARY
from pairmq.testing.simulator._verdict import Verdict, Violation

_NOTHING_TOOK_IT = (BacklogUnavailable.__name__, PrimaryUnavailable.__name__)
_RECOVERY = 8.0  # s after a fault of the secondary within which its queues must be in use again, on a busy machine
_BLIP_RECOVERY = 3.0  # s: likewise after a fault of both brokers that is shorter than any send is patient
_ROUND_TRIPS = 8  # that connecting anew takes of a distant broker
_ASLEEP = 1.0  # s without processor after which a process is not asked why it refused


def judged(history: History, found: Found) -> list[Violation]:
    """Find everything that is wrong in a run, oldest first.

    Args:
        history: made by `pairmq.testing.chaos._books.history_of`.
        found: what the brokers held in the end.
    """
    facts = Facts(history)
    violations = [*ledger_judged(facts), *pair_judged(facts), *_slow(facts), *_refused_without_need(facts)]
    for sent in history.sent.values():
        violations += [*_lost(facts, sent, found), *_doubled(facts, sent)]
    return sorted(violations, key=lambda violation: violation.at)


def duplicates_explained(history: History) -> int:
    """Second copies at the primary that were reported as possible."""
    facts = Facts(history)
    return sum(
        len(copies) - 1
        for number, copies in facts.at_primary.items()
        if number in history.sent and _explained(facts, history.sent[number])
    )


def _slow(facts: Facts) -> Iterator[Violation]:
    """No operation at a broker outlives its limit; with the failover interval that bounds the time to a divert."""
    limit = facts.options[True].attempt_timeout
    for attempt in facts.history.attempts:
        if attempt.ended_at is None:
            continue
        due = attempt.at + limit
        if attempt.ended_at - due > facts.allowance(attempt.life, due, attempt.ended_at):
            took = attempt.ended_at - attempt.at
            text = f"a write of {attempt.life} to the {attempt.broker} took {took:.3f} s, and its limit is {limit:g} s"
            yield Violation(Verdict.DEADLINE, attempt.ended_at, text, next(iter(attempt.messages), None))


def _refused_without_need(facts: Facts) -> Iterator[Violation]:
    """Nothing took a patient message, although nothing had been done to the secondary for a while (SPEC 3.1)."""
    history = facts.history
    patient = max((sent.timeout for sent in history.sent.values()), default=0.0)
    far = _ROUND_TRIPS * max(history.scenario.setup.latency)
    struck = [(at, at + fault.duration, fault) for at, _, fault in history.strokes]
    for sent in history.sent.values():
        refused = sent.result is Result.REFUSED and sent.error.startswith(_NOTHING_TOOK_IT)
        ended_at = sent.ended_at or sent.at
        if not refused or sent.timeout < patient or facts.allowance(sent.life, sent.at, ended_at) > _ASLEEP:
            continue
        process = sent.life.partition("/")[0]
        if not any(
            began <= ended_at
            and fault.process in ("", process)
            # A patient send outlasts a blip: only one that ends in it, or right behind it, may have been refused.
            and (
                over + _RECOVERY + far >= sent.at
                if fault.broker == SECONDARY
                else fault.kind in BLIPS and over + _BLIP_RECOVERY + far >= ended_at
            )
            for began, over, fault in struck
        ):
            text = f"{sent.number} was refused, and nothing was wrong with the secondary: {sent.error}"
            yield Violation(Verdict.STATE, ended_at, text, sent.number)


def _lost(facts: Facts, sent: Sent, found: Found) -> Iterator[Violation]:
    number, at = sent.number, sent.ended_at or sent.at
    for copy in facts.at_secondary[number]:
        problem = left_wrongly(facts, sent, copy)
        if problem:
            yield Violation(Verdict.LOST, copy.gone_at or at, f"{number} in {copy.entity}: {problem}", number)
    set_aside = number in found.dead
    if set_aside:
        # No fault of chaos is a message's own: the cause of a refusal is fixed later, and the message should have
        # waited.
        text = f"{number} is in the dead-letter queue of {found.dead[number]}{_why_dead(facts, sent)}"
        yield Violation(Verdict.LOST, at, text, number)
    if sent.result is None or not sent.result.accepted or facts.at_primary[number] or set_aside:
        return
    if number in found.backlog:
        text = f"{number} was {sent.result}, and is still in {found.backlog[number]}"
        yield Violation(Verdict.NOT_DRAINED, at, text, number)
    else:
        yield Violation(Verdict.LOST, at, f"{number} was {sent.result} and is missing", number)


def _why_dead(facts: Facts, sent: Sent) -> str:
    for note in facts.history.notes:
        event = note.event
        if isinstance(event, MessageDeadLettered) and event.message_id == sent.message.message_id:
            return f", by {note.life}: {event.description}"
    return ""


def _doubled(facts: Facts, sent: Sent) -> Iterator[Violation]:
    number = sent.number
    home = facts.at_primary[number]
    yield from _brought_twice(facts, sent)
    writes = [
        each
        for each, _ in (*facts.attempts[number], *facts.by_syphon[number])
        if each.broker == PRIMARY and may_have_stored(each, number)
    ]
    if len(home) > len(writes):
        text = f"the primary holds {number} {len(home)} times, and {len(writes)} writes may have stored it"
        yield Violation(Verdict.DUPLICATE if writes else Verdict.PHANTOM, home[-1].at, text, number)
    elif len(home) > 1 and not _explained(facts, sent):
        text = f"the primary holds {number} {len(home)} times, and no duplicate was reported to its sender or a syphon"
        yield Violation(Verdict.DUPLICATE, home[-1].at, text, number)


def _explained(facts: Facts, sent: Sent) -> bool:
    """Whether a possible second copy was reported, or the process was killed before that."""
    if sent.maybe_duplicate or sent.result in (None, Result.UNKNOWN, Result.CANCELLED):
        return True
    for note in facts.moved[sent.message.message_id or ""]:
        event = note.event
        if isinstance(event, MessageMoved) and (event.maybe_duplicate or event.redelivered or not event.completed):
            return True
    # A syphon that was killed after it had sent the message reports nothing.
    told = {note.life for note in facts.moved[sent.message.message_id or ""]}
    return any(facts.lives[each.life].killed and each.life not in told for each, _ in facts.by_syphon[sent.number])


def _brought_twice(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """A syphon remembers what it has moved (ADR 7), and sends only what was delivered to it."""
    number = sent.number
    # What a syphon postpones is a second copy until the first one is completed, for which its lock may be over.
    writes = (*facts.attempts[number], *facts.by_syphon[number])
    diverted = sum(each.broker == SECONDARY and may_have_stored(each, number) for each, _ in writes)
    handed = [handover for copy in facts.at_secondary[number] for handover in copy.handovers]
    brought: Counter[str] = Counter()
    for attempt, told in facts.by_syphon[number]:
        if attempt.broker != PRIMARY:
            continue
        # Of several copies in the backlog each is moved.
        if brought[attempt.life] and diverted < 2:
            text = f"the syphon of {attempt.life} had moved {number} to the primary, and sent it again"
            yield Violation(Verdict.DUPLICATE, attempt.at, text, number)
        brought[attempt.life] += told is not None and told.confirmed
        if not any(each.life == attempt.life and each.tick < attempt.tick for each in handed):
            text = f"the syphon of {attempt.life} sent {number}, which it had never received"
            yield Violation(Verdict.PHANTOM, attempt.at, text, number)
