"""Threads for what blocks: one that does a client library's jobs one after the other, and one for each single work."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar, cast

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport._scope import Scope
from pairmq.transport._transport import nothing_sent

T = TypeVar("T")


class OwnThreads(ThreadPoolExecutor):
    """An executor that gives each work a thread of its own, for event loops in threads of PairMQ's.

    The executor that a loop makes itself takes no more work from the end of the main thread on, though other threads
    and handlers of `atexit` may still send; and a few calls that hang, such as lookups of names, hold up all others.
    """

    def submit(self, work: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        """Do something in a new thread, or at once where the interpreter is exiting and starts no threads.

        Raises:
            RuntimeError: the system gives no thread.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result = work(*arguments, **named)
            except BaseException as error:  # as other executors do
                future.set_exception(error)
            else:
                future.set_result(result)

        # A daemon: a call that never returns must not keep the program from ending.
        try:
            threading.Thread(target=run, name="pairmq work", daemon=True).start()
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            run()
        return future


class _State(enum.Enum):
    WAITING = enum.auto()
    BEGUN = enum.auto()
    WITHDRAWN = enum.auto()


class Job(Generic[T]):
    """Work for the thread, and the caller that waits for it.

    A job *begins* when the thread is about to do it. Until then it can be withdrawn, and it is certain that nothing was
    done; from then on its outcome is in doubt until it ends.

    Attributes:
        work: what to do.
        since: when it was submitted, by `time.monotonic`.
    """

    __slots__ = ("_ended", "_error", "_result", "_state", "_worker", "since", "work")

    def __init__(self, worker: Worker, work: Callable[..., T]) -> None:
        self._worker = worker
        self._ended = asyncio.get_running_loop().create_future()
        self._state = _State.WAITING
        self._result: T | None = None
        self._error: Exception | None = None
        self.work = work
        self.since = time.monotonic()

    async def outcome(self) -> T:
        """Wait for the job's end, and return its result or raise its error.

        A cancelled call withdraws the job, and reports `nothing_sent` unless the job had begun.
        """
        try:
            await self._ended
        except asyncio.CancelledError as cancellation:
            if self.withdraw():
                nothing_sent(cancellation)
            raise
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def withdraw(self) -> bool:
        """Take the job back; False when it has begun, so that it may be done."""
        with self._worker.changed:
            if self._state is _State.WAITING:
                self._state = _State.WITHDRAWN
                self.work = _nothing  # a blocked thread would keep the message until it goes on
            return self._state is _State.WITHDRAWN

    def end(self, error: TransportError) -> None:
        """Give up waiting; a `Scope` calls it."""
        error.maybe_applied = not self.withdraw()
        self._settle(error=error)

    def begin(self) -> bool:
        """Begin, while the worker's ``changed`` is held; False when it was withdrawn. In the thread."""
        if self._state is _State.WAITING:
            self._state = _State.BEGUN
        return self._state is _State.BEGUN

    def put_back(self) -> None:
        """Let a job that has begun, and certainly did nothing, wait again. In the thread."""
        self._state = _State.WAITING

    def _settle(self, result: T | None = None, error: Exception | None = None) -> None:
        if not self._ended.done():  # else the caller no longer waits
            self._result, self._error = result, error
            self._ended.set_result(None)


def _nothing() -> Any:
    """Stand for work that was withdrawn."""


class Worker:
    """A thread, which starts with the first job, and the jobs that wait for it.

    A subclass may override `turn` to do several jobs together, and `clean_up` to close what its jobs have opened.

    Args:
        name: the thread's.

    Attributes:
        changed: guards ``waiting`` and ``stopping``; notified when one of them changes.
        waiting: jobs that have not begun, oldest first; withdrawn ones are among them.
        stopping: whether no more jobs are taken.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.changed = threading.Condition()
        self.waiting: deque[Job[Any]] = deque()
        self.stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None

    async def run(self, work: Callable[..., T], scope: Scope) -> T:
        """Do something in the thread, for an object whose calls end when its scope closes.

        Args:
            work: what to do; its result is returned, and what it raises is raised.
            scope: of the object.

        Raises:
            TransportError: the scope or the worker has closed, or the system gives no thread.

        A cancelled call reports `nothing_sent` unless the work had begun.
        """
        scope.check()
        job = self.submit(work)
        scope.add(job)
        try:
            return await job.outcome()
        finally:
            scope.discard(job)

    def submit(self, work: Callable[..., T]) -> Job[T]:
        """Put a job at the end of the queue, to be done whether or not a caller waits for its `Job.outcome`.

        Raises:
            TransportError: the worker has stopped, or the system gives no thread.
            RuntimeError: it is in use by another event loop, where results would end.
        """
        if self._loop not in (None, asyncio.get_running_loop()):
            raise RuntimeError("this transport is in use by another event loop: make one for each loop")
        job = Job(self, work)
        with self.changed:
            if self.stopping:
                raise TransportError("it was closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
            if self._thread is None:
                self._start()
            self.waiting.append(job)
            self.changed.notify()
        return job

    async def stop(self, within: float) -> None:
        """Begin no more jobs, and wait until the thread has ended.

        Args:
            within: seconds. A thread that is blocked for longer ends by itself when it no longer is.
        """
        with self.changed:
            self.stopping = True
            self.changed.notify()
        if self._ended is not None:
            await asyncio.wait([self._ended], timeout=within)

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A daemon: a call that never returns must not keep the program from ending.
        thread = threading.Thread(target=self._main, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise TransportError(str(error), FailureKind.UNAVAILABLE) from None
        # Not before it runs: jobs for a thread that never came would wait forever.
        self._thread, self._ended = thread, self._loop.create_future()

    # From here on everything runs in the thread.

    def turn(self) -> None:
        """Do what waits, or a part of it; there is at least one job, which may have been withdrawn."""
        with self.changed:
            job = self.waiting.popleft()
            if not job.begin():
                return
        try:
            outcome: object = job.work()
        except Exception as error:
            outcome = error
        except BaseException as error:  # by a client library: it must not end the thread, and with it all other jobs
            outcome = RuntimeError(f"unexpected {type(error).__name__}: {error}")
            outcome.__cause__ = error
        self.settle([(job, outcome)])

    def clean_up(self) -> None:
        """Close what the jobs have opened; called once, when the thread ends."""

    def settle(self, outcomes: Iterable[tuple[Job[Any], object]]) -> None:
        """End jobs, each with its result or its exception."""
        ended = list(outcomes)

        def settle_all() -> None:
            for job, outcome in ended:
                if isinstance(outcome, Exception):
                    job._settle(error=outcome)
                else:
                    job._settle(outcome)

        if ended:
            self._call(settle_all)

    def _main(self) -> None:
        try:
            while self._wait_for_jobs():
                self.turn()
        finally:
            with self.changed:
                self.stopping = True
                left = [job for job in self.waiting if job.begin()]
            try:
                self.clean_up()
            finally:
                closed = (FailureKind.UNAVAILABLE, FailureReason.CLOSED)
                self.settle((job, TransportError("it was closed", *closed)) for job in left)
                self._call(self._set_ended)

    def _wait_for_jobs(self) -> bool:
        with self.changed:
            while not self.waiting and not self.stopping:
                self.changed.wait()
            return not self.stopping

    def _set_ended(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _call(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and no caller waits any more
            cast(asyncio.AbstractEventLoop, self._loop).call_soon_threadsafe(what)
