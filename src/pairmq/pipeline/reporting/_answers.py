"""The answers at the head: the verdict in a sentence, the main figures, and every reason for which they may be too low.

The rules by which messages are judged are in the pipeline's transforms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from pairmq.pipeline.reporting._values import Findings, Key, Latency
from pairmq.pipeline.reporting._words import duration, grouped, named, percent, plural, visible

Verdict: TypeAlias = Literal["lost", "faults", "incomplete", "good"]

_UNREAD = frozenset(("unfinished-parts", "killed", "running"))
_HOLES = frozenset(
    (
        *("bad-segments", "missing-rows", "missing-programs", "dropped-events", "misdated-rows", "clock-errors"),
        "absent-consumers",
    )
)


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure at the head."""

    label: str
    value: str
    note: str  # what to compare the value with
    tone: str = ""  # ``good`` or empty


@dataclass(frozen=True, slots=True)
class Answers:
    """What the head says."""

    verdict: Verdict  # in a word
    headline: str  # in a sentence
    sentence: str  # what became of the messages
    tiles: Sequence[Tile]
    caveats: Sequence[Caveat]  # what can't be known


def answers(findings: Findings) -> Answers:
    """Derive the answers from the tables."""
    found = caveats(findings)
    verdict = _verdict(findings, found)
    tiles = (
        _available(findings),
        _out(findings),
        _diverted(findings),
        _latency(findings),
        _cost(findings),
        _blind(found),
    )
    return Answers(verdict, _headline(findings, verdict, found), _sentence(findings), tiles, found)


def most_out(findings: Findings) -> Sequence[Key]:
    """All entities, those that were out longest first, then those with most messages."""
    keys = {*findings.outages.spans, *findings.availability.entities, *findings.messages.by_entity}
    readable = [key for key in keys if key.entity is not None]

    def rank(key: Key) -> tuple[float, int, Key]:
        spans = findings.outages.spans.get(key)
        messages = sum(findings.messages.by_entity.get(key, {}).values())
        return -(spans.seconds_out if spans else 0.0), -messages, key

    return sorted(readable, key=rank)


def phases(findings: Findings) -> Sequence[tuple[str, str, Latency]]:
    """The phases that have sends: class, name and latency."""
    ever_out = findings.outages.count > 0
    names = {
        "before": ("primary", "healthy, before the first outage" if ever_out else "healthy"),
        "outage": ("backlog", "while the primary was out"),
        "draining": ("moved", "back, while the backlog drained"),
        "after": ("primary", "healthy again, after an outage"),
        "backlog": ("backlog", "in the backlog, until moved to the primary"),
        "outbox": ("moved", "from the outbox to the primary"),
    }
    latencies = findings.messages.latencies
    return [(class_, name, latencies[phase]) for phase, (class_, name) in names.items() if phase in latencies]


def _verdict(findings: Findings, found: Sequence[Caveat]) -> Verdict:
    if findings.messages.verdicts.get("lost"):
        return "lost"
    if any(findings.messages.verdicts.get(name) for name in FAULTS):
        return "faults"
    return "incomplete" if any(each.kind in _HOLES for each in found) else "good"


def _headline(findings: Findings, verdict: Verdict, found: Sequence[Caveat]) -> str:
    verdicts = findings.messages.verdicts
    lost = verdicts.get("lost", 0)
    if verdict == "lost":
        return f"{plural(lost, 'accepted message')} {'is' if lost == 1 else 'are'} lost."
    if verdict == "faults":
        others = [f"{grouped(verdicts[name])} {name}" for name in FAULTS if verdicts.get(name)]
        return f"Nothing accepted is lost, but a promise was broken: {'; '.join(others)}."
    if not findings.messages.count:
        return "The journal has no messages."
    if verdict == "incomplete":
        return "Nothing is known to be lost, but the journal has holes."
    if any(each.kind in _UNREAD for each in found):
        return "Nothing accepted was lost, as far as the journal shows."
    return "Nothing accepted was lost."


def _sentence(findings: Findings) -> str:
    tones: Counter[str] = Counter()
    for verdict, count in findings.messages.verdicts.items():
        tones[meaning_of(verdict).tone] += count
    count = findings.messages.count
    if not count:
        return f"It has {plural(findings.programs.rows, 'row')} of {plural(findings.programs.count, 'program')}."
    if tones["arrived"] == count:
        text = f"All {plural(count, 'message')} arrived." if count > 1 else "The one message arrived."
    else:
        words = (
            ("arrived", "arrived"),
            ("waiting", "are in transit"),
            ("ended", "ended otherwise, as reported to their senders or consumers"),
            ("unseen", "can't be followed to the end"),
            ("fault", "broke a promise"),
        )
        parts = [f"{grouped(tones[tone])} {word}" for tone, word in words if tones[tone]]
        text = f"Of {plural(count, 'message')}, {_listed(parts)}."
    sends = round(findings.availability.total.attempted)
    if sends > count and not findings.programs.sampled:
        text += f" They took {grouped(sends)} sends: each send of a message counts, also after one that was refused."
    backlog = round(findings.availability.total.accepted_backlog)
    if backlog:
        text += f" {grouped(backlog)} of them went to the backlog while the primary was out."
    return text


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _available(findings: Findings) -> Tile:
    total = findings.availability.total
    if total.availability is None:
        return Tile("Sends accepted", "–", "no sends in the journal")
    if total.primary_availability == total.availability:
        note = f"of {plural(total.attempted, 'send')}, all by the primary"
    else:
        note = f"the primary alone: {percent(total.primary_availability)}"
    return Tile("Sends accepted", percent(total.availability), note, "good" if total.availability == 1 else "")


def _out(findings: Findings) -> Tile:
    outages = findings.outages
    if not outages.count:
        return Tile("Primary out", "never", "no outage in the journal")
    seconds = sum(span.seconds for span in outages.union)
    longest = outages.worst[0]
    note = f"{plural(outages.count, 'outage')}, the longest {duration(longest.out)} ({named(longest.key.entity, 24)})"
    if outages.still_open:
        note += f"; {grouped(outages.still_open)} not over"
    return Tile("Primary out", duration(seconds), note)


def _diverted(findings: Findings) -> Tile:
    many = findings.availability.total.accepted_backlog
    if not many:
        return Tile("Diverted", "none", "the backlog was not needed")
    waiting = findings.messages.verdicts.get("diverted", 0)
    so_far = "all were moved to the primary" if not waiting else f"{grouped(waiting)} not moved yet"
    peak = int(findings.messages.overview.depth.max()) if findings.messages.overview is not None else 0
    return Tile(
        "Diverted", grouped(many), f"{so_far}; at most {grouped(peak)} at once, of all entities" if peak else so_far
    )


def _latency(findings: Findings) -> Tile:
    latencies = findings.messages.latencies
    healthy, out = latencies.get("before") or latencies.get("after"), latencies.get("outage")
    if out is not None:
        note = "99 % of them" + ("" if healthy is None else f"; while healthy {duration(healthy.p99)}")
        return Tile("Sends in the outage", f"≤ {duration(out.p99)}", note)
    if healthy is not None:
        return Tile("Sends", f"≤ {duration(healthy.p99)}", f"99 % of them; half ≤ {duration(healthy.p50)}")
    return Tile("Send latency", "–", "not in these tables")


def _cost(findings: Findings) -> Tile:
    cost = findings.cost
    total = sum(side.operations for side in cost.sides.values())
    second = cost.sides["secondary"].operations if "secondary" in cost.sides else 0
    if cost.priced:
        price = sum(side.price for side in cost.sides.values())
        return Tile("Cost", f"{price:,.2f}", f"{grouped(total)} operations, {grouped(second)} at the secondary")
    return Tile("Operations", grouped(total), f"{grouped(second)} of them at the secondary")


def _blind(found: Sequence[Caveat]) -> Tile:
    if not found:
        return Tile("Blind spots", "none", "the journal is whole", "good")
    return Tile("Blind spots", grouped(len(found)), "what can't be known: see below")


MOST_NAMED = 10
"""Files, programs and entities that one caveat names."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """One reason for which figures may be too low."""

    kind: str  # a word for programs
    count: int  # of what the text counts
    text: str  # a sentence
    names: Sequence[str] = ()  # what it is about, the first few


def caveats(findings: Findings) -> Sequence[Caveat]:
    """Find them all, the weightiest first."""
    return tuple(
        each
        for each in (*_of_the_journal(findings), *_of_the_messages(findings), *_of_the_rest(findings))
        if each.count
    )


def _counted(kind: str, count: int, word: str, text: str, names: Iterable[str] = ()) -> Caveat:
    return Caveat(kind, count, f"{plural(count, word)} {text}", tuple(islice(names, MOST_NAMED)))


def _of_the_journal(findings: Findings) -> Iterator[Caveat]:
    journal, programs = findings.run["journal"], findings.programs
    bad = journal.get("bad_segments") or []
    problems = (f"{visible(each['path'])}: {visible(each['problem'])}" for each in bad)
    yield _counted("bad-segments", len(bad), "file", "of the journal could not be read.", problems)
    lacking = tuple(visible(each.process) for each in programs.incomplete if each.missing or each.dropped)
    yield _counted("missing-rows", programs.missing, "row", "of the journal are missing.", lacking)
    unseen = journal.get("missing_programs") or []
    yield _counted(
        "missing-programs",
        len(unseen),
        "program",
        "without later rows in the journal, or any, whom others saw write: segments are missing.",
        map(visible, unseen),
    )
    unwritten = f"Programs could not write {plural(programs.dropped, 'event')}."
    yield Caveat("dropped-events", programs.dropped, unwritten, lacking)
    ignored = "of the journal are ignored: their clock was before 2020 or after 2100."
    yield _counted("misdated-rows", programs.misdated, "row", ignored)
    clocks = journal.get("clock_errors") or {}
    theirs, they = ("its clock", "it") if len(clocks) == 1 else ("their clocks", "they")
    yield _counted(
        "clock-errors",
        len(clocks),
        "program",
        f"had {theirs} set while {they} ran, by up to {duration(max(clocks.values(), default=None))}: what depends on "
        "these instants is unproven.",
        (
            f"{visible(each)}: {duration(clocks[each])}"
            for each in sorted(clocks, key=lambda each: (-clocks[each], each))
        ),
    )
    absent = journal.get("absent_consumers") or []
    yield _counted(
        "absent-consumers",
        len(absent),
        "queue",
        "without any delivery in the journal, which has those of other queues of the same pair: the journal of the "
        "consumers is missing, or they keep none.",
        (visible(each["entity"]) for each in absent),
    )
    parts = journal.get("unfinished_parts") or []
    yield _counted(
        "unfinished-parts",
        len(parts),
        "part",
        "of the journal not finished, whose rows are not read: programs that run finish theirs, pairmq journal recover "
        "finishes those of killed ones.",
        (visible(each["path"]) for each in parts),
    )
    killed = programs.ended.get("killed", 0)
    yield _counted(
        "killed",
        killed,
        "program",
        f"ended abnormally; what {'it' if killed == 1 else 'they'} did last may be missing.",
        (visible(each.process) for each in programs.incomplete if each.ended == "killed"),
    )
    yield _counted(
        "running",
        programs.ended.get("open", 0),
        "program",
        "may be running still, or the latest rows of their machines have not arrived: later events are not in the "
        "journal.",
    )
    yield _counted(
        "sampled",
        programs.sampled,
        "program",
        "kept only a part of the healthy sends: availability is extrapolated, single messages are not known.",
    )


def _of_the_messages(findings: Findings) -> Iterator[Caveat]:
    verdicts = findings.messages.verdicts
    unseen = Counter({key: each.get("delivery not observed", 0) for key, each in findings.messages.by_entity.items()})
    entities = [key for key, count in unseen.most_common() if count]
    many = verdicts.get("delivery not observed", 0)
    yield _counted(
        "not-observed",
        many,
        "message",
        f"at the primary: no journal records {'its' if many == 1 else 'their'} delivery. "
        f"{'It concerns' if len(entities) == 1 else 'They concern'} {plural(len(entities), 'entity')}.",
        (visible(key.entity) for key in entities),
    )
    for kind, verdict, text in (
        (
            "unproven",
            "unproven",
            "may be lost or not: the journal has a hole where it would show, or a clock deceives.",
        ),
        (
            "unproven-copies",
            "duplicated, unproven",
            "completed more than once: the reason may be in a hole of the journal, or was not recorded.",
        ),
        ("unknown", "unknown", "had an unknown outcome, and no delivery is in the journal."),
        ("not-journalled", "not journalled", "were seen without an accepted send in the journal."),
    ):
        yield _counted(kind, verdicts.get(verdict, 0), "message", text)


def _of_the_rest(findings: Findings) -> Iterator[Caveat]:
    if findings.cost.source in ("estimated", "mixed"):
        yield Caveat(
            "estimated-cost",
            1,
            "Operations are estimated from the journal's rows, which record neither empty polls nor batches.",
        )
    if dict(findings.messages.verdicts) != {name: count for name, count in findings.run["messages"].items() if count}:
        yield Caveat(
            "changed-tables",
            1,
            f"The tables have {plural(findings.messages.count, 'message')}, the run reported "
            f"{grouped(sum(findings.run['messages'].values()))}: another run may have been writing. Make the report "
            "again.",
        )


Tone: TypeAlias = Literal["arrived", "waiting", "ended", "unseen", "fault"]
"""It arrived; it is in transit; it ended otherwise, as reported; unknown; a promise was broken."""


class Meaning(NamedTuple):
    """What a verdict says, and how it is drawn."""

    tone: Tone
    text: str


VERDICTS: dict[str, Meaning] = {
    "lost": Meaning("fault", "accepted, and missing: the journal shows that it should be there"),
    "phantom": Meaning("fault", "refused, but delivered"),
    "duplicated, unexplained": Meaning("fault", "delivered more often than the journal explains"),
    "out of order": Meaning("fault", "delivered behind a later one, which the options do not allow"),
    "delivered": Meaning("arrived", "accepted, and completed once by a consumer"),
    "duplicated, explained": Meaning("arrived", "completed more than once; each further copy is explained"),
    "duplicated, unproven": Meaning(
        "arrived", "completed more than once; the journal may lack the row that explains it"
    ),
    "unknown, delivered": Meaning("arrived", "its send had an unknown outcome; it was delivered"),
    "in flight": Meaning("waiting", "at the primary, and not delivered yet"),
    "diverted": Meaning("waiting", "in the backlog, and not yet moved to the primary"),
    "unsettled": Meaning("waiting", "a consumer received it, and has not completed it"),
    "expired": Meaning("ended", "its time to live expired"),
    "dead-lettered": Meaning("ended", "dead-lettered, with a reason"),
    "refused": Meaning("ended", "never accepted, as reported to its sender"),
    "delivery not observed": Meaning("unseen", "at the primary; no journal records its deliveries"),
    "unproven": Meaning("unseen", "not seen again, and the journal has a hole where that would show"),
    "unknown": Meaning("unseen", "its send had an unknown outcome, and no delivery is in the journal"),
    "not journalled": Meaning("unseen", "the journal has no accepted send of it"),
}
"""In the order in which they are shown."""

FAULTS = tuple(name for name, meaning in VERDICTS.items() if meaning.tone == "fault")


def meaning_of(verdict: str) -> Meaning:
    """A verdict of a later version is not known here."""
    return VERDICTS.get(verdict, Meaning("unseen", "a verdict that this version does not know"))
