"""What the judge asks of each message: was it lost, doubled, altered, late, and was the truth said of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from pairmq.core import MAYBE_DUPLICATE
from pairmq.model import FailureReason
from pairmq.model.events import SendCompleted, SendOutcome
from pairmq.testing.simulator._facts import Facts
from pairmq.testing.simulator._history import Copy, Result, Sent
from pairmq.testing.simulator._scenario import PRIMARY, SECONDARY
from pairmq.testing.simulator._verdict import Verdict, Violation

_EXACT = 0.05  # s: virtual time has no excuse for more
_SETTLED = 25.0  # s without any fault within which a completion must have been tried again
_WALLS = 1.5  # s by which two processes' wall clocks may differ, and a bit

# What a syphon may set aside at once (ADR 4): the others pass, and the message has to wait.
_PASSING = frozenset(
    reason.value
    for reason in (FailureReason.UNAUTHORIZED, FailureReason.QUOTA, FailureReason.DISABLED, FailureReason.CLOSED)
)


def messages_judged(facts: Facts) -> Iterator[Violation]:
    """All that is wrong with single messages."""
    reported = {
        note.event.message_id: note.event.outcome
        for note in facts.history.notes
        if isinstance(note.event, SendCompleted)
    }
    for sent in facts.history.sent.values():
        yield from _lost(facts, sent)
        yield from _phantom(facts, sent, reported)
        yield from _doubled(facts, sent)
        yield from _marks(facts, sent)
        yield from _stuck(facts, sent)
        yield from _other_queue(facts, sent)
        yield from _late(facts, sent)
    yield from _nobodys(facts)


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
            yield Violation(Verdict.LOST, at, f"{number} was accepted by a backlog queue and is nowhere", number)
    for copy in backlog:
        problem = _left_wrongly(facts, sent, copy)
        if problem:
            yield Violation(Verdict.LOST, copy.gone_at or at, f"{number}, copy {copy.number}: {problem}", number)


def _confirmed(facts: Facts, copy: Copy) -> bool:
    told = facts.told(copy)
    return told is not None and told.confirmed


def _left_wrongly(facts: Facts, sent: Sent, copy: Copy) -> str | None:
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
        if facts.options[True].ttl_policy == "elapse" and lives is not None and waited >= lives - _WALLS:
            return None
        return "it was dead-lettered as expired, and was not"
    for each, told in writes:
        refused = told is not None and told.kind == "refused" and told.reason not in _PASSING
        if refused and each.entity == sent.entity and (each.end_tick or 0) < gone:
            return None
    return f"it was dead-lettered ({copy.reason}) although nothing had refused it for good"


# Phantoms.


def _phantom(facts: Facts, sent: Sent, reported: dict[str, SendOutcome]) -> Iterator[Violation]:
    number = sent.number
    home, backlog = facts.at_primary[number], facts.at_secondary[number]
    for copy in home:
        problem = _altered(facts, sent, copy)
        if problem:
            yield Violation(Verdict.PHANTOM, copy.at, f"{number}, copy {copy.number}: {problem}", number)
    yield from _expired(facts, sent)
    ids = {copy.message.message_id for copy in (*home, *backlog)}
    if len(ids) > 1:
        yield Violation(
            Verdict.PHANTOM, sent.at, f"{number} had more than one message id: {sorted(map(str, ids))}", number
        )
    at = sent.ended_at or sent.at
    outcome = reported.get(f"id-{number}")
    said = "an event says" if sent.result is not Result.REFUSED else "its caller was told"
    if sent.result is Result.REFUSED or outcome is SendOutcome.REFUSED:
        for copy in (*home, *backlog):
            text = f"{said} that {number} was refused, and the {copy.broker} stored it as copy {copy.number}"
            yield Violation(Verdict.PHANTOM, at, text, number)
            break
        else:
            if facts.doubtful(sent, sent.end_tick or 0):
                text = f"{said} that {number} was refused, although an attempt was in doubt"
                yield Violation(Verdict.PHANTOM, at, text, number)
    if sent.result is Result.CANCELLED and outcome is SendOutcome.REFUSED:
        yield Violation(Verdict.PHANTOM, at, f"{number} was cancelled, and an event says that it was refused", number)
    attempts = facts.attempts[number]
    for (one, told), (another, _) in itertools.pairwise(attempts):
        if told is not None and told.kind == "refused" and one.broker == PRIMARY:
            text = f"the primary refused {number} ({told.reason}), and it was sent to the {another.broker} all the same"
            yield Violation(Verdict.PHANTOM, another.at, text, number)


def _expired(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """Where the time in the backlog counts, what has run out of it is not delivered."""
    backlog, lives = facts.at_secondary[sent.number], sent.message.time_to_live
    if not backlog or lives is None or facts.options[True].ttl_policy != "elapse":
        return
    diverted_at = max(copy.at for copy in backlog if not facts.is_syphons(copy))
    for attempt, _ in facts.by_syphon[sent.number]:
        if attempt.broker == PRIMARY and attempt.at > diverted_at + lives + _WALLS:
            waited = attempt.at - diverted_at
            text = f"{sent.number} lives {lives:g} s, and was sent home {waited:.3f} s after it was diverted"
            yield Violation(Verdict.PHANTOM, attempt.at, text, sent.number)


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
        least = wanted.time_to_live - (copy.at - sent.at) - _WALLS
        if (
            least <= found.time_to_live <= wanted.time_to_live
            and replace(found, time_to_live=wanted.time_to_live) == wanted
        ):
            return None
    names = [name for name in type(wanted).__slots__ if getattr(wanted, name) != getattr(found, name)]
    parts = [f"{name} was {getattr(wanted, name)!r} and is {getattr(found, name)!r}" for name in names]
    return f"it was changed on its way: {'; '.join(parts)[:400]}"


def _nobodys(facts: Facts) -> Iterator[Violation]:
    for copy in facts.nobodys:
        text = f"the primary stored {copy.message.message_id} in {copy.entity}, which nobody sent"
        yield Violation(Verdict.PHANTOM, copy.at, text)
    for number, copies in facts.at_primary.items():
        if number not in facts.history.sent:
            yield Violation(Verdict.PHANTOM, copies[0].at, f"the primary stored {number}, which nobody sent", number)


# Duplicates.


def _doubled(facts: Facts, sent: Sent) -> Iterator[Violation]:
    number = sent.number
    home, backlog = facts.at_primary[number], facts.at_secondary[number]
    confirmed = [each for each, told in facts.attempts[number] if told is not None and told.confirmed]
    if len(confirmed) > 1:
        text = f"{number} was sent again after the {confirmed[0].broker} had confirmed it"
        yield Violation(Verdict.DUPLICATE, confirmed[1].at, text, number)
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
    """A syphon remembers what it brought home (ADR 7), and sends nothing under a lock that has run out (SPEC 7.6)."""
    brought: Counter[str] = Counter()
    for attempt, told in facts.by_syphon[sent.number]:
        if attempt.broker != PRIMARY:
            continue
        # Of several copies in the backlog each is brought home.
        if brought[attempt.life] and len(backlog) == 1:
            text = f"the syphon of {attempt.life} had brought {sent.number} home, and sent it again"
            yield Violation(Verdict.DUPLICATE, attempt.at, text, sent.number)
        brought[attempt.life] += told is not None and told.confirmed
        if all(facts.has_run_out(copy, attempt) for copy in backlog):
            text = f"the syphon of {attempt.life} sent {sent.number} home under a lock that had run out"
            yield Violation(Verdict.DUPLICATE, attempt.at, text, sent.number)


def _unsaid(facts: Facts, sent: Sent, home: list[Copy]) -> Iterator[Violation]:
    """A second copy of the syphon's making must be told by an event."""
    written = [copy for copy in home if facts.is_syphons(copy)]
    if len(written) < 2 or not _confirmed(facts, written[-1]):
        return
    last = written[-1]
    notes = facts.moved[last.message.message_id or ""]
    events = [note.event for note in notes]
    said = any(each.maybe_duplicate or each.redelivered or not each.completed for each in events)  # type: ignore[attr-defined]
    if any(note.tick > last.tick for note in notes) and not said:
        text = f"the syphon brought {sent.number} home {len(written)} times, and no event says that it may have"
        yield Violation(Verdict.DUPLICATE, last.at, text, sent.number)


def _marks(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """What is said of possible copies must be so."""
    at = sent.ended_at or sent.at
    if sent.result is not None and sent.result.accepted:
        doubtful = facts.doubtful(sent, sent.end_tick or 0)
        if doubtful and not sent.maybe_duplicate:
            text = f"an attempt of {sent.number} was in doubt, and its receipt does not say so"
            yield Violation(Verdict.DUPLICATE, at, text, sent.number)
        if sent.maybe_duplicate and not doubtful:
            text = f"the receipt of {sent.number} speaks of a duplicate, and no attempt was in doubt"
            yield Violation(Verdict.DUPLICATE, at, text, sent.number)
    for copy in facts.at_secondary[sent.number]:
        if copy.attempt is None or facts.is_syphons(copy):
            continue
        marked = MAYBE_DUPLICATE in copy.message.application_properties
        if facts.doubtful(sent, facts.history.attempts[copy.attempt].tick) != marked:
            text = f"copy {copy.number} of {sent.number} is {'' if marked else 'not '}marked as a possible duplicate"
            yield Violation(Verdict.DUPLICATE, copy.at, text, sent.number)


def _stuck(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """What came home is completed as soon as the secondary answers again."""
    backlog = facts.at_secondary[sent.number]
    if len(backlog) != 1:
        return  # of several, nobody can tell which one an attempt was of
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
                    f"{sent.number} came home, and was not completed as copy {copy.number} in {_SETTLED:g} calm seconds"
                )
                yield Violation(Verdict.NOT_DRAINED, calm, text, sent.number)
                return


def _other_queue(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """A message that a backlog queue did not take goes to another one (SPEC 5.4)."""
    options = facts.options[True]
    fair = min(options.attempt_timeout, 1.0) - 0.0005
    attempts = [each for each in facts.attempts[sent.number] if each[0].broker == SECONDARY]
    for (one, told), (another, _) in itertools.pairwise(attempts):
        if told is None or one.entity != another.entity or told.kind not in ("unavailable", "refused", "cut"):
            continue
        if told.kind == "cut" and (one.ended_at or one.at) - one.at < fair:
            continue
        if not any((one.end_tick or 0) < tick < another.tick for tick in facts.returns[one.life, one.entity.path]):
            text = f"{one.entity} did not take {sent.number} ({told}), and was tried again"
            yield Violation(Verdict.STATE, another.at, text, sent.number)


# Deadlines.


def _late(facts: Facts, sent: Sent) -> Iterator[Violation]:
    life = facts.lives.get(sent.life)
    if sent.result is None:
        if life is None or not life.killed:
            yield Violation(Verdict.DEADLINE, sent.at, f"the send of {sent.number} never ended", sent.number)
        return
    if life is not None and life.closing_at is not None and sent.at <= life.closing_at:
        grace = facts.options[life.syphon].close_grace
        over = (sent.ended_at or sent.at) - life.closing_at - grace
        if over > _EXACT:
            text = f"the send of {sent.number} ended {over:.3f} s after the grace of its pair's close"
            yield Violation(Verdict.CLOSE, sent.ended_at or sent.at, text, sent.number)
    took = (sent.ended_at or sent.at) - sent.at
    if took > sent.timeout + _EXACT:
        text = f"the send of {sent.number} took {took:.3f} s and had {sent.timeout:.3f} s"
        yield Violation(Verdict.DEADLINE, sent.ended_at or sent.at, text, sent.number)
