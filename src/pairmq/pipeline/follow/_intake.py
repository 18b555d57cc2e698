"""Takes the rows of files into the ledger, each once, and keeps the files that can't be read until they can."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pairmq.pipeline.follow._facts import write_facts
from pairmq.pipeline.follow._ledger import Entry, Ledger, Waiting
from pairmq.pipeline.follow._names import Found
from pairmq.pipeline.follow._sifting import Sifted, new_rows, sift
from pairmq.pipeline.journal_io import Contents, damaged, look_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = 256 << 20
"""Bytes of segments in one batch: what is done again after a kill, some twenty million rows at most."""

_LATER = "it is not read yet: the next start does so"


@dataclass(slots=True)
class Taken:
    """What was taken in a while.

    Args:
        files: that were looked at.
        rows: that were taken.
        seconds: that it took.
    """

    files: int = 0
    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Origin:
    """Which batch of the stream a commit is of, or was the last one before it."""

    batch: int | None = None
    paths: tuple[str, ...] = ()


class Intake:
    """Takes files.

    Args:
        spark: the session.
        ledger: where it is kept.
    """

    def __init__(self, spark: SparkSession, ledger: Ledger) -> None:
        self._spark = spark
        self._ledger = ledger
        self.since = Taken()
        """What was taken since somebody put a new one here."""

    def receive(self, batch: int, files: Sequence[Found], *, now: bool = True) -> None:
        """Take the files of a batch of the stream.

        Args:
            batch: its number.
            files: that it has.
            now: otherwise they are only noted, for `look_again`.

        Raises:
            OSError: the ledger can't be written; nothing was taken.
            pyspark.errors.PySparkException: Spark failed, likewise.
        """
        origin = _Origin(batch, tuple(str(each.path) for each in files))
        last = self._ledger.last
        if last is not None and (last.batch, last.paths) == (origin.batch, origin.paths):
            return  # Spark died before it had noted that this batch was done
        waited = set() if last is None else {each.path for each in last.waiting}
        # What was read before and has been changed since counts as one file all the same.
        counted = {each.path for each in files if each.again and str(each.path) not in waited}
        if now:
            self._take([each.path for each in files], counted, origin)
        else:
            self._commit(origin, waiting=[Waiting(name, _LATER) for name in origin.paths])

    def look_again(self, at_once: int = AT_ONCE, *, at_all: bool = False) -> None:
        """Take the files that were gone and have come back, and note which are gone.

        Args:
            at_once: bytes of the files in one commit, though it has one file at least.
            at_all: also those that could not be read and were not changed: the disk may have been what was wrong.

        Raises:
            As `receive`.
        """
        last = self._ledger.last
        if last is None:
            return
        there = {each.path: Path(each.path).exists() for each in last.waiting}
        paths = [
            Path(each.path)
            for each in last.waiting
            if there[each.path] != (each.problem is not None) or (at_all and there[each.path])
        ]
        for lot in _lots(paths, at_once):
            self._take(lot, set(), _Origin(last.batch, last.paths))

    def _take(self, paths: Sequence[Path], counted: set[Path], origin: _Origin) -> None:
        began = time.monotonic()
        contents, sifted, folder = self._written(look_at(path for path in paths if path.exists()))
        told = {each.path: Waiting(str(each.path), each.problem, each.foreign) for each in contents.bad}
        read = {each.path for each in contents.segments}
        gone = {path: Waiting(str(path), None) for path in paths if not path.exists()}
        waiting = [found for path in paths if (found := gone.get(path) or told.get(path)) is not None]
        self._commit(
            origin,
            waiting=[each for each in waiting if Path(each.path) not in read],
            looked_at=paths,
            folder=folder,
            sifted=sifted,
            segments=len(read - counted),
        )
        self.since.files += len(paths)
        self.since.rows += sifted.count
        self.since.seconds += time.monotonic() - began

    def _written(self, contents: Contents) -> tuple[Contents, Sifted, Path | None]:
        """Write the facts of the rows that are new; tells which files were read after all."""
        try:
            sifted = sift(contents.segments, self._ledger.seen)
            if not sifted.count:
                return contents, sifted, None
            number = self._ledger.next_number
            folder = self._ledger.new_folder(number, number)
            write_facts(self._spark, new_rows(self._spark, sifted), folder)
        except (OSError, pa.ArrowException, PySparkException, Py4JJavaError):
            # Footers may be sound where pages are not: only now is it worth reading everything to see which.
            bad = damaged(contents)
            if not bad:
                raise
            return self._written(contents.without(bad))
        return contents, sifted, folder

    def _commit(
        self,
        origin: _Origin,
        *,
        waiting: Sequence[Waiting],
        looked_at: Sequence[Path] = (),
        folder: Path | None = None,
        sifted: Sifted | None = None,
        segments: int = 0,
    ) -> None:
        number, last = self._ledger.next_number, self._ledger.last
        still = {each.path: each for each in last.waiting} if last else {}
        for path in looked_at:
            still.pop(str(path), None)
        self._ledger.commit(
            Entry(
                first=number,
                last=number,
                facts=None if folder is None else folder.name,
                seen={} if sifted is None else sifted.new,
                segments=(last.segments if last else 0) + segments,
                waiting=tuple((still | {each.path: each for each in waiting}).values()),
                batch=origin.batch,
                paths=origin.paths,
            )
        )


def _lots(paths: Sequence[Path], at_once: int) -> Iterator[Sequence[Path]]:
    """Cut a list of files: all that came while a follower was ending may be far too much for one commit."""
    lot: list[Path] = []
    room = at_once
    for path in paths:
        size = path.stat().st_size if path.exists() else 0
        if lot and size > room:
            yield lot
            lot, room = [], at_once
        lot.append(path)
        room -= size
    if lot:
        yield lot
