"""Three tables of the backlog queues.

``backlog`` says minute by minute how deep each queue was and how old its oldest message, ``syphon`` by entity and hour
what was moved back and how long it had waited, and ``rotation`` each time that a process left a queue out of use.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import MessageDeadLettered, MessageMoved, RotationChanged, SendOutcome
from pairmq.pipeline.transforms._fact import Field, Table
from pairmq.pipeline.transforms._rows import (
    DAY,
    HOUR,
    MINUTE,
    bucket_of,
    ended_as,
    extended,
    first_at,
    grouped,
    last_at,
    of_kind,
    percentiles,
    start_of,
    with_one,
)

BACKLOG = Table(
    "backlog",
    "a minute in which a backlog queue held messages, or messages entered or left it; of days (UTC) of which the "
    "journal has any row",
    (
        Field("pair", "text", "the pair's name"),
        Field("queue", "text", "the backlog queue"),
        Field("minute", "instant", "start of the minute"),
        Field("diverted", "count", "messages that it accepted in this minute"),
        Field("moved", "count", "messages that a syphon moved to the primary and completed"),
        Field("dead_lettered", "count", "messages that a syphon dead-lettered"),
        Field("unmatched", "count", "messages that left it in this minute, whose divert is not in the journal"),
        Field(
            "depth",
            "count",
            "messages in it at the minute's end: their divert is in the journal, their leaving not yet",
        ),
        Field(
            "oldest_age",
            "number",
            "seconds since the minute in which the oldest of these arrived; null if there are none",
        ),
    ),
)

_QUEUE = ("pair", "queue")


def backlog(notes: DataFrame, minutes: DataFrame) -> DataFrame:
    """Follow every backlog queue minute by minute.

    The depth is that of messages, not of events: what was diverted before the journal began would make a running sum of
    events wrong forever when it is moved, as would a second copy.
    """
    came, left = ended_as(SendOutcome.BACKLOG), f"{of_kind(MessageMoved)} AND completed"
    aside = of_kind(MessageDeadLettered)
    flows = notes.filter(f"({came}) OR ({left}) OR {aside}").selectExpr(
        "pair",
        f"CASE WHEN {came} THEN backlog_queue ELSE queue END AS queue",
        "message_key",
        # Foreign messages without an id can't be identified: each counts as one.
        "coalesce(message_id, concat_ws(':', process, seq)) AS message_id",
        *("kind", "outcome", "completed", "at"),
    )
    end = grouped(minutes, (), f"floor(max(last_at) / {MINUTE}) AS final")
    days = minutes.selectExpr(f"floor(minute / {DAY}) AS day").distinct()
    counts = grouped(
        flows,
        (*_QUEUE, f"{start_of(MINUTE)} AS minute"),
        f"count_if({came}) AS diverted",
        f"count_if({left}) AS moved",
        f"count_if({aside}) AS dead_lettered",
    )
    stays = grouped(
        flows,
        (*_QUEUE, "message_key", "message_id"),
        f"{first_at(came)} AS came_at",
        f"{last_at(f'NOT ({came})')} AS left_at",
    )
    # A clock that is behind must not let a message leave before it came.
    stays = extended(stays, left_at="CASE WHEN left_at IS NOT NULL THEN greatest(left_at, came_at) END")
    depths = _filled(_depths(counts, stays), end, days)
    result = depths.join(_oldest(stays, end, days), [*_QUEUE, "minute"], "left")
    return BACKLOG.of(extended(result, oldest_age=f"CASE WHEN depth > 0 THEN minute + {MINUTE} - oldest END"))


_FLOWS = ("diverted", "moved", "dead_lettered", "unmatched")
_OF_QUEUE = f"OVER (PARTITION BY {', '.join(_QUEUE)} ORDER BY"


def _depths(counts: DataFrame, stays: DataFrame) -> DataFrame:
    """Minutes in which something came or went, with the depth at their end."""
    came, left = (f"floor({name} / {MINUTE}) * {MINUTE}" for name in ("came_at", "left_at"))
    changes = stays.selectExpr(
        *_QUEUE,
        f"inline(array(struct({came} AS minute, 0 AS unmatched, 1 AS change), struct({left} AS minute, "
        "IF(came_at IS NULL, 1, 0) AS unmatched, IF(came_at IS NULL, 0, -1) AS change)))",
    ).filter("minute IS NOT NULL")
    # Zeros, not nulls: some engines have no sum of those without a type.
    counts = counts.selectExpr("*", "0 AS unmatched", "0 AS change")
    both = counts.unionByName(changes.selectExpr("*", *(f"0 AS {name}" for name in _FLOWS[:3])))
    sums = (f"coalesce(sum({name}), 0) AS {name}" for name in (*_FLOWS, "change"))
    return extended(
        grouped(both, (*_QUEUE, "minute"), *sums), depth=f"sum(change) {_OF_QUEUE} minute ROWS UNBOUNDED PRECEDING)"
    )


def _each_minute(spans: DataFrame, days: DataFrame) -> DataFrame:
    """Add ``each``, a minute from ``first`` to ``last``, both within.

    Only the days of the journal count: one row of a clock that is years off would fill all these years.
    """
    known = extended(spans, day=f"explode(sequence(floor(first / {DAY}), floor(last / {DAY})))")
    known = known.join(F.broadcast(days), "day", "left_semi")
    begins, ends = f"greatest(first, day * {DAY})", f"least(last, (day + 1) * {DAY} - {MINUTE})"
    return extended(known, each=f"explode(sequence({begins}, {ends}, {MINUTE}))")


def _filled(depths: DataFrame, end: DataFrame, days: DataFrame) -> DataFrame:
    """Add the minutes in which nothing happened while something was in the queue."""
    following = f"lead(minute) {_OF_QUEUE} minute)"
    held = f"coalesce({following} - {MINUTE}, greatest(final * {MINUTE}, minute))"
    spans = with_one(extended(depths, first="minute"), end)
    spans = extended(spans, last=f"CASE WHEN depth > 0 THEN {held} ELSE minute END")
    flows = (f"CASE WHEN each = minute THEN {name} ELSE 0 END AS {name}" for name in _FLOWS)
    return _each_minute(spans, days).selectExpr(*_QUEUE, "each AS minute", *flows, "depth")


def _oldest(stays: DataFrame, end: DataFrame, days: DataFrame) -> DataFrame:
    """Compute for each minute when the oldest message that was still there at its end had arrived.

    Messages are taken by the minute in which they came. One minute's messages are the oldest from the instant at which
    all older ones have left until they have left themselves: these spans don't overlap, so that each minute has one.
    """
    cohorts = grouped(
        stays.filter("came_at IS NOT NULL"),
        (*_QUEUE, f"floor(came_at / {MINUTE}) * {MINUTE} AS came"),
        "max(left_at) AS gone",
        "max(left_at IS NULL) AS stay",
    )
    cohorts = extended(with_one(cohorts, end), gone=f"CASE WHEN stay THEN (final + 1) * {MINUTE} + 1D ELSE gone END")
    older = f"{_OF_QUEUE} came ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    # The first minute at whose end all older ones have left, and the last at whose end one of these is there.
    spans = extended(
        extended(cohorts, older_gone=f"max(gone) {older}"),
        first=f"greatest(came, ceil(older_gone / {MINUTE}) * {MINUTE} - {MINUTE})",
        last=f"ceil(gone / {MINUTE}) * {MINUTE} - 2 * {MINUTE}",
    ).filter("first <= last")
    return _each_minute(spans, days).selectExpr(*_QUEUE, "each AS minute", "came AS oldest")


SYPHON = Table(
    "syphon",
    "the messages of one entity that the syphons moved or dead-lettered within one hour",
    (
        Field("pair", "text", "the pair's name"),
        Field("entity", "text", "the destination; null where it could not be read"),
        Field("hour", "instant", "start of the hour"),
        Field("moved", "count", "messages moved to the primary"),
        Field("unfinished", "count", "of these, not completed in the backlog: a second copy will follow"),
        Field("redelivered", "count", "of these, delivered to a syphon before: perhaps a second copy"),
        Field("maybe_duplicate", "count", "of these, marked by their sender: the primary may have had one"),
        Field("dead_lettered", "count", "messages dead-lettered"),
        Field("lag_p50", "number", "seconds from divert to delivery of half of those moved; 2 % too high at most"),
        Field("lag_p95", "number", "the same of 95 %"),
        Field("lag_p99", "number", "the same of 99 %"),
        Field("lag_max", "number", "the longest, exactly"),
    ),
)

_KEYS = ("pair", "entity", "hour")
_COUNTS = ("moved", "unfinished", "redelivered", "maybe_duplicate", "dead_lettered")


def syphon(notes: DataFrame) -> DataFrame:
    """Count what syphons did by entity and hour."""
    moved = of_kind(MessageMoved)
    waited = f"CASE WHEN {moved} THEN waited END"
    histogram = grouped(
        notes.filter(of_kind(MessageMoved, MessageDeadLettered)),
        ("pair", "entity", f"{start_of(HOUR)} AS hour", f"{bucket_of(waited)} AS bucket"),
        f"CAST(count_if({moved}) AS double) AS weight",
        f"max({waited}) AS most",
        f"count_if({moved}) AS moved",
        f"count_if({moved} AND NOT completed) AS unfinished",
        f"count_if({moved} AND redelivered) AS redelivered",
        f"count_if({moved} AND maybe_duplicate) AS maybe_duplicate",
        f"count_if(NOT {moved}) AS dead_lettered",
    )
    return SYPHON.of(percentiles(histogram, _KEYS, "lag", _COUNTS))


ROTATION = Table(
    "rotation",
    "one time that a backlog queue was out of a process's rotation",
    (
        Field("process", "text", "whose rotation"),
        Field("pair", "text", "the pair's name"),
        Field("queue", "text", "the backlog queue"),
        Field("left_at", "instant", "it was taken out of use"),
        Field("error", "text", "why"),
        Field("in_use", "count", "queues that were left"),
        Field("returned_at", "instant", "it was used again; null if it never was"),
        Field("out_of_use", "number", "seconds until then, else until the process's last row"),
    ),
)


def rotation(notes: DataFrame, minutes: DataFrame) -> DataFrame:
    """Find every time that a backlog queue was out of use."""
    of_queue = "OVER (PARTITION BY process, pair, queue ORDER BY seq"
    changes = notes.filter(of_kind(RotationChanged)).selectExpr(
        *("process", "pair", "queue", "at AS left_at", "error", "`left` AS in_use", "in_use AS used"),
        f"min(CASE WHEN in_use THEN at END) {of_queue} DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) "
        "AS returned_at",
        f"lag(in_use) {of_queue}) AS before",
    )
    # A queue that is said twice to be out of use left once.
    left = changes.filter("NOT used AND coalesce(before, true)")
    left = left.join(F.broadcast(grouped(minutes, ("process",), "max(last_at) AS last_at")), "process")
    return ROTATION.of(extended(left, out_of_use="coalesce(returned_at, last_at) - left_at"))
