"""The table ``episodes``: every outage of an entity, as one process saw it, from the first failure to the end."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.model import EntityState
from pairmq.model.events import (
    AttemptFailed,
    MessageDeadLettered,
    MessageMoved,
    PairEnded,
    PingCompleted,
    SendCompleted,
    SendOutcome,
    StateChanged,
)
from pairmq.pipeline.transforms._fact import Field, Table
from pairmq.pipeline.transforms._rows import HOUR, ended_as, extended, first_at, grouped, of_kind

EPISODES = Table(
    "episodes",
    "one outage of an entity, as one process saw it: from the first failure until it was healthy again",
    (
        Field("process", "text", "who saw it"),
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the queue or topic"),
        Field("entity_kind", "text", "`queue` or `topic`"),
        Field("number", "count", "counts the outages of this entity in this process, from 1"),
        Field("started_at", "instant", "the entity left the states in which it takes messages"),
        Field("cause", "text", "what started it"),
        Field("failure_kind", "text", "the kind of the first failed attempt at the primary within it"),
        Field("failed_over_at", "instant", "failover was engaged; null for an outage that passed before"),
        Field("up_at", "instant", "the entity took messages again"),
        Field(
            "ended_at", "instant", "it was healthy again, its backlog drained where that is known; null if it is open"
        ),
        Field(
            "open_because",
            "text",
            "null if it ended, else `failed again`, `pair closed`, `process killed` or `journal ends`",
        ),
        Field("detection", "number", "seconds from the start to failover"),
        Field("time_to_divert", "number", "seconds from the start to the first receipt of a backlog queue"),
        Field("downtime", "number", "seconds from failover to up"),
        Field("time_to_recover", "number", "seconds from the start to up"),
        Field("drain_time", "number", "seconds from up to the end"),
        Field("diverted", "count", "sends that a backlog queue accepted within it"),
        Field("refused", "count", "sends refused within it"),
        Field("unknown", "count", "sends with an unknown outcome within it"),
        Field("pings", "count", "pings tried"),
        Field("pings_good", "count", "pings that succeeded"),
        Field(
            "peak_backlog",
            "count",
            "most messages of the entity in the backlog at once within it, of all processes together",
        ),
    ),
)

_UP = f"('{EntityState.HEALTHY}', '{EntityState.DRAINING}')"
_KEY = ("process", "pair", "entity")
_OF_PROCESS = f"OVER (PARTITION BY {', '.join(_KEY)} ORDER BY"


def episodes(notes: DataFrame, processes: DataFrame) -> DataFrame:
    """Find every outage."""
    found = _found(notes).join(F.broadcast(_ends(notes, processes)), ["process", "pair"], "left")
    found = extended(
        found,
        open_because="CASE WHEN ended_at IS NOT NULL THEN NULL WHEN next_started_at IS NOT NULL THEN 'failed again' "
        "WHEN pair_ended_at >= started_at THEN 'pair closed' "
        "WHEN process_ended = 'killed' THEN 'process killed' ELSE 'journal ends' END",
        until="greatest(coalesce(ended_at, next_started_at, pair_ended_at, last_at), started_at)",
    )
    spans = {
        "detection": "failed_over_at - started_at",
        "time_to_divert": "diverted_at - started_at",
        "downtime": "up_at - failed_over_at",
        "time_to_recover": "up_at - started_at",
        "drain_time": "ended_at - up_at",
    }
    return EPISODES.of(extended(_with_peaks(found, notes), **spans))


def _found(notes: DataFrame) -> DataFrame:
    """Number the outages of each entity and process by the rows that start one, and gather each.

    Sends that the primary accepted, also marked ones, are not included, and need not be sorted.
    """
    changed, pinged, failed = (of_kind(kind) for kind in (StateChanged, PingCompleted, AttemptFailed))
    unusual = f"{of_kind(SendCompleted)} AND outcome <> '{SendOutcome.PRIMARY}'"
    starts = f"{changed} AND previous IN {_UP} AND current NOT IN {_UP}"
    becomes = {state: f"{changed} AND current = '{state}'" for state in EntityState}
    so_far = f"{_OF_PROCESS} seq ROWS UNBOUNDED PRECEDING)"
    some = notes.filter(f"{changed} OR ({unusual}) OR {failed} OR {pinged}").selectExpr(
        *(*_KEY, "entity_kind", "kind", "seq", "at"),
        *("previous", "current", "cause", "outcome", "failure_kind", "queue", "ok"),
        f"sum(CASE WHEN {starts} THEN 1 ELSE 0 END) {so_far} AS number",
        f"last(CASE WHEN {changed} THEN current END, true) {so_far} AS state",
    )
    gathered = grouped(
        some.filter(f"number > 0 AND ({changed} OR state <> '{EntityState.HEALTHY}')"),
        (*_KEY, "number"),
        "max(entity_kind) AS entity_kind",
        f"{first_at(starts)} AS started_at",
        f"max(CASE WHEN {starts} THEN cause END) AS cause",
        f"min_by(failure_kind, CASE WHEN {failed} AND queue IS NULL THEN seq END) AS failure_kind",
        f"{first_at(becomes[EntityState.FAILED_OVER])} AS failed_over_at",
        f"{first_at(f'{changed} AND current IN {_UP}')} AS up_at",
        f"{first_at(becomes[EntityState.HEALTHY])} AS ended_at",
        f"{first_at(ended_as(SendOutcome.BACKLOG))} AS diverted_at",
        f"count_if({ended_as(SendOutcome.BACKLOG)}) AS diverted",
        f"count_if({ended_as(SendOutcome.REFUSED)}) AS refused",
        f"count_if({ended_as(SendOutcome.UNKNOWN)}) AS unknown",
        f"count_if({pinged}) AS pings",
        f"count_if({pinged} AND ok) AS pings_good",
    )
    return extended(gathered, next_started_at=f"lead(started_at) {_OF_PROCESS} number)")


def _ends(notes: DataFrame, processes: DataFrame) -> DataFrame:
    """How each process ended, and when it closed each of its pairs."""
    last = "unix_micros(last_at) / 1000000 AS last_at"
    ends = processes.selectExpr("process", "ended AS process_ended", last)
    closed = grouped(notes.filter(of_kind(PairEnded)), ("process", "pair"), "max(at) AS pair_ended_at")
    pairs = notes.filter(of_kind(StateChanged)).select("process", "pair").distinct()
    return pairs.join(F.broadcast(ends), "process", "left").join(F.broadcast(closed), ["process", "pair"], "left")


def _with_peaks(found: DataFrame, notes: DataFrame) -> DataFrame:
    """Add the greatest backlog of each outage.

    The depth is summed up by seconds, so that it is small, each with the highest that it was within it, and met with
    the outages hour by hour, so that a long journal with many outages does not meet each second with each of them.
    """
    came = ended_as(SendOutcome.BACKLOG)
    gone = f"({of_kind(MessageMoved)} AND completed) OR {of_kind(MessageDeadLettered)}"
    flows = notes.filter(f"({came}) OR {gone}").selectExpr(
        "pair", "entity", "floor(at) AS second", "at", f"CASE WHEN {came} THEN 1 ELSE -1 END AS change"
    )
    of_entity = "OVER (PARTITION BY pair, entity"
    rising = extended(flows, rise=f"sum(change) {of_entity}, second ORDER BY at, change ROWS UNBOUNDED PRECEDING)")
    seconds = grouped(rising, ("pair", "entity", "second"), "sum(change) AS change", "max(rise) AS rise")
    depths = seconds.selectExpr(
        *("pair", "entity", f"floor(second / {HOUR}) AS hour", "second"),
        f"sum(change) {of_entity} ORDER BY second ROWS UNBOUNDED PRECEDING) - change + rise AS depth",
    )
    hours = f"explode(sequence(floor(started_at / {HOUR}), floor(until / {HOUR}))) AS hour"
    met = found.selectExpr(*_KEY, "number", "started_at", "until", hours).join(depths, ["pair", "entity", "hour"])
    within = met.filter("second >= floor(started_at) AND second <= floor(until)")
    peaks = grouped(within, (*_KEY, "number"), "max(depth) AS peak")
    with_peaks = found.join(peaks, [*_KEY, "number"], "left")
    return extended(with_peaks, peak_backlog="greatest(coalesce(peak, 0), 0)")
