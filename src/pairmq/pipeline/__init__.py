"""The journal made into tables by Spark: what was lost, how available each entity was, what an outage cost.

Needs PySpark and Java 17: ``pip install 'pairmq[spark]'``. Nothing else of PairMQ imports this package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pairmq.model import Price
from pairmq.pipeline.session import PipelineUnavailable, check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairmq.pipeline._making import Progress
    from pairmq.pipeline.report import Report

__all__ = ["PipelineUnavailable", "run"]


def run(
    journal: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    cores: int | None = None,
    prices: Mapping[str, Price] | None = None,
    patience: float = 300.0,
    format: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Make all tables of a journal.

    Args:
        journal: the directory that processes keep it in; they may be writing. Or a URL that the session can read, such
            as ``s3a://bucket/journal``.
        out: the directory of the tables, made where it is missing; each table is a directory of Parquet files in it.
            Or a URL, where each run has a folder of its own, ``runs/<time>-<token>``, and counts once its ``run.json``
            is there.
        spark: a session to work in; a local one when left out, or the one that is active.
        cores: of a local session; all when left out.
        prices: of ``primary`` and ``secondary``.
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost.
        format: another one in which the tables are also written, to ``out/<format>/<table>``, such as ``delta``; its
            package must be in the session.
        progress: called with each piece's name before it is made, its number from 0, and the number of pieces.

    Returns:
        What was found, as ``run.json`` has it.

    Raises:
        PipelineUnavailable: PySpark or Java is missing.
        ConfigurationError: a directory or URL can't be used, another run is writing there, or the format is unknown.

    Interrupted, it leaves every table of ``out`` as the old or the new run made it, whole in either case.
    """
    check_packages()
    from pairmq.pipeline import batch
    from pairmq.pipeline.transforms import Settings

    settings = Settings(patience, prices or {})
    nothing: Progress = lambda *_: None  # noqa: E731  # a default
    return batch.run(journal, out, settings, spark=spark, cores=cores, format=format, progress=progress or nothing)
