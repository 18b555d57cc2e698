"""One channel on which messages of one queue come while somebody asks for them.

RabbitMQ delivers to a consumer as much as its window allows, whether anybody asks or not. So there is a consumer only
while a call of ``receive`` lasts, with a window no larger than the call asked for: what nobody asked for stays in the
queue, for whoever asks next.

For a reader that goes on without a pause (`read_ahead`) the consumer stays, with the window that it was given.

What a quorum queue sends while its consumer is being cancelled, it takes back, and counts as a delivery that nobody
has seen. So a window is only as large as what is there (one, while a call waits for the first message): then it is used
up, and nothing more is sent by the time it is closed.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final

from aiormq.channel import Channel

from pairmq.transport import start_task
from pairmq_rabbitmq._channel import close_channel
from pairmq_rabbitmq._receiving._held import Share
from pairmq_rabbitmq._receiving._locking import LockingChannel
from pairmq_rabbitmq._receiving._opening import give_back
from pairmq_rabbitmq._receiving._settling import Locked
from pairmq_rabbitmq._session import Session

MAX_WINDOW: Final = 10_000
"""Most messages of one call; the next one brings more."""

_MOST_AHEAD = 10_000
_QUIET_TURNS = 3  # of the loop without a message, after which no more lies in the buffers of this process
_FRESH = 0.1  # s: a consumer that is so young may not have got what was there before it
_LOOK = 0.5  # s
_LOOK_AGAIN = 0.02

_numbers = itertools.count(1)


class Cancelled(Exception):
    """The broker cancelled the consumer: the queue was deleted, or has failed or moved."""


class DeliveryChannel(LockingChannel):
    """A channel to read a queue.

    Args:
        session: the connection that it is on.
        raw: the driver's channel, fresh.
        queue: the broker's name of the queue.
        share: counts what it holds.
        lock: seconds that a lock lasts.
    """

    def __init__(self, session: Session, raw: Channel, queue: str, share: Share, lock: float) -> None:
        self.fetching: asyncio.Task[None] | None = None
        self._queue = queue
        self._prefetch = 0
        self._room = 0  # messages that the broker may still send
        self._stopped = False
        self._news: asyncio.Future[None] | None = None
        self._ahead = 0  # window that was asked for
        self._standing: tuple[str, int] | None = None  # the consumer that stays, and its window
        session.wire.lane.open(raw.number, self)
        # It stays there: the driver calls it in a loop over this set, and its reader would end with a set that changes
        # meanwhile. The broker's Channel.Close would then get no answer, and the next channel with this number would
        # end the connection: "second 'channel.open' seen".
        raw.on_consumer_cancel_callbacks.add(self._on_consumer_cancel)
        super().__init__(session, raw, queue, share, lock)

    @property
    def reads_ahead(self) -> bool:
        """Whether messages come without being asked for."""
        return self._standing is not None and self._standing[1] == self._ahead

    def read_ahead(self, messages: int) -> None:
        """Let so many messages be unsettled here, asked for or not; 0 for none that were not asked for."""
        self._ahead = min(messages, _MOST_AHEAD)
        if not self._ahead and self._standing is not None and self.fetching is None and self.usable:
            self.fetching = start_task(self._fetch(0, 0.0), loop=self._loop)

    def fetch(self, count: int, deadline: float) -> asyncio.Task[None]:
        """Begin to bring messages to `waiting`; what goes wrong is told by `cause`.

        Args:
            count: most messages.
            deadline: instant of the loop's clock by which the first has come, if there is one.

        Returns:
            The task that does it, not to be cancelled: `stop` it. There is one at a time.
        """
        self._stopped = False
        self.fetching = start_task(self._fetch(min(count, MAX_WINDOW), deadline), loop=self._loop)
        return self.fetching

    def stop(self) -> None:
        """Nobody waits any more for what is being fetched; what comes stays for the next call."""
        self._stopped = True
        self._wake()

    def delivered(self, tag: int, redelivered: bool, header: bytes, body: bytes) -> None:
        """Take a message from the wire."""
        if self.cause is not None:
            return
        now = self._loop.time()
        # Nobody asked for it yet: it is given back when half a lock is over.
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

    def returned(self, header: bytes) -> None:
        """Not here: nothing is published on this channel."""

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        """Not here."""

    def lose(self, cause: BaseException) -> None:
        """Use it no more: what is not settled will be delivered again."""
        super().lose(cause)
        self.session.wire.lane.close(self._raw.number, self)
        self._wake()

    async def close(self, timeout: float) -> bool:
        """Give everything back, and the channel to the broker; what that has not taken in time, it takes later.

        Args:
            timeout: seconds.

        Returns:
            Whether the broker has taken it; False if it said nothing at all.
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
            # The connection ended meanwhile; the broker gives back what was locked on it.
            silent = False
        finally:
            self.lose(ConnectionAbortedError("the receiver was closed"))
            give_back(self.session, self._raw)
        return not silent

    async def _fetch(self, count: int, deadline: float) -> None:
        try:
            if self._standing is not None and not self.reads_ahead:
                (tag, _), self._standing = self._standing, None
                await self._call(self._raw.basic_cancel(tag))
            if self._ahead and count:
                await self._read_on(deadline)
                return
            while len(self.waiting) < count and not self._stopped and self.cause is None:
                there = await self._settling.ask()
                if self.waiting and not there:
                    return
                # No larger than what is there, so that it is used up; with nothing there, a window of one waits.
                used_up = await self._open(min(max(there, 1), count - len(self.waiting)), deadline)
                if not used_up:
                    return
        except Exception as error:
            self.lose(error)
        finally:
            self.fetching = None

    async def _read_on(self, deadline: float) -> None:
        """Let messages come from now on, and wait for the first."""
        if self._standing is None:
            window = self._ahead
            self._standing = (await self._consume(window), window)
        if deadline <= self._loop.time():
            self._room = MAX_WINDOW
            await self._look()
        await self._first(deadline)

    async def _consume(self, window: int) -> str:
        """Open a consumer; gives its tag."""
        if self._prefetch != window:
            await self._call(self._raw.basic_qos(prefetch_count=window))
            self._prefetch = window
        self._room = window
        tag = f"pairmq-{next(_numbers)}"
        await self._call(self._raw.basic_consume(self._queue, _unused, consumer_tag=tag))
        return tag

    async def _open(self, count: int, deadline: float) -> bool:
        """Let up to so many messages come; tells whether all of them have."""
        before = len(self.waiting)
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
            # The answer comes behind all that was sent.
            await self._call(self._raw.basic_cancel(tag))
            return False
        await self._call(self._raw.basic_cancel(tag, nowait=True))
        return True

    @property
    def _idle(self) -> bool:
        """Whether there is no use in waiting for a first message."""
        return bool(self.waiting) or self._stopped or self.cause is not None

    async def _first(self, deadline: float) -> None:
        """Wait for a message until an instant."""
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
        """Make sure that what was in the queue before has come: ask, and wait for what the answer promises."""
        room, give_up_at = self._room, self._loop.time() + _LOOK
        while await self._settling.ask() and self._room == room and self._loop.time() < give_up_at:
            if self._stopped or self.cause is not None:
                return
            await self._news_by(self._loop.time() + _LOOK_AGAIN)

    async def _collect(self) -> None:
        """Once there is a message, let those come that are on their way."""
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
    """Stands for a consumer's callback in the driver's books."""
