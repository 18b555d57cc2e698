"""Many consumers of one queue in PostgreSQL beside as many plain loops: how fast all of them together empty it.

Messages of 1 KiB, small batches, a receive and a settlement each. A plain loop deletes what it reads, under row locks,
and commits (*pop* in `postgres_loops`): its locks end with the connection. Both run in one process, and take turns.

Run it with: make bench-one NAME=postgres_consumers ARGS="--consumers 16 --batch 10"
"""

from __future__ import annotations

import asyncio
import statistics
import uuid

import psycopg
from _measuring import arguments
from postgres_loops import BODY, LOOPS, QUEUE, Meter, raised

from pairmq.model import Message, Source
from pairmq.plugins import registry
from pairmq_postgres.testing import PostgresServer

STORED = 1000  # a statement
POP = LOOPS["pop"]

Found = tuple[float, float]
"""Messages a second, and microseconds of processor time for each."""


async def plain(server: PostgresServer, consumers: int, batch: int, messages: int) -> Found:
    """What plain loops reach."""
    connections = [
        await psycopg.AsyncConnection.connect(**server.parameters(), prepare_threshold=0) for _ in range(consumers)
    ]
    for _ in range(0, messages, STORED):
        names = [uuid.uuid4().hex for _ in range(STORED)]
        await connections[0].execute(POP.store, (names, [BODY] * STORED))
        await connections[0].commit()

    async def consume(connection: psycopg.AsyncConnection) -> None:
        cursor = connection.cursor(binary=True)
        while await (await cursor.execute(POP.take, (batch,))).fetchall():
            await connection.commit()
        await connection.commit()

    meter = Meter(server)
    await asyncio.gather(*map(consume, connections))
    found = meter.of(messages)
    for connection in connections:
        await connection.close()
    return found


async def queue(server: PostgresServer, consumers: int, batch: int, messages: int) -> Found:
    """What receivers of PairMQ reach."""
    async with registry.transport(f"{server.url}?pool_size={2 * consumers}") as transport:
        sender = transport.sender(QUEUE)
        for _ in range(0, messages, STORED):
            raised(await sender.send_batch([Message(BODY, message_id=uuid.uuid4().hex) for _ in range(STORED)]))
        receivers = [transport.receiver(Source(QUEUE)) for _ in range(consumers)]
        done = 0

        async def consume(number: int) -> None:
            nonlocal done
            receiver = receivers[number]
            while done < messages:
                deliveries = await receiver.receive(batch, 0)
                raised(await receiver.complete_batch(deliveries))
                done += len(deliveries)

        meter = Meter(server)
        await asyncio.gather(*map(consume, range(consumers)))
        return meter.of(messages)


async def run(consumers: int, batch: int, messages: int, rounds: int) -> None:
    """Measure."""
    rates: list[tuple[Found, Found]] = []
    with PostgresServer(settings={"max_connections": str(100 + 4 * consumers)}) as server:
        server.query(*POP.made)
        async with registry.transport(server.url) as transport:
            await transport.admin.create(QUEUE)
        for number in range(rounds):
            if number % 2:
                ours = await queue(server, consumers, batch, messages)
                theirs = await plain(server, consumers, batch, messages)
            else:
                theirs = await plain(server, consumers, batch, messages)
                ours = await queue(server, consumers, batch, messages)
            rates.append((ours, theirs))
            server.query("TRUNCATE pop", "TRUNCATE pairmq.message, pairmq.lease")
    for name, each in (("PairMQ", [ours for ours, _ in rates]), ("plain loops", [theirs for _, theirs in rates])):
        rate, cost = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{name:12} {rate:8,.0f} messages a second, {cost:6.0f} µs of processor time for each")
    ratios = [ours[0] / theirs[0] for ours, theirs in rates]
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    """Run it."""
    parser = arguments(__doc__, rounds=4)
    parser.add_argument("--consumers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--messages", type=int, default=6000)
    options = parser.parse_args()
    asyncio.run(run(options.consumers, options.batch, options.messages, options.rounds))


if __name__ == "__main__":
    main()
