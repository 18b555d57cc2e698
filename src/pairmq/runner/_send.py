"""One send, from the call to its receipt: every attempt at either broker, inside one deadline (SPEC 3).

A batch is sent by the same steps as a single message: its messages share a route and an operation, and those that
failed go round again. Each message ends in exactly one way: a receipt, a refusal, or *unknown*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from pairmq.core import Backoff, PairOptions, ToBacklog, ToPrimary
from pairmq.model import (
    BacklogUnavailable,
    EntityState,
    FailureKind,
    Message,
    PairClosed,
    PairFaulted,
    PrimaryUnavailable,
    Receipt,
    SendError,
    SendRefused,
)
from pairmq.runner._admission import Admission
from pairmq.runner._attempts import Attempts
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._entity import EntityRunner
from pairmq.runner._job import Endings, Job, SenderState
from pairmq.runner._last_failure import besides
from pairmq.runner._limits import RoundTrip, TimeLimits
from pairmq.runner._ordered import Key, Orders, Place
from pairmq.runner._sizes import MessageLimits
from pairmq.transport import Transport, start_task

_BACKOFF = Backoff(first=0.05, factor=2.0, cap=2.0)
_UP = (EntityState.HEALTHY, EntityState.DRAINING)
_NO_QUEUE = "no backlog queue takes messages"
_LAST_STRETCH = 0.1  # s: with less than this left an attempt gets all of it instead of half


class SendProcedure:
    """Sends for all senders of a pair.

    Args:
        primary: where messages belong.
        secondary: the transport of the backlog queues.
        backlog: the backlog queues.
        options: the pair's.
        clock: time and chance.
        emit: takes events.
        limits: bounds every operation.
    """

    def __init__(
        self,
        primary: Transport,
        secondary: Transport,
        backlog: BacklogQueues,
        options: PairOptions,
        clock: Clock,
        emit: Emitter,
        limits: TimeLimits,
    ) -> None:
        self._backlog = backlog
        self._options = options
        self._clock = clock
        self._limits = limits
        self._admission = Admission(options.max_pending_sends, limits)
        self._endings = Endings(clock, emit)
        sizes = MessageLimits(primary, secondary, clock, emit)
        self._attempts = Attempts(backlog, options, clock, limits, self._endings, sizes)
        self._orders = None if options.ordering == "none" else Orders(secondary, backlog, options, clock, limits)
        self._ends_at: float | None = None
        self._fault: BaseException | None = None
        self._given_back = 0
        self._idle = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Messages in flight now."""
        return self._admission.in_flight

    @property
    def given_back(self) -> int:
        """Sends that ended as unknown because the pair closed."""
        return self._given_back

    async def close(self) -> None:
        """Stop what works beside the sends."""
        if self._orders is not None:
            await self._orders.close()

    def end_by(self, instant: float, fault: BaseException | None = None) -> None:
        """Take no new sends, and let those in flight last no longer than ``instant`` (SPEC 9.1)."""
        self._ends_at = instant if self._ends_at is None else min(instant, self._ends_at)
        self._fault = self._fault or fault
        self._limits.end_by(self._ends_at)

    async def wait_idle(self, seconds: float) -> None:
        """Return when no send is in flight, or after ``seconds``."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while self.in_flight and loop.time() < ends_at:
            self._idle.clear()
            try:
                async with asyncio.timeout_at(ends_at):
                    await self._idle.wait()
            except TimeoutError:
                return

    def send(
        self, state: SenderState, messages: Sequence[Message], timeout: float
    ) -> Coroutine[Any, Any, list[Receipt | SendError]]:
        """Send one message or several inside one deadline.

        Args:
            state: the sender's.
            messages: with or without ids.
            timeout: seconds for everything.

        Returns:
            To be awaited at once: one result a message, in order.

        Raises:
            PairClosed, PairFaulted: the pair ended before a message was given to a broker.
            TypeError, ValueError: no message, or a timeout of 0 or less.

        Cancellation leaves the outcome of those without a result unknown; the machine is told that the attempt was
        given up.
        """
        self._check_open()
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}: it must be more than 0 seconds")
        started = self._clock.now()
        jobs = [self._endings.begin(state, message) for message in messages]
        return self._carry_out(state, jobs, started, started + timeout)

    async def _carry_out(
        self, state: SenderState, jobs: list[Job], started: float, deadline: float
    ) -> list[Receipt | SendError]:
        """Give each job its result."""
        pending = jobs
        if len(jobs) != 1 or jobs[0].result is not None:
            pending = [job for job in jobs if job.result is None]
        places: Sequence[Place] = () if self._orders is None else self._orders.line_up(state, pending)
        entered = not pending or self._admission.try_enter(len(pending))
        try:
            if not entered:
                entered = await self._admission.enter(len(pending), deadline)
                self._check_open(state, pending)
            if entered and self._orders is not None:
                await self._go_in_order(state, places, started, deadline)
            elif entered:
                await self._go_round(state, pending, started, deadline)
            else:
                for job in pending:
                    text = f"{self._admission.limit} sends were in flight until the deadline (max_pending_sends)"
                    self._endings.refuse(state, job, SendRefused, text)
        finally:
            for place in places:
                place.leave()
            if entered:
                self._admission.leave(len(pending))
                if not self._admission.in_flight:
                    self._idle.set()
            self._endings.report(state, jobs, started)
        return [job.result for job in jobs if job.result is not None]

    # The rounds: route, attempt, and again for what is left.

    async def _go_in_order(self, state: SenderState, places: Sequence[Place], started: float, deadline: float) -> None:
        """Those of one key one after another, different keys side by side."""
        if len(places) <= 1:
            for place in places:
                await self._go_along(state, place, started, deadline)
            return
        tasks = [start_task(self._go_along(state, place, started, deadline)) for place in places]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _go_along(self, state: SenderState, place: Place, started: float, deadline: float) -> None:
        if not await place.come(deadline):
            why = "earlier sends of its session or sender were under way until the deadline"
            self._give_up(state, place.jobs, why, key=place.key)
            return
        for job in place.jobs:
            await self._go_round(state, [job], started, deadline, place)

    async def _go_round(
        self, state: SenderState, pending: list[Job], started: float, deadline: float, place: Place | None = None
    ) -> None:
        runner = state.runner
        key = None if place is None else place.key
        retry = transient = 0
        well = runner.seen in _UP  # then the primary itself says at once what it can't hold
        waited, first = False, True
        while pending:
            if self._ends_at is not None:
                deadline = min(deadline, self._ends_at)
            now = self._clock.now()
            enabled = well or self._primary_enabled(runner)
            # Never early before the first attempt, and by half of its time at most: both brokers are to have one.
            early = 0.0 if first else min(self._limits.lead, (deadline - started) / 2)
            if now >= deadline - early:
                why = f"{_NO_QUEUE} until the deadline" if waited and not enabled else "the deadline passed"
                self._give_up(state, pending, why, key=key)
                return
            first = False
            waits = not enabled and not self._backlog.usable(None if key is None else key.queue)
            if not well:
                pending = self._attempts.fitting(state, pending, waiting=waits and not waited)
                if not pending:
                    return
            well, waited = False, waited or waits
            if waits:
                runner.want_ping()
                if key is None and self._options.while_failing == "raise":
                    self._backlog.try_soon()
                    self._give_up(state, pending, _NO_QUEUE, BacklogUnavailable)
                    return
                await self._pause(runner, retry, deadline, self._backlog.waiting)
                retry += 1
                continue
            if place is None or self._orders is None:
                route: ToPrimary | ToBacklog = runner.route()
            else:
                way = await self._orders.way(place, runner, deadline)
                if way is None:
                    continue
                route, now = way, self._clock.now()
            if type(route) is ToPrimary:
                limit = self._limit(now, deadline, self._attempts.to_primary)
                worst = await self._attempts.primary(state, route.epoch, pending, started, limit, transient)
                diverting = False
            else:
                limit = self._limit(now, deadline, self._attempts.to_backlog)
                worst = await self._attempts.backlog(state, pending, started, limit, transient, key)
                diverting = True
            pending = [job for job in pending if job.result is None]
            if not pending:
                return
            passing = worst is FailureKind.TRANSIENT or (diverting and worst is FailureKind.BUSY)
            transient = transient + 1 if passing else 0
            if diverting and worst is FailureKind.UNAVAILABLE and key is None:
                continue  # another queue takes it at once; a key has but one (SPEC 8.2)
            if not diverting and not self._primary_enabled(runner):
                continue  # the backlog takes it at once
            if not diverting and worst is FailureKind.UNAVAILABLE and self._options.while_failing == "raise":
                self._give_up(state, pending, "the primary failed and while_failing is 'raise'")
                return
            await self._pause(runner, retry, deadline, self._backlog.waiting if diverting else None)
            retry += 1

    async def _pause(
        self, runner: EntityRunner, retry: int, deadline: float, besides: set[asyncio.Future[None]] | None
    ) -> None:
        """Wait before the next attempt: for a while that grows, or until something has changed."""
        if self._ends_at is not None:
            deadline = min(deadline, self._ends_at)  # the pair began to close during the attempt
        wait = min(_BACKOFF.wait(retry, self._clock.chance()), deadline - self._clock.now())
        await runner.wait_for_change(max(0.0, wait), besides)

    def _give_up(
        self,
        state: SenderState,
        jobs: list[Job],
        why: str,
        kind: type[SendRefused] | None = None,
        key: Key | None = None,
    ) -> None:
        """End what is left, with every failure that led here."""
        runner = state.runner
        diverting = not self._primary_enabled(runner) or (key is not None and not key.facts.clean)
        if self._ends_at is not None:
            kind, why = SendRefused, "the pair closed" if self._fault is None else f"the pair faulted: {self._fault}"
        elif kind is None:
            kind = BacklogUnavailable if diverting else PrimaryUnavailable
        for job in jobs:
            known = besides(runner.last_failure, job.causes)
            extra = besides(self._backlog.last_failure, job.causes) if diverting else None
            job.causes = tuple(cause for cause in (known, *job.causes, extra, self._fault) if cause is not None)
            last = f": {job.causes[-1]}" if job.causes and self._fault is None else ""
            self._given_back += self._ends_at is not None and job.unknown
            self._endings.refuse(state, job, kind, f"{why}{last}")

    # Small questions.

    def _check_open(self, state: SenderState | None = None, pending: Sequence[Job] = ()) -> None:
        if state is not None and self._ends_at is not None:
            for job in pending:  # never given to a broker: the report must not call them unknown
                self._endings.refuse(state, job, SendRefused, "the pair closed before its turn came")
        if self._fault is not None:
            raise PairFaulted(f"the pair has faulted: {self._fault}") from self._fault
        if self._ends_at is not None:
            raise PairClosed("the pair is closed: it takes no more sends")

    def _limit(self, now: float, deadline: float, trip: RoundTrip) -> float:
        """When the next attempt must end: half of the time left is for the other broker, if the rest is enough here."""
        left = deadline - now
        share = left if left < _LAST_STRETCH else max(left / 2, min(left, trip.needed))
        return now + min(self._options.attempt_timeout, share)

    @staticmethod
    def _primary_enabled(runner: EntityRunner) -> bool:
        return runner.state is not EntityState.FAILED_OVER
