"""Which runs of which programs kept the journal, how each ended, and the holes: times of which rows may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pairmq.model.events import (
    EventsDropped,
    JournalClosed,
    JournalOpened,
    OperationsCounted,
    PairEnded,
    PairOpened,
)
from pairmq.pipeline.transforms._fact import NUMBER, TEXT, Field, Table, schema_of, typed
from pairmq.pipeline.transforms._rows import MINUTE, SLACK, how_many, of_kind

GONE = 86_400.0
"""Seconds for which a machine may be silent while the journal goes on, before its open processes count as killed.

Without this limit, one machine that never returns would end all proofs of loss.
"""


PROCESSES = Table(
    "processes",
    "a run of a program that kept a journal",
    (
        Field("process", "text", "the run's name"),
        Field("host", "text", "the machine"),
        Field("pid", "count", "the process's number there"),
        Field("version", "text", "PairMQ's"),
        Field("sample_healthy", "number", "the part of healthy sends that it kept, 0 to 1"),
        Field("first_at", "instant", "its first row"),
        Field("last_at", "instant", "its last row"),
        Field("rows", "count", "rows in the journal"),
        Field("missing", "count", "rows before its last, counted from 0, that are not in the journal, or are misdated"),
        Field("misdated", "count", "rows that are ignored, as their clock was before 2020 or after 2100"),
        Field("dropped", "count", "events that it could not write, as reported by itself"),
        Field(
            "clock_error",
            "number",
            "seconds by which its clock was set, or drifted, while it ran: its instants may be that far from the truth",
        ),
        Field(
            "ended",
            "text",
            "`closed`: in good order; `killed`: abnormally, and the journal of its machine goes on, or that of "
            "others for a day; `open`: it may be running, or its latest rows have not arrived yet",
        ),
    ),
)


def processes(minutes: DataFrame, notes: DataFrame, *, patience: float) -> DataFrame:
    """Compute the row of every process.

    It was killed if the journal of its machine goes on for more seconds than the patience after its last row; where the
    whole machine is silent, the journal of others must go on for `GONE`.
    """
    return PROCESSES.of(described(minutes, notes, patience))


def described(minutes: DataFrame, notes: DataFrame, patience: float) -> DataFrame:
    """The columns of the table ``processes``, instants as seconds, and ``journal_end``."""
    counted = (
        _with_setbacks(minutes)
        .groupBy("process")
        .agg(
            F.sum("rows").alias("rows"),
            F.sum("misdated").alias("misdated"),
            (F.max("last_seq") + 1 - F.sum("rows")).alias("missing"),
            F.min("first_seq").alias("first_seq"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.max("setback").alias("setback"),
            (F.max("clock_high") - F.min("clock_low")).alias("set_by"),
        )
    )
    opened, closed = of_kind(JournalOpened), of_kind(JournalClosed)
    said = (
        _with_lags(notes.filter(of_kind(JournalOpened, JournalClosed, EventsDropped, *_TIMED)))
        .groupBy("process")
        .agg(
            *(F.max(F.when(opened, F.col(name))).alias(name) for name in ("host", "pid", "version")),
            F.min(F.when(opened, F.col("sample_healthy"))).alias("sample_healthy"),
            F.sum(F.when(of_kind(EventsDropped), F.col("count"))).alias("dropped"),
            how_many(closed).alias("closed"),
            F.max("lag").alias("lag"),
        )
    )
    known = counted.join(said, "process", "left").withColumn("dropped", F.coalesce("dropped", F.lit(0)))
    read = F.when(F.col("set_by") >= NOISE, F.col("set_by")).when(F.col("set_by").isNotNull(), 0.0)
    known = known.withColumn("clock_error", F.coalesce(read, _as_rows_show()))
    # The clock that is ahead of all others may be the wrong one.
    everything = Window.partitionBy(F.lit(0))
    known = known.withColumns(
        {
            "journal_end": F.max(F.col("last_at") - F.col("clock_error")).over(everything),
            "journal_began": F.min("first_at").over(everything),
        }
    )
    # The silence of a whole machine says nothing at first: what was written there may not have come yet.
    goes_on = F.max("last_at").over(Window.partitionBy(_machine()))
    gone = (goes_on - F.col("last_at") > patience) | (F.col("journal_end") - goes_on > GONE)
    ended = F.when(F.col("closed") > 0, "closed").when(gone, "killed").otherwise("open")
    return known.withColumn("ended", ended)


NOISE = 0.05
"""Seconds by which two readings of a clock may differ that was not set."""


def _as_rows_show() -> Column:
    """The error of a clock whose readings are not in the rows; where rows are missing, no gap of time is one."""
    setback = F.when(F.col("dropped") == 0, F.col("setback"))  # their row has a later instant than those after it
    lag = F.when((F.col("missing") == 0) & (F.col("dropped") == 0), F.col("lag"))
    shown = F.greatest(setback, lag)
    return F.when(shown > SLACK, shown).otherwise(0.0)


_JITTER = 8
"""Rows of two minutes that threads may have written the other way round."""


def _with_setbacks(minutes: DataFrame) -> DataFrame:
    """Add ``setback`` to minutes that have rows which came before some of an earlier minute: the clock went back.

    It did by no more seconds than that: those from where the minutes overlap to the end of the last one.
    """
    process = Window.partitionBy("process").orderBy("minute")
    earlier = process.rowsBetween(Window.unboundedPreceding, -1)
    # Backwards: of frames without an end Spark computes each anew, so that time grows with the square of the minutes.
    onwards = Window.partitionBy("process").orderBy(F.desc("minute")).rowsBetween(Window.unboundedPreceding, 0)
    reached = minutes.withColumns(
        {
            "reach": F.max("last_seq").over(earlier),
            "far_reach": F.max("last_seq").over(process.rangeBetween(Window.unboundedPreceding, -2 * MINUTE)),
            "near_rows": F.col("rows") + F.lag("rows", 1, 0).over(process),
            "next_seq": F.min("first_seq").over(onwards),
        }
    )
    ahead = F.col("reach") - F.col("first_seq") + 1
    back = (F.col("far_reach") > F.col("first_seq")) | (
        (ahead >= _JITTER) & (ahead * 2 * MINUTE > F.col("near_rows") * SLACK)
    )
    whole = F.coalesce(F.col("reach") < F.col("next_seq"), F.lit(True))
    began = F.last(F.when(whole, F.col("first_at")), ignorenulls=True).over(process)
    return reached.withColumn("setback", F.when(back, F.col("last_at") - began))


_TIMED = (PairOpened, PairEnded, OperationsCounted)


def _with_lags(notes: DataFrame) -> DataFrame:
    """Add ``lag``, how far a pair's own count of seconds, one row a minute, is from what the wall clock had by then.

    Two pairs of one name that are open in one process at once can't be distinguished: their rows give none.
    """
    pair = Window.partitionBy("process", "pair")
    in_turn = pair.orderBy("seq")
    opened = F.when(of_kind(PairOpened), 1).when(of_kind(PairEnded), -1).otherwise(0)
    both = of_kind(OperationsCounted) & (F.lag("kind").over(in_turn) == OperationsCounted.__name__)
    jump = F.when(both, F.col("at") - F.lag("at").over(in_turn) - F.col("seconds")).otherwise(0.0)
    known = notes.withColumns({"jump": jump, "at_once": F.sum(opened).over(in_turn)})
    known = known.withColumn("jumped", F.sum("jump").over(in_turn))
    alone = F.max("at_once").over(pair) <= 1
    spread = F.max("jumped").over(pair) - F.min("jumped").over(pair)
    return known.withColumn("lag", F.when(alone, spread))


def _machine() -> Column:
    """Where a process ran, from its metadata or its name; one without either is assumed to be alone."""
    named = F.regexp_extract("process", "^(.+)-[0-9]+-[0-9]{8}T[0-9]{6}Z-", 1)
    return F.coalesce("host", F.when(named != "", named), "process")


DEATH = 120.0
"""Seconds after its last row within which a killed process may have done something unrecorded.

A pair writes a row every minute, which is in a segment a minute later unless the journal's ``max_age`` is longer. What
is not in a segment by then is in a part, see `Unfinished`.
"""

UNWRITTEN = 60.0
"""Seconds after the last change of a part within which its process may have done more: the longest flush interval."""

HOLES = schema_of({"began": NUMBER, "ended": NUMBER})
"""Seconds since 1970 UTC."""

_UNREAD = schema_of({"process": TEXT, "began": NUMBER, "ended": NUMBER})
_UNFINISHED = schema_of({"process": TEXT, "written_at": NUMBER})


@dataclass(frozen=True, slots=True)
class Unread:
    """A file of the journal that is not read: rows of a process may be missing."""

    process: str | None  # whose rows its name says it has; None if it does not say, so that they may be any process's
    # The earliest instant at which they may have been written, seconds since 1970 UTC; None for any.
    began: float | None
    ended: float | None  # the latest


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A part of the journal that is not yet a segment: the rows after a process's last one may be in it."""

    process: str  # whose rows its name says it has
    written_at: float  # when it was last changed, seconds since 1970 UTC


def holes(
    minutes: DataFrame,
    notes: DataFrame,
    *,
    patience: float,
    unread: Sequence[Unread] = (),
    unfinished: Sequence[Unfinished] = (),
) -> DataFrame:
    """Compute the minutes in which something may have happened that is not in the journal.

    Rows are missing; events were dropped; a process was killed, with what it had not written yet; or one may be
    running, and its latest rows have not come; or rows are in a file that is not read, or not finished. Where a clock
    was set, all holes are wider.
    """
    # Each frame is named once: Spark would compute it anew wherever it is named.
    known = described(minutes, notes, patience).filter(F.col("last_at").isNotNull())
    end = F.when(F.col("ended") == "killed", F.col("last_at") + DEATH).otherwise(F.col("journal_end"))
    ends = _span(F.when(F.col("ended") != "closed", F.col("last_at")), end)
    # Rows are numbered from 0: those before the first that is there are missing as well.
    head = F.when(F.col("first_seq") > 0, F.least(_started_at("journal_began"), "first_at"))
    wrong = F.col("clock_error") > 0
    spans = known.select(
        F.explode(F.array(ends, _span(head, F.col("first_at")))).alias("span"),
        *(F.when(wrong, F.col(name)).alias(name) for name in _WRONG),
    ).select("span.began", "span.ended", *_WRONG)
    dropped = notes.filter(of_kind(EventsDropped)).select(F.col("since").alias("began"), F.col("at").alias("ended"))
    others = [_gaps(minutes), dropped]
    if unread:
        others.append(_not_read(minutes, notes, unread))
    if unfinished:
        others.append(_not_finished(minutes, notes, unfinished))
    for each in others:
        spans = spans.unionByName(each.select("*", *(F.lit(None).cast("double").alias(name) for name in _WRONG)))
    # Neither the hole's instants nor those that are compared with it are better than the worst clock, while it ran.
    everything = Window.partitionBy(F.lit(0))
    spans = spans.select(
        "began",
        F.greatest("began", "ended").alias("ended"),
        F.coalesce(2 * F.max("clock_error").over(everything), F.lit(0.0)).alias("error"),
        F.min("first_at").over(everything).alias("wrong_from"),
        F.max("last_at").over(everything).alias("wrong_until"),
    ).filter(F.col("began").isNotNull())
    began, ended, error = (F.col(name) for name in ("began", "ended", "error"))
    near = (began - error <= F.col("wrong_until")) & (ended + error >= F.col("wrong_from"))
    wider = F.when(near, error).otherwise(0.0)
    return typed(spans.select((began - wider).alias("began"), (ended + wider).alias("ended")), HOLES)


_WRONG = ("clock_error", "first_at", "last_at")


def _span(began: Column, ended: Column) -> Column:
    return F.struct(began.alias("began"), ended.alias("ended"))


def _gaps(minutes: DataFrame) -> DataFrame:
    """The times of missing rows, of processes that lack any."""
    process = Window.partitionBy("process")
    following = process.orderBy("first_seq")
    known = minutes.withColumns(
        {
            "lacking": F.max("last_seq").over(process) + 1 > F.sum("rows").over(process),
            "next_seq": F.lead("first_seq").over(following),
            "next_at": F.lead("first_at").over(following),
        }
    )
    within = F.col("last_seq") - F.col("first_seq") + 1 > F.col("rows")
    after = F.col("next_seq") > F.col("last_seq") + 1
    return known.filter(F.col("lacking") & (within | after)).select(
        F.when(within, F.col("first_at")).otherwise(F.col("last_at")).alias("began"),
        F.when(after, F.col("next_at")).otherwise(F.col("last_at")).alias("ended"),
    )


def _started_at(otherwise: str) -> Column:
    """When a process began its journal, as its name says, or else as a column says."""
    started = F.regexp_extract("process", "-([0-9]{8}T[0-9]{6}Z)-", 1)
    return F.coalesce(F.try_to_timestamp(started, F.lit("yyyyMMdd'T'HHmmssX")).cast("double"), otherwise)


def _not_read(minutes: DataFrame, notes: DataFrame, unread: Sequence[Unread]) -> DataFrame:
    """The times of the files that are not read, but for those of processes that lack nothing: these were copies."""
    files = minutes.sparkSession.createDataFrame([(each.process, each.began, each.ended) for each in unread], _UNREAD)
    missed = files.join(_whole(minutes, notes), "process", "left_anti").crossJoin(_journal(minutes))
    return missed.select(F.coalesce("began", "first_at").alias("began"), F.coalesce("ended", "last_at").alias("ended"))


def _not_finished(minutes: DataFrame, notes: DataFrame, unfinished: Sequence[Unfinished]) -> DataFrame:
    """From a process's last row to the last change of its parts; these are left over where it lacks nothing."""
    parts = [(each.process, each.written_at) for each in unfinished]
    written = minutes.sparkSession.createDataFrame(parts, _UNFINISHED).groupBy("process")
    latest = written.agg(F.max("written_at").alias("written_at")).join(_whole(minutes, notes), "process", "left_anti")
    rows = minutes.groupBy("process").agg(F.max("last_at").alias("row_at"))
    missed = latest.join(rows, "process", "left").crossJoin(_journal(minutes))
    return missed.select(
        F.coalesce("row_at", _started_at("first_at")).alias("began"),
        (F.col("written_at") + UNWRITTEN).alias("ended"),
    )


def _whole(minutes: DataFrame, notes: DataFrame) -> DataFrame:
    """The processes that have closed their journals and lack nothing."""
    closed = notes.filter(of_kind(JournalClosed)).select("process").distinct()
    counted = minutes.groupBy("process").agg(F.max("last_seq").alias("last_seq"), F.sum("rows").alias("rows"))
    return counted.filter(F.col("last_seq") + 1 == F.col("rows")).join(closed, "process", "left_semi")


def _journal(minutes: DataFrame) -> DataFrame:
    """Its first and its last instant; no row if it is empty."""
    ends = minutes.agg(F.min("first_at").alias("first_at"), F.max("last_at").alias("last_at"))
    return ends.filter(F.col("first_at").isNotNull())


def with_hole_before(
    found: DataFrame, columns: Sequence[str], instant: str, spans: DataFrame, *, patience: float
) -> DataFrame:
    """Add ``hole``, the end of the last hole that began before the patience, in seconds, was over after an instant.

    The row about a message that had left the backlog by then, or was in a syphon's hands, may be in it. No two of the
    rows may be equal.
    """
    until = F.col(instant) + patience + SLACK
    earlier = found.join(F.broadcast(spans), F.col("began") <= until, "left")
    return earlier.groupBy(*columns).agg(F.max("ended").alias("hole"))
