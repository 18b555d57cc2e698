"""aio-pika's consumers of queues with continuity: they read the primary and the lane, through the pair (SPEC 11.3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
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

from pairmq import Pair, PairClosed, PairConsumer, PairDelivery, PairMQError
from pairmq.transport import start_task
from pairmq_rabbitmq import _codec


class Consumption:
    """One consumer of a queue, and what its messages take for the channel that they are settled on.

    ``prefetch``: unsettled messages at most, 0 for any number. With ``no_ack`` messages are completed on arrival.
    """

    connection = SimpleNamespace(basic_nack=True)
    """What aio-pika asks whether the broker can reject."""

    def __init__(
        self,
        pair: Pair,
        queue: str,
        tag: str,
        callback: Callable[[AbstractIncomingMessage], Awaitable[Any]],
        prefetch: int,
        *,
        no_ack: bool,
    ) -> None:
        self.is_closed = False
        self._queue = queue
        self._tag = tag
        self._callback = callback
        self._no_ack = no_ack
        self._numbers = count(1)
        self._held: dict[int, PairDelivery] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        """Done once it has stopped reading, with the reason where it was not closed."""
        self.consumer: PairConsumer = pair.consumer(queue, self._received, prefetch=prefetch, on_end=self._end)
        """What reads for it."""

    async def close(self) -> None:
        """Stop reading, and release what is not settled."""
        self.is_closed = True
        self._end(None)
        self._held.clear()
        await self.consumer.close()

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
            try:
                await how(self._held.pop(each))
            except PairMQError as error:
                raise ChannelInvalidStateError(f"the message is redelivered: {error}") from error

    def _end(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)

    def _received(self, delivery: PairDelivery) -> None:
        number = next(self._numbers)
        self._held[number] = delivery
        start_task(self._give(number, delivery), name=f"message of {self._queue}", keep=self._running)

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


class PairedQueue(RobustQueue):
    """``aio_pika.RobustQueue`` whose consumers read the lane too, where the queue has continuity."""

    @property
    def continues(self) -> bool:
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
        """Stop consuming; what is not settled can still be."""
        consumption = cast(Any, self.channel).consumptions.get(consumer_tag)
        if consumption is None:
            return await super().cancel(consumer_tag, timeout, nowait)
        await consumption.consumer.cancel()
        if consumption.consumer.idle:
            del cast(Any, self.channel).consumptions[consumer_tag]
        return None if nowait else Basic.CancelOk(consumer_tag=consumer_tag)

    def iterator(self, **kwargs: Any) -> AbstractQueueIterator:
        """Iterate over the messages; with continuity also in an outage of the primary."""
        return PairedQueueIterator(self, **kwargs) if self.continues else super().iterator(**kwargs)


class PairedQueueIterator(RobustQueueIterator):
    """An iterator that does not wait for the primary: the pair reads on without it.

    It ends with its channel or the pair, and raises `ChannelInvalidStateError` where the pair has faulted.
    """

    _consumption: Consumption | None = None  # none of an exclusive consumer, which is aio-pika's

    async def consume(self) -> None:
        await QueueIterator.consume(self)
        self._consumption = cast(Any, self._amqp_queue.channel).consumptions.get(self.consumer_tag)
        if self._consumption is not None:
            self._consumption.ended.add_done_callback(lambda _: self._message_or_closed.set())

    async def __anext__(self) -> AbstractIncomingMessage:
        if not hasattr(self, "_consumer_tag"):
            await self.consume()
        try:
            async with asyncio.timeout(self._consume_kwargs.get("timeout")):
                while not self._has_ended() and self._queue.empty():
                    self._message_or_closed.clear()
                    await self._message_or_closed.wait()
        except (TimeoutError, asyncio.CancelledError):
            await asyncio.shield(self.close())
            raise
        if self._has_ended():
            raise StopAsyncIteration
        return cast(AbstractIncomingMessage, self._queue.get_nowait())

    def _has_ended(self) -> bool:
        """Whether no message follows. Raises `ChannelInvalidStateError`."""
        ended = None if self._consumption is None else self._consumption.ended
        if ended is None or not ended.done():
            return self._closed.done()
        error = ended.result()
        if error is not None and not isinstance(error, PairClosed):
            raise ChannelInvalidStateError(f"{self} has stopped reading: {error}") from error
        return True

    async def close(self) -> None:
        """Stop consuming, and release what was not given. Idempotent."""
        consumption, tag = self._consumption, self.consumer_tag
        if consumption is None:
            await super().close()
            return
        if tag is not None:
            del self._consumer_tag
            if not consumption.ended.done():  # else aio-pika would wait for a connection to cancel it
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
        return cast(Pair, cast(Any, self._connection).pair)

    def consume(self, queue: PairedQueue, tag: str, callback: Callable[..., Any], *, no_ack: bool) -> None:
        for known, each in list(self.consumptions.items()):
            if each.consumer.idle:
                del self.consumptions[known]
        self.consumptions[tag] = Consumption(self.pair, queue.name, tag, callback, self._prefetch_count, no_ack=no_ack)
        consuming: set[ConsumingChannel] = cast(Any, self._connection).consuming
        consuming.add(self)

    async def set_qos(self, prefetch_count: int = 0, *args: Any, **kwargs: Any) -> Any:
        """Limit the unsettled messages, also those of what consumes through the pair already."""
        for each in self.consumptions.values():
            each.consumer.prefetch = prefetch_count
        return await super().set_qos(prefetch_count, *args, **kwargs)

    async def end_consuming(self) -> None:
        """Stop reading through the pair, and release what is not settled."""
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
