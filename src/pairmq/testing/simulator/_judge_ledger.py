"""What the judge asks of each message by the callers' ledger, the events and what the primary holds in the end.

Nothing here needs to know when a broker stored what: a history of real servers, which don't report that, is judged by
the same words (`pairmq.testing.chaos`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from pairmq.core import MAYBE_DUPLICATE
from pairmq.model import BacklogUnavailable, FailureReason, MessageTooLarge, PrimaryUnavailable, ReservedPropertyError
from pairmq.model.events import SendCompleted, SendOutcome
from pairmq.testing.simulator._facts import WALLS, Facts
from pairmq.testing.simulator._history import Copy, Result, Sent
from pairmq.testing.simulator._scenario import PRIMARY, SECONDARY
from pairmq.testing.simulator._verdict import Verdict, Violation

# What a syphon must not dead-letter (ADR 4): some refusals pass, and the message has to wait; what the primary can
# never hold is refused when it is sent (SPEC 3.8).
_NO_REASON = frozenset(
    reason.value
    for reason in (
        FailureReason.UNAUTHORIZED,
        FailureReason.QUOTA,
        FailureReason.DISABLED,
        FailureReason.CLOSED,
        FailureReason.TOO_LARGE,
    )
)

_TRIALS = 10.0  # s: several of the longest waits between two attempts

_NOTHING_TOOK_IT = frozenset(error.__name__ for error in (BacklogUnavailable, PrimaryUnavailable))

_UNSEEN = frozenset(error.__name__ for error in (MessageTooLarge, ReservedPropertyError))
"""Refusals that need no broker's word."""


def ledger_judged(facts: Facts) -> Iterator[Violation]:
    """All violations of single messages, from the ledger, the events and the contents."""
    reported = {
        note.event.message_id: note.event for note in facts.history.notes if isinstance(note.event, SendCompleted)
    }
    for sent in facts.history.sent.values():
        yield from _phantom(facts, sent, reported)
        yield from _sent_again(facts, sent)
        yield from _marks(facts, sent)
        yield from _other_queue(facts, sent)
        yield from _given_up(facts, sent)
        yield from _late(facts, sent)
    yield from _unsent(facts)


def refused_for_good(facts: Facts, sent: Sent, before: int) -> bool:
    """Whether the primary had refused it to a syphon before a tick, permanently (ADR 4)."""
    for each, told in facts.by_syphon[sent.number]:
        refused = told is not None and told.kind == "refused" and told.reason not in _NO_REASON
        if refused and each.entity == sent.entity and (each.end_tick or 0) < before:
            return True
    return False


# Phantoms.


def _phantom(facts: Facts, sent: Sent, reported: dict[str, SendCompleted]) -> Iterator[Violation]:
    number = sent.number
    home, backlog = facts.at_primary[number], facts.at_secondary[number]
    for copy in home:
        problem = _altered(facts, sent, copy)
        if problem:
            yield Violation(Verdict.PHANTOM, copy.at, f"{number}, copy {copy.number}: {problem}", number)
    ids = {copy.message.message_id for copy in (*home, *backlog)}
    if len(ids) > 1:
        yield Violation(
            Verdict.PHANTOM, sent.at, f"{number} had more than one message id: {sorted(map(str, ids))}", number
        )
    at = sent.ended_at or sent.at
    event = reported.get(f"id-{number}")
    outcome = None if event is None else event.outcome
    said = "an event says" if sent.result is not Result.REFUSED else "its caller got"
    if sent.result is Result.REFUSED or outcome is SendOutcome.REFUSED:
        for copy in (*home, *backlog):
            text = f"{said} that {number} was refused, and the {copy.broker} stored it as copy {copy.number}"
            yield Violation(Verdict.PHANTOM, at, text, number)
            break
        else:
            if facts.doubtful(sent, sent.end_tick or 0):
                text = f"{said} that {number} was refused, although an attempt was in doubt"
                yield Violation(Verdict.PHANTOM, at, text, number)
    # Of a batch that is cancelled, some may have been refused for certain already: by brokers, or before any saw them.
    told_of = [told for _, told in facts.attempts[number]]
    refused = all(told is not None and not (told.doubtful or told.confirmed) for told in told_of)
    if not told_of:
        refused = event is not None and event.error in _UNSEEN
    if sent.result is Result.CANCELLED and outcome is SendOutcome.REFUSED and not refused:
        yield Violation(Verdict.PHANTOM, at, f"{number} was cancelled, and an event says that it was refused", number)
    attempts = facts.attempts[number]
    for (one, told), (another, _) in itertools.pairwise(attempts):
        if told is not None and told.kind == "refused" and one.broker == PRIMARY:
            text = f"the primary refused {number} ({told.reason}), but it was sent to the {another.broker}"
            yield Violation(Verdict.PHANTOM, another.at, text, number)


def _altered(facts: Facts, sent: Sent, copy: Copy) -> str | None:
    """How a copy differs from what was sent."""
    if copy.entity != sent.entity:
        return f"it was sent to {sent.entity} and came to {copy.entity}"
    wanted, found = sent.message, copy.message
    if wanted.message_id is None:
        wanted = replace(wanted, message_id=found.message_id)
    if wanted == found:
        return None
    elapsed = facts.is_syphons(copy) and facts.options[True].ttl_policy == "elapse"
    if elapsed and wanted.time_to_live is not None and found.time_to_live is not None:
        least = wanted.time_to_live - (copy.at - sent.at) - WALLS
        if (
            least <= found.time_to_live <= wanted.time_to_live
            and replace(found, time_to_live=wanted.time_to_live) == wanted
        ):
            return None
    names = [name for name in type(wanted).__slots__ if getattr(wanted, name) != getattr(found, name)]
    parts = [f"{name} was {getattr(wanted, name)!r} and is {getattr(found, name)!r}" for name in names]
    return f"it was changed in transit: {'; '.join(parts)[:400]}"


def _unsent(facts: Facts) -> Iterator[Violation]:
    for copy in facts.nobodys:
        text = f"the primary stored {copy.message.message_id} in {copy.entity}, which was never sent"
        yield Violation(Verdict.PHANTOM, copy.at, text)
    for number, copies in facts.at_primary.items():
        if number not in facts.history.sent:
            yield Violation(Verdict.PHANTOM, copies[0].at, f"the primary stored {number}, which was never sent", number)


# Duplicates.


def _sent_again(facts: Facts, sent: Sent) -> Iterator[Violation]:
    confirmed = [each for each, told in facts.attempts[sent.number] if told is not None and told.confirmed]
    if len(confirmed) > 1:
        text = f"{sent.number} was sent again after the {confirmed[0].broker} had confirmed it"
        yield Violation(Verdict.DUPLICATE, confirmed[1].at, text, sent.number)


def _marks(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """What is said of possible copies must be so."""
    at = sent.ended_at or sent.at
    if sent.result is not None and sent.result.accepted:
        doubtful = facts.doubtful(sent, sent.end_tick or 0)
        if doubtful and not sent.maybe_duplicate:
            text = f"an attempt of {sent.number} was in doubt, but its receipt does not report it"
            yield Violation(Verdict.DUPLICATE, at, text, sent.number)
        if sent.maybe_duplicate and not doubtful:
            text = f"the receipt of {sent.number} reports a duplicate, but no attempt was in doubt"
            yield Violation(Verdict.DUPLICATE, at, text, sent.number)
    for copy in facts.at_secondary[sent.number]:
        if copy.attempt is None or facts.is_syphons(copy):
            continue
        marked = MAYBE_DUPLICATE in copy.message.application_properties
        if facts.doubtful(sent, facts.history.attempts[copy.attempt].tick) != marked:
            text = f"copy {copy.number} of {sent.number} is {'' if marked else 'not '}marked as a possible duplicate"
            yield Violation(Verdict.DUPLICATE, copy.at, text, sent.number)


def _other_queue(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """What a backlog queue did not take goes to another one in use (SPEC 5.4), unless order forbids it (SPEC 8.2)."""
    options = facts.options[True]
    if options.ordering == "session":
        return
    fair = min(options.attempt_timeout, 1.0) - 0.0005
    attempts = [each for each in facts.attempts[sent.number] if each[0].broker == SECONDARY]
    for (one, told), (another, _) in itertools.pairwise(attempts):
        if told is None or one.entity != another.entity or told.kind not in ("unavailable", "refused", "cut"):
            continue
        ended_at = one.ended_at or one.at
        slept = facts.allowance(one.life, one.at, ended_at) - facts.history.grace
        if told.kind == "cut" and ended_at - one.at - slept < fair:
            continue
        if not facts.has_queue(another.life, another.tick):
            continue  # it was the probing send of a queue (SPEC 5.5)
        if told.reason == "not-found" and facts.was_made(one.entity, one.at, another.at):
            continue
        if not any((one.end_tick or 0) < tick < another.tick for tick in facts.returns[one.life, one.entity.path]):
            text = f"{one.entity} did not accept {sent.number} ({told}), but was retried"
            yield Violation(Verdict.STATE, another.at, text, sent.number)


# Patience (SPEC 5.5).


def _given_up(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """While no broker takes it a send waits for either until its deadline, and finds out soon that one is back."""
    life = facts.lives.get(sent.life)
    if sent.error not in _NOTHING_TOOK_IT or life is None or not facts.history.virtual:
        return
    ended_at, options = sent.ended_at or sent.at, facts.options[life.syphon]
    if options.while_failing != "wait" or (life.closing_at is not None and life.closing_at <= ended_at):
        return
    if ended_at < sent.at + sent.timeout - facts.history.grace:
        text = f"{sent.number} was refused after {ended_at - sent.at:.3f} s, and had {sent.timeout:.3f} s"
        yield Violation(Verdict.STATE, ended_at, text, sent.number)
    began_at = ended_at - _TRIALS - 2 * options.attempt_timeout
    if options.ordering == "session" and not any(each.at <= began_at for each, _ in facts.attempts[sent.number]):
        return  # earlier sends of its key had their turn first
    if began_at > sent.at and facts.is_calm(began_at, ended_at):
        text = f"{sent.number} was refused, and both brokers worked for the last {ended_at - began_at:.1f} s"
        yield Violation(Verdict.STATE, ended_at, text, sent.number)


# Deadlines.


def _late(facts: Facts, sent: Sent) -> Iterator[Violation]:
    life = facts.lives.get(sent.life)
    if sent.result is None:
        if life is None or not life.killed:
            yield Violation(Verdict.DEADLINE, sent.at, f"the send of {sent.number} never ended", sent.number)
        return
    if life is not None and life.closing_at is not None and sent.at <= life.closing_at:
        grace = facts.options[life.syphon].close_grace
        ended_at, ends_at = sent.ended_at or sent.at, life.closing_at + grace
        over = ended_at - ends_at
        if over > facts.allowance(sent.life, ends_at, ended_at):
            text = f"the send of {sent.number} ended {over:.3f} s after the grace of its pair's close"
            yield Violation(Verdict.CLOSE, sent.ended_at or sent.at, text, sent.number)
    ended_at = sent.ended_at or sent.at
    took = ended_at - sent.at
    if took > sent.timeout + facts.allowance(sent.life, sent.at + sent.timeout, ended_at):
        text = f"the send of {sent.number} took {took:.3f} s and had {sent.timeout:.3f} s"
        yield Violation(Verdict.DEADLINE, sent.ended_at or sent.at, text, sent.number)
