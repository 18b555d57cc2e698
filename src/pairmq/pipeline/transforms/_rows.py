"""Small questions about the journal's rows, asked by several tables, and percentiles.

The percentiles come from a histogram: exact counts in buckets 2 % wide, so that rows may have weights and memory is
bounded. Spark's own approximate percentiles know no weights, and its exact ones keep every value of a group in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import Event, SendCompleted, SendOutcome

HOUR, MINUTE, DAY = 3600, 60, 86_400
"""Seconds."""

SLACK = 1.0
"""Seconds by which the clocks of two machines may differ."""

EARLIEST, LATEST = 1_577_836_800.0, 4_102_444_800.0
"""2020 and 2100: an event of PairMQ was between the two, or the clock that dated it was wrong."""


def of_kind(*kinds: type[Event]) -> Column:
    """Whether a row is an event of one of these kinds."""
    return F.expr(f"kind IN ({', '.join(repr(kind.__name__) for kind in kinds)})")


def ended_as(outcome: SendOutcome) -> Column:
    """Whether a row is a send that ended so."""
    return F.expr(f"kind = '{SendCompleted.__name__}' AND outcome = '{outcome.value}'")


def how_many(condition: Column) -> Column:
    """Count the rows of a group for which something holds."""
    return F.sum(F.when(condition, 1).otherwise(0))


def first_at(condition: Column) -> Column:
    """The earliest instant of a group's rows for which something holds."""
    return F.min(F.when(condition, F.col("at")))


def last_at(condition: Column) -> Column:
    """The latest instant of a group's rows for which something holds."""
    return F.max(F.when(condition, F.col("at")))


def start_of(seconds: int) -> Column:
    """The start of the hour, minute or day that a row is in, as seconds since 1970 UTC."""
    return F.expr(f"floor(at / {seconds}) * {seconds}")


def place() -> Column:
    """A number for the entity of a pair that a row is about."""
    return F.expr("xxhash64(pair, entity)")


def with_one(small: DataFrame, one: DataFrame) -> DataFrame:
    """Add the columns of the only row of a frame to one of few rows.

    Spark does not see that what it makes of two partitions is one, and would send it around.
    """
    return small.crossJoin(F.broadcast(one)).coalesce(1)


_STEP = math.log(1.02)
_LEAST = 1e-6  # s: everything below falls into one bucket

PERCENTILES = (50, 95, 99)
"""Those that the tables have."""


def bucket_of(value: Column) -> Column:
    """The number of a value's bucket; null for null."""
    # Without the condition the greater one of null and the least value would be the latter.
    return F.when(value.isNotNull(), F.ceil(F.log(F.greatest(value, F.lit(_LEAST))) / F.lit(_STEP)))


def buckets_of(values: pa.Array) -> pa.Array:
    """The same of Arrow's values."""
    known = values.to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        found = np.nan_to_num(np.ceil(np.log(np.maximum(known, _LEAST)) / _STEP), posinf=2.0**62)
    return pa.array(found.astype(np.int64), mask=values.is_null().to_numpy(zero_copy_only=False))


def percentiles(histogram: DataFrame, keys: Sequence[str], prefix: str, sums: Sequence[str]) -> DataFrame:
    """Merge a histogram's buckets into one row for each key: its percentiles, 2 % too high at most, and some sums.

    The histogram has one row for each key and ``bucket``, with ``weight`` and ``most``, the bucket's weight and
    greatest value, both ignored where the bucket is null.
    """
    valued = F.when(F.col("bucket").isNotNull(), F.col("weight")).otherwise(0.0)
    group = Window.partitionBy(*keys)
    upwards = group.orderBy(F.col("bucket").asc_nulls_first()).rowsBetween(Window.unboundedPreceding, 0)
    ranked = histogram.withColumns(
        {
            "below": F.sum(valued).over(upwards),
            "all": F.sum(valued).over(group),
            "bound": F.least(F.exp(F.col("bucket") * F.lit(_STEP)), F.max("most").over(group)),
        }
    )
    return ranked.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in sums),
        *(_percentile(percent).alias(f"{prefix}_p{percent}") for percent in PERCENTILES),
        F.max("most").alias(f"{prefix}_max"),
    )


def _percentile(percent: int) -> Column:
    # Half a millionth below, so that a sum of weights that is rounded down does not skip a bucket.
    reached = F.col("below") >= F.col("all") * (percent / 100) * (1 - 5e-7)
    return F.min(F.when(reached & F.col("bucket").isNotNull(), F.col("bound")))
