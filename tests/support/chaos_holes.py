"""What of a journal may be missing, and how each process ended: by the rules of the document, in plain Python."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from chaos_rows import CLOSED, Told
from pairmq.model.events import EventsDropped

MINUTE = 60.0
DEATH = 120.0
"""Seconds for which what a killed process did may be unwritten."""
SLACK = 1.0


def minute(at: float) -> int:
    """Holes are taken by whole minutes."""
    return math.floor(at / MINUTE)


@dataclass(frozen=True, slots=True)
class Holes:
    """Spans of which the journal may lack rows."""

    spans: tuple[tuple[float, float], ...]

    def between(self, first: float, last: float) -> bool:
        """Whether one began before an instant, and ended after another."""
        return any(began <= last and ended >= first for began, ended in self.spans)

    def hide(self, home_at: float, by: float) -> bool:
        """Whether the delivery of a message may be in one, between the arrival and the latest instant of it."""
        return self.meet(home_at, by)

    def meet(self, first: float, last: float) -> bool:
        """Whether one is in the minutes from one instant to another."""
        return any(
            minute(began) <= minute(last) and minute(first) <= minute(ended + SLACK) for began, ended in self.spans
        )


def ends_of(rows: Iterable[Told], patience: float) -> dict[str, str]:
    """How each process ended: ``closed``, ``killed`` if its machine has more to tell, or ``open``."""
    owned = _by_process(rows)
    silent_since: dict[str, float] = defaultdict(lambda: -math.inf)
    for process, of in owned.items():
        machine = _machine(process)
        silent_since[machine] = max(silent_since[machine], *(each.at for each in of))
    ends = {}
    for process, of in owned.items():
        if any(each.own == CLOSED for each in of):
            ends[process] = "closed"
        else:
            goes_on = silent_since[_machine(process)] > max(each.at for each in of) + patience
            ends[process] = "killed" if goes_on else "open"
    return ends


def _machine(process: str) -> str:
    """What stands before the process id in the name of a run."""
    named = re.match(r"(.*)-[0-9]+-[0-9]{8}T[0-9]{6}Z-", process)
    return named[1] if named else process


def holes_of(rows: Sequence[Told], patience: float) -> Holes:
    """Find the holes: of missing numbers, of dropped events, of killed processes and of those that may be running."""
    journal_end = max(row.at for row in rows)
    spans = [(row.event.since, row.at) for row in rows if isinstance(row.event, EventsDropped)]
    ends = ends_of(rows, patience)
    for process, owned in _by_process(rows).items():
        last = max(each.at for each in owned)
        if ends[process] != "closed":
            spans.append((last, last + DEATH if ends[process] == "killed" else max(journal_end, last)))
        spans += _gaps(owned)
        if min(each.seq for each in owned) > 0:
            first = min(each.at for each in owned)
            spans.append((min(first, _started_at(process, min(row.at for row in rows))), first))
    return Holes(tuple(spans))


def _started_at(process: str, otherwise: float) -> float:
    """The instant in the name of a run of a process."""
    told = re.search(r"-([0-9]{8}T[0-9]{6}Z)-", process)
    return datetime.strptime(told[1], "%Y%m%dT%H%M%S%z").timestamp() if told else otherwise


def _gaps(owned: Sequence[Told]) -> list[tuple[float, float]]:
    """Where numbers are missing: a hole within a minute may be anywhere in it."""
    within: dict[int, list[float]] = defaultdict(list)
    for row in owned:
        within[minute(row.at)].append(row.at)
    found = []
    for before, after in itertools.pairwise(sorted(owned, key=lambda each: each.seq)):
        if after.seq > before.seq + 1:
            first, last = minute(before.at), minute(after.at)
            if first == last:
                found.append((min(within[first]), max(within[first])))
            else:
                found.append((max(within[first]), max(max(within[first]), min(within[last]))))
    return found


def _by_process(rows: Iterable[Told]) -> dict[str, list[Told]]:
    found: dict[str, list[Told]] = defaultdict(list)
    for row in rows:
        found[row.process].append(row)
    return found
