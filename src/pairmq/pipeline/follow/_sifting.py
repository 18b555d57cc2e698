"""Tells which rows of some files were not taken yet, from footers where these say it exactly, else from two columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql import types

from pairmq.model.records import COLUMNS
from pairmq.pipeline.follow._ranges import Ranges, Seen, all_joined, joined, size, without
from pairmq.pipeline.journal_io import Segment, spark_path
from pairmq.pipeline.schema import rows_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    whole: tuple[Path, ...]
    partly: tuple[Path, ...]
    wanted: Seen
    new: Seen

    @property
    def count(self) -> int:
        """How many rows are to be taken."""
        return sum(size(ranges) for ranges in self.new.values())


def sift(segments: Sequence[Segment], seen: Seen) -> Sifted:
    """Find the rows that were not taken yet.

    Args:
        segments: good ones.
        seen: the rows that were taken.

    Raises:
        OSError, pyarrow.ArrowException: a file whose rows its footer does not tell can't be read.
    """
    whole: list[Path] = []
    partly: list[Path] = []
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
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _held(segment: Segment) -> dict[str, Ranges]:
    """Exactly the rows that a file has."""
    if segment.process is not None and segment.first_seq is not None and segment.last_seq is not None:
        span = (segment.first_seq, segment.last_seq)
        # As many rows as numbers: the writer uses each once, so that none is missing.
        if segment.rows == span[1] - span[0] + 1:
            return {segment.process: (span,)}
    found: dict[str, list[Ranges]] = {}
    with pq.ParquetFile(segment.path) as file:
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
