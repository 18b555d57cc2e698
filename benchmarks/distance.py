"""What a round trip costs: sends and a drain over links of 0 to 300 ms, beside the product's own client at its best.

Messages of 1 KiB, confirmed; all brokers of a turn are equally far, behind a program that delays every byte. Both sides
send with 1000 and with 4000 unconfirmed at most: `send_stream` with that window, `send_batch` with as many in a call,
aio-pika by ``asyncio.gather`` over as many, redis-py by pipelines of as many. The drain is ``pairmq syphon`` beside a
loop with that client, of which the best number of messages at a time counts; its speed is that of the middle four
fifths of the messages. From Redis or PostgreSQL to RabbitMQ only a drain is measured, beside `_mixed_loop`; to
PostgreSQL only sends, beside psycopg with as many rows in a statement. azure-servicebus sends full batches through four
links; the administration of Service Bus, which PairMQ asks a few times, is not behind the link. A `Pair.consumer` has a
prefetch of 200, and completes each message in a task of its own; aio-pika's acknowledges, and nothing confirms that.

Run it with: make bench-one NAME=distance ARGS="--product redis" (or postgres, servicebus, redis-rabbitmq,
postgres-rabbitmq)
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aio_pika
import psycopg
from _bus_loop import full_batches
from _draining import LIMIT, ORDERS, leave, watched
from _far_link import far
from _measuring import Contender, Figures, arguments, interleaved, ratio, spread
from azure.servicebus.aio import ServiceBusClient
from redis.asyncio import Redis

from pairmq import Message, Pair, PairDelivery, PairSender
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq_postgres.testing import PostgresServer
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

BODY = b"x" * 1024
WINDOWS = (1000, 4000)
PREFETCHES = (1000, 4000)
LINKS = 4
UNSETTLED = 200  # by a consumer
OURS = {"send_batch": "bare sends", "send_stream": "bare sends", "syphon": "a loop", "consumer": "bare consumer"}
NAMES = ("east", "west")


def named(urls: Sequence[str]) -> list[str]:
    """The brokers' addresses with one name and identity, near or far."""
    pairs = zip(urls, NAMES, strict=True)
    return [f"{url}{'&' if '?' in url else '?'}name={name}&identity={name}" for url, name in pairs]


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
        self._pair = named(far)
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
        found["consumer"] = self._consumed
        return found

    async def _consumed(self) -> float:
        await self._fill()
        ends: list[float] = []
        done = asyncio.Event()

        async def handle(delivery: PairDelivery) -> None:
            await delivery.complete()
            ends.append(time.perf_counter())
            if len(ends) == self._messages:
                done.set()

        async with Pair.connect(*self._pair) as pair, asyncio.TaskGroup() as handling:
            consumer = pair.consumer(
                ORDERS.path, lambda delivery: handling.create_task(handle(delivery)), prefetch=UNSETTLED
            )
            await done.wait()
            await consumer.close()
        return middle_speed(ends)

    async def _fill(self) -> None:
        async with registry.transport(self._near[0].url) as east:
            await east.admin.create(ORDERS)
            await east.admin.purge(Source(ORDERS))
            sender = east.sender(ORDERS)
            for _ in range(0, self._messages, WINDOWS[0]):
                await sender.send_batch([Message(BODY) for _ in range(WINDOWS[0])])

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
                await pair.primary.admin.create(ORDERS)
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
            primary, secondary = named([server.url for server in self._near])
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

    def contenders(self) -> dict[str, Contender]:
        return {**super().contenders(), "bare consumer": self._bare_consumed}

    async def _bare_consumed(self) -> float:
        await self._fill()
        ends: list[float] = []
        async with await aio_pika.connect(self._bare[0]) as connection:
            channel = await connection.channel()
            await channel.set_qos(UNSETTLED)
            async with (await channel.get_queue(ORDERS.path)).iterator() as messages:
                async for message in messages:
                    await message.ack()
                    ends.append(time.perf_counter())
                    if len(ends) == self._messages:
                        break
        return middle_speed(ends)

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


class BusTurns(Turns):
    """Beside azure-servicebus."""

    peer = "azure-servicebus"

    def _bare_sends(self, window: int) -> Contender:
        async def run() -> float:
            async with AsyncExitStack() as stack:
                east = await stack.enter_async_context(registry.transport(self._near[0].url))
                await east.admin.create(ORDERS)
                client = await stack.enter_async_context(ServiceBusClient.from_connection_string(self._strings()[0]))
                links = [await stack.enter_async_context(client.get_queue_sender(ORDERS.path)) for _ in range(LINKS)]

                async def through(place: int) -> None:
                    for batch in batches[place::LINKS]:
                        await links[place].send_messages(batch)

                async def send() -> None:
                    for _ in range(0, self._messages, window):
                        batches[:] = await full_batches(links[0], (BODY for _ in range(window)))
                        await asyncio.gather(*map(through, range(LINKS)))

                batches = [await link.create_message_batch() for link in links]  # which opens each
                return await self._sent(send)

        return run

    def _loop(self, queue: str, most: int) -> list[str]:
        primary, secondary = self._strings()
        return [str(Path(__file__).with_name("_bus_loop.py")), secondary, primary, queue, ORDERS.path, str(most)]

    def _strings(self) -> list[str]:
        far = [urlsplit(url).port for url in self._bare]
        return [
            server.connection_string.replace(f":{server.port};", f":{port};")
            for server, port in zip(self._near, far, strict=True)
        ]

    def _empty(self) -> None:
        for server in self._near:
            server.clear()


class PostgresTurns(RedisTurns):
    """Beside psycopg: sends alone."""

    peer = "psycopg"

    def contenders(self) -> dict[str, Contender]:
        return {name: run for name, run in super().contenders().items() if not name.startswith(("syphon", "a loop"))}

    def _bare_sends(self, window: int) -> Contender:
        async def run() -> float:
            dsn = far_dsn(self._near[0], self._bare[0])
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as client:
                await client.execute("CREATE TABLE IF NOT EXISTS bare_sends (id bigserial PRIMARY KEY, body bytea)")
                insert = "INSERT INTO bare_sends (body) SELECT unnest(%s::bytea[])"

                async def send() -> None:
                    for _ in range(0, self._messages, window):
                        await client.execute(insert, ([BODY] * window,), binary=True)

                return await self._sent(send)

        return run


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
        dsn = far_dsn(self._near[1], self._bare[1])
        program = str(Path(__file__).with_name("_mixed_loop.py"))
        return [program, dsn, self._bare[0], "bare", ORDERS.path, str(most)]

    def _empty(self) -> None:
        self._near[0].reset()
        self._near[1].query(
            "TRUNCATE pairmq.message",
            "DROP TABLE IF EXISTS bare",
            "CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)",
            f"INSERT INTO bare (body) SELECT '\\x{BODY.hex()}' FROM generate_series(1, {self._messages})",  # noqa: S608
        )


def far_dsn(server: PostgresServer, far: str) -> str:
    """The address of a PostgreSQL server over the link, for its own client."""
    own = server.parameters()
    near, over = urlsplit(server.url).port, urlsplit(far).port
    return server.url_of(own["user"], own["password"]).replace(f":{near}/", f":{over}/")


PRODUCTS: dict[str, tuple[Callable[[], Any], Callable[[], Any], type[Turns]]] = {
    "rabbitmq": (RabbitServer, RabbitServer, RabbitTurns),
    "redis": (partial(RedisServer, appendfsync="everysec"), partial(RedisServer, appendfsync="everysec"), RedisTurns),
    "postgres": (PostgresServer, partial(RedisServer, appendfsync="everysec"), PostgresTurns),
    "servicebus": (ServiceBusServer, ServiceBusServer, BusTurns),
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


def middle_speed(ends: Sequence[float]) -> float:
    """Messages a second, of the middle four fifths."""
    first, last = len(ends) // 10, len(ends) * 9 // 10
    return (last - first) / (ends[last] - ends[first])


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
                if not options.only and all(any(name.startswith(kind) for name in figures) for kind in (ours, peer)):
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
