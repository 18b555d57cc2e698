"""The answers that stand at the head: the verdict in a sentence, and the figures that everybody asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pairmq.pipeline.reporting._caveats import Caveat, caveats
from pairmq.pipeline.reporting._values import Key, Latency, Told
from pairmq.pipeline.reporting._verdicts import FAULTS, meaning_of
from pairmq.pipeline.reporting._words import duration, grouped, named, percent, plural

Verdict: TypeAlias = Literal["lost", "faults", "incomplete", "good"]

_UNREAD = frozenset(("unfinished-parts", "killed", "running"))
_HOLES = frozenset(("bad-segments", "missing-rows", "dropped-events", "misdated-rows"))


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure at the head.

    Args:
        label: what it is.
        value: the figure.
        note: what to compare it with.
        tone: ``good`` or empty.
    """

    label: str
    value: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the head says.

    Args:
        verdict: in a word.
        headline: in a sentence.
        sentence: what became of the messages.
        tiles: the figures.
        caveats: what can't be known.
    """

    verdict: Verdict
    headline: str
    sentence: str
    tiles: Sequence[Tile]
    caveats: Sequence[Caveat]


def answers(told: Told) -> Answers:
    """Find the answers in what the tables tell."""
    found = caveats(told)
    verdict = _verdict(told, found)
    tiles = (_available(told), _out(told), _diverted(told), _latency(told), _cost(told), _blind(found))
    return Answers(verdict, _headline(told, verdict, found), _sentence(told), tiles, found)


def accepted(told: Told) -> float:
    """Sends that were accepted."""
    return told.availability.total.primary + told.availability.total.backlog


def most_out(told: Told) -> Sequence[Key]:
    """All entities, those that were out longest first, then those with most messages."""
    keys = {*told.outages.spans, *told.availability.entities, *told.messages.by_entity}
    readable = [key for key in keys if key.entity is not None]

    def rank(key: Key) -> tuple[float, int, Key]:
        spans = told.outages.spans.get(key)
        messages = sum(told.messages.by_entity.get(key, {}).values())
        return -(spans.seconds_out if spans else 0.0), -messages, key

    return sorted(readable, key=rank)


def phases(told: Told) -> Sequence[tuple[str, str, Latency]]:
    """The phases that have sends: class, name and latency."""
    ever_out = told.outages.count > 0
    names = {
        "before": ("primary", "healthy, before the first outage" if ever_out else "healthy"),
        "outage": ("backlog", "while the primary was out"),
        "draining": ("moved", "back, while the backlog drained"),
        "after": ("primary", "healthy again, after an outage"),
        "backlog": ("backlog", "in the backlog, until brought home"),
    }
    latencies = told.messages.latencies
    return [(class_, name, latencies[phase]) for phase, (class_, name) in names.items() if phase in latencies]


def _verdict(told: Told, found: Sequence[Caveat]) -> Verdict:
    if told.messages.verdicts.get("lost"):
        return "lost"
    if any(told.messages.verdicts.get(name) for name in FAULTS):
        return "faults"
    return "incomplete" if any(each.kind in _HOLES for each in found) else "good"


def _headline(told: Told, verdict: Verdict, found: Sequence[Caveat]) -> str:
    verdicts = told.messages.verdicts
    lost = verdicts.get("lost", 0)
    if verdict == "lost":
        return f"{plural(lost, 'accepted message')} {'is' if lost == 1 else 'are'} lost."
    if verdict == "faults":
        others = [f"{grouped(verdicts[name])} {name}" for name in FAULTS if verdicts.get(name)]
        return f"Nothing accepted is lost, but a promise was broken: {'; '.join(others)}."
    if not told.messages.count:
        return "The journal tells of no messages."
    if verdict == "incomplete":
        return "Nothing is known to be lost, but the journal has holes."
    if any(each.kind in _UNREAD for each in found):
        return "Nothing accepted was lost, in what the journal tells so far."
    return "Nothing accepted was lost."


def _sentence(told: Told) -> str:
    tones: Counter[str] = Counter()
    for verdict, count in told.messages.verdicts.items():
        tones[meaning_of(verdict).tone] += count
    count = told.messages.count
    if not count:
        return f"It has {plural(told.programs.rows, 'row')} of {plural(told.programs.count, 'program')}."
    if tones["arrived"] == count:
        text = f"All {plural(count, 'message')} arrived." if count > 1 else "The one message arrived."
    else:
        words = (
            ("arrived", "arrived"),
            ("waiting", "are on their way"),
            ("ended", "ended otherwise, as their senders or consumers were told"),
            ("unseen", "can't be followed to the end"),
            ("fault", "broke a promise"),
        )
        parts = [f"{grouped(tones[tone])} {word}" for tone, word in words if tones[tone]]
        text = f"Of {plural(count, 'message')}, {_listed(parts)}."
    sends = round(told.availability.total.attempted)
    if sends > count and not told.programs.sampled:
        text += f" They took {grouped(sends)} sends: each send of a message counts, also after one that was refused."
    backlog = round(told.availability.total.backlog)
    if backlog:
        text += f" {grouped(backlog)} of them went to the backlog while the primary was out."
    return text


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _available(told: Told) -> Tile:
    total = told.availability.total
    if total.availability is None:
        return Tile("Sends accepted", "–", "no sends in the journal")
    if total.primary_availability == total.availability:
        note = f"of {plural(total.attempted, 'send')}, all by the primary"
    else:
        note = f"the primary alone: {percent(total.primary_availability)}"
    return Tile("Sends accepted", percent(total.availability), note, "good" if total.availability == 1 else "")


def _out(told: Told) -> Tile:
    outages = told.outages
    if not outages.count:
        return Tile("Primary out", "never", "no outage in the journal")
    seconds = sum(span.seconds for span in outages.union)
    longest = outages.worst[0]
    note = f"{plural(outages.count, 'outage')}, the longest {duration(longest.out)} ({named(longest.key.entity, 24)})"
    if outages.still_open:
        note += f"; {grouped(outages.still_open)} not over"
    return Tile("Primary out", duration(seconds), note)


def _diverted(told: Told) -> Tile:
    many = told.availability.total.backlog
    if not many:
        return Tile("Diverted", "none", "the backlog was not needed")
    waiting = told.messages.verdicts.get("diverted", 0)
    home = "all are home again" if not waiting else f"{grouped(waiting)} not home yet"
    peak = int(told.messages.overview.depth.max()) if told.messages.overview is not None else 0
    return Tile(
        "Diverted", grouped(many), f"{home}; at most {grouped(peak)} at once, of all entities" if peak else home
    )


def _latency(told: Told) -> Tile:
    latencies = told.messages.latencies
    healthy, out = latencies.get("before") or latencies.get("after"), latencies.get("outage")
    if out is not None:
        note = "99 % of them" + ("" if healthy is None else f"; while healthy {duration(healthy.p99)}")
        return Tile("Sends in the outage", f"≤ {duration(out.p99)}", note)
    if healthy is not None:
        return Tile("Sends", f"≤ {duration(healthy.p99)}", f"99 % of them; half ≤ {duration(healthy.p50)}")
    return Tile("Send latency", "–", "not in these tables")


def _cost(told: Told) -> Tile:
    cost = told.cost
    total = sum(side.total for side in cost.sides.values())
    second = cost.sides["secondary"].total if "secondary" in cost.sides else 0
    if cost.priced:
        price = sum(side.price for side in cost.sides.values())
        return Tile("Cost", f"{price:,.2f}", f"{grouped(total)} operations, {grouped(second)} at the secondary")
    return Tile("Operations", grouped(total), f"{grouped(second)} of them at the secondary")


def _blind(found: Sequence[Caveat]) -> Tile:
    if not found:
        return Tile("Blind spots", "none", "the journal is whole", "good")
    return Tile("Blind spots", grouped(len(found)), "what can't be known: see below")
