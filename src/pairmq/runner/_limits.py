"""One operation at a broker: bounded in time, and failing in one way only; and waiting, bounded as well."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import operator
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar, Generic, Self, TypeAlias, TypeVar

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import AT_ONCE, in_turns, is_nothing_sent

T = TypeVar("T")

_AGAIN = 2.5  # s after which an operation that still runs is cancelled once more; a call may need 2 to put things away
_MANY = 64  # operations that have ended, from which on the list of limits is tidied
# A loop that stands still for a while, as in a pass of the garbage collector, does not show what an end costs.
_COST = 0.0005  # s at most that one counts for; twice what is known, once something is
_LEAST_OF = 8  # turns, the first measured ones, of which the cheapest one counts
_TURN = 0.01  # s that those of one turn may take, as measured
_LOOKED_AT = 1000  # limits of one turn at most, nearly all of which need no end yet: thousands would block the loop
_MARGIN = 1.1  # later ones cost more than those that were measured
_FORGOTTEN = 60.0  # s after which that measure says nothing about the present load any more
_PLANNED = 0.02  # s that a plan is good for at least
_SHARE = 30.0  # and this many times what it took to make, so that planning takes a small share of the time


Waiter: TypeAlias = "asyncio.Future[bool | None]"
"""Of a send that waits for a change: True when it came."""

_Entry: TypeAlias = "tuple[float, int, _Bound]"


class TimeLimits:
    """Runs operations, and waits, under time limits, and can shorten the limits of those that run, for closing.

    An `asyncio.timeout` for each of them would make a timer of the loop's for every send and take it back, which a
    healthy send feels. Here one timer serves all: it stands at the earliest limit, and what has ended in time is passed
    over. For the rest it behaves as `asyncio.timeout` does, but that it cancels more than once: a driver's
    `asyncio.wait_for` on Python 3.11 can swallow a cancellation, and the send would hang (SPEC 3.1).

    Thousands of limits may be reached at one instant, when a broker stops responding. A few are in each turn of the
    loop, so that it is not blocked, and the first ones early, so that the last ones are in time: as early as the sum of
    what those before each limit cost demands. Limits that are further apart than that are kept to the instant.
    ``each``: seconds of an operation for which `run` is given no other limit.
    """

    def __init__(self, each: float = math.inf) -> None:
        self._each = each
        self._limits: list[_Entry] = []  # a heap by limits that may be reached early
        self._exact: list[_Entry] = []  # a heap by instants that are kept: pauses, and what was cancelled once
        self._number = 0  # makes equal instants first come, first served
        self._ended = 0  # of those in the heaps
        self._running = [0, 0]  # operations, and waits
        self._costs = [0.0, 0.0]  # s that the end of each takes where many end, as measured
        self._turns = [0, 0]  # that measured it
        self._measured = False
        self._measured_at = 0.0
        self._begins_at = math.inf  # as last planned: from when on operations are cancelled early,
        self._together = -math.inf  # up to this limit
        self._ahead = [0, 0]  # operations, and waits, that end before that
        self._planned = 0  # of how many that was
        self._plan_again_at = 0.0
        self._last_turn: tuple[float, list[int]] | None = None  # of an unfinished row of turns: its instant, what ended
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._ends_at = math.inf
        self._timeouts: dict[bool, TransportError] = {}  # of the present turn, by whether they may have been applied

    @property
    def lead(self) -> float:
        """Seconds that it takes to end all that runs; 0 unless that is very many.

        A send with less time left than this begins no other attempt: it would end late.
        """
        return self._takes(self._running) if sum(self._running) > AT_ONCE else 0.0

    @property
    def behind(self) -> float:
        """Seconds by which the ends of thousands are late now, because the processor can't keep up."""
        if not self._measured or len(self._limits) <= AT_ONCE:
            return 0.0
        return asyncio.get_running_loop().time() - max(self._limits[0][0], self._begins_at)

    def _cost(self, kind: int) -> float:
        """Seconds that one end takes; before any of its kind was measured, what one of the other kind does."""
        return self._costs[kind] or self._costs[1 - kind]

    def _takes(self, counts: Sequence[int]) -> float:
        """Seconds to end so many of each kind."""
        return (counts[0] * self._cost(0) + counts[1] * self._cost(1)) * _MARGIN

    def _look_at(self, first: float) -> float:
        """When to look at the operation with the earliest limit: at that limit, unless thousands are due with it."""
        now = asyncio.get_running_loop().time()
        plan_at = math.inf
        if now - self._measured_at > _FORGOTTEN:
            # Else one slow minute would end sends early for the rest of the pair's life.
            self._costs, self._turns, self._measured = [0.0, 0.0], [0, 0], False
            self._together = -math.inf
        elif now >= self._plan_again_at:
            self._plan(now)
        elif first > self._together or self._number - self._planned > _MANY:
            plan_at = self._plan_again_at
        # Until then the plan that there is holds: what has begun since makes it late, but never wrong.
        return min(first, plan_at, self._begins_at if first <= self._together else math.inf)

    def _plan(self, now: float) -> None:
        """See when to begin, so that each of those that run ends in time although those before it take theirs."""
        entries = sorted(entry for heap in (self._limits, self._exact) for entry in heap if entry[2].running)
        self._together = -math.inf
        if len(entries) > AT_ONCE:
            each = (self._cost(0) * _MARGIN, self._cost(1) * _MARGIN)
            limits = [at for at, _, _ in entries]
            takes = itertools.accumulate(each[limit.kind] for _, _, limit in entries)
            begins = list(map(operator.sub, limits, takes))
            self._begins_at = min(begins)
            last = begins.index(self._begins_at)
            self._together = limits[last]
            waits = sum(limit.kind for _, _, limit in entries[: last + 1])
            self._ahead = [last + 1 - waits, waits]
        self._planned = self._number
        took = asyncio.get_running_loop().time() - now
        self._plan_again_at = now + max(_PLANNED, _SHARE * took)

    async def run(self, operation: Awaitable[T], limit_at: float | None = None) -> T:
        """Await one operation at a broker until it ends or its limit, an instant of the loop's clock, is reached;
        return its result.

        Raises `TransportError`. A time-out is *unavailable* and may have been applied unless the transport knows that
        it had written nothing; so is any exception that a transport should have mapped and did not: it most likely is
        about a connection, and taking it for a refusal would lose what failover can still save.
        """
        if limit_at is None:
            limit_at = asyncio.get_running_loop().time() + self._each
        with Limit(self, limit_at) as limit:
            return await operation
        failure = limit.take_failure()
        try:
            raise remembered(failure) if failure in self._timeouts.values() else failure
        finally:
            del failure  # its trace has this frame

    async def wait(
        self, future: asyncio.Future[T | None], until: float, *, exact: bool = True, began_at: float = -math.inf
    ) -> T | None:
        """Wait for the result of a future; at the instant ``until`` of the loop's clock the result is None.

        Unless it is to be ``exact``, that may be earlier where thousands of limits are reached together, but not before
        half of the time since ``began_at``.
        """
        if not future.done():
            wait = WaitLimit(self, future, until, exact=exact, began_at=began_at).begin()
            try:
                return await future
            finally:
                wait.end()
        return future.result()

    @staticmethod
    def wake(waiters: Iterable[Waiter]) -> None:
        """Let those who wait go on."""
        in_turns(_wake, tuple(waiters))

    def end_by(self, instant: float) -> None:
        """Let no operation, running or new, last longer than ``instant``."""
        self._ends_at = instant
        for heap in (self._limits, self._exact):
            heap[:] = [entry if entry[2].reached else (min(entry[0], instant), *entry[1:]) for entry in heap]
        self._tidy()
        self._plan_again_at = 0.0
        self._arm()

    def _timeout(self, *, maybe_applied: bool) -> TransportError:
        """The time-out of an operation, shared by all of one turn: sends keep theirs, each would be three objects."""
        if maybe_applied not in self._timeouts:
            text = "no answer within the time limit"
            self._timeouts[maybe_applied] = TransportError(
                text, FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, maybe_applied=maybe_applied
            )
        return self._timeouts[maybe_applied]

    def _tidy(self) -> None:
        for heap in (self._limits, self._exact):
            heap[:] = [entry for entry in heap if entry[2].running]
            heapq.heapify(heap)
        self._ended = 0

    def _arm(self) -> None:
        """Set the timer for the earliest limit of what runs."""
        for heap in (self._limits, self._exact):
            while heap and not heap[0][2].running:
                heapq.heappop(heap)
                self._ended -= 1
        if self._timer is not None:
            self._timer.cancel()
        early = self._limits[0][0] if self._limits else math.inf
        if self._limits and self._measured:
            early = self._look_at(early)
        self._armed_for = min(early, self._exact[0][0] if self._exact else math.inf)
        runs = self._armed_for < math.inf
        self._timer = asyncio.get_running_loop().call_at(self._armed_for, self._reach) if runs else None

    def _reach(self) -> None:
        # A loop may call a timer up to one tick of its clock early.
        now = max(self._armed_for, asyncio.get_running_loop().time())
        if self._last_turn is not None:
            self._measure(now, *self._last_turn)
        self._timeouts = {}
        pauses, reached, looked_at, ended = False, 0, 0, [0, 0]
        most = max(1, min(AT_ONCE, int(_TURN / max(self._costs)))) if self._measured else AT_ONCE
        limits, exact = self._limits, self._exact
        while reached < most and looked_at < _LOOKED_AT:
            looked_at += 1
            early = limits[0][0] if limits else math.inf
            if early <= self._together:
                early = min(early, self._begins_at)
            if exact and exact[0][0] <= early:
                if exact[0][0] > now:
                    break
                _, number, limit = heapq.heappop(exact)
                pauses = True
            elif early > now:
                break
            else:
                at, number, limit = heapq.heappop(limits)
                half = min(at, (at + limit.began_at) / 2)
                if half > now and limit.running:
                    # It has half of its time at least; and what is behind it need not wait for that.
                    heapq.heappush(exact, (half, number, limit))
                    continue
            if not limit.running:
                self._ended -= 1
                continue
            reached += 1
            ended[limit.kind] += 1
            if limit.reach():
                heapq.heappush(exact, (now + _AGAIN, number, limit))
        if self._measured:
            self._begins_at += self._takes(ended)
        self._arm()
        goes_on = reached == most and self._armed_for <= now and not pauses  # which end cheaply: they say nothing
        self._last_turn = (now, ended) if goes_on else None

    def _measure(self, now: float, began: float, ended: list[int]) -> None:
        """See what the last turn has cost, which this one follows."""
        expected = self._takes(ended) / _MARGIN if self._measured else float(sum(ended))
        for kind, count in enumerate(ended):
            if count:
                known, planned = self._costs[kind], self._cost(kind)
                cost = min((self._cost(kind) or 1.0) * (now - began) / expected, 2 * known or _COST)
                self._turns[kind] += 1
                few = self._turns[kind] <= _LEAST_OF
                self._costs[kind] = min(known or cost, cost) if few else 0.9 * known + 0.1 * cost
                # As if it had been planned with that, which would take too long to do each time.
                ahead = min(self._running[kind], self._ahead[kind])
                self._begins_at += (planned - self._costs[kind]) * _MARGIN * ahead
        self._measured, self._measured_at = self._costs != [0.0, 0.0], now


class _Bound:
    """An operation or a wait that has a limit, once it has begun. ``reached`` counts how often."""

    __slots__ = ("_at", "_limits", "began_at", "reached", "running")

    kind: ClassVar[int]
    exact = False
    _at: float
    _limits: TimeLimits
    began_at: float

    def begin(self) -> Self:
        """Let the limit count from now on."""
        limits = self._limits
        at = min(self._at, limits._ends_at)
        self.running = True
        self.reached = 0
        limits._number += 1
        limits._running[self.kind] += 1
        if limits._ended > _MANY and 2 * limits._ended > len(limits._limits) + len(limits._exact):
            limits._tidy()
        entry: _Entry = (at, limits._number, self)
        heapq.heappush(limits._exact if self.exact else limits._limits, entry)
        # As more of them run, `lead` grows.
        if at < limits._armed_for or (not limits._number % _MANY and limits._measured):
            limits._arm()
        return self

    def reach(self) -> bool:
        """End it; returns whether to do so again if it has not ended after a while."""
        raise NotImplementedError


class Limit(_Bound):
    """The limit of one operation, for a ``with`` around it in the same task; see `TimeLimits.run`.

    A failure does not leave the ``with``: it is in ``failure`` then. So a send needs no coroutine for its limit, which
    the garbage collector would go through with all other objects of thousands of sends in flight.
    """

    __slots__ = ("cancelling", "failure", "task")

    kind = 0

    def __init__(self, limits: TimeLimits, at: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a task")
        self._limits = limits
        self._at = at
        self.task = task
        self.began_at = asyncio.get_running_loop().time()
        self.cancelling = task.cancelling()
        self.failure: TransportError | None = None

    __enter__ = _Bound.begin

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.running = False
        self._limits._ended += 1
        self._limits._running[0] -= 1
        if error is None and not self.reached:
            return False  # every healthy send: in few words
        # Its limit, and nothing else, has cancelled it.
        timed_out = self.reached > 0
        for _ in range(self.reached):
            timed_out = self.task.uncancel() <= self.cancelling
        if isinstance(error, TransportError):
            self.failure = error
        elif isinstance(error, asyncio.CancelledError):
            if timed_out:
                # Without the cancellation, which would keep all frames that it went through for as long as its send
                # lasts: with thousands of them the garbage collector stops the loop for seconds.
                self.failure = self._limits._timeout(maybe_applied=not is_nothing_sent(error))
            elif not self.task.cancelling():
                # No caller did this: a driver's own task or future was cancelled, as some do with a lost connection.
                self.failure = _unmapped(error)
        elif isinstance(error, Exception):
            self.failure = _unmapped(error)
        return self.failure is not None

    def reach(self) -> bool:
        """Cancel the operation."""
        self.reached += 1
        self.task.cancel()
        return True

    def take_failure(self) -> TransportError:
        """Give the failure, to be raised: kept here it would be in a circle with the frame that raises it."""
        failure, self.failure = self.failure, None
        assert failure is not None  # noqa: S101  # only a failure ends the `with` without leaving it
        return failure


class WaitLimit(_Bound, Generic[T]):
    """The limit of a wait for a future; see `TimeLimits.wait`. Of `asyncio.wait` each has a timer and a task's turn.

    What begins it calls `end` in any case: a ``with`` would keep one more object for each of thousands that wait.
    """

    __slots__ = ("_future", "exact")

    kind = 1

    def __init__(
        self, limits: TimeLimits, future: asyncio.Future[T | None], at: float, *, exact: bool, began_at: float
    ) -> None:
        self._limits = limits
        self._at = at
        self._future = future
        self.exact = exact
        self.began_at = began_at

    def reach(self) -> bool:
        """Let the one who waits go on."""
        self.running = False
        self._limits._running[1] -= 1
        if not self._future.done():
            self._future.set_result(None)
        return False

    def end(self) -> None:
        """It is waited for no longer."""
        if self.running:
            self.running = False
            self._limits._ended += 1
            self._limits._running[1] -= 1


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(True)


async def settled_within(seconds: float, close: Callable[[], Awaitable[None]]) -> TransportError | None:
    """Await a closing step of a transport, which never fails and ends soon if it keeps its promises; cut it off after
    so many seconds. Return how it failed all the same: by an error, by cancelling itself, or by lasting too long."""
    task = None
    with contextlib.suppress(RuntimeError):  # no running loop
        task = asyncio.current_task()
    if task is None:  # a loop was dropped with its tasks, and the collector ends this one: nothing can be awaited
        return None
    try:
        await TimeLimits(seconds).run(close())
    except TransportError as error:
        return error
    return None


def _unmapped(error: BaseException) -> TransportError:
    made = TransportError(
        f"unexpected {type(error).__name__}: {error}", FailureKind.UNAVAILABLE, FailureReason.OTHER, maybe_applied=True
    )
    made.__cause__ = error
    return made


def remembered(failure: TransportError) -> TransportError:
    """The same failure without its trace, which would hold the messages of the attempt for as long as it is kept."""
    return TransportError(str(failure), failure.kind, failure.reason, maybe_applied=failure.maybe_applied)


async def first(waits: Sequence[Awaitable[object]], seconds: float | None = None) -> None:
    """Return at the first of several events, or after ``seconds``."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def pause(seconds: float, *events: asyncio.Event) -> None:
    """Wait, but not beyond the first of some events."""
    await first([event.wait() for event in events], seconds)


async def end(tasks: Sequence[asyncio.Task[None]], grace: float) -> set[asyncio.Task[None]]:
    """Let tasks end within ``grace`` seconds, then cancel them and wait a moment; at once when cancelled. The late ones
    are returned."""
    if not tasks:
        return set()
    try:
        _, late = await asyncio.wait(tasks, timeout=grace)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=1)
    return late
