"""Reads the table of all messages once, of any size, into counts by slot, by entity and by phase.

A slot is a part of the time that a plot shows. Percentiles come from histograms, which take the same memory for any
number of durations.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pairmq.pipeline.reporting._answers import FAULTS
from pairmq.pipeline.reporting._tables import NEVER, Directory, micros, numbers
from pairmq.pipeline.reporting._values import (
    ROUND,
    Counts,
    Fault,
    Grid,
    Key,
    Latency,
    Messages,
    Numbers,
    Outages,
    Series,
    Span,
)

MOST_FAULTS = 100
"""Messages of each fault that are named."""

PHASES = ("before", "outage", "draining", "after")
"""Of an entity: healthy and never out so far, out, draining its backlog, healthy again."""

_OUTBOX = "x-pairmq-outbox"  # the end of its name (SPEC 12)
_STAYS = ("backlog", "outbox")
MOST_CONTINUOUS = 1000
"""Queues with continuity of which is found how soon messages were handled."""

_APART = ("first_sent_at", "diverted_at", "moved_at", "set_aside_at")
_INSTANTS = ("accepted_at", "delivered_at", *_APART)
_COUNTS = ("accepted_primary", "refused", "unknown")
_TEXTS = ("pair", "entity", "verdict", "sent_by")


def messages(
    tables: Directory, outages: Outages, overview: Grid | None, close_up: Grid | None, continuous: Iterable[Key] = ()
) -> Messages:
    """Count the messages, by phases of the outages, within the grids, and of the queues with continuity."""
    scan = _Scan(outages, [grid for grid in (overview, close_up) if grid is not None], continuous)
    apart = (f"evidence.{name}" for name in (*_APART, *_COUNTS, "backlog_queue"))
    wanted = ("message_id", *_TEXTS, "called_at", "accepted_at", "delivered_at", *apart)
    for batch in tables.batches("reconciliation", wanted, repeated=_TEXTS):
        scan.take(batch)
    series = [each.series() for each in scan.grids]
    by_entity: dict[Key, dict[str, int]] = defaultdict(dict)
    verdicts: Counter[str] = Counter()
    for (key, verdict), count in scan.verdicts.items():
        by_entity[key][verdict] = count
        verdicts[verdict] += count
    return Messages(
        verdicts=dict(verdicts),
        by_entity=dict(by_entity),
        faults={name: scan.faults[name] for name in FAULTS if name in scan.faults},
        handled=scan.handled(),
        latencies=scan.latencies(),
        overview=series[0] if overview is not None else None,
        close_up=series[-1] if close_up is not None else None,
    )


class _Scan:
    """What was seen so far."""

    def __init__(self, outages: Outages, grids: Sequence[Grid], continuous: Iterable[Key]) -> None:
        self._outages = outages
        self.grids = [_GridScan(grid) for grid in grids]
        self.verdicts: Counter[tuple[Key, str]] = Counter()
        self.faults: dict[str, Sequence[Fault]] = {}
        self._phases = Histogram(len(PHASES))
        self._stays = Histogram(len(_STAYS))
        self._continuous = {key: number for number, key in enumerate(islice(continuous, MOST_CONTINUOUS))}
        self._handled = Histogram(2 * len(self._continuous))

    def take(self, batch: pa.RecordBatch) -> None:
        # Without evidence it was sent once, and accepted by the primary; with it, there is a count.
        sent = pc.coalesce(batch.column("first_sent_at"), batch.column("accepted_at"))
        accepted = pc.fill_null(batch.column("accepted_primary"), 1)
        for name, column in (("first_sent_at", sent), ("accepted_primary", accepted)):
            batch = batch.set_column(batch.schema.get_field_index(name), name, column)
        at = {name: micros(batch.column(name)) for name in _INSTANTS}
        count = {name: numbers(batch.column(name)) for name in _COUNTS}
        called = micros(batch.column("called_at"))
        known = (called != NEVER) & (at["accepted_at"] != NEVER)
        latency = np.full(batch.num_rows, np.nan)
        latency[known] = np.maximum(at["accepted_at"][known] - called[known], 0) / 1e6
        for grid in self.grids:
            grid.take(at, count, latency)
        owners, keys = _keys(batch)
        self._count_verdicts(batch, owners, keys)
        ended = at["accepted_at"] / 1e6
        self._phases.add(self._phase_of(owners, keys, ended - latency, ended), latency)
        queues, queue = _dictionary(batch.column("backlog_queue"))
        outbox = np.array([(name or "").endswith(_OUTBOX) for name in queues])[queue]
        since = np.where(outbox & (at["diverted_at"] == NEVER), at["first_sent_at"], at["diverted_at"])
        stayed = (since != NEVER) & (at["moved_at"] != NEVER)
        stays = np.maximum(at["moved_at"][stayed] - since[stayed], 0) / 1e6
        self._stays.add(outbox[stayed].astype(np.int64), stays)
        self._count_handled(at, owners, keys)
        self._name_faults(batch)

    def latencies(self) -> dict[str, Latency]:
        """How long sends took, by phase, and how long messages were in the backlog, and in the outbox."""
        found = {name: latency_of(self._phases, row) for row, name in enumerate(PHASES)}
        found |= {name: latency_of(self._stays, row) for row, name in enumerate(_STAYS)}
        return {name: latency for name, latency in found.items() if latency is not None}

    def handled(self) -> dict[Key, tuple[Latency | None, Latency | None]]:
        """How soon messages were handled: those that the primary accepted at once, and those that were diverted."""
        found = self._handled
        return {
            key: (latency_of(found, 2 * number), latency_of(found, 2 * number + 1))
            for key, number in self._continuous.items()
        }

    def _count_handled(self, at: Mapping[str, Counts], owners: Counts, keys: Sequence[Key]) -> None:
        numbers = np.array([self._continuous.get(key, -1) for key in keys], np.int64)[owners]
        known = (numbers >= 0) & (at["accepted_at"] != NEVER) & (at["delivered_at"] != NEVER)
        row = 2 * numbers[known] + (at["diverted_at"][known] != NEVER)
        self._handled.add(row, np.maximum(at["delivered_at"][known] - at["accepted_at"][known], 0) / 1e6)

    def _count_verdicts(self, batch: pa.RecordBatch, owners: Counts, keys: Sequence[Key]) -> None:
        names, verdict = _dictionary(batch.column("verdict"))
        each, counts = np.unique(owners * len(names) + verdict, return_counts=True)
        for code, number in zip(each.tolist(), counts.tolist(), strict=True):
            self.verdicts[keys[code // len(names)], names[code % len(names)] or ""] += number

    def _phase_of(self, owners: Counts, keys: Sequence[Key], called: Numbers, ended: Numbers) -> Counts:
        """In what phase each send was made: one that was under way when its entity was out belongs to the outage."""
        phases = np.zeros(len(owners), np.int64)
        for number, key in enumerate(keys):
            spans = self._outages.spans.get(key)
            if spans is None or not spans.out:
                continue
            chosen = np.flatnonzero(owners == number)
            began, over = called[chosen], ended[chosen]
            phase = np.where(over < spans.out[0].began, 0, 3)
            phase[_overlaps(spans.draining, began, over)] = 2
            phase[_overlaps(spans.out, began, over)] = 1
            phases[chosen] = phase
        return phases

    def _name_faults(self, batch: pa.RecordBatch) -> None:
        names = ("first_sent_at", "message_id", "pair", "entity", "backlog_queue", "sent_by", "verdict")
        verdict = batch.column("verdict")
        for name in FAULTS:
            chosen = batch.select(names).filter(pc.fill_null(pc.equal(verdict.cast(pa.string()), name), False))
            if not chosen.num_rows:
                continue
            plain = pa.table({each: chosen.column(each) for each in names})
            plain = plain.sort_by([("first_sent_at", "ascending")]).slice(0, MOST_FAULTS)
            instants = micros(plain.column("first_sent_at").combine_chunks()).tolist()
            found = [
                Fault(
                    Key(row["pair"], row["entity"]),
                    row["message_id"],
                    None if at == NEVER else at / 1e6,
                    row["backlog_queue"],
                    row["sent_by"],
                )
                for row, at in zip(plain.drop_columns(["first_sent_at"]).to_pylist(), instants, strict=True)
            ]
            known = [*self.faults.get(name, ()), *found]
            self.faults[name] = sorted(known, key=_oldest_first)[:MOST_FAULTS]


class _GridScan:
    """What was seen of the messages within one grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._counts: dict[str, Counts] = defaultdict(lambda: np.zeros(grid.slots, np.int64))
        self._latency = Histogram(grid.slots)
        self._depth = Depth(grid)

    def take(self, at: Mapping[str, Counts], count: Mapping[str, Numbers], latency: Numbers) -> None:
        receipt, diverted = at["accepted_at"], at["diverted_at"]
        direct = (count["accepted_primary"] > 0) & (diverted == NEVER)
        ended, nothing = at["first_sent_at"], receipt == NEVER
        self._add("primary", receipt[direct])
        self._add("backlog", diverted)
        self._add("moved", at["moved_at"])
        self._add("refused", ended[nothing & (count["refused"] > 0)])
        self._add("unknown", ended[nothing & (count["refused"] == 0) & (count["unknown"] > 0)])
        slots, inside = self._slots(receipt)
        self._latency.add(slots, latency[inside])
        left = np.where(at["moved_at"] != NEVER, at["moved_at"], at["set_aside_at"])
        self._depth.add(diverted, np.where(diverted == NEVER, NEVER, left))

    def series(self) -> Series:
        quantiles = self._latency.quantiles((0.5, 0.99))
        return Series(
            grid=self._grid,
            **{name: self._counts[name] for name in ("primary", "backlog", "refused", "unknown", "moved")},
            depth=self._depth.most(),
            p50=quantiles[0],
            p99=quantiles[1],
            longest=self._latency.longest(),
        )

    def _add(self, name: str, at: Counts) -> None:
        slots, _ = self._slots(at)
        self._counts[name] += np.bincount(slots, minlength=self._grid.slots)

    def _slots(self, at: Counts) -> tuple[Counts, NDArray[np.bool_]]:
        """The slots of the instants that are within the grid, and which are."""
        began, ended = round(self._grid.began * 1e6), round(self._grid.ended * 1e6)
        inside = (at >= began) & (at < ended)
        return (at[inside] - began) // round(self._grid.width * 1e6), inside


def _keys(batch: pa.RecordBatch) -> tuple[Counts, list[Key]]:
    """Number the entities of a batch, and return them."""
    pairs, pair = _dictionary(batch.column("pair"))
    entities, entity = _dictionary(batch.column("entity"))
    each, owners = np.unique(pair * len(entities) + entity, return_inverse=True)
    keys = [Key(pairs[code // len(entities)] or "", entities[code % len(entities)]) for code in each.tolist()]
    return owners.astype(np.int64), keys


def _dictionary(column: pa.Array) -> tuple[list[str | None], Counts]:
    """The different texts of a column, and for each row the number of its own; null is one of them."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    texts = column.dictionary.to_pylist()
    indices = pc.fill_null(column.indices.cast(pa.int64()), len(texts))
    return [*texts, None], indices.to_numpy(zero_copy_only=False)


def _overlaps(spans: Sequence[Span], began: Numbers, ended: Numbers) -> NDArray[np.bool_]:
    """Which times meet one of the spans, which are in order and don't overlap."""
    if not spans:
        return np.zeros(len(began), np.bool_)
    starts = np.array([span.began for span in spans])
    ends = np.array([span.ended for span in spans])
    # The first span that has not ended when it begins is the only one that it may meet first.
    candidate = np.searchsorted(ends, began, side="left")
    met = candidate < len(spans)
    found: NDArray[np.bool_] = met & (starts[np.minimum(candidate, len(spans) - 1)] <= ended)
    return found


def _oldest_first(fault: Fault) -> tuple[bool, float, str]:
    return fault.first_sent_at is None, fault.first_sent_at or 0.0, fault.message_id


_FINER = 1024  # parts of a slot at whose ends the messages are counted: a peak within a slot is seen nearly as high


class Depth:
    """The depth of all backlog queues together."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._change = np.zeros(grid.slots * _FINER + 1, np.int64)

    def add(self, came: Counts, left: Counts) -> None:
        """Count messages: when each came, and when it left, in microseconds."""
        there = came != NEVER
        self._change += self._changes(came[there])
        self._change -= self._changes(left[there & (left != NEVER)])

    def most(self) -> Counts:
        depth = self._change[:-1].cumsum().reshape(self._grid.slots, _FINER)
        found: Counts = np.maximum(depth.max(axis=1), 0)
        return found

    def _changes(self, at: Counts) -> Counts:
        """How many fall into each part of a slot; what was before the grid falls into the first, and counts on."""
        part = (at - round(self._grid.began * 1e6)) * _FINER // round(self._grid.width * 1e6)
        return np.bincount(np.clip(part, 0, self._grid.slots * _FINER), minlength=self._change.size)


SLOTS = 160
"""At most: as many as are distinguishable on a narrow screen, too."""

_CLOSE_ENOUGH = 10  # slots of the overview that the longest outage covers: more show it well


def grid_of(span: Span) -> Grid:
    """Cut a time into slots of a width that people count in, which begin at its multiples, and cover all of it."""
    seconds = max(span.seconds, SLOTS * ROUND[0] / 2)
    width = next((each for each in ROUND if seconds <= (SLOTS - 1) * each), None)
    if width is None:
        width = -(-seconds // ((SLOTS - 1) * 86_400)) * 86_400
    began = span.began // width * width
    slots = int((span.ended - began) // width) + 1
    return Grid(began, width, slots)


def closer(grid: Grid, out: Sequence[Span], drained: Sequence[Span]) -> Grid | None:
    """Choose what a closer look is worth: the longest outage, with what came before and after it.

    None where the grid shows it well enough.
    """
    if not out or grid.width < 1:
        return None
    longest = max(out, key=lambda span: span.seconds)
    # Its drain belongs to it, but a drain of hours must not make the outage small again.
    ends = [span.ended for span in drained if longest.began <= span.began <= longest.ended + 1]
    ended = min(max([longest.ended, *ends]), longest.ended + 3 * max(longest.seconds, 10.0))
    margin = max(0.2 * (ended - longest.began), 2.0)
    if ended - longest.began > _CLOSE_ENOUGH * grid.width:
        return None
    return grid_of(Span(max(grid.began, longest.began - margin), min(grid.ended, ended + margin)))


_STEP = math.log(1.02)
_LEAST, _MOST = 1e-6, 1e6  # s: what is below or above falls into the first or last bucket
_BUCKETS = math.ceil(math.log(_MOST / _LEAST) / _STEP) + 1


class Histogram:
    """Counts of durations in buckets 2 % wide, for several rows."""

    def __init__(self, rows: int) -> None:
        self._counts = np.zeros((rows, _BUCKETS), np.int64)
        self._longest = np.full(rows, np.nan)

    def add(self, rows: Counts, seconds: Numbers) -> None:
        """Count durations, each in one of the rows; those that are not a number are left out."""
        known = ~np.isnan(seconds)
        rows, seconds = rows[known], seconds[known]
        buckets = np.ceil(np.log(np.clip(seconds, _LEAST, _MOST) / _LEAST) / _STEP - 1e-9).astype(np.int64)
        flat = np.bincount(rows * _BUCKETS + buckets, minlength=self._counts.size)
        self._counts += flat.reshape(self._counts.shape)
        np.fmax.at(self._longest, rows, seconds)

    def count(self, row: int) -> int:
        return int(self._counts[row].sum())

    def longest(self) -> Numbers:
        """The longest of each, exactly; NaN without any."""
        return self._longest

    def quantiles(self, shares: Sequence[float]) -> list[Numbers]:
        """For each share, the duration that so many don't exceed, in each histogram; 2 % too high at most."""
        below = self._counts.cumsum(axis=1)
        total = below[:, -1]
        found = []
        for share in shares:
            reached = below >= np.maximum(np.ceil(total * share - 1e-9), 1)[:, None]
            bound = _LEAST * np.exp(reached.argmax(axis=1) * _STEP)
            found.append(np.where(total > 0, np.fmin(bound, self._longest), np.nan))
        return found


def latency_of(histogram: Histogram, row: int) -> Latency | None:
    """Sum one histogram up; None if it is empty."""
    count = histogram.count(row)
    if not count:
        return None
    p50, p95, p99 = (float(each[row]) for each in histogram.quantiles((0.5, 0.95, 0.99)))
    return Latency(count, p50, p95, p99, float(histogram.longest()[row]))
