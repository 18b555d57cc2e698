"""Consumers that are given messages, of one or both brokers, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from cut_calls import cancel_at_each_await
from pairmq import ConfigurationError, Entity, Message, PairClosed, PairDelivery, PairReceiver
from pairmq.core import lane_name
from pairmq.model import Source
from pairmq.model.events import MessageDelivered, Side
from pairmq.testing import Fault, in_virtual_time
from pairmq.transport import QueueProperties, Receiver

LANE = lane_name("east", "orders")


async def send(pair, *bodies):
    for body in bodies:
        await pair.sender("orders").send(Message(body))


async def left(w):
    """Messages of the queue and of its lane: how many wait, and how many are locked."""
    sides = [(w.pair.primary, "orders")]
    if w.pair.options.continuity:
        sides.append((w.pair.secondary, LANE))
    counts = [await transport.admin.counts(Source(Entity(queue))) for transport, queue in sides]
    return [(each.active, each.locked) for each in counts]


@in_virtual_time
async def test_a_consumer_goes_on_through_an_outage_and_settles_where_it_read(world):
    async with world(continuity=("orders",), failover_interval=0.0) as w:
        got = []
        consumer = w.pair.consumer("orders", got.append)
        await send(w.pair, b"1")
        await asyncio.sleep(1)
        w.east.fail(Fault.DOWN)
        await send(w.pair, b"2")
        await asyncio.sleep(1)
        assert [(each.body, each.origin) for each in got] == [(b"1", Side.PRIMARY), (b"2", Side.SECONDARY)]
        w.west.fail(Fault.DOWN)
        await asyncio.sleep(30)  # it waits for either
        w.east.heal()
        w.west.heal()
        await asyncio.sleep(10)
        w.pair.mark_healthy("orders")
        await send(w.pair, b"3")
        await asyncio.sleep(1)
        assert got[-1].body == b"3"
        for each in got:
            await each.complete()
        await consumer.close()
        assert await left(w) == [(0, 0), (0, 0)]


@in_virtual_time
async def test_it_gives_no_more_than_its_prefetch_until_something_is_settled(world):
    async with world() as w:
        got = []
        consumer = w.pair.consumer("orders", got.append, prefetch=2)
        await send(w.pair, b"1", b"2", b"3", b"4", b"5")
        await asyncio.sleep(1)
        assert [each.body for each in got] == [b"1", b"2"]
        await got[0].complete()
        await asyncio.sleep(1)
        assert [each.body for each in got] == [b"1", b"2", b"3"]
        consumer.prefetch = 0
        await asyncio.sleep(1)
        assert len(got) == 5
        await consumer.close()
        assert (await left(w))[0] == (4, 0)


@in_virtual_time
@pytest.mark.parametrize(("continuity", "expected"), [((), [2, 3, 0]), (("orders",), [])])
async def test_the_broker_may_send_its_prefetch_before_it_is_asked_for(world, monkeypatch, continuity, expected):
    """Not where two sides are read: what one of them had meanwhile would be released, and redelivered each time."""
    hints: list[int] = []
    monkeypatch.setattr(Receiver, "read_ahead", lambda self, messages: hints.append(messages))
    async with world(continuity=continuity, enable_syphon=False) as w:
        got = []
        consumer = w.pair.consumer("orders", got.append, prefetch=2)
        await send(w.pair, b"1")
        await asyncio.sleep(1)
        consumer.prefetch = 3
        await send(w.pair, b"2")
        await asyncio.sleep(1)
        consumer.prefetch = 0
        await send(w.pair, b"3")
        await asyncio.sleep(1)
        await consumer.cancel()
        assert [hint for hint, _ in itertools.groupby(hints)] == expected
        assert [each.body for each in got] == [b"1", b"2", b"3"]
        for each in got:
            await each.complete()


@in_virtual_time
async def test_locks_are_renewed_until_a_message_is_settled_on_either_side(world):
    async with world(continuity=("orders",), control_interval=0) as w:
        await w.pair.primary.admin.delete(Entity("orders"))
        await w.pair.primary.admin.create(Entity("orders"), QueueProperties(lock_duration=5.0))
        await send(w.pair, b"1")
        w.pair.hold("orders")
        await send(w.pair, b"2")
        got = []
        consumer = w.pair.consumer("orders", got.append)
        await asyncio.sleep(1000)
        assert len(got) == 2  # neither was delivered again
        for each in got:
            await each.complete()
        renewals = w.east.operations["SETTLE"], w.west.operations["SETTLE"]
        assert min(renewals) > 10
        await asyncio.sleep(1000)
        assert (w.east.operations["SETTLE"], w.west.operations["SETTLE"]) == renewals
        await consumer.close()


@in_virtual_time
async def test_locks_that_end_one_after_another_are_renewed_together(world, monkeypatch):
    """Of thousands all were looked through for each."""
    rounds, renew = set(), PairDelivery.renew_lock

    async def note(self):
        rounds.add(asyncio.get_running_loop().time())
        await renew(self)

    monkeypatch.setattr(PairDelivery, "renew_lock", note)
    async with world(control_interval=0) as w:
        got = []
        consumer = w.pair.consumer("orders", got.append)
        for number in range(500):
            await send(w.pair, b"%d" % number)
            await asyncio.sleep(0.01)
        await asyncio.sleep(25 - 5)
        assert len(got) == 500
        assert 1 <= len(rounds) <= 15
        assert w.east.operations["SETTLE"] >= 500
        await consumer.close()


@in_virtual_time
async def test_a_lock_that_is_lost_is_logged_once(world, caplog):
    async with world() as w:
        await send(w.pair, b"1")
        got = []
        consumer = w.pair.consumer("orders", got.append, prefetch=1)
        await asyncio.sleep(1)
        w.east.fail(Fault.DOWN)
        await asyncio.sleep(120)  # longer than the lock
        w.east.heal()
        await asyncio.sleep(120)
        assert caplog.text.count("may be handled twice") == 1
        await consumer.close()


@in_virtual_time
async def test_after_a_stop_what_was_given_can_be_settled(world):
    async with world(continuity=("orders",)) as w:
        await send(w.pair, b"1")
        got = []
        consumer = w.pair.consumer("orders", got.append)
        await asyncio.sleep(1)
        await consumer.cancel()
        await send(w.pair, b"2")
        await asyncio.sleep(100)
        assert [each.body for each in got] == [b"1"]
        assert not consumer.idle
        await got[0].complete()
        assert consumer.idle
        await asyncio.sleep(1)
        assert await left(w) == [(1, 0), (0, 0)]


@in_virtual_time
async def test_a_close_waits_for_settlements_and_releases_the_rest_on_both_sides(world):
    async with world(continuity=("orders",)) as w:
        await send(w.pair, b"1", b"2")
        w.pair.hold("orders")
        await send(w.pair, b"3")
        got = []
        consumer = w.pair.consumer("orders", got.append)
        await asyncio.sleep(1)
        assert len(got) == 3
        settling = asyncio.create_task(got[0].complete())
        await asyncio.sleep(0)
        await consumer.close()
        await settling
        assert sum(sum(each) for each in await left(w)) == 2
        assert [locked for _, locked in await left(w)] == [0, 0]
        assert [event.error for event in w.of(MessageDelivered)] == [None]


@in_virtual_time
async def test_it_reports_why_it_ended_by_itself(world):
    ends = []

    def broken(delivery):
        raise ValueError("planted")

    async with world(continuity=("orders",)) as w:
        first = w.pair.consumer("orders", broken, on_end=ends.append)
        w.pair.consumer("prices", broken, on_end=ends.append)
        await send(w.pair, b"1")
        await asyncio.sleep(1)
        await first.close()
        await w.pair.close()
    assert [type(each) for each in ends] == [ValueError, PairClosed]


@in_virtual_time
async def test_a_prefetch_below_0_is_refused(world):
    async with world() as w:
        with pytest.raises(ConfigurationError, match="prefetch is -1"):
            w.pair.consumer("orders", print, prefetch=-1)


@pytest.mark.parametrize("most", [-1, 1.5, True, None])
@in_virtual_time
async def test_a_prefetch_that_would_let_nothing_be_read_is_refused_later_as_well(world, most):
    async with world() as w:
        got = []
        consumer = w.pair.consumer("orders", got.append)
        with pytest.raises(ConfigurationError, match="prefetch is"):
            consumer.prefetch = most
        await send(w.pair, b"1")
        await asyncio.sleep(1)
        assert len(got) == 1


@in_virtual_time
async def test_a_close_that_is_cancelled_at_each_await_releases_what_it_holds(world):
    async with world(continuity=("orders",)) as w:
        got = []
        consumer = w.pair.consumer("orders", got.append)
        await send(w.pair, b"1", b"2")
        await asyncio.sleep(1)
        assert (await left(w))[0] == (0, 2)
        await cancel_at_each_await(asyncio.create_task(consumer.close()))
        await asyncio.sleep(1)
        assert await left(w) == [(2, 0), (0, 0)]


@in_virtual_time
async def test_a_consumer_whose_stop_was_cancelled_keeps_no_receiver(world, monkeypatch):
    async with world() as w:
        consumer = w.pair.consumer("orders", print)
        await asyncio.sleep(1)
        closed, close = [], PairReceiver.close

        async def watched(self):
            closed.append(self)
            await close(self)

        monkeypatch.setattr(PairReceiver, "close", watched)
        await cancel_at_each_await(asyncio.create_task(consumer.cancel()))
        await asyncio.sleep(1)
        assert consumer.idle
        assert closed


@in_virtual_time
async def test_a_callback_that_raises_leaves_no_message_locked_but_those_it_was_given_before(world):
    async with world() as w:
        await send(w.pair, b"1", b"2", b"3", b"4")
        got = []

        def broken(delivery):
            if delivery.body == b"2":
                raise ValueError("planted")
            got.append(delivery)

        w.pair.consumer("orders", broken)
        await asyncio.sleep(300)  # locks last a minute
        assert await left(w) == [(3, 1)]
        await got[0].complete()
        others = []
        w.pair.consumer("orders", others.append)
        await asyncio.sleep(1)
        assert sorted(each.body for each in others) == [b"2", b"3", b"4"]
