"""How long until ten processes follow an operator's decision, with both brokers 300 ms away.

Ten programs have the pair open and look for decisions every ``control_interval``, 5 s here. The operator, as far away
as they are, holds and resumes an entity in turn, at moments that are not theirs. Counted are the milliseconds from when
`pairmq switch` begins to write the decision: until the last process diverts or returns, by the clock that all of them
share, and until the command has read that all follow. In the last turn one of them is stopped with SIGSTOP: it must be
listed as the only one that does not follow. To reach: ``control_interval`` and 2 s.

Run it with: make bench-one NAME=fleet_switch ARGS="--rounds 24"
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from _far_link import far
from _measuring import Figures, arguments, report

from pairmq import Entity, EntityState
from pairmq.plugins import registry
from pairmq.runner import SwitchWriter
from pairmq.sync import Pair
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

ORDERS = Entity("orders")
PROCESSES = 10
ALLOWED = 2.0  # s beyond the interval
LOOK = 0.02  # s between two looks of a process at its own state
LIMIT = 120.0  # s until a process counts as lost
PRODUCTS: dict[str, Callable[[], Any]] = {
    "Redis": partial(RedisServer, appendfsync="everysec"),
    "RabbitMQ": RabbitServer,
}
FOLLOWED, LISTED = "the last one follows", "the command has read it"


def members(primary: str, secondary: str, interval: str) -> None:
    """Be the processes: each prints its number, whether it diverts, and since when. They end with their parent."""
    logging.getLogger("pairmq").setLevel(logging.CRITICAL)
    parent = os.getpid()
    for _ in range(PROCESSES):
        if not os.fork():
            break
    else:
        sys.stdin.read()
        os.killpg(0, signal.SIGKILL)
    with Pair.connect(primary, secondary, control_interval=float(interval), backlog_queue_count=1) as pair:
        last = None
        while os.getppid() == parent:
            diverts = pair.state(ORDERS.path) is EntityState.FAILED_OVER
            if diverts is not last:
                last = diverts
                os.write(1, f"{os.getpid()} {int(diverts)} {time.monotonic()}\n".encode())
            time.sleep(LOOK)


@dataclass
class Fleet:
    """What the processes have printed: by process, whether it diverts, and since when."""

    of: dict[int, tuple[bool, float]] = field(default_factory=dict)

    async def listen(self, output: asyncio.StreamReader) -> None:
        while line := (await output.readline()).split():
            self.of[int(line[0])] = (line[1] == b"1", float(line[2]))

    async def reach(self, *, diverts: bool, count: int = PROCESSES) -> float:
        """When the last of so many did as decided."""
        async with asyncio.timeout(LIMIT):
            while sum(each is diverts for each, _ in self.of.values()) < count:
                await asyncio.sleep(LOOK)
        return max(at for each, at in self.of.values() if each is diverts)


async def measure(product: str, round_trip: float, interval: float, rounds: int) -> tuple[Figures, int, list[str]]:
    """Milliseconds of each decision, how many processes the command missed in all, and the stopped ones it listed."""
    with PRODUCTS["Redis"]() as east, PRODUCTS[product]() as west, far([east.url, west.url], round_trip) as urls:
        async with registry.transport(urls[0]) as primary, registry.transport(urls[1]) as secondary:
            await primary.admin.create(ORDERS)
            writer = SwitchWriter(primary.endpoint, secondary, 30.0)
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "members", *urls, str(interval)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                process_group=0,
            )
            fleet, found, missed = Fleet(), {FOLLOWED: [], LISTED: []}, 0
            listening = asyncio.create_task(fleet.listen(program.stdout))
            try:
                await fleet.reach(diverts=False)
                async with asyncio.timeout(LIMIT):
                    while len((await writer.status()).processes) < PROCESSES:
                        await asyncio.sleep(1)
                for number in range(rounds):
                    await asyncio.sleep(random.uniform(0, interval))  # noqa: S311  # no secret
                    action = ("hold", "resume")[number % 2]
                    began = time.monotonic()
                    decision = await writer.write(action, [ORDERS])
                    following = asyncio.create_task(fleet.reach(diverts=action == "hold"))
                    seen = await writer.watch(decision)
                    found[LISTED].append((time.monotonic() - began) * 1000)
                    missed += len(seen.missing)
                    found[FOLLOWED].append((await following - began) * 1000)
                    print(f"{product} {number}: {found[FOLLOWED][-1]:,.0f} {len(seen.missing)}", file=sys.stderr)
                stopped = next(iter(fleet.of))
                os.kill(stopped, signal.SIGSTOP)
                decision = await writer.write(("hold", "resume")[rounds % 2], [ORDERS])
                listed = [each.pid for each in (await writer.watch(decision)).missing]
                return found, missed, ["the stopped one" if pid == stopped else "another" for pid in listed]
            finally:
                os.killpg(program.pid, signal.SIGKILL)
                await program.wait()
                listening.cancel()


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=24)
    parser.add_argument("--interval", type=float, default=5.0, help="control_interval in seconds")
    parser.add_argument("--round-trip", type=int, default=300, help="ms")
    parser.add_argument("--product", choices=PRODUCTS, action="append", help="of the secondary; repeatable")
    options = parser.parse_args()
    figures: Figures = {}
    for product in options.product or PRODUCTS:
        found, missed, listed = asyncio.run(
            measure(product, options.round_trip / 1000, options.interval, options.rounds)
        )
        figures |= {f"{product}: {what}": values for what, values in found.items()}
        within = sum(each <= (options.interval + ALLOWED) * 1000 for each in found[FOLLOWED])
        text = f"{within} of {options.rounds} within {options.interval + ALLOWED:g} s, {missed} not read in time"
        print(f"{product}: {text}; with one stopped, listed: {', '.join(listed) or 'none'}", file=sys.stderr)
    report(figures, [], "ms", as_json=options.json)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["members"]:
        members(*sys.argv[2:])
    sys.exit(main())
