"""Reads a journal's segments, for people and for tests; the pipeline reads them by itself."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.observe.journal import _layout
from pairmq.observe.journal._segments import META

_AT_ONCE = 10_000  # rows


@dataclass(frozen=True, slots=True)
class Span:
    """What one run of a process journalled.

    Args:
        process: its name.
        rows: in the segments.
        first_seq: the lowest number.
        last_seq: the highest.
        missing: numbers between the two that no segment has; those of dropped events among them.
        dropped: events that the journal says it dropped.
        ended: whether it closed its journal in good order.
    """

    process: str
    rows: int
    first_seq: int
    last_seq: int
    missing: int
    dropped: int
    ended: bool


@dataclass(slots=True)
class Statistics:
    """What a journal holds.

    Args:
        segments: how many.
        bytes: in them.
        rows: in them.
        kinds: rows of each kind.
        processes: by name.
        first_at: the earliest instant, None without rows.
        last_at: the latest.
        open_parts: parts that are not yet segments.
        repeated: rows that two segments have.
        unwritten: events that processes could not write, and no row counts yet: `recover` adds these rows.
    """

    segments: int = 0
    bytes: int = 0
    rows: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    processes: list[Span] = field(default_factory=list)
    first_at: float | None = None
    last_at: float | None = None
    open_parts: int = 0
    repeated: int = 0
    unwritten: int = 0


def segments(directory: str | os.PathLike[str]) -> list[Path]:
    """List the segments, by day and process.

    Raises:
        OSError: the directory can't be read.
    """
    folder = Path(directory)
    days = [path for path in sorted(folder.iterdir()) if path.name.startswith("date=") and path.is_dir()]
    return [path for day in days for path in sorted(day.iterdir()) if path.name.endswith(".parquet")]


def read_rows(
    directory: str | os.PathLike[str], *, kinds: Collection[str] = (), entities: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """Give the rows of all segments, some at a time: by day, in each by process, in each by their number.

    Args:
        directory: the journal's.
        kinds: only events of these kinds; all when empty.
        entities: only events about these entities; all when empty.

    Yields:
        Columns by name, without those that are null; `pairmq.model.records.event_of` makes events of them.

    Raises:
        OSError: a file can't be read.
        pyarrow.ArrowException: a file is not a segment.
    """
    for path in segments(directory):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_AT_ONCE):
                for row in _filtered(pa.table(batch), kinds, entities).to_pylist():
                    yield {name: value for name, value in row.items() if value is not None}


def _filtered(table: pa.Table, kinds: Collection[str], entities: Collection[str]) -> pa.Table:
    for name, wanted in (("kind", kinds), ("entity", entities)):
        if wanted:
            table = table.filter(pc.is_in(table[name], pa.array(list(wanted), pa.string())))
    return table


def statistics(directory: str | os.PathLike[str]) -> Statistics:
    """Count what a journal holds, and find what its numbers say is missing. Raises as `read_rows`."""
    folder, found = Path(directory), Statistics()
    numbers: dict[str, list[pa.ChunkedArray]] = {}
    dropped: dict[str, int] = {}
    ended: set[str] = set()
    instants: list[float] = []
    for path in segments(folder):
        table = pq.read_table(path, columns=["kind", "at", "process", "seq", "count"], partitioning=None)
        found.segments += 1
        found.bytes += path.stat().st_size
        found.rows += table.num_rows
        for entry in pc.value_counts(table["kind"]).to_pylist():
            found.kinds[entry["values"]] = found.kinds.get(entry["values"], 0) + entry["counts"]
        instants += [at for at in pc.min_max(table["at"]).as_py().values() if at is not None]
        for process in pc.unique(table["process"]).to_pylist():
            rows = table.filter(pc.equal(table["process"], process))
            numbers.setdefault(process, []).append(rows["seq"])
            dropped[process] = dropped.get(process, 0) + (pc.sum(rows["count"]).as_py() or 0)
            if "JournalClosed" in pc.unique(rows["kind"]).to_pylist():
                ended.add(process)
    found.first_at, found.last_at = min(instants, default=None), max(instants, default=None)
    for process, chunks in sorted(numbers.items()):
        seqs = pa.concat_arrays([chunk for part in chunks for chunk in part.chunks])
        ends, distinct = pc.min_max(seqs).as_py(), pc.count_distinct(seqs).as_py()
        missing = ends["max"] - ends["min"] + 1 - distinct
        found.repeated += len(seqs) - distinct
        found.processes.append(
            Span(process, len(seqs), ends["min"], ends["max"], missing, dropped[process], process in ended)
        )
    parts = list((folder / _layout.OPEN).iterdir()) if (folder / _layout.OPEN).is_dir() else ()
    found.open_parts = sum(_layout.parse_part(path) is not None for path in parts)
    found.unwritten = sum(loss.count for path in parts if (loss := _layout.parse_loss(path)) is not None)
    return found


def metadata(segment: Path) -> dict[str, str]:
    """A segment's metadata: ``schema_version``, ``process``, ``first_seq``, ``sample_healthy`` and so on.

    Raises:
        OSError: it can't be read.
        pyarrow.ArrowException: it is not a segment.
    """
    found = pq.read_metadata(segment).metadata or {}
    return {name.removeprefix(META).decode(): value.decode() for name, value in found.items() if name.startswith(META)}
