"""Transports, observers and callers that do not keep their side: nothing hangs, nothing is lost, nothing stops."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pairmq import (
    Message,
    Pair,
    PairClosed,
    PairDelivery,
    PairFaulted,
    PairOptions,
    Receipt,
    Route,
    SendRefused,
    SendUnknown,
    TransportError,
)
from pairmq import testing as simulated
from pairmq.model import Entity, EntityState, FailureKind, FailureReason
from pairmq.model.events import Cause, PairEnded, SendCompleted, StateChanged
from pairmq.runner import TimeLimits
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time
from pairmq.transport import is_nothing_sent, nothing_sent


@in_virtual_time
async def test_a_driver_that_cancels_itself_ends_no_pump(world, monkeypatch):
    """Some drivers raise CancelledError for a lost connection; nobody has cancelled the pump."""
    receive = simulated.SimulatedReceiver.receive
    hits = []

    async def bad(self, most, wait):
        if not hits:
            hits.append(1)
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return await receive(self, most, wait)

    monkeypatch.setattr(simulated.SimulatedReceiver, "receive", bad)
    async with world(enable_syphon=True, backlog_queue_count=1) as w:
        w.pair.hold("orders")
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(10)
        assert w.home() == [b"1"]


@pytest.mark.parametrize("failure", [RuntimeError("driver bug"), asyncio.CancelledError()], ids=["error", "cancel"])
@in_virtual_time
async def test_a_receiver_that_fails_to_close_ends_no_pump(world, monkeypatch, failure):
    async def bad(self):
        raise failure

    monkeypatch.setattr(simulated.SimulatedReceiver, "close", bad)
    async with world(enable_syphon=True, backlog_queue_count=1) as w:
        w.west.fail(Fault.DOWN, Operation.RECEIVE, times=2)
        w.pair.hold("orders")
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(10)
        assert w.home() == [b"1"]


@pytest.mark.parametrize("what", ["complete", "abandon", "renew_lock"])
@in_virtual_time
async def test_settling_never_hangs(world, what):
    async with world(attempt_timeout=1) as w:
        await w.pair.sender("orders").send(Message(b"1"))
        async with w.pair.receiver("orders") as receiver:
            (delivery,) = await receiver.receive()
            w.east.fail(Fault.HANG, Operation.SETTLE)
            with pytest.raises(TransportError, match="no answer"):
                await getattr(delivery, what)()
            w.east.heal()


class _Observer:
    def __init__(self, close) -> None:
        self.close = close
        self.events = []

    def on_event(self, event) -> None:
        self.events.append(event)


@in_virtual_time
async def test_an_observer_that_hangs_or_raises_does_not_hold_up_the_close(caplog):
    async def hang():
        await asyncio.Event().wait()

    async def fail():
        raise RuntimeError("disk full")

    async def cancel_itself():
        raise asyncio.CancelledError

    closed = []

    async def fine():
        closed.append(1)

    observers = [_Observer(hang), _Observer(fail), _Observer(cancel_itself), _Observer(fine)]
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    pair = await Pair(east.transport(), west.transport(), observers=observers)
    started = asyncio.get_running_loop().time()
    await pair.close()
    await pair.close()
    assert asyncio.get_running_loop().time() - started < 3
    assert closed == [1]


@in_virtual_time
async def test_who_begins_to_read_events_while_a_slow_observer_closes_is_let_go():
    """Its stream was once made after the others had been ended, and nobody ended it."""
    closing = asyncio.Event()

    async def slow():
        closing.set()
        await asyncio.sleep(1)

    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    pair = await Pair(east.transport(), west.transport(), observers=[_Observer(slow)])
    ending = asyncio.create_task(pair.close())
    await closing.wait()
    async with asyncio.timeout(60):
        assert [event async for event in pair.events()] == []
    await ending


@in_virtual_time
async def test_a_hung_secondary_delays_the_opening_by_one_time_limit():
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    west.fail(Fault.HANG)
    started = asyncio.get_running_loop().time()
    pair = await Pair(east.transport(), west.transport(), PairOptions(backlog_queue_count=100, attempt_timeout=3))
    assert asyncio.get_running_loop().time() - started < 5
    await pair.close()


@in_virtual_time
async def test_a_throttled_backlog_queue_is_left_for_another_one(world):
    async with world() as w:
        w.pair.hold("orders")
        sender = w.pair.sender("orders")
        first = await sender.send(Message(b"0"))
        w.west.fail(Fault.BUSY, entities=[first.backlog_queue])
        second = await sender.send(Message(b"1"))
        assert second.backlog_queue != first.backlog_queue


@in_virtual_time
async def test_a_batch_that_the_primary_took_in_part_is_no_failure_of_the_primary(world, monkeypatch):
    send_batch = simulated.SimulatedSender.send_batch

    async def partly(self, messages):
        results = list(await send_batch(self, messages[1:]))
        return [TransportError("first one lost", FailureKind.UNAVAILABLE), *results]

    async with world(failover_interval=0) as w:
        monkeypatch.setattr(simulated.SimulatedSender, "send_batch", partly)
        results = await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(100)])
        assert all(isinstance(r, Receipt) and r.route is Route.PRIMARY for r in results)
        assert w.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_closing_one_sender_harms_no_other(world):
    async with world(failover_interval=0) as w:
        closing, other = w.pair.sender("orders"), w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5, times=1)
        slow = asyncio.create_task(closing.send(Message(b"1")))
        await asyncio.sleep(0.1)
        await closing.close()
        assert (await slow).route is Route.PRIMARY
        assert (await other.send(Message(b"2"))).route is Route.PRIMARY
        with pytest.raises(PairClosed):
            await closing.send(Message(b"3"))


@in_virtual_time
async def test_a_batch_of_several_operations_outlives_its_closed_sender(world):
    """Its link was closed between two of them: the entity failed over, though the primary was well."""
    async with world(failover_interval=0) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)
        batch = asyncio.create_task(sender.send_batch([Message(b"%d" % n) for n in range(1100)]))
        await asyncio.sleep(0.1)
        await sender.close()
        results = await batch
        assert {result.route for result in results} == {Route.PRIMARY}
        assert w.of(StateChanged) == []


@in_virtual_time
async def test_a_stream_ends_with_its_closed_sender_and_harms_no_entity(world):
    async with world(failover_interval=0) as w:
        sender = w.pair.sender("orders")

        async def source():
            for number in range(100):
                yield Message(b"%d" % number)
                await asyncio.sleep(0.1)

        results = []

        async def collect():
            async for result in sender.send_stream(source()):
                results.append(result)
                if len(results) == 3:
                    await sender.close()

        with pytest.raises(PairClosed, match="the sender"):
            await collect()
        assert [type(result) for result in results] == [Receipt, Receipt, Receipt, SendRefused]
        assert len(w.home()) == 3
        assert w.of(StateChanged) == []


@pytest.mark.parametrize("ends_by", ["itself", "the pair's end"])
@in_virtual_time
async def test_a_send_does_not_wait_for_the_close_handshake_of_its_closed_sender(world, monkeypatch, ends_by):
    """The last send in flight closes the link; the broker that hangs must not hold it beyond its deadline."""

    async def slow(self):
        await asyncio.sleep(1.9)

    monkeypatch.setattr(simulated.SimulatedSender, "close", slow)
    async with world() as w:
        w.east.fail(Fault.HANG, Operation.SEND)
        closing = w.pair.sender("orders")
        started = asyncio.get_running_loop().time()
        sending = asyncio.create_task(closing.send(Message(b"1"), timeout=1))
        await asyncio.sleep(0.1)
        await closing.close()
        with pytest.raises(SendUnknown):
            await sending
        assert asyncio.get_running_loop().time() - started == pytest.approx(1)
        if ends_by == "itself":
            await asyncio.sleep(2)


@in_virtual_time
async def test_a_sender_that_fails_to_close_takes_no_receipt_along(world, monkeypatch):
    async def bad(self):
        raise RuntimeError("driver bug")

    monkeypatch.setattr(simulated.SimulatedSender, "close", bad)
    async with world() as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5, times=1)
        closing = w.pair.sender("orders")
        sending = asyncio.create_task(closing.send(Message(b"1")))
        await asyncio.sleep(0.1)
        await closing.close()
        assert (await sending).route is Route.PRIMARY
        await w.pair.sender("prices").close()


@pytest.mark.parametrize("how", ["raise", "cancel", "hang"])
@in_virtual_time
async def test_a_partner_that_fails_to_end_does_not_keep_the_fault_from_the_callers(world, monkeypatch, how):
    async def bad(self):
        if how == "hang":
            await asyncio.sleep(60)
        raise RuntimeError("driver bug") if how == "raise" else asyncio.CancelledError

    async with world(enable_syphon=True, close_grace=1) as w:
        monkeypatch.setattr(simulated.SimulatedTransport, "_close", bad)
        await asyncio.wait((asyncio.create_task(w.pair.primary.fault(RuntimeError("revoked"))),), timeout=1)
        await asyncio.sleep(3)
        with pytest.raises(PairFaulted, match="revoked"):
            w.pair.sender("orders")
        await asyncio.sleep(120)


@in_virtual_time
async def test_events_of_an_ended_pair_end(world):
    async with world() as w:
        await w.pair.close()
        assert [event async for event in w.pair.events()] == []


@in_virtual_time
async def test_closing_while_opening_leaves_nothing_behind():
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    pair = Pair(east.transport(), west.transport(), PairOptions(enable_syphon=True))
    opening = asyncio.create_task(pair.open())
    await asyncio.sleep(0.0005)
    await pair.close()
    await asyncio.wait((opening,))
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    with pytest.raises(PairClosed):
        await pair.open()


@in_virtual_time
async def test_opening_twice_at_once_is_opening_once():
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    pair = Pair(east.transport(), west.transport())
    assert await asyncio.gather(pair.open(), pair.open()) == [pair, pair]
    await pair.close()


@in_virtual_time
async def test_a_sink_that_acts_on_the_pair_does_not_reverse_the_events(world):
    async with world(failover_interval=0) as w:
        seen = []

        def holding(event):
            if isinstance(event, StateChanged) and event.cause is Cause.SEND_FAILED:
                w.pair.hold("orders")

        w.pair.subscribe(holding)
        w.pair.subscribe(lambda event: seen.append(event.epoch) if isinstance(event, StateChanged) else None)
        w.east.fail(Fault.DOWN, times=1)
        await w.pair.sender("orders").send(Message(b"1"))
        assert seen == sorted(seen)
        assert len(seen) == 2


@in_virtual_time
async def test_a_send_that_never_had_its_turn_is_not_reported_as_unknown(world):
    async with world(max_pending_sends=1, close_grace=1) as w:
        w.east.fail(Fault.HANG, Operation.SEND)
        tasks = [asyncio.create_task(w.pair.sender("orders").send(Message(b"%d" % n))) for n in range(3)]
        await asyncio.sleep(0.1)
        await w.pair.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        outcomes = sorted(event.outcome for event in w.of(SendCompleted))
        assert outcomes == ["refused", "refused", "unknown"]


@in_virtual_time
async def test_a_source_that_raises_loses_nothing_of_what_it_gave(world):
    async with world() as w:

        def source():
            for n in range(100):
                yield Message(b"%d" % n)
            raise RuntimeError("torn")

        results = []

        async def collect():
            async for result in w.pair.sender("orders").send_stream(source()):
                results.append(result)

        with pytest.raises(RuntimeError, match="torn"):
            await collect()
        assert len(results) == len(w.home()) == 100


async def _by_a_future():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def _by_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("cancelled", [_by_a_future, _by_itself])
@in_virtual_time
async def test_a_source_that_is_cancelled_ends_its_stream(world, cancelled):
    """It may have asked a task of somebody else's, which was cancelled; nobody has cancelled the stream."""
    ended = []

    async def source():
        try:
            for n in range(100):
                yield Message(b"%d" % n)
            await cancelled()
        finally:
            ended.append(True)

    async with world() as w:
        results = []

        async def collect():
            async for result in w.pair.sender("orders").send_stream(source()):
                results.append(result)

        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(1000):
                await collect()
        assert len(results) == len(w.home()) == 100
        assert ended == [True]


@in_virtual_time
async def test_a_plain_source_that_raises_cancelled_error_loses_nothing_of_what_it_gave(world):
    async with world() as w:

        def source():
            for n in range(100):
                yield Message(b"%d" % n)
            raise asyncio.CancelledError

        results = []

        async def collect():
            async for result in w.pair.sender("orders").send_stream(source()):
                results.append(result)

        with pytest.raises(asyncio.CancelledError):
            await collect()
        assert len(results) == len(w.home()) == 100


@in_virtual_time
async def test_what_is_no_message_is_a_type_error(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        with pytest.raises(TypeError, match="make a Message of it"):
            await sender.send(b"bytes")
        with pytest.raises(TypeError, match="make a Message of it"):
            await sender.send_batch([b"bytes"])


@in_virtual_time
async def test_a_refused_send_is_nowhere(world):
    async with world(while_failing="raise") as w:
        w.east.fail(Fault.DOWN)
        with pytest.raises(SendRefused):
            await w.pair.sender("orders").send(Message(b"1"))
        assert w.home() == []
        assert w.backlog() == []
        assert Entity("orders") in w.east.queues


@pytest.mark.parametrize("sure", [True, False])
async def test_a_time_out_leaves_no_doubt_where_the_transport_has_none(sure: bool):
    async def send() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as cancellation:
            if sure:
                nothing_sent(cancellation)
            raise

    with pytest.raises(TransportError) as caught:
        await TimeLimits().run(send(), asyncio.get_running_loop().time() + 0.01)
    assert (caught.value.reason, caught.value.maybe_applied) == (FailureReason.TIMEOUT, not sure)


def test_a_time_out_that_names_no_cause_is_reported_by_its_context():
    """The first releases of Python 3.11 raise it so; a cancellation that came of another one says nothing."""
    cancellation = asyncio.CancelledError()
    nothing_sent(cancellation)
    for raised, told in ((TimeoutError(), True), (asyncio.CancelledError(), False)):
        raised.__context__ = cancellation
        assert is_nothing_sent(raised) is told


async def _use(pair: Pair, call: str) -> object:
    async with asyncio.timeout(60):
        match call:
            case "send":
                return await pair.sender("orders").send(Message(b"2"))
            case "batch":
                return await pair.sender("orders").send_batch([Message(b"2")])
            case "receive":
                return await pair.receiver("orders").receive(1, wait=0)
            case "check":
                return await pair.check("orders")
            case _:
                return await pair.open()


@pytest.mark.parametrize("call", ["send", "batch", "receive", "check", "open"])
def test_a_pair_refuses_calls_from_another_event_loop(call):
    """Its connections can't be used there: the call failed as a broken primary does, or never ended."""

    async def opened() -> Pair:
        east, west = SimulatedBroker("east"), SimulatedBroker("west")
        await east.transport().admin.create(Entity("orders"))
        pair = await Pair(east.transport(), west.transport(), PairOptions(backlog_queue_count=1))
        await pair.sender("orders").send(Message(b"1"))
        return pair

    pair = asyncio.run(opened())
    with pytest.raises(RuntimeError, match="was opened in another event loop"):
        asyncio.run(_use(pair, call))
    assert pair.state("orders") is EntityState.HEALTHY


@pytest.mark.parametrize("call", ["complete", "abandon", "dead_letter", "renew_lock", "consumer", "events"])
def test_a_delivery_is_not_settled_in_another_event_loop(call):
    """It would have failed as at a broker, and dropped the connection of all others."""
    calls = []

    async def received() -> tuple[Pair, PairDelivery]:
        east, west = SimulatedBroker("east"), SimulatedBroker("west")
        await east.transport().admin.create(Entity("orders"))
        pair = await Pair(east.transport(), west.transport(), PairOptions(backlog_queue_count=1))
        await pair.sender("orders").send(Message(b"1"))
        (delivery,) = await pair.receiver("orders").receive()
        return pair, delivery

    async def use(pair: Pair, delivery: PairDelivery) -> None:
        match call:
            case "consumer":
                pair.consumer("orders", calls.append)
            case "events":
                pair.events()  # no event would wake its reader
            case "dead_letter":
                await delivery.dead_letter("why")
            case _:
                await getattr(delivery, call)()

    pair, delivery = asyncio.run(received())
    with pytest.raises(RuntimeError, match="was opened in another event loop"):
        asyncio.run(use(pair, delivery))
    assert (delivery.settlement, calls) == (None, [])


def test_a_pair_that_is_closed_from_another_event_loop_closes_in_its_own():
    closed_in = []

    async def opened() -> Pair:
        east, west = SimulatedBroker("east"), SimulatedBroker("west")
        pair = await Pair(east.transport(), west.transport(), PairOptions(backlog_queue_count=1))
        pair.subscribe(
            lambda event: closed_in.append(asyncio.get_running_loop()) if isinstance(event, PairEnded) else None
        )
        return pair

    own = asyncio.new_event_loop()
    thread = threading.Thread(target=own.run_forever)
    thread.start()
    try:
        pair = asyncio.run_coroutine_threadsafe(opened(), own).result(60)
        asyncio.run(pair.close())
    finally:
        own.call_soon_threadsafe(own.stop)
        thread.join(60)
        own.close()
    assert closed_in == [own]


def test_an_entity_that_was_first_used_from_another_event_loop_still_fails_over():
    """Its timers were in that loop, which had ended when the primary failed: sends raised, and nothing was diverted."""

    async def use(pair: Pair) -> None:
        with pytest.raises(RuntimeError, match="was opened in another event loop"):
            pair.sender("orders")

    async def main() -> Receipt:
        east, west = SimulatedBroker("east"), SimulatedBroker("west")
        await east.transport().admin.create(Entity("orders"))
        options = PairOptions(backlog_queue_count=1, failover_interval=0.01)
        async with Pair(east.transport(), west.transport(), options) as pair:
            await asyncio.to_thread(lambda: asyncio.run(use(pair)))
            with pytest.raises(RuntimeError, match="was opened in another event loop"):
                await asyncio.to_thread(pair.sender, "orders")
            east.fail(Fault.DOWN)
            return await pair.sender("orders").send(Message(b"1"))

    assert asyncio.run(main()).route is Route.BACKLOG
