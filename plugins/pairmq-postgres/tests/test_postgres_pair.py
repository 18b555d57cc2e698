"""Pairs with PostgreSQL on either side, through kills and standstills."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from broker_tests import bodies, until
from pairmq import Entity, EntityState, Message, Pair, PairOptions, Receipt, Route
from pairmq.model.events import DestinationChanged
from pairmq.plugins import BrokerControl, registry
from pairmq_postgres.testing import PostgresServer

pytestmark = pytest.mark.real_server

OPTIONS = PairOptions(
    failover_interval=0.5,
    ping_primary_interval=0.3,
    attempt_timeout=5.0,
    send_timeout=100.0,
    backlog_queue_count=3,
    enable_syphon=True,
)
COUNT = 300
PATIENCE = 60


@pytest.fixture
async def memory() -> tuple[str, BrokerControl]:
    url = f"memory://{uuid.uuid4().hex}"
    control = registry.transport_record(url).broker_control
    assert control is not None
    return url, control(url)


async def paused(server: PostgresServer) -> None:
    server.pause()
    await asyncio.sleep(2)
    server.resume()


async def test_pair_loses_nothing_when_the_secondary_is_killed_and_frozen(server: PostgresServer, memory):
    url, primary = memory
    async with Pair.connect(url, server.url, options=OPTIONS) as pair:
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        receipts: list[Receipt] = []
        for number in range(COUNT):
            if number == COUNT // 6:
                await primary.stop()
            if number == COUNT // 3:
                server.kill()
                server.start()
            if number == COUNT // 2:
                await paused(server)
            receipts.append(await sender.send(Message(b"%d" % number)))
        assert {receipt.route for receipt in receipts} == {Route.PRIMARY, Route.BACKLOG}
        await primary.restore()
        server.kill()  # while it is drained
        server.start()
        await until(lambda: pair.state("orders") is EntityState.HEALTHY)
        assert sorted(await bodies(pair, COUNT)) == sorted(b"%d" % number for number in range(COUNT))


async def test_pair_keeps_the_order_of_a_session_when_the_secondary_is_killed(server: PostgresServer, memory):
    url, primary = memory
    async with Pair.connect(url, server.url, options=replace(OPTIONS, ordering="session")) as pair:
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        for number in range(60):
            if number == 10:
                await primary.stop()
            if number == 20:
                server.kill()
                server.start()
            if number == 40:
                await primary.restore()
            await sender.send(Message(b"%d" % number, session_id="customer-7"))
        assert await bodies(pair, 60) == [b"%d" % number for number in range(60)]


async def test_pair_fails_over_and_back_when_the_primary_is_killed_and_frozen(server: PostgresServer, memory):
    url, _ = memory
    async with Pair.connect(server.url, url, options=replace(OPTIONS, attempt_timeout=1.0)) as pair:
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        routes = []
        for number in range(COUNT):
            if number == COUNT // 6:
                server.kill()
            if number == COUNT // 3:
                server.start()
                await until(lambda: pair.state("orders") is EntityState.HEALTHY)
            if number == COUNT // 2:
                server.pause()
            receipt = await sender.send(Message(b"%d" % number))
            routes.append(receipt.route)
        server.resume()
        await until(lambda: pair.state("orders") is EntityState.HEALTHY)
        assert routes[COUNT // 6] is routes[-1] is Route.BACKLOG
        assert routes[COUNT // 3] is Route.PRIMARY
        assert sorted(await bodies(pair, COUNT)) == sorted(b"%d" % number for number in range(COUNT))


async def test_backlog_waits_for_the_primarys_tables(server: PostgresServer, memory):
    """An operator migrates, or makes the tables of a restored database: no message is at fault."""
    url, _ = memory
    async with Pair.connect(server.url, url, options=replace(OPTIONS, enable_syphon=False)) as pair:
        await pair.primary.admin.create(Entity("orders"))
        pair.force_failover("orders")
        assert [(await pair.sender("orders").send(Message(b"%d" % number))).route for number in range(5)] == [
            Route.BACKLOG
        ] * 5
    server.query("ALTER TABLE pairmq.message RENAME COLUMN body TO renamed")
    async with Pair.connect(server.url, url, options=OPTIONS) as pair:
        shut = asyncio.Event()
        pair.subscribe(lambda event: shut.set() if isinstance(event, DestinationChanged) and not event.open else None)
        await asyncio.wait_for(shut.wait(), PATIENCE)
        server.query("ALTER TABLE pairmq.message RENAME COLUMN renamed TO body")
        assert sorted(await bodies(pair, 5)) == [b"%d" % number for number in range(5)]
