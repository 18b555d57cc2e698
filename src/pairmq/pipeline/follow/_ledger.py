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
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairmq.pipeline._storage import writing
from pairmq.pipeline.journal_io import Lives, segment_files

_ENTRY = re.compile(r"([0-9]{6,12})-([0-9]{6,12})\.json")
_FACTS = re.compile(r"[0-9]{6,12}-[0-9]{6,12}-[0-9a-f]{8}")
_PIECE = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file that could not be read, and is looked at again when it has changed."""

    path: str
    problem: str | None  # why not, in a sentence; None if it is gone
    foreign: bool = False  # as `pairmq.pipeline.journal_io.BadSegment` has it


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit, or several that were merged."""

    first: int
    last: int
    facts: str | None  # the name of the folder of its facts; None where no new row came
    seen: Seen = field(default_factory=dict)  # the rows whose facts these are, of these commits alone
    waiting: tuple[Waiting, ...] = ()  # the files that could not be read as of the last commit
    # The names of the pieces that hold the messages of these commits which are not among the facts.
    settled: tuple[str, ...] = ()
    lives: Lives = field(default_factory=Lives)  # as the files of these commits say

    @property
    def name(self) -> str:
        return f"{self.first:06d}-{self.last:06d}.json"

    def to_json(self) -> str:
        waiting = [[each.path, each.problem, each.foreign] for each in self.waiting]
        known = {name: getattr(self, name) for name in ("first", "last", "facts", "seen", "settled")}
        lives = [self.lives.ends, self.lives.seen]
        return json.dumps(known | {"waiting": waiting, "lives": lives})

    @classmethod
    def from_json(cls, text: str) -> Entry:
        found = json.loads(text)
        try:
            seen = {name: tuple((first, last) for first, last in ranges) for name, ranges in found.pop("seen").items()}
            waiting = tuple(_waiting(each) for each in found.pop("waiting"))
            settled, lives = tuple(found.pop("settled")), _lives(found.pop("lives"))
            entry = cls(**found | {"seen": seen, "waiting": waiting, "settled": settled, "lives": lives})
        except (TypeError, KeyError, AttributeError):
            raise ValueError("it is not an entry of a ledger") from None
        for name, problem in entry._problems():
            if problem:
                raise ValueError(f"its {name} can't be")
        return entry

    def _problems(self) -> Iterator[tuple[str, bool]]:
        """The checks of an untrusted entry."""
        ranges = [each for spans in self.seen.values() for each in spans]
        yield "numbers", not (_is_count(self.first) and _is_count(self.last) and self.first <= self.last)
        yield "folder of facts", self.facts is not None and not _is_name(self.facts, _FACTS)
        yield "rows", not all(_is_count(first) and _is_count(last) and first <= last for first, last in ranges)
        yield "rows", not all(joined(spans) == spans for spans in self.seen.values())
        yield "settled messages", not all(_is_name(each, _PIECE) for each in self.settled)


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
        self._sweep()

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """The files that could not be read so far."""
        return self.chain[-1].waiting if self.chain else ()

    @property
    def lives(self) -> Lives:
        """When each process wrote last, as all files say."""
        return functools.reduce(Lives.joined, (entry.lives for entry in self.chain), Lives())

    @property
    def next_number(self) -> int:
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

    def merge(self, folder: Path | None, settled: Sequence[Path] = ()) -> None:
        """Put one entry in the place of all; where it can't be written, all is as it was.

        The folder has all facts, but for those of settled messages, which are in pieces.
        """
        newest = self.chain[-1]
        pieces = tuple(piece.name for piece in settled)
        facts = None if folder is None else folder.name
        entry = Entry(self.chain[0].first, newest.last, facts, dict(self.seen), newest.waiting, pieces, self.lives)
        for name in set(pieces).difference(*(each.settled for each in self.chain)):
            _sync_below(self._settled / name)
        _sync(self._settled)
        self._write(entry)
        self.chain = (entry,)
        self._sweep()

    def _write(self, entry: Entry) -> None:
        if entry.facts is not None:
            _sync_below(self._facts / entry.facts)
            _sync(self._facts)
        target = self._entries / entry.name
        aside = target.with_name(f".{target.name}")
        with writing(aside), aside.open("w", encoding="utf-8") as file:
            file.write(entry.to_json())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
        _sync(self._entries)

    def _sweep(self) -> None:
        """Delete what a merge or a dead writer has left; entries before facts, so that none names what is gone."""
        kept = {entry.name for entry in self.chain}
        for path in self._entries.iterdir():
            if path.name not in kept:
                path.unlink()
        _sync(self._entries)
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


def _waiting(found: object) -> Waiting:
    match found:
        case [str(path), (str() | None) as problem, bool(foreign)]:
            return Waiting(path, problem, foreign)
    raise ValueError("a file that waits can't be")


def _lives(found: object) -> Lives:
    match found:
        case [dict(ends), dict(seen)] if all(isinstance(at, float) for at in (*ends.values(), *seen.values())):
            return Lives(ends, seen)
    raise ValueError("when processes wrote can't be")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_name(value: Any, pattern: re.Pattern[str]) -> bool:
    """Whether a text names a folder of the ledger, and no path to somewhere else."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


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
        with writing(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


Ranges = tuple[tuple[int, int], ...]
"""First and last number of each range, both in it: sorted, apart from each other, none beside the next."""

Seen = Mapping[str, Ranges]
"""Numbers of rows by process."""


def joined(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """Put sets together; the ranges of each may be in any order, and may overlap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(each for ranges in sets for each in ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    """What is left of a set when another is taken from it."""
    left: list[tuple[int, int]] = []
    others = iter(taken)
    other = next(others, None)
    for first, last in ranges:
        while other is not None and other[1] < first:
            other = next(others, None)
        while other is not None and other[0] <= last:
            if first < other[0]:
                left.append((first, other[0] - 1))
            first = other[1] + 1
            if first > last:
                break
            other = next(others, None)
        if first <= last:
            left.append((first, last))
    return tuple(left)


def size(ranges: Ranges) -> int:
    """How many numbers are in a set."""
    return sum(last - first + 1 for first, last in ranges)


def all_joined(*parts: Seen) -> dict[str, Ranges]:
    """Put together what was seen of each process."""
    names = {name for part in parts for name in part}
    return {name: joined(*(part.get(name, ()) for part in parts)) for name in names}


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the journal."""

    path: Path
    size: int  # bytes
    changed: int  # its content, its name or the rights to it, nanoseconds since 1970
    is_segment: bool = False  # whether rows could be read from it


class Files:
    """The files of the journal that were looked at, as they were then: one line for each, in a file that only grows.

    A line is written once what it says is in the ledger. After a kill between the two the file is looked at again, and
    its rows are known there. Raises `ValueError` with its path where that is damaged.
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
