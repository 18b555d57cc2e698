"""The table ``cost``: what was asked of each broker, by day, and its price (SPEC 7.9)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model import DAYS_A_MONTH, Price
from pairmq.model.events import (
    AttemptFailed,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    OperationsCounted,
    PingCompleted,
    SendCompleted,
    SendOutcome,
    Side,
)
from pairmq.pipeline.transforms._rows import DAY, ended_as, may_be_sampled, of_kind, sample_rates, start_of
from pairmq.pipeline.transforms._table import Field, Table

COST = Table(
    "cost",
    "what one pair asked of one of its brokers on one day (UTC)",
    (
        Field("pair", "text", "the pair's name"),
        Field("side", "text", "`primary` or `secondary`"),
        Field("day", "instant", "start of the day"),
        Field(
            "source",
            "text",
            "`counted` by the processes as they worked; `estimated` from the journal's rows, which tell of no empty "
            "long polls and of no batches; or `mixed`",
        ),
        Field("sends", "count", "sends"),
        Field("receives", "count", "receives"),
        Field("pings", "count", "pings"),
        Field(
            "operations",
            "count",
            "`sends` + `receives` + `pings`: what brokers charge for, and what `pairmq cost` counts",
        ),
        Field(
            "settlements",
            "count",
            "completions, abandonments and dead-letters, and renewed locks where they are counted",
        ),
        Field("admin", "count", "everything else; 0 where it is estimated"),
        Field("operations_price", "money", "of `operations`"),
        Field("base_price", "money", "a thirtieth of the base charge"),
        Field("price", "money", "both"),
    ),
)

_COUNTS = ("sends", "receives", "pings", "settlements", "admin")
_MONEY = Decimal("0.000000000001")  # a millionth of the smallest price of a million that anyone will write


def cost(rows: DataFrame, *, primary: Price | None = None, secondary: Price | None = None) -> DataFrame:
    """Count operations, and price them.

    Args:
        rows: the journal's, each once.
        primary: its prices; free when left out.
        secondary: likewise.

    Returns:
        The table `COST`.
    """
    prices = {Side.PRIMARY: primary or Price(), Side.SECONDARY: secondary or Price()}
    by_process = _by_process(rows)
    # A process either counts, in all of its life, or does not.
    counts = F.max("reports").over(Window.partitionBy("process", "pair")) > 0
    by_process = by_process.withColumn("counts", counts)
    sides = F.explode(F.array(*(_side(side) for side in Side)))
    each = by_process.select("pair", "day", "counts", sides.alias("side_counts")).select(
        "pair", "day", "counts", "side_counts.*"
    )
    source = (
        F.when(F.min("counts"), "counted").when(~F.max("counts"), "estimated").otherwise("mixed")  # of all processes
    )
    summed = each.groupBy("pair", "side", "day").agg(
        source.alias("source"), *(F.sum(name).cast("long").alias(name) for name in _COUNTS)
    )
    summed = summed.withColumn("operations", F.col("sends") + F.col("receives") + F.col("pings"))
    per_operation = {side: (price.per_million / 1_000_000).quantize(_MONEY) for side, price in prices.items()}
    per_day = {side: (price.base / DAYS_A_MONTH).quantize(Decimal("0.0001")) for side, price in prices.items()}
    summed = summed.withColumn(
        "operations_price",
        (F.col("operations").cast("decimal(18,0)") * _by_side(per_operation, "decimal(19,12)")).cast("decimal(28,4)"),
    ).withColumn("base_price", _by_side(per_day, "decimal(19,4)"))
    return COST.of(summed.withColumn("price", F.col("operations_price") + F.col("base_price")))


def _by_side(values: Mapping[Side, Decimal], type_: str) -> Column:
    """A number that depends on the side."""
    first, second = (F.lit(str(values[side])).cast(type_) for side in Side)
    return F.when(F.col("side") == Side.PRIMARY.value, first).otherwise(second)


def _by_process(rows: DataFrame) -> DataFrame:
    """What each process counted, and what its rows let one guess, for both sides, by pair and day."""
    counted = of_kind(OperationsCounted)
    weight = F.when(may_be_sampled(), 1 / F.coalesce("rate", F.lit(1.0))).otherwise(1.0)
    failed, moved, delivered = of_kind(AttemptFailed), of_kind(MessageMoved), of_kind(MessageDelivered)
    aside, pinged = of_kind(MessageDeadLettered), of_kind(PingCompleted)
    # A moved message is received and settled at the secondary and sent to the primary.
    guesses: dict[tuple[Side, str], Column] = {
        (Side.PRIMARY, "sends"): F.when(ended_as(SendOutcome.PRIMARY), weight).when(
            moved | (failed & F.col("queue").isNull()), 1.0
        ),
        (Side.PRIMARY, "receives"): F.when(delivered, 1.0),
        (Side.PRIMARY, "pings"): F.when(pinged, 1.0),
        (Side.PRIMARY, "settlements"): F.when(delivered, 1.0),
        (Side.SECONDARY, "sends"): F.when(ended_as(SendOutcome.BACKLOG) | (failed & F.col("queue").isNotNull()), 1.0),
        (Side.SECONDARY, "receives"): F.when(moved | aside, 1.0),
        (Side.SECONDARY, "settlements"): F.when(moved | aside, 1.0),
    }
    told = of_kind(SendCompleted, AttemptFailed, MessageMoved, MessageDelivered, MessageDeadLettered, PingCompleted)
    joined = rows.filter(counted | told).join(F.broadcast(sample_rates(rows)), "process", "left")
    names = [(side, name) for side in Side for name in _COUNTS]
    return joined.groupBy("process", "pair", start_of(DAY).alias("day")).agg(
        F.sum(F.when(counted, 1).otherwise(0)).alias("reports"),
        *(
            _sum(F.when(counted & (F.col("side") == side.value), F.col(name))).alias(f"{side.value}_{name}")
            for side, name in names
        ),
        *(_sum(guesses.get((side, name), F.lit(0.0))).alias(f"guessed_{side.value}_{name}") for side, name in names),
    )


def _sum(value: Column) -> Column:
    return F.round(F.coalesce(F.sum(value), F.lit(0)))


def _side(side: Side) -> Column:
    """One side's counts, from whichever source holds for the process."""
    counts = (
        F.when(F.col("counts"), F.col(f"{side.value}_{name}"))
        .otherwise(F.col(f"guessed_{side.value}_{name}"))
        .cast("long")
        .alias(name)
        for name in _COUNTS
    )
    return F.struct(F.lit(side.value).alias("side"), *counts)
