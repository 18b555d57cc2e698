"""How fast `pairmq syphon` empties a backlog between two RabbitMQ servers, beside RabbitMQ's own Shovel.

Both take 1 KiB messages in their backlog form from the same kind of quorum queue on one server to the same classic
queue on another, and acknowledge a message there when it is confirmed here: Shovel with ``ack-mode`` ``on-confirm`` and
a prefetch of 1000, PairMQ as the program that people run, which reads, checks and restores every message besides. They
take turns. The speed is that of the middle four fifths of the messages, from when a tenth is moved: starting Python is
no part of it.

Run it with: make bench-one NAME=rabbitmq_drain
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from _draining import LIMIT, ORDERS, leave, watched
from _measuring import Figures, arguments, interleaved, report

from pairmq.plugins import registry
from pairmq_rabbitmq.testing import RabbitServer


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
        queue = await leave(self._primary.url, self._secondary.url, self._messages)
        async with registry.transport(self._primary.url) as east:
            with drain(queue):
                return await watched(east, self._messages)

    @contextmanager
    def _syphon(self, queue: str) -> Iterator[None]:
        pair = ("--primary", self._primary.url, "--secondary", self._secondary.url, "--backlog-queues", "1")
        program = subprocess.Popen(  # noqa: S603  # our own
            [sys.executable, "-m", "pairmq", "syphon", "--until-empty", *pair],
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
