"""Sessions: who holds which, and what waits in them (Service Bus documentation: "Message sessions")."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID


@dataclass(slots=True, eq=False)
class SessionLock:
    """A session that one receiver holds.

    Args:
        session_id: which.
        locked_until: unix seconds.
        owner: whatever the receiver wants to be known by.
        lost: the lock ran out, was given back, or the entity is gone; nothing can be done with it any more.
    """

    session_id: str
    locked_until: float
    owner: object = None
    lost: bool = False


@dataclass(slots=True, eq=False)
class Lane:
    """The messages of a source that are taken in order: those of one session, or all where there are no sessions.

    Args:
        session_id: `None` where there are no sessions.
        ready: a heap of sequence numbers that may be taken; numbers of messages that are gone may linger.
        held: how many messages of it there are, ready or not.
        tokens: of the messages that are locked.
        lock: who holds the session.
        state: what the application keeps there.
        state_at: when the state was set, unix seconds.
    """

    session_id: str | None
    ready: list[int] = field(default_factory=list)
    held: int = 0
    tokens: set[UUID] = field(default_factory=set)
    lock: SessionLock | None = None
    state: bytes | None = None
    state_at: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing is lost when it is forgotten."""
        return not self.held and self.lock is None and self.state is None
