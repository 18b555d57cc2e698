"""Writes facts and tables, each as soon as what it needs is there, a few at a time.

Most pieces are small: what they take is planning, compiling and the start of tasks. So those of a group are written by
one query, in which what they share is done once, and are then put into folders of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from pairmq.pipeline._storage import Place, created, delete_folder, opened, parquet_files, writing
from pairmq.pipeline.journal_io import spark_path, spark_target
from pairmq.pipeline.schema import arrow_schema
from pairmq.pipeline.session import FEW_ROWS, ONE_PART, Tag, beside
from pairmq.pipeline.transforms import FACTS
from pairmq.pipeline.transforms.facts import (
    MESSAGES,
    SMALL,
    Digest,
    digests_of_file,
    digests_of_parts,
    small_of,
    write_small,
)
from pairmq.pipeline.transforms.steps import STEPS, Settings

if TYPE_CHECKING:
    from pyspark import StorageLevel
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

COUNTS = "counts"
"""The group of all small facts, which Arrow counts."""

_AT_ONCE = 3
_REPEAT = 0.2  # s
_SMALL = 200_000  # rows for which it does not pay to send them into parts
# Rows, each as often as it is read, up to which small tables are made in a session beside, with these settings.
_BESIDE = {250_000: FEW_ROWS, 5_000_000: ONE_PART}
_OF = "of"
_FILE = "part-00000.parquet"
_WRITTEN = {
    # To compare each text with the least and the greatest so far takes longer than to write it, and serves no reader:
    # rows are in the order of a hash, so that each part of a file has nearly all values.
    "parquet.column.statistics.enabled": "false",
    "parquet.size.statistics.enabled": "false",
    "parquet.compression.codec.zstd.level": "1",
}
_ROWS_AT_ONCE = 1 << 17

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to write, in a folder of its name, and read back with its schema."""

    name: str
    schema: StructType
    needs: tuple[str, ...]  # names of what must be there before
    # Given everything that is there by name, gives its frame, and computes nothing yet. Of a small fact, given a folder
    # to work in, gives the facts of each part of the rows.
    make: Callable[[Any], Any]
    compression: str
    group: str | None = None  # those of one group are written by one query; None for one of its own
    # Spark keeps it at hand, in memory or beside what it shuffles, and writes no file: for what is as large as the
    # journal and only read by this call. To encode its columns takes longer than to make them.
    kept: StorageLevel | None = None
    small: bool = False  # what it is made of grows with time and faults, not with messages
    # By small facts, which of their rows it needs at least one of: else it is empty, and nothing is planned for it.
    only_with: Mapping[str, pc.Expression] = field(default_factory=dict)


def fact_pieces(
    rows: DataFrame, kept: StorageLevel | None = None, files: Sequence[Place] | None = None
) -> tuple[Piece, ...]:
    """What makes the facts of some rows.

    Arrow counts the small ones, of the files with the same rows where this process can read them; else Spark reads
    them.
    """

    def count(folder: Place) -> Iterator[Digest]:
        if files is not None:
            yield from itertools.chain.from_iterable(digests_of_file(opened(path)) for path in files)
            return
        small_of(rows).write.mode("overwrite").parquet(spark_target(folder))
        for path in parquet_files(folder):
            with pq.ParquetFile(opened(path)) as file:
                for group in range(file.num_row_groups):
                    yield from digests_of_parts(file.read_row_group(group))
        delete_folder(folder)

    messages = Piece(MESSAGES.name, MESSAGES.schema, (), lambda _: MESSAGES.of(rows), "snappy", None, kept)
    return (*_small_pieces(count), messages)


def merged_pieces(messages: DataFrame, folders: Sequence[Place]) -> tuple[Piece, ...]:
    """What makes the facts of parts: of all their messages, and of the folders in which their small facts are."""

    def merge(_: Place) -> Iterator[Digest]:
        for folder, small in itertools.product(folders, SMALL):
            for path in parquet_files(folder / small.name):
                with pq.ParquetFile(opened(path)) as file:
                    for group in range(file.num_row_groups):
                        yield {small.name: file.read_row_group(group).cast(arrow_schema(small.schema))}

    merged = Piece(MESSAGES.name, MESSAGES.schema, (), lambda _: MESSAGES.merged(messages), "snappy")
    return (*_small_pieces(merge), merged)


def _small_pieces(digests: Callable[[Place], Iterator[Digest]]) -> tuple[Piece, ...]:
    return tuple(Piece(small.name, small.schema, (), digests, "snappy", COUNTS) for small in SMALL)


def table_pieces(settings: Settings) -> tuple[Piece, ...]:
    """What makes everything else of the facts."""
    return tuple(
        Piece(
            step.name,
            step.schema,
            step.needs,
            lambda frames, make=step.make: make(frames, settings),  # type: ignore[misc]  # mypy: bound
            "zstd" if step.is_table else "snappy",
            step.group,
            small=step.small,
            only_with=step.only_with,
        )
        for step in STEPS
    )


def read_written(spark: SparkSession, schema: StructType, folder: Place, most: int = _SMALL) -> DataFrame:
    """Give what was written; as one partition, which nothing has to be sent to put together, if it has few rows."""
    frame = spark.read.schema(schema).parquet(spark_path(folder))
    return frame.coalesce(1) if written_rows(folder) <= most else frame


def written_rows(folder: Place) -> int:
    """How many rows were written, from the footers."""
    return sum(pq.read_metadata(opened(path)).num_rows for path in parquet_files(folder))


def write_pieces(
    spark: SparkSession,
    pieces: Sequence[Piece],
    given: Mapping[str, DataFrame],
    folder_of: Callable[[str], Place],
    progress: Progress,
    done: Sequence[Piece] = (),
) -> None:
    """Write pieces, in an order in which what each needs comes before it; those that are done were written before.

    When one fails, the others are stopped, and then its exception is raised. Interrupted, as by Ctrl-C, it stops what
    is being made, and returns once that has ended; interrupted a second time, at once.
    """
    there, frames = {*given, *(piece.name for piece in done)}, dict(given)
    waiting = _grouped(pieces)
    running: dict[Future[DataFrame | None], list[Piece]] = {}
    begun = 0
    work = _Work(spark)
    sessions = {_SMALL: (spark, frames, _SMALL)}
    schemas = {fact.name: fact.schema for fact in FACTS} | {piece.name: piece.schema for piece in (*done, *pieces)}

    def read(
        needs: Iterable[str], session: SparkSession, known: dict[str, DataFrame], most: int
    ) -> dict[str, DataFrame]:
        """Only what is needed, and once: to look a file up and read its schema takes as long as many a query."""
        for name in needs:
            if name not in known:
                known[name] = read_written(session, schemas[name], folder_of(name), most)
        return {name: known[name] for name in needs}

    threads = ThreadPoolExecutor(_AT_ONCE, "pairmq-pipeline")
    try:
        while waiting or running:
            ready = [group for group in waiting if all(there.issuperset(piece.needs) for piece in group)]
            if not ready and not running:
                raise AssertionError(f"no step makes what {waiting[0][0].name} needs")
            for group in ready[: _AT_ONCE - len(running)]:
                for piece in group:
                    progress(piece.name, begun, len(pieces))
                    begun += 1
                waiting.remove(group)
                there.update(piece.name for piece in group if not _happened(piece, folder_of))
                group = [piece for piece in group if piece.name not in there]
                if not group:
                    continue
                reads = [need for piece in group for need in piece.needs]
                most = _most(map(folder_of, reads)) if group[0].small else _SMALL
                if most not in sessions:
                    other = beside(spark, _BESIDE[most])
                    sessions[most] = sessions[_SMALL] if other is None else (other, {}, most)
                used = read({*reads}, *sessions[most])
                running[threads.submit(work.write, group, used, folder_of)] = group
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                group = running.pop(future)
                kept = future.result()
                if kept is not None:
                    frames[group[0].name] = kept
                there.update(piece.name for piece in group)
    except BaseException:
        work.end(running)
        raise
    finally:
        # Nothing is running, or a second signal means not to wait.
        threads.shutdown(wait=False)


def _happened(piece: Piece, folder_of: Callable[[str], Place]) -> bool:
    """Whether a piece can have any row; writes one that can't."""
    folders = {name: folder_of(name) for name in piece.only_with}
    if not folders or not all(folder.is_dir() for folder in folders.values()):
        return True
    for name, folder in folders.items():
        for path in parquet_files(folder):
            found = pq.read_table(opened(path), columns=[], filters=piece.only_with[name], partitioning=None)
            if found.num_rows:
                return True
    place = folder_of(piece.name)
    place.mkdir(parents=True, exist_ok=True)
    with writing(str(place)), created(place / _FILE) as file:
        pq.write_table(arrow_schema(piece.schema).empty_table(), file, compression=piece.compression)
    return False


def _most(folders: Iterable[Place]) -> int:
    """Which of the sessions suits the rows in some folders; `_SMALL` where not all of them were written."""
    found = [*folders]
    rows = sum(map(written_rows, found)) if all(each.is_dir() for each in found) else math.inf
    return next((most for most in _BESIDE if rows <= most), _SMALL)


def _grouped(pieces: Sequence[Piece]) -> list[list[Piece]]:
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.group or piece.name, []).append(piece)
    return list(groups.values())


class _Work:
    """The jobs of one call, which can be ended; the session may be the caller's, with other jobs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tag = Tag(spark, "pairmq")
        self._ending = False

    def write(
        self, group: Sequence[Piece], frames: Mapping[str, DataFrame], folder_of: Callable[[str], Place]
    ) -> DataFrame | None:
        """Make some pieces by one query, and give the one that is kept."""
        first, alone = group[0], len(group) == 1
        folder = folder_of(first.name) if alone else folder_of(f"_{first.name}")
        if first.group == COUNTS:
            with self._tag.marked():
                self._write_small(first.make(folder_of(f"_{first.name}")), folder_of)
            return None
        with self._tag.marked():
            made: DataFrame = first.make(frames) if alone else _united(group, frames)
            if self._ending:
                return None
            if first.kept is not None:
                kept = made.localCheckpoint(eager=False, storageLevel=first.kept)  # while it is first read
                # Spark does not see that a partition by hash is the only one, and would send all of it around.
                return kept.coalesce(1) if self._spark.conf.get("spark.sql.shuffle.partitions") == "1" else kept
            options = {"compression": first.compression, **_WRITTEN}
            if alone:
                # A dictionary of these would have as many entries as there are rows.
                options |= {f"parquet.enable.dictionary#{name}": "false" for name in first.schema.names if _own(name)}
            made.write.mode("overwrite").options(**options).parquet(spark_target(folder))
        if not alone:
            _divide(folder, group, folder_of)
            delete_folder(folder)
        return None

    def _write_small(self, digests: Iterator[Digest], folder_of: Callable[[str], Place]) -> None:
        with contextlib.ExitStack() as stack:
            files = {}
            for small in SMALL:
                place = folder_of(small.name)
                place.mkdir(parents=True, exist_ok=True)
                stack.enter_context(writing(str(place)))
                files[small.name] = stack.enter_context(created(place / _FILE))
            write_small(itertools.takewhile(lambda _: not self._ending, digests), files)

    def end(self, running: Collection[Future[DataFrame | None]]) -> None:
        """Stop what is being made, and return when all of it has ended.

        Cancels repeatedly: a job that is still being planned starts later, and was not cancelled before.
        """
        self._ending = True
        left: Collection[Future[DataFrame | None]] = running
        while left:
            with contextlib.suppress(Exception):  # Spark itself may be what has ended; then all jobs fail
                self._tag.interrupt()
            left = wait(left, timeout=_REPEAT).not_done


def _own(column: str) -> bool:
    """Whether nearly every row has a value of its own in a column."""
    return column.endswith("_at") or column in ("at", "seq", "message_id", "message_key", "position")


def _united(group: Sequence[Piece], frames: Mapping[str, DataFrame]) -> DataFrame:
    """All rows of some pieces, each in a column of its piece's name."""

    def marked(piece: Piece) -> DataFrame:
        own = f"struct({', '.join(piece.schema.names)})"
        columns = (own if each is piece else f"CAST(NULL AS {each.schema.simpleString()})" for each in group)
        named = (f"{column} AS {each.name}" for column, each in zip(columns, group, strict=True))
        frame: DataFrame = piece.make(frames)
        return frame.selectExpr(f"'{piece.name}' AS {_OF}", *named)

    return reduce(DataFrame.union, map(marked, group))


def _divide(folder: Place, group: Sequence[Piece], folder_of: Callable[[str], Place]) -> None:
    """Write the rows of `_united` into the folders of their pieces."""
    paths = parquet_files(folder)
    with writing(str(folder)), contextlib.ExitStack() as stack:
        writers = {}
        for piece in group:
            place = folder_of(piece.name)
            place.mkdir(parents=True, exist_ok=True)
            schema = pa.schema(pq.read_schema(opened(paths[0])).field(piece.name).type.fields)
            file = stack.enter_context(created(place / _FILE))
            writers[piece.name] = stack.enter_context(pq.ParquetWriter(file, schema, compression=piece.compression))
        for path in paths:
            with pq.ParquetFile(opened(path)) as file:
                present = pc.unique(file.read([_OF]).column(_OF)).to_pylist()
                for batch in file.iter_batches(columns=[_OF, *present], batch_size=_ROWS_AT_ONCE):
                    for name in present:
                        rows = batch.filter(pc.equal(batch.column(_OF), name)).column(name)
                        writers[name].write_batch(pa.RecordBatch.from_struct_array(rows))
