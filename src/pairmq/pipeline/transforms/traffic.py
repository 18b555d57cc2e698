"""Two tables of all sends and receives: how sends ended, by entity and hour, and what was asked of each broker, by day.

``availability`` also says how long sends took; ``cost`` has the price of the operations (SPEC 7.9).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model import DAYS_A_MONTH, Price
from pairmq.model.events import (
    AttemptFailed,
    JournalOpened,
    MessageDeadLettered,
    MessageMoved,
    OperationsCounted,
    PingCompleted,
    SendOutcome,
    Side,
)
from pairmq.pipeline.transforms._fact import Field, Table
from pairmq.pipeline.transforms._rows import DAY, of_kind, percentiles, start_of
from pairmq.pipeline.transforms.facts import DELIVERED, OPERATION_COUNTS


def sample_rates(notes: DataFrame) -> DataFrame:
    """Give the part of healthy sends that each process keeps: one row for each that keeps less than all of them."""
    opened = notes.filter(of_kind(JournalOpened) & (F.col("sample_healthy") < 1) & (F.col("sample_healthy") > 0))
    return opened.groupBy("process").agg(F.min("sample_healthy").alias("rate"))


def weight() -> Column:
    """How many sends one row represents, given ``sampled`` and the ``rate`` of its process."""
    return F.when(F.col("sampled"), 1 / F.coalesce("rate", F.lit(1.0))).otherwise(1.0)


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


def availability(traffic: DataFrame, rates: DataFrame) -> DataFrame:
    """Count sends by entity and hour, given the `sample_rates`."""
    sends = traffic.filter(F.col("outcome") != DELIVERED)
    counted = sends.join(F.broadcast(rates), "process", "left")
    counted = counted.withColumn("weight", F.col("rows") * weight())
    histogram = counted.groupBy(*_KEYS, "bucket").agg(
        F.sum("weight").alias("weight"),
        F.max("most").alias("most"),
        *(
            F.sum(F.when(F.col("outcome") == outcome.value, F.col("weight")).otherwise(0.0)).alias(name)
            for name, outcome in _OUTCOMES.items()
        ),
    )
    summed = percentiles(histogram, _KEYS, "latency", tuple(_OUTCOMES))
    attempted = F.col("accepted_primary") + F.col("accepted_backlog") + F.col("refused") + F.col("unknown")
    return AVAILABILITY.of(
        summed.withColumn("attempted", attempted)
        .withColumn("share_diverted", F.col("accepted_backlog") / F.col("attempted"))
        .withColumn("availability", (F.col("accepted_primary") + F.col("accepted_backlog")) / F.col("attempted"))
        .withColumn("primary_availability", F.col("accepted_primary") / F.col("attempted"))
    )


COST = Table(
    "cost",
    "the operations of one pair at one of its brokers on one day (UTC)",
    (
        Field("pair", "text", "the pair's name"),
        Field("side", "text", "`primary` or `secondary`"),
        Field("day", "instant", "start of the day"),
        Field(
            "source",
            "text",
            "`counted` by the processes as they worked; `estimated` from the journal's rows, which record neither "
            "empty long polls nor batches; or `mixed`",
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

_COLUMNS = tuple(f"{side.value}_{name}" for side in Side for name in OPERATION_COUNTS)
_KEY = ("process", "pair", "day")
_MONEY = Decimal("0.000000000001")  # a millionth of the smallest realistic price per million


def cost(
    traffic: DataFrame,
    notes: DataFrame,
    *,
    primary: Price | None = None,
    secondary: Price | None = None,
) -> DataFrame:
    """Count operations, and price them.

    Args:
        traffic: of `facts.traffic`.
        notes: of `NOTES`.
        primary: its prices; free when left out.
        secondary: likewise.
    """
    prices = {Side.PRIMARY: primary or Price(), Side.SECONDARY: secondary or Price()}
    by_process = _by_process(traffic, notes)
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
        source.alias("source"), *(F.sum(name).cast("long").alias(name) for name in OPERATION_COUNTS)
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
    first, second = (F.lit(f"{values[side]:f}").cast(type_) for side in Side)
    return F.when(F.col("side") == Side.PRIMARY.value, first).otherwise(second)


def _by_process(traffic: DataFrame, notes: DataFrame) -> DataFrame:
    """What each process counted, and what its rows let one guess, for both sides, by pair and day."""
    # A moved message is received and settled at the secondary and sent to the primary.
    home, diverted = F.col("outcome") == SendOutcome.PRIMARY.value, F.col("outcome") == SendOutcome.BACKLOG.value
    delivered = F.col("outcome") == DELIVERED
    seen = traffic.join(F.broadcast(sample_rates(notes)), "process", "left").select(
        *_KEY[:2],
        (F.floor(F.col("hour") / DAY) * DAY).alias("day"),
        *_counts(),
        *_guesses(
            {
                (Side.PRIMARY, "sends"): F.when(home, F.col("rows") * weight()),
                (Side.PRIMARY, "receives"): F.when(delivered, F.col("rows")),
                (Side.PRIMARY, "settlements"): F.when(delivered, F.col("rows")),
                (Side.SECONDARY, "sends"): F.when(diverted, F.col("rows")),
            }
        ),
    )
    failed, pinged = of_kind(AttemptFailed), of_kind(PingCompleted)
    moved, aside = of_kind(MessageMoved), of_kind(MessageDeadLettered)
    counted = of_kind(OperationsCounted)
    told = notes.filter(counted | failed | pinged | moved | aside).select(
        *_KEY[:2],
        start_of(DAY).alias("day"),
        *_counts(counted),
        *_guesses(
            {
                (Side.PRIMARY, "sends"): F.when(moved | (failed & F.col("queue").isNull()), 1),
                (Side.PRIMARY, "pings"): F.when(pinged, 1),
                (Side.SECONDARY, "sends"): F.when(failed & F.col("queue").isNotNull(), 1),
                (Side.SECONDARY, "receives"): F.when(moved | aside, 1),
                (Side.SECONDARY, "settlements"): F.when(moved | aside, 1),
            }
        ),
    )
    return (
        seen.unionByName(told)
        .groupBy(*_KEY)
        .agg(
            F.coalesce(F.sum("reports"), F.lit(0)).alias("reports"),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COLUMNS),
            *(F.round(F.coalesce(F.sum(name), F.lit(0))).alias(name) for name in map(_guess, _COLUMNS)),
        )
    )


def _guesses(values: Mapping[tuple[Side, str], Column]) -> list[Column]:
    known = {f"{side.value}_{name}": value for (side, name), value in values.items()}
    return [known.get(name, F.lit(None)).cast("double").alias(_guess(name)) for name in _COLUMNS]


def _counts(told: Column | None = None) -> list[Column]:
    """What a process counted itself, in the rows that tell it."""
    values = {"reports": F.lit(1)}
    for side in Side:
        each = {f"{side.value}_{name}": F.when(F.col("side") == side.value, F.col(name)) for name in OPERATION_COUNTS}
        values |= each
    return [
        (F.lit(None) if told is None else F.when(told, value)).cast("long").alias(name)
        for name, value in values.items()
    ]


def _guess(column: str) -> str:
    return f"guessed_{column}"


def _side(side: Side) -> Column:
    """One side's counts, from whichever source holds for the process."""
    counts = (
        F.when(F.col("counts"), F.col(f"{side.value}_{name}"))
        .otherwise(F.col(_guess(f"{side.value}_{name}")))
        .cast("long")
        .alias(name)
        for name in OPERATION_COUNTS
    )
    return F.struct(F.lit(side.value).alias("side"), *counts)
