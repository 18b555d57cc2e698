"""One message on its way through a send, and the ways in which it can end (SPEC 3.1).

`MessageLimits` find out whether both brokers can hold it (SPEC 3.8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pairmq.core import Diversion, divert
from pairmq.core.envelope import copy_of, reserved_properties
from pairmq.core.send import Job
from pairmq.model import (
    Entity,
    EntityNotFound,
    FailureReason,
    Message,
    MessageTooLarge,
    Receipt,
    ReservedPropertyError,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
    TransportError,
    Unauthorized,
)
from pairmq.model.drafts import draft_of
from pairmq.model.events import AttemptFailed, SendCompleted, SendOutcome, Side, Warned
from pairmq.runner._clock import Clock
from pairmq.runner._counted import CountedSender
from pairmq.runner._emitter import Emitter
from pairmq.runner._entity import EntityRunner
from pairmq.transport import Transport

_REFUSALS: dict[FailureReason, type[SendRefused]] = {
    FailureReason.NOT_FOUND: EntityNotFound,
    FailureReason.UNAUTHORIZED: Unauthorized,
    FailureReason.TOO_LARGE: MessageTooLarge,
}

_ReceiptDraft = draft_of(Receipt)

_PRIMARY, _BACKLOG, _OUTBOX = SendOutcome.PRIMARY, SendOutcome.BACKLOG, SendOutcome.OUTBOX
_TO_BACKLOG = Route.BACKLOG
_AT_PRIMARY = Side.PRIMARY

_MAKE_IT = "; make it first: await pair.primary.admin.create(Entity(...)), or pairmq entity create NAME"

_HEADROOM = 0.8  # share of the limit from which a warning names the rest
_ENVELOPE = 4096  # bytes that an envelope surely needs less than; a cheap first look before the exact measure
_FEW_PROPERTIES = 16_384  # bytes, as `_at_most` counts them: no broker's own limit for properties is near
_MOST_WARNED = 10_000  # entities; the same of ever more of them would fill the log and the memory
_A_CHARACTER = 12  # bytes at most, as an escape in JSON
_A_PROPERTY = 64  # bytes that surely hold what a codec writes beside a property's, or a field's, name and text


class SenderState:
    """What belongs to one sender object.

    ``lane`` is the index of the entity's lane among the backlog queues; ``line`` is for `_ordered` to keep what it
    knows of the sender.
    """

    __slots__ = ("called", "lane", "line", "primary", "queue", "runner", "sender_id", "sequence")

    def __init__(self, runner: EntityRunner, primary: CountedSender, sender_id: str, lane: int | None = None) -> None:
        self.runner = runner
        self.primary = primary
        self.sender_id = sender_id
        self.called = 0
        self.sequence = 0
        self.queue: int | None = None
        self.lane = lane
        self.line: object = None


class Results:
    """Gives jobs their results, and reports them."""

    def __init__(self, clock: Clock, emit: Emitter) -> None:
        self._clock = clock
        self._emit = emit

    def begin(self, state: SenderState, message: Message) -> Job:
        """Make the job of a message, with its id; refused at once if it has a property of the envelope's (SPEC 5.7)."""
        if not isinstance(message, Message):
            raise TypeError(f"a {type(message).__name__} can't be sent: make a Message of it")
        with_id = message if message.message_id is not None else message.with_id(self._clock.new_id())
        job = Job(with_id, state.called)
        state.called += 1
        if message.application_properties and (taken := reserved_properties(message)):
            text = f"application properties {', '.join(taken)} belong to PairMQ's envelope: rename them"
            self.refuse(state, job, ReservedPropertyError, text)
        return job

    @staticmethod
    def accept(state: SenderState, job: Job, elapsed: float, route: Route, queue: str | None = None) -> Receipt:
        """The primary, or a queue of the secondary, has confirmed it, so many seconds after its send began."""
        receipt = _ReceiptDraft()
        receipt.route = route
        receipt.entity = state.runner.entity
        receipt.message_id = job.message.message_id or ""
        receipt.backlog_queue = queue
        receipt.attempts = job.attempts
        receipt.elapsed = elapsed
        receipt.maybe_duplicate = job.unknown
        receipt.__class__ = Receipt
        made: Receipt = receipt
        job.result = made
        return made

    def fail_attempt(
        self, state: SenderState, job: Job, failure: TransportError, *, queue: str | None, late: bool, final: bool
    ) -> None:
        """One attempt failed, as its job knows; with ``final`` the message is refused by it."""
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
        if final:
            self._refuse_for(state, job, failure)

    def reject(self, state: SenderState, job: Job, problem: TransportError) -> None:
        """A broker could never take it: it is refused without an attempt (SPEC 3.8)."""
        job.causes = (*job.causes, problem)
        self._refuse_for(state, job, problem)

    def _refuse_for(self, state: SenderState, job: Job, failure: TransportError) -> None:
        hint = _MAKE_IT if failure.reason is FailureReason.NOT_FOUND else ""
        self.refuse(state, job, _REFUSALS.get(failure.reason, SendRefused), f"{failure}{hint}")

    def refuse(self, state: SenderState, job: Job, kind: type[SendRefused], text: str) -> None:
        """Nothing took it: it ends as `Job.ends_as` says."""
        chosen = job.ends_as(kind)
        if chosen is SendUnknown:
            text = f"an earlier attempt may have been accepted; then {text}"
        entity = state.runner.entity
        message_id = job.message.message_id
        error = chosen(
            f"message {message_id} to {entity}: {text}", entity=entity.path, message_id=message_id, causes=job.causes
        )
        if job.causes:
            error.__cause__ = job.causes[-1]
        job.result = error

    def report(self, state: SenderState, jobs: Iterable[Job], started: float) -> None:
        """One event a message; one without a result was cancelled, and its outcome is unknown (SPEC 3.7)."""
        emit = self._emit
        if not emit.active:
            return
        runner, at = state.runner, self._clock.wall()
        entity, seen = runner.entity, runner.seen
        for job in jobs:
            message, result = job.message, job.result
            due = message.scheduled_enqueue_at
            # A healthy send pays for every line here: nothing is asked twice.
            if type(result) is Receipt:
                queue, elapsed, error = result.backlog_queue, result.elapsed, None
                outcome = _PRIMARY if queue is None else _BACKLOG if result.route is _TO_BACKLOG else _OUTBOX
            else:
                queue, elapsed = None, self._clock.now() - started
                outcome, error = _failure(result)
            emit.hand_out(
                SendCompleted(
                    at=at,
                    pair=emit.pair,
                    entity=entity,
                    message_id=message.message_id or "",
                    outcome=outcome,
                    backlog_queue=queue,
                    attempts=job.attempts,
                    elapsed=elapsed,
                    maybe_duplicate=job.unknown,
                    size=len(message.body),
                    error=error,
                    sender=state.sender_id,
                    sequence=job.number,
                    session_id=message.session_id,
                    time_to_live=message.time_to_live,
                    state=seen,
                    scheduled_enqueue_at=None if due is None else due.timestamp(),
                )
            )


def _failure(result: Receipt | SendError | None) -> tuple[SendOutcome, str]:
    """How a send ended that was not accepted, and the error's name."""
    outcome = SendOutcome.REFUSED if isinstance(result, SendRefused) else SendOutcome.UNKNOWN
    return outcome, "Cancelled" if result is None else type(result).__name__


class MessageLimits:
    """Asks both brokers what they can hold, and warns, once per entity, while all is well."""

    def __init__(self, primary: Transport, secondary: Transport, clock: Clock, emit: Emitter) -> None:
        self._primary = primary
        self._secondary = secondary
        self._clock = clock
        self._emit = emit
        self._warned: set[Entity] = set()

    def problem(self, side: Side, entity: Entity, message: Message) -> TransportError | None:
        """Why a broker can never hold a message, the secondary in its backlog form, as far as it can be known without
        asking it; None when it can.

        The secondary has to have room for its copy at a queue's tail, too, which may be larger; most are so far from
        every limit that a cheap look shows it.
        """
        try:
            (self._primary if side is _AT_PRIMARY else self._secondary).check_message(entity, message)
            if side is _AT_PRIMARY:
                return None
            limit = self._secondary.capabilities.max_message_bytes
            size = _at_most(message)
            near = limit is not None and size >= _HEADROOM * limit - _ENVELOPE
            if near or size - len(message.body) > _FEW_PROPERTIES:
                self._secondary.check_message(entity, self._largest_copy(message))
        except TransportError as error:
            holder = "primary" if side is _AT_PRIMARY else "backlog"
            return TransportError(f"the {holder} can't hold it: {error}", error.kind, error.reason)
        return None

    def _largest_copy(self, envelope: Message) -> Message:
        capabilities = self._secondary.capabilities
        schedules = capabilities.scheduling and capabilities.counts_scheduled
        return copy_of(envelope, self._clock.instant() if schedules else None, marked=True)

    def surely_fits(self, message: Message) -> bool:
        """Whether the secondary's limit is far beyond what a message can have in its backlog form."""
        limit = self._secondary.capabilities.max_message_bytes
        return limit is None or _at_most(message) < _HEADROOM * limit - _ENVELOPE

    def look(self, entity: Entity, message: Message) -> None:
        """Warn if a message that the primary has just taken would have little or no room in the backlog."""
        limit = self._secondary.capabilities.max_message_bytes
        if limit is None:
            return
        if _at_most(message) < _HEADROOM * limit - _ENVELOPE or entity in self._warned:
            return
        size = self._secondary.measure(divert(message, Diversion(entity, self._clock.instant(), "x" * 32, 10**9, True)))
        if size <= _HEADROOM * limit:
            return
        if len(self._warned) >= _MOST_WARNED:
            return
        self._warned.add(entity)
        left = limit - size
        room = f"{left} bytes of headroom are left" if left >= 0 else "it would be refused in an outage"
        text = f"a message of {size} bytes in its backlog form nears the secondary's limit of {limit}: {room}"
        self._emit(Warned, subject=str(entity), text=text)


def _at_most(message: Message) -> float:
    """Bytes that a message surely needs no more of, without its envelope; infinite where only measuring shows it.

    Nearly every message has some short texts for properties, a trace's context for one. To measure each of them exactly
    would cost a healthy send as much as the rest of it.
    """
    size = len(message.body)
    # Fields whose length nothing bounds; the envelope's share holds the ids. One by one: a healthy send pays for it.
    if message.content_type is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.content_type)
    if message.content_encoding is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.content_encoding)
    if message.correlation_id is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.correlation_id)
    if message.subject is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.subject)
    if message.to is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.to)
    if message.reply_to is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.reply_to)
    for name, value in message.application_properties.items():
        if type(value) is not str:
            return math.inf
        size += _A_PROPERTY + _A_CHARACTER * (len(name) + len(value))
    return size
