"""What the judge asks of simulated messages besides: locks, queues and faults are known there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pairmq.model import BacklogUnavailable, PrimaryUnavailable
from pairmq.testing.history import PRIMARY, SECONDARY, Sent
from pairmq.testing.judge import WALLS, Verdict, Violation
from pairmq.testing.simulator._facts import Facts
from pairmq.testing.simulator._shipped import size_of

_SETTLED = 25.0  # s without any fault within which a completion must have been tried again
_TRIALS = 10.0  # s: several of the longest waits between two attempts
_NOTHING_TOOK_IT = frozenset(error.__name__ for error in (BacklogUnavailable, PrimaryUnavailable))


def simulated_judged(facts: Facts) -> Iterator[Violation]:
    """All that is wrong with single messages where brokers report when they stored, delivered and deleted what."""
    for sent in facts.history.sent.values():
        yield from _expired(facts, sent)
        yield from _redelivered(facts, sent)
        yield from _expired_locks(facts, sent)
        yield from _stuck(facts, sent)
        yield from _never_fits(facts, sent)


def routes_judged(facts: Facts) -> Iterator[Violation]:
    """All that is wrong with the choice of brokers and queues."""
    for sent in facts.history.sent.values():
        yield from _other_queue(facts, sent)
        yield from _given_up(facts, sent)


def _expired(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """Where the time in the backlog counts, what has run out of it is not delivered."""
    backlog, lives = facts.at_secondary[sent.number], sent.message.time_to_live
    if not backlog or lives is None or facts.options.ttl_policy != "elapse":
        return
    diverted_at = max(copy.at for copy in backlog if not facts.is_syphons(copy))
    for attempt, _ in facts.by_syphon[sent.number]:
        if attempt.broker == PRIMARY and attempt.at > diverted_at + lives + WALLS:
            waited = attempt.at - diverted_at
            text = f"{sent.number} lives {lives:g} s, and was sent to the primary {waited:.3f} s after it was diverted"
            yield Violation(Verdict.PHANTOM, attempt.at, text, sent.number)


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
    """A syphon gets a message again only if something has ended its lock."""
    for copy in facts.at_secondary[sent.number]:
        for index in range(1, len(copy.handovers)):
            if not facts.redelivery_explained(copy, index):
                at = copy.handovers[index].at
                text = f"{sent.number}, copy {copy.number}, was delivered to a syphon again for no reason"
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
        if life is None:
            continue
        following = copy.handovers[index + 1].at if index + 1 < len(copy.handovers) else copy.gone_at
        ends = (following, life.ended_at, life.closing_at, facts.history.ended_at)
        until = min(each for each in ends if each is not None)
        for attempt, told in facts.by_syphon[sent.number]:
            if told is None or not told.confirmed or attempt.life != life.name or attempt.tick < handover.tick:
                continue
            calm = facts.calm_for(attempt.ended_at or attempt.at, until, _SETTLED)
            if calm is not None and not facts.began_anew(life, copy, attempt.tick):
                text = (
                    f"{sent.number} reached the primary, but was not completed as copy {copy.number} in {_SETTLED:g} "
                    "calm seconds"
                )
                yield Violation(Verdict.NOT_DRAINED, calm, text, sent.number)
                return


# Routes.


def _other_queue(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """What a backlog queue did not take goes to another one in use (SPEC 5.4), unless order forbids it (SPEC 8.2)."""
    options = facts.options
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
    if sent.error not in _NOTHING_TOOK_IT or life is None or not facts.history.exact:
        return
    ended_at, options = sent.ended_at or sent.at, facts.options
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
