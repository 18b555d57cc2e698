"""What the judge asks of each message with the brokers' own word for what they stored, and when: lost, or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pairmq.testing.simulator._facts import WALLS, Facts
from pairmq.testing.simulator._history import Copy, Result, Sent
from pairmq.testing.simulator._judge_ledger import ledger_judged, refused_for_good
from pairmq.testing.simulator._scenario import PRIMARY
from pairmq.testing.simulator._shipped import size_of
from pairmq.testing.simulator._verdict import Verdict, Violation

_SETTLED = 25.0  # s without any fault within which a completion must have been tried again


def messages_judged(facts: Facts) -> Iterator[Violation]:
    """All that is wrong with single messages."""
    yield from ledger_judged(facts)
    for sent in facts.history.sent.values():
        yield from _lost(facts, sent)
        yield from _expired(facts, sent)
        yield from _doubled(facts, sent)
        yield from _stuck(facts, sent)
        yield from _never_fits(facts, sent)


# Lost.


def _lost(facts: Facts, sent: Sent) -> Iterator[Violation]:
    number = sent.number
    home, backlog = facts.at_primary[number], facts.at_secondary[number]
    at = sent.ended_at or sent.at
    if sent.result is Result.PRIMARY and not any(_confirmed(facts, copy) for copy in home):
        yield Violation(Verdict.LOST, at, f"{sent.number} was accepted by the primary, which never stored it", number)
    elif sent.result is Result.BACKLOG:
        if not any(copy.entity.path == sent.queue and _confirmed(facts, copy) for copy in backlog):
            text = f"{number} was accepted by backlog queue {sent.queue}, which never stored it"
            yield Violation(Verdict.LOST, at, text, number)
        elif not home and not any(copy.gone in ("", "deleted", "dead-lettered") for copy in backlog):
            yield Violation(Verdict.LOST, at, f"{number} was accepted by a backlog queue and is missing", number)
    for copy in backlog:
        problem = left_wrongly(facts, sent, copy)
        if problem:
            yield Violation(Verdict.LOST, copy.gone_at or at, f"{number}, copy {copy.number}: {problem}", number)


def _confirmed(facts: Facts, copy: Copy) -> bool:
    told = facts.told(copy)
    return told is not None and told.confirmed


def left_wrongly(facts: Facts, sent: Sent, copy: Copy) -> str | None:
    """Why a copy should not have left its backlog queue; None when all was right."""
    gone = copy.gone_tick or 0
    writes = facts.by_syphon[sent.number]
    if copy.gone == "completed":
        if any(told is not None and told.confirmed and (each.end_tick or 0) < gone for each, told in writes):
            return None
        return "it was completed before anything had confirmed that it arrived"
    if copy.gone == "expired":
        return "its time-to-live ran out in the backlog, unseen"
    if copy.gone != "dead-lettered":
        return None
    if copy.reason == "TTLExpiredException":
        lives, waited = sent.message.time_to_live, (copy.gone_at or 0.0) - sent.at
        if facts.options[True].ttl_policy == "elapse" and lives is not None and waited >= lives - WALLS:
            return None
        return "it was dead-lettered as expired, and was not"
    if refused_for_good(facts, sent, gone):
        return None
    return f"it was dead-lettered ({copy.reason}) although nothing had refused it permanently"


def _expired(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """Where the time in the backlog counts, what has run out of it is not delivered."""
    backlog, lives = facts.at_secondary[sent.number], sent.message.time_to_live
    if not backlog or lives is None or facts.options[True].ttl_policy != "elapse":
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


# Duplicates.


def _doubled(facts: Facts, sent: Sent) -> Iterator[Violation]:
    number = sent.number
    home, backlog = facts.at_primary[number], facts.at_secondary[number]
    confirmed = [each for each, told in facts.attempts[number] if told is not None and told.confirmed]
    yield from _brought_twice(facts, sent, backlog)
    redelivered = 0
    for copy in backlog:
        for index in range(1, len(copy.handovers)):
            redelivered += 1
            if not facts.redelivery_explained(copy, index):
                at = copy.handovers[index].at
                text = f"{number}, copy {copy.number}, was delivered to a syphon again for no reason"
                yield Violation(Verdict.DUPLICATE, at, text, number)
    if len(home) < 2:
        return
    doubts = 0
    for copy in (*home, *backlog):
        if not _confirmed(facts, copy):
            doubts += 1
    reasons = len(confirmed) + doubts + redelivered
    if len(home) > reasons:
        text = (
            f"the primary has stored {number} {len(home)} times: {len(confirmed)} confirmed, {doubts} in doubt, "
            f"{redelivered} redelivered explain {reasons}"
        )
        yield Violation(Verdict.DUPLICATE, home[-1].at, text, number)
    yield from _unsaid(facts, sent, home)


def _brought_twice(facts: Facts, sent: Sent, backlog: list[Copy]) -> Iterator[Violation]:
    """A syphon remembers what it has moved (ADR 7), and sends nothing under an expired lock (SPEC 7.6)."""
    brought: Counter[str] = Counter()
    for attempt, told in facts.by_syphon[sent.number]:
        if attempt.broker != PRIMARY:
            continue
        # Of several copies in the backlog each is moved.
        if brought[attempt.life] and len(backlog) == 1:
            text = f"the syphon of {attempt.life} had moved {sent.number} to the primary, and sent it again"
            yield Violation(Verdict.DUPLICATE, attempt.at, text, sent.number)
        brought[attempt.life] += told is not None and told.confirmed
        if all(facts.has_run_out(copy, attempt) for copy in backlog):
            text = f"the syphon of {attempt.life} sent {sent.number} to the primary under an expired lock"
            yield Violation(Verdict.DUPLICATE, attempt.at, text, sent.number)


def _unsaid(facts: Facts, sent: Sent, home: list[Copy]) -> Iterator[Violation]:
    """A second copy made by the syphon must be reported by an event."""
    written = [copy for copy in home if facts.is_syphons(copy)]
    if len(written) < 2 or not _confirmed(facts, written[-1]):
        return
    last = written[-1]
    notes = facts.moved[last.message.message_id or ""]
    events = [note.event for note in notes]
    said = any(each.maybe_duplicate or each.redelivered or not each.completed for each in events)  # type: ignore[attr-defined]
    if any(note.tick > last.tick for note in notes) and not said:
        text = f"the syphon moved {sent.number} {len(written)} times, and no event reports a possible duplicate"
        yield Violation(Verdict.DUPLICATE, last.at, text, sent.number)


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
