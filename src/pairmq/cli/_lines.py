"""Reads a file or standard input in pieces that end at a separator, without holding up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Iterator

from pairmq.cli._output import is_closed
from pairmq.cli._values import BadUsage, CommandFailed, file_problem

MAX_LINE = 64 * 1024 * 1024
"""Longest line in bytes: more than any broker takes, so that a file without line ends can't fill the memory."""

_BLOCK = 256 * 1024
_AHEAD = 4  # blocks read and not yet taken


class LineSource:
    """The lines of one input, read in a thread that can be left behind while it waits for a terminal or a pipe."""

    def __init__(self, path: str, separator: bytes = b"\n") -> None:
        self.name = "standard input" if path == "-" else path
        self._separator = separator
        try:
            if path == "-" and is_closed(sys.stdin):
                raise OSError(errno.EBADF, "it is closed")
            self._descriptor = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self.identity = file_identity(status)
            self.size = status.st_size if stat.S_ISREG(status.st_mode) else None  # others have no end to know of
        except OSError as error:
            raise BadUsage(f"can't read {file_problem(self.name, error)}") from None
        self._blocks: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._stopped = False

    def stop(self) -> None:
        """End the iteration: nothing more is taken from the input."""
        self._stopped = True
        self._blocks.put_nowait(None)

    async def blocks(self) -> AsyncGenerator[list[bytes], None]:
        """Some lines at a time, as they come. Raises `CommandFailed`, for one that is longer than `MAX_LINE` too."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._read, args=(loop,), name=f"reader of {self.name}", daemon=True)
        thread.start()
        try:
            while not self._stopped:
                block = await self._blocks.get()
                if block is None:
                    return
                if isinstance(block, Exception):
                    raise block
                self._room.release()
                yield block
        finally:
            self._stopped = True
            self._room.release()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        # The loop may be gone by the time that a blocked read returns.
        with contextlib.suppress(RuntimeError):
            try:
                for lines in self._split():
                    loop.call_soon_threadsafe(self._blocks.put_nowait, lines)
                    self._room.acquire()
                    if self._stopped:
                        return
                loop.call_soon_threadsafe(self._blocks.put_nowait, None)
            except OSError as error:
                failed = CommandFailed(f"can't read {file_problem(self.name, error)}")
                loop.call_soon_threadsafe(self._blocks.put_nowait, failed)
            except CommandFailed as error:
                loop.call_soon_threadsafe(self._blocks.put_nowait, error)

    def _split(self) -> Iterator[list[bytes]]:
        parts: list[bytes] = []  # of a line that has not ended yet
        length = 0
        while block := os.read(self._descriptor, _BLOCK):
            first, *more = block.split(self._separator)
            parts.append(first)
            length += len(first)
            if length > MAX_LINE:
                raise CommandFailed(f"can't read {self.name}: its next line is longer than {MAX_LINE >> 20} MiB")
            if more:
                *lines, rest = more
                yield [b"".join(parts), *lines]
                parts, length = [rest], len(rest)
        if length:
            yield [b"".join(parts)]


def file_identity(status: os.stat_result) -> tuple[int, int] | None:
    """The identity of a regular file; None for anything else, which can't be overwritten."""
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
