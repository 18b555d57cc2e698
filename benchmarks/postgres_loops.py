"""A queue in PostgreSQL beside plain loops over a table of jobs: `FOR UPDATE SKIP LOCKED`, one row at a time and 100.

Each contender stores messages of 1 KiB, as a diverted batch is, and then takes and removes them, as a drain does. The
loops do no more than that: a row is read, and deleted, in one transaction. The contenders take turns.

Run it with: make bench-one NAME=postgres_loops
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from _measuring import arguments, interleaved, report

from pairmq.model import Entity, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq_postgres.testing import PostgresServer

QUEUE = Entity("orders")
BODY = bytes(range(256)) * 4
TABLE = "CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, body bytea NOT NULL)"
STORE = "INSERT INTO job (name, body) SELECT * FROM unnest(%s::text[], %b::bytea[])"
TAKE = """
WITH first AS (SELECT id FROM job ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
SELECT job.id, job.name, job.body FROM job JOIN first USING (id)
"""
DONE = "DELETE FROM job WHERE id = ANY(%s)"
BATCH = 100
OURS = 1000  # what a sender stores in one statement, and a receive takes at most

Measured = dict[str, float]


def raised(outcomes: Any) -> None:
    """Raise the first failure."""
    for error in outcomes:
        if isinstance(error, TransportError):
            raise error


async def loop(server: PostgresServer, messages: int, batch: int) -> Measured:
    """Messages a second of a plain loop."""
    async with await psycopg.AsyncConnection.connect(**server.parameters()) as connection:
        cursor = connection.cursor(binary=True)
        began = time.perf_counter()
        for _ in range(0, messages, batch):
            await cursor.execute(STORE, ([uuid.uuid4().hex for _ in range(batch)], [BODY] * batch))
            await connection.commit()
        stored = time.perf_counter()
        left = messages
        while left:
            await cursor.execute(TAKE, (batch,))
            rows = await cursor.fetchall()
            await cursor.execute(DONE, ([row[0] for row in rows],))
            await connection.commit()
            left -= len(rows)
        return {"store": messages / (stored - began), "drain": messages / (time.perf_counter() - stored)}


async def queue(server: PostgresServer, messages: int) -> Measured:
    """Messages a second of a queue of PairMQ's, which confirms each take and each removal."""
    async with registry.transport(server.url) as transport:
        sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
        await sender.make_ready()
        began = time.perf_counter()
        for _ in range(0, messages, OURS):
            raised(await sender.send_batch([Message(BODY, message_id=uuid.uuid4().hex) for _ in range(OURS)]))
        stored = time.perf_counter()
        done = 0
        removing: asyncio.Task[Any] | None = None
        while done < messages:  # as the syphon does: what was taken is removed while the next is being taken
            deliveries = await receiver.receive(OURS, 10.0)
            if removing is not None:
                raised(await removing)
            done += len(deliveries)
            removing = asyncio.ensure_future(receiver.complete_batch(deliveries))
        if removing is not None:
            raised(await removing)
        return {"store": messages / (stored - began), "drain": messages / (time.perf_counter() - stored)}


async def run(messages: int, rounds: int, *, as_json: bool) -> None:
    """Measure."""
    with PostgresServer() as server:
        server.query(TABLE)
        async with registry.transport(server.url) as transport:
            await transport.admin.create(QUEUE)
        kept: dict[str, dict[str, list[float]]] = {"store": {}, "drain": {}}

        def contender(name: str, measure: Callable[[], Awaitable[Measured]]) -> Callable[[], Awaitable[float]]:
            async def measured() -> float:
                found = await measure()
                for what, rate in found.items():
                    kept[what].setdefault(name, []).append(rate)
                return found["drain"]

            return measured

        one = max(messages // 10, 100)  # a row at a time is slow
        ways = {
            "PairMQ": contender("PairMQ", lambda: queue(server, messages)),
            "loop of 100": contender("loop of 100", lambda: loop(server, messages, BATCH)),
            "loop of 1": contender("loop of 1", lambda: loop(server, one, 1)),
        }
        await interleaved(ways, rounds)
        for what, rates in kept.items():
            print(what)
            figures = {name: values[1:] for name, values in rates.items()}
            report(figures, [("PairMQ", "loop of 100"), ("PairMQ", "loop of 1")], "messages/s", as_json=as_json)


def main() -> None:
    """Run it."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--messages", type=int, default=5000)
    options = parser.parse_args()
    asyncio.run(run(options.messages, options.rounds, as_json=options.json))


if __name__ == "__main__":
    main()
