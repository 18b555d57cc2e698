"""What a simulation found, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pairmq.core import lane_path
from pairmq.testing.history import PRIMARY, SECONDARY, Result, Sent
from pairmq.testing.judge import Verdict, Violation, Waits
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._judge import prompt
from pairmq.testing.simulator._scenario import ProcessPlan, Scenario

_ACCEPTED_BY = {
    "primary": "after acceptance by the primary",
    "lanes": "after acceptance by a lane",
    "backlog": "after acceptance by another backlog queue",
}

TAIL = 50
"""Lines of the trace that are shown with a violation."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much was simulated."""

    messages: int = 0  # given to a pair
    primary: int = 0  # accepted by the primary
    backlog: int = 0  # accepted by a backlog queue
    refused: int = 0  # refused
    unknown: int = 0  # ended as unknown, or cancelled
    killed: int = 0  # whose process was killed first
    copies: int = 0  # stored by the primary
    duplicates: int = 0  # second copies among them, each explained
    faults: int = 0  # that came to pass
    lives: int = 0  # processes started
    handled: int = 0  # deliveries that consumers handled
    from_lanes: int = 0  # from lanes, among them
    to_lanes: int = 0  # accepted by a lane
    prompt: int = 0  # those of them that a lane accepted while the secondary and a consumer were up
    late: int = 0  # those of them that were not handled within two receives

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one simulation.

    Args:
        scenario: what was simulated; `Scenario.to_json` writes it to a file that can be replayed.
        violations: broken promises, oldest first; none when all was well.
        counts: how much was simulated.
        hours: of virtual time.
        waits: how long accepted messages waited for their first handling, by what had accepted them.
        story: what happened to the first violation's message, a line each.
        trace: lines of the trace: all of them if that was asked for, else the last 50 before the first violation.
    """

    scenario: Scenario
    violations: tuple[Violation, ...]
    counts: Counts
    hours: float
    waits: Mapping[str, Waits] = field(default_factory=dict)
    story: tuple[str, ...] = field(default=(), repr=False)
    trace: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def verdicts(self) -> Counter[Verdict]:
        """How often each verdict was given."""
        return Counter(violation.verdict for violation in self.violations)

    def text(self, *, most: int = 10) -> str:
        """Everything that a person needs to find the cause: seed, options, verdicts, the message's story, the trace."""
        scenario, setup = self.scenario, self.scenario.setup
        if self.ok:
            text = f"seed {scenario.seed}: no violation in {self.hours:.2f} h, {self.counts.messages} messages"
            return "\n".join((text, *handled_text(self.counts, self.waits)))
        lines = [f"seed {scenario.seed}, {scenario.mode}, {len(self.violations)} violations", "", "options:"]
        lines += [f"  {name} = {value!r}" for name, value in setup.options.items()]
        hosts = ", ".join(map(_host, setup.processes))
        lock = "as long as the connection" if setup.lock_duration is None else f"{setup.lock_duration:g} s"
        lines += [f"  processes: {hosts}; locks of the secondary: {lock}"]
        lines += [
            f"  {name} = {value!r} in process {each.name}"
            for each in setup.processes
            for name, value in each.own_options.items()
        ]
        lines += [f"  wall clock of process {each.name}: {each.skew:+g} s" for each in setup.processes if each.skew]
        there, back = setup.latency
        lines += [f"  to the primary and back: {there:g} s; to the secondary: {back:g} s; jitter {setup.jitter:.0%}"]
        limits = (
            f"  largest message: {setup.most_bytes[0]} bytes at the primary, {setup.most_bytes[1]} at the secondary"
        )
        lacks = " and no ".join(name.replace("_", "-") for name in setup.primary_lacks)
        lines += [limits + (f"; the primary keeps no {lacks}" if lacks else ""), "", "violations:"]
        lines += [f"  {violation}" for violation in self.violations[:most]]
        if len(self.violations) > most:
            lines.append(f"  and {len(self.violations) - most} more")
        if self.story:
            lines += ["", f"message {self.violations[0].message}:", *(f"  {line}" for line in self.story)]
        before = [line for line in self.trace if float(line.split(" ", 1)[0]) <= self.violations[0].at + 1e-6]
        lines += ["", f"the last {TAIL} lines of the trace before it:", *(f"  {line}" for line in before[-TAIL:])]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The same for a program, without the scenario and the trace."""
        return {
            "seed": self.scenario.seed,
            "mode": self.scenario.mode,
            "hours": round(self.hours, 3),
            "ok": self.ok,
            **{name: getattr(self.counts, name) for name in Counts.__slots__},
            "waits": {by: each.to_dict() for by, each in self.waits.items()},
            "violations": [each.to_dict(6) for each in self.violations],
        }


def _host(plan: ProcessPlan) -> str:
    reads = "reads " + ", ".join(plan.queues_read)
    does = [word for word, is_so in (("syphon", plan.syphon), (reads, plan.queues_read)) if is_so]
    return f"{plan.name} ({'; '.join(does)})" if does else plan.name


def handled_text(counts: Counts, waits: Mapping[str, Waits]) -> Iterator[str]:
    """What consumers handled, in lines; none where there were none."""
    if not counts.handled:
        return
    yield f"handled: {counts.handled} deliveries, {counts.from_lanes} from lanes"
    for by, each in waits.items():
        if each:
            yield f"{_ACCEPTED_BY[by]}: {each}"
    if counts.prompt:
        share = 1 - counts.late / counts.prompt
        yield (
            f"{share:.2%} of the {counts.prompt} messages that lanes accepted while the secondary and a consumer were "
            "up were handled within two receives"
        )


def counted(history: History) -> Counts:
    """Count what a history holds."""
    results = Counter(sent.result for sent in history.sent.values())
    copies = Counter(copy.message_number for copy in history.copies if copy.broker == PRIMARY)
    lanes = sum(
        sent.queue is not None and lane_path(sent.queue) is not None and sent.result is Result.BACKLOG
        for sent in history.sent.values()
    )
    return Counts(
        messages=len(history.sent),
        primary=results[Result.PRIMARY],
        backlog=results[Result.BACKLOG],
        refused=results[Result.REFUSED],
        unknown=results[Result.UNKNOWN] + results[Result.CANCELLED],
        killed=results[None],
        copies=sum(copies.values()),
        duplicates=sum(count - 1 for count in copies.values()),
        faults=len(history.strokes),
        lives=len(history.lives),
        handled=len(history.handlings),
        from_lanes=sum(each.side == SECONDARY for each in history.handlings),
        to_lanes=lanes,
        prompt=len(found := list(prompt(history))),
        late=sum(each.late for each in found),
    )


def story_of(history: History, number: int) -> tuple[str, ...]:
    """What happened to one message, in order."""
    return tuple(f"{at:.6f} {text}" for at, _, text in sorted(_story(history, number)))


def _story(history: History, number: int) -> Iterable[tuple[float, int, str]]:
    sent = history.sent.get(number)
    if sent is not None:
        yield sent.at, sent.tick, f"{sent.sender} of {sent.life} sends it to {sent.entity}, {sent.timeout:g} s"
        if sent.ended_at is not None:
            yield sent.ended_at, sent.end_tick or 0, f"its caller gets: {_result(sent)}"
    for attempt in history.attempts:
        if number in attempt.messages:
            who = "syphon" if attempt.syphon else "sender"
            where = f"{attempt.broker} {attempt.entity}"
            yield attempt.at, attempt.tick, f"attempt {attempt.number}: {who} of {attempt.life} writes it to {where}"
            if attempt.results and attempt.ended_at is not None:
                text = f"attempt {attempt.number}: {attempt.result(number)}"
                yield attempt.ended_at, attempt.end_tick or 0, text
    for copy in history.copies:
        if copy.message_number != number:
            continue
        name = f"copy {copy.number}"
        yield copy.at, copy.tick, f"{copy.broker} {copy.entity} stores it as {name}, by attempt {copy.attempt}"
        for handover in copy.handovers:
            who = "a consumer" if handover.consumer else "the syphon"
            yield handover.at, handover.tick, f"{name} is delivered to {who} of {handover.life}"
        if copy.gone and copy.gone_at is not None:
            yield copy.gone_at, copy.gone_tick or 0, f"{name} is {copy.gone} {copy.reason}".rstrip()
    for each in history.handlings:
        if each.number == number:
            yield each.at, each.tick, f"a consumer of {each.life} handles what the {each.side} delivered"
            if each.ended_at is not None:
                done = "completed" if each.settled else "not completed for certain"
                yield each.ended_at, each.tick, f"it is {done} at the {each.side}"


def _result(sent: Sent) -> str:
    text = str(sent.result)
    if sent.queue is not None:
        text += f" {sent.queue}"
    if sent.error:
        text += f" ({sent.error})"
    return f"{text}, maybe a duplicate" if sent.maybe_duplicate else text
