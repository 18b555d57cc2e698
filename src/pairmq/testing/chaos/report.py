"""What is wrong in a chaos run, by the judges of messages and pairs and what real servers show besides; its report."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

from pairmq.model import BacklogUnavailable, PrimaryUnavailable
from pairmq.model.events import MessageDeadLettered, MessageMoved, StateChanged
from pairmq.testing.chaos._books import Found
from pairmq.testing.chaos.plan import Plan
from pairmq.testing.history import PRIMARY, SECONDARY, Attempt, Result, Sent
from pairmq.testing.judge import Verdict, Violation, Waits, messages_judged, waits_of
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._judge_pair import Facts, pair_judged
from pairmq.testing.simulator._report import Counts, counted, handled_text, story_of
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


_STORIES = 3
_WIDTH = 120  # of a line of figures


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """The result of one run."""

    plan: Plan  # what was carried out
    violations: tuple[Violation, ...]  # broken promises, oldest first; none when all was well
    counts: Counts  # of sends, copies, faults and lives
    moved: int  # messages that a syphon reported as moved
    explained: int  # second copies at the primary that were reported as possible
    failovers: int  # how often an entity failed over, in any process
    overrun: float  # seconds by which a send outlived its deadline at most; negative when none did
    lag: float  # seconds that the event loop of that send's process was late meanwhile
    seconds: float  # from the first line to the last
    drained_after: float | None  # seconds from the healing until everything was drained; None when it was not healed
    timeline: tuple[str, ...] = field(repr=False)  # what was done, and every change of an entity's state, a line each
    # What happened to the messages of the first violations, a line each.
    stories: dict[int, tuple[str, ...]] = field(repr=False)
    # How long accepted messages waited for their first handling, by what had accepted them.
    waits: Mapping[str, Waits] = field(default_factory=dict)
    interrupted: bool = False  # the faults ended early, by Ctrl-C
    # By kind of fault and broker, of each fault the seconds from the first write after it began to the first confirm.
    recoveries: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.violations

    def text(self, *, most: int = 10, timeline: bool = False) -> str:
        """Everything for a person."""
        plan, counts = self.plan, self.counts
        drained = "never healed" if self.drained_after is None else f"drained {self.drained_after:.1f} s after healing"
        lines = [
            f"{'>'.join(plan.products)} seed {plan.settings.seed}: "
            f"{'no violation' if self.ok else f'{len(self.violations)} violations'} in {self.seconds:.0f} s",
            f"  done: {counts.faults} faults, {counts.lives} lives of {len(plan.clients)} clients, "
            f"{self.failovers} failovers; {drained}",
            f"  sent: {counts.messages} messages: {counts.primary} to the primary, {counts.backlog} to the backlog, "
            f"{counts.refused} refused, {counts.unknown} unknown or cancelled, {counts.killed} cut off by a kill",
            f"  found: {counts.copies} at the primary, {counts.duplicates} of them second copies "
            f"({self.explained} explained); {self.moved} moved",
            *(f"  {line}" for line in handled_text(counts, self.waits)),
            f"  worst overrun of a deadline: {self.overrun:+.3f} s, of which the process slept {self.lag:.3f} s",
            "  first confirmed write after a fault began, median and longest:",
        ]
        for fault, times in self.recoveries.items():
            lines.append(f"    {fault:<32} {statistics.median(times):6.2f} s {max(times):6.2f} s, of {len(times)}")
            if timeline:
                each = " ".join(f"{seconds:.2f}" for seconds in times)
                lines += wrap(each, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
        if timeline or not self.ok:
            lines += ["  timeline:", *(f"    {line}" for line in self.timeline)]
        lines += [f"  {violation}" for violation in self.violations[:most]]
        if len(self.violations) > most:
            lines.append(f"  and {len(self.violations) - most} more")
        for number, story in self.stories.items():
            lines += [f"  message {number}:", *(f"    {line}" for line in story)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The same for a program."""
        return {
            "products": list(self.plan.products),
            "seed": self.plan.settings.seed,
            "ok": self.ok,
            "interrupted": self.interrupted,
            **{name: getattr(self.counts, name) for name in Counts.__slots__},
            **{name: getattr(self, name) for name in ("moved", "explained", "failovers")},
            **{
                name: None if (value := getattr(self, name)) is None else round(value, 3)
                for name in ("overrun", "lag", "seconds", "drained_after")
            },
            "waits": {by: each.to_dict() for by, each in self.waits.items()},
            "recoveries": {fault: [round(each, 3) for each in times] for fault, times in self.recoveries.items()},
            "violations": [each.to_dict(3) for each in self.violations],
            "timeline": list(self.timeline),
            "stories": {str(number): list(story) for number, story in self.stories.items()},
        }


def report_of(
    plan: Plan, history: History, violations: Sequence[Violation], *, interrupted: bool = False
) -> ChaosReport:
    """Make the report of a run; ``interrupted`` if its faults ended early."""
    overrun, lag = _overrun(history)
    changes = [note.event for note in history.notes if isinstance(note.event, StateChanged)]
    numbers = dict.fromkeys(each.message for each in violations if each.message is not None)
    healed, drained = history.healed_at, history.drained_at
    return ChaosReport(
        plan,
        tuple(violations),
        counted(history),
        sum(isinstance(note.event, MessageMoved) for note in history.notes),
        duplicates_explained(history),
        sum(event.current.value == "failed-over" and event.previous is not event.current for event in changes),
        overrun,
        lag,
        history.ended_at,
        None if healed is None else (drained or history.ended_at) - healed,
        _timeline(history),
        {number: story_of(history, number) for number in list(numbers)[:_STORIES]},
        waits_of(history),
        interrupted,
        recoveries_of(history),
    )


def _overrun(history: History) -> tuple[float, float]:
    """By how much the worst send outlived its deadline, and how late its process's event loop was meanwhile."""
    ended = [
        (sent.ended_at - sent.at - sent.timeout, sent) for sent in history.sent.values() if sent.ended_at is not None
    ]
    if not ended:
        return 0.0, 0.0
    overrun, worst = max(ended, key=lambda each: each[0])
    deadline, until = worst.at + worst.timeout, worst.ended_at or 0.0
    lags = (woken - due for due, woken in history.lags.get(worst.life, ()) if woken >= deadline and due <= until)
    return overrun, max(lags, default=0.0)


def recoveries_of(history: History) -> dict[str, tuple[float, ...]]:
    """How long each fault of one broker lasted for those that write to it: from their first write on, as before it no
    one waited. A fault after which nothing was written, or confirmed, has no time."""
    writes: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in history.attempts:
        writes[attempt.broker].append(attempt)
    found: dict[str, list[float]] = defaultdict(list)
    for at, _, fault in history.strokes:
        began: float | None = None
        confirmed: float | None = None
        for attempt in writes[fault.broker]:
            if attempt.at < at or not attempt.life.startswith(f"{fault.process}/" if fault.process else ""):
                continue
            began = attempt.at if began is None else began
            if confirmed is not None and attempt.at > confirmed:
                break
            if attempt.ended_at is not None and any(each.confirmed for each in attempt.results or ()):
                confirmed = attempt.ended_at if confirmed is None else min(confirmed, attempt.ended_at)
        if began is not None and confirmed is not None:
            found[f"{fault.kind} {fault.broker}"].append(confirmed - began)
    return {kind: tuple(times) for kind, times in sorted(found.items())}


def _timeline(history: History) -> tuple[str, ...]:
    entries = [(at, f"{fault}") for at, _, fault in history.strokes]
    for life in history.lives:
        entries.append((life.at, f"{life.name} starts{' with a syphon' if life.syphon else ''}"))
        if life.ended_at is not None:
            entries.append((life.ended_at, f"{life.name} {'is killed' if life.killed else 'has ended'}"))
    for note in history.notes:
        if isinstance(note.event, StateChanged):
            event = note.event
            entries.append((note.at, f"{note.life} {event.entity}: {event.previous} to {event.current}, {event.cause}"))
    if history.healed_at is not None:
        entries.append((history.healed_at, "everything is healed"))
    if history.drained_at is not None:
        problems = "; ".join(history.undrained)
        entries.append((history.drained_at, f"waited until everything was drained{problems and ': ' + problems}"))
    return tuple(f"{at:8.3f} {text}" for at, text in sorted(entries))
