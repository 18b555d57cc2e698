"""What the journal costs a healthy send: two pairs on the same brokers, one of them with a journal, in one run.

One message at a time, 1 KiB. The two take turns, each turn half before and half after the other's, and the cost is that
of each turn: what the machine does meanwhile meets both. Run it with: make bench-one NAME=journal_cost
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pairmq import Entity, Message, Pair, PairSender
from pairmq.observe.journal import Journal, JournalOptions
from pairmq_rabbitmq.testing import pool
from pairmq_redis.testing import RedisServer

BODY = b"x" * 1024


@contextmanager
def brokers(product: str) -> Iterator[tuple[str, str]]:
    """Two servers of a product, by their URLs."""
    with ExitStack() as stack:
        if product == "redis":
            servers = [stack.enter_context(RedisServer(appendfsync="no")) for _ in range(2)]
            yield servers[0].url, servers[1].url
        else:
            stack.callback(pool.close)
            east, west = pool.take(2)
            yield east.url, west.url


class Spent(NamedTuple):
    """What some sends took: seconds of the clock, and of this process's processor time."""

    wall: float
    processor: float

    def __add__(self, other: Spent) -> Spent:  # type: ignore[override]
        return Spent(self.wall + other.wall, self.processor + other.processor)


async def spent(count: int, sender: PairSender, journal: Journal | None) -> Spent:
    """What so many sends take, one after the other, until their journal is written."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        await sender.send(Message(BODY))
    if journal is not None:
        # What its thread has not done yet would otherwise be paid by the next one's sends.
        journal.flush()
    return Spent(time.perf_counter() - wall, time.process_time() - processor)


async def measure(urls: tuple[str, str], count: int, turns: int, journal: Journal) -> list[tuple[Spent, Spent]]:
    """What a turn's sends took without and with the journal."""
    found = []
    async with Pair.connect(*urls) as plain, Pair.connect(*urls, journal=journal) as journalled:
        await plain.primary.admin.create(Entity("orders"))
        without, with_journal = (plain.sender("orders"), None), (journalled.sender("orders"), journal)
        half = count // 2
        for turn in range(turns + 1):
            first, second = (without, with_journal) if turn % 2 else (with_journal, without)
            # A, B, B, A: what drifts in a turn meets both alike.
            outer = await spent(half, *first)
            inner = await spent(half, *second) + await spent(half, *second)
            outer += await spent(half, *first)
            found.append((outer, inner) if first is without else (inner, outer))
    return found[1:]  # the first turn warms up


def spread(values: list[float]) -> dict[str, float]:
    """The median, and between which the middle half lies: on a busy machine single turns measure the machine."""
    low, _, high = statistics.quantiles(values, n=4)
    return {"median": statistics.median(values), "low": low, "high": high}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="messages of each pair a turn")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--brokers", choices=("redis", "rabbitmq"), action="append", help="repeatable; default both")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    for product in arguments.brokers or ("redis", "rabbitmq"):
        with brokers(product) as urls, tempfile.TemporaryDirectory() as folder:
            # Old enough for several segments: what they cost belongs to the cost.
            journal = Journal(Path(folder), JournalOptions(max_age=5.0))
            turns = asyncio.run(measure(urls, arguments.count, arguments.turns, journal))
            journal.close()
        each = 1e6 / (arguments.count // 2 * 2)
        figures[product] = {
            "plain_microseconds": statistics.median(plain.wall for plain, _ in turns) * each,
            "journal_microseconds": statistics.median(ours.wall for _, ours in turns) * each,
            "cost_percent": spread([100 * (ours.wall / plain.wall - 1) for plain, ours in turns]),
            "processor_microseconds": spread([(ours.processor - plain.processor) * each for plain, ours in turns]),
            "dropped": journal.dropped,
        }
    if arguments.json:
        print(json.dumps(figures))
        return 0
    for product, figure in figures.items():
        cost, processor = figure["cost_percent"], figure["processor_microseconds"]
        print(
            f"{product}: a send {figure['plain_microseconds']:.0f} µs, with the journal "
            f"{figure['journal_microseconds']:.0f} µs: cost {cost['median']:.1f} % "
            f"(half of the turns from {cost['low']:.1f} to {cost['high']:.1f}), of the processor "
            f"{processor['median']:.1f} µs (from {processor['low']:.1f} to {processor['high']:.1f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
