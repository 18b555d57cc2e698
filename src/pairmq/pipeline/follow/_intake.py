"""Takes the rows of files into the ledger, each once, and keeps the files that can't be read until they can.

Which rows were not taken yet is read from the files' footers where these say it exactly, else from two columns. The new
rows are written as facts, and read again for the tables.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pairmq.pipeline._making import Piece, fact_pieces, merged_pieces, read_written, write_pieces
from pairmq.pipeline.follow._ledger import Entry, File, Ledger
from pairmq.pipeline.journal_io import Contents, Lives, Sifted, damaged, look_at, new_rows, sift, spark_path
from pairmq.pipeline.transforms.facts import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

    def __init__(self, spark: SparkSession, ledger: Ledger) -> None:
        self._spark = spark
        self._ledger = ledger
        self.since = Taken()
        """The rows read since this was last replaced."""

    def look(self, journal: Path, *, at_all: bool = False) -> list[list[File]]:
        """Find what is to be taken, in lots of no more than `AT_ONCE` bytes, or of one file.

        With ``at_all`` also the files that could not be read and were not changed: the disk may have been at fault.
        """
        news = {each.path: each for each in self._ledger.news(journal)}
        for each in self._ledger.waiting:
            there = Path(each.path).exists()
            if there == each.gone or (at_all and there):
                news.setdefault(each.path, each)
        lots: list[list[File]] = []
        room = 0
        for found in news.values():
            if not lots or found.size > room:
                lots.append([])
                room = AT_ONCE
            lots[-1].append(found)
            room -= found.size
        return lots

    def take(self, files: Sequence[File]) -> None:
        """Take the rows of files; where Spark or the disk fails, nothing was taken."""
        began, ledger = time.monotonic(), self._ledger
        there = {each.path: File(*each[:3]) for each in files if Path(each.path).exists()}
        contents, sifted, folder = self._written(look_at(map(Path, there)))
        seen = {each.path: File(each.path, gone=True) for each in files} | there
        for good in contents.segments:
            seen[str(good.path)] = there[str(good.path)]._replace(is_segment=True)
        for bad in contents.bad:
            seen[str(bad.path)] = there[str(bad.path)]._replace(problem=bad.problem, foreign=bad.foreign)
        changed = tuple(each for path, each in seen.items() if ledger.files.get(path) != each)
        if folder is not None or changed:
            number, name = ledger.next_number, None if folder is None else folder.name
            lives = Lives.of(contents.segments)
            ledger.commit(Entry(number, number, name, sifted.new, lives=lives, files=changed))
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
