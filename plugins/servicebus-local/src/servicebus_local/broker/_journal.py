"""What changed since the last flush, gathered so that the store gets it as one group.

A message is written as it stands at the flush, so that what came and went between two flushes costs no disk at all,
and every group is a state that the broker really was in.
"""

from __future__ import annotations

from servicebus_local.broker import _codec
from servicebus_local.broker._store import Changes, Loaded, SqliteStore
from servicebus_local.broker._values import MessageId, Stored

RESERVE = 1000
"""Sequence numbers that the store counts as given away ahead of time, so that it need not learn of each."""


class Numbers:
    """The sequence numbers of one source."""

    __slots__ = ("following", "reserved", "source")

    def __init__(self, source: int, following: int = 1) -> None:
        self.source = source
        self.following = following
        self.reserved = following


class Journal:
    """Gathers changes for a store; without one, it does nothing."""

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
        """Everything that the store holds, or nothing without a store."""
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
        """An entity that is new or changed."""
        if self.on:
            self._entities[identity] = _codec.encode(record)

    def entity_is_stored(self, identity: int) -> None:
        """An entity that was read from the store just now, and need not be written."""
        self._entities.pop(identity, None)

    def no_entity(self, identity: int) -> None:
        """An entity that is gone; its sessions and duplicate history go with it."""
        if self.on:
            self._entities[identity] = None

    def session(self, source: int, session_id: str, at: float, state: bytes | None) -> None:
        """The state of a session, `None` for none."""
        if self.on:
            self._sessions[source, session_id] = (at, state)

    def duplicate(self, entity: int, message_id: MessageId, at: float) -> None:
        """A message id that the history now holds."""
        if self.on:
            self._duplicates[entity, _codec.encode(message_id)] = at

    def forget_duplicates(self, entity: int, before: float) -> None:
        """The part of a history that is older than the window."""
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
                (key, entry[0], *_codec.encode_message(entry[1]))
                for key, entry in self._messages.items()
                if entry is not None
            ],
            removed=[key for key, entry in self._messages.items() if entry is None],
            numbers=[(numbers.source, numbers.following + ahead) for numbers in self._counted.values()],
            sessions=[
                (source, session_id.encode(), _codec.to_micros(at), state)
                for (source, session_id), (at, state) in self._sessions.items()
            ],
            duplicates=[(entity, key, _codec.to_micros(at)) for (entity, key), at in self._duplicates.items()],
            forgotten=[(entity, _codec.to_micros(before)) for entity, before in self._forgotten.items()],
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
        """Closes the store."""
        if self._store is not None:
            self._store.close()
            self._store = None
            self.on = False
