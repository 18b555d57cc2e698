"""The machine of one backlog queue's pump: what becomes of each message on its way back to the primary (SPEC 7, 8).

Theory. The order is always send, confirm, complete: a crash anywhere can bring a second copy and can lose nothing. A
message that was received is an `Item`, which has one state, and `ITEM` is the table of all that can happen to it. What
else is kept is an index over items: the lines of those that wait, one for each destination, and those that are locked,
or whose settlement was not reported yet.

Rules.

1. A destination that is unavailable does not stop the others: its messages wait in its line, under renewed locks, until
   its gate opens. There is room for one batch of them; when that is full and the primary as such answers, they go to
   the tail of the same queue, again by send, confirm, complete, so that no delivery count is spent on an outage
   (ADR 5), and not again at once where a confirmation was lost (ADR 12).
2. What is refused for its own sake is dead-lettered at once. What an operator or time can fix is not (SPEC 7.4).
3. A message is sent only under a lock that outlasts the send, and what was delivered is remembered until its completion
   is confirmed: should it be redelivered, it is completed and not sent again (SPEC 7.6, ADR 7).
4. Of a queue with one consumer at a time order is kept (SPEC 8): of one key one message an operation is sent, so that
   none is stored while an earlier one is in doubt, or several that follow each other, where the sender stores none of a
   session behind one that failed, and then none of them counts as delivered; what is dead-lettered is gone before the
   next one goes; nothing goes to the tail, but several batches are held; and when a lock is lost all that waits is
   released, once what is being sent has its answer, and what is stored was completed: under another lock it would be
   sent twice.
5. An operation that hits its time limit reports the outcome of none of its messages: the next one carries fewer. No
   more than 16 MiB are on their way, or held for a destination: one message is received while nothing is known of their
   size, then as many as the size of the last ones allows, and fewer after a receive that failed.
6. A settlement that failed in passing is tried again, and each is reported once, however it ends.
7. Each attempt whose confirmation is lost may leave a copy in the primary. So a message in doubt waits, from the
   fourth one on twice as long after each, and others pass it where order allows that (ADR 12).

Instants are seconds of one monotonic clock, but for those of the wall clock, which are datetimes.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from pairmq.core.backoff import Backoff
from pairmq.core.envelope import Diversion, copy_of, elapsed_time_to_live, restore
from pairmq.core.gates import Gate, Gates
from pairmq.core.machine import ImpossibleInputError
from pairmq.core.options import PairOptions
from pairmq.model import Delivery, Entity, EnvelopeError, FailureReason, Message, TransportError

_REMEMBERED: Final = 10_000  # messages that were delivered and may be redelivered, because their completion was lost

_AHEAD: Final = 5  # batches locked at most while messages are small, so that neither broker waits for the other
_SMALL: Final = 1 << 13  # bytes of a body, on a batch's average
_NEAR: Final = 0.0125
"""Seconds of a send and a completion together from which on more than `_AHEAD` batches are on their way.

In a shorter time so many are about as much as a process moves; in a longer one they are what limits a drain.
"""
_FARTHEST: Final = 16  # times as much at most
_OF_LATE: Final = 500  # messages whose average size shows how many may be on their way
_SETTLES_DOWN: Final = 0.25  # share by which a longer operation counts: a slow one may be a chance
_OF_A_LOCK: Final = 0.1  # that they may take together: what is on its way should not have to be renewed
_BATCHES_AN_OPERATION: Final = 2  # at most: when it is cut off, the outcome of all of them is unknown
_OPERATION_BYTES: Final = 1 << 20  # of bodies, from which on an operation takes no further message; as a send's
_QUADRUPLES, _DOUBLES, _GROWS = 0.05, 0.25, 0.5
"""Shares of the time limit below which the next operation may carry four or two times as many messages, or one more."""

_MOST_RECEIVED: Final = 1 << 20  # no limit
_BATCHES_HELD: Final = 10
_MOST_HELD: Final = 1000
"""Messages under locks of a minute, and fewer in proportion under shorter ones: each lock costs a renewal in time."""
_BYTES_HELD: Final = 16 << 20
"""Of bodies, as each of many backlog queues may hold as much; what the next message adds comes on top."""

_FIRST_COMPLETED: Final = 100  # deliveries completed in one operation, until that has shown to fit
MOST_COMPLETED: Final = 1000
"""Deliveries completed in one operation at most."""

_AT_ONCE: Final = 3  # attempts in doubt that delay no other: a slow primary, or a lost connection, passes
_DOUBT: Final = Backoff(first=4.0, factor=2.0, cap=600.0, jitter=0.0)
"""Further delays of a message in doubt: about as long as it was in doubt already, and ten minutes at most."""
REPORTED_DOUBT: Final = 60.0
"""Seconds of such a delay from which on it is reported."""

_DATED: Final = 600.0  # s for which what a copy has shown of the secondary's clock holds: clocks drift, and are set
_MOST_DATED: Final = 1000  # copies on their way that may show it

_UNKNOWN_LOCK: Final = 15.0  # s: how long a lock is taken to last until the queue was asked
_SOON: Final = 0.001  # s
_RENEWED_AT_ONCE: Final = 25  # at least, side by side: each under a time limit of its own
_DEAD_LETTERS_AT_ONCE: Final = 25  # side by side: each under a time limit of its own


class State(enum.IntEnum):
    """Where a message is on its way."""

    WAITING = 0  # locked, in its destination's line
    SENDING = 1  # taken out of its line, for an operation at the primary
    COPYING = 2  # taken out of its line, for a copy at the tail of its queue
    SETTLING = 3  # stored elsewhere, or not to be: it is being completed, or dead-lettered
    UNSETTLED = 4  # that has failed in passing, and is tried again
    LOST = 5  # its lock is lost, and it is redelivered: nothing is begun with it any more
    LAPSED = 6  # its lock is lost while a settlement is under way, which may end well
    GONE = 7  # settled, or given up
    FORFEIT = 8  # its settlement had failed, and then its lock was lost: that is tried once more all the same


class Symbol(enum.IntEnum):
    """What can happen to a message."""

    TAKEN = 0  # for an operation at the primary
    POSTPONED = 1  # to be copied
    CONFIRMED = 2  # it is stored: in the primary, or at the tail
    POISON = 3  # it must not be delivered
    KNOWN = 4  # it was delivered before, and its completion was lost
    NOT_TAKEN = 5  # the broker did not store it, or not surely
    SETTLED = 6  # the settlement is confirmed
    NOT_SETTLED = 7  # it failed
    LOCK_LOST = 8


# By names of this module: up to Python 3.11 `State.WAITING` takes six times as long, and a message needs a dozen such.
(_WAITING, _SENDING, _COPYING, _SETTLING, _UNSETTLED, _LOST, _LAPSED, _GONE, _FORFEIT) = State
(_TAKEN, _POSTPONED, _CONFIRMED, _POISON, _KNOWN, _NOT_TAKEN, _SETTLED, _NOT_SETTLED, _LOCK_LOST) = Symbol

ITEM: dict[State, dict[Symbol, State]] = {
    _WAITING: {_TAKEN: _SENDING, _POSTPONED: _COPYING, _POISON: _SETTLING, _KNOWN: _SETTLING, _LOCK_LOST: _LOST},
    _SENDING: {_CONFIRMED: _SETTLING, _POISON: _SETTLING, _KNOWN: _SETTLING, _NOT_TAKEN: _WAITING, _LOCK_LOST: _LOST},
    _COPYING: {_CONFIRMED: _SETTLING, _NOT_TAKEN: _WAITING, _LOCK_LOST: _LOST},
    # From here on it is never sent again: each way leads to GONE.
    _SETTLING: {_SETTLED: _GONE, _NOT_SETTLED: _UNSETTLED, _LOCK_LOST: _LAPSED},
    _UNSETTLED: {_SETTLED: _GONE, _NOT_SETTLED: _UNSETTLED, _LOCK_LOST: _FORFEIT},
    _FORFEIT: {_SETTLED: _GONE, _NOT_SETTLED: _GONE, _LOCK_LOST: _FORFEIT},
    # Its operation may still be under way, and end well.
    _LOST: {_CONFIRMED: _LAPSED, _POISON: _LAPSED, _NOT_TAKEN: _LOST, _LOCK_LOST: _LOST},
    _LAPSED: {_SETTLED: _GONE, _NOT_SETTLED: _GONE, _LOCK_LOST: _LAPSED},
    _GONE: {},
}
"""What becomes of a message; a pair without an entry is impossible."""


class Ending(enum.Enum):
    """Why a message is completed."""

    MOVED = "the primary has confirmed it"
    REDELIVERED = "it was moved before, and its completion was lost"
    COPIED = "a copy of it is at the tail of its queue"


_MOVED, _REDELIVERED, _COPIED = Ending


class Poison(NamedTuple):
    """Why a message is dead-lettered."""

    reason: str
    description: str


Identity: TypeAlias = tuple[str, str, int]
"""Names a diverted message wherever copies of it lie: its id, its sender, and the sender's number of it."""


class Item:
    """One message of a backlog queue, which this pump has received.

    ``diversion`` is None for poison that has none; ``locked_until`` is an instant, and so are ``renew_at``, when its
    lock is to be renewed, and ``copy_after``, before which no other copy of it is put at its queue's tail: there may be
    one, in doubt. ``lost``: its lock is, and the broker redelivers it, unless it was settled at the last moment. Its
    ``identity`` names a diverted message wherever copies of it lie: its id, and its sender's number of it. ``unknown``:
    the primary may hold a copy; ``in_doubt``: the confirmation of its settlement was lost.
    """

    __slots__ = (
        "copies",
        "copy_after",
        "delivery",
        "diversion",
        "ending",
        "identity",
        "in_doubt",
        "locked_until",
        "lost",
        "message",
        "poison",
        "renew_at",
        "state",
        "unknown",
    )

    def __init__(
        self, delivery: Delivery, message: Message, diversion: Diversion | None, locked_until: float, renew_at: float
    ) -> None:
        self.state = _WAITING
        self.delivery = delivery
        self.message = message
        self.diversion = diversion
        self.locked_until = locked_until
        self.renew_at = renew_at
        self.copies = 0
        self.copy_after = 0.0
        self.ending = _MOVED  # unless it is poison
        self.poison: Poison | None = None
        self.lost = self.in_doubt = False
        if diversion is None:
            self.unknown = False
            self.identity = ("", "", 0)
        else:
            self.unknown = diversion.maybe_duplicate
            self.identity = (message.message_id or "", diversion.sender_id, diversion.sequence)

    @property
    def key(self) -> tuple[bool, str]:
        """Where order is kept, messages of one destination and key are sent one after another."""
        session = self.message.session_id
        return (False, self.identity[1]) if session is None else (True, session)

    def step(self, symbol: Symbol) -> None:
        """Take what has happened to it. What can't happen in its state raises `ImpossibleInputError`, and changes
        nothing."""
        try:
            self.state = ITEM[self.state][symbol]
        except KeyError:
            raise ImpossibleInputError(f"{symbol.name} in {self.state.name}") from None


class Doubt(NamedTuple):
    """Attempts at a message whose confirmations were lost, and the instant before which no other one begins."""

    attempts: int
    send_after: float


class DestinationLine:
    """Messages on their way to one destination, in order; ``taken`` are those in the operation under way.

    It keeps the gate that it began with: `Gates` forgets one whose destination does not exist, and would make another.
    """

    __slots__ = ("gate", "items", "taken")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.items: deque[Item] = deque()
        self.taken: list[Item] = []


class Room(enum.Enum):
    """Whether a pump may receive more."""

    ENOUGH = "receive"
    SOON = "wait until a message has moved on"
    ASK = "ask whether the primary as such answers: if it does, more may be held"
    POSTPONE = "put what waits in the fullest line at the tail of the queue"
    NONE = "wait for a gate: order forbids to make room"


class QueueClock:
    """By how much the secondary's clock is ahead of this machine's, as shown by when it stored copies of this pump.

    What is scheduled is due by the secondary's clock. By this machine's, where one of the two is minutes wrong, a copy
    would be seen again minutes late, or at once, again and again. So the first copies are not scheduled.
    """

    __slots__ = ("_ahead", "_asks_since", "_copies", "_known_until", "is_used")

    def __init__(self) -> None:
        self.is_used = False
        """Copies were made, and what is received may show it."""
        self._ahead = 0.0
        self._known_until = -math.inf
        self._asks_since = math.inf
        self._copies: dict[Identity, tuple[str, datetime]] = {}

    def due(self, items: Iterable[Item], wait: float, now: float, instant: datetime) -> datetime | None:
        """When copies that are made now are to be seen again, ``wait`` seconds later; None: at once, to learn it."""
        self.is_used = True
        if now < self._known_until:
            return instant + timedelta(seconds=self._ahead + wait)
        if math.isinf(self._asks_since) or len(self._copies) > _MOST_DATED:
            self._copies.clear()
        self._asks_since = min(now, self._asks_since)
        for item in items:
            self._copies[item.identity] = (item.delivery.sequence_number, instant)
        return None

    def seen(self, delivery: Delivery, identity: Identity, now: float, instant: datetime) -> None:
        """A message was received: one of the copies maybe, or another one, which was stored before ``instant``."""
        place, sent_at = self._copies.pop(identity, ("", None))
        stored_at = delivery.enqueued_at
        known = now < self._known_until
        if sent_at is not None and delivery.sequence_number != place:  # else what it was copied from is redelivered
            ahead = 0.0 if stored_at is None else (stored_at - sent_at).total_seconds()
            # One that was diverted twice may be taken for a copy. It is older.
            self._ahead = max(self._ahead, ahead) if known else ahead
            self._known_until, self._asks_since = now + _DATED, math.inf
        elif known and stored_at is not None:
            self._ahead = max(self._ahead, (stored_at - instant).total_seconds())

    def asks_in_vain(self, wait: float, now: float) -> bool:
        """Whether copies have not shown it for ``wait`` seconds: another process may have taken them."""
        return now - self._asks_since > wait


class Next(enum.Enum):
    """What a line does next."""

    SEND = "take what goes in one operation"
    WAIT = "wait until its gate is open, or until `PumpMachine.ready_at` where it is"
    END = "nothing is in it, and it is dropped"


class Sent(NamedTuple):
    """What follows from an operation at the primary."""

    settle: list[Item]  # those to be completed or dead-lettered
    failure: TransportError | None  # for which the destination's gate is to be shut
    unknown_entity: bool  # the destination does not exist: nothing needs to be kept for it
    # Those whose confirmation was lost, with the attempts for which it was, and the seconds until the next.
    doubtful: list[tuple[Item, int, float]]


Report: TypeAlias = tuple[Item, bool]
"""How the settlement of a message has ended, for those who follow it: whether the broker confirmed it."""


def expired(message: Message) -> Poison:
    """Why a message is dead-lettered whose time ran out where time in the backlog counts."""
    text = f"its time-to-live of {message.time_to_live} s ran out in the backlog (ttl_policy is 'elapse')"
    return Poison("TTLExpiredException", text)


def adapted(most: int, tried: int, errors: Sequence[TransportError | None], took: float, ceiling: int) -> int:
    """Return how many messages the next operation should carry, at most ``ceiling`` (rule 5).

    If the same number were tried again, a slow broker would never get anywhere. So fewer, until it fits; and more only
    while that will fit too, or the limit would be hit again and again, each time with second copies of what was done
    before it. This one might carry ``most``, did carry ``tried``, and took a share of its time limit.
    """
    done = errors.count(None)
    if done < len(errors) and any(error and error.reason is FailureReason.TIMEOUT for error in errors):
        return max(1, tried // 2)
    if tried < most or took >= _GROWS or not done:  # it does not show that more would fit
        return most
    if took < _QUADRUPLES:
        return min(ceiling, most * 4)
    return min(ceiling, most * 2 if took < _DOUBLES else most + 1)


def _is_delivering(item: Item) -> bool:
    return item.state is _SENDING or (item.poison is None and (item.state is _SETTLING or item.state is _UNSETTLED))


class PumpMachine:
    """Decides for one backlog queue what is received, sent, put back, settled and given up; all pumps of a syphon share
    the gates.

    ``lane``: consumers read the queue as well; ``schedules``: its broker can hold messages back, and counts them.
    """

    def __init__(
        self,
        options: PairOptions,
        gates: Gates,
        is_system: Callable[[Entity], bool],
        *,
        ordered_batches: bool = False,
        lane: bool = False,
        schedules: bool = True,
    ) -> None:
        self.moved = 0
        self.dead_lettered = 0
        self.lock_duration: float | None = None
        """Seconds; None while the queue was not asked, and where locks last as long as the connection."""
        self.time_limit = options.attempt_timeout
        """Seconds that an operation at either broker may take: less than half of a lock (SPEC 7.6)."""
        self.ordered = False
        """The queue has one consumer at a time: what is read of it is sent in order (SPEC 8)."""
        self.in_order = False
        """An operation has several messages of a key: then none is to be stored behind one that fails."""
        self.broken = False
        """A lock was lost that order rests on: nothing more of what was locked is sent, and all begins anew."""
        self.requeue_wait = min(60.0, max(1.0, options.ping_primary_interval))
        """Seconds after which a message that went to the tail is to be seen again."""
        rate = options.syphon_max_rate
        self._batch = options.syphon_batch if rate is None else max(1, min(options.syphon_batch, int(rate)))
        self.complete_at_once = _FIRST_COMPLETED
        """Deliveries to complete in one operation."""
        self._options = options
        self._gates = gates
        self._is_system = is_system
        self._ordered_batches = ordered_batches
        self._lane = lane
        # Scheduled messages that can't be counted would let the backlog look empty (SPEC 4.5).
        self._schedules = schedules
        self._counts_time = options.ttl_policy != "restore"
        self._limited = rate is not None
        self._size = 0.0  # bytes of a body, on the average of late; 0 before the first one
        self._fits = 1  # messages of the next receive, if they are as large as the last ones; 1 if none is known
        self._carries = _MOST_RECEIVED  # messages of the next receive, after one that failed
        self._bytes = 0  # of the bodies of what is locked
        self._fills = False  # the last receive has shown that many small messages are there
        self._reads_ahead = False
        self._sent_in = self._completed_in = 0.0  # s: the least of late; 0 before the first one
        self._flows = False  # the last send was confirmed
        self._primary_was_unavailable = False
        self._clock = QueueClock()
        self._renewals_took = 0.0  # s for the last renewals that were begun side by side
        self._lines: dict[Entity, DestinationLine] = {}
        self._locked: dict[Item, None] = {}
        self._places: dict[str, Item] = {}  # the same by their position in the queue, where the broker gives it
        self._settling: dict[Item, None] = {}  # each is reported once
        self.unsettled: dict[Item, None] = {}
        """Those of them whose settlement failed, and is to be tried again."""
        self._delivered: OrderedDict[Identity, None] = OrderedDict()
        self._doubts: OrderedDict[Identity, Doubt] = OrderedDict()
        self._dead_in_doubt: OrderedDict[tuple[object, ...], None] = OrderedDict()  # reported, and may be redelivered
        self._set_window()

    def __len__(self) -> int:
        return len(self._locked)

    def opened(self, lock_duration: float | None, *, ordered: bool) -> None:
        """The queue was asked for its properties."""
        self.lock_duration = lock_duration
        self.ordered, self.in_order = ordered, ordered and self._ordered_batches
        self.time_limit = limit = self._options.attempt_timeout
        if lock_duration is not None:
            self.time_limit = min(limit, 0.45 * lock_duration)
        self._set_window()

    def is_held(self, item: Item) -> bool:
        """Whether an item is locked here."""
        return item in self._locked

    # The window: how many may be locked.

    def _set_window(self) -> None:
        """See how far the brokers are, and with it how many messages are to be on their way.

        A power of two of what is enough between near ones: of a consumer whose window changes, a broker makes another.
        """
        seconds, times = self._sent_in + self._completed_in, 1
        if self._reads_ahead and (self.lock_duration is None or seconds <= _OF_A_LOCK * self.lock_duration):
            most = _BYTES_HELD / (2 * self._batch * _AHEAD * max(self._size, 1.0))
            while times < _FARTHEST and times * _NEAR < seconds and times <= most:
                times *= 2
        self.stretch = times
        """How many times as much is on its way as between brokers that are near and fast."""
        self.batch = self._batch * times
        """Messages of one receive at most: a low rate is not spent in bursts of many seconds."""
        self.ahead = self.batch * _AHEAD if self._reads_ahead else 0
        """Messages that the broker may lock here before they are asked for."""
        # Messages of one operation at the primary at most.
        self._ceiling = self._batch if self._limited else self._options.syphon_batch * _BATCHES_AN_OPERATION * times

    def _least(self, of_late: float, count: int, took: float) -> float:
        """The least that operations take, which is a broker's distance: it falls at once, and rises slowly.

        Not by what many messages take: a longer window puts more in an operation, which would lengthen it again.
        """
        seconds = took * self.time_limit
        if not of_late:
            return seconds
        rises = _SETTLES_DOWN if count <= self._batch * _BATCHES_AN_OPERATION else 0.0
        return min(seconds, of_late + (seconds - of_late) * rises)

    @property
    def receives(self) -> int:
        """Messages of the next receive at most: a batch, and while many flow as many as an operation carries.

        Each receive costs as much as some messages and takes a round trip, and there is one at a time.
        """
        batch = self.batch
        if self._reads_ahead:
            batch = max(batch, min(batch * _BATCHES_AN_OPERATION, self.ahead + batch - len(self._locked)))
        return min(batch, self._fits, self._carries)

    def room(self, now: float, *, primary_answers: bool | None = None) -> Room:
        """Return whether more may be received.

        Without order, a batch may be held; with it, what is held keeps its order in its line, and is redelivered in its
        order when it is released: nothing but memory and the renewing of the locks bounds it. ``primary_answers`` is
        what came of `Room.ASK`: if it does not, no other destination could be served either.
        """
        waiting = [self._waiting(line, now) for line in self._lines.values()]
        held = sum(map(len, waiting)) + len(self.unsettled)
        held_bytes = sum([len(item.message.body) for items in (*waiting, self.unsettled) for item in items])
        full = held >= self._options.syphon_batch or held_bytes >= _BYTES_HELD
        if full and not (primary_answers and self._holds_more(now)):
            if primary_answers is None and self._holds_more(now):
                return Room.ASK
            self._fills = self._reads_ahead = False
            self._set_window()
            return Room.NONE if self.ordered else Room.POSTPONE
        moving, moving_bytes = len(self._locked), self._bytes
        if self.ordered:  # it holds beside what moves
            moving, moving_bytes = moving - held, moving_bytes - held_bytes
        much = moving >= max(self.batch, self.ahead) or (moving_bytes >= _BYTES_HELD and not self._reads_ahead)
        return Room.SOON if much else Room.ENOUGH

    @property
    def stuck(self) -> bool:
        """Whether messages wait for an unavailable destination."""
        return any(line.items and not line.gate.is_open for line in self._lines.values())

    @property
    def lets_go(self) -> bool:
        """Whether messages of a lane are locked here that can't be delivered: a consumer may have them (SPEC 11.4)."""
        return self._lane and self.stuck

    def _waiting(self, line: DestinationLine, now: float) -> Collection[Item]:
        """Those of a line that can't go on now: as its gate is shut, as they are in doubt, or behind one that is."""
        if not line.gate.is_open:
            return line.items
        if not self._doubts:
            return ()
        waiting: dict[Item, None] = {}
        keys: set[tuple[bool, str]] = set()
        for item in line.items:
            if self._send_after(item) > now + _SOON or (self.ordered and item.key in keys):
                waiting[item] = None
                keys.add(item.key)
        return waiting

    def _send_after(self, item: Item) -> float:
        doubt = self._doubts.get(item.identity)
        return -math.inf if doubt is None else doubt.send_after

    def _holds_more(self, now: float) -> bool:
        batch, lock = self._options.syphon_batch, self.lock_duration
        if not self.ordered or len(self.unsettled) >= batch:
            return False
        renewable = _MOST_HELD if lock is None else min(_MOST_HELD, int(_MOST_HELD * lock / 60))
        held = [item for line in self._lines.values() for item in self._waiting(line, now)]
        size = sum(len(item.message.body) for item in held)
        return len(held) < min(_BATCHES_HELD * batch, renewable) and size < _BYTES_HELD

    # Receiving.

    def received(
        self, deliveries: Sequence[Delivery], now: float, instant: datetime
    ) -> tuple[list[Item], list[DestinationLine]]:
        """Put deliveries in the lines of their destinations; return what is to be settled at once, and the lines that
        have begun. ``instant`` is ``now`` by the wall clock."""
        lock = math.inf if self.lock_duration is None else self.lock_duration
        locked_until, renew_at = now + lock, now + lock / 3
        settle: list[Item] = []
        groups: dict[Entity, list[Item]] = {}
        entity: Entity | None = None
        admitted, group, size = False, settle, 0
        for delivery in deliveries:
            size += len(delivery.message.body)
            diversion: Diversion | None = None
            malformed = ""
            try:
                message, diversion = restore(delivery.message)
            except EnvelopeError as error:
                message, malformed = delivery.message, str(error)
            place = delivery.sequence_number
            here = self._places.get(place)
            # The position alone is not enough: a queue that was made anew counts from the start.
            if here is not None and diversion and (here.message, here.diversion) == (message, diversion):
                # The broker redelivers a message when its lock was lost, which was not noticed here: it goes on under
                # the new lock. To treat it as another one would make a second copy.
                here.delivery, here.locked_until, here.renew_at = delivery, locked_until, renew_at
                continue
            item = Item(delivery, message, diversion, locked_until, renew_at)
            self._locked[item] = None
            self._bytes += len(message.body)
            if place:
                self._places[place] = item
            if diversion is None:
                settle.append(self._dead(item, Poison("malformed-envelope", malformed)))
                continue
            if self._clock.is_used:
                self._clock.seen(delivery, item.identity, now, instant)
            if diversion.entity is not entity:  # of most it is that of the one before
                entity = diversion.entity
                admitted = entity in self._lines or self._admits(entity)  # what has a line was looked at
                group = groups.setdefault(entity, [])
            if not admitted:
                text = f"{entity} is not among the pair's allowed_entities"
                settle.append(self._dead(item, Poison("destination-not-allowed", text)))
            elif item.identity in self._delivered:  # whatever its time: a dead letter would be a second copy
                settle.append(self._settle(item, _KNOWN, _REDELIVERED))
            # Where order is kept, it is for its turn to find out that its time has run out: should it be redelivered,
            # to a process whose wall clock is behind, those behind it must still be there.
            elif self._counts_time and not self.ordered and (poison := self._overdue(item, instant)) is not None:
                settle.append(self._dead(item, poison))
            else:
                group.append(item)
        if deliveries:
            share = min(1.0, len(deliveries) / _OF_LATE) if self._size else 1.0
            self._size += (size / len(deliveries) - self._size) * share
        goes_on = len(deliveries) >= self._batch or (self._reads_ahead and len(deliveries) > 0)
        self._fills = goes_on and size <= _SMALL * len(deliveries)
        self._fits = max(1, min(_MOST_RECEIVED, _BYTES_HELD * len(deliveries) // max(size, 1)))
        self._read_ahead()
        lines = [self._line_up(entity, items) for entity, items in groups.items() if items]
        return settle, [line for line in lines if line is not None]

    def receive_ended(self, asked: int, got: int | None, seconds: float) -> None:
        """See how many a receive can carry (rule 5); it asked for so many, and got None when it failed."""
        if got is None:
            self._carries = max(1, asked // 2)
        elif got >= self._carries:
            took = seconds / self.time_limit
            self._carries = adapted(self._carries, got, [None] * got, took, _MOST_RECEIVED)

    def _read_ahead(self) -> None:
        """Let several batches be locked while more than one is there, is small, and flows.

        What is read ahead and can't go on is released, and redelivered: that must not happen again and again because
        one destination is unavailable while others flow (SPEC 7.3).
        """
        self._reads_ahead = self._fills and self._flows and self._gates.all_deliver and not self._limited
        self._set_window()

    def _admits(self, entity: Entity) -> bool:
        """Whether the syphon may deliver there at all (SPEC 5.8)."""
        forbidden = self._is_system(entity) or self._options.is_backlog_queue(entity.path)
        return not forbidden and self._options.allows(entity.path)

    def _overdue(self, item: Item, instant: datetime) -> Poison | None:
        """Why a message has expired in the backlog, where time counts there; None when it has not."""
        left = self._time_left(item, instant)
        return None if left is None or left > 0 else expired(item.message)

    def _time_left(self, item: Item, instant: datetime) -> float | None:
        """Seconds to live, where the time in the backlog counts."""
        if item.diversion is None:
            return None
        return elapsed_time_to_live(item.message, item.diversion, instant)

    # Lines.

    def _line_up(self, entity: Entity, items: Iterable[Item]) -> DestinationLine | None:
        """Put items at the end of their destination's line; gives the line if it has begun."""
        line, begun = self._lines.get(entity), None
        if line is None:
            line = begun = self._lines[entity] = DestinationLine(self._gates.of(entity))
            self._gates.use(line.gate)
        line.items.extend(items)
        return begun

    def next(self, line: DestinationLine, now: float) -> Next:
        """Return what a line does next; one that ends is dropped, and its user is to `Gates.leave` its gate."""
        while line.items and line.items[0].lost:
            line.items.popleft()
        if not line.items or self._lines.get(line.gate.entity) is not line:
            self._drop_if_empty(line)
            return Next.END
        return Next.SEND if len(self._waiting(line, now)) < len(line.items) else Next.WAIT

    def ready_at(self, line: DestinationLine, now: float) -> float:
        """The instant at which to ask again for a line with an open gate that waits."""
        return min((at for at in map(self._send_after, line.items) if at > now + _SOON), default=now)

    def is_current(self, line: DestinationLine) -> bool:
        """Whether a line was not dropped."""
        return self._lines.get(line.gate.entity) is line

    def drop_lines(self) -> None:
        """Begin nothing new in the lines that there are."""
        self._lines = {}

    def _drop_if_empty(self, line: DestinationLine) -> None:
        """Keep no empty line at its gate: of every path ever seen, that would be a leak."""
        if not line.items and not line.taken and self._lines.get(line.gate.entity) is line:
            del self._lines[line.gate.entity]

    # Sending.

    def take(self, line: DestinationLine, now: float) -> list[Item]:
        """Take what goes in one operation, in order: where order is kept, one message a key, or one run."""
        most = min(line.gate.most, self._ceiling)
        most_bytes = _OPERATION_BYTES * self.stretch
        keys: set[tuple[bool, str]] = set()
        size = 0
        waiting, taken = line.items, line.taken
        doubtful = self._waiting(line, now)
        passed: list[Item] = []
        while waiting and len(taken) < most and size < most_bytes:
            item = waiting[0]
            if item in doubtful:
                passed.append(item)
            elif item.state is _WAITING:  # else it is lost
                if self.ordered:
                    # Its turn would be a round trip later, and the operation might last longer than its time limit.
                    if item.key in keys and not (self._ordered_batches and item.key == taken[-1].key):
                        break
                    keys.add(item.key)
                item.step(_TAKEN)
                taken.append(item)
                size += len(item.message.body)
            waiting.popleft()
        waiting.extendleft(reversed(passed))
        return taken

    def ended(self, line: DestinationLine) -> None:
        """The operation has ended: what was not stored goes back to the line's head."""
        line.items.extendleft(reversed(self._not_taken(line.taken)))
        line.taken = []

    @staticmethod
    def _not_taken(items: Iterable[Item]) -> list[Item]:
        left = [item for item in items if item.state is _SENDING or item.state is _COPYING]
        for item in left:
            item.step(_NOT_TAKEN)
        return left

    def screened(self, items: Iterable[Item], instant: datetime) -> tuple[list[Item], list[Item]]:
        """Part the items of an operation into those that are sent, and those that are settled instead.

        They were delivered while they were held: their lock was lost unnoticed, and they were redelivered here. Or they
        have run out of their time. What is lost is redelivered, and once order is lost with a lock, nothing goes on.
        """
        send: list[Item] = []
        settle: list[Item] = []
        for item in () if self.broken else items:
            if item.lost:
                continue
            if item.identity in self._delivered:
                settle.append(self._settle(item, _KNOWN, _REDELIVERED))
            elif self._counts_time and (poison := self._overdue(item, instant)) is not None:
                settle.append(self._dead(item, poison))
            else:
                send.append(item)
        return send, settle

    def waits_for(self, items: Iterable[Item]) -> bool:
        """Whether nothing may go on before one of these is gone: where order is kept, dead-letters."""
        return self.ordered and any(item.poison is not None and item in self._locked for item in items)

    def outgoing(self, items: Sequence[Item], instant: datetime) -> list[Message]:
        """Return the messages as they are sent to the primary, with the time that they have left."""
        if not self._counts_time:
            return [item.message for item in items]
        return [
            item.message
            if (left := self._time_left(item, instant)) is None
            else replace(item.message, time_to_live=max(left, 1e-6))
            for item in items
        ]

    def sent(
        self, gate: Gate, items: Sequence[Item], results: Sequence[TransportError | None], took: float, now: float
    ) -> Sent:
        """Take what the primary answered: one entry each, None for confirmed, and the share of its time limit that it
        took."""
        gate.most = adapted(gate.most, len(items), results, took, self._ceiling)
        if None in results:
            self._sent_in = self._least(self._sent_in, len(items), took)
        delivered: list[Item] = []
        poison: list[Item] = []
        doubtful: list[tuple[Item, int, float]] = []
        failure: TransportError | None = None
        unknown_entity = False
        failed: set[str | None] = set()
        for item, result in zip(items, results, strict=True):
            if failed and self.in_order and item.message.session_id in failed:
                # It is sent again, behind the one that failed, whatever came of it.
                item.unknown = item.unknown or result is None or result.maybe_applied
                continue
            if result is None:
                delivered.append(self._settle(item, _CONFIRMED, _MOVED))
                self._delivered[item.identity] = None
                if self._doubts:
                    self._doubts.pop(item.identity, None)
                continue
            failed.add(item.message.session_id)
            if self._gates.is_poison(gate.entity, result, now):
                self._doubts.pop(item.identity, None)
                poison.append(self._dead(item, Poison(result.reason.value, str(result))))
                unknown_entity = unknown_entity or result.reason is FailureReason.NOT_FOUND
            else:
                failure = result
            if result.maybe_applied:
                item.unknown = True
                doubtful.append((item, *self._doubt_of(item, now)))
        while len(self._delivered) > _REMEMBERED:
            self._delivered.popitem(last=False)
        self._flows = failure is None
        if delivered:
            self._gates.delivered(gate)
        if self._reads_ahead:
            self._set_window()
        else:
            self._read_ahead()  # the first confirmation is enough, not only that of what is received next
        if failure is not None and doubtful:
            # A primary that takes messages and does not confirm it gets one copy a trial, not a whole batch.
            gate.most = 1
        # Where others are delivered the destination exists, and the sender that they use works.
        return Sent(delivered + poison, failure, unknown_entity and not delivered, doubtful)

    def _doubt_of(self, item: Item, now: float) -> tuple[int, float]:
        """Have a message wait; gives its attempts in doubt, and for how long. Its copies at the tail wait, too."""
        doubt = self._doubts.pop(item.identity, None)
        attempts = 1 if doubt is None else doubt.attempts + 1
        wait = _DOUBT.wait(attempts - _AT_ONCE - 1, 0.0) if attempts > _AT_ONCE else 0.0
        self._doubts[item.identity] = Doubt(attempts, now + wait)
        if len(self._doubts) > _REMEMBERED:
            self._doubts.popitem(last=False)
        return attempts, wait

    # Postponing: to the tail of the queue, so that those behind come into sight.

    def fullest(self, now: float) -> DestinationLine | None:
        """Return the line with the most messages that can't go on and may be postponed."""
        waiting = {line: held for line in self._lines.values() if (held := self._waiting(line, now))}
        return max(waiting, key=lambda line: sum(item.copy_after <= now for item in waiting[line]), default=None)

    def primary_seen(self, line: DestinationLine, *, answers: bool) -> bool:
        """Take whether the primary as such answers; return whether its destination may be asked, and room be made."""
        if answers and self._primary_was_unavailable:
            line.gate.try_after = 0.0
        self._primary_was_unavailable = not answers
        return answers

    def postpone(self, line: DestinationLine, now: float) -> list[Item]:
        """Take out of a line what is to be copied: should the gate open meanwhile, nothing else may send it."""
        # What was copied before has to be gone from its place first, or the next round would copy it again.
        if self.unsettled:
            return []
        waiting = dict.fromkeys(self._waiting(line, now))
        items = [item for item in waiting if item.copy_after <= now and not item.lost]
        line.items = deque(item for item in line.items if item.copy_after > now or item not in waiting)
        for item in items:
            item.step(_POSTPONED)
        return items

    def copies(self, items: Sequence[Item], now: float, instant: datetime) -> list[Message]:
        """Return the copies, to be seen again after `requeue_wait`; at once where nothing can be scheduled, and while
        the secondary's clock is not known. ``instant`` is ``now`` by the wall clock."""
        due = self._clock.due(items, self.requeue_wait, now, instant) if self._schedules else None
        # A copy starts with a delivery count of its own: what this one showed must not be forgotten.
        return [
            copy_of(item.delivery.message, due, marked=item.unknown or item.delivery.delivery_count > 1)
            for item in items
        ]

    def wait_after_copies(self, now: float) -> float:
        """Seconds to wait after copies were stored, if they have been seen again at once for a while: it would spin."""
        at_once = not self._schedules or self._clock.asks_in_vain(self.requeue_wait, now)
        return min(self.requeue_wait, 1.0) if at_once else 0.0

    def copied(
        self, line: DestinationLine, items: Sequence[Item], results: Sequence[TransportError | None], now: float
    ) -> tuple[list[Item], DestinationLine | None]:
        """Take what came of the copies: one entry each, None for confirmed. Return what is to be completed, and the
        line that has begun, if what is left needs one."""
        settle: list[Item] = []
        rest: list[Item] = []
        for item, result in zip(items, results, strict=True):
            if result is None:
                settle.append(self._settle(item, _CONFIRMED, _COPIED))
                continue
            if result.maybe_applied:
                # Each trial may have left a copy, and each copy would be copied in its turn.
                item.unknown = True
                item.copy_after = now + self.requeue_wait * 2 ** min(item.copies, 10)
                item.copies += 1
            rest.append(item)
        rest = self._not_taken(rest)
        if not rest:
            self._drop_if_empty(line)
        elif not self.is_current(line):
            return settle, self._line_up(line.gate.entity, rest)
        line.items.extendleft(reversed(rest))
        return settle, None

    # Locks.

    @property
    def _third(self) -> float:
        """Seconds of a third of a lock, after which it is renewed, and within which all of them have to be."""
        return (self.lock_duration or _UNKNOWN_LOCK) / 3

    def to_renew(self, now: float) -> list[Item]:
        """Return those whose locks are to be renewed now, side by side: those that end soonest."""
        due = [item for item in self._locked if item.renew_at < now + _SOON]
        due.sort(key=lambda item: item.locked_until)
        return due[: self.renewals_at_once(len(self._locked))]  # the others are due within the same third of a lock

    def renewal_due_in(self, now: float) -> float:
        """Seconds until `to_renew` is to be asked again."""
        return min([self._third, *(item.renew_at - now for item in self._locked)])

    def renewals_at_once(self, count: int) -> int:
        """How many renewals to begin side by side: more than a few where a broker is so far that it would take long."""
        return max(_RENEWED_AT_ONCE, math.ceil(count * self._renewals_took / self._third))

    def renewals_took(self, seconds: float) -> None:
        """Those that were begun side by side have ended."""
        self._renewals_took = seconds

    def renewing(self, item: Item, now: float) -> None:
        """A renewal begins."""
        item.renew_at = math.inf if self.lock_duration is None else now + self._third

    def renewed(self, item: Item, used: Delivery, outcome: Delivery | TransportError, began_at: float) -> bool:
        """Take what came of a renewal of a delivery; return whether the item has a good lock."""
        if isinstance(outcome, TransportError):
            if item.delivery is not used:
                return item in self._locked  # it was redelivered meanwhile, and has another lock
            if outcome.reason is FailureReason.LOCK_LOST:
                self.miss(item)
            return False
        if item.delivery is used:
            item.delivery = outcome
            item.locked_until = math.inf if self.lock_duration is None else began_at + self.lock_duration
        return True

    def stale(self, items: Iterable[Item], now: float) -> list[Item]:
        """Return those whose locks may not outlast one more operation: renewed first, or missed (SPEC 7.6)."""
        margin = 0.5 * (self.lock_duration or 0.0)
        return [item for item in items if not item.lost and item.locked_until - now < margin]

    def miss(self, item: Item) -> None:
        """Lose an item that is not stored in the primary either: where order is kept, nothing behind it goes on.

        Whatever waits is released, and redelivered in its order, to another process maybe. What is being sent, or is
        stored, stays locked until it is `delivering` no longer.
        """
        if item not in self._locked:
            return  # this was done when it was lost; what is locked by now came later
        self._lose(item)
        if self.ordered:
            self.broken = True
            self.drop_lines()
            for other in tuple(self._locked):
                if not _is_delivering(other):
                    self._lose(other)

    @property
    def delivering(self) -> bool:
        """Whether something locked is being sent, or is stored and not yet completed: released, it would come twice."""
        return any(map(_is_delivering, self._locked))

    def _lose(self, item: Item) -> None:
        """It will be redelivered; sending it from here as well would make a second copy."""
        if item in self._locked:
            item.step(_LOCK_LOST)
            item.lost = True
            self._let_go(item)

    def _let_go(self, item: Item) -> None:
        if item in self._locked:
            del self._locked[item]
            self._bytes -= len(item.message.body)
        place = item.delivery.sequence_number
        if self._places.get(place) is item:
            del self._places[place]

    def _doubt(self) -> None:
        """Where order is kept, let nothing go on before its lock was renewed: one that was sent had lost its own.

        Another process may hold the whole queue by now. What this pump went on to send would still be in order, each
        being sent after the one before it was confirmed; but all of it would be sent twice, and what the other one
        dead-letters would appear out of its place.
        """
        if self.ordered and self.lock_duration is not None:
            for item in self._locked:
                item.locked_until = -math.inf

    def begin_anew(self) -> bool:
        """Begin nothing new with what is locked, which is to be released; return whether the queue works: then what is
        being sent, or is stored, is completed before that."""
        works = self.broken or self.lets_go
        self.drop_lines()
        return works

    def release(self) -> None:
        """What is locked is lost to this pump, and redelivered."""
        for item in tuple(self._locked):
            self._lose(item)
        self.broken = False

    # Settling.

    def _settle(self, item: Item, symbol: Symbol, ending: Ending) -> Item:
        item.step(symbol)
        item.ending = ending
        self._settling[item] = None
        return item

    def _dead(self, item: Item, poison: Poison) -> Item:
        item.step(_POISON)
        item.poison = poison
        self._settling[item] = None
        return item

    def settlements(self, items: Sequence[Item]) -> tuple[list[Sequence[Item]], list[Item]]:
        """Part items into the operations to begin now, side by side, and what comes after these.

        An operation completes its items together, or dead-letters each of them by itself.
        """
        stored = [item for item in items if item.poison is None]
        dead = [item for item in items if item.poison is not None]
        if not stored:
            return [dead[:_DEAD_LETTERS_AT_ONCE]], dead[_DEAD_LETTERS_AT_ONCE:]
        at_once = self.complete_at_once
        if at_once < MOST_COMPLETED:
            return [stored[:at_once]], stored[at_once:] + dead
        # What fits so well goes side by side.
        return [stored[start : start + at_once] for start in range(0, len(stored), at_once)], dead

    def settled(
        self,
        items: Sequence[Item],
        used: Sequence[Delivery],
        errors: Sequence[TransportError | None],
        took: float | None = None,
    ) -> tuple[list[Report], list[TransportError]]:
        """Take what came of settlements; return the reports of those that have ended, and the errors of those that are
        retried. ``used`` are their deliveries when it began; ``took`` is the share of its time limit that an operation
        took which completes all of them."""
        if took is not None:
            self.complete_at_once = adapted(self.complete_at_once, len(items), errors, took, MOST_COMPLETED)
            if None in errors:
                self._completed_in = self._least(self._completed_in, len(items), took)
                self._set_window()
        reports: list[Report] = []
        failures: list[TransportError] = []
        for item, delivery, error in zip(items, used, errors, strict=True):
            if item not in self._settling:
                continue  # it was given up meanwhile
            if error is None:
                item.step(_SETTLED)
                self._let_go(item)
                self._report(item, reports, completed=True)
                continue
            item.in_doubt = item.in_doubt or error.maybe_applied
            lock_lost = error.reason is FailureReason.LOCK_LOST
            if lock_lost and item.delivery is not delivery and not item.lost:
                item.step(_NOT_SETTLED)  # it was redelivered meanwhile, and has another lock
                self.unsettled[item] = None
            elif item.lost or lock_lost or error.reason in (FailureReason.NOT_FOUND, FailureReason.CLOSED):
                if item.poison is not None:
                    self.miss(item)
                else:  # it is stored already
                    self._lose(item)
                    if lock_lost:
                        self._doubt()
                item.step(_NOT_SETTLED)
                self._report(item, reports, completed=False)
            else:
                item.step(_NOT_SETTLED)
                self.unsettled[item] = None
                failures.append(error)
        return reports, failures

    def give_up(self) -> list[Report]:
        """Settle nothing any more of what there is; returns the reports of all that were not made."""
        reports: list[Report] = []
        for item in tuple(self._settling):
            self._lose(item)
            item.step(_NOT_SETTLED)
            self._report(item, reports, completed=False)
        return reports

    def _report(self, item: Item, reports: list[Report], *, completed: bool) -> None:
        del self._settling[item]
        self.unsettled.pop(item, None)
        if item.poison is not None:
            self._report_dead(item, reports, completed=completed)
            return
        if completed and item.ending is not _COPIED:
            self._delivered.pop(item.identity, None)
        if item.ending is _MOVED:
            self.moved += 1
            reports.append((item, completed))

    def _report_dead(self, item: Item, reports: list[Report], *, completed: bool) -> None:
        """Report a dead letter once, although where a confirmation was lost it may still be redelivered."""
        name = (item.delivery.sequence_number, item.message.message_id, item.identity)
        if completed and name in self._dead_in_doubt:
            del self._dead_in_doubt[name]
            return
        if not completed:
            if not item.in_doubt or name in self._dead_in_doubt:
                return  # it is redelivered, and dead-lettered then; or was reported
            self._dead_in_doubt[name] = None
            if len(self._dead_in_doubt) > _REMEMBERED:
                self._dead_in_doubt.popitem(last=False)
        self.dead_lettered += 1
        reports.append((item, completed))
