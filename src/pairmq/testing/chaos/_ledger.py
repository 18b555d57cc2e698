"""The ledgers of a chaos run: one file for each life of a process, a JSON object on each line.

Each line is one write without a buffer, so that what a process wrote down before a SIGKILL is there afterwards.
Instants are of the machine's monotonic clock, which all processes share; it is the event loop's clock too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self


class Ledger:
    """Writes lines.

    Args:
        path: of the file; lines are added to one that exists.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **fields: Any) -> None:
        """Write one line, with the instant.

        Args:
            kind: the kind of entry.
            fields: that JSON knows.
        """
        self._file.write(json.dumps({"t": time.monotonic(), "k": kind, **fields}).encode() + b"\n")

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

    Args:
        directory: that holds the ``.jsonl`` files.
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
