"""Events to put into journals, and what stands in them afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pairmq.model import Entity, EntityState
from pairmq.model.events import SendCompleted, SendOutcome, Warned
from pairmq.observe.journal import read_rows

EPOCH = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""

OWN = ("JournalOpened", "JournalClosed")
"""Kinds of rows that the journal writes by itself."""


def warned(text: str = "look", at: float = EPOCH) -> Warned:
    return Warned(at=at, pair="east>west", subject="orders", text=text)


def sent(number: int = 0, **changed: Any) -> SendCompleted:
    """A healthy send."""
    values: dict[str, Any] = {
        "at": EPOCH + number,
        "pair": "east>west",
        "entity": Entity("orders"),
        "message_id": f"{number:032x}",
        "outcome": SendOutcome.PRIMARY,
        "backlog_queue": None,
        "attempts": 1,
        "elapsed": 0.001,
        "maybe_duplicate": False,
        "size": 10,
        "sender": "s1",
        "sequence": number,
        "state": EntityState.HEALTHY,
    }
    return SendCompleted(**{**values, **changed})


def rows(directory: Path, *kinds: str) -> list[dict[str, Any]]:
    """The rows of all segments by process and number; the journal's own only if they are asked for."""
    found = [row for row in read_rows(directory, kinds=kinds) if kinds or row["kind"] not in OWN]
    return sorted(found, key=lambda row: (row["process"], row["seq"]))


def texts(directory: Path) -> list[str]:
    """The texts of all warnings, by process and number."""
    return [row["text"] for row in rows(directory, "Warned")]


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for what a thread or another process does."""
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.005)
