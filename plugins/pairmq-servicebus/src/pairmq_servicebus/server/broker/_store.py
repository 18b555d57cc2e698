"""What a store of the broker has to do. It sees integers and bytes only, and groups that are whole or not there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class StoreError(Exception):
    """The store cannot be read or written; the text names the file."""


@dataclass(frozen=True, slots=True)
class Changes:
    """One group of changes, to be applied in this order and wholly; instants are microseconds of unix time.

    Args:
        entities: identity and record; `None` removes it with its sessions and duplicate history.
        messages: key, source, what is known of the message, content; replaces what has the key.
        removed: keys of messages.
        numbers: source and the first sequence number that may not have been given away.
        sessions: source, session id, instant, state; `None` removes it.
        forgotten: entity and the instant before which its duplicate history is dropped.
        duplicates: entity, message id, instant.
    """

    entities: list[tuple[int, bytes | None]] = field(default_factory=list)
    messages: list[tuple[int, int, bytes, bytes]] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    numbers: list[tuple[int, int]] = field(default_factory=list)
    sessions: list[tuple[int, bytes, int, bytes | None]] = field(default_factory=list)
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    duplicates: list[tuple[int, bytes, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.entities
            or self.messages
            or self.removed
            or self.numbers
            or self.sessions
            or self.forgotten
            or self.duplicates
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that a store holds, as in `Changes`; messages in the order of their keys."""

    entities: list[tuple[int, bytes]] = field(default_factory=list)
    messages: list[tuple[int, int, bytes, bytes]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    sessions: list[tuple[int, bytes, int, bytes]] = field(default_factory=list)
    duplicates: list[tuple[int, bytes, int]] = field(default_factory=list)


class Store(Protocol):
    """Keeps what the broker did."""

    scalar_types: tuple[type, ...]
    """Subclasses of int, float, str and bytes that values read back shall have again."""

    def load(self) -> Loaded:
        """Everything.

        Raises:
            StoreError: it cannot be read, or is damaged.
        """
        ...

    def write(self, changes: Changes) -> None:
        """Makes a group durable; it is when this returns, and nothing of it is there when this raises.

        Raises:
            StoreError: it cannot be written.
        """
        ...

    def damaged(self, what: str) -> StoreError:
        """The error for content that was read but makes no sense, which names the file."""
        ...

    def close(self) -> None:
        """Gives up what it holds; everything written stays."""
        ...
