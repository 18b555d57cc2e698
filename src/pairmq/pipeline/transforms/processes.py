"""Which runs of which programs kept the journal, how each ended, and the holes: times of which rows may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
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
from pairmq.pipeline.transforms._rows import MINUTE, SLACK, extended, grouped, of_kind

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
    counted = grouped(
        _with_setbacks(minutes),
        ("process",),
        "sum(rows) AS rows",
        "sum(misdated) AS misdated",
        "max(last_seq) + 1 - sum(rows) AS missing",
        "min(first_seq) AS first_seq",
        "min(first_at) AS first_at",
        "max(last_at) AS last_at",
        "max(setback) AS setback",
        "max(clock_high) - min(clock_low) AS set_by",
    )
    opened = of_kind(JournalOpened)
    said = grouped(
        _with_lags(notes.filter(of_kind(JournalOpened, JournalClosed, EventsDropped, *_TIMED))),
        ("process",),
        *(f"max(CASE WHEN {opened} THEN {name} END) AS {name}" for name in ("host", "pid", "version")),
        f"min(CASE WHEN {opened} THEN sample_healthy END) AS sample_healthy",
        f"sum(CASE WHEN {of_kind(EventsDropped)} THEN `count` END) AS dropped",
        f"count_if({of_kind(JournalClosed)}) AS closed",
        "max(lag) AS lag",
    )
    known = extended(counted.join(said, "process", "left"), dropped="coalesce(dropped, 0)")
    read = f"CASE WHEN set_by >= {NOISE}D THEN set_by WHEN set_by IS NOT NULL THEN 0D END"
    known = extended(known, clock_error=f"coalesce({read}, {_AS_ROWS_SHOW})")
    known = extended(
        known,
        # The clock that is ahead of all others may be the wrong one.
        journal_end="max(last_at - clock_error) OVER (PARTITION BY 0)",
        journal_began="min(first_at) OVER (PARTITION BY 0)",
        goes_on=f"max(last_at) OVER (PARTITION BY {_MACHINE})",
    )
    # The silence of a whole machine says nothing at first: what was written there may not have come yet.
    gone = f"goes_on - last_at > {patience}D OR journal_end - goes_on > {GONE}D"
    return extended(known, ended=f"CASE WHEN closed > 0 THEN 'closed' WHEN {gone} THEN 'killed' ELSE 'open' END")


NOISE = 0.05
"""Seconds by which two readings of a clock may differ that was not set."""

_SHOWN = (
    "greatest(CASE WHEN dropped = 0 THEN setback END, "  # their row has a later instant than those after it
    "CASE WHEN missing = 0 AND dropped = 0 THEN lag END)"
)
_AS_ROWS_SHOW = f"CASE WHEN {_SHOWN} > {SLACK}D THEN {_SHOWN} ELSE 0D END"
"""The error of a clock whose readings are not in the rows; where rows are missing, no gap of time is one."""

_JITTER = 8
"""Rows of two minutes that threads may have written the other way round."""


def _with_setbacks(minutes: DataFrame) -> DataFrame:
    """Add ``setback`` to minutes that have rows which came before some of an earlier minute: the clock went back.

    It did by no more seconds than that: those from where the minutes overlap to the end of the last one.
    """
    process = "OVER (PARTITION BY process ORDER BY minute"
    reached = extended(
        minutes,
        reach=f"max(last_seq) {process} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)",
        far_reach=f"max(last_seq) {process} RANGE BETWEEN UNBOUNDED PRECEDING AND {2 * MINUTE} PRECEDING)",
        near_rows=f"rows + lag(rows, 1, 0L) {process})",
        # Backwards: of frames without an end Spark computes each anew, in time that grows with the square of them.
        next_seq=f"min(first_seq) {process} DESC ROWS UNBOUNDED PRECEDING)",
    )
    ahead = "reach - first_seq + 1"
    back = f"far_reach > first_seq OR ({ahead} >= {_JITTER} AND ({ahead}) * {2 * MINUTE} > near_rows * {SLACK}D)"
    began = f"last(CASE WHEN coalesce(reach < next_seq, true) THEN first_at END, true) {process})"
    return extended(extended(reached, began=began), setback=f"CASE WHEN {back} THEN last_at - began END")


_TIMED = (PairOpened, PairEnded, OperationsCounted)


def _with_lags(notes: DataFrame) -> DataFrame:
    """Add ``lag``, how far a pair's own count of seconds, one row a minute, is from what the wall clock had by then.

    Two pairs of one name that are open in one process at once can't be distinguished: their rows give none.
    """
    pair = "OVER (PARTITION BY process, pair"
    in_turn = f"{pair} ORDER BY seq)"
    both = f"{of_kind(OperationsCounted)} AND lag(kind) {in_turn} = '{OperationsCounted.__name__}'"
    opened = f"CASE WHEN {of_kind(PairOpened)} THEN 1 WHEN {of_kind(PairEnded)} THEN -1 ELSE 0 END"
    known = extended(
        notes,
        jump=f"CASE WHEN {both} THEN at - lag(at) {in_turn} - seconds ELSE 0D END",
        at_once=f"sum({opened}) {in_turn}",
    )
    known = extended(known, jumped=f"sum(jump) {in_turn}")
    spread = f"max(jumped) {pair}) - min(jumped) {pair})"
    return extended(known, lag=f"CASE WHEN max(at_once) {pair}) <= 1 THEN {spread} END")


_NAMED = "regexp_extract(process, '^(.+)-[0-9]+-[0-9]{8}T[0-9]{6}Z-', 1)"
_MACHINE = f"coalesce(host, CASE WHEN {_NAMED} <> '' THEN {_NAMED} END, process)"
"""Where a process ran, from its metadata or its name; one without either is assumed to be alone."""

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
    known = described(minutes, notes, patience).filter("last_at IS NOT NULL")
    end = f"CASE WHEN ended = 'killed' THEN last_at + {DEATH}D ELSE journal_end END"
    # Rows are numbered from 0: those before the first that is there are missing as well.
    head = f"CASE WHEN first_seq > 0 THEN least({_started_at('journal_began')}, first_at) END"
    spans = known.selectExpr(
        f"inline(array(struct(CASE WHEN ended <> 'closed' THEN last_at END AS began, {end} AS ended), "
        f"struct({head} AS began, first_at AS ended)))",
        *(f"CASE WHEN clock_error > 0 THEN {name} END AS {name}" for name in _WRONG),
    )
    dropped = notes.filter(of_kind(EventsDropped)).selectExpr("since AS began", "at AS ended")
    others = [_gaps(minutes), dropped]
    if unread:
        others.append(_not_read(minutes, notes, unread))
    if unfinished:
        others.append(_not_finished(minutes, notes, unfinished))
    for each in others:
        spans = spans.unionByName(each.selectExpr("*", *(f"CAST(NULL AS double) AS {name}" for name in _WRONG)))
    # Neither the hole's instants nor those that are compared with it are better than the worst clock, while it ran.
    spans = spans.selectExpr(
        "began",
        "greatest(began, ended) AS ended",
        "coalesce(2 * max(clock_error) OVER (PARTITION BY 0), 0D) AS error",
        "min(first_at) OVER (PARTITION BY 0) AS wrong_from",
        "max(last_at) OVER (PARTITION BY 0) AS wrong_until",
    ).filter("began IS NOT NULL")
    near = "began - error <= wrong_until AND ended + error >= wrong_from"
    wider = f"CASE WHEN {near} THEN error ELSE 0D END"
    return typed(spans.selectExpr(f"began - {wider} AS began", f"ended + {wider} AS ended"), HOLES)


_WRONG = ("clock_error", "first_at", "last_at")


def _gaps(minutes: DataFrame) -> DataFrame:
    """The times of missing rows, of processes that lack any."""
    following = "OVER (PARTITION BY process ORDER BY first_seq)"
    lacking = "max(last_seq) OVER (PARTITION BY process) + 1 > sum(rows) OVER (PARTITION BY process)"
    known = extended(
        minutes,
        lacking=lacking,
        within="last_seq - first_seq + 1 > rows",
        next_seq=f"lead(first_seq) {following}",
        next_at=f"lead(first_at) {following}",
    )
    after = "next_seq > last_seq + 1"
    return known.filter(f"lacking AND (within OR {after})").selectExpr(
        "CASE WHEN within THEN first_at ELSE last_at END AS began",
        f"CASE WHEN {after} THEN next_at ELSE last_at END AS ended",
    )


def _started_at(otherwise: str) -> str:
    """When a process began its journal, as its name says, or else as a column says."""
    started = "replace(regexp_extract(process, '-([0-9]{8}T[0-9]{6}Z)-', 1), 'T', '')"
    return f"coalesce(CAST(try_to_timestamp({started}, 'yyyyMMddHHmmssX') AS double), {otherwise})"


def _not_read(minutes: DataFrame, notes: DataFrame, unread: Sequence[Unread]) -> DataFrame:
    """The times of the files that are not read, but for those of processes that lack nothing: these were copies."""
    files = minutes.sparkSession.createDataFrame([(each.process, each.began, each.ended) for each in unread], _UNREAD)
    missed = files.join(_whole(minutes, notes), "process", "left_anti").crossJoin(_journal(minutes))
    return missed.selectExpr("coalesce(began, first_at) AS began", "coalesce(ended, last_at) AS ended")


def _not_finished(minutes: DataFrame, notes: DataFrame, unfinished: Sequence[Unfinished]) -> DataFrame:
    """From a process's last row to the last change of its parts; these are left over where it lacks nothing."""
    parts = [(each.process, each.written_at) for each in unfinished]
    written = minutes.sparkSession.createDataFrame(parts, _UNFINISHED)
    latest = grouped(written, ("process",), "max(written_at) AS written_at")
    rows = grouped(minutes, ("process",), "max(last_at) AS row_at")
    missed = latest.join(_whole(minutes, notes), "process", "left_anti").join(rows, "process", "left")
    return missed.crossJoin(_journal(minutes)).selectExpr(
        f"coalesce(row_at, {_started_at('first_at')}) AS began", f"written_at + {UNWRITTEN}D AS ended"
    )


def _whole(minutes: DataFrame, notes: DataFrame) -> DataFrame:
    """The processes that have closed their journals and lack nothing."""
    closed = notes.filter(of_kind(JournalClosed)).select("process").distinct()
    whole = grouped(minutes, ("process",), "max(last_seq) + 1 = sum(rows) AS whole").filter("whole")
    return whole.join(closed, "process", "left_semi")


def _journal(minutes: DataFrame) -> DataFrame:
    """Its first and its last instant; no row if it is empty."""
    ends = grouped(minutes, (), "min(first_at) AS first_at", "max(last_at) AS last_at")
    return ends.filter("first_at IS NOT NULL")


def with_hole_before(
    found: DataFrame, columns: Sequence[str], instant: str, spans: DataFrame, patience: float
) -> DataFrame:
    """Add ``hole``, the end of the last hole that began before the patience, in seconds, was over after an instant.

    The row about a message that had left the backlog by then, or was in a syphon's hands, may be in it. No two of the
    rows may be equal.
    """
    earlier = found.join(F.broadcast(spans), F.expr(f"began <= {instant} + {patience + SLACK}D"), "left")
    return grouped(earlier, columns, "max(ended) AS hole")
