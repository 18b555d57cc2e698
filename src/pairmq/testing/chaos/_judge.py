"""The judge of a chaos run: that of all messages, that of pairs, and what real servers show besides."""

from __future__ import annotations

from collections.abc import Iterator

from pairmq.model import BacklogUnavailable, PrimaryUnavailable
from pairmq.model.events import MessageDeadLettered
from pairmq.testing.chaos._books import Found
from pairmq.testing.history import PRIMARY, SECONDARY, Result, Sent
from pairmq.testing.judge import Verdict, Violation, messages_judged
from pairmq.testing.simulator._facts import Facts
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._judge_pair import pair_judged
from pairmq.testing.simulator._scenario import BLIPS

_NOTHING_TOOK_IT = (BacklogUnavailable.__name__, PrimaryUnavailable.__name__)
_RECOVERY = 8.0  # s after a fault of the secondary within which its queues must be in use again, on a busy machine
_BLIP_RECOVERY = 3.0  # s: likewise after a fault of both brokers that is shorter than any send is patient
_ROUND_TRIPS = 8  # that connecting anew takes of a distant broker
_ASLEEP = 1.0  # s without processor after which a process is not asked why it refused


def judged(history: History, found: Found) -> list[Violation]:
    """Find everything that is wrong in a run, oldest first."""
    facts = Facts(history)
    violations = [
        *messages_judged(facts),
        *pair_judged(facts),
        *_slow(facts),
        *_refused_without_need(facts),
        *_dead(facts, found),
        *_unwritten(facts),
        *_vanished(facts, found),
    ]
    return sorted(violations, key=lambda violation: violation.at)


def duplicates_explained(history: History) -> int:
    """Second copies at the primary that were reported as possible."""
    facts = Facts(history)
    return sum(
        len(copies) - 1
        for number, copies in facts.at_primary.items()
        if number in history.sent and facts.explained(history.sent[number])
    )


def _slow(facts: Facts) -> Iterator[Violation]:
    """No operation at a broker outlives its limit; with the failover interval that bounds the time to a divert."""
    limit = facts.options.attempt_timeout
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


def _dead(facts: Facts, found: Found) -> Iterator[Violation]:
    """No fault of chaos is a message's own: the cause of a refusal is fixed later, and it should have waited."""
    for number, queue in found.dead.items():
        sent = facts.history.sent.get(number)
        if sent is not None:
            text = f"{number} is in the dead-letter queue of {queue}{_why_dead(facts, sent)}"
            yield Violation(Verdict.LOST, sent.ended_at or sent.at, text, number)


def _unwritten(facts: Facts) -> Iterator[Violation]:
    """A write whose error reports it as certainly not applied stores nothing."""
    for number, copies in facts.at_primary.items():
        if number in facts.history.sent and copies and not facts.writes(number, PRIMARY):
            text = f"the primary holds {number}, and no write may have stored it"
            yield Violation(Verdict.PHANTOM, copies[-1].at, text, number)


def _vanished(facts: Facts, found: Found) -> Iterator[Violation]:
    """A dead-lettering that was only requested excuses nothing: the message must be in a dead-letter queue."""
    for number, sent in facts.history.sent.items():
        account = facts.account(sent)
        kept = number in found.dead or account.waiting_in or account.at_primary or account.handled
        if sent.result is not None and sent.result.accepted and account.excused and not kept:
            text = f"{number} was {sent.result}, and is missing, also in the dead-letter queues"
            yield Violation(Verdict.LOST, sent.ended_at or sent.at, text, number)


def _why_dead(facts: Facts, sent: Sent) -> str:
    for note in facts.history.notes:
        event = note.event
        if isinstance(event, MessageDeadLettered) and event.message_id == sent.message.message_id:
            return f", by {note.life}: {event.description}"
    return ""
