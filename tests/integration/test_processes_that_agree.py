"""The pair's record on each real product: processes with other queues, and decisions that all follow (SPEC 13)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from pairmq import ConfigurationError, Entity, EntityState, Message, Pair, PairOptions
from pairmq.model import Source
from pairmq.model.events import Event, Warned
from pairmq.plugins import registry
from pairmq.runner import SwitchWriter
from pairmq_postgres.testing import PostgresServer
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = [pytest.mark.real_server, pytest.mark.timeout(300)]

MESSAGES = 20


@pytest.fixture(params=["redis", "rabbitmq", "servicebus", "postgres", "sqlite"])
def secondary(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty secondary."""
    with ExitStack() as stack:
        match request.param:
            case "redis":
                yield stack.enter_context(RedisServer()).url
            case "rabbitmq":
                yield request.getfixturevalue("rabbit_servers")(1)[0].url
            case "postgres":
                yield stack.enter_context(PostgresServer()).url
            case "servicebus":
                yield stack.enter_context(ServiceBusServer(durable=False)).url
            case _:
                yield f"sqlite://{tmp_path}/backlog.db"


async def until(seconds: float, primary: str, count: int) -> None:
    async with asyncio.timeout(seconds), registry.transport(primary) as east:
        while (await east.admin.counts(Source(Entity("orders")))).pending < count:
            await asyncio.sleep(0.1)


async def test_a_syphon_drains_queues_that_only_another_process_knows(secondary: str) -> None:
    primary = f"memory://agree-{abs(hash(secondary))}"
    options = PairOptions(failover_interval=0.0, backlog_queue_count=5, syphon_receive_wait=1.0)
    async with Pair.connect(primary, secondary, options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        pair.hold("orders")
        for number in range(MESSAGES):
            await pair.sender("orders").send(Message(b"", message_id=f"m{number}"))
    few = PairOptions(failover_interval=0.0, backlog_queue_count=1, syphon_receive_wait=1.0, enable_syphon=True)
    warned: list[Event] = []
    pair = Pair.connect(primary, secondary, options=few)
    pair.subscribe(lambda event: warned.append(event) if isinstance(event, Warned) else None)
    async with pair:
        await until(60, primary, MESSAGES)
        agreement = await pair.agreement(timeout=10)
        assert [len(pair.backlog_queues), len(agreement.found), agreement.strays] == [5, 4, ()]
    assert any("backlog_queue_count is 1 here and 5" in str(event) for event in warned)
    # Looking is repeatable: a record is not used up by being read.
    async with Pair.connect(primary, secondary, options=few) as again:
        for _ in range(3):
            assert len((await again.agreement(timeout=10)).record.configurations) == 2
    name = primary.removeprefix("memory://")
    with pytest.raises(ConfigurationError, match="another primary"):
        async with Pair.connect(f"memory://elsewhere?name={name}", secondary, options=few):
            pass


async def test_a_fleet_follows_a_switch(secondary: str) -> None:
    options = PairOptions(backlog_queue_count=1, control_interval=0.5, failover_interval=60.0)
    async with AsyncExitStack() as stack:
        primary = f"memory://fleet-{abs(hash(secondary))}"
        pairs = [await stack.enter_async_context(Pair.connect(primary, secondary, options=options)) for _ in range(4)]
        await pairs[0].primary.admin.create(Entity("orders"))
        operator = SwitchWriter(pairs[0].primary.endpoint, pairs[0].secondary, 30.0)
        async with asyncio.timeout(60):
            while len((await operator.status()).processes) < 4:
                await asyncio.sleep(0.5)
        for action, state in (("hold", EntityState.FAILED_OVER), ("resume", EntityState.HEALTHY)):
            report = await pairs[0].switch(action, "orders", timeout=60)
            assert (len(report.followed), report.complete) == (4, True)
            assert {pair.state("orders") for pair in pairs} <= {state, EntityState.DRAINING}
        for action in ("hold", "resume") * 10:  # as many as a person makes in a bad hour
            decision = await operator.write(action, [Entity("orders")])
        assert (await operator.watch(decision, 60)).complete
