"""Makes segments of finished parts in a thread of its own, so that no event waits for Parquet."""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path

import pyarrow as pa

from pairmq.observe.journal._options import Compression
from pairmq.observe.journal._part import DamagedPart, Part
from pairmq.observe.journal._recovery import recover
from pairmq.observe.journal._segments import make_segments

_log = logging.getLogger("pairmq")


class Compactor:
    """Takes parts one after another; its thread lives while there are any.

    A part whose segment can't be written (the disk is full) is let go of and stays on the disk. It is tried again,
    with whatever else was left behind, after the next part that works.

    Args:
        directory: the journal's.
        compression: of the segments.
    """

    def __init__(self, directory: Path, compression: Compression) -> None:
        self._directory = directory
        self._compression: Compression = compression
        self._parts: deque[Part] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._recovering = True  # at first: what other processes left
        self._failed = False

    def add(self, part: Part) -> None:
        """Make segments of a part soon."""
        with self._lock:
            self._parts.append(part)
        self.start()

    def start(self) -> None:
        """Begin, if there is anything to do: at first to recover what was left behind.

        Where the system gives no thread the parts stay as they are, and the next one tries again.
        """
        with self._lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="journal segments", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                _log.error("journal: the parts in %s stay as they are for now: %s", self._directory, error)
            else:
                self._thread = thread

    def wait(self) -> None:
        """Return when all parts are segments, or were let go of."""
        while (thread := self._thread) is not None:
            thread.join()

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
            make_segments(self._directory, part, self._compression)
        except (OSError, pa.ArrowException, DamagedPart) as error:
            part.close()
            if not self._failed:
                _log.error("journal: %s stays as it is for now: %s", part.path, error)
            self._failed = True
        except Exception:
            part.close()
            _log.exception("journal: %s stays as it is", part.path)
        else:
            self._recovering = self._recovering or self._failed
            self._failed = False

    def _recover(self) -> None:
        try:
            recover(self._directory, compression=self._compression)
        except Exception:
            _log.exception("journal: what was left behind in %s could not be recovered", self._directory)
