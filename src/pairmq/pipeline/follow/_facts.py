"""Facts on the disk: written of new rows, merged, and read for the tables."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from pairmq.pipeline._making import Piece, fact_pieces, write_pieces
from pairmq.pipeline.journal_io import spark_path
from pairmq.pipeline.transforms._fact import Fact
from pairmq.pipeline.transforms.facts import FACTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_facts(spark: SparkSession, rows: DataFrame, folder: Path) -> None:
    """Write the facts of some rows.

    Args:
        spark: the session.
        rows: the journal's, each once.
        folder: of nobody else; gets a folder for each fact.
    """
    _write(spark, fact_pieces(rows), folder)


def merge_facts(spark: SparkSession, parts: Sequence[Path], folder: Path) -> None:
    """Write what the facts of several parts are together.

    Args:
        spark: the session.
        parts: folders that `write_facts` or this wrote.
        folder: of nobody else.
    """

    def merged(fact: Fact) -> Piece:
        union = functools.reduce(DataFrame.unionByName, (_read(spark, fact, part) for part in parts))
        return Piece(fact.name, fact.schema, (), lambda _: fact.merged(union), "snappy")

    _write(spark, [merged(fact) for fact in FACTS], folder)


def read_facts(spark: SparkSession, part: Path | None) -> Mapping[str, DataFrame]:
    """Give the facts of a part by their names; those of an empty journal for None."""
    if part is None:
        return {fact.name: spark.createDataFrame([], fact.schema) for fact in FACTS}
    return {fact.name: _read(spark, fact, part) for fact in FACTS}


def _write(spark: SparkSession, pieces: Sequence[Piece], folder: Path) -> None:
    write_pieces(spark, pieces, {}, lambda name: folder / name, lambda *_: None)


def _read(spark: SparkSession, fact: Fact, part: Path) -> DataFrame:
    return spark.read.schema(fact.schema).parquet(spark_path(part / fact.name))
