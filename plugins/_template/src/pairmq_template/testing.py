"""The harness: how the conformance suite makes a broker of this kind, stops it and restores it."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path

from pairmq.testing.conformance import Harness, Interruption


class TemplateHarness(Harness):
    """A file in a temporary directory, a new one for each test.

    There is no server to be killed or paused. The nearest failures that really happen are these: *STOP*, the disk is
    unmounted, so that the file's directory is missing; *FREEZE*, another process keeps the file's lock; *no writes*,
    the disk has turned read-only, which a trigger imitates.
    """

    lock_duration = 1.5
    in_process = True

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="pairmq-template-"))
        self._number = 0
        self._lock: sqlite3.Connection | None = None
        self._refuses = False

    async def make(self) -> str:
        """Make a directory; the first call makes the file."""
        await self.restore()
        self._number += 1
        self._disk.mkdir()
        return f"template://{self._file}"

    async def interrupt(self, how: Interruption) -> None:
        """Unmount the disk, or keep the lock."""
        if how is Interruption.STOP:
            self._disk.rename(self._unmounted)
            self._unlock()
        else:
            self._lock = sqlite3.connect(self._file, isolation_level=None, timeout=10)
            self._lock.execute("BEGIN IMMEDIATE")

    async def refuse_writes(self) -> bool:
        """Forbid every write of a message."""
        with contextlib.closing(sqlite3.connect(self._file)) as connection:
            connection.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON message BEGIN SELECT RAISE(ABORT, 'the disk is read-only'); END"
            )
        self._refuses = True
        return True

    async def restore(self) -> None:
        """Mount the disk again, release the lock, or allow writes."""
        self._unlock()
        if self._unmounted.exists():
            self._unmounted.rename(self._disk)
        if self._refuses:
            self._refuses = False
            with contextlib.closing(sqlite3.connect(self._file)) as connection:
                connection.execute("DROP TRIGGER refuse")

    def close(self) -> None:
        """Remove all files."""
        self._unlock()
        shutil.rmtree(self._root)

    @property
    def _disk(self) -> Path:
        return self._root / f"disk-{self._number}"

    @property
    def _unmounted(self) -> Path:
        return self._root / f"unmounted-{self._number}"

    @property
    def _file(self) -> Path:
        return self._disk / "broker.db"

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
