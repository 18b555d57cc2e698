"""What the Deduplicator costs a consumer on Redis: receiving and completing with it and without.

One message at a time, 1 KiB, with a prefetch of 100, from one redis-server; the shared store is on another one. They
take turns. It also prints what the store needs for an id. Run it with: make bench-one NAME=receive_once
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from io import StringIO

from _measuring import Contender, arguments, interleaved, report

from pairmq import Deduplicator, Entity, MemoryClaims, Message, Pair, PairDelivery
from pairmq_redis import RedisClaims
from pairmq_redis.testing import RedisServer

PLAIN, MEMORY, SHARED = "without", "in memory", "in Redis"
BODY = b"x" * 1024


def receiving(pair: Pair, count: int, dedupe: Deduplicator | None) -> Contender:
    """Messages a second that are received, and completed, after they were sent."""

    async def measured() -> float:
        await pair.sender("orders").send_batch([Message(BODY) for _ in range(count)])
        started = time.perf_counter()
        async with pair.receiver("orders", prefetch=100) as receiver:
            async for _ in _handled(receiver, count, dedupe):
                pass
        return count / (time.perf_counter() - started)

    return measured


async def _handled(
    receiver: AsyncIterator[PairDelivery], count: int, dedupe: Deduplicator | None
) -> AsyncIterator[None]:
    for _ in range(count):
        delivery = await anext(receiver)
        if dedupe is None:
            await delivery.complete()
        else:
            async with dedupe.once(delivery) as first:
                if not first:
                    raise AssertionError("a message was taken for a copy")
        yield


async def bytes_in_memory(ids: int) -> float:
    """What an id takes in this process."""
    store = MemoryClaims(ids)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for n in range(ids):
        key = f"{n:040x}"
        await store.claim(key, "t", 60)
        await store.confirm(key, "t", 86_400)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / ids


async def bytes_in_redis(server: RedisServer, ids: int) -> float:
    """What an id takes in the server."""
    server.flush()
    store = RedisClaims(server.url)
    before = _used(server)
    for start in range(0, ids, 200):
        await asyncio.gather(*(store.confirm(f"{n:040x}", "t", 86_400) for n in range(start, start + 200)))
    after = _used(server)
    await store.close()
    return (after - before) / ids


def _used(server: RedisServer) -> int:
    return int(
        server.command("EVAL", "return tonumber(redis.call('INFO','memory'):match('used_memory:(%d+)'))", "0")[1:]
    )


async def measure(count: int, rounds: int, ids: int, as_json: bool) -> None:
    """Measure and print."""
    with (
        RedisServer(appendfsync="no") as east,
        RedisServer(appendfsync="no") as west,
        RedisServer(appendfsync="no") as third,
    ):
        async with Pair.connect(east.url, west.url, backlog_queue_count=1) as pair:
            await pair.primary.admin.create(Entity("orders"))
            shared = Deduplicator(RedisClaims(third.url))
            figures = await interleaved(
                {
                    PLAIN: receiving(pair, count, None),
                    MEMORY: receiving(pair, count, Deduplicator()),
                    SHARED: receiving(pair, count, shared),
                },
                rounds,
            )
            await shared.close()
        memory = {"in memory": await bytes_in_memory(ids), "in Redis": await bytes_in_redis(third, ids)}
    pairs = [(MEMORY, PLAIN), (SHARED, PLAIN)]
    if as_json:
        printed = StringIO()
        with redirect_stdout(printed):
            report(figures, pairs, "messages a second", as_json=True)
        print(json.dumps({**json.loads(printed.getvalue()), "bytes_an_id": memory}))
        return
    report(figures, pairs, "messages a second", as_json=False)
    print("an id takes", ", ".join(f"{size:.0f} bytes {where}" for where, size in memory.items()))


def main() -> int:
    """Read the command line and measure."""
    parser = arguments(__doc__, rounds=25)
    parser.add_argument("--count", type=int, default=300, help="messages a turn")
    parser.add_argument("--ids", type=int, default=20_000, help="ids of which the memory is measured")
    chosen = parser.parse_args()
    asyncio.run(measure(chosen.count, chosen.rounds, chosen.ids, chosen.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
