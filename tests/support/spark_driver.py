"""A Spark driver as a program of its own, for tests that kill it or need a session of another kind.

``python spark_driver.py consume|write <options as JSON>``
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pairmq.model import Entity, Source
from pairmq.pipeline.datasource import register
from pairmq.pipeline.session import local_settings
from pairmq.plugins import registry


def session(master: str, more: dict[str, str]) -> SparkSession:
    """A session that knows the connectors."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    small = {
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
    }
    for name, value in (local_settings(2) | small | more | {"spark.master": master}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def consume(options: dict[str, str], checkpoint: str, out: str) -> None:
    """Stream into a folder of Parquet files until killed."""
    spark = session("local[2]", {})
    sink = (
        spark.readStream.format("pairmq").options(**options).load().select("message_id").writeStream.format("parquet")
    )
    sink = sink.option("checkpointLocation", checkpoint).option("path", out)
    while True:
        try:
            sink.start().awaitTermination()
        except StreamingQueryException as error:
            # Spark gives a Python process ten seconds to start; a busy computer may take longer.
            if "failed to connect back" not in str(error):
                raise


def write(options: dict[str, str], count: int, log: str) -> None:
    """Write rows of which each task fails once, at its end."""
    more = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": log,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }
    spark = session("local[2,3]", more)
    # Long bodies: what is small waits in buffers between two stages, and nothing would be sent before the failure.
    rows = spark.range(0, count, 1, 2).selectExpr("concat('m', id) AS message_id", "repeat('x', 4000) AS body")
    frame: DataFrame = rows.mapInArrow(partial(_fail_once, options["primary_url"]), rows.schema)
    frame.write.format("pairmq").options(**options).mode("append").save()
    spark.stop()


def _fail_once(primary: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Fail in each task's first attempt, when rows of it have been sent."""
    yield from batches
    context = TaskContext.get()
    if context is None or context.attemptNumber() > 0:
        return
    deadline = time.monotonic() + 60
    while not asyncio.run(_has_messages(primary)) and time.monotonic() < deadline:
        time.sleep(0.05)
    raise RuntimeError("the first attempt of each task fails")


async def _has_messages(primary: str) -> bool:
    async with registry.transport(primary) as transport:
        return (await transport.admin.counts(Source(Entity("orders")))).active > 0


if __name__ == "__main__":
    {"consume": consume, "write": write}[sys.argv[1]](**json.loads(sys.argv[2]))
