"""What the journal of a chaos run must hold, row by row, as the ledgers of its processes tell.

A ledger has each event before the journal gets it, and survives a SIGKILL. So a process's rows are the beginning of its
ledger's events, and a process that ended in good order has all of them. Where they stop is the only thing that is taken
from the journal, with the instants of the two rows that the journal writes of itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairmq.model.events import Event
from pairmq.model.records import row_of
from pairmq.observe.journal import read_rows
from pairmq.testing.chaos._ledger import event_from_json, lines

OPENED, CLOSED = "JournalOpened", "JournalClosed"
Key = tuple[str, int]
"""A process and a row's number."""


@dataclass(frozen=True, slots=True)
class Told:
    """A row that the journal must have."""

    process: str  # the journal's name of the life
    seq: int
    at: float  # wall-clock seconds since 1970 UTC
    event: Event | None  # what happened; None for a row of the journal's own
    own: str = ""  # the kind of such a row, else empty

    @property
    def key(self) -> Key:
        return self.process, self.seq


@dataclass(frozen=True, slots=True)
class Life:
    """A life of a process, as its ledger tells."""

    name: str  # the ledger's file
    events: tuple[Event, ...]  # in their order
    closing: tuple[float, float] | None  # wall-clock seconds between which it closed its journal; None if it did not


def lives_of(ledgers: Path) -> dict[str, Life]:
    """The lives that kept a journal, by the journal's name of each."""
    names: dict[str, str] = {}
    events: dict[str, list[Event]] = defaultdict(list)
    closing: dict[str, float] = {}
    closed: dict[str, tuple[float, float]] = {}
    for file, line in lines(ledgers):
        match line["k"]:
            case "journal":
                names[file] = line["process"]
            case "event":
                events[file].append(event_from_json(line["event"]))
            case "journal-closing":
                closing[file] = line["wall"]
            case "journal-closed":
                assert line["ended"], f"{file} could not close its journal"
                closed[file] = closing[file], line["wall"]
    return {process: Life(file, tuple(events[file]), closed.get(file)) for file, process in names.items()}


def told_rows(ledgers: Path, journal: Path) -> tuple[list[Told], dict[str, int]]:
    """Hold the journal against the ledgers.

    Returns:
        The rows that the journal has, made of the ledgers; and of each process, how many events a kill cut off.

    Raises:
        AssertionError: a row is missing elsewhere than at a killed life's end, or is another one than happened.
    """
    lives = lives_of(ledgers)
    found: dict[str, list[dict[str, Any]]] = {process: [] for process in lives}
    for row in read_rows(journal):
        found[row["process"]].append(row)
    told: list[Told] = []
    cut: dict[str, int] = {}
    for process, life in lives.items():
        rows = sorted(found[process], key=lambda row: row["seq"])
        told += _compared(process, life, rows)
        cut[process] = len(life.events) - sum(row["kind"] not in (OPENED, CLOSED) for row in rows)
    return told, cut


def _compared(process: str, life: Life, rows: list[dict[str, Any]]) -> Iterator[Told]:
    assert [row["seq"] for row in rows] == list(range(len(rows))), f"{life.name}: a row is missing, or is there twice"
    if life.closing is not None and life.events:
        assert len(rows) == len(life.events) + 2, f"{life.name} ended in good order, and not all of it is there"
    for row in rows:
        seq, own = row["seq"], row["kind"] if row["kind"] in (OPENED, CLOSED) else ""
        if own:
            assert seq == (0 if own == OPENED else len(life.events) + 1), f"{life.name}: {own} is row {seq}"
            low, high = (0.0, float("inf")) if own == OPENED or life.closing is None else life.closing
            assert low <= row["at"] <= high, f"{life.name}: {own} was at another time"
            yield Told(process, seq, row["at"], None, own)
            continue
        event = life.events[seq - 1]
        wanted = {name: value for name, value in row_of(event).items() if value is not None}
        got = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
        assert got == wanted | {"process": process, "seq": seq}, f"{life.name}: row {seq} is another one than happened"
        yield Told(process, seq, event.at, event)
