"""What one channel holds: messages under lock, until they are settled, given back or lost with it.

The broker keeps a message locked as long as the channel lives. The end of a lock is ours: a message whose time is over
is given back.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from aiormq.channel import Channel

from pairmq_rabbitmq._receiving._held import Share
from pairmq_rabbitmq._receiving._opening import give_back
from pairmq_rabbitmq._receiving._settling import Calls, Job, Locked, Settling, State
from pairmq_rabbitmq._session import Session

LONGEST_HOLD: Final = 25 * 60.0
"""Seconds after which no lock is renewed: the broker closes a channel with a delivery that is unsettled for 30 min."""

_LAST_END = 29 * 60.0
_LEAST_PAUSE = 0.005  # s between two looks at the locks


class LockingChannel:
    """A channel with messages of one queue; what brings them is a subclass's business.

    A subclass has all its own attributes before it calls this constructor: a connection that is lost already is told
    of at once, by `lose`.

    Args:
        session: the connection that it is on.
        raw: the driver's channel, fresh.
        queue: the broker's name of the queue.
        share: counts what it holds.
        lock: seconds that a lock lasts.
    """

    def __init__(self, session: Session, raw: Channel, queue: str, share: Share, lock: float) -> None:
        self.session = session
        self.cause: BaseException | None = None
        self.waiting: deque[Locked] = deque()
        """What came and was not given to anyone yet, in the broker's order."""
        self._raw = raw
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._call = Calls(session)
        self._settling = Settling(raw, queue, self._call, share, self.lose)
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf  # when it fires
        raw.closing.add_done_callback(self._on_closing)
        session.users += 1
        session.on_end(self.lose)

    @property
    def usable(self) -> bool:
        """Whether it is open, as far as anybody knows."""
        return self.cause is None and self.session.usable

    @property
    def empty(self) -> bool:
        """Whether nobody would lose anything with it: nothing is locked on it, or being settled."""
        return self._settling.empty

    @property
    def silent(self) -> bool:
        """Whether nothing has come from the broker since something was asked, some time ago."""
        return self._call.silent()

    def stuck(self, seconds: float | None = None) -> bool:
        """Whether the broker has owed an answer for long: a queue without a leader makes its channels wait."""
        return self._call.stuck(seconds)

    def give(self, messages: Sequence[Locked]) -> None:
        """Give the first messages of `waiting` to a caller; their locks begin."""
        until = self._loop.time() + self._lock
        for locked in messages:
            self.waiting.popleft()
            locked.state = State.GIVEN
            locked.until = min(until, locked.arrived + _LAST_END)
            if locked.until < self._looks_at:
                self._look_at(locked.until)

    def set_aside(self, locked: Locked) -> None:
        """Take a message that nobody is to get out of `waiting`."""
        self.waiting.remove(locked)
        locked.state = State.BUSY

    def settle(self, messages: Sequence[Locked], *, requeue: bool) -> Job:
        """Begin to settle messages that were given, or set aside; as `Settling.settle`."""
        return self._settling.settle(messages, requeue=requeue)

    def is_locked(self, locked: Locked) -> bool:
        """Whether a message that was given can still be settled."""
        return self.usable and locked.state is State.GIVEN and locked.until > self._loop.time()

    def renew(self, locked: Locked) -> bool:
        """Let the lock of a message last anew, without asking the broker.

        Returns:
            False when it is over; then the message is given back.
        """
        now = self._loop.time()
        if not self.usable or locked.state is State.GONE:
            return False
        if locked.state is not State.GIVEN:
            return locked.job is None or not locked.job.requeue  # under way to where it shall be
        if locked.until <= now:
            return False
        if now >= locked.arrived + min(LONGEST_HOLD, _LAST_END - self._lock):
            self.settle([locked], requeue=True)
            return False
        locked.until = now + self._lock
        return True

    def is_held_long(self, locked: Locked) -> bool:
        """Whether it is time to give a message back, as the broker would soon close the channel over it."""
        return self._loop.time() >= locked.arrived + LONGEST_HOLD

    def watch(self, locked: Locked) -> None:
        """Look after the lock of a message again that was out of the hands of a caller for a while."""
        if locked.state is State.GIVEN and self.cause is None:
            self._look_at(max(locked.until, self._loop.time() + _LEAST_PAUSE))

    def _look_at(self, instant: float) -> None:
        """See to it that somebody looks after the locks at an instant, or before."""
        if self._looks_at <= instant:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = instant
        self._timer = self._loop.call_at(instant, self._end_locks)

    def _end_locks(self) -> None:
        self._timer, self._looks_at = None, math.inf
        now = self._loop.time()
        over: list[Locked] = []
        next_end: float | None = None
        for locked in self._settling.unsettled.values():
            if locked.state not in (State.WAITING, State.GIVEN):
                continue
            if locked.until <= now:
                over.append(locked)
            elif next_end is None or locked.until < next_end:
                next_end = locked.until
        if any(locked.state is State.WAITING for locked in over):
            gone = set(map(id, over))
            self.waiting = deque(locked for locked in self.waiting if id(locked) not in gone)
        if over:
            self.settle(over, requeue=True)
        if next_end is not None:
            self._look_at(max(next_end, now + _LEAST_PAUSE))

    def lose(self, cause: BaseException) -> None:
        """Use it no more: what is not settled will be delivered again."""
        if self.cause is not None:
            return
        self.cause = cause if isinstance(cause, Exception) else ConnectionResetError("the connection was lost")
        self.session.remove_on_end(self.lose)
        self.session.users -= 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._looks_at = None, math.inf
        self.waiting.clear()
        self._settling.lose(self.cause)

    def discard(self) -> None:
        """Give the channel back to the broker some time, and all that is locked on it."""
        self.lose(ConnectionAbortedError("the channel was given up"))
        give_back(self.session, self._raw)

    def _give_rest_back(self) -> None:
        """Begin to give back what is held."""
        rest = [one for one in self._settling.unsettled.values() if one.state is not State.SETTLING]
        if rest and self.cause is None:
            self.waiting.clear()
            # Closing the channel would give them back as well, but some time later.
            self.settle(rest, requeue=True)

    def _on_closing(self, closing: asyncio.Future[Any]) -> None:
        if not closing.cancelled():
            self.lose(closing.exception() or ConnectionAbortedError("the channel was closed"))
