"""The judge of messages: compares what was promised with what the brokers hold, and what was reported with what was so.

It knows neither PairMQ's code nor who wrote the history: simulations, runs of chaos and histories made by hand are
judged by the same rules. `Account` is the least that it needs of a message: the demo, which counts only, and the state
machine have that judged.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pairmq.core import MAYBE_DUPLICATE, PairOptions, lane_path
from pairmq.model import Entity, FailureReason, Message, MessageTooLarge, ReservedPropertyError, SendRefused
from pairmq.model.events import MessageMoved, SendCompleted, SendOutcome
from pairmq.testing.history import (
    KILLED,
    PRIMARY,
    SECONDARY,
    Attempt,
    Copy,
    Handling,
    History,
    Life,
    Note,
    Result,
    Sent,
    WriteResult,
)

WALLS = 1.5
"""Seconds by which two processes' wall clocks may differ where nothing is known of them, and a bit."""

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

_UNSEEN = frozenset(error.__name__ for error in (MessageTooLarge, ReservedPropertyError))
"""Refusals that need no response of a broker."""


class Verdict(enum.StrEnum):
    """What is wrong; `promise` is the guarantee that was broken."""

    LOST = "lost"
    PHANTOM = "phantom"
    DUPLICATE = "unexplained duplicate"
    ORDER = "wrong order"
    NOT_DRAINED = "not drained"
    LATE = "handled late"
    DEADLINE = "outlived its deadline"
    CLOSE = "hung close"
    STATE = "wrong state"
    CRASH = "crash"

    @property
    def promise(self) -> str:
        """The guarantee, in a sentence."""
        return _PROMISES[self]


_PROMISES = {
    Verdict.LOST: "Every accepted send is delivered at least once.",
    Verdict.PHANTOM: "Nothing is delivered that was not sent, that was changed, or whose send was refused.",
    Verdict.DUPLICATE: "A second copy comes only from a write in doubt or a redelivery, and is reported as possible.",
    Verdict.ORDER: "Order is lost only where something failed; with ordering by session it never is.",
    Verdict.NOT_DRAINED: "When both brokers work, every backlog queue is drained, and sends use the primary again.",
    Verdict.LATE: "While the secondary and a consumer are up, what a lane accepts is handled within two receives.",
    Verdict.DEADLINE: "No send and no operation at a broker outlives its time limit.",
    Verdict.CLOSE: "Closing ends within its limit, and leaves no task and no lock behind.",
    Verdict.STATE: "Entities change their state, and sends their route, only as specified.",
    Verdict.CRASH: "No exception escapes but those that are documented.",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    verdict: Verdict  # which
    at: float  # the virtual second at which it was so
    text: str  # what happened, in a sentence
    message: int | None = None  # the number of the message, if any

    def __str__(self) -> str:
        return f"{self.verdict} at {self.at:.3f} s: {self.text}"

    def to_dict(self, digits: int) -> dict[str, Any]:
        """The same for a program, with as many digits of the instant."""
        at = round(self.at, digits)
        return {"verdict": self.verdict.value, "at": at, "message": self.message, "text": self.text}


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of one message in the end."""

    results: Sequence[Result | None] = ()  # of each send of it; None where the process was killed first
    at_primary: int = 0  # how many copies the primary has stored
    stored_in: str = ""  # a place that has stored one; empty if none has
    waiting_in: str = ""  # the backlog queue that still holds it although everything had its time; empty if none does
    handled: bool = False  # a consumer has handled it, from the queue's lane
    excused: bool = False  # it may be missing there: it waits, or was dead-lettered for a reason of its own
    announced: bool = False  # a receipt or an event reports that there may be a second copy
    # Confirmed sends to the primary, writes in doubt, deliveries from the backlog; None if not counted.
    reasons: tuple[int, int, int] | None = None

    def judged(self, name: str) -> Iterator[tuple[Verdict, str]]:
        """Find what is wrong with a message of this name."""
        accepted = [result for result in self.results if result is not None and result.accepted]
        kept = [result for result in self.results if result is not Result.REFUSED]
        if not self.results and self.at_primary:
            yield Verdict.PHANTOM, f"{name} is at the primary, but was not sent through the pair"
        elif self.results and not kept and self.stored_in:
            yield Verdict.PHANTOM, f"{name} was refused, and is stored in {self.stored_in}"
        elif accepted and not self.at_primary and self.waiting_in:
            yield Verdict.NOT_DRAINED, f"{name} was {accepted[0]}, and is still in {self.waiting_in}"
        elif accepted and not self.at_primary and not self.handled and not self.excused:
            yield Verdict.LOST, f"{name} is lost: it was {accepted[0]}, and is missing"
        if self.at_primary < 2:
            return
        stored = f"{name} is stored {self.at_primary} times at the primary"
        if self.reasons is not None and self.at_primary > sum(self.reasons):
            confirmed, doubts, brought = self.reasons
            reasons = f"{confirmed} confirmed sends, {doubts} writes in doubt and {brought} deliveries from the backlog"
            yield Verdict.DUPLICATE, f"{stored}: {reasons} explain {sum(self.reasons)}"
        # An application that sends one message twice has asked for two copies.
        elif not self.announced and len(kept) < 2:
            yield Verdict.DUPLICATE, f"{stored}, and no receipt or event says that it may be"


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds from the acceptance of messages to their first handling: how many waited, by step, for up to 10 ** (step
    / 10) seconds and longer than for the step before.
    """

    counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Waits:
        """Count waits; one of less than 10 ms counts as that."""
        return cls(Counter(max(_SHORTEST, math.ceil(10 * math.log10(max(each, 1e-9)))) for each in seconds))

    @classmethod
    def from_dict(cls, data: Mapping[str, int]) -> Waits:
        """Read what `to_dict` gave."""
        return cls({round(10 * math.log10(float(bound))): count for bound, count in data.items()})

    def __add__(self, other: Waits) -> Waits:
        return Waits(Counter(self.counts) + Counter(other.counts))

    def __len__(self) -> int:
        return sum(self.counts.values())

    def within(self, share: float) -> float:
        """The seconds within which a share of the messages were handled, rounded up to a step."""
        left = share * len(self)
        for step in sorted(self.counts):
            left -= self.counts[step]
            if left <= 1e-9:
                return _seconds(step)
        return 0.0

    def to_dict(self) -> dict[str, int]:
        """Counts by the seconds that bound them."""
        return {f"{_seconds(step):g}": self.counts[step] for step in sorted(self.counts)}

    def __str__(self) -> str:
        half, most, longest = map(self.within, (0.5, 0.99, 1.0))
        return f"half within {half:g} s, 99 % within {most:g} s, all within {longest:g} s"


def drained_within(options: PairOptions, waiting: int, lock: float) -> float:
    """Seconds within which all must be well again once nothing fails, with so many messages waiting under locks of so
    many seconds; each part is the longest wait of one piece.
    """
    o = options
    moving = 0.0 if o.syphon_max_rate is None else 3 * waiting / o.syphon_max_rate
    pings = 14 * (o.ping_primary_interval + o.ping_timeout)
    polls = o.syphon_receive_wait + o.attempt_timeout
    return 300.0 + pings + 2 * polls + 4 * lock + 3 * o.backlog_retry_interval + o.send_timeout + moving


_SHORTEST = -20  # a step


def _seconds(step: int) -> float:
    return float(f"{10 ** (step / 10):.3g}")


def waits_of(history: History) -> dict[str, Waits]:
    """How long accepted messages waited for their first handling, by what had accepted them.

    Those that no consumer has handled are not in it.
    """
    first = {each.number: each.at for each in reversed(history.handlings)}
    found: dict[str, list[float]] = {"primary": [], "lanes": [], "backlog": []}
    for number, at in first.items():
        sent = None if number is None else history.sent.get(number)
        if sent is None or sent.result is None or not sent.result.accepted or sent.ended_at is None:
            continue
        by = "primary" if sent.queue is None else "backlog" if lane_path(sent.queue) is None else "lanes"
        found[by].append(max(0.0, at - sent.ended_at))
    return {by: Waits.of(seconds) for by, seconds in found.items()}


class Facts:
    """A history of any origin, by message and by process; ``options`` are what all pairs have in common."""

    def __init__(self, history: History, options: PairOptions) -> None:
        self.history = history
        self.options = options
        self.lives: dict[str, Life] = {life.name: life for life in history.lives}
        skews = [0.0, *(life.skew for life in history.lives)]
        self.walls = max(WALLS, max(skews) - min(skews) + 0.5)
        """Seconds by which wall clocks may differ, those of brokers included, and a bit."""
        self.at_primary: dict[int, list[Copy]] = defaultdict(list)
        self.at_secondary: dict[int, list[Copy]] = defaultdict(list)
        self.foreign: list[Copy] = []
        """Copies at the primary of messages that were never sent."""
        for copy in history.copies:
            if copy.message_number is not None:
                side = self.at_primary if copy.broker == PRIMARY else self.at_secondary
                side[copy.message_number].append(copy)
            elif copy.broker == PRIMARY:
                self.foreign.append(copy)
        self.attempts: dict[int, list[tuple[Attempt, WriteResult]]] = defaultdict(list)
        self.by_syphon: dict[int, list[tuple[Attempt, WriteResult]]] = defaultdict(list)
        for attempt in history.attempts:
            results = attempt.results or (KILLED,) * len(attempt.messages)
            for number, each in zip(attempt.messages, results, strict=True):
                if number is not None:
                    (self.by_syphon if attempt.syphon else self.attempts)[number].append((attempt, each))
        self.handlings: dict[int, list[Handling]] = defaultdict(list)
        for handling in history.handlings:
            if handling.number is not None:
                self.handlings[handling.number].append(handling)
        self._known_ids: dict[int, list[str]] = {}
        self._completed: dict[str, SendCompleted] = {}
        self._moved: dict[str, list[tuple[Note, MessageMoved]]] = defaultdict(list)
        for note in history.notes:
            if isinstance(note.event, MessageMoved):
                self._moved[note.event.message_id].append((note, note.event))
            elif isinstance(note.event, SendCompleted):
                self._completed[note.event.message_id] = note.event

    def allowance(self, life: str, since: float, until: float) -> float:
        """Seconds by which something of a process may be late that was due at an instant and done at another.

        What is done takes several turns of the loop, and each of them may come late.
        """
        if until - since <= self.history.grace:
            return self.history.grace  # it needs no excuse, and the lags of a long run are many
        lags = (woken - due for due, woken in self.history.lags.get(life, ()) if woken >= since and due <= until)
        return self.history.grace + sum(lags, start=0.0)

    def is_confirmed(self, copy: Copy) -> bool:
        """Whether its writer is known and got the confirmation."""
        if copy.attempt is None or copy.message_number is None:
            return False
        return self.history.attempts[copy.attempt].result(copy.message_number).confirmed

    def was_missing_for_long(self, attempt: Attempt) -> bool:
        """Whether a process may give up a destination that an attempt did not find; unknown where no probe is seen."""
        return True

    def is_syphons(self, copy: Copy) -> bool:
        """Whether a syphon wrote it."""
        return copy.attempt is not None and self.history.attempts[copy.attempt].syphon

    def doubtful(self, sent: Sent, before: int) -> bool:
        """Whether an attempt in doubt had been reported to its sender before a tick."""
        return any(
            result.doubtful and attempt.end_tick is not None and attempt.end_tick < before
            for attempt, result in self.attempts[sent.number]
        )

    def writes(self, number: int, broker: str) -> list[tuple[Attempt, WriteResult]]:
        """The attempts that may have stored a message at a broker."""
        return [
            (attempt, result)
            for attempt, result in (*self.attempts[number], *self.by_syphon[number])
            if attempt.broker == broker and (result.confirmed or result.doubtful)
        ]

    def moves(self, sent: Sent) -> list[tuple[Note, MessageMoved]]:
        """What syphons reported of a message, whose id may be the pair's."""
        return [move for each in self._ids(sent) for move in self._moved[each]]

    def explained(self, sent: Sent) -> bool:
        """Whether a possible second copy was reported, or could not be."""
        arrived, moves = self.at_primary[sent.number], self.moves(sent)
        brought = [copy for copy in arrived if self.is_syphons(copy)]
        # What a syphon has doubled is its own to report.
        by_sender = len(brought) < 2 or not self.is_confirmed(brought[-1])
        if by_sender and (sent.maybe_duplicate or sent.result in (None, Result.UNKNOWN, Result.CANCELLED)):
            return True
        if any(event.maybe_duplicate or event.redelivered or not event.completed for _, event in moves):
            return True
        # A syphon reports no write in doubt of a message that expires meanwhile: its dead-letter explains the copies.
        aside = any(copy.gone == "dead-lettered" for copy in self.at_secondary[sent.number])
        if aside and not any(self.is_confirmed(copy) for copy in arrived):
            return True
        # One that is killed after it has sent a message, or has not yet completed it, reports nothing.
        if self.history.exact:
            return bool(brought) and not any(note.tick > brought[-1].tick for note, _ in moves)
        noted = {note.life for note, _ in moves}
        return any(self.lives[each.life].killed and each.life not in noted for each, _ in self.by_syphon[sent.number])

    def handled_again(self, sent: Sent) -> bool:
        """Whether two copies that were handled and completed have a reason (SPEC 11.5)."""
        if sent.maybe_duplicate or sent.result in (None, Result.UNKNOWN, Result.CANCELLED) or self.explained(sent):
            return True
        # A syphon released a message whose delivery it could not confirm.
        return any(result.doubtful for _, result in self.by_syphon[sent.number])

    def event_of(self, sent: Sent) -> SendCompleted | None:
        """The event of its send, whose message's id may be the pair's."""
        return next((self._completed[each] for each in self._ids(sent) if each in self._completed), None)

    def _ids(self, sent: Sent) -> list[str]:
        """The id of a message, also one that the pair gave it: its stored copies have that."""
        ids = self._known_ids.get(sent.number)
        if ids is None:
            stored = (*self.at_primary[sent.number], *self.at_secondary[sent.number])
            found = dict.fromkeys((sent.message.message_id, *(copy.message.message_id for copy in stored)))
            ids = self._known_ids[sent.number] = [each for each in found if each is not None]
        return ids

    def account(self, sent: Sent) -> Account:
        """What is known of a message in the end."""
        arrived, backlog = self.at_primary[sent.number], self.at_secondary[sent.number]
        waiting = [copy.entity.path for copy in backlog if not copy.gone]
        event = self.event_of(sent)
        refused = event is not None and event.outcome is SendOutcome.REFUSED
        writes = self.writes(sent.number, PRIMARY)
        sure = [attempt for attempt, result in writes if result.confirmed]
        by_syphon = sum(attempt.syphon for attempt in sure)
        # A network that fails may deliver one write twice: each copy that is known to be of a write in doubt counts.
        in_doubt = sum(not self.is_confirmed(copy) for copy in arrived)
        doubts = in_doubt if self.history.exact else len(writes) - len(sure)
        # A copy that a syphon has postponed replaces the delivered one: that delivery explains nothing at the primary.
        postponed = sum(self.is_syphons(copy) and self.is_confirmed(copy) for copy in backlog)
        return Account(
            (Result.REFUSED if refused and (arrived or backlog) else sent.result,),
            len(arrived),
            next((f"{copy.broker} {copy.entity}" for copy in (*arrived, *backlog)), ""),
            "" if self.history.exact else next(iter(waiting), ""),
            any(each.side == SECONDARY for each in self.handlings[sent.number]),
            bool(waiting) or any(copy.gone in ("deleted", "dead-lettered") for copy in backlog),
            len(arrived) > 1 and self.explained(sent),
            (len(sure) - by_syphon, doubts, min(by_syphon, sum(len(copy.handovers) for copy in backlog) - postponed)),
        )


def messages_judged(facts: Facts) -> Iterator[Violation]:
    """All that is wrong with messages, of any history."""
    for sent in facts.history.sent.values():
        at = sent.ended_at or sent.at
        for verdict, text in facts.account(sent).judged(str(sent.number)):
            yield Violation(verdict, at, text, sent.number)
        yield from _phantom(facts, sent)
        yield from _left(facts, sent)
        yield from _sent_again(facts, sent)
        yield from _brought_twice(facts, sent)
        yield from _marks(facts, sent)
        yield from _late(facts, sent)
        yield from _handled(facts, sent)
    for handling in facts.history.handlings:
        if handling.number not in facts.history.sent:
            text = f"a consumer of {handling.life} got {handling.message.message_id} of {handling.entity}, never sent"
            yield Violation(Verdict.PHANTOM, handling.at, text, handling.number)
    for copy in facts.foreign:
        text = f"the primary stored {copy.message.message_id} in {copy.entity}, which was never sent"
        yield Violation(Verdict.PHANTOM, copy.at, text)
    for number, copies in facts.at_primary.items():
        if number not in facts.history.sent:
            for verdict, text in Account(at_primary=len(copies), announced=True).judged(str(number)):
                yield Violation(verdict, copies[0].at, text, number)
    if facts.options.ordering != "none":
        yield from order_judged(facts)


# Phantoms.


def _phantom(facts: Facts, sent: Sent) -> Iterator[Violation]:
    number, at = sent.number, sent.ended_at or sent.at
    arrived, backlog = facts.at_primary[number], facts.at_secondary[number]
    for copy in arrived:
        problem = _altered(facts, sent, copy)
        if problem:
            yield Violation(Verdict.PHANTOM, copy.at, f"{number}, copy {copy.number}: {problem}", number)
    ids = {copy.message.message_id for copy in (*arrived, *backlog)}
    if len(ids) > 1:
        text = f"{number} had more than one message id: {sorted(map(str, ids))}"
        yield Violation(Verdict.PHANTOM, sent.at, text, number)
    event = facts.event_of(sent)
    called_refused = event is not None and event.outcome is SendOutcome.REFUSED
    reported_refused = sent.result is Result.REFUSED or called_refused
    if reported_refused and not arrived and not backlog and facts.doubtful(sent, sent.end_tick or 0):
        text = f"{number} was refused, although an attempt was in doubt"
        yield Violation(Verdict.PHANTOM, at, text, number)
    # Of a batch that is cancelled, some may have been refused for certain already: by brokers, or before any saw them.
    results = [result for _, result in facts.attempts[number]]
    refused = all(not (result.doubtful or result.confirmed) for result in results)
    if not results:
        refused = event is not None and (event.error in _UNSEEN or _disclaimed(sent.message, event.error))
    if sent.result is Result.CANCELLED and called_refused and not refused:
        yield Violation(Verdict.PHANTOM, at, f"{number} was cancelled, and an event says that it was refused", number)
    for (one, result), (another, _) in itertools.pairwise(facts.attempts[number]):
        if result.kind == "refused" and one.broker == PRIMARY:
            text = f"the primary refused {number} ({result.reason}), but it was sent to the {another.broker}"
            yield Violation(Verdict.PHANTOM, another.at, text, number)


def _disclaimed(message: Message, error: str | None) -> bool:
    """Whether a message may be refused unseen for a field that a broker does not support."""
    uses = message.time_to_live is not None or message.scheduled_enqueue_at is not None
    return uses and error == SendRefused.__name__


def _altered(facts: Facts, sent: Sent, copy: Copy) -> str | None:
    """How a copy differs from what was sent."""
    if copy.entity != sent.entity:
        return f"it was sent to {sent.entity} and came to {copy.entity}"
    elapses = facts.is_syphons(copy) and facts.options.ttl_policy == "elapse"
    return _changed(sent, copy.message, copy.at, facts.walls if elapses else None)


def _changed(sent: Sent, found: Message, at: float, walls: float | None) -> str | None:
    """How a message differs at an instant from what was sent; less of its time-to-live may be left by then where that
    is counted, by wall clocks that differ by so many seconds."""
    wanted = sent.message
    if wanted.message_id is None:
        wanted = replace(wanted, message_id=found.message_id)
    if wanted == found:
        return None
    if walls is not None and wanted.time_to_live is not None and found.time_to_live is not None:
        least = wanted.time_to_live - (at - sent.at) - walls
        if not least <= found.time_to_live <= wanted.time_to_live:
            return f"{found.time_to_live:g} s of its time-to-live of {wanted.time_to_live:g} s are left"
        wanted = replace(wanted, time_to_live=found.time_to_live)
    return None if wanted == found else f"it was changed in transit: {difference(wanted, found)}"


def difference(wanted: Message, found: Message) -> str:
    """Name the fields in which a copy differs from what was sent; empty if in none."""
    names = [name for name in type(wanted).__slots__ if getattr(wanted, name) != getattr(found, name)]
    parts = [f"{name} was {getattr(wanted, name)!r} and is {getattr(found, name)!r}" for name in names]
    return "; ".join(parts)[:400]


# Lost.


def _left(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """A receipt needs a confirmation, and what leaves the backlog needs a reason."""
    at = sent.ended_at or sent.at
    sure = [each for each, result in facts.attempts[sent.number] if result.confirmed]
    if sent.result is Result.PRIMARY and not any(each.broker == PRIMARY for each in sure):
        text = f"{sent.number} was accepted by the primary, which never confirmed it"
        yield Violation(Verdict.LOST, at, text, sent.number)
    elif sent.result is Result.BACKLOG and not any(each.entity.path == sent.queue for each in sure):
        text = f"{sent.number} was accepted by backlog queue {sent.queue}, which never confirmed it"
        yield Violation(Verdict.LOST, at, text, sent.number)
    elif facts.history.exact and sent.result is not None and sent.result.accepted:
        at_secondary = (copy for copy in facts.at_secondary[sent.number] if copy.entity.path == sent.queue)
        stored = facts.at_primary[sent.number] if sent.result is Result.PRIMARY else at_secondary
        if not any(facts.is_confirmed(copy) for copy in stored):
            text = f"{sent.number} was {sent.result}, which confirmed it and never stored it"
            yield Violation(Verdict.LOST, at, text, sent.number)
    for copy in facts.at_secondary[sent.number]:
        problem = _left_wrongly(facts, sent, copy)
        if problem:
            text = f"{sent.number}, copy {copy.number} in {copy.entity}: {problem}"
            yield Violation(Verdict.LOST, copy.gone_at or at, text, sent.number)


def _left_wrongly(facts: Facts, sent: Sent, copy: Copy) -> str | None:
    """Why a copy should not have left its backlog queue; None when all was right."""
    gone = copy.gone_tick or 0
    writes = facts.by_syphon[sent.number]
    if copy.gone == "completed":
        if any(result.confirmed and (each.end_tick or 0) < gone for each, result in writes):
            return None
        if any(each.side == SECONDARY and each.tick < gone for each in facts.handlings[sent.number]):
            return None
        return "it was completed before anything had confirmed that it arrived, or a consumer handled it"
    if copy.gone == "expired":
        return "its time-to-live ran out in the backlog, unseen"
    if copy.gone != "dead-lettered":
        return None
    if copy.reason == "TTLExpiredException":
        lives, waited = sent.message.time_to_live, (copy.gone_at or 0.0) - sent.at
        if facts.options.ttl_policy == "elapse" and lives is not None and waited >= lives - facts.walls:
            return None
        return "it was dead-lettered as expired, and was not"
    if _refused_for_good(facts, sent, gone):
        return None
    return f"it was dead-lettered ({copy.reason}) although nothing had refused it permanently"


def _refused_for_good(facts: Facts, sent: Sent, before: int) -> bool:
    """Whether the primary had refused it to a syphon before a tick, permanently (ADR 4)."""
    for each, result in facts.by_syphon[sent.number]:
        refused = result.kind == "refused" and result.reason not in _NO_REASON
        if refused and each.entity == sent.entity and (each.end_tick or 0) < before:
            if result.reason == FailureReason.NOT_FOUND.value and not facts.was_missing_for_long(each):
                continue
            return True
    return False


# Duplicates.


def _sent_again(facts: Facts, sent: Sent) -> Iterator[Violation]:
    confirmed = [each for each, result in facts.attempts[sent.number] if result.confirmed]
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


def _brought_twice(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """A syphon remembers what it has moved (ADR 7), and sends only what was delivered to it."""
    number, backlog = sent.number, facts.at_secondary[sent.number]
    # What a syphon postpones is a second copy until the first one is completed, for which its lock may be over.
    copies = len(backlog) if facts.history.exact else len(facts.writes(number, SECONDARY))
    handed = [handover for copy in backlog for handover in copy.handovers]
    brought: Counter[str] = Counter()
    for attempt, result in facts.by_syphon[number]:
        if attempt.broker != PRIMARY:
            continue
        # Of several copies in the backlog each is moved.
        if brought[attempt.life] and copies < 2:
            text = f"the syphon of {attempt.life} had moved {number} to the primary, and sent it again"
            yield Violation(Verdict.DUPLICATE, attempt.at, text, number)
        brought[attempt.life] += result.confirmed
        if not any(each.life == attempt.life and each.tick < attempt.tick for each in handed):
            text = f"the syphon of {attempt.life} sent {number}, which it had never received"
            yield Violation(Verdict.PHANTOM, attempt.at, text, number)


# Consumers (SPEC 11).


def _handled(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """Each accepted message is handled where consumers read to the end, as it was sent, and twice only for a reason."""
    number, handlings = sent.number, facts.handlings[sent.number]
    for each in handlings:
        problem = "it was refused" if sent.result is Result.REFUSED else _handled_as(facts, sent, each)
        if problem:
            text = f"{number} was handled by {each.life}, from the {each.side}: {problem}"
            yield Violation(Verdict.PHANTOM, each.at, text, number)
    sure = [each for each in handlings if each.settled]
    if not facts.history.exact and len({each.side for each in sure}) < 2:
        sure = []  # a broker that confirms no completion may deliver again what it has lost of them
    if len(sure) > 1 and not facts.handled_again(sent):
        sides = " and ".join(f"from the {each.side} by {each.life}" for each in sure)
        text = f"{number} was handled and completed {len(sure)} times, {sides}, for no reason"
        yield Violation(Verdict.DUPLICATE, sure[1].at, text, number)
    if not facts.history.exact or sent.entity not in facts.history.consumed:
        return
    arrived, backlog = facts.at_primary[number], facts.at_secondary[number]
    for copy in arrived:
        if copy.gone == "completed" and not any(each.tick < (copy.gone_tick or 0) for each in handlings):
            text = f"{number}, copy {copy.number}, was completed at the primary, and no consumer had handled it"
            yield Violation(Verdict.LOST, copy.gone_at or copy.at, text, number)
    accepted = sent.result is not None and sent.result.accepted
    if accepted and not handlings and arrived and all(copy.gone for copy in (*arrived, *backlog)):
        gone = {copy.gone for copy in (*arrived, *backlog)}
        if gone == {"completed"}:
            text = f"{number} was {sent.result}, and no consumer has ever handled it"
            yield Violation(Verdict.LOST, sent.ended_at or sent.at, text, number)


def _handled_as(facts: Facts, sent: Sent, handling: Handling) -> str | None:
    """What is wrong with a delivery of a message."""
    if handling.entity != sent.entity:
        return f"it was sent to {sent.entity}, and came to {handling.entity}"
    return _changed(sent, handling.message, handling.at, facts.walls if facts.options.ttl_policy == "elapse" else None)


# Deadlines.


def _late(facts: Facts, sent: Sent) -> Iterator[Violation]:
    life = facts.lives.get(sent.life)
    if sent.result is None:
        if life is None or not life.killed:
            yield Violation(Verdict.DEADLINE, sent.at, f"the send of {sent.number} never ended", sent.number)
        return
    if life is not None and life.closing_at is not None and sent.at <= life.closing_at:
        grace = facts.options.close_grace
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


# Order (SPEC 8).

Key = tuple[Entity, str, str]


def order_judged(facts: Facts) -> Iterator[Violation]:
    """All that is wrong with the order of keys."""
    yield from _first_copies(facts)
    yield from _one_queue(facts)


def _key(sent: Sent) -> Key:
    """Sessions outlive processes, senders do not."""
    session = sent.message.session_id
    return (sent.entity, f"{sent.life} {sent.sender}", "") if session is None else (sent.entity, "", session)


def _first_copies(facts: Facts) -> Iterator[Violation]:
    """The order of a key's receipts is the order of its first copies in the primary (SPEC 8.1)."""
    keys: dict[Key, list[tuple[int, int, Sent]]] = defaultdict(list)
    for sent in facts.history.sent.values():
        arrived = facts.at_primary[sent.number]
        if not arrived or sent.result is None or not sent.result.accepted or sent.end_tick is None:
            continue
        if any(copy.gone in ("deleted", "dead-lettered") for copy in facts.at_secondary[sent.number]):
            continue  # it was not moved from there; a copy in the primary was written late
        # Where a scheduled message stands is a matter of its time.
        if sent.message.scheduled_enqueue_at is None:
            keys[_key(sent)].append((sent.end_tick, arrived[0].number, sent))
    for key, sends in keys.items():
        sends.sort(key=lambda each: each[0])
        last = None
        for _, place, sent in sends:
            if last is not None and place < last[0]:
                name = key[2] or key[1]
                text = (
                    f"{sent.number} of {name} got its receipt after {last[1].number} and stands before it "
                    f"in {sent.entity}"
                )
                yield Violation(Verdict.ORDER, facts.at_primary[last[1].number][0].at, text, last[1].number)
            else:
                last = place, sent


def _one_queue(facts: Facts) -> Iterator[Violation]:
    """All diverted sends of a key go to one backlog queue, in every process (SPEC 8.2)."""
    queues: dict[Key, str] = {}
    for attempt in facts.history.attempts:
        if attempt.broker != SECONDARY or attempt.syphon:
            continue
        for number in attempt.messages:
            if number is None:
                continue
            key, path = _key(facts.history.sent[number]), attempt.entity.path
            if queues.setdefault(key, path) != path:
                text = f"{key[2] or key[1]} was diverted to {queues[key]}, and then to {path}"
                yield Violation(Verdict.ORDER, attempt.at, text, number)
