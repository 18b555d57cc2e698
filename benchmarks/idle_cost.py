"""What an idle pair with a syphon costs this process in processor time.

Run it with: make bench-idle
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys

from pairmq import Entity, EntityState, Message, Pair, PairOptions
from pairmq_redis.testing import RedisServer


def processor_time() -> float:
    """Seconds of user and system time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def shares(seconds: float, runs: int, options: PairOptions) -> list[float]:
    """The share of one core that an idle pair uses, once a run."""
    found = []
    with RedisServer() as east, RedisServer() as west:
        async with Pair.connect(east.url, west.url, options=options) as pair:
            await pair.primary.admin.create(Entity("orders"))
            await pair.sender("orders").send(Message(b"one"))
            while pair.state("orders") is not EntityState.HEALTHY:
                await asyncio.sleep(0.1)
            for _ in range(runs):
                before = processor_time()
                await asyncio.sleep(seconds)
                found.append((processor_time() - before) / seconds)
    return found


def main() -> int:
    """Measure, print, and fail when the median is 1 % of a core or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    idle = asyncio.run(shares(arguments.seconds, arguments.runs, PairOptions(enable_syphon=True)))
    bare = asyncio.run(shares(arguments.seconds, arguments.runs, PairOptions()))
    figures = {
        "with_syphon": {"median": statistics.median(idle), "min": min(idle), "max": max(idle)},
        "without_syphon": {"median": statistics.median(bare), "min": min(bare), "max": max(bare)},
    }
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:15} {figure['median']:.2%} of a core (from {figure['min']:.2%} to {figure['max']:.2%})")
    return 0 if figures["with_syphon"]["median"] < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
