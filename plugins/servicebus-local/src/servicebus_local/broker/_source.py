"""What receivers take from: the messages of a queue, a subscription or a dead-letter queue, their locks and sessions.

The rules are those of Service Bus documentation: "Message transfers, locks, and settlement", "Message deferral",
"Message expiration (Time to Live)" and "Overview of Service Bus dead-letter queues".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any
from uuid import UUID

from servicebus_local.broker._errors import (
    DISABLED,
    LOCK_LOST,
    MESSAGE_NOT_FOUND,
    NOT_ALLOWED,
    NOT_FOUND,
    OUT_OF_RANGE,
    SESSION_LOCK_LOST,
    SESSION_TAKEN,
    TOO_LARGE,
    BrokerError,
)
from servicebus_local.broker._hub import Hub
from servicebus_local.broker._shelf import Lane, SessionLock, Shelf
from servicebus_local.broker._values import NEVER, MessageState, Stored

BILLED_BYTES = 65536
"""Messages are billed in units of this many bytes (Service Bus pricing, frequently asked questions)."""

_SLACK = 64

MAX_STATE_BYTES = 262144
"""A session's state is as large as one message at most (Service Bus documentation: "Message sessions")."""

EXPIRED = "TTLExpiredException"
TOO_MANY_DELIVERIES = "MaxDeliveryCountExceeded"


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The part of a description that a source goes by."""

    lock_duration: float = 60.0  # seconds
    max_delivery_count: int | None = None  # deliveries before a message is dead-lettered; `None` for no limit
    dead_letters_expired: bool = False
    receivable: bool = True


class Source:
    """Messages with locks, schedules, expiry and sessions (Service Bus documentation: "Message sessions", "Message
    browsing", and as above).

    ``bury`` dead-letters a message that was removed here, ``activate`` takes one whose time has come. Without ``bury``
    it is a dead-letter queue: nothing expires, and deliveries are not limited.
    """

    def __init__(
        self,
        hub: Hub,
        identity: int,
        path: str,
        settings: SourceSettings,
        *,
        requires_session: bool = False,
        bury: Callable[[Stored], None] | None = None,
        activate: Callable[[Stored, float], object] | None = None,
        touch: Callable[[float], None] | None = None,
    ) -> None:
        self.path = path
        self.requires_session = requires_session
        self.settings = settings
        self.deleted = False
        self.armed_at = NEVER
        self.shelf = Shelf(hub, identity, sessions=requires_session, expires=bury is not None)
        self._hub = hub
        self._bury_message = bury
        self._activate = activate
        self._touch = touch
        self._locks: dict[UUID, Stored] = {}
        # One entry for each take, with tokens and not messages, so that no content outlives its settlement.
        self._lock_timers: list[tuple[float, int, list[UUID]]] = []
        self._session_timers: list[tuple[float, int, SessionLock]] = []
        self._order = count()
        self._waiters: dict[object, Callable[[], None]] = {}

    @property
    def is_dead_letter(self) -> bool:
        return self._bury_message is None

    @property
    def waited_for(self) -> bool:
        """Whether a client waits here, which keeps an entity from being idle."""
        return bool(self._waiters)

    def add(self, message: Stored) -> int:
        message.sequence_number = self.shelf.number()
        self.restore(message)
        journal = self._hub.journal
        if journal.on:
            journal.message(self.shelf.identity, message)
        return message.sequence_number

    def restore(self, message: Stored) -> None:
        """Keeps a message that has its number, as one read from the store has."""
        due = self.shelf.add(message)
        if due < self.armed_at:
            self._hub.arm(self, due)
        if self._waiters and message.state is MessageState.ACTIVE:
            self._hub.wake(self.call_waiters)

    def cancel(self, sequence_numbers: Iterable[int]) -> None:
        """Removes scheduled messages, all of them or none."""
        found = []
        for number in sequence_numbers:
            message = self.shelf.messages.get(number)
            if message is None or message.state is not MessageState.SCHEDULED:
                raise BrokerError(MESSAGE_NOT_FOUND, f"'{self.path}' has no scheduled message number {number}.")
            found.append(message)
        for message in {message.sequence_number: message for message in found}.values():
            self.shelf.remove(message)

    def delete(self) -> None:
        """Ends the source: its messages are gone, its locks lost, and its waiters called once more."""
        self.deleted = True
        for lane in self.shelf.lanes.values():
            if lane.lock is not None:
                lane.lock.lost = True
        for message in self.shelf.messages.values():
            self._hub.journal.no_message(message)
        self.shelf = Shelf(self._hub, self.shelf.identity, sessions=self.requires_session, expires=False)
        for timers in (self._lock_timers, self._session_timers, self._locks):
            timers.clear()
        self._hub.wake(self.call_waiters)

    def configure(self, settings: SourceSettings) -> None:
        """Goes by other settings from now on; locks that are out keep their time."""
        opened = settings.receivable and not self.settings.receivable
        self.settings = settings
        if opened:
            self._hub.wake(self.call_waiters)

    def drain(self) -> list[Stored]:
        drained = []
        for message in list(self.shelf.messages.values()):
            if message.state is MessageState.ACTIVE and message.lock_token is None:
                self.shelf.remove(message)
                drained.append(message)
        return drained

    def on_ready(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Has a waiting caller called when `take` or `accept_session` may give something again."""
        key = object()
        self._waiters[key] = callback

        def cancel() -> None:
            self._waiters.pop(key, None)

        return cancel

    def call_waiters(self) -> None:
        """Calls all waiters; the hub does this."""
        for key, callback in list(self._waiters.items()):
            if key in self._waiters:
                callback()

    def next_deadline(self) -> float:
        """When a lock, a schedule or a message runs out, unix seconds; infinity for never."""
        shelf = self.shelf
        heaps: tuple[list[Any], ...] = (self._lock_timers, self._session_timers, shelf.scheduled, shelf.expiring)
        return min((heap[0][0] for heap in heaps if heap), default=NEVER)

    def run_due(self, now: float) -> None:
        """Does what is due: ends locks, then activates, then expires."""
        while self._lock_timers and self._lock_timers[0][0] <= now:
            for token in heappop(self._lock_timers)[2]:
                message = self._locks.get(token)
                if message is not None and message.locked_until <= now:
                    self._release(message, now, counted=True)
        while self._session_timers and self._session_timers[0][0] <= now:
            lock = heappop(self._session_timers)[2]
            if not lock.lost and lock.locked_until <= now:
                self._drop_session(lock, now, counted=True)
        scheduled = self.shelf.scheduled
        while scheduled and scheduled[0][0] <= now:
            message = self.shelf.messages.get(heappop(scheduled)[1])
            if message is not None and self._activate is not None:
                self.shelf.remove(message)
                self._activate(message, now)
        while self.shelf.expiring and self.shelf.expiring[0][0] <= now:
            message = self.shelf.messages.get(heappop(self.shelf.expiring)[1])
            # A locked message may still be settled, and a deferred one waits until it is asked for.
            if message is not None and message.state is MessageState.ACTIVE and message.lock_token is None:
                self._expire(message, now)

    def _expire(self, message: Stored, now: float) -> bool:
        if message.expires_at > now or self.is_dead_letter:
            return False
        if self.settings.dead_letters_expired:
            self.bury(message, EXPIRED, "The message expired before it was settled.")
        else:
            self.shelf.remove(message)
        return True

    def _drop_session(self, lock: SessionLock, now: float, *, counted: bool) -> None:
        lock.lost = True
        lane = self.shelf.lanes[lock.session_id]
        lane.lock = None
        for message in sorted((self._locks[token] for token in lane.tokens), key=lambda each: each.sequence_number):
            self._release(message, now, counted=counted)
        if self.shelf.first_ready(lane) is not None:
            self.shelf.free[lock.session_id] = None
            self._hub.wake(self.call_waiters)
        self.shelf.forget_if_idle(lane)

    def _unlock(self, message: Stored) -> None:
        token = message.lock_token
        if token is not None:
            self._locks.pop(token, None)
            message.lock_token = None
            if self.requires_session:
                self.shelf.lane_of(message).tokens.discard(token)

    def _release(self, message: Stored, now: float, *, counted: bool) -> None:
        self._unlock(message)
        if counted:
            message.delivery_count += 1
            limit = self.settings.max_delivery_count
            if limit is not None and message.delivery_count >= limit and not self.is_dead_letter:
                self.bury(message, TOO_MANY_DELIVERIES, f"The message was delivered {limit} times and never settled.")
                return
            self._hub.journal.message(self.shelf.identity, message)
        if message.state is MessageState.ACTIVE and not self._expire(message, now):
            self.shelf.make_ready(message, self.shelf.lane_of(message))
            self._hub.wake(self.call_waiters)

    def bury(self, message: Stored, reason: str | None, description: str | None) -> None:
        """Dead-letters a message of this source that is not locked."""
        self.shelf.remove(message)
        if self._bury_message is not None:
            message.dead_letter_reason = reason
            message.dead_letter_description = description
            message.dead_letter_source = self.path
            self._bury_message(message)

    def _begin(self) -> float:
        now = self._hub.begin()
        if self.deleted:
            raise BrokerError(NOT_FOUND, f"'{self.path}' does not exist any more.")
        if self._touch is not None:
            self._touch(now)
        return now

    def take(self, count: int, *, delete: bool = False, session: SessionLock | None = None) -> list[Stored]:
        """The next messages in order, locked or deleted."""
        now = self._begin()
        self._check_receivable()
        lane = self._lane_for(session)
        taken: list[Stored] = []
        ready = lane.ready
        messages = self.shelf.messages
        while ready and len(taken) < count:
            message = messages.get(heappop(ready))
            if message is not None:
                taken.append(message)
        self._hand_out(taken, lane, now, delete=delete)
        return taken

    def receive_deferred(
        self, sequence_numbers: Iterable[int], session: SessionLock | None = None, *, delete: bool = False
    ) -> list[Stored]:
        """Messages that were deferred, by their numbers; locked or deleted."""
        now = self._begin()
        self._check_receivable()
        lane = self._lane_for(session)
        found: dict[int, Stored] = {}
        for number in sequence_numbers:
            message = self.shelf.messages.get(number)
            if (
                message is None
                or message.state is not MessageState.DEFERRED
                or message.lock_token is not None
                or self.shelf.lane_of(message) is not lane
            ):
                raise BrokerError(MESSAGE_NOT_FOUND, f"'{self.path}' has no deferred message number {number}.")
            found[number] = message
        # A deferred message is looked at for expiry only here, as "Message deferral" says.
        live = [message for message in found.values() if not self._expire(message, now)]
        self._hand_out(live, lane, now, delete=delete)
        self._hub.notify()
        return live

    def _hand_out(self, messages: list[Stored], lane: Lane, now: float, *, delete: bool) -> None:
        self._hub.operations["receive"] += sum(1 + (message.size - 1) // BILLED_BYTES for message in messages)
        if delete:
            for message in messages:
                self.shelf.remove(message)
        elif messages:
            self._lock(messages, lane, now)

    def _check_receivable(self) -> None:
        if not self.settings.receivable:
            raise BrokerError(DISABLED, f"'{self.path}' is disabled for receiving.")

    def _lane_for(self, session: SessionLock | None) -> Lane:
        if session is None:
            if self.requires_session:
                raise BrokerError(NOT_ALLOWED, f"'{self.path}' requires sessions, and the receiver has none.")
            return self.shelf.main
        self._check_sessions()
        return self._held_lane(session)

    def _check_sessions(self) -> None:
        if not self.requires_session:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' has no sessions.")

    def _held_lane(self, session: SessionLock) -> Lane:
        lane = self.shelf.lanes.get(session.session_id)
        if session.lost or lane is None or lane.lock is not session:
            raise BrokerError(
                SESSION_LOCK_LOST, f"The lock of session '{session.session_id}' of '{self.path}' is lost."
            )
        return lane

    def _lock(self, taken: list[Stored], lane: Lane, now: float) -> None:
        until = lane.lock.locked_until if lane.lock is not None else now + self.settings.lock_duration
        drawn = os.urandom(16 * len(taken))
        tokens = []
        locks = self._locks
        for at, message in enumerate(taken):
            token = UUID(bytes=drawn[16 * at : 16 * at + 16], version=4)
            message.lock_token = token
            message.locked_until = until
            locks[token] = message
            tokens.append(token)
        if lane.session_id is not None:
            lane.tokens.update(tokens)  # They last as long as the session's lock does.
        else:
            self._time_lock(until, tokens)

    def _time_lock(self, until: float, tokens: list[UUID]) -> None:
        timers = self._lock_timers
        if len(timers) > 2 * len(self._locks) + _SLACK:
            locks = self._locks
            timers[:] = [entry for entry in timers if any(token in locks for token in entry[2])]
            heapify(timers)
        heappush(timers, (until, next(self._order), tokens))
        self._hub.arm(self, until)

    def complete(self, lock_token: UUID) -> None:
        message = self._settle(lock_token)
        self._unlock(message)
        self.shelf.remove(message)

    def abandon(self, lock_token: UUID, properties: Mapping[str, object] | None = None) -> None:
        """Releases a message; that counts as a delivery."""
        message = self._settle(lock_token)
        self._modify(message, properties)
        self._release(message, self._hub.clock(), counted=True)
        self._hub.notify()

    def release(self, lock_token: UUID) -> None:
        """Releases a message as if it had not been taken."""
        self._release(self._settle(lock_token), self._hub.clock(), counted=False)
        self._hub.notify()

    def defer(self, lock_token: UUID, properties: Mapping[str, object] | None = None) -> None:
        """Defers a message: from now on it is received by its number only."""
        message = self._settle(lock_token)
        self._modify(message, properties)
        self._unlock(message)
        self.shelf.set_state(message, MessageState.DEFERRED)
        self._hub.journal.message(self.shelf.identity, message)

    def dead_letter(
        self,
        lock_token: UUID,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        if self.is_dead_letter:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' is a dead-letter queue: nothing is dead-lettered from it.")
        message = self._settle(lock_token)
        self._modify(message, properties)
        self._unlock(message)
        self.bury(message, reason, description)
        self._hub.notify()

    def renew(self, lock_token: UUID) -> float:
        now = self._begin()
        self._hub.operations["renew"] += 1
        message = self._locked(lock_token)
        if self.requires_session:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' requires sessions: the session's lock is renewed instead.")
        message.locked_until = now + self.settings.lock_duration
        self._time_lock(message.locked_until, [lock_token])
        return message.locked_until

    def _settle(self, token: UUID) -> Stored:
        self._begin()
        self._hub.operations["settle"] += 1
        return self._locked(token)

    def _locked(self, token: UUID) -> Stored:
        message = self._locks.get(token)
        if message is None:
            raise BrokerError(LOCK_LOST, f"The lock of a message of '{self.path}' is lost, or it was settled before.")
        return message

    def _modify(self, message: Stored, properties: Mapping[str, object] | None) -> None:
        if properties:
            message.added_properties = {**message.added_properties, **properties}

    def count_empty_receive(self) -> None:
        """Note that a client asked for messages and got none: only its front knows when it stopped waiting."""
        self._hub.operations["empty-receive"] += 1

    def peek(self, from_sequence_number: int, count: int, session_id: str | None = None) -> list[Stored]:
        """Looks at messages without taking them, scheduled and deferred ones too, not those that have expired."""
        now = self._begin()
        if count < 0:
            raise BrokerError(OUT_OF_RANGE, f"{count} messages were asked for.")
        self._hub.operations["peek"] += 1
        found: list[Stored] = []
        if count == 0:
            return found
        for message in self.shelf.from_number(from_sequence_number):
            if session_id is not None and message.session_id != session_id:
                continue
            if message.expires_at <= now and not self.is_dead_letter:
                continue
            found.append(message)
            if len(found) == count:
                break
        return found

    def accept_session(self, session_id: str | None) -> SessionLock | None:
        """Locks a session, or the next that has messages; `None` when none is free now."""
        now = self._begin()
        self._check_sessions()
        self._check_receivable()
        self._hub.operations["session"] += 1
        lane = self._next_free() if session_id is None else self.shelf.lane(session_id)
        if lane is None or lane.session_id is None:
            return None
        if lane.lock is not None:
            raise BrokerError(SESSION_TAKEN, f"Session '{session_id}' of '{self.path}' is locked by another receiver.")
        self.shelf.free.pop(lane.session_id, None)
        lane.lock = SessionLock(lane.session_id, now + self.settings.lock_duration)
        self._time_session(lane.lock)
        return lane.lock

    def _next_free(self) -> Lane | None:
        free = self.shelf.free
        while free:
            session_id = next(iter(free))
            lane = self.shelf.lanes[session_id]
            if self.shelf.first_ready(lane) is not None:
                return lane
            del free[session_id]
        return None

    def _time_session(self, lock: SessionLock) -> None:
        timers = self._session_timers
        if len(timers) > 2 * len(self.shelf.lanes) + _SLACK:
            timers[:] = sorted(entry for entry in timers if not entry[2].lost and entry[0] == entry[2].locked_until)
        heappush(timers, (lock.locked_until, next(self._order), lock))
        self._hub.arm(self, lock.locked_until)

    def renew_session(self, lock: SessionLock) -> float:
        """Makes a session's lock and its messages' last longer; gives until when, unix seconds."""
        now = self._begin()
        self._hub.operations["renew"] += 1
        lane = self._held_lane(lock)
        lock.locked_until = now + self.settings.lock_duration
        for token in lane.tokens:
            self._locks[token].locked_until = lock.locked_until
        self._time_session(lock)
        return lock.locked_until

    def release_session(self, lock: SessionLock) -> None:
        """Releases a session: its messages are available at once, and no delivery is counted."""
        if lock.lost or self.deleted:
            return
        now = self._begin()
        if not lock.lost:
            self._drop_session(lock, now, counted=False)
        self._hub.notify()

    def get_session_state(self, lock: SessionLock | str) -> bytes | None:
        """What the application keeps for a session, which is given by its lock, or by its id where none holds it."""
        session_id = self._session_id(lock)
        lane = self.shelf.lanes.get(session_id)
        return None if lane is None else lane.state

    def set_session_state(self, lock: SessionLock | str, state: bytes | None) -> None:
        """Keeps something for a session, which lasts until it is replaced; see `get_session_state`."""
        session_id = self._session_id(lock)
        if state is not None and len(state) > MAX_STATE_BYTES:
            raise BrokerError(TOO_LARGE, f"The state of session '{session_id}' of '{self.path}' is too large.")
        lane = self.shelf.lane(session_id)
        lane.state = state
        lane.state_at = self._hub.clock()
        self._hub.journal.session(self.shelf.identity, session_id, lane.state_at, state)
        self.shelf.forget_if_idle(lane)

    def list_sessions(self, updated_since: float | None, skip: int, top: int) -> list[str]:
        """The ids of sessions (Service Bus documentation: "AMQP in Service Bus: request/response-based operations")."""
        self._begin()
        self._check_sessions()
        self._hub.operations["session"] += 1
        lanes = self.shelf.lanes.values()
        if updated_since is None:
            messages = self.shelf.messages.values()
            found = {each.session_id for each in messages if each.state is not MessageState.SCHEDULED}
            found.update(each.session_id for each in lanes if each.state is not None)
        else:
            found = {each.session_id for each in lanes if each.state is not None and each.state_at > updated_since}
        return sorted(each for each in found if each is not None)[skip : skip + top]

    def _session_id(self, lock: SessionLock | str) -> str:
        self._begin()
        self._check_sessions()
        self._hub.operations["session"] += 1
        if isinstance(lock, str):
            return lock
        self._held_lane(lock)
        return lock.session_id
