"""The journals of this process: written out when it ends, and begun anew when it forks."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Protocol

from pairmq.observe.journal._part import forget_inherited

_log = logging.getLogger("pairmq")

_EXIT = 10.0  # s that the end of the process waits for its journals, all together


class Living(Protocol):
    """A journal, as far as its life and that of the process go together."""

    @property
    def directory(self) -> Path:
        """Where it writes."""

    def begin_anew(self) -> None:
        """Be the journal of a forked child."""

    def flush(self, timeout: float | None = None) -> bool:
        """Write what is there."""

    def close(self, timeout: float | None = None) -> bool:
        """End it."""


_journals: weakref.WeakSet[Living] = weakref.WeakSet()
_in_child: list[Callable[[], None]] = []


def enlist(journal: Living) -> None:
    _journals.add(journal)


def in_child(action: Callable[[], None]) -> None:
    """Call ``action`` in every forked child, before its journals begin anew."""
    _in_child.append(action)


def close_all(timeout: float = _EXIT) -> None:
    """Close every journal of the process, within ``timeout`` seconds for all together."""
    ends_at = time.monotonic() + timeout
    for journal in list(_journals):
        if not journal.close(max(0.0, ends_at - time.monotonic())):
            _log.error(
                "journal: %s was not written in %g s: what is buffered for it is lost", journal.directory, timeout
            )


def flush_on_sigterm(timeout: float = _EXIT) -> None:
    """Write the journals out when SIGTERM comes, then do what would have been done without this.

    Where the signal's default was in force the journals are closed and the process ends by the signal, as before; a
    handler of the program's own is called after its journals were flushed. Without this function nothing is lost but
    the last ``flush_interval``: the parts that a process leaves behind are recovered. Programs whose event loop has a
    handler of its own need it not: leave the pair in good order instead.

    Args:
        timeout: seconds for all journals together.

    Raises:
        ValueError: not called in the main thread.
    """
    previous = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        if callable(previous):
            _flush_all(timeout)
            previous(number, frame)
        elif previous == signal.SIG_IGN:
            _flush_all(timeout)
        else:
            close_all(timeout)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)


def _flush_all(timeout: float) -> None:
    ends_at = time.monotonic() + timeout
    for journal in list(_journals):
        journal.flush(max(0.0, ends_at - time.monotonic()))


def _after_fork() -> None:
    forget_inherited()
    for action in _in_child:
        action()
    for journal in list(_journals):
        journal.begin_anew()


atexit.register(close_all)
os.register_at_fork(after_in_child=_after_fork)
