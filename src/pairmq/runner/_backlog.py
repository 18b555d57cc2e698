"""The backlog queues of a pair: made before the first send, taken out of use when they fail, brought back (SPEC 5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Collection
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pairmq.core import PairOptions, Rotation
from pairmq.model import ConfigurationError, Entity, FailureKind, FailureReason, TransportError
from pairmq.model.events import BacklogQueueChecked, RotationChanged, Warned
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._last_failure import remembered
from pairmq.runner._limits import TimeLimits
from pairmq.transport import QueueProperties, Sender, Transport

_PROPERTIES = QueueProperties(
    max_size_megabytes=5120,
    max_delivery_count=2**31 - 1,
    default_time_to_live=None,
    auto_delete_after=None,
    lock_duration=60.0,
    dead_letter_on_expiration=True,
    batched_operations=True,
)

T = TypeVar("T")

_AT_ONCE = 8  # queues checked side by side: soon done, without a burst of connections


def backlog_properties(options: PairOptions) -> QueueProperties:
    """Tell what a pair's backlog queues are asked to be (SPEC 5.2), where order is kept too (SPEC 8.2)."""
    return replace(_PROPERTIES, single_consumer=options.ordering == "session")


class BacklogQueues:
    """All backlog queues of one pair.

    Args:
        transport: the secondary.
        primary_name: for the queues' names.
        options: the pair's.
        clock: time and chance.
        emit: takes events.
        limits: bounds every operation.
    """

    def __init__(
        self,
        transport: Transport,
        primary_name: str,
        options: PairOptions,
        clock: Clock,
        emit: Emitter,
        limits: TimeLimits,
    ) -> None:
        try:
            self.entities = tuple(Entity(name) for name in options.backlog_queue_names(primary_name))
        except ValueError as error:
            raise ConfigurationError(f"backlog_name_template gives a name that no queue can have: {error}") from error
        self.others: tuple[Entity, ...] = ()
        """Backlog queues that other processes of the pair use, beyond this one's options: drained, never sent to."""
        self.rotation = Rotation(len(self.entities), options.backlog_retry_interval)
        self.last_failure: TransportError | None = None
        """Of any queue, until all of them are in use again."""
        self._properties = backlog_properties(options)
        self._transport = transport
        self._options = options
        self._clock = clock
        self._emit = emit
        self._limits = limits
        self._senders: dict[int, Sender] = {}
        self._checked: set[int] = set()
        self._looks: dict[int, asyncio.Task[None]] = {}
        self._retries: asyncio.Task[None] | None = None
        self._readying: asyncio.Task[None] | None = None
        self._failed = asyncio.Event()

    async def prepare(self, only: Collection[int] | None = None) -> None:
        """Check every queue and make the missing ones (SPEC 5.1).

        A queue that can't be reached is out of use and tried again later, so that a process can start while the
        secondary is away: the primary may be perfectly well.

        Args:
            only: indexes of the queues to look at; the others count as being there until a send finds out.

        Raises:
            TransportError: the secondary refuses this user or the names; waiting would not mend that.
        """
        turns = asyncio.Semaphore(_AT_ONCE)
        indexes = [index for index in range(len(self.entities)) if only is None or index in only]
        tasks = [asyncio.create_task(self._prepare_one(index, turns)) for index in indexes]
        # One limit for all: a secondary that hangs must not hold up the start of every process for minutes.
        _, late = await _settled(tasks, self._options.attempt_timeout)
        refusals = [task.exception() for task in tasks if task not in late]
        for refusal in refusals:
            if refusal is not None:
                raise refusal
        for index, task in zip(indexes, tasks, strict=True):
            if task in late:
                text = "the secondary did not answer in time"
                self.take_out(index, TransportError(text, FailureKind.UNAVAILABLE, FailureReason.TIMEOUT))
        self._retries = asyncio.create_task(self._bring_back(), name="backlog queues")
        if indexes:
            self._readying = asyncio.create_task(self._make_ready(indexes[0]), name="backlog connection")

    async def _prepare_one(self, index: int, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                await self._ensure(index)
            except TransportError as error:
                if error.kind is FailureKind.REFUSED:
                    raise
                self.take_out(index, error)

    async def make_again(self) -> None:
        """Make what is missing of all queues that are in use, as after the secondary was emptied."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(index: int) -> None:
            async with turns:
                try:
                    await self._ensure(index)
                except TransportError as error:
                    self.take_out(index, error)

        await asyncio.gather(*(one(index) for index in self.rotation.in_use))

    def sender(self, index: int) -> Sender:
        """The sender to a queue, made when first needed."""
        sender = self._senders.get(index)
        if sender is None:
            sender = self._senders[index] = self._transport.sender(self.entities[index])
        return sender

    async def check(self, index: int) -> None:
        """Make sure that a queue was looked at, and is what it must be for order to be kept in it.

        Any number of sessions may find at once that their queue was not: one look is enough for all of them, and goes
        on when who began it is cancelled or has no time left.

        Raises:
            TransportError: it could not be asked, or is not; nothing was sent to it.
        """
        if index in self._checked:
            return
        look = self._looks.get(index)
        if look is None:
            look = self._looks[index] = asyncio.create_task(self._ensure(index), name=f"backlog queue {index}")
            look.add_done_callback(partial(self._looked, index))
        await asyncio.wait((look,))
        if look.cancelled():
            raise TransportError("the pair was closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
        error = look.exception()
        if isinstance(error, TransportError):
            raise TransportError(str(error), error.kind, error.reason) from error
        if error is not None:
            raise error

    def _looked(self, index: int, look: asyncio.Task[None]) -> None:
        del self._looks[index]
        if not look.cancelled():
            look.exception()  # seen: all who waited may have given up

    def take_out(self, index: int, error: TransportError) -> None:
        """Take a queue that failed out of use for all senders of the pair (SPEC 5.4)."""
        self.last_failure = remembered(error)
        if error.reason is FailureReason.NOT_FOUND:
            self._checked.discard(index)  # whoever makes it again may make another kind of queue
        if self.rotation.take_out(index, self._clock.now()):
            self._failed.set()
            self._emit(
                RotationChanged,
                queue=self.entities[index].path,
                in_use=False,
                left=len(self.rotation.in_use),
                error=str(error),
            )

    async def probe(self) -> None:
        """Find out whether any queue in use takes messages; which ones are in use stays as it is.

        Raises:
            TransportError: none does; the last one's failure.
        """
        failure = self.last_failure
        for index in self.rotation.in_use:
            try:
                await self._transport.admin.probe(self.entities[index])
            except TransportError as error:
                failure = error
            else:
                return
        if failure is None:
            failure = TransportError("no backlog queue is in use", FailureKind.UNAVAILABLE, FailureReason.OTHER)
        raise TransportError(str(failure), failure.kind, failure.reason) from failure

    async def close(self) -> None:
        """Stop bringing queues back and close the senders."""
        tasks = [task for task in (self._retries, self._readying, *self._looks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))

    async def _make_ready(self, index: int) -> None:
        """Connect for sends now: with the first diverted one it would be part of the outage."""
        with contextlib.suppress(TransportError):
            await self._limited(self.sender(index).make_ready())

    async def _ensure(self, index: int) -> None:
        """Make the queue, or say where an existing one differs from what is asked for (SPEC 5.3)."""
        queue = self.entities[index]
        admin = self._transport.admin
        created = await self._limited(admin.create(queue, self._properties))
        differences: tuple[str, ...] = ()
        if not created:
            actual = await self._limited(admin.properties(queue))
            if self._properties.single_consumer and not actual.single_consumer:
                raise TransportError(
                    f"existing backlog queue {queue.path} can be read by several consumers at once, and "
                    "ordering='session' needs one at a time: drain and delete it, or use another backlog_name_template",
                    FailureKind.REFUSED,
                    FailureReason.OTHER,
                )
            differences = self._properties.differences(actual)
        self._checked.add(index)
        self._emit(BacklogQueueChecked, queue=queue.path, created=created, differences=differences)
        if differences:
            text = f"existing backlog queue {queue.path}: {'; '.join(differences)}; it is left as it is"
            self._emit(Warned, subject=queue.path, text=text)

    async def _bring_back(self) -> None:
        """Try queues that are out again after a while (SPEC 5.5)."""
        while True:
            deadline = self.rotation.next_deadline()
            if deadline is None:
                self._failed.clear()
                await self._failed.wait()
                continue
            await asyncio.sleep(max(0.0, deadline - self._clock.now()))
            turns = asyncio.Semaphore(_AT_ONCE)
            due = self.rotation.due(self._clock.now())
            await asyncio.gather(*(self._bring_back_one(index, turns) for index in due))

    async def _bring_back_one(self, index: int, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                await self._ensure(index)
                await self._limited(self._transport.admin.probe(self.entities[index]))
            except TransportError as error:
                self.last_failure = remembered(error)
                return
        if self.rotation.put_back(index):
            if not self.rotation.out:
                self.last_failure = None
            left = len(self.rotation.in_use)
            self._emit(RotationChanged, queue=self.entities[index].path, in_use=True, left=left)

    async def _limited(self, operation: Awaitable[T]) -> T:
        return await self._limits.run(operation, self._clock.now() + self._options.attempt_timeout)


async def _settled(
    tasks: list[asyncio.Task[None]], seconds: float
) -> tuple[set[asyncio.Task[None]], set[asyncio.Task[None]]]:
    """Wait for tasks and cancel the late ones; tells which ended in time and which did not."""
    try:
        done, late = await asyncio.wait(tasks, timeout=seconds)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=1)
    return done, late
