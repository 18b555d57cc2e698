"""A broker's memory: queues, locks, dead-letter queues, and what was ever stored, as `Copy` for the judge.

It has no network: every call has arrived. The only thing that it starts by itself is the response to a long poll.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing.simulator._history import Copy, Gap, Handover, History
from pairmq.testing.simulator._loop import SimulationLoop
from pairmq.transport import QueueCounts, QueuePositions, QueueProperties


@dataclass(slots=True, eq=False)
class Lock:
    """Who holds a copy, until when; ``ends_at`` is infinite for a lock that ends with its connection."""

    holder: object
    life: str
    ends_at: float


@dataclass(slots=True, eq=False)
class Poll:
    """A receive that waits at a queue.

    ``answer`` takes the deliveries, or why there are none; ``open`` returns whether a response would be accepted now.
    """

    holder: object
    life: str
    most: int
    answer: Callable[[list[Delivery] | TransportError], None]
    open: Callable[[], bool]


@dataclass(slots=True, eq=False)
class Queue:
    """One queue, or one subscription."""

    entity: Entity
    properties: QueueProperties
    copies: dict[int, Copy] = field(default_factory=dict)
    ready: list[int] = field(default_factory=list)
    """A heap of those that can be delivered, by number; may hold some that are gone."""
    locks: dict[int, Lock] = field(default_factory=dict)
    scheduled: set[int] = field(default_factory=set)
    dead: dict[int, Copy] = field(default_factory=dict)
    polls: deque[Poll] = field(default_factory=deque)
    subscriptions: dict[str, Queue] = field(default_factory=dict)


class Broker:
    """One broker.

    Args:
        name: ``primary`` or ``secondary``.
        loop: for locks and schedules.
        history: takes every copy.
        number_of: reads the number of a message, None for one that was never sent.
    """

    def __init__(
        self, name: str, loop: SimulationLoop, history: History, number_of: Callable[[Message], int | None]
    ) -> None:
        self.name = name
        self.queues: dict[Entity, Queue] = {}
        self._loop = loop
        self._history = history
        self._number_of = number_of
        self._numbers = 0

    # Entities.

    def create(self, entity: Entity, properties: QueueProperties) -> bool:
        """Make an entity; False when it exists."""
        if entity in self.queues:
            return False
        self.queues[entity] = Queue(entity, properties)
        for gap in self._history.gaps:
            if gap.until is None and (gap.broker, gap.entity) == (self.name, entity):
                gap.until = self._loop.time()
        return True

    def subscribe(self, topic: Entity, name: str) -> bool:
        """Make a subscription; False when it exists."""
        queue = self.find(topic)
        if name in queue.subscriptions:
            return False
        queue.subscriptions[name] = Queue(topic, queue.properties)
        return True

    def delete(self, entity: Entity) -> bool:
        """Delete an entity with all it holds."""
        queue = self.queues.pop(entity, None)
        if queue is None:
            return False
        for copy in (*queue.copies.values(), *queue.dead.values()):
            if not copy.gone:
                self._gone(copy, "deleted")
        if entity.kind is EntityKind.QUEUE:
            self._history.gaps.append(Gap(self._loop.time(), self.name, entity))
        while queue.polls:
            queue.polls.popleft().answer(_not_found(entity))
        queue.copies.clear()
        queue.locks.clear()
        queue.ready.clear()
        return True

    def find(self, entity: Entity) -> Queue:
        """The entity's data.

        Raises:
            TransportError: it does not exist.
        """
        queue = self.queues.get(entity)
        if queue is None:
            raise _not_found(entity)
        return queue

    def source(self, source: Source) -> Queue:
        """What a source reads. Raises as `find`."""
        queue = self.find(source.entity)
        if source.subscription is None:
            return queue
        if source.subscription not in queue.subscriptions:
            raise TransportError(f"no such source: {source}", FailureKind.REFUSED, FailureReason.NOT_FOUND)
        return queue.subscriptions[source.subscription]

    # Writing.

    def store(self, entity: Entity, message: Message, attempt: int | None) -> Copy:
        """Append a message. Raises as `find`."""
        queue = self.find(entity)
        history = self._history
        self._numbers += 1
        number = self._numbers
        copy = Copy(
            number, self._number_of(message), self.name, entity, message, attempt, self._loop.time(), history.tick()
        )
        history.copies.append(copy)
        if history.trace is not None:
            history.say(self.name, f"stores {message.message_id} in {entity} as {number}")
        if entity.kind is EntityKind.TOPIC:
            for subscription in queue.subscriptions.values():
                self._numbers += 1
                self._append(subscription, replace(copy, number=self._numbers, handovers=[], ran_out=[]))
        else:
            self._append(queue, copy)
        return copy

    def _append(self, queue: Queue, copy: Copy) -> None:
        queue.copies[copy.number] = copy
        at = copy.message.scheduled_enqueue_at
        wait = 0.0 if at is None else at.timestamp() - WALL_EPOCH - self._loop.time()
        if wait > 0:
            queue.scheduled.add(copy.number)
            self._loop.later(wait, self._appear, queue, copy.number)
        else:
            heapq.heappush(queue.ready, copy.number)
            self.serve(queue)

    def _appear(self, queue: Queue, number: int) -> None:
        queue.scheduled.discard(number)
        heapq.heappush(queue.ready, number)
        self.serve(queue)

    # Reading.

    def poll(self, queue: Queue, poll: Poll) -> None:
        """Answer a poll at once if there is something, else when there is."""
        queue.polls.append(poll)
        self.serve(queue)

    def forget_poll(self, queue: Queue, poll: Poll) -> None:
        """Its receiver waits no longer."""
        if poll in queue.polls:
            queue.polls.remove(poll)

    def serve(self, queue: Queue) -> None:
        """Answer the polls that can be answered."""
        for poll in tuple(queue.polls) if queue.ready else ():
            if not poll.open() or self._is_anothers(queue, poll):
                continue
            found = self.take(queue, poll)
            if not found:
                return
            queue.polls.remove(poll)
            poll.answer(found)

    @staticmethod
    def _is_anothers(queue: Queue, poll: Poll) -> bool:
        """Whether a queue for one consumer at a time has another one now."""
        if not queue.properties.single_consumer:
            return False
        return any(lock.holder is not poll.holder for lock in queue.locks.values())

    def take(self, queue: Queue, poll: Poll) -> list[Delivery]:
        """Lock what a poll asks for."""
        found: list[Delivery] = []
        now = self._loop.time()
        duration = queue.properties.lock_duration
        while queue.ready and len(found) < poll.most:
            number = heapq.heappop(queue.ready)
            copy = queue.copies.get(number)
            if copy is None or number in queue.locks:
                continue
            lives = copy.message.time_to_live
            if lives is not None and copy.at + lives <= now:
                del queue.copies[number]
                self._gone(copy, "expired")
                continue
            lock = Lock(poll.holder, poll.life, float("inf") if duration is None else now + duration)
            queue.locks[number] = lock
            copy.handovers.append(Handover(now, self._history.tick(), poll.life))
            if duration is not None:
                self._loop.later(duration, self._end_of_lock, queue, number, lock)
            found.append(
                Delivery(
                    message=copy.message,
                    lock_token=(number, lock),
                    delivery_count=len(copy.handovers),
                    sequence_number=str(number),
                    enqueued_at=instant(copy.at),
                    locked_until=None if duration is None else instant(lock.ends_at),
                )
            )
            if self._history.trace is not None:
                self._history.say(self.name, f"delivers {number} ({copy.message.message_id}) to {poll.life}")
        return found

    # Settling.

    def held(self, queue: Queue, delivery: Delivery) -> Copy:
        """The copy of a delivery whose lock still holds.

        Raises:
            TransportError: reason *lock-lost*.
        """
        number, lock = delivery.lock_token  # type: ignore[misc]  # made by take
        copy = queue.copies.get(number)  # type: ignore[has-type]
        if copy is None or queue.locks.get(number) is not lock:  # type: ignore[has-type]
            raise TransportError("the lock is lost", FailureKind.REFUSED, FailureReason.LOCK_LOST)
        return copy

    def complete(self, queue: Queue, delivery: Delivery, by: str) -> None:
        """Remove a copy. Raises as `held`."""
        copy = self.held(queue, delivery)
        del queue.copies[copy.number], queue.locks[copy.number]
        self._gone(copy, "completed", by)
        self._settled(queue)

    def dead_letter(self, queue: Queue, delivery: Delivery, reason: str, by: str) -> None:
        """Set a copy aside. Raises as `held`."""
        copy = self.held(queue, delivery)
        del queue.copies[copy.number], queue.locks[copy.number]
        queue.dead[copy.number] = copy
        copy.reason = reason
        self._gone(copy, "dead-lettered", by)
        self._settled(queue)

    def _settled(self, queue: Queue) -> None:
        if queue.properties.single_consumer and not queue.locks:
            self.serve(queue)  # another consumer may have its turn

    def renew(self, queue: Queue, delivery: Delivery) -> Delivery:
        """Make a lock last its whole duration again. Raises as `held`."""
        copy = self.held(queue, delivery)
        lock = queue.locks[copy.number]
        if queue.properties.lock_duration is None:
            return delivery
        lock.ends_at = self._loop.time() + queue.properties.lock_duration
        return replace(delivery, locked_until=instant(lock.ends_at))

    def release(self, queue: Queue, number: int) -> None:
        """End a lock; the copy can be delivered again."""
        if queue.locks.pop(number, None) is not None and number in queue.copies:
            heapq.heappush(queue.ready, number)
            if self._history.trace is not None:
                self._history.say(self.name, f"releases {number}")

    def release_all(self, holder: object = None, queue: Queue | None = None) -> None:
        """End all locks, of one holder or queue where given."""
        for each in self._readable() if queue is None else (queue,):
            mine = [number for number, lock in each.locks.items() if holder is None or lock.holder is holder]
            for number in mine:
                self.release(each, number)
            if mine:
                self.serve(each)

    def release_some(self, queue: Queue, chance: Random) -> None:
        """End about half of a queue's locks."""
        for number in [number for number in queue.locks if chance.random() < 0.5]:
            self.release(queue, number)
        self.serve(queue)

    def locks_of(self, life: str) -> tuple[int, ...]:
        """The copies that a process holds."""
        return tuple(number for queue in self._readable() for number, lock in queue.locks.items() if lock.life == life)

    def end_lock(self, queue: Queue, number: int, lock: Lock) -> None:
        """End a lock, if it is still that one."""
        if queue.locks.get(number) is lock:
            self.release(queue, number)
            self.serve(queue)

    def _end_of_lock(self, queue: Queue, number: int, lock: Lock) -> None:
        if queue.locks.get(number) is not lock:
            return
        left = lock.ends_at - self._loop.time()
        if left > 0:
            self._loop.later(left, self._end_of_lock, queue, number, lock)
            return
        queue.copies[number].ran_out.append((self._history.tick(), self._loop.time()))
        self.end_lock(queue, number, lock)

    # Counting.

    def counts(self, queue: Queue) -> QueueCounts:
        """What a queue holds."""
        locked, scheduled = len(queue.locks), len(queue.scheduled)
        return QueueCounts(len(queue.copies) - locked - scheduled, locked, scheduled, len(queue.dead))

    def positions(self, queue: Queue) -> QueuePositions:
        """How far a queue has been settled."""
        return QueuePositions(next(iter(queue.copies), None), self._numbers)

    def serve_all(self) -> None:
        """Answer every poll that can be answered: the network has changed."""
        for queue in self._readable():
            self.serve(queue)

    def _readable(self) -> list[Queue]:
        return [each for queue in self.queues.values() for each in (queue, *queue.subscriptions.values())]

    def _gone(self, copy: Copy, how: str, by: str = "") -> None:
        copy.gone, copy.gone_by = how, by
        copy.gone_at, copy.gone_tick = self._loop.time(), self._history.tick()
        if self._history.trace is not None:
            self._history.say(self.name, f"{copy.number} ({copy.message.message_id}) is {how} {copy.reason}")


def _not_found(entity: Entity) -> TransportError:
    return TransportError(f"no such entity: {entity}", FailureKind.REFUSED, FailureReason.NOT_FOUND)


def instant(seconds: float) -> datetime:
    """An instant of the loop's clock on the brokers' wall."""
    return datetime.fromtimestamp(WALL_EPOCH + seconds, UTC)
