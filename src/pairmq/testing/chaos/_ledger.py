"""The messages of a chaos run, each made of its number alone, and the ledgers: a file for each life of a process.

Each line is one write without a buffer, so that what a process wrote down before a SIGKILL is there afterwards.
Instants are of the machine's monotonic clock, which all processes share; it is the event loop's clock too. Events
are written as rows of `pairmq.model.records`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pairmq.model import Message
from pairmq.testing.history import CANARIES

OPENED = "opened"
"""What a client says first, when its pair is open."""

CANARIES_OF_A_SENDER = 8
"""One for each session of its client, and one without a session."""

_NUMBER = slice(1, 9)
_LENGTHS = (9, 40, 700, 3000)
_A_LIFE = 100_000
_A_CLIENT = 10_000_000
_SESSIONS = CANARIES_OF_A_SENDER - 1


def first_number(client: int, life: int) -> int:
    """The first number of a life of a client: no two lives ever send the same one."""
    if not 0 < life < _A_CLIENT // _A_LIFE:
        raise ValueError(f"client {client} has lived {life} times: no number is left")
    return client * _A_CLIENT + life * _A_LIFE


def first_canary(client: int, life: int) -> int:
    """The number of a life's first canary; with `CANARIES_OF_A_SENDER` from there on each session has one."""
    return CANARIES + first_number(client, life) // 100


def made(number: int) -> Message:
    """The message of a number."""
    some = number % 3 == 0
    return Message(
        (b"m%08d" % number).ljust(_LENGTHS[number % len(_LENGTHS)], b"."),
        message_id=f"id-{number}",
        session_id=_session(number),
        time_to_live=3600.0 if number % 5 == 0 else None,
        correlation_id=f"about-{number}" if some else None,
        subject="chaos",
        application_properties={"number": number, "text": "n", "some": some},
    )


def _session(number: int) -> str | None:
    """Its client's own: order is a promise while one process at a time owns a session's sends."""
    if number >= CANARIES:
        client, turn = (number - CANARIES) // (_A_CLIENT // 100), number % CANARIES_OF_A_SENDER
        return f"session-{client}-{turn}" if turn < _SESSIONS else None
    return f"session-{number // _A_CLIENT}-{number % _SESSIONS}" if number % 3 == 0 else None


def number_of(message: Message) -> int | None:
    """Read a message's number out of its body; None for one that was never sent."""
    digits = message.body[_NUMBER]
    return int(digits) if message.body[:1] == b"m" and len(digits) == 8 and digits.isdigit() else None


class Ledger:
    """Writes lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"t": time.monotonic(), "k": kind, **values}).encode() + b"\n")

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lines(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """All lines of all ledgers in the order of their instants, with the file's name without its ending.

    A line truncated by a kill is ignored.
    """
    found: list[tuple[float, str, int, dict[str, Any]]] = []
    for path in sorted(directory.glob("*.jsonl")):
        for position, line in enumerate(path.read_bytes().split(b"\n")):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            found.append((entry["t"], path.stem, position, entry))
    for _, name, _, entry in sorted(found, key=lambda each: each[:3]):
        yield name, entry
