"""One link, and a task that makes its calls one after the other.

The client's links are not made for concurrent calls: sends mix up their answers, and settlements that wait for each
other's reads take a fifth of a second each. So every link has one lane. Its task opens the link when there is a job for
it, and no caller waits for the client itself: one that stops waiting gets control back at once. A job that is not
waited for any more is cut off, and its link, now in doubt, is dropped; the next job opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from pairmq.model import TransportError
from pairmq.transport import start_task
from pairmq_servicebus import _errors
from pairmq_servicebus._client import Namespace

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_LOOK_EVERY = 10.0  # s between looks at an idle link
_LOOK_SOON = 0.2  # s after a receive that took its credit back: what was on its way then has to be released
_LOOK_FIRST = 1.0  # s of idleness after which a link is looked at before it is used
_AGAIN = 0.05  # s: a cancellation can be swallowed in the instant in which a frame arrives (asyncio.wait_for of 3.11)

_MOST: Final = 16  # links that are kept
_IDLE: Final = 60.0  # s


class OpenLink(Protocol):
    """What a lane needs of a link."""

    def usable(self) -> bool:
        """Whether nothing is known of its end."""

    def unread(self) -> bool:
        """Whether something has arrived that may be its end, and has to be looked at before it is used."""

    async def look(self) -> None:
        """Take in what has arrived."""

    def drop(self) -> None:
        """End it at once, without waiting for anything."""

    async def close(self) -> None:
        """End it in good order; never raises, and is over within 1.5 s."""


L = TypeVar("L", bound=OpenLink)


class Job(ABC, Generic[L]):
    """Something to do on the link.

    It is cut off after ``limit`` seconds, whether or not a caller waits; None when it sees to that by itself. One that
    ``yields`` waits for what may come: it is interrupted when there is something to do, and then goes on.
    """

    def __init__(self, limit: float | None, *, yields: bool = False) -> None:
        self.limit = limit
        self.yields = yields

    @abstractmethod
    async def run(self, link: L) -> None:
        """Do it, and report to its callers. Raises nothing but cancellation; when interrupted, it is run again."""

    @abstractmethod
    def fail(self, error: TransportError, *, begun: bool) -> None:
        """Report to its callers that it will not be done, or that it is unknown whether it was."""

    def interrupted(self, link: L) -> None:
        """Called when it was interrupted, before the next job begins."""


class Call(Job[L], Generic[L, T]):
    """A job with one caller, who gets what its work raises."""

    def __init__(self, work: Callable[[L], Awaitable[T]], limit: float, doing: str) -> None:
        super().__init__(limit)
        self._work = work
        self._doing = doing
        self.done: asyncio.Future[T | TransportError] = asyncio.get_running_loop().create_future()

    async def run(self, link: L) -> None:
        if self.done.done():
            return
        try:
            outcome: T | TransportError = await self._work(link)
        except Exception as error:
            outcome = _errors.failure(error, self._doing, maybe_applied=True)
        if not self.done.done():
            self.done.set_result(outcome)

    def fail(self, error: TransportError, *, begun: bool) -> None:
        if not self.done.done():
            self.done.set_result(error)


class Look(Job[L]):
    """Takes in what has arrived on an idle link; does not count as a use of it."""

    def __init__(self) -> None:
        super().__init__(2.0)

    async def run(self, link: L) -> None:
        with contextlib.suppress(Exception):
            await link.look()

    def fail(self, error: TransportError, *, begun: bool) -> None:
        """No caller waits for it."""


class Lane(Generic[L]):
    """The jobs of one link, closed when no caller asked for anything for ``idle_limit`` seconds; None keeps it.

    A link that ``spares`` takes more with it than its calls: one that is given up goes on to its end there.
    """

    def __init__(
        self,
        opener: Callable[[], Awaitable[L]],
        doing: str,
        *,
        idle_limit: float | None = None,
        spares: Callable[[L], bool] = lambda _: False,
    ) -> None:
        self._opener = opener
        self._spares = spares
        self._doing = doing
        self._idle_limit = idle_limit
        self._jobs: OrderedDict[Job[L], None] = OrderedDict()  # thousands may be withdrawn at one instant
        self._current: Job[L] | None = None
        self._link: L | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._interrupting = False
        self._used_at = 0.0  # a job of a caller
        self._touched_at = 0.0  # any job, our own looks included
        self._past: set[asyncio.Task[None]] = set()
        self.closed = False
        self.look_soon = False
        """Set by a job after which something may still arrive."""

    @property
    def link(self) -> L | None:
        return self._link

    @property
    def current(self) -> Job[L] | None:
        return self._current

    def submit(self, job: Job[L], *, first: bool = False) -> None:
        """Put a job into the queue; when the lane is closed, it fails at once."""
        if self.closed:
            job.fail(_errors.closed(self._doing), begun=False)
            return
        self._used_at = asyncio.get_running_loop().time()
        self._jobs[job] = None
        if first:
            self._jobs.move_to_end(job, last=False)
        if self._task is None:
            self._start()
        elif self._current is not None and self._current.yields and not job.yields:
            self._interrupt()

    async def call(self, work: Callable[[L], Awaitable[T]], limit: float, doing: str) -> T:
        """Do something on the link in its turn, for ``limit`` seconds at most once it began.

        It is cut off, and the link dropped, when the caller is cancelled meanwhile, unless the link is to be spared:
        then its own limit ends it.
        """
        job: Call[L, T] = Call(work, limit, doing)
        self.submit(job)
        try:
            outcome = await job.done
        except asyncio.CancelledError:
            self.give_up(job)
            raise
        if isinstance(outcome, TransportError):
            raise outcome
        return outcome

    def give_up(self, job: Job[L]) -> None:
        """Take a job back that no caller waits for, unless it is under way on a link that is to be spared."""
        if job is not self._current or self._link is None or not self._spares(self._link):
            self.withdraw(job)

    def withdraw(self, job: Job[L]) -> bool:
        """Take a job back that no caller waits for; False for one that had begun, which is cut off."""
        if job is self._current:
            self.cut(job)
            return False
        self._jobs.pop(job, None)
        return True

    def stop(self, job: Job[L]) -> None:
        """End a job that yields, and keep the link: what it waits for leaves nothing in doubt."""
        if job is self._current:
            self._interrupt()
        else:
            self.withdraw(job)

    def give_way(self, job: Job[L]) -> None:
        """Called by a job that yields again after it did not: what was submitted meanwhile comes first."""
        if job is self._current and job.yields and any(not other.yields for other in self._jobs):
            self._interrupt()

    def cut(self, job: Job[L]) -> None:
        """Cut off the job under way: its link is in doubt, and dropped."""
        if job is not self._current:
            return
        task = self._task
        self._task = self._current = None
        self._interrupting = False
        self._drop()
        if task is not None:
            task.cancel()
            self._past.add(task)
            task.add_done_callback(self._past.discard)
        if self._jobs:
            self._start()

    async def close(self) -> None:
        """End all jobs and the link; idempotent, never raises, over within 1.5 s."""
        link = self.shut()
        if link is not None:
            await link.close()

    def shut(self) -> L | None:
        """End all jobs at once; gives the link, to be closed."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        current, task, link = self._current, self._task, self._link
        self._current = self._task = self._link = None
        jobs, self._jobs = self._jobs, OrderedDict()
        if current is not None:
            current.fail(_errors.closed(self._doing, maybe_applied=True), begun=True)
        for job in jobs:
            job.fail(_errors.closed(self._doing), begun=False)
        if task is not None:
            task.cancel()
            self._past.add(task)
            task.add_done_callback(self._past.discard)
            if link is not None and current is not None:
                link.drop()  # the call under way is still in it
                link = None
        return link

    # The task.

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = start_task(self._run(), name=self._doing)

    async def _run(self) -> None:
        me = asyncio.current_task()
        try:
            while self._jobs and self._task is me:
                link = await self._ready(me)
                if link is None or not self._jobs:
                    continue
                await self._do(self._next(), link, me)
        finally:
            if self._task is me:
                self._task = None
                if self._link is not None:
                    self._look_in(_LOOK_SOON if self.look_soon else _LOOK_EVERY)
                self.look_soon = False

    def _next(self) -> Job[L]:
        """The job to do now: one that yields only when there is no other, which it would keep waiting."""
        job = next((job for job in self._jobs if not job.yields), None) or next(iter(self._jobs))
        del self._jobs[job]
        return job

    async def _do(self, job: Job[L], link: L, me: asyncio.Task[None] | None) -> None:
        loop = asyncio.get_running_loop()
        self._current = job
        clock = None if job.limit is None else loop.call_later(job.limit, self._expire, job)
        try:
            await job.run(link)
        except asyncio.CancelledError:
            if self._task is not me or not self._interrupting or me is None:
                raise
            me.uncancel()
            job.interrupted(link)
            self._jobs[job] = None
        finally:
            if clock is not None:
                clock.cancel()
            if self._task is me:
                self._current = None
                self._interrupting = False
                while me is not None and me.cancelling():  # one that was swallowed, see _AGAIN
                    me.uncancel()
                self._touched_at = loop.time()
                if not isinstance(job, Look):
                    self._used_at = self._touched_at
                if self._link is link and not link.usable():
                    self._drop()

    async def _ready(self, me: asyncio.Task[None] | None) -> L | None:
        """The link, opened if need be; None when it could not be, and the jobs failed, or when the lane was shut."""
        link = self._link
        idle = asyncio.get_running_loop().time() - self._touched_at
        if link is not None and (idle > _LOOK_FIRST or link.unread()):
            with contextlib.suppress(Exception):
                await link.look()
        if self._task is not me:
            return None
        if link is not None and link.usable():
            return link
        self._drop()
        try:
            link = await self._opener()
        except Exception as error:
            if self._task is me:
                jobs, self._jobs = self._jobs, OrderedDict()
                failed = _errors.failure(error, self._doing)
                for job in jobs:
                    job.fail(_errors.again(failed), begun=False)
            return None
        if self._task is not me:
            link.drop()
            return None
        self._link = link
        self._touched_at = asyncio.get_running_loop().time()
        return link

    def _interrupt(self) -> None:
        current = self._current
        if self._task is None or current is None or not current.yields or self._interrupting:
            return
        self._interrupting = True
        self._task.cancel()
        asyncio.get_running_loop().call_later(_AGAIN, self._interrupt_again, current, self._task)

    def _interrupt_again(self, job: Job[L], task: asyncio.Task[None]) -> None:
        if self._interrupting and self._current is job and self._task is task:
            task.cancel()
            asyncio.get_running_loop().call_later(_AGAIN, self._interrupt_again, job, task)

    def _expire(self, job: Job[L]) -> None:
        if job is self._current:
            job.fail(_errors.timed_out(self._doing, maybe_applied=True), begun=True)
            self.cut(job)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.drop()

    def _look_in(self, seconds: float) -> None:
        if not self.closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.closed or self._task is not None or self._link is None:
            return
        if self._idle_limit is not None:
            idle = asyncio.get_running_loop().time() - self._used_at
            if idle >= self._idle_limit:
                self._drop()
                return
        self._jobs[Look()] = None
        self._start()


class Lanes(Generic[K, L]):
    """The lanes of the last few things; the one that was not used for longest gives way."""

    def __init__(self, namespace: Namespace, opener: Callable[[K], Awaitable[L]]) -> None:
        self._namespace = namespace
        self._opener = opener
        self._kept: dict[K, Lane[L]] = {}

    def get(self, thing: K) -> Lane[L]:
        """The lane of a thing, made when first needed."""
        lane = self._kept.pop(thing, None)
        if lane is None:
            lane = Lane(lambda: self._opener(thing), f"look into {thing}", idle_limit=_IDLE)
            if len(self._kept) >= _MOST:
                self._namespace.spawn(self._kept.pop(next(iter(self._kept))).close())
        self._kept[thing] = lane
        return lane

    async def close(self) -> None:
        """Close all; never raises."""
        for lane in self._kept.values():
            await lane.close()
