"""How fast `pairmq syphon` empties a backlog between two Redis servers, beside a pipelined loop with redis-py alone.

Both as programs of their own, on the same kind of backlog of 1 KiB messages; they take turns. The loop reads 500
entries, adds them at the other server in one pipeline, then acknowledges and deletes them: it carries the bytes, where
the syphon also checks, restores and locks. The speed is that of the middle four fifths of the messages, from when a
tenth is moved: starting Python is no part of it.

Run it with: make bench-one NAME=redis_drain
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from _draining import LIMIT, ORDERS, leave, watched
from _measuring import Contender, Figures, arguments, interleaved, report

from pairmq.model import Source
from pairmq.plugins import registry
from pairmq_redis.testing import RedisServer

LOOP = Path(__file__).with_name("_redis_loop.py")
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
                *("-m", "pairmq", "syphon", "--until-empty", "--backlog-queues", "1"),
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
        command = [sys.executable, *command_for(await leave(self._primary.url, self._secondary.url, self._messages))]
        async with registry.transport(self._primary.url) as east:
            program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # noqa: ASYNC220, S603  # ours
            try:
                speed = await watched(east, self._messages)
                _, said = program.communicate(timeout=LIMIT)
                if program.returncode:
                    raise RuntimeError(said.decode())
                arrived = (await east.admin.counts(Source(ORDERS))).pending
                if arrived != self._messages:
                    raise RuntimeError(f"{arrived} messages are at the primary")
                return speed
            finally:
                program.kill()
                program.communicate()


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
