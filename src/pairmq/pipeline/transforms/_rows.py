"""Small questions about the journal's rows, asked by several tables, and percentiles.

Tables are said in two ways that go together: how rows meet in PySpark's methods, and what a column or a condition is in
SQL, as from Python each part of an expression would take several calls of Java.

The percentiles come from a histogram: exact counts in buckets 2 % wide, so that rows may have weights and memory is
bounded. Spark's own approximate percentiles know no weights, and its exact ones keep every value of a group in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import Event, SendCompleted, SendOutcome

HOUR, MINUTE, DAY = 3600, 60, 86_400
"""Seconds."""

SLACK = 1.0
"""Seconds by which the clocks of two machines may differ."""

EARLIEST, LATEST = 1_577_836_800.0, 4_102_444_800.0
"""2020 and 2100: an event of PairMQ was between the two, or the clock that dated it was wrong."""


PLACE = "xxhash64(pair, entity)"
"""A number for the entity of a pair that a row is about."""


def of_kind(*kinds: type[Event]) -> str:
    """Whether a row is an event of one of these kinds."""
    return f"kind IN ({', '.join(repr(kind.__name__) for kind in kinds)})"


def ended_as(*outcomes: SendOutcome) -> str:
    """Whether a row is a send that ended so."""
    return f"kind = '{SendCompleted.__name__}' AND outcome IN ({', '.join(repr(each.value) for each in outcomes)})"


def first_at(condition: str) -> str:
    """The earliest instant of a group's rows for which something holds."""
    return f"min(CASE WHEN {condition} THEN at END)"


def last_at(condition: str) -> str:
    """The latest instant of a group's rows for which something holds."""
    return f"max(CASE WHEN {condition} THEN at END)"


def start_of(seconds: int) -> str:
    """The start of the hour, minute or day that a row is in, as seconds since 1970 UTC."""
    return f"floor(at / {seconds}) * {seconds}"


def key_of(column: str) -> str:
    """A number for a text that repeats; null for null."""
    return f"CASE WHEN {column} IS NOT NULL THEN xxhash64({column}) END"


def grouped(frame: DataFrame, keys: Sequence[str], *columns: str) -> DataFrame:
    """One row for each group of rows."""
    return frame.groupBy(*map(F.expr, keys)).agg(*map(F.expr, columns))


def extended(frame: DataFrame, **columns: str) -> DataFrame:
    """The same rows with these columns, which are new or take the place of others."""
    return frame.withColumns({name: F.expr(column) for name, column in columns.items()})


def with_one(small: DataFrame, one: DataFrame) -> DataFrame:
    """Add the columns of the only row of a frame to one of few rows.

    Spark does not see that what it makes of two partitions is one, and would send it around.
    """
    return small.crossJoin(F.broadcast(one)).coalesce(1)


_STEP = math.log(1.02)
_LEAST = 1e-6  # s: everything below falls into one bucket

PERCENTILES = (50, 95, 99)
"""Those that the tables have."""


def bucket_of(value: str) -> str:
    """The number of a value's bucket; null for null."""
    # Without the condition the greater one of null and the least value would be the latter.
    return f"CASE WHEN {value} IS NOT NULL THEN ceil(ln(greatest({value}, {_LEAST}D)) / {_STEP}D) END"


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
    valued = "sum(CASE WHEN bucket IS NOT NULL THEN weight ELSE 0D END)"
    group = f"OVER (PARTITION BY {', '.join(keys)}"
    ranked = histogram.selectExpr(
        "*",
        f"{valued} {group} ORDER BY bucket ASC NULLS FIRST ROWS UNBOUNDED PRECEDING) AS below",
        f"{valued} {group}) AS total",
        f"least(exp(bucket * {_STEP}D), max(most) {group})) AS bound",
    )
    # Half a millionth below, so that a sum of weights that is rounded down does not skip a bucket.
    reached = {percent: f"below >= total * {percent / 100 * (1 - 5e-7)}D" for percent in PERCENTILES}
    return grouped(
        ranked,
        keys,
        *(f"sum({name}) AS {name}" for name in sums),
        *(
            f"min(CASE WHEN bucket IS NOT NULL AND {enough} THEN bound END) AS {prefix}_p{percent}"
            for percent, enough in reached.items()
        ),
        f"max(most) AS {prefix}_max",
    )
