"""Which files of the journal were looked at, as they were then: one line for each, in a file that only grows.

A line is written once what it says is in the ledger. After a kill between the two the file is looked at again, and its
rows are known there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pairmq.pipeline._storage import writing
from pairmq.pipeline.journal_io import segment_files


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the journal."""

    path: Path
    size: int  # bytes
    changed: int  # its content, its name or the rights to it, nanoseconds since 1970
    is_segment: bool = False  # whether rows could be read from it


class Files:
    """The files that were looked at, as a file of them says.

    Raises `ValueError` with its path where that is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Found] = {}
        self.commits = 0
        """How many commits the ledger had when the latest were looked at."""
        text = path.read_text("ascii") if path.exists() else ""
        lines = text.splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        try:
            for line in whole:
                match json.loads(line):
                    case [str(name), int(size), int(changed), bool(is_segment), int(commits)]:
                        self._known[name] = Found(Path(name), size, changed, is_segment)
                        self.commits = max(self.commits, commits)
                    case _:
                        raise ValueError("a line names no file")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if len(lines) > len(self._known):  # the last one was being written, or files were changed
            aside = path.with_name(f".{path.name}")
            self._write(aside, "w", self._known.values())
            aside.replace(path)

    @property
    def segments(self) -> int:
        """How many of them had rows."""
        return sum(each.is_segment for each in self._known.values())

    def news(self, journal: Path) -> list[Found]:
        """Find the files that are new or were changed."""
        found = []
        for path in segment_files(journal):
            try:
                status = path.stat()
            except OSError:
                continue  # gone again, or not ours to see yet
            known = self._known.get(str(path))
            if known is None or (known.size, known.changed) != (status.st_size, status.st_ctime_ns):
                found.append(Found(path, status.st_size, status.st_ctime_ns))
        return found

    def add(self, found: Iterable[Found], commits: int) -> None:
        """Note files that were looked at; those that can't be noted are looked at again."""
        found = list(found)
        self.commits = commits
        self._write(self._path, "a", found)
        self._known.update((str(each.path), each) for each in found)

    def _write(self, path: Path, mode: str, found: Iterable[Found]) -> None:
        with writing(path), path.open(mode, encoding="ascii") as file:
            for each in found:
                line = [str(each.path), each.size, each.changed, each.is_segment, self.commits]
                file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
