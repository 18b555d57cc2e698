"""The channel of a reader that has a queue for itself: what order requires (SPEC 8).

It differs from the plain one because of how a quorum queue with a single active consumer behaves:

- The consumer stays, with the same window as every other one's, and what no caller asked for yet waits here. When a
  consumer is cancelled, the next one is active at once, ahead of what this channel still holds.
- Messages are released by closing the channel, all at once and in their order. One released alone is redelivered
  after those that were released before it. So when the lock of one ends, all that is held is released.
- Markers are received here, and answered once all that preceded them is settled; nothing above sees them.

The queue belongs to this reader while it reads or holds something; soon after that the channel is closed, so that
another one may have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from aiormq.channel import Channel

from pairmq.transport import raise_failure, start_task
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import close_channel
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._link import Opening, Session
from pairmq_rabbitmq._markers import WINDOW, Marker, marker_of
from pairmq_rabbitmq._receiving._delivery_channel import LONGEST_HOLD, DeliveryChannel, give_back_once_open
from pairmq_rabbitmq._receiving._settling import BUSY, GIVEN, GONE, Job, Locked, Share

_REST = 1.0  # s without a call that a reader without messages keeps its queue
_ANSWER = 10.0  # s for an answer, with a connection to be opened first; the caller asks again
_GIVE_BACK = 2.0  # s

_STEP = 0.005  # s
_TAKEN_BACK = 0.25


class GivenBack(Exception):
    """The channel was closed to release what it held; reading continues on another one."""


class OrderedChannel(DeliveryChannel):
    def __init__(
        self,
        session: Session,
        raw: Channel,
        queue: str,
        share: Share,
        lock: float,
        answer: Callable[[Marker], Coroutine[Any, Any, None]],
    ) -> None:
        self._share = share
        self._tell = answer
        self._asked_at = asyncio.get_running_loop().time()  # end of the last call that wanted a message
        self._unproven: dict[int, Locked] = {}
        """Messages whose settlement the broker has not confirmed, by tag, in the order of the tags."""
        self._markers: deque[tuple[Locked, Marker]] = deque()
        self._giving_back: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()
        super().__init__(session, raw, queue, share, lock)
        self._ahead = WINDOW

    @property
    def usable(self) -> bool:
        return self._giving_back is None and super().usable

    def read_ahead(self, messages: int) -> None:
        """Without effect: all readers of such a queue read ahead, with the same window."""

    async def _fetch(self, count: int, deadline: float) -> None:
        await super()._fetch(count, deadline)
        self._asked_at = self._loop.time()
        if self.usable:
            self._look_at(self._asked_at + _REST)

    def delivered(self, tag: int, redelivered: bool, header: bytes, body: bytes) -> None:
        if self.cause is not None:
            return
        marker = marker_of(header, body)
        if marker is None:
            super().delivered(tag, redelivered, header, body)
            self._unproven[tag] = self.waiting[-1]
            if self._giving_back is not None:
                self.waiting.pop().state = GONE
            return
        locked = Locked(tag, redelivered, header, body, self._loop.time(), math.inf)
        locked.state = BUSY
        self._settling.add(locked)
        self._share.count -= 1  # markers are not counted as messages
        self._markers.append((locked, marker))
        self._answer_markers()

    def settle(self, messages: Sequence[Locked], *, requeue: bool) -> Job:
        """Begin to settle messages that were passed to a caller, or withdrawn; releasing one releases all."""
        if requeue:
            return self._give_all_back(messages)
        job = super().settle(messages, requeue=False)
        job.done.add_done_callback(lambda done: self._settled(messages, done.result()))
        return job

    def _settled(self, messages: Sequence[Locked], cause: BaseException | None) -> None:
        if cause is None:
            for locked in messages:
                self._unproven.pop(locked.tag, None)
            self._answer_markers()
            if not self._unproven and self.usable:
                self._look_at(self._loop.time() + _REST)

    def _answer_markers(self) -> None:
        oldest = next(iter(self._unproven), math.inf)
        met: list[tuple[Locked, Marker]] = []
        while self._markers and self._markers[0][0].tag < oldest:
            met.append(self._markers.popleft())
        if met:
            start_task(self._answer(met), loop=self._loop, keep=self._answers)

    async def _answer(self, met: Sequence[tuple[Locked, Marker]]) -> None:
        # One that can't be answered now is removed all the same: the asker publishes another one.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_ANSWER):
                for _, marker in met:
                    with contextlib.suppress(Exception):
                        await self._tell(marker)
        if self.usable:
            self._share.count += len(met)  # as settling subtracts them
            super().settle([locked for locked, _ in met], requeue=False)

    def _give_all_back(self, messages: Sequence[Locked]) -> Job:
        """Release all that is held, by closing the channel once the settlements in progress are done."""
        job = Job(messages, requeue=True)
        for locked in messages:
            locked.job = job
        if self.cause is not None:
            job.end(Unsent(self.cause))
            return job
        if self._giving_back is None:
            for locked in self._settling.unsettled.values():
                locked.state = GONE
            self.waiting.clear()
            self._giving_back = start_task(self._give_back(), loop=self._loop)
            self.stop()
        self._giving_back.add_done_callback(lambda _: job.end(None))
        return job

    async def _give_back(self) -> None:
        with contextlib.suppress(Exception):  # closed already, and what was locked on it is requeued
            async with asyncio.timeout(_GIVE_BACK):
                await self._settling.idle()
                self.lose(GivenBack("it was released"))
                await self._call(close_channel(self._raw))
        self.discard()

    def _end_locks(self) -> None:
        self._timer, self._looks_at = None, math.inf
        if not self.usable:
            return
        now, half = self._loop.time(), self._lock / 2
        given = [one for one in self._settling.unsettled.values() if one.state is GIVEN]
        instants = [one.until for one in given]
        if self._unproven:
            instants.append(next(iter(self._unproven.values())).arrived + LONGEST_HOLD)
        elif self.fetching is None:
            instants.append(self._asked_at + _REST)
        if self.waiting and not given and self.fetching is None:
            # No caller asked for what waits here.
            instants.append(max(self._asked_at, self.waiting[0].arrived) + half)
        if any(instant <= now for instant in instants):
            self._give_all_back(())
        elif instants or self.waiting:
            self._look_at(min([*instants, now + half]))

    def lose(self, cause: BaseException) -> None:
        super().lose(cause)
        self._unproven.clear()
        self._markers.clear()

    def _give_rest_back(self) -> None:
        """Without effect: closing the channel releases them, and some must not be released before the others."""


def ordered_channel(context: Context, session: Session, raw: Channel, queue: str) -> OrderedChannel:
    share = Share(context.url.endpoint.identity, queue)
    return OrderedChannel(
        session,
        raw,
        queue,
        share,
        context.url.lock_duration,
        lambda marker: context.answers.answer(marker, f"answer a marker of {queue}"),
    )


async def visit(
    context: Context, queue: str, doing: str, enough: Callable[[OrderedChannel], bool], patience: float
) -> list[Locked]:
    """Read a queue for a moment as its one consumer, and release all that arrived, in its order, also if cancelled.

    Markers among the messages are answered; while another consumer reads the queue, nothing arrives.
    """
    try:
        session = await context.consuming_of(queue).session()
        opening = Opening[Channel](lambda opening: opening.on(session).open_channel(confirms=False))
        try:
            await asyncio.wait((opening.task,))
        except asyncio.CancelledError:
            give_back_once_open(opening)
            raise
        channel = ordered_channel(context, session, opening.task.result(), queue)
    except Unsent as error:
        raise_failure(_errors.failure(error, doing))
    try:
        until = asyncio.get_running_loop().time() + patience
        fetching = channel.fetch(1, until)
        while not enough(channel) and channel.cause is None and asyncio.get_running_loop().time() < until:
            await asyncio.wait((fetching,), timeout=_STEP)
            if fetching.done():  # there is a message, and more may be in transit
                await asyncio.sleep(_STEP)
        if channel.cause is not None:
            raise _errors.failure(channel.cause, doing)
        found = list(channel.waiting)
        await channel.close(patience)
    finally:
        channel.discard()
    # The queue takes a moment to requeue them, and reports too few until then; another consumer may get them first.
    until = asyncio.get_running_loop().time() + _TAKEN_BACK
    while found and asyncio.get_running_loop().time() < until:
        back, _ = await context.count(queue, doing)
        if back >= len(found):
            break
        await asyncio.sleep(_STEP)
    return found
