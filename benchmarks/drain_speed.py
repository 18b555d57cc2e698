"""How fast `pairmq pipeline drain` empties a backlog, beside `pairmq syphon` in one process and in two, in one run.

Both as the programs that people run, on two Redis servers, with 1 KiB messages. They take turns. The speed is that of
the middle four fifths of the messages, from when a tenth is moved back: starting Spark is reported apart, as "start".

Run it with: make bench-one NAME=drain_speed ARGS="--messages 100000"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import NamedTuple

from pairmq import Entity, Message
from pairmq.core import Diversion, PairOptions, divert
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq_redis.testing import RedisServer

BODY = b"x" * 1024
AT_ONCE = 500
ORDERS = Entity("orders")
PROGRAMS = {
    "syphon": ("syphon", "--until-empty"),
    "processes": ("syphon", "--until-empty", "--processes", "2"),
    "drain": ("pipeline", "drain"),
}


class Run(NamedTuple):
    """One program's run: messages a second, and seconds until the primary had a tenth of them."""

    speed: float
    start: float


async def leave(primary: str, secondary: str, messages: int, queues: int) -> None:
    """Fill the backlog queues evenly, as a process that has diverted would."""
    async with registry.transport(primary) as east, registry.transport(secondary) as west:
        await east.admin.create(ORDERS)
        names = PairOptions(backlog_queue_count=queues).backlog_queue_names(east.endpoint.name)
        for index, name in enumerate(names):
            await west.admin.create(Entity(name))
            sender = west.sender(Entity(name))
            numbers = range(index, messages, queues)
            for start in range(0, len(numbers), AT_ONCE):
                now = datetime.now(UTC)
                batch = [
                    divert(Message(BODY, message_id=f"m{number}"), Diversion(ORDERS, now, "a sender", number))
                    for number in numbers[start : start + AT_ONCE]
                ]
                if any(await sender.send_batch(batch)):
                    raise RuntimeError("the secondary refused a message")


async def watch(primary: str, program: subprocess.Popen[bytes], messages: int) -> Run:
    """Look at what the primary has until that is all."""
    began = time.perf_counter()
    points: list[tuple[float, int]] = []
    async with registry.transport(primary) as east:
        while not points or points[-1][1] < messages * 9 // 10:
            if program.poll() not in (None, 0):
                raise RuntimeError(f"the program ended with {program.returncode}")
            arrived = (await east.admin.counts(Source(ORDERS))).pending
            if arrived >= messages // 10:
                points.append((time.perf_counter(), arrived))
            await asyncio.sleep(0.02)
    (first, low), (last, high) = points[0], points[-1]
    return Run((high - low) / max(last - first, 1e-9), first - began)


def measure(name: str, messages: int, queues: int) -> Run:
    """Run one program on a backlog of its own."""
    with RedisServer(appendfsync="everysec") as east, RedisServer(appendfsync="everysec") as west:
        asyncio.run(leave(east.url, west.url, messages, queues))
        pair = ("--primary", east.url, "--secondary", west.url, "--backlog-queues", str(queues))
        program = subprocess.Popen(  # noqa: S603  # our own
            [sys.executable, "-m", "pairmq", *PROGRAMS[name], *pair],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            found = asyncio.run(watch(east.url, program, messages))
            if program.wait(120):
                raise RuntimeError(f"the program ended with {program.returncode}")
        finally:
            program.kill()
            program.wait()
    return found


def _of_two(runs: dict[str, list[Run]]) -> dict[str, float]:
    if "processes" not in runs:
        return {}
    pairs = zip(runs["processes"], runs["syphon"], strict=True)
    return {"processes_ratio": statistics.median(two.speed / one.speed for two, one in pairs)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--queues", type=int, action="append", help="repeatable; default 1, 4 and 8")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = {}
    for queues in arguments.queues or (1, 4, 8):
        programs = [name for name in sorted(PROGRAMS) if name != "processes" or queues > 1]
        runs: dict[str, list[Run]] = {name: [] for name in programs}
        for turn in range(arguments.turns):
            for name in programs[:: -1 if turn % 2 else 1]:
                runs[name].append(measure(name, arguments.messages, queues))
        figures[queues] = {
            "syphon_per_second": statistics.median(run.speed for run in runs["syphon"]),
            "drain_per_second": statistics.median(run.speed for run in runs["drain"]),
            "ratio": statistics.median(
                drain.speed / syphon.speed for drain, syphon in zip(runs["drain"], runs["syphon"], strict=True)
            ),
            **_of_two(runs),
            "syphon_start_seconds": statistics.median(run.start for run in runs["syphon"]),
            "drain_start_seconds": statistics.median(run.start for run in runs["drain"]),
        }
    if arguments.json:
        print(json.dumps(figures))
        return 0
    for queues, figure in figures.items():
        two = f", two processes {figure['processes_ratio']:.2f}" if "processes_ratio" in figure else ""
        print(
            f"{queues} queues: syphon {figure['syphon_per_second']:.0f}/s, drain {figure['drain_per_second']:.0f}/s, "
            f"ratio {figure['ratio']:.2f}{two}; start {figure['syphon_start_seconds']:.1f} s and "
            f"{figure['drain_start_seconds']:.1f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
