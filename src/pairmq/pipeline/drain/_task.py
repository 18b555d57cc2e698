"""One task: runs the syphon on one backlog queue until it is empty, in a worker of Spark.

The work is the pair's own syphon and nothing else: it sends, has that confirmed and completes, under renewed locks. So
a task may be killed at any point, and may run beside another copy or any other syphon: the broker's locks
decide who has a message, and one that was sent and not yet completed is redelivered.

A task counts what its queue still holds only while it moves nothing: a count is an operation of the broker's
management, which some brokers throttle.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from pairmq.model import ConfigurationError, PairMQError, Source, TransportError
from pairmq.model.events import DestinationChanged, Event, MessageDeadLettered, PairEnded, SyphonFailed
from pairmq.pair import Pair, load_settings
from pairmq.pipeline.drain._handover import Ending, Job, Outcome, Worker
from pairmq.plugins import registry

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal

EVERY = 2.0
"""Seconds from one count of a queue to the next."""

_LOOK = 0.25  # s between two looks for a reason to end
_JOURNAL_CLOSE = 10.0  # s


class Task:
    """What Spark pickles and calls, with the number of a partition; gives the outcome as text."""

    __name__ = "drain_queue"  # what Spark's plans show

    def __init__(self, job: Job, indexes: tuple[int, ...]) -> None:
        self._job = job
        self._indexes = indexes

    def __call__(self, partition: int) -> str:
        from pyspark import TaskContext

        logging.getLogger("pairmq").setLevel(self._job.log_level)
        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        return asyncio.run(drain_queue(self._job, self._indexes[partition], attempt)).to_json()


async def drain_queue(job: Job, index: int, attempt: int = 0) -> Outcome:
    """Move the messages of one backlog queue back until none is left, or until the job says to end.

    An unavailable broker is an outcome, not an exception: another attempt would not reach it sooner, and a task that
    fails permanently would end all others.
    """
    worker = Worker(job.handover)
    if worker.stopped():
        return Outcome(index, Ending.STOPPED, attempt)
    _end_in_order(worker)
    try:
        primary, secondary = _urls(job, worker)
        async with _kept(job.journal) as journal:
            worker.begin(index, attempt, "" if journal is None else journal.process)
            pair = Pair.connect(
                primary,
                secondary,
                options=job.options,
                observers=job.observers,
                journal=journal,
                syphon_queues=(index,),
            )
            watch = Watch(pair, job, worker)
            pair.subscribe(watch.on_event)
            async with pair:
                ending = await watch.until_end(Source(pair.backlog_queues[index]))
            if ending is Ending.STOPPED and not worker.stopped():
                raise RuntimeError(f"the worker of backlog queue {index} got a signal")  # Spark begins another one
            return Outcome(index, ending, attempt, watch.shut, watch.problem)
    except ConfigurationError as error:
        return Outcome(index, Ending.MISCONFIGURED, attempt, problem=str(error))
    except PairMQError as error:
        return Outcome(index, Ending.FAILED, attempt, problem=str(error))
    except OSError as error:
        if worker.stopped():
            return Outcome(index, Ending.STOPPED, attempt)
        return Outcome(index, Ending.FAILED, attempt, problem=error.strerror or type(error).__name__)


def _end_in_order(worker: Worker) -> None:
    """Let no signal end the process while it holds messages.

    Of a service that is stopped all processes get SIGTERM, and where PySpark's own process gets it, its workers SIGHUP.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        with suppress(ValueError, RuntimeError):  # not the main thread, as in a program of one's own
            asyncio.get_running_loop().add_signal_handler(number, worker.interrupt)


class Watch:
    """Looks at a pair at work on one queue, and finds out when it is to end."""

    def __init__(self, pair: Pair, job: Job, worker: Worker) -> None:
        self.shut: dict[str, str] = {}
        self.problem: str | None = None
        self._pair = pair
        self._job = job
        self._worker = worker
        self._dead_lettered = 0
        self._faulted = False

    def on_event(self, event: Event) -> None:
        if isinstance(event, MessageDeadLettered):
            self._dead_lettered += 1
        elif isinstance(event, DestinationChanged):
            if event.open:
                self.shut.pop(str(event.entity), None)
            else:
                self.shut[str(event.entity)] = event.error or ""
        elif isinstance(event, SyphonFailed):
            self.problem = event.error
        elif isinstance(event, PairEnded) and event.fault is not None:
            self._faulted = True
            self.problem = event.fault

    async def until_end(self, queue: Source) -> Ending:
        """Wait until the queue is empty, or until there is a reason to leave it."""
        seen_empty = 0
        lowest: int | None = None
        settled = (0, 0)
        clock = asyncio.get_running_loop().time
        progress_at = clock()
        counted_at = progress_at - EVERY
        while not self._faulted:
            now, before = clock(), settled
            settled = (self._pair.moved - self._pair.outbox_moved, self._dead_lettered)
            if settled != before:
                progress_at, seen_empty = now, 0
            elif now - counted_at >= EVERY:
                counted_at, pending = now, await self._count(queue)
                # A broker that does not count locked messages may be delivering one to this very process.
                seen_empty = seen_empty + 1 if pending == 0 else 0
                # A count that grows, as senders divert, or is sometimes unavailable, is not progress; one that falls is
                # the work of another syphon. A queue that can't be asked is not empty.
                if pending is not None and (lowest is None or pending < lowest):
                    lowest, progress_at = pending, now
            if seen_empty == 2:
                self.problem = None
                return Ending.DRAINED
            if self._worker.stopped() or self._worker.interrupted:
                return Ending.STOPPED
            if self._job.ends_at is not None and time.time() >= self._job.ends_at:
                return Ending.OUT_OF_TIME
            if now - progress_at >= self._job.patience:
                return Ending.STALLED
            await asyncio.sleep(_LOOK)
        return Ending.FAILED

    async def _count(self, queue: Source) -> int | None:
        """Messages still to be moved; None when the broker can't be asked.

        The pair's own transport has asked for the queue: that makes RabbitMQ's 0 a certain one.
        """
        try:
            async with asyncio.timeout(self._job.options.attempt_timeout):
                return (await self._pair.secondary.admin.counts(queue)).pending
        except (TransportError, TimeoutError) as error:
            self.problem = str(error) or "the secondary does not respond"
            return None


def _urls(job: Job, worker: Worker) -> tuple[str, str]:
    """Find the brokers' URLs on this machine, and make sure that they are those of the driver's brokers."""
    if job.handed_over:
        urls = worker.urls()
    else:
        settings = load_settings(config=job.config)
        urls = settings.primary, settings.secondary
    for side, url, wanted in zip(("primary", "secondary"), urls, (job.primary, job.secondary), strict=True):
        found = registry.transport(url).endpoint.url
        if found != wanted:
            raise ConfigurationError(
                f"the {side} is {found} for a worker and {wanted} for the driver: give both the same settings"
            )
    return urls


@asynccontextmanager
async def _kept(directory: str | None) -> AsyncIterator[Journal | None]:
    """The task's own journal, so that attempts can be distinguished."""
    if directory is None:
        yield None
        return
    try:
        from pairmq.observe.journal import Journal
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    journal = Journal(directory)
    try:
        yield journal
    finally:
        await asyncio.to_thread(journal.close, _JOURNAL_CLOSE)
