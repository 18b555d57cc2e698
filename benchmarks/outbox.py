"""What an outbox costs beside a bare INSERT, how long a message takes from the commit to RabbitMQ and a consumer, and
what an idle pair costs.

PostgreSQL and RabbitMQ are as durable as they are by default. The ways to write a row take turns, each on a connection
of its own, once as all of a transaction and once behind a row of the application's; then messages are stored one by
one, each once the last one has arrived. At the end a pair with a syphon and ten backlog queues does nothing; what is
counted is the processor time of this process and of all of PostgreSQL's.

Run it with: make bench-one NAME=outbox ARGS="--messages 300"
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from pairmq import Entity, Message, Pair, PairOptions, PairOutbox
from pairmq import sync as blocking
from pairmq.core import Diversion, divert
from pairmq.model.events import Event, MessageMoved
from pairmq.transport import encode_header
from pairmq_postgres.testing import EMPTY, PostgresServer
from pairmq_rabbitmq.testing import RabbitServer

QUEUE = "orders"
BODY = bytes(range(256)) * 4
BARE = "INSERT INTO pairmq.message (shelf, header, body) VALUES (%s, %s, %s)"
TABLE = "CREATE TABLE public.item (name text)", "GRANT ALL ON public.item TO PUBLIC"
ITEM = "INSERT INTO public.item VALUES (%s)"
NOWHERE = -(2**40)  # no queue has it
WARM_UP = 20
PATIENCE = 60.0
THREADS, TURNS = 8, 6
SETTLES, SPANS = 3.0, 4


def show(name: str, seconds: Sequence[float], more: str = "") -> None:
    """Print median and 99th percentile."""
    ordered = sorted(seconds)
    last = ordered[int(0.99 * (len(ordered) - 1))]
    print(f"{name:<42} {statistics.median(ordered) * 1e3:8.2f} ms, 99 % {last * 1e3:8.2f} ms{more}", flush=True)


def the_same_header() -> str:
    """A header as long as the outbox's."""
    return encode_header(
        divert(Message(BODY, message_id="0" * 32), Diversion(Entity(QUEUE), datetime.now(UTC), "0" * 32, 1))
    )


async def store(outbox: PairOutbox, server: PostgresServer, messages: int) -> None:
    """Print what a transaction with one row takes, and what of it is processor time of this process."""
    header = the_same_header()

    async def bare(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.cursor().execute(BARE, (NOWHERE, header, BODY), binary=True)

    async def stored(connection: psycopg.AsyncConnection[Any]) -> None:
        await outbox.send(Message(BODY), connection=connection)

    for item, where in ((False, ""), (True, " behind an item")):
        ways: dict[str, Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]]
        ways = {f"a bare INSERT{where}, and the commit": bare, f"the outbox{where}, and the commit": stored}
        connections = [await psycopg.AsyncConnection.connect(server.url) for _ in ways]
        took: dict[str, list[float]] = {name: [] for name in ways}
        spent = dict.fromkeys(ways, 0.0)
        for number in range(messages + WARM_UP):
            turns = list(zip(ways.items(), connections, strict=True))
            for (name, way), connection in turns[:: -1 if number % 2 else 1]:
                began, cost = time.perf_counter(), time.process_time()
                if item:
                    await connection.cursor().execute(ITEM, ("0",))
                await way(connection)
                await connection.commit()
                if number >= WARM_UP:
                    took[name].append(time.perf_counter() - began)
                    spent[name] += time.process_time() - cost
        for connection in connections:
            await connection.close()
        for name in ways:
            show(name, took[name], f", {spent[name] / messages * 1e3:.2f} ms of ours")
        bare_one, outbox_one = (statistics.median(each) for each in took.values())
        print(f"{'speed beside the bare one':<42} {bare_one / outbox_one:8.2f}", flush=True)


def threads(urls: tuple[str, str], options: PairOptions, server: PostgresServer, messages: int) -> None:
    """Print what transactions of blocking threads take that run side by side."""
    header = the_same_header()
    with blocking.Pair.connect(*urls, options=options) as pair:
        outbox = pair.outbox(QUEUE)

        def bare(connection: psycopg.Connection[Any]) -> None:
            connection.cursor().execute(BARE, (NOWHERE, header, BODY), binary=True)

        def stored(connection: psycopg.Connection[Any]) -> None:
            outbox.send(Message(BODY), connection=connection)

        for count, item, where in ((1, False, ""), (1, True, ", behind an item"), (THREADS, False, "")):
            took: dict[str, list[float]] = {"bare": [], "outbox": []}
            connections = [psycopg.connect(server.url) for _ in range(count)]
            for turn in range(TURNS + 1):
                for name, way in (("bare", bare), ("outbox", stored))[:: -1 if turn % 2 else 1]:
                    seconds = _side_by_side(way, connections, messages // TURNS, item=item)
                    if turn:
                        took[name].append(seconds)
            for connection in connections:
                connection.close()
            ratio = statistics.median(took["bare"]) / statistics.median(took["outbox"])
            print(f"{f'pairmq.sync, {count} threads{where}, beside bare':<42} {ratio:8.2f}", flush=True)


def _side_by_side(
    way: Callable[[psycopg.Connection[Any]], None],
    connections: Sequence[psycopg.Connection[Any]],
    count: int,
    *,
    item: bool,
) -> float:
    """Seconds that so many transactions of each connection take, with an item of the application's before."""

    def work(connection: psycopg.Connection[Any]) -> None:
        for _ in range(count):
            if item:
                connection.cursor().execute(ITEM, ("0",))
            way(connection)
            connection.commit()

    workers = [threading.Thread(target=work, args=(connection,)) for connection in connections]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began


class Moves:
    """Notices when a message was confirmed by the primary, and then completed in the outbox."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()
        self.at = 0.0

    def on_event(self, event: Event) -> None:
        if isinstance(event, MessageMoved):
            self.at = time.perf_counter()
            self.moved.set()

    async def close(self) -> None:
        pass


async def arrive(pair: Pair, moves: Moves, server: PostgresServer, messages: int) -> None:
    """Print how long messages take that are alone."""
    outbox, took, settled = pair.outbox(QUEUE), [], []
    async with (
        await psycopg.AsyncConnection.connect(server.url) as connection,
        pair.receiver(QUEUE) as receiver,
    ):
        for number in range(messages + WARM_UP):
            waiting = asyncio.ensure_future(receiver.receive(1, PATIENCE))
            await outbox.send(Message(BODY), connection=connection)
            began = time.perf_counter()
            await connection.commit()
            (delivery,) = await waiting
            if number >= WARM_UP:
                took.append(time.perf_counter() - began)
            await delivery.complete()
            await moves.moved.wait()
            moves.moved.clear()
            if number >= WARM_UP:
                settled.append(moves.at - began)
            await asyncio.sleep(0.02)
    show("from the commit to a consumer", took)
    show("to the confirm, and the row's removal", settled)


async def idle(urls: tuple[str, str], server: PostgresServer, seconds: float) -> None:
    """Print which part of a core a pair takes that has nothing to do, in some spans of so many seconds."""
    spans = []
    async with Pair.connect(*urls, options=PairOptions(enable_syphon=True, attempt_timeout=30.0)):
        await asyncio.sleep(SETTLES)
        for _ in range(SPANS):
            before = _used(server)
            await asyncio.sleep(seconds)
            spans.append((_used(server) - before) / seconds)
    print(f"{'an idle pair with a syphon':<42} {min(spans):8.2%} to {max(spans):.2%} of a core", flush=True)


def _used(server: PostgresServer) -> float:
    """Seconds of the processor that this process and the server's have had."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    used = time.process_time()
    for pid in (server.pid, *children):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            used += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return used


async def run(messages: int, more: str, seconds: float) -> None:
    """Measure all of it."""
    options = PairOptions(backlog_queue_count=1, attempt_timeout=30.0)
    with PostgresServer() as server, RabbitServer() as rabbit:
        server.query(*TABLE)
        urls = rabbit.url, f"{server.url}{more}"
        async with Pair.connect(*urls, options=options) as pair:
            await pair.primary.admin.create(Entity(QUEUE))
            await store(pair.outbox(QUEUE), server, messages)
        await asyncio.to_thread(threads, urls, options, server, messages)
        server.query("TRUNCATE pairmq.message")
        moves = Moves()
        draining = replace(options, enable_syphon=True)
        async with Pair.connect(*urls, options=draining, observers=[moves]) as pair:
            await arrive(pair, moves, server, messages)
        server.query(EMPTY)
        await idle(urls, server, seconds)
    print(f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each of four spans of an idle pair")
    parser.add_argument("--no-listen", action="store_true", help="no notification: the syphon polls")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.messages, "?listen=false" if arguments.no_listen else "", arguments.seconds))


if __name__ == "__main__":
    main()
