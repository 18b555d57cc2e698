"""Whether lanes are read at once: a message that one accepts is handled within two receives (SPEC 11.5)."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pairmq.core import lane_path
from pairmq.model import Entity
from pairmq.testing.history import PRIMARY, SECONDARY, Handling, Reading, Result
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._scenario import BLIPS, CONDITIONS, merged

_SEEN = 30.0  # s after which a message that was not handled is late, whatever happens later
_RECONNECTED = 15.0  # s within which receivers read again what was lost for a while
_ROUND_TRIPS = 4.0  # of a receive: there and back, as late as ways may be, and a poll that has just ended


class Prompt(NamedTuple):
    """A message that a lane accepted while the secondary and a consumer were up."""

    number: int
    accepted_at: float
    waited: float
    """Seconds until it was handled, or until it was clear that it was not."""
    late: bool


def prompt(history: History) -> Iterator[Prompt]:
    """The messages that lanes accepted while the secondary and a consumer were up, whatever the primary did."""
    setup = history.scenario.setup
    if not setup.options.get("continuity"):
        return
    readings, handlings = _readings(history), _handlings(history)
    troubles = _troubles(history)
    starts = [start for start, _ in troubles]
    first = {each.number: each for each in reversed(history.handlings)}
    two_receives = 2 * (_ROUND_TRIPS * setup.latency[1] + 0.05)
    for sent in history.sent.values():
        accepted_at = sent.ended_at
        if sent.result is not Result.BACKLOG or accepted_at is None or lane_path(sent.queue or "") is None:
            continue
        handling = first.get(sent.number)
        handled_at = history.ended_at if handling is None else handling.at
        until = min(handled_at, accepted_at + _SEEN)
        at = bisect.bisect_right(starts, until)
        if any(end >= accepted_at for _, end in troubles[max(0, at - 1) : at]):
            continue
        if not any(begin + _RECONNECTED <= accepted_at and end >= until for begin, end in readings[sent.entity]):
            continue
        # Who is busy with another message takes this one later.
        busy = sum(
            max(0.0, min(until, end) - max(accepted_at, each.at))
            for each, end in handlings[sent.entity]
            if each.at <= until and end >= accepted_at
        )
        waited = max(0.0, handled_at - accepted_at)
        yield Prompt(sent.number, accepted_at, waited, waited > two_receives + busy)


def _readings(history: History) -> dict[Entity, list[tuple[float, float]]]:
    """When consumers read each queue, of processes whose options give it a lane."""
    setup = history.scenario.setup
    options = {plan.name: setup.options_of(plan) for plan in setup.processes}
    lives = {life.name: life for life in history.lives}
    found: dict[Entity, list[tuple[float, float]]] = defaultdict(list)
    for each in history.readings:
        if options[lives[each.life].process].continues(each.entity.path):
            found[each.entity].append((each.at, _end(history, each)))
    return found


def _end(history: History, reading: Reading) -> float:
    life = next(each for each in history.lives if each.name == reading.life)
    ends = (reading.until, life.closing_at, life.ended_at, history.ended_at)
    return min(each for each in ends if each is not None)


def _handlings(history: History) -> dict[Entity, list[tuple[Handling, float]]]:
    found: dict[Entity, list[tuple[Handling, float]]] = defaultdict(list)
    for each in history.handlings:
        found[each.entity].append((each, each.at if each.ended_at is None else each.ended_at))
    return found


def _troubles(history: History) -> list[tuple[float, float]]:
    """When the secondary, or the way to it, was not up, and for as long as messages may stay locked after that."""
    after = _RECONNECTED + (history.scenario.setup.lock_duration or 5.0)
    spans = []
    for at, _, fault in history.strokes:
        if fault.broker != PRIMARY or fault.kind in BLIPS:
            lasts = fault.duration if fault.kind in (*CONDITIONS, *BLIPS, "broker-kill") else 0.0
            spans.append((at, at + lasts + after))
    spans += [(first, last + after) for first, last in history.disturbed]
    spans += [
        (gap.at, (history.ended_at if gap.until is None else gap.until) + after)
        for gap in history.gaps
        if gap.broker == SECONDARY
    ]
    return merged(spans)
