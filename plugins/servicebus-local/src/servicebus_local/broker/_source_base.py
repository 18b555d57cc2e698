"""The part of a source that needs no receiver: what comes in, and what time does to it.

The rules are those of Service Bus documentation: "Message transfers, locks, and settlement", "Message deferral",
"Message expiration (Time to Live)", "Overview of Service Bus dead-letter queues" and "Message browsing".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop
from itertools import count
from uuid import UUID

from servicebus_local.broker._errors import (
    MESSAGE_NOT_FOUND,
    NOT_FOUND,
    OUT_OF_RANGE,
    BrokerError,
)
from servicebus_local.broker._hub import Hub
from servicebus_local.broker._shelf import SessionLock, Shelf
from servicebus_local.broker._values import NEVER, MessageState, Stored

EXPIRED = "TTLExpiredException"
TOO_MANY_DELIVERIES = "MaxDeliveryCountExceeded"


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The part of a description that a source goes by."""

    lock_duration: float = 60.0  # seconds
    max_delivery_count: int | None = None  # deliveries before a message is dead-lettered; `None` for no limit
    dead_letters_expired: bool = False
    receivable: bool = True


class SourceBase:
    """Messages with locks, schedules and expiry; `Source` adds taking, settling and sessions to it.

    Args:
        bury: dead-letters a message that was removed here; `None` makes this a dead-letter queue, where nothing
            expires and deliveries are not limited.
        activate: takes a scheduled message that was removed here because its time has come.
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
        """Whether this is a dead-letter queue."""
        return self._bury_message is None

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits here, which keeps an entity from being idle."""
        return bool(self._waiters)

    # ------------------------------------------------------------------ the entity's side

    def add(self, message: Stored) -> int:
        """Keeps a message, which gets its sequence number."""
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
            self._hub.wake(self)

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
        self._hub.wake(self)

    def configure(self, settings: SourceSettings) -> None:
        """Goes by other settings from now on; locks that are out keep their time."""
        opened = settings.receivable and not self.settings.receivable
        self.settings = settings
        if opened:
            self._hub.wake(self)

    def drain(self) -> list[Stored]:
        """Removes and gives all messages that could be taken, as forwarding does."""
        drained = []
        for message in list(self.shelf.messages.values()):
            if message.state is MessageState.ACTIVE and message.lock_token is None:
                self.shelf.remove(message)
                drained.append(message)
        return drained

    # ------------------------------------------------------------------ waiting

    def on_ready(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Has someone called when `take` or `accept_session` may give something again."""
        key = object()
        self._waiters[key] = callback

        def cancel() -> None:
            self._waiters.pop(key, None)

        return cancel

    def call_waiters(self) -> None:
        """Calls everyone who waits; the hub does this."""
        for key, callback in list(self._waiters.items()):
            if key in self._waiters:
                callback()

    # ------------------------------------------------------------------ time

    def next_deadline(self) -> float:
        """When a lock, a schedule or a message runs out, unix seconds; infinity for never."""
        due = NEVER
        if self._lock_timers:
            due = self._lock_timers[0][0]
        if self._session_timers:
            due = min(due, self._session_timers[0][0])
        if self.shelf.scheduled:
            due = min(due, self.shelf.scheduled[0][0])
        if self.shelf.expiring:
            due = min(due, self.shelf.expiring[0][0])
        return due

    def run_due(self, now: float) -> None:
        """Does what is due: lets go of locks, then activates, then expires."""
        while self._lock_timers and self._lock_timers[0][0] <= now:
            for token in heappop(self._lock_timers)[2]:
                message = self._locks.get(token)
                if message is not None and message.locked_until <= now:
                    self._give_back(message, now, counted=True)
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
            self._give_back(message, now, counted=counted)
        if self.shelf.first_ready(lane) is not None:
            self.shelf.free[lock.session_id] = None
            self._hub.wake(self)
        self.shelf.forget_if_idle(lane)

    # ------------------------------------------------------------------ shared

    def _unlock(self, message: Stored) -> None:
        token = message.lock_token
        if token is not None:
            self._locks.pop(token, None)
            message.lock_token = None
            if self.requires_session:
                self.shelf.lane_of(message).tokens.discard(token)

    def _give_back(self, message: Stored, now: float, *, counted: bool) -> None:
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
            self._hub.wake(self)

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

    def _check_count(self, count: int) -> None:
        if count < 0:
            raise BrokerError(OUT_OF_RANGE, f"{count} messages were asked for.")
