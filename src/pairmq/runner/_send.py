"""One send, from the call to its receipt: every attempt at either broker, inside one deadline (SPEC 3).

A batch is sent by the same steps as a single message: its messages share a route and an operation, and those that
failed go round again. Each message ends in exactly one way: a receipt, a refusal, or *unknown*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pairmq.core import TRANSIENT_RETRIES, Backoff, Diversion, PairOptions, ToBacklog, ToPrimary, divert
from pairmq.model import (
    BacklogUnavailable,
    EntityState,
    FailureKind,
    FailureReason,
    Message,
    MessageTooLarge,
    PairClosed,
    PairFaulted,
    PrimaryUnavailable,
    Receipt,
    SendError,
    SendRefused,
    TransportError,
)
from pairmq.runner._admission import Admission
from pairmq.runner._attempt import TimeLimits
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._entity import EntityRunner
from pairmq.runner._job import Endings, Job, SenderState, worst_kind
from pairmq.runner._ordered import Key, Orders, Place
from pairmq.runner._sizes import BacklogSizes
from pairmq.transport import Sender, Transport

_BACKOFF = Backoff(first=0.05, factor=2.0, cap=2.0)
_LAST_STRETCH = 0.1  # s: with less than this left an attempt gets all of it instead of half
_FAIR_TRIAL = 1.0  # s that an attempt at a backlog queue must have had for its time-out to tell about the queue

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


class SendProcedure:
    """Sends for all senders of a pair.

    Args:
        secondary: the transport of the backlog queues.
        backlog: the backlog queues.
        options: the pair's.
        clock: time and chance.
        emit: takes events.
        limits: bounds every operation.
    """

    def __init__(
        self,
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
        self._admission = Admission(options.max_pending_sends)
        self._endings = Endings(clock, emit)
        self._sizes = BacklogSizes(secondary, clock, emit)
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

    async def send(self, state: SenderState, message: Message, timeout: float) -> Receipt:
        """Send one message.

        Args:
            state: the sender's.
            message: with or without an id.
            timeout: seconds for everything.

        Returns:
            The receipt.

        Raises:
            SendError: refused or unknown.
            PairClosed, PairFaulted: the pair ended before the message was given to a broker.
            TypeError, ValueError: no message, or a timeout of 0 or less.

        Cancellation leaves the outcome unknown; the machine is told that the attempt was given up.
        """
        result = (await self.send_batch(state, (message,), timeout))[0]
        if isinstance(result, Receipt):
            return result
        raise result

    async def send_batch(
        self, state: SenderState, messages: Sequence[Message], timeout: float
    ) -> list[Receipt | SendError]:
        """Send several messages inside one deadline; one result each, in order. Raises as `send`, but no `SendError`.

        Cancellation leaves the outcome of those without a result unknown.
        """
        self._check_open()
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}: it must be more than 0 seconds")
        started = self._clock.now()
        deadline = started + timeout
        jobs = [self._endings.begin(state, message) for message in messages]
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
        tasks = [asyncio.create_task(self._go_along(state, place, started, deadline)) for place in places]
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
        while pending:
            if self._ends_at is not None:
                deadline = min(deadline, self._ends_at)
            if self._clock.now() >= deadline:
                self._give_up(state, pending, "the deadline passed", key=key)
                return
            if place is None or self._orders is None:
                route: ToPrimary | ToBacklog = runner.route()
            else:
                way = await self._orders.way(place, runner, deadline)
                if way is None:
                    continue
                route = way
            if type(route) is ToPrimary:
                worst = await self._try_primary(state, route.epoch, pending, started, deadline, transient)
                diverting = False
            else:
                worst = await self._try_backlog(state, pending, started, deadline, transient, key)
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
            if self._ends_at is not None:
                deadline = min(deadline, self._ends_at)  # the pair began to close during the attempt
            wait = min(_BACKOFF.wait(retry, self._clock.chance()), deadline - self._clock.now())
            retry += 1
            await runner.wait_for_change(max(0.0, wait))

    async def _try_primary(
        self,
        state: SenderState,
        epoch: int,
        jobs: list[Job],
        started: float,
        deadline: float,
        transient: int,
    ) -> FailureKind | None:
        """One attempt at the primary for all jobs; those accepted or refused get their result."""
        runner = state.runner
        answered = False
        try:
            failures = await self._attempt(state.primary, jobs, [job.message for job in jobs], self._limit(deadline))
            answered = True
        finally:
            if not answered:  # cancelled
                runner.abandoned(epoch)
        if failures is _TAKEN:  # every healthy send: told in few words
            runner.accepted(epoch)
            self._endings.accept(state, jobs[0], started, None)
            self._sizes.look(runner.entity, jobs[0].message)
            return None
        worst, late = worst_kind(failures), False
        if worst is None:
            if None in failures:
                runner.accepted(epoch)
            else:  # all refused: by the broker, which then is there, or before it saw them
                told = next((failure for failure in failures if failure and failure.reason in _BROKERS_WORDS), None)
                if told is None:
                    runner.abandoned(epoch)
                else:
                    runner.failed(epoch, told)
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
                self._endings.accept(state, job, started, None)
                self._sizes.look(runner.entity, job.message)
            else:
                refused = failure.kind is FailureKind.REFUSED
                self._endings.fail_attempt(state, job, failure, queue=None, late=late, final=refused)
        return worst

    async def _try_backlog(
        self,
        state: SenderState,
        jobs: list[Job],
        started: float,
        deadline: float,
        transient: int,
        key: Key | None,
    ) -> FailureKind | None:
        """One attempt at the sender's or key's backlog queue for all jobs; those accepted or refused get their result.

        A key's queue is tried also while it is out of the rotation: there is no other for it.
        """
        runner, backlog = state.runner, self._backlog
        maybe_there = False
        try:
            index: int | None
            if key is None:
                index = state.queue = backlog.rotation.choose(state.queue, self._clock.chance())
            else:
                index = key.queue
            if index is None:
                self._give_up(state, jobs, "no backlog queue takes messages", BacklogUnavailable)
                return None
            fitting: list[tuple[Job, Message]] = []
            for job in jobs:
                envelope = self._envelope(state, job)
                problem = self._sizes.problem(envelope)
                if problem is None:
                    fitting.append((job, envelope))
                else:
                    self._endings.refuse(state, job, MessageTooLarge, problem)
            if not fitting:
                return None
            took = [job for job, _ in fitting]
            now = self._clock.now()
            limit = self._limit(deadline)
            fair = limit - now > min(self._options.attempt_timeout, _FAIR_TRIAL) - 0.001
            unfit = None if key is None else await self._unfit(index, limit)
            maybe_there = unfit is None  # also when the attempt is cut off
            failures: Sequence[TransportError | None]
            if unfit is None:
                failures = await self._attempt(backlog.sender(index), took, [e for _, e in fitting], limit)
                maybe_there = any(failure is None or failure.maybe_applied for failure in failures)
            else:
                failures = [unfit] * len(took)
        finally:
            if key is not None:
                key.facts.divert_ended(self._clock.now(), maybe_there=maybe_there)
            runner.divert_ended()
        queue = backlog.entities[index].path
        worst: FailureKind | None = None
        for job, failure in zip(took, failures, strict=True):
            if failure is None:
                self._endings.accept(state, job, started, queue)
                continue
            # Only a message that is itself at fault is refused; a queue that can't be written to is a queue to leave.
            at_fault = failure.reason in (FailureReason.TOO_LARGE, FailureReason.MALFORMED)
            self._endings.fail_attempt(state, job, failure, queue=queue, late=False, final=at_fault)
            if at_fault:
                continue
            passing = failure.kind in (FailureKind.TRANSIENT, FailureKind.BUSY) and transient < TRANSIENT_RETRIES
            # A throttled queue is left for another one, but the last one is waited for.
            only = key is not None or len(backlog.rotation.in_use) == 1
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

    async def _unfit(self, index: int, limit: float) -> TransportError | None:
        """Why no order can be kept in a backlog queue, as far as anybody can tell; None when it can."""
        try:
            async with asyncio.timeout_at(limit):
                await self._backlog.check(index)
        except TransportError as error:
            return error
        except TimeoutError:
            return TransportError("no answer within the time limit", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
        return None

    def _limit(self, deadline: float) -> float:
        """When the next attempt must end: half of the time left at most, as the other half is for the other broker."""
        now = self._clock.now()
        left = deadline - now
        return now + min(self._options.attempt_timeout, left if left < _LAST_STRETCH else left / 2)

    async def _attempt(
        self, sender: Sender, jobs: Sequence[Job], messages: list[Message], limit: float
    ) -> Sequence[TransportError | None]:
        """One operation at a broker, until ``limit`` at most."""
        for job in jobs:
            job.attempts += 1
        try:
            if len(messages) == 1:
                await self._limits.run(sender.send(messages[0]), limit)
                return _TAKEN
            return await self._limits.run(sender.send_batch(messages), limit)
        except TransportError as error:
            return [error] * len(messages)

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
            known = runner.last_failure if runner.last_failure not in job.causes else None
            extra = self._backlog.last_failure if diverting and self._backlog.last_failure not in job.causes else None
            job.causes = [cause for cause in (known, *job.causes, extra, self._fault) if cause is not None]
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

    @staticmethod
    def _primary_enabled(runner: EntityRunner) -> bool:
        return runner.state is not EntityState.FAILED_OVER

    def _envelope(self, state: SenderState, job: Job) -> Message:
        state.sequence += 1
        at = self._clock.instant()
        return divert(job.message, Diversion(state.runner.entity, at, state.sender_id, state.sequence, job.unknown))
