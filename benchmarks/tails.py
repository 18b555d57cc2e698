"""How long single sends to RabbitMQ take, not on average but at worst, beside aio-pika alone.

One at a time, 1 KiB, persistent and confirmed. *healthy*: to the primary. *diverted*: to the secondary, as the entity
is held; aio-pika publishes there itself. *failover*: the sends of `failover_time`, 50 before the primary is killed and
those until the first one that the secondary took, where aio-pika has a second connection open. The contenders take
turns of some hundred sends, and all sends of all turns are counted together. "pause" is no send: it is how late a timer
of 1 ms was in turns of its own, which on a busy machine is a part of every tail.

Run it with: make bench-one NAME=tails
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

import aio_pika
from _measuring import Contender, arguments, interleaved
from failover_time import BODY, QUEUE, Failovers, Send

from pairmq import Entity, Message, Pair, PairSender
from pairmq_rabbitmq.testing import RabbitServer, start_together

PAUSE = 0.001  # s
MARKS = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
KINDS = ("healthy", "diverted", "failover")
OURS, THEIRS, PAUSED = "PairMQ", "aio-pika", "pause"


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


async def theirs(exchange: aio_pika.abc.AbstractExchange, queue: str) -> None:
    """One of aio-pika's."""
    await exchange.publish(aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), queue)


async def measure(count: int, rounds: int, failovers: int) -> dict[str, list[float]]:
    """All times, sorted."""
    times = Times()
    with RabbitServer() as east, RabbitServer() as west:
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
                connection = await stack.enter_async_context(await aio_pika.connect(server.url))
                channel = await connection.channel()
                # Of the same type as the queue beside it.
                type_ = {"x-queue-type": "quorum"} if kind == "diverted" else {}
                await channel.declare_queue(f"bare-{kind}", durable=True, arguments=type_)
                sends[f"{kind}, {THEIRS}"] = partial(theirs, channel.default_exchange, f"bare-{kind}")
            turns = {name: times.turn(name, send, count) for name, send in sends.items()}
            turns[PAUSED] = times.turn(PAUSED, lambda: asyncio.sleep(PAUSE), count // 4, PAUSE)
            for name in turns:  # to warm up
                await turns[name]()
            times.of.clear()
            await interleaved(turns, rounds, warm_up=False)
        moments = Failovers(east, west)
        contenders = {
            name: moments.contender(name, times.opened(f"failover, {name}", opens))
            for name, opens in ((OURS, moments.ours), (THEIRS, moments.by_hand))
        }
        await interleaved(contenders, failovers, warm_up=False)
    return {name: sorted(values) for name, values in times.of.items()}


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=30)
    parser.add_argument("--count", type=int, default=400, help="sends of a turn")
    parser.add_argument("--failovers", type=int, default=8)
    options = parser.parse_args()
    for name in ("asyncio", "pairmq", "aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # connections die noisily
    times = asyncio.run(measure(options.count, options.rounds, options.failovers))
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
