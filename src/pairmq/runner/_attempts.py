"""One attempt at either broker for the messages of a send, and what its outcome means for each of them (SPEC 3, 5).

A round of `_send` is one of these: an operation that is bounded in time, told to the entity's machine, and the results
of those messages that have one by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from pairmq.core import TRANSIENT_RETRIES, Diversion, PairOptions, divert
from pairmq.model import FailureKind, FailureReason, Message, TransportError
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._job import Endings, Job, SenderState, worst_kind
from pairmq.runner._limits import FAIR_TRIAL, Limit, RoundTrip, TimeLimits
from pairmq.runner._ordered import Key
from pairmq.runner._sizes import MessageLimits
from pairmq.transport import Sender

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
"""Failures that tell nothing of a backlog queue; any other one is a reason to leave it."""


class Attempts:
    """Attempts of all sends of a pair.

    Args:
        backlog: the backlog queues.
        options: the pair's.
        clock: time and chance.
        limits: bounds every operation.
        endings: gives messages their results.
        sizes: which messages both brokers can hold.
    """

    def __init__(
        self,
        backlog: BacklogQueues,
        options: PairOptions,
        clock: Clock,
        limits: TimeLimits,
        endings: Endings,
        sizes: MessageLimits,
    ) -> None:
        self._backlog = backlog
        self._options = options
        self._clock = clock
        self._limits = limits
        self._endings = endings
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
                self._endings.reject(state, job, problem)
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
                with self._limits.limit(limit) as limited:
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
                self._endings.accept(state, job, started, queue)
                continue
            # Only a message that is itself at fault is refused; a queue that can't be written to is a queue to leave.
            at_fault = failure.reason in _MESSAGES_FAULT
            self._endings.fail_attempt(state, job, failure, queue=queue, late=False, final=at_fault)
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
                    self._endings.reject(state, job, problem)
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
        with self._limits.limit(limit) as limited:
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
