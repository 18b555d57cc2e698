"""How long the event loop is blocked while 20,000 sends are in flight and both brokers are unresponsive.

Two Redis servers are stopped by SIGSTOP; the sends are started 100 in a turn of the loop, and end by their deadlines.
A ticker reports the most processor time that passed between two of its ticks, 5 ms apart: with Python's garbage
collector as it is, and set as a program with so many tasks should set it. The control are as many tasks that only wait
with a timeout. Exit status 1 when the loop was blocked for more than 50 ms with the collector set.

Run it with: make bench-one NAME=in_flight
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from _measuring import Contender, arguments, interleaved, report

from pairmq import Entity, Message, Pair, PairOptions, SendError
from pairmq_redis.testing import RedisServer

TIMEOUT = 3.0
MOST = 50  # ms

AS_IT_IS, SET = "20,000 sends, the collector as it is", "the same after gc.freeze(), threshold raised"
WAITING = "20,000 tasks that wait with a timeout"


async def blocked(work: Callable[[], Coroutine[Any, Any, None]], count: int) -> float:
    """Milliseconds of processor time that the loop took for other work in one piece, while so many tasks ran."""
    most = 0.0

    async def tick() -> None:
        nonlocal most
        while True:
            began = time.process_time()
            await asyncio.sleep(0.005)
            most = max(most, time.process_time() - began)

    ticker = asyncio.create_task(tick())
    tasks = []
    for _ in range(count // 100):
        tasks += [asyncio.create_task(work()) for _ in range(100)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    ticker.cancel()
    return most * 1e3


async def wait() -> None:
    """What a send costs without PairMQ: its task, its coroutine and its deadline."""
    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT):
            await asyncio.get_running_loop().create_future()


async def sends(count: int, *, collector_set: bool) -> float:
    """The longest block of a pair's loop."""
    options = PairOptions(failover_interval=0.5, attempt_timeout=1.0, send_timeout=TIMEOUT, max_pending_sends=count)
    with RedisServer() as east, RedisServer() as west:
        async with Pair.connect(east.url, west.url, options=options) as pair:
            await pair.primary.admin.create(Entity("orders"))
            sender = pair.sender("orders")
            await sender.send(Message(b"first"))
            east.pause()
            west.pause()

            async def send() -> None:
                with suppress(SendError):
                    await sender.send(Message(b"x"))

            gc.collect()
            thresholds = gc.get_threshold()
            if collector_set:
                gc.freeze()
                gc.set_threshold(700, 10, 1000)
            try:
                return await blocked(send, count)
            finally:
                gc.set_threshold(*thresholds)
                gc.unfreeze()


async def waits(count: int) -> float:
    """The same of tasks that only wait."""
    gc.collect()
    return await blocked(wait, count)


def main() -> int:
    """Measure and print; exit status 1 when the loop was blocked for too long."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    turns: dict[str, Contender] = {
        AS_IT_IS: lambda: sends(options.count, collector_set=False),
        SET: lambda: sends(options.count, collector_set=True),
        WAITING: lambda: waits(options.count),
    }
    figures = asyncio.run(interleaved(turns, options.rounds))
    report(figures, [(AS_IT_IS, WAITING), (SET, WAITING)], "ms", as_json=options.json)
    return 0 if statistics.median(figures[SET]) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
