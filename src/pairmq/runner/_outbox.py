"""The outbox: the backlog used on purpose, in transactions of the caller's (SPEC 12).

Its queue is on the secondary beside the backlog queues, and the syphon empties it like these. No entity is draining
for what it holds, and no send is ever diverted to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import NamedTuple, NoReturn, TypeVar

from pairmq.core import OUTBOX_QUEUE, Diversion, divert
from pairmq.core.send import Job
from pairmq.model import (
    ConfigurationError,
    Entity,
    FailureKind,
    FailureReason,
    Message,
    Receipt,
    Route,
    SendError,
    TransportError,
)
from pairmq.model.events import BacklogQueueChecked, Side
from pairmq.runner._backlog import backlog_properties
from pairmq.runner._counted import EngineContext
from pairmq.runner._job import MessageLimits, Results, SenderState
from pairmq.transport import OtherDatabase, Transactional, Transport, driver_connection, start_task

T = TypeVar("T")

_TO_OUTBOX = Route.OUTBOX


class OutboxSend(NamedTuple):
    """Messages on their way into the outbox; ``ready`` where nothing has to be asked or reported before they go."""

    state: SenderState
    jobs: Sequence[Job]
    envelopes: Sequence[Message]
    database: object
    started: float
    ready: bool


def outbox_queue(primary: Transport) -> Entity:
    """The queue of a primary's outbox."""
    return Entity(f"{primary.endpoint.name}/{OUTBOX_QUEUE}")


class Outbox:
    """The outbox of one pair; ``store`` is the secondary, which stores, and is asked for the queue."""

    def __init__(self, context: EngineContext, store: Transactional, sizes: MessageLimits) -> None:
        try:
            self.queue = outbox_queue(context.primary)
        except ValueError as error:
            raise ConfigurationError(f"the primary's name gives an outbox queue that can't be: {error}") from error
        self.tail = context.secondary.sender(self.queue)
        self._store = store
        self._admin = context.secondary.admin
        self._properties = backlog_properties(context.options)
        self._clock = context.clock
        self._emit = context.emit
        self._limits = context.limits
        self._results = Results(self._clock, self._emit)
        self._sizes = sizes
        self._database: object = None
        self._made = False
        self._numbering = threading.Lock()
        self._making: asyncio.Task[None] | None = None

    @property
    def is_observed(self) -> bool:
        """Whether `report` has anyone to report to."""
        return self._emit.active

    async def ensure(self) -> None:
        """Make the queue if it does not exist. Raises `TransportError`, for one that can't keep order, too."""
        if self._made:
            return
        created = await self._limits.run(self._admin.create(self.queue, self._properties))
        actual = await self._limits.run(self._admin.properties(self.queue))
        if self._properties.single_consumer and not actual.single_consumer:
            raise TransportError(
                f"existing outbox queue {self.queue.path} can be read by several consumers at once, and"
                " ordering='session' needs one at a time: drain and delete it",
                FailureKind.REFUSED,
                FailureReason.OTHER,
            )
        self._made = True
        differences = self._properties.differences(actual)
        self._emit(BacklogQueueChecked, queue=self.queue.path, created=created, differences=differences)

    def missing(self, _: TransportError) -> None:
        """Make the queue again, in the background."""
        self._made = False
        if self._making is None or self._making.done():
            self._making = start_task(self._make_again(), name="outbox queue")

    async def _make_again(self) -> None:
        with contextlib.suppress(TransportError):  # the syphon, or the next send, tries again and reports it
            await self.ensure()

    def draft(self, state: SenderState, messages: Sequence[Message]) -> OutboxSend:
        """Make envelopes, in any thread."""
        started, jobs, envelopes = self._clock.now(), [], []
        with self._numbering:
            for message in messages:
                job = self._results.begin(state, message)
                jobs.append(job)
                if job.result is None:
                    state.sequence += 1
                    diversion = Diversion(state.runner.entity, self._clock.instant(), state.sender_id, state.sequence)
                    envelopes.append(divert(job.message, diversion))
                    problem = self._sizes.problem(Side.PRIMARY, state.runner.entity, job.message)
                    if problem is None and not self._sizes.surely_fits(message):
                        problem = self._sizes.problem(Side.SECONDARY, self.queue, envelopes[-1])
                    if problem is not None:
                        self._results.reject(state, job, problem)
        ready = self._made and self._database is not None and all(job.result is None for job in jobs)
        return OutboxSend(state, jobs, envelopes, self._database, started, ready)

    async def begin(self, sending: OutboxSend, *, anew: bool = False) -> OutboxSend:
        """Find out where messages from `draft` are to be stored, ``anew`` if the database was not where it had been.

        Raises `SendError`: a message is refused, or the secondary can't be asked: none was stored.
        """
        refusal = self._refusal(sending)
        if refusal is not None:
            raise refusal
        if anew or not sending.ready:
            try:
                await self.ensure()
                self._database = await self._limits.run(self._store.database())
            except TransportError as error:
                self._refuse(sending, error)
        return sending._replace(database=self._database)

    async def store(self, sending: OutboxSend, connection: object, *, last: bool, blocking: bool = False) -> bool:
        """Store what was begun; suspends only for a connection that has to be awaited. If it was not stored, nothing
        was, and it is worth to `begin` anew.

        Raises `TypeError`: it is not a connection of a driver that the secondary knows, or has to be awaited and
        ``blocking`` says that there is no event loop; and `TransportError`: nothing was stored.
        """
        try:
            driver = await driver_connection(connection, blocking=blocking)
            await self._store.store(sending.database, self.queue, sending.envelopes, driver)
        except OtherDatabase:
            if last:
                text = "the connection leads to another database than the pair's secondary: nothing was stored"
                raise TransportError(text, FailureKind.REFUSED, FailureReason.OTHER) from None
            return False
        return True

    def stored(self, sending: OutboxSend) -> list[Receipt]:
        """Give the receipts of what was stored, in any thread; `report` is left to be called."""
        receipts, elapsed = [], self._clock.now() - sending.started
        for job in sending.jobs:
            job.attempts = 1
            receipts.append(self._results.accept(sending.state, job, elapsed, _TO_OUTBOX, self.queue.path))
        return receipts

    def report(self, sending: OutboxSend) -> None:
        """Report what became of messages to observers."""
        self._results.report(sending.state, sending.jobs, sending.started)

    def failed(self, sending: OutboxSend, error: TransportError) -> NoReturn:
        """Report what was not stored, and raise `SendError`."""
        if error.reason is FailureReason.NOT_FOUND:
            # Not in this call: the transaction may keep the database's other connections waiting.
            self.missing(error)
            text = f"outbox queue {self.queue.path} is missing and is made again: roll back and try again"
            error = TransportError(text, error.kind, FailureReason.OTHER)
        self._refuse(sending, error)

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
        await self.tail.close()

    def _refuse(self, sending: OutboxSend, error: TransportError) -> NoReturn:
        for job in sending.jobs:
            self._results.reject(sending.state, job, error)
        raise self._refusal(sending) or error

    def _refusal(self, sending: OutboxSend) -> SendError | None:
        """Report what is refused, and return the first refusal: no message is stored without the others."""
        refused = [job for job in sending.jobs if isinstance(job.result, SendError)]
        self._results.report(sending.state, refused, sending.started)
        return next((job.result for job in refused if isinstance(job.result, SendError)), None)
