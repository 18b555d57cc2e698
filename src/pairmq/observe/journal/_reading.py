"""Reads a journal's finished segments, and uploads them to a store that fsspec reaches.

What the store has is the only record of what was shipped: nothing is kept here, so that nothing can disagree with it.
A reader finds each segment there whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.model import ConfigurationError
from pairmq.model.records import end_of
from pairmq.observe.journal import _layout
from pairmq.observe.journal._segments import META

_AT_ONCE = 10_000  # rows


@dataclass(frozen=True, slots=True)
class Span:
    """What one run of a process journalled."""

    process: str  # its name
    rows: int  # in the segments
    first_seq: int  # the lowest number: that many rows came before, and were deleted, shipped or lost
    last_seq: int  # the highest
    missing: int  # numbers between the two that no segment has; those of dropped events among them
    dropped: int  # events that the journal says it dropped
    ended: bool  # whether it closed its journal in good order


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
    found = (path for day in days for path in sorted(day.iterdir()))
    # Other programs' files in the making, and what some systems put beside each file.
    return [path for path in found if path.name.endswith(".parquet") and not path.name.startswith(("_", "."))]


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
        OSError: a file can't be read, or is damaged inside.
        pyarrow.ArrowException: a file is not a segment.
    """
    for path in segments(directory):
        with _checked(path) as file:
            for batch in file.iter_batches(_AT_ONCE):
                for row in _filtered(pa.table(batch), kinds, entities).to_pylist():
                    yield {name: value for name, value in row.items() if value is not None}


@contextlib.contextmanager
def _checked(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a segment to read it, and name it where the checksum of a page, or of its footer, is another."""
    with path.open("rb") as segment:
        try:
            end_of(segment)
        except ValueError as error:
            raise OSError(errno.EIO, str(error), str(path)) from None
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(errno.EIO, f"it is damaged inside: {error}", str(path)) from error


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
        with _checked(path) as file:
            table = file.read(["kind", "at", "process", "seq", "count"])
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


_ATOMIC = frozenset({"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "r2", "s3", "s3a"})
"""Stores in which an object appears when its upload is complete; everywhere else a file grows under its name."""


class ShipmentError(Exception):
    """The store could not be used; what was uploaded before is complete, and the next shipment continues.

    Args:
        message: what failed.
        done: what was shipped before.
    """

    def __init__(self, message: str, done: Shipped) -> None:
        super().__init__(message)
        self.done = done


@dataclass(slots=True)
class Shipped:
    """What a shipment did.

    Args:
        segments: that were uploaded.
        bytes: in them.
        present: segments that the store had before.
        deleted: segments that were deleted here, as the store has them.
        failed: segments that could not be read or deleted here, and why.
    """

    segments: list[Path] = field(default_factory=list)
    bytes: int = 0
    present: int = 0
    deleted: int = 0
    failed: dict[Path, str] = field(default_factory=dict)


def ship(
    directory: str | os.PathLike[str],
    url: str,
    *,
    delete: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Shipped:
    """Upload the segments of a journal that a store does not have yet, under the same names.

    Parts that are still being written are left for a later shipment. A segment counts as uploaded when the store has a
    file of its name and size. Shipments may run beside each other and beside processes that write, and may be killed
    at any time: the next one continues.

    Args:
        directory: the journal's.
        url: the journal's place in the store, such as ``s3://bucket/journal``. Any protocol of fsspec whose package is
            installed; credentials come from its own configuration and environment.
        delete: delete each segment here once the store has it.
        progress: called after each segment with how many are done, and with the number of all.

    Returns:
        What was done. A segment that can't be read here is named there, and does not stop the others.

    Raises:
        ConfigurationError: fsspec or the protocol's package is missing, the protocol is unknown, ``url`` has none, or
            it is the journal's own directory.
        OSError: the directory can't be read.
        ShipmentError: the store refused something, or could not be reached.
    """
    done = Shipped()
    found = segments(directory)
    store = _Store(url, done)
    if store.is_at(Path(directory)):
        raise ConfigurationError("the store is the journal's own directory: give another one")
    held: dict[str, int] = {}
    day = None
    for number, path in enumerate(found, 1):
        if path.parent.name != day:  # they come day by day
            day = path.parent.name
            held = store.sizes(day)
        try:
            _shipped(path, store, held, delete, done)
        except OSError as error:
            done.failed[path] = error.strerror or str(error)
        if progress is not None:
            progress(number, len(found))
    return done


def _shipped(path: Path, store: _Store, held: dict[str, int], delete: bool, done: Shipped) -> None:
    """Ship one segment. Raises `OSError` for what failed on this side alone."""
    with path.open("rb") as segment:  # what can't be read here is not the store's fault
        size = os.fstat(segment.fileno()).st_size
    if held.get(path.name) == size:
        done.present += 1
    else:
        store.put(path, size)
        done.segments.append(path)
        done.bytes += size
    if delete:
        path.unlink()
        done.deleted += 1


class _Store:
    """A folder of a file system of fsspec, with `ShipmentError` for its errors: each package has its own exceptions."""

    def __init__(self, url: str, done: Shipped) -> None:
        protocol, separator, rest = url.partition("://")
        if not separator or not rest:
            raise ConfigurationError("the store is not a URL: give one such as s3://bucket/journal")
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            raise ConfigurationError(
                "shipping needs fsspec: install it with: pip install 'pairmq[ship]', and the store's, such as s3fs"
            ) from None
        self._done = done
        login, at, _ = rest.partition("@")
        self._secret = login if at else None
        self._atomic = protocol in _ATOMIC
        try:
            self._files, root = url_to_fs(url)
        except (ImportError, ValueError) as error:  # fsspec says which package, or that it knows no such protocol
            raise ConfigurationError(f"can't use a store at {protocol}://: {self._plain(error)}") from error
        except Exception as error:
            raise self._problem("open the store", error) from error
        self._root = str(root).rstrip("/")

    def is_at(self, folder: Path) -> bool:
        """Whether it is a local directory, by whatever path."""
        with contextlib.suppress(OSError):
            return "file" in self._files.protocol and os.path.samefile(self._root, folder)
        return False

    def sizes(self, day: str) -> dict[str, int]:
        """The size of each segment that the store has of a day."""
        try:
            listed = self._listed(day)
        except Exception as error:
            raise self._problem(f"list {day}", error) from error
        sizes = {str(each["name"]).rpartition("/")[2]: each["size"] for each in listed}
        for name in sizes:
            # Uploads that were interrupted: their segments are whole by now.
            if name.startswith("_") and name[1:].rpartition(".")[0] in sizes:
                with contextlib.suppress(Exception):  # readers leave it out, and the next shipment tries again
                    self._files.rm_file(self._path(day, name))
        return sizes

    def put(self, path: Path, size: int) -> None:
        """Upload a segment, and see that all of it has arrived."""
        day = path.parent.name
        target = self._path(day, path.name)
        # Readers leave out what begins with an underscore.
        first = target if self._atomic else self._path(day, f"_{path.name}.{secrets.token_hex(4)}")
        try:
            if not self._atomic:  # those have no folders, and would make a misspelt bucket
                self._files.makedirs(self._path(day), exist_ok=True)
            self._files.put_file(str(path), first)
            self._files.invalidate_cache()
            held = self._files.info(first)["size"]
            if held != size:
                raise EOFError(f"it has {held} bytes of {size}")
            if first != target:
                self._files.mv(first, target)
        except Exception as error:
            # Another shipment may have uploaded it at the same time, and removed what this one began.
            if self._has(day, path.name, size):
                return
            raise self._problem(f"upload {path.name}", error) from error

    def _has(self, day: str, name: str, size: int) -> bool:
        try:
            return any(str(each["name"]).endswith(f"/{name}") and each["size"] == size for each in self._listed(day))
        except Exception:
            return False  # what it was asked for is worth reporting, and this is not

    def _listed(self, day: str) -> list[dict[str, Any]]:
        self._files.invalidate_cache()  # others write there, too
        try:
            found: list[dict[str, Any]] = self._files.ls(self._path(day), detail=True)
        except FileNotFoundError:
            return []
        return found

    def _path(self, *names: str) -> str:
        return "/".join((self._root, *names))

    def _problem(self, doing: str, error: Exception) -> ShipmentError:
        return ShipmentError(f"can't {doing}: {self._plain(error)}", self._done)

    def _plain(self, error: Exception) -> str:
        """The first line of an error, without the login in the URL."""
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        return text.replace(self._secret, "…") if self._secret else text
