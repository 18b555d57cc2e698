"""Receivers of queues with continuity: the primary's queue and its lane side by side, in virtual time (SPEC 11.3)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from cut_calls import cancel_at_each_await
from pairmq import ConfigurationError, Deduplicator, Entity, Message, PairClosed, TransportError
from pairmq.core import lane_name
from pairmq.model import Source
from pairmq.model.events import MessageDeadLettered, MessageDelivered, ReceiverChanged, Side
from pairmq.testing import Fault, Operation, in_virtual_time
from pairmq.transport import QueueProperties

LANE = lane_name("east", "orders")


@dataclass
class Consumer:
    """What a consumer handled, and when."""

    handled: list[tuple[float, bytes, Side]] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.handled]

    def longest_gap(self) -> float:
        times = [at for at, _, _ in self.handled]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


@asynccontextmanager
async def consumer(pair, **arguments):
    """Consume until the block ends."""
    made = Consumer()

    async def consume():
        async with pair.receiver("orders", **arguments) as receiver:
            async for delivery in receiver:
                made.handled.append((asyncio.get_running_loop().time(), delivery.body, delivery.origin))
                try:
                    await delivery.complete()
                except TransportError:
                    made.handled.append((asyncio.get_running_loop().time(), b"not settled", delivery.origin))

    task = asyncio.create_task(consume())
    yield made
    task.cancel()
    await asyncio.wait((task,))


@in_virtual_time
async def test_consumers_go_on_through_an_outage_of_the_primary(world):
    async with world(continuity=("orders",), enable_syphon=True) as w:
        sender, doubtful = w.pair.sender("orders"), set()
        async with consumer(w.pair, prefetch=10) as it:

            async def produce():
                for number in range(600):
                    receipt = await sender.send(Message(b"%d" % number))
                    if receipt.maybe_duplicate:
                        doubtful.add(b"%d" % number)
                    await asyncio.sleep(0.1)

            producing = asyncio.create_task(produce())
            await asyncio.sleep(20)
            w.east.fail(Fault.DOWN)
            await asyncio.sleep(20)
            w.east.heal()
            await producing
            await asyncio.sleep(60)
        times = Counter(it.bodies)
        assert {b"%d" % number for number in range(600)} <= times.keys()
        twice = {body for body, count in times.items() if count > 1} - {b"not settled"}
        assert len(twice - doubtful) <= times[b"not settled"]
        assert it.longest_gap() < 2.0 + 2.0  # failover_interval, and 2 s
        assert {origin for _, _, origin in it.handled} == {Side.PRIMARY, Side.SECONDARY}
        changes = [(event.side, event.open) for event in w.of(ReceiverChanged)]
        assert changes == [(Side.PRIMARY, False), (Side.PRIMARY, True)]


@in_virtual_time
async def test_consumers_go_on_soon_after_one_send_to_the_lane_failed(world):
    """What goes to the shared queues meanwhile, they don't read: it is moved when the primary is back."""
    async with world(continuity=("orders",)) as w, consumer(w.pair, prefetch=10) as it:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN, Operation.SEND, entities=(LANE,), times=1)
        for number in range(200):
            await sender.send(Message(b"%d" % number))
            await asyncio.sleep(0.1)
        assert it.bodies[-1] == b"199"
        assert it.longest_gap() < 2.0


@pytest.mark.parametrize("fault", [Fault.DOWN, Fault.HANG, Fault.UNAUTHORIZED, Fault.BUG])
@in_virtual_time
async def test_consumers_go_on_while_the_secondary_is_unavailable(world, fault):
    async with world(continuity=("orders",)) as w:
        sender = w.pair.sender("orders")
        async with consumer(w.pair) as it:
            await asyncio.sleep(1)
            w.west.fail(fault)
            for number in range(50):
                await sender.send(Message(b"%d" % number))
                await asyncio.sleep(1)
            assert it.bodies == [b"%d" % number for number in range(50)]
            w.west.heal()
            await asyncio.sleep(120)
        last = w.of(ReceiverChanged)[-1]
        assert (last.side, last.open) == (Side.SECONDARY, True)


@in_virtual_time
async def test_a_delivery_of_the_lane_is_the_message_that_was_sent_and_is_settled_there(world):
    async with world(continuity=("orders",)) as w:
        w.east.fail(Fault.DOWN)
        sent = Message(b"1", session_id="s", time_to_live=30.0, application_properties={"a": 1})
        receipt = await w.pair.sender("orders").send(sent)
        async with w.pair.receiver("orders") as receiver:
            (delivery,) = await receiver.receive(wait=5)
            assert delivery.message.with_properties({"a": 1}).application_properties == {"a": 1}
            assert (delivery.message.session_id, delivery.message.time_to_live) == ("s", 30.0)
            assert delivery.message.message_id == receipt.message_id
            assert (delivery.origin, delivery.endpoint.name) == (Side.SECONDARY, "west")
            assert delivery.source == receiver.source  # one message on both sides has one source
            await delivery.renew_lock()
            await delivery.complete()
        assert w.west.messages(LANE) == []
        (event,) = w.of(MessageDelivered)
        assert (event.entity, event.message_id, event.error) == (Entity("orders"), receipt.message_id, None)
        assert event.side is Side.SECONDARY


@in_virtual_time
async def test_a_deduplicator_handles_a_message_once_that_stands_on_both_sides(world):
    async with world(continuity=("orders",)) as w:
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND)
        receipt = await w.pair.sender("orders").send(Message(b"1"))
        w.east.heal()
        assert receipt.maybe_duplicate
        dedupe, handled = Deduplicator(), []
        async with w.pair.receiver("orders") as receiver:
            origins = set()
            while w.east.messages("orders") or w.west.messages(LANE):
                for delivery in await receiver.receive(wait=5):
                    origins.add(delivery.origin)
                    async with dedupe.once(delivery) as first:
                        if first:
                            handled.append(delivery.body)
        assert handled == [b"1"]
        assert origins == {*Side}


@in_virtual_time
async def test_a_delivery_of_the_lane_can_be_abandoned_and_dead_lettered_there(world):
    async with world(continuity=("orders",)) as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send(Message(b"1"))
        async with w.pair.receiver("orders") as receiver:
            (first,) = await receiver.receive(wait=5)
            await first.abandon()
            (again,) = await receiver.receive(wait=5)
            assert again.delivery.delivery_count == 2
            await again.dead_letter("bad", "could not be read")
        ((message, reason),) = w.west.dead_letters(LANE)
        assert (message.body, reason) == (b"1", "bad")


@in_virtual_time
async def test_what_does_not_belong_in_a_lane_is_dead_lettered_and_never_handled(world):
    async with world(continuity=("orders",)) as w:
        w.west.store(Entity(LANE), Message(b"no envelope"))
        async with w.pair.receiver("orders") as receiver:
            assert await receiver.receive(wait=2) == []
        assert [reason for _, reason in w.west.dead_letters(LANE)] == ["malformed-envelope"]
        assert [event.queue for event in w.of(MessageDeadLettered)] == [LANE]


@in_virtual_time
async def test_a_single_receive_raises_only_while_neither_side_can_be_read(world):
    async with world(continuity=("orders",)) as w, w.pair.receiver("orders") as receiver:
        w.east.fail(Fault.DOWN)
        assert await receiver.receive(wait=3) == []
        w.west.fail(Fault.DOWN)
        for wait in (3, 0, 0):
            with pytest.raises(TransportError, match="connection refused"):
                await receiver.receive(wait=wait)
        w.west.heal()
        await w.pair.sender("orders").send(Message(b"1"))
        (delivery,) = await receiver.receive(wait=20)
        await delivery.complete()


@in_virtual_time
async def test_a_receive_that_does_not_wait_asks_both_sides_once(world):
    async with world(continuity=("orders",)) as w, w.pair.receiver("orders") as receiver:
        assert await receiver.receive(wait=0) == []
        await w.pair.sender("orders").send(Message(b"1"))
        (delivery,) = await receiver.receive(wait=0)
        await delivery.complete()
        w.east.operations.clear()
        w.west.operations.clear()
        assert await receiver.receive(wait=0) == []
        assert (w.east.operations["RECEIVE"], w.west.operations["RECEIVE"]) == (1, 1)


@in_virtual_time
async def test_an_idle_receiver_costs_one_long_poll_a_minute_of_each_side(world):
    async with world(continuity=("orders",), control_interval=0) as w, consumer(w.pair):
        await asyncio.sleep(60)
        w.east.operations.clear()
        w.west.operations.clear()
        await asyncio.sleep(3600)
        assert 58 <= w.east.operations["RECEIVE"] <= 61
        assert 58 <= w.west.operations["RECEIVE"] <= 61


@pytest.mark.parametrize("syphon", [False, True])
@in_virtual_time
async def test_a_queue_without_continuity_costs_the_same_operations_beside_one_with_it(world, syphon):
    counted = []
    for continuity in ((), ("invoices.*",)):
        async with world(continuity=continuity, enable_syphon=syphon) as w:
            async with consumer(w.pair) as its:
                sender = w.pair.sender("orders")
                await sender.send(Message(b"healthy"))
                w.east.fail(Fault.DOWN)
                await sender.send(Message(b"diverted"))
                await asyncio.sleep(60)
                w.east.heal()
                await asyncio.sleep(3600)
            assert its.bodies == [b"healthy", b"diverted"][: 1 + syphon]
            if syphon:
                del w.west.operations["ADMIN"]  # it looks for the lanes of the pattern
            counted.append((w.east.operations.copy(), w.west.operations.copy()))
    assert counted[0] == counted[1]


@in_virtual_time
async def test_leaving_releases_what_is_held_on_both_sides(world):
    async with world(continuity=("orders",)) as w:
        await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(4)])
        w.pair.hold("orders")
        await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(4, 8)])
        async with w.pair.receiver("orders", prefetch=4) as receiver:
            await anext(receiver)
            await asyncio.sleep(1)
        for transport, queue in ((w.pair.primary, "orders"), (w.pair.secondary, LANE)):
            counts = await transport.admin.counts(Source(Entity(queue)))
            assert (counts.active, counts.locked) == (4, 0)


@in_virtual_time
async def test_what_no_call_takes_is_given_to_others_after_a_while(world):
    async with world(continuity=("orders",)) as w:
        w.pair.hold("orders")
        sender = w.pair.sender("orders")
        async with w.pair.receiver("orders") as receiver:
            w.east.store(Entity("orders"), Message(b"1"))
            await sender.send(Message(b"2"))
            (first,) = await receiver.receive()
            for _ in range(5):
                await asyncio.sleep(10)
                await first.renew_lock()
            counts = [
                (await transport.admin.counts(Source(Entity(queue)))).locked
                for transport, queue in ((w.pair.primary, "orders"), (w.pair.secondary, LANE))
            ]
            assert counts == [1, 1]
            for _ in range(2):
                await asyncio.sleep(10)
                await first.renew_lock()
            await first.complete()
            other = w.pair.receiver("orders")
            (second,) = await other.receive(wait=0)
            assert second.body != first.body
            await second.complete()
            await other.close()


@in_virtual_time
async def test_the_locks_of_what_waits_are_kept_while_an_earlier_message_is_handled(world):
    async with world(continuity=("orders",)) as w:
        w.pair.hold("orders")
        async with w.pair.receiver("orders", prefetch=5) as receiver:
            for number in range(5):
                w.east.store(Entity("orders"), Message(b"%d" % number))
            counts = []
            async for delivery in receiver:
                await asyncio.sleep(38)
                counts.append(delivery.delivery.delivery_count)
                await delivery.complete()
                if len(counts) == 5:
                    break
        assert counts == [1] * 5


@in_virtual_time
async def test_the_locks_of_what_waits_are_kept_while_others_are_taken_all_the_time(world):
    async with world(continuity=("orders",)) as w:
        await w.pair.primary.admin.delete(Entity("orders"))
        await w.pair.primary.admin.create(Entity("orders"), QueueProperties(lock_duration=5.0))
        for number in range(12):
            w.east.store(Entity("orders"), Message(b"%d" % number))
        counts = []
        async with w.pair.receiver("orders", prefetch=12) as receiver:
            async for delivery in receiver:
                await asyncio.sleep(0.9)
                counts.append(delivery.delivery.delivery_count)
                await delivery.complete()
                if len(counts) == 12:
                    break
        assert counts == [1] * 12


@in_virtual_time
async def test_a_queue_that_does_not_exist_is_reported_to_its_consumer(world):
    async with world(continuity=("nothing",)) as w, w.pair.receiver("nothing") as receiver:
        with pytest.raises(TransportError, match="nothing"):
            await anext(receiver)


@in_virtual_time
async def test_a_lane_that_was_deleted_is_made_again_for_its_consumer(world):
    async with world(continuity=("orders",)) as w:
        async with consumer(w.pair) as it:
            await asyncio.sleep(1)
            del w.west.queues[Entity(LANE)]
            await asyncio.sleep(120)
            w.pair.hold("orders")
            receipt = await w.pair.sender("orders").send(Message(b"1"))
            assert receipt.backlog_queue == LANE
            await asyncio.sleep(10)
        assert it.bodies == [b"1"]


@in_virtual_time
async def test_a_closed_pair_ends_an_iteration_of_both_sides(world):
    async with world(continuity=("orders",)) as w:
        receiver = w.pair.receiver("orders")
        task = asyncio.create_task(anext(receiver))
        await asyncio.sleep(0.1)
        await w.pair.close()
        with pytest.raises(PairClosed):
            await task


@in_virtual_time
async def test_a_closed_pair_ends_receivers_in_the_order_in_which_they_were_made(world):
    """A set of weak references gave another order in each run, also to a simulation of one seed."""
    async with world(continuity=("orders",)) as w:
        ended = []

        async def read(number):
            receiver = w.pair.receiver("orders")
            with pytest.raises(PairClosed):
                await anext(receiver)
            ended.append(number)

        tasks = [asyncio.create_task(read(number)) for number in range(8)]
        await asyncio.sleep(0.1)
        await w.pair.close()
        await asyncio.gather(*tasks)
        assert ended == [*range(8)]


@in_virtual_time
async def test_a_cancelled_receive_loses_nothing(world):
    async with world(continuity=("orders",)) as w, w.pair.receiver("orders") as receiver:
        for number in range(40):
            task = asyncio.create_task(receiver.receive(wait=5))
            await asyncio.sleep(0.0003 * number)
            w.east.store(Entity("orders"), Message(b"%d" % number))
            await asyncio.sleep(0.0003)
            task.cancel()
            found = await asyncio.gather(task, return_exceptions=True)
            deliveries = found[0] if isinstance(found[0], list) else await receiver.receive(wait=5)
            assert [delivery.body for delivery in deliveries] == [b"%d" % number]
            await deliveries[0].complete()


@in_virtual_time
async def test_receivers_of_other_sources_read_the_primary_alone(world):
    async with world(continuity=("orders",), control_interval=0) as w:
        for receiver in (w.pair.receiver("prices"), w.pair.receiver("orders", dead_letter=True)):
            w.west.operations.clear()
            assert await receiver.receive(wait=1) == []
            assert w.west.operations["RECEIVE"] == 0
            await receiver.close()
        with pytest.raises(ConfigurationError, match="doubled in them"):
            async with world(continuity=("news",)) as other:
                other.pair.receiver("news", subscription="a")


@in_virtual_time
async def test_consumers_and_the_syphon_share_a_lane_without_a_second_copy(world):
    async with world(continuity=("orders",), enable_syphon=True, lane_patience=0, syphon_batch=3) as w:
        w.east.fail(Fault.DOWN, Operation.SEND | Operation.PROBE)
        await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(200)])
        w.east.heal()
        async with consumer(w.pair, prefetch=2) as it:
            await asyncio.sleep(120)
        assert sorted(it.bodies) == sorted(b"%d" % n for n in range(200))


@in_virtual_time
async def test_a_receiver_that_is_cancelled_at_each_await_releases_what_it_holds_on_both_sides(world):
    async with world(continuity=("orders",), failover_interval=0.0, enable_syphon=False) as w:
        await w.pair.sender("orders").send(Message(b"1"))
        w.pair.hold("orders")
        await w.pair.sender("orders").send(Message(b"2"))

        async def consume():
            async with w.pair.receiver("orders") as receiver:
                got = [(await receiver.receive(1, 10))[0].body for _ in range(2)]
                assert sorted(got) == [b"1", b"2"]
                await receiver.receive(1, 60)

        consuming = asyncio.create_task(consume())
        await asyncio.sleep(5)
        await cancel_at_each_await(consuming)
        assert consuming.cancelled()
        await asyncio.sleep(2)
        sides = (w.pair.primary, "orders"), (w.pair.secondary, LANE)
        counts = [await transport.admin.counts(Source(Entity(queue))) for transport, queue in sides]
        assert [(each.active, each.locked) for each in counts] == [(1, 0), (1, 0)]
