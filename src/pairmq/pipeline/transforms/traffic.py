"""Three tables of all sends and receives: how sends ended and what consumers read, by hour; what brokers did, by day.

``availability`` also says how long sends took, ``consumers`` for how long a queue with continuity could not be read
(SPEC 11.3), and ``cost`` has the price of the operations (SPEC 7.9).
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
    PairEnded,
    PairOpened,
    PingCompleted,
    ReceiverChanged,
    SendOutcome,
    Side,
)
from pairmq.pipeline.transforms._fact import Field, Table
from pairmq.pipeline.transforms._rows import DAY, HOUR, of_kind, percentiles
from pairmq.pipeline.transforms.facts import DELIVERED, FROM_LANE, OPERATION_COUNTS


def _weighted(traffic: DataFrame, notes: DataFrame) -> DataFrame:
    """Add ``weight``, how many sends one row represents: a process may keep only a part of the healthy ones."""
    opened = notes.filter(of_kind(JournalOpened) & (F.col("sample_healthy") < 1) & (F.col("sample_healthy") > 0))
    rates = opened.groupBy("process").agg(F.min("sample_healthy").alias("rate"))
    weight = F.when(F.col("sampled"), 1 / F.coalesce("rate", F.lit(1.0))).otherwise(1.0)
    return traffic.join(F.broadcast(rates), "process", "left").withColumn("weight", weight)


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


def availability(latencies: DataFrame, notes: DataFrame) -> DataFrame:
    """Count sends by entity and hour."""
    counted = _weighted(latencies, notes).withColumn("weight", F.col("rows") * F.col("weight"))
    histogram = counted.groupBy(*_KEYS, "bucket").agg(
        F.sum("weight").alias("weight"),
        F.max("most").alias("most"),
        *(
            F.sum(F.when(F.col("outcome") == outcome.value, F.col("weight")).otherwise(0.0)).alias(name)
            for name, outcome in _OUTCOMES.items()
        ),
    )
    summed = percentiles(histogram, _KEYS, "latency", tuple(_OUTCOMES))
    shares = {
        "share_diverted": "accepted_backlog / attempted",
        "availability": "(accepted_primary + accepted_backlog) / attempted",
        "primary_availability": "accepted_primary / attempted",
    }
    known = summed.withColumn("attempted", F.expr(" + ".join(_OUTCOMES)))
    return AVAILABILITY.of(known.withColumns({name: F.expr(share) for name, share in shares.items()}))


CONSUMERS = Table(
    "consumers",
    "one hour of a queue with continuity (SPEC 11) in which a program that consumes from it ran",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the queue"),
        Field("hour", "instant", "start of the hour"),
        Field("from_primary", "count", "deliveries from the primary that were settled in any way"),
        Field("from_secondary", "count", "the same from its lane on the secondary"),
        Field("watched", "number", "seconds in which such a program ran"),
        Field("unread", "number", "of these, seconds in which none of them could read either broker"),
        Field("longest_unread", "number", "the longest such time that lies in the hour at least partly, in full"),
        Field("availability", "number", "1 - `unread` / `watched`: what consumers could read of the time"),
    ),
)


def consumers(traffic: DataFrame, notes: DataFrame, minutes: DataFrame) -> DataFrame:
    """Compute what could be read of each queue with continuity.

    A process reports a broker that its receivers can't read, and when one reads it again. It consumes from a queue if
    it has a delivery of it or such a report, from its first row to its last.
    """
    read = traffic.filter(F.col("outcome").isin(DELIVERED, FROM_LANE))
    changed = notes.filter(of_kind(ReceiverChanged))
    seen = read.select(*_PROGRAM, (F.col("outcome") == FROM_LANE).alias("from_lane"))
    seen = seen.unionByName(changed.select(*_PROGRAM, F.lit(True).alias("from_lane")))
    queues = _with_continuity(seen.groupBy("pair", "entity").agg(F.max("from_lane").alias("from_lane")), notes)
    programs = seen.select(*_PROGRAM).distinct().join(queues, ["pair", "entity"], "left_semi")
    counted = (
        read.join(queues, ["pair", "entity"], "left_semi")
        .groupBy(*_KEYS)
        .agg(
            *(
                F.sum(F.when(F.col("outcome") == outcome, F.col("rows")).otherwise(0)).alias(name)
                for name, outcome in (("from_primary", DELIVERED), ("from_secondary", FROM_LANE))
            )
        )
    )
    joined = counted.join(_unread(programs, changed, notes, minutes), [*_KEYS], "full")
    filled = joined.fillna(0, ["from_primary", "from_secondary", "watched", "unread", "longest_unread"])
    available = F.when(F.col("watched") > 0, 1 - F.col("unread") / F.col("watched"))
    return CONSUMERS.of(filled.withColumn("availability", available))


_PROGRAM = ("process", "pair", "entity")
_LAST = 1 << 62


def _with_continuity(queues: DataFrame, notes: DataFrame) -> DataFrame:
    """Of some queues those that the option ``continuity`` names in any process, or of which the rows show it."""
    named = notes.filter(of_kind(PairOpened)).select(
        "pair", F.explode(F.from_json("continuity", "array<string>")).alias("pattern")
    )
    # As the patterns of LIKE, in which % and _ are what * and ? are in the option.
    like = F.translate(F.regexp_replace("pattern", r"([%_\\])", r"\\$1"), "*?", "%_")
    named = named.select(F.col("pair").alias("of"), like.alias("like")).distinct()
    met = (F.col("pair") == F.col("of")) & F.like("entity", "like")
    return queues.filter("from_lane").unionByName(queues.join(named, met, "left_semi")).distinct().drop("from_lane")


def _unread(programs: DataFrame, changed: DataFrame, notes: DataFrame, minutes: DataFrame) -> DataFrame:
    """For how long programs ran that consume from a queue, by hour, and for how long none of them could read it."""
    lives = minutes.groupBy("process").agg(F.min("first_at").alias("first_at"), F.max("last_at").alias("last_at"))
    ran = programs.join(lives, "process")
    # With its pair or its process a receiver ends: what it had lost does not count on.
    ended = notes.filter(of_kind(PairEnded)).select("process", "pair", "seq", "at").join(programs, ["process", "pair"])
    ended = ended.unionByName(ran.select(*_PROGRAM, F.lit(_LAST).alias("seq"), F.col("last_at").alias("at")))
    known = changed.select(*_PROGRAM, "seq", "at", "side", "open").unionByName(
        ended.select(
            *_PROGRAM, "seq", "at", F.explode(F.array(*(F.lit(side.value) for side in Side))).alias("side")
        ).withColumn("open", F.lit(True))
    )
    in_turn = Window.partitionBy(*_PROGRAM).orderBy("seq", "side")
    lost = [
        ~F.coalesce(
            F.last(F.when(F.col("side") == side.value, F.col("open")), ignorenulls=True).over(in_turn), F.lit(True)
        )
        for side in Side
    ]
    known = known.withColumn("blind", (lost[0] & lost[1]).cast("long"))
    known = known.withColumn("blind", F.col("blind") - F.lag("blind", 1, 0).over(in_turn))
    starts, ends = (
        ran.select("pair", "entity", F.col(name).alias("at"), F.lit(0).alias("blind"), F.lit(by).alias("running"))
        for name, by in (("first_at", 1), ("last_at", -1))
    )
    edges = known.select("pair", "entity", "at", "blind", F.lit(0).alias("running")).unionByName(starts)
    at_once = Window.partitionBy("pair", "entity").orderBy("at")  # those of one instant together
    times = edges.unionByName(ends).withColumns(
        {
            **{name: F.sum(name).over(at_once) for name in ("blind", "running")},
            "ended": F.lead("at").over(at_once),
        }
    )
    times = times.withColumn("none", F.expr("running > 0 AND blind >= running"))
    times = times.withColumn("before", F.sum(F.when(F.col("none"), 0).otherwise(1)).over(at_once))
    without = F.when(F.col("none"), F.col("ended") - F.col("at"))
    times = times.withColumn("whole", F.sum(without).over(Window.partitionBy("pair", "entity", "before")))
    hours = F.sequence(F.floor(F.col("at") / HOUR), F.floor(F.col("ended") / HOUR))
    each = times.filter("running > 0 AND ended > at").withColumn("hour", F.explode(hours))
    each = each.withColumn("hour", F.col("hour") * HOUR).filter(F.col("hour") < F.col("ended"))
    within = F.least("ended", F.col("hour") + HOUR) - F.greatest("at", "hour")
    return each.groupBy(*_KEYS).agg(
        F.sum(within).alias("watched"),
        F.sum(F.when(F.col("none"), within)).alias("unread"),
        F.max(F.when(F.col("none"), F.col("whole"))).alias("longest_unread"),
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


def cost(traffic: DataFrame, operations: DataFrame, notes: DataFrame, *, prices: Mapping[str, Price]) -> DataFrame:
    """Count operations, and price them; without a price they are free."""
    known = {side: prices.get(side.value) or Price() for side in Side}
    by_process = _by_process(traffic, operations, notes)
    # A process either counts, in all of its life, or does not.
    counts = F.max("reports").over(Window.partitionBy("process", "pair")) > 0
    by_process = by_process.withColumn("counts", counts)
    each = by_process.selectExpr("pair", "day", "counts", f"inline(array({', '.join(map(_side, Side))}))")
    source = (
        F.when(F.min("counts"), "counted").when(~F.max("counts"), "estimated").otherwise("mixed")  # of all processes
    )
    summed = each.groupBy("pair", "side", "day").agg(
        source.alias("source"), *(F.sum(name).cast("long").alias(name) for name in OPERATION_COUNTS)
    )
    summed = summed.withColumn("operations", F.col("sends") + F.col("receives") + F.col("pings"))
    per_operation = {side: (price.per_million / 1_000_000).quantize(_MONEY) for side, price in known.items()}
    per_day = {side: (price.base / DAYS_A_MONTH).quantize(Decimal("0.0001")) for side, price in known.items()}
    summed = summed.withColumn(
        "operations_price",
        (F.col("operations").cast("decimal(18,0)") * _by_side(per_operation, "decimal(19,12)")).cast("decimal(28,4)"),
    ).withColumn("base_price", _by_side(per_day, "decimal(19,4)"))
    return COST.of(summed.withColumn("price", F.col("operations_price") + F.col("base_price")))


def _by_side(values: Mapping[Side, Decimal], type_: str) -> Column:
    """A number that depends on the side."""
    first, second = (F.lit(f"{values[side]:f}").cast(type_) for side in Side)
    return F.when(F.col("side") == Side.PRIMARY.value, first).otherwise(second)


def _by_process(traffic: DataFrame, operations: DataFrame, notes: DataFrame) -> DataFrame:
    """What each process counted, and what its rows let one guess, for both sides, by pair and day."""
    counted = operations.selectExpr(
        *_KEY,
        "reports",
        *(
            f"CASE WHEN side = '{side.value}' THEN {name} END AS {side.value}_{name}"
            for side in Side
            for name in OPERATION_COUNTS
        ),
        *(f"CAST(NULL AS double) AS {_guess(name)}" for name in _COLUMNS),
    )
    uncounted = [f"CAST(NULL AS bigint) AS {name}" for name in ("reports", *_COLUMNS)]
    # A moved message is received and settled at the secondary and sent to the primary.
    direct, diverted = f"outcome = '{SendOutcome.PRIMARY.value}'", f"outcome = '{SendOutcome.BACKLOG.value}'"
    delivered, from_lane = f"outcome = '{DELIVERED}'", f"outcome = '{FROM_LANE}'"
    seen = _weighted(traffic, notes).selectExpr(
        *_KEY[:2],
        f"floor(hour / {DAY}) * {DAY} AS day",
        *uncounted,
        *_guesses(
            {
                (Side.PRIMARY, "sends"): f"{direct} THEN rows * weight",
                (Side.PRIMARY, "receives"): f"{delivered} THEN rows",
                (Side.PRIMARY, "settlements"): f"{delivered} THEN rows",
                (Side.SECONDARY, "sends"): f"{diverted} THEN rows",
                (Side.SECONDARY, "receives"): f"{from_lane} THEN rows",
                (Side.SECONDARY, "settlements"): f"{from_lane} THEN rows",
            }
        ),
    )
    kinds = (AttemptFailed, PingCompleted, MessageMoved, MessageDeadLettered)
    failed, pinged, moved, aside = (f"kind = '{kind.__name__}'" for kind in kinds)
    noted = notes.filter(of_kind(*kinds)).selectExpr(
        *_KEY[:2],
        f"floor(at / {DAY}) * {DAY} AS day",
        *uncounted,
        *_guesses(
            {
                (Side.PRIMARY, "sends"): f"{moved} OR ({failed} AND queue IS NULL) THEN 1",
                (Side.PRIMARY, "pings"): f"{pinged} THEN 1",
                (Side.SECONDARY, "sends"): f"{failed} AND queue IS NOT NULL THEN 1",
                (Side.SECONDARY, "receives"): f"{moved} OR {aside} THEN 1",
                (Side.SECONDARY, "settlements"): f"{moved} OR {aside} THEN 1",
            }
        ),
    )
    return (
        seen.unionByName(noted)
        .unionByName(counted)
        .groupBy(*_KEY)
        .agg(
            *(F.expr(f"coalesce(sum({name}), 0L) AS {name}") for name in ("reports", *_COLUMNS)),
            *(F.expr(f"round(coalesce(sum({name}), 0D)) AS {name}") for name in map(_guess, _COLUMNS)),
        )
    )


def _guesses(values: Mapping[tuple[Side, str], str]) -> list[str]:
    known = {f"{side.value}_{name}": value for (side, name), value in values.items()}
    cases = (f"CASE WHEN {known[name]} END" if name in known else "NULL" for name in _COLUMNS)
    return [f"CAST({case} AS double) AS {_guess(name)}" for name, case in zip(_COLUMNS, cases, strict=True)]


def _guess(column: str) -> str:
    return f"guessed_{column}"


def _side(side: Side) -> str:
    """One side's counts, from whichever source holds for the process."""
    counts = (
        f"CAST(CASE WHEN counts THEN {column} ELSE {_guess(column)} END AS bigint) AS {name}"
        for name in OPERATION_COUNTS
        for column in (f"{side.value}_{name}",)
    )
    return f"struct('{side.value}' AS side, {', '.join(counts)})"
