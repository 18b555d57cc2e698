"""A broker: the state of the broker in memory, and what was ever stored in it, as `Copy` for the judge.

It has no network: every call has arrived. The only thing that it starts by itself is the response to a long poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from pairmq.memory import Lock, Queue, State, StateBroker, Stored
from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, TransportError
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing.history import Copy, Handover
from pairmq.testing.simulator._history import Gap, History
from pairmq.testing.simulator._loop import SimulationLoop
from pairmq.testing.simulator._scenario import number_of
from pairmq.transport import QueueCounts, QueuePositions, QueueProperties


@dataclass(slots=True, eq=False)
class Poll:
    """A receive that waits at a queue.

    ``answer`` takes the deliveries, or why there are none; ``open`` returns whether a response would be accepted now.
    """

    holder: object
    life: str
    consumer: bool
    most: int
    answer: Callable[[list[Delivery] | TransportError], None]
    open: Callable[[], bool]


class Broker(StateBroker):
    def __init__(self, name: str, loop: SimulationLoop, history: History) -> None:
        super().__init__(name, State(epoch=WALL_EPOCH))
        self.queues = self.state.queues
        self._loop = loop
        self._history = history
        self._numbers = 0
        self._polls: dict[Queue, deque[Poll]] = {}
        self._copies: dict[Stored, Copy] = {}

    # Entities.

    def create(self, entity: Entity, properties: QueueProperties) -> bool:
        """Make an entity; False when it exists."""
        if not self.state.create(entity, properties):
            return False
        for gap in self._history.gaps:
            if gap.until is None and (gap.broker, gap.entity) == (self.name, entity):
                gap.until = self._loop.time()
        return True

    def delete(self, entity: Entity) -> bool:
        queue = self.queues.get(entity)
        if queue is None:
            return False
        for stored in (*queue.stored.values(), *queue.scheduled.values(), *queue.dead.stored.values()):
            copy = self._copies.pop(stored)
            if not copy.gone:
                self._gone(copy, "deleted")
        if entity.kind is EntityKind.QUEUE:
            self._history.gaps.append(Gap(self._loop.time(), self.name, entity))
        self.state.delete(entity)
        for poll in self._polls.pop(queue, ()):
            poll.answer(_not_found(entity))
        return True

    # Writing.

    def store(self, entity: Entity, message: Message, attempt: int | None) -> Copy:
        """Append a message. Raises as `State.store`."""
        history, now = self._history, self._loop.time()
        made = self.state.store(entity, message, now)
        self._numbers += 1
        copy = Copy(self._numbers, number_of(message), self.name, entity, message, attempt, now, history.tick())
        history.copies.append(copy)
        if history.trace is not None:
            history.say(self.name, f"stores {message.message_id} in {entity} as {copy.number}")
        for stored in made:
            own = copy
            if entity.kind is EntityKind.TOPIC:
                self._numbers += 1
                own = replace(copy, number=self._numbers, handovers=[], ran_out=[], released=[])
            self._copies[stored] = own
            if stored.visible_at > now:
                self._loop.later(stored.visible_at - now, self._appear, stored)
            else:
                self.serve(stored.queue)
        return copy

    def _appear(self, stored: Stored) -> None:
        queue = stored.queue
        self._advance(queue)
        if queue.scheduled.get(stored.number) is stored:  # a little too early, by the rounding of the clock
            self._loop.later(stored.visible_at - self._loop.time(), self._appear, stored)
        else:
            self.serve(queue)

    # Reading.

    def poll(self, queue: Queue, poll: Poll) -> None:
        """Answer a poll at once if there is something, else when there is."""
        self._polls.setdefault(queue, deque()).append(poll)
        self.serve(queue)

    def forget_poll(self, queue: Queue, poll: Poll) -> None:
        polls = self._polls.get(queue, ())
        if poll in polls:
            self._polls[queue].remove(poll)

    def serve(self, queue: Queue) -> None:
        for poll in tuple(self._polls.get(queue, ())):
            found = self.take(queue, poll) if poll.open() else []
            if found:
                self._polls[queue].remove(poll)
                poll.answer(found)

    def take(self, queue: Queue, poll: Poll) -> list[Delivery]:
        """Lock what a poll asks for."""
        history, now, duration = self._history, self._loop.time(), queue.properties.lock_duration
        self._advance(queue)
        held, dead = len(queue.stored), len(queue.dead.stored)
        taken = queue.take(poll.holder, poll.most, now)
        if len(queue.stored) < held:
            self._note_undelivered(queue, dead)
        for stored in taken:
            copy = self._copies[stored]
            copy.handovers.append(Handover(now, history.tick(), poll.life, poll.consumer, str(stored.number)))
            if duration is not None:
                self._loop.later(duration, self._end_of_lock, stored, stored.lock)
            if history.trace is not None:
                history.say(self.name, f"delivers {copy.number} ({copy.message.message_id}) to {poll.life}")
        return [self.state.delivery(stored) for stored in taken]

    def _note_undelivered(self, queue: Queue, dead: int) -> None:
        """A take met messages that had expired or were worn out; so many were dead-lettered before."""
        for stored in tuple(queue.dead.stored.values())[dead:]:
            if stored.reason == "expired":
                self._gone(self._copies[stored], "expired")
            else:
                self._copies[stored].reason = stored.reason or ""
                self._gone(self._copies[stored], "dead-lettered")
        for stored in [each for each in self._copies if each.queue is queue]:
            if stored.number not in queue.stored and stored.number not in queue.scheduled:
                self._gone(self._copies.pop(stored), "expired")

    # Settling.

    def complete(self, queue: Queue, stored: Stored) -> None:
        queue.complete(stored)
        self._gone(self._copies.pop(stored), "completed")
        self._settled(queue)

    def dead_letter(self, queue: Queue, stored: Stored, reason: str) -> None:
        queue.bury(stored, reason, "")
        copy = self._copies[stored]
        copy.reason = reason
        self._gone(copy, "dead-lettered")
        self._settled(queue)

    def _settled(self, queue: Queue) -> None:
        if queue.properties.single_consumer:
            self.serve(queue)  # another consumer may have its turn

    def release(self, queue: Queue, stored: Stored) -> None:
        """End a lock; the copy can be delivered again."""
        if stored.lock is not None:
            queue.release(stored)
            self._say_released(stored)

    def abandon(self, queue: Queue, stored: Stored) -> None:
        self._copies[stored].released.append(self._history.tick())
        self.release(queue, stored)
        self.serve(queue)

    def release_all(self, holder: object = None, queue: Queue | None = None) -> None:
        """End all locks, of one holder, as it asks, or of one queue, where given."""
        for each in self._readable() if queue is None else (queue,):
            mine = [stored for stored in each.locked if holder is None or _holder(stored) is holder]
            for stored in mine:
                if holder is not None:
                    self._copies[stored].released.append(self._history.tick())
                self.release(each, stored)
            if mine:
                self.serve(each)

    def release_some(self, queue: Queue, chance: Random) -> None:
        for stored in [stored for stored in queue.locked if chance.random() < 0.5]:
            self.release(queue, stored)
        self.serve(queue)

    def locks_of(self, life: str) -> tuple[int, ...]:
        """The copies that a process's syphon holds."""
        return tuple(
            self._copies[stored].number
            for queue in self._readable()
            for stored in queue.locked
            if (last := self._copies[stored].handovers[-1]).life == life and not last.consumer
        )

    def end_lock(self, queue: Queue, stored: Stored, lock: Lock) -> None:
        if stored.lock is lock:
            self.release(queue, stored)
            self.serve(queue)

    def _end_of_lock(self, stored: Stored, lock: Lock | None) -> None:
        if lock is None or stored.lock is not lock:
            return
        left = lock.until - self._loop.time()
        if left > 0:
            self._loop.later(left, self._end_of_lock, stored, lock)
            return
        self._advance(stored.queue)
        self.serve(stored.queue)

    def _advance(self, queue: Queue) -> bool:
        """Let time pass in a queue, and note which locks have ended; whether any has."""
        ended = queue.advance(self._loop.time())
        for stored in ended:
            self._copies[stored].ran_out.append((self._history.tick(), self._loop.time()))
            self._say_released(stored)
        return bool(ended)

    def _advance_and_serve(self, queue: Queue) -> None:
        """Let time pass for a count: a lock whose end is noted here is not noted again by its own timer."""
        if self._advance(queue):
            self.serve(queue)

    # Counting.

    def counts(self, queue: Queue) -> QueueCounts:
        self._advance_and_serve(queue)
        return queue.counts(self._loop.time())

    def positions(self, queue: Queue) -> QueuePositions:
        self._advance_and_serve(queue)
        return queue.positions(self._loop.time())

    def serve_all(self) -> None:
        """Answer every poll that can be answered: the network has changed."""
        for queue in self._readable():
            self.serve(queue)

    def _readable(self) -> list[Queue]:
        return [each for queue in self.queues.values() for each in (queue, *queue.subscriptions.values())]

    def _gone(self, copy: Copy, how: str) -> None:
        copy.gone, copy.gone_at, copy.gone_tick = how, self._loop.time(), self._history.tick()
        if self._history.trace is not None:
            self._history.say(self.name, f"{copy.number} ({copy.message.message_id}) is {how} {copy.reason}")

    def _say_released(self, stored: Stored) -> None:
        if self._history.trace is not None:
            self._history.say(self.name, f"releases {self._copies[stored].number}")


def _holder(stored: Stored) -> object:
    return None if stored.lock is None else stored.lock.holder


def _not_found(entity: Entity) -> TransportError:
    return TransportError(f"no such entity: {entity}", FailureKind.REFUSED, FailureReason.NOT_FOUND)
