"""The table ``rotation``: every time that a process left a backlog queue alone, and for how long."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import RotationChanged
from pairmq.pipeline.transforms._rows import of_kind
from pairmq.pipeline.transforms._table import Field, Table

ROTATION = Table(
    "rotation",
    "one time that a backlog queue was out of a process's rotation",
    (
        Field("process", "text", "whose rotation"),
        Field("pair", "text", "the pair's name"),
        Field("queue", "text", "the backlog queue"),
        Field("left_at", "instant", "it was used no more"),
        Field("error", "text", "why"),
        Field("in_use", "count", "queues that were left"),
        Field("returned_at", "instant", "it was used again; null if it never was"),
        Field("out_of_use", "number", "seconds until then, else until the process's last row"),
    ),
)


def rotation(notes: DataFrame, minutes: DataFrame) -> DataFrame:
    """Find every time that a backlog queue was out of use.

    Args:
        notes: of `NOTES`.
        minutes: of `MINUTES`.

    Returns:
        The table `ROTATION`.
    """
    changes = notes.filter(of_kind(RotationChanged)).select(
        "process", "pair", "queue", "seq", "at", F.col("in_use").alias("used"), "left", "error"
    )
    by_seq = Window.partitionBy("process", "pair", "queue").orderBy("seq")
    later = by_seq.rowsBetween(1, Window.unboundedFollowing)
    returned = F.min(F.when(F.col("used"), F.col("at"))).over(later)
    changes = changes.withColumn("returned_at", returned).withColumn("before", F.lag("used").over(by_seq))
    # A queue that is said twice to be out of use left once.
    left = changes.filter(~F.col("used") & (F.col("before").isNull() | F.col("before")))
    ends = minutes.groupBy("process").agg(F.max("last_at").alias("last_at"))
    left = left.join(F.broadcast(ends), "process")
    return ROTATION.of(
        left.withColumn("left_at", F.col("at"))
        .withColumn("in_use", F.col("left"))
        .withColumn("out_of_use", F.coalesce("returned_at", "last_at") - F.col("left_at"))
    )
