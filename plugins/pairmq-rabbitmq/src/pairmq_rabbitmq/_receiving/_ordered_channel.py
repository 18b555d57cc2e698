"""The channel of a reader that has a queue for itself: what order needs (SPEC 8).

It differs from the plain one in what a quorum queue with a single active consumer makes of it:

- The consumer stays, with the same window as every other one's, and what no caller asked for yet waits here. A consumer
  that is cancelled lets the next one on at once, ahead of what this channel still holds.
- Messages are given back by closing the channel, all at once and in their order. One that is given back alone comes
  again behind those that were given back before it. So when the lock of one ends, all that is held is given back.
- Markers are met here, and answered once all that came before them is settled; nothing above sees them.

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

from pairmq.transport import QueueProperties, start_task
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import close_channel
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._inspection import interrogate
from pairmq_rabbitmq._link import Link, Session
from pairmq_rabbitmq._markers import WINDOW, Marker, marker_of
from pairmq_rabbitmq._names import dead_letter_of
from pairmq_rabbitmq._properties import QUEUE_TYPE, SINGLE_CONSUMER, arguments_of, is_single
from pairmq_rabbitmq._receiving._delivery_channel import LONGEST_HOLD, MAX_WINDOW, DeliveryChannel, Opening
from pairmq_rabbitmq._receiving._settling import Job, Locked, Share, State

_REST = 1.0  # s without a call that an empty-handed reader keeps its queue
_ANSWER = 10.0  # s for an answer, with a connection to be made first; the caller asks again
_GIVE_BACK = 2.0  # s

_BARE = {QUEUE_TYPE: "quorum", SINGLE_CONSUMER: True}
_LIKELY = QueueProperties(max_size_megabytes=5120, max_delivery_count=2**31 - 1, single_consumer=True)
_STEP = 0.005  # s
_TAKEN_BACK = 0.25


class GivenBack(Exception):
    """The channel was closed to give back what it held; another one reads on."""


class OrderedChannel(DeliveryChannel):
    """A channel to read a queue that is for one consumer at a time.

    Args:
        lock: seconds that a lock lasts.
    """

    def __init__(
        self,
        session: Session,
        raw: Channel,
        queue: str,
        share: Share,
        lock: float,
        answer: Callable[[Sequence[Marker]], Coroutine[Any, Any, None]],
    ) -> None:
        self._share = share
        self._tell = answer
        self._consuming = False
        self._asked_at = asyncio.get_running_loop().time()  # end of the last call that wanted a message
        self._unproven: dict[int, Locked] = {}
        """Messages that the broker has not confirmed to be settled, by tag, in the order of the tags."""
        self._markers: deque[tuple[Locked, Marker]] = deque()
        self._giving_back: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()
        super().__init__(session, raw, queue, share, lock)

    @property
    def usable(self) -> bool:
        """Whether it is open, as far as is known, and nothing is being given back."""
        return self._giving_back is None and super().usable

    @property
    def reads_ahead(self) -> bool:
        """Whether messages come without being asked for."""
        return self._consuming

    def read_ahead(self, messages: int) -> None:
        """Nothing to do: all readers of such a queue read ahead, and equally far."""

    async def _fetch(self, count: int, deadline: float) -> None:
        try:
            if not self._consuming:
                await self._consume(WINDOW)
                self._consuming = True
            if deadline <= self._loop.time():
                self._room = MAX_WINDOW
                await self._look()
            await self._first(deadline)
        except Exception as error:
            self.lose(error)
        finally:
            self.fetching = None
            self._asked_at = self._loop.time()
            if self.usable:
                self._look_at(self._asked_at + _REST)

    def delivered(self, tag: int, redelivered: bool, header: bytes, body: bytes) -> None:
        """Take a message from the wire, or a marker."""
        if self.cause is not None:
            return
        marker = marker_of(header, body)
        if marker is None:
            super().delivered(tag, redelivered, header, body)
            self._unproven[tag] = self.waiting[-1]
            if self._giving_back is not None:
                self.waiting.pop().state = State.GONE
            return
        locked = Locked(tag, redelivered, header, body, self._loop.time(), math.inf)
        locked.state = State.BUSY
        self._settling.add(locked)
        self._share.count -= 1  # none of those that people count
        self._markers.append((locked, marker))
        self._answer_markers()

    def settle(self, messages: Sequence[Locked], *, requeue: bool) -> Job:
        """Begin to settle messages that were given, or withdrawn; to give one back is to give back all."""
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
        """Answer the markers before which nothing is unsettled any more."""
        oldest = next(iter(self._unproven), math.inf)
        met: list[tuple[Locked, Marker]] = []
        while self._markers and self._markers[0][0].tag < oldest:
            met.append(self._markers.popleft())
        if met:
            task = start_task(self._answer(met), loop=self._loop)
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, met: Sequence[tuple[Locked, Marker]]) -> None:
        # One that can't be answered now is removed all the same: the asker publishes another one.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_ANSWER):
                await self._tell([marker for _, marker in met])
        if self.usable:
            self._share.count += len(met)  # as settling takes them off
            super().settle([locked for locked, _ in met], requeue=False)

    def _give_all_back(self, messages: Sequence[Locked]) -> Job:
        """Give back all that is held, by closing the channel once the settlements under way are done."""
        job = Job(messages, requeue=True)
        for locked in messages:
            locked.job = job
        if self.cause is not None:
            job.end(Unsent(self.cause))
            return job
        if self._giving_back is None:
            for locked in self._settling.unsettled.values():
                locked.state = State.GONE
            self.waiting.clear()
            self._giving_back = start_task(self._give_back(), loop=self._loop)
            self.stop()
        self._giving_back.add_done_callback(lambda _: job.end(None))
        return job

    async def _give_back(self) -> None:
        with contextlib.suppress(Exception):  # gone already, and what was locked on it is the broker's again
            async with asyncio.timeout(_GIVE_BACK):
                await self._settling.idle()
                self.lose(GivenBack("it was given back"))
                await self._call(close_channel(self._raw))
        self.discard()

    def _end_locks(self) -> None:
        self._timer, self._looks_at = None, math.inf
        if not self.usable:
            return
        now, half = self._loop.time(), self._lock / 2
        given = [one for one in self._settling.unsettled.values() if one.state is State.GIVEN]
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
        """Use it no more: what is not settled will be delivered again."""
        super().lose(cause)
        self._unproven.clear()
        self._markers.clear()

    def _give_rest_back(self) -> None:
        """Nothing to do: closing the channel gives back, and must not be done for some before the others."""


async def is_for_one_consumer(context: Context, queue: str, doing: str, link: Link | None = None) -> bool:
    """Tell whether a queue is for one consumer at a time; asks the broker once, for most queues one question.

    Who may not configure the queue gets no answer, and reads it as one for several: one that keeps order is to be read
    by those alone who may.

    Args:
        link: whose connection to ask over; the control link's when left out.
    """
    known = context.one_consumer.get(queue)
    if known is not None:
        return known
    differs = frozenset((QUEUE_TYPE, SINGLE_CONSUMER))
    # The second guess is what a backlog queue is: of a queue with a long name the broker can tell no more than that.
    for guess in (_BARE, arguments_of(_LIKELY, "quorum", dead_letter_of(queue), doing)):
        found = await interrogate(context, queue, guess, doing, until=differs, link=link)
        if found.complete:
            context.one_consumer[queue] = is_single(found.arguments)
            return context.one_consumer[queue]
    return False


def ordered_channel(context: Context, session: Session, raw: Channel, queue: str) -> OrderedChannel:
    """Make the channel of a reader."""
    share = Share(context.url.endpoint.identity, queue)
    return OrderedChannel(
        session,
        raw,
        queue,
        share,
        context.url.lock_duration,
        lambda markers: context.markers.answer(markers, f"answer markers of {queue}"),
    )


async def visit(
    context: Context, queue: str, doing: str, enough: Callable[[OrderedChannel], bool], patience: float
) -> list[Locked]:
    """Read a queue for a moment as its one consumer, and give back all that came, in its order.

    What it meets of markers is answered; while another consumer reads the queue, nothing comes.

    Args:
        patience: seconds after which it has to do.

    A cancelled call gives back what had come.
    """
    try:
        session = await context.consuming_of(queue).session()
        opening = Opening(session)
        try:
            await asyncio.wait((opening.task,))
        except asyncio.CancelledError:
            opening.forsake()
            raise
        channel = ordered_channel(context, session, opening.task.result(), queue)
    except Unsent as error:
        failed = _errors.failure(error, doing)
        raise failed from failed.__cause__
    try:
        until = asyncio.get_running_loop().time() + patience
        fetching = channel.fetch(1, until)
        while not enough(channel) and channel.cause is None and asyncio.get_running_loop().time() < until:
            await asyncio.wait((fetching,), timeout=_STEP)
            if fetching.done():  # there is a message, and more may be on their way
                await asyncio.sleep(_STEP)
        if channel.cause is not None:
            raise _errors.failure(channel.cause, doing)
        found = list(channel.waiting)
        await channel.close(patience)
    finally:
        channel.discard()
    # The queue takes its time to have them back, and counts too few so long; another consumer may get them first.
    until = asyncio.get_running_loop().time() + _TAKEN_BACK
    while found and asyncio.get_running_loop().time() < until:
        back, _ = await context.count(queue, doing)
        if back >= len(found):
            break
        await asyncio.sleep(_STEP)
    return found
