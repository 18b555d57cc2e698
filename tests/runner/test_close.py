"""Close and fault: SPEC 9, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable

import pytest

from pairmq import (
    ConfigurationError,
    Entity,
    Message,
    Pair,
    PairClosed,
    PairFaulted,
    PairOptions,
    Receipt,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
)
from pairmq import testing as simulated
from pairmq.model.events import PairEnded, PingCompleted
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time


@in_virtual_time
async def test_a_closed_pair_takes_no_sends(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        await w.pair.close()
        with pytest.raises(PairClosed):
            await sender.send(Message(b"1"))
        with pytest.raises(PairClosed):
            w.pair.sender("orders")
        await w.pair.close()  # idempotent


@in_virtual_time
async def test_sends_in_flight_get_the_grace_and_are_then_unknown(world):
    async with world(close_grace=3, attempt_timeout=60, send_timeout=200) as w:
        loop = asyncio.get_running_loop()
        w.east.fail(Fault.HANG, Operation.SEND)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(0.1)
        started = loop.time()
        await w.pair.close()
        assert 2.9 <= loop.time() - started <= 4
        with pytest.raises(SendUnknown, match="closed"):
            await task
        assert w.of(PairEnded)[0].unknown == 1


@in_virtual_time
async def test_a_send_that_the_grace_interrupts_does_not_wait_for_another_attempt(world):
    """Seed 90 of the simulation: the pause between two attempts still went by the send's own deadline."""
    async with world(close_grace=0, attempt_timeout=60, send_timeout=200, failover_interval=60) as w:
        loop = asyncio.get_running_loop()
        w.east.fail(Fault.DOWN, Operation.SEND, times=8)  # by then the pauses are long
        w.east.fail(Fault.HANG, Operation.SEND)
        ended_at = []

        async def send() -> None:
            with pytest.raises(SendUnknown):
                await w.pair.sender("orders").send(Message(b"1"))
            ended_at.append(loop.time())

        task = asyncio.create_task(send())
        await asyncio.sleep(30)
        started = loop.time()
        await w.pair.close()
        await task
        assert ended_at[0] - started < 0.05


@in_virtual_time
async def test_pings_stop_as_soon_as_the_pair_closes(world):
    """Not only when its grace is over: the ping under way ends, and none follows."""
    async with world(close_grace=10, ping_primary_interval=0.5, attempt_timeout=60, send_timeout=200) as w:
        w.pair.force_failover("orders")
        w.east.fail(Fault.HANG, Operation.PROBE)
        w.west.fail(Fault.HANG, Operation.SEND)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(5.2)
        assert len(w.of(PingCompleted)) >= 3
        before = w.east.operations["PROBE"]
        closing = asyncio.create_task(w.pair.close())
        await asyncio.sleep(0.001)
        pings = len(w.of(PingCompleted))
        await closing
        assert not task.cancelled()
        assert (len(w.of(PingCompleted)), w.east.operations["PROBE"]) == (pings, before)
        await asyncio.wait((task,))
        assert isinstance(task.exception(), SendUnknown)


@in_virtual_time
async def test_failover_still_engages_for_the_sends_that_closing_waits_for(world):
    async with world(close_grace=10, failover_interval=3) as w:
        w.east.fail(Fault.DOWN)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(1)
        await w.pair.close()
        assert (await task).route is Route.BACKLOG


@in_virtual_time
async def test_sends_that_end_within_the_grace_get_their_receipt(world):
    async with world(close_grace=3) as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(0.1)
        await w.pair.close()
        assert (await task).route is Route.PRIMARY


@in_virtual_time
async def test_a_send_between_two_attempts_is_refused_when_it_is_certain(world):
    async with world(close_grace=1) as w:
        w.east.fail(Fault.DOWN)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(0.1)
        await w.pair.close()
        with pytest.raises(SendRefused, match="closed"):
            await task


@pytest.mark.parametrize("fault", list(Fault))
@in_virtual_time
async def test_close_never_hangs(world, fault):
    async with world(enable_syphon=True, close_grace=2) as w:
        loop = asyncio.get_running_loop()
        w.east.fail(fault)
        w.west.fail(fault)
        tasks = [asyncio.create_task(w.pair.sender("orders").send(Message(b"1"))) for _ in range(10)]
        await asyncio.sleep(5)
        started = loop.time()
        await w.pair.close()
        assert loop.time() - started <= 8
        async with asyncio.timeout(0.01):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, Receipt | SendError) for result in results)


@in_virtual_time
async def test_a_stream_keeps_its_receipts_when_the_pair_closes(world):
    async with world() as w:
        sender = w.pair.sender("orders")

        async def source():
            yield Message(b"1")
            await asyncio.sleep(1)
            yield Message(b"2")

        results = []
        stream = sender.send_stream(source())
        results.append(await anext(stream))
        await w.pair.close()
        results.append(await anext(stream))
        with pytest.raises(PairClosed):
            await anext(stream)
        assert isinstance(results[0], Receipt)
        assert isinstance(results[1], SendRefused)


@pytest.mark.parametrize("side", ["primary", "secondary"])
@in_virtual_time
async def test_with_a_syphon_a_closed_connection_faults_its_partner(world, side):
    async with world(enable_syphon=True, close_grace=2) as w:
        sender = w.pair.sender("orders")
        ended = getattr(w.pair, side)
        other = w.pair.secondary if side == "primary" else w.pair.primary
        await ended.close()
        await asyncio.sleep(1)
        assert not other.ended
        await asyncio.sleep(2)
        assert other.fault_cause is not None
        with pytest.raises(PairFaulted, match="was closed and its partner was not"):
            await sender.send(Message(b"1"))
        with pytest.raises(PairFaulted):
            w.pair.sender("prices")
        await asyncio.sleep(10)
        assert w.of(PairEnded)[0].fault


@in_virtual_time
async def test_with_a_syphon_a_fault_faults_the_partner_at_once(world):
    async with world(enable_syphon=True, close_grace=2) as w:
        await w.pair.primary.fault(RuntimeError("certificate revoked"))
        await asyncio.sleep(0.1)
        assert w.pair.secondary.ended
        with pytest.raises(PairFaulted, match="certificate revoked"):
            w.pair.sender("orders")


@in_virtual_time
async def test_callers_hear_of_a_fault_while_the_partner_is_still_ending(world, monkeypatch):
    """They heard that no backlog queue takes messages, for as long as the secondary took to close."""

    async def slow(self):
        await asyncio.sleep(1.9)

    async with world(enable_syphon=True, failover_interval=0) as w:
        w.pair.force_failover("orders")
        sender = w.pair.sender("orders")
        assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
        monkeypatch.setattr(simulated.SimulatedTransport, "_close", slow)
        fault = asyncio.create_task(w.pair.primary.fault(RuntimeError("certificate revoked")))
        await asyncio.sleep(0.1)
        with pytest.raises(PairFaulted, match="certificate revoked"):
            await sender.send(Message(b"2"))
        assert w.pair.secondary.fault_cause is not None
        await fault


@in_virtual_time
async def test_sends_in_flight_learn_of_the_fault_and_whether_their_outcome_is_known(world):
    """`PairFaulted` alone would not tell whether a broker may have the message (SPEC 3.1)."""
    async with world(enable_syphon=True, attempt_timeout=60, send_timeout=200, failover_interval=60) as w:
        w.east.fail(Fault.HANG, Operation.SEND, entities=["orders"])
        w.east.fail(Fault.DOWN, Operation.SEND, entities=["prices"])
        hanging, failing = (
            asyncio.create_task(w.pair.sender(name).send(Message(b"1"))) for name in ("orders", "prices")
        )
        await asyncio.sleep(1)
        fault = RuntimeError("certificate revoked")
        await w.pair.secondary.fault(fault)
        await asyncio.sleep(0.1)
        for task, kind in ((hanging, SendUnknown), (failing, SendRefused)):
            error = task.exception()
            assert type(error) is kind
            assert "certificate revoked" in str(error)
            assert fault in error.causes


@in_virtual_time
async def test_without_a_syphon_nothing_is_faulted(world):
    async with world(close_grace=1, failover_interval=0) as w:
        await w.pair.primary.close()
        await asyncio.sleep(5)
        assert not w.pair.secondary.ended
        assert (await w.pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG


@in_virtual_time
async def test_a_broker_is_not_paired_with_itself():
    east = SimulatedBroker("east")
    with pytest.raises(ConfigurationError, match="are the same broker"):
        async with Pair(east.transport(), east.transport()):
            pass


@in_virtual_time
async def test_a_connection_is_paired_once():
    east, west, south = (SimulatedBroker(name) for name in ("east", "west", "south"))
    primary = east.transport()
    async with Pair(primary, west.transport()):
        with pytest.raises(ConfigurationError, match="is in a pair already"):
            async with Pair(primary, south.transport()):
                pass


@pytest.mark.parametrize("opened", [True, False], ids=["refused", "never-opened"])
@pytest.mark.parametrize("both", [True, False], ids=["both", "primary"])
@in_virtual_time
async def test_closing_a_pair_leaves_the_connections_of_another_alone(opened, both):
    east, west, south = (SimulatedBroker(name) for name in ("east", "west", "south"))
    primary, secondary = east.transport(), west.transport()
    others = secondary if both else south.transport()
    await primary.admin.create(Entity("orders"))
    async with Pair(primary, secondary) as first:
        second = Pair(primary, others)
        if opened:
            with pytest.raises(ConfigurationError, match="is in a pair already"):
                await second.open()
        await second.close()
        assert others.ended is not both  # what is its own alone it closes
        assert (await first.sender("orders").send(Message(b"1"))).route is Route.PRIMARY
        with pytest.raises(ConfigurationError, match="is in a pair already"):  # the first one still has its claim
            await Pair(primary, secondary).open()


@in_virtual_time
async def test_a_secondary_is_no_primary_elsewhere():
    east, west, south = (SimulatedBroker(name) for name in ("east", "west", "south"))
    async with Pair(east.transport(), west.transport()):
        with pytest.raises(ConfigurationError, match="must not be a primary elsewhere"):
            async with Pair(south.transport(), east.transport()):
                pass
        with pytest.raises(ConfigurationError, match="must not be a primary elsewhere"):
            async with Pair(west.transport(), south.transport()):
                pass
        async with Pair(south.transport(), west.transport()):  # one secondary may serve two primaries
            pass


@in_virtual_time
async def test_a_pair_that_is_not_open_says_how_to_open_it():
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    pair = Pair(east.transport(), west.transport())
    with pytest.raises(ConfigurationError, match="async with"):
        pair.sender("orders")
    opened = await pair
    assert opened is pair
    await pair.close()


def test_sends_whose_loop_was_dropped_end_without_an_error(monkeypatch):
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: errors.append(told.exc_value))

    async def begin() -> None:
        east = SimulatedBroker("east")
        pair = await Pair(east.transport(), SimulatedBroker("west").transport()).__aenter__()
        pair.subscribe(lambda event: None)
        await pair.primary.admin.create(Entity("orders"))
        east.fail(Fault.HANG)
        sending.append(asyncio.ensure_future(pair.sender("orders").send(Message(b"x"))))
        await asyncio.sleep(0)

    sending: list[object] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    del sending[:], loop
    gc.collect()
    assert errors == []


@pytest.mark.parametrize("closed", [True, False])
def test_a_pair_whose_loop_was_closed_gives_its_brokers_free_and_is_closed_without_an_error(closed):
    east, west, north = SimulatedBroker("east"), SimulatedBroker("west"), SimulatedBroker("north")

    async def begin() -> Pair:
        pair = await Pair(east.transport(), west.transport())
        kept.append(asyncio.ensure_future(anext(pair.events())))
        await asyncio.sleep(0)
        return pair

    async def use_again() -> None:
        if closed:
            await pair.close()
            with pytest.raises(PairClosed):
                await pair.open()
        async with Pair(west.transport(), north.transport()):  # the secondary as a primary
            pass

    kept: list[object] = []
    loop = asyncio.new_event_loop()
    pair = loop.run_until_complete(begin())
    pending = asyncio.all_tasks(loop)
    loop.close()
    asyncio.run(use_again())
    for task in pending:
        task._log_destroy_pending = False  # asyncio tells a program that drops them


@pytest.mark.parametrize("continuity", [(), ("orders",)])
def test_what_a_pair_gave_is_closed_without_an_error_when_its_loop_was_closed(continuity):
    async def begin() -> None:
        east, west = SimulatedBroker("east"), SimulatedBroker("west")
        pair = await Pair(east.transport(), west.transport(), PairOptions(continuity=continuity))
        await pair.primary.admin.create(Entity("orders"))
        consumer, receiver, sender = pair.consumer("orders", got.append), pair.receiver("orders"), pair.sender("orders")
        await sender.send(Message(b"x"))
        await asyncio.sleep(0)
        made.extend((consumer.cancel, consumer.close, receiver.close, sender.close, pair.close))

    async def end() -> None:
        for close in made:
            await close()

    got: list[object] = []
    made: list[Callable[[], Awaitable[None]]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    pending = asyncio.all_tasks(loop)
    loop.close()
    asyncio.run(end())
    for task in pending:
        task._log_destroy_pending = False  # as above
