"""The loop of a simulation: one order of everything, and processes that can be killed."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from pairmq.testing import DeadlockError
from pairmq.testing.simulator._loop import OWNER, SimulationLoop, StuckError


def run(main) -> None:
    loop = SimulationLoop()
    try:
        loop.run(main(loop))
    finally:
        loop.bury()


def owned(loop: SimulationLoop, owner: object, coroutine) -> asyncio.Task[object]:
    context = copy_context()
    context.run(OWNER.set, owner)
    return loop.create_task(coroutine, context=context)


def test_time_passes_without_waiting():
    async def main(loop):
        await asyncio.sleep(3600)
        assert loop.time() == pytest.approx(3600)

    run(main)


def test_a_killed_process_runs_no_code_any_more():
    seen: list[str] = []

    async def child():
        try:
            await asyncio.sleep(5)
        finally:
            seen.append("child")

    async def victim():
        try:
            await asyncio.gather(child(), child())
        finally:
            seen.append("victim")

    async def main(loop):
        owned(loop, "victim", victim())
        survivor = owned(loop, "survivor", child())
        await asyncio.sleep(1)
        loop.kill("victim")
        assert loop.tasks_of("victim") == []
        await survivor
        await asyncio.sleep(100)
        assert seen == ["child"]

    run(main)


def test_what_a_killed_process_waits_for_may_come_too_late():
    seen: list[str] = []

    async def victim(future):
        await future
        seen.append("woken")

    async def main(loop):
        future = loop.create_future()
        owned(loop, "victim", victim(future))
        await asyncio.sleep(1)
        loop.call_soon(future.set_result, None, context=loop.world)
        await asyncio.sleep(0)
        loop.kill("victim")
        await asyncio.sleep(1)
        assert seen == []

    run(main)


def test_what_belongs_to_the_world_outlives_the_process_that_asked_for_it():
    seen: list[str] = []

    async def victim(loop):
        loop.later(5, seen.append, "applied")
        await asyncio.sleep(100)

    async def main(loop):
        owned(loop, "victim", victim(loop))
        await asyncio.sleep(1)
        loop.kill("victim")
        await asyncio.sleep(10)
        assert seen == ["applied"]

    run(main)


def test_sets_of_futures_have_one_order():
    async def order(loop):
        futures = {loop.create_future(): number for number in range(200)}
        seen = [futures[future] for future in set(futures)]
        tasks = {loop.create_task(asyncio.sleep(1)): number for number in range(200)}
        seen += [tasks[task] for task in set(tasks)]
        await asyncio.wait(set(tasks))
        orders.append(seen)

    orders: list[list[int]] = []
    for _ in range(3):
        run(order)
    assert orders[0] == orders[1] == orders[2]


def test_tasks_that_wait_for_nothing_are_found_out():
    async def main(loop):
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StuckError):
        run(main)


def test_a_deadlock_is_found_out():
    async def main(loop):
        await loop.create_future()

    with pytest.raises(DeadlockError):
        run(main)
