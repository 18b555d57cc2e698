"""Lanes of a pair: diverted sends, the syphon beside consumers, and states, in virtual time (SPEC 11)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from pairmq import ConfigurationError, Entity, EntityState, Message, Pair, PairOptions, Route
from pairmq.core import lane_name
from pairmq.model import Source
from pairmq.model.events import MessageMoved, RotationChanged, SyphonFailed, Warned
from pairmq.runner import LOOK_INTERVAL
from pairmq.testing import Fault, Operation, SimulatedAdmin, SimulatedBroker, in_virtual_time
from pairmq.transport import Admin

LANE = lane_name("east", "orders")


@in_virtual_time
async def test_a_diverted_send_goes_to_its_queues_lane(world):
    async with world(continuity=("orders",)) as w:
        assert Entity(LANE) in w.west.queues  # from pairing on
        w.east.fail(Fault.DOWN)
        orders = await w.pair.sender("orders").send(Message(b"1"))
        prices = await w.pair.sender("prices").send(Message(b"2"))
        assert (orders.route, orders.backlog_queue) == (Route.BACKLOG, LANE)
        assert prices.backlog_queue in {queue.path for queue in w.pair.backlog_queues[:3]}


@in_virtual_time
async def test_a_lane_of_a_pattern_is_made_at_its_first_use(world):
    async with world(continuity=("ord*",)) as w:
        assert Entity(LANE) not in w.west.queues
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN)
        assert (await sender.send(Message(b"1"))).backlog_queue == LANE


@in_virtual_time
async def test_a_new_lane_is_not_said_to_have_lost_what_it_held(world, monkeypatch):
    """The syphon finds it missing while it is made, and has it made too; RabbitMQ tells both that they did."""
    create = SimulatedAdmin.create
    calls: list[Entity] = []

    async def create_or_not(self, entity, properties=None):
        exists = await self.exists(entity)
        await asyncio.sleep(0.2 if len(calls) % 2 else 0.1)
        calls.append(entity)
        await create(self, entity, properties)
        return not exists

    async with world(continuity=("ord*",), enable_syphon=True) as w:
        monkeypatch.setattr(SimulatedAdmin, "create", create_or_not)
        w.pair.sender("orders")
        await asyncio.sleep(10)
        assert calls.count(Entity(LANE)) > 1
        assert w.of(Warned) == []


@in_virtual_time
async def test_a_syphon_reads_a_new_lane_once_it_is_there(world, monkeypatch):
    create = SimulatedAdmin.create

    async def create_slowly(self, entity, properties=None):
        await asyncio.sleep(0.2)
        return await create(self, entity, properties)

    async with world(continuity=("ord*",), enable_syphon=True) as w:
        monkeypatch.setattr(SimulatedAdmin, "create", create_slowly)
        w.pair.receiver("orders")
        await asyncio.sleep(10)
        assert Entity(LANE) in w.west.queues
        assert w.of(SyphonFailed, RotationChanged) == []


@in_virtual_time
async def test_a_send_whose_lane_fails_goes_to_a_shared_queue_and_returns_to_the_lane(world):
    async with world(continuity=("orders",), backlog_retry_interval=5) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN, entities=[LANE])
        sender = w.pair.sender("orders")
        receipt = await sender.send(Message(b"1"))
        assert receipt.backlog_queue in {queue.path for queue in w.pair.backlog_queues[:3]}
        assert [event.queue for event in w.of(RotationChanged)] == [LANE]
        w.west.heal()
        await asyncio.sleep(6)
        assert (await sender.send(Message(b"2"))).backlog_queue == LANE


@in_virtual_time
async def test_a_scheduled_message_is_not_put_where_a_consumer_would_get_it_too_soon(world):
    async with world(continuity=("orders",)) as w:
        w.east.fail(Fault.DOWN)
        due = datetime.now(UTC) + timedelta(hours=1)
        receipt = await w.pair.sender("orders").send(Message(b"1", scheduled_enqueue_at=due))
        assert receipt.backlog_queue != LANE


@in_virtual_time
async def test_a_lane_that_was_deleted_is_made_again_for_a_send(world):
    async with world(continuity=("orders",)) as w:
        w.east.fail(Fault.DOWN)
        del w.west.queues[Entity(LANE)]
        assert (await w.pair.sender("orders").send(Message(b"1"))).backlog_queue == LANE


@in_virtual_time
async def test_the_syphon_moves_a_lane_without_consumers_after_its_patience(world):
    async with world(continuity=("orders",), enable_syphon=True, lane_patience=5) as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(5)])
        w.east.heal()
        await asyncio.sleep(8)
        assert w.pair.state("orders") is EntityState.DRAINING
        await asyncio.sleep(30)
        assert w.home() == [b"0", b"1", b"2", b"3", b"4"]
        assert w.pair.state("orders") is EntityState.HEALTHY
        assert {event.queue for event in w.of(MessageMoved)} == {LANE}


@in_virtual_time
async def test_the_syphon_leaves_a_lane_to_consumers_that_make_progress(world):
    async with world(continuity=("orders",), enable_syphon=True, lane_patience=5) as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(10)])
        w.east.heal()
        reader = w.west.transport()
        receiver = reader.receiver(Source(Entity(LANE)))
        for _ in range(10):
            (delivery,) = await receiver.receive(1, 1)
            await asyncio.sleep(2)
            await receiver.complete(delivery)
        await receiver.close()
        await reader.close()
        await asyncio.sleep(30)
        assert w.home() == []
        assert w.pair.state("orders") is EntityState.HEALTHY  # a drain by consumers is a drain


@in_virtual_time
async def test_the_syphon_keeps_no_message_of_a_lane_while_the_primary_is_unavailable(world):
    async with world(continuity=("orders",), enable_syphon=True, lane_patience=0) as w:
        w.east.fail(Fault.DOWN)
        sender = w.pair.sender("orders")
        counts = []
        for number in range(20):
            await sender.send(Message(b"%d" % number))
            await asyncio.sleep(1)
            counts.append((await w.pair.secondary.admin.counts(Source(Entity(LANE)))).locked)
        assert set(counts) == {0}


@in_virtual_time
async def test_the_syphon_releases_a_lanes_messages_when_the_destination_fails_under_it(world):
    async with world(continuity=("orders",), enable_syphon=True, lane_patience=0, syphon_batch=2) as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(6)])
        w.east.heal()
        w.east.fail(Fault.HANG, Operation.SEND, times=1)
        w.east.fail(Fault.DOWN, Operation.SEND | Operation.PROBE)
        while (await w.pair.secondary.admin.counts(Source(Entity(LANE)))).locked == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(3)
        for _ in range(40):
            counts = await w.pair.secondary.admin.counts(Source(Entity(LANE)))
            assert (counts.active, counts.locked, counts.scheduled) == (6, 0, 0)
            assert [message.body for message in w.west.messages(LANE)] == [b"%d" % n for n in range(6)]  # no copies
            await asyncio.sleep(0.5)
        w.east.heal()
        await asyncio.sleep(60)
        assert sorted(w.home()) == [b"%d" % n for n in range(6)]


@in_virtual_time
async def test_an_entity_does_not_wait_for_anothers_lane(world):
    async with world(continuity=("orders",), enable_syphon=True, lane_patience=300) as w:
        w.east.fail(Fault.DOWN)
        for name in ("orders", "prices"):
            await w.pair.sender(name).send(Message(b"1"))
        w.east.heal()
        await asyncio.sleep(60)
        assert (w.pair.state("orders"), w.pair.state("prices")) == (EntityState.DRAINING, EntityState.HEALTHY)


@pytest.mark.parametrize("lists", [True, False], ids=["by name", "by the record"])
@in_virtual_time
async def test_a_syphon_learns_of_lanes_that_other_processes_use_by_a_pattern(world, lists, monkeypatch):
    if not lists:  # as RabbitMQ without its management plugin
        monkeypatch.setattr(SimulatedAdmin, "list_entities", Admin.list_entities)
    async with world(continuity=("ord*",)) as w:
        options = PairOptions(continuity=("ord*",), enable_syphon=True, backlog_queue_count=3, lane_patience=5)
        syphon = Pair(w.east.transport(), w.west.transport(), options)
        sender = w.pair.sender("orders")
        async with syphon:
            w.east.fail(Fault.DOWN)
            await sender.send(Message(b"1"))
            w.east.heal()
            await asyncio.sleep(120)
        assert w.home() == [b"1"]


OTHERS: dict[str, dict[str, dict[str, object]]] = {
    "consumers have no lanes": {"consumer": {}, "syphon": {}, "sender": {"continuity": ("orders",)}},
    "consumers have no lanes, senders a pattern": {"consumer": {}, "syphon": {}, "sender": {"continuity": ("ord*",)}},
    "senders have no lanes": {"consumer": {"continuity": ("orders",)}, "syphon": {}, "sender": {}},
    "consumers name another queue": {
        "consumer": {"continuity": ("prices",)},
        "syphon": {"continuity": ("prices",)},
        "sender": {"continuity": ("orders",)},
    },
    "senders have more backlog queues": {
        "consumer": {"continuity": ("orders",)},
        "syphon": {"continuity": ("orders",)},
        "sender": {"continuity": ("orders",), "backlog_queue_count": 9},
    },
    "senders have another prefix": {
        "consumer": {"continuity": ("orders",)},
        "syphon": {"continuity": ("orders",)},
        "sender": {"continuity": ("orders",), "backlog_name_template": "spare/{primary}/{index}"},
    },
}


@pytest.mark.parametrize("older", [True, False], ids=["senders start last", "senders start first"])
@pytest.mark.parametrize("which", OTHERS)
@in_virtual_time
async def test_processes_with_other_options_report_it_and_strand_nothing(which, older):
    defaults = {"backlog_queue_count": 3, "failover_interval": 0.0, "attempt_timeout": 1.0, "lane_patience": 5.0}
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    await east.transport().admin.create(Entity("orders"))
    pairs, events, handled = {}, {}, []

    async def consume():
        async for delivery in pairs["consumer"].receiver("orders"):
            handled.append(delivery.body)
            await delivery.complete()

    async with AsyncExitStack() as stack:
        for name in ("consumer", "syphon", "sender") if older else ("sender", "syphon", "consumer"):
            options = PairOptions(**{**defaults, **OTHERS[which][name], "enable_syphon": name == "syphon"})
            pairs[name] = Pair(east.transport(), west.transport(), options)
            pairs[name].subscribe(events.setdefault(name, []).append)
            await stack.enter_async_context(pairs[name])
            await asyncio.sleep(60)
        consuming = asyncio.create_task(consume())
        east.fail(Fault.DOWN)
        sent = [b"%d" % number for number in range(40)]
        for body in sent[:30]:  # each by a sender of its own, so that all backlog queues are used
            await pairs["sender"].sender("orders").send(Message(body))
        west.fail(Fault.DOWN, entities=[LANE])
        for body in sent[30:]:
            await pairs["sender"].sender("orders").send(Message(body))
        west.heal()
        await asyncio.sleep(30)
        east.heal()
        # A syphon looks at the record every ten minutes, and where it may name new lanes at any time every half minute.
        await asyncio.sleep(LOOK_INTERVAL + 120 if older else 120)
        consuming.cancel()
        await asyncio.wait((consuming,))
        for name, pair in pairs.items():
            agreement = await pair.agreement(everywhere=True)
            warned = [event.text for event in events[name] if isinstance(event, Warned)]
            assert bool(agreement.differences) == any(OTHERS[which][name] != each for each in OTHERS[which].values())
            assert set(agreement.differences) <= set(warned)
            assert not agreement.strays
    assert sorted(handled) == sorted(sent)


async def test_a_lane_under_another_name_of_the_primary_is_reported():
    options = {"continuity": ("orders",), "failover_interval": 0, "backlog_queue_count": 1}
    async with Pair.connect("memory://named?name=other", "memory://names", **options) as sender:
        await sender.primary.admin.create(Entity("orders"))
        sender.force_failover("orders")
        await sender.sender("orders").send(Message(b"1"))
        async with Pair.connect("memory://named", "memory://names", **options) as consumer:
            [stray] = (await consumer.agreement(everywhere=True)).strays
            assert (stray.queue.path, stray.pending, stray.certain) == ("other/x-pairmq-lane/orders", 1, True)
            assert "give all processes one URL" in stray.reason


@in_virtual_time
async def test_a_topic_is_refused_with_the_reason(world):
    async with world(continuity=("news",)) as w:
        with pytest.raises(ConfigurationError, match="missing from the other subscriptions"):
            w.pair.sender("news", kind="topic")
