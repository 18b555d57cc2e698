"""What a lost node of a cluster costs the sends of the moment, beside the product's own client in the same outage.

A send every 25 ms for some seconds before the fault and after it, each by PairMQ and by a client as one would write it
for a cluster: it connects to any node, gives up what has no answer within 2 s, and tries again until the message is
confirmed. Counted are the sends that took a second or longer, of all of them, and the slowest. PairMQ's pair fails over
after a minute only, so that nothing is diverted.

Run it with: make bench-one NAME=lost_node
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import aio_pika
from _measuring import arguments
from redis.asyncio import Redis, Sentinel
from redis.asyncio import RedisCluster as ClusterClient
from redis.asyncio.cluster import ClusterNode

from pairmq import Entity, Message, Pair, PairOptions, Route
from pairmq_rabbitmq.testing import RabbitCluster, RabbitServer
from pairmq_redis.testing import RedisCluster, RedisSentinels

QUEUE = "orders"
BODY = b"x" * 1024
EVERY = 0.025  # s
ANSWER = 2.0  # s that the bare client waits for a confirmation
SOCKET = 0.5  # s that redis-py waits for one server before it asks another
LIMIT = 30.0  # s after which a send counts as so long
AGAIN = 0.05  # s between its trials
OPTIONS = PairOptions(failover_interval=60.0, attempt_timeout=10.0, send_timeout=60.0)
SLOW = 1.0  # s

Send = Callable[[], Awaitable[None]]


@asynccontextmanager
async def paired(url: str, pairs: list[Pair] | None = None) -> AsyncIterator[Send]:
    """Sends of PairMQ's; its pair is put into ``pairs``."""
    async with Pair.connect(url, f"memory://{uuid4().hex}", options=OPTIONS) as pair:
        if pairs is not None:
            pairs.append(pair)
        await pair.primary.admin.create(Entity(QUEUE))
        sender = pair.sender(QUEUE)

        async def send() -> None:
            receipt = await sender.send(Message(BODY))
            if receipt.route is not Route.PRIMARY:
                raise RuntimeError("it was diverted")

        yield send


@asynccontextmanager
async def repeated(once: Send, lost: Send) -> AsyncIterator[Send]:
    """Sends that are tried until one is confirmed; ``lost`` is called after each that was not."""

    async def send() -> None:
        while True:
            with suppress(Exception):  # whatever it is, it is tried again
                async with asyncio.timeout(ANSWER):
                    return await once()
            await lost()
            await asyncio.sleep(AGAIN)

    yield send


@asynccontextmanager
async def bare_rabbit(cluster: RabbitCluster, first: Callable[[], RabbitServer]) -> AsyncIterator[Send]:
    """aio-pika on one node after the other."""
    state: dict[str, Any] = {"turn": cluster.nodes.index(first()) - 1}
    turn = asyncio.Lock()

    async def exchange() -> aio_pika.abc.AbstractExchange:
        async with turn:
            if "exchange" not in state:
                state["turn"] += 1
                node = cluster.nodes[state["turn"] % 3]
                state["connection"] = await aio_pika.connect(node.url, timeout=1)
                channel = await state["connection"].channel()
                await channel.declare_queue("bare", durable=True, arguments={"x-queue-type": "quorum"})
                state["exchange"] = channel.default_exchange
            found: aio_pika.abc.AbstractExchange = state["exchange"]
            return found

    async def once() -> None:
        to = await exchange()
        try:
            await to.publish(aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), "bare")
        except BaseException:
            if state.get("exchange") is to:
                del state["exchange"]
            raise

    async def lost() -> None:
        return

    async with repeated(once, lost) as send:
        yield send
    with suppress(Exception):
        await state["connection"].close()


@asynccontextmanager
async def bare_redis(client: Redis | ClusterClient) -> AsyncIterator[Send]:
    """redis-py, through its own sentinels or cluster."""

    async def once() -> None:
        await client.xadd("bare", {"body": BODY})

    async def lost() -> None:
        if isinstance(client, Redis):
            with suppress(Exception):
                await client.connection_pool.disconnect(inuse_connections=False)

    async with repeated(once, lost) as send:
        yield send
    with suppress(Exception):
        await client.aclose()


async def timed(send: Send, took: list[float]) -> None:
    """One send."""
    began = time.perf_counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT):
            await send()
    took.append(time.perf_counter() - began)


async def through(
    contenders: Mapping[str, AbstractAsyncContextManager[Send]],
    fault: Callable[[], None],
    seconds: float,
    ready: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each send of each contender, through a fault after a quarter of the time.

    Args:
        contenders: by name.
        fault: strikes.
        seconds: of sends.
        ready: is called before them.
    """
    took: dict[str, list[float]] = {name: [] for name in contenders}
    opened: dict[str, Send] = {}
    for name, each in contenders.items():
        opened[name] = await each.__aenter__()
        await opened[name]()
    await asyncio.to_thread(ready)
    sends: list[asyncio.Task[None]] = []
    began, struck = time.perf_counter(), None
    while (now := time.perf_counter() - began) < seconds:
        if struck is None and now >= seconds / 4:
            struck = asyncio.create_task(asyncio.to_thread(fault))
        sends += [asyncio.create_task(timed(send, took[name])) for name, send in opened.items()]
        await asyncio.sleep(EVERY)
    await asyncio.gather(*sends, *([struck] if struck else []))
    for each in contenders.values():
        await each.__aexit__(None, None, None)
    return took


def rabbit(fault: str, seconds: float, _: float) -> dict[str, list[float]]:
    """A RabbitMQ cluster: the node with both connections, where another one leads both queues."""
    pairs: list[Pair] = []
    with RabbitCluster(net_ticktime=8) as cluster:

        def connected() -> RabbitServer:
            node = str(pairs[0].primary.node)
            return next(each for each in cluster.nodes if node.endswith(f":{each.port}"))

        def ready() -> None:
            other = next(each for each in cluster.nodes if each is not connected())
            for queue in (QUEUE, "bare"):
                cluster.move_leader(queue, other)

        def strike() -> None:
            node = connected()
            node.kill(settle=False) if fault == "killed" else node.pause()

        contenders = {
            "PairMQ": paired(cluster.url + "?queue_type=quorum", pairs),
            "aio-pika": bare_rabbit(cluster, connected),
        }
        return asyncio.run(through(contenders, strike, seconds, ready))


def sentinels(fault: str, seconds: float, down_after: float) -> dict[str, list[float]]:
    """The master of three servers behind three sentinels."""
    with RedisSentinels(down_after=down_after) as group:

        async def run() -> dict[str, list[float]]:
            client = Sentinel([("127.0.0.1", each.port) for each in group.sentinels]).master_for(
                group.service, socket_timeout=SOCKET
            )
            master = group.master
            strike = master.kill if fault == "killed" else master.pause
            return await through({"PairMQ": paired(group.url), "redis-py": bare_redis(client)}, strike, seconds)

        return asyncio.run(run())


def redis_cluster(fault: str, seconds: float, node_timeout: float) -> dict[str, list[float]]:
    """A master of a Redis Cluster of three, with a replica each: the one that has PairMQ's queue and the client's."""
    with RedisCluster(replicas=1, node_timeout=node_timeout) as group:

        async def run() -> dict[str, list[float]]:
            nodes = [ClusterNode("127.0.0.1", each.port) for each in group.servers[:3]]
            client = ClusterClient(startup_nodes=nodes, socket_timeout=SOCKET)
            master = group.owner(QUEUE)
            strike = master.kill if fault == "killed" else master.pause
            return await through({"PairMQ": paired(group.url), "redis-py": bare_redis(client)}, strike, seconds)

        return asyncio.run(run())


GROUPS = {"rabbitmq": rabbit, "sentinels": sentinels, "redis-cluster": redis_cluster}


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--group", choices=GROUPS, action="append", help="repeatable; all when left out")
    parser.add_argument("--seconds", type=float, default=60.0, help="of sends, in a turn")
    parser.add_argument(
        "--down-after", type=float, default=1.0, help="s without an answer after which Redis counts a node as down"
    )
    options = parser.parse_args()
    for name in ("asyncio", "pairmq", "aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    found: dict[str, dict[str, float]] = {}
    for group in options.group or GROUPS:
        for fault in ("killed", "hangs"):
            for name, took in GROUPS[group](fault, options.seconds, options.down_after).items():
                took.sort()
                slow = sum(each >= SLOW for each in took)
                row = {"sends": len(took), "slow": slow, "below 1 s": 1 - slow / len(took)}
                row |= {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100], "longest": took[-1]}
                found[f"{group}, a node {fault}, {name}"] = row
                if not options.json:
                    print(f"{group}, a node {fault}, {name}: ", *(f"{what} {value:.4g}" for what, value in row.items()))
    if options.json:
        print(json.dumps({"unit": "s", "rows": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
