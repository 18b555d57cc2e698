"""How long a failover takes: from the primary's kill -9 to the first send that the secondary accepted.

Two real RabbitMQ servers and ``failover_interval=0``. In each turn one message after the other is sent while the
primary is killed. The peer does by hand, with aio-pika alone, what an application without PairMQ would: it publishes to
the second server, over a connection that is open already, when publishing to the first one fails. It knows of no ping,
no backlog and no way back.
Run it with: make bench-failover
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import aio_pika

from pairmq import Entity, EntityState, Message, Pair, PairOptions, Route
from pairmq_rabbitmq.testing import RabbitServer, start_together

BODY = b"x" * 1024
LIMIT_MS = 100
OPTIONS = PairOptions(
    failover_interval=0,
    ping_primary_interval=0.5,
    ping_timeout=1.0,
    attempt_timeout=5.0,
    backlog_queue_count=4,
    enable_syphon=True,
)


async def until_moved(server: RabbitServer, send: Callable[[], Awaitable[bool]]) -> float:
    """Send without pause, kill the server in the midst of it, and tell how many ms later a send was taken elsewhere."""
    killed_at = 0.0
    for _ in range(50):
        await send()

    def kill() -> None:
        nonlocal killed_at
        killed_at = time.perf_counter()
        server.kill(settle=False)

    server.settle()
    killing = asyncio.create_task(asyncio.to_thread(kill))
    while not await send():
        pass
    moved_at = time.perf_counter()
    await killing
    return (moved_at - killed_at) * 1000


async def ours(east: RabbitServer, west: RabbitServer, turns: int, tell: Callable[[str], None]) -> list[float]:
    """PairMQ's times in ms."""
    found = []
    async with Pair.connect(east.url, west.url, options=OPTIONS) as pair:
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")

        async def send() -> bool:
            return (await sender.send(Message(BODY))).route is Route.BACKLOG

        for turn in range(turns):
            found.append(await until_moved(east, send))
            east.start()  # in this thread: the server ends with the thread that started it
            while pair.state("orders") is not EntityState.HEALTHY:
                await asyncio.sleep(0.05)
            tell(f"PairMQ {turn + 1}/{turns}: {found[-1]:.0f} ms")
    return found


async def theirs(east: RabbitServer, west: RabbitServer, turns: int, tell: Callable[[str], None]) -> list[float]:
    """The times in ms of failover by hand, with aio-pika."""
    found = []
    for turn in range(turns):
        connections = [await aio_pika.connect(server.url) for server in (east, west)]
        exchanges = []
        for connection in connections:
            channel = await connection.channel(on_return_raises=True)
            await channel.declare_queue("by-hand", durable=True)
            exchanges.append(channel.default_exchange)

        async def send(exchanges: list[aio_pika.abc.AbstractExchange] = exchanges) -> bool:
            for exchange in exchanges:
                try:
                    message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                    await exchange.publish(message, "by-hand")
                except (Exception, asyncio.CancelledError):  # noqa: S112  # a lost connection cancels what waits on it
                    continue
                return exchange is exchanges[1]
            raise RuntimeError("neither server took the message")

        found.append(await until_moved(east, send))
        east.start()
        for connection in connections:
            await connection.close()
        tell(f"by hand {turn + 1}/{turns}: {found[-1]:.0f} ms")
    return found


def main() -> int:
    """Measure and print; exit status 1 when the median is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the peer's connections die noisily
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr)  # noqa: E731
    with RabbitServer() as east, RabbitServer() as west:
        start_together(east, west)
        mine = asyncio.run(ours(east, west, arguments.turns, tell))
        by_hand = asyncio.run(theirs(east, west, arguments.turns, tell))
    figures = {
        "turns": arguments.turns,
        "pairmq_ms": {"median": statistics.median(mine), "min": min(mine), "max": max(mine)},
        "by_hand_ms": {"median": statistics.median(by_hand), "min": min(by_hand), "max": max(by_hand)},
        "ratio": statistics.median(mine) / statistics.median(by_hand),
    }
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, times in (("PairMQ", mine), ("by hand with aio-pika", by_hand)):
            print(f"{name}: median {statistics.median(times):.0f} ms (from {min(times):.0f} to {max(times):.0f})")
        print(f"ratio {figures['ratio']:.2f}; kill -9 to the first accepted send, {arguments.turns} turns each")
    return 0 if figures["pairmq_ms"]["median"] < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
