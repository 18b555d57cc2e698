"""How long the event loop is blocked while 20,000 sends are in flight and both brokers are unresponsive.

Two Redis servers are stopped by SIGSTOP; the sends are started 100 in a turn of the loop, and end by their deadlines.
A ticker reports the most processor time that passed between two of its ticks, 5 ms apart: with Python's garbage
collector as it is, and set as a program with so many tasks should set it. The control are as many tasks that only wait
with a timeout. Exit status 1 when the loop was blocked for more than 50 ms with the collector set.

With ``--late`` the figure is another one: by how much the slowest send ended after its deadline, by the clock on the
wall, with a primary of Redis and one of RabbitMQ, started 100 in a turn and all in one. Exit status 1 when that was
more than 250 ms.

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
from functools import partial
from typing import Any, NamedTuple

from _measuring import Contender, arguments, interleaved, report

from pairmq import Entity, Message, Pair, PairOptions, SendError
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

TIMEOUT = 3.0
MOST, MOST_LATE = 50, 250  # ms

AS_IT_IS, SET = "20,000 sends, the collector as it is", "the same after gc.freeze(), threshold raised"
WAITING = "20,000 tasks that wait with a timeout"
PRIMARIES = {"Redis": RedisServer, "RabbitMQ": RabbitServer}


class Run(NamedTuple):
    """What was measured while so many tasks ran, in milliseconds."""

    blocked: float  # processor time that the loop took for other work in one piece
    late: float  # by which the slowest ended after its deadline


async def measured(work: Callable[[], Coroutine[Any, Any, None]], count: int, at_once: int) -> Run:
    """Run so many tasks, some of them begun in each turn of the loop."""
    most = late = 0.0

    async def tick() -> None:
        nonlocal most
        while True:
            began = time.process_time()
            await asyncio.sleep(0.005)
            most = max(most, time.process_time() - began)

    async def timed() -> None:
        nonlocal late
        began = time.monotonic()
        await work()
        late = max(late, time.monotonic() - began - TIMEOUT)

    ticker = asyncio.create_task(tick())
    tasks = []
    for _ in range(count // at_once):
        tasks += [asyncio.create_task(timed()) for _ in range(at_once)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    ticker.cancel()
    return Run(most * 1e3, late * 1e3)


async def wait() -> None:
    """What a send costs without PairMQ: its task, its coroutine and its deadline."""
    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT):
            await asyncio.get_running_loop().create_future()


async def sends(count: int, *, at_once: int = 100, primary: str = "Redis", collector_set: bool = False) -> Run:
    """Send while both brokers are unresponsive."""
    options = PairOptions(failover_interval=0.5, attempt_timeout=1.0, send_timeout=TIMEOUT, max_pending_sends=count)
    with PRIMARIES[primary]() as east, RedisServer() as west:
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
                return await measured(send, count, at_once)
            finally:
                gc.set_threshold(*thresholds)
                gc.unfreeze()
                east.resume()
                west.resume()


async def waits(count: int, at_once: int = 100) -> Run:
    """The same of tasks that only wait."""
    gc.collect()
    return await measured(wait, count, at_once)


def blocked(rounds: int, count: int, *, as_json: bool) -> bool:
    """Print for how long the loop was blocked; returns whether that was short enough."""
    turns: dict[str, Callable[[], Coroutine[Any, Any, Run]]] = {
        AS_IT_IS: lambda: sends(count),
        SET: lambda: sends(count, collector_set=True),
        WAITING: lambda: waits(count),
    }
    figures = asyncio.run(interleaved({name: figure(run, "blocked") for name, run in turns.items()}, rounds))
    report(figures, [(AS_IT_IS, WAITING), (SET, WAITING)], "ms", as_json=as_json)
    return statistics.median(figures[SET]) <= MOST


def late(rounds: int, count: int, *, as_json: bool) -> bool:
    """Print how late the slowest ended; returns whether that was soon enough."""
    turns = {
        f"{primary}, {at_once:,} begun in a turn": partial(sends, count, at_once=at_once, primary=primary)
        for primary in PRIMARIES
        for at_once in (100, count)
    }
    contenders = {name: figure(run, "late") for name, run in turns.items()}
    waiting = {f"{WAITING}, begun in one turn": figure(partial(waits, count, count), "late")}
    figures = asyncio.run(interleaved(contenders | waiting, rounds))
    report(figures, [], "ms", as_json=as_json)
    return all(statistics.median(figures[name]) <= MOST_LATE for name in contenders)


def figure(run: Callable[[], Coroutine[Any, Any, Run]], name: str) -> Contender:
    """One of the figures of a run."""

    async def measure() -> float:
        return float(getattr(await run(), name))

    return measure


def main() -> int:
    """Measure and print; exit status 1 when the loop was blocked for too long, or a send ended too late."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--late", action="store_true", help="measure how late the slowest send ends instead")
    options = parser.parse_args()
    measure = late if options.late else blocked
    return 0 if measure(options.rounds, options.count, as_json=options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
