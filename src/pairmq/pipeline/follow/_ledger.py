"""What was taken from the journal, commit by commit: a file is in it wholly or not at all, whenever the process dies.

::

    OUT/_follow/ledger/000000-000041.json   commits 0 to 41, merged into one
    OUT/_follow/ledger/000042-000042.json   one commit
    OUT/_follow/facts/000042-000042-<token>/<fact>/*.parquet

A commit's facts are written first, into a folder that nobody else ever writes to, and are on the disk before the entry
that names the folder is put in place by one rename. What no entry names is a dead writer's, and is deleted.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairmq.pipeline.follow._ranges import Ranges, Seen, all_joined

_ENTRY = re.compile(r"([0-9]{6,12})-([0-9]{6,12})\.json")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file that could not be read, and is looked at again when it has changed.

    Args:
        path: where it is.
        problem: why not, in a sentence; None if it is gone.
    """

    path: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit, or several that were merged.

    Args:
        first: the number of the first commit.
        last: the number of the last.
        facts: the name of the folder of its facts; None where no new row came.
        seen: the rows whose facts these are, of these commits alone.
        segments: files read until now, from the first commit on.
        waiting: the files that could not be read as of the last commit.
        batch: the number that Spark gave to the files of the last commit that came from it.
        paths: these files.
    """

    first: int
    last: int
    facts: str | None
    seen: Seen = field(default_factory=dict)
    segments: int = 0
    waiting: tuple[Waiting, ...] = ()
    batch: int | None = None
    paths: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The entry's document."""
        waiting = [[each.path, each.problem] for each in self.waiting]
        return json.dumps(
            {
                "first": self.first,
                "last": self.last,
                "facts": self.facts,
                "seen": self.seen,
                "segments": self.segments,
                "waiting": waiting,
                "batch": self.batch,
                "paths": self.paths,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """The entry that a document holds."""
        found: dict[str, Any] = json.loads(text)
        seen = {name: tuple((first, last) for first, last in ranges) for name, ranges in found.pop("seen").items()}
        waiting = tuple(Waiting(*each) for each in found.pop("waiting"))
        return cls(**found | {"seen": seen, "waiting": waiting, "paths": tuple(found["paths"])})


class Ledger:
    """All commits. One process at a time may have it open: the lock on the tables sees to that.

    Args:
        folder: where it is kept; made where it is missing.

    Raises:
        OSError: it can't be read or made.
        ValueError: an entry is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._entries = folder / "ledger"
        self._facts = folder / "facts"
        for each in (self._entries, self._facts):
            each.mkdir(parents=True, exist_ok=True)
        self.chain = _chain([Entry.from_json(path.read_text("utf-8")) for path in _paths(self._entries)])
        self.seen: dict[str, Ranges] = all_joined(*(entry.seen for entry in self.chain))
        self._sweep()

    @property
    def last(self) -> Entry | None:
        """The latest entry; None before the first commit."""
        return self.chain[-1] if self.chain else None

    @property
    def next_number(self) -> int:
        """The number of the commit that comes next."""
        return self.chain[-1].last + 1 if self.chain else 0

    def new_folder(self, first: int, last: int) -> Path:
        """Make a folder for the facts of some commits.

        Its name is drawn: a Spark that outlived the process which it worked for may still write into an earlier one.
        """
        folder = self._facts / f"{first:06d}-{last:06d}-{secrets.token_hex(4)}"
        folder.mkdir()
        return folder

    def facts(self) -> list[Path]:
        """The folders of all facts, each row's in exactly one of them."""
        return [self._facts / entry.facts for entry in self.chain if entry.facts is not None]

    def commit(self, entry: Entry) -> None:
        """Enter the next commit.

        Args:
            entry: follows the last one.

        Raises:
            OSError: it can't be written, and is not in the ledger.
        """
        self._write(entry)
        self.chain = (*self.chain, entry)
        self.seen.update(all_joined({name: self.seen.get(name, ()) for name in entry.seen}, entry.seen))

    def merge(self, folder: Path | None) -> None:
        """Put one entry in the place of all.

        Args:
            folder: of `new_folder`, with the merged facts of all commits.

        Raises:
            OSError: it can't be written, and all is as it was.
        """
        newest = self.chain[-1]
        facts = None if folder is None else folder.name
        values = {name: getattr(newest, name) for name in ("segments", "waiting", "batch", "paths")}
        entry = Entry(self.chain[0].first, newest.last, facts, dict(self.seen), **values)
        self._write(entry)
        self.chain = (entry,)
        self._sweep()

    def _write(self, entry: Entry) -> None:
        if entry.facts is not None:
            _sync_below(self._facts / entry.facts)
            _sync(self._facts)
        target = self._entries / f"{entry.first:06d}-{entry.last:06d}.json"
        aside = target.with_name(f".{target.name}")
        with aside.open("w", encoding="utf-8") as file:
            file.write(entry.to_json())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
        _sync(self._entries)

    def _sweep(self) -> None:
        """Delete what a merge or a dead writer has left; entries before facts, so that none names what is gone."""
        kept = {f"{entry.first:06d}-{entry.last:06d}.json" for entry in self.chain}
        for path in self._entries.iterdir():
            if path.name not in kept:
                path.unlink()
        _sync(self._entries)
        named = {entry.facts for entry in self.chain}
        for path in self._facts.iterdir():
            if path.name not in named:
                shutil.rmtree(path, ignore_errors=True)


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _ENTRY.fullmatch(path.name))


def _chain(entries: list[Entry]) -> tuple[Entry, ...]:
    """The entries that count: from the first commit on, of those that begin alike the one that reaches farthest."""
    farthest: dict[int, Entry] = {}
    for entry in entries:
        if entry.first not in farthest or farthest[entry.first].last < entry.last:
            farthest[entry.first] = entry
    chain: list[Entry] = []
    while (entry := farthest.get(chain[-1].last + 1 if chain else 0)) is not None:  # type: ignore[assignment]
        chain.append(entry)
    covered = chain[-1].last if chain else -1
    if any(entry.last > covered for entry in entries):
        raise ValueError(f"commit {covered + 1} is missing")
    return tuple(chain)


def _sync_below(folder: Path) -> None:
    for path, _, files in os.walk(folder):
        for name in files:
            _sync(Path(path, name))
        _sync(Path(path))


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
