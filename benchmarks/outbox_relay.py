"""How fast outboxes are relayed from PostgreSQL to RabbitMQ: `pairmq syphon` beside relays of other packages.

Each finds its own table full of messages of 1 KiB, and is timed from a tenth to nine tenths of them in RabbitMQ, with
confirms and persistent. The contenders take turns. The others need an interpreter of their own:

    python3 -m venv build/peers
    build/peers/bin/pip install 'event-forge[postgresql,rabbitmq]' asyncpg 'psycopg[binary]' django-celery-outbox
    make bench-one NAME=outbox_relay ARGS="--peers build/peers/bin/python"
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import psycopg
from _draining import BODY, ORDERS, watched
from _measuring import arguments, interleaved, report

from pairmq import Message, Pair, PairOptions
from pairmq.plugins import registry
from pairmq_postgres.testing import PostgresServer
from pairmq_rabbitmq.testing import RabbitServer

OURS, PEERS = "pairmq syphon", ("event-forge", "django-celery-outbox")
PROGRAM = Path(__file__).with_name("_outbox_peers.py")


@contextlib.asynccontextmanager
async def program(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program, and kill it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=None)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def ours(postgres: PostgresServer, rabbit: RabbitServer, messages: int) -> float:
    """Messages a second by `pairmq syphon`."""
    async with (
        registry.transport(rabbit.url) as broker,
        Pair.connect(rabbit.url, postgres.url, options=PairOptions(backlog_queue_count=1)) as pair,
    ):
        await broker.admin.create(ORDERS)
        async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
            await pair.outbox(ORDERS.path).send_batch((Message(BODY) for _ in range(messages)), connection=connection)
        urls = ("--primary", rabbit.url, "--secondary", postgres.url)
        async with program(sys.executable, "-m", "pairmq", "syphon", *urls, "--backlog-queues", "1"):
            return await watched(broker, messages)


async def other(name: str, python: str, postgres: PostgresServer, rabbit: RabbitServer, messages: int) -> float:
    """Messages a second by another package's relay."""
    found = postgres.parameters()
    database = f"postgresql://{found['user']}:{quote(found['password'])}@127.0.0.1:{postgres.port}/{found['dbname']}"
    async with registry.transport(rabbit.url) as broker:
        if name == "event-forge":  # the other one declares it in its own way
            await broker.admin.create(ORDERS)
        async with program(python, str(PROGRAM), name, database, rabbit.url, str(messages)) as process:
            assert process.stdout is not None  # noqa: S101
            assert process.stdin is not None  # noqa: S101
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{name} did not start")
            process.stdin.write(b"\n")
            return await watched(broker, messages)


async def run(python: str | None, messages: int, rounds: int, *, as_json: bool) -> None:
    """Measure."""

    async def fresh(name: str) -> float:
        with PostgresServer() as postgres, RabbitServer() as rabbit:
            if name == OURS:
                return await ours(postgres, rabbit, messages)
            return await other(name, python or "", postgres, rabbit, messages)

    names = (OURS, *(PEERS if python else ()))
    figures = await interleaved({name: lambda name=name: fresh(name) for name in names}, rounds, warm_up=False)
    report(figures, [(OURS, name) for name in names[1:]], "messages/s", as_json=as_json)


def main() -> None:
    """Run it."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--peers", help="an interpreter that has the other packages")
    options = parser.parse_args()
    asyncio.run(run(options.peers, options.messages, options.rounds, as_json=options.json))


if __name__ == "__main__":
    main()
