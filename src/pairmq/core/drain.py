"""When the backlog may be called empty (SPEC 4.5)."""

from __future__ import annotations


def drained_since(since: float | None, lane: int | None) -> float | None:
    """Since when an entity's backlog is known to be empty: its lane's, if it has one, and no other lane (SPEC 11.4).

    ``since``: when all shared queues are, ``lane``: messages of its lane by a count that began after that, 0 without
    one; None is unknown.
    """
    return since if lane == 0 else None


class EmptyWatch:
    """Remembers since when each backlog queue is known to be empty.

    A queue counts from the beginning of the check that saw it empty: what arrived during the check may have been
    missed. A queue that could not be reached, or that held a message, does not count until it is seen empty again.
    """

    __slots__ = ("_since",)

    def __init__(self, count: int) -> None:
        self._since: list[float | None] = [None] * count

    def seen_empty(self, index: int, began_at: float) -> float | None:
        """Note that a check which began at ``began_at`` reached the queue and saw it empty; return the instant since
        which *all* queues are known to be empty, None while one is not."""
        self._since[index] = began_at
        return self.all_since()

    def not_empty(self, index: int) -> None:
        """Note that the queue held something, or could not be reached."""
        self._since[index] = None

    def all_since(self) -> float | None:
        """Return the instant at or after which every queue's check began; None while one is not known to be empty."""
        earliest: float | None = None
        for since in self._since:
            if since is None:
                return None
            if earliest is None or since < earliest:
                earliest = since
        return earliest
