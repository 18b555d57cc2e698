"""One send, from the call to its receipt: every attempt at either broker, inside one deadline (SPEC 3).

`Admission` bounds how many sends of a pair are in flight. `Attempts` make one operation at either broker, tell the
entity's machine what came of it, and give their results to those messages that have one by it. The `SendProcedure`
goes round until all have one.

A batch is sent by the same steps as a single message: its messages share a route and an operation, and those that
failed go round again. Each message ends in exactly one way: a receipt, a refusal, or *unknown*.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final

from pairmq.core import TRANSIENT_RETRIES, Backoff, Diversion, PairOptions, ToBacklog, ToPrimary, divert
from pairmq.model import (
    BacklogUnavailable,
    EntityState,
    FailureKind,
    FailureReason,
    Message,
    PairClosed,
    PairFaulted,
    PrimaryUnavailable,
    Receipt,
    SendError,
    SendRefused,
    TransportError,
)
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._entity import EntityRunner
from pairmq.runner._job import Job, MessageLimits, Results, SenderState, worst_kind
from pairmq.runner._limits import FAIR_TRIAL, Limit, RoundTrip, TimeLimits, besides
from pairmq.runner._ordered import Key, Orders, Place
from pairmq.transport import Sender, Transport, start_task

_TAKEN: Final[Sequence[TransportError | None]] = (None,)
"""What came of an attempt with one message that was confirmed."""

_BROKERS_WORDS = frozenset(
    (
        FailureReason.NOT_FOUND,
        FailureReason.UNAUTHORIZED,
        FailureReason.DISABLED,
        FailureReason.QUOTA,
        FailureReason.ALREADY_EXISTS,
    )
)
"""Refusals that only a broker can give; a message that is too large, say, a client may refuse alone."""

_MESSAGES_FAULT = frozenset((FailureReason.TOO_LARGE, FailureReason.MALFORMED))
"""Failures that say nothing about a backlog queue; any other one is a reason to leave it."""

_BACKOFF = Backoff(first=0.05, factor=2.0, cap=2.0)
_UP = (EntityState.HEALTHY, EntityState.DRAINING)
_NO_QUEUE = "no backlog queue takes messages"
_LAST_STRETCH = 0.1  # s: with less than this left an attempt gets all of it instead of half


class Admission:
    """A first-come-first-served gate, counted in messages, that costs nothing while it is open.

    Args:
        limit: messages in flight at most.
        limits: ends waits: thousands may end at one instant.
    """

    def __init__(self, limit: int, limits: TimeLimits) -> None:
        self.limit = limit
        self._limits = limits
        self._free = limit
        self._queue: OrderedDict[asyncio.Future[None], int] = OrderedDict()

    @property
    def in_flight(self) -> int:
        """Messages in flight now."""
        return self.limit - self._free

    def try_enter(self, messages: int) -> bool:
        """Enter at once if there is room and no one waits; a batch larger than the limit enters alone."""
        messages = min(messages, self.limit)
        if self._queue or self._free < messages:
            return False
        self._free -= messages
        return True

    async def enter(self, messages: int, deadline: float) -> bool:
        """Wait for a turn until ``deadline``, an instant of the loop's clock; returns whether it came."""
        if self.try_enter(messages):
            return True
        turn = asyncio.get_running_loop().create_future()
        self._queue[turn] = min(messages, self.limit)
        try:
            await self._limits.run(_came(turn), deadline)
        except TransportError:
            pass  # too late, unless the turn came at this very instant
        except asyncio.CancelledError:
            if self._has_come(turn):
                self.leave(messages)
            raise
        return self._has_come(turn)

    def leave(self, messages: int) -> None:
        """Make room again."""
        self._free += min(messages, self.limit)
        self._let_in()

    def _has_come(self, turn: asyncio.Future[None]) -> bool:
        """Whether a turn came that is waited for no longer."""
        if turn not in self._queue:
            return True
        del self._queue[turn]
        # A large batch at the head may have held up smaller sends that fit.
        self._let_in()
        return False

    def _let_in(self) -> None:
        while self._queue:
            turn, messages = next(iter(self._queue.items()))
            if messages > self._free:
                return
            del self._queue[turn]
            self._free -= messages
            if not turn.done():  # else it is about to be given up, and learns that it came
                turn.set_result(None)


async def _came(turn: asyncio.Future[None]) -> None:
    await turn


class Attempts:
    """Attempts of all sends of a pair."""

    def __init__(
        self,
        backlog: BacklogQueues,
        options: PairOptions,
        clock: Clock,
        limits: TimeLimits,
        results: Results,
        sizes: MessageLimits,
    ) -> None:
        self._backlog = backlog
        self._options = options
        self._clock = clock
        self._limits = limits
        self._results = results
        self._sizes = sizes
        self.to_primary = RoundTrip()
        self.to_backlog = RoundTrip()

    def fitting(self, state: SenderState, jobs: list[Job], *, waiting: bool) -> list[Job]:
        """Refuse what the primary can never hold, and what is to wait for the backlog in vain (SPEC 3.8).

        Returns:
            The others.
        """
        for job in jobs:
            problem = self._unfit_for_primary(state, job)
            if problem is None and waiting:
                problem = self._sizes.of_backlog(self._backlog.entities[0], self._envelope(state, job))
            if problem is not None:
                self._results.reject(state, job, problem)
        return [job for job in jobs if job.result is None]

    def _unfit_for_primary(self, state: SenderState, job: Job) -> TransportError | None:
        """Ask once for each message: it may be large."""
        if job.fits:
            return None
        problem = self._sizes.of_primary(state.runner.entity, job.message)
        job.fits = problem is None
        return problem

    async def primary(
        self,
        state: SenderState,
        epoch: int,
        jobs: list[Job],
        started: float,
        limit: float,
        transient: int,
    ) -> FailureKind | None:
        """One attempt at the primary for all jobs; those accepted or refused get their result."""
        runner = state.runner
        answered = False
        failures: Sequence[TransportError | None]
        try:
            if len(jobs) == 1:  # as in `_attempt`, but without a coroutine of its own: every healthy send pays for it
                jobs[0].attempts += 1
                failures = _TAKEN
                with Limit(self._limits, limit) as limited:
                    await state.primary.send(jobs[0].message)
                    self.to_primary.answered(self._clock.now() - limited.began_at)
                if limited.failure is not None:
                    failures = (self._failed(self.to_primary, limited),)
            else:
                failures = await self._attempt(
                    self.to_primary, state.primary, jobs, [job.message for job in jobs], limit
                )
            answered = True
        finally:
            if not answered:  # cancelled
                runner.abandoned(epoch)
        if failures is _TAKEN:  # every healthy send: in few words
            runner.accepted(epoch)
            self._results.accept(state, jobs[0], started, None)
            self._sizes.look(runner.entity, jobs[0].message)
            return None
        worst, late = worst_kind(failures), False
        if worst is None:
            if None in failures:
                runner.accepted(epoch)
            else:  # all refused: by the broker, which then is reachable, or before it saw them
                verdict = next((failure for failure in failures if failure and failure.reason in _BROKERS_WORDS), None)
                if verdict is None:
                    runner.abandoned(epoch)
                else:
                    runner.failed(epoch, verdict)
        elif None in failures:
            # It does take messages: those that it did not take go round again, and a failure of all of them counts.
            runner.accepted(epoch)
        elif worst is FailureKind.TRANSIENT and transient < TRANSIENT_RETRIES:
            runner.abandoned(epoch)
        else:
            late = runner.failed(epoch, next(f for f in failures if f is not None and f.kind is worst))
            if worst is FailureKind.TRANSIENT:  # it has outlived its retries (SPEC 3.6)
                worst = FailureKind.UNAVAILABLE
        for job, failure in zip(jobs, failures, strict=True):
            if failure is None:
                self._results.accept(state, job, started, None)
                self._sizes.look(runner.entity, job.message)
            else:
                refused = failure.kind is FailureKind.REFUSED
                self._results.fail_attempt(state, job, failure, queue=None, late=late, final=refused)
        return worst

    async def backlog(
        self,
        state: SenderState,
        jobs: list[Job],
        started: float,
        limit: float,
        transient: int,
        key: Key | None,
    ) -> FailureKind | None:
        """One attempt at the sender's or key's backlog queue for all jobs; those accepted or refused get their result.

        With no queue in use it is the trial of one; *unavailable* without an attempt while others try them all.
        """
        backlog = self._backlog
        index, trial = backlog.choose(state.queue, None if key is None else key.queue)
        if index is None:
            self._divert_ended(state, key, maybe_there=False)
            return FailureKind.UNAVAILABLE
        if key is None:
            state.queue = index
        # Before the envelopes of a large batch, which take a while.
        fair = limit - self._clock.now() > min(self._options.attempt_timeout, FAIR_TRIAL) - 0.001
        works: bool | None = None
        try:
            took, failures = await self._at_queue(state, index, jobs, limit, key)
            if None in failures:
                works = True
            elif any(failure is not None and failure.reason not in _MESSAGES_FAULT for failure in failures):
                works = False
        finally:
            if trial:
                backlog.end_trial(index, works)
        queue = backlog.entities[index].path
        worst: FailureKind | None = None
        for job, failure in zip(took, failures, strict=True):
            if failure is None:
                self._results.accept(state, job, started, queue)
                continue
            # Only a message that is itself at fault is refused; a queue that can't be written to is a queue to leave.
            at_fault = failure.reason in _MESSAGES_FAULT
            self._results.fail_attempt(state, job, failure, queue=queue, late=False, final=at_fault)
            if at_fault:
                continue
            passing = failure.kind in (FailureKind.TRANSIENT, FailureKind.BUSY) and transient < TRANSIENT_RETRIES
            # A throttled queue is left for another one, but the last one is waited for.
            only = key is not None or len(backlog.rotation.in_use) <= 1
            last = failure.kind is FailureKind.BUSY and only
            if passing or last:
                worst = worst or failure.kind
            elif failure.reason is FailureReason.TIMEOUT and not fair:
                # Cut short by this send's own deadline: that is no verdict on a queue that all senders share.
                worst, state.queue = FailureKind.UNAVAILABLE, None
            else:
                worst = FailureKind.UNAVAILABLE
                backlog.take_out(index, failure)
        return worst

    async def _at_queue(
        self, state: SenderState, index: int, jobs: list[Job], limit: float, key: Key | None
    ) -> tuple[list[Job], Sequence[TransportError | None]]:
        """The operation itself: gives those jobs that it was about, and what came of each."""
        backlog = self._backlog
        maybe_there = False
        try:
            took: list[Job] = []
            envelopes: list[Message] = []
            for job in jobs:
                state.sequence += 1
                envelope = self._envelope(state, job)
                problem = self._unfit_for_primary(state, job)
                problem = problem or self._sizes.of_backlog(backlog.entities[index], envelope)
                if problem is None:
                    took.append(job)
                    envelopes.append(envelope)
                else:
                    self._results.reject(state, job, problem)
            if not took:
                return took, ()
            unfit = None if key is None else await self._problem(backlog.check(index), limit)
            if unfit is not None:
                return took, [unfit] * len(took)
            began_at, maybe_there = self._clock.now(), True  # also when the attempt is cut off
            failures = await self._attempt(self.to_backlog, backlog.sender(index), took, envelopes, limit)
            missing = [
                at for at, failure in enumerate(failures) if failure and failure.reason is FailureReason.NOT_FOUND
            ]
            if missing and await self._problem(backlog.make_again(index, began_at), limit) is None:
                parts = [took[at] for at in missing], [envelopes[at] for at in missing]
                second = await self._attempt(self.to_backlog, backlog.sender(index), *parts, limit)
                found = dict(zip(missing, second, strict=True))
                failures = [found.get(at, failure) for at, failure in enumerate(failures)]
            maybe_there = any(failure is None or failure.maybe_applied for failure in failures)
            return took, failures
        finally:
            self._divert_ended(state, key, maybe_there=maybe_there)

    def _divert_ended(self, state: SenderState, key: Key | None, *, maybe_there: bool) -> None:
        if key is not None:
            key.facts.divert_ended(self._clock.now(), maybe_there=maybe_there)
        state.runner.divert_ended()

    @staticmethod
    async def _problem(looking: Awaitable[None], limit: float) -> TransportError | None:
        """Why a backlog queue is not as it must be, as far as that can be found out; None when it is."""
        try:
            async with asyncio.timeout_at(limit):
                await looking
        except TransportError as error:
            return error
        except TimeoutError:
            return TransportError("no answer within the time limit", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
        return None

    async def _attempt(
        self, trip: RoundTrip, sender: Sender, jobs: Sequence[Job], messages: list[Message], limit: float
    ) -> Sequence[TransportError | None]:
        """One operation at a broker, until ``limit`` at most."""
        for job in jobs:
            job.attempts += 1
        with Limit(self._limits, limit) as limited:
            if len(messages) == 1:
                await sender.send(messages[0])
                trip.answered(self._clock.now() - limited.began_at)
                return _TAKEN
            return await sender.send_batch(messages)
        return [self._failed(trip, limited)] * len(messages)

    def _failed(self, trip: RoundTrip, limited: Limit) -> TransportError:
        """The failure of an attempt, to be kept by its send.

        With its trace it would keep all frames that it went through, and thousands of those make the garbage collector
        stop the loop for long. What caused it has its own.
        """
        failure = limited.take_failure().with_traceback(None)
        if failure.reason is FailureReason.TIMEOUT:
            trip.cut_off(self._clock.now() - limited.began_at)
        return failure

    def _envelope(self, state: SenderState, job: Job) -> Message:
        at = self._clock.instant()
        return divert(job.message, Diversion(state.runner.entity, at, state.sender_id, state.sequence, job.unknown))


class SendProcedure:
    """Sends for all senders of a pair."""

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
        self._results = Results(clock, emit)
        sizes = MessageLimits(primary, secondary, clock, emit)
        self._attempts = Attempts(backlog, options, clock, limits, self._results, sizes)
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

        Cancellation leaves the outcome of those without a result unknown; the machine counts the attempt as given up.
        """
        self._check_open()
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}: it must be more than 0 seconds")
        started = self._clock.now()
        jobs = [self._results.begin(state, message) for message in messages]
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
                    self._results.refuse(state, job, SendRefused, text)
        finally:
            for place in places:
                place.leave()
            if entered:
                self._admission.leave(len(pending))
                if not self._admission.in_flight:
                    self._idle.set()
            self._results.report(state, jobs, started)
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
            self._results.refuse(state, job, kind, f"{why}{last}")

    # Small questions.

    def _check_open(self, state: SenderState | None = None, pending: Sequence[Job] = ()) -> None:
        if state is not None and self._ends_at is not None:
            for job in pending:  # never given to a broker: the report must not call them unknown
                self._results.refuse(state, job, SendRefused, "the pair closed before its turn came")
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
