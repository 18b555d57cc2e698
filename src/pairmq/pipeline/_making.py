"""Writes facts and tables, each as soon as what it needs is there, a few at a time.

Most pieces are small: what they take is planning, compiling and the start of tasks, which leave the processors idle.
Beside a large one they cost next to nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairmq.pipeline.journal_io import spark_path, spark_target
from pairmq.pipeline.transforms.facts import FACTS
from pairmq.pipeline.transforms.steps import STEPS, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_AT_ONCE = 3

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
        progress: told the name of each piece before it is made, its number from 0, and how many there are.

    Raises:
        Exception: whatever the first piece that failed did; what else is being made is stopped before.
    """
    frames = dict(given)
    waiting = list(pieces)
    running: dict[Future[None], Piece] = {}
    tag = f"pairmq-{secrets.token_hex(4)}"  # of these jobs alone: the session may be somebody else's
    with ThreadPoolExecutor(_AT_ONCE, "pairmq-pipeline") as threads:
        try:
            while waiting or running:
                ready = [piece for piece in waiting if all(need in frames for need in piece.needs)]
                if not ready and not running:
                    raise AssertionError(f"nothing makes what {waiting[0].name} needs")
                for piece in ready[: _AT_ONCE - len(running)]:
                    progress(piece.name, len(pieces) - len(waiting), len(pieces))
                    waiting.remove(piece)
                    running[threads.submit(_write, spark, tag, piece, dict(frames), folder_of(piece.name))] = piece
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    piece = running.pop(future)
                    future.result()
                    path = spark_path(folder_of(piece.name))
                    frames[piece.name] = spark.read.schema(piece.schema).parquet(path)
        except BaseException:
            spark.interruptTag(tag)
            raise
    return frames


def _write(spark: SparkSession, tag: str, piece: Piece, frames: Mapping[str, DataFrame], folder: Path) -> None:
    spark.addTag(tag)
    try:
        made = piece.make(frames)
        made.write.mode("overwrite").option("compression", piece.compression).parquet(spark_target(folder))
    finally:
        spark.removeTag(tag)
