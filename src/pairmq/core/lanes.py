"""What holds for lanes: backlog queues that consumers read beside the primary while it is unavailable (SPEC 11).

Which sends go to a lane is `Rotation`'s to decide. Here is what a consumer may be given of a lane, which side its
receiver reads (`TwoSides`), when the syphon reads the lane as well (`LaneWatch`): a message that a consumer takes from
the lane is spared the way over the primary; and when the backlog, lane included, counts as empty (`EmptyWatch`,
SPEC 4.5).
"""

from __future__ import annotations

import enum
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from pairmq.core.backoff import Backoff
from pairmq.core.envelope import elapsed_time_to_live, restore
from pairmq.core.options import PairOptions
from pairmq.core.pump import Poison, expired
from pairmq.model import Entity, EnvelopeError, Message

LANE_LOOK_INTERVAL = 60.0
"""Seconds between two looks of the syphon at a lane that is empty, at most."""

LANE_POLL = 60.0
"""Seconds of one long poll of a consumer at a lane, and at the primary's queue beside it."""

ASKED = 1.0
"""Seconds after which a receive that still waits has found the source empty."""

HELD = 60.0
"""Seconds since the last call for which what a side gave stays locked; then another consumer may have it."""

_SHORTEST_LOOK = 0.25
_LANE_FACTOR = 2.0
_MOVES = 1.0  # s between two looks whether what was read has moved on
_RENEWED = 20.0  # s between two renewals of a lock, at most: the clocks of two machines may differ
_RECONNECTS = Backoff(first=0.1, factor=2.0, cap=5.0)


class LaneStep(enum.Enum):
    """What the syphon does next at a lane."""

    LET_GO = enum.auto()
    """Release what is locked: it can't be delivered now, and consumers may have it."""
    READ = enum.auto()
    LOOK = enum.auto()
    """Count the lane: then `LaneWatch.seen`."""
    ASK = enum.auto()
    """Ask the primary whether it answers."""
    WAIT = enum.auto()


class LaneWatch:
    """When the syphon may read a lane: once its consumers have made no progress for ``patience`` seconds (SPEC 11.4).

    Progress is a look that finds fewer messages than the one before. Nothing waits at the lane, and nothing is read
    while the primary takes no messages. Instants are seconds of one monotonic clock.
    """

    __slots__ = ("_empty_looks", "_looked", "_patience", "_pending", "_reads_on", "_since")

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._pending = 0
        self._since: float | None = None
        self._empty_looks = 0
        self._reads_on = self._looked = False

    def step(
        self, now: float, held: int, *, stuck: bool, is_open: bool, primary_answers: bool | None = None
    ) -> LaneStep:
        """What the syphon does next with a lane of which it has ``held`` messages locked, some ``stuck`` as they can't
        be delivered now. ``primary_answers`` is what came of `LaneStep.ASK`."""
        if stuck:
            return LaneStep.LET_GO
        if self._reads_on:
            return LaneStep.READ
        if held:
            return LaneStep.WAIT
        if not self._looked:
            return LaneStep.LOOK
        if primary_answers is None and is_open and self.may_read(now):
            return LaneStep.ASK
        self._looked = False
        return LaneStep.READ if primary_answers and is_open else LaneStep.WAIT

    def wait(self, now: float, held: int) -> float:
        """Seconds of `LaneStep.WAIT`, unless something moves on before."""
        return _MOVES if held else self.next_look(now)

    def seen(self, pending: int, now: float) -> None:
        """A look found so many messages, locked ones too, none of them locked by this syphon."""
        self._looked = True
        if not pending:
            self._since = None
            self._empty_looks += 1
        else:
            self._empty_looks = 0
            if self._since is None or pending < self._pending:
                self._since = now
        self._pending = pending

    def received(self, count: int, held: int, now: float) -> None:
        """This syphon has read so many messages, and held others before.

        That the next look finds fewer does not show that consumers make progress. Where it gets none although it holds
        none, all are locked by consumers: these are at work.
        """
        self._reads_on = count > 0
        if count:
            self._pending = 0
        elif not held and self._since is not None:
            self._since = now

    def let_go(self) -> None:
        """All that was locked is released: look anew."""
        self._reads_on = self._looked = False

    def may_read(self, now: float) -> bool:
        """Whether what is in the lane has waited long enough for its consumers."""
        return self._since is not None and now - self._since >= self._patience

    def next_look(self, now: float) -> float:
        """Seconds until the next look: soon where messages wait, later and later while there are none."""
        if self._since is not None:
            return max(_SHORTEST_LOOK, min(self._patience, self._since + self._patience - now))
        usual = max(_SHORTEST_LOOK, self._patience)
        return min(LANE_LOOK_INTERVAL, usual * _LANE_FACTOR ** min(self._empty_looks, 20))


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


class Call(NamedTuple):
    """A receive: when it began, and until when it waits."""

    began_at: float
    ends_at: float


class Outcome(enum.Enum):
    """What a receive for which nothing is there does."""

    FAIL = enum.auto()
    """Raise why the queue can't be read."""
    OVER = enum.auto()
    WAIT = enum.auto()


class ReadSide:
    """One broker's part of a receiver: what is known of it, and when it is asked again after a failure."""

    __slots__ = (
        "_retry",
        "answered_at",
        "asked_at",
        "failed_at",
        "is_lost",
        "polls",
        "refused",
        "retry_at",
        "was_read",
    )

    def __init__(self) -> None:
        self.is_lost = False
        """Whether it can't be read, as far as is known."""
        self.refused = False
        """Whether that is for good: its broker refuses."""
        self.polls = False
        """Whether it is being asked."""
        self.was_read = False
        self.failed_at = self.answered_at = self.asked_at = self.retry_at = float("-inf")
        self._retry = 0

    def asks(self, now: float) -> None:
        """It is asked from now on."""
        self.asked_at, self.polls = now, True

    def answers(self, now: float) -> bool:
        """It was read; returns whether it was lost until now."""
        was_lost, self.is_lost = self.is_lost, False
        self.was_read, self.answered_at, self._retry = True, now, 0
        return was_lost

    def fails(self, now: float, chance: float, *, refused: bool) -> bool:
        """It can't be read; returns whether it could until now."""
        was_lost, self.is_lost = self.is_lost, True
        self.refused, self.failed_at = refused, now
        self.retry_at = now + _RECONNECTS.wait(self._retry, chance)
        self._retry += 1
        return not was_lost


class TwoSides:
    """Which side a receiver of a queue with a lane reads: both while a call waits, whatever the other one does.

    Either is asked again after a failure, later and later. Instants are seconds of one monotonic clock.
    """

    __slots__ = ("_calls", "_lane_first", "lane", "primary")

    def __init__(self) -> None:
        self.primary = ReadSide()
        self.lane = ReadSide()
        self._calls: list[Call] = []
        self._lane_first = False

    def begin(self, now: float, wait: float) -> Call:
        """A receive begins, which `end` ends."""
        call = Call(now, now + wait)
        self._calls.append(call)
        return call

    def end(self, call: Call) -> None:
        """A receive has ended."""
        self._calls.remove(call)

    def wants(self, side: ReadSide, now: float) -> bool:
        """Whether a side is to be asked: a call waits, or has not learned yet what is there."""
        return any(now < call.ends_at or max(side.answered_at, side.failed_at) < call.began_at for call in self._calls)

    def poll(self, side: ReadSide, now: float) -> float:
        """Seconds of a long poll that begins now: of none after a failure, to learn soon that the broker is back."""
        if side.is_lost:
            return 0.0
        longest = max((call.ends_at for call in self._calls), default=now)
        return min(LANE_POLL, max(0.0, longest - now))

    def lane_first(self) -> bool:
        """Whose turn it is to give the next message: the lane's, or the primary's."""
        first, self._lane_first = self._lane_first, not self._lane_first
        return first

    def outcome(self, call: Call, now: float, *, raises: bool, ended: bool) -> Outcome:
        """What a receive does for which nothing is there; with ``raises`` it raises while neither side can be read,
        instead of waiting, and always once ``ended``: neither transport can be used any more."""
        primary, sides = self.primary, (self.primary, self.lane)
        over = now >= call.ends_at and all(_was_asked(side, call.began_at, now) for side in sides)
        if primary.is_lost:
            wrong = primary.refused and not primary.was_read  # no wait would change that
            # A side that was lost before is tried once more first: a caller's loop must not spin.
            tried = over or any(side.failed_at >= call.began_at for side in sides)
            if wrong or ended or (raises and tried and self.lane.is_lost):
                return Outcome.FAIL
        return Outcome.OVER if over else Outcome.WAIT


def _was_asked(side: ReadSide, began_at: float, now: float) -> bool:
    if max(side.answered_at, side.failed_at) >= began_at:
        return True
    # A poll that has been under way for a while would have found what is there.
    return now >= (side.asked_at if side.polls else began_at) + ASKED


def renewal_due(left: float) -> float:
    """Seconds until a lock is to be renewed of which, by this machine's clock, so many seconds are left."""
    return min(_RENEWED, max(1.0, left / 2))


def from_lane(message: Message, entity: Entity, options: PairOptions, instant: datetime) -> Message | Poison:
    """Restore a message that a consumer received from a lane, in which nothing is trusted (SPEC 5.7, 11.3); or return
    why it is dead-lettered, as the syphon would."""
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
