"""The one thread that touches the database, and the queue of jobs in front of it.

sqlite3 blocks, and in the event loop it would stop everybody: for as long as another process holds the file locked, if
need be. What waits at the same time shares one transaction, since what costs is the commit, which waits for the disk
(*group commit*). Each job stands behind a savepoint of its own and has an outcome of its own.

A job *begins* once the database is ours and the job is about to run. Until then it can be withdrawn, and whoever waits
for it knows for certain that nothing was done. From then on its outcome is in doubt until it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pairmq.transport import nothing_sent
from pairmq_sqlite import _errors
from pairmq_sqlite._database import Database
from pairmq_sqlite._errors import Closed, Failed
from pairmq_sqlite._store import Store
from pairmq_sqlite._url import SQLiteUrl

T = TypeVar("T")

_GROUP = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02


class _State(enum.Enum):
    WAITING = enum.auto()
    BEGUN = enum.auto()
    WITHDRAWN = enum.auto()


class Job(Generic[T]):
    """A piece of work, and the caller that waits for it.

    Args:
        work: what to do with the store, in a transaction.
        future: gets the outcome: a result, or `Failed`.
    """

    __slots__ = ("alone", "future", "since", "state", "work")

    def __init__(self, work: Callable[[Store], T], future: asyncio.Future[T | Failed]) -> None:
        self.work = work
        self.future = future
        self.since = time.monotonic()
        self.state = _State.WAITING
        self.alone = False

    def end(self, outcome: T | Failed) -> None:
        """Tell the outcome, unless one was told or nobody waits any more; in the event loop."""
        if not self.future.done():
            self.future.set_result(outcome)


class Worker:
    """Runs jobs on one database, in a thread of its own that starts with the first job.

    Args:
        url: which database, and how long to wait for its lock.
    """

    def __init__(self, url: SQLiteUrl) -> None:
        self._url = url
        # What both sides touch, and the condition that guards it, each job's state included.
        self._changed = threading.Condition()
        self._jobs: deque[Job[Any]] = deque()
        self._stopping = False
        self._database: Database | None = None
        # The event loop's side:
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        # The thread's side:
        self._known: tuple[int, int] | None = None
        self._pause = _FIRST_PAUSE

    def submit(self, work: Callable[[Store], T]) -> Job[T]:
        """Put a job at the end of the queue.

        Raises:
            Failed: the worker was stopped, or the system gives no thread; the next job tries again.
        """
        loop = asyncio.get_running_loop()
        job = Job(work, loop.create_future())
        with self._changed:
            if self._stopping:
                raise Failed(Closed())
            if self._thread is None:
                self._start(loop)
            self._jobs.append(job)
            self._changed.notify()
        return job

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        # A daemon: a disk that never answers must not keep the program from ending.
        thread = threading.Thread(target=self._main, args=(loop,), name="pairmq-sqlite", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise Failed(error) from None
        # Not before it runs: jobs for a thread that never came would wait forever.
        self._thread, self._ended = thread, loop.create_future()

    async def outcome(self, job: Job[T]) -> T:
        """Wait for a job and give its result.

        Raises:
            Failed: it was not done, or that is in doubt.
        """
        try:
            outcome = await job.future
        except asyncio.CancelledError as cancellation:
            if self.withdraw(job):
                nothing_sent(cancellation)
            raise
        if isinstance(outcome, Failed):
            raise outcome
        return outcome

    def withdraw(self, job: Job[T]) -> bool:
        """Take a job back; False when it has begun, so that it may be done."""
        with self._changed:
            if job.state is _State.WAITING:
                job.state = _State.WITHDRAWN
            return job.state is _State.WITHDRAWN

    async def stop(self, within: float) -> None:
        """Begin nothing more, and wait until the thread has ended and the file is closed.

        Args:
            within: seconds. If the disk does not answer by then, the thread ends by itself when it does.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
            if self._database is not None:  # and therefore open, as it is closed after this was cleared
                self._database.interrupt()
        if self._ended is not None:
            await asyncio.wait([self._ended], timeout=within)

    # From here on everything runs in the thread.

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._wait_for_jobs():
                self._take_turn(loop)
        finally:
            with self._changed:
                self._stopping = True
            self._close_database()
            self._fail_waiting(loop, Closed())
            self._call(loop, self._set_ended)

    def _wait_for_jobs(self) -> bool:
        with self._changed:
            while not self._jobs and not self._stopping:
                self._changed.wait()
            return not self._stopping

    def _take_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Get hold of the database, and do what waits by then."""
        try:
            database = self._open()
            database.begin()
        except Exception as error:  # whatever it is, somebody waits to hear of it
            if _errors.is_locked(error):
                self._fail_waiting(loop, error, since=time.monotonic() - self._url.busy_timeout)
                self._wait_for_lock()
            else:
                self._close_database()
                self._fail_waiting(loop, error)
            return
        self._pause = _FIRST_PAUSE
        self._tell(loop, self._do(database, self._begin_jobs()))

    def _wait_for_lock(self) -> None:
        """Wait a little for another program's lock, or less if anything changes here."""
        with self._changed:
            if not self._stopping:
                self._changed.wait(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _begin_jobs(self) -> list[Job[Any]]:
        """Begin what waits, up to a group of it; what has to be done alone, alone."""
        begun: list[Job[Any]] = []
        with self._changed:
            while self._jobs and len(begun) < _GROUP:
                if begun and (begun[0].alone or self._jobs[0].alone):
                    break
                job = self._jobs.popleft()
                if job.state is _State.WAITING:
                    job.state = _State.BEGUN
                    begun.append(job)
        return begun

    def _fail_waiting(
        self, loop: asyncio.AbstractEventLoop, error: BaseException, *, since: float = float("inf")
    ) -> None:
        """Fail what waits, for certain; with ``since``, only what has waited since that instant or longer."""
        with self._changed:
            waiting = [job for job in self._jobs if job.state is _State.WAITING]
            self._jobs = deque(job for job in waiting if job.since > since)
            failed = [job for job in waiting if job.since <= since]
        self._tell(loop, [(job, Failed(error)) for job in failed])

    def _do(self, database: Database, jobs: list[Job[Any]]) -> list[tuple[Job[Any], object]]:
        """Do a group of jobs in the transaction that was begun, and commit it."""
        store = Store(database)
        try:
            outcomes = [(job, _attempt(database, store, job)) for job in jobs]
        except sqlite3.Error as error:
            # Certain, as nothing was committed.
            return self._give_up(database, jobs, error, maybe_applied=False)
        try:
            database.commit()
        except sqlite3.Error as error:
            return self._give_up(database, jobs, error, maybe_applied=not _errors.is_certain(error))
        return outcomes

    def _give_up(
        self, database: Database, jobs: list[Job[Any]], error: sqlite3.Error, *, maybe_applied: bool
    ) -> list[tuple[Job[Any], object]]:
        """End a transaction that failed as a whole.

        One job may have brought it down, such as a message that the disk has no room for. It takes no other with it:
        if it is certain that none was done, each is put back to be done by itself.
        """
        database.rollback()
        broken = maybe_applied or _errors.is_broken(error)
        if broken:
            self._close_database()
        if broken or len(jobs) == 1:
            return [(job, Failed(error, maybe_applied=maybe_applied)) for job in jobs]
        with self._changed:
            for job in reversed(jobs):
                job.state, job.alone = _State.WAITING, True
                self._jobs.appendleft(job)
        return []

    def _open(self) -> Database:
        if self._database is None:
            database = Database(self._url.path, max_megabytes=self._url.max_megabytes, known=self._known)
            self._known = database.identity
            with self._changed:
                self._database = database
        return self._database

    def _close_database(self) -> None:
        with self._changed:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def _tell(self, loop: asyncio.AbstractEventLoop, outcomes: list[tuple[Job[Any], object]]) -> None:
        def end_all() -> None:
            for job, outcome in outcomes:
                job.end(outcome)

        if outcomes:
            self._call(loop, end_all)

    def _set_ended(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    @staticmethod
    def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            loop.call_soon_threadsafe(what)


def _attempt(database: Database, store: Store, job: Job[Any]) -> object:
    """Do one job; if it fails, what it did is taken back.

    Raises:
        sqlite3.Error: SQLite failed it, which may have ended the transaction that it shares with others.
    """
    database.mark()
    try:
        result = job.work(store)
    except sqlite3.Error:
        raise
    except Exception as error:  # one of ours, which says why it can't be done, or a defect: this job's own business
        database.undo()
        return Failed(error)
    database.keep()
    return result
