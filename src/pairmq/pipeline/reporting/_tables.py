"""Opens the tables of a directory, gives their rows batch by batch, and reads the small ones whole.

A table may be larger than the memory. Outages, availability, cost and programs are small.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.model import ConfigurationError
from pairmq.pipeline._storage import RUN_FILE, Place, latest_run, opened, parquet_files
from pairmq.pipeline.reporting._values import (
    Availability,
    Cost,
    Counts,
    Key,
    Numbers,
    Operations,
    Order,
    Outage,
    Outages,
    Program,
    Programs,
    Reads,
    Sends,
    Span,
    Spans,
)

NEVER = np.iinfo(np.int64).min
"""Represents a null among instants."""

_BATCH = 131_072
_PARTS = ("journal", "messages")  # of it, that the report needs
_LARGEST_RUN_FILE = 64 * 2**20


class TableReplaced(ConfigurationError):
    """A file of a table is gone: a run has put a new table in its place since its files were listed."""


class Directory:
    """The tables that one run wrote into an output directory."""

    def __init__(self, path: Place) -> None:
        self.path = path
        try:
            self._run = latest_run(path)
        except FileNotFoundError:
            raise _no_run(path) from None
        except OSError as error:
            raise ConfigurationError(f"can't read {path}: {error.strerror or error}") from None
        self.run = _run_document(path, self._run / RUN_FILE)

    def batches(self, table: str, columns: Sequence[str], *, repeated: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Read some columns of a table; of one within another, as ``evidence.moves``, the latter name."""
        names = [name.rpartition(".")[2] for name in columns]
        with self._clear_errors(table):
            for file in self._files(table):
                with pq.ParquetFile(opened(file), read_dictionary=list(repeated)) as parquet:
                    lacking = set(columns) - {
                        column.path for column in map(parquet.schema.column, range(len(parquet.schema)))
                    }
                    if lacking:
                        raise KeyError(f"it has no column {min(lacking)}")
                    for batch in parquet.iter_batches(_BATCH, columns=list(columns)):
                        yield pa.RecordBatch.from_arrays([_part(batch, name) for name in columns], names=names)

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The same row by row, instants as seconds; for small tables, and large ones that are looked at once."""
        for batch in self.batches(table, columns):
            ready = [_seconds(column) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
            yield from pa.RecordBatch.from_arrays(ready, names=batch.schema.names).to_pylist()

    @contextlib.contextmanager
    def _clear_errors(self, table: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise TableReplaced(
                f"can't read the table {table} in {self.path}: a file is missing, as a run is writing there; try again"
            ) from None
        except (OSError, pa.ArrowException, KeyError) as error:
            raise ConfigurationError(
                f"can't read the table {table} in {self.path}: {error}; make it again with 'pairmq pipeline run'"
            ) from None

    def _files(self, table: str) -> Sequence[Place]:
        folder = self._run / table
        if not folder.is_dir():
            raise ConfigurationError(f"{self.path} lacks the table {table}: make it with 'pairmq pipeline run'")
        return parquet_files(folder)


def _part(batch: pa.RecordBatch, name: str) -> pa.Array:
    outer, _, inner = name.partition(".")
    return pc.struct_field(batch.column(outer), inner) if inner else batch.column(outer)


def micros(column: pa.Array) -> Counts:
    """Instants as microseconds since 1970 UTC; `NEVER` for null."""
    whole = pc.cast(column, pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64())
    return cast(Counts, pc.fill_null(whole, int(NEVER)).to_numpy(zero_copy_only=False))


def numbers(column: pa.Array) -> Numbers:
    """Counts as numbers; 0 for null."""
    return cast(Numbers, pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False))


def _seconds(column: pa.Array) -> pa.Array:
    whole = pc.cast(column, pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64())
    return pc.divide(whole.cast(pa.float64()), 1e6)


def _no_run(path: Place) -> ConfigurationError:
    return ConfigurationError(f"no run is in {path}: make the tables first, with 'pairmq pipeline run --out {path}'")


def _run_document(path: Place, file: Place) -> dict[str, Any]:
    try:
        if isinstance(file, Path) and file.stat().st_size > _LARGEST_RUN_FILE:
            raise ConfigurationError(f"{file} is not a document of a run: it is too large")
        document = json.loads(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_run(path) from None
    except OSError as error:
        raise ConfigurationError(f"can't read {file}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is not a document of a run: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(document.get(part), dict) for part in _PARTS):
        raise ConfigurationError(f"{file} is not a document of a run: make the tables again with 'pairmq pipeline run'")
    return document


MOST_OUTAGES = 25
"""Outages that are listed individually."""

MOST_PROGRAMS = 10
"""Programs that are named."""

_OPEN = ("journal ends", "process killed", "pair closed")
_AGAIN = "failed again"


def programs(tables: Directory) -> Programs:
    """Read who wrote the journal, and what is missing of it."""
    names = ("process", "sample_healthy", "first_at", "last_at", "rows", "missing", "dropped", "misdated", "ended")
    ended: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    bad: list[Program] = []
    firsts: list[float] = []
    lasts: dict[str, float] = {}
    for row in tables.rows("processes", names):
        ended[row["ended"]] += 1
        for name in ("rows", "missing", "dropped", "misdated"):
            sums[name] += row[name] or 0
        sums["sampled"] += row["sample_healthy"] is not None and row["sample_healthy"] < 1
        if (row["missing"] or row["dropped"] or row["ended"] == "killed") and len(bad) < MOST_PROGRAMS:
            bad.append(Program(row["process"], row["missing"] or 0, row["dropped"] or 0, row["ended"] or ""))
        if row["first_at"] is not None and row["last_at"] is not None:
            firsts.append(row["first_at"])
            lasts[row["process"]] = row["last_at"]
    return Programs(
        count=sum(ended.values()),
        **{name: sums[name] for name in ("rows", "missing", "dropped", "misdated", "sampled")},
        ended=dict(ended),
        incomplete=tuple(bad),
        first_at=min(firsts, default=None),
        last_at=max(lasts.values(), default=None),
        lasts=lasts,
    )


def outages(tables: Directory, wrote: Programs) -> Outages:
    """Read the outages."""
    names = (
        *("process", "pair", "entity", "started_at", "failed_over_at", "up_at", "ended_at", "open_because", "cause"),
        *("failure_kind", "time_to_divert", "downtime", "time_to_recover", "drain_time", "diverted", "refused"),
        *("unknown", "peak_backlog"),
    )
    count = still_open = 0
    worst: list[tuple[float, int, Outage]] = []
    spans: dict[Key, tuple[list[Span], list[Span], list[Span]]] = defaultdict(lambda: ([], [], []))
    starts: dict[tuple[str, Key], list[float]] = defaultdict(list)
    broken: list[tuple[str, Key, float]] = []
    for row in tables.rows("episodes", names):
        outage = _outage(row, wrote)
        count += 1
        still_open += outage.open_because in _OPEN
        heapq.heappush(worst, (outage.out, -count, outage))
        if len(worst) > MOST_OUTAGES:
            heapq.heappop(worst)
        for kept, span in zip(spans[outage.key], _states(outage), strict=True):
            if span is not None:
                kept.append(span)
        starts[outage.process, outage.key].append(outage.started_at)
        if outage.open_because == _AGAIN and outage.up_at is not None:
            broken.append((outage.process, outage.key, outage.up_at))
    for each in starts.values():
        each.sort()
    for process, key, up in broken:
        # Its backlog was drained until it failed again.
        following = starts[process, key]
        next_start = bisect.bisect_right(following, up)
        if next_start < len(following):
            spans[key][2].append(Span(up, following[next_start]))
    merged = {
        key: Spans(union(each[0]), union(each[1]), union(each[2]), union(chain(each[0], each[1])))
        for key, each in spans.items()
    }
    return Outages(
        count=count,
        still_open=still_open,
        worst=tuple(outage for *_, outage in sorted(worst, key=lambda each: (-each[0], -each[1]))),
        spans=merged,
        union=union(chain.from_iterable(each.out for each in merged.values())),
    )


def union(spans: Iterable[Span]) -> Sequence[Span]:
    """Join times that overlap or touch; in order."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.began <= joined[-1].ended:
            joined[-1] = Span(joined[-1].began, max(joined[-1].ended, span.ended))
        else:
            joined.append(span)
    return tuple(joined)


def _outage(row: Mapping[str, Any], wrote: Programs) -> Outage:
    marks = (row["ended_at"], row["up_at"], row["failed_over_at"], row["started_at"])
    until = max(mark for mark in marks if mark is not None)
    if row["open_because"] == "journal ends" and wrote.last_at is not None:
        until = max(until, wrote.last_at)
    elif row["open_because"] in _OPEN:
        until = max(until, wrote.lasts.get(row["process"], until))
    values = {name: value for name, value in row.items() if name not in ("pair", "entity")}
    for name in ("diverted", "refused", "unknown", "peak_backlog"):
        values[name] = values[name] or 0
    return Outage(key=Key(row["pair"], row["entity"]), until=until, **values)


def _states(outage: Outage) -> tuple[Span | None, Span | None, Span | None]:
    """When it was failing, failed over and draining."""
    over, up = outage.failed_over_at, outage.up_at
    gone = outage.until if up is None else up
    return (
        Span(outage.started_at, gone if over is None else over),
        None if over is None else Span(over, gone),
        None if up is None or outage.until <= up else Span(up, outage.until),
    )


def _add(sums: object, row: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        setattr(sums, name, getattr(sums, name) + (row[name] or 0))


def availability(tables: Directory) -> Availability:
    """Read how sends ended."""
    names = ("attempted", "accepted_primary", "accepted_backlog", "refused", "unknown")
    total, entities = Sends(), defaultdict[Key, Sends](Sends)
    for row in tables.rows("availability", ("pair", "entity", *names)):
        for sums in (total, entities[Key(row["pair"], row["entity"])]):
            _add(sums, row, names)
    return Availability(total, dict(entities))


def consumers(tables: Directory) -> dict[Key, Reads]:
    """Read what consumers of queues with continuity read."""
    found = defaultdict[Key, Reads](Reads)
    names = ("from_primary", "from_secondary", "watched", "unread", "longest_unread")
    for row in tables.rows("consumers", ("pair", "entity", *names)):
        reads = found[Key(row["pair"], row["entity"])]
        _add(reads, row, names[:-1])
        reads.longest_unread = max(reads.longest_unread, row["longest_unread"])
    return dict(sorted(found.items(), key=lambda each: (-each[1].unread, each[0])))


def order(tables: Directory) -> Order:
    """Read how many messages were overtaken by design."""
    delivered = overtaken = 0
    for batch in tables.batches("order", ("delivered", "overtaken")):
        delivered += int(numbers(batch.column("delivered")).sum())
        overtaken += int(numbers(batch.column("overtaken")).sum())
    return Order(delivered, overtaken)


def cost(tables: Directory) -> Cost:
    """Read what was asked of the brokers."""
    sides: dict[str, Operations] = {}
    sources = set()
    for row in tables.rows("cost", ("side", "source", "sends", "receives", "pings", "price")):
        _add(sides.setdefault(row["side"], Operations()), row, ("sends", "receives", "pings", "price"))
        sources.add(row["source"])
    source = "mixed" if len(sources) > 1 else next(iter(sources), None)
    return Cost(sides, source, any(side.price for side in sides.values()))
