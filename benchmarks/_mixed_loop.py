"""A loop as one would write it to move messages from Redis or PostgreSQL to RabbitMQ: SOURCE TARGET FROM TO N.

It takes N messages, publishes their bodies with aio-pika, and when all are confirmed, removes them; meanwhile it takes
the next ones, at most two such batches at a time. It restores nothing, checks nothing and renews no lock; what fails,
ends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeAlias

import aio_pika
import psycopg
from redis.asyncio import Redis

GROUP = "pairmq"
AT_ONCE = 2

Taken: TypeAlias = tuple[Sequence[bytes], Callable[[], Awaitable[Any]]]
Take: TypeAlias = Callable[[int], Awaitable[Taken]]


@asynccontextmanager
async def of_redis(url: str, stream: str) -> AsyncIterator[Take]:
    """By ``XREADGROUP``; a connection for each batch under way."""
    numbers = count()
    async with Redis.from_url(url) as client:

        async def take(most: int) -> Taken:
            found = await client.xreadgroup(GROUP, f"loop-{next(numbers) % AT_ONCE}", {stream: ">"}, count=most)
            entries = found[0][1] if found else []

            async def remove() -> None:
                ending = client.pipeline(transaction=False)
                ids = [entry for entry, _ in entries]
                ending.xack(stream, GROUP, *ids)
                ending.xdel(stream, *ids)
                await ending.execute()

            return [fields[b"b"] for _, fields in entries], remove

        yield take


@asynccontextmanager
async def of_postgres(dsn: str, table: str) -> AsyncIterator[Take]:
    """By ``DELETE ... SKIP LOCKED``, committed afterwards; a connection for each batch under way."""
    connections = [await psycopg.AsyncConnection.connect(dsn) for _ in range(AT_ONCE)]
    pop = (
        f"DELETE FROM {table} WHERE id = ANY (ARRAY(SELECT id FROM {table} ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"  # noqa: S608  # ours
        ")) RETURNING body"
    )

    async def take(most: int) -> Taken:
        connection = connections.pop()

        async def remove() -> None:
            await connection.commit()
            connections.append(connection)

        found = await (await connection.execute(pop, (most,), binary=True)).fetchall()  # type: ignore[arg-type]
        return [body for (body,) in found], remove

    yield take
    for connection in connections:
        await connection.close()


async def move(source_url: str, target_url: str, source: str, target: str, most: int) -> None:
    """Until nothing is left."""
    opened = of_redis(source_url, source) if source_url.startswith("redis") else of_postgres(source_url, source)
    async with opened as take, await aio_pika.connect(target_url) as east:
        exchange = (await east.channel()).default_exchange

        async def workers() -> None:
            while True:
                bodies, remove = await take(most)
                if not bodies:
                    return await remove() if not source_url.startswith("redis") else None
                messages = [aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT) for body in bodies]
                await asyncio.gather(*(exchange.publish(message, target) for message in messages))
                await remove()

        await asyncio.gather(*(workers() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    asyncio.run(move(*sys.argv[1:5], int(sys.argv[5])))
