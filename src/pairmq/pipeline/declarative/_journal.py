"""Where a pipeline's rows come from: a directory that this computer sees, or a URL that Spark alone can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pairmq.model.records import COLUMNS
from pairmq.pipeline.batch import unfinished_of, unread_of
from pairmq.pipeline.declarative._configuration import is_url
from pairmq.pipeline.journal_io import look_over, read_rows
from pairmq.pipeline.schema import rows_schema
from pairmq.pipeline.transforms.steps import Unfinished, Unread


@dataclass(frozen=True, slots=True)
class Source:
    """A journal.

    Args:
        rows: gives them, each once, without reading them yet.
        unread: which rows may be missing because a file is damaged.
        unfinished: which may be because they are in no segment yet.
    """

    rows: Callable[[SparkSession], DataFrame]
    unread: tuple[Unread, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()


def source_of(journal: str) -> Source:
    """Find a journal.

    The files of a directory are looked over as `pairmq.pipeline.run` does it: bad ones are set aside, and only what
    two files may both hold is compared row by row. Behind a URL every row is compared, and a bad file ends the run.

    Args:
        journal: a directory, or a URL.

    Raises:
        ConfigurationError: the directory is none, or can't be read.
    """
    path = journal.removeprefix("file://")
    if is_url(path):
        return Source(lambda spark: _read_url(spark, journal))
    contents = look_over(Path(path))
    return Source(lambda spark: read_rows(spark, contents), unread_of(contents.bad), unfinished_of(contents.parts))


def _read_url(spark: SparkSession, url: str) -> DataFrame:
    # What the names of folders say is in the rows, too.
    files = spark.read.schema(rows_schema()).option("recursiveFileLookup", True).option("pathGlobFilter", "*.parquet")
    return files.parquet(url).select(*(column.name for column in COLUMNS)).dropDuplicates(["process", "seq"])
