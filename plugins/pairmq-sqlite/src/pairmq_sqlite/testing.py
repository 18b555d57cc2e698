"""The harness: how the conformance suite makes a broker of this kind, takes it away and brings it back."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from pairmq.testing.conformance import Harness, Interruption

_REFUSAL = "conformance_refuses"


class FileLock:
    """Another user of the file who has its write lock and keeps it.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        """Give the lock back; idempotent."""
        self._connection.close()


class SQLiteHarness(Harness):
    """Files in a temporary directory, a new one for every test.

    There is no server that could be stopped. The nearest faults that do happen:

    - *STOP*: the disk is unmounted. The file's directory is renamed, so that neither the file nor a way to create
      a new one is left; a process that has it open finds that it is not at its path.
    - *No writes*: a trigger on each table refuses them, as a disk that was mounted read-only does.
    - *FREEZE*: a process keeps the write lock and does not go on. This transport does everything under that lock, so
      that no call succeeds.
    """

    lock_duration = 1.5  # SQLite keeps to any; a busy machine needs time to renew one
    in_process = True

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="pairmq-sqlite-"))
        self._made = 0
        self._lock: FileLock | None = None
        self._refuses = False

    async def make(self) -> str:
        """Make a directory; the first transport makes the file."""
        await self.restore()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._made += 1
        self._directory.mkdir()
        return f"sqlite://{quote(str(self.path))}?poll_interval=0.1"

    async def interrupt(self, how: Interruption) -> None:
        if how is Interruption.STOP:
            self._directory.rename(self._away)
            self._release()  # not before: a call that waits for the lock could succeed in between
        else:
            self._lock = FileLock(self.path)

    async def refuse_writes(self) -> bool:
        """Forbid every write to every table, by triggers; the file must have been used before."""
        self._run(
            f"CREATE TRIGGER {_REFUSAL}_{table}_{change} BEFORE {change} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'the disk is read-only'); END"
            for table in self._named("table")
            for change in ("INSERT", "UPDATE", "DELETE")
        )
        self._refuses = True
        return True

    async def restore(self) -> None:
        """Mount it again, give the lock back, or allow writes."""
        self._release()
        if self._away.exists():
            self._away.rename(self._directory)
        if self._refuses:
            self._refuses = False
            self._run(f"DROP TRIGGER {name}" for name in self._named("trigger") if name.startswith(_REFUSAL))

    def close(self) -> None:
        self._release()
        shutil.rmtree(self._root)

    @property
    def path(self) -> Path:
        """The file that the last `make` was about."""
        return self._directory / "broker.db"

    @property
    def _directory(self) -> Path:
        return self._root / f"disk-{self._made}"

    @property
    def _away(self) -> Path:
        return self._root / f"disk-{self._made}-away"

    def _named(self, kind: str) -> list[str]:
        query = "SELECT name FROM sqlite_master WHERE type = ? AND name NOT LIKE 'sqlite_%'"
        with contextlib.closing(sqlite3.connect(self.path, timeout=10)) as connection:
            return [name for (name,) in connection.execute(query, (kind,))]

    def _run(self, statements: Iterable[str]) -> None:
        with contextlib.closing(sqlite3.connect(self.path, timeout=10)) as connection:
            connection.executescript("".join(f"{statement};\n" for statement in statements))

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
