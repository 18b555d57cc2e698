"""What a healthy send to Redis costs beside redis-py alone: messages of 1 KiB, one at a time, in one run.

One redis-server, which writes every message to its file and syncs that file each second. Each contender awaits the id
that Redis gives a message before it sends the next. PairMQ makes each message an id of its own and stores it; redis-py
is measured with the body alone, which is the strict comparison, and with an id made in the same way. The contenders
take turns, short ones: what else the machine does then meets all alike.

Run it with: make bench-one NAME=redis_send
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable

import redis.asyncio
from _measuring import Contender, Figures, arguments, interleaved, report

from pairmq import Entity, Message, Pair
from pairmq_redis.testing import RedisServer

BODY = b"x" * 1024
OURS, THEIRS, WITH_ID = "PairMQ", "redis-py", "redis-py with an id"


def timed(count: int, send: Callable[[], Awaitable[object]]) -> Contender:
    """So many sends, one after the other: how many a second."""

    async def run() -> float:
        started = time.perf_counter()
        for _ in range(count):
            await send()
        return count / (time.perf_counter() - started)

    return run


async def measure(count: int, rounds: int) -> Figures:
    """Messages a second of each contender, once a round."""
    with RedisServer(appendfsync="everysec") as east, RedisServer(appendfsync="everysec") as west:
        async with Pair.connect(east.url, west.url) as pair, redis.asyncio.Redis.from_url(east.url) as raw:
            await pair.primary.admin.create(Entity("orders"))
            sender = pair.sender("orders")
            contenders = {
                OURS: timed(count, lambda: sender.send(Message(BODY))),
                THEIRS: timed(count, lambda: raw.xadd("raw", {"b": BODY})),
                WITH_ID: timed(count, lambda: raw.xadd("raw", {"b": BODY, "i": os.urandom(16).hex()})),
            }
            return await interleaved(contenders, rounds)


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=100)
    parser.add_argument("--count", type=int, default=200, help="messages a turn")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.count, options.rounds))
    report(figures, [(OURS, THEIRS), (OURS, WITH_ID)], "messages a second", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
