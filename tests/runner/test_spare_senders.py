"""Transport senders, which may be a link each: a pair has no more of them than of its own senders at once."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from pairmq import Entity, Message, Pair, PairClosed, PairSender, Route
from pairmq import testing as simulated
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time, run_virtual


@pytest.fixture
def made(monkeypatch) -> list[simulated.SimulatedSender]:
    """The senders that simulated transports have made for the primary's queues."""
    senders: list[simulated.SimulatedSender] = []
    make = simulated.SimulatedTransport.sender

    def sender(self: simulated.SimulatedTransport, entity: Entity) -> simulated.SimulatedSender:
        one = make(self, entity)
        if self.broker.name == "east":
            senders.append(one)
        return one

    monkeypatch.setattr(simulated.SimulatedTransport, "sender", sender)
    return senders


@in_virtual_time
async def test_a_sender_for_each_message_takes_one_link(world, made):
    async with world() as w:
        for number in range(100):
            await w.pair.sender("orders").send(Message(b"%d" % number))
        assert len(made) == 1
        assert len(w.home()) == 100


@in_virtual_time
async def test_senders_at_one_time_have_a_link_each_and_leave_it_to_those_after_them(world, made):
    async with world() as w:
        for _ in range(10):
            senders = [w.pair.sender("orders") for _ in range(3)]
            assert len({id(sender._state.primary) for sender in senders}) == 3
            assert len({sender.id for sender in senders}) == 3
            senders.clear()
        assert len(made) == 3


@in_virtual_time
async def test_a_link_is_left_to_senders_of_the_same_entity_alone(world, made):
    async with world() as w:
        await w.pair.sender("orders").send(Message(b"1"))
        await w.pair.sender("prices").send(Message(b"2"))
        assert len(made) == 2
        assert (w.home("orders"), w.home("prices")) == ([b"1"], [b"2"])


@in_virtual_time
async def test_a_sender_that_is_not_referenced_keeps_its_link_while_it_sends(world, made):
    async with world() as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)
        sending = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        stream = w.pair.sender("orders").send_stream([Message(b"2"), Message(b"3")])
        first = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.1)
        gc.collect()
        async with w.pair.sender("orders") as other:
            assert len(made) == 3
            await other.send(Message(b"4"))
        assert [(await each).route for each in (sending, first)] == [Route.PRIMARY] * 2
        await stream.aclose()


@in_virtual_time
async def test_a_closed_sender_leaves_nothing(world, made):
    async with world() as w:
        async with w.pair.sender("orders") as sender:
            await sender.send(Message(b"1"))
        with pytest.raises(PairClosed):
            await sender.send(Message(b"2"))
        del sender
        await w.pair.sender("orders").send(Message(b"3"))
        assert [one._calls.closed for one in made] == [True, False]


@in_virtual_time
async def test_a_sender_may_be_collected_in_any_thread(world, made):
    async with world() as w:
        held = [w.pair.sender("orders") for _ in range(50)]
        for sender in held:
            sender.itself = sender  # type: ignore[attr-defined]  # so that it takes a collector
        del sender
        held.clear()
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        kept = [w.pair.sender("orders") for _ in range(50)]
        assert len(made) == len(kept)


def test_a_sender_may_outlive_its_loop(made):
    async def outlived() -> tuple[PairSender, Pair]:
        pair = Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport())
        async with pair:
            return pair.sender("orders"), pair

    sender, pair = run_virtual(outlived())
    del sender
    del pair
    gc.collect()  # pytest fails a test whose objects raise while they are destroyed
