"""How fast `pairmq syphon` empties a backlog between two RabbitMQ servers, beside RabbitMQ's own Shovel.

Both take 1 KiB messages in their backlog form from the same kind of quorum queue on one server to the same classic
queue on another, and acknowledge a message there when it is confirmed here: Shovel with ``ack-mode`` ``on-confirm`` and
a prefetch of 1000, PairMQ as the program that people run, which reads, checks and restores every message besides. They
take turns. The speed is that of the middle four fifths of the messages, from when a tenth is home: starting Python is
no part of it.

Run it with: make bench-one NAME=rabbitmq_drain
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from _measuring import Figures, arguments, interleaved, report

from pairmq import Entity, Message, Pair, PairOptions, Route
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq.transport import Transport
from pairmq_rabbitmq.testing import RabbitServer

BODY = b"x" * 1024
ORDERS = Entity("orders")
LOOK = 0.05  # s
LIMIT = 120.0  # s


class Drains:
    """Backlogs, and what empties them.

    Args:
        primary: where the messages go.
        secondary: where they are.
        messages: how many.
    """

    def __init__(self, primary: RabbitServer, secondary: RabbitServer, messages: int) -> None:
        self._primary = primary
        self._secondary = secondary
        self._messages = messages

    async def by_syphon(self) -> float:
        """Messages a second of ``pairmq syphon``."""
        return await self._measured(self._syphon)

    async def by_shovel(self) -> float:
        """Messages a second of Shovel."""
        return await self._measured(self._shovel)

    async def _measured(self, drain: Callable[[str], AbstractContextManager[None]]) -> float:
        self._primary.reset()
        self._secondary.reset()
        queue = await self._leave()
        async with registry.transport(self._primary.url) as east:
            with drain(queue):
                return await self._watched(east)

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

    @contextmanager
    def _syphon(self, queue: str) -> Iterator[None]:
        pair = ("--primary", self._primary.url, "--secondary", self._secondary.url, "--backlog-queues", "1")
        program = subprocess.Popen(  # noqa: S603  # our own
            [sys.executable, "-m", "pairmq.cli", "syphon", "--until-empty", *pair],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            yield
            _, said = program.communicate(timeout=LIMIT)
            if program.returncode:
                raise RuntimeError(said.decode())
        finally:
            program.kill()
            program.communicate()

    @contextmanager
    def _shovel(self, queue: str) -> Iterator[None]:
        definition = {
            "src-protocol": "amqp091",
            "src-uri": self._secondary.url.rstrip("/"),  # with a slash it would be the virtual host ""
            "src-queue": queue,
            "src-prefetch-count": 1000,
            "dest-protocol": "amqp091",
            "dest-uri": self._primary.url.rstrip("/"),
            "dest-queue": ORDERS.path,
            "ack-mode": "on-confirm",
        }
        text = json.dumps(json.dumps(definition))  # an Erlang string is written like one of JSON's
        name = '<<"/">>, <<"shovel">>, <<"drain">>'
        self._primary.erl(f"ok = rabbit_runtime_parameters:parse_set({name}, list_to_binary({text}), none)")
        try:
            yield
        finally:
            self._primary.erl(f"rabbit_runtime_parameters:clear({name}, none)")


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--messages", type=int, default=50_000)
    options = parser.parse_args()

    async def measure(primary: RabbitServer, secondary: RabbitServer) -> Figures:
        drains = Drains(primary, secondary, options.messages)
        return await interleaved({"syphon": drains.by_syphon, "Shovel": drains.by_shovel}, options.rounds)

    with RabbitServer(plugins=("rabbitmq_shovel",)) as primary, RabbitServer() as secondary:
        figures = asyncio.run(measure(primary, secondary))
    report(figures, [("syphon", "Shovel")], "messages a second", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
