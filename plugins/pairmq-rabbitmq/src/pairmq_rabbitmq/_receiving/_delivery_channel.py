"""One channel on which messages of one queue arrive while a caller asks for them, and stay locked until settled.

The broker keeps a message locked as long as the channel lives. The end of a lock is tracked here: a message whose time
is over is released.

RabbitMQ delivers to a consumer as much as its window allows, whether a caller asks or not. So a consumer's window is no
larger than a call of ``receive`` asked for: what was not asked for stays in the queue, for the next caller. It ends
with the call, or, with its window used up, before the first settlement.

For a reader that continues without a pause (`read_ahead`) the consumer stays, with the window that it was given.

What a quorum queue sends while its consumer is being cancelled, it requeues, and counts as a delivery that no consumer
has seen. So a window is only as large as the number of ready messages (one, while a call waits for the first message):
then it is used up, and nothing more is sent by the time it is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from aiormq.channel import Channel

from pairmq.transport import start_task
from pairmq_rabbitmq._driver import close_channel, consume
from pairmq_rabbitmq._link import Opening, Session
from pairmq_rabbitmq._receiving._settling import (
    BUSY,
    GIVEN,
    GONE,
    SETTLING,
    WAITING,
    Calls,
    Job,
    Locked,
    Settling,
    Share,
)
from pairmq_rabbitmq._wire import Taker

LONGEST_HOLD: Final = 25 * 60.0
"""Seconds after which no lock is renewed: the broker closes a channel with a delivery that is unsettled for 30 min."""

_LAST_END = 29 * 60.0
_LEAST_PAUSE = 0.005  # s between two checks of the locks

MAX_WINDOW: Final = 10_000
"""Most messages of one call; the next one returns more."""

_MOST_AHEAD = 10_000
_QUIET_TURNS = 3  # of the loop without a message, after which no more lies in the buffers of this process
_FRESH = 0.1  # s: a younger consumer may not have received what was in the queue before it
_LOOK = 0.5  # s
_LOOK_AGAIN = 0.02

_numbers = itertools.count(1)


def give_back_once_open(opening: Opening[Channel]) -> None:
    """Close a channel that is still being opened, and that no caller waits for any more."""

    def give(task: asyncio.Task[Channel]) -> None:
        if not task.cancelled() and task.exception() is None and opening.session is not None:
            opening.session.give_back(task.result())

    opening.task.add_done_callback(give)


class Cancelled(Exception):
    """The broker cancelled the consumer: the queue was deleted, or has failed or moved."""


class _Standing:
    """Consumers that stay, with a window together; what they get has tags ``behind`` this one."""

    __slots__ = ("behind", "consumers", "window")

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.consumers: list[str] = []
        self.window = 0


class DeliveryChannel(Taker):
    """A channel to read a queue, each of whose messages stays locked for so many seconds.

    A subclass sets all its own attributes before it calls this constructor, which calls `lose` at once for a connection
    that is lost already.
    """

    def __init__(self, session: Session, raw: Channel, queue: str, share: Share, lock: float) -> None:
        self.session = session
        self.cause: BaseException | None = None
        self.waiting: deque[Locked] = deque()
        """What arrived and was not returned to a caller yet, in the broker's order."""
        self.fetching: asyncio.Task[None] | None = None
        self._raw = raw
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        """When the last message arrived, or the channel was opened."""
        self._call = Calls(session)
        self._settling = Settling(raw, queue, self._call, share, self.lose)
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf  # when it fires
        self._queue = queue
        self._prefetch = 0
        self._room = 0  # messages that the broker may still send
        self._stopped = False
        self._news: asyncio.Future[None] | None = None
        self._ahead = 0  # window that was asked for
        self._standing: _Standing | None = None
        session.wire.take(raw.number, self)
        # It is never removed: the driver calls it in a loop over this set, and its reader would end with a set that
        # changes meanwhile. The broker's Channel.Close would then get no answer, and the next channel with this number
        # would end the connection: "second 'channel.open' seen".
        raw.on_consumer_cancel_callbacks.add(self._on_consumer_cancel)
        raw.closing.add_done_callback(self._on_closing)
        session.users += 1
        session.on_end(self.lose)

    @property
    def usable(self) -> bool:
        return self.cause is None and self.session.usable

    @property
    def empty(self) -> bool:
        """Whether nothing would be lost with it: no message is locked on it, or being settled."""
        return self._settling.empty

    @property
    def silent(self) -> bool:
        """Whether nothing was received from the broker since a request, some time ago."""
        return self._call.silent()

    def stuck(self, seconds: float | None = None) -> bool:
        """Whether the broker has not replied for long: a queue without a leader makes its channels wait."""
        return self._call.stuck(seconds)

    def give(self, messages: Sequence[Locked]) -> None:
        """Pass the first messages of `waiting` to a caller; their locks begin."""
        until = self._loop.time() + self._lock
        for locked in messages:
            self.waiting.popleft()
            locked.state = GIVEN
            locked.until = min(until, locked.arrived + _LAST_END)
            if locked.until < self._looks_at:
                self._look_at(locked.until)

    def withdraw(self, locked: Locked) -> None:
        """Remove a message that no caller is to get from `waiting`."""
        self.waiting.remove(locked)
        locked.state = BUSY

    def settle(self, messages: Sequence[Locked], *, requeue: bool) -> Job:
        """Begin to settle messages that were passed to a caller, or withdrawn; as `Settling.settle`."""
        return self._settling.settle(messages, requeue=requeue)

    def is_locked(self, locked: Locked) -> bool:
        return self.usable and locked.state is GIVEN and locked.until > self._loop.time()

    def renew(self, locked: Locked) -> bool:
        """Restart the lock of a message, without the broker; False when it has ended, and the message is released."""
        now = self._loop.time()
        if not self.usable or locked.state is GONE:
            return False
        if locked.state is not GIVEN:
            return locked.job is None or not locked.job.requeue  # being completed or dead-lettered
        if locked.until <= now:
            return False
        if now >= locked.arrived + min(LONGEST_HOLD, _LAST_END - self._lock):
            self.settle([locked], requeue=True)
            return False
        locked.until = now + self._lock
        return True

    def is_held_long(self, locked: Locked) -> bool:
        """Whether a message must be released, as the broker would soon close the channel because of it."""
        return self._loop.time() >= locked.arrived + LONGEST_HOLD

    def watch(self, locked: Locked) -> None:
        """Resume checking the lock of a message that was exempt while being dead-lettered."""
        if locked.state is GIVEN and self.cause is None:
            self._look_at(max(locked.until, self._loop.time() + _LEAST_PAUSE))

    def _look_at(self, instant: float) -> None:
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
            if locked.state not in (WAITING, GIVEN):
                continue
            if locked.until <= now:
                over.append(locked)
            elif next_end is None or locked.until < next_end:
                next_end = locked.until
        if any(locked.state is WAITING for locked in over):
            gone = set(map(id, over))
            self.waiting = deque(locked for locked in self.waiting if id(locked) not in gone)
        if over:
            self.settle(over, requeue=True)
        if next_end is not None:
            self._look_at(max(next_end, now + _LEAST_PAUSE))

    def lose(self, cause: BaseException) -> None:
        """Stop using it: what is not settled will be delivered again."""
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
        self.session.wire.leave(self._raw.number, self)
        self._wake()

    def discard(self) -> None:
        """Close the channel in the background, which releases everything that is locked on it."""
        self.lose(ConnectionAbortedError("the channel was given up"))
        self.session.give_back(self._raw)

    def _give_rest_back(self) -> None:
        rest = [one for one in self._settling.unsettled.values() if one.state is not SETTLING]
        if rest and self.cause is None:
            self.waiting.clear()
            # Closing the channel would release them as well, but some time later.
            self.settle(rest, requeue=True)

    def _on_closing(self, closing: asyncio.Future[Any]) -> None:
        if not closing.cancelled():
            self.lose(closing.exception() or ConnectionAbortedError("the channel was closed"))

    @property
    def reads_ahead(self) -> bool:
        """Whether messages arrive without being asked for."""
        return self._standing is not None and self._standing.window == self._ahead

    def read_ahead(self, messages: int) -> None:
        """Allow this number of unsettled messages here, asked for or not; 0 for none that were not asked for."""
        self._ahead = min(messages, _MOST_AHEAD)
        if not self._ahead and self._standing is not None and self.fetching is None and self.usable:
            self.fetching = start_task(self._fetch(0, 0.0), loop=self._loop)

    def fetch(self, count: int, deadline: float) -> asyncio.Task[None]:
        """Begin to fetch messages into `waiting`, the first until an instant of the loop's clock; `cause` reports a
        failure.

        The task is not to be cancelled: `stop` it. There is one at a time.
        """
        self._stopped = False
        self.fetching = start_task(self._fetch(min(count, MAX_WINDOW), deadline), loop=self._loop)
        return self.fetching

    def stop(self) -> None:
        """The caller stopped waiting for what is being fetched; what arrives stays for the next call."""
        self._stopped = True
        self._wake()

    def delivered(self, tag: int, redelivered: bool, header: bytes, body: bytes) -> None:
        if self.cause is not None:
            return
        now = self.heard_at = self._loop.time()
        # No caller asked for it yet: it is released when half a lock is over.
        until = now + self._lock / 2
        locked = Locked(tag, redelivered, header, body, now, until)
        self._settling.add(locked)
        self.waiting.append(locked)
        if self._room:
            self._room -= 1
        if until < self._looks_at:
            self._look_at(until)
        if self._news is not None:
            self._wake()

    async def close(self, timeout: float) -> bool:
        """Release everything and close the channel; what the broker has not handled in time, it handles later.

        False if the broker sent nothing at all.
        """
        silent = False
        try:
            async with asyncio.timeout(timeout):
                self.stop()
                if self.fetching is not None:
                    await asyncio.wait((self.fetching,))
                self._give_rest_back()
                await self._settling.idle()
                if self.usable:
                    await self._call(close_channel(self._raw))
        except TimeoutError:
            silent = self.silent
        except Exception:
            # The connection ended meanwhile; the broker requeues what was locked on it.
            silent = False
        finally:
            self.lose(ConnectionAbortedError("the receiver was closed"))
            self.session.give_back(self._raw)
        return not silent

    async def _fetch(self, count: int, deadline: float) -> None:
        try:
            if self._standing is not None and self._standing.window > self._ahead:
                standing, self._standing = self._standing, None
                await self._end(standing.consumers, standing.behind, standing.window)
            if self._ahead and count:
                await self._read_on(deadline)
                return
            while len(self.waiting) < count and not self._stopped and self.cause is None:
                there = await self._settling.ask()
                if self.waiting and not there:
                    return
                # No larger than the number of ready messages, so that it is used up; with none, a window of one waits.
                used_up = await self._open(min(max(there, 1), count - len(self.waiting)), deadline)
                if not used_up:
                    return
        except Exception as error:
            self.lose(error)
        finally:
            self.fetching = None

    async def _read_on(self, deadline: float) -> None:
        if self._standing is None:
            self._standing = _Standing(self._settling.newest)
        if more := self._ahead - self._standing.window:
            self._standing.consumers.append(await self._consume(more))
            self._standing.window += more
        if deadline <= self._loop.time():
            self._room = MAX_WINDOW
            await self._look()
        await self._first(deadline)

    async def _end(self, consumers: Sequence[str], behind: int, window: int) -> None:
        held = sum(1 for _ in itertools.takewhile(lambda tag: tag > behind, reversed(self._settling.unsettled)))
        if held >= window:
            self._settling.cancel_later(*consumers)
            return
        for consumer in consumers:
            await self._call(self._raw.basic_cancel(consumer))

    async def _consume(self, window: int) -> str:
        """Open a consumer; returns its tag."""
        if self._prefetch != window:
            await self._call(self._raw.basic_qos(prefetch_count=window))
            self._prefetch = window
        self._room = window
        tag = f"pairmq-{next(_numbers)}"
        await self._call(consume(self._raw, self._queue, tag, _unused))
        return tag

    async def _open(self, count: int, deadline: float) -> bool:
        """Let at most this number of messages arrive; returns whether all of them have."""
        before, behind = len(self.waiting), self._settling.newest
        tag = await self._consume(count)
        opened_at = self._loop.time()
        if not before:
            await self._first(deadline)
        if self._room == count and not self._stopped and self._loop.time() - opened_at < _FRESH:
            await self._look()
        await self._collect()
        if self.cause is not None:
            return False
        if self._room:
            # The reply comes after all that was sent.
            await self._call(self._raw.basic_cancel(tag))
            return False
        await self._end([tag], behind, count)
        return True

    @property
    def _idle(self) -> bool:
        """Whether there is no point in waiting for a first message."""
        return bool(self.waiting) or self._stopped or self.cause is not None

    async def _first(self, deadline: float) -> None:
        while not self._idle and self._loop.time() < deadline:
            await self._news_by(deadline)

    async def _news_by(self, instant: float) -> None:
        """Wait until something has happened, at most until an instant."""
        timer = self._loop.call_at(instant, self._wake)
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None
            timer.cancel()

    async def _look(self) -> None:
        """Make sure that all messages that were ready before have arrived: ask for their number, and wait for them."""
        room, give_up_at = self._room, self._loop.time() + _LOOK
        while await self._settling.ask() and self._room == room and self._loop.time() < give_up_at:
            if self._stopped or self.cause is not None:
                return
            await self._news_by(self._loop.time() + _LOOK_AGAIN)

    async def _collect(self) -> None:
        """Once there is a message, wait for those in transit."""
        room, quiet = self._room, 0
        while self.waiting and self._room and quiet < _QUIET_TURNS and self.cause is None:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._room == room else 0
            room = self._room

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _on_consumer_cancel(self, frame: Any) -> None:
        self.lose(Cancelled("the broker cancelled the consumer"))


async def _unused(_: Any) -> None:
    """Registered with the driver in place of a consumer's callback."""
