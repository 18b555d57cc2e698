"""What holds for lanes: backlog queues that consumers read beside the primary while it is unavailable (SPEC 11).

Which sends go to a lane is `Rotation`'s to decide. Here is what a consumer may be given of one, and when the syphon
reads it as well: a message that a consumer takes from the lane is spared the way over the primary.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pairmq.core.envelope import elapsed_time_to_live, restore
from pairmq.core.options import PairOptions
from pairmq.core.pump import Poison, expired
from pairmq.model import Entity, EnvelopeError, Message

LANE_LOOK_INTERVAL = 60.0
"""Seconds between two looks of the syphon at a lane that is empty, at most."""

LANE_POLL = 60.0
"""Seconds of one long poll of a consumer at a lane, and at the primary's queue beside it."""

_SHORTEST_LOOK = 0.25
_LANE_FACTOR = 2.0


class LaneWatch:
    """When the syphon may read a lane: once its consumers have made no progress for a while (SPEC 11.4).

    Progress is a look that finds fewer messages than the one before. Instants are seconds of one monotonic clock.

    Args:
        patience: seconds without progress, ``lane_patience``.
    """

    __slots__ = ("_empty_looks", "_patience", "_pending", "_since")

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._pending = 0
        self._since: float | None = None
        self._empty_looks = 0

    def seen(self, pending: int, now: float) -> None:
        """A look found so many messages, locked ones too, none of them locked by this syphon."""
        if not pending:
            self._since = None
            self._empty_looks += 1
        else:
            self._empty_looks = 0
            if self._since is None or pending < self._pending:
                self._since = now
        self._pending = pending

    def read(self) -> None:
        """This syphon has read messages: that there are fewer at the next look is no consumer's progress."""
        self._pending = 0

    def read_nothing(self, now: float) -> None:
        """All that is in the lane is locked by consumers: these are at work."""
        if self._since is not None:
            self._since = now

    def may_read(self, now: float) -> bool:
        """Whether what is in the lane has waited long enough for its consumers."""
        return self._since is not None and now - self._since >= self._patience

    def next_look(self, now: float) -> float:
        """Seconds until the next look: soon where messages wait, later and later while there are none."""
        if self._since is not None:
            return max(_SHORTEST_LOOK, min(self._patience, self._since + self._patience - now))
        usual = max(_SHORTEST_LOOK, self._patience)
        return min(LANE_LOOK_INTERVAL, usual * _LANE_FACTOR ** min(self._empty_looks, 20))


def from_lane(message: Message, entity: Entity, options: PairOptions, instant: datetime) -> Message | Poison:
    """Restore a message that a consumer received from a lane (SPEC 5.7, 11.3).

    Args:
        message: as received; nothing in it is trusted.
        entity: the lane's queue.
        options: the pair's.
        instant: now, by the wall clock.

    Returns:
        The original message; or why it is dead-lettered, as the syphon would.
    """
    try:
        original, diversion = restore(message)
    except EnvelopeError as error:
        return Poison("malformed-envelope", str(error))
    if diversion.entity != entity:
        return Poison("destination-not-allowed", f"{diversion.entity} is not the queue of this lane, {entity}")
    if options.ttl_policy == "restore":
        return original
    left = elapsed_time_to_live(original, diversion, instant)
    if left is None:
        return original
    return expired(original) if left <= 0 else replace(original, time_to_live=max(left, 1e-6))
