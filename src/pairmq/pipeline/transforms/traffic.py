"""Three tables of all sends and receives: how sends ended and what consumers read, by hour; what brokers did, by day.

``availability`` also says how long sends took, ``consumers`` for how long a queue with continuity could not be read
(SPEC 11.3), and ``cost`` has the price of the operations (SPEC 7.9).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from pyspark.sql import DataFrame
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
from pairmq.pipeline.transforms._rows import DAY, HOUR, extended, grouped, of_kind, percentiles
from pairmq.pipeline.transforms.facts import DELIVERED, FROM_LANE, OPERATION_COUNTS


def _weighted(traffic: DataFrame, notes: DataFrame) -> DataFrame:
    """Add ``weight``, how many sends one row represents: a process may keep only a part of the healthy ones."""
    opened = notes.filter(f"{of_kind(JournalOpened)} AND sample_healthy < 1 AND sample_healthy > 0")
    rates = grouped(opened, ("process",), "min(sample_healthy) AS rate")
    weight = "CASE WHEN sampled THEN 1 / coalesce(rate, 1D) ELSE 1D END"
    return extended(traffic.join(F.broadcast(rates), "process", "left"), weight=weight)


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
    counted = extended(_weighted(latencies, notes), weight="rows * weight")
    histogram = grouped(
        counted,
        (*_KEYS, "bucket"),
        "sum(weight) AS weight",
        "max(most) AS most",
        *(f"sum(CASE WHEN outcome = '{each}' THEN weight ELSE 0D END) AS {name}" for name, each in _OUTCOMES.items()),
    )
    summed = percentiles(histogram, _KEYS, "latency", tuple(_OUTCOMES))
    shares = {
        "share_diverted": "accepted_backlog / attempted",
        "availability": "(accepted_primary + accepted_backlog) / attempted",
        "primary_availability": "accepted_primary / attempted",
    }
    return AVAILABILITY.of(extended(extended(summed, attempted=" + ".join(_OUTCOMES)), **shares))


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
    from_lane = f"outcome = '{FROM_LANE}'"
    read = traffic.filter(f"{from_lane} OR outcome = '{DELIVERED}'")
    changed = notes.filter(of_kind(ReceiverChanged))
    seen = read.selectExpr(*_PROGRAM, f"{from_lane} AS from_lane")
    seen = seen.unionByName(changed.selectExpr(*_PROGRAM, "true AS from_lane"))
    queues = _with_continuity(grouped(seen, ("pair", "entity"), "max(from_lane) AS from_lane"), notes)
    programs = seen.select(*_PROGRAM).distinct().join(queues, ["pair", "entity"], "left_semi")
    counted = grouped(
        read.join(queues, ["pair", "entity"], "left_semi"),
        _KEYS,
        f"sum(CASE WHEN {from_lane} THEN 0 ELSE rows END) AS from_primary",
        f"sum(CASE WHEN {from_lane} THEN rows ELSE 0 END) AS from_secondary",
    )
    joined = counted.join(_unread(programs, changed, notes, minutes), [*_KEYS], "full")
    filled = joined.fillna(0, ["from_primary", "from_secondary", "watched", "unread", "longest_unread"])
    return CONSUMERS.of(extended(filled, availability="CASE WHEN watched > 0 THEN 1 - unread / watched END"))


_PROGRAM = ("process", "pair", "entity")
_LAST = 1 << 62


def _with_continuity(queues: DataFrame, notes: DataFrame) -> DataFrame:
    """Of some queues those that the option ``continuity`` names in any process, or of which the rows show it."""
    patterns = "explode(from_json(continuity, 'array<string>')) AS pattern"
    named = notes.filter(of_kind(PairOpened)).selectExpr("pair AS of", patterns)
    # As the patterns of LIKE, in which % and _ are what * and ? are in the option.
    like = F.translate(F.regexp_replace("pattern", r"([%_\\])", r"\\$1"), "*?", "%_")
    named = named.select("of", like.alias("pattern")).distinct()
    met = F.expr("pair = of AND entity LIKE pattern")
    return queues.filter("from_lane").unionByName(queues.join(named, met, "left_semi")).distinct().drop("from_lane")


def _unread(programs: DataFrame, changed: DataFrame, notes: DataFrame, minutes: DataFrame) -> DataFrame:
    """For how long programs ran that consume from a queue, by hour, and for how long none of them could read it."""
    ran = programs.join(
        grouped(minutes, ("process",), "min(first_at) AS first_at", "max(last_at) AS last_at"), "process"
    )
    # With its pair or its process a receiver ends: what it had lost does not count on.
    ended = notes.filter(of_kind(PairEnded)).select("process", "pair", "seq", "at").join(programs, ["process", "pair"])
    ended = ended.unionByName(ran.selectExpr(*_PROGRAM, f"{_LAST}L AS seq", "last_at AS at"))
    sides = f"explode(array({', '.join(repr(side.value) for side in Side)})) AS side"
    known = changed.select(*_PROGRAM, "seq", "at", "side", "open").unionByName(
        ended.selectExpr(*_PROGRAM, "seq", "at", sides, "true AS open")
    )
    in_turn = f"OVER (PARTITION BY {', '.join(_PROGRAM)} ORDER BY seq, side)"
    reads = (f"coalesce(last(CASE WHEN side = '{side}' THEN open END, true) {in_turn}, true)" for side in Side)
    known = extended(known, blind=f"CAST(NOT ({' OR '.join(reads)}) AS bigint)")
    known = known.selectExpr("pair", "entity", "at", f"blind - lag(blind, 1, 0L) {in_turn} AS blind", "0 AS running")
    for edge, by in (("first_at", 1), ("last_at", -1)):
        known = known.unionByName(ran.selectExpr("pair", "entity", f"{edge} AS at", "0 AS blind", f"{by} AS running"))
    of_queue = "OVER (PARTITION BY pair, entity"
    at_once = f"{of_queue} ORDER BY at)"  # those of one instant together
    times = extended(
        known,
        **{name: f"sum({name}) {at_once}" for name in ("blind", "running")},
        ended=f"lead(at) {at_once}",
    )
    times = extended(times, unread="running > 0 AND blind >= running")
    times = extended(times, before=f"sum(CASE WHEN unread THEN 0 ELSE 1 END) {at_once}")
    times = extended(times, whole=f"sum(CASE WHEN unread THEN ended - at END) {of_queue}, before)")
    hours = f"explode(sequence(floor(at / {HOUR}), floor(ended / {HOUR})))"
    each = extended(times.filter("running > 0 AND ended > at"), hour=hours)
    each = extended(each, hour=f"hour * {HOUR}").filter("hour < ended")
    within = f"least(ended, hour + {HOUR}) - greatest(at, hour)"
    return grouped(
        each,
        _KEYS,
        f"sum({within}) AS watched",
        f"sum(CASE WHEN unread THEN {within} END) AS unread",
        "max(CASE WHEN unread THEN whole END) AS longest_unread",
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
    by_process = extended(
        _by_process(traffic, operations, notes),
        # A process either counts, in all of its life, or does not.
        counts="max(reports) OVER (PARTITION BY process, pair) > 0",
    )
    each = by_process.selectExpr("pair", "day", "counts", f"inline(array({', '.join(map(_side, Side))}))")
    summed = grouped(
        each,
        ("pair", "side", "day"),
        # Of all processes.
        "CASE WHEN min(counts) THEN 'counted' WHEN NOT max(counts) THEN 'estimated' ELSE 'mixed' END AS source",
        *(f"CAST(sum({name}) AS bigint) AS {name}" for name in OPERATION_COUNTS),
    )
    known = {side: prices.get(side.value) or Price() for side in Side}
    per_operation = {side: (price.per_million / 1_000_000).quantize(_MONEY) for side, price in known.items()}
    per_day = {side: (price.base / DAYS_A_MONTH).quantize(Decimal("0.0001")) for side, price in known.items()}
    summed = extended(summed, operations="sends + receives + pings")
    priced = f"CAST(operations AS decimal(18,0)) * {_by_side(per_operation, 'decimal(19,12)')}"
    summed = extended(
        summed,
        operations_price=f"CAST({priced} AS decimal(28,4))",
        base_price=_by_side(per_day, "decimal(19,4)"),
    )
    return COST.of(extended(summed, price="operations_price + base_price"))


def _by_side(values: Mapping[Side, Decimal], type_: str) -> str:
    """A number that depends on the side."""
    first, second = (f"CAST('{values[side]:f}' AS {type_})" for side in Side)
    return f"CASE WHEN side = '{Side.PRIMARY}' THEN {first} ELSE {second} END"


def _by_process(traffic: DataFrame, operations: DataFrame, notes: DataFrame) -> DataFrame:
    """What each process counted, and what its rows let one guess, for both sides, by pair and day."""
    counted = operations.selectExpr(
        *_KEY,
        "reports",
        *(f"CASE WHEN side = '{side}' THEN {name} END AS {side}_{name}" for side in Side for name in OPERATION_COUNTS),
        *(f"CAST(NULL AS double) AS {_guess(name)}" for name in _COLUMNS),
    )
    # A moved message is received and settled at the secondary and sent to the primary.
    direct, diverted = f"outcome = '{SendOutcome.PRIMARY}'", f"outcome = '{SendOutcome.BACKLOG}'"
    delivered, from_lane = f"outcome = '{DELIVERED}'", f"outcome = '{FROM_LANE}'"
    seen = _guessed(
        _weighted(traffic, notes),
        "hour",
        primary_sends=f"{direct} THEN rows * weight",
        primary_receives=f"{delivered} THEN rows",
        primary_settlements=f"{delivered} THEN rows",
        secondary_sends=f"{diverted} THEN rows",
        secondary_receives=f"{from_lane} THEN rows",
        secondary_settlements=f"{from_lane} THEN rows",
    )
    kinds = (AttemptFailed, PingCompleted, MessageMoved, MessageDeadLettered)
    failed, pinged, moved, aside = map(of_kind, kinds)
    noted = _guessed(
        notes.filter(of_kind(*kinds)),
        "at",
        primary_sends=f"{moved} OR ({failed} AND queue IS NULL) THEN 1",
        primary_pings=f"{pinged} THEN 1",
        secondary_sends=f"{failed} AND queue IS NOT NULL THEN 1",
        secondary_receives=f"{moved} OR {aside} THEN 1",
        secondary_settlements=f"{moved} OR {aside} THEN 1",
    )
    return grouped(
        seen.unionByName(noted).unionByName(counted),
        _KEY,
        *(f"coalesce(sum({name}), 0L) AS {name}" for name in ("reports", *_COLUMNS)),
        *(f"round(coalesce(sum({name}), 0D)) AS {name}" for name in map(_guess, _COLUMNS)),
    )


def _guessed(rows: DataFrame, instant: str, **counts: str) -> DataFrame:
    """What rows let one guess of some counts, and nothing that was counted."""
    cases = {name: f"CASE WHEN {counts[name]} END" if name in counts else "NULL" for name in _COLUMNS}
    return rows.selectExpr(
        *("process", "pair", f"floor({instant} / {DAY}) * {DAY} AS day"),
        *(f"CAST(NULL AS bigint) AS {name}" for name in ("reports", *_COLUMNS)),
        *(f"CAST({case} AS double) AS {_guess(name)}" for name, case in cases.items()),
    )


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
