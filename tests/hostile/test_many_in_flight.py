"""Thousands of sends in flight while both brokers are unresponsive: what they leave to the garbage collector.

Its passes go through all objects of all sends in flight, and nothing else runs meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from pairmq import Entity, Message, Pair, PairOptions, PairSender, SendError
from pairmq.testing import Fault, SimulatedBroker, in_virtual_time
from pairmq_redis.testing import RedisServer

COUNT = 1000


@pytest.fixture
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


@pytest.mark.usefixtures("no_passes")
@in_virtual_time
async def test_a_send_in_flight_has_hardly_more_containers_than_a_task_that_waits_with_a_timeout() -> None:
    async with unresponsive() as pair:
        await containers_of(wait)
        waiting = await containers_of(wait)
        sender = pair.sender("orders")
        of_the_broker = 6 * COUNT  # the simulated one's coroutines
        sending = await containers_of(lambda: send(sender)) - of_the_broker
        assert sending - waiting < 12 * COUNT  # 10 for each on Python 3.11, 11 on 3.14


@pytest.mark.usefixtures("no_passes")
@in_virtual_time
async def test_sends_that_failed_are_freed_without_the_garbage_collector() -> None:
    async with unresponsive(attempt_timeout=1.0, send_timeout=3.0, failover_interval=0.5) as pair:
        sender = pair.sender("orders")
        gc.collect()
        await asyncio.gather(*(send(sender) for _ in range(COUNT)))
        assert gc.collect() < COUNT


class _Waiting(selectors.SelectSelector):
    """Counts the seconds that it was asked to wait and did."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        ready = super().select(timeout)
        took = time.monotonic() - began
        self.waited += took if timeout is None else min(took, max(timeout, 0.0))
        return ready


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """A loop with real sockets, whose clock leaves out the time that other programs take from this one."""

    def __init__(self) -> None:
        self._waiting = _Waiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return time.process_time() + self._waiting.waited


async def measured(work: Callable[[], Coroutine[Any, Any, None]], count: int) -> tuple[list[float], float]:
    """How long each of so many tasks took, and how long the loop was blocked at most, as a ticker saw it.

    Without the collector's passes: how long one takes depends on the whole heap, and when it comes on chance.
    """
    loop = asyncio.get_running_loop()
    gc.collect()
    took: list[float] = []
    stalls: list[float] = []
    passes, began_at = 0.0, 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal passes, began_at
        if phase == "start":
            began_at = time.process_time()
        else:
            passes += time.process_time() - began_at

    async def tick() -> None:
        while True:
            began = loop.time() - passes
            await asyncio.sleep(0.005)
            stalls.append(loop.time() - passes - began)

    async def one() -> None:
        began = loop.time()
        await work()
        took.append(loop.time() - began)

    gc.callbacks.append(watch)
    ticker = asyncio.create_task(tick())
    tasks = []
    for _ in range(count // 100):  # a program that starts thousands of tasks in one turn blocks the loop by itself
        tasks += [asyncio.create_task(one()) for _ in range(100)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    ticker.cancel()
    gc.callbacks.remove(watch)
    return took, max(stalls)


@pytest.mark.real_server
def test_twenty_thousand_sends_end_by_their_deadline_when_both_servers_are_stopped() -> None:
    """The control: as many tasks, started alike, that only wait with a timeout."""
    timeout, count = 3.0, 20_000

    async def wait_for_nothing() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().create_future()

    async def run() -> None:
        options = PairOptions(failover_interval=0.5, attempt_timeout=1.0, send_timeout=timeout, max_pending_sends=count)
        with RedisServer() as east, RedisServer() as west:
            async with Pair.connect(east.url, west.url, options=options) as pair:
                await pair.primary.admin.create(Entity("orders"))
                sender = pair.sender("orders")
                await sender.send(Message(b"first"))
                east.pause()
                west.pause()
                control, stall_of_control = await measured(wait_for_nothing, count)
                took, stall = await measured(lambda: send(sender), count)
        figures = f"{min(took):.3f} to {max(took):.3f} s, blocked for {stall:.3f} s; "
        figures += f"control {max(control):.3f} s, blocked for {stall_of_control:.3f} s"
        assert min(took) > timeout / 2 - 0.01, figures
        assert max(took) < max(control) + 0.25, figures
        assert stall < 8 * stall_of_control, figures

    with asyncio.Runner(loop_factory=OwnTimeLoop) as runner:
        runner.run(run())
