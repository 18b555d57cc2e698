"""A queue's messages: shown without consuming them, and how far queues for one consumer at a time have been settled.

AMQP 0-9-1 has no way to browse messages: they are fetched, and released at once.

How far a queue has been settled is proved by markers (SPEC 8.3). Each look that may do so publishes a marker; positions
are the numbers of this object's markers. An answered marker proves that everything confirmed before the marker was
published is settled. So ``newest`` is the number of the first marker that is published after the look began, which may
not be published yet, and ``oldest`` is one more than that of the newest answered marker: once it is beyond the
``newest`` of an earlier look, everything the queue held at that look is settled. A look whose own marker is answered at
once shows that nothing is left.

While nothing is settled, markers are published ever more rarely: each is one more message in the queue until a consumer
reads it.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from secrets import token_hex
from typing import Final

from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import DeliveryError, PublishError
from pamqp.commands import Basic

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, TransportError
from pairmq.transport import QueuePositions, raise_failure
from pairmq_rabbitmq import _codec, _errors
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import close_channel, consume, get_and_release
from pairmq_rabbitmq._inspection import is_for_one_consumer
from pairmq_rabbitmq._markers import WINDOW, MarkerLine
from pairmq_rabbitmq._receiving import visit

_PATIENCE = 1.0  # s without a message after which it stops waiting for more
_TURN = 3.0  # s without any message: ten that look from far away take as long
_PRIORITIES = 2**30
_GIVING_BACK, _STEP = 0.25, 0.005
MOST: Final = 2**16 - 1
"""The largest prefetch in AMQP; of messages in which so many wait it is not known how many there are."""
_BURST: Final = 0.1  # s without a message after which all of these have come
FEW: Final = 32
"""Messages that are fetched one by one, which takes a broker less time than a round trip to a distant one. A quorum
queue in which more are released at one time puts them back in another order."""

_MOMENT: Final = 0.1  # s that a look waits for its marker's answer
_VISIT: Final = 2.0  # s: some round trips, also to a distant broker
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0  # s between two markers while none is answered
_REJECTED_PAUSE: Final = 1.0  # s between two markers while the queue rejects them
_DOUBLING: Final = 8  # unanswered markers after which the pause doubles


async def peek(context: Context, queue: str, waiting: int, most: int, doing: str) -> list[Delivery]:
    """Fetch the oldest messages of a queue in which so many wait, and release them, within a second if cancelled.

    Meanwhile no other consumer can receive them. RabbitMQ counts it as a delivery: classic queues mark the messages as
    redelivered, quorum queues increment their delivery count, and dead-letter a message that reaches its
    ``max_delivery_count`` this way. Messages that a consumer holds locked are not shown; one that can't be decoded is
    shown as far as it can be read.
    """
    expected = min(waiting, most, MOST)
    fetched, released_at = await context.ask_on(
        doing, lambda channel: _fetch(channel, queue, expected, _PATIENCE if waiting < MOST else _BURST), queue
    )
    loop = asyncio.get_running_loop()
    deadline = released_at + _GIVING_BACK
    # A quorum queue takes a moment to requeue them, which has passed when the answer of a broker far away is there;
    # another consumer may get them first.
    while fetched and waiting < MOST and loop.time() < deadline:
        back, _ = await context.count(queue, doing)
        if back >= waiting:
            break
        await asyncio.sleep(_STEP)
    return [_delivery(message) for message in fetched]


async def glance(context: Context, queue: str, most: int, doing: str) -> list[Delivery]:
    """Show the oldest messages of a queue, `FEW` at most, of which others miss some for a moment only: see
    `get_and_release`. Messages that others look at meanwhile are not shown."""
    fetched = await context.ask_on(doing, lambda channel: get_and_release(channel, queue, most), queue)
    return [_delivery(message) for message in fetched]


async def peek_in_turn(context: Context, queue: str, most: int, doing: str) -> list[Delivery]:
    """Peek into a queue for one consumer at a time, as its consumer for a moment, unless another one reads it."""
    waiting, consumers = await context.count(queue, doing)
    if consumers:
        text = "a consumer reads it, and it is for one consumer at a time"
        raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
    expected = min(waiting, most, WINDOW)
    found = await visit(context, queue, doing, lambda channel: len(channel.waiting) >= expected, _PATIENCE)
    return [_shown(one.properties, one.body, one.redelivered) for one in found[:most]]


async def _fetch(channel: Channel, queue: str, expected: int, patience: float) -> tuple[list[DeliveredMessage], float]:
    """Fetch messages; also returns when they began to be released."""
    fetched: list[DeliveredMessage] = []
    came = asyncio.Event()

    async def take(message: DeliveredMessage) -> None:
        fetched.append(message)
        came.set()

    try:
        await channel.basic_qos(prefetch_count=expected)
        # Of those that look at one time each gets all in its turn; else the messages would be dealt out to all of them.
        await consume(channel, queue, "pairmq-peek", take, priority=secrets.randbelow(_PRIORITIES) + 1)
        while len(fetched) < expected:
            came.clear()
            async with asyncio.timeout(patience if fetched else _TURN):
                await came.wait()
    except TimeoutError:
        pass  # other consumers were quicker
    finally:
        released_at = asyncio.get_running_loop().time()
        # Requeues them in their places. A nack would put them at the end of a quorum queue without delivery limit.
        await close_channel(channel)
    return sorted(fetched, key=_tag), released_at


def _tag(message: DeliveredMessage) -> int:
    assert isinstance(message.delivery, Basic.Deliver)  # noqa: S101  # for mypy: it was delivered to a consumer
    return message.delivery.delivery_tag or 0


def _delivery(message: DeliveredMessage) -> Delivery:
    assert isinstance(message.delivery, Basic.Deliver | Basic.GetOk)  # noqa: S101  # for mypy: it was fetched
    return _shown(message.header.properties, bytes(message.body), bool(message.delivery.redelivered))


def _shown(properties: Basic.Properties, body: bytes, redelivered: bool) -> Delivery:
    reason, description = _codec.dead_letter_reason(properties)
    return Delivery(
        _codec.decode_leniently(properties, body),
        lock_token=object(),
        delivery_count=_codec.delivery_count(properties, redelivered),
        dead_letter_reason=reason,
        dead_letter_description=description,
    )


class Positions:
    """Of all queues, as one `Admin` sees them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._watches: dict[str, _Watch] = {}

    async def of(self, queue: str, doing: str) -> QueuePositions:
        if not await is_for_one_consumer(self._context, queue, doing):
            await self._context.count(queue, doing)  # does it exist at all?
            text = "it is not for one consumer at a time, or this user may not configure it: unknown how far"
            raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
        watch = self._watches.get(queue)
        if watch is None:
            watch = self._watches[queue] = _Watch(self._context, queue)
        return await watch.look(doing)

    def unanswered(self, queue: str) -> int:
        """Markers of this object that the queue may hold."""
        watch = self._watches.get(queue)
        return 0 if watch is None else watch.unanswered

    def forget(self, queue: str) -> None:
        """The queue was purged or deleted: none of the markers in it will be answered."""
        if queue in self._watches:
            self._watches[queue].open.clear()


class _Watch:
    def __init__(self, context: Context, queue: str) -> None:
        self.open: set[int] = set()
        """Numbers of markers that may be in the queue, and may be answered."""
        self._context = context
        self._line = MarkerLine(context.ordering)
        self._queue = queue
        self._published = 0
        self._answered = 0
        self._published_at = -math.inf
        self._epoch = 0
        self._visit_at = -math.inf
        self._visits = 0
        self._rejected = False
        self._news = asyncio.Event()

    @property
    def unanswered(self) -> int:
        return len(self.open)

    async def look(self, doing: str) -> QueuePositions:
        newest = self._published + 1
        if self._is_due():
            # At once, so that no other look takes this one's number for one that is published after it began.
            self._published = number = newest
            await self._publish(number, doing)
            await self._wait(number, doing)
        elif self._rejected:
            raise _full(doing)
        return QueuePositions(None if self._answered >= newest else self._answered + 1, newest)

    def _is_due(self) -> bool:
        if self._rejected:
            return asyncio.get_running_loop().time() >= self._published_at + _REJECTED_PAUSE
        if not self.open or not self._line.answers(self._epoch):
            return True
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(len(self.open) / _DOUBLING, 10))
        return asyncio.get_running_loop().time() >= self._published_at + pause

    async def _publish(self, number: int, doing: str) -> None:
        line = self._line
        try:
            await line.ready(doing)
            if self._epoch != line.epoch:
                self._epoch = line.epoch
                self.open.clear()
            self._published_at = asyncio.get_running_loop().time()
            self.open.add(number)
            await line.publish(self._queue, token_hex(16), lambda: self._take_answer(number))
            self._rejected = False
        except PublishError as error:
            self.open.discard(number)
            why = await self._context.why_returned(Entity(self._queue), doing)
            raise why from error
        except DeliveryError as error:
            self.open.discard(number)
            self._rejected = True
            raise _full(doing) from error
        except Exception as error:
            raise_failure(_errors.failure(error, doing, maybe_applied=False))

    def _take_answer(self, number: int) -> None:
        """Everything before the marker is settled, older markers included."""
        self._answered = max(self._answered, number)
        self.open = {each for each in self.open if each > number}
        self._visits = 0
        self._visit_at = -math.inf
        self._news.set()

    async def _wait(self, number: int, doing: str) -> None:
        """Wait a moment for the answer; where no consumer can give it, read the queue here."""
        if number <= self._answered:
            return
        _, consumers = await self._context.count(self._queue, doing)
        loop = asyncio.get_running_loop()
        if not consumers and number > self._answered and loop.time() >= self._visit_at:
            # A consumer that arrives meanwhile has to wait, and what is fetched counts as delivered.
            self._visits += 1
            self._visit_at = loop.time() + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._visits, 10))
            await visit(
                self._context,
                self._queue,
                doing,
                lambda channel: number <= self._answered or bool(channel.waiting),
                _VISIT,
            )
        until = loop.time() + (_MOMENT if consumers else 0.0)
        while number > self._answered and loop.time() < until:
            self._news.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._news.wait()
            except TimeoutError:
                break


def _full(doing: str) -> TransportError:
    text = f"{doing}: the queue rejected the marker that would show it: it is full, or has no leader"
    return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.QUOTA)
