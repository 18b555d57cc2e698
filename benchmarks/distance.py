"""What a round trip costs: sends and a drain over links of 0 to 300 ms, beside the product's own client at its best.

Messages of 1 KiB, confirmed; all brokers of a turn are equally far, behind a program that delays every byte. Both sides
send with 1000 and with 4000 unconfirmed at most: `send_stream` with that window, `send_batch` with as many in a call,
aio-pika by ``asyncio.gather`` over as many, redis-py by pipelines of as many. The drain is ``pairmq syphon`` beside a
loop with that client, of which the best number of messages at a time counts; its speed is that of the middle four
fifths of the messages. From Redis or PostgreSQL to RabbitMQ only a drain is measured, beside `_mixed_loop`.

Run it with: make bench-one NAME=distance ARGS="--product redis" (or redis-rabbitmq, postgres-rabbitmq)
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aio_pika
from _draining import LIMIT, ORDERS, leave, watched
from _far_link import far
from _measuring import Contender, Figures, arguments, interleaved, ratio, spread
from redis.asyncio import Redis

from pairmq import Message, Pair, PairSender
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq_postgres.testing import PostgresServer
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

BODY = b"x" * 1024
WINDOWS = (1000, 4000)
PREFETCHES = (1000, 4000)
OURS = {"send_batch": "bare sends", "send_stream": "bare sends", "syphon": "a loop"}
NAMED = ("?name=east&identity=east", "?name=west&identity=west")


class Turns(ABC):
    """What is measured over one link.

    Args:
        near: the brokers' own addresses, the primary's first.
        far: the same over the link.
        messages: of a turn.
    """

    peer: ClassVar[str]

    def __init__(self, near: Sequence[Any], far: Sequence[str], messages: int) -> None:
        self._near = near
        self._bare = far
        self._pair = [url + named for url, named in zip(far, NAMED, strict=True)]
        self._messages = messages

    def contenders(self) -> dict[str, Contender]:
        found: dict[str, Contender] = {}
        for window in WINDOWS:
            found[f"send_batch {window}"] = self._ours(self._batch, window)
            found[f"send_stream {window}"] = self._ours(self._stream, window)
            found[f"bare sends {window}"] = self._bare_sends(window)
        found["syphon"] = self._drained(lambda queue: ["-m", "pairmq", "syphon", "--until-empty", *self._options()])
        for prefetch in PREFETCHES:
            found[f"a loop {prefetch}"] = self._drained(lambda queue, most=prefetch: self._loop(queue, most))
        return found

    async def _sent(self, send: Callable[[], Awaitable[None]]) -> float:
        async with registry.transport(self._near[0].url) as east:
            await east.admin.create(ORDERS)
            await east.admin.purge(Source(ORDERS))
        started = time.perf_counter()
        await send()
        return self._messages / (time.perf_counter() - started)

    def _ours(self, send: Callable[[PairSender, int], Awaitable[None]], window: int) -> Contender:
        async def run() -> float:
            async with Pair.connect(*self._pair) as pair:
                sender = pair.sender(ORDERS.path)
                await sender.send(Message(BODY))  # opens what it needs
                return await self._sent(lambda: send(sender, window))

        return run

    async def _batch(self, sender: PairSender, window: int) -> None:
        for _ in range(0, self._messages, window):
            await sender.send_batch([Message(BODY) for _ in range(window)])

    async def _stream(self, sender: PairSender, window: int) -> None:
        async for _ in sender.send_stream((Message(BODY) for _ in range(self._messages)), window=window):
            pass

    @abstractmethod
    def _bare_sends(self, window: int) -> Contender: ...

    @abstractmethod
    def _loop(self, queue: str, most: int) -> list[str]: ...

    @abstractmethod
    def _empty(self) -> None: ...

    def _drained(self, command: Callable[[str], list[str]]) -> Contender:
        async def run() -> float:
            self._empty()
            primary, secondary = (server.url + named for server, named in zip(self._near, NAMED, strict=True))
            queue = await leave(primary, secondary, self._messages)
            async with registry.transport(self._near[0].url) as east:
                with _running([sys.executable, *command(queue)]):
                    return await watched(east, self._messages)

        return run

    def _options(self) -> list[str]:
        return ["--primary", self._pair[0], "--secondary", self._pair[1], "--backlog-queues", "1"]


class RabbitTurns(Turns):
    """Beside aio-pika."""

    peer = "aio-pika"

    def _bare_sends(self, window: int) -> Contender:
        async def run() -> float:
            async with await aio_pika.connect(self._bare[0]) as connection:
                exchange = (await connection.channel()).default_exchange

                async def send() -> None:
                    for _ in range(0, self._messages, window):
                        messages = [
                            aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                            for _ in range(window)
                        ]
                        await asyncio.gather(*(exchange.publish(message, ORDERS.path) for message in messages))

                return await self._sent(send)

        return run

    def _loop(self, queue: str, most: int) -> list[str]:
        program = str(Path(__file__).with_name("_rabbit_loop.py"))
        return [program, self._bare[1], self._bare[0], queue, ORDERS.path, str(most)]

    def _empty(self) -> None:
        for server in self._near:
            server.reset()


class RedisTurns(Turns):
    """Beside redis-py."""

    peer = "redis-py"

    def _bare_sends(self, window: int) -> Contender:
        async def run() -> float:
            async with Redis.from_url(self._bare[0]) as client:
                await client.ping()

                async def send() -> None:
                    for _ in range(0, self._messages, window):
                        adding = client.pipeline(transaction=False)
                        for _ in range(window):
                            adding.xadd("bare", {"body": BODY})
                        await adding.execute()

                return await self._sent(send)

        return run

    def _loop(self, queue: str, most: int) -> list[str]:
        program = str(Path(__file__).with_name("_redis_loop.py"))
        keys = (f"pairmq:{{{path}}}:queue" for path in (queue, ORDERS.path))
        return [program, self._bare[1], self._bare[0], *keys, str(most)]

    def _empty(self) -> None:
        for server in self._near:
            server.flush()


class FromRedisTurns(RedisTurns):
    """From Redis to RabbitMQ, beside redis-py and aio-pika."""

    peer = "redis-py and aio-pika"

    def contenders(self) -> dict[str, Contender]:
        return {name: run for name, run in super().contenders().items() if name.startswith(("syphon", "a loop"))}

    def _loop(self, queue: str, most: int) -> list[str]:
        program = str(Path(__file__).with_name("_mixed_loop.py"))
        return [program, self._bare[1], self._bare[0], f"pairmq:{{{queue}}}:queue", ORDERS.path, str(most)]

    def _empty(self) -> None:
        self._near[0].reset()
        self._near[1].flush()


class FromPostgresTurns(FromRedisTurns):
    """From PostgreSQL to RabbitMQ, beside psycopg and aio-pika; the loop's messages are in a table of its own."""

    peer = "psycopg and aio-pika"

    def _loop(self, queue: str, most: int) -> list[str]:
        server = self._near[1]
        near, own = urlsplit(server.url).port, server.parameters()
        far_port = urlsplit(self._bare[1]).port
        url = server.url_of(own["user"], own["password"]).replace(f":{near}/", f":{far_port}/")
        program = str(Path(__file__).with_name("_mixed_loop.py"))
        return [program, url, self._bare[0], "bare", ORDERS.path, str(most)]

    def _empty(self) -> None:
        self._near[0].reset()
        self._near[1].query(
            "TRUNCATE pairmq.message",
            "DROP TABLE IF EXISTS bare",
            "CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)",
            f"INSERT INTO bare (body) SELECT '\\x{BODY.hex()}' FROM generate_series(1, {self._messages})",  # noqa: S608
        )


PRODUCTS: dict[str, tuple[Callable[[], Any], Callable[[], Any], type[Turns]]] = {
    "rabbitmq": (RabbitServer, RabbitServer, RabbitTurns),
    "redis": (partial(RedisServer, appendfsync="everysec"), partial(RedisServer, appendfsync="everysec"), RedisTurns),
    "redis-rabbitmq": (RabbitServer, partial(RedisServer, appendfsync="everysec"), FromRedisTurns),
    "postgres-rabbitmq": (RabbitServer, PostgresServer, FromPostgresTurns),
}
"""The primary's server, the secondary's, and what is measured."""


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603  # ours
    try:
        yield
    finally:
        program.kill()
        program.wait(LIMIT)


def best(figures: Figures, kind: str) -> list[float]:
    """The rounds of the best of a kind's contenders."""
    of = [values for name, values in figures.items() if name.startswith(kind)]
    return max(of, key=lambda values: sorted(values)[len(values) // 2])


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--messages", type=int, default=12_000, help="of a turn")
    parser.add_argument("--round-trip", type=int, action="append", help="ms; repeatable; 0, 20, 100 and 300")
    parser.add_argument("--only", action="append", help="contenders whose names begin so; repeatable")
    parser.add_argument("--product", choices=PRODUCTS, default="rabbitmq")
    options = parser.parse_args()
    one, other, turns = PRODUCTS[options.product]
    curves: dict[str, dict[str, dict[str, float]]] = {}
    ratios: dict[str, dict[str, float]] = {}
    with one() as primary, other() as secondary:
        for ms in options.round_trip or (0, 20, 100, 300):
            with far([primary.url, secondary.url], ms / 1000) as urls:
                contenders = turns((primary, secondary), urls, options.messages).contenders()
                if options.only:
                    contenders = {name: run for name, run in contenders.items() if name.startswith(tuple(options.only))}
                figures = asyncio.run(interleaved(contenders, options.rounds, warm_up=False))
            for name, values in figures.items():
                curves.setdefault(name, {})[str(ms)] = spread(values)
            for ours, peer in OURS.items():
                if not options.only and any(name.startswith(ours) for name in figures):
                    of = ratio(best(figures, ours), best(figures, peer))
                    ratios[f"{ours} / {peer} of {turns.peer}, {ms} ms"] = of
    if options.json:
        ours = [name for name in curves if name.startswith(tuple(OURS))]
        over = "round trip in ms"
        print(json.dumps({"unit": "messages a second", "over": over, "ours": ours, "lines": curves, "ratios": ratios}))
        return 0
    for name, settings in curves.items():
        print(f"{name:20}", *(f"{ms:>5} ms {of['median']:>8,.0f}" for ms, of in settings.items()))
    for name, of in ratios.items():
        print(f"{name:45} {of['median']:.2f} (from {of['min']:.2f} to {of['max']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
