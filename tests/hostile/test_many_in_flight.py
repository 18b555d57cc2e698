"""Thousands of sends in flight while both brokers are unresponsive: what they leave to the garbage collector.

Its passes go through all objects of all sends in flight, and nothing else runs meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import CoroutineType
from typing import Any, NamedTuple

import pytest

from pairmq import Entity, Message, Pair, PairOptions, PairSender, SendError
from pairmq.core.send import TRIALS_AT_ONCE
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


async def containers_of(work: Callable[[], Coroutine[Any, Any, None]], kind: type = object) -> int:
    """Objects that the collector goes through while so many tasks wait."""
    before = sum(isinstance(each, kind) for each in gc.get_objects())
    tasks = [asyncio.create_task(work()) for _ in range(COUNT)]
    await asyncio.sleep(0.01)
    gc.collect()  # it tells some tuples from containers, and passes over them from then on
    containers = sum(isinstance(each, kind) for each in gc.get_objects()) - before
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
async def test_a_send_in_line_is_three_coroutines_beside_its_callers() -> None:
    """A pass takes longest for coroutines: it goes through all that their frames refer to."""
    async with unresponsive() as pair:
        sender = pair.sender("orders")
        first = [asyncio.create_task(send(sender)) for _ in range(TRIALS_AT_ONCE)]
        await asyncio.sleep(0.5)  # they have no answer, and further ones stand in line
        assert await containers_of(lambda: send(sender), CoroutineType) < 4.1 * COUNT
        for task in first:
            task.cancel()
        await asyncio.wait(first)


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


class Measured(NamedTuple):
    """Of many tasks that ran together."""

    took: list[float]
    """Seconds of each."""
    stall: float
    """Seconds for which the loop was blocked at most, as a ticker saw it, without the collector's passes."""
    stall_with_passes: float
    full_passes: int


async def measured(work: Callable[[], Coroutine[Any, Any, None]], count: int) -> Measured:
    """Run so many tasks.

    Without the collector's passes the stalls can be compared: how long one takes depends on the whole heap, and when it
    comes on chance.
    """
    loop = asyncio.get_running_loop()
    gc.collect()
    took: list[float] = []
    stalls: list[tuple[float, float]] = []
    passes, began_at, full_passes = 0.0, 0.0, 0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal passes, began_at, full_passes
        if phase == "start":
            began_at = time.process_time()
        else:
            passes += time.process_time() - began_at
            full_passes += info["generation"] == 2

    async def tick() -> None:
        while True:
            began, before = loop.time(), passes
            await asyncio.sleep(0.005)
            whole = loop.time() - began
            stalls.append((whole - (passes - before), whole))

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
    return Measured(took, max(stall for stall, _ in stalls), max(stall for _, stall in stalls), full_passes)


@contextmanager
def collector_set() -> Iterator[None]:
    """As the performance page advises programs with thousands of tasks."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@pytest.mark.real_server
def test_twenty_thousand_sends_end_by_their_deadline_when_both_servers_are_stopped() -> None:
    """The control: as many tasks, started alike, that only wait with a timeout.

    With the collector set, its passes count, too: they block the loop no longer than PairMQ does.
    """
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
                control = await measured(wait_for_nothing, count)
                sends = await measured(lambda: send(sender), count)
                with collector_set():
                    advised = await measured(lambda: send(sender), count)
        figures = f"control {max(control.took):.3f} s, blocked for {control.stall:.3f} s"
        for name, found in {"as it is": sends, "collector set": advised}.items():
            figures += f"; {name}: {min(found.took):.3f} to {max(found.took):.3f} s, blocked for {found.stall:.3f} s, "
            figures += f"with the passes, {found.full_passes} of them full, {found.stall_with_passes:.3f} s"
            assert min(found.took) > timeout / 2 - 0.01, figures
            assert max(found.took) < max(control.took) + 0.25, figures
            assert found.stall < 8 * control.stall, figures
        assert advised.full_passes == 0, figures
        assert advised.stall_with_passes < 8 * control.stall, figures
        print(figures)

    with asyncio.Runner(loop_factory=OwnTimeLoop) as runner:
        runner.run(run())
