"""The rows of a chaos run's journal, held against the ledgers of its processes, and the history that these tell.

A ledger has each event before the journal gets it, and survives a SIGKILL. So a process's rows are the beginning of its
ledger's events, and a process that ended in good order has all of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairmq.model.events import Event
from pairmq.model.records import event_of, row_of
from pairmq.observe.journal import read_rows
from pairmq.testing.chaos import Plan
from pairmq.testing.chaos._books import Found, history_of
from pairmq.testing.chaos._ledger import lines, message_of
from pairmq.testing.simulator._history import History

OPENED, CLOSED = "JournalOpened", "JournalClosed"
Key = tuple[str, int]
"""A process and a row's number."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Life:
    """A life of a process, by its ledger."""

    name: str  # the ledger's file
    events: tuple[Event, ...]  # in their order
    closing: tuple[float, float] | None  # wall-clock seconds between which it closed its journal; None if it did not


def checked_rows(ledgers: Path, journal: Path) -> tuple[list[Row], dict[str, int]]:
    """Hold the journal against the ledgers.

    Returns:
        The journal's rows; and of each process, how many events a kill cut off.

    Raises:
        AssertionError: a row is missing elsewhere than at a killed life's end, or is another one than happened.
    """
    lives = _lives_of(ledgers)
    found: dict[str, list[Row]] = {process: [] for process in lives}
    for row in read_rows(journal):
        found[row["process"]].append(row)
    cut: dict[str, int] = {}
    for process, life in lives.items():
        found[process].sort(key=lambda row: row["seq"])
        _compare(process, life, found[process])
        cut[process] = len(life.events) - sum(row["kind"] not in (OPENED, CLOSED) for row in found[process])
    return [row for rows in found.values() for row in rows], cut


def _lives_of(ledgers: Path) -> dict[str, _Life]:
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
                events[file].append(event_of(line["event"]))
            case "journal-closing":
                closing[file] = line["wall"]
            case "journal-closed":
                assert line["ended"], f"{file} could not close its journal"
                closed[file] = closing[file], line["wall"]
    return {process: _Life(file, tuple(events[file]), closed.get(file)) for file, process in names.items()}


def _compare(process: str, life: _Life, rows: list[Row]) -> None:
    assert [row["seq"] for row in rows] == list(range(len(rows))), f"{life.name}: a row is missing, or is there twice"
    if life.closing is not None and life.events:
        assert len(rows) == len(life.events) + 2, f"{life.name} ended in good order, and not all of it is there"
    for row in rows:
        seq = row["seq"]
        if row["kind"] in (OPENED, CLOSED):
            opened = row["kind"] == OPENED
            assert seq == (0 if opened else len(life.events) + 1), f"{life.name}: {row['kind']} is row {seq}"
            low, high = (0.0, float("inf")) if opened or life.closing is None else life.closing
            assert low <= row["at"] <= high, f"{life.name}: {row['kind']} was at another time"
            continue
        wanted = {name: value for name, value in row_of(life.events[seq - 1]).items() if value is not None}
        got = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items() if name != "clock"}
        assert got == wanted | {"process": process, "seq": seq}, f"{life.name}: row {seq} is another one than happened"


def history_in(ledgers: Path, plan: Plan) -> History:
    """What happened, for the judge; with what the brokers held in the end."""
    home, backlog, dead = {}, {}, {}
    for _, line in lines(ledgers):
        if line["k"] == "home":
            home[line["path"]] = [message_of(number) for number in line["messages"] if number is not None]
        elif line["k"] == "left":
            backlog, dead = ({int(number): path for number, path in line[name].items()} for name in ("backlog", "dead"))
    return history_of(plan, ledgers, Found(home, backlog, dead))
