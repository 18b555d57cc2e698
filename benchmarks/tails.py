"""How long single sends take, not on average but at worst, beside the product's own client.

One at a time, 1 KiB, confirmed; to RabbitMQ persistent, beside aio-pika, or to Redis with ``appendfsync everysec``,
beside redis-py. *healthy*: to the primary. *diverted*: to the secondary, as the entity is held; the client sends there
itself. *failover*: the sends of `failover_time`, 50 before the primary is killed and those until the first one that the
secondary took, where the client has a second connection open. The contenders take turns of some hundred sends, and all
sends of all turns are counted together. "pause" counts how late a timer of 1 ms was in turns of its own,
which on a busy machine is a part of every tail.

Run it with: make bench-one NAME=tails ARGS="--product redis"
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import aio_pika
from _measuring import Contender, arguments, interleaved
from failover_time import BODY, QUEUE, Failovers, Send
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pairmq import Entity, Message, Pair, PairSender
from pairmq_rabbitmq.testing import RabbitServer, start_together
from pairmq_redis.testing import RedisServer

PAUSE = 0.001  # s
MARKS = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
KINDS = ("healthy", "diverted", "failover")
OURS, PAUSED = "PairMQ", "pause"


class Times:
    """Milliseconds of every send, by kind and contender."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}

    async def timed(self, name: str, send: Callable[[], Awaitable[object]], less: float = 0.0) -> object:
        started = time.perf_counter()
        try:
            return await send()
        finally:
            self.of.setdefault(name, []).append((time.perf_counter() - started - less) * 1000)

    def turn(self, name: str, send: Callable[[], Awaitable[object]], count: int, less: float = 0.0) -> Contender:
        """So many sends; gives their median."""

        async def run() -> float:
            for _ in range(count):
                await self.timed(name, send, less)
            return statistics.median(self.of[name][-count:])

        return run

    def opened(
        self, name: str, opens: Callable[[], AbstractAsyncContextManager[Send]]
    ) -> Callable[[], AbstractAsyncContextManager[Send]]:
        """The same with every send timed."""

        @asynccontextmanager
        async def timing() -> AsyncIterator[Send]:
            async with opens() as send:
                await send("the first one, which opens what it needs")

                async def one(number: str) -> bool:
                    return bool(await self.timed(name, lambda: send(number)))

                yield one

        return timing


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of a sorted sequence does not exceed."""
    return values[min(len(values) - 1, int(len(values) * share))]


def curve(values: Sequence[float]) -> list[tuple[float, float]]:
    """Of sorted milliseconds, some points: this much, and the share of sends that took longer."""
    places = sorted({round(len(values) * (1 - 10 ** (-number / 12))) for number in range(61)} & set(range(len(values))))
    return [(round(values[place], 4), 1 - place / len(values)) for place in places]


async def ours(sender: PairSender) -> None:
    """One send of PairMQ's."""
    await sender.send(Message(BODY))


class Rabbit:
    """RabbitMQ, beside aio-pika."""

    peer: ClassVar[str] = "aio-pika"
    failovers: ClassVar[type[Failovers]] = Failovers
    server: ClassVar[Callable[[], Any]] = RabbitServer

    async def bare(self, stack: AsyncExitStack, server: Any, kind: str) -> Callable[[], Awaitable[object]]:
        """A send to a queue of the type of the one beside it."""
        connection = await stack.enter_async_context(await aio_pika.connect(server.url))
        channel = await connection.channel()
        type_ = {"x-queue-type": "quorum"} if kind == "diverted" else {}
        await channel.declare_queue(f"bare-{kind}", durable=True, arguments=type_)

        async def send() -> None:
            message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, f"bare-{kind}")

        return send


class RedisFailovers(Failovers):
    """The same turns on two Redis servers."""

    def _clear(self) -> None:
        for server in (self._east, self._west):
            server.flush()

    def _settle(self) -> None: ...

    def _kill(self) -> None:
        self._east.kill()

    async def _found(self, server: Any) -> set[str]:
        async with Redis.from_url(server.url) as client:
            entries = await client.xrange(f"pairmq:{{{QUEUE}}}:queue")
        return {fields[b"i"].decode() for _, fields in entries}

    @asynccontextmanager
    async def by_hand(self) -> AsyncIterator[Send]:
        """redis-py, twice, without retries of its own."""
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)))
                for server in (self._east, self._west)
            ]
            for client in clients:
                await client.ping()

            async def send(number: str) -> bool:
                for client in clients:
                    try:
                        await client.xadd(f"pairmq:{{{QUEUE}}}:queue", {"b": BODY, "i": number})
                    except RedisError:
                        continue
                    return client is clients[1]
                raise RuntimeError("neither server took the message")

            yield send


class OfRedis:
    """Redis, beside redis-py."""

    peer: ClassVar[str] = "redis-py"
    failovers: ClassVar[type[Failovers]] = RedisFailovers
    server: ClassVar[Callable[[], Any]] = partial(RedisServer, appendfsync="everysec")

    async def bare(self, stack: AsyncExitStack, server: Any, kind: str) -> Callable[[], Awaitable[object]]:
        """A send to a stream."""
        client = await stack.enter_async_context(Redis.from_url(server.url))
        return lambda: client.xadd(f"bare-{kind}", {"b": BODY})


PRODUCTS: dict[str, Rabbit | OfRedis] = {"rabbitmq": Rabbit(), "redis": OfRedis()}


async def measure(product: Rabbit | OfRedis, count: int, rounds: int, failovers: int) -> dict[str, list[float]]:
    """All times, sorted."""
    times = Times()
    with type(product).server() as east, type(product).server() as west:
        start_together(east, west)
        async with AsyncExitStack() as stack:
            pair = await stack.enter_async_context(Pair.connect(east.url, west.url))
            sends: dict[str, Callable[[], Awaitable[object]]] = {}
            for kind, server in (("healthy", east), ("diverted", west)):
                entity = Entity(f"{QUEUE}-{kind}")
                await pair.primary.admin.create(entity)
                sends[f"{kind}, {OURS}"] = partial(ours, pair.sender(entity.path))
                if kind == "diverted":
                    pair.hold(entity.path)
                sends[f"{kind}, {product.peer}"] = await product.bare(stack, server, kind)
            turns = {name: times.turn(name, send, count) for name, send in sends.items()}
            turns[PAUSED] = times.turn(PAUSED, lambda: asyncio.sleep(PAUSE), count // 4, PAUSE)
            for name in turns:  # to warm up
                await turns[name]()
            times.of.clear()
            await interleaved(turns, rounds, warm_up=False)
        moments = product.failovers(east, west)
        contenders = {
            name: moments.contender(name, times.opened(f"failover, {name}", opens))
            for name, opens in ((OURS, moments.ours), (product.peer, moments.by_hand))
        }
        await interleaved(contenders, failovers, warm_up=False)
    for name, lost in moments.lost.items():
        print(f"{name}: lost {lost:,} of {moments.sent[name]:,} messages that it took for sent", file=sys.stderr)
    return {name: sorted(values) for name, values in times.of.items()}


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=30)
    parser.add_argument("--count", type=int, default=400, help="sends of a turn")
    parser.add_argument("--failovers", type=int, default=8)
    parser.add_argument("--product", choices=PRODUCTS, default="rabbitmq")
    options = parser.parse_args()
    for name in ("asyncio", "pairmq", "aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # connections die noisily
    times = asyncio.run(measure(PRODUCTS[options.product], options.count, options.rounds, options.failovers))
    marks = {
        name: {mark: quantile(values, share) for mark, share in MARKS.items()} | {"sends": len(values)}
        for name, values in times.items()
    }
    if options.json:
        tails = {name: curve(values) for name, values in times.items()}
        print(json.dumps({"unit": "ms", "kinds": KINDS, "marks": marks, "tails": tails}))
        return 0
    for name, of in marks.items():
        print(f"{name:20}", *(f"{mark} {value:9,.2f}" for mark, value in of.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
