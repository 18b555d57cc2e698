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
from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F

from pairmq.model.records import COLUMNS
from pairmq.pipeline._making import Piece, fact_pieces, read_written, write_pieces
from pairmq.pipeline._storage import Place, opened
from pairmq.pipeline.follow._files import Files, Found
from pairmq.pipeline.follow._ledger import Entry, Ledger, Ranges, Seen, Waiting, all_joined, joined, size, without
from pairmq.pipeline.journal_io import FEW, Contents, Segment, damaged, look_at, spark_path
from pairmq.pipeline.schema import rows_schema
from pairmq.pipeline.transforms._fact import Fact
from pairmq.pipeline.transforms.facts import FACTS, MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT_ONCE = 256 << 20
"""Bytes of segments in one commit: what is done again after a kill, some twenty million rows at most."""


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


class Intake:
    """Takes files.

    Args:
        spark: the session.
        ledger: where rows are kept.
        files: where files are.
    """

    def __init__(self, spark: SparkSession, ledger: Ledger, files: Files) -> None:
        self._spark = spark
        self._ledger = ledger
        self._files = files
        self.since = Taken()
        """The rows read since this was last replaced."""

    def look(self, journal: Path, *, at_all: bool = False) -> list[list[Found]]:
        """Find what is to be taken, in lots of no more than `AT_ONCE` bytes, or of one file.

        Args:
            journal: its directory.
            at_all: also the files that could not be read and were not changed: the disk may have been what was wrong.
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
        """Take the rows of files.

        Raises:
            OSError: the ledger can't be written; nothing was taken.
            pyspark.errors.PySparkException: Spark failed, likewise.
        """
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
            name = None if folder is None else folder.name
            self._ledger.commit(Entry(number, number, name, sifted.new, still))
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
            write_facts(self._spark, new_rows(self._spark, sifted), folder)
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


_RANGES = types.StructType(
    [
        types.StructField("of", types.StringType(), False),
        types.StructField("first", types.LongType(), False),
        types.StructField("last", types.LongType(), False),
    ]
)


@dataclass(frozen=True, slots=True)
class Sifted:
    """What is to be read of some files.

    Args:
        whole: files of which every row is new, and in no other file.
        partly: files that also have rows which were taken before, or which another of them has as well.
        wanted: the rows that are to be taken from the latter, each once.
        new: all rows that are to be taken, of the former too.
    """

    whole: tuple[Place, ...]
    partly: tuple[Place, ...]
    wanted: Seen
    new: Seen

    @property
    def count(self) -> int:
        """How many rows are to be taken."""
        return sum(size(ranges) for ranges in self.new.values())


def sift(segments: Sequence[Segment], seen: Seen) -> Sifted:
    """Find the rows that were not taken yet.

    Raises:
        OSError, pyarrow.ArrowException: a file whose footer does not give its rows can't be read.
    """
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
    """Give the rows that are to be taken, each once, with all columns of the journal.

    Args:
        spark: the session.
        sifted: with one row at least.
    """
    schema, names = rows_schema(), [column.name for column in COLUMNS]
    parts = []
    if sifted.whole:
        parts.append(spark.read.schema(schema).parquet(*map(spark_path, sifted.whole)).select(*names))
    if sifted.partly:
        found = spark.read.schema(schema).parquet(*map(spark_path, sifted.partly)).select(*names)
        spans = [(process, *span) for process, ranges in sifted.wanted.items() for span in ranges]
        inside = (F.col("process") == F.col("of")) & F.col("seq").between(F.col("first"), F.col("last"))
        wanted = found.join(F.broadcast(spark.createDataFrame(spans, _RANGES)), inside, "left_semi")
        parts.append(wanted.dropDuplicates(["process", "seq"]))
    rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    return rows.coalesce(1) if sifted.count <= FEW else rows


def _held(segment: Segment) -> dict[str, Ranges]:
    """Exactly the rows that a file has."""
    if segment.process is not None and segment.first_seq is not None and segment.last_seq is not None:
        span = (segment.first_seq, segment.last_seq)
        # As many rows as numbers: the writer uses each once, so that none is missing.
        if segment.rows == span[1] - span[0] + 1:
            return {segment.process: (span,)}
    found: dict[str, list[Ranges]] = {}
    with pq.ParquetFile(opened(segment.path)) as file:
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


def write_facts(spark: SparkSession, rows: DataFrame, folder: Path) -> None:
    """Write the facts of some rows.

    Args:
        spark: the session.
        rows: the journal's, each once.
        folder: exclusive; gets a folder for each fact.
    """
    _write(spark, fact_pieces(rows), {}, folder)


def merge_facts(
    spark: SparkSession, parts: Sequence[Path], folder: Path, messages: Path, settled: Sequence[Path]
) -> None:
    """Write what the facts of several parts are together.

    Args:
        spark: the session.
        parts: folders that `write_facts` or this wrote.
        folder: exclusive.
        messages: the folder for the messages, likewise.
        settled: files of more messages.
    """

    def merged(fact: Fact) -> Piece:
        read = [_read(spark, fact, part) for part in parts]
        if fact is MESSAGES and settled:
            read.append(spark.read.schema(fact.schema).parquet(*map(spark_path, settled)))
        union = functools.reduce(DataFrame.unionByName, read)
        return Piece(fact.name, fact.schema, (), lambda _: fact.merged(union), "snappy")

    _write(spark, [merged(fact) for fact in FACTS], {MESSAGES.name: messages}, folder)


def _write(spark: SparkSession, pieces: Sequence[Piece], apart: Mapping[str, Path], folder: Path) -> None:
    write_pieces(spark, pieces, {}, lambda name: apart.get(name, folder / name), lambda *_: None)


def _read(spark: SparkSession, fact: Fact, part: Path) -> DataFrame:
    return read_written(spark, fact.schema, part / fact.name)
