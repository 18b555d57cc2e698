"""What a worker reads through its pair: receivers on the pair's loop, and their messages for the worker's own thread.

A queue that outlives its broker is read by a `pairmq.PairConsumer`, with its lane where it has continuity. Queues that
exist only while the primary does, such as remote control's, are left to a `Remote`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from amqp.exceptions import RecoverableConnectionError

from pairmq import Pair, PairConsumer, PairDelivery, PairMQError
from pairmq_kombu._message import to_amqp
from pairmq_kombu._process import PairOfProcess
from pairmq_kombu._remote import Remote

_log = logging.getLogger(__name__)

T = TypeVar("T")

ACK: Final = "complete"
REQUEUE: Final = "abandon"
REJECT: Final = "dead_letter"


class Tag(int):
    """The delivery tag of a message that was read here; those of a channel of the primary are plain numbers."""


@dataclass(eq=False, slots=True)
class Consumer:
    channel: Any
    tag: str
    queue: str
    no_ack: bool
    callback: Callable[[Any], object]
    limit: int = 0
    """Unsettled messages at most; 0 for any number."""
    paired: PairConsumer | None = None
    """What reads for it, on the pair's loop."""

    def set_limit(self, most: int) -> None:
        """On the pair's loop."""
        self.limit = most
        if self.paired is not None:
            self.paired.prefetch = most


@dataclass(eq=False, slots=True)
class _Held:
    consumer: Consumer
    delivery: PairDelivery
    given: bool = False
    """Whether the worker has it."""


class Reading:
    """What one connection consumes. Its methods are for the connection's thread, but for those in the last part.

    Messages wait in a queue of this object until that thread looks: a byte in a socket wakes it, whether it waits in
    an event loop or in `drain`.
    """

    def __init__(self, process: PairOfProcess, client: Any) -> None:
        self._process = process
        self._client = client
        self._made_in = os.getpid()
        self._inbox: deque[Callable[[], object]] = deque()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._tags = count(1)
        self._consumers: dict[str, Consumer] = {}
        self._remote: Remote | None = None
        self._of_remote: dict[Tag, Callable[[str], None]] = {}
        self._entered = ExitStack()
        self._hub: Any = None
        # On the loop:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pair: Pair | None = None
        self._held: dict[Tag, _Held] = {}
        self._settling: set[asyncio.Task[None]] = set()

    @property
    def remote(self) -> Remote:
        """What keeps the consumers of queues that only the primary has."""
        if self._remote is None:
            self._remote = Remote(self._client, self._process, self._post)
        return self._remote

    def register(self, hub: Any) -> None:
        self._hub = hub
        self._reader.setblocking(False)
        hub.add_reader(self._reader.fileno(), self.look)

    def consume(self, consumer: Consumer) -> None:
        """Begin to read a queue. Raises `ConfigurationError`."""
        if self._loop is None:
            self._entered.enter_context(self._process.opened().beside(self._beside))
        self._consumers[consumer.tag] = consumer
        try:
            self._run(self._begin(consumer))
        except BaseException:
            del self._consumers[consumer.tag]
            raise

    def cancel(self, tag: str) -> bool:
        """Stop reading for a consumer; what it has stays locked for it. Returns whether there is such a consumer."""
        consumer = self._consumers.pop(tag, None)
        if consumer is not None:
            self._run(self._end(consumer, release=False))
            return True
        return self._remote is not None and self._remote.cancel(tag)

    def limit(self, channel: Any, most: int) -> None:
        """Set how many unsettled messages each consumer of a channel has at most."""
        for consumer in self._consumers.values():
            if consumer.channel is channel:
                self._soon(consumer.set_limit, most)

    def settle(self, tag: Tag, action: str, channel: Any = None, *, multiple: bool = False) -> None:
        """Acknowledge, requeue or reject a message, or all of the channel's up to it, without waiting for the broker.
        One that is settled already is ignored."""
        remote = self._of_remote.pop(tag, None)
        if remote is not None:
            remote(action)
        elif self._loop is not None:
            self._soon(self._settle, tag, action, channel if multiple else None)

    def close_channel(self, channel: Any) -> None:
        """Stop reading for a channel, and release what it has not settled."""
        ended = [consumer for consumer in self._consumers.values() if consumer.channel is channel]
        for consumer in ended:
            del self._consumers[consumer.tag]
        if self._loop is not None and self._is_here:
            self._run(self._end_channel(channel, ended))

    def close(self) -> None:
        """Stop reading, and release what is not settled."""
        if not self._is_here:
            return  # the parent's; its threads are not in this process
        if self._remote is not None:
            self._remote.close()
        if self._hub is not None:
            with suppress(Exception):  # it may be closed, or reset
                self._hub.remove(self._reader.fileno())
        self._consumers.clear()
        self._entered.close()
        self._loop = None
        self._reader.close()
        self._writer.close()

    def drain(self, timeout: float | None) -> None:
        """Wait for messages, and call their consumers. Raises `TimeoutError`."""
        try:
            self._reader.settimeout(timeout)
            self._reader.recv(4096)
        except BlockingIOError:
            raise TimeoutError("nothing was received") from None
        self._call()

    def look(self) -> None:
        """Call the consumers of what has arrived."""
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        self._call()

    def _call(self) -> None:
        try:
            while self._inbox:
                self._inbox.popleft()()
        finally:
            if self._inbox:  # a consumer has raised: the next look goes on
                self._ring()

    def _deliver(self, consumer: Consumer, tag: Tag, held: _Held) -> None:
        if consumer.tag not in self._consumers:
            return  # it was cancelled, and the message released
        held.given = True
        its = held.delivery
        raw = to_amqp(its.message, consumer.channel)
        raw.delivery_info = {
            "consumer_tag": consumer.tag,
            "delivery_tag": tag,
            "redelivered": its.delivery.delivery_count > 1,
            "exchange": "",
            "routing_key": consumer.queue,
        }
        consumer.callback(raw)

    def of_remote(self, consumer: Consumer, raw: Any, settle: Callable[[str], None]) -> None:
        """Give a consumer a message of a queue that only the primary has."""
        tag = Tag(next(self._tags))
        if not consumer.no_ack:
            self._of_remote[tag] = settle
        raw.channel = consumer.channel
        raw.delivery_info["delivery_tag"] = tag
        consumer.callback(raw)

    @property
    def _is_here(self) -> bool:
        return self._made_in == os.getpid()

    def _run(self, operation: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None  # noqa: S101  # there is a consumer
        return asyncio.run_coroutine_threadsafe(operation, self._loop).result()

    def _soon(self, action: Callable[..., object], *arguments: object) -> None:
        assert self._loop is not None  # noqa: S101  # there is a consumer
        self._loop.call_soon_threadsafe(action, *arguments)

    # In any thread.

    def _post(self, action: Callable[[], object]) -> None:
        self._inbox.append(action)
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):  # it is full, and so rings already; or it is closed
            self._writer.send(b"\0")

    # On the pair's loop.

    @asynccontextmanager
    async def _beside(self, pair: Pair) -> AsyncIterator[None]:
        self._pair, self._loop = pair, asyncio.get_running_loop()
        try:
            yield
        finally:
            consumers = list({held.consumer for held in self._held.values()} | set(self._consumers.values()))
            await asyncio.gather(*(self._end(consumer, release=True) for consumer in consumers))

    async def _begin(self, consumer: Consumer) -> None:
        assert self._pair is not None  # noqa: S101  # this is its loop
        consumer.paired = self._pair.consumer(
            consumer.queue,
            partial(self._received, consumer),
            prefetch=consumer.limit,
            on_end=lambda error: self._post(partial(_raise_lost, error)),
        )

    async def _end_channel(self, channel: Any, consumers: list[Consumer]) -> None:
        # Also what was cancelled before, and has messages that are not settled.
        left = {held.consumer for held in self._held.values() if held.consumer.channel is channel}
        await asyncio.gather(*(self._end(consumer, release=True) for consumer in left.union(consumers)))

    async def _end(self, consumer: Consumer, *, release: bool) -> None:
        """Stop reading; with ``release``, once what was settled is confirmed, release all the rest."""
        if consumer.paired is None:
            return  # it could not begin
        await consumer.paired.cancel()
        for tag, held in list(self._held.items()):
            if held.consumer is consumer and not held.given:
                self._settle(tag, REQUEUE)
        if release:
            await asyncio.sleep(0)  # what was settled just now has begun to be
            await consumer.paired.close()
            for tag in [tag for tag, held in self._held.items() if held.consumer is consumer]:
                del self._held[tag]

    def _received(self, consumer: Consumer, delivery: PairDelivery) -> None:
        tag = Tag(next(self._tags))
        held = self._held[tag] = _Held(consumer, delivery)
        message_id = delivery.message.message_id
        redelivered = delivery.delivery.delivery_count > 1
        if redelivered and message_id is not None and self._process.handled.get(message_id):
            _log.info("message %s of %s was acknowledged here before: not given again", message_id, consumer.queue)
            self._settle(tag, ACK)
            return
        if consumer.no_ack:
            self._settle(tag, ACK)
        self._post(partial(self._deliver, consumer, tag, held))

    def _settle(self, tag: Tag, action: str, channel: Any = None) -> None:
        tags = [tag]
        if channel is not None:
            tags = [each for each, held in self._held.items() if each <= tag and held.consumer.channel is channel]
        for each in tags:
            held = self._held.pop(each, None)
            if held is not None:
                task = asyncio.create_task(self._settled(held, action), name="settle")
                self._settling.add(task)
                task.add_done_callback(self._settling.discard)

    async def _settled(self, held: _Held, action: str) -> None:
        its = held.delivery
        message_id = its.message.message_id
        if action == ACK and message_id is not None:
            self._process.handled.put(message_id, True)
        try:
            if action == REJECT:
                await its.dead_letter("Rejected", "the consumer rejected it without requeue")
            elif action == ACK:
                await its.complete()
            else:
                await its.abandon()
        except PairMQError as error:
            _log.warning("message %s of %s could not be settled, and is redelivered: %s", message_id, its.source, error)


def _raise_lost(error: Exception) -> None:
    raise RecoverableConnectionError(str(error)) from error
