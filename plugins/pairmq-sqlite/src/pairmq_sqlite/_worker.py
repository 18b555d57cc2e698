"""The one thread that touches the database, which shares a transaction among the jobs that wait.

What waits at the same time is committed together, since what costs is the commit, which waits for the disk (*group
commit*). Each job runs behind a savepoint of its own and has an outcome of its own. A job begins once the file's lock
is held: until then it is certain that nothing was done. `Context` is what the objects of a transport share: this
thread, what each of them has under way, and the news of arrivals.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from pairmq.model import Source
from pairmq.transport import Arrivals, Job, Receiver, Scope, Worker, raise_failure
from pairmq_sqlite import _errors
from pairmq_sqlite._database import Database
from pairmq_sqlite._errors import Failed
from pairmq_sqlite._store import Store
from pairmq_sqlite._url import SQLiteUrl

_GROUP = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02


T = TypeVar("T")
_MOST_LEFT = 1000
"""Names of left locks of a source: who opens and closes receivers all through an outage must not fill the memory."""


class SQLiteWorker(Worker):
    """Runs jobs on one database; each is given the `Store`."""

    def __init__(self, url: SQLiteUrl) -> None:
        super().__init__("pairmq-sqlite")
        self._url = url
        self._database: Database | None = None  # guarded by ``changed``
        # The thread's side:
        self._known: tuple[int, int] | None = None
        self._pause = _FIRST_PAUSE
        self._alone: set[Job[Any]] = set()

    async def stop(self, within: float) -> None:
        with self.changed:
            self.stopping = True
            if self._database is not None:  # and therefore open, as it is closed after this was cleared
                self._database.interrupt()
        await super().stop(within)

    # From here on everything runs in the thread.

    def turn(self) -> None:
        """Acquire the database, and do what waits by then."""
        try:
            database = self._open()
            database.begin()
        except Exception as error:  # whatever it is, a caller waits for it
            if _errors.is_locked(error):
                self._fail_waiting(error, since=time.monotonic() - self._url.busy_timeout)
                self._wait_for_lock()
            else:
                self.clean_up()
                self._fail_waiting(error)
            return
        self._pause = _FIRST_PAUSE
        jobs = self._begin_jobs()
        self._alone.difference_update(jobs)
        self.settle(self._do(database, jobs))

    def clean_up(self) -> None:
        with self.changed:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def _wait_for_lock(self) -> None:
        """Wait a little for another program's lock, or less if anything changes here."""
        with self.changed:
            if not self.stopping:
                self.changed.wait(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _begin_jobs(self) -> list[Job[Any]]:
        """Begin what waits, up to a group of it; what has to be done alone, alone."""
        begun: list[Job[Any]] = []
        with self.changed:
            while self.waiting and len(begun) < _GROUP:
                alone = self.waiting[0] in self._alone
                if begun and (alone or begun[0] in self._alone):
                    break
                job = self.waiting.popleft()
                if job.begin():
                    begun.append(job)
                else:
                    self._alone.discard(job)
        return begun

    def _fail_waiting(self, error: BaseException, *, since: float = float("inf")) -> None:
        """Fail what waits, for certain; with ``since``, only what has waited since that instant or longer."""
        with self.changed:
            late = [job for job in self.waiting if job.since <= since]
            self.waiting = deque(job for job in self.waiting if job.since > since)
            failed = [job for job in late if job.begin()]
        self._alone.difference_update(late)
        self.settle((job, Failed(error)) for job in failed)

    def _do(self, database: Database, jobs: list[Job[Any]]) -> list[tuple[Job[Any], object]]:
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
            self.clean_up()
        if broken or len(jobs) == 1:
            return [(job, Failed(error, maybe_applied=maybe_applied)) for job in jobs]
        with self.changed:
            for job in reversed(jobs):
                job.put_back()
                self.waiting.appendleft(job)
        self._alone.update(jobs)
        return []

    def _open(self) -> Database:
        if self._database is None:
            database = Database(self._url.path, max_megabytes=self._url.max_megabytes, known=self._known)
            self._known = database.identity
            with self.changed:
                self._database = database
        return self._database


def _attempt(database: Database, store: Store, job: Job[Any]) -> object:
    """Do one job; if it fails, what it did is taken back. An error of SQLite's may have ended the whole transaction."""
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


class Calls:
    """The calls of one object, which end when it closes."""

    def __init__(self, worker: SQLiteWorker, scope: Scope) -> None:
        self._worker = worker
        self.scope = scope

    async def run(self, work: Callable[[Store], T], doing: str) -> T:
        """Do a job with the store, in the worker's thread and a transaction. Raises `TransportError`: not done, or in
        doubt."""
        try:
            return await self._worker.run(work, self.scope)
        except Failed as failed:
            error = _errors.failure(failed, doing)
        raise_failure(error)


class Context:
    """What a transport gives to its senders, receivers and admin."""

    def __init__(self, url: SQLiteUrl, scope: Scope) -> None:
        self.url = url
        self.worker = SQLiteWorker(url)
        self.arrivals = Arrivals()
        """Other processes' messages are found by looking (see `_receiver`)."""
        self._scope = scope
        self.receivers: set[Receiver] = set()
        self.left_locks: dict[Source, list[str]] = {}
        """Locks of closed receivers that could not release them, for their source's next receiver to do so."""

    def leave_locks(self, source: Source, locks: list[str]) -> None:
        """Keep the names of locks for the next receiver of a source, which releases them; patterns for GLOB."""
        if locks:
            kept = [*self.left_locks.get(source, ()), *locks]
            self.left_locks[source] = kept[-_MOST_LEFT:]

    def calls(self, doing: str = "") -> Calls:
        """Make the calls of an object, which end with the transport, if not before."""
        return Calls(self.worker, Scope(self._scope, doing))
