"""Thousands of sends in flight while both brokers are unresponsive: what they leave to the garbage collector.

Its passes go through all objects of all sends in flight, and nothing else runs meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from pairmq import Entity, Message, Pair, PairOptions, PairSender, SendError
from pairmq.testing import Fault, SimulatedBroker, in_virtual_time

COUNT = 1000


@pytest.fixture(autouse=True)
def no_passes() -> Iterator[None]:
    """The collector runs when a test asks for it, and only then."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def unresponsive(**options: Any) -> AsyncIterator[Pair]:
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    setup = east.transport()
    await setup.admin.create(Entity("orders"))
    await setup.close()
    async with Pair(east.transport(), west.transport(), PairOptions(backlog_queue_count=3, **options)) as pair:
        east.fail(Fault.HANG)
        west.fail(Fault.HANG)
        yield pair


async def send(sender: PairSender) -> None:
    with suppress(SendError):
        await sender.send(Message(b"x", message_id="1"))


async def wait() -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(1000):
            await asyncio.get_running_loop().create_future()


async def containers_of(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Objects that the collector goes through while so many tasks wait."""
    before = len(gc.get_objects())
    tasks = [asyncio.create_task(work()) for _ in range(COUNT)]
    await asyncio.sleep(0.01)
    gc.collect()  # it tells some tuples from containers, and passes over them from then on
    containers = len(gc.get_objects()) - before
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return containers


@in_virtual_time
async def test_a_send_in_flight_has_hardly_more_containers_than_a_task_that_waits_with_a_timeout() -> None:
    async with unresponsive() as pair:
        await containers_of(wait)
        waiting = await containers_of(wait)
        sender = pair.sender("orders")
        of_the_broker = 6 * COUNT  # the simulated one's coroutines
        sending = await containers_of(lambda: send(sender)) - of_the_broker
        assert sending < 1.6 * waiting


@in_virtual_time
async def test_sends_that_failed_are_freed_without_the_garbage_collector() -> None:
    async with unresponsive(attempt_timeout=1.0, send_timeout=3.0, failover_interval=0.5) as pair:
        sender = pair.sender("orders")
        gc.collect()
        await asyncio.gather(*(send(sender) for _ in range(COUNT)))
        assert gc.collect() < COUNT
