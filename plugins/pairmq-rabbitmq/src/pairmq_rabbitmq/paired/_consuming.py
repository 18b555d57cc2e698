"""aio-pika's consumers of queues with continuity: they read the primary and the lane, through the pair (SPEC 11.3)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import uuid4

from aio_pika import RobustChannel, RobustConnection
from aio_pika.abc import AbstractIncomingMessage, AbstractQueueIterator
from aio_pika.exceptions import ChannelInvalidStateError
from aio_pika.message import IncomingMessage
from aio_pika.queue import QueueIterator
from aio_pika.robust_queue import RobustQueue, RobustQueueIterator
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from pairmq import LockLost, Pair, PairClosed, PairDelivery, PairFaulted, PairMQError
from pairmq.transport import start_task
from pairmq_rabbitmq import _codec

_log = logging.getLogger("pairmq")

_POLL: Final = 60.0  # s: one long poll; only its cost depends on it
_MOST: Final = 100  # messages that one receive brings, where the channel has no prefetch
_FIRST_RETRY, _LAST_RETRY = 0.1, 5.0  # s between attempts to read while no broker can be read
_RENEWALS: Final = 0.5  # s between two looks at the locks


class Consumption:
    """One consumer of a queue, and what its messages take for the channel that they are settled on.

    Args:
        pair: open.
        queue: with continuity.
        tag: the consumer's.
        callback: awaited with each message, any number at a time.
        prefetch: gives the number of unsettled messages at most; 0 for any.
        no_ack: messages are completed on arrival.
    """

    connection = SimpleNamespace(basic_nack=True)
    """What aio-pika asks whether the broker can reject."""

    def __init__(
        self,
        pair: Pair,
        queue: str,
        tag: str,
        callback: Callable[[AbstractIncomingMessage], Awaitable[Any]],
        prefetch: Callable[[], int],
        *,
        no_ack: bool,
    ) -> None:
        self.is_closed = False
        self._receiver = pair.receiver(queue)
        self._queue = queue
        self._tag = tag
        self._callback = callback
        self._prefetch = prefetch
        self._no_ack = no_ack
        self._numbers = count(1)
        self._held: dict[int, tuple[PairDelivery, float]] = {}  # with the time when its lock is to be renewed
        self._settled = asyncio.Event()
        self._running: set[asyncio.Task[Any]] = set()
        self._reading = start_task(self._read(), name=f"consume {queue}")
        self._renewing = start_task(self._renew(), name=f"renew locks of {queue}")

    @property
    def is_idle(self) -> bool:
        """Whether it reads no more, and everything is settled."""
        return self._reading.done() and not self._held

    async def stop(self) -> None:
        """Read no more; what is not settled can still be."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        await self._close_idle()

    async def close(self) -> None:
        """Read no more, and release what is not settled."""
        self.is_closed = True
        self._held.clear()
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        await self._close_idle()

    # As of a channel of aiormq.

    async def basic_ack(self, delivery_tag: int, multiple: bool = False, wait: bool = True) -> None:
        """Acknowledge. Raises `ChannelInvalidStateError`: the message is redelivered."""
        await self._settle(delivery_tag, lambda delivery: delivery.complete(), multiple=multiple)

    async def basic_reject(self, delivery_tag: int, requeue: bool = False, wait: bool = True) -> None:
        """Release, or dead-letter at the broker that it came from. Raises as `basic_ack`."""
        await self.basic_nack(delivery_tag, requeue=requeue)

    async def basic_nack(
        self, delivery_tag: int, multiple: bool = False, requeue: bool = True, wait: bool = True
    ) -> None:
        """Release, or dead-letter at the broker that it came from. Raises as `basic_ack`."""

        def nack(delivery: PairDelivery) -> Awaitable[None]:
            return delivery.abandon() if requeue else delivery.dead_letter("Rejected", "rejected without requeue")

        await self._settle(delivery_tag, nack, multiple=multiple)

    async def _settle(self, number: int, how: Callable[[PairDelivery], Awaitable[None]], *, multiple: bool) -> None:
        for each in [each for each in self._held if each == number or (multiple and each < number)]:
            delivery, _ = self._held.pop(each)
            self._settled.set()
            try:
                await how(delivery)
            except PairMQError as error:
                raise ChannelInvalidStateError(f"the message is redelivered: {error}") from error
        await self._close_idle()

    async def _close_idle(self) -> None:
        if self.is_idle:
            self._renewing.cancel()
            await self._receiver.close()

    async def _read(self) -> None:
        pause = 0.0
        while True:
            while (most := self._prefetch()) and len(self._held) >= most:
                self._settled.clear()
                await self._settled.wait()
            try:
                found = await self._receiver.receive(most - len(self._held) if most else _MOST, _POLL)
            except (PairClosed, PairFaulted):
                return
            except PairMQError as error:
                if not pause:
                    _log.warning("queue %s can't be read; it is tried again: %s", self._queue, error)
                pause = min(max(_FIRST_RETRY, pause * 2), _LAST_RETRY)
                await asyncio.sleep(pause)
                continue
            pause = 0.0
            for delivery in found:
                number = next(self._numbers)
                self._held[number] = delivery, _renewal(delivery)
                task = start_task(self._give(number, delivery), name=f"message of {self._queue}")
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _give(self, number: int, delivery: PairDelivery) -> None:
        if self._no_ack:
            with contextlib.suppress(ChannelInvalidStateError):
                await self.basic_ack(number)
        properties = _codec.encode(delivery.message, login="")
        frame = Basic.Deliver(
            consumer_tag=self._tag,
            delivery_tag=number,
            redelivered=delivery.delivery.delivery_count > 1,
            exchange="",
            routing_key=self._queue,
        )
        header = ContentHeader(properties=properties, body_size=len(delivery.body))
        message = DeliveredMessage(frame, header, delivery.body, cast(Any, self))
        await self._callback(IncomingMessage(message, no_ack=self._no_ack))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEWALS)
            now = asyncio.get_running_loop().time()
            due = [number for number, (_, at) in self._held.items() if at <= now]
            await asyncio.gather(*map(self._renewed, due))

    async def _renewed(self, number: int) -> None:
        delivery, _ = self._held[number]
        again_at = math.inf
        try:
            await delivery.renew_lock()
            again_at = _renewal(delivery)
        except LockLost as error:
            _log.warning("message %s of %s may be handled twice: %s", delivery.message.message_id, self._queue, error)
        except PairMQError:  # it is tried again, until the lock is lost
            again_at = _renewal(delivery)
        if number in self._held:
            self._held[number] = delivery, again_at


def _renewal(delivery: PairDelivery) -> float:
    """When half of the time is over that a lock has left, in the loop's time; never for one that lasts."""
    until = delivery.delivery.locked_until
    if until is None:
        return math.inf
    return asyncio.get_running_loop().time() + (until - datetime.now(UTC)).total_seconds() / 2


class PairedQueue(RobustQueue):
    """``aio_pika.RobustQueue`` whose consumers read the lane too, where the queue has continuity."""

    @property
    def continues(self) -> bool:
        """Whether its consumers go on in an outage of the primary."""
        return bool(cast(Any, self.channel).pair.options.continues(self.name))

    async def consume(
        self,
        callback: Callable[[AbstractIncomingMessage], Awaitable[Any]],
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Any = None,
        consumer_tag: str | None = None,
        timeout: Any = None,
        robust: bool = True,
    ) -> str:
        """Consume the queue: with continuity through the pair, unless it is to be exclusive or with arguments."""
        if exclusive or arguments or not self.continues:
            return await super().consume(callback, no_ack, exclusive, arguments, consumer_tag, timeout, robust)
        tag = consumer_tag or f"ctag.{uuid4().hex}"
        cast(Any, self.channel).consume(self, tag, callback, no_ack=no_ack)
        return tag

    async def cancel(self, consumer_tag: str, timeout: Any = None, nowait: bool = False) -> Any:
        """Consume no more; what is not settled can still be."""
        consumption = cast(Any, self.channel).consumptions.get(consumer_tag)
        if consumption is None:
            return await super().cancel(consumer_tag, timeout, nowait)
        await consumption.stop()
        if consumption.is_idle:
            del cast(Any, self.channel).consumptions[consumer_tag]
        return None if nowait else Basic.CancelOk(consumer_tag=consumer_tag)

    def iterator(self, **kwargs: Any) -> AbstractQueueIterator:
        """Iterate over the messages; with continuity also in an outage of the primary."""
        return PairedQueueIterator(self, **kwargs) if self.continues else super().iterator(**kwargs)


class PairedQueueIterator(RobustQueueIterator):
    """An iterator that does not wait for the primary: the pair reads on without it."""

    async def consume(self) -> None:
        """Begin."""
        await QueueIterator.consume(self)

    async def __anext__(self) -> AbstractIncomingMessage:
        if not hasattr(self, "_consumer_tag"):
            await self.consume()
        try:
            async with asyncio.timeout(self._consume_kwargs.get("timeout")):
                while self._queue.empty():
                    self._message_or_closed.clear()
                    if self._closed.done():
                        raise StopAsyncIteration
                    await self._message_or_closed.wait()
        except (TimeoutError, asyncio.CancelledError):
            await asyncio.shield(self.close())
            raise
        return cast(AbstractIncomingMessage, self._queue.get_nowait())

    async def close(self) -> None:
        """Consume no more, and release what was not given. Idempotent."""
        tag = self.consumer_tag
        if tag is not None:
            del self._consumer_tag
            await self._amqp_queue.cancel(tag)
            while not self._queue.empty():
                with contextlib.suppress(Exception):
                    await self._queue.get_nowait().nack(requeue=True)
        if not self._closed.done():
            self._closed.set_result(True)


class ConsumingChannel(RobustChannel):
    """``aio_pika.RobustChannel`` whose queues are `PairedQueue`; of a `ConsumingConnection`."""

    QUEUE_CLASS = PairedQueue

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.consumptions: dict[str, Consumption] = {}
        """What consumes through the pair."""

    @property
    def pair(self) -> Pair:
        """Its connection's."""
        return cast(Pair, cast(Any, self._connection).pair)

    def consume(self, queue: PairedQueue, tag: str, callback: Callable[..., Any], *, no_ack: bool) -> None:
        """Begin to consume through the pair."""
        prefetch = lambda: self._prefetch_count  # noqa: E731  # it may be changed later
        self.consumptions[tag] = Consumption(self.pair, queue.name, tag, callback, prefetch, no_ack=no_ack)
        consuming: set[ConsumingChannel] = cast(Any, self._connection).consuming
        consuming.add(self)

    async def end_consuming(self) -> None:
        """Read no more through the pair, and release what is not settled."""
        await asyncio.gather(*(each.close() for each in self.consumptions.values()))
        self.consumptions.clear()

    async def close(self, exc: Any = None) -> None:
        """Close the channel; what is not settled is released."""
        await self.end_consuming()
        await super().close(exc)


class ConsumingConnection(RobustConnection):
    """``aio_pika.RobustConnection`` whose channels consume queues with continuity through a pair."""

    CHANNEL_CLASS = ConsumingChannel

    def __init__(self, *args: Any, pair: Pair, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pair = pair
        """The pair, with its states and events."""
        self.consuming: set[ConsumingChannel] = set()
        """Its channels with consumers that read through the pair."""

    async def close(self, exc: Any = asyncio.CancelledError) -> None:
        """Close the connection and what it consumes; the pair stays open."""
        await asyncio.gather(*(each.end_consuming() for each in self.consuming))
        self.consuming.clear()
        await super().close(exc)
