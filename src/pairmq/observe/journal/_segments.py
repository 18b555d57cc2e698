"""Makes segments of parts: written aside, put in place by one rename, the same ones however often it is tried."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq._version import version
from pairmq.model.events import EventsDropped, JournalClosed
from pairmq.model.records import COLUMNS, SCHEMA_VERSION, Values
from pairmq.observe.journal import _layout, _schema
from pairmq.observe.journal._columns import batch_of
from pairmq.observe.journal._options import Compression
from pairmq.observe.journal._part import Contents, Head, Part

META = b"pairmq."
"""What the names of a segment's own metadata begin with."""

_DICTIONARIES = [c.name for c in COLUMNS if c.type == "string" and c.name not in _schema.UNIQUE]


def make_segments(directory: Path, part: Part, compression: Compression) -> tuple[list[Path], int, Contents]:
    """Make the segments of a part, one for each day that it has rows of, then delete it.

    Args:
        directory: the journal's.
        part: complete, and locked by the caller.
        compression: of the segments.

    Returns:
        The segments, the number of rows, and what was read. A segment that stands there already, from a trial that
        was cut short, is left as it is.

    Raises:
        DamagedPart: the part can't be read.
        OSError, pyarrow.ArrowException: a segment can't be written; the part is as it was.
    """
    contents = part.read()
    head = contents.head
    table = widened(contents.batches, head.process)
    made = []
    for date, rows in _by_date(table):
        target = _layout.segment_path(directory, date, head.process, head.number)
        if not _stands(target, rows.num_rows):
            _write(target, _layout.aside_path(part.path, date), rows, head, compression)
        made.append(target)
    part.remove()
    return made, table.num_rows, contents


def make_loss_segment(directory: Path, mark: Part, loss: _layout.Loss, compression: Compression) -> Path:
    """Make the segment that says what a process could not write, then delete its mark.

    Args:
        directory: the journal's.
        mark: locked by the caller.
        loss: what its name says.
        compression: of the segment.

    Returns:
        The segment. Made again it has the same name and the same rows.

    Raises:
        OSError, pyarrow.ArrowException: it can't be written; the mark is as it was.
    """
    rows: list[Values] = [(EventsDropped, loss.until / 1000, "", loss.count, loss.since / 1000)]
    if loss.dropped is not None:
        rows.append((JournalClosed, loss.until / 1000, "", loss.dropped))
    table = widened([batch_of(rows, loss.first_seq + loss.count)], loss.process)
    head = Head(loss.process, "", loss.number, SCHEMA_VERSION, version(), 1.0)
    date = _layout.date_of(loss.until // 86_400_000)
    target = _layout.segment_path(directory, date, loss.process, loss.number)
    if not _stands(target, table.num_rows):
        _write(target, mark.path.with_name(f"{mark.path.name}.tmp"), table, head, compression)
    mark.remove()
    return target


def widened(batches: Sequence[pa.RecordBatch], process: str) -> pa.Table:
    """Put batches that each have some columns together to one table that has all."""
    size = sum(batch.num_rows for batch in batches)
    nothing = _Nulls(max((batch.num_rows for batch in batches), default=0))
    columns = []
    for field in _schema.arrow_schema():
        if field.name == "process":
            columns.append(pa.chunked_array([pa.repeat(pa.scalar(process), size)], field.type))
            continue
        places = [batch.schema.get_field_index(field.name) for batch in batches]
        chunks = [
            nothing.of(field.type, batch.num_rows) if place < 0 else batch.column(place)
            for batch, place in zip(batches, places, strict=True)
        ]
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.table(columns, schema=_schema.arrow_schema())


class _Nulls:
    """Columns without values, all on the same few bytes: most columns are empty in most batches."""

    def __init__(self, most: int) -> None:
        self._zeros = pa.py_buffer(bytes(8 * (most + 1)))

    def of(self, logical: pa.DataType, size: int) -> pa.Array:
        if pa.types.is_list(logical):
            return pa.nulls(size, logical)
        buffers = [self._zeros] * (3 if pa.types.is_string(logical) else 2)
        return pa.Array.from_buffers(logical, size, buffers, null_count=size)


def _by_date(table: pa.Table) -> list[tuple[str, pa.Table]]:
    if not table.num_rows:
        return []
    days = pc.cast(pc.floor(pc.divide(table["at"], 86_400.0)), pa.int64(), safe=False)
    found = sorted(pc.unique(days).to_pylist())
    parts: dict[str, list[pa.Table]] = {}
    for day in found:
        rows = table if len(found) == 1 else table.filter(pc.equal(days, day))
        parts.setdefault(_layout.date_of(day), []).append(rows)
    return [(date, pa.concat_tables(tables)) for date, tables in parts.items()]


def _stands(target: Path, rows: int) -> bool:
    try:
        return bool(pq.read_metadata(target).num_rows == rows)
    except (OSError, pa.ArrowException):
        return False


def _write(target: Path, aside: Path, rows: pa.Table, head: Head, compression: Compression) -> None:
    for folder in (target.parent, aside.parent):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        pq.write_table(
            rows.replace_schema_metadata(_metadata(rows, head)),
            aside,
            compression=compression,
            use_dictionary=_DICTIONARIES,
            row_group_size=max(1, rows.num_rows),
        )
        descriptor = os.open(aside, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        aside.rename(target)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    # The part is deleted next: the segment's name must be there before.
    _layout.sync_directory(target.parent)
    _layout.sync_directory(target.parent.parent)


def _metadata(rows: pa.Table, head: Head) -> dict[bytes, bytes]:
    ends = pc.min_max(rows["seq"]).as_py()
    values: dict[str, Any] = {
        "schema_version": head.schema_version,
        "process": head.process,
        "host": head.host,
        "part": head.number,
        "version": head.version,
        "sample_healthy": head.sample_healthy,
        "first_seq": ends["min"],
        "last_seq": ends["max"],
        "rows": rows.num_rows,
    }
    return {META + name.encode(): str(value).encode() for name, value in values.items()}
