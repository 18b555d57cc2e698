"""Parts: what was journalled and is not yet a segment, in files that a killed process leaves behind readable.

A part is a row of frames, each with its length and a checksum. The first says whose it is; each further one is a batch
of rows as an Arrow stream of its own, with the columns that it has. A frame is written by one call, so that a process
that is killed leaves whole frames, and at most one torn one at the end, which the checksum finds.

What may write to a part, or make a segment of it, holds a lock on the file. The kernel lets go of it when the
process ends, however it ends: a part that can be locked is a part whose owner is dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pairmq.observe.journal import _layout

_FRAME = struct.Struct("<4sII")  # magic, length, checksum
_MAGIC = b"PMQ1"
_LONGEST = 1 << 30
_LONGEST_HEAD = 1 << 16

_held: weakref.WeakSet[Part] = weakref.WeakSet()


class DamagedPart(Exception):
    """A part's head can't be read, or does not match the file's name."""


@dataclass(frozen=True, slots=True)
class Head:
    """A part's own description; process and number are as in the file's name."""

    process: str
    host: str
    number: int
    schema_version: int
    version: str
    sample_healthy: float


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch being written to a part, the number of its first row, and how many bytes the rows take in memory."""

    data: bytes
    first_seq: int
    rows: int
    size: int


class Part:
    """An open part, locked; opened for reading alone if nothing is to be added."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.rows = 0
        self.size = 0
        self._descriptor = descriptor
        self._length = 0
        _held.add(self)

    @classmethod
    def create(cls, directory: Path, head: Head, *, sync: bool) -> Part:
        """Make a part, with its head in it; ``sync`` waits until its name is on the disk."""
        path = _layout.part_path(directory, head.process, head.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            part = cls(path, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if not _is_named(descriptor, path):
                    # A recovery found it empty and not yet locked, and removed it: try again.
                    part.close()
                    continue
                part._append(_framed(json.dumps(asdict(head)).encode()), sync=False)
                if sync:
                    _layout.sync_directory(path.parent)
                    _layout.sync_directory(directory)  # the folder of the parts may be new
            except BaseException:
                part.remove()
                raise
            return part

    @classmethod
    def adopt(cls, path: Path) -> Part | None:
        """Open a part whose owner is dead; None if it is locked or gone. Raises `OSError` for another user's."""
        try:
            descriptor = _opened(path)
        except FileNotFoundError:
            return None
        part = cls(path, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another one may have finished it between the two calls.
            if _is_named(descriptor, path):
                return part
        except BlockingIOError:
            pass
        except BaseException:
            part.close()
            raise
        part.close()
        return None

    @classmethod
    def mark(cls, path: Path) -> Part:
        """Make an empty file that is held like a part: it needs no room on the disk. Raises `OSError`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Under its name only when it is locked: a recovery would take it for the mark of a dead process.
        aside = _layout.mark_aside(path)
        part = cls(aside, os.open(aside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        try:
            fcntl.flock(part._descriptor, fcntl.LOCK_EX)
            part.rename(path)
        except BaseException:
            part.remove()
            raise
        return part

    def rename(self, path: Path) -> None:
        self.path.rename(path)
        self.path = path

    def append(self, frame: Frame, *, sync: bool) -> None:
        """Hand a frame to the operating system, and ``sync`` it; after an `OSError` no other one may come before it."""
        self._append(frame.data, sync=sync)
        self.rows += frame.rows
        self.size += frame.size

    def _append(self, data: bytes, *, sync: bool) -> None:
        # At its offset, not at the end: overwrites what a failed attempt had written.
        view, offset = memoryview(data), self._length
        while view:
            written = write(self._descriptor, view, offset)
            view, offset = view[written:], offset + written
        if sync:
            getattr(os, "fdatasync", os.fsync)(self._descriptor)  # macOS has the slower one alone
        self._length += len(data)

    def head(self) -> Head:
        """Read the head alone. Raises as `read`."""
        payload = next(_payloads(os.pread(self._descriptor, _LONGEST_HEAD, 0)), None)
        if payload is None:
            raise DamagedPart("it has no head")
        return _head(self.path, payload)

    def read(self) -> Contents:
        """Read what is there, up to the first frame that is torn."""
        # By the descriptor: the rows exist even if the file was deleted.
        data = _read_all(self._descriptor)
        payloads = list(_payloads(data))
        if not payloads:
            raise DamagedPart("it has no head")
        length = sum(_FRAME.size + len(payload) for payload in payloads)
        batches = []
        for payload in payloads[1:]:
            with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
                batches += list(reader)
        return Contents(_head(self.path, payloads[0]), batches, len(data) - length)

    @property
    def is_deleted(self) -> bool:
        """Whether its file was deleted: its rows last as long as this object then."""
        return os.fstat(self._descriptor).st_nlink == 0

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let go of it: what is there is left to be recovered. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        _held.discard(self)
        if descriptor >= 0:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a part; ``torn`` bytes at the end are not a complete frame."""

    head: Head
    batches: list[pa.RecordBatch]
    torn: int


def write(descriptor: int, data: memoryview, offset: int) -> int:
    """Write at a place of a file; the one call by which a batch leaves the process."""
    return os.pwrite(descriptor, data, offset)


def frame_of(batch: pa.RecordBatch, first_seq: int) -> Frame:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Frame(_framed(sink.getvalue().to_pybytes()), first_seq, batch.num_rows, batch.nbytes)


def forget_inherited() -> None:
    """In a forked child: close the parent's parts, whose locks it would keep alive, and touch nothing of them."""
    for part in list(_held):
        part.close()


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        # Another user's, whose file may be read: on a local disk that is enough to lock it. NFS locks for writers only.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _framed(payload: bytes) -> bytes:
    return _FRAME.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload


def _payloads(data: bytes) -> Iterator[memoryview]:
    offset, view = 0, memoryview(data)
    while offset + _FRAME.size <= len(data):
        magic, length, checksum = _FRAME.unpack_from(data, offset)
        offset += _FRAME.size
        payload = view[offset : offset + length]
        if magic != _MAGIC or length > _LONGEST or len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield payload
        offset += length


def _head(path: Path, payload: memoryview) -> Head:
    """Read a head. Names come from the file's name, which the head must match."""
    try:
        values: Any = json.loads(bytes(payload))
        head = Head(**values)
    except (ValueError, TypeError) as error:
        raise DamagedPart(f"its head can't be read: {error}") from None
    if (head.process, head.number) != _layout.parse_part(path):
        raise DamagedPart("its head belongs to another part")
    return head


def _read_all(descriptor: int) -> bytes:
    blocks, offset = [], 0
    while block := os.pread(descriptor, 1 << 20, offset):
        blocks.append(block)
        offset += len(block)
    return b"".join(blocks)
