"""The messages of one source, by number, by session and by when they expire. No rules, only structure.

A session has a lock, and what waits in it (Service Bus documentation: "Message sessions").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from uuid import UUID

from servicebus_local.broker._hub import Hub, Numbers
from servicebus_local.broker._values import NEVER, MessageState, Stored

_SLACK = 64


class Shelf:
    """See the module. In dead-letter queues nothing ``expires``."""

    __slots__ = (
        "_hub", "_order", "counts", "expires", "expiring", "free", "identity", "lanes", "main", "messages", "numbers",
        "scheduled", "sessions", "size",
    )  # fmt: skip

    def __init__(self, hub: Hub, identity: int, *, sessions: bool, expires: bool) -> None:
        self._hub = hub
        self.identity = identity
        self.sessions = sessions
        self.expires = expires
        self.numbers = Numbers(identity)
        self.messages: dict[int, Stored] = {}
        self._order: list[int] = []
        self.size = 0
        self.counts = [0, 0, 0]
        self.main = Lane(None)
        self.lanes: dict[str, Lane] = {}
        # Sessions that no receiver holds and that may have something, the one that waits longest first.
        self.free: dict[str, None] = {}
        self.scheduled: list[tuple[float, int]] = []
        self.expiring: list[tuple[float, int]] = []

    def number(self) -> int:
        """A sequence number that was never given before."""
        numbers = self.numbers
        number = numbers.following
        numbers.following = number + 1
        if number >= numbers.reserved:
            self._hub.journal.numbers(numbers)
        return number

    def lane_of(self, message: Stored) -> Lane:
        if not self.sessions or message.session_id is None:
            return self.main
        return self.lane(message.session_id)

    def lane(self, session_id: str) -> Lane:
        """The session, made if there was none."""
        lane = self.lanes.get(session_id)
        if lane is None:
            lane = self.lanes[session_id] = Lane(session_id)
        return lane

    def forget_if_idle(self, lane: Lane) -> None:
        if lane.session_id is not None and lane.idle:
            self.lanes.pop(lane.session_id, None)
            self.free.pop(lane.session_id, None)

    def add(self, message: Stored) -> float:
        """Keep a message whose number is the highest so far; returns when it is due, in Unix seconds, or infinity."""
        number = message.sequence_number
        self.messages[number] = message
        self._order.append(number)
        self.size += message.size
        state = message.state
        self.counts[state] += 1
        lane = self.lane_of(message)
        lane.held += 1
        if state is MessageState.SCHEDULED:
            at = message.scheduled_at or 0.0
            heappush(self.scheduled, (at, number))
            return at
        if state is MessageState.ACTIVE:
            self.make_ready(message, lane)
            if self.expires and message.expires_at != NEVER:
                heappush(self.expiring, (message.expires_at, number))
                return message.expires_at
        return NEVER

    def remove(self, message: Stored) -> None:
        """Forgets a message, for whatever reason; its lock goes first."""
        del self.messages[message.sequence_number]
        self.size -= message.size
        self.counts[message.state] -= 1
        lane = self.lane_of(message)
        lane.held -= 1
        if not lane.held:
            lane.ready.clear()
            self.forget_if_idle(lane)
        live = len(self.messages)
        if len(self._order) > 2 * live + _SLACK:
            self._order = list(self.messages)
        if len(self.expiring) > 2 * live + _SLACK:
            self.expiring = [entry for entry in self.expiring if entry[1] in self.messages]
            heapify(self.expiring)
        self._hub.journal.no_message(message)

    def make_ready(self, message: Stored, lane: Lane) -> None:
        """Lets a message be taken that could not be."""
        heappush(lane.ready, message.sequence_number)
        if lane.session_id is not None and lane.lock is None:
            self.free[lane.session_id] = None

    def first_ready(self, lane: Lane) -> Stored | None:
        ready = lane.ready
        while ready:
            message = self.messages.get(ready[0])
            if message is not None:
                return message
            heappop(ready)
        return None

    def set_state(self, message: Stored, state: MessageState) -> None:
        self.counts[message.state] -= 1
        self.counts[state] += 1
        message.state = state

    def from_number(self, number: int) -> Iterator[Stored]:
        for at in range(bisect_left(self._order, number), len(self._order)):
            message = self.messages.get(self._order[at])
            if message is not None:
                yield message


@dataclass(slots=True, eq=False)
class SessionLock:
    """A session that one receiver holds."""

    session_id: str
    locked_until: float  # unix seconds
    lost: bool = False  # the lock expired, was released, or the entity is deleted; nothing can be done with it any more


@dataclass(slots=True, eq=False)
class Lane:
    """The messages of a source that are taken in order: those of one session, or all where there are no sessions."""

    session_id: str | None
    # A heap of sequence numbers that may be taken; numbers of messages that are gone may linger.
    ready: list[int] = field(default_factory=list)
    held: int = 0
    tokens: set[UUID] = field(default_factory=set)
    lock: SessionLock | None = None
    state: bytes | None = None
    state_at: float = 0.0  # when the state was set, unix seconds

    @property
    def idle(self) -> bool:
        """Whether nothing is lost when it is forgotten."""
        return not self.held and self.lock is None and self.state is None
