"""Notes which files there are, in small lists that a stream reads: a file that was changed is noted again.

::

    OUT/_follow/names/000000000007.jsonl    a list: one line for each file, never changed once it is there
    OUT/_follow/names/_known.jsonl          lists that the stream has read, put together

Spark could watch the journal's own directory, but its account is by name alone: a file that it found empty or gone
between two looks, or torn, would never be seen again. So only names go through the stream, and its checkpoint says how
far it has come. What is in the files is read by the code that a batch run has for it, which puts a torn one aside; a
stream of rows would stop at it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from pairmq.pipeline._storage import writing
from pairmq.pipeline.journal_io import segment_files, spark_path, spark_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KNOWN = "_known.jsonl"
_MILLISECOND = 1_000_000  # ns
_MOST_LISTS = 100


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the journal, as it was found.

    Args:
        path: where it is.
        size: bytes.
        changed: when its content, its name or the rights to it were last changed, nanoseconds since 1970.
        again: it was noted before, and has been changed since.
    """

    path: Path
    size: int
    changed: int
    again: bool

    def to_line(self) -> str:
        """The line of a list."""
        return json.dumps([str(self.path), self.size, self.changed, self.again]) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Found:
        """The file named in a line."""
        match json.loads(line):
            case [str(path), int(size), int(changed), bool(again)]:
                return cls(Path(path), size, changed, again)
        raise ValueError("a line names no file")


class Names:
    """The lists.

    Args:
        folder: where they are kept; made where it is missing.
        journal: the directory whose files they name.

    Raises:
        OSError: it can't be read or made.
        ValueError: a list is damaged; the text has its path.
    """

    def __init__(self, folder: Path, journal: Path) -> None:
        self.folder = folder
        self._journal = journal
        folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, tuple[int, int]] = {}
        for path in (folder / _KNOWN, *self._lists()):
            if path.exists():
                for each in _read(path):
                    self._know(each)

    def note(self, at_once: int) -> None:
        """Write lists of the files that are new or were changed.

        Args:
            at_once: bytes of the files in one list, though it has one file at least.

        Raises:
            OSError: a list can't be written; what it would have named is noted the next time.
        """
        found: list[Found] = []
        size = 0
        for each in self._news():
            if found and size + each.size > at_once:
                self._write(found)
                found, size = [], 0
            found.append(each)
            size += each.size
        if found:
            self._write(found)

    def after(self, number: int) -> list[Found]:
        """The files of the lists behind one, which the stream has not given yet: it gives them by their numbers."""
        return [found for path in self._lists() if int(path.stem) > number for found in _read(path)]

    def tidy(self) -> None:
        """Put lists together, all of which the stream has read.

        The last one stays, for its number: Spark would not read another one of a name that it knows.
        """
        lists = self._lists()
        if len(lists) <= _MOST_LISTS:
            return
        _put(self.folder / _KNOWN, (Found(Path(path), *found, False) for path, found in self._known.items()))
        for path in lists[:-1]:
            path.unlink()

    def _news(self) -> Iterator[Found]:
        for path in segment_files(self._journal):
            try:
                status = path.stat()
            except OSError:
                continue  # gone again, or not ours to see yet
            known = self._known.get(str(path))
            if known != (status.st_size, status.st_ctime_ns):
                yield Found(path, status.st_size, status.st_ctime_ns, known is not None)

    def _write(self, found: list[Found]) -> None:
        lists = self._lists()
        number = int(lists[-1].stem) + 1 if lists else 0
        # The stream gives lists in the order of their times, of which it knows the milliseconds: each has its own.
        earliest = lists[-1].stat().st_mtime_ns // _MILLISECOND + 1 if lists else 0
        _put(self.folder / f"{number:012d}.jsonl", found, max(earliest, time.time_ns() // _MILLISECOND))
        for each in found:
            self._know(each)

    def _know(self, found: Found) -> None:
        self._known[str(found.path)] = (found.size, found.changed)

    def _lists(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.jsonl") if path.stem.isdecimal())


def _read(path: Path) -> list[Found]:
    try:
        return [Found.from_line(line) for line in path.read_text("ascii").splitlines()]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _put(target: Path, found: Iterable[Found], changed_at: int | None = None) -> None:
    """Write a list at one stroke, onto the disk, as if it had been changed at a millisecond since 1970."""
    aside = target.with_name(f".{target.name}")
    with writing(aside), aside.open("w", encoding="ascii") as file:
        file.writelines(each.to_line() for each in found)
        file.flush()
        os.fsync(file.fileno())
    if changed_at is not None:
        os.utime(aside, ns=(changed_at * _MILLISECOND,) * 2)
    aside.replace(target)
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with writing(target.parent):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


_OPTIONS = {
    "pathGlobFilter": "*.jsonl",
    "maxFilesPerTrigger": "1",  # a list is a batch
    # What was noted before a long rest, or under a clock that was wrong, counts as much.
    "maxFileAge": "36500d",
}


def each_batch(spark: SparkSession, names: Path, checkpoint: Path, receive: Callable[[int, list[Found]], None]) -> None:
    """Give all files that are noted and were not given before.

    Args:
        spark: the session.
        names: the folder of the lists.
        checkpoint: where Spark keeps its account.
        receive: takes the number of a batch and its files. A batch counts as given once this returns; after a kill
            before that, the same files are repeated under the same number.

    Raises:
        pyspark.errors.StreamingQueryException: Spark failed.
        Exception: raised by ``receive``; the batch will be repeated.
    """
    failures: list[Exception] = []

    def taken(batch: DataFrame, number: int) -> None:
        try:
            receive(number, sorted((Found.from_line(row[0]) for row in batch.collect()), key=lambda each: each.path))
        except Exception as error:
            failures.append(error)  # what crosses over to Java and back has lost its type
            raise

    lines = spark.readStream.format("text").options(**_OPTIONS).load(spark_path(names))
    writer = lines.writeStream.foreachBatch(taken).option("checkpointLocation", spark_target(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if failures:
            raise failures[0] from None
        raise
    finally:
        query.stop()
