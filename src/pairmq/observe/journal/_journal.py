"""The journal of a process: takes events from its pairs, and a thread writes them.

What a send waits for is one append to a queue. The queue is bounded: when the disk is slow, what reports an event waits
for room, and when it fails, or hangs, events are dropped and counted, as nothing that watches may stop a send.

All pairs of a process that are given the same directory share one journal.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pairmq._version import version
from pairmq.core import Backoff
from pairmq.model import ConfigurationError, PairMQError
from pairmq.model.events import Event, EventsDropped, JournalClosed, JournalOpened
from pairmq.observe.journal import _layout
from pairmq.observe.journal._options import JournalOptions
from pairmq.observe.journal._part import Frame, forget_inherited
from pairmq.observe.journal._segments import Compactor
from pairmq.observe.journal._writer import Writer

_log = logging.getLogger("pairmq")

_AT_ONCE = 10_000  # rows of one batch
_BACKOFF = Backoff(first=0.1, factor=2.0, cap=5.0)
_EXIT = 10.0  # s that the end of the process waits for its journals, all together


class JournalClosedError(PairMQError):
    """An event came after the journal was closed."""


class Journal:
    """Keeps events in a directory. One serves any number of pairs, threads and event loops; it belongs to none.

    Many processes may share the directory. A forked child that inherits a journal begins a run of its own: nothing of
    its parent's is written by it. Nothing is made before the first event but the directory itself.

    Args:
        directory: made if it is missing; on a local disk.
        options: how it behaves.

    Raises:
        ConfigurationError: the directory can't be created or written to, or is a URL; says why.
    """

    def __init__(self, directory: str | os.PathLike[str], options: JournalOptions | None = None) -> None:
        self._directory = _layout.directory_of(directory)
        self._options = options or JournalOptions()
        try:
            (self._directory / _layout.OPEN).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"journal directory {self._directory}: {error.strerror or error}") from None
        if not os.access(self._directory / _layout.OPEN, os.W_OK | os.X_OK):
            raise ConfigurationError(f"journal directory {self._directory}: it is not writable")
        self.begin_anew()
        _journals.add(self)

    def begin_anew(self) -> None:
        """Be new: at first, and in a forked child, where no thread but the caller's has come along."""
        self._run = _layout.this_run(time.time())
        # Re-entrant, as a signal's handler may close the journal in the middle of anything.
        self._changed = threading.Condition()
        self._buffer: deque[Event] = deque()
        self._most = self._options.max_buffered
        self._thread: threading.Thread | None = None
        self._compactor = Compactor(self._directory, self._options.compression, self._lose)
        self._writer = Writer(self._directory, self._run, self._options, self._compactor.add)
        self._asleep = True
        self._hurry = self._closing = self._closed = False
        self._failing = self._stalled = False
        self._frame: Frame | None = None
        self._retry = 0
        self._taken = self._written = 0
        self._dropped = self._unreported = self._reporting = 0
        self._dropped_since = self._failed_at = 0.0

    @property
    def directory(self) -> Path:
        """Where it writes."""
        return self._directory

    @property
    def options(self) -> JournalOptions:
        """How it behaves."""
        return self._options

    @property
    def process(self) -> str:
        """The name of this run of the process, as its rows carry it."""
        return self._run.name

    @property
    def dropped(self) -> int:
        """Events that it could not keep."""
        return self._dropped

    # What pairs call. `on_event` is on the path of every send.

    def on_event(self, event: Event) -> None:
        """Take an event.

        Waits while the buffer is full (``on_full="wait"``), for ``stall_timeout`` at most, and then drops it.

        Raises:
            JournalClosedError: the journal is closed.
        """
        buffer = self._buffer
        if len(buffer) >= self._most and not self._make_room():
            return
        buffer.append(event)
        if self._asleep:
            self._rouse()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was taken so far is in the operating system's hands.

        Args:
            timeout: seconds; None for no limit.

        Returns:
            Whether it is; not in time, or while the disk fails, False.
        """
        with self._changed:
            wanted = self._taken + len(self._buffer)
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._written >= wanted or self._failing, timeout)
            return self._written >= wanted

    def close(self, timeout: float | None = None) -> bool:
        """Write what is there, make segments of it, and take nothing more. Idempotent.

        Args:
            timeout: seconds; None for no limit.

        Returns:
            Whether it ended in time; if not it goes on, and another call waits again. What could not become a segment
            is left for `recover`.
        """
        with self._changed:
            self._closing = True
            self._most = -1  # everything now takes the slow path, which refuses it
            self._changed.notify_all()
            if self._thread is None:
                self._abandon(None)
                self._writer.leave_mark()
                self._closed = True
            # Not by joining the thread: a signal's handler may have interrupted us with this lock in our hand, which
            # the thread needs; waiting lets go of it however often it was taken.
            return self._changed.wait_for(lambda: self._closed, timeout)

    def __repr__(self) -> str:
        return f"Journal({str(self._directory)!r})"

    def _make_room(self) -> bool:
        """Wait for room as the options say; False when the event is dropped."""
        with self._changed:
            if self._closing:
                raise JournalClosedError(f"the journal in {self._directory} is closed")
            if self._thread is None:
                self._rouse()
            if self._options.on_full == "wait" and not self._failing and not self._stalled:
                self._hurry = True
                self._changed.notify_all()
                if not self._changed.wait_for(self._has_room_or_fails, self._options.stall_timeout):
                    self._stalled = True
                    _log.error(
                        "journal: the disk of %s does not respond; events are dropped and counted", self._directory
                    )
            if len(self._buffer) < self._most:
                return True
            self._drop(1, time.time())
            return False

    def _has_room_or_fails(self) -> bool:
        return len(self._buffer) < self._most or self._failing or self._closing

    def _drop(self, count: int, at: float) -> None:
        if not self._unreported:
            self._dropped_since = at
        self._unreported += count
        self._dropped += count

    def _rouse(self) -> None:
        with self._changed:
            if self._thread is None and not self._closing and not self._began():
                return
            self._asleep = False
            self._changed.notify_all()

    def _began(self) -> bool:
        """Start the thread; if the system refuses, the next event tries again, and no caller waits for room."""
        # A daemon: one that were not would be waited for before the handlers of `atexit` run, forever.
        thread = threading.Thread(target=self._work, name="journal", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._failing:
                _log.error("journal: %s can't be written: %s; trying again", self._directory, error)
            self._failing = True
            return False
        self._thread = thread
        return True

    # The thread.

    def _work(self) -> None:
        self._compactor.start()
        self._write_rows([self._opened()])
        while self._gather():
            if self._frame is not None:
                self._write_frame()
            else:
                self._take()
            self._writer.finish_if_due()
        self._end()

    def _gather(self) -> bool:
        """Wait until there is something to do, and for more of it to come; False when all is done."""
        with self._changed:
            if self._frame is not None:
                # The disk fails: one last attempt at the end.
                self._changed.wait_for(lambda: self._closing, _BACKOFF.wait(self._retry, 0.5))
                return True
            self._asleep = True
            while not self._buffer and not self._closing:
                due_in = self._writer.due_in
                if due_in == 0:
                    break
                self._changed.wait(due_in)
            self._asleep = False
            self._changed.wait_for(lambda: self._hurry or self._closing, self._options.flush_interval)
            self._hurry = False
            return bool(self._buffer) or not self._closing

    def _take(self) -> None:
        buffer = self._buffer
        with self._changed:
            rows = [buffer.popleft() for _ in range(min(len(buffer), _AT_ONCE))]
            self._taken += len(rows)
            self._stalled = False
            self._changed.notify_all()
        if rows:
            self._write_rows(rows)

    def _write_rows(self, rows: list[Event]) -> None:
        with self._changed:
            unreported, self._unreported = self._unreported, 0
        self._reporting = unreported
        if unreported:
            self._writer.skip(unreported)
            rows.insert(0, EventsDropped(at=time.time(), pair="", count=unreported, since=self._dropped_since))
        try:
            self._frame = self._writer.frame(rows)
        except Exception:
            # Never seen: every value fits some column. But a journal that stops is worse than one with a gap.
            _log.exception("journal: %d events could not be written", len(rows))
            with self._changed:
                self._drop(len(rows), time.time())
        if self._frame is None:
            self._settle()
        else:
            self._write_frame()

    def _write_frame(self) -> None:
        frame = self._frame
        assert frame is not None  # noqa: S101  # the caller has looked
        try:
            self._writer.write(frame)
        except Exception as error:
            # Any error: without its thread the journal would block every reporter of an event.
            self._retry += 1
            if not self._failing:
                self._failed_at = time.time() - self._options.flush_interval
                unknown = None if isinstance(error, OSError) else error
                _log.error("journal: %s can't be written: %s; trying again", self._directory, error, exc_info=unknown)
                self._mark_loss(frame, self._rows_of(frame) + self._reporting, dropped=None)
            with self._changed:
                self._failing = True
                if self._closing:
                    self._abandon(frame)
                    self._frame = None
                self._changed.notify_all()
        else:
            self._reporting = 0
            if self._failing:
                self._writer.unmark_loss()
                _log.warning("journal: %s is writable again; events dropped: %d", self._directory, self._dropped)
            self._retry = 0
            self._frame = None
            self._failing = False
            self._settle()

    def _rows_of(self, frame: Frame | None) -> int:
        """Events in a frame: the row that reports dropped ones does not count."""
        return 0 if frame is None else frame.rows - bool(self._reporting)

    def _abandon(self, frame: Frame | None) -> None:
        """The journal closes, and can't write: this frame and what waits are lost, and counted."""
        lost = self._rows_of(frame) + len(self._buffer)
        if lost:
            self._drop(lost, time.time())
            self._buffer.clear()
        unwritten = self._unreported + self._reporting
        if unwritten:
            self._mark_loss(frame, unwritten, dropped=self._dropped)
            _log.error("journal: closed with %d events unwritten, as %s fails", unwritten, self._directory)

    def _mark_loss(self, frame: Frame | None, count: int, *, dropped: int | None) -> None:
        """Let readers of the journal know of a loss, although the disk takes no rows."""
        now = time.time()
        first = None if frame is None else frame.first_seq - self._reporting
        # Where not even an empty file can be made, the log alone says it.
        with contextlib.suppress(OSError):
            self._writer.mark_loss(first, count, self._failed_at or now, now, dropped)

    def _lose(self, rows: int) -> None:
        """Count rows that were written and then deleted: their numbers are a gap already."""
        with self._changed:
            self._dropped += rows

    def _settle(self) -> None:
        with self._changed:
            self._written = self._taken
            self._changed.notify_all()

    def _end(self) -> None:
        if not self._failing:
            self._write_rows([JournalClosed(at=time.time(), pair="", dropped=self._dropped)])
            if self._dropped:
                _log.warning("journal: %s lacks %d events, which could not be written", self._directory, self._dropped)
        self._writer.finish()
        self._compactor.wait()
        self._writer.leave_mark()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _opened(self) -> JournalOpened:
        run = self._run
        return JournalOpened(
            at=time.time(),
            pair="",
            host=run.host,
            pid=run.pid,
            version=version(),
            sample_healthy=self._options.sample_healthy,
        )


_CLOSING = 1.5  # s that a closing pair waits: less than it gives its observers


class _Shared:
    """The journals that were asked for by their directory, and how many asked."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child: no user of these is in it."""
        self._lock = threading.Lock()
        self._journals: dict[Path, tuple[Journal, int]] = {}

    def take(self, path: Path, options: JournalOptions | None) -> Journal:
        with self._lock:
            journal, users = self._journals.get(path, (None, 0))
            if journal is None:
                journal = Journal(path, options)
            elif options is not None and journal.options != options:
                raise ConfigurationError(f"the journal in {path} is in use with other options: {journal.options}")
            self._journals[path] = journal, users + 1
            return journal

    def give_back(self, journal: Journal) -> bool:
        """Returns whether that was the last user."""
        with self._lock:
            known, users = self._journals.get(journal.directory, (None, 0))
            if known is not journal:
                return False
            if users <= 1:
                del self._journals[journal.directory]
            else:
                self._journals[journal.directory] = journal, users - 1
            return users <= 1


_shared = _Shared()


def shared_journal(directory: str | os.PathLike[str], options: JournalOptions | None = None) -> Journal:
    """Give this process's journal in a directory, made at the first call.

    It ends with the process, or with the last pair that names the directory, if no one else has asked for it.

    Args:
        directory: where.
        options: how it behaves, for the first call; later ones get what is there.

    Raises:
        ConfigurationError: as `Journal`, or the one that is there has other options.
    """
    return _shared.take(_layout.directory_of(directory), options)


class JournalObserver:
    """What a pair gives its events to.

    Args:
        journal: stays open when the pair closes; or a directory, whose journal closes with its last pair.

    Raises:
        ConfigurationError: as `Journal`.
    """

    def __init__(self, journal: Journal | str | os.PathLike[str]) -> None:
        self._asked = not isinstance(journal, Journal)
        self.journal = journal if isinstance(journal, Journal) else shared_journal(journal)

    @property
    def on_event(self) -> Callable[[Event], None]:
        """Takes an event: the journal's own method, one call less for each."""
        return self.journal.on_event

    async def close(self) -> None:
        """Write what is there, for 1.5 s at most; what is not done then goes on beside the program."""
        try:
            await asyncio.to_thread(self._close)
        except RuntimeError:
            # The interpreter is exiting and starts no threads. Nothing else is running that could be blocked.
            self._close()

    def _close(self) -> None:
        asked, self._asked = self._asked, False
        if asked and _shared.give_back(self.journal):
            self.journal.close(_CLOSING)
        else:
            self.journal.flush(_CLOSING)


# Written out when the process ends, and begun anew when it forks.

_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


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
    _shared.forget()
    for journal in list(_journals):
        journal.begin_anew()


atexit.register(close_all)
os.register_at_fork(after_in_child=_after_fork)
