"""What a chaos run found, for people and for programs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pairmq.model.events import MessageMoved, StateChanged
from pairmq.testing.chaos._judge import duplicates_explained
from pairmq.testing.chaos.plan import Plan
from pairmq.testing.history import Attempt
from pairmq.testing.judge import Violation, Waits, waits_of
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._report import Counts, counted, handled_text, story_of

_STORIES = 3


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
        """Whether every promise was kept."""
        return not self.violations

    def text(self, *, most: int = 10, timeline: bool = False) -> str:
        """Everything for a person.

        Args:
            most: violations that are shown.
            timeline: show what was done and when, too.
        """
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
            *(
                f"    {fault:<32} {statistics.median(times):6.2f} s {max(times):6.2f} s, of {len(times)}"
                for fault, times in self.recoveries.items()
            ),
        ]
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
    """Make the report of a run.

    Args:
        plan: that was carried out.
        history: its facts.
        violations: what the judge found.
        interrupted: the faults ended early.
    """
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
            if attempt.ended_at is not None and any(told.confirmed for told in attempt.told or ()):
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
