"""One outage of one real server of each product: what `make test` sees of real brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from pairmq import Entity, EntityState, Message, Pair, Route
from pairmq.testing import memory_broker
from pairmq.testing.chaos.broker import KILL, ChaosBroker, chaos_broker

pytestmark = [pytest.mark.real_server, pytest.mark.smoke]

PATIENCE = 120.0  # s: only what hangs takes so long


@pytest.fixture(params=["redis", "rabbitmq", "servicebus"])
def broker(request: pytest.FixtureRequest) -> Iterator[ChaosBroker]:
    """A server that runs and holds nothing."""
    try:
        made = chaos_broker(request.param)
        made.start()
    except FileNotFoundError as missing:
        pytest.skip(f"not run: {missing}")
    yield made
    made.close()


async def until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Pair]:
    """A pair of that broker and one in this process, with a queue ``orders``."""
    async with memory_broker() as west:
        pair = Pair.connect(
            url,
            west.url,
            failover_interval=0,
            ping_primary_interval=0.2,
            attempt_timeout=20,
            ping_timeout=20,
            send_timeout=PATIENCE,
            backlog_queue_count=2,
            enable_syphon=True,
        )
        async with pair:
            await pair.primary.admin.create(Entity("orders"))
            yield pair


async def test_a_killed_server_loses_nothing(broker: ChaosBroker) -> None:
    """Its sends are diverted until it is back, and every accepted message is received."""
    async with opened(broker.url) as pair:
        sender = pair.sender("orders")
        receipts = [await sender.send(Message(b"before %d" % number)) for number in range(20)]
        broker.apply(KILL.name)
        receipts += [await sender.send(Message(b"during %d" % number)) for number in range(20)]
        assert receipts[-1].route is Route.BACKLOG
        broker.cure(KILL.name)
        await until(lambda: pair.state("orders") is EntityState.HEALTHY)
        receipts.append(await sender.send(Message(b"after")))
        assert receipts[-1].route is Route.PRIMARY

        accepted = {receipt.message_id for receipt in receipts}
        received: list[str] = []
        ends_at = time.monotonic() + PATIENCE
        async with pair.receiver("orders") as receiver:
            while not accepted <= set(received):
                assert time.monotonic() < ends_at, f"{len(accepted - set(received))} of {len(accepted)} did not come"
                for delivery in await receiver.receive(50, 1.0):
                    received.append(delivery.message.message_id)
                    await delivery.complete()
    doubtful = {receipt.message_id for receipt in receipts if receipt.maybe_duplicate}
    assert {each for each in received if received.count(each) > 1} <= doubtful
    assert set(received) == accepted
