"""What a broker in memory holds: one state without a clock, an event loop or I/O.

Each call is one step, and takes the present as ``now``: seconds on a clock of the caller's own. What is due by then (a
lock that has ended, a schedule) is done first, so that nothing has to happen between two calls.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush, merge
from operator import attrgetter

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import QueueCounts, QueuePositions, QueueProperties

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Lock:
    """A peek-lock: the token of one delivery."""

    stored: Stored
    holder: object  # who may settle it
    until: float  # when it ends; infinite for one that its session's lock ends
    session: Session | None = None  # the session that was locked, if any


@dataclass(slots=True, eq=False)
class Stored:
    """A message in a queue."""

    queue: Queue  # where it is
    number: int  # its place in the order of delivery; a scheduled message gets another one when it is due
    message: Message  # what was sent
    enqueued_at: float  # when it was stored, or became due
    visible_at: float  # when it is due
    expires_at: float  # when its time-to-live ends
    deliveries: int = 0  # how many times it was locked
    lock: Lock | None = None  # the present one, which may have ended
    reason: str | None = None  # why it was dead-lettered
    description: str | None = None  # the same in a sentence

    @property
    def locked_until(self) -> float | None:
        """When its lock ends; None without one."""
        if self.lock is None:
            return None
        return self.lock.until if self.lock.session is None else self.lock.session.until


class Session:
    """The messages of one session, its lock, and a consumer's own data."""

    __slots__ = ("holder", "locked", "name", "ready", "state", "until")

    def __init__(self, name: str) -> None:
        self.name = name
        self.holder: object = None
        self.until = 0.0
        self.ready: list[int] = []
        self.locked: dict[int, Stored] = {}
        self.state: bytes | None = None


class Queue:
    """A queue, a subscription, or the dead-letter queue of either; of a topic, its settings and its subscriptions."""

    def __init__(self, properties: QueueProperties, numbers: itertools.count[int], *, is_dead: bool = False) -> None:
        self.properties = properties
        self.stored: dict[int, Stored] = {}
        """All but the scheduled ones, in the order of delivery."""
        self.scheduled: dict[int, Stored] = {}
        self.sessions: dict[str, Session] = {}
        self.subscriptions: dict[str, Queue] = {}
        self.is_dead = is_dead
        self.dead: Queue = self if is_dead else Queue(properties, numbers, is_dead=True)
        self._numbers = numbers
        self._duration = _NEVER if properties.lock_duration is None else properties.lock_duration
        self._ready: list[int] = []  # a heap, as those of the sessions; may hold some that are gone
        self._due: list[tuple[float, int]] = []
        # All locks last equally long, so that the first ones end first.
        self._locked: OrderedDict[int, Stored] = OrderedDict()
        self._held: OrderedDict[str, Session] = OrderedDict()

    # What it holds.

    def messages(self) -> list[Message]:
        """All of them as they were stored or became due, locked or not."""
        return [each.message for each in merge(self.stored.values(), self.scheduled.values(), key=attrgetter("number"))]

    def oldest(self, most: int, now: float) -> list[Stored]:
        """The oldest ones, locked or not; scheduled ones last."""
        self.advance(now)
        found = list(itertools.islice(self.stored.values(), most))
        if len(found) < most:
            found += sorted(self.scheduled.values(), key=attrgetter("visible_at"))[: most - len(found)]
        return found

    def counts(self, now: float) -> QueueCounts:
        """Count them; an expired one counts until a receiver meets it."""
        self.advance(now)
        locked = len(self.locked) if self._held else len(self._locked)
        dead = 0 if self.is_dead else len(self.dead.stored)
        return QueueCounts(len(self.stored) - locked, locked, len(self.scheduled), dead)

    def positions(self, now: float) -> QueuePositions:
        """How far it is settled; what is scheduled has no position yet."""
        self.advance(now)
        return QueuePositions(next(iter(self.stored), None), next(self._numbers))

    def next_change(self) -> float:
        """The next instant at which more may be received than now; infinite if none is known."""
        found = self._due[0][0] if self._due else _NEVER
        if self._locked:
            found = min(found, next(iter(self._locked.values())).locked_until or found)
        if self._held:
            found = min(found, next(iter(self._held.values())).until)
        return found

    @property
    def locked(self) -> list[Stored]:
        """Those under a lock, also one that has ended unnoticed."""
        sessions = (session.locked.values() for session in self._held.values())
        return [*self._locked.values(), *itertools.chain.from_iterable(sessions)]

    def advance(self, now: float) -> list[Stored]:
        """Do what was due by now, and return the messages whose locks have ended."""
        ended = []
        while self._due and self._due[0][0] <= now:
            at, number = heappop(self._due)
            stored = self.scheduled.pop(number, None)
            if stored is not None:
                stored.number, stored.enqueued_at = next(self._numbers), at
                self._append(stored)
        while self._locked:
            stored = next(iter(self._locked.values()))
            if stored.lock is not None and stored.lock.until > now:
                break
            self._free(stored)
            ended.append(stored)
        while self._held:
            session = next(iter(self._held.values()))
            if session.until > now:
                break
            ended += session.locked.values()
            self._end_session(session)
        return ended

    # Storing.

    def put(self, message: Message, now: float, epoch: float) -> Stored:
        """Append a message, or keep it until it is due."""
        at = message.scheduled_enqueue_at
        visible_at = now if at is None else max(now, (at - _EPOCH).total_seconds() - epoch)
        lives = message.time_to_live
        default = self.properties.default_time_to_live
        if default is not None and (lives is None or default < lives):
            lives = default
        expires_at = _NEVER if lives is None else visible_at + lives
        stored = Stored(self, next(self._numbers), message, visible_at, visible_at, expires_at)
        if visible_at > now:
            self.scheduled[stored.number] = stored
            heappush(self._due, (visible_at, stored.number))
        else:
            self._append(stored)
        return stored

    def _append(self, stored: Stored) -> None:
        self.stored[stored.number] = stored
        heappush(self._ready_of(stored), stored.number)

    def _ready_of(self, stored: Stored) -> list[int]:
        """Where it waits to be received."""
        name = stored.message.session_id
        if not self.properties.requires_session or self.is_dead or name is None:
            return self._ready
        return self.sessions.setdefault(name, Session(name)).ready

    # Receiving.

    def take(self, holder: object, most: int, now: float, session: Session | None = None) -> list[Stored]:
        """Lock the next messages for a holder, of a session that it has locked where there are some; none if it has not
        its turn."""
        if session is None and self.properties.requires_session and not self.is_dead:
            text = "it requires sessions, and is read one session at a time"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        self.advance(now)
        if self.properties.single_consumer and self._locked and not self.is_dead:
            first = next(iter(self._locked.values()))
            if first.lock is not None and first.lock.holder is not holder:
                return []
        ready = self._ready if session is None else session.ready
        limit = None if self.is_dead else self.properties.max_delivery_count
        found: list[Stored] = []
        while ready and len(found) < most:
            stored = self.stored.get(heappop(ready))
            if stored is None:
                continue
            if stored.expires_at <= now and not self.is_dead:
                self._expire(stored)
                continue
            if limit is not None and stored.deliveries >= limit:
                self._bury_worn(stored)
                continue
            stored.deliveries += 1
            if session is None:
                stored.lock = Lock(stored, holder, now + self._duration)
                self._locked[stored.number] = stored
            else:
                stored.lock = Lock(stored, holder, _NEVER, session)
                session.locked[stored.number] = stored
            found.append(stored)
        return found

    # Settling.

    def held(self, token: object, holder: object, now: float) -> Stored:
        """The message of a delivery whose lock has not ended; else `TransportError`, reason *lock-lost*."""
        if isinstance(token, Lock):
            stored = token.stored
            is_own = stored.lock is token and stored.queue is self and token.holder is holder
            if is_own and (stored.locked_until or 0.0) > now:
                return stored
        text = "the lock has ended, and the message will be redelivered"
        raise TransportError(text, FailureKind.REFUSED, FailureReason.LOCK_LOST)

    def complete(self, stored: Stored) -> None:
        self._remove(stored)

    def abandon(self, stored: Stored) -> None:
        """Release a message, or dead-letter it after its last delivery."""
        limit = self.properties.max_delivery_count
        if limit is not None and stored.deliveries >= limit and not self.is_dead:
            self._bury_worn(stored)
        else:
            self._free(stored)

    def release(self, stored: Stored) -> None:
        """End a message's lock, if it has one; it is the next one to be received."""
        if stored.lock is not None:
            self._free(stored)

    def bury(self, stored: Stored, reason: str, description: str) -> None:
        """Move a message to the dead-letter queue."""
        self._remove(stored)
        stored.queue, stored.number, stored.deliveries = self.dead, next(self._numbers), 0
        stored.reason, stored.description = reason, description
        self.dead._append(stored)

    def renew(self, stored: Stored, now: float) -> float:
        """Extend a lock to its full duration, and return its end."""
        lock = stored.lock
        if lock is not None and lock.session is not None:
            return self.renew_session(lock.session, now)
        if lock is not None:
            lock.until = now + self._duration
            self._locked.move_to_end(stored.number)
        return now + self._duration

    def release_all(self, holder: object) -> bool:
        """Release all that a holder has locked; whether it was anything."""
        mine = [each for each in self._locked.values() if each.lock is not None and each.lock.holder is holder]
        for stored in mine:
            self._free(stored)
        held = [session for session in self._held.values() if session.holder is holder]
        for session in held:
            self._end_session(session)
        return bool(mine or held)

    def purge(self) -> int:
        """Remove all, locked ones too, and return how many."""
        count = len(self.stored) + len(self.scheduled)
        for stored in self.stored.values():
            stored.lock = None
        for parts in (self.stored, self.scheduled, self._locked, self._ready, self._due):
            parts.clear()
        for session in tuple(self.sessions.values()):
            session.ready.clear()
            session.locked.clear()
            self._forget_if_empty(session)
        return count

    # Sessions.

    def accept(self, holder: object, name: str | None, now: float) -> Session | None:
        """Lock a session: a certain one, or the one with the oldest message that is free; else None."""
        if not self.properties.requires_session or self.is_dead:
            raise TransportError("it has no sessions", FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        self.advance(now)
        if name is not None:
            session = self.sessions.setdefault(name, Session(name))
        else:
            for each in tuple(self.sessions.values()):
                while each.ready and self._is_over(each.ready[0], now):
                    heappop(each.ready)
                self._forget_if_empty(each)
            free = [each for each in self.sessions.values() if each.holder is None and each.ready]
            if not free:
                return None
            session = min(free, key=lambda each: each.ready[0])
        if session.holder is not None:
            return None
        session.holder, session.until = holder, now + self._duration
        self._held[session.name] = session
        return session

    def held_session(self, session: Session, holder: object, now: float) -> Session:
        """A session whose lock has not ended; else `TransportError`, reason *lock-lost*."""
        if self.sessions.get(session.name) is session and session.holder is holder and session.until > now:
            return session
        text = f"the lock of session {session.name!r} has ended"
        raise TransportError(text, FailureKind.REFUSED, FailureReason.LOCK_LOST)

    def renew_session(self, session: Session, now: float) -> float:
        """Extend a session's lock to its full duration, and return its end."""
        session.until = now + self._duration
        self._held.move_to_end(session.name)
        return session.until

    def _end_session(self, session: Session) -> None:
        del self._held[session.name]
        session.holder = None
        for stored in session.locked.values():
            stored.lock = None
            heappush(session.ready, stored.number)
        session.locked.clear()
        self._forget_if_empty(session)

    def _forget_if_empty(self, session: Session) -> None:
        if session.holder is None and not session.ready and session.state is None:
            del self.sessions[session.name]

    def _is_over(self, number: int, now: float) -> bool:
        """Whether a number is of no message that could be received; an expired one is put where such ones go."""
        stored = self.stored.get(number)
        if stored is not None and stored.expires_at <= now:
            self._expire(stored)
            return True
        return stored is None

    # Parts.

    def _unlock(self, stored: Stored) -> None:
        lock, stored.lock = stored.lock, None
        if lock is not None:
            (self._locked if lock.session is None else lock.session.locked).pop(stored.number, None)

    def _free(self, stored: Stored) -> None:
        self._unlock(stored)
        heappush(self._ready_of(stored), stored.number)

    def _remove(self, stored: Stored) -> None:
        self._unlock(stored)
        self.stored.pop(stored.number, None)

    def _expire(self, stored: Stored) -> None:
        if self.properties.dead_letter_on_expiration:
            self.bury(stored, "expired", "its time-to-live ended before it was received")
        else:
            self._remove(stored)

    def _bury_worn(self, stored: Stored) -> None:
        text = f"it was delivered {stored.deliveries} times and never completed"
        self.bury(stored, "max-delivery-count", text)


class State:
    """All that one broker holds; ``epoch`` is what its clock's 0 is, in seconds since 1970 UTC."""

    def __init__(self, epoch: float = 0.0) -> None:
        self.epoch = epoch
        self.queues: dict[Entity, Queue] = {}
        self._numbers = itertools.count(1)

    def create(self, entity: Entity, properties: QueueProperties) -> bool:
        """Make a queue or topic; False if it exists. Raises `TransportError`: the path is one of another kind."""
        if entity in self.queues:
            return False
        other = EntityKind.TOPIC if entity.kind is EntityKind.QUEUE else EntityKind.QUEUE
        if Entity(entity.path, other) in self.queues:
            text = f"create {entity}: there is a {other} of this path"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.ALREADY_EXISTS)
        self.queues[entity] = Queue(properties, self._numbers)
        return True

    def subscribe(self, topic: Entity, name: str) -> bool:
        """Make a subscription; False if it exists. Raises as `find`."""
        queue = self.find(topic)
        if name in queue.subscriptions:
            return False
        queue.subscriptions[name] = Queue(queue.properties, self._numbers)
        return True

    def delete(self, entity: Entity) -> list[Queue]:
        """Delete an entity with all it holds; empty if it did not exist, else what could be read of it."""
        queue = self.queues.pop(entity, None)
        if queue is None:
            return []
        parts = [each for part in (queue, *queue.subscriptions.values()) for each in (part, part.dead)]
        for part in parts:
            part.purge()
        return parts

    def find(self, entity: Entity) -> Queue:
        """The entity's data; else `TransportError`, reason *not-found*."""
        queue = self.queues.get(entity)
        if queue is None:
            raise _not_found(entity)
        return queue

    def source(self, source: Source) -> Queue:
        """What a source reads. Raises as `find`."""
        queue = self.find(source.entity)
        if source.subscription is not None:
            found = queue.subscriptions.get(source.subscription)
            if found is None:
                raise _not_found(source)
            queue = found
        return queue.dead if source.dead_letter else queue

    def check_session(self, entity: Entity, message: Message) -> None:
        """Raise `TransportError`, reason *malformed*, for a message without the session id that the entity requires."""
        queue = self.queues.get(entity)
        if queue is not None and queue.properties.requires_session and message.session_id is None:
            text = f"send to {entity}: it requires a session_id"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.MALFORMED)

    def store(self, entity: Entity, message: Message, now: float) -> list[Stored]:
        """Append a message to a queue, or to each subscription of a topic. Raises as `find`, and without a required
        session id."""
        queue = self.find(entity)
        self.check_session(entity, message)
        if entity.kind is EntityKind.TOPIC:
            return [each.put(message, now, self.epoch) for each in queue.subscriptions.values()]
        return [queue.put(message, now, self.epoch)]

    def delivery(self, stored: Stored, *, is_peek: bool = False) -> Delivery:
        """What a receiver returns for a message that it has locked, or what a peek shows of any."""
        until = None if is_peek else stored.locked_until
        return Delivery(
            message=stored.message,
            lock_token=None if is_peek else stored.lock,
            delivery_count=stored.deliveries or 1,
            sequence_number=str(stored.number),
            enqueued_at=self.instant(stored.enqueued_at),
            locked_until=None if until is None else self.instant(until),
            dead_letter_reason=stored.reason,
            dead_letter_description=stored.description,
        )

    def instant(self, seconds: float) -> datetime | None:
        """An instant of its clock in UTC; None for infinity, and for what no calendar holds."""
        try:
            return datetime.fromtimestamp(self.epoch + seconds, UTC)
        except (OverflowError, ValueError, OSError):
            return None


def _not_found(what: Entity | Source) -> TransportError:
    return TransportError(f"no such entity: {what}", FailureKind.REFUSED, FailureReason.NOT_FOUND)
