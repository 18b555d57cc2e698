"""Receiving from the primary through the pair, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from pairmq import ConfigurationError, Entity, EntityKind, LockLost, Message, PairClosed, TransportError
from pairmq.model import Source
from pairmq.testing import Fault, in_virtual_time


@in_virtual_time
async def test_an_iteration_gives_each_message_until_it_is_completed(world):
    async with world() as w:
        await w.pair.sender("orders").send_batch([Message(b"1"), Message(b"2")])
        async with w.pair.receiver("orders") as receiver:
            async for delivery in receiver:
                await delivery.complete()
                if delivery.body == b"2":
                    break
        assert w.home() == []


@in_virtual_time
async def test_an_iteration_survives_an_outage(world):
    async with world(attempt_timeout=1) as w:
        received = []

        async def consume():
            async with w.pair.receiver("orders", prefetch=10) as receiver:
                async for delivery in receiver:
                    received.append(delivery.body)
                    await delivery.complete()

        task = asyncio.create_task(consume())
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(1)
        w.east.fail(Fault.HANG)
        await asyncio.sleep(200)
        w.east.heal()
        await w.pair.sender("orders").send(Message(b"2"))
        await asyncio.sleep(10)
        assert received == [b"1", b"2"]
        task.cancel()
        await asyncio.wait((task,))


@in_virtual_time
async def test_a_single_receive_raises_in_an_outage_and_never_hangs(world):
    async with world(attempt_timeout=1) as w:
        w.east.fail(Fault.HANG)
        receiver = w.pair.receiver("orders")
        with pytest.raises(TransportError, match="no answer within the time limit"):
            await receiver.receive(wait=3)
        await receiver.close()


@in_virtual_time
async def test_deliveries_can_be_abandoned_and_dead_lettered(world):
    async with world() as w:
        await w.pair.sender("orders").send(Message(b"1"))
        async with w.pair.receiver("orders") as receiver:
            (first,) = await receiver.receive()
            await first.abandon()
            (again,) = await receiver.receive()
            assert again.delivery.delivery_count == 2
            await again.dead_letter("bad", "could not be read")
        async with w.pair.receiver("orders", dead_letter=True) as receiver:
            (dead,) = await receiver.receive()
            assert (dead.delivery.dead_letter_reason, dead.message.body) == ("bad", b"1")


@in_virtual_time
async def test_a_lost_lock_is_reported(world):
    async with world() as w:
        await w.pair.sender("orders").send(Message(b"1"))
        async with w.pair.receiver("orders") as receiver:
            (kept,) = await receiver.receive()
            for _ in range(4):
                await asyncio.sleep(45)
                await kept.renew_lock()
            await asyncio.sleep(61)
            with pytest.raises(LockLost):
                await kept.complete()


@in_virtual_time
async def test_leaving_releases_what_is_not_settled(world):
    async with world() as w:
        await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(5)])
        async with w.pair.receiver("orders", prefetch=5) as receiver:
            await anext(receiver)
        async with w.pair.receiver("orders") as receiver:
            assert len(await receiver.receive(10, 0)) == 5


@in_virtual_time
async def test_topics_are_read_through_subscriptions(world):
    async with world() as w:
        news = Entity("news", EntityKind.TOPIC)
        await w.pair.primary.admin.create(news)
        await w.pair.primary.admin.create_subscription(news, "a")
        await w.pair.primary.admin.create_subscription(news, "b")
        sender = w.pair.sender("news", kind="topic")
        w.pair.hold("news", kind="topic")
        await sender.send(Message(b"1"))
        stored = w.backlog()[0]
        assert stored.application_properties["x-pairmq-kind"] == "topic"
        for name in ("a", "b"):
            assert await w.pair.primary.admin.counts(Source(news, name)) is not None


@in_virtual_time
async def test_a_diverted_topic_message_is_moved_back_to_every_subscription(world):
    async with world(enable_syphon=True) as w:
        news = Entity("news", EntityKind.TOPIC)
        await w.pair.primary.admin.create(news)
        for name in ("a", "b"):
            await w.pair.primary.admin.create_subscription(news, name)
        w.pair.hold("news", kind="topic")
        await w.pair.sender("news", kind="topic").send(Message(b"1"))
        await asyncio.sleep(1)
        for name in ("a", "b"):
            async with w.pair.receiver("news", subscription=name) as receiver:
                (delivery,) = await receiver.receive(wait=1)
                assert delivery.body == b"1"


@in_virtual_time
async def test_a_closed_pair_ends_an_iteration(world):
    async with world() as w:
        receiver = w.pair.receiver("orders")
        task = asyncio.create_task(anext(receiver))
        await asyncio.sleep(0.1)
        await w.pair.close()
        with pytest.raises(PairClosed):
            await task


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("continuity", [(), ("orders",)])
@in_virtual_time
async def test_a_receiver_that_another_task_closes_ends_its_iteration(world, continuity, down):
    """It went on forever, and with it a worker's thread."""
    async with world(attempt_timeout=1, continuity=continuity) as w:
        if down:
            w.east.fail(Fault.DOWN)
            w.west.fail(Fault.DOWN)
        receiver = w.pair.receiver("orders")

        async def consume():
            return [delivery.body async for delivery in receiver]

        consuming = [asyncio.create_task(consume()) for _ in range(2)]
        await asyncio.sleep(30)
        await receiver.close()
        async with asyncio.timeout(60):
            assert await asyncio.gather(*consuming, consume()) == [[], [], []]
        with pytest.raises(TransportError, match="closed"):
            await receiver.receive()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"path": ""}, "is empty"),
        ({"path": "x" * 300}, "has 300 characters"),
        ({"path": "a\x00b"}, "control"),
        ({"path": "../etc"}, "segment"),
        ({"path": "orders*"}, "patterns"),
        ({"path": "orders", "prefetch": 0}, "prefetch is 0"),
        ({"path": "orders", "subscription": ""}, "name one"),
    ],
)
@in_virtual_time
async def test_a_wrong_source_is_one_clear_error(world, arguments, error):
    async with world() as w:
        with pytest.raises(ConfigurationError, match=error):
            w.pair.receiver(**arguments)


@pytest.mark.parametrize("path", ["", "x" * 300, "a\nb", "a//b", "orders?"])
@in_virtual_time
async def test_a_wrong_entity_is_one_clear_error(world, path):
    async with world() as w:
        with pytest.raises(ConfigurationError, match="entity path"):
            w.pair.sender(path)


@in_virtual_time
async def test_a_missing_queue_is_said_to_be_missing(world):
    async with world() as w:
        with pytest.raises(TransportError, match="no such entity"):
            await w.pair.receiver("nowhere").receive(wait=0)


@in_virtual_time
async def test_receiving_costs_one_operation_a_poll(world):
    async with world() as w:
        w.east.operations.clear()
        assert await w.pair.receiver("orders").receive(wait=30) == []
        assert w.east.operations == {"RECEIVE": 1}


@in_virtual_time
async def test_tasks_that_share_an_idle_receiver_all_wait_in_vain_for_as_long_as_they_asked_to(world):
    async with world(attempt_timeout=1) as w, w.pair.receiver("orders") as receiver:
        began = asyncio.get_running_loop().time()
        assert await asyncio.gather(*(receiver.receive(1, 3) for _ in range(10))) == [[]] * 10
        assert 3 <= asyncio.get_running_loop().time() - began <= 3.1


@in_virtual_time
async def test_tasks_that_share_a_receiver_ask_the_broker_one_after_another(world, monkeypatch):
    """As `Receiver.receive` demands of its callers: one connection can't wait for two things at once."""
    asking = most = 0

    async with world(attempt_timeout=1) as w:
        receiver = w.pair.receiver("orders")
        ask = receiver._receiver.receive

        async def counted(max_messages: int, wait: float):
            nonlocal asking, most
            asking += 1
            most = max(most, asking)
            try:
                return await ask(max_messages, wait)
            finally:
                asking -= 1

        monkeypatch.setattr(receiver._receiver, "receive", counted)
        await asyncio.gather(*(receiver.receive(1, number / 2) for number in range(10)))
        assert most == 1
        await receiver.close()


@in_virtual_time
async def test_tasks_that_share_a_receiver_get_a_message_each(world):
    async with world(attempt_timeout=1) as w, w.pair.receiver("orders") as receiver:
        waiting = [asyncio.create_task(receiver.receive(1, 600)) for _ in range(10)]
        await asyncio.sleep(100)
        await w.pair.sender("orders").send_batch([Message(b"%d" % number) for number in range(10)])
        received = await asyncio.gather(*waiting)
        assert sorted(delivery.body for [delivery] in received) == [b"%d" % number for number in range(10)]


@in_virtual_time
async def test_tasks_that_ask_a_shared_receiver_once_at_the_same_time_find_what_is_there(world):
    async with world(attempt_timeout=1) as w:
        await w.pair.sender("orders").send_batch([Message(b"%d" % number) for number in range(10)])
        async with w.pair.receiver("orders") as receiver:
            received = await asyncio.gather(*(receiver.receive(1, 0) for _ in range(10)))
            assert all(len(deliveries) == 1 for deliveries in received)


@in_virtual_time
async def test_a_cancelled_receive_leaves_its_turn_to_the_others(world):
    async with world(attempt_timeout=1) as w, w.pair.receiver("orders") as receiver:
        first, second = (asyncio.create_task(receiver.receive(1, 600)) for _ in range(2))
        await asyncio.sleep(1)
        first.cancel()
        await w.pair.sender("orders").send(Message(b"1"))
        [delivery] = await second
        assert delivery.body == b"1"


@in_virtual_time
async def test_tasks_that_iterate_over_one_receiver_share_what_one_poll_brings(world):
    async with world(attempt_timeout=1) as w, w.pair.receiver("orders", prefetch=10) as receiver:
        iterating = [asyncio.create_task(anext(receiver)) for _ in range(10)]
        await asyncio.sleep(100)
        await w.pair.sender("orders").send_batch([Message(b"%d" % number) for number in range(10)])
        async with asyncio.timeout(1):
            received = await asyncio.gather(*iterating)
        assert len({delivery.body for delivery in received}) == 10


@pytest.mark.parametrize("first", ["complete", "abandon"])
@in_virtual_time
async def test_a_second_settlement_is_not_said_to_be_a_lost_lock(world, first):
    async with world() as w:
        await w.pair.sender("orders").send(Message(b"1"))
        (delivery,) = await w.pair.receiver("orders").receive(1)
        await getattr(delivery, first)()
        with pytest.raises(LockLost, match=f"it is {first.removesuffix('e')}ed already"):
            await delivery.complete()
