"""Spark reads and writes messages: ``format("pairmq")`` for batches and streams.

Needs PySpark 4.2 or later and Java 17: ``pip install 'pairmq[spark]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairmq.pipeline.session import PipelineUnavailable, check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_OLDEST = (4, 2)  # streams that take a limit and start from an offset


def register(spark: SparkSession) -> None:
    """Make the format ``pairmq`` known to a session; once more does no harm.

    It also makes the session the active one of the calling thread, without which Spark finds no format of Python's when
    it writes. So a thread that writes and has made no session calls this first.

    Args:
        spark: a session. With ``spark.speculation`` on, nothing can be written: a second copy of a task would send its
            rows a second time.

    Raises:
        PipelineUnavailable: PySpark is missing or too old.
    """
    check_packages()
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < _OLDEST:
        raise PipelineUnavailable(f"PySpark is {pyspark.__version__}: the connectors need 4.2 or later")
    from pairmq.pipeline.datasource._source import PairMQDataSource, SpeculativeDataSource

    speculation = str(spark.conf.get("spark.speculation", "false")).lower() == "true"
    spark.dataSource.register(SpeculativeDataSource if speculation else PairMQDataSource)
    spark.createDataFrame([], "nothing int")  # the public way to make a session active; no job is run
