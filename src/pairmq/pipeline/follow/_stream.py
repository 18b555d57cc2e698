"""The stream: files that were noted, batch by batch, each once; Spark's checkpoint says how far it has come.

Only names go through the stream. What is in the files is read by the code that a batch run has for it, which sets a
torn one aside; a stream of rows would stop at it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from pairmq.pipeline.follow._names import Found
from pairmq.pipeline.journal_io import spark_path, spark_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPTIONS = {
    "pathGlobFilter": "*.jsonl",
    "maxFilesPerTrigger": "1",  # a list is a batch
    # What was noted before a long rest, or under a clock that was wrong, counts as much.
    "maxFileAge": "36500d",
}


def each_batch(spark: SparkSession, names: Path, checkpoint: Path, receive: Callable[[int, list[Found]], None]) -> None:
    """Give all files that are noted and were not given before.

    Args:
        spark: the session.
        names: the folder of the lists.
        checkpoint: where Spark keeps its account.
        receive: takes the number of a batch and its files. A batch counts as given once this returns; after a kill
            before that, the same files come again under the same number.

    Raises:
        pyspark.errors.StreamingQueryException: Spark failed.
        Exception: what ``receive`` raised; the batch will come again.
    """
    failures: list[Exception] = []

    def taken(batch: DataFrame, number: int) -> None:
        try:
            receive(number, sorted((Found.from_line(row[0]) for row in batch.collect()), key=lambda each: each.path))
        except Exception as error:
            failures.append(error)  # what crosses over to Java and back has lost its type
            raise

    lines = spark.readStream.format("text").options(**_OPTIONS).load(spark_path(names))
    writer = lines.writeStream.foreachBatch(taken).option("checkpointLocation", spark_target(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if failures:
            raise failures[0] from None
        raise
    finally:
        query.stop()
