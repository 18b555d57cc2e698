"""When the backlog is called empty: SPEC 4.5, in virtual time."""

from __future__ import annotations

import asyncio

from pairmq import Message, Route
from pairmq.model import EntityState
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time


@in_virtual_time
async def test_a_count_does_not_cover_what_was_diverted_while_it_was_under_way(world, monkeypatch):
    """It may have looked before, and been answered after: what it says was so when it began."""
    admin = type(SimulatedBroker("any").transport().admin)
    counts, began = admin.counts, asyncio.Event()

    async def answered_late(self, source):
        told = await counts(self, source)
        began.set()
        await asyncio.sleep(0.5)
        return told

    monkeypatch.setattr(admin, "counts", answered_late)
    async with world(enable_syphon=True, backlog_queue_count=1) as w:
        w.west.fail(Fault.DOWN, Operation.RECEIVE)  # nothing is moved back meanwhile
        sender = w.pair.sender("orders")
        await began.wait()
        w.pair.force_failover("orders")
        assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
        w.pair.mark_healthy("orders")
        for _ in range(100):
            assert w.pair.state("orders") is EntityState.DRAINING
            await asyncio.sleep(0.1)
        w.west.heal()
        while w.pair.state("orders") is not EntityState.HEALTHY:
            await asyncio.sleep(0.1)
        assert (w.backlog(), w.home()) == ([], [b"1"])
