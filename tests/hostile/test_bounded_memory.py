"""Both brokers are unavailable and sends go on being attempted: what waits is bounded, the rest is refused in time.

The number of attempts is 10 000, or what ``PAIRMQ_TEST_SENDS`` says (``make soak`` says a million). Growth is counted
in objects and blocks, which is exact, so that few attempts show it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pairmq import Entity, Message, Pair, PairOptions, Route, SendRefused, SendUnknown
from pairmq.model import SendError
from pairmq.plugins import registry
from pairmq.runner import Clock
from pairmq.testing import Fault, SimulatedBroker, in_virtual_time, virtual_wall
from pairmq.testing.servers import free_port
from pairmq_redis.testing import RedisServer

ATTEMPTS = int(os.environ.get("PAIRMQ_TEST_SENDS", "10000"))
MOST_PENDING = 200
TASKS = 1_000
ALLOWED_GROWTH = 8 << 20
"""Bytes of the process between a tenth of the attempts and all of them: what is too large for a block."""

CALM = SendRefused, SendUnknown
"""What a send may raise while nobody is there."""

Attempt = Callable[[Pair, int], Awaitable[list[Exception]]]


@asynccontextmanager
async def away(fault: Fault, **options: Any) -> AsyncIterator[tuple[Pair, SimulatedBroker, SimulatedBroker]]:
    """A pair of brokers that fail; they were there when it was opened."""
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    setup = east.transport()
    await setup.admin.create(Entity("orders"))
    await setup.close()
    defaults: dict[str, Any] = {
        "backlog_queue_count": 3,
        "attempt_timeout": 1.0,
        "send_timeout": 5.0,
        "failover_interval": 2.0,
        "ping_primary_interval": 5.0,
        "max_pending_sends": MOST_PENDING,
    }
    clock = Clock(virtual_wall, random.Random(1))
    pair = Pair(east.transport(), west.transport(), PairOptions(**{**defaults, **options}), clock=clock)
    async with pair:
        east.fail(fault)
        west.fail(fault)
        yield pair, east, west
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def one_by_one(pair: Pair, number: int) -> list[Exception]:
    """Many tasks, each of which sends one message after the other."""
    sender = pair.sender("orders")
    left = iter(range(number))
    outcomes: Counter[type[BaseException]] = Counter()
    loop = asyncio.get_running_loop()

    async def work() -> None:
        for each in left:
            began = loop.time()
            try:
                await sender.send(Message(b"x" * 100, message_id=str(each)))
            except CALM as error:
                outcomes[type(error)] += 1
            assert loop.time() - began < 5.5
            assert pair.in_flight <= MOST_PENDING
            await asyncio.sleep(0.001)

    await asyncio.gather(*(work() for _ in range(min(TASKS, number))))
    assert outcomes.total() == number
    return [kind("") for kind in outcomes]


async def in_a_stream(pair: Pair, number: int) -> list[Exception]:
    """One stream of all messages."""
    source = (Message(b"x" * 100, message_id=str(each)) for each in range(number))
    kinds: Counter[type[Exception]] = Counter()
    async for result in pair.sender("orders").send_stream(source, window=MOST_PENDING):
        assert isinstance(result, SendError)
        kinds[type(result)] += 1
    assert kinds.total() == number
    return [kind("") for kind in kinds]


async def in_batches(pair: Pair, number: int) -> list[Exception]:
    """Batches of a thousand, ten of them side by side."""
    sender = pair.sender("orders")
    kinds: Counter[type[Any]] = Counter()
    left = iter(range(number // 1000))

    async def work() -> None:
        for batch in left:
            messages = [Message(b"x" * 100, message_id=f"{batch}-{each}") for each in range(1000)]
            kinds.update(type(result) for result in await sender.send_batch(messages))
            await asyncio.sleep(0.001)

    await asyncio.gather(*(work() for _ in range(10)))
    assert kinds.total() == number
    return [kind("") for kind in kinds]


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("attempt", "fault"),
    [
        (one_by_one, Fault.DOWN),
        (in_a_stream, Fault.HANG),
        pytest.param(one_by_one, Fault.HANG, marks=pytest.mark.search),
        pytest.param(in_a_stream, Fault.DOWN, marks=pytest.mark.search),
        pytest.param(in_batches, Fault.DOWN, marks=pytest.mark.search),
        pytest.param(in_batches, Fault.HANG, marks=pytest.mark.search),
    ],
)
@in_virtual_time
async def test_memory_does_not_grow_with_the_number_of_sends(attempt: Attempt, fault: Fault) -> None:
    async with away(fault) as (pair, east, west):
        await attempt(pair, ATTEMPTS // 10)
        gc.collect()
        before, objects, blocks = resident(), len(gc.get_objects()), sys.getallocatedblocks()
        kinds = await attempt(pair, ATTEMPTS - ATTEMPTS // 10)
        gc.collect()
        assert resident() - before < ALLOWED_GROWTH
        assert len(gc.get_objects()) - objects < max(200, ATTEMPTS // 500)
        assert sys.getallocatedblocks() - blocks < max(500, ATTEMPTS // 200)
        assert all(isinstance(kind, CALM) for kind in kinds)
        assert pair.in_flight == 0
        east.heal()
        west.heal()
        pair.mark_healthy("orders")
        receipt = await pair.sender("orders").send(Message(b"after", message_id="after"), timeout=60)
        assert receipt.message_id == "after"
        assert [message.body for message in east.messages("orders")][-1:] == [b"after"]


@in_virtual_time
async def test_what_is_too_many_waits_its_turn_and_is_refused_inside_its_own_deadline() -> None:
    async with away(Fault.HANG, max_pending_sends=10, attempt_timeout=60, send_timeout=60, close_grace=0) as (pair, *_):
        sender = pair.sender("orders")
        waiting = [asyncio.create_task(sender.send(Message(b"x"))) for _ in range(10)]
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(SendRefused, match=r"10 sends were in flight until the deadline \(max_pending_sends\)"):
            await sender.send(Message(b"y"), timeout=2)
        assert loop.time() - began == pytest.approx(2)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


@in_virtual_time
async def test_a_send_that_fails_for_hours_keeps_few_of_its_failures() -> None:
    async with away(Fault.BUSY, send_timeout=7200) as (pair, *_):
        with pytest.raises(SendRefused) as caught:
            await pair.sender("orders").send(Message(b"x"))
        assert pair.in_flight == 0
        assert 2 <= len(caught.value.causes) <= 12


@pytest.mark.real_server
async def test_dead_ports_bound_what_waits_and_all_works_when_they_are_served_again() -> None:
    ports = free_port(), free_port()
    urls = [f"redis://127.0.0.1:{port}/0" for port in ports]
    options = PairOptions(
        max_pending_sends=50,
        send_timeout=2,
        attempt_timeout=1,
        failover_interval=0.5,
        ping_primary_interval=0.2,
        backlog_retry_interval=0.2,
        backlog_queue_count=2,
    )
    async with Pair.connect(primary=urls[0], secondary=urls[1], options=options) as pair:
        sender = pair.sender("orders")
        outcomes: Counter[str] = Counter()

        async def work(number: int) -> None:
            for each in range(10):
                assert pair.in_flight <= 50
                try:
                    await sender.send(Message(b"x", message_id=f"{number}-{each}"))
                except SendRefused as error:
                    outcomes[type(error).__name__] += 1

        await asyncio.gather(*(work(number) for number in range(300)))
        assert outcomes.total() == 3000
        assert pair.in_flight == 0
        with RedisServer(port=ports[0], appendfsync="no") as primary, RedisServer(port=ports[1], appendfsync="no"):
            async with registry.transport(primary.url) as setup:
                await setup.admin.create(Entity("orders"))
            pair.mark_healthy("orders")
            receipt = await sender.send(Message(b"after"), timeout=60)
            assert receipt.route in tuple(Route)
            await pair.close()
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []
