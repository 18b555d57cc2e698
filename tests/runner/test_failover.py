"""Failover, pings and operators: SPEC 4 and 6, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from bisect import bisect_left
from dataclasses import replace

import pytest

from pairmq import (
    ConfigurationError,
    Entity,
    EntityNotFound,
    Message,
    MessageTooLarge,
    Pair,
    Receipt,
    Route,
    Unauthorized,
)
from pairmq.model import EntityState
from pairmq.model.events import (
    Cause,
    MessageDeadLettered,
    OperationsCounted,
    PingCompleted,
    SendCompleted,
    SendOutcome,
    Side,
    StateChanged,
    Warned,
)
from pairmq.runner import Clock, Emitter
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time

HEALTHY, FAILING, FAILED_OVER = EntityState.HEALTHY, EntityState.FAILING, EntityState.FAILED_OVER


def changes(w, entity="orders"):
    return [(e.previous.value, e.current.value, e.cause) for e in w.of(StateChanged) if e.entity.path == entity]


@in_virtual_time
async def test_an_entity_fails_over_after_the_interval_and_comes_back_by_a_ping(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN)
        started = asyncio.get_running_loop().time()
        receipt = await sender.send(Message(b"1"))
        assert receipt.route is Route.BACKLOG
        assert asyncio.get_running_loop().time() - started == pytest.approx(2.0, abs=0.1)
        w.east.heal()
        await asyncio.sleep(6)
        assert (await sender.send(Message(b"2"))).route is Route.PRIMARY
        assert changes(w) == [
            ("healthy", "failing", Cause.SEND_FAILED),
            ("failing", "failed-over", Cause.INTERVAL_OVER),
            ("failed-over", "healthy", Cause.PING_RECOVERED),
        ]


@in_virtual_time
async def test_a_hung_primary_is_left_after_the_interval_and_one_time_limit(world):
    async with world() as w:
        w.east.fail(Fault.HANG)
        started = asyncio.get_running_loop().time()
        receipt = await w.pair.sender("orders").send(Message(b"1"))
        # One attempt's limit until the first failure is seen, the interval, and one limit for the attempt under way.
        assert asyncio.get_running_loop().time() - started <= 1.0 + 2.0 + 1.0 + 0.1
        assert (receipt.route, receipt.maybe_duplicate) == (Route.BACKLOG, True)


@in_virtual_time
async def test_the_interval_ends_with_no_send_in_flight(world):
    async with world(while_failing="raise") as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send_batch([Message(b"1")])
        assert w.pair.state("orders") is FAILING
        await asyncio.sleep(2.1)
        assert w.pair.state("orders") is FAILED_OVER


@in_virtual_time
async def test_a_success_within_the_interval_ends_it(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN, times=2)
        assert (await sender.send(Message(b"1"))).route is Route.PRIMARY
        await asyncio.sleep(10)
        assert w.pair.state("orders") is HEALTHY
        assert changes(w)[-1] == ("failing", "healthy", Cause.SEND_SUCCEEDED)


@in_virtual_time
async def test_refusals_after_a_failure_end_it_and_are_never_diverted(world):
    """The queue is deleted, the password changed: one connection is lost with it, and then the broker says no."""
    async with world() as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN, times=1)
        w.east.fail(Fault.UNAUTHORIZED)
        for _ in range(20):
            with pytest.raises(Unauthorized):
                await sender.send(Message(b"1"))
            await asyncio.sleep(0.5)
        assert changes(w) == [
            ("healthy", "failing", Cause.SEND_FAILED),
            ("failing", "healthy", Cause.SEND_REFUSED),
        ]
        assert w.backlog() == []


@in_virtual_time
async def test_what_a_client_refuses_alone_says_nothing_about_the_primary(world):
    west = SimulatedBroker("west")
    west.capabilities = replace(west.capabilities, max_message_bytes=None)
    async with world(west=west) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN, times=1)
        with pytest.raises(MessageTooLarge):
            await sender.send(Message(b"x" * (1 << 21)))
        await asyncio.sleep(2.1)
        assert ("failing", "failed-over", Cause.INTERVAL_OVER) in changes(w)


@in_virtual_time
async def test_entities_fail_over_one_by_one(world):
    async with world() as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        assert (await w.pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG
        assert (await w.pair.sender("prices").send(Message(b"1"))).route is Route.PRIMARY
        assert w.pair.states() == {
            w.pair.sender("orders").entity: FAILED_OVER,
            w.pair.sender("prices").entity: HEALTHY,
        }


@in_virtual_time
async def test_all_senders_of_an_entity_return_at_once(world):
    async with world() as w:
        senders = [w.pair.sender("orders") for _ in range(5)]
        w.east.fail(Fault.DOWN)
        await asyncio.gather(*(sender.send(Message(b"1")) for sender in senders))
        w.east.heal()
        await asyncio.sleep(6)
        receipts = await asyncio.gather(*(sender.send(Message(b"2")) for sender in senders))
        assert {receipt.route for receipt in receipts} == {Route.PRIMARY}


@in_virtual_time
async def test_a_late_success_is_accepted_and_leaves_the_state_alone(world):
    """The failover timer fires while a send is under way: its receipt stands, the entity stays failed over."""
    async with world(attempt_timeout=60, send_timeout=200, failover_interval=2) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, times=1, delay=5)
        slow = asyncio.create_task(sender.send(Message(b"slow")))
        await asyncio.sleep(0.5)
        w.east.fail(Fault.DOWN)
        assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
        receipt = await slow
        assert receipt.route is Route.PRIMARY
        assert w.pair.state("orders") is FAILED_OVER


@in_virtual_time
async def test_a_diverted_send_is_in_flight_before_any_other_task_can_run(world, monkeypatch):
    """Routing and registering is one step: whatever runs next finds the send counted (SPEC 4.6)."""
    async with world() as w:
        w.pair.force_failover("orders")
        w.west.fail(Fault.HANG, Operation.SEND)
        runner = w.pair._engine.runner(w.pair._entity("orders", "queue"))
        route, counted = runner.route, []

        def watched():
            asyncio.get_running_loop().call_soon(lambda: counted.append(runner.machine.diverting))
            return route()

        monkeypatch.setattr(runner, "route", watched)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait((task,))
        assert counted == [1]


@in_virtual_time
async def test_a_ping_goes_out_at_once_and_then_at_every_interval(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.DOWN)
        started = asyncio.get_running_loop().time()
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(21)
        instants = [e.at - w.of(StateChanged)[0].at for e in w.of(PingCompleted)]
        assert instants[0] < 0.1
        gaps = [b - a for a, b in itertools.pairwise(instants)]
        assert len(gaps) >= 3
        assert all(4.5 <= gap <= 5.6 for gap in gaps)
        assert started < 1


@in_virtual_time
async def test_a_ping_that_hangs_is_a_failed_ping(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.DOWN, Operation.SEND)
        w.east.fail(Fault.HANG, Operation.PROBE)
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(15)
        pings = w.of(PingCompleted)
        assert len(pings) >= 2
        assert not any(ping.ok for ping in pings)
        w.east.heal()
        await asyncio.sleep(7)
        assert w.pair.state("orders") is HEALTHY


@in_virtual_time
async def test_pings_stop_when_the_entity_is_back(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.DOWN, times=1)
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(1)
        count = len(w.of(PingCompleted))
        await asyncio.sleep(60)
        assert len(w.of(PingCompleted)) == count == 1


@in_virtual_time
async def test_good_pings_with_failing_sends_do_not_livelock(world):
    """The canary fails at once, and each flap needs more good pings and waits longer."""
    async with world(flap_window=300) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN, Operation.SEND)
        loop = asyncio.get_running_loop()
        failovers = []
        w.pair.subscribe(
            lambda e: failovers.append(loop.time()) if isinstance(e, StateChanged) and e.current is FAILED_OVER else 0
        )
        routes = set()
        while loop.time() < 400:
            routes.add((await sender.send(Message(b"x"))).route)
            await asyncio.sleep(0.5)
        assert routes == {Route.BACKLOG}
        causes = [cause for _, _, cause in changes(w)]
        assert Cause.FIRST_SEND_FAILED in causes
        gaps = [b - a for a, b in itertools.pairwise(failovers)]
        # From a ping at once, over 2 good pings 5 s apart after 5 s, to 8 of them after 20 s.
        assert gaps[0] < 1 < gaps[1] < gaps[2] < gaps[3]
        assert gaps[-1] > 45


@in_virtual_time
async def test_an_operator_can_hold_an_entity_without_pings(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        w.pair.hold("orders")
        await asyncio.sleep(100)
        assert w.of(PingCompleted) == []
        assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
        w.pair.mark_healthy("orders")
        assert (await sender.send(Message(b"2"))).route is Route.PRIMARY


@in_virtual_time
async def test_a_forced_failover_lasts_until_the_first_ping(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        w.pair.force_failover("orders")
        await asyncio.sleep(4)
        assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
        await asyncio.sleep(2)
        assert (await sender.send(Message(b"2"))).route is Route.PRIMARY


@in_virtual_time
async def test_an_entity_stays_failed_over_while_its_broker_starts_and_does_not_know_it_yet(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.DOWN, times=1)
        w.east.fail(Fault.REFUSE, Operation.PROBE, times=2)
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(30)
        assert changes(w)[-1] == ("failed-over", "healthy", Cause.PING_RECOVERED)


@in_virtual_time
async def test_each_transition_is_one_event_with_its_counts(world):
    async with world(failover_interval=1) as w:
        sender = w.pair.sender("orders")
        for _ in range(5):
            await sender.send(Message(b"x"))
        await asyncio.sleep(3)
        w.east.fail(Fault.DOWN)
        await sender.send(Message(b"y"))
        await sender.send(Message(b"z"))
        w.east.heal()
        await asyncio.sleep(6)
        first, second, third = w.of(StateChanged)
        assert (first.sent, first.lasted) == (5, pytest.approx(3, abs=0.1))
        assert second.failed >= 1
        assert second.lasted == pytest.approx(1)
        assert third.diverted == 2
        assert [event.epoch for event in (first, second, third)] == [1, 2, 3]
        assert [event.error is None for event in (first, second, third)] == [False, False, True]


@in_virtual_time
async def test_events_can_be_iterated_until_the_pair_ends(world):
    async with world() as w:
        seen = []

        async def watch(events):
            async for event in events:
                seen.append(type(event).__name__)

        watcher = asyncio.create_task(watch(w.pair.events()))
        await w.pair.sender("orders").send(Message(b"1"))
        await w.pair.close()
        await watcher
        assert seen == ["SendCompleted", "OperationsCounted", "OperationsCounted", "PairEnded"]


async def _drop(events):
    """Never iterated."""


async def _close(events):
    await events.aclose()


async def _read_and_close(events):
    await anext(events)
    await events.aclose()


async def _read_and_leave(events):
    async for _ in events:
        break


async def _give_up(events):
    await anext(events)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(events), 1)


@pytest.mark.parametrize("end", [_drop, _close, _read_and_close, _read_and_leave, _give_up])
@in_virtual_time
async def test_events_that_are_no_longer_read_cost_nothing(world, end):
    async with world() as w:
        w.pair._emit.remove(w.events.append)  # nobody else asks for the events of messages
        sender = w.pair.sender("orders")
        for _ in range(3):
            events = w.pair.events()
            assert w.pair._emit.active
            await sender.send(Message(b"1"))
            await end(events)
            kept = weakref.ref(events)
            del events
            await asyncio.sleep(0)  # from Python 3.12 on a time limit's error keeps its frame for a turn of the loop
            gc.collect()
            assert kept() is None
        await sender.send(Message(b"2"))
        assert not w.pair._emit.active


@in_virtual_time
async def test_who_reads_on_is_not_disturbed_by_who_leaves(world):
    async with world() as w:
        staying, leaving, closing = (w.pair.events() for _ in range(3))
        await closing.aclose()
        del leaving
        for number in range(2):
            receipt = await w.pair.sender("orders").send(Message(b"%d" % number))
            assert (await anext(staying)).message_id == receipt.message_id


@in_virtual_time
async def test_closed_events_end_for_a_task_that_waits_for_one(world):
    async with world() as w:
        events = w.pair.events()
        waiting = [asyncio.create_task(anext(events, None)) for _ in range(2)]
        await asyncio.sleep(0)
        await events.aclose()
        assert await asyncio.gather(*waiting) == [None, None]
        await w.pair.sender("orders").send(Message(b"1"))
        assert [event async for event in events] == []


@in_virtual_time
async def test_closing_events_forgets_those_that_wait(world):
    async with world() as w:
        events = w.pair.events()
        await w.pair.sender("orders").send(Message(b"1"))
        await events.aclose()
        assert [event async for event in events] == []


@in_virtual_time
async def test_a_reader_of_events_that_gave_up_waiting_goes_on_where_it_was(world):
    async with world() as w:
        events = w.pair.events()
        for number in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 1)
            receipt = await w.pair.sender("orders").send(Message(b"%d" % number))
            assert (await anext(events)).message_id == receipt.message_id


@in_virtual_time
async def test_a_reader_whose_task_is_not_referenced_goes_on(world):
    async with world() as w:
        seen = []

        async def watch(events):
            async for event in events:
                seen.append(type(event))

        asyncio.create_task(watch(w.pair.events()))  # noqa: RUF006  # that is the point
        await asyncio.sleep(0)
        gc.collect()
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(0)
        gc.collect()
        await w.pair.sender("orders").send(Message(b"2"))
        await asyncio.sleep(0)
        assert seen == [SendCompleted] * 2


@in_virtual_time
async def test_operations_are_reported_every_minute_while_an_observer_listens():
    pair = Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport())
    async with pair:
        await asyncio.sleep(90)
        seen = []
        pair.subscribe(seen.append)
        await asyncio.sleep(120)
        told = [(event.side, event.seconds) for event in seen if isinstance(event, OperationsCounted)]
    # The first report is about all that went before, too.
    assert told == [
        (Side.PRIMARY, pytest.approx(120, abs=0.1)),
        (Side.SECONDARY, pytest.approx(120, abs=0.1)),
        (Side.PRIMARY, pytest.approx(60, abs=0.1)),
        (Side.SECONDARY, pytest.approx(60, abs=0.1)),
    ]


class Reacting:
    """For each send it emits another event, as an observer does that acts on what it sees."""

    def __init__(self, emit=None):
        self.seen = []
        self.emit = emit

    def on_event(self, event):
        self.seen.append(type(event))
        if self.emit is not None and isinstance(event, SendCompleted):
            self.emit(Warned, subject="a send", text="was seen")


def test_each_sink_gets_all_events_in_the_order_in_which_they_happened():
    emit = Emitter("east>west", Clock())
    sinks = [Reacting(emit), Reacting()]
    for sink in sinks:
        emit.add(sink.on_event)
    emit.hand_out(
        SendCompleted(
            at=1.0,
            pair="east>west",
            entity=Entity("orders"),
            message_id="1",
            outcome=SendOutcome.PRIMARY,
            backlog_queue=None,
            attempts=1,
            elapsed=0.1,
            maybe_duplicate=False,
            size=1,
        )
    )
    assert [sink.seen for sink in sinks] == [[SendCompleted, Warned]] * 2


@in_virtual_time
async def test_a_pair_that_can_not_open_lets_its_observers_write_out_what_they_hold():
    class Observer:
        closed = 0

        def on_event(self, event):
            pass

        async def close(self):
            self.closed += 1

    observer = Observer()
    pair = Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport(), observers=[observer])
    await pair.secondary.close()
    with pytest.raises(ConfigurationError, match="is closed"):
        await pair.open()
    assert observer.closed == 1
    await pair.close()
    assert observer.closed == 1


@in_virtual_time
async def test_sends_to_a_missing_entity_are_refused_again_when_a_ping_is_answered(world):
    async with world(failover_interval=0, enable_syphon=True) as w:
        sender = w.pair.sender("misspelt")
        w.east.fail(Fault.DOWN)
        for number in range(3):
            assert (await sender.send(Message(b"%d" % number))).route is Route.BACKLOG
        w.east.heal()
        await asyncio.sleep(3 * 5.5 + 1)
        with pytest.raises(EntityNotFound):
            await sender.send(Message(b"healthy again"))
        assert w.pair.state("misspelt") is not FAILED_OVER
        assert changes(w, "misspelt")[1][::2] == ("failed-over", Cause.PING_REFUSED)
        [warning] = [event for event in w.of(Warned) if event.subject == "misspelt"]
        assert "no such queue" in warning.text
        assert "3 that were diverted" in warning.text
        await asyncio.sleep(60)
        assert len(w.of(MessageDeadLettered)) == 3


@in_virtual_time
async def test_a_ping_that_is_refused_for_another_reason_is_a_failed_one(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send(Message(b"1"))
        w.east.heal()
        w.east.fail(Fault.UNAUTHORIZED)
        await asyncio.sleep(20)
        assert w.pair.state("orders") is FAILED_OVER


@in_virtual_time
async def test_pings_for_which_a_right_is_missing_are_reported_once_until_one_succeeds(world):
    """A user who may send and not ping: nothing else says why the failover does not end."""
    async with world(failover_interval=0, ping_primary_interval=5.0) as w:
        sender = w.pair.sender("orders")
        for _ in range(2):
            w.east.fail(Fault.DOWN)
            assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
            w.east.heal()
            w.east.fail(Fault.UNAUTHORIZED, Operation.PROBE)
            await asyncio.sleep(60)
            assert (await sender.send(Message(b"2"))).route is Route.BACKLOG
            w.east.heal()
            await asyncio.sleep(60)
            assert w.pair.state("orders") is not FAILED_OVER
            await asyncio.sleep(400)
        first, second = w.of(Warned)
        assert first.subject == second.subject == "orders"
        assert "its pings are refused" in first.text


PINGS, PINGS_AT_ONCE = 200, 100  # of all entities of a pair: in a second, and at once


async def fail_over(w, senders) -> None:
    w.east.fail(Fault.DOWN)
    await asyncio.gather(*(sender.send(Message(b"1")) for sender in senders))


def most_in_a_second(instants):
    instants = sorted(instants)
    return max(bisect_left(instants, at + 1) - number for number, at in enumerate(instants))


@in_virtual_time
async def test_pings_of_many_entities_are_spread_and_each_gets_its_own(world):
    async with world(failover_interval=0.0, ping_primary_interval=5.0) as w:
        began = asyncio.get_running_loop().time()
        await fail_over(w, [w.pair.sender(f"orders-{number}") for number in range(800)])
        await asyncio.sleep(4.5)
        pings = [event.at for event in w.of(PingCompleted)]
        assert len({event.entity for event in w.of(PingCompleted)}) == len(pings) == 800
        assert most_in_a_second(pings) <= PINGS + PINGS_AT_ONCE + 1
        assert asyncio.get_running_loop().time() - began < 5
        await asyncio.sleep(60)
        assert most_in_a_second([event.at for event in w.of(PingCompleted)]) <= PINGS + PINGS_AT_ONCE + 1


@in_virtual_time
async def test_pings_that_sends_ask_for_while_both_brokers_fail_are_bounded_too(world):
    async with world(failover_interval=0.0, send_timeout=10.0) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        senders = [w.pair.sender(f"orders-{number}") for number in range(800)]
        results = await asyncio.gather(*(each.send(Message(b"1")) for each in senders), return_exceptions=True)
        assert not any(isinstance(result, Receipt) for result in results)
        assert most_in_a_second([event.at for event in w.of(PingCompleted)]) <= PINGS + PINGS_AT_ONCE + 1
        w.east.heal()
        w.west.heal()


@in_virtual_time
async def test_an_entity_that_recovers_while_its_ping_waits_is_not_pinged(world):
    async with world(failover_interval=0.0, flap_window=0.0) as w:
        await fail_over(w, [w.pair.sender(f"orders-{number}") for number in range(400)])
        w.east.heal()
        for number in range(400):
            w.pair.mark_healthy(f"orders-{number}")
        await asyncio.sleep(60)
        assert len(w.of(PingCompleted)) <= PINGS_AT_ONCE + 1
        await fail_over(w, [w.pair.sender(f"orders-{number}") for number in range(400)])
        await asyncio.sleep(4)
        assert len(w.of(PingCompleted)) >= 400


@in_virtual_time
async def test_sends_that_waited_for_a_distant_primary_do_not_undo_its_recovery(world):
    async with world(failover_interval=0, ping_primary_interval=1.0, send_timeout=2.0) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        sender = w.pair.sender("orders")
        sends, states = [], []
        for turn in range(200):
            sends.append(asyncio.create_task(sender.send(Message(b"1"))))
            await asyncio.sleep(0.1)
            if turn == 50:
                w.east.heal()
                w.east.latency = 0.35
            states.append(w.pair.state("orders"))
        await asyncio.gather(*sends, return_exceptions=True)
        recovered = states.index(EntityState.HEALTHY, 50)
        assert set(states[recovered:]) == {EntityState.HEALTHY}
