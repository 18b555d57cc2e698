"""A child that is forked inside of an open pair leaves the parent's connections alone, however it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pairmq_postgres.testing import PostgresServer
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

# What a child has closed shows in the parent as a lock that is lost, or as something that has failed.
PROGRAM = """
import asyncio, os, sys
from pairmq import Entity, Message, Pair
from pairmq.model.events import AttemptFailed, ReceiverChanged, SyphonFailed

FAILURES = AttemptFailed, ReceiverChanged, SyphonFailed

async def main():
    async with Pair.connect(*sys.argv[2:4], failover_interval=0, continuity=["orders"], enable_syphon=True) as pair:
        await pair.primary.admin.create(Entity("orders"))
        async with pair.sender("orders") as sender, pair.receiver("orders") as receiver:
            await sender.send(Message(b"1"))
            (delivery,) = await receiver.receive(wait=30)
            consumer = pair.consumer("orders", print)
            failed = []
            pair.subscribe(lambda event: failed.append(event) if isinstance(event, FAILURES) else None)
            for status in range(3, 6):
                if (child := os.fork()) == 0:
                    end(status)
                # In a thread, whose end reaches the loop by a socket that the child has, too.
                _, ended = await asyncio.to_thread(os.waitpid, child, 0)
                print(os.waitstatus_to_exitcode(ended))
            await delivery.complete()
            await consumer.close()
            receipt = await sender.send(Message(b"2"))
            print(receipt.route, receipt.attempts, *failed)

def end(status):
    if sys.argv[1] == "exit":
        sys.exit(status)
    os._exit(status)

asyncio.run(main())
"""


@pytest.fixture(params=["redis", "rabbitmq", "postgres", "servicebus"])
def urls(request: pytest.FixtureRequest, rabbit_servers: Callable[[int], list[RabbitServer]]) -> Iterator[list[str]]:
    """Two brokers of one product."""
    if request.param == "rabbitmq":
        yield [server.url for server in rabbit_servers(2)]
        return
    kind = {"redis": RedisServer, "postgres": PostgresServer, "servicebus": ServiceBusServer}[request.param]
    with ExitStack() as stack:
        yield [stack.enter_context(kind()).url for _ in range(2)]


@pytest.mark.parametrize("way", ["exit", "_exit"])
def test_a_forked_child_leaves_the_parents_connections_alone(urls: list[str], way: str) -> None:
    run = [sys.executable, "-u", "-c", PROGRAM, way, *urls]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=200)
    # Not what is written to stderr: the client of Service Bus leaves tasks behind, and Python reports each.
    assert ended.stdout.split() == ["3", "4", "5", "primary", "1"], ended.stderr
