"""What was taken from the journal, commit by commit: a file is in it wholly or not at all, whenever the process dies.

::

    OUT/_follow/ledger/000000-000041.json   commits 0 to 41, merged into one
    OUT/_follow/ledger/000042-000042.json   one commit
    OUT/_follow/facts/000042-000042-<token>/<fact>/*.parquet
    OUT/_follow/settled/<token>/*

A commit's facts are written first, into a folder that no other writer uses, and are on the disk before the entry that
names the folder is put in place by one rename; so are the pieces of settled messages. What no entry names is a dead
writer's, and is deleted. Which rows of a process were taken is kept as ranges: as many pairs of numbers as there are
gaps, plus one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pairmq.pipeline._storage import put_text, sync
from pairmq.pipeline.journal_io import Lives, Ranges, Seen, all_joined, segment_files

_ENTRY = re.compile(r"([0-9]{6,12})-([0-9]{6,12})\.json")


class File(NamedTuple):
    """A file of the journal, as it was when it was looked at."""

    path: str
    size: int = 0  # bytes
    changed: int = 0  # its content, its name or the rights to it, nanoseconds since 1970
    is_segment: bool = False  # whether rows could be read from it
    problem: str | None = None  # why it could not be read, in a sentence; it is looked at again when it has changed
    foreign: bool = False  # as `pairmq.pipeline.journal_io.BadSegment` has it
    gone: bool = False  # before it could be read


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit, or several that were merged."""

    first: int
    last: int
    facts: str | None  # the name of the folder of its facts; None where no new row came
    seen: Seen = field(default_factory=dict)  # the rows whose facts these are, of these commits alone
    # The names of the pieces that hold the messages of these commits which are not among the facts.
    settled: tuple[str, ...] = ()
    lives: Lives = field(default_factory=Lives)  # as the files of these commits say
    files: tuple[File, ...] = ()  # those that these commits have looked at

    @property
    def name(self) -> str:
        return f"{self.first:06d}-{self.last:06d}.json"

    def to_json(self) -> str:
        known = {name: getattr(self, name) for name in ("first", "last", "facts", "seen", "settled", "files")}
        known["lives"] = [self.lives.ends, self.lives.seen]
        return json.dumps({"entry": known, "sha256": _digest(known)})

    @classmethod
    def from_json(cls, text: str) -> Entry:
        document = json.loads(text)
        try:
            found, digest = document["entry"], document["sha256"]
        except (LookupError, TypeError):
            raise ValueError("it is not an entry of a ledger") from None
        if digest != _digest(found):
            raise ValueError("it is damaged: its checksum differs")
        return cls(
            found["first"],
            found["last"],
            found["facts"],
            {name: tuple(map(tuple, ranges)) for name, ranges in found["seen"].items()},
            tuple(found["settled"]),
            Lives(*found["lives"]),
            tuple(File(*each) for each in found["files"]),
        )


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


class Ledger:
    """All commits. One process at a time may have it open: the lock on the tables sees to that.

    Raises `ValueError` with the path of an entry, or of what it names, that is damaged or missing.
    """

    def __init__(self, folder: Path) -> None:
        self._entries = folder / "ledger"
        self._facts = folder / "facts"
        self._settled = folder / "settled"
        for each in (self._entries, self._facts, self._settled):
            each.mkdir(parents=True, exist_ok=True)
        paths = sorted(path for path in self._entries.iterdir() if _ENTRY.fullmatch(path.name))
        self.chain = _chain([_read(path) for path in paths])
        for place in (*self.facts(), *self.settled()):
            if not place.is_dir():
                raise ValueError(f"{place}, which its ledger names, is missing")
        self.seen: dict[str, Ranges] = all_joined(*(entry.seen for entry in self.chain))
        self.files = {file.path: file for entry in self.chain for file in entry.files}
        """All that were looked at, as they were then."""
        self._sweep()

    @property
    def waiting(self) -> list[File]:
        """The files that could not be read so far, by name."""
        return sorted(each for each in self.files.values() if each.problem is not None or each.gone)

    @property
    def lives(self) -> Lives:
        """When each process wrote last, as all files say."""
        return functools.reduce(Lives.joined, (entry.lives for entry in self.chain), Lives())

    @property
    def segments(self) -> int:
        """How many files had rows."""
        return sum(each.is_segment for each in self.files.values())

    @property
    def next_number(self) -> int:
        return self.chain[-1].last + 1 if self.chain else 0

    def news(self, journal: Path) -> list[File]:
        """Find the files that are new or were changed."""
        found = []
        for path in segment_files(journal):
            try:
                status = path.stat()
            except OSError:
                continue  # gone again, or not ours to see yet
            known = self.files.get(str(path))
            if known is None or (known.size, known.changed) != (status.st_size, status.st_ctime_ns):
                found.append(File(str(path), status.st_size, status.st_ctime_ns))
        return found

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

    def new_piece(self) -> Path:
        folder = self._settled / secrets.token_hex(8)
        folder.mkdir()
        return folder

    def settled(self) -> list[Path]:
        """The folders of all pieces of settled messages, each message in exactly one of them."""
        return [self._settled / name for entry in self.chain for name in entry.settled]

    def commit(self, entry: Entry) -> None:
        """Enter the next commit; where it can't be written, it is not in the ledger."""
        self._write(entry)
        self.chain = (*self.chain, entry)
        self.seen.update(all_joined({name: self.seen.get(name, ()) for name in entry.seen}, entry.seen))
        self.files.update((file.path, file) for file in entry.files)

    def merge(self, folder: Path | None, settled: Sequence[Path] = ()) -> None:
        """Put one entry in the place of all; where it can't be written, all is as it was.

        The folder has all facts, but for those of settled messages, which are in pieces.
        """
        pieces = tuple(piece.name for piece in settled)
        facts = None if folder is None else folder.name
        first, last, files = self.chain[0].first, self.chain[-1].last, tuple(self.files.values())
        entry = Entry(first, last, facts, dict(self.seen), pieces, self.lives, files)
        for name in set(pieces).difference(*(each.settled for each in self.chain)):
            _sync_below(self._settled / name)
        sync(self._settled)
        self._write(entry)
        self.chain = (entry,)
        self._sweep()

    def _write(self, entry: Entry) -> None:
        if entry.facts is not None:
            _sync_below(self._facts / entry.facts)
            sync(self._facts)
        put_text(self._entries / entry.name, entry.to_json())

    def _sweep(self) -> None:
        """Delete what a merge or a dead writer has left; entries before facts, so that none names what is gone."""
        kept = {entry.name for entry in self.chain}
        for path in self._entries.iterdir():
            if path.name not in kept:
                path.unlink()
        sync(self._entries)
        named = {*self.facts(), *self.settled()}
        for path in (*self._facts.iterdir(), *self._settled.iterdir()):
            if path not in named:
                shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> Entry:
    try:
        entry = Entry.from_json(path.read_text("utf-8"))
        if path.name != entry.name:
            raise ValueError("its commits do not match its name")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return entry


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
            sync(Path(path, name))
        sync(Path(path))
