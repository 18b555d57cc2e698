"""Programs send to ever new entities: what a pair keeps of idle and healthy ones, and what it must not forget."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from pairmq import Entity, EntityState, Message, Route
from pairmq import testing as simulated
from pairmq.core.machine import EntityMachine
from pairmq.model.events import StateChanged
from pairmq.testing import Fault, Operation, in_virtual_time

MOST = 1020  # entities that are kept, and a few whose turn has not come
MANY = 1200


@pytest.fixture
def made(monkeypatch) -> list[tuple[str, simulated.SimulatedSender]]:
    """The paths and senders that simulated transports have made for the primary's queues."""
    senders: list[tuple[str, simulated.SimulatedSender]] = []
    make = simulated.SimulatedTransport.sender

    def sender(self: simulated.SimulatedTransport, entity: Entity) -> simulated.SimulatedSender:
        one = make(self, entity)
        if self.broker.name == "east":
            senders.append((entity.path, one))
        return one

    monkeypatch.setattr(simulated.SimulatedTransport, "sender", sender)
    return senders


async def use_others(w, count=MANY, name="others"):
    """Make senders to so many entities, and drop each."""
    for number in range(count):
        w.pair.sender(f"{name}/{number}")
        await asyncio.sleep(0)


@in_virtual_time
async def test_idle_entities_are_forgotten_and_their_links_closed(world, made):
    async with world() as w:
        await use_others(w)
        assert len(w.pair.states()) < MOST
        await asyncio.sleep(1)
        assert sum(not sender._calls.closed for _, sender in made) < MOST
        assert len(made) == MANY


@in_virtual_time
async def test_a_forgotten_entity_leaves_no_memory(world):
    async with world() as w:
        tracemalloc.start()
        try:
            await use_others(w, 2 * MOST)
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            await use_others(w, 4 * MANY, "more")
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (after - before) / (4 * MANY) < 100, "bytes for each"


@in_virtual_time
async def test_an_entity_whose_sender_lives_is_not_doubled(world):
    """Two machines of one entity would disagree."""
    async with world() as w:
        sender = w.pair.sender("orders")
        await use_others(w)
        w.pair.force_failover("orders")
        assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
        assert (await w.pair.sender("orders").send(Message(b"2"))).route is Route.BACKLOG


@in_virtual_time
async def test_a_held_entity_is_remembered_when_its_sender_is_closed(world):
    """Neither a sender nor a timer is left that would hold it."""
    async with world() as w:
        async with w.pair.sender("orders"):
            await use_others(w)
            w.pair.hold("orders")
        await use_others(w, MANY, "more")
        assert w.pair.state("orders") is EntityState.FAILED_OVER
        w.pair.mark_healthy("orders")
        assert w.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_an_entity_that_has_recovered_is_remembered_while_it_may_flap(world):
    async with world(failover_interval=0, flap_window=3600) as w:
        entity = Entity("orders")
        for needed in (1, 2):
            w.east.fail(Fault.DOWN, entities=("orders",))
            assert (await w.pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG
            assert w.pair._engine.runner(entity).machine.pings_needed == needed
            w.east.heal()
            while w.pair.state("orders") is not EntityState.HEALTHY:
                await asyncio.sleep(1)
            assert (await w.pair.sender("orders").send(Message(b"2"))).route is Route.PRIMARY
            await use_others(w)
        await asyncio.sleep(3601)
        await use_others(w)
        assert entity not in w.pair.states()


@in_virtual_time
async def test_an_entity_is_kept_while_a_send_is_in_flight(world):
    async with world() as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)
        sending = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(0.1)
        await use_others(w)
        w.pair.force_failover("orders")
        assert (await sending).route is Route.PRIMARY
        assert w.pair.state("orders") is EntityState.FAILED_OVER


@in_virtual_time
async def test_an_entity_in_use_keeps_its_link_while_others_are_forgotten(world, made):
    async with world() as w:
        for number in range(MANY):
            await w.pair.sender("orders").send(Message(b"%d" % number))
            w.pair.sender(f"others/{number}")
        assert len([path for path, _ in made if path == "orders"]) == 1


@in_virtual_time
async def test_the_link_of_a_sender_that_is_dropped_late_is_closed_too(world, made):
    async with world() as w:
        held = [w.pair.sender(f"held/{number}") for number in range(MANY)]
        await use_others(w)
        assert len(w.pair.states()) >= MANY
        held.clear()
        await use_others(w, 2 * MANY)
        assert len(w.pair.states()) < MOST
        await asyncio.sleep(1)
        assert sum(not sender._calls.closed for _, sender in made) < MOST


@in_virtual_time
async def test_no_sweep_holds_up_the_loop_when_many_senders_are_dropped_at_once(world, monkeypatch):
    looks = 0
    is_as_new = EntityMachine.is_as_new

    def counted(self, now):
        nonlocal looks
        looks += 1
        return is_as_new(self, now)

    monkeypatch.setattr(EntityMachine, "is_as_new", counted)
    async with world() as w:
        held = [w.pair.sender(f"held/{number}") for number in range(MANY)]
        held.clear()
        for number in range(10):
            before = looks
            w.pair.sender(f"others/{number}")
            assert looks - before <= 4
        senders = [w.pair.sender("orders") for _ in range(MANY)]
        senders.clear()
        await use_others(w, 3 * MANY)
        assert len(w.pair.states()) < MOST


@in_virtual_time
async def test_a_forgotten_entity_is_healthy_again_where_a_syphon_works(world):
    """Not draining: it was seen drained before, and each count of the backlog queues costs operations."""
    async with world(enable_syphon=True) as w:
        for name in ("others", "more"):
            await use_others(w, MANY, name)
            while EntityState.DRAINING in w.pair.states().values():
                await asyncio.sleep(1)
        assert len(w.pair.states()) < MOST
        w.events.clear()
        assert Entity("others/0") not in w.pair.states()
        w.pair.sender("others/0")
        assert w.pair.state("others/0") is EntityState.HEALTHY
        await asyncio.sleep(60)
        assert w.of(StateChanged) == []


@in_virtual_time
async def test_the_state_of_one_entity_is_found_without_the_others(world, monkeypatch):
    """A loop over ten thousand of them held up the event loop for minutes, and so did a check of their readiness."""
    state, asked = EntityMachine.state, []
    monkeypatch.setattr(EntityMachine, "state", property(lambda self: asked.append(self) or state.fget(self)))
    async with world() as w:
        senders = [w.pair.sender(f"queue/{number}") for number in range(100)]
        asked.clear()
        assert w.pair.state("queue/7") is EntityState.HEALTHY
        await w.pair.check("queue/7")
        assert 0 < len(asked) < len(senders)


@in_virtual_time
async def test_a_pair_closes_while_unused_links_hang(world, monkeypatch):
    async def hang(self):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(simulated.SimulatedSender, "close", hang)
    async with world() as w:
        await use_others(w)
        began = asyncio.get_running_loop().time()
        await w.pair.close()
        assert asyncio.get_running_loop().time() - began < 10
