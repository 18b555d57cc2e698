"""Backlog queues: SPEC 5, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace

import pytest

from pairmq import (
    BacklogUnavailable,
    ConfigurationError,
    Message,
    Pair,
    PairOptions,
    Receipt,
    Route,
    SendRefused,
    SendUnknown,
    TransportError,
)
from pairmq import testing as simulated
from pairmq.core import restore
from pairmq.model import Entity, FailureKind, FailureReason
from pairmq.model.events import BacklogQueueChecked, PingCompleted, RotationChanged, Warned
from pairmq.runner import Clock
from pairmq.testing import Fault, Operation, SimulatedAdmin, SimulatedBroker, in_virtual_time, virtual_wall
from pairmq.transport import QueueProperties


@in_virtual_time
async def test_pairing_makes_the_queues_with_the_documented_properties(world):
    async with world() as w:
        names = [queue.path for queue in w.pair.backlog_queues]
        assert names == [f"east/x-servicebus-transfer/{index}" for index in range(3)]
        for name in names:
            properties = w.west.queues[Entity(name)].properties
            assert properties.max_size_megabytes == 5120
            assert properties.max_delivery_count == 2**31 - 1
            assert properties.default_time_to_live is None
            assert properties.auto_delete_after is None
            assert properties.lock_duration == 60
            assert properties.dead_letter_on_expiration
            assert properties.batched_operations
        assert all(event.created for event in w.of(BacklogQueueChecked))


@pytest.mark.parametrize(
    ("asked", "told", "differ"),
    [
        (2**31 - 1, None, False),
        (2**31, None, False),
        (2**31 - 2, None, True),
        (10, None, True),
        (None, None, False),
        (2**31 - 1, 2**31 - 1, False),
        (2**31 - 1, 10, True),
        (None, 2**31 - 1, True),
    ],
)
def test_an_unlimited_delivery_count_is_as_good_as_the_highest(asked: int | None, told: int | None, differ: bool):
    found = QueueProperties(max_delivery_count=asked).differences(QueueProperties(max_delivery_count=told))
    assert found == ((f"max_delivery_count is {told}, asked for {asked}",) if differ else ())


def test_an_unlimited_delivery_count_hides_no_other_difference():
    asked = QueueProperties(max_delivery_count=2**31 - 1, max_size_megabytes=5120, default_time_to_live=None)
    told = QueueProperties(max_size_megabytes=None, default_time_to_live=1.0)
    assert asked.differences(told) == (
        "max_size_megabytes is None, asked for 5120",
        "default_time_to_live is 1.0, asked for None",
    )


@in_virtual_time
async def test_existing_queues_are_left_as_they_are_with_a_warning(world):
    west = SimulatedBroker("west")
    admin = west.transport().admin
    own = QueueProperties(max_delivery_count=10, lock_duration=30)
    await admin.create(Entity("east/x-servicebus-transfer/0"), own)
    await admin.create(Entity("east/x-servicebus-transfer/7"))
    async with world(west=west) as w:
        assert west.queues[Entity("east/x-servicebus-transfer/0")].properties == own
        text = next(event.text for event in w.of(Warned))
        assert "max_delivery_count is 10, asked for 2147483647" in text
        w.pair.force_failover("orders")
        await asyncio.gather(*(w.pair.sender("orders").send(Message(b"x")) for _ in range(50)))
        assert west.messages("east/x-servicebus-transfer/7") == []


def let_drop(west: SimulatedBroker, index: int, *, drops: bool = True) -> str:
    """As an operator does who replaces a queue, or sets a policy: it drops its oldest messages when it is full."""
    queue = west.queues[Entity(f"east/x-servicebus-transfer/{index}")]
    queue.properties = replace(queue.properties, drops_when_full=drops)
    return f"east/x-servicebus-transfer/{index}"


@in_virtual_time
async def test_a_new_queue_that_drops_by_a_policy_is_left_out_with_a_warning(world, monkeypatch):
    reported = SimulatedAdmin.properties

    async def by_policy(self: SimulatedAdmin, entity: Entity) -> QueueProperties:
        return replace(await reported(self, entity), drops_when_full=True)

    monkeypatch.setattr(SimulatedAdmin, "properties", by_policy)
    async with world(send_timeout=5) as w:
        found = [event.differences for event in w.of(BacklogQueueChecked) if event.created]
        assert found == [("drops_when_full is True, asked for False",)] * 3
        texts = [event.text for event in w.of(Warned)]
        assert len(texts) == 3
        assert all("drops messages that it has accepted" in text for text in texts)
        assert [event.in_use for event in w.of(RotationChanged)] == [False] * 3
        assert (await w.pair.sender("orders").send(Message(b"x"))).route is Route.PRIMARY
        w.pair.hold("orders")
        with pytest.raises(BacklogUnavailable, match="drops messages that it has accepted when it is full"):
            await w.pair.sender("orders").send(Message(b"x"))
        assert not (await w.pair.check("orders")).ready
        assert w.backlog() == []
        monkeypatch.setattr(SimulatedAdmin, "properties", reported)
        assert (await w.pair.sender("orders").send(Message(b"x"))).route is Route.BACKLOG


@pytest.mark.parametrize("ordering", ["none", "session"])
@in_virtual_time
async def test_a_queue_that_drops_since_a_while_gets_nothing_of_an_outage(world, ordering):
    async with world(ordering=ordering, backlog_retry_interval=10) as w:
        await asyncio.sleep(100)
        dropping = let_drop(w.west, 1)
        w.pair.hold("orders")
        senders = [w.pair.sender("orders") for _ in range(30)]
        sends = (sender.send(Message(b"x", session_id=f"{n}"), timeout=3) for n, sender in enumerate(senders))
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert w.west.messages(dropping) == []
        refused = {BacklogUnavailable} if ordering == "session" else set()  # its sessions have no other queue
        assert {type(outcome) for outcome in outcomes} == {Receipt} | refused
        (event,) = w.of(RotationChanged)
        assert (event.queue, event.in_use, event.left) == (dropping, False, 2)
        assert "drops messages that it has accepted when it is full: change its policy" in event.error
        let_drop(w.west, 1, drops=False)
        await asyncio.sleep(11)
        assert [event.in_use for event in w.of(RotationChanged)] == [False, True]


@in_virtual_time
async def test_a_queue_that_drops_is_found_in_the_midst_of_an_outage(world):
    async with world(backlog_queue_count=1, send_timeout=3) as w:
        w.pair.hold("orders")
        sender = w.pair.sender("orders")
        await sender.send(Message(b"1"))
        let_drop(w.west, 0)
        await asyncio.sleep(60)
        with pytest.raises(BacklogUnavailable):
            await sender.send(Message(b"2"))


@in_virtual_time
async def test_sends_that_follow_one_another_do_not_wait_for_the_looks_beside_them(world):
    async with world(backlog_queue_count=1, send_timeout=3) as w:
        w.west.latency = 0.3
        w.pair.hold("orders")
        sender = w.pair.sender("orders")
        await sender.send(Message(b"first"))
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(130):
            began = loop.time()
            await sender.send(Message(b"x"))
            took.append(loop.time() - began)
            await asyncio.sleep(1)
        assert max(took) < 2 * 0.3
        dropping = let_drop(w.west, 0)
        for _ in range(62):
            with contextlib.suppress(BacklogUnavailable):
                await sender.send(Message(b"x"))
            await asyncio.sleep(1)
        assert [event.queue for event in w.of(RotationChanged)] == [dropping]


@in_virtual_time
async def test_a_look_takes_no_time_from_the_attempt_after_it(world):
    async with world(backlog_queue_count=1, send_timeout=3) as w:
        await asyncio.sleep(100)
        w.west.fail(Fault.HANG, Operation.ADMIN)
        w.west.latency = 0.8  # s; the attempt has 1.5, and the look 1
        w.pair.hold("orders")
        receipt = await w.pair.sender("orders").send(Message(b"x"))
        assert (receipt.route, receipt.attempts, receipt.maybe_duplicate) == (Route.BACKLOG, 1, False)


@in_virtual_time
async def test_a_queue_that_leaves_the_rotation_during_a_look_gets_nothing_after_it(world):
    async with world(backlog_queue_count=2, backlog_retry_interval=1000, attempt_timeout=10.0) as w:
        await asyncio.sleep(100)
        w.west.fail(Fault.HANG, Operation.ADMIN)
        w.west.fail(Fault.DOWN, Operation.SEND, times=1)
        w.pair.hold("orders")
        first = [asyncio.create_task(w.pair.sender("orders").send(Message(b"x"))) for _ in range(4)]
        await asyncio.sleep(0.5)
        later = [asyncio.create_task(w.pair.sender("orders").send(Message(b"x"))) for _ in range(20)]
        receipts = await asyncio.gather(*first, *later)
        (event,) = w.of(RotationChanged)
        assert event.queue not in {receipt.backlog_queue for receipt in receipts[4:]}


@in_virtual_time
async def test_a_process_with_a_syphon_finds_a_queue_that_drops_before_an_outage(world):
    async with world(enable_syphon=True) as w:
        checked = len(w.of(BacklogQueueChecked))
        dropping = let_drop(w.west, 2)
        await asyncio.sleep(3700)
        assert [event.queue for event in w.of(RotationChanged)] == [dropping]
        assert len(w.of(BacklogQueueChecked)) == checked + 1  # what has not changed is not reported again


@in_virtual_time
async def test_a_look_that_hangs_delays_a_send_by_a_second_once(world):
    async with world(backlog_queue_count=1, attempt_timeout=10.0) as w:
        await asyncio.sleep(100)
        w.west.fail(Fault.HANG, Operation.ADMIN)
        w.pair.hold("orders")
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(3):
            began = loop.time()
            await w.pair.sender("orders").send(Message(b"x"))
            took.append(loop.time() - began)
            await asyncio.sleep(20)
        assert [round(each) for each in took] == [1, 0, 0]


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        # A RabbitMQ stream: the syphon moves what comes while it reads, and all else stays in it, accepted.
        ("keeps_completed", True, "keeps messages that are completed"),
        # The broker gives no receiver of it: what it accepts ends where no syphon looks.
        ("forwards_to", "audit", "forwards its messages to audit"),
        # One event sent to two queues under one id: the second one would be accepted and dropped.
        ("drops_duplicates", True, "drops messages with an id that it has seen"),
        ("requires_session", True, "requires sessions"),
    ],
)
@in_virtual_time
async def test_backlog_queue_that_can_not_give_its_messages_back_is_refused(world, monkeypatch, setting, value, reason):
    reported = SimulatedAdmin.properties

    async def unfit(self: SimulatedAdmin, entity: Entity) -> QueueProperties:
        return replace(await reported(self, entity), **{setting: value})

    monkeypatch.setattr(SimulatedAdmin, "properties", unfit)
    with pytest.raises(TransportError, match=reason) as refused:
        async with world():
            pass
    assert refused.value.kind is FailureKind.REFUSED


@in_virtual_time
async def test_a_new_queue_whose_settings_can_not_be_read_is_used(world, monkeypatch):
    async def refuse(self: SimulatedAdmin, entity: Entity) -> QueueProperties:
        raise TransportError("not for you", FailureKind.REFUSED, FailureReason.UNAUTHORIZED)

    monkeypatch.setattr(SimulatedAdmin, "properties", refuse)
    async with world() as w:
        assert [event.created for event in w.of(BacklogQueueChecked)] == [True] * 3
        assert w.of(RotationChanged) == []


@in_virtual_time
async def test_a_sender_keeps_its_queue_and_senders_spread(world):
    async with world() as w:
        w.pair.hold("orders")
        senders = [w.pair.sender("orders") for _ in range(30)]
        used = set()
        for sender in senders:
            queues = {(await sender.send(Message(b"x"))).backlog_queue for _ in range(5)}
            assert len(queues) == 1
            used |= queues
        assert len(used) == 3


@in_virtual_time
async def test_a_failing_queue_leaves_the_rotation_for_all_senders_and_comes_back(world):
    async with world(backlog_retry_interval=10) as w:
        w.pair.hold("orders")
        senders = [w.pair.sender("orders") for _ in range(20)]
        await asyncio.gather(*(sender.send(Message(b"x")) for sender in senders))
        bad = "east/x-servicebus-transfer/1"
        w.west.fail(Fault.DOWN, entities=[bad])
        receipts = await asyncio.gather(*(sender.send(Message(b"y")) for sender in senders))
        assert bad not in {receipt.backlog_queue for receipt in receipts}
        assert {receipt.attempts for receipt in receipts} == {1, 2}
        await asyncio.sleep(15)
        assert [event.in_use for event in w.of(RotationChanged)] == [False]
        w.west.heal()
        await asyncio.sleep(11)
        assert [(event.in_use, event.left) for event in w.of(RotationChanged)] == [(False, 2), (True, 3)]


@in_virtual_time
async def test_sends_without_time_take_no_queue_from_the_others(world):
    """A time-out that is the caller's own hurry says nothing about a queue that is slow to begin with."""
    async with world(attempt_timeout=5.0) as w:
        w.pair.hold("orders")
        w.west.fail(Fault.SLOW, Operation.SEND, delay=0.4)
        hasty = [w.pair.sender("orders") for _ in range(30)]
        for outcome in await asyncio.gather(
            *(sender.send(Message(b"x"), timeout=0.3) for sender in hasty), return_exceptions=True
        ):
            assert isinstance(outcome, SendUnknown)
        assert w.of(RotationChanged) == []
        receipt = await w.pair.sender("orders").send(Message(b"y"), timeout=4)
        assert receipt.route is Route.BACKLOG


@in_virtual_time
async def test_a_large_batch_takes_a_queue_that_hangs_from_the_others(world, monkeypatch):
    """What its envelopes cost comes off its attempt, and is no hurry of the caller's."""
    measure = simulated.SimulatedTransport.measure

    def slow(self, message):
        asyncio.get_running_loop()._jumping.now += 25e-6
        return measure(self, message)

    monkeypatch.setattr(simulated.SimulatedTransport, "measure", slow)
    async with world(attempt_timeout=0.5) as w:
        w.pair.hold("orders")
        hanging = "east/x-servicebus-transfer/0"
        w.west.fail(Fault.HANG, Operation.SEND, entities=[hanging])
        senders = [w.pair.sender("orders") for _ in range(20)]
        batch = [Message(b"x")] * 100
        results = await asyncio.gather(*(sender.send_batch(batch) for sender in senders))
        assert {receipt.route for receipts in results for receipt in receipts} == {Route.BACKLOG}
        assert [(event.queue, event.in_use) for event in w.of(RotationChanged)] == [(hanging, False)]


@in_virtual_time
async def test_with_no_queue_left_a_send_that_does_not_wait_is_refused_with_both_causes(world):
    async with world(failover_interval=0, while_failing="raise") as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.TRANSIENT)
        with pytest.raises(BacklogUnavailable, match="no backlog queue takes messages") as caught:
            await w.pair.sender("orders").send(Message(b"x"))
        assert {str(cause) for cause in caught.value.causes} == {"connection refused", "try again"}
        # The next one does not try the primary any more, and still tells why.
        with pytest.raises(BacklogUnavailable) as caught:
            await w.pair.sender("orders").send(Message(b"x"))
        assert {str(cause) for cause in caught.value.causes} == {"connection refused", "try again"}


# Neither broker takes messages, and a send waits (SPEC 5.5).


async def after(seconds, *actions):
    await asyncio.sleep(seconds)
    for action in actions:
        action()


def loop_time():
    return asyncio.get_running_loop().time()


@in_virtual_time
@pytest.mark.parametrize("form", ["send", "batch", "stream"])
@pytest.mark.parametrize("ordering", ["none", "session"])
async def test_a_blip_of_both_brokers_costs_a_second_and_no_send(world, form, ordering):
    async with world(failover_interval=0, backlog_retry_interval=30, ping_primary_interval=60, ordering=ordering) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        healing = asyncio.create_task(after(0.5, w.east.heal, w.west.heal))
        sender = w.pair.sender("orders")
        if form == "send":
            receipts = [await sender.send(Message(b"x"))]
        elif form == "batch":
            receipts = await sender.send_batch([Message(b"x")] * 20)
        else:
            receipts = [receipt async for receipt in sender.send_stream([Message(b"x")] * 20)]
        assert {type(receipt) for receipt in receipts} == {Receipt}
        assert loop_time() < 2
        await healing


@in_virtual_time
@pytest.mark.parametrize("ordering", ["none", "session"])
async def test_with_no_queue_left_a_send_waits_until_its_deadline_and_is_refused_with_both_causes(world, ordering):
    async with world(failover_interval=0, ordering=ordering) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.TRANSIENT)
        began = loop_time()
        with pytest.raises(BacklogUnavailable) as caught:
            await w.pair.sender("orders").send(Message(b"x"), timeout=7)
        assert loop_time() - began == pytest.approx(7, abs=0.05)
        assert {str(cause) for cause in caught.value.causes} == {"connection refused", "try again"}


@in_virtual_time
@pytest.mark.parametrize("broker", ["primary", "secondary"])
async def test_a_send_that_waits_for_both_brokers_takes_the_one_that_is_back(world, broker):
    """With pings a minute apart, and retries of queues half a minute."""
    async with world(failover_interval=0, backlog_retry_interval=30, ping_primary_interval=60) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        healing = asyncio.create_task(after(0.5, (w.east if broker == "primary" else w.west).heal))
        receipt = await w.pair.sender("orders").send(Message(b"x"))
        assert receipt.route is (Route.PRIMARY if broker == "primary" else Route.BACKLOG)
        assert receipt.elapsed < 2
        await healing


@in_virtual_time
async def test_a_held_entity_is_not_pinged_for_a_send_that_waits(world):
    async with world(send_timeout=5) as w:
        w.pair.hold("orders")
        w.west.fail(Fault.DOWN)
        with pytest.raises(BacklogUnavailable):
            await w.pair.sender("orders").send(Message(b"x"))
        assert w.of(PingCompleted) == []
        w.west.heal()
        assert (await w.pair.sender("orders").send(Message(b"y"))).route is Route.BACKLOG


@in_virtual_time
async def test_a_forced_failover_lasts_its_interval_for_sends_that_wait(world):
    async with world(ping_primary_interval=5) as w:
        w.pair.force_failover("orders")
        w.west.fail(Fault.DOWN)
        receipt = await w.pair.sender("orders").send(Message(b"x"))
        assert (receipt.route, 5 < receipt.elapsed < 6) == (Route.PRIMARY, True)


@in_virtual_time
async def test_many_waiting_sends_are_no_stampede_and_all_go_on_at_the_first_success(world):
    async with world(failover_interval=0, backlog_retry_interval=30, ping_primary_interval=60, seed=7) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        senders = [w.pair.sender("orders") for _ in range(500)]
        w.west.operations.clear()
        w.east.operations.clear()
        sends = [asyncio.create_task(sender.send(Message(b"x"))) for sender in senders]
        await asyncio.sleep(1)  # all of them have found out
        w.west.operations.clear()
        w.east.operations.clear()
        await asyncio.sleep(9)
        assert 9 < w.west.operations["SEND"] <= 30  # three queues, each every 1 to 2 s
        assert 3 < w.east.operations["PROBE"] <= 10
        w.west.heal()
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        first = loop_time()
        await asyncio.gather(*sends)
        assert loop_time() - first < 0.05


@in_virtual_time
async def test_sessions_of_one_queue_are_no_stampede(world):
    async with world(failover_interval=0, ordering="session", backlog_queue_count=1) as w:
        w.pair.hold("orders")
        w.west.fail(Fault.DOWN)
        sender = w.pair.sender("orders")
        sends = [asyncio.create_task(sender.send(Message(b"x", session_id=str(number)))) for number in range(200)]
        await asyncio.sleep(1)
        w.west.operations.clear()
        await asyncio.sleep(9)
        assert 3 < w.west.operations["SEND"] <= 10
        w.west.heal()
        receipts = await asyncio.gather(*sends)
        assert {receipt.route for receipt in receipts} == {Route.BACKLOG}


@in_virtual_time
async def test_a_cancelled_trial_leaves_its_queue_to_the_next_send(world):
    async with world(backlog_queue_count=1, attempt_timeout=10.0) as w:
        w.pair.hold("orders")
        w.west.fail(Fault.DOWN, times=1)
        with pytest.raises(BacklogUnavailable):
            await w.pair.sender("orders").send(Message(b"x"), timeout=0.01)
        w.west.fail(Fault.HANG, Operation.SEND)
        await asyncio.sleep(1)
        trial = asyncio.create_task(w.pair.sender("orders").send(Message(b"x")))
        await asyncio.sleep(0.1)
        other = asyncio.create_task(w.pair.sender("orders").send(Message(b"y")))
        await asyncio.sleep(0.1)
        trial.cancel()
        w.west.heal()
        receipt = await other
        assert (receipt.route, receipt.elapsed < 3) == (Route.BACKLOG, True)


@in_virtual_time
async def test_closing_ends_sends_that_wait_for_both_brokers(world):
    async with world(failover_interval=0, close_grace=1) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        send = asyncio.create_task(w.pair.sender("orders").send(Message(b"x")))
        await asyncio.sleep(3)
        began = loop_time()
        closing = asyncio.create_task(w.pair.close())
        with pytest.raises(SendRefused, match="the pair closed"):
            await send
        assert loop_time() - began <= 1.01
        await closing


@in_virtual_time
async def test_sends_that_wait_for_both_brokers_count_as_pending(world):
    async with world(failover_interval=0, max_pending_sends=2) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        waiting = [asyncio.create_task(w.pair.sender("orders").send(Message(b"x"), timeout=9)) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(SendRefused, match="max_pending_sends"):
            await w.pair.sender("orders").send(Message(b"y"), timeout=2)
        w.east.heal()
        assert {receipt.route for receipt in await asyncio.gather(*waiting)} == {Route.PRIMARY}


@in_virtual_time
async def test_sends_that_do_not_wait_are_refused_for_a_second_after_a_blip(world):
    async with world(
        failover_interval=0, while_failing="raise", backlog_retry_interval=30, ping_primary_interval=60
    ) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        healing = asyncio.create_task(after(0.5, w.east.heal, w.west.heal))
        sender, refused = w.pair.sender("orders"), 0
        while True:
            began = loop_time()
            try:
                await sender.send(Message(b"x"))
                break
            except BacklogUnavailable:
                refused += 1
                assert loop_time() - began < 0.05
            await asyncio.sleep(0.05)
        assert refused > 5
        assert loop_time() < 2
        await healing


@in_virtual_time
async def test_the_other_queues_come_back_soon_after_the_first(world):
    async with world(failover_interval=0, backlog_retry_interval=600) as w:
        w.pair.hold("orders")
        w.west.fail(Fault.DOWN)
        healing = asyncio.create_task(after(0.5, w.west.heal))
        await w.pair.sender("orders").send(Message(b"x"))
        await asyncio.sleep(1)
        assert [(event.in_use, event.left) for event in w.of(RotationChanged)][3:] == [(True, 1), (True, 2), (True, 3)]
        await healing


# A backlog queue that is missing (SPEC 5.5).


def lose_queues(w):
    for queue in w.pair.backlog_queues:
        del w.west.queues[queue]
    w.west.operations.clear()


@in_virtual_time
@pytest.mark.parametrize("ordering", ["none", "session"])
async def test_a_missing_queue_is_created_again_inside_the_send_that_finds_out(world, ordering):
    async with world(ordering=ordering) as w:
        before = [w.west.queues[queue].properties for queue in w.pair.backlog_queues]
        w.pair.hold("orders")
        lose_queues(w)
        receipt = await w.pair.sender("orders").send(Message(b"x"))
        assert (receipt.route, receipt.attempts, receipt.elapsed < 0.1) == (Route.BACKLOG, 2, True)
        assert w.west.queues[Entity(receipt.backlog_queue)].properties == before[0]
        assert w.of(RotationChanged) == []
        [warning] = [event.text for event in w.of(Warned)]
        assert warning.startswith(f"backlog queue {receipt.backlog_queue} was missing and was created again")


@in_virtual_time
async def test_a_missing_queue_is_created_once_for_many_sends_and_for_each_message_of_a_batch(world):
    async with world(backlog_queue_count=1) as w:
        w.pair.hold("orders")
        lose_queues(w)
        sender = w.pair.sender("orders")
        results = await asyncio.gather(*(sender.send_batch([Message(b"x")] * 10) for _ in range(50)))
        assert {receipt.route for receipts in results for receipt in receipts} == {Route.BACKLOG}
        assert len(w.backlog()) == 500
        assert [event.created for event in w.of(BacklogQueueChecked)] == [True, True]
        assert w.of(RotationChanged) == []


@in_virtual_time
async def test_a_queue_that_vanishes_again_leaves_the_rotation(world, monkeypatch):
    async with world(backlog_queue_count=2) as w:
        w.pair.hold("orders")
        bad = "east/x-servicebus-transfer/0"
        w.west.fail(Fault.REFUSE, Operation.SEND, entities=[bad])  # not found, whatever is created
        for _ in range(10):
            assert (await w.pair.sender("orders").send(Message(b"x"))).backlog_queue != bad
        assert w.west.operations["ADMIN"] < 20


@in_virtual_time
async def test_a_missing_queue_that_can_not_be_created_is_left_for_another_one(world):
    async with world() as w:
        w.pair.hold("orders")
        bad = "east/x-servicebus-transfer/0"
        del w.west.queues[Entity(bad)]
        w.west.fail(Fault.DOWN, Operation.ADMIN, entities=[bad])
        receipts = await asyncio.gather(*(w.pair.sender("orders").send(Message(b"x")) for _ in range(20)))
        assert bad not in {receipt.backlog_queue for receipt in receipts}
        w.west.heal()
        await asyncio.sleep(35)
        assert Entity(bad) in w.west.queues
        assert [event.in_use for event in w.of(RotationChanged)] == [False, True]


@in_virtual_time
async def test_a_queue_that_a_syphon_finds_missing_is_created_at_once(world):
    async with world(enable_syphon=True, backlog_retry_interval=600, syphon_receive_wait=5.0) as w:
        await asyncio.sleep(10)
        lose_queues(w)
        w.west.wake_all()
        await asyncio.sleep(20)
        assert set(w.pair.backlog_queues) <= set(w.west.queues)
        assert [event.in_use for event in w.of(RotationChanged)][-3:] == [True, True, True]


@in_virtual_time
async def test_with_no_queue_left_after_a_lost_confirmation_the_outcome_is_unknown(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND)
        w.west.fail(Fault.DOWN)
        with pytest.raises(SendUnknown):
            await w.pair.sender("orders").send(Message(b"x"))
        assert set(w.home()) == {b"x"}


@in_virtual_time
async def test_a_confirmation_lost_by_a_backlog_queue_marks_the_second_copy(world):
    async with world() as w:
        w.pair.hold("orders")
        w.west.fail(Fault.CONFIRM_LOST, Operation.SEND, times=1)
        receipt = await w.pair.sender("orders").send(Message(b"x"))
        assert receipt.maybe_duplicate
        assert [restore(m)[1].maybe_duplicate for m in w.backlog() if "x-pairmq-maybe-duplicate" in str(m)] == [True]
        assert len(w.backlog()) == 2


@in_virtual_time
async def test_a_pair_opens_while_the_secondary_is_unavailable_and_recovers(world):
    west = SimulatedBroker("west")
    west.fail(Fault.DOWN)
    async with world(west=west, backlog_retry_interval=5, failover_interval=0) as w:
        sender = w.pair.sender("orders")
        assert (await sender.send(Message(b"1"))).route is Route.PRIMARY
        west.heal()
        await asyncio.sleep(6)
        w.pair.hold("orders")
        assert (await sender.send(Message(b"2"))).route is Route.BACKLOG


@in_virtual_time
async def test_a_pair_opens_while_the_primary_is_unavailable(world):
    east = SimulatedBroker("east")
    async with world(east=east, failover_interval=0) as w:
        east.fail(Fault.HANG)
        assert (await w.pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG


@in_virtual_time
async def test_a_secondary_that_refuses_the_user_is_an_error_at_once():
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    west.fail(Fault.UNAUTHORIZED)
    with pytest.raises(TransportError, match="wrong password"):
        async with Pair(east.transport(), west.transport(), clock=Clock(virtual_wall, random.Random(1))):
            pass
    west.heal()
    async with Pair(east.transport(), west.transport()):  # the failed attempt left no claim behind
        pass


@in_virtual_time
async def test_a_template_names_the_queues(world):
    async with world(backlog_name_template="spare-{index}", backlog_queue_count=2) as w:
        assert [queue.path for queue in w.pair.backlog_queues] == ["spare-0", "spare-1"]


def test_a_template_that_names_no_queue_is_refused():
    east, west = SimulatedBroker("east"), SimulatedBroker("west")

    @in_virtual_time
    async def open_it():
        async with Pair(east.transport(), west.transport(), PairOptions(backlog_name_template="a//{index}")):
            pass

    with pytest.raises(ConfigurationError, match="backlog_name_template"):
        open_it()


@in_virtual_time
async def test_a_pair_connects_to_its_backlog_before_it_needs_it(monkeypatch):
    """The first diverted send should not begin by connecting."""
    asked = []

    async def connect(sender):
        asked.append(sender)

    monkeypatch.setattr(type(SimulatedBroker("any").transport().sender(Entity("any"))), "make_ready", connect)
    async with Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport()):
        await asyncio.sleep(1)
        assert len(asked) == 1


@in_virtual_time
async def test_a_secondary_that_cannot_be_connected_to_in_advance_disturbs_nothing(monkeypatch):
    tasks = []

    async def refuse(sender):
        tasks.append(asyncio.current_task())
        raise TransportError("nobody there", FailureKind.UNAVAILABLE, FailureReason.CONNECTION)

    monkeypatch.setattr(type(SimulatedBroker("any").transport().sender(Entity("any"))), "make_ready", refuse)
    async with Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport()) as pair:
        await asyncio.sleep(1)
        pair.hold("orders")
        assert (await pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG
        assert [task.exception() for task in tasks] == [None]


@in_virtual_time
async def test_closing_gives_up_a_connection_in_advance(monkeypatch):
    async def hang(sender):
        await asyncio.Event().wait()

    monkeypatch.setattr(type(SimulatedBroker("any").transport().sender(Entity("any"))), "make_ready", hang)
    async with Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport()):
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 1
    assert asyncio.all_tasks() == {asyncio.current_task()}
