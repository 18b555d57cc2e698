"""Programs whose tasks take their first step before they are returned, as by `asyncio.eager_task_factory`."""

from __future__ import annotations

import asyncio
import gc

import pytest

from eager_tasks import eager_task_factory
from pairmq import Entity, Message, Pair, PairOptions, Route
from pairmq.model import EntityState
from pairmq.testing import Fault, in_virtual_time, simulated_pair
from pairmq.transport import start_task


@pytest.fixture(params=["plain", "eager"])
def factory(request: pytest.FixtureRequest):
    """Task factories of a program."""
    return eager_task_factory if request.param == "eager" else None


def use(factory: object) -> None:
    asyncio.get_running_loop().set_task_factory(factory)  # type: ignore[arg-type]


@in_virtual_time
async def test_the_factory_of_these_tests_is_eager():
    use(eager_task_factory)
    steps: list[int] = []

    async def step() -> asyncio.Task[object] | None:
        steps.append(1)
        return asyncio.current_task()

    task = asyncio.create_task(step())
    assert steps == [1]
    assert await task is task


@in_virtual_time
async def test_a_started_task_finds_what_is_set_after_its_start(factory):
    use(factory)
    seen: list[object] = []

    async def look() -> int:
        seen.append((kept, asyncio.current_task()))
        return 7

    kept = None
    kept = start_task(look(), "look")
    assert seen == []
    assert await kept == 7
    assert seen == [(kept, kept)]
    assert kept.get_name() == "look"


@in_virtual_time
async def test_a_started_task_raises_what_its_work_raises(factory):
    use(factory)

    async def fail() -> None:
        raise KeyError("it")

    with pytest.raises(KeyError, match="it"):
        await start_task(fail())


@in_virtual_time
async def test_a_task_that_is_cancelled_before_its_first_step_closes_its_work(factory):
    use(factory)
    began: list[int] = []

    async def work() -> None:
        began.append(1)

    task = start_task(work())
    task.cancel()
    await asyncio.wait((task,))
    del task
    await asyncio.sleep(0)
    gc.collect()  # Python would warn of a coroutine that was never awaited
    assert began == []


@in_virtual_time
@pytest.mark.parametrize("ordering", ["none", "session"])
async def test_what_is_diverted_comes_back_with_eager_tasks(ordering):
    use(eager_task_factory)
    async with simulated_pair(ordering=ordering, failover_interval=0) as it:
        sender = it.pair.sender("orders")
        assert (await sender.send(Message(b"0", session_id="s"))).route is Route.PRIMARY
        it.primary.fail(Fault.DOWN)
        sends = [sender.send(Message(b"%d" % number, session_id="s")) for number in range(1, 50)]
        assert {receipt.route for receipt in await asyncio.gather(*sends)} == {Route.BACKLOG}
        it.primary.heal()
        async with asyncio.timeout(600):
            while it.backlog() or it.pair.state("orders") is not EntityState.HEALTHY:
                await asyncio.sleep(1)
        bodies = [message.body for message in it.delivered("orders")]
        assert sorted(bodies, key=int) == [b"%d" % number for number in range(50)]
        assert bodies == sorted(bodies, key=int) or ordering == "none"
        assert (await sender.send(Message(b"50", session_id="s"))).route is Route.PRIMARY


async def test_brokers_in_this_process_work_with_eager_tasks():
    use(eager_task_factory)
    async with asyncio.timeout(60):
        options = PairOptions(backlog_queue_count=1)
        async with Pair.connect(primary="memory://eager-a", secondary="memory://eager-b", options=options) as pair:
            await pair.primary.admin.create(Entity("orders"))
            assert (await pair.sender("orders").send(Message(b"1"))).route is Route.PRIMARY
            async with pair.receiver("orders") as receiver:
                [delivery] = await receiver.receive(10, wait=30)
                await delivery.complete()
