"""One attempt at either broker for the messages of a send, and what its outcome means for each of them (SPEC 3, 5).

A round of `_send` is one of these: an operation that is bounded in time, told to the entity's machine, and the results
of those messages that have one by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from pairmq.core import TRANSIENT_RETRIES, Diversion, PairOptions, divert
from pairmq.model import FailureKind, FailureReason, Message, MessageTooLarge, TransportError
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._job import Endings, Job, SenderState, worst_kind
from pairmq.runner._limits import TimeLimits
from pairmq.runner._ordered import Key
from pairmq.runner._sizes import BacklogSizes
from pairmq.transport import Sender

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


class Attempts:
    """Attempts of all sends of a pair.

    Args:
        backlog: the backlog queues.
        options: the pair's.
        clock: time and chance.
        limits: bounds every operation.
        endings: gives messages their results.
        sizes: which messages fit into the backlog.
        no_queue: ends messages that no backlog queue takes.
    """

    def __init__(
        self,
        backlog: BacklogQueues,
        options: PairOptions,
        clock: Clock,
        limits: TimeLimits,
        endings: Endings,
        sizes: BacklogSizes,
        no_queue: Callable[[SenderState, list[Job]], None],
    ) -> None:
        self._backlog = backlog
        self._options = options
        self._clock = clock
        self._limits = limits
        self._endings = endings
        self._sizes = sizes
        self._no_queue = no_queue

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
        try:
            failures = await self._attempt(state.primary, jobs, [job.message for job in jobs], limit)
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

        A key's queue is tried also while it is out of the rotation: there is no other for it.
        """
        runner, backlog = state.runner, self._backlog
        # Before the envelopes of a large batch, which take a while.
        fair = limit - self._clock.now() > min(self._options.attempt_timeout, _FAIR_TRIAL) - 0.001
        maybe_there = False
        try:
            index: int | None
            if key is None:
                index = state.queue = backlog.rotation.choose(state.queue, self._clock.chance())
            else:
                index = key.queue
            if index is None:
                self._no_queue(state, jobs)
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
            # Its send keeps it: with its trace it would keep all frames that it went through, and thousands of those
            # make the garbage collector stop the loop for long. What caused it has its own.
            return [error.with_traceback(None)] * len(messages)

    def _envelope(self, state: SenderState, job: Job) -> Message:
        state.sequence += 1
        at = self._clock.instant()
        return divert(job.message, Diversion(state.runner.entity, at, state.sender_id, state.sequence, job.unknown))
