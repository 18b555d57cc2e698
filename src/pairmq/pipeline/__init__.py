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
    """Make all tables of a journal; see `pairmq.pipeline.batch.run`, which says what each argument is."""
    check_packages()
    from pairmq.pipeline import batch

    return batch.run(
        journal, out, spark=spark, cores=cores, prices=prices, patience=patience, format=format, progress=progress
    )
