"""A queue in PostgreSQL beside plain loops over a table of jobs: `FOR UPDATE SKIP LOCKED`, one row at a time and 100.

Each contender stores messages of 1 KiB, as a diverted batch is, and then takes and removes them, as a drain does. The
contenders take turns. What a loop's lock is worth differs:

- *rows*: read under row locks, deleted, and committed; *pop*: deleted by the statement that reads, and committed
  afterwards. The locks end with the connection, whose transaction stays open while the messages are handled, and
  nothing counts how often a message was tried.
- *pgmq*: hidden for a while and counted, committed, then deleted by id; *procrastinate*: marked as taken, committed,
  then deleted by id. These outlast the connection, as PairMQ's do; procrastinate's never end by themselves.

Run it with: make bench-one NAME=postgres_loops
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from _measuring import arguments, interleaved, report

from pairmq.model import Entity, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq_postgres.testing import PostgresServer

QUEUE = Entity("orders")
BODY = bytes(range(256)) * 4
BATCHES = (100, 1)
OURS = 1000  # what a sender stores in one statement, and a receive takes at most

Measured = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Loop:
    """A table of jobs, and how they are stored, taken and removed.

    Args:
        made: the table and its indexes.
        store: adds names and bodies.
        take: gets so many.
        remove: by their ids, if `take` did not.
        commits: between `take` and `remove`.
    """

    made: tuple[LiteralString, ...]
    store: LiteralString
    take: LiteralString
    remove: LiteralString = ""
    commits: bool = False


_TABLE: LiteralString = """CREATE TABLE {} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, body bytea NOT NULL)"""
LOOPS = {
    "rows": Loop(
        (_TABLE.format("rows_"),),
        "INSERT INTO rows_ (name, body) SELECT * FROM unnest(%s::text[], %b::bytea[])",
        "SELECT id, name, body FROM rows_ ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED",
        "DELETE FROM rows_ WHERE id = ANY (%s)",
    ),
    "pop": Loop(
        (_TABLE.format("pop"),),
        "INSERT INTO pop (name, body) SELECT * FROM unnest(%s::text[], %b::bytea[])",
        """DELETE FROM pop WHERE id = ANY (ARRAY(SELECT id FROM pop ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED))
        RETURNING id, name, body""",
    ),
    "pgmq": Loop(
        (
            """CREATE TABLE pgmq (
            msg_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, read_ct int NOT NULL DEFAULT 0,
            enqueued_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL, name text, body bytea)""",
            "CREATE INDEX ON pgmq (vt)",
        ),
        "INSERT INTO pgmq (vt, name, body) SELECT clock_timestamp(), * FROM unnest(%s::text[], %b::bytea[])",
        """WITH first AS (
            SELECT msg_id FROM pgmq WHERE vt <= clock_timestamp() ORDER BY msg_id LIMIT %s FOR UPDATE SKIP LOCKED
        )
        UPDATE pgmq m SET vt = clock_timestamp() + interval '60 s', read_ct = read_ct + 1 FROM first
        WHERE m.msg_id = first.msg_id RETURNING m.msg_id, m.name, m.body, m.read_ct, m.enqueued_at, m.vt""",
        "DELETE FROM pgmq WHERE msg_id = ANY (%s)",
        commits=True,
    ),
    "procrastinate": Loop(
        (
            """CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL,
            priority int NOT NULL DEFAULT 0, status text NOT NULL DEFAULT 'todo', attempts int NOT NULL DEFAULT 0,
            name text, body bytea)""",
            "CREATE INDEX ON jobs (priority DESC, id) WHERE status = 'todo'",
        ),
        "INSERT INTO jobs (queue, name, body) SELECT 'orders', * FROM unnest(%s::text[], %b::bytea[])",
        """UPDATE jobs SET status = 'doing', attempts = attempts + 1 WHERE id = ANY (ARRAY(
            SELECT id FROM jobs WHERE status = 'todo' AND queue = 'orders' ORDER BY priority DESC, id
            LIMIT %s FOR UPDATE SKIP LOCKED
        )) RETURNING id, name, body, attempts""",
        "DELETE FROM jobs WHERE id = ANY (%s)",
        commits=True,
    ),
}


def raised(outcomes: Any) -> None:
    """Raise the first failure."""
    for error in outcomes:
        if isinstance(error, TransportError):
            raise error


class Meter:
    """Seconds, and those of processor time, of this process and the server's sessions."""

    def __init__(self, server: PostgresServer) -> None:
        self._pid = server.pid
        self._began = time.perf_counter(), self._used()

    def of(self, messages: int) -> tuple[float, float]:
        """Messages a second, and microseconds of processor time for each."""
        took, used = time.perf_counter() - self._began[0], self._used() - self._began[1]
        return messages / took, used / messages * 1e6

    def _used(self) -> float:
        used = time.process_time()
        for pid in Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                title = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"postgres: postgres queues" in title or b"postgres: messenger queues" in title:
                    used += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
        return used


async def loop(server: PostgresServer, of: Loop, messages: int, batch: int) -> Measured:
    """What a plain loop reaches; its statements are prepared."""
    async with await psycopg.AsyncConnection.connect(**server.parameters(), prepare_threshold=0) as connection:
        cursor = connection.cursor(binary=True)
        meter = Meter(server)
        for _ in range(0, messages, batch):
            await cursor.execute(of.store, ([uuid.uuid4().hex for _ in range(batch)], [BODY] * batch))
            await connection.commit()
        stored = meter.of(messages)
        meter = Meter(server)
        left = messages
        while left:
            await cursor.execute(of.take, (batch,))
            rows = await cursor.fetchall()
            if of.commits:
                await connection.commit()
            if of.remove:
                await cursor.execute(of.remove, ([row[0] for row in rows],))
            await connection.commit()
            left -= len(rows)
        return {"store": stored, "drain": meter.of(messages)}


async def queue(server: PostgresServer, messages: int) -> Measured:
    """What a queue of PairMQ's reaches, which confirms each store and each removal."""
    async with registry.transport(server.url) as transport:
        sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
        await sender.make_ready()
        meter = Meter(server)
        for _ in range(0, messages, OURS):
            raised(await sender.send_batch([Message(BODY, message_id=uuid.uuid4().hex) for _ in range(OURS)]))
        stored = meter.of(messages)
        meter = Meter(server)
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
        return {"store": stored, "drain": meter.of(messages)}


async def run(messages: int, rounds: int, *, as_json: bool) -> None:
    """Measure."""
    with PostgresServer() as server:
        server.query(*(statement for each in LOOPS.values() for statement in each.made))
        async with registry.transport(server.url) as transport:
            await transport.admin.create(QUEUE)
        rates: dict[str, dict[str, list[float]]] = {"store": {}, "drain": {}}
        costs: dict[str, dict[str, list[float]]] = {"store": {}, "drain": {}}

        def contender(name: str, measure: Callable[[], Awaitable[Measured]]) -> Callable[[], Awaitable[float]]:
            async def measured() -> float:
                found = await measure()
                for what, (rate, cost) in found.items():
                    rates[what].setdefault(name, []).append(rate)
                    costs[what].setdefault(name, []).append(cost)
                return found["drain"][0]

            return measured

        ways = {"PairMQ": contender("PairMQ", lambda: queue(server, messages))}
        for batch in BATCHES:
            count = messages if batch > 1 else max(messages // 50, 100)  # a row at a time is slow
            for name, of in LOOPS.items():
                measure = lambda of=of, count=count, batch=batch: loop(server, of, count, batch)  # noqa: E731
                ways[f"{name}, {batch}"] = contender(f"{name}, {batch}", measure)
        await interleaved(ways, rounds)
        pairs = [("PairMQ", name) for name in ways if name != "PairMQ"]
        for what in ("store", "drain"):
            print(what)
            report({name: values[1:] for name, values in rates[what].items()}, pairs, "messages/s", as_json=as_json)
            report({name: values[1:] for name, values in costs[what].items()}, [], "µs of CPU", as_json=as_json)


def main() -> None:
    """Run it."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--messages", type=int, default=5000)
    options = parser.parse_args()
    asyncio.run(run(options.messages, options.rounds, as_json=options.json))


if __name__ == "__main__":
    main()
