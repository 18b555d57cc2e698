"""A drain from its first count to its last: the job runs in a thread, and this watches it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pairmq.model import ConfigurationError
from pairmq.pipeline.drain._handover import Ending, Handover, Job, Outcome
from pairmq.pipeline.drain._plan import Plan
from pairmq.pipeline.drain._report import (
    Journalled,
    QueueReport,
    Report,
    count_journalled,
    count_surely,
    set_aside,
    total,
)
from pairmq.pipeline.drain._spark import JobFailed, check_session, is_local, most_at_once, run_job
from pairmq.pipeline.drain._task import EVERY
from pairmq.pipeline.session import Tag
from pairmq.plugins import registry
from pairmq.runner import backlog_properties, find_agreement
from pairmq.transport import Depth, counts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ShowProgress = Callable[[int | None], None]
"""Called periodically with the number of messages left; None if the secondary can't be queried."""

_UNMOVED = 3  # messages that a task's share of the rate would have let through

_log = logging.getLogger("pairmq")


class Drain:
    """One drain. Its methods are for one event loop.

    Args:
        plan: what is drained.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began_at = time.monotonic()
        self.before: tuple[Depth, ...] = ()
        self._elsewhere: tuple[str, ...] = ()
        self._unread: str | None = None

    @property
    def pending(self) -> int | None:
        """Messages to be moved, as `look` counted; None when a queue could not be asked."""
        return total([depth.pending for depth in self.before])

    async def look(self) -> int | None:
        """Count the backlog; this comes first, as without `pending` messages Spark is not needed at all.

        Raises:
            ConfigurationError: the backlog queues are another primary's.
        """
        await self._find_others()
        self.before = await self._count()
        return self.pending

    async def _find_others(self) -> None:
        """Take in the queues that other processes of the pair use, and remember those that can't be (SPEC 13.2)."""
        options = self._plan.settings.options
        endpoint = registry.transport(self._plan.settings.primary).endpoint
        async with self._plan.secondary_transport() as secondary:
            agreement = await find_agreement(endpoint, secondary, options, options.attempt_timeout, everywhere=True)
            if agreement.conflict is not None:
                raise ConfigurationError(agreement.conflict)
            self._plan = self._plan.with_queues(endpoint.name, agreement.found)
            others = [queue for queue in agreement.found if queue not in self._plan.queues]
            depths = await counts_of(secondary, others, options.attempt_timeout)
        self._unread = agreement.unread
        self._elsewhere = (
            *map(str, agreement.stranded),
            *agreement.record.problems,
            *(f"{depth.queue} has another template: 'pairmq syphon' drains it" for depth in depths if depth.pending),
        )

    async def run(self, spark: SparkSession, stop: asyncio.Event, progress: ShowProgress = lambda left: None) -> Report:
        """Empty the queues that are not known to be empty.

        Args:
            spark: where. On a local one the tasks finish what they hold when asked to stop; elsewhere they are
                cancelled, and their messages are redelivered when the locks expire.
            stop: set it to end.
            progress: called with what is left.

        Raises:
            ConfigurationError: the session would do harm, or the workers' settings can't work.
        """
        check_session(spark, handed_over=self._plan.handed_over)
        indexes = [index for index, depth in enumerate(self.before) if depth.pending != 0]
        local = is_local(spark)
        settings = self._plan.settings
        urls = (settings.primary, settings.secondary) if self._plan.handed_over else None
        problem: str | None = None
        outcomes: dict[int, Outcome] = {}
        with Handover(urls) as handover:
            job = self._job(most_at_once(spark, len(indexes)), str(handover.directory) if local else None)
            tag = Tag(spark, "pairmq-drain")
            work = asyncio.create_task(asyncio.to_thread(run_job, spark, job, indexes, tag))
            try:
                await self._attend(work, stop, progress)
            finally:
                if not work.done():
                    handover.stop()
                    if not local:
                        tag.interrupt()
            try:
                outcomes = {outcome.index: outcome for outcome in await work}
            except JobFailed as error:
                problem = None if stop.is_set() else str(error)
            begun = handover.begun()
        wrong = next((each for each in outcomes.values() if each.ending is Ending.MISCONFIGURED), None)
        if wrong is not None:
            raise ConfigurationError(wrong.problem or "the workers' settings can't work")
        if not local:
            ended = {index: outcome.attempt + 1 for index, outcome in outcomes.items()}  # no others are known of
            return self._report(await self._count(), outcomes, ended, None, problem, stop.is_set())
        journalled = self._journalled([attempt.journal for attempt in begun])
        attempts = Counter(attempt.index for attempt in begun)
        return self._report(await self._count(), outcomes, attempts, journalled, problem, stop.is_set())

    def nothing(self) -> Report:
        """The report of a drain that found nothing to do."""
        return self._report(self.before, {}, {}, None, None, False)

    async def _attend(self, work: asyncio.Task[list[Outcome]], stop: asyncio.Event, progress: ShowProgress) -> None:
        """Report progress to the user, until it ends or is stopped."""
        stopping = asyncio.create_task(stop.wait())
        limit = self._plan.settings.options.attempt_timeout
        try:
            async with self._plan.secondary_transport() as secondary:
                while not work.done() and not stop.is_set():
                    depths = await counts_of(secondary, self._plan.queues, limit)
                    progress(total([depth.pending for depth in depths]))
                    await asyncio.wait((work, stopping), timeout=EVERY, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    def _job(self, at_once: int, handover: str | None) -> Job:
        plan = self._plan
        rate, patience = plan.settings.options.syphon_max_rate, plan.patience
        if rate is not None:
            rate /= at_once
            patience = max(patience, _UNMOVED / rate)  # slow does not mean stuck
        options = replace(plan.settings.options, syphon_max_rate=rate)
        return Job(
            options=options,
            primary=plan.primary,
            secondary=plan.secondary,
            config=plan.config,
            handover=handover,
            handed_over=plan.handed_over,
            journal=plan.settings.journal,
            patience=patience,
            ends_at=plan.ends_at,
            # Without -v the tasks say nothing of single events: the command counts what became of all.
            log_level=level if (level := _log.getEffectiveLevel()) <= logging.INFO else logging.CRITICAL,
            observers=plan.settings.observers,
        )

    async def _count(self) -> tuple[Depth, ...]:
        options = self._plan.settings.options
        async with self._plan.secondary_transport() as secondary:
            return await count_surely(
                secondary, self._plan.queues, options.attempt_timeout, backlog_properties(options)
            )

    def _journalled(self, runs: Sequence[str]) -> Journalled | None:
        journal = self._plan.settings.journal
        if journal is None:
            return None
        try:
            return count_journalled(journal, set(runs))
        except OSError as error:
            _log.warning("the journal in %s can't be counted: %s", journal, error)
            return None

    def _ending(self, index: int, outcomes: Mapping[int, Outcome], stopped: bool) -> Ending | None:
        if index in outcomes:
            return outcomes[index].ending
        if self.before[index].pending == 0:
            return None
        return Ending.STOPPED if stopped else Ending.LOST

    def _report(
        self,
        after: tuple[Depth, ...],
        outcomes: Mapping[int, Outcome],
        attempts: Mapping[int, int],
        journalled: Journalled | None,
        problem: str | None,
        stopped: bool,
    ) -> Report:
        before, left = (total([depth.pending for depth in depths]) for depths in (self.before, after))
        dead_lettered = total([set_aside(*depths) for depths in zip(self.before, after, strict=True)])
        gone = None if before is None or left is None else max(0, before - left - (dead_lettered or 0))
        if journalled is not None:
            # The last moments of a killed worker are in no journal.
            dead_lettered = max(dead_lettered or 0, journalled.dead_lettered)
        return Report(
            queues=tuple(
                QueueReport(
                    queue.path,
                    self.before[index].pending,
                    after[index].pending,
                    self._ending(index, outcomes, stopped),
                    attempts.get(index, 0),
                    after[index].error or (outcomes[index].problem if index in outcomes else None),
                )
                for index, queue in enumerate(self._plan.queues)
            ),
            before=before,
            left=left,
            moved=gone if journalled is None else journalled.moved,
            gone=gone,
            counted_from="brokers" if journalled is None else "journal",
            elsewhere=self._elsewhere,
            unread=self._unread,
            moved_again=None if journalled is None else journalled.again,
            dead_lettered=dead_lettered,
            workers_lost=max(0, sum(attempts.values()) - len(outcomes)),
            shut={name: why for outcome in outcomes.values() for name, why in outcome.shut.items()},
            problem=problem,
            stopped=stopped,
            seconds=time.monotonic() - self._began_at,
        )
