"""A primary of each product that comes back without its queues: the backlog waits until a program makes them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pairmq import Entity, Message, Pair, PairOptions
from pairmq.model import Source
from pairmq.model.events import DestinationChanged, Event, MessageDeadLettered
from pairmq_postgres.testing import PostgresServer
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = [pytest.mark.real_server, pytest.mark.timeout(300)]

ORDERS = Entity("orders")
MESSAGES = 60  # fewer than a pump holds: what it postpones is seen a ping interval later
OPTIONS = PairOptions(failover_interval=0.0, backlog_queue_count=3, syphon_receive_wait=1.0, ping_primary_interval=60.0)


@pytest.fixture(params=["redis", "rabbitmq", "servicebus", "postgres", "sqlite"])
def primary(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty primary."""
    with ExitStack() as stack:
        match request.param:
            case "redis":
                yield stack.enter_context(RedisServer()).url
            case "rabbitmq":
                yield request.getfixturevalue("rabbit_servers")(1)[0].url
            case "servicebus":
                yield stack.enter_context(ServiceBusServer(durable=False)).url
            case "postgres":
                yield stack.enter_context(PostgresServer(settings={"fsync": "off"})).url
            case _:
                yield f"sqlite://{tmp_path}/primary.db"


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.05)


async def test_two_syphons_wait_for_a_queue_that_is_missing_and_move_all_when_it_is_made(
    primary: str, tmp_path: Path
) -> None:
    secondary = f"sqlite://{tmp_path}/backlog.db"
    async with Pair.connect(primary, secondary, options=OPTIONS) as pair:
        await pair.primary.admin.create(ORDERS)
        pair.hold("orders")
        await pair.sender("orders").send_batch([Message(b"", message_id=f"m{number}") for number in range(MESSAGES)])
        await pair.primary.admin.delete(ORDERS)
    events: list[Event] = []
    async with AsyncExitStack() as stack:
        for _ in range(2):
            pair = Pair.connect(primary, secondary, options=replace(OPTIONS, enable_syphon=True))
            pair.subscribe(events.append)
            await stack.enter_async_context(pair)
        await until(lambda: any(isinstance(each, DestinationChanged) and not each.open for each in events))
        await asyncio.sleep(3)  # probes go on, and each lets one operation try
        admin = pair.primary.admin
        await admin.create(ORDERS)
        async with asyncio.timeout(120):
            while (await admin.counts(Source(ORDERS))).pending < MESSAGES:
                await asyncio.sleep(0.1)
    assert [each for each in events if isinstance(each, MessageDeadLettered)] == []
    [missing, *_] = [each for each in events if isinstance(each, DestinationChanged)]
    assert (missing.entity, missing.open) == (ORDERS, False)
