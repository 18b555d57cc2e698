"""Sources with sessions and browsing: what the fronts get for a path to receive from."""

from __future__ import annotations

from heapq import heappush

from servicebus_local.broker._errors import DISABLED, NOT_ALLOWED, SESSION_TAKEN, TOO_LARGE, BrokerError
from servicebus_local.broker._shelf import Lane, SessionLock
from servicebus_local.broker._source import LockedSource
from servicebus_local.broker._values import MessageState, Stored

MAX_STATE_BYTES = 262144
"""A session's state is as large as one message at most (Service Bus documentation: "Message sessions")."""

_SLACK = 64


class Source(LockedSource):
    """Messages of a queue, a subscription or a dead-letter queue (Service Bus documentation: "Message sessions",
    "Message browsing"). The broker makes these; see `LockedSource` for taking and settling.
    """

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
        self._hub.tell()

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
