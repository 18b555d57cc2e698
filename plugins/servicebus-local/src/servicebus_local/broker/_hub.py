"""What all entities of one broker share: the clock, the timers, the waiters, the counts, and the journal of changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from servicebus_local.broker._store import Changes, Loaded, SqliteStore
from servicebus_local.broker._values import MessageId, Stored, encode, encode_message, to_micros

RESERVE = 1000
"""Sequence numbers that the store counts as given away ahead of time, so that it need not learn of each."""


class Numbers:
    __slots__ = ("following", "reserved", "source")

    def __init__(self, source: int, following: int = 1) -> None:
        self.source = source
        self.following = following
        self.reserved = following


class Journal:
    """Gathers what changed since the last flush, for a store to get as one group; without one, it does nothing.

    A message is written as it stands at the flush, so that what came and went between two flushes costs no disk at all,
    and every group is a state that the broker really was in.
    """

    __slots__ = (
        "_counted", "_duplicates", "_entities", "_forgotten", "_messages", "_next_key", "_sessions", "_store", "on",
    )  # fmt: skip

    def __init__(self, store: SqliteStore | None) -> None:
        self._store = store
        self.on = store is not None
        self._next_key = 1
        self._messages: dict[int, tuple[int, Stored] | None] = {}
        self._entities: dict[int, bytes | None] = {}
        self._counted: dict[int, Numbers] = {}
        self._sessions: dict[tuple[int, str], tuple[float, bytes | None]] = {}
        self._duplicates: dict[tuple[int, bytes], float] = {}
        self._forgotten: dict[int, float] = {}

    def load(self) -> Loaded:
        if self._store is None:
            return Loaded()
        loaded = self._store.load()
        self._next_key = 1 + max((key for key, _, _, _ in loaded.messages), default=0)
        return loaded

    def message(self, source: int, message: Stored) -> None:
        """A message that is new in a source, or changed there."""
        if self.on:
            if not message.key:
                message.key = self._next_key
                self._next_key += 1
            self._messages[message.key] = (source, message)

    def no_message(self, message: Stored) -> None:
        """A message that is gone; the object may be stored again, as another one."""
        if self.on and message.key:
            if message.saved:
                self._messages[message.key] = None
            else:
                self._messages.pop(message.key, None)
            message.key = 0
            message.saved = False

    def numbers(self, numbers: Numbers) -> None:
        """A source that has used up the numbers that were reserved for it."""
        if self.on:
            self._counted[numbers.source] = numbers

    def entity(self, identity: int, record: dict[str, object]) -> None:
        if self.on:
            self._entities[identity] = encode(record)

    def entity_is_stored(self, identity: int) -> None:
        """An entity that was read from the store just now, and need not be written."""
        self._entities.pop(identity, None)

    def no_entity(self, identity: int) -> None:
        if self.on:
            self._entities[identity] = None

    def session(self, source: int, session_id: str, at: float, state: bytes | None) -> None:
        if self.on:
            self._sessions[source, session_id] = (at, state)

    def duplicate(self, entity: int, message_id: MessageId, at: float) -> None:
        if self.on:
            self._duplicates[entity, encode(message_id)] = at

    def forget_duplicates(self, entity: int, before: float) -> None:
        if self.on:
            self._forgotten[entity] = before

    def flush(self, *, exact_numbers: bool = False) -> None:
        """Hands everything to the store as one group, durable when this returns; if it raises, the next tries again."""
        if self._store is None:
            return
        ahead = 0 if exact_numbers else RESERVE
        changes = Changes(
            entities=list(self._entities.items()),
            messages=[
                (key, entry[0], *encode_message(entry[1])) for key, entry in self._messages.items() if entry is not None
            ],
            removed=[key for key, entry in self._messages.items() if entry is None],
            numbers=[(numbers.source, numbers.following + ahead) for numbers in self._counted.values()],
            sessions=[
                (source, session_id.encode(), to_micros(at), state)
                for (source, session_id), (at, state) in self._sessions.items()
            ],
            duplicates=[(entity, key, to_micros(at)) for (entity, key), at in self._duplicates.items()],
            forgotten=[(entity, to_micros(before)) for entity, before in self._forgotten.items()],
        )
        if not changes:
            return
        self._store.write(changes)
        for entry in self._messages.values():
            if entry is not None:
                entry[1].saved = True
        for numbers in self._counted.values():
            numbers.reserved = numbers.following + ahead
        for gathered in (
            self._messages, self._entities, self._counted, self._sessions, self._duplicates, self._forgotten,
        ):  # fmt: skip
            gathered.clear()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
            self.on = False


class Timed(Protocol):
    """Something that has to do work at an instant."""

    armed_at: float
    """When the hub will call it; infinity for never. The hub's own field."""

    def next_deadline(self) -> float:
        """When work is next due; infinity for never."""
        ...

    def run_due(self, now: float) -> None: ...


class Hub:
    __slots__ = ("_order", "_timers", "_notifying", "_woken", "clock", "journal", "operations")  # noqa: RUF023

    def __init__(self, clock: Callable[[], float], journal: Journal) -> None:
        self.clock = clock
        self.journal = journal
        self.operations: Counter[str] = Counter()
        self._timers: list[tuple[float, int, Timed]] = []
        self._order = count()
        self._woken: dict[Callable[[], None], None] = {}
        self._notifying = False

    def begin(self) -> float:
        """Do what is due, as every operation does first; returns the operation's instant in Unix seconds."""
        now = self.clock()
        timers = self._timers
        while timers and timers[0][0] <= now:
            at, _, timed = heappop(timers)
            if at != timed.armed_at:
                continue  # It was armed for an earlier instant since.
            timed.armed_at = float("inf")
            timed.run_due(now)
            self.arm(timed, timed.next_deadline())
        return now

    def arm(self, timed: Timed, at: float) -> None:
        if at < timed.armed_at:
            timed.armed_at = at
            heappush(self._timers, (at, next(self._order), timed))

    def wake(self, call_waiters: Callable[[], None]) -> None:
        self._woken[call_waiters] = None

    def notify(self) -> None:
        """Calls the waiters of everything that was woken, as most operations do last."""
        if self._notifying or not self._woken:
            return  # The call further out goes on with what was woken meanwhile.
        self._notifying = True
        try:
            while self._woken:
                call_waiters = next(iter(self._woken))
                del self._woken[call_waiters]
                call_waiters()
        finally:
            self._notifying = False

    def next_deadline(self) -> float | None:
        """When `begin` has something to do, unix seconds; `None` for never."""
        if self._woken:
            return self.clock()
        timers = self._timers
        while timers and timers[0][0] != timers[0][2].armed_at:
            heappop(timers)
        return timers[0][0] if timers else None
