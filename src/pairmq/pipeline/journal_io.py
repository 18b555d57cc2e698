"""Finds a journal's segments, sets bad ones aside, and gives the rows of the others, each once.

Only footers are read here, so that a journal of any size is looked over in a moment: they say whether a file is whole,
what its columns are, and which rows it has.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.model import ConfigurationError
from pairmq.model.records import COLUMNS, SCHEMA_VERSION, end_of
from pairmq.pipeline._storage import HadoopPath, Place, opened, parquet_files
from pairmq.pipeline.schema import rows_schema, schema_problem
from pairmq.pipeline.transforms._rows import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VERSION, _OTHERS = b"pairmq.schema_version", b"pairmq.others"
_NUMBER = re.compile(rb"[0-9]{1,9}")
_SUFFIX = ".parquet"
SEGMENT_NAME = re.compile(r"segment-(.+)-[0-9]{6,12}\.parquet")
_OPEN = "_open"
_HIDDEN = re.compile(r"/[_.]")
_IN_OPEN = re.compile(rf"(?:(?![_.])[^/]+/)*{_OPEN}/[^/]+")
PART_NAME = re.compile(r"(.+)-[0-9]{6,12}\.(?:part|lost-[0-9-]+(?:closed-[0-9]+)?)")
_NOT_YET = 180.0  # s that a process's rows may take to be a segment, and to be copied, after another one's of that time
_AT_ONCE = 8  # footers that are read at the same time: a store may take long to answer

FEW = 50_000
"""Rows that one task handles sooner than Spark cuts them in parts."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One good file of the journal."""

    path: Place
    rows: int
    process: str | None  # the writer of the rows; None if there are several, or it is unknown
    first_seq: int | None  # the lowest number of a row; None if unknown
    last_seq: int | None  # the highest
    last_at: float | None = None  # the latest instant of a row, seconds since 1970 UTC; None if unknown
    others: Mapping[str, float] = field(default_factory=dict)  # who else was writing then, see `Lives.seen`


@dataclass(frozen=True, slots=True)
class BadSegment:
    """A file that is not read."""

    path: Place
    problem: str  # why not, in a sentence
    foreign: bool = False  # it is whole, and its columns are not those of a journal

    @property
    def process(self) -> str | None:
        """Whose rows its name says it has; None if it is not named as a segment."""
        named = SEGMENT_NAME.fullmatch(self.path.name)
        return None if named is None else named[1]

    @property
    def day(self) -> datetime | None:
        """The day whose rows its folder says it has."""
        _, _, text = self.path.parent.name.partition("date=")
        try:
            return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class OpenPart:
    """Rows that are in no segment yet: of a process that runs, or of one that was killed and not recovered."""

    path: Place
    process: str
    changed_at: float  # when the latest of them were written, seconds since 1970 UTC


@dataclass(frozen=True, slots=True)
class Lives:
    """When each process last wrote, seconds since 1970 UTC."""

    ends: Mapping[str, float] = field(default_factory=dict)  # by its rows; under an empty name of files of several
    seen: Mapping[str, float] = field(default_factory=dict)  # as others saw it, who have noted that in their segments

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Lives:
        """What some segments say."""
        found = list(segments)
        ends = ({each.process or "": math.inf if each.last_at is None else each.last_at} for each in found)
        return cls(_latest(ends), _latest(each.others for each in found))

    def joined(self, others: Lives) -> Lives:
        """What both say."""
        return Lives(_latest((self.ends, others.ends)), _latest((self.seen, others.seen)))

    def missing(self, known: Collection[str | None]) -> dict[str, float]:
        """Find the processes whose latest rows, or all, are missing, but for those of which that is ``known``."""
        if "" in self.ends:
            return {}
        return {
            process: at
            for process, at in sorted(self.seen.items())
            if process not in known and at > self.ends.get(process, 0.0) + _NOT_YET
        }


def _latest(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, at in part.items():
            found[name] = max(at, found.get(name, at))
    return found


@dataclass(frozen=True, slots=True)
class Contents:
    """What a journal's directory holds."""

    segments: tuple[Segment, ...]
    bad: tuple[BadSegment, ...]
    parts: tuple[OpenPart, ...] = ()

    def without(self, bad: Iterable[BadSegment]) -> Contents:
        """The same with more files left out."""
        more = {each.path: each for each in bad}
        kept = tuple(segment for segment in self.segments if segment.path not in more)
        return Contents(kept, (*self.bad, *more.values()), self.parts)


def look_over(journal: str | os.PathLike[str] | HadoopPath) -> Contents:
    """Find a journal's segments and open parts; an empty directory is an empty journal.

    Every file below the directory whose name ends in ``.parquet`` counts; files and folders whose names begin with
    ``_`` or ``.`` are work in progress.
    """
    root = journal if isinstance(journal, HadoopPath) else Path(journal)
    check_journal(root)
    parts = open_parts(root)  # first: one that becomes a segment meanwhile is found as the one or the other
    return replace(look_at(segment_files(root)), parts=parts)


def check_journal(root: Place) -> None:
    """See that a journal can be there."""
    if not root.is_dir():
        raise ConfigurationError(f"{root} is not a directory: give the journal's directory")


def look_at(paths: Iterable[Place]) -> Contents:
    """Separate good segments from bad ones, in the order given; a file without rows is neither."""
    segments: list[Segment] = []
    bad: list[BadSegment] = []
    with ThreadPoolExecutor(_AT_ONCE, "pairmq-footers") as threads:
        for seen in threads.map(_looked_at, paths):
            if isinstance(seen, BadSegment):
                bad.append(seen)
            elif seen.rows:
                segments.append(seen)
    return Contents(tuple(segments), tuple(bad))


def segment_rows(spark: SparkSession, paths: Iterable[Place]) -> DataFrame:
    """Give the rows of files, with all columns of the journal, and none for a folder's name."""
    names = [column.name for column in COLUMNS]
    checked = spark.read.option("parquet.page.verify-checksum.enabled", "true")
    return checked.schema(rows_schema()).parquet(*map(spark_path, paths)).select(*names)


def spark_path(path: Place) -> str:
    """Write a path as Spark reads from it: it would look elsewhere otherwise, and read ``[`` as a pattern."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", spark_target(path))


def spark_target(path: Place) -> str:
    """Write a path as Spark writes to it, where nothing is a pattern."""
    return f"file://{path.resolve()}" if isinstance(path, Path) else path.url


def damaged(contents: Contents) -> tuple[BadSegment, ...]:
    """Read every segment to its end, and name those that can't be: slow, for when Spark has met one."""
    found = []
    for segment in contents.segments:
        try:
            with pq.ParquetFile(opened(segment.path), page_checksum_verification=True) as file:
                read = sum(batch.num_rows for batch in file.iter_batches())
            if read != segment.rows:
                found.append(BadSegment(segment.path, f"it is damaged inside: {segment.rows - read} rows are missing"))
        except (OSError, pa.ArrowException) as error:
            found.append(BadSegment(segment.path, f"it is damaged inside: {_line(error)}"))
    return tuple(found)


@overload
def segment_files(root: Path) -> list[Path]: ...
@overload
def segment_files(root: HadoopPath) -> list[HadoopPath]: ...
def segment_files(root: Place) -> list[Path] | list[HadoopPath]:
    """Find the files below a directory that are segments by their names, and not work in progress."""
    if isinstance(root, HadoopPath):
        return [path for below, path in root.files() if below.endswith(_SUFFIX) and not _HIDDEN.search(f"/{below}")]
    return [
        Path(folder, name)
        for folder, files in _folders(root)
        if folder.name != _OPEN
        for name in files
        if name.endswith(_SUFFIX) and not name.startswith(("_", "."))
    ]


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Give each folder of a journal with the names in it that are files; a linked one, too, and none twice.

    What can't be listed would be missing from the tables without a word.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # deleted meanwhile
            raise ConfigurationError(
                f"can't read {error.filename}: {error.strerror}; give this user the right to, or move it out of the "
                "journal"
            ) from None

    seen = set()
    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        if (place := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if name == _OPEN or not name.startswith(("_", ".")))
        if os.path.basename(folder) == _OPEN:
            folders.clear()
        yield Path(folder), sorted(files)


def open_parts(root: Place) -> tuple[OpenPart, ...]:
    """Find the parts that are not yet segments, below a directory with one or more journals."""
    found: list[Place] = []
    if isinstance(root, HadoopPath):
        # Only processes of a machine that mounts the store have them there.
        found += [path for below, path in root.files() if _IN_OPEN.fullmatch(below)]
    else:
        found += [Path(folder, name) for folder, files in _folders(root) if folder.name == _OPEN for name in files]
    return tuple(part for path in found if (part := _open_part(path)) is not None)


def _open_part(path: Place) -> OpenPart | None:
    named = PART_NAME.fullmatch(path.name)
    try:
        changed_at = path.changed_at() if isinstance(path, HadoopPath) else path.stat().st_mtime
        return None if named is None else OpenPart(path, named[1], changed_at)
    except FileNotFoundError:
        return None  # it is a segment by now


def _looked_at(path: Place) -> Segment | BadSegment:
    try:
        with path.open_input() if isinstance(path, HadoopPath) else path.open("rb") as file:
            end = end_of(file)
    except ValueError as error:
        return BadSegment(path, str(error))
    except OSError as error:
        return BadSegment(path, f"it can't be read: {_line(error)}")
    try:
        footer = pq.read_metadata(pa.BufferReader(end))
        schema = footer.schema.to_arrow_schema()
    except (OSError, pa.ArrowException, ValueError) as error:  # a column name that is not UTF-8 is a ValueError
        return BadSegment(path, f"it is truncated or not a Parquet file: {_line(error)}")
    # A file rewritten with another tool may have no version: its columns identify it.
    version = (footer.metadata or {}).get(_VERSION, b"%d" % SCHEMA_VERSION)
    if not _NUMBER.fullmatch(version):
        return BadSegment(path, f"its footer is damaged: the schema version is {_line(ascii(version))}")
    if int(version) > SCHEMA_VERSION:
        return BadSegment(
            path, f"a newer PairMQ wrote it (schema {int(version)}, this one reads up to {SCHEMA_VERSION})"
        )
    problem = schema_problem(schema)
    if problem is not None:
        return BadSegment(path, problem, foreign=True)
    try:
        process, seq, at = (_range(footer, name) for name in ("process", "seq", "at"))
    except (pa.ArrowException, ValueError) as error:  # a text that is not UTF-8 is a ValueError
        return BadSegment(path, f"its footer is damaged: {_line(error)}")
    one = process[0] if process is not None and process[0] == process[1] else None
    first, last = seq if seq is not None else (None, None)
    last_at = None if at is None or not EARLIEST <= at[1] <= LATEST else at[1]
    return Segment(path, footer.num_rows, one, first, last, last_at, _others(footer.metadata or {}))


def _others(metadata: Mapping[bytes, bytes]) -> dict[str, float]:
    """The other processes that a segment names; those that can't be are left out."""
    try:
        found = json.loads(metadata.get(_OTHERS, b"{}"))
    except (ValueError, RecursionError):
        return {}
    named = found.items() if isinstance(found, dict) else ()
    return {name: at for name, at in named if name and isinstance(at, float) and EARLIEST <= at <= LATEST}


def _range(footer: pq.FileMetaData, name: str) -> tuple[Any, Any] | None:
    """The minimum and maximum of a column, if every row group has them."""
    index = footer.schema.names.index(name) if name in footer.schema.names else -1
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(index) for group in groups if group.num_rows]
    # Arrow ends the whole process when it is asked for the statistics of such a column.
    if any(chunk.physical_type != footer.schema.column(index).physical_type for chunk in chunks):
        raise ValueError(f"the type of the column {name} differs from the schema's")
    statistics = [chunk.statistics for chunk in chunks]
    if index < 0 or not statistics or any(each is None or not each.has_min_max for each in statistics):
        return None
    return min(each.min for each in statistics), max(each.max for each in statistics)


def _line(problem: object) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]


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
    """Find the rows that were not taken yet, each once: a segment that is there twice, or in part, doubles nothing."""
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


def new_rows(spark: SparkSession, sifted: Sifted, aside: Place | None = None) -> DataFrame:
    """Give the rows that are to be taken, each once, with all columns of the journal.

    Those of files that have others as well are written to the folder `aside`; without one, every reader of these rows
    looks for them again.
    """
    parts = [segment_rows(spark, sifted.whole)] if sifted.whole else []
    if sifted.partly:
        spans = [(process, *span) for process, ranges in sifted.wanted.items() for span in ranges]
        wanted = F.broadcast(spark.createDataFrame(spans, "of string, first bigint, last bigint"))
        inside = F.expr("process = of AND seq BETWEEN first AND last")
        found = segment_rows(spark, sifted.partly).join(wanted, inside, "left_semi")
        found = found.dropDuplicates(["process", "seq"])
        if aside is not None:
            found.write.mode("overwrite").parquet(spark_target(aside))
            found = segment_rows(spark, [aside])
        parts.append(found)
    if not parts:
        return spark.createDataFrame([], rows_schema())
    rows = functools.reduce(DataFrame.unionByName, parts)
    # One task handles few of them sooner.
    return rows.coalesce(1) if sifted.count <= FEW else rows


def local_files(sifted: Sifted, aside: Place) -> list[Path] | None:
    """Give local files with the same rows as `new_rows` gave, or None if some are elsewhere."""
    found = [*sifted.whole, *(parquet_files(aside) if sifted.partly else ())]
    local = [path for path in found if isinstance(path, Path)]
    return local if len(local) == len(found) else None


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
