"""The table ``availability``: how sends ended, and how long they took, by entity and hour."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import SendOutcome
from pairmq.pipeline.transforms._quantiles import merged
from pairmq.pipeline.transforms._table import Field, Table
from pairmq.pipeline.transforms.traffic import DELIVERED, sample_rates, weight

AVAILABILITY = Table(
    "availability",
    "the sends to one entity that ended within one hour, of all processes",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the queue or topic"),
        Field("hour", "instant", "start of the hour"),
        Field("attempted", "number", "sends; where only a part of the healthy ones is kept, each counts for several"),
        Field("accepted_primary", "number", "accepted by the primary"),
        Field("accepted_backlog", "number", "accepted by a backlog queue"),
        Field("refused", "number", "refused"),
        Field("unknown", "number", "with an unknown outcome"),
        Field("share_diverted", "number", "`accepted_backlog` / `attempted`"),
        Field("availability", "number", "accepted / `attempted`"),
        Field(
            "primary_availability", "number", "`accepted_primary` / `attempted`: what it would be without the backlog"
        ),
        Field(
            "latency_p50", "number", "seconds from call to receipt of half of the accepted sends; 2 % too high at most"
        ),
        Field("latency_p95", "number", "the same of 95 %"),
        Field("latency_p99", "number", "the same of 99 %"),
        Field("latency_max", "number", "the longest, exactly"),
    ),
)

_KEYS = ("pair", "entity", "hour")
_OUTCOMES = {
    "accepted_primary": SendOutcome.PRIMARY,
    "accepted_backlog": SendOutcome.BACKLOG,
    "refused": SendOutcome.REFUSED,
    "unknown": SendOutcome.UNKNOWN,
}


def availability(traffic: DataFrame, notes: DataFrame) -> DataFrame:
    """Count sends by entity and hour.

    Args:
        traffic: of `TRAFFIC`.
        notes: of `NOTES`.

    Returns:
        The table `AVAILABILITY`.
    """
    sends = traffic.filter(F.col("outcome") != DELIVERED)
    counted = sends.join(F.broadcast(sample_rates(notes)), "process", "left")
    counted = counted.withColumn("weight", F.col("rows") * weight())
    histogram = counted.groupBy(*_KEYS, "bucket").agg(
        F.sum("weight").alias("weight"),
        F.max("most").alias("most"),
        *(
            F.sum(F.when(F.col("outcome") == outcome.value, F.col("weight")).otherwise(0.0)).alias(name)
            for name, outcome in _OUTCOMES.items()
        ),
    )
    summed = merged(histogram, _KEYS, "latency", tuple(_OUTCOMES))
    attempted = F.col("accepted_primary") + F.col("accepted_backlog") + F.col("refused") + F.col("unknown")
    return AVAILABILITY.of(
        summed.withColumn("attempted", attempted)
        .withColumn("share_diverted", F.col("accepted_backlog") / F.col("attempted"))
        .withColumn("availability", (F.col("accepted_primary") + F.col("accepted_backlog")) / F.col("attempted"))
        .withColumn("primary_availability", F.col("accepted_primary") / F.col("attempted"))
    )
