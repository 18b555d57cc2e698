"""Order through an outage: a key's backlog queue, and when the key may return to the primary (SPEC 8).

A *key* is what order is kept for: a session of an entity, or a sender without sessions. A key is *clean* while nothing
of it can lie in the backlog, and *dirty* from before its first diverted send leaves. A dirty key becomes clean by one
proof alone, which comes from the secondary: a *look* at its queue that began after its last diverted send had ended
reports the newest position assigned so far (the mark); once the oldest remaining message is behind the mark, all of the
key's have been settled, whatever others have added since. An empty queue is proof by itself.

A key that this process sees for the first time is dirty: an earlier process may have left messages of it.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final, NamedTuple

from pairmq.model import Entity


def backlog_queue_of(entity: Entity, session: str | None, sender_id: str, count: int) -> int:
    """Choose the backlog queue of a key, a session or else a sender: the same one in every process and version (SPEC
    8.2)."""
    kind, name = ("sender", sender_id) if session is None else ("session", session)
    # No path holds a NUL, so that no two keys give one text. The hash guards nothing, it only has to stay the same.
    text = f"{entity.kind.value}\0{entity.path}\0{kind}\0{name}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % count


class Look(NamedTuple):
    """The result of one look at a backlog queue."""

    began_at: float  # when it began, on the monotonic clock of the key's facts
    # At most the position of the oldest message that is not settled, locked ones included; None when nothing is left of
    # what was confirmed before the look began, as in an empty queue.
    oldest: int | None
    newest: int  # at least the position of every message that was confirmed before the look began


class KeyOrder:
    """Whether one key is clean; its sends go one after another. Of a ``fresh`` one nothing can have been sent yet."""

    __slots__ = ("_clean", "_mark", "_returns", "_since")

    def __init__(self, now: float, *, fresh: bool = False) -> None:
        self._clean = fresh
        self._returns = False
        self._since = now
        self._mark: int | None = None

    @property
    def clean(self) -> bool:
        """Whether its next send may go to the primary."""
        return self._clean

    def doubt(self, now: float) -> None:
        """Take the key for dirty until a look that begins from ``now`` on: others may have sent meanwhile."""
        self._clean = self._returns = False
        self._since, self._mark = now, None

    def diverting(self) -> None:
        """A diverted send is about to leave: from now on the key is dirty."""
        self._returns = self._clean
        self._clean = False

    def divert_ended(self, now: float, *, maybe_there: bool) -> None:
        """The diverted send has ended. With ``maybe_there`` False it is certainly not in the queue, and nothing has
        changed."""
        if maybe_there:
            self._since, self._mark = now, None
        else:
            self._clean = self._clean or self._returns
        self._returns = False

    def seen(self, look: Look) -> bool:
        """Record a look, and return whether the key is clean now; a look that began too early is ignored."""
        if look.began_at < self._since:
            return self._clean
        if look.oldest is None or (self._mark is not None and look.oldest > self._mark):
            self._clean = True
        elif self._mark is None:
            self._mark = look.newest
        return self._clean


_PATIENCE: Final = 2.0  # s without any movement after which a queue counts as stalled


class DrainView:
    """How a backlog queue drains, as far as looks have shown: whether it is worth waiting for.

    A send that would join its end waits while it moves. Without that, a key whose sends are faster than the syphon
    would never return, and its backlog would grow forever. Looks of all senders count: one send may have time for a
    single look, which shows no movement.
    """

    __slots__ = ("_oldest", "_since")

    def __init__(self) -> None:
        self._oldest: int | None = None
        self._since = 0.0

    def worth_waiting(self, look: Look) -> bool:
        """Record a look; return whether a send should wait longer instead of joining the queue's end: not once the same
        message has been the oldest for 2 s, as no syphon is running, or the destination is unavailable."""
        if look.oldest != self._oldest:
            self._oldest, self._since = look.oldest, look.began_at
        return look.oldest is None or look.began_at - self._since < _PATIENCE


_LONGEST_WAIT: Final = 2.0  # s that a send waits for its queue to drain, and half of its own time at most
_SHORTEST_WAIT: Final = 0.02  # s that it waits, as long as it has the time, however many stand in line behind it
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # s between two looks of one send
_RESTED: Final = 30.0
"""Seconds without a send after which a session is looked at anew: another process may have had it meanwhile."""


class DrainWait:
    """One send's waiting for its queue to drain: until when at most, and whether it has seen the queue.

    All that stand in line share the longest wait: were it given to each in its turn, the last ones would be refused at
    their deadlines while both brokers work. An answer of the queue is waited for longer than for the queue to move, or
    a long line would never get one. ``left``: seconds that the send has; ``lined_up``: messages that stand in line,
    this one among them.
    """

    __slots__ = ("asks_until", "ends_at", "looked", "pause")

    def __init__(self, now: float, left: float, lined_up: int) -> None:
        spare = left / 2
        self.asks_until = now + min(_LONGEST_WAIT, spare)
        self.ends_at = now + min(max(_LONGEST_WAIT / lined_up, _SHORTEST_WAIT), spare / lined_up)
        self.looked = False
        self.pause = _FIRST_PAUSE


class Key:
    """What order is kept for: a session of an entity, or a sender.

    ``lined_up`` counts the messages of all calls that have a place in its line.
    """

    __slots__ = ("facts", "lined_up", "queue", "used_at")

    def __init__(self, facts: KeyOrder, queue: int, now: float) -> None:
        self.facts = facts
        self.queue = queue
        self.lined_up = 0
        self.used_at = now

    def used(self, now: float) -> None:
        """A send of it begins: a key that rested is in doubt, as another process may have had it meanwhile."""
        if not self.lined_up and now - self.used_at > _RESTED:
            self.facts.doubt(now)
        self.used_at = now


class Way(enum.Enum):
    """Where the next send of a key goes."""

    ROUTE = "where its entity's machine says"
    DIVERT = "to the key's backlog queue"
    AGAIN = "it asks again at once"


class LookAt(NamedTuple):
    """Look at a backlog queue, and wait for the answer until ``until`` at most."""

    queue: int
    until: float


class KeyRoute:
    """Where the sends of one place in a key's line go (SPEC 8.3)."""

    __slots__ = ("_key", "_view", "_wait")

    def __init__(self, key: Key, view: DrainView) -> None:
        self._key = key
        self._view = view
        self._wait: DrainWait | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing of the key can be in the backlog."""
        return self._key.facts.clean

    @property
    def queue(self) -> int:
        """Index of the key's backlog queue."""
        return self._key.queue

    def way(self, now: float, deadline: float) -> Way | LookAt:
        """Decide for the send whose turn it is, while the primary takes sends."""
        if self._key.facts.clean:
            self._wait = None
            return Way.ROUTE
        wait = self._wait
        if wait is None:
            wait = self._wait = DrainWait(now, deadline - now, self._key.lined_up)
        if now >= wait.ends_at and wait.looked:
            return Way.DIVERT
        return LookAt(self._key.queue, min(wait.asks_until, deadline))

    def looked(self, look: Look | None, now: float) -> Way | float:
        """Go on after a look, None without an answer; returns when to ask again where the send waits."""
        wait = self._wait
        if look is None or wait is None:  # what can't be asked may hold messages
            return Way.DIVERT
        if self._key.facts.seen(look):
            return Way.AGAIN
        wait.looked = True
        if not self._view.worth_waiting(look):
            return Way.DIVERT
        pause, wait.pause = wait.pause, min(_LONGEST_PAUSE, wait.pause * 1.5)
        return min(now + pause, wait.ends_at)

    def diverting(self) -> None:
        """A send is about to be diverted."""
        self._wait = None
        self._key.facts.diverting()

    def divert_ended(self, now: float, *, maybe_there: bool) -> None:
        """The diverted send has ended; see `KeyOrder.divert_ended`."""
        self._key.facts.divert_ended(now, maybe_there=maybe_there)
