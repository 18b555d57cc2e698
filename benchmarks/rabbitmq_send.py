"""What a healthy send to RabbitMQ costs beside the client libraries alone, one at a time and pipelined, in one run.

Messages of 1 KiB, persistent and confirmed, to one durable queue of one server; the contenders take turns. One at a
time, each awaits its confirm before the next is sent. Pipelined, at most 1000 are unconfirmed: PairMQ by `send_batch`
and `send_stream`, aio-pika and FastStream by ``asyncio.gather`` over windows of several sizes, of which the best
counts. kombu waits for every confirm, as it has no other way.

Run it with: make bench-one NAME=rabbitmq_send
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import aio_pika
import kombu
from _measuring import Contender, Figures, arguments, interleaved, report
from faststream.rabbit import RabbitBroker

from pairmq import Entity, Message, Pair
from pairmq.model import Source
from pairmq_rabbitmq.testing import RabbitServer

BODY = b"x" * 1024
QUEUE = "orders"
WINDOW = 1000
GATHERED = (100, 300, WINDOW)  # sizes of a gather; the largest is not the best everywhere

ONE_BY_ONE = "PairMQ, one at a time"
BATCH, STREAM = "PairMQ send_batch", "PairMQ send_stream"
RAW = "aio-pika, one at a time"


def windows(count: int, size: int) -> Iterable[int]:
    """The sizes of the windows that so many messages make."""
    for start in range(0, count, size):
        yield min(size, count - start)


class Senders:
    """The contenders.

    Args:
        pair: with the server as its primary.
        exchange: aio-pika's.
        faststream: a broker object of FastStream's, connected.
        producer: kombu's, with confirms.
    """

    def __init__(
        self,
        pair: Pair,
        exchange: aio_pika.abc.AbstractExchange,
        faststream: RabbitBroker,
        producer: kombu.Producer,
    ) -> None:
        self._admin = pair.primary.admin
        self._sender = pair.sender(QUEUE)
        self._exchange = exchange
        self._faststream = faststream
        self._producer = producer

    def contenders(self, one_by_one: int, pipelined: int) -> dict[str, Contender]:
        """Each sends so many messages, and prints how many it sent a second."""

        def timed(count: int, send: Callable[[int], Awaitable[None]]) -> Contender:
            async def run() -> float:
                await self._admin.purge(Source(Entity(QUEUE)))
                started = time.perf_counter()
                await send(count)
                return count / (time.perf_counter() - started)

            return run

        found = {
            ONE_BY_ONE: timed(one_by_one, self.ours),
            RAW: timed(one_by_one, self.raw),
            BATCH: timed(pipelined, self.ours_batch),
            STREAM: timed(pipelined, self.ours_stream),
            "kombu": timed(one_by_one, self.kombu),
        }
        for size in GATHERED:
            found[f"aio-pika, gather of {size}"] = timed(pipelined, lambda count, size=size: self.gather(count, size))
            found[f"FastStream, gather of {size}"] = timed(
                pipelined, lambda count, size=size: self.gather_faststream(count, size)
            )
        return found

    async def ours(self, count: int) -> None:
        for _ in range(count):
            await self._sender.send(Message(BODY))

    async def ours_batch(self, count: int) -> None:
        for size in windows(count, WINDOW):
            await self._sender.send_batch([Message(BODY) for _ in range(size)])

    async def ours_stream(self, count: int) -> None:
        async for _ in self._sender.send_stream((Message(BODY) for _ in range(count)), window=WINDOW):
            pass

    def _publish(self) -> Any:
        message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        return self._exchange.publish(message, QUEUE)

    async def raw(self, count: int) -> None:
        for _ in range(count):
            await self._publish()

    async def gather(self, count: int, window: int) -> None:
        for size in windows(count, window):
            await asyncio.gather(*(self._publish() for _ in range(size)))

    async def gather_faststream(self, count: int, window: int) -> None:
        for size in windows(count, window):
            await asyncio.gather(*(self._faststream.publish(BODY, QUEUE, persist=True) for _ in range(size)))

    async def kombu(self, count: int) -> None:
        for _ in range(count):
            self._producer.publish(BODY, routing_key=QUEUE, delivery_mode=2, serializer=None)


async def measure(one_by_one: int, pipelined: int, rounds: int) -> Figures:
    """Messages a second of each contender, once a round."""
    async with AsyncExitStack() as stack:
        east, west = (stack.enter_context(RabbitServer()) for _ in range(2))
        pair = await stack.enter_async_context(Pair.connect(east.url, west.url))
        await pair.primary.admin.create(Entity(QUEUE))
        connection = await stack.enter_async_context(await aio_pika.connect(east.url))
        channel = await connection.channel()
        faststream = await stack.enter_async_context(RabbitBroker(east.url, logger=None))
        await faststream.connect()
        producer = stack.enter_context(
            kombu.Connection(east.url, transport_options={"confirm_publish": True})
        ).Producer()
        senders = Senders(pair, channel.default_exchange, faststream, producer)
        return await interleaved(senders.contenders(one_by_one, pipelined), rounds)


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--count", type=int, default=2000, help="messages a turn, one at a time")
    parser.add_argument("--pipelined", type=int, default=20_000, help="messages a turn, pipelined")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.count, options.pipelined, options.rounds))
    peers = []
    for product in ("aio-pika", "FastStream"):
        sizes = [f"{product}, gather of {size}" for size in GATHERED]
        peers.append(max(sizes, key=lambda name: statistics.median(figures[name])))
    pairs = [(ONE_BY_ONE, RAW), *((ours, peer) for ours in (BATCH, STREAM) for peer in (*peers, "kombu"))]
    report(figures, pairs, "messages a second", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
