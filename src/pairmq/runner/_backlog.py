"""The backlog queues of a pair: made before the first send, taken out of use when they fail, brought back (SPEC 5)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pairmq.core import PairOptions, lane_name
from pairmq.core.rotation import DROPS, Missing, Rotation, unfit
from pairmq.model import ConfigurationError, Entity, EntityKind, FailureKind, FailureReason, TransportError
from pairmq.model.events import BacklogQueueChecked, RotationChanged, Warned
from pairmq.runner._counted import CountedSender, EngineContext
from pairmq.runner._limits import TimeLimits, Waiter, end, remembered
from pairmq.transport import QueueProperties, Transport, start_task

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
_TRUSTED = 60.0  # s after a look for which a queue is taken to be the same one: an operator may replace it at any time
_LOOK_INTERVAL = 3600.0  # s between two looks of a process with a syphon, so that an outage is not the first to show it


def backlog_properties(options: PairOptions) -> QueueProperties:
    """Give the settings that a pair asks for its backlog queues (SPEC 5.2), where order is kept too (SPEC 8.2)."""
    return replace(_PROPERTIES, single_consumer=options.ordering == "session")


def named_queues(primary: Transport, options: PairOptions) -> tuple[Entity, ...]:
    """The backlog queues of a primary that options name, by their index; lanes come last. Raises
    `ConfigurationError`."""
    name = primary.endpoint.name
    try:
        return (
            *map(Entity, options.backlog_queue_names(name)),
            *(Entity(lane_name(name, path)) for path in options.literal_lanes),
        )
    except ValueError as error:
        text = f"backlog_name_template or continuity gives a name that no queue can have: {error}"
        raise ConfigurationError(text) from error


class BacklogQueues:
    """All backlog queues of one pair; ``on_lane`` is called with a lane that comes into use after `prepare`."""

    def __init__(self, context: EngineContext, on_lane: Callable[[Entity], None] = lambda _: None) -> None:
        options = context.options
        self._primary_name = context.primary.endpoint.name
        try:
            self.entities = tuple(Entity(name) for name in options.backlog_queue_names(self._primary_name))
        except ValueError as error:
            raise ConfigurationError(f"backlog_name_template gives a name that no queue can have: {error}") from error
        self.queues = self.entities
        """All by their index: behind the shared ones the lanes, backlog queues of one queue each (SPEC 11.2)."""
        self._lane_of: dict[Entity, int] = {}
        self._on_lane = on_lane
        self.others: tuple[Entity, ...] = ()
        """Backlog queues that other processes of the pair use, beyond this one's options: drained, never sent to."""
        self.rotation = Rotation(len(self.entities), options.backlog_retry_interval)
        self.last_failure: TransportError | None = None
        """Of any queue, until all of them are in use again."""
        self.waiting: set[Waiter] = set()
        """Set when a queue comes back into use; sends that wait for one put theirs in."""
        self._properties = backlog_properties(options)
        self._transport = context.secondary
        self._options = options
        self._clock = context.clock
        self._emit = context.emit
        self._limits = context.limits
        self._prepared = False
        for path in options.literal_lanes:
            self.lane(Entity(path))
        self._senders: dict[int, CountedSender] = {}
        self._checked: set[int] = set()
        self._looked_at: dict[int, float] = {}
        self._used_at: dict[int, float] = {}
        self._unfit: dict[int, TransportError] = {}
        self._reported: dict[int, tuple[str, ...]] = {}  # the differences of each queue that was seen
        self._looks: dict[int, asyncio.Task[None]] = {}
        self._retries: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._readying: asyncio.Task[None] | None = None
        self._planned = asyncio.Event()  # a retry was, earlier than those before

    async def prepare(self, only: Collection[int] | None = None) -> None:
        """Check every queue and make the missing ones (SPEC 5.1).

        A queue that can't be reached is out of use and tried again later, so that a process can start while the
        secondary is unavailable: the primary may be perfectly well. Of ``only`` some, the others count as being there
        until a send finds out. Raises `TransportError` for a refusal only: waiting would not fix that.
        """
        turns = asyncio.Semaphore(_AT_ONCE)
        # Lanes are drained by a process that drains all queues.
        indexes = [index for index in range(len(self.queues)) if only is None or index in only]
        self._prepared = True
        tasks = [start_task(self._prepare_one(index, turns)) for index in indexes]
        # One limit for all: a secondary that hangs must not hold up the start of every process for minutes.
        late = await end(tasks, self._options.attempt_timeout)
        refusals = [task.exception() for task in tasks if task not in late]
        for refusal in refusals:
            if refusal is not None:
                raise refusal
        for index, task in zip(indexes, tasks, strict=True):
            if task in late:
                text = "the secondary did not answer in time"
                self.take_out(index, TransportError(text, FailureKind.UNAVAILABLE, FailureReason.TIMEOUT))
        self._retries = start_task(self._bring_back(), name="backlog queues")
        if self._options.enable_syphon:
            self._looking = start_task(self._look_now_and_then(), name="backlog looks")
        if indexes:
            self._readying = start_task(self._make_ready(indexes[0]), name="backlog connection")

    async def _prepare_one(self, index: int, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                await self._ensure(index)
            except TransportError as error:
                if error.kind is FailureKind.REFUSED:
                    raise
                self.take_out(index, error)

    def lane_of(self, entity: Entity) -> int | None:
        """The index of a queue's lane; None if it has none, or none yet."""
        return self._lane_of.get(entity)

    def lane(self, entity: Entity) -> int | None:
        """The index of a queue's lane, which is made at its first use; None for a queue without continuity."""
        index = self._lane_of.get(entity)
        if index is not None or entity.kind is not EntityKind.QUEUE or not self._options.continues(entity.path):
            return index
        try:
            queue = Entity(lane_name(self._primary_name, entity.path))
            if len(queue.path) > self._transport.capabilities.max_path_length:
                raise ValueError(f"it has {len(queue.path)} characters")
        except ValueError as error:
            raise ConfigurationError(
                f"continuity of {entity}: no lane can have the name that it needs: {error}"
            ) from error
        index = self._lane_of[entity] = self.rotation.add_lane()
        self.queues += (queue,)
        if self._prepared:
            # It is read once it is there: a syphon that found it missing would report a failure.
            self._look_soon(index).add_done_callback(lambda look: look.cancelled() or self._on_lane(queue))
        return index

    def _look_soon(self, index: int) -> asyncio.Task[None]:
        """Make a queue in the background; who needs it first waits for it, or makes it again."""
        look = self._looks.get(index)
        if look is None:
            look = self._looks[index] = start_task(self._ensure(index), name=f"backlog queue {index}")
            look.add_done_callback(partial(self._looked, index))
        return look

    async def make_all_again(self) -> None:
        """Make what is missing of all queues that are in use, as after the secondary was emptied."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(index: int) -> None:
            async with turns:
                try:
                    await self._ensure(index)
                except TransportError as error:
                    self.take_out(index, error)

        await asyncio.gather(*(one(index) for index in (*self.rotation.in_use, *self.rotation.lanes_in_use)))

    def sender(self, index: int) -> CountedSender:
        """The sender to a queue, made when first needed."""
        sender = self._senders.get(index)
        if sender is None:
            sender = self._senders[index] = self._transport.sender(self.queues[index])
        return sender

    async def check(self, index: int) -> None:
        """Make sure that a queue was looked at, and is what it must be for order to be kept in it.

        Any number of sessions may find at once that their queue was not: one look is enough for all of them, and goes
        on when who began it is cancelled or has no time left.
        """
        if index not in self._checked:
            await self.look(index)

    def trusted(self, index: int) -> CountedSender | None:
        """The sender to a queue; None if a send is to wait for a look first, as the queue may be another one than at
        the last look, or was unfit.

        Where sends follow one another, none waits: the look is taken beside them.
        """
        if index in self._unfit:
            return None
        now = self._clock.now()
        if now - self._looked_at.get(index, -math.inf) >= _TRUSTED:
            if now - self._used_at.get(index, -math.inf) >= _TRUSTED:
                return None
            self._look_soon(index)
        self._used_at[index] = now
        return self._senders.get(index) or self.sender(index)

    def unfit(self, index: int) -> TransportError | None:
        """Why a queue can't be used, as the last look has found; None when it can."""
        return self._unfit.get(index)

    def left(self, index: int) -> TransportError | None:
        """That a queue is out of use, for a send that chose it before; None when it is in use."""
        if self.rotation.takes(index):
            return None
        why = self.last_failure or "it is tried again later"
        text = f"backlog queue {self.queues[index].path} was taken out of use: {why}"
        return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.OTHER)

    async def look(self, index: int) -> None:
        """Look at a queue; callers at once share a look. One that has become unfit leaves the rotation."""
        look = self._look_soon(index)
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
        if look.cancelled():
            return
        look.exception()  # seen: all who waited may have given up
        self._looked_at[index] = self._clock.now()  # also in vain: the next send shall not wait for it again
        if (error := self._unfit.get(index)) is not None:
            self.take_out(index, error)

    def take_out(self, index: int, error: TransportError) -> None:
        """Take a queue that failed out of use for all senders of the pair (SPEC 5.4); a missing one is made at once."""
        self.last_failure = remembered(error)
        missing = error.reason is FailureReason.NOT_FOUND
        if missing:
            self._forget(index)
        if self.rotation.take_out(index, self._clock.now(), self._clock.chance(), missing=missing):
            self._planned.set()
            self._emit(
                RotationChanged,
                queue=self.queues[index].path,
                in_use=False,
                left=len(self.rotation.in_use),
                error=str(error),
            )

    async def make_again(self, index: int, began_at: float) -> None:
        """Make a queue that a send found missing (SPEC 5.5), unless it was made since that began; any number of sends
        share one attempt. Raises `TransportError`."""
        found = self.rotation.not_found(index, began_at, self._clock.now())
        if found is Missing.MADE:
            return
        self._forget(index)
        if found is Missing.AGAIN:
            text = f"backlog queue {self.queues[index].path} is missing again"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_FOUND)
        await self.check(index)

    def _forget(self, index: int) -> None:
        """A queue was missing: it may be made again as another kind of queue."""
        self._checked.discard(index)
        self._looked_at.pop(index, None)

    # Sends without a queue in use: each is a trial, or waits for one (SPEC 5.5).

    def end_trial(self, index: int, works: bool | None) -> None:
        """A send has tried a queue that is out; None when it ended without an answer of the queue."""
        if self.rotation.end_trial(index, self._clock.now(), self._clock.chance(), works=works):
            self._is_back(index)
        if works:
            self._planned.set()

    def try_soon(self) -> None:
        """A send was refused for lack of a queue: try one in the background, at most as often as sends would."""
        if self.rotation.try_soon(self._clock.now(), self._clock.chance()):
            self._planned.set()

    async def probe(self) -> None:
        """Find out whether any queue takes messages that a send would try, or raise; which ones are in use stays as it
        is."""
        failure = self.last_failure
        for index in self.rotation.tried(trials=self._options.while_failing == "wait"):
            if index in self._unfit:
                failure = self._unfit[index]
                continue
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
        own = (self._retries, self._looking, self._readying)
        tasks = [task for task in (*own, *self._looks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))

    async def _make_ready(self, index: int) -> None:
        """Connect for sends now: with the first diverted one it would be part of the outage."""
        with contextlib.suppress(TransportError):
            await self._limits.run(self.sender(index).make_ready())

    async def _ensure(self, index: int) -> None:
        """Make the queue, and report where it differs from what is asked for (SPEC 5.3), a new one by a policy.

        Raises `TransportError`, also for one that is unfit.
        """
        queue = self.queues[index]
        admin = self._transport.admin
        existed = index in self._reported  # before: where two make a new one at once, both may have made it
        created = await self._limits.run(admin.create(queue, self._properties))
        actual = None
        try:
            actual = await self._limits.run(admin.properties(queue))
        except TransportError:
            if not created:
                raise
        why = None if actual is None else unfit(actual, ordered=self._properties.single_consumer)
        error = None if why is None else _unfit_queue(queue, why)
        self._report(index, actual, error, created=created, again=created and existed)
        self._unfit.pop(index, None)
        if error is not None:
            self._checked.discard(index)
            self._unfit[index] = remembered(error)
            raise error
        self._checked.add(index)
        now = self._looked_at[index] = self._clock.now()
        self.rotation.created(index, now)

    def _report(
        self, index: int, actual: QueueProperties | None, error: TransportError | None, *, created: bool, again: bool
    ) -> None:
        """Report what a look has shown, unless it is what the last one has."""
        queue = self.queues[index]
        differences = () if actual is None else self._properties.differences(actual)
        if again:
            text = f"backlog queue {queue.path} was missing and was created again: what it held is lost"
            self._emit(Warned, subject=queue.path, text=text)
        known, self._reported[index] = self._reported.get(index), differences
        if not created and known == differences:
            return
        self._emit(BacklogQueueChecked, queue=queue.path, created=created, differences=differences)
        if error is not None:
            self._emit(Warned, subject=queue.path, text=str(error))
        elif differences:
            age = "new" if created else "existing"
            text = f"{age} backlog queue {queue.path}: {'; '.join(differences)}; it is left as it is"
            self._emit(Warned, subject=queue.path, text=text)

    async def _look_now_and_then(self) -> None:
        """Look at the queues in use: those that have become unfit shall not wait for an outage to be noticed."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL)
            for index in (*self.rotation.in_use, *self.rotation.lanes_in_use):
                with contextlib.suppress(TransportError):  # a send finds out whether it works
                    await self.look(index)

    async def _bring_back(self) -> None:
        """Try queues that are out again after a while (SPEC 5.5)."""
        while True:
            self._planned.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self.rotation.next_deadline()):
                    await self._planned.wait()
            turns = asyncio.Semaphore(_AT_ONCE)
            due = self.rotation.due(self._clock.now())
            await asyncio.gather(*(self._bring_back_one(index, turns) for index in due))

    async def _bring_back_one(self, index: int, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                await self._ensure(index)
                await self._limits.run(self._transport.admin.probe(self.queues[index]))
            except TransportError as error:
                if not self.rotation.takes(index):  # else a send has found out meanwhile that it works
                    self.last_failure = remembered(error)
                return
        if self.rotation.put_back(index):
            self._is_back(index)

    def _is_back(self, index: int) -> None:
        """Report a queue that is in use again, and let the sends go on that wait for one."""
        if not self.rotation.out:
            self.last_failure = None
        left = len(self.rotation.in_use)
        self._emit(RotationChanged, queue=self.queues[index].path, in_use=True, left=left)
        TimeLimits.wake(self.waiting)


def _unfit_queue(queue: Entity, why: str) -> TransportError:
    text = f"backlog queue {queue.path} {why}: "
    if why is DROPS:
        text += "change its policy or settings so that it rejects what it has no room for (reject-publish)"
        return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.OTHER)
    text += "drain and delete it, or use another backlog_name_template"
    return TransportError(text, FailureKind.REFUSED, FailureReason.OTHER)
