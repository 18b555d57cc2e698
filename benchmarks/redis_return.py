"""What stays on the second Redis after an outage: with a pair, and with redis-py's MultiDBClient.

Two real redis-servers. In each turn a third of the messages is written while both run, a third after a kill -9 of the
first server, and a third once it runs again; each message has a number. MultiDBClient runs with settings with which it
notices an outage and a return within a second, and with its defaults. Then both servers are read: a message is where
its consumers look for it, on the first server, or it stayed on the second, or it is on neither. The first server writes
every message to its file before it answers, so that the kill itself loses none.

Exit status 1 when a message of the pair was refused, is on neither server, or stayed on the second.

Run it with: make bench-one NAME=redis_return
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import redis.asyncio
from redis.asyncio.multidb.client import MultiDBClient
from redis.asyncio.multidb.config import DatabaseConfig, MultiDbConfig

from pairmq import Entity, EntityState, Message, Pair, PairOptions
from pairmq_redis.testing import RedisServer

QUEUE = "orders"
BACK_AFTER = 60.0  # s in which the backlog has to be moved back
PAUSE = 2.0  # s in which a client can see that the first server is back
OPTIONS = PairOptions(failover_interval=0.5, ping_primary_interval=0.5, enable_syphon=True)

Send = Callable[[int], Awaitable[object]]


@asynccontextmanager
async def pair(first: str, second: str) -> AsyncIterator[Send]:
    """A pair; at its end the backlog has been moved back."""
    async with Pair.connect(first, second, options=OPTIONS) as opened:
        await opened.primary.admin.create(Entity(QUEUE))
        sender = opened.sender(QUEUE)
        yield lambda number: sender.send(Message(str(number).encode()))
        async with asyncio.timeout(BACK_AFTER):
            while opened.state(QUEUE) is not EntityState.HEALTHY:
                await asyncio.sleep(0.05)


def databases(first: str, second: str) -> list[DatabaseConfig]:
    """Both servers, the first one preferred; one that failed may be tried again after half a second."""
    return [
        DatabaseConfig(from_url=first, weight=1.0, grace_period=0.5),
        DatabaseConfig(from_url=second, weight=0.5, grace_period=0.5),
    ]


@asynccontextmanager
async def multidb(config: MultiDbConfig) -> AsyncIterator[Send]:
    """redis-py's client for several databases."""
    client: Any = MultiDBClient(config)
    async with client:
        yield lambda number: client.xadd(QUEUE, {"b": number})


def quick(first: str, second: str) -> AbstractAsyncContextManager[Send]:
    """One that notices an outage and a return within a second."""
    config = MultiDbConfig(
        databases_config=databases(first, second),
        min_num_failures=1,
        failure_rate_threshold=0.01,
        failures_detection_window=1.0,
        health_check_interval=0.5,
        health_check_probes=1,
        failover_attempts=100,
        failover_delay=0.1,
        auto_fallback_interval=0.5,
    )
    return multidb(config)


def by_default(first: str, second: str) -> AbstractAsyncContextManager[Send]:
    """One with the timing that it has by default."""
    return multidb(MultiDbConfig(databases_config=databases(first, second)))


CLIENTS = {"PairMQ": pair, "MultiDBClient, quick": quick, "MultiDBClient, by default": by_default}


async def numbers(url: str) -> set[int]:
    """The numbers of all messages on a server, read without either client."""
    found: set[int] = set()
    async with redis.asyncio.Redis.from_url(url) as client:
        for pattern in (f"*{QUEUE}*", "*x-servicebus-transfer*"):
            async for key in client.scan_iter(match=pattern, _type="stream"):
                entries: Any = await client.xrange(key)
                found |= {int(entry[b"b"]) for _, entry in entries}
    return found


async def turn(opened: Callable[[str, str], AbstractAsyncContextManager[Send]], count: int) -> dict[str, Any]:
    """Write through an outage: how many messages were accepted, and where they are in the end."""
    accepted: set[int] = set()
    refused = 0
    with RedisServer(appendfsync="always") as first, RedisServer(appendfsync="always") as second:
        async with opened(first.url, second.url) as send:

            async def write(several: range) -> None:
                nonlocal refused
                for number in several:
                    try:
                        await send(number)
                    except Exception:  # which one it is does not matter: the caller knows that it was not accepted
                        refused += 1
                    else:
                        accepted.add(number)

            await write(range(count // 3))
            first.kill()
            await write(range(count // 3, 2 * count // 3))
            first.start()  # in this thread: the server ends with the thread that started it
            await asyncio.sleep(PAUSE)
            await write(range(2 * count // 3, count))
        on_first, on_second = await numbers(first.url), await numbers(second.url)
    return {
        "accepted": len(accepted),
        "refused": refused,
        "on the first server": len(accepted & on_first),
        "left on the second": len((accepted & on_second) - on_first),
        "on neither": len(accepted - on_first - on_second),
    }


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=3000, help="messages of each client")
    parser.add_argument("--json", action="store_true", help="as JSON on stdout")
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # MultiDBClient warns that it is experimental
    found = {name: asyncio.run(turn(opened, wanted.count)) for name, opened in CLIENTS.items()}
    if wanted.json:
        print(json.dumps(found, indent=2))
    else:
        for name, rows in found.items():
            print(name)
            for what, number in rows.items():
                print(f"  {what:20} {number:6,}")
    ours = found["PairMQ"]
    return 1 if ours["left on the second"] or ours["on neither"] or ours["refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
