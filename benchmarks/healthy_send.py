"""What a healthy send costs beside the client library alone: PairMQ against redis-py's XADD, in one run.

One message at a time, 1 KiB, on one redis-server; the two take turns, and the ratio is that of each turn.
Run it with: make bench-send
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import redis.asyncio

from pairmq import Entity, Message, Pair
from pairmq_redis.testing import RedisServer

BODY = b"x" * 1024


async def rate(count: int, send: Callable[[], Awaitable[object]]) -> float:
    """Sends a second, one after the other."""
    started = time.perf_counter()
    for _ in range(count):
        await send()
    return count / (time.perf_counter() - started)


async def measure(count: int, turns: int) -> list[tuple[float, float]]:
    """The rates of PairMQ and of redis-py, once a turn."""
    found = []
    with RedisServer(appendfsync="no") as east, RedisServer(appendfsync="no") as west:
        async with Pair.connect(east.url, west.url) as pair, redis.asyncio.Redis.from_url(east.url) as raw:
            await pair.primary.admin.create(Entity("orders"))
            sender = pair.sender("orders")
            for _ in range(turns):
                ours = await rate(count, lambda: sender.send(Message(BODY)))
                theirs = await rate(count, lambda: raw.xadd("raw", {"body": BODY}))
                found.append((ours, theirs))
    return found[1:]  # the first turn warms up


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="messages a turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    turns = asyncio.run(measure(arguments.count, arguments.turns))
    ratios = sorted(ours / theirs for ours, theirs in turns)
    figures = {
        "pairmq_per_second": statistics.median(ours for ours, _ in turns),
        "redis_py_per_second": statistics.median(theirs for _, theirs in turns),
        "ratio": {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]},
    }
    if arguments.json:
        print(json.dumps(figures))
    else:
        spread = figures["ratio"]
        print(f"PairMQ {figures['pairmq_per_second']:,.0f}/s, redis-py {figures['redis_py_per_second']:,.0f}/s")
        print(f"ratio {spread['median']:.2f} (from {spread['min']:.2f} to {spread['max']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
