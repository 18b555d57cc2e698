"""Order through an outage: SPEC 8, in virtual time."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pairmq import BacklogUnavailable, ConfigurationError, Entity, Message, Pair, PairOptions, Receipt, Route
from pairmq.core.order import backlog_queue_of
from pairmq.model import EntityState, FailureKind, FailureReason, SendError, SendUnknown, TransportError
from pairmq.model.events import BacklogQueueChecked, Cause, MessageMoved, StateChanged, SyphonFailed, Warned
from pairmq.runner import Clock
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time, virtual_wall
from pairmq.transport import QueueProperties

ORDERS = Entity("orders")
PRIMARY, BACKLOG = Route.PRIMARY, Route.BACKLOG


def of(session: str, body: str) -> Message:
    return Message(body.encode(), session_id=session)


def queue_of(world, session: str, count: int = 3) -> str:
    return world.pair.backlog_queues[backlog_queue_of(ORDERS, session, "", count)].path


@asynccontextmanager
async def syphon(world, **options):
    """Another process that empties the backlog."""
    chosen = {"backlog_queue_count": 3, "enable_syphon": True, "ordering": "session", "attempt_timeout": 1.0, **options}
    clock = Clock(virtual_wall, random.Random(2))
    async with Pair(world.east.transport(), world.west.transport(), PairOptions(**chosen), clock=clock) as pair:
        yield pair


async def diverted(world, sender, session: str, *bodies: str) -> None:
    """An outage in which messages of a session go to the backlog; at its end the entity is up again."""
    world.east.fail(Fault.DOWN)
    for body in bodies:
        assert (await sender.send(of(session, body))).route is BACKLOG
    world.east.heal()
    world.pair.mark_healthy("orders")


@in_virtual_time
async def test_the_first_send_of_a_session_looks_and_goes_to_the_primary(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        before = w.west.operations["ADMIN"]
        receipts = [await sender.send(of("s", body)) for body in "ab"]
        assert [receipt.route for receipt in receipts] == [PRIMARY, PRIMARY]
        assert w.west.operations["ADMIN"] == before + 1  # the second one needs no look


@in_virtual_time
async def test_a_look_that_is_refused_is_reported(world, monkeypatch):
    """Each session went through the backlog forever, with both brokers well, and nothing said why."""
    async with world(ordering="session", backlog_queue_count=1) as w:
        no_right = TransportError("no right to look", FailureKind.REFUSED, FailureReason.UNAUTHORIZED)

        async def refuse(*_):
            raise no_right

        monkeypatch.setattr(type(w.pair._engine.secondary.admin), "positions", refuse)
        sender = w.pair.sender("orders")
        for session in "abc":
            assert (await sender.send(of(session, "1"))).route is BACKLOG
        [warning] = [event for event in w.events if isinstance(event, Warned)]
        assert warning.subject == queue_of(w, "a", 1)
        assert "no right to look" in warning.text


@in_virtual_time
async def test_a_send_without_a_session_needs_no_look(world):
    async with world(ordering="session") as w:
        before = w.west.operations["ADMIN"]
        assert (await w.pair.sender("orders").send(Message(b"1"))).route is PRIMARY
        assert w.west.operations["ADMIN"] == before


@in_virtual_time
async def test_a_diverted_session_keeps_diverting_to_its_queue_when_the_entity_is_back(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", "a", "b")
        receipt = await sender.send(of("s", "c"))
        assert (receipt.route, receipt.backlog_queue) == (BACKLOG, queue_of(w, "s"))
        assert [message.body for message in w.west.messages(queue_of(w, "s"))] == [b"a", b"b", b"c"]


@in_virtual_time
@pytest.mark.parametrize("turns", range(8))
async def test_a_session_is_seen_to_be_clean_and_its_send_is_routed_in_one_step(world, turns):
    """In a turn of the loop between the two an outage may begin: a session would be diverted and count as clean."""
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await sender.send(of("s", "a"))
        sending = asyncio.create_task(sender.send(of("s", "b")))
        for _ in range(turns):
            await asyncio.sleep(0)
        w.pair.force_failover("orders")
        first = await sending
        w.pair.mark_healthy("orders")
        assert (first.route, (await sender.send(of("s", "c"))).route) != (BACKLOG, PRIMARY)


@in_virtual_time
async def test_other_keys_return_to_the_primary_at_once(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        assert (await sender.send(of("other", "0"))).route is PRIMARY
        await diverted(w, sender, "s", "a")
        assert (await sender.send(of("other", "1"))).route is PRIMARY
        assert (await w.pair.sender("orders").send(Message(b"2"))).route is PRIMARY


@in_virtual_time
async def test_a_session_returns_when_another_process_has_drained_it(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", "a", "b")
        async with syphon(w):
            assert (await sender.send(of("s", "c"))).route is PRIMARY
            assert w.home() == [b"a", b"b", b"c"]


@in_virtual_time
async def test_a_session_returns_while_others_go_on_diverting_to_its_queue(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        sender, prices = w.pair.sender("orders"), w.pair.sender("prices")
        w.pair.hold("prices")
        await diverted(w, sender, "s", "a")
        going_on = True

        async def others() -> None:
            while going_on:
                assert (await prices.send(of("p", "x"))).route is BACKLOG
                await asyncio.sleep(0.05)

        task = asyncio.create_task(others())
        async with syphon(w, backlog_queue_count=1):
            receipt = await sender.send(of("s", "b"))
            going_on = False
            await task
        assert receipt.route is PRIMARY
        assert w.home() == [b"a", b"b"]


@in_virtual_time
async def test_a_session_under_continuous_traffic_returns_and_keeps_its_order(world):
    async with world(ordering="session", enable_syphon=True) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN)
        receipts = []
        for number in range(200):
            if number == 100:
                w.east.heal()
            receipts.append(await sender.send(of("s", str(number)), timeout=10))
            await asyncio.sleep(0.1)
        assert receipts[50].route is BACKLOG
        assert receipts[-1].route is PRIMARY
        assert w.home() == [str(number).encode() for number in range(200)]


@in_virtual_time
async def test_a_restarted_process_does_not_overtake_what_its_predecessor_left(world):
    async with world(ordering="session") as w:
        await diverted(w, w.pair.sender("orders"), "s", "a", "b")
        async with syphon(w, enable_syphon=False) as successor:
            assert (await successor.sender("orders").send(of("s", "c"))).route is BACKLOG


@in_virtual_time
async def test_a_session_that_rested_is_looked_at_anew(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        assert (await sender.send(of("s", "a"))).route is PRIMARY
        async with syphon(w, enable_syphon=False) as other:
            other.force_failover("orders")
            assert (await other.sender("orders").send(of("s", "b"))).route is BACKLOG
        await asyncio.sleep(31)
        assert (await sender.send(of("s", "c"))).route is BACKLOG


@in_virtual_time
async def test_forgotten_sessions_are_looked_at_anew(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", "a")
        await sender.send_batch([of(f"another-{number}", "x") for number in range(10_002)])  # more than are remembered
        assert (await sender.send(of("s", "b"))).route is BACKLOG


@in_virtual_time
async def test_looks_end_soon_where_no_syphon_works(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", "a")
        receipts = [await sender.send(of("s", str(number))) for number in range(10)]
        assert receipts[0].elapsed == pytest.approx(2.0, abs=0.3)
        assert all(receipt.elapsed < 0.1 for receipt in receipts[1:])


@in_virtual_time
@pytest.mark.parametrize("as_batch", [True, False])
async def test_nothing_is_refused_because_many_of_one_session_wait_for_a_queue_that_drains_slowly(world, as_batch):
    async with world(ordering="session", backlog_queue_count=1) as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", *map(str, range(300)))
        bodies = [str(number) for number in range(300, 400)]
        async with syphon(w, backlog_queue_count=1, syphon_max_rate=2):
            await asyncio.sleep(5)
            w.west.fail(Fault.SLOW, delay=0.02)
            if as_batch:
                results = await sender.send_batch([of("s", body) for body in bodies], timeout=60)
            else:
                results = await asyncio.gather(*(sender.send(of("s", b), timeout=60) for b in bodies))
        assert [result.route for result in results] == [BACKLOG] * 100
        assert w.home() + [message.body for message in w.backlog()] == [b"%d" % number for number in range(400)]


@in_virtual_time
async def test_a_full_line_of_one_session_returns_while_others_go_on_diverting_to_its_queue(world):
    async with world(ordering="session", backlog_queue_count=1, enable_syphon=True) as w:
        sender, prices = w.pair.sender("orders"), w.pair.sender("prices")
        w.pair.hold("prices")
        w.east.fail(Fault.DOWN, entities=["orders"])
        w.west.fail(Fault.SLOW, delay=0.01)
        going_on, routes = True, []

        async def send_on() -> None:
            while going_on:
                routes.append((await sender.send(of("s", "x"), timeout=20)).route)

        async def others() -> None:
            while going_on:
                await prices.send(of("p", "x"))
                await asyncio.sleep(0.02)

        tasks = [asyncio.create_task(each) for each in (others(), *(send_on() for _ in range(20)))]
        await asyncio.sleep(5)
        w.east.heal()
        await asyncio.sleep(10)
        going_on = False
        await asyncio.gather(*tasks)
        assert BACKLOG in routes
        assert routes[-1] is PRIMARY


@in_virtual_time
async def test_a_long_batch_of_a_new_session_waits_for_the_answer_of_its_queue_and_goes_to_the_primary(world):
    async with world(ordering="session") as w:
        w.west.fail(Fault.SLOW, Operation.ADMIN, delay=0.1)
        receipts = await w.pair.sender("orders").send_batch([of("s", "x") for _ in range(200)])
        assert {receipt.route for receipt in receipts} == {PRIMARY}


@in_virtual_time
async def test_sends_of_a_session_whose_queue_is_unavailable_are_refused_and_no_other_queue_has_them(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", "a")
        w.west.fail(Fault.DOWN, entities=[queue_of(w, "s")])
        with pytest.raises(BacklogUnavailable):
            await sender.send(of("s", "b"), timeout=5)
        assert w.home() == []
        w.west.heal()
        assert [message.body for message in w.backlog()] == [b"a"]
        assert (await sender.send(of("s", "c"))).backlog_queue == queue_of(w, "s")


@in_virtual_time
async def test_a_send_waits_for_its_queue_inside_its_deadline(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", "a")
        w.west.fail(Fault.DOWN, entities=[queue_of(w, "s")])
        sending = asyncio.create_task(sender.send(of("s", "b"), timeout=20))
        await asyncio.sleep(5)
        w.west.heal()
        assert (await sending).backlog_queue == queue_of(w, "s")


@in_virtual_time
async def test_an_unknown_session_is_refused_while_its_queue_cannot_be_looked_at(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        assert (await sender.send(of("known", "1"))).route is PRIMARY
        w.west.fail(Fault.HANG)
        assert (await sender.send(of("known", "2"))).route is PRIMARY
        with pytest.raises((BacklogUnavailable, SendUnknown)):
            await sender.send(of("unknown", "3"), timeout=5)
        assert w.home() == [b"1", b"2"]


@in_virtual_time
async def test_sends_of_one_session_arrive_in_the_order_of_their_calls(world):
    async with world(ordering="session", max_pending_sends=3) as w:
        sender, another = w.pair.sender("orders"), w.pair.sender("orders")
        w.east.fail(Fault.TRANSIENT, Operation.SEND, times=1)  # a retry of the first must not let the second pass
        sends = [(sender, another)[number % 2].send(of("s", str(number))) for number in range(20)]
        await asyncio.gather(*sends)
        assert w.home() == [str(number).encode() for number in range(20)]


@in_virtual_time
async def test_a_batch_keeps_the_order_of_each_session(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.TRANSIENT, Operation.SEND, times=3)
        batch = [of(f"s{number % 3}", str(number)) for number in range(30)]
        assert all(isinstance(result, Receipt) for result in await sender.send_batch(batch))
        for rest in range(3):
            assert [b for b in w.home() if int(b) % 3 == rest] == [str(n).encode() for n in range(30) if n % 3 == rest]


@in_virtual_time
async def test_a_cancelled_send_lets_the_next_one_of_its_session_go(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await sender.send(of("s", "a"))
        w.east.fail(Fault.HANG)
        hanging = asyncio.create_task(sender.send(of("s", "b")))
        waiting = asyncio.create_task(sender.send(of("s", "c")))
        await asyncio.sleep(0.1)
        w.east.heal()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert (await waiting).route is PRIMARY


@in_virtual_time
async def test_a_cancelled_send_that_waits_for_its_turn_leaves_the_line(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)
        sends = [asyncio.create_task(sender.send(of("s", body))) for body in "abc"]
        await asyncio.sleep(0.1)
        sends[1].cancel()
        await asyncio.wait(sends)
        assert w.home() == [b"a", b"c"]


@in_virtual_time
async def test_a_diverted_send_that_certainly_failed_leaves_its_session_where_it_was(world):
    async with world(ordering="session") as w:
        sender = w.pair.sender("orders")
        await sender.send(of("s", "a"))
        w.pair.force_failover("orders")
        w.west.fail(Fault.DOWN)
        with pytest.raises(BacklogUnavailable):
            await sender.send(of("s", "b"), timeout=1)
        w.pair.mark_healthy("orders")
        assert (await sender.send(of("s", "c"))).route is PRIMARY


@in_virtual_time
async def test_an_entity_is_seen_draining_while_a_session_keeps_diverting(world):
    async with world(ordering="session", enable_syphon=True) as w:
        sender = w.pair.sender("orders")
        await asyncio.sleep(10)
        assert w.pair.state("orders") is EntityState.HEALTHY
        async with syphon(w, enable_syphon=False) as other:
            other.force_failover("orders")
            w.east.fail(Fault.DOWN, Operation.SEND)
            await other.sender("orders").send(of("s", "a"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await sender.send(of("t", "b"))
        w.east.heal()
        assert (await sender.send(of("s", "c"), timeout=3)).route in (PRIMARY, BACKLOG)
        await asyncio.sleep(30)
        assert w.home()[0] == b"a"
        causes = [event.cause for event in w.of(StateChanged)]
        assert causes.count(Cause.ORDER_KEPT) <= causes.count(Cause.DRAINED)
        assert w.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_the_syphon_sends_one_message_of_a_session_at_a_time(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", *"abcdef")
        before = w.east.operations["SEND"]
        async with syphon(w, backlog_queue_count=1):
            await asyncio.sleep(5)
        assert w.home() == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert w.east.operations["SEND"] - before == 6


@in_virtual_time
async def test_two_syphons_keep_the_order(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        sender = w.pair.sender("orders")
        bodies = [str(number) for number in range(60)]
        await diverted(w, sender, "s", *bodies)
        async with syphon(w, backlog_queue_count=1, syphon_batch=3), syphon(w, backlog_queue_count=1, syphon_batch=5):
            await asyncio.sleep(30)
        assert w.home() == [body.encode() for body in bodies]


@in_virtual_time
async def test_a_syphon_with_another_ordering_keeps_the_order_of_ordered_queues(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        await diverted(w, w.pair.sender("orders"), "s", *"abcdef")
        before = w.east.operations["SEND"]
        async with syphon(w, backlog_queue_count=1, ordering="none"):
            await asyncio.sleep(5)
        assert w.east.operations["SEND"] - before == 6


@in_virtual_time
async def test_nothing_passes_a_message_whose_lock_was_lost(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        await diverted(w, w.pair.sender("orders"), "s", *"abc")
        w.east.fail(Fault.DOWN)
        async with syphon(w, backlog_queue_count=1):
            await asyncio.sleep(5)
            queue = w.west.queues[Entity(queue_of(w, "s", 1))]
            first = next(iter(queue.stored.values()))
            lost = asyncio.get_running_loop().time()
            first.lock = replace(first.lock, holder=w, until=lost + 60)  # another process's, which dies
            await asyncio.sleep(40)  # the next renewal is refused
            w.east.heal()
            await asyncio.sleep(10)
            assert w.home() == []
            await asyncio.sleep(300)
        assert w.home() == [b"a", b"b", b"c"]


@in_virtual_time
async def test_what_is_stored_is_completed_when_the_lock_of_another_message_is_lost(world):
    """Released with the rest, it would be sent once more by another process."""
    async with world(ordering="session", backlog_queue_count=1) as w:
        sender = w.pair.sender("orders")
        await diverted(w, sender, "s", "a")
        w.west.fail(Fault.HANG, Operation.SETTLE, times=1)  # until after the next renewals
        async with syphon(w, backlog_queue_count=1, attempt_timeout=25.0) as other:
            moved = []
            other.subscribe(lambda event: isinstance(event, MessageMoved) and moved.append(event.completed))
            await asyncio.sleep(1)
            w.east.fail(Fault.DOWN)
            assert (w.home(), (await sender.send(of("s", "b"))).route) == ([b"a"], BACKLOG)
            await asyncio.sleep(1)
            queue = w.west.queues[Entity(queue_of(w, "s", 1))]
            first, second = queue.stored.values()
            queue.release(second)  # it is given to another process, which dies
            queue.take(w, 1, asyncio.get_running_loop().time())
            await asyncio.sleep(60)
            assert (moved, first.deliveries) == ([True], 1)
            w.east.heal()
            await asyncio.sleep(300)
        assert w.home() == [b"a", b"b"]


@pytest.mark.parametrize("batches", [True, False])
@in_virtual_time
async def test_nothing_passes_poison_before_it_is_dead_lettered(world, batches):
    able = SimulatedBroker("x").capabilities
    east = SimulatedBroker("east", capabilities=replace(able, ordered_batches=batches))
    async with world(east=east, ordering="session", backlog_queue_count=1) as w:
        await diverted(w, w.pair.sender("orders"), "s", "a", "b")
        w.east.fail(Fault.POISON, Operation.SEND, times=1)
        w.west.fail(Fault.DOWN, Operation.SETTLE)
        async with syphon(w, backlog_queue_count=1):
            await asyncio.sleep(5)
            assert w.home() == []  # should the first one come again, it might be taken then
            w.west.heal()
            await asyncio.sleep(60)
        assert w.home() == [b"b"]
        assert [message.body for message, _ in w.west.dead_letters(queue_of(w, "s", 1))] == [b"a"]


@pytest.mark.parametrize(("batches", "operations"), [(True, range(1, 5)), (False, range(40, 50))])
@in_virtual_time
async def test_a_session_is_moved_in_few_operations_when_the_primary_keeps_its_order(world, batches, operations):
    able = SimulatedBroker("x").capabilities
    east = SimulatedBroker("east", capabilities=replace(able, ordered_batches=batches))
    async with world(east=east, ordering="session", backlog_queue_count=1) as w:
        bodies = [str(number) for number in range(40)]
        await diverted(w, w.pair.sender("orders"), "s", *bodies)
        before = east.operations["SEND"]
        async with syphon(w, backlog_queue_count=1):
            await asyncio.sleep(30)
        assert w.home() == [body.encode() for body in bodies]
        assert east.operations["SEND"] - before in operations


@in_virtual_time
async def test_a_secondary_that_cannot_keep_order_is_refused(world):
    able = SimulatedBroker("x").capabilities
    west = SimulatedBroker("west", capabilities=replace(able, ordered_consumer=False))
    with pytest.raises(ConfigurationError, match="ordering='session' can't be kept with simulated://west"):
        async with world(west=west, ordering="session"):
            pass


@in_virtual_time
async def test_a_queue_for_several_consumers_that_is_seen_later_gets_nothing_of_a_session(world):
    west = SimulatedBroker("west")
    west.fail(Fault.DOWN)
    async with world(west=west, ordering="session") as w:
        west.heal()
        transport = west.transport()
        await transport.admin.create(Entity(queue_of(w, "s")), QueueProperties())
        await transport.close()
        w.pair.force_failover("orders")
        with pytest.raises(BacklogUnavailable, match="can be read by several consumers at once"):
            await w.pair.sender("orders").send(of("s", "a"), timeout=5)
        assert w.west.messages(queue_of(w, "s")) == []


@in_virtual_time
async def test_a_queue_that_is_seen_later_and_is_fit_is_used(world):
    west = SimulatedBroker("west")
    west.fail(Fault.DOWN)
    async with world(west=west, ordering="session") as w:
        west.heal()
        w.pair.force_failover("orders")
        assert (await w.pair.sender("orders").send(of("s", "a"), timeout=5)).backlog_queue == queue_of(w, "s")


@asynccontextmanager
async def unseen_queue(world):
    """One backlog queue that was not looked at, as the secondary was unavailable when the pair opened."""
    west = SimulatedBroker("west")
    west.fail(Fault.DOWN)
    async with world(west=west, ordering="session", backlog_queue_count=1, backlog_retry_interval=600.0) as w:
        west.heal()
        w.pair.force_failover("orders")
        yield w, w.pair.sender("orders")


@in_virtual_time
async def test_a_queue_is_looked_at_once_for_all_sessions_that_find_it_unseen(world):
    async with unseen_queue(world) as (w, sender):
        receipts = await asyncio.gather(*(sender.send(of(f"s{number}", "a")) for number in range(50)))
        assert {receipt.route for receipt in receipts} == {BACKLOG}
        assert len(w.of(BacklogQueueChecked)) == 1


@in_virtual_time
async def test_who_shares_a_look_that_hangs_keeps_its_own_deadline(world):
    async with unseen_queue(world) as (w, sender):
        w.west.fail(Fault.HANG, Operation.ADMIN)
        loop = asyncio.get_running_loop()
        began = loop.time()
        patient = asyncio.ensure_future(sender.send(of("patient", "a"), timeout=20))
        await asyncio.sleep(0)
        with pytest.raises(BacklogUnavailable):
            await sender.send(of("hasty", "b"), timeout=2)
        assert loop.time() - began <= 2
        w.west.heal()
        assert (await patient).route is BACKLOG


@in_virtual_time
async def test_a_send_that_is_cancelled_in_a_look_takes_no_other_along(world):
    async with unseen_queue(world) as (w, sender):
        w.west.latency = 0.2
        first = asyncio.ensure_future(sender.send(of("first", "a")))
        await asyncio.sleep(0.1)
        other = asyncio.ensure_future(sender.send(of("other", "b")))
        await asyncio.sleep(0.01)
        first.cancel()
        assert (await other).route is BACKLOG
        assert w.west.operations["ADMIN"] > 0
        assert len(w.of(BacklogQueueChecked)) == 1


@in_virtual_time
async def test_an_existing_queue_for_several_consumers_is_refused(world):
    west = SimulatedBroker("west")
    transport = west.transport()
    await transport.admin.create(Entity("east/x-servicebus-transfer/0"), QueueProperties())
    await transport.close()
    with pytest.raises(TransportError, match="can be read by several consumers at once"):
        async with world(west=west, ordering="session"):
            pass


@in_virtual_time
async def test_a_queue_that_was_deleted_is_made_again_by_the_next_send_of_its_session(world):
    async with world(ordering="session", backlog_retry_interval=600.0) as w:
        del w.west.queues[Entity(queue_of(w, "s"))]
        w.pair.force_failover("orders")
        assert (await w.pair.sender("orders").send(of("s", "a"), timeout=5)).backlog_queue == queue_of(w, "s")
        assert w.west.queues[Entity(queue_of(w, "s"))].properties.single_consumer


@in_virtual_time
async def test_a_queue_that_others_made_again_for_several_consumers_gets_nothing_of_a_session(world):
    async with world(ordering="session", backlog_queue_count=1, enable_syphon=True) as w:
        sender = w.pair.sender("orders")
        w.pair.hold("orders")
        queue = Entity(queue_of(w, "s", 1))
        await sender.send(of("s", "a"))
        del w.west.queues[queue]
        w.west.fail(Fault.DOWN, Operation.ADMIN)
        with pytest.raises(BacklogUnavailable):
            await sender.send(of("s", "b"), timeout=5)
        transport = w.west.transport()
        w.west.heal()
        await transport.admin.create(queue, QueueProperties())
        await transport.close()
        with pytest.raises(BacklogUnavailable, match="can be read by several consumers at once"):
            await sender.send(of("s", "c"), timeout=5)
        assert w.west.messages(queue.path) == []


@in_virtual_time
async def test_sends_that_wait_in_line_end_when_the_pair_closes(world):
    async with world(ordering="session", close_grace=3.0, attempt_timeout=30.0) as w:
        sender = w.pair.sender("orders")
        await sender.send(of("s", "a"))
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        sends = [asyncio.create_task(sender.send(of(name, "b"))) for name in ("s", "s", "new", "s", "new")]
        await asyncio.sleep(0.5)
        began_at = asyncio.get_running_loop().time()
        await w.pair.close()
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert asyncio.get_running_loop().time() - began_at < 10
        assert all(isinstance(result, SendError) for result in results)


@in_virtual_time
@pytest.mark.parametrize("seed", range(5))
async def test_cancelled_sends_and_batches_leave_nothing_in_line_and_the_others_in_order(world, seed):
    chance = random.Random(seed)
    async with world(ordering="session", enable_syphon=True) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.05)
        accepted: dict[str, list[bytes]] = {name: [] for name in "abc"}

        async def call(number: int) -> None:
            messages = [of(chance.choice("abc"), f"{number} {part}") for part in range(chance.randint(1, 4))]
            for message, result in zip(messages, await sender.send_batch(messages, timeout=30), strict=True):
                if isinstance(result, Receipt):
                    accepted[message.session_id].append(message.body)

        tasks = []
        for number in range(60):
            tasks.append(asyncio.create_task(call(number)))
            await asyncio.sleep(chance.random() * 0.2)
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
            if number == 20:
                w.pair.force_failover("orders")
            if number == 40:
                w.pair.mark_healthy("orders")
        await asyncio.wait(tasks)
        w.east.heal()
        await asyncio.sleep(60)
        for bodies in accepted.values():
            assert [body for body in dict.fromkeys(w.home()) if body in bodies] == bodies
        keys = w.pair._engine.sends._orders._sessions.values()
        assert [(len(key.turns), key.lined_up) for key in keys] == [(0, 0)] * 3


def taken_by_another(w, queue: str) -> None:
    """Let somebody else hold all of a queue under locks, who stays silent: its former holder has not noticed yet."""
    found, now = w.west.queues[Entity(queue)], asyncio.get_running_loop().time()
    for stored in found.stored.values():
        found.release(stored)
    for stored in found.take(w, len(found.stored), now):
        stored.lock.until = now + 600


@in_virtual_time
async def test_a_completion_whose_lock_was_lost_lets_nothing_go_on_before_it_is_seen_to_be_locked(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        await diverted(w, w.pair.sender("orders"), "s", *"abcd")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)
        async with syphon(w, backlog_queue_count=1):
            await asyncio.sleep(0.3)
            taken_by_another(w, queue_of(w, "s", 1))
            await asyncio.sleep(10)
            assert w.home()[0] == b"a"
            assert len(w.home()) <= 2  # the second one was under way when the first one's completion was answered


@in_virtual_time
async def test_a_completion_whose_confirmation_was_lost_gives_nothing_back(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        await diverted(w, w.pair.sender("orders"), "s", *"abcd")
        w.west.fail(Fault.CONFIRM_LOST, Operation.SETTLE, times=1)
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)
        async with syphon(w, backlog_queue_count=1) as other:
            failures = []
            other.subscribe(lambda event: isinstance(event, SyphonFailed) and failures.append(event.error))
            await asyncio.sleep(30)
        assert w.home() == [b"a", b"b", b"c", b"d"]
        assert failures == ["settle: connection lost"]


@in_virtual_time
async def test_poison_that_was_given_up_with_its_queue_does_not_break_off_what_came_after(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        await diverted(w, w.pair.sender("orders"), "s", "a", "b")
        w.east.fail(Fault.POISON, Operation.SEND, times=1)
        w.west.fail(Fault.SLOW, Operation.SETTLE, times=1, delay=0.9)
        async with syphon(w, backlog_queue_count=1) as other:
            failures = []
            other.subscribe(lambda event: isinstance(event, SyphonFailed) and failures.append(event.error))
            await asyncio.sleep(0.3)
            w.west.fail(Fault.DOWN, Operation.RECEIVE, times=1)
            await asyncio.sleep(60)
        assert failures == ["connection refused"]


async def held_back(w, away: int, body: bytes = b"") -> None:
    """Divert messages of sessions at ``orders``, whose queue is unavailable then, and behind them one at ``prices``."""
    w.pair.hold("orders")
    w.pair.hold("prices")
    messages = [of(f"s{number % 7}", str(number)) for number in range(away)]
    await w.pair.sender("orders").send_batch([replace(each, body=each.body + body) for each in messages])
    await w.pair.sender("prices").send(of("p", "price"))
    w.east.fail(Fault.DOWN, entities=["orders"])


@in_virtual_time
async def test_a_destination_that_is_unavailable_holds_up_no_other_before_ten_batches_are_held(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        await held_back(w, 95)
        async with syphon(w, backlog_queue_count=1, syphon_batch=10) as other:
            moved = []
            other.subscribe(lambda event: isinstance(event, MessageMoved) and moved.append(event))
            await asyncio.sleep(300)
            assert w.home("prices") == [b"price"]
            w.east.heal()
            await asyncio.sleep(120)
        assert sorted(w.home(), key=int) == [b"%d" % number for number in range(95)]
        for session in range(7):
            assert [body for body in w.home() if int(body) % 7 == session] == [b"%d" % n for n in range(session, 95, 7)]
        assert not any(event.redelivered for event in moved)


@in_virtual_time
@pytest.mark.parametrize(("batch", "size", "most"), [(10, 0, 100), (5, 1_000_000, 17)])
async def test_what_is_held_for_a_destination_that_is_unavailable_is_bounded_by_its_number_and_by_its_size(
    world, batch, size, most
):
    async with world(ordering="session", backlog_queue_count=1) as w:
        await held_back(w, 200 if not size else 30, b"." * size)
        async with syphon(w, backlog_queue_count=1, syphon_batch=batch) as other:
            await asyncio.sleep(300)
            assert most <= other._engine.syphon.locked < most + batch


@in_virtual_time
async def test_one_batch_is_held_while_the_whole_primary_is_unavailable(world):
    async with world(ordering="session", backlog_queue_count=1) as w:
        await held_back(w, 95)
        w.east.fail(Fault.DOWN)
        async with syphon(w, backlog_queue_count=1, syphon_batch=10) as other:
            await asyncio.sleep(300)
            assert other._engine.syphon.locked == 1 + 10  # the first one was received alone


@in_virtual_time
async def test_a_hold_of_the_syphon_keeps_the_order_of_a_session_and_holds_up_no_other(world):
    async with world(ordering="session", backlog_queue_count=1, enable_syphon=True, syphon_batch=10) as w:
        w.pair.hold("orders", syphon=True)
        w.pair.hold("prices")
        sender = w.pair.sender("orders")
        for number in range(40):
            await sender.send(of(f"s{number % 3}", str(number)))
        await w.pair.sender("prices").send(of("p", "price"))
        await asyncio.sleep(300)
        assert (w.home(), w.home("prices")) == ([], [b"price"])
        w.pair.mark_healthy("orders")
        for number in range(40, 80):
            await sender.send(of(f"s{number % 3}", str(number)))
        await asyncio.sleep(300)
        for session in range(3):
            bodies = [int(body) for body in w.home() if int(body) % 3 == session]
            assert bodies == list(range(session, 80, 3))
        assert not any(event.redelivered for event in w.of(MessageMoved))
