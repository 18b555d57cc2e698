"""Makes segments of parts: written aside, put in place by one rename, the same ones however often it is tried.

A running journal has its finished parts made in a thread of its own, so that no event waits for Parquet; those that
processes left behind when they were killed are recovered.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq._version import version
from pairmq.model.events import Event, EventsDropped, JournalClosed
from pairmq.model.records import COLUMNS, SCHEMA_VERSION, end_of, sealed
from pairmq.observe.journal import _layout
from pairmq.observe.journal._columns import UNIQUE, arrow_schema, batch_of
from pairmq.observe.journal._options import Compression
from pairmq.observe.journal._part import Contents, DamagedPart, Head, Part

META = b"pairmq."
"""What the names of a segment's own metadata begin with."""

_YOUNG = 60.0  # s
_DICTIONARIES = [c.name for c in COLUMNS if c.type == "string" and c.name not in UNIQUE]


def make_segments(
    directory: Path, part: Part, compression: Compression, others: Mapping[str, float] = MappingProxyType({})
) -> tuple[list[Path], int, Contents]:
    """Make the segments of a complete part, one for each day that it has rows of, then delete it; the number of rows,
    too. The segments name ``others`` that were writing, see `_layout.others_writing`.

    An existing segment, from an attempt that was cut short, is left as it is. After an error the part is as it was.
    """
    contents = part.read()
    head = contents.head
    table = widened(contents.batches, head.process)
    made = []
    for date, rows in _by_date(table):
        target = _layout.segment_path(directory, date, head.process, head.number)
        if not _is_written(target, rows.num_rows):
            _write(target, _layout.aside_path(part.path, date), rows, head, compression, others)
        made.append(target)
    part.remove()
    return made, table.num_rows, contents


def make_loss_segment(directory: Path, mark: Part, loss: _layout.Loss, compression: Compression) -> Path:
    """Make the segment of what could not be written, then delete its mark; made again it has the same name and rows."""
    until = loss.until / 1000
    rows: list[Event] = [EventsDropped(at=until, pair="", count=loss.count, since=loss.since / 1000)]
    if loss.dropped is not None:
        rows.append(JournalClosed(at=until, pair="", dropped=loss.dropped))
    table = widened([batch_of(rows, loss.first_seq + loss.count)], loss.process)
    head = Head(loss.process, "", loss.number, SCHEMA_VERSION, version(), 1.0)
    date = _layout.date_of(loss.until // 86_400_000)
    target = _layout.segment_path(directory, date, loss.process, loss.number)
    if not _is_written(target, table.num_rows):
        _write(target, mark.path.with_name(f"{mark.path.name}.tmp"), table, head, compression)
    mark.remove()
    return target


def widened(batches: Sequence[pa.RecordBatch], process: str) -> pa.Table:
    """Put batches that each have some columns together to one table that has all."""
    size = sum(batch.num_rows for batch in batches)
    nothing = _Nulls(max((batch.num_rows for batch in batches), default=0))
    columns = []
    for column in arrow_schema():
        if column.name == "process":
            columns.append(pa.chunked_array([pa.repeat(pa.scalar(process), size)], column.type))
            continue
        places = [batch.schema.get_field_index(column.name) for batch in batches]
        chunks = [
            nothing.of(column.type, batch.num_rows) if place < 0 else batch.column(place)
            for batch, place in zip(batches, places, strict=True)
        ]
        columns.append(pa.chunked_array(chunks, column.type))
    return pa.table(columns, schema=arrow_schema())


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


def _is_written(target: Path, rows: int) -> bool:
    try:
        with target.open("rb") as file:
            return bool(pq.read_metadata(pa.BufferReader(end_of(file))).num_rows == rows)
    except (OSError, ValueError, pa.ArrowException):
        return False


def _write(
    target: Path,
    aside: Path,
    rows: pa.Table,
    head: Head,
    compression: Compression,
    others: Mapping[str, float] = MappingProxyType({}),
) -> None:
    for folder in (target.parent, aside.parent):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        pq.write_table(
            rows.replace_schema_metadata(_metadata(rows, head, others)),
            aside,
            compression=compression,
            use_dictionary=_DICTIONARIES,
            row_group_size=max(1, rows.num_rows),
            # Most bits of a compressed page could change unseen: a reader would get other values, and no error.
            write_page_checksum=True,
        )
        with aside.open("r+b") as file:
            end = end_of(file)
            file.seek(-len(end), os.SEEK_END)
            file.write(sealed(end))
            file.flush()
            os.fsync(file.fileno())
        aside.rename(target)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    # The part is deleted next: the segment's name must be there before.
    _layout.sync_directory(target.parent)
    _layout.sync_directory(target.parent.parent)


def _metadata(rows: pa.Table, head: Head, others: Mapping[str, float]) -> dict[bytes, bytes]:
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
        "others": json.dumps(dict(others)),
    }
    return {META + name.encode(): str(value).encode() for name, value in values.items()}


_log = logging.getLogger("pairmq")


@dataclass(slots=True)
class Recovered:
    """What a recovery did.

    Args:
        parts: that were made into segments.
        rows: in them.
        segments: that came of them.
        lost: events that processes could not write; the journal now has a row `EventsDropped` for them.
        torn: bytes that were cut from the ends of parts, of batches that were being written when the process died.
        kept: parts still being written, or of another machine.
        failed: the parts that could not be opened or read, or whose segments could not be written, and why.
    """

    parts: int = 0
    rows: int = 0
    segments: list[Path] = field(default_factory=list)
    lost: int = 0
    torn: int = 0
    kept: int = 0
    failed: dict[Path, str] = field(default_factory=dict)


def recover(
    directory: str | os.PathLike[str], *, all_hosts: bool = False, compression: Compression = "zstd"
) -> Recovered:
    """Make segments of every part whose process is dead.

    Safe at any time, beside processes that write and beside other recoveries, and safe to be killed: a part is deleted
    once its segments stand, and made again they have the same names and the same rows.

    Args:
        directory: the journal's.
        all_hosts: also the parts of other machines. Locks show which processes are dead only on the machine where they
            are held, so that this is for when the others are known to be gone.
        compression: of the segments.

    Returns:
        What was done; a part that fails is named there, stays as it is, and does not stop the others.

    Raises:
        OSError: the directory can't be read.
    """
    folder = Path(directory)
    done = Recovered()
    found = sorted((folder / _layout.OPEN).iterdir()) if (folder / _layout.OPEN).is_dir() else []
    for path in found:
        try:
            _recover_one(path, folder, done, None if all_hosts else socket.gethostname(), compression)
        except (OSError, pa.ArrowException, DamagedPart) as error:
            done.failed[path] = str(error) or type(error).__name__
            _log.warning("journal: %s is left unchanged: %s", path, error)
    _sweep(found)
    return done


def _recover_one(path: Path, folder: Path, done: Recovered, host: str | None, compression: Compression) -> None:
    """Make segments of a part, or of the mark of a loss, if it is of the host, where one is given, and not in use."""
    loss = _layout.parse_loss(path)
    if loss is None and _layout.parse_part(path) is None:
        return
    part = Part.adopt(path)
    if part is None:
        done.kept += path.exists()
        return
    with contextlib.closing(part):
        if loss is not None:
            if host is not None and not _layout.is_of_host(loss.process, host):
                done.kept += 1
                return
            done.segments.append(make_loss_segment(folder, part, loss, compression))
            done.lost += loss.count
        elif not path.stat().st_size:
            part.remove()  # killed while it was made
        elif host is not None and part.head().host != host:
            done.kept += 1
        else:
            segments, rows, contents = make_segments(folder, part, compression)
            done.parts += 1
            done.rows += rows
            done.segments += segments
            done.torn += contents.torn


def _sweep(found: list[Path]) -> None:
    """Delete unfinished segments without a part, and unfinished marks: they will never be finished."""
    for path in found:
        if _layout.is_mark_aside(path):
            with contextlib.suppress(OSError):
                _sweep_mark(path)
            continue
        part = _layout.part_of_aside(path)
        if part is not None and not part.exists():
            with contextlib.suppress(OSError):
                path.unlink()


def _sweep_mark(path: Path) -> None:
    """Delete a mark whose maker is dead: not a young one, which may be made this very moment and not be locked yet."""
    if time.time() - path.stat().st_mtime < _YOUNG:
        return
    mark = Part.adopt(path)
    if mark is not None:
        mark.remove()


class Compactor:
    """Takes parts one after another; its thread lives while there are any.

    A part whose segment can't be written (the disk is full) is let go of and stays on the disk. It is tried again, with
    other leftovers, after the next part that works. One whose file was deleted meanwhile is lost with it: ``lost`` is
    called with the number of its rows.
    """

    def __init__(self, directory: Path, compression: Compression, lost: Callable[[int], None]) -> None:
        self._directory = directory
        self._compression: Compression = compression
        self._lost = lost
        self._parts: deque[Part] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._recovering = True  # at first: what other processes left
        self._failed = False

    def add(self, part: Part) -> None:
        with self._lock:
            self._parts.append(part)
        self.start()

    def start(self) -> None:
        """Begin, if there is anything to do; where the system gives no thread, the next part tries again."""
        with self._lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="journal segments", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if threading.main_thread().is_alive():  # else `wait` does it: Python 3.12.0 and 3.12.1 start none then
                    _log.error("journal: the parts in %s are left unchanged for now: %s", self._directory, error)
            else:
                self._thread = thread

    def wait(self) -> None:
        """Return when all parts are segments, or were let go of; without a thread, make them here."""
        while (thread := self._thread) is not None:
            thread.join()
        if self._parts or self._recovering:
            self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                part = self._parts.popleft() if self._parts else None
                recovering, self._recovering = self._recovering, False
                if part is None and not recovering:
                    self._thread = None
                    return
            if part is not None:
                self._make(part)
            if recovering:
                self._recover()

    def _make(self, part: Part) -> None:
        try:
            process, _ = _layout.parse_part(part.path) or ("", 0)
            others = _layout.others_writing(self._directory, process)
            make_segments(self._directory, part, self._compression, others)
        except (OSError, pa.ArrowException, DamagedPart) as error:
            if part.is_deleted:
                _log.error("journal: %s was deleted: its %d events are lost: %s", part.path, part.rows, error)
                self._lost(part.rows)
            elif not self._failed:
                _log.error("journal: %s is left unchanged for now: %s", part.path, error)
            part.close()
            self._failed = True
        except Exception:
            part.close()
            _log.exception("journal: %s is left unchanged", part.path)
        else:
            self._recovering = self._recovering or self._failed
            self._failed = False

    def _recover(self) -> None:
        try:
            recover(self._directory, compression=self._compression)
        except Exception:
            _log.exception("journal: unfinished parts in %s could not be recovered", self._directory)
