"""A server and its standby, both in the URL: the standby is promoted, and what it replaced is started again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from pairmq import Entity, Message, Pair, PairOptions, SendError
from pairmq.model import FailureKind, TransportError
from pairmq_postgres.testing import PostgresServer
from pairmq_redis.testing import RedisServer

pytestmark = pytest.mark.real_server

ORDERS = Entity("orders")
PATIENCE = 120.0


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, PostgresServer, str]]:
    """A server whose commits wait for its standby, the standby, and the URL of both."""
    with PostgresServer() as first, PostgresServer(standby_of=first) as second:
        first.query("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        yield first, second, first.url.replace(f":{first.port}/", f":{first.port},127.0.0.1:{second.port}/")


def replace(first: PostgresServer, second: PostgresServer) -> None:
    """Kill a server, have its standby take over, and start it again by mistake: it takes writes, too."""
    first.kill()
    second.promote()
    first.start()
    first.query("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")


def stored(server: PostgresServer) -> list[str]:
    return [row[0] for row in server.query("SELECT convert_from(body, 'utf8') FROM pairmq.message ORDER BY number")]


async def test_a_replaced_primary_that_is_back_gets_nothing(servers, connect, message):
    first, second, url = servers
    transport = connect(url)
    await transport.admin.create(ORDERS)
    sender = transport.sender(ORDERS)
    await sender.send(message("before"))
    await asyncio.to_thread(replace, first, second)
    await sender.send(message("after"))
    second.kill()
    with pytest.raises(TransportError) as caught:
        await sender.send(message("refused"))
    assert (caught.value.kind, caught.value.maybe_applied) == (FailureKind.UNAVAILABLE, False)
    assert f"127.0.0.1:{first.port} takes writes, but another server was promoted" in str(caught.value)
    second.start()
    await sender.send(message("again"))
    assert (stored(first), stored(second)) == (["before"], ["before", "after", "again"])


async def test_of_two_that_take_writes_a_new_process_finds_the_promoted_one(servers, connect, message):
    first, second, url = servers
    await connect(url).admin.create(ORDERS)
    await asyncio.to_thread(replace, first, second)
    await connect(url).sender(ORDERS).send(message("after"))
    assert (stored(first), stored(second)) == ([], ["after"])


async def test_a_host_that_never_answers_is_passed_over(server, connect, message):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{server.port}"
        transport = connect(server.url.replace(f"127.0.0.1:{server.port}", hosts), connect_timeout=300)
        async with asyncio.timeout(PATIENCE):
            await transport.admin.create(ORDERS)
            await transport.sender(ORDERS).send(message("first"))
    assert stored(server) == ["first"]


@pytest.mark.timeout(300)
async def test_what_a_pair_accepted_outlives_a_promotion_of_its_secondary(servers):
    first, second, url = servers
    accepted: set[str] = set()
    sends: list[asyncio.Task[None]] = []
    options = PairOptions(backlog_queue_count=2, failover_interval=0, enable_syphon=True)
    with RedisServer() as redis:
        async with Pair.connect(redis.url, url, options=options) as pair:
            await pair.primary.admin.create(ORDERS)
            sender = pair.sender(ORDERS.path)

            async def send(name: str) -> None:
                try:
                    await sender.send(Message(b"", name), timeout=PATIENCE)
                except SendError:
                    return
                accepted.add(name)

            async def send_until(enough: int) -> None:
                while len(accepted) < enough:
                    sends.append(asyncio.create_task(send(str(len(sends)))))
                    await asyncio.sleep(0.02)

            redis.kill()
            async with asyncio.timeout(PATIENCE):
                await send_until(50)
                await asyncio.to_thread(replace, first, second)
                await send_until(len(accepted) + 50)
                await asyncio.to_thread(second.restart)
                await send_until(len(accepted) + 50)
                await asyncio.gather(*sends)
                redis.start()
                found: set[str] = set()
                async with pair.receiver(ORDERS.path) as receiver:
                    while not accepted <= found:
                        for delivery in await receiver.receive(100, 1.0):
                            found.add(str(delivery.message.message_id))
                            await delivery.complete()
