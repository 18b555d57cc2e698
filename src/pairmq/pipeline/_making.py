"""Writes facts and tables, each as soon as what it needs is there, a few at a time.

Most pieces are small: what they take is planning, compiling and the start of tasks, which leave the processors idle.
Beside a large one they cost next to nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pairmq.pipeline.journal_io import FEW, spark_path, spark_target
from pairmq.pipeline.session import Tag
from pairmq.pipeline.transforms.facts import FACTS
from pairmq.pipeline.transforms.steps import STEPS, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_AT_ONCE = 3
_REPEAT = 0.2  # s

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to write.

    Args:
        name: its own, and that of its folder.
        schema: what it is read back with.
        needs: names of what must be there before.
        make: given everything that is there by name; computes nothing yet.
        compression: of its files.
    """

    name: str
    schema: StructType
    needs: tuple[str, ...]
    make: Callable[[Mapping[str, DataFrame]], DataFrame]
    compression: str


def fact_pieces(rows: DataFrame) -> tuple[Piece, ...]:
    """What makes the facts of some rows."""
    return tuple(
        Piece(fact.name, fact.schema, (), lambda _, of=fact.of: of(rows), "snappy")  # type: ignore[misc]  # mypy: bound
        for fact in FACTS
    )


def table_pieces(settings: Settings) -> tuple[Piece, ...]:
    """What makes everything else of the facts."""
    return tuple(
        Piece(
            step.name,
            step.schema,
            step.needs,
            lambda frames, make=step.make: make(frames, settings),  # type: ignore[misc]  # mypy: bound
            "zstd" if step.is_table else "snappy",
        )
        for step in STEPS
    )


def read_written(spark: SparkSession, schema: StructType, folder: Path) -> DataFrame:
    """Give what was written; small things as one partition, which nothing has to be sent to put together."""
    frame = spark.read.schema(schema).parquet(spark_path(folder))
    return frame.coalesce(1) if written_rows(folder) <= FEW else frame


def written_rows(folder: Path) -> int:
    """How many rows were written, from the footers."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def write_pieces(
    spark: SparkSession,
    pieces: Sequence[Piece],
    given: Mapping[str, DataFrame],
    folder_of: Callable[[str], Path],
    progress: Progress,
) -> dict[str, DataFrame]:
    """Write pieces, and give them as they are read back, beside what was given.

    Args:
        spark: the session.
        pieces: in an order in which what each needs comes before it.
        given: what is there already, by name.
        folder_of: the folder for a name.
        progress: called with each piece's name before it is made, its number from 0, and the number of pieces.

    Raises:
        Exception: of the first piece that failed, once the others have been stopped.

    Interrupted, as by Ctrl-C, it stops what is being made, and returns once that has ended; interrupted a second time,
    at once.
    """
    frames = dict(given)
    waiting = list(pieces)
    running: dict[Future[None], Piece] = {}
    work = _Work(spark)
    threads = ThreadPoolExecutor(_AT_ONCE, "pairmq-pipeline")
    try:
        while waiting or running:
            ready = [piece for piece in waiting if all(need in frames for need in piece.needs)]
            if not ready and not running:
                raise AssertionError(f"no step makes what {waiting[0].name} needs")
            for piece in ready[: _AT_ONCE - len(running)]:
                progress(piece.name, len(pieces) - len(waiting), len(pieces))
                waiting.remove(piece)
                running[threads.submit(work.write, piece, dict(frames), folder_of(piece.name))] = piece
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                piece = running.pop(future)
                future.result()
                frames[piece.name] = read_written(spark, piece.schema, folder_of(piece.name))
    except BaseException:
        work.end(running)
        raise
    finally:
        # Nothing is running, or a second signal means not to wait.
        threads.shutdown(wait=False)
    return frames


class _Work:
    """The jobs of one call, which can be ended.

    Args:
        spark: the session; it may be the caller's, with other jobs.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._tag = Tag(spark, "pairmq")
        self._ending = False

    def write(self, piece: Piece, frames: Mapping[str, DataFrame], folder: Path) -> None:
        """Make one piece."""
        with self._tag.marked():
            made = piece.make(frames)
            if not self._ending:
                made.write.mode("overwrite").option("compression", piece.compression).parquet(spark_target(folder))

    def end(self, running: Collection[Future[None]]) -> None:
        """Stop what is being made, and return when all of it has ended.

        Cancels repeatedly: a job that is still being planned starts later, and was not cancelled before.
        """
        self._ending = True
        left: Collection[Future[None]] = running
        while left:
            with contextlib.suppress(Exception):  # Spark itself may be what has ended; then all jobs fail
                self._tag.interrupt()
            left = wait(left, timeout=_REPEAT).not_done
