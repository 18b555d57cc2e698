"""A directory of numbered segments: what was taken from a broker and is not yet in Spark's hands.

A segment gets its name when its bytes are on the disk, and never changes afterwards: a query that reads numbers 3 to 5
again reads the same rows again. Numbers only grow. They outlive their segments in the file ``floor``, or a new query on
an emptied spool would give a number twice. The spool has an id, which is in every offset: a checkpoint that meets
another spool gets an error, instead of that one's segments.

Files: ``spool.json`` (id and source), ``lock``, ``floor`` (the lowest number that may exist), and
``<number>-<rows>.arrow``. What begins with a dot was never finished.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from pairmq.model import ConfigurationError, PairMQError
from pairmq.pipeline._storage import locked, put_text, sync
from pairmq.pipeline.datasource._rows import ARROW_SCHEMA

_FORMAT: Final = 1
_NAME: Final = re.compile(r"([0-9]{12,18})-([0-9]{1,9})\.arrow")


class SpoolError(PairMQError):
    """The spool is not what its checkpoint says, or is damaged; the text says what to do."""


class SpoolInUse(ConfigurationError):
    """Another query has the spool."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the spool."""

    number: int  # its place in the order
    rows: int  # messages in it

    @property
    def name(self) -> str:
        return f"{self.number:012d}-{self.rows}.arrow"


class Spool:
    """A spool as its one owner sees it, in a directory that driver and executors share; never used for two sources.

    It waits some seconds for the lock of another process, which may be exiting, before it raises `SpoolInUse`.
    """

    def __init__(self, directory: Path, source: str, *, patience: float = 20.0) -> None:
        self._directory = directory
        # Message bodies may be confidential.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock = locked(directory / "lock", str(os.getpid()), patience)
        except BlockingIOError as held:
            raise SpoolInUse(
                f"spool {directory} is in use by process {held.strerror or 'unknown'}: stop that query, or give each "
                "query its own spool"
            ) from None
        try:
            self.id = self._identity(source)
            for path in directory.glob(".*.part"):
                path.unlink(missing_ok=True)
            self._floor = self._read_floor()
        except BaseException:
            self.close()
            raise

    @property
    def first(self) -> int:
        """The number that a new query starts with: it gets everything that no earlier one has committed."""
        return min((segment.number for segment in self.segments(self._floor)), default=self._floor)

    def segments(self, start: int = 0) -> list[Segment]:
        """What is there from a number on, by number."""
        found = []
        for entry in os.scandir(self._directory):
            match = _NAME.fullmatch(entry.name)
            if match is not None and int(match[1]) >= start:
                found.append(Segment(int(match[1]), int(match[2])))
        return sorted(found, key=lambda segment: segment.number)

    def append(self, batch: pa.RecordBatch, start: int) -> Segment:
        """Write a segment, whose number is at least the start, and return when it is synced to the disk."""
        last = max((segment.number for segment in self.segments()), default=-1)
        segment = Segment(max(last + 1, start, self._floor), batch.num_rows)
        part = self._directory / f".{segment.name}.part"
        try:
            with _created(part) as descriptor, pa.OSFile(str(part), "wb") as sink:
                with pa.ipc.new_file(sink, ARROW_SCHEMA) as writer:
                    writer.write_batch(batch)
                sink.flush()
                os.fsync(descriptor)
            part.rename(self._directory / segment.name)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        sync(self._directory)
        return segment

    def discard(self, end: int) -> None:
        """Delete the segments before a number, which Spark has committed."""
        if end > self._floor:
            put_text(self._directory / "floor", f"{end}\n")
            self._floor = end
        for segment in self.segments():
            if segment.number < end:
                (self._directory / segment.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the lock; idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _identity(self, source: str) -> str:
        path = self._directory / "spool.json"
        try:
            document = json.loads(path.read_text("utf-8"))
            format_, id_, kept = document["format"], document["id"], document["source"]
        except FileNotFoundError:
            if self.segments():
                raise ConfigurationError(
                    f"spool {self._directory} has segments and no spool.json: it is damaged"
                ) from None
            id_ = secrets.token_hex(8)
            put_text(path, json.dumps({"format": _FORMAT, "id": id_, "source": source}) + "\n")
            return id_
        except (ValueError, LookupError, TypeError):
            raise ConfigurationError(f"spool {self._directory}: spool.json is damaged") from None
        if format_ != _FORMAT or not isinstance(id_, str):
            raise ConfigurationError(f"spool {self._directory} was made by another version of PairMQ")
        if kept != source:
            raise ConfigurationError(
                f"spool {self._directory} holds messages of {kept}, not of {source}: give each query its own spool"
            )
        return id_

    def _read_floor(self) -> int:
        try:
            text = (self._directory / "floor").read_text("ascii").strip()
        except FileNotFoundError:
            return 0
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise ConfigurationError(f"spool {self._directory}: its file floor is damaged")
        return int(text)


def read_segment(directory: Path, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Read a segment, in any process that sees the directory; raises `SpoolError`."""
    path = directory / segment.name
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
            batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    except FileNotFoundError:
        raise SpoolError(
            f"spool {directory} has no {segment.name}: every executor must see the driver's spool under this name, and "
            "only the query may remove files from it"
        ) from None
    except (OSError, pa.ArrowInvalid) as error:
        raise SpoolError(f"segment {path} can't be read: {error}") from None
    if sum(batch.num_rows for batch in batches) != segment.rows:
        raise SpoolError(f"segment {path} is damaged: it does not hold {segment.rows} rows")
    # What an earlier Spark wrote may differ in how Arrow puts the same values.
    yield from (batch if batch.schema.equals(ARROW_SCHEMA) else batch.cast(ARROW_SCHEMA) for batch in batches)


@contextlib.contextmanager
def _created(path: Path) -> Iterator[int]:
    """A new file that only its owner may read."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
