"""Whether a queue in PostgreSQL stays as fast and as small as it began, as durable as a server is by default.

One queue holds a backlog the whole time. A sender adds batches of 1 KiB messages and a receiver locks and completes
batches, side by side, until so many went through. Speed, sizes and dead rows are printed for each tenth.

Run it with: make bench-one NAME=postgres_queue ARGS="--messages 200000"
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from pairmq.model import Entity, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import Receiver, Sender
from pairmq_postgres.testing import PostgresServer

QUEUE = Entity("orders")
BODY = bytes(range(256)) * 4
SIZES = """
    SELECT pg_table_size('pairmq.message'), pg_indexes_size('pairmq.message'), n_dead_tup, n_tup_upd, n_tup_hot_upd
    FROM pg_stat_user_tables WHERE relid = 'pairmq.message'::regclass
"""


def check(outcomes: Sequence[TransportError | None]) -> None:
    """Raise the first failure."""
    for error in filter(None, outcomes):
        raise error


async def send(sender: Sender, count: int, batch: int) -> None:
    """Send so many messages."""
    for begin in range(0, count, batch):
        messages = [Message(BODY, message_id=f"{begin + number}") for number in range(min(batch, count - begin))]
        check(await sender.send_batch(messages))


async def receive(receiver: Receiver, count: int, batch: int) -> None:
    """Receive and complete so many messages."""
    left = count
    while left:
        deliveries = await receiver.receive(min(batch, left), 10.0)
        check(await receiver.complete_batch(deliveries))
        left -= len(deliveries)


async def run(server: PostgresServer, messages: int, backlog: int, batch: int) -> None:
    """Print a line for each tenth."""
    head = ("messages", "a second", "µs of ours", "table MB", "index MB", "dead rows", "HOT")
    print(" ".join(f"{each:>10}" for each in head))
    async with registry.transport(server.url) as transport:
        await transport.admin.create(QUEUE)
        sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
        await send(sender, backlog, 1000)
        part = messages // 10
        for tenth in range(1, 11):
            began, cost = time.perf_counter(), time.process_time()
            await asyncio.gather(send(sender, part, batch), receive(receiver, part, batch))
            took, cost = time.perf_counter() - began, time.process_time() - cost
            table, index, dead, updates, hot = server.query(SIZES)[0]
            sizes = (f"{table / 1e6:.1f}", f"{index / 1e6:.1f}", f"{dead:,}", f"{hot / max(updates, 1):.1%}")
            line = (f"{part * tenth:,}", f"{part / took:,.0f}", f"{cost / part * 1e6:.0f}", *sizes)
            print(" ".join(f"{each:>10}" for each in line), flush=True)
        await receive(receiver, backlog, 1000)
        counts = await transport.admin.counts(Source(QUEUE))
        if counts.pending:
            raise RuntimeError(f"not empty: {counts}")
    server.query("VACUUM pairmq.message")
    table, index, dead, *_ = server.query(SIZES)[0]
    print(f"emptied and vacuumed: table {table / 1e6:.1f} MB, indexes {index / 1e6:.1f} MB, {dead:,} dead rows")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--backlog", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=100)
    arguments = parser.parse_args()
    with PostgresServer() as server:
        asyncio.run(run(server, arguments.messages, arguments.backlog, arguments.batch))


if __name__ == "__main__":
    main()
