"""One send, from the call to its receipt: every attempt at either broker, inside one deadline (SPEC 3).

A batch is sent by the same steps as a single message: its messages share a route and an operation, and those that
failed go round again. Each message ends in exactly one way: a receipt, a refusal, or *unknown*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pairmq.core import (
    TRANSIENT_RETRIES,
    Backoff,
    Diversion,
    PairOptions,
    ToPrimary,
    divert,
    reserved_properties,
)
from pairmq.model import (
    BacklogUnavailable,
    Entity,
    EntityNotFound,
    EntityState,
    FailureKind,
    FailureReason,
    Message,
    MessageTooLarge,
    PairClosed,
    PairFaulted,
    PrimaryUnavailable,
    Receipt,
    ReservedPropertyError,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
    TransportError,
    Unauthorized,
)
from pairmq.model.events import AttemptFailed, SendCompleted, SendOutcome, Warned
from pairmq.runner._admission import Admission
from pairmq.runner._attempt import TimeLimits
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._entity import EntityRunner
from pairmq.transport import Sender, Transport

_BACKOFF = Backoff(first=0.05, factor=2.0, cap=2.0)
_LAST_STRETCH = 0.1  # s: with less than this left an attempt gets all of it instead of half
_HEADROOM = 0.8  # share of the secondary's size limit from which a warning names the rest

_REFUSALS: dict[FailureReason, type[SendRefused]] = {
    FailureReason.NOT_FOUND: EntityNotFound,
    FailureReason.UNAUTHORIZED: Unauthorized,
    FailureReason.TOO_LARGE: MessageTooLarge,
}


class SenderState:
    """What belongs to one sender object.

    Args:
        runner: its entity's.
        primary: the transport's sender to the entity.
        sender_id: stands in the envelope of each message that it diverts.
    """

    __slots__ = ("primary", "queue", "runner", "sender_id", "sequence")

    def __init__(self, runner: EntityRunner, primary: Sender, sender_id: str) -> None:
        self.runner = runner
        self.primary = primary
        self.sender_id = sender_id
        self.sequence = 0
        self.queue: int | None = None


class _Job:
    """One message on its way."""

    __slots__ = ("attempts", "causes", "message", "result", "unknown")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.attempts = 0
        self.unknown = False
        self.causes: list[TransportError] = []
        self.result: Receipt | SendError | None = None


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
        self._secondary = secondary
        self._backlog = backlog
        self._options = options
        self._clock = clock
        self._emit = emit
        self._limits = limits
        self._admission = Admission(options.max_pending_sends)
        self._warned_size: set[Entity] = set()
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
        started = self._clock.now()
        deadline = started + timeout
        jobs = [self._job(state, message) for message in messages]
        pending = [job for job in jobs if job.result is None]
        entered = self._admission.try_enter(len(pending))
        try:
            if not entered:
                entered = await self._admission.enter(len(pending), deadline)
                self._check_open()
            if entered:
                await self._go_round(state, pending, started, deadline)
            else:
                for job in pending:
                    text = f"{self._admission.limit} sends were in flight until the deadline (max_pending_sends)"
                    job.result = self._error(SendRefused, state, job, text)
        finally:
            if entered:
                self._admission.leave(len(pending))
                if not self._admission.in_flight:
                    self._idle.set()
            if self._emit.active:
                self._report(state, jobs, started)
        return [job.result for job in jobs if job.result is not None]

    # The rounds: route, attempt, and again for what is left.

    async def _go_round(self, state: SenderState, pending: list[_Job], started: float, deadline: float) -> None:
        runner = state.runner
        retry = transient = 0
        while pending:
            if self._ends_at is not None:
                deadline = min(deadline, self._ends_at)
            if self._clock.now() >= deadline:
                self._give_up(state, pending, "the deadline passed")
                return
            route = runner.route()
            if type(route) is ToPrimary:
                worst = await self._try_primary(state, route.epoch, pending, started, deadline, transient)
                diverting = False
            else:
                worst = await self._try_backlog(state, pending, started, deadline, transient)
                diverting = True
            pending = [job for job in pending if job.result is None]
            if not pending:
                return
            transient = transient + 1 if worst is FailureKind.TRANSIENT else 0
            if diverting and worst is FailureKind.UNAVAILABLE:
                continue  # another queue takes it at once
            if not diverting and not self._primary_enabled(runner):
                continue  # the backlog takes it at once
            if worst is FailureKind.UNAVAILABLE and self._options.while_failing == "raise":
                self._give_up(state, pending, "the primary failed and while_failing is 'raise'")
                return
            wait = min(_BACKOFF.wait(retry, self._clock.chance()), deadline - self._clock.now())
            retry += 1
            await runner.wait_for_change(max(0.0, wait))

    async def _try_primary(
        self,
        state: SenderState,
        epoch: int,
        jobs: list[_Job],
        started: float,
        deadline: float,
        transient: int,
    ) -> FailureKind | None:
        """One attempt at the primary for all jobs; those accepted or refused get their result."""
        runner = state.runner
        answered = False
        try:
            failures = await self._attempt(state.primary, jobs, [job.message for job in jobs], deadline)
            answered = True
        finally:
            if not answered:  # cancelled
                runner.abandoned(epoch)
        worst, late = _worst(failures), False
        if worst is None:
            if None in failures:
                runner.accepted(epoch)
            else:  # all refused, which says nothing about the primary's health
                runner.abandoned(epoch)
        elif worst is FailureKind.TRANSIENT and transient < TRANSIENT_RETRIES:
            runner.abandoned(epoch)
        else:
            late = runner.failed(epoch, next(f for f in failures if f is not None and f.kind is worst))
            if worst is FailureKind.TRANSIENT:  # it has outlived its retries (SPEC 3.6)
                worst = FailureKind.UNAVAILABLE
        now = self._clock.now()
        for job, failure in zip(jobs, failures, strict=True):
            if failure is None:
                job.result = Receipt(
                    Route.PRIMARY,
                    runner.entity,
                    job.message.message_id or "",
                    None,
                    job.attempts,
                    now - started,
                    job.unknown,
                )
                if self._secondary_limit is not None:
                    self._warn_of_size(state, job.message)
            else:
                self._note_failure(state, job, failure, None, late)
        return worst

    async def _try_backlog(
        self, state: SenderState, jobs: list[_Job], started: float, deadline: float, transient: int
    ) -> FailureKind | None:
        """One attempt at the sender's backlog queue for all jobs; those accepted or refused get their result."""
        runner, backlog = state.runner, self._backlog
        try:
            index = state.queue = backlog.rotation.choose(state.queue, self._clock.chance())
            if index is None:
                self._give_up(state, jobs, "no backlog queue takes messages", BacklogUnavailable)
                return None
            fitting = []
            for job in jobs:
                envelope = self._envelope(state, job)
                limit = self._secondary_limit
                size = self._secondary.measure(envelope) if limit is not None else 0
                if limit is not None and size > limit:
                    text = f"its backlog form has {size} bytes, the secondary takes {limit}: make it smaller"
                    job.result = self._refusal(MessageTooLarge, state, job, text)
                else:
                    fitting.append((job, envelope))
            if not fitting:
                return None
            took = [job for job, _ in fitting]
            failures = await self._attempt(backlog.sender(index), took, [e for _, e in fitting], deadline)
        finally:
            runner.divert_ended()
        queue = backlog.entities[index].path
        worst: FailureKind | None = None
        now = self._clock.now()
        for job, failure in zip(took, failures, strict=True):
            if failure is None:
                job.result = Receipt(
                    Route.BACKLOG,
                    runner.entity,
                    job.message.message_id or "",
                    queue,
                    job.attempts,
                    now - started,
                    job.unknown,
                )
                continue
            # Only a message that is itself at fault is refused; a queue that can't be written to is a queue to leave.
            at_fault = failure.reason in (FailureReason.TOO_LARGE, FailureReason.MALFORMED)
            self._note_failure(state, job, failure, queue, False, final=at_fault)
            if at_fault:
                continue
            if failure.kind is FailureKind.BUSY or (
                failure.kind is FailureKind.TRANSIENT and transient < TRANSIENT_RETRIES
            ):
                worst = worst or failure.kind
            else:
                worst = FailureKind.UNAVAILABLE
                backlog.take_out(index, failure)
        return worst

    async def _attempt(
        self, sender: Sender, jobs: Sequence[_Job], messages: list[Message], deadline: float
    ) -> Sequence[TransportError | None]:
        """One operation at a broker; it gets half of the time left at most: the other half is for the other broker."""
        for job in jobs:
            job.attempts += 1
        now = self._clock.now()
        left = deadline - now
        limit = now + min(self._options.attempt_timeout, left if left < _LAST_STRETCH else left / 2)
        try:
            if len(messages) == 1:
                await self._limits.run(sender.send(messages[0]), limit)
                return (None,)
            return await self._limits.run(sender.send_batch(messages), limit)
        except TransportError as error:
            return [error] * len(messages)

    # How a message ends.

    def _job(self, state: SenderState, message: Message) -> _Job:
        job = _Job(message if message.message_id is not None else message.with_id(self._clock.new_id()))
        taken = reserved_properties(message)
        if taken:
            text = f"application properties {', '.join(taken)} belong to PairMQ's envelope: rename them"
            job.result = self._error(ReservedPropertyError, state, job, text)
        return job

    def _note_failure(
        self,
        state: SenderState,
        job: _Job,
        failure: TransportError,
        queue: str | None,
        late: bool,
        *,
        final: bool | None = None,
    ) -> None:
        job.causes.append(failure)
        job.unknown = job.unknown or failure.maybe_applied
        if self._emit.active:
            self._emit(
                AttemptFailed,
                entity=state.runner.entity,
                message_id=job.message.message_id or "",
                queue=queue,
                kind=failure.kind.value,
                error=str(failure),
                maybe_applied=failure.maybe_applied,
                late=late,
            )
        if final or (final is None and failure.kind is FailureKind.REFUSED):
            job.result = self._refusal(_REFUSALS.get(failure.reason, SendRefused), state, job, str(failure))

    def _refusal(self, kind: type[SendRefused], state: SenderState, job: _Job, text: str) -> SendError:
        """A refusal, unless an earlier attempt may have been accepted: then nobody can say that it was not."""
        if job.unknown:
            return self._error(SendUnknown, state, job, f"an earlier attempt may have been accepted; then {text}")
        return self._error(kind, state, job, text)

    def _give_up(self, state: SenderState, jobs: list[_Job], why: str, kind: type[SendRefused] | None = None) -> None:
        runner = state.runner
        diverting = not self._primary_enabled(runner)
        closing = self._ends_at is not None
        if closing:
            kind = SendRefused
        elif kind is None:
            kind = BacklogUnavailable if diverting else PrimaryUnavailable
        for job in jobs:
            known = runner.last_failure if runner.last_failure not in job.causes else None
            extra = self._backlog.last_failure if diverting and self._backlog.last_failure not in job.causes else None
            job.causes = [cause for cause in (known, *job.causes, extra) if cause is not None]
            last = f": {job.causes[-1]}" if job.causes else ""
            text = f"{'the pair closed' if closing else why}{last}"
            self._given_back += closing and job.unknown
            job.result = self._refusal(kind, state, job, text)

    def _error(self, kind: type[SendError], state: SenderState, job: _Job, text: str) -> SendError:
        entity = state.runner.entity
        error = kind(
            f"message {job.message.message_id} to {entity}: {text}",
            entity=entity.path,
            message_id=job.message.message_id,
            causes=job.causes,
        )
        if job.causes:
            error.__cause__ = job.causes[-1]
        return error

    # Small questions.

    def _check_open(self) -> None:
        if self._fault is not None:
            raise PairFaulted(f"the pair has faulted: {self._fault}") from self._fault
        if self._ends_at is not None:
            raise PairClosed("the pair is closed: it takes no more sends")

    @staticmethod
    def _primary_enabled(runner: EntityRunner) -> bool:
        return runner.state is not EntityState.FAILED_OVER

    @property
    def _secondary_limit(self) -> int | None:
        return self._secondary.capabilities.max_message_bytes

    def _envelope(self, state: SenderState, job: _Job) -> Message:
        state.sequence += 1
        diversion = Diversion(state.runner.entity, self._clock.instant(), state.sender_id, state.sequence, job.unknown)
        return divert(job.message, diversion)

    def _warn_of_size(self, state: SenderState, message: Message) -> None:
        """Say, while all is well, that a message of this size has little or no room in the backlog (SPEC 3.8)."""
        limit = self._secondary_limit
        entity = state.runner.entity
        if limit is None or entity in self._warned_size:
            return
        if not message.application_properties and len(message.body) < _HEADROOM * limit - 4096:
            return
        diversion = Diversion(entity, self._clock.instant(), state.sender_id, state.sequence, True)
        size = self._secondary.measure(divert(message, diversion))
        if size > _HEADROOM * limit:
            self._warned_size.add(entity)
            left = limit - size
            room = f"{left} bytes of headroom are left" if left >= 0 else "it would be refused in an outage"
            text = f"a message of {size} bytes in its backlog form nears the secondary's limit of {limit}: {room}"
            self._emit(Warned, subject=str(entity), text=text)

    def _report(self, state: SenderState, jobs: list[_Job], started: float) -> None:
        elapsed = self._clock.now() - started
        for job in jobs:
            result = job.result
            queue = error = None
            if isinstance(result, Receipt):
                outcome = SendOutcome.PRIMARY if result.route is Route.PRIMARY else SendOutcome.BACKLOG
                queue = result.backlog_queue
            elif isinstance(result, SendRefused):
                outcome, error = SendOutcome.REFUSED, type(result).__name__
            else:  # unknown, or cancelled before it had a result
                outcome, error = SendOutcome.UNKNOWN, "Cancelled" if result is None else type(result).__name__
            self._emit(
                SendCompleted,
                entity=state.runner.entity,
                message_id=job.message.message_id or "",
                outcome=outcome,
                backlog_queue=queue,
                attempts=job.attempts,
                elapsed=elapsed,
                maybe_duplicate=job.unknown,
                size=len(job.message.body),
                error=error,
            )


def _worst(failures: Sequence[TransportError | None]) -> FailureKind | None:
    """The failure kind of a batch that decides what comes next; None when nothing is left to do for it."""
    kinds = {failure.kind for failure in failures if failure is not None}
    for kind in (FailureKind.UNAVAILABLE, FailureKind.TRANSIENT, FailureKind.BUSY):
        if kind in kinds:
            return kind
    return None
