"""How fast `pairmq syphon` empties a backlog between two Redis servers, beside a pipelined loop with redis-py alone.

Both as programs of their own, on the same kind of backlog of 1 KiB messages; they take turns. The loop reads 500
entries, adds them at the other server in one pipeline, then acknowledges and deletes them: it carries the bytes, where
the syphon also checks, restores and locks. The speed is that of the middle four fifths of the messages, from when a
tenth is home: starting Python is no part of it.

Run it with: make bench-one NAME=redis_drain
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _measuring import Contender, Figures, arguments, interleaved, report

from pairmq import Entity, Message, Pair, PairOptions, Route
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq.transport import Transport
from pairmq_redis.testing import RedisServer

BODY = b"x" * 1024
ORDERS = Entity("orders")
LOOP = Path(__file__).with_name("_redis_loop.py")
LOOK = 0.02  # s
LIMIT = 120.0  # s
OURS, THEIRS = "syphon", "redis-py loop"


class Drains:
    """Backlogs, and what empties them.

    Args:
        primary: where the messages go.
        secondary: where they are.
        messages: how many.
    """

    def __init__(self, primary: RedisServer, secondary: RedisServer, messages: int) -> None:
        self._primary = primary
        self._secondary = secondary
        self._messages = messages

    def by_syphon(self) -> Contender:
        """Messages a second of ``pairmq syphon``."""
        return lambda: self._measured(
            lambda _: [
                *("-m", "pairmq.cli", "syphon", "--until-empty", "--backlog-queues", "1"),
                *("--primary", self._primary.url, "--secondary", self._secondary.url),
            ]
        )

    def by_loop(self) -> Contender:
        """Messages a second of the loop."""
        return lambda: self._measured(
            lambda queue: [
                *(str(LOOP), self._secondary.url, self._primary.url),
                *(f"pairmq:{{{queue}}}:queue", f"pairmq:{{{ORDERS.path}}}:queue"),
            ]
        )

    async def _measured(self, command_for: Callable[[str], list[str]]) -> float:
        self._primary.flush()
        self._secondary.flush()
        command = [sys.executable, *command_for(await self._leave())]
        async with registry.transport(self._primary.url) as east:
            program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # noqa: ASYNC220, S603  # ours
            try:
                speed = await self._watched(east)
                _, said = program.communicate(timeout=LIMIT)
                if program.returncode:
                    raise RuntimeError(said.decode())
                home = (await east.admin.counts(Source(ORDERS))).pending
                if home != self._messages:
                    raise RuntimeError(f"{home} messages are home")
                return speed
            finally:
                program.kill()
                program.communicate()

    async def _leave(self) -> str:
        """Divert messages, and close; gives the name of the backlog queue that holds them."""
        options = PairOptions(backlog_queue_count=1)
        async with Pair.connect(self._primary.url, self._secondary.url, options=options) as pair:
            await pair.primary.admin.create(ORDERS)
            pair.hold(ORDERS.path)
            receipts = await pair.sender(ORDERS.path).send_batch(Message(BODY) for _ in range(self._messages))
            if any(receipt.route is not Route.BACKLOG for receipt in receipts):
                raise RuntimeError("a message was not diverted")
            [queue] = pair.backlog_queues
            return queue.path

    async def _watched(self, east: Transport) -> float:
        """Look at what is home until nine tenths are; gives the speed from when one tenth was."""
        points: list[tuple[float, int]] = []
        async with asyncio.timeout(LIMIT):
            while not points or points[-1][1] < self._messages * 9 // 10:
                home = (await east.admin.counts(Source(ORDERS))).pending
                if home >= self._messages // 10:
                    points.append((time.perf_counter(), home))
                await asyncio.sleep(LOOK)
        (first, low), (last, high) = points[0], points[-1]
        return (high - low) / (last - first)


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--messages", type=int, default=50_000)
    options = parser.parse_args()

    async def measure(primary: RedisServer, secondary: RedisServer) -> Figures:
        drains = Drains(primary, secondary, options.messages)
        return await interleaved({OURS: drains.by_syphon(), THEIRS: drains.by_loop()}, options.rounds)

    with RedisServer(appendfsync="everysec") as primary, RedisServer(appendfsync="everysec") as secondary:
        figures = asyncio.run(measure(primary, secondary))
    report(figures, [(OURS, THEIRS)], "messages a second", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
