"""What the simulation has found in the syphon: locks that end unseen, and copies whose confirmation is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from pairmq import Message
from pairmq import testing as simulated
from pairmq.core import Diversion, divert
from pairmq.memory import StateReceiver, StateSender
from pairmq.model import Delivery, Entity, FailureKind, TransportError
from pairmq.model.events import DestinationChanged, MessageMoved, Warned
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time, virtual_wall
from pairmq.transport import QueueProperties

QUEUE = Entity("east/x-servicebus-transfer/0")


def leave(broker: SimulatedBroker, count: int, entity: str = "orders") -> None:
    """Put messages into a backlog queue, as another process would have diverted them."""
    at = datetime.fromtimestamp(virtual_wall(), UTC)
    for number in range(count):
        message = Message(b"%d" % number, message_id=f"{entity}-{number}")
        broker.store(QUEUE, divert(message, Diversion(Entity(entity), at, "other-process", number)))


def lose_locks(broker: SimulatedBroker) -> None:
    """Forget who holds what, as a broker does that fails over to a replica."""
    queue = broker.queues[QUEUE]
    for stored in queue.stored.values():
        queue.release(stored)
    broker.wake_all()


async def drained(w) -> None:
    async with asyncio.timeout(1000):
        while w.backlog():
            await asyncio.sleep(1)


@in_virtual_time
async def test_the_first_locks_are_renewed_even_if_they_are_short(world):
    """Seed 167: the renewals waited longer for their first turn than a lock of five seconds lasts."""
    west = SimulatedBroker("west")
    await west.transport().admin.create(QUEUE, QueueProperties(lock_duration=4.0))
    async with world(west=west, enable_syphon=True) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(west, 3)
        await asyncio.sleep(30)
        assert {stored.deliveries for stored in west.queues[QUEUE].stored.values()} == {1}
        w.east.heal()
        await drained(w)
        assert sorted(w.home()) == [b"0", b"1", b"2"]


@in_virtual_time
async def test_locks_that_come_while_a_slow_broker_renews_others_are_renewed_in_time(world):
    """Seed 5251: they waited for the end of the round, for a pause, and for all others of the next round."""
    west = SimulatedBroker("west")
    await west.transport().admin.create(QUEUE, QueueProperties(lock_duration=5.0))
    async with world(west=west, enable_syphon=True) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        w.west.fail(Fault.SLOW, Operation.SETTLE, delay=0.8)
        leave(west, 75)
        await asyncio.sleep(2)
        leave(west, 25)
        await asyncio.sleep(20)
        assert {stored.deliveries for stored in west.queues[QUEUE].stored.values()} == {1}


@in_virtual_time
async def test_locks_are_kept_when_messages_keep_coming_from_a_far_broker(world):
    """Seed 355: each round of renewals found newer ones to renew, while those of its first waited for its end."""
    west = SimulatedBroker("west")
    await west.transport().admin.create(QUEUE, QueueProperties(lock_duration=5.0))
    async with world(west=west, enable_syphon=True) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        w.west.fail(Fault.SLOW, Operation.SETTLE, delay=0.9)
        leave(west, 55)
        for _ in range(40):
            leave(west, 1)
            await asyncio.sleep(0.5)
        assert {stored.deliveries for stored in west.queues[QUEUE].stored.values()} == {1}


@in_virtual_time
async def test_locks_of_two_batches_are_kept_when_the_broker_is_far(world):
    """Their renewals, some at a time, would take longer than a lock."""
    west = SimulatedBroker("west")
    await west.transport().admin.create(QUEUE, QueueProperties(lock_duration=5.0))
    async with world(west=west, enable_syphon=True, syphon_batch=100, attempt_timeout=10.0) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.SLOW, Operation.SETTLE, delay=0.9)
        leave(west, 99)
        await asyncio.sleep(1)
        leave(west, 100)
        for _ in range(30):
            await asyncio.sleep(1)
            now = asyncio.get_running_loop().time()
            assert min(stored.locked_until - now for stored in west.queues[QUEUE].stored.values()) > 0


@in_virtual_time
async def test_what_is_delivered_again_while_it_is_locked_is_sent_once(world):
    """Seed 169: locks were lost unseen, and the pump held the same messages twice."""
    async with world(enable_syphon=True, ping_primary_interval=60.0) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w.west, 5)
        await asyncio.sleep(5)
        lose_locks(w.west)
        await asyncio.sleep(1)
        w.east.heal()
        await drained(w)
        assert sorted(w.home()) == [b"0", b"1", b"2", b"3", b"4"]


@in_virtual_time
async def test_what_is_delivered_again_while_it_is_being_sent_is_sent_once(world):
    async with world(enable_syphon=True, attempt_timeout=10.0) as w:
        w.east.fail(Fault.SLOW, Operation.SEND, times=1, delay=3.0)
        leave(w.west, 2)
        await asyncio.sleep(1)
        lose_locks(w.west)
        await drained(w)
        assert sorted(w.home()) == [b"0", b"1"]


@in_virtual_time
async def test_a_completion_under_a_lock_that_was_replaced_is_tried_again_under_the_new_one(world):
    async with world(enable_syphon=True, ping_primary_interval=1.0) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w.west, 1)
        await asyncio.sleep(1)
        w.west.fail(Fault.SLOW, Operation.SETTLE, times=1, delay=0.9)
        w.east.heal()
        while not w.home():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        lose_locks(w.west)  # its completion is under way
        await drained(w)
        assert w.home() == [b"0"]
        assert [event.completed for event in w.of(MessageMoved)] == [True]


@in_virtual_time
async def test_copies_in_doubt_do_not_multiply_the_backlog(world):
    """Seed 91: each trial to postpone left a copy without a confirmation, and each copy was postponed in its turn."""
    async with world(enable_syphon=True, syphon_batch=3, ping_primary_interval=60.0) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        w.west.fail(Fault.CONFIRM_LOST, Operation.SEND)
        leave(w.west, 10)
        await asyncio.sleep(600)
        # One pump holds the first message and a batch of three, and tries again after one minute, two, four, and so on.
        assert len(w.backlog()) <= 10 + 4 * 4
        w.west.heal()
        w.east.heal()
        await drained(w)
        assert set(w.home()) == {b"%d" % number for number in range(10)}


@in_virtual_time
async def test_messages_of_other_destinations_still_get_past_copies_in_doubt(world):
    async with world(enable_syphon=True, syphon_batch=3, ping_primary_interval=5.0) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        w.west.fail(Fault.CONFIRM_LOST, Operation.SEND, times=1)
        leave(w.west, 10)
        leave(w.west, 1, "prices")
        await asyncio.sleep(120)
        assert w.home("prices") == [b"0"]


@in_virtual_time
async def test_a_message_whose_copy_is_in_doubt_stays_in_its_line_when_those_behind_it_make_room(world, monkeypatch):
    async with world(enable_syphon=True, syphon_batch=3, ping_primary_interval=5.0) as w:
        sender = type(w.west.transport().sender(QUEUE))
        send_batch, copied = sender.send_batch, []

        async def confirmed_in_part(self, messages):
            results = list(await send_batch(self, messages))
            if self._entity == QUEUE:
                copied.append([message.message_id for message in messages])
                if len(copied) == 1:
                    results[0] = TransportError("lost", FailureKind.UNAVAILABLE, maybe_applied=True)
            return results

        monkeypatch.setattr(sender, "send_batch", confirmed_in_part)
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w.west, 10)
        while len(copied) < 2:
            await asyncio.sleep(0.01)
        assert copied[0][0] not in copied[1]
        w.east.heal()
        await drained(w)
        assert set(w.home()) == {b"%d" % number for number in range(10)}


@in_virtual_time
async def test_a_primary_that_confirms_nothing_gets_one_copy_at_each_trial(world):
    """Seed 128: probes were good, and a whole batch was written twice a second for minutes."""
    async with world(enable_syphon=True, ping_primary_interval=0.5) as w:
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND)
        leave(w.west, 100)
        await asyncio.sleep(60)
        copies = Counter(w.home())
        assert sum(copies.values()) <= 100 + 2 * 60 * 2
        w.east.heal()
        await drained(w)
        assert set(w.home()) == {b"%d" % number for number in range(100)}


@in_virtual_time
async def test_one_operation_of_the_syphon_ends_before_half_of_a_lock(world):
    """Whatever its own time limit is: the lock must outlive the send (SPEC 7.6)."""
    west = SimulatedBroker("west")
    await west.transport().admin.create(QUEUE, QueueProperties(lock_duration=10.0))
    async with world(west=west, enable_syphon=True, attempt_timeout=60) as w:
        w.east.fail(Fault.HANG, Operation.SEND)
        leave(west, 1)
        async with asyncio.timeout(10):
            while not w.east.operations["SEND"]:
                await asyncio.sleep(0.01)
        assert w.of(DestinationChanged) == []
        await asyncio.sleep(5)
        assert [event.open for event in w.of(DestinationChanged)][:1] == [False]


@in_virtual_time
async def test_nothing_is_sent_under_a_lock_that_may_end_before_the_send(world):
    """It is renewed first, and where that fails the message is left to its next receiver (SPEC 7.6)."""
    west = SimulatedBroker("west")
    await west.transport().admin.create(QUEUE, QueueProperties(lock_duration=10.0))
    async with world(west=west, enable_syphon=True, ping_primary_interval=0.5) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(west, 1)
        await asyncio.sleep(1)
        w.west.fail(Fault.DOWN, Operation.SETTLE)
        await asyncio.sleep(5.5)  # the lock has less than half of its time left, and is not renewed
        w.east.heal()
        await asyncio.sleep(1.5)
        assert w.home() == []
        w.west.heal()
        await drained(w)
        assert w.home() == [b"0"]


@in_virtual_time
async def test_a_message_that_is_never_confirmed_gets_few_copies_and_delays_no_other(world, monkeypatch):
    """It was sent again about once a minute, 272 times in four hours, and everything behind it waited."""
    async with world(enable_syphon=True, failover_interval=0.0) as w:
        sender = type(w.east.transport().sender(Entity("orders")))
        send, send_batch, lost = sender.send, sender.send_batch, {"orders-0"}

        async def confirmed_in_part(self, messages):
            results = await send_batch(self, messages)
            error = TransportError("lost", FailureKind.UNAVAILABLE, maybe_applied=True)
            return [
                error if each.message_id in lost else result for each, result in zip(messages, results, strict=True)
            ]

        async def never_confirmed(self, message):
            await send(self, message)
            if message.message_id in lost:
                raise TransportError("lost", FailureKind.UNAVAILABLE, maybe_applied=True)

        monkeypatch.setattr(sender, "send", never_confirmed)
        monkeypatch.setattr(sender, "send_batch", confirmed_in_part)
        leave(w.west, 20)
        await asyncio.sleep(60)
        assert set(w.home()) == {b"%d" % number for number in range(20)}
        assert len(w.backlog()) == 1
        await asyncio.sleep(4 * 3600 - 60)
        assert 5 <= Counter(w.home())[b"0"] <= 40
        assert any("'orders-0' was sent to orders" in event.text for event in w.of(Warned))
        leave(w.west, 5, "prices")
        await asyncio.sleep(10)
        assert len(w.home("prices")) == 5
        lost.clear()
        await asyncio.sleep(600)
        assert w.backlog() == []


FAR = 0.3  # s of a round trip, as between continents


def far_pair() -> dict[str, SimulatedBroker]:
    return {name: SimulatedBroker(name, latency=FAR) for name in ("east", "west")}


@in_virtual_time
@pytest.mark.parametrize("locks_end", [False, True])
async def test_a_far_batch_of_which_a_part_was_completed_when_the_connection_broke_is_sent_once(
    world, monkeypatch, locks_end
):
    """A third is completed and confirmed, a third completed without that, a third not; then both brokers are down."""
    monkeypatch.setattr(simulated.SimulatedReceiver, "complete_batch", StateReceiver.complete_batch)
    cut: list[int] = []

    async def torn(self: StateReceiver, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        if cut or len(deliveries) < 30:
            return await StateReceiver.complete_batch(self, deliveries)
        third = len(deliveries) // 3
        cut.append(len(deliveries))
        await StateReceiver.complete_batch(self, deliveries[: 2 * third])
        w.west.fail(Fault.DOWN)
        w.east.fail(Fault.DOWN)
        if locks_end:
            lose_locks(w.west)
        lost = TransportError("connection lost", FailureKind.UNAVAILABLE, maybe_applied=True)
        return [None] * third + [lost] * (len(deliveries) - third)

    async with world(**far_pair(), enable_syphon=True, syphon_batch=10, attempt_timeout=5.0) as w:
        monkeypatch.setattr(simulated.SimulatedReceiver, "complete_batch", torn)
        leave(w.west, 600)
        async with asyncio.timeout(100):
            while not cut:
                await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        w.west.heal()
        w.east.heal()
        await drained(w)
        assert cut[0] >= 30
        bodies = Counter(w.home())
        assert len(bodies) == 600
        # What was completed or sent before is known. Only what was on its way to the primary may be there twice.
        doubtful = {event.message_id for event in w.of(MessageMoved) if event.maybe_duplicate}
        assert {f"orders-{int(body)}" for body, times in bodies.items() if times > 1} <= doubtful
        moved = Counter(event.message_id for event in w.of(MessageMoved))
        assert len(moved) == 600
        assert set(moved.values()) == {1}


@in_virtual_time
async def test_a_far_batch_of_which_a_part_was_confirmed_when_the_connection_broke_is_explained(world, monkeypatch):
    """A third is stored and confirmed, a third stored without that, a third not; then the primary is down."""
    torn: list[list[str]] = []

    async def send_batch(self: StateSender, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        if torn or len(messages) < 30:
            return await StateSender.send_batch(self, messages)
        third = len(messages) // 3
        torn.append([str(message.message_id) for message in messages[third : 2 * third]])
        await StateSender.send_batch(self, messages[: 2 * third])
        w.east.fail(Fault.DOWN)
        lost = TransportError("connection lost", FailureKind.UNAVAILABLE, maybe_applied=True)
        return [None] * third + [lost] * (len(messages) - third)

    async with world(**far_pair(), enable_syphon=True, syphon_batch=10, attempt_timeout=5.0) as w:
        monkeypatch.setattr(simulated.SimulatedSender, "send_batch", send_batch)
        leave(w.west, 600)
        async with asyncio.timeout(100):
            while not torn:
                await asyncio.sleep(0.05)
        await asyncio.sleep(10)
        w.east.heal()
        await drained(w)
        times = Counter(f"orders-{int(body)}" for body in w.home())
        assert len(times) == 600
        assert sorted(name for name, count in times.items() if count == 2) == sorted(torn[0])
        assert max(times.values()) == 2
        doubtful = {event.message_id for event in w.of(MessageMoved) if event.maybe_duplicate}
        assert set(torn[0]) <= doubtful
