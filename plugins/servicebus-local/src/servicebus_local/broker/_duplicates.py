"""The history of message ids (Service Bus documentation: "Duplicate detection")."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from servicebus_local.broker._hub import Hub
from servicebus_local.broker._values import NEVER, Incoming, MessageId


class Duplicates:
    """Ids that an entity has seen within its window of seconds."""

    def __init__(self, hub: Hub, entity: int, window: float) -> None:
        self.window = window
        self.armed_at = NEVER
        self._hub = hub
        self._entity = entity
        self._seen: dict[MessageId, float] = {}
        self._order: deque[tuple[float, MessageId]] = deque()

    def restore(self, entries: Iterable[tuple[MessageId, float]]) -> None:
        """Takes up a history that was stored."""
        for message_id, at in sorted(entries, key=lambda entry: entry[1]):
            self._seen[message_id] = at
            self._order.append((at, message_id))
        self._arm()

    def repeats(self, message: Incoming, now: float) -> bool:
        """Whether the id was seen within the window; if not, it is from now on. Without an id, nothing repeats."""
        message_id = message.message_id
        if message_id is None:
            return False
        at = self._seen.get(message_id)
        if at is not None and now < at + self.window:
            return True
        self._seen[message_id] = now
        self._order.append((now, message_id))
        self._hub.journal.duplicate(self._entity, message_id, now)
        self._arm()
        return False

    def configure(self, window: float) -> None:
        """Goes by another window from now on."""
        self.window = window
        self._arm()

    def next_deadline(self) -> float:
        """When the oldest id leaves the window, unix seconds; infinity for never."""
        return self._order[0][0] + self.window if self._order else NEVER

    def run_due(self, now: float) -> None:
        """Forgets what has left the window."""
        order = self._order
        dropped = False
        while order and order[0][0] + self.window <= now:  # Exactly as next_deadline adds it up.
            at, message_id = order.popleft()
            if self._seen.get(message_id) == at:
                del self._seen[message_id]
            dropped = True
        if dropped:
            self._hub.journal.forget_duplicates(self._entity, now - self.window)

    def _arm(self) -> None:
        self._hub.arm(self, self.next_deadline())
