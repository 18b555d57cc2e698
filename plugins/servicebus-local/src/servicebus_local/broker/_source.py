"""What receivers take from: the messages of a queue, a subscription or a dead-letter queue, their locks and sessions.

The rules are those of Service Bus documentation: "Message transfers, locks, and settlement", "Message deferral" and
"Overview of Service Bus dead-letter queues".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from uuid import UUID

from servicebus_local.broker._errors import (
    ARGUMENT,
    DISABLED,
    LOCK_LOST,
    MESSAGE_NOT_FOUND,
    NOT_ALLOWED,
    SESSION_LOCK_LOST,
    SESSION_TAKEN,
    TOO_LARGE,
    BrokerError,
)
from servicebus_local.broker._shelf import Lane, SessionLock
from servicebus_local.broker._source_base import SourceBase
from servicebus_local.broker._values import MessageState, Stored

BILLED_BYTES = 65536
"""Messages are billed in units of this many bytes (Service Bus pricing, frequently asked questions)."""

_MODES = ("peek-lock", "receive-and-delete")
_SLACK = 64

MAX_STATE_BYTES = 262144
"""A session's state is as large as one message at most (Service Bus documentation: "Message sessions")."""


class Source(SourceBase):
    """What receivers take from, and what they do with it (Service Bus documentation: "Message sessions", "Message
    browsing", and as above).
    """

    # ------------------------------------------------------------------ taking

    def take(self, count: int, *, mode: str = "peek-lock", session: SessionLock | None = None) -> list[Stored]:
        """The next messages in order."""
        now = self._begin()
        self._check_receivable(mode)
        lane = self._lane_for(session)
        taken: list[Stored] = []
        ready = lane.ready
        messages = self.shelf.messages
        while ready and len(taken) < count:
            message = messages.get(heappop(ready))
            if message is not None:
                taken.append(message)
        self._count_receive(taken)
        if mode == "receive-and-delete":
            for message in taken:
                self.shelf.remove(message)
        elif taken:
            self._lock(taken, lane, now)
        return taken

    def receive_deferred(
        self, sequence_numbers: Iterable[int], session: SessionLock | None = None, mode: str = "peek-lock"
    ) -> list[Stored]:
        """Messages that were deferred, by their numbers."""
        now = self._begin()
        self._check_receivable(mode)
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
        self._count_receive(live)
        if mode == "receive-and-delete":
            for message in live:
                self.shelf.remove(message)
        elif live:
            self._lock(live, lane, now)
        self._hub.notify()
        return live

    def _check_receivable(self, mode: str) -> None:
        if mode not in _MODES:
            raise BrokerError(ARGUMENT, f"'{mode}' is no way to receive.")
        if not self.settings.receivable:
            raise BrokerError(DISABLED, f"'{self.path}' is disabled for receiving.")

    def _lane_for(self, session: SessionLock | None) -> Lane:
        if session is None:
            if self.requires_session:
                raise BrokerError(NOT_ALLOWED, f"'{self.path}' requires sessions, and the receiver has none.")
            return self.shelf.main
        if not self.requires_session:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' has no sessions.")
        return self._held_lane(session)

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

    # ------------------------------------------------------------------ settling

    def complete(self, lock_token: UUID, session: SessionLock | None = None) -> None:
        """Removes a message that was worked off."""
        message = self._settle(lock_token, session)
        self._unlock(message)
        self.shelf.remove(message)

    def abandon(
        self, lock_token: UUID, properties: Mapping[str, object] | None = None, session: SessionLock | None = None
    ) -> None:
        """Gives a message back, which counts as a delivery; see `complete`."""
        message = self._settle(lock_token, session)
        self._modify(message, properties)
        self._give_back(message, self._hub.clock(), counted=True)
        self._hub.notify()

    def release(self, lock_token: UUID, session: SessionLock | None = None) -> None:
        """Gives a message back as if it had not been taken; see `complete`."""
        self._give_back(self._settle(lock_token, session), self._hub.clock(), counted=False)
        self._hub.notify()

    def defer(
        self, lock_token: UUID, properties: Mapping[str, object] | None = None, session: SessionLock | None = None
    ) -> None:
        """Puts a message aside; from now on it is had by its number only. See `abandon`."""
        message = self._settle(lock_token, session)
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
        session: SessionLock | None = None,
    ) -> None:
        """Moves a message to the dead-letter queue; see `abandon`."""
        if self.is_dead_letter:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' is a dead-letter queue: nothing is dead-lettered from it.")
        message = self._settle(lock_token, session)
        self._modify(message, properties)
        self._unlock(message)
        self.bury(message, reason, description)
        self._hub.notify()

    def renew(self, lock_token: UUID) -> float:
        """Makes a message's lock last longer."""
        now = self._begin()
        self._hub.operations["renew"] += 1
        message = self._locked(lock_token, None)
        if self.requires_session:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' requires sessions: the session's lock is renewed instead.")
        message.locked_until = now + self.settings.lock_duration
        self._time_lock(message.locked_until, [lock_token])
        return message.locked_until

    def _settle(self, token: UUID, session: SessionLock | None) -> Stored:
        self._begin()
        self._hub.operations["settle"] += 1
        return self._locked(token, session)

    def _locked(self, token: UUID, session: SessionLock | None) -> Stored:
        lane = None if session is None else self._held_lane(session)
        message = self._locks.get(token)
        if message is None or (lane is not None and token not in lane.tokens):
            raise BrokerError(LOCK_LOST, f"The lock of a message of '{self.path}' is lost, or it was settled before.")
        return message

    def _modify(self, message: Stored, properties: Mapping[str, object] | None) -> None:
        if properties:
            message.added_properties = {**message.added_properties, **properties}

    def count_empty_receive(self) -> None:
        """Note that a client asked for messages and got none: only its front knows when it stopped waiting."""
        self._hub.operations["empty-receive"] += 1

    def _count_receive(self, taken: list[Stored]) -> None:
        self._hub.operations["receive"] += sum(1 + (message.size - 1) // BILLED_BYTES for message in taken)

    # ------------------------------------------------------------------ browsing and sessions

    def peek(self, from_sequence_number: int, count: int, session_id: str | None = None) -> list[Stored]:
        """Looks at messages without taking them, scheduled and deferred ones too, not those that have expired."""
        now = self._begin()
        self._check_count(count)
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
        if not self.requires_session:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' has no sessions.")
        if not self.settings.receivable:
            raise BrokerError(DISABLED, f"'{self.path}' is disabled for receiving.")
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
        """Gives a session back; its messages can be had at once and this counts as no delivery."""
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
        if not self.requires_session:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' has no sessions.")
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
        if not self.requires_session:
            raise BrokerError(NOT_ALLOWED, f"'{self.path}' has no sessions.")
        self._hub.operations["session"] += 1
        if isinstance(lock, str):
            return lock
        self._held_lane(lock)
        return lock.session_id
