"""Takes the rows of files into the ledger, each once, and keeps the files that can't be read until they can.

Which rows were not taken yet is read from the files' footers where these say it exactly, else from two columns. The new
rows are written as facts, and read again for the tables.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.pipeline._making import Piece, fact_pieces, merged_pieces, read_written, write_pieces
from pairmq.pipeline._storage import Place, opened
from pairmq.pipeline.follow._ledger import (
    Entry,
    Files,
    Found,
    Ledger,
    Ranges,
    Seen,
    Waiting,
    all_joined,
    joined,
    size,
    without,
)
from pairmq.pipeline.journal_io import Contents, Lives, Segment, damaged, look_at, segment_rows, spark_path, together
from pairmq.pipeline.transforms._fact import COUNT, TEXT, schema_of
from pairmq.pipeline.transforms.facts import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT_ONCE = 256 << 20
"""Bytes of segments in one commit: what is done again after a kill, some twenty million rows at most."""


@dataclass(slots=True)
class Taken:
    """What was taken in a while."""

    files: int = 0  # that were looked at
    rows: int = 0  # that were taken
    seconds: float = 0.0  # that it took


class Intake:
    """Takes files into the ledger."""

    def __init__(self, spark: SparkSession, ledger: Ledger, files: Files) -> None:
        self._spark = spark
        self._ledger = ledger
        self._files = files
        self.since = Taken()
        """The rows read since this was last replaced."""

    def look(self, journal: Path, *, at_all: bool = False) -> list[list[Found]]:
        """Find what is to be taken, in lots of no more than `AT_ONCE` bytes, or of one file.

        With ``at_all`` also the files that could not be read and were not changed: the disk may have been at fault.
        """
        news = {str(each.path): each for each in self._files.news(journal)}
        for each in self._ledger.waiting:
            there = Path(each.path).exists()
            if there != (each.problem is not None) or (at_all and there):
                news.setdefault(each.path, Found(Path(each.path), *(_size(Path(each.path)))))
        lots: list[list[Found]] = []
        room = 0
        for found in news.values():
            if not lots or found.size > room:
                lots.append([])
                room = AT_ONCE
            lots[-1].append(found)
            room -= found.size
        return lots

    def take(self, files: Sequence[Found]) -> None:
        """Take the rows of files; where Spark or the disk fails, nothing was taken."""
        began = time.monotonic()
        there = [each for each in files if each.path.exists()]
        contents, sifted, folder = self._written(look_at(each.path for each in there))
        read = {each.path for each in contents.segments}
        waiting = {each.path: each for each in self._ledger.waiting}
        for found in files:
            waiting.pop(str(found.path), None)
        waiting |= {str(each.path): Waiting(str(each.path), each.problem, each.foreign) for each in contents.bad}
        waiting |= {str(each.path): Waiting(str(each.path), None) for each in files if each not in there}
        number = self._ledger.next_number
        still = tuple(each for _, each in sorted(waiting.items()))
        if folder is not None or still != self._ledger.waiting:
            name, lives = None if folder is None else folder.name, Lives.of(contents.segments)
            self._ledger.commit(Entry(number, number, name, sifted.new, still, lives=lives))
        noted = [replace(each, is_segment=each.path in read) for each in there]
        self._files.add(noted, self._ledger.next_number)
        self.since.files += len(files)
        self.since.rows += sifted.count
        self.since.seconds += time.monotonic() - began

    def _written(self, contents: Contents) -> tuple[Contents, Sifted, Path | None]:
        """Write the facts of new rows; returns which files could be read."""
        try:
            sifted = sift(contents.segments, self._ledger.seen)
            if not sifted.count:
                return contents, sifted, None
            number = self._ledger.next_number
            folder = self._ledger.new_folder(number, number)
            files = None if sifted.partly else sifted.whole
            _write(self._spark, fact_pieces(new_rows(self._spark, sifted), files=files), {}, folder)
        except (OSError, pa.ArrowException, PySparkException, Py4JJavaError):
            # Footers may be sound where pages are not: only now is it worth reading everything to see which.
            bad = damaged(contents)
            if not bad:
                raise
            return self._written(contents.without(bad))
        return contents, sifted, folder


def _size(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_ctime_ns


_RANGES = schema_of({"of": TEXT, "first": COUNT, "last": COUNT})


@dataclass(frozen=True, slots=True)
class Sifted:
    """What is to be read of some files."""

    whole: tuple[Place, ...]  # files of which every row is new, and in no other file
    partly: tuple[Place, ...]  # files that also have rows which were taken before, or which another of them has as well
    wanted: Seen  # the rows that are to be taken from the latter, each once
    new: Seen  # all rows that are to be taken, of the former too

    @property
    def count(self) -> int:
        """How many rows are to be taken."""
        return sum(size(ranges) for ranges in self.new.values())


def sift(segments: Sequence[Segment], seen: Seen) -> Sifted:
    """Find the rows that were not taken yet."""
    whole: list[Place] = []
    partly: list[Place] = []
    wanted: dict[str, Ranges] = {}
    new: dict[str, Ranges] = {}
    for segment in segments:
        held = _held(segment)
        fresh = {
            process: without(ranges, joined(seen.get(process, ()), new.get(process, ())))
            for process, ranges in held.items()
        }
        fresh = {process: ranges for process, ranges in fresh.items() if ranges}
        if not fresh:
            continue
        if fresh == held and sum(map(size, held.values())) == segment.rows:
            whole.append(segment.path)
        else:
            partly.append(segment.path)
            wanted = all_joined(wanted, fresh)
        new.update(all_joined({process: new.get(process, ()) for process in fresh}, fresh))
    return Sifted(tuple(whole), tuple(partly), wanted, new)


def new_rows(spark: SparkSession, sifted: Sifted) -> DataFrame:
    """Give the rows that are to be taken, one at least, each once, with all columns of the journal."""
    parts = [segment_rows(spark, sifted.whole)] if sifted.whole else []
    if sifted.partly:
        spans = [(process, *span) for process, ranges in sifted.wanted.items() for span in ranges]
        inside = (F.col("process") == F.col("of")) & F.col("seq").between(F.col("first"), F.col("last"))
        wanted = F.broadcast(spark.createDataFrame(spans, _RANGES))
        found = segment_rows(spark, sifted.partly).join(wanted, inside, "left_semi")
        parts.append(found.dropDuplicates(["process", "seq"]))
    return together(parts, sifted.count)


def _held(segment: Segment) -> dict[str, Ranges]:
    """Exactly the rows that a file has."""
    if segment.process is not None and segment.first_seq is not None and segment.last_seq is not None:
        span = (segment.first_seq, segment.last_seq)
        # As many rows as numbers: the writer uses each once, so that none is missing.
        if segment.rows == span[1] - span[0] + 1:
            return {segment.process: (span,)}
    found: dict[str, list[Ranges]] = {}
    with pq.ParquetFile(opened(segment.path), page_checksum_verification=True) as file:
        for batch in file.iter_batches(columns=["process", "seq"]):
            for process, numbers in _by_process(batch):
                found.setdefault(process, []).append(_ranges(numbers))
    return {process: joined(*parts) for process, parts in found.items()}


def _by_process(batch: pa.RecordBatch) -> list[tuple[str, pa.Array]]:
    column = batch.column("process")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    found = [
        (name, batch.column("seq").filter(pc.equal(column, name))) for name in pc.unique(column).drop_null().to_pylist()
    ]
    return [(process, numbers.drop_null()) for process, numbers in found if numbers.null_count < len(numbers)]


def _ranges(numbers: pa.Array) -> Ranges:
    each = np.unique(numbers.to_numpy(zero_copy_only=False))
    ends = np.flatnonzero(np.diff(each) > 1)
    firsts, lasts = each[np.concatenate(([0], ends + 1))], each[np.concatenate((ends, [each.size - 1]))]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))


def merge_facts(
    spark: SparkSession, parts: Sequence[Path], folder: Path, messages: Path, settled: Sequence[Path]
) -> None:
    """Write what the facts of several parts are together, those of messages, with more from settled files, apart."""
    read = [read_written(spark, MESSAGES.schema, part / MESSAGES.name) for part in parts]
    if settled:
        read.append(spark.read.schema(MESSAGES.schema).parquet(*map(spark_path, settled)))
    union = functools.reduce(DataFrame.unionByName, read)
    _write(spark, merged_pieces(union, parts), {MESSAGES.name: messages}, folder)


def _write(spark: SparkSession, pieces: Sequence[Piece], apart: Mapping[str, Path], folder: Path) -> None:
    write_pieces(spark, pieces, {}, lambda name: apart.get(name, folder / name), lambda *_: None)
