"""Finds a journal's segments, sets bad ones aside, and gives the rows of the others, each once.

Only footers are read here, so that a journal of any size is looked over in a moment: they say whether a file is whole,
what its columns are, and which rows it has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.parquet as pq

from pairmq.model import ConfigurationError
from pairmq.model.records import COLUMNS, SCHEMA_VERSION
from pairmq.pipeline._storage import HadoopPath, Place, opened, parquet_files
from pairmq.pipeline.schema import rows_schema, schema_problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VERSION = b"pairmq.schema_version"
_NUMBER = re.compile(rb"[0-9]{1,9}")
_SUFFIX = ".parquet"
_NAME = re.compile(r"segment-(.+)-[0-9]{6,12}\.parquet")
_OPEN = "_open"
_HIDDEN = re.compile(r"/[_.]")
_IN_OPEN = re.compile(rf"(?:(?![_.])[^/]+/)*{_OPEN}/[^/]+")
_PART = re.compile(r"(.+)-[0-9]{6,12}\.(?:part|lost-[0-9-]+(?:closed-[0-9]+)?)")


_AT_ONCE = 8  # footers that are read at the same time: a store may take long to answer

FEW = 50_000
"""Rows that one task handles sooner than Spark cuts them in parts."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One good file of the journal.

    Args:
        path: where it is.
        rows: in it.
        process: the writer of the rows; None if there are several, or it is unknown.
        first_seq: the lowest number of a row; None if unknown.
        last_seq: the highest.
    """

    path: Place
    rows: int
    process: str | None
    first_seq: int | None
    last_seq: int | None


@dataclass(frozen=True, slots=True)
class BadSegment:
    """A file that is not read.

    Args:
        path: where it is.
        problem: why not, in a sentence.
        foreign: it is whole, and its columns are not those of a journal.
    """

    path: Place
    problem: str
    foreign: bool = False

    @property
    def process(self) -> str | None:
        """Whose rows its name says it has; None if it is not named as a segment."""
        named = _NAME.fullmatch(self.path.name)
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
    """Rows that are in no segment yet: of a process that runs, or of one that was killed and not recovered.

    Args:
        path: where they are.
        process: whose.
        changed_at: when the latest of them were written, seconds since 1970 UTC.
    """

    path: Place
    process: str
    changed_at: float


@dataclass(frozen=True, slots=True)
class Contents:
    """What a journal's directory holds.

    Args:
        segments: that are read, by path.
        bad: that are not.
        parts: those that are not yet segments.
    """

    segments: tuple[Segment, ...]
    bad: tuple[BadSegment, ...]
    parts: tuple[OpenPart, ...] = ()

    def without(self, bad: Iterable[BadSegment]) -> Contents:
        """The same with more files left out."""
        more = {each.path: each for each in bad}
        kept = tuple(segment for segment in self.segments if segment.path not in more)
        return Contents(kept, (*self.bad, *more.values()), self.parts)


def look_over(journal: str | os.PathLike[str] | HadoopPath) -> Contents:
    """Find a journal's segments.

    Every file below the directory whose name ends in ``.parquet`` counts; files and folders whose names begin with
    ``_`` or ``.`` are work in progress.

    Args:
        journal: the directory.

    Returns:
        Good and bad segments, and parts. An empty directory is an empty journal.

    Raises:
        ConfigurationError: it is not a directory, or can't be read.
    """
    root = journal if isinstance(journal, HadoopPath) else Path(journal)
    if not root.is_dir():
        raise ConfigurationError(f"{root} is not a directory: give the journal's directory")
    parts = open_parts(root)  # first: one that becomes a segment meanwhile is found as the one or the other
    return replace(look_at(segment_files(root)), parts=parts)


def look_at(paths: Iterable[Place]) -> Contents:
    """Separate good segments from bad ones.

    Args:
        paths: of the files.

    Returns:
        Both, in the order given; a file without rows is in neither.
    """
    segments: list[Segment] = []
    bad: list[BadSegment] = []
    with ThreadPoolExecutor(_AT_ONCE, "pairmq-footers") as threads:
        for seen in threads.map(_looked_at, paths):
            if isinstance(seen, BadSegment):
                bad.append(seen)
            elif seen.rows:
                segments.append(seen)
    return Contents(tuple(segments), tuple(bad))


def read_rows(spark: SparkSession, contents: Contents, compared: Place | None = None) -> DataFrame:
    """Give the rows of all good segments, each once.

    Args:
        spark: the session.
        contents: of the journal.
        compared: a folder for the rows that have to be compared with each other to find the same ones, which are few.
            They are written there at once; when left out, they are compared again by every reader of what is returned.

    Returns:
        All columns of the journal. Rows with the same process and number are one row: a segment that was copied, or
        that a recovery made again, doubles nothing.
    """
    schema = rows_schema()
    names = [column.name for column in COLUMNS]
    parts = []
    apart, overlapping = _by_overlap(contents.segments)
    if apart:
        parts.append(spark.read.schema(schema).parquet(*map(spark_path, apart)).select(*names))
    if overlapping:
        doubled = spark.read.schema(schema).parquet(*map(spark_path, overlapping)).select(*names)
        single = doubled.dropDuplicates(["process", "seq"])
        if compared is not None:
            single.write.mode("overwrite").parquet(spark_target(compared))
            single = spark.read.schema(schema).parquet(spark_path(compared)).select(*names)
        parts.append(single)
    if not parts:
        return spark.createDataFrame([], schema)
    rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    return rows.coalesce(1) if sum(segment.rows for segment in contents.segments) <= FEW else rows


def single_files(contents: Contents, compared: Place) -> list[Path] | None:
    """Give local files with the same rows as `read_rows` gave, or None if some are elsewhere."""
    apart, overlapping = _by_overlap(contents.segments)
    found = [*apart, *(parquet_files(compared) if overlapping else ())]
    return [path for path in found if isinstance(path, Path)] if all(isinstance(path, Path) for path in found) else None


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
            with pq.ParquetFile(opened(segment.path)) as file:
                for _ in file.iter_batches():
                    pass
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
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        found += [
            Path(folder, name) for name in sorted(files) if name.endswith(_SUFFIX) and not name.startswith(("_", "."))
        ]
    return found


def open_parts(root: Place) -> tuple[OpenPart, ...]:
    """Find the parts that are not yet segments, below a directory with one or more journals."""
    found: list[Place] = []
    if isinstance(root, HadoopPath):
        # Only processes of a machine that mounts the store have them there.
        found += [path for below, path in root.files() if _IN_OPEN.fullmatch(below)]
        return tuple(part for path in found if (part := _open_part(path)) is not None)
    for folder, folders, files in os.walk(root):
        if Path(folder).name == _OPEN:
            found += [Path(folder, name) for name in sorted(files)]
        folders[:] = sorted(name for name in folders if name == _OPEN or not name.startswith(("_", ".")))
    return tuple(part for path in found if (part := _open_part(path)) is not None)


def _open_part(path: Place) -> OpenPart | None:
    named = _PART.fullmatch(path.name)
    try:
        changed_at = path.changed_at() if isinstance(path, HadoopPath) else path.stat().st_mtime
        return None if named is None else OpenPart(path, named[1], changed_at)
    except FileNotFoundError:
        return None  # it is a segment by now


def _looked_at(path: Place) -> Segment | BadSegment:
    try:
        with pq.ParquetFile(opened(path)) as file:
            footer, schema = file.metadata, file.schema_arrow
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
        process, seq = _range(footer, "process"), _range(footer, "seq")
    except (pa.ArrowException, ValueError) as error:  # a text that is not UTF-8 is a ValueError
        return BadSegment(path, f"its footer is damaged: {_line(error)}")
    one = process[0] if process is not None and process[0] == process[1] else None
    first, last = seq if seq is not None else (None, None)
    return Segment(path, footer.num_rows, one, first, last)


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


def _by_overlap(segments: Sequence[Segment]) -> tuple[list[Place], list[Place]]:
    """The segments whose rows no other one can have, and the others: only these need to be compared row by row."""
    by_process: dict[str | None, list[Segment]] = {}
    for segment in segments:
        by_process.setdefault(segment.process, []).append(segment)
    apart: list[Place] = []
    overlapping: list[Place] = []
    unsure = None in by_process
    for process, owned in by_process.items():
        if unsure or process is None or any(each.first_seq is None for each in owned):
            # Whose rows a file has is not known: it may be any process's.
            overlapping += [each.path for each in owned]
            continue
        groups = _chains(owned)
        for group in groups:
            alone = len(group) == 1 and group[0].rows <= _width(group[0])
            (apart if alone else overlapping).extend(each.path for each in group)
    return sorted(apart, key=str), sorted(overlapping, key=str)


def _chains(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Put together what overlaps, one process's segments given."""
    groups: list[list[Segment]] = []
    reach = -1
    for segment in sorted(segments, key=lambda each: (each.first_seq or 0, each.last_seq or 0)):
        if groups and (segment.first_seq or 0) <= reach:
            groups[-1].append(segment)
        else:
            groups.append([segment])
        reach = max(reach, segment.last_seq or 0)
    return groups


def _width(segment: Segment) -> int:
    return (segment.last_seq or 0) - (segment.first_seq or 0) + 1


def _line(problem: object) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]
