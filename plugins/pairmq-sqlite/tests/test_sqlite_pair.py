"""A pair of a real server and a file: where there is no second broker, the disk stands in for one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker_tests import bodies, until
from pairmq import Entity, EntityState, Message, Pair, PairOptions, Receipt, Route
from pairmq.model import Source

pairmq_redis = pytest.importorskip("pairmq_redis.testing", reason="the primary is a Redis: pip install pairmq-redis")

pytestmark = pytest.mark.real_server

OPTIONS = PairOptions(
    failover_interval=0.5,
    ping_primary_interval=0.3,
    attempt_timeout=20.0,
    send_timeout=30.0,
    backlog_queue_count=3,
    enable_syphon=True,
)
COUNT = 300


@pytest.fixture
def primary() -> Iterator[pairmq_redis.RedisServer]:
    with pairmq_redis.RedisServer() as server:
        yield server


async def test_a_killed_servers_messages_go_to_the_file_and_are_moved_back(primary, path: Path):
    async with Pair.connect(primary.url, f"sqlite://{path}", options=OPTIONS) as pair:
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        receipts: list[Receipt] = []
        for number in range(COUNT):
            if number == COUNT // 3:
                await asyncio.to_thread(primary.kill)
            receipts.append(await sender.send(Message(b"%d" % number, application_properties={"number": number})))
        assert {receipt.route for receipt in receipts} == {Route.PRIMARY, Route.BACKLOG}
        primary.restart()  # in the thread that started it, with which it ends
        await until(lambda: pair.state("orders") is EntityState.HEALTHY)
        assert set(await bodies(pair, COUNT)) == {b"%d" % number for number in range(COUNT)}


async def test_the_file_keeps_the_backlog_for_the_next_process(primary, path: Path):
    """A sender without a syphon diverts and ends; another process moves back what it finds."""
    options = PairOptions(failover_interval=0, attempt_timeout=20.0, send_timeout=30.0, backlog_queue_count=2)
    async with Pair.connect(primary.url, f"sqlite://{path}", options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        await asyncio.to_thread(primary.kill)
        receipts = [await pair.sender("orders").send(Message(b"%d" % number)) for number in range(5)]
        assert {receipt.route for receipt in receipts} == {Route.BACKLOG}
        waiting = [await pair.secondary.admin.counts(Source(queue)) for queue in pair.backlog_queues]
        assert sum(count.active for count in waiting) == 5
    primary.restart()
    syphon = PairOptions(backlog_queue_count=2, enable_syphon=True)
    async with Pair.connect(primary.url, f"sqlite://{path}", options=syphon) as pair:
        assert set(await bodies(pair, 5)) == {b"0", b"1", b"2", b"3", b"4"}


async def test_a_session_keeps_its_order_through_the_file(primary, path: Path):
    options = replace(OPTIONS, ordering="session")
    async with Pair.connect(primary.url, f"sqlite://{path}", options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        receipts: list[Receipt] = []
        for number in range(60):
            if number == 10:
                await asyncio.to_thread(primary.kill)
            if number == 30:
                primary.restart()
            receipts.append(await sender.send(Message(b"%d" % number, session_id="customer-7")))
        assert Route.BACKLOG in {receipt.route for receipt in receipts}
        assert await bodies(pair, 60) == [b"%d" % number for number in range(60)]  # second copies come later
