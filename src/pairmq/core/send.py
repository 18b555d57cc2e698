"""One send as a machine: where it goes, for how long, what comes of it, and when it ends (SPEC 3, 5.4, 5.5, 8, 9.1).

Theory. A send goes round until each of its messages has its result: it asks its entity's machine for a route, attempts
one broker within a part of its time, and gets the results. Every message then is *accepted*, *refused*, or goes
round again; what is left at the deadline is refused, or *unknown* if a broker may hold it.

Rules.

1. No attempt begins after the deadline, and none gets more than half of the time left: the other half is for the other
   broker. Two exceptions: the last stretch, and a broker known to need longer to answer (`RoundTrip`).
2. A failure of the primary is evidence about the entity, a failure of a backlog queue about that queue; a refusal is
   about the message, if the reason says so. `PrimaryOutcome` and `BacklogOutcome` say which.
3. A transient failure is retried `TRANSIENT_RETRIES` times in a row; after that it counts as unavailable.
4. Where one broker is unavailable the other one is tried at once; what can only be tried again waits, longer each time.
5. Routing is one step: the entity's machine registers the attempt in the call that returns it (SPEC 4.6).
6. While no broker answers, `TRIALS_AT_ONCE` sends of an entity find out when one does again; further ones wait in line,
   from which now and then one more goes on as a scout: those before it may all hang in attempts with distant limits.

A machine does nothing by itself. Give it each fact with its instant, and do what the step says; instants are seconds of
one monotonic clock::

    step = send.start(now)
    while True:
        match step:
            case Attempt(Route.PRIMARY):
                ...  # one operation; then `primary_ended`, and `resume`
            case Attempt(Route.BACKLOG):
                ...  # one operation at its queue, and `backlog_ended` or `backlog_cut_off`; then `resume`
            case Check():
                ...  # whether a backlog queue could hold the messages; then `checked`
            case LookAt():
                ...  # a look at a backlog queue; then `looked`
            case Wait():
                ...  # until then, or until something has changed; then `resume`
            case Done():
                break
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from pairmq.core.backoff import TRANSIENT_RETRIES, Backoff
from pairmq.core.machine import ImpossibleInputError
from pairmq.core.options import PairOptions
from pairmq.core.order import KeyRoute, Look, LookAt, Way
from pairmq.core.rotation import Rotation
from pairmq.core.signals import ToBacklog, ToPrimary
from pairmq.model import (
    BacklogUnavailable,
    EntityState,
    FailureKind,
    FailureReason,
    Message,
    PrimaryUnavailable,
    Receipt,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
    TransportError,
)

T = TypeVar("T")

FAIR_TRIAL: Final = 1.0
"""Seconds that an operation at a broker must have had for its time-out to count against the broker."""

TRIALS_AT_ONCE: Final = 100
"""Sends of an entity that may be in flight without an answer of any broker; further ones would find out no more."""

SCOUTED: Final = 0.25
"""Seconds between two scouts of a line."""

_PATIENCE: Final = 0.1  # s without an answer at least after which that counts: with thousands begun it may just be due
_LAST_STRETCH: Final = 0.1  # s: with less than this left an attempt gets all of it instead of half
_BACKOFF: Final = Backoff(first=0.05, factor=2.0, cap=2.0)
_TICK: Final = 1e-6
"""Seconds by which a wait may end early: a loop calls timers up to one tick of its clock before their instant. A send
that waited on for that little would be woken at once, again and again, and in virtual time it would never end."""
_MOST_CAUSES: Final = 10
"""Failures that a send keeps: one that is throttled for a day fails tens of thousands of times, with a trace each."""

_UP = (EntityState.HEALTHY, EntityState.DRAINING)
_FAILED_OVER: Final = EntityState.FAILED_OVER
_PRIMARY: Final = Route.PRIMARY  # every healthy send's; as in `core.pump`
_NO_QUEUE: Final = "no backlog queue takes messages"

_BROKERS_WORDS = frozenset(
    (
        FailureReason.NOT_FOUND,
        FailureReason.UNAUTHORIZED,
        FailureReason.DISABLED,
        FailureReason.QUOTA,
        FailureReason.ALREADY_EXISTS,
    )
)
"""Refusals that only a broker can give; a message that is too large, say, a client may refuse alone."""

_MESSAGES_FAULT = frozenset((FailureReason.TOO_LARGE, FailureReason.MALFORMED))
"""Failures that say nothing about a backlog queue; any other one is a reason to leave it."""


CHUNK: Final = 500
"""Messages in one operation: large enough for the brokers' batches, small beside the attempt's time limit."""

CHUNK_BYTES: Final = 1 << 20
"""Of their bodies."""

MOST_BYTES: Final = 4 * CHUNK_BYTES
"""That a batch or a stream may have in flight: its operations share one link."""

_FAR = 0.02  # s of an answer, from which on a batch would be as slow as its round trips
_NARROW, _WIDE = 1 / 4, 1 / 16  # of its limit that an operation takes longer than a small one: less in flight, or more
_FORGETS, _A_LITTLE = 1.02, 1e-6  # so much longer is what the quickest answer counts for with each later one; s more


class RoundTrip:
    """How long a broker takes to answer, by what it answered lately: mean and spread, weighted as by RFC 6298.

    Of a send with little time left an attempt gets half, for the other half may be needed for the other broker. For a
    broker far off that may be less than one round trip, and no attempt at it could ever succeed.
    """

    __slots__ = ("_cut_off", "_mean", "_spread", "quickest")

    def __init__(self) -> None:
        self._mean = self._spread = self._cut_off = 0.0
        self.quickest = math.inf
        """Seconds of the quickest answer lately, to an operation of any size: so far away is the broker."""

    @property
    def needed(self) -> float:
        """Seconds that an operation must have to be answered, as far as is known; `FAIR_TRIAL` at most."""
        return min(max(self.usual, self._cut_off), FAIR_TRIAL)

    @property
    def usual(self) -> float:
        """Seconds within which nearly all answers came lately; 0 before the first."""
        return self._mean + max(4 * self._spread, self._mean / 2)

    def answered(self, seconds: float) -> None:
        """An operation with one message was confirmed."""
        forgotten = self.quickest * _FORGETS + _A_LITTLE  # as in `took`; every healthy send comes here
        self.quickest = seconds if seconds < forgotten else forgotten
        if not self._mean:
            self._mean, self._spread = seconds, seconds / 2
        else:
            late = seconds - self._mean
            self._spread += ((late if late > 0 else -late) - self._spread) / 4
            self._mean += late / 8
        self._cut_off = 0.0

    def took(self, seconds: float) -> None:
        """An operation with any number of messages was answered."""
        forgotten = self.quickest * _FORGETS + _A_LITTLE
        self.quickest = seconds if seconds < forgotten else forgotten

    def cut_off(self, seconds: float) -> None:
        """It was not answered within so long: the next one gets more, or a first answer might never be seen."""
        self._cut_off = max(self.needed, 2 * seconds)


class Job:
    """One message of one send, until it has its result.

    ``number`` is the place in the order of a sender's calls; ``unknown``, whether a broker may hold it after an attempt
    that failed.
    """

    __slots__ = ("attempts", "causes", "message", "number", "result", "unknown")

    def __init__(self, message: Message, number: int = 0) -> None:
        self.message = message
        self.number = number
        self.attempts = 0
        self.unknown = False
        self.causes: tuple[BaseException, ...] = ()
        self.result: Receipt | SendError | None = None

    def failed(self, failure: TransportError) -> None:
        """An attempt with it failed."""
        if len(self.causes) >= _MOST_CAUSES:
            # How it began, and what came last, are worth most.
            self.causes = (self.causes[0], *self.causes[2:])
        self.causes = (*self.causes, failure)
        self.unknown = self.unknown or failure.maybe_applied

    def give_up(
        self, primary: TransportError | None, backlog: TransportError | None, fault: BaseException | None
    ) -> None:
        """Nothing more is tried: what is known of either broker is a cause as well, unless its own failures say the
        same, and so is the ``fault`` of the pair."""
        before, after = (
            None if known is None or any(_says(cause, known) for cause in self.causes) else known
            for known in (primary, backlog)
        )
        self.causes = tuple(cause for cause in (before, *self.causes, after, fault) if cause is not None)

    def ends_as(self, refusal: type[SendRefused]) -> type[SendError]:
        """Nothing took it: it is refused, but if an earlier attempt may have been accepted, its outcome is unknown."""
        return SendUnknown if self.unknown else refusal


def _says(cause: BaseException, failure: TransportError) -> bool:
    """Whether two failures say the same; asked of each send that fails, so not by their whole text."""
    return (
        isinstance(cause, TransportError)
        and (cause.kind, cause.reason, cause.maybe_applied) == (failure.kind, failure.reason, failure.maybe_applied)
        and cause.args == failure.args
    )


# What a send asks for.


class Choice(NamedTuple):
    """The backlog queue of an attempt. A ``trial`` of one that is out of use is to be ended by `Rotation.end_trial`.

    With ``rests`` order rests on it: before the operation, find out whether it is what it must be.
    """

    queue: int
    trial: bool
    rests: bool


class Attempt(NamedTuple):
    """Make one operation with these messages, until ``until`` at most; it is registered as in flight.

    One at the primary that is cancelled is reported to the entity's machine as abandoned; one at the backlog, which has
    a ``choice`` of a queue, has ended there in any case.
    """

    route: Route
    epoch: int
    jobs: list[Job]
    until: float
    choice: Choice | None = None


class Check(NamedTuple):
    """Find out which of these no backlog queue could hold: they would wait for one in vain."""

    jobs: list[Job]


class Wait(NamedTuple):
    """Wait for a change of the entity, until ``until`` at most.

    ``queue``: a backlog queue that comes back into use ends the wait as well; ``nowhere``: neither broker can be tried,
    so that the primary's next ping should not wait either; ``last``: the send ends with it unless there is a change;
    of thousands some end early, so that all are in time.
    """

    until: float
    queue: bool = False
    nowhere: bool = False
    last: bool = False

    def is_in_vain(self, now: float, behind: float) -> bool:
        """Whether it would only make others late, as the ends of thousands are ``behind`` by so many seconds."""
        return self.last and behind > 0.8 * (self.until - now)


class Done(NamedTuple):
    """The send has ended. With a ``refusal`` what is left has been given up, for ``why``.

    ``diverting``: the backlog's failure is a cause as well; ``nowhere``: neither broker could be tried, so that a ping
    and a trial of a backlog queue should follow in the background.
    """

    refusal: type[SendRefused] | None = None
    why: str = ""
    diverting: bool = False
    nowhere: bool = False


Step: TypeAlias = Attempt | Check | LookAt | Wait | Done
DONE: Final = Done()


# What came of an attempt.


class Fate(enum.Enum):
    """What the result of an attempt means for one message."""

    ACCEPTED = "confirmed"
    REFUSED = "the message is at fault"
    AGAIN = "it goes round again"
    ELSEWHERE = "it goes round again, at another backlog queue; this one stays in use for others"
    LEAVE = "it goes round again, and the backlog queue is taken out of use"


class PrimaryOutcome(NamedTuple):
    """What an attempt at the primary says: *accepted*; failed by ``evidence``; without either, nothing (abandoned).
    ``answered``: a broker has responded at all, for which others may wait in line."""

    accepted: bool
    evidence: TransportError | None
    fates: Sequence[Fate]
    answered: bool


class BacklogOutcome(NamedTuple):
    """What an attempt at a backlog queue says: whether the queue works, and whether it may hold any of the messages;
    ``answered`` as in `PrimaryOutcome`."""

    works: bool | None
    maybe_there: bool
    fates: Sequence[Fate]
    answered: bool


_TAKEN: Final = PrimaryOutcome(True, None, (Fate.ACCEPTED,), True)
_STORED: Final = BacklogOutcome(True, True, (Fate.ACCEPTED,), True)


class Router(Protocol):
    """An entity's machine, as a send sees it."""

    @property
    def seen(self) -> EntityState:
        """Its state."""

    def route(self) -> ToPrimary | ToBacklog:
        """Route one attempt and register it as in flight."""

    def divert(self) -> ToBacklog:
        """Register one attempt at the backlog, whatever the state (SPEC 8.3)."""


class SenderQueues(Protocol):
    """What the sends of one sender share: ``queue`` is the backlog queue that they keep (SPEC 5.4), ``lane`` the one
    that is tried before any other (SPEC 11.2)."""

    queue: int | None
    lane: int | None


def _ends(started: float, deadline: float, lead: float) -> float:
    """When a send begins no other attempt; early by half of its time at most: both brokers are to have one."""
    return deadline - min(lead, (deadline - started) / 2)


class EntityLine(Generic[T]):
    """The sends to an entity that are in flight, and the line of those that wait while no broker answers (rule 6).

    A turn is what its caller waits by. ``sends``: how many are in flight, those in line left out; ``elsewhere``: those
    of them that began before it failed over, whose attempts at the primary say nothing of the secondary, and scouts;
    ``silent_since``: when the first of them began since the last answer of a broker; ``turns``: of the line, with
    when they began and their deadlines; ``late``: of those in it that wait for an answer or their deadline only.
    """

    __slots__ = ("elsewhere", "late", "sends", "silent_since", "turns")

    def __init__(self) -> None:
        self.sends = self.elsewhere = 0
        self.silent_since: float | None = None
        self.turns: OrderedDict[T, tuple[float, float]] | None = None  # most entities never have one
        self.late: dict[T, None] | None = None

    def failed_over(self) -> int:
        """Sends go to the secondary from now on; returns how many in line go on, whatever hangs at the primary."""
        self.elsewhere = self.sends
        return TRIALS_AT_ONCE

    def answered(self) -> Collection[T]:
        """A broker has answered a send, or is known to work: all in line go on, and are returned."""
        self.silent_since = None
        turns = [*(self.late or ()), *(self.turns or ())]
        self.turns = self.late = None
        return turns

    def scout(self) -> bool:
        """Whether one more goes on, as `SCOUTED` seconds have passed: a broker may answer new attempts while those
        before them hang until their limits."""
        if not self.turns:
            return False
        self.elsewhere += 1
        return True

    def stand(self, turn: T, started: float, deadline: float) -> None:
        """A send waits in line, until its deadline at most."""
        if self.turns is None:
            self.turns = OrderedDict()
        self.turns[turn] = started, deadline

    def leave(self, turn: T) -> bool:
        """A send gives up waiting; returns whether it stood in line until now: else the next one may go on for it."""
        for turns in (self.turns, self.late):
            if turns is not None and turn in turns:
                del turns[turn]
                return True
        return False

    def next(self, now: float, lead: float) -> T | None:
        """Take the turn of the first in line that has time for an attempt; None without one.

        As in `Admission.let_in`, one that would only begin to end stays where it is.
        """
        while self.turns:
            turn, (started, deadline) = self.turns.popitem(last=False)
            if now < _ends(started, deadline, lead):
                return turn
            if self.late is None:
                self.late = {}
            self.late[turn] = None
        return None


class Admission(Generic[T]):
    """How many messages of a pair are in flight: ``limit`` at most, first come, first served.

    A batch larger than that enters alone. A turn is what a send waits by until there is room.
    """

    __slots__ = ("_free", "_late", "_turns", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._turns: OrderedDict[T, tuple[int, float, float]] = OrderedDict()
        self._late: set[T] = set()  # they wait for nothing but their deadlines

    @property
    def in_flight(self) -> int:
        """Messages in flight now."""
        return self.limit - self._free

    def try_enter(self, messages: int) -> bool:
        """Enter at once if there is room and no one waits."""
        messages = min(messages, self.limit)
        if self._turns or self._free < messages:
            return False
        self._free -= messages
        return True

    def stand(self, turn: T, messages: int, started: float, deadline: float) -> None:
        """Wait in line for room, until the deadline at most."""
        self._turns[turn] = (min(messages, self.limit), started, deadline)

    def give_up(self, turn: T) -> bool:
        """Wait no longer; returns whether the turn had not come until now: then a smaller one behind it may fit."""
        if turn in self._late:
            self._late.remove(turn)
            return True
        return self._turns.pop(turn, None) is not None

    def leave(self, messages: int, line: EntityLine[T] | None = None) -> bool:
        """Make room again, also behind those that `SendRules.lets_in` has counted in a line; returns whether someone
        waits for either."""
        self._free += min(messages, self.limit)
        if line is None:
            return bool(self._turns)
        line.sends -= 1
        if line.elsewhere:
            line.elsewhere -= 1
        return bool(self._turns or line.turns)

    def let_in(self, now: float, lead: float, most: int, waits: Callable[[T], bool]) -> list[tuple[T, bool]]:
        """Take those from the line's head whose turn has come, ``most`` of them at once, and whether each is let in.

        While thousands end by their deadlines, which takes ``lead`` seconds, one with hardly any time left would only
        begin to end as well. It is not let in, and waits for its deadline: to end it now would take time from those
        that are due before it. One that no longer ``waits`` is let in, and leaves when it learns that.
        """
        come: list[tuple[T, bool]] = []
        while self._turns and len(come) < most:
            turn, (messages, started, deadline) = next(iter(self._turns.items()))
            if messages > self._free:
                break
            del self._turns[turn]
            enters = now < _ends(started, deadline, lead) or not waits(turn)
            if enters:
                self._free -= messages
            else:
                self._late.add(turn)
            come.append((turn, enters))
        return come


class SendRules:
    """What all sends of a pair share; ``chance`` gives a random number in [0, 1)."""

    __slots__ = (
        "attempt_timeout",
        "chance",
        "closed",
        "ends_at",
        "raises",
        "room",
        "rotation",
        "to_backlog",
        "to_primary",
    )

    def __init__(self, options: PairOptions, rotation: Rotation, chance: Callable[[], float]) -> None:
        self.attempt_timeout = options.attempt_timeout
        self.raises = options.while_failing == "raise"
        self.rotation = rotation
        self.chance = chance
        self.to_primary = RoundTrip()
        self.to_backlog = RoundTrip()
        self.room = MOST_BYTES
        """Bytes of bodies that a batch or a stream may have in flight."""
        self.closed: str | None = None
        """Why sends are given up, once the pair closes."""
        self.ends_at = math.inf
        """The instant at which each send ends at the latest."""

    def end_by(self, instant: float, why: str) -> None:
        """The pair closes: its sends end at ``instant`` at the latest, by ``why`` if they are given up (SPEC 9.1)."""
        self.ends_at = min(self.ends_at, instant)
        self.closed = why

    @property
    def far(self) -> bool:
        """Whether a broker is so far that a batch had better not wait for each of its operations."""
        trips = (self.to_primary.quickest, self.to_backlog.quickest)
        return max((quickest for quickest in trips if quickest < math.inf), default=0.0) >= _FAR

    def took(self, trip: RoundTrip, seconds: float) -> None:
        """An operation of a batch or a stream was answered, maybe late, as those in flight share a narrow link."""
        trip.took(seconds)
        longer = (seconds - trip.quickest) / self.attempt_timeout
        if longer > _NARROW:
            self.room = max(self.room // 2, CHUNK_BYTES)
        elif longer < _WIDE:
            self.room = min(self.room * 2, MOST_BYTES)

    def until(self, now: float, deadline: float, trip: RoundTrip) -> float:
        """When an attempt must end: half of the time left is for the other broker, if the rest is enough here."""
        left = deadline - now
        share = left / 2
        if share < FAIR_TRIAL:  # no broker is known to need longer
            share = left if left < _LAST_STRETCH else max(share, min(left, trip.needed))
        return now + min(self.attempt_timeout, share)

    def at_once(
        self, entity: Router, jobs: list[Job], now: float, deadline: float, key: KeyRoute | None = None
    ) -> Attempt | None:
        """The first attempt of a send to an entity that is up; None where it takes a machine to decide.

        A send that is confirmed by it, as nearly all are, needs no machine; that of any other goes on from there.
        """
        # The primary itself says at once what it can't hold.
        if entity.seen not in _UP or now >= deadline or not jobs or self.closed is not None:
            return None
        if key is not None and key.way(now, deadline) is not Way.ROUTE:
            return None
        return Attempt(_PRIMARY, entity.route().epoch, jobs, self.until(now, deadline, self.to_primary))

    def lets_in(self, line: EntityLine[T], now: float) -> bool:
        """Count a send as in flight, unless it has to wait until another one has ended or a broker has answered.

        Thousands of attempts at brokers that don't respond would use up the processor that is needed to end them all by
        their deadlines. None of them would be accepted, and each would have an unknown outcome.
        """
        if line.silent_since is None:
            line.silent_since = now
        elif line.sends >= TRIALS_AT_ONCE + line.elsewhere and not self.raises:
            usual = max(self.to_primary.usual, self.to_backlog.usual)
            if now - line.silent_since > max(_PATIENCE, 2 * usual):
                return False
        line.sends += 1
        return True


class SendMachine:
    """Decides for one send, from its beginning or from the attempt on that `SendRules.at_once` began.

    ``jobs`` are its messages without a result. Where order is kept they have one key, and ``key`` is its way.
    """

    __slots__ = (
        "_deadline",
        "_entity",
        "_fair",
        "_key",
        "_lane",
        "_last",
        "_queue",
        "_remainder",
        "_retry",
        "_route",
        "_rules",
        "_sender",
        "_started",
        "_throttled",
        "_transient",
        "_waited",
        "_worst",
        "pending",
    )

    def __init__(
        self,
        rules: SendRules,
        entity: Router,
        sender: SenderQueues,
        jobs: list[Job],
        started: float,
        deadline: float,
        key: KeyRoute | None = None,
    ) -> None:
        self._rules = rules
        self._entity = entity
        self._sender = sender
        self._started = started
        self._deadline = deadline
        self._key = key
        self._retry = self._transient = 0
        self._waited = self._fair = self._last = self._remainder = self._throttled = False
        self._route = Route.PRIMARY
        self._worst: FailureKind | None = None
        self.pending = jobs
        """Messages that have no result yet."""
        self._lane = sender.lane  # None once that took too long for this send
        # A consumer of the lane would handle a scheduled message before its time.
        if self._lane is not None and any(job.message.scheduled_enqueue_at is not None for job in jobs):
            self._lane = None
        self._queue: int | None = None  # of the attempt under way

    # What the driver reports.

    def start(self, now: float) -> Step:
        """Begin; never early."""
        attempt = self._rules.at_once(self._entity, self.pending, now, self._deadline, self._key)
        self._deadline = min(self._deadline, self._rules.ends_at)
        return self.resume(now) if attempt is None else attempt

    def resume(self, now: float, lead: float = 0.0, *, changed: bool = False) -> Step:
        """Go on after an attempt, of which the outcome was reported, or after a wait.

        With less than ``lead`` seconds left, which it takes to end all that runs, no other attempt begins, unless there
        is a change. ``changed``: one ended the wait.
        """
        if not self.pending:
            return DONE
        self._deadline = min(self._deadline, self._rules.ends_at)
        if self._last:
            if not changed:
                return self._out_of_time()
            self._last, lead = False, 0.0
        if self._worst is not None and (step := self._after_failure(now, lead)) is not None:
            return step
        diverting = self._entity.seen is _FAILED_OVER
        if now >= self._deadline - _TICK:
            return self._out_of_time()
        if lead and now >= _ends(self._started, self._deadline, lead) - _TICK:
            self._last = True
            return Wait(self._deadline, queue=diverting, last=True)
        if not diverting and self._key is not None:
            way = self._key.way(now, self._deadline)
            if type(way) is LookAt:
                return way
            diverting = way is Way.DIVERT
        if diverting:
            return self._divert(now, lead)
        return self._attempt(_PRIMARY, self._entity.route().epoch, now)

    def _after_failure(self, now: float, lead: float) -> Step | None:
        """What comes before the next attempt; None when that is due at once."""
        worst, self._worst = self._worst, None
        diverting = self._route is Route.BACKLOG
        passing = worst is FailureKind.TRANSIENT or (diverting and worst is FailureKind.BUSY)
        self._transient = self._transient + 1 if passing else 0
        if diverting:
            if worst is FailureKind.UNAVAILABLE and self._key is None:
                return None  # another queue takes it at once; a key has but one (SPEC 8.2)
        elif self._entity.seen is _FAILED_OVER:
            return None  # the backlog takes it at once
        elif worst is FailureKind.UNAVAILABLE and self._rules.raises:
            return self.give_up("the primary failed and while_failing is 'raise'")
        return self._pause(now, lead, queue=diverting)

    def checked(self, unfit: Collection[Job], now: float, lead: float = 0.0) -> Step:
        """Go on after a `Check`; those that are unfit have been refused."""
        if unfit:
            self.drop(unfit)
        return self._wait_for_queue(now, lead) if self.pending else DONE

    def looked(self, look: Look | None, now: float, lead: float = 0.0) -> Step:
        """Go on after a `LookAt`; None when the queue could not be asked, or not in time."""
        key = self._key
        if key is None:
            raise ImpossibleInputError("a look for a send without order")
        self._deadline = min(self._deadline, self._rules.ends_at)
        way = key.looked(look, now)
        if way is Way.DIVERT:  # unless the look came late
            return self._divert(now, lead) if now < self._deadline else self.give_up("the deadline passed")
        return Wait(min(way, self._deadline)) if isinstance(way, float) else self.resume(now, lead)

    def primary_ended(self, results: Sequence[TransportError | None]) -> PrimaryOutcome:
        """Judge an attempt at the primary, by a result for each message.

        The entity's machine is to have the verdict before `resume` is called.
        """
        if len(results) == 1 and results[0] is None:
            self.pending = []
            return _TAKEN
        worst = worst_kind(results)
        evidence = None
        # If it took one it does take messages: the others go round again, and a failure of all of them counts.
        accepted = None in results
        if not accepted:
            if worst is None:  # all refused: by the broker, which then is reachable, or before it saw them
                evidence = next((each for each in results if each and each.reason in _BROKERS_WORDS), None)
            elif worst is not FailureKind.TRANSIENT:
                if not self._hurried(results):
                    evidence = next(each for each in results if each is not None and each.kind is worst)
            elif self._transient >= TRANSIENT_RETRIES:  # it has outlived its retries (SPEC 3.6)
                evidence = next(each for each in results if each is not None and each.kind is worst)
                worst = FailureKind.UNAVAILABLE
        self._throttled = self._throttled or worst is FailureKind.BUSY
        fates = [self._fate_at_primary(each) for each in results]
        self._go_on_with(results, fates, worst)
        return PrimaryOutcome(accepted, evidence, fates, is_answer(results))

    def _hurried(self, results: Sequence[TransportError | None]) -> bool:
        """Whether the send's own deadline cut an attempt short, and proves nothing.

        A throttled primary responds. And after a wait or other attempts little time may be left: where many sends wait
        for a distant primary to recover, the first of them would undo each recovery.
        """
        reasons = {failure.reason for failure in results if failure is not None}
        return (self._throttled or self._remainder) and not self._fair and FailureReason.TIMEOUT in reasons

    @staticmethod
    def _fate_at_primary(failure: TransportError | None) -> Fate:
        if failure is None:
            return Fate.ACCEPTED
        return Fate.REFUSED if failure.kind is FailureKind.REFUSED else Fate.AGAIN

    def backlog_cut_off(self, now: float, *, began: bool) -> None:
        """An attempt at the backlog has ended without results: if its operation ``began``, it may have been stored."""
        self._queue = None
        if self._key is not None:
            self._key.divert_ended(now, maybe_there=began)

    def backlog_ended(self, results: Sequence[TransportError | None], now: float) -> BacklogOutcome:
        """Judge an attempt at a backlog queue, by a result for each message that was not dropped."""
        if len(results) == 1 and results[0] is None:  # nearly all
            self.pending = []
            outcome = _STORED
        else:
            outcome = self._judged_at_queue(results)
        if self._key is not None:
            self._key.divert_ended(now, maybe_there=outcome.maybe_there)
        if Fate.ELSEWHERE in outcome.fates:
            if self._lane is not None and self._queue == self._lane:
                self._lane = None
            else:
                self._sender.queue = None
        self._queue = None
        return outcome

    def _judged_at_queue(self, results: Sequence[TransportError | None]) -> BacklogOutcome:
        fates = [self._fate_at_queue(each) for each in results]
        worst: FailureKind | None = None
        for failure, fate in zip(results, fates, strict=True):
            if fate is Fate.ELSEWHERE or fate is Fate.LEAVE:
                worst = FailureKind.UNAVAILABLE
            elif fate is Fate.AGAIN and failure is not None:
                worst = worst or failure.kind
        works: bool | None = None
        if None in results:
            works = True
        elif any(failure is not None and failure.reason not in _MESSAGES_FAULT for failure in results):
            works = False
        maybe_there = any(failure is None or failure.maybe_applied for failure in results)
        self._go_on_with(results, fates, worst)
        return BacklogOutcome(works, maybe_there, fates, is_answer(results))

    def _fate_at_queue(self, failure: TransportError | None) -> Fate:
        """Only a message that is itself at fault is refused; a queue that can't be written to is a queue to leave."""
        if failure is None:
            return Fate.ACCEPTED
        if failure.reason in _MESSAGES_FAULT:
            return Fate.REFUSED
        busy = failure.kind is FailureKind.BUSY
        if (busy or failure.kind is FailureKind.TRANSIENT) and self._transient < TRANSIENT_RETRIES:
            return Fate.AGAIN
        # A throttled queue is left for another one, but the last one is waited for.
        if busy and (self._key is not None or len(self._rules.rotation.in_use) <= 1):
            return Fate.AGAIN
        # Cut short by this send's own deadline: that is no verdict on a queue that all senders share.
        return Fate.ELSEWHERE if failure.reason is FailureReason.TIMEOUT and not self._fair else Fate.LEAVE

    def drop(self, unfit: Collection[Job]) -> None:
        """These have been refused without an attempt (SPEC 3.8)."""
        without = set(unfit)
        self.pending = [job for job in self.pending if job not in without]

    def give_up(self, why: str, refusal: type[SendRefused] | None = None, *, nowhere: bool = False) -> Done:
        """End what is left."""
        diverting = self._entity.seen is _FAILED_OVER or (self._key is not None and not self._key.clean)
        if self._rules.closed is not None:
            refusal, why = SendRefused, self._rules.closed
        elif refusal is None:
            refusal = BacklogUnavailable if diverting else PrimaryUnavailable
        return Done(refusal, why, diverting, nowhere)

    # The steps of a round: an attempt, a wait, or the end.

    def _out_of_time(self) -> Done:
        no_queue = self._waited and self._entity.seen is _FAILED_OVER
        return self.give_up(f"{_NO_QUEUE} until the deadline" if no_queue else "the deadline passed")

    def _divert(self, now: float, lead: float) -> Step:
        """One attempt at a backlog queue; without one in use it may try one that is out (SPEC 5.5), or waits."""
        rules, key, only = self._rules, self._key, None
        if key is not None:
            only = key.queue
            key.diverting()
        trials = only is not None or not rules.raises
        kept = self._sender.queue
        index, trial = rules.rotation.attempt(now, rules.chance(), kept, only, self._lane, trials=trials)
        if index is None:
            self.backlog_cut_off(now, began=False)
            if self._waited:
                return self._wait_for_queue(now, lead)
            self._waited = True
            return Check(self.pending)
        self._queue = index
        if key is None and index != self._lane:  # its sender keeps it
            self._sender.queue = index
        route = self._entity.route() if key is None else self._entity.divert()
        return self._attempt(Route.BACKLOG, route.epoch, now, Choice(index, trial, rests=key is not None))

    def _wait_for_queue(self, now: float, lead: float) -> Step:
        if self._key is None and self._rules.raises:
            return self.give_up(_NO_QUEUE, BacklogUnavailable, nowhere=True)
        return self._pause(now, lead, queue=True, nowhere=True)

    def _attempt(self, route: Route, epoch: int, now: float, choice: Choice | None = None) -> Attempt:
        rules = self._rules
        self._route = route
        until = rules.until(now, self._deadline, rules.to_primary if choice is None else rules.to_backlog)
        given, whole = until - now, self._deadline - self._started
        self._fair = given > min(rules.attempt_timeout, FAIR_TRIAL) - 0.001
        self._remainder = given < whole / 2 - 0.001  # less than a first attempt gets
        return Attempt(route, epoch, self.pending, until, choice)

    def _pause(self, now: float, lead: float, *, queue: bool, nowhere: bool = False) -> Wait:
        """Wait before the next attempt, longer each time."""
        wait = _BACKOFF.wait(self._retry, self._rules.chance())
        self._retry += 1
        if now + wait < _ends(self._started, self._deadline, lead):
            return Wait(now + wait, queue, nowhere)
        self._last = True
        return Wait(self._deadline, queue, nowhere, last=True)

    def _go_on_with(
        self, results: Sequence[TransportError | None], fates: Sequence[Fate], worst: FailureKind | None
    ) -> None:
        self._worst = worst
        self._fair = self._remainder = False  # of the attempt that has ended
        left = []
        for job, failure, fate in zip(self.pending, results, fates, strict=True):
            if failure is not None:
                job.failed(failure)
            if fate is not Fate.ACCEPTED and fate is not Fate.REFUSED:
                left.append(job)
        if len(left) < len(self.pending):  # else its caller's list is kept, and no second one
            self.pending = left


def is_answer(results: Sequence[TransportError | None]) -> bool:
    """Whether a broker has answered an attempt, by accepting, refusing or throttling any of its messages."""
    return any(failure is None or failure.kind is not FailureKind.UNAVAILABLE for failure in results)


def not_found(results: Sequence[TransportError | None]) -> list[int]:
    """The messages, by their places, that found no backlog queue: it is made again, and they are sent to it once more
    (SPEC 5.5)."""
    missing = FailureReason.NOT_FOUND
    return [at for at, failure in enumerate(results) if failure is not None and failure.reason is missing]


def worst_kind(failures: Sequence[TransportError | None]) -> FailureKind | None:
    """The failure of a batch that decides what comes next; None when nothing is left to do for it."""
    kinds = {failure.kind for failure in failures if failure is not None}
    for kind in (FailureKind.UNAVAILABLE, FailureKind.TRANSIENT, FailureKind.BUSY):
        if kind in kinds:
            return kind
    return None
