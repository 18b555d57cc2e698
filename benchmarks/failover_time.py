"""How long a failover takes, from the primary's kill -9 to the first send that the secondary took, and what is lost.

Two real RabbitMQ servers, and ``failover_interval=0``. In each turn one message after the other is sent while the
primary is killed. kombu has the second server as its alternate: with the publisher confirms that it has to be asked
for, and as it comes, without them. aio-pika does by hand what an application without PairMQ would: it publishes over a
second connection, open already, when publishing over the first one fails. None of these knows a ping, a backlog, or a
way back. On the second server all of them send to a quorum queue, as a backlog queue is one. When the killed server
runs again, every message that a contender took for sent is looked for on both.

Most of that time is no client's: the system takes the killed server's memory apart before it closes its sockets, and
until then no client can know. A bare connection beside them shows when that was, so that the contenders' own part is
reported, too.

Exit status 1 when PairMQ's median is over the limit, when its own part is not under kombu's, or when it lost a message.

Run it with: make bench-one NAME=failover_time
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aio_pika
import kombu
from _measuring import Contender, Figures, arguments, interleaved, report

from pairmq import Entity, EntityState, Message, Pair, PairOptions, Route
from pairmq_rabbitmq.testing import RabbitServer, start_together

BODY = b"x" * 1024
QUEUE = "orders"
QUORUM = {"x-queue-type": "quorum"}
LIMIT_MS = 100
OPTIONS = PairOptions(
    failover_interval=0,
    ping_primary_interval=0.5,
    ping_timeout=1.0,
    attempt_timeout=5.0,
    backlog_queue_count=4,
    enable_syphon=True,
)
OURS, KOMBU, UNSAFE, BY_HAND = "PairMQ", "kombu with confirms", "kombu as it comes", "aio-pika by hand"

Send = Callable[[str], Awaitable[bool]]
"""Sends a message of this id; returns whether the second server took it."""


def closed_at(connection: socket.socket) -> float:
    """When the other end of a bare connection was closed, by whatever means."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1024):
            pass
    return time.perf_counter()


class Failovers:
    """Turns on two servers, with what was sent and lost in them.

    Args:
        east: the server that is killed.
        west: the other one.
    """

    def __init__(self, east: Any, west: Any) -> None:
        self._east = east
        self._west = west
        self.sent: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self.own: dict[str, list[float]] = {}

    def contender(self, name: str, opened: Callable[[], AbstractAsyncContextManager[Send]]) -> Contender:
        """A contender's milliseconds."""

        async def run() -> float:
            self._clear()
            async with opened() as send:
                elapsed, own, sent = await self._until_moved(send)
            self.own.setdefault(name, []).append(own)
            found = await self._found(self._east) | await self._found(self._west)
            self.sent[name] = self.sent.get(name, 0) + len(sent)
            self.lost[name] = self.lost.get(name, 0) + len(sent - found)
            return elapsed

        return run

    async def _until_moved(self, send: Send) -> tuple[float, float, set[str]]:
        """Send without pause, and kill the server in the midst of it.

        Returns:
            How many ms later a send was taken elsewhere: after the kill, and after the sockets were closed; the ids.
        """
        killed_at = 0.0
        sent: set[str] = set()

        async def send_one() -> bool:
            number = f"m{len(sent)}"
            moved = await send(number)
            sent.add(number)
            return moved

        for _ in range(50):
            await send_one()

        def kill() -> None:
            nonlocal killed_at
            killed_at = time.perf_counter()
            self._kill()

        self._settle()
        with socket.create_connection(("127.0.0.1", self._east.port)) as beside:
            closing = asyncio.create_task(asyncio.to_thread(closed_at, beside))
            killing = asyncio.create_task(asyncio.to_thread(kill))
            while not await send_one():
                pass
            moved_at = time.perf_counter()
            await killing
            known_at = await closing
        self._east.start()  # in this thread: the server ends with the thread that started it
        return (moved_at - killed_at) * 1000, (moved_at - known_at) * 1000, sent

    def _clear(self) -> None:
        for server in (self._east, self._west):
            server.reset()

    def _settle(self) -> None:
        self._east.settle()

    def _kill(self) -> None:
        self._east.kill(settle=False)

    async def _found(self, server: Any) -> set[str]:
        """The ids of all messages of a server's queue."""
        found: set[str] = set()
        async with await aio_pika.connect(server.url) as connection:
            channel = await connection.channel()
            try:
                queue = await channel.get_queue(QUEUE)
            except aio_pika.exceptions.ChannelNotFoundEntity:
                return found
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                found.add(message.message_id or "")
        return found

    @asynccontextmanager
    async def ours(self) -> AsyncIterator[Send]:
        """PairMQ; at the end all of it has been moved back."""
        async with Pair.connect(self._east.url, self._west.url, options=OPTIONS) as pair:
            await pair.primary.admin.create(Entity(QUEUE))
            sender = pair.sender(QUEUE)

            async def send(number: str) -> bool:
                return (await sender.send(Message(BODY, message_id=number))).route is Route.BACKLOG

            yield send
            while pair.state(QUEUE) is not EntityState.HEALTHY:
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def by_hand(self) -> AsyncIterator[Send]:
        """aio-pika, twice."""
        connections = [await aio_pika.connect(server.url) for server in (self._east, self._west)]
        exchanges = []
        for connection, type_ in zip(connections, ({}, QUORUM), strict=True):
            channel = await connection.channel(on_return_raises=True)
            await channel.declare_queue(QUEUE, durable=True, arguments=type_)
            exchanges.append(channel.default_exchange)

        async def send(number: str) -> bool:
            for exchange in exchanges:
                try:
                    message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, message_id=number)
                    await exchange.publish(message, QUEUE)
                except (Exception, asyncio.CancelledError):  # noqa: S112  # a lost connection cancels what waits on it
                    continue
                return exchange is exchanges[1]
            raise RuntimeError("neither server took the message")

        yield send
        for connection in connections:
            await connection.close()

    @asynccontextmanager
    async def kombu(self, confirms: bool) -> AsyncIterator[Send]:
        """kombu with the second server as the alternate of the first."""
        for server, type_ in ((self._west, QUORUM), (self._east, {})):
            with kombu.Connection(server.url) as connection:
                kombu.Queue(QUEUE, durable=True, queue_arguments=type_)(connection).declare()
        urls = f"{self._east.url};{self._west.url}"
        options = {"confirm_publish": confirms}
        with kombu.Connection(urls, failover_strategy="round-robin", transport_options=options) as connection:
            producer = connection.Producer(serializer=None)
            policy = {"interval_start": 0, "interval_step": 0.1, "interval_max": 0.5, "max_retries": 100}

            async def send(number: str) -> bool:
                producer.publish(
                    BODY,
                    routing_key=QUEUE,
                    delivery_mode=2,
                    message_id=number,
                    content_type="application/octet-stream",
                    content_encoding="binary",
                    retry=True,
                    retry_policy=policy,
                )
                await asyncio.sleep(0)  # the kill is another task's
                return connection.port == self._west.port

            yield send


async def measure(
    east: RabbitServer, west: RabbitServer, rounds: int
) -> tuple[Figures, Figures, dict[str, tuple[int, int]]]:
    """Milliseconds of each contender, once a round: in all, and its own part; and how many it lost of how many."""
    failovers = Failovers(east, west)
    opened = {
        OURS: failovers.ours,
        BY_HAND: failovers.by_hand,
        KOMBU: lambda: failovers.kombu(True),
        UNSAFE: lambda: failovers.kombu(False),
    }
    contenders = {name: failovers.contender(name, opens) for name, opens in opened.items()}
    figures = await interleaved(contenders, rounds, warm_up=False)
    return figures, failovers.own, {name: (failovers.lost[name], failovers.sent[name]) for name in opened}


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=10)
    options = parser.parse_args()
    for name in ("asyncio", "pairmq", "aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # connections die noisily
    with RabbitServer() as east, RabbitServer() as west:
        start_together(east, west)
        figures, own, losses = asyncio.run(measure(east, west, options.rounds))
    pairs = [(OURS, other) for other in (KOMBU, UNSAFE, BY_HAND)]
    parts = {f"{name}, own part": values for name, values in own.items()}
    pairs += [(f"{ours}, own part", f"{other}, own part") for ours, other in pairs]
    report({**figures, **parts}, pairs, "ms", as_json=options.json)
    for name, (lost, sent) in losses.items():
        print(f"{name}: lost {lost:,} of {sent:,} messages that it took for sent", file=sys.stderr)
    ours = statistics.median(figures[OURS])
    good = ours < LIMIT_MS and statistics.median(own[OURS]) < statistics.median(own[KOMBU]) and losses[OURS][0] == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
