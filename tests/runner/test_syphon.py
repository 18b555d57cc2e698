"""The syphon: SPEC 7 and 4.5, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pairmq import ConfigurationError, Message, Pair, Route
from pairmq import testing as simulated
from pairmq.core import Diversion, PairOptions, divert
from pairmq.core.pump import QueueClock
from pairmq.memory import StateReceiver
from pairmq.model import Delivery, Entity, EntityState, FailureKind, FailureReason, TransportError
from pairmq.model.events import DestinationChanged, Event, MessageDeadLettered, MessageMoved
from pairmq.runner import Clock
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time, virtual_wall
from pairmq.transport import Capabilities, QueueProperties, Receiver, Transport

QUEUE = "east/x-servicebus-transfer/0"
ORDERS = Entity("orders")


def envelope(body: bytes, entity: str = "orders", at: float | None = None, **fields) -> Message:
    """A message as another process would have diverted it."""
    diverted_at = datetime.fromtimestamp(virtual_wall() if at is None else at, UTC)
    message = Message(body, message_id=fields.pop("message_id", body.decode()), **fields)
    return divert(message, Diversion(Entity(entity), diverted_at, "other-process", 1))


def leave(w, *messages: Message, queue: str = QUEUE) -> None:
    for message in messages:
        w.west.store(Entity(queue), message)


async def drained(w, seconds: float = 600) -> float:
    """Wait until the backlog is empty; returns when."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while w.backlog():
        assert loop.time() < ends_at, f"not drained: {len(w.backlog())} left"
        await asyncio.sleep(0.05)
    return loop.time()


@in_virtual_time
async def test_diverted_messages_are_moved_back_as_they_were(world):
    async with world(enable_syphon=True, failover_interval=0) as w:
        w.east.fail(Fault.DOWN)
        at = datetime.fromtimestamp(virtual_wall() + 5, UTC)
        message = Message(
            b"1",
            message_id="m",
            session_id="s",
            time_to_live=1000.5,
            scheduled_enqueue_at=at,
            content_encoding="gzip",
            priority=200,
            application_properties={"a": 1, "b": b"\0", "c": (None, {"d": (1,)})},
        )
        assert (await w.pair.sender("orders").send(message)).route is Route.BACKLOG
        w.east.heal()
        await drained(w)
        assert w.east.messages("orders") == [message]
        moved = w.of(MessageMoved)[0]
        assert (moved.message_id, moved.completed, moved.redelivered) == ("m", True, False)


@in_virtual_time
async def test_what_another_process_diverted_is_moved_too(world):
    async with world(enable_syphon=True) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(500)))
        await drained(w)
        assert w.home() == [b"%d" % n for n in range(500)]
        assert w.pair.moved == 500


@in_virtual_time
async def test_a_pair_starts_dirty_and_is_healthy_once_every_queue_was_seen_empty(world):
    async with world(enable_syphon=True) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(50)), queue="east/x-servicebus-transfer/2")
        w.pair.sender("orders")
        assert w.pair.state("orders") is EntityState.DRAINING
        await drained(w)
        await asyncio.sleep(2)
        assert w.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_an_unreachable_queue_is_not_empty(world):
    async with world(enable_syphon=True) as w:
        w.west.fail(Fault.DOWN, entities=["east/x-servicebus-transfer/1"])
        w.pair.sender("orders")
        await asyncio.sleep(60)
        assert w.pair.state("orders") is EntityState.DRAINING
        w.west.heal()
        await asyncio.sleep(10)
        assert w.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_drained_is_not_said_while_a_diverted_send_is_in_flight(world):
    async with world(enable_syphon=True, failover_interval=0, attempt_timeout=30, send_timeout=100) as w:
        sender = w.pair.sender("orders")
        await sender.send(Message(b"0"))
        await asyncio.sleep(1)
        w.east.fail(Fault.DOWN, times=1)
        w.west.fail(Fault.SLOW, Operation.SEND, times=1, delay=20)
        task = asyncio.create_task(sender.send(Message(b"1")))
        await asyncio.sleep(10)
        assert w.pair.state("orders") is EntityState.DRAINING
        assert (await task).route is Route.BACKLOG
        await drained(w)
        await asyncio.sleep(6)
        assert w.pair.state("orders") is EntityState.HEALTHY
        assert sorted(w.home()) == [b"0", b"1"]


@in_virtual_time
async def test_a_draining_entity_that_fails_and_recovers_forgets_nothing(world):
    async with world(enable_syphon=True, failover_interval=3) as w:
        sender = w.pair.sender("orders")
        w.pair.hold("orders")
        w.east.fail(Fault.DOWN, entities=["orders"])
        await sender.send_batch([Message(b"%d" % n) for n in range(10)])
        w.pair.mark_healthy("orders")
        assert w.pair.state("orders") is EntityState.DRAINING
        w.east.heal()
        w.east.fail(Fault.DOWN, Operation.SEND, times=2, entities=["orders"])
        await sender.send(Message(b"x"))  # DRAINING -> FAILING -> up again
        assert w.pair.state("orders") in (EntityState.DRAINING, EntityState.HEALTHY)
        await drained(w)
        await asyncio.sleep(6)
        assert len(w.home()) == 11


@in_virtual_time
async def test_confirm_comes_before_complete(world):
    """A syphon that dies between send and complete leaves the message in the backlog: a second copy, never none."""
    async with world(enable_syphon=True) as w:
        w.west.fail(Fault.DOWN, Operation.SETTLE)
        leave(w, envelope(b"1"))
        await asyncio.sleep(5)
        assert w.home() == [b"1"]
        assert len(w.backlog()) == 1
        for task in asyncio.all_tasks():
            if task.get_name().startswith(("pump", "locks", "settle")):
                task.cancel()  # as a killed process would: nothing is closed, the lock runs out
        await asyncio.sleep(61)
        w.west.heal()
        async with second_syphon(w):
            await drained(w)
        assert w.home() == [b"1", b"1"]


def second_syphon(w, **options) -> Pair:
    """The pair of another process on the same brokers, with a syphon."""
    chosen = PairOptions(backlog_queue_count=3, enable_syphon=True, **options)
    return Pair(w.east.transport(), w.west.transport(), chosen, clock=Clock(virtual_wall, random.Random(2)))


@in_virtual_time
async def test_a_completion_that_fails_in_passing_is_tried_again_and_brings_no_copy(world):
    async with world(enable_syphon=True) as w:
        w.west.fail(Fault.BUSY, Operation.SETTLE, times=3)
        leave(w, envelope(b"1"))
        await drained(w)
        assert w.home() == [b"1"]
        assert [event.completed for event in w.of(MessageMoved)] == [True]


@in_virtual_time
async def test_a_completion_that_fails_for_longer_than_a_lock_brings_no_copy_in_one_process(world):
    async with world(enable_syphon=True) as w:
        w.west.fail(Fault.DOWN, Operation.SETTLE)
        leave(w, envelope(b"1"))
        await asyncio.sleep(200)
        w.west.heal()
        await drained(w)
        assert w.home() == [b"1"]


@in_virtual_time
async def test_locks_that_last_as_long_as_the_connection_strand_nothing(world):
    west = SimulatedBroker("west")
    admin = west.transport().admin
    for index in range(3):
        await admin.create(Entity(f"east/x-servicebus-transfer/{index}"), QueueProperties(lock_duration=None))
    async with world(west=west, enable_syphon=True) as w:
        w.west.fail(Fault.BUSY, Operation.SETTLE, times=2)
        leave(w, envelope(b"1"), Message(b"forged"))
        await drained(w)
        assert w.home() == [b"1"]
        assert len(west.dead_letters(QUEUE)) == 1


@in_virtual_time
async def test_postponing_does_not_multiply_the_backlog(world):
    """Copies at the tail are made once: what was copied is not copied again while its place is not free."""
    async with world(enable_syphon=True, ping_primary_interval=60.0, attempt_timeout=10) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, *(envelope(b"%d" % n) for n in range(40)))
        await asyncio.sleep(0.05)
        w.west.fail(Fault.DOWN, Operation.SETTLE)
        await asyncio.sleep(900)  # a dozen locks end
        assert len(w.backlog()) <= 80
        w.west.heal()
        w.east.heal()
        await drained(w)
        assert set(w.home()) == {b"%d" % n for n in range(40)}


@in_virtual_time
async def test_a_copy_made_by_postponing_says_that_it_may_be_one(world):
    async with world(enable_syphon=True, syphon_batch=2) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        w.west.fail(Fault.CONFIRM_LOST, Operation.SEND, times=1)
        leave(w, envelope(b"0"), envelope(b"1"))
        await asyncio.sleep(60)
        w.west.heal()
        w.east.heal()
        await drained(w)
        copies = len(w.home())
        marked = [e for e in w.of(MessageMoved) if e.maybe_duplicate or e.redelivered or not e.completed]
        assert copies == 2 or marked


@in_virtual_time
async def test_a_message_whose_lock_has_run_out_is_not_sent(world):
    async with world(enable_syphon=True, ping_primary_interval=0.5) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, *(envelope(b"%d" % n) for n in range(3)))
        await asyncio.sleep(5)
        w.west.fail(Fault.DOWN, Operation.SETTLE)
        await asyncio.sleep(107)
        w.west.heal()
        w.east.heal()
        await drained(w)
        assert sorted(w.home()) == [b"0", b"1", b"2"]


@in_virtual_time
async def test_closing_in_the_middle_of_a_redelivery_completes_what_was_sent(world):
    async with world(enable_syphon=True, close_grace=5) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, envelope(b"1"))
        await asyncio.sleep(2)
        w.east.heal()
        w.west.fail(Fault.SLOW, Operation.SETTLE, delay=0.9)
        while not w.home():
            await asyncio.sleep(0.01)
        await w.pair.close()
        assert w.backlog() == []


@in_virtual_time
async def test_a_slow_rate_does_not_delay_the_close(world):
    async with world(enable_syphon=True, syphon_max_rate=0.01, close_grace=60) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(5)))
        await asyncio.sleep(5)
        started = asyncio.get_running_loop().time()
        await w.pair.close()
        assert asyncio.get_running_loop().time() - started < 3


@in_virtual_time
async def test_a_deleted_backlog_queue_is_made_again(world):
    async with world(enable_syphon=True) as w:
        await asyncio.sleep(5)
        admin = w.west.transport().admin
        await admin.delete(Entity(QUEUE))
        w.pair.sender("prices")
        await asyncio.sleep(1000)
        assert Entity(QUEUE) in w.west.queues
        assert w.pair.state("prices") is EntityState.HEALTHY


@in_virtual_time
async def test_much_poison_does_not_hold_up_what_is_good(world):
    async with world(enable_syphon=True) as w:
        w.west.fail(Fault.HANG, Operation.SETTLE)
        leave(w, *(Message(b"forged") for _ in range(99)), envelope(b"good"))
        await asyncio.sleep(2)
        assert w.home() == [b"good"]


@in_virtual_time
async def test_good_probes_with_lost_confirmations_bring_few_copies(world):
    """A gate whose probes are good and whose messages are not opens ever more rarely."""
    async with world(enable_syphon=True, syphon_batch=20, ping_primary_interval=60) as w:
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND)
        leave(w, *(envelope(b"%d" % n) for n in range(60)))
        await asyncio.sleep(600)
        copies = {body: w.home().count(body) for body in set(w.home())}
        assert max(copies.values()) <= 20


@in_virtual_time
async def test_brokers_that_need_longer_for_a_batch_than_its_limit_are_drained_all_the_same(world):
    east, west = SimulatedBroker("east"), SimulatedBroker("west", latency=0.1)  # 10 s for a hundred completions
    async with world(east=east, west=west, enable_syphon=True, attempt_timeout=0.5) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(150)))
        await drained(w, 120)
        assert set(w.home()) == {b"%d" % n for n in range(150)}


def takes(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Message], float]) -> None:
    """Let each message take a while to be stored, also within an operation."""

    async def send_batch(self: simulated.SimulatedSender, messages: Sequence[Message]) -> list[TransportError | None]:
        await self._connection.call(self._calls, lambda now: None, Operation.SEND, self._entity)
        for message in messages:
            await asyncio.sleep(seconds(message))
            self._store(message, 0.0)
        return [None] * len(messages)

    async def send(self: simulated.SimulatedSender, message: Message) -> None:
        await send_batch(self, [message])

    monkeypatch.setattr(simulated.SimulatedSender, "send_batch", send_batch)
    monkeypatch.setattr(simulated.SimulatedSender, "send", send)


@in_virtual_time
async def test_a_slow_primary_gets_no_more_second_copies_than_one_operation_makes(world, monkeypatch):
    """What it takes in the time of one operation is found out once, not again and again."""
    takes(monkeypatch, lambda message: 1 / 15)
    async with world(enable_syphon=True, attempt_timeout=10.0) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(1000)))
        await drained(w)
        copies = Counter(w.home())
        assert len(copies) == 1000
        assert sum(copies.values()) <= 1000 + 150  # of the first operation, in ten seconds


@in_virtual_time
async def test_large_messages_fit_into_the_time_of_an_operation(world, monkeypatch):
    takes(monkeypatch, lambda message: len(message.body) / 5e6)
    async with world(enable_syphon=True, attempt_timeout=10.0) as w:
        leave(w, *(envelope(b"%d " % n + bytes(1_000_000), message_id=str(n)) for n in range(100)))
        await drained(w)
        assert sorted(int(body.split()[0]) for body in w.home()) == list(range(100))


@in_virtual_time
async def test_a_primary_that_answers_late_gets_large_operations_again(world, monkeypatch):
    """What every operation takes, however large it is, keeps none of them small for long."""
    async with world(enable_syphon=True, attempt_timeout=10.0, backlog_queue_count=1) as w:
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND, times=1)
        w.east.fail(Fault.SLOW, Operation.SEND, delay=4)
        leave(w, *(envelope(b"%d" % n) for n in range(1000)))
        await drained(w)
        assert w.east.operations["SEND"] < 60
        assert set(w.home()) == {b"%d" % n for n in range(1000)}


@in_virtual_time
async def test_forged_destinations_leave_nothing_behind(world):
    async with world(enable_syphon=True) as w:
        leave(w, *(envelope(b"%d" % n, f"nowhere-{n}") for n in range(300)))
        await drained(w)
        syphon = w.pair._engine.syphon
        assert len(syphon.gates.gates) == 0
        assert len(syphon._senders) == 0


@in_virtual_time
async def test_two_syphons_on_one_pair_lose_and_double_nothing(world):
    west = SimulatedBroker("west")
    async with world(west=west, enable_syphon=True, syphon_batch=7) as w:
        async with second_syphon(w, syphon_batch=5) as second:
            leave(w, *(envelope(b"%d" % n) for n in range(400)))
            await drained(w)
        assert sorted(w.home()) == sorted(b"%d" % n for n in range(400))
        assert second.moved > 0
        assert w.pair.moved + second.moved == 400


@in_virtual_time
@pytest.mark.parametrize(("delay", "least", "bound"), [(0.02, 60, 120), (0.05, 120, 480), (2, 60, 960)])
async def test_more_is_received_while_messages_are_on_their_way_and_more_to_a_distant_broker(
    world, delay, least, bound
):
    async with world(enable_syphon=True, syphon_batch=10, attempt_timeout=10) as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=delay)
        leave(w, *(envelope(b"%d" % n) for n in range(1000)))
        most = 0
        while w.backlog():
            most = max(most, w.pair._opened.syphon.locked)
            await asyncio.sleep(min(delay, 0.1))
        assert least < most <= bound
        assert w.home() == [b"%d" % n for n in range(1000)]


@in_virtual_time
@pytest.mark.parametrize(("round_trip", "at_once"), [(0.1, 200), (0.3, 500)])
async def test_a_drain_over_a_distance_is_as_fast_as_a_loop_that_moves_many_at_a_time(
    world, monkeypatch, round_trip, at_once
):
    """Such a loop needs three round trips for them: it receives, sends and completes. Each message takes no time."""
    monkeypatch.setattr(simulated.SimulatedReceiver, "complete_batch", StateReceiver.complete_batch)
    east, west = (SimulatedBroker(name, latency=round_trip) for name in ("east", "west"))
    async with world(east=east, west=west, enable_syphon=True, syphon_batch=10, attempt_timeout=15) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(2400)))
        while not w.home():
            await asyncio.sleep(0.01)
        began_at = asyncio.get_running_loop().time()
        await drained(w)
        assert asyncio.get_running_loop().time() - began_at <= 2400 / at_once * 3 * round_trip / 0.9
        assert w.home() == [b"%d" % n for n in range(2400)]


@in_virtual_time
async def test_no_more_than_two_batches_of_large_messages_are_locked(world):
    async with world(enable_syphon=True, syphon_batch=10, attempt_timeout=10) as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=2)
        leave(w, *(envelope(b"%08d" % n * 2000, message_id=str(n)) for n in range(100)))
        most = 0
        while w.backlog():
            most = max(most, w.pair._opened.syphon.locked)
            await asyncio.sleep(0.1)
        assert most <= 20


@in_virtual_time
@pytest.mark.parametrize("fault", [Fault.DOWN, Fault.SLOW])
async def test_large_messages_are_locked_by_their_size(world, fault):
    mib = 1 << 20
    async with world(enable_syphon=True, attempt_timeout=10) as w:
        w.east.fail(fault, Operation.SEND, **({"delay": 2} if fault is Fault.SLOW else {}))
        leave(w, *(envelope(bytes(mib - 10_000), message_id=str(n)) for n in range(90)))
        most = 0
        for _ in range(100):
            most = max(most, w.pair._opened.syphon.locked)
            await asyncio.sleep(0.1)
        w.east.heal()
        await drained(w)
        assert 16 < most <= 2 * 16
        assert len(w.home()) == 90


@in_virtual_time
async def test_a_receive_that_carries_too_much_for_its_time_limit_carries_less_the_next_time(world, monkeypatch):
    receive = simulated.SimulatedReceiver.receive

    async def small_ones(self: Receiver, most: int, wait: float) -> list[Delivery]:
        if most > 3:
            await asyncio.sleep(10)
            raise TransportError("no answer", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
        return await receive(self, most, wait)

    monkeypatch.setattr(simulated.SimulatedReceiver, "receive", small_ones)
    async with world(enable_syphon=True) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(20)))
        await drained(w)
        assert w.home() == [b"%d" % n for n in range(20)]


@in_virtual_time
async def test_an_unavailable_destination_holds_up_no_other(world):
    async with world(enable_syphon=True, syphon_batch=10) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, *(envelope(b"o%d" % n) for n in range(100)))
        leave(w, *(envelope(b"p%d" % n, "prices") for n in range(20)))
        started = asyncio.get_running_loop().time()
        while len(w.home("prices")) < 20:
            assert asyncio.get_running_loop().time() < started + 60
            await asyncio.sleep(0.1)
        assert w.home("orders") == []
        w.east.heal()
        await drained(w)
        assert sorted(w.home("orders")) == sorted(b"o%d" % n for n in range(100))


@in_virtual_time
async def test_nothing_is_read_ahead_while_a_destination_is_unavailable_however_well_others_flow(world, monkeypatch):
    hints: list[tuple[bool, int]] = []
    monkeypatch.setattr(Receiver, "read_ahead", lambda self, messages: hints.append((down, messages)))
    down = True
    async with world(enable_syphon=True, syphon_batch=10) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, envelope(b"o"))
        leave(w, *(envelope(b"p%d" % n, "prices") for n in range(200)))
        while len(w.home("prices")) < 200:
            await asyncio.sleep(0.01)
        down = False
        w.east.heal()
        await drained(w)
        leave(w, *(envelope(b"q%d" % n, "prices") for n in range(200)))
        await drained(w)
    while_down = [messages for was_down, messages in hints if was_down]
    assert (while_down.count(0), any(hint for _, hint in hints)) == (len(while_down), True)


@in_virtual_time
async def test_a_long_outage_spends_no_delivery_count_and_loses_no_lock(world):
    async with world(enable_syphon=True) as w:
        w.east.fail(Fault.DOWN)
        leave(w, *(envelope(b"%d" % n) for n in range(50)))
        await asyncio.sleep(3600)
        w.east.heal()
        await drained(w)
        assert w.home() == [b"%d" % n for n in range(50)]
        assert not any(event.redelivered for event in w.of(MessageMoved))
        assert w.of(MessageDeadLettered) == []


@in_virtual_time
async def test_a_hung_primary_costs_the_syphon_no_copies_it_does_not_explain(world):
    async with world(enable_syphon=True) as w:
        leave(w, envelope(b"first"))
        await drained(w)
        leave(w, *(envelope(b"%d" % n) for n in range(20)))  # which are received at once
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND, times=1)
        await drained(w)
        assert set(w.home()) == {b"first", *(b"%d" % n for n in range(20))}
        assert all(event.maybe_duplicate for event in w.of(MessageMoved)[1:])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (lambda: Message(b"x", message_id="forged"), "malformed-envelope"),
        (lambda: replace(envelope(b"x"), application_properties={"x-ms-path": "../etc"}), "malformed-envelope"),
        (lambda: envelope(b"x", "system/secrets"), "destination-not-allowed"),
        (lambda: envelope(b"x", "east/x-servicebus-transfer/1"), "destination-not-allowed"),
        (lambda: envelope(b"x" * ((1 << 20) + 1), message_id="large"), "too-large"),
    ],
)
@in_virtual_time
async def test_poison_is_dead_lettered_at_once_and_the_pump_goes_on(world, message, reason):
    west = SimulatedBroker("west", capabilities=replace(SimulatedBroker("x").capabilities, max_message_bytes=None))
    async with world(west=west, enable_syphon=True) as w:
        leave(w, message(), envelope(b"good"))
        await asyncio.sleep(2)
        assert w.home() == [b"good"]
        assert w.backlog() == []
        assert [r for _, r in west.dead_letters(QUEUE)] == [reason]
        event = w.of(MessageDeadLettered)[0]
        assert (event.queue, event.reason) == (QUEUE, reason)
        assert event.description


@in_virtual_time
async def test_only_allowed_entities_are_delivered_to(world):
    async with world(enable_syphon=True, allowed_entities=("ord*",)) as w:
        leave(w, envelope(b"1"), envelope(b"2", "prices"))
        await asyncio.sleep(2)
        assert (w.home("orders"), w.home("prices")) == ([b"1"], [])
        assert [r for _, r in w.west.dead_letters(QUEUE)] == ["destination-not-allowed"]


@pytest.mark.parametrize("enable_syphon", [True, False])
@pytest.mark.parametrize(
    ("path", "options", "error"),
    [
        ("prices", {"allowed_entities": ("ord*", "news")}, r"among the allowed_entities 'ord\*', 'news': .* add it"),
        (
            "q5",
            {"backlog_name_template": "q{index}"},
            "name of a backlog queue, .* choose another backlog_name_template",
        ),
        ("East/x-servicebus-transfer/7", {}, "name of a backlog queue"),
        ("system/secrets", {}, "is internal to the broker"),
    ],
)
@in_virtual_time
async def test_no_pair_sends_where_its_syphon_would_move_nothing_back(world, path, options, error, enable_syphon):
    async with world(enable_syphon=enable_syphon, **options) as w:
        for kind in ("queue", "topic"):
            with pytest.raises(ConfigurationError, match=error):
                w.pair.sender(path, kind=kind)
        w.pair.hold("orders")
        assert (await w.pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG
        w.pair.receiver(path)  # a reader endangers nothing


@pytest.mark.parametrize("fault", [Fault.UNAUTHORIZED, Fault.BUSY, Fault.TRANSIENT])
@in_virtual_time
async def test_what_an_operator_or_time_can_fix_is_no_poison(world, fault):
    async with world(enable_syphon=True) as w:
        w.east.fail(fault, Operation.SEND)
        leave(w, *(envelope(b"%d" % n) for n in range(5)))
        await asyncio.sleep(120)
        assert w.of(MessageDeadLettered) == []
        w.east.heal()
        await drained(w)
        assert sorted(w.home()) == [b"0", b"1", b"2", b"3", b"4"]


@in_virtual_time
async def test_restored_messages_get_their_whole_time_to_live(world):
    async with world(enable_syphon=True) as w:
        leave(w, envelope(b"1", at=virtual_wall() - 3600, time_to_live=60))
        await drained(w)
        assert [m.time_to_live for m in w.east.messages("orders")] == [60]


@in_virtual_time
async def test_time_in_the_backlog_counts_with_elapse(world):
    async with world(enable_syphon=True, ttl_policy="elapse") as w:
        leave(w, envelope(b"late", at=virtual_wall() - 61, time_to_live=60))
        leave(w, envelope(b"soon", at=virtual_wall() - 40, time_to_live=60))
        await asyncio.sleep(2)
        assert [m.time_to_live for m in w.east.messages("orders")] == [pytest.approx(20, abs=0.1)]
        assert w.of(MessageDeadLettered)[0].reason == "TTLExpiredException"


@in_virtual_time
async def test_what_runs_out_while_its_destination_is_unavailable_is_dead_lettered_with_elapse(world):
    async with world(enable_syphon=True, ttl_policy="elapse") as w:
        w.east.fail(Fault.DOWN)
        leave(w, envelope(b"short", time_to_live=60), envelope(b"long", time_to_live=3600))
        await asyncio.sleep(300)
        w.east.heal()
        await drained(w)
        assert w.home() == [b"long"]
        assert [r for _, r in w.west.dead_letters(QUEUE)] == ["TTLExpiredException"]


@in_virtual_time
async def test_an_idle_syphon_receives_four_times_an_hour_and_queue(world):
    async with world(enable_syphon=True, backlog_queue_count=10) as w:
        w.pair.sender("orders")
        await asyncio.sleep(5)
        w.west.operations.clear()
        await asyncio.sleep(3600)
        # Beside the long polls a look at the pair's record every ten minutes, and one at an operator's decisions every
        # 15 seconds. With a report every five minutes up to two old ones are received and settled. And every hour a
        # look at each queue, of two operations.
        settled = w.west.operations.pop("SETTLE")
        assert w.west.operations == {"RECEIVE": 40 + 12, "ADMIN": 6 + 240 + 20, "SEND": 12}
        assert settled <= 24


@in_virtual_time
async def test_the_rate_can_be_limited(world):
    async with world(enable_syphon=True, syphon_max_rate=20) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(200)))
        started = asyncio.get_running_loop().time()
        assert await drained(w) - started == pytest.approx(10, abs=1.5)


@in_virtual_time
async def test_the_syphon_survives_an_outage_of_the_secondary(world):
    async with world(enable_syphon=True) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(30)))
        w.west.fail(Fault.HANG)
        await asyncio.sleep(300)
        w.west.heal()
        await drained(w)
        assert set(w.home()) == {b"%d" % n for n in range(30)}


@in_virtual_time
async def test_held_messages_go_to_the_tail_without_scheduling_too(world):
    plain = replace(SimulatedBroker("x").capabilities, scheduling=False)
    west = SimulatedBroker("west", capabilities=Capabilities(**{f: getattr(plain, f) for f in plain.__slots__}))
    async with world(west=west, enable_syphon=True, syphon_batch=5) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, *(envelope(b"o%d" % n) for n in range(20)), envelope(b"p", "prices"))
        await asyncio.sleep(60)
        assert w.home("prices") == [b"p"]
        w.east.heal()
        await drained(w)
        assert sorted(w.home()) == sorted(b"o%d" % n for n in range(20))


@pytest.mark.parametrize("fast", [0.0, 900.0, -900.0])
@in_virtual_time
async def test_held_messages_are_seen_again_in_time_whatever_this_machines_clock_shows(world, fast):
    async with world(fast=fast, enable_syphon=True, syphon_batch=5, ping_primary_interval=60.0) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, *(envelope(b"o%d" % n) for n in range(20)), envelope(b"p", "prices"))
        await asyncio.sleep(10)
        assert w.home("prices") == [b"p"]
        w.west.operations.clear()
        await asyncio.sleep(600)
        assert w.west.operations["SEND"] < 200  # each of 20 once a minute, and what others write now and then
        w.east.heal()
        await drained(w, 180)
        assert sorted(w.home()) == sorted(b"o%d" % n for n in range(20))


@in_virtual_time
async def test_copies_do_not_go_round_without_a_pause_where_another_process_takes_all_that_show_its_clock(
    world, monkeypatch
):
    monkeypatch.setattr(QueueClock, "seen", lambda *seen: None)
    async with world(enable_syphon=True, syphon_batch=5, ping_primary_interval=5.0) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, *(envelope(b"o%d" % n) for n in range(20)))
        await asyncio.sleep(10)
        w.west.operations.clear()
        await asyncio.sleep(60)
        assert w.west.operations["SEND"] <= 70  # five a second at most, in one operation


@in_virtual_time
async def test_a_backlog_is_not_called_empty_over_messages_that_cannot_be_counted(world):
    """RabbitMQ can't tell what waits for its time: held messages must not be put there."""
    sound = SimulatedBroker("x").capabilities
    west = SimulatedBroker("west", capabilities=replace(sound, counts_scheduled=False))
    async with world(west=west, enable_syphon=True, syphon_batch=5, backlog_queue_count=1) as w:
        w.pair.hold("orders")
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN, entities=["orders"])
        for n in range(30):
            await sender.send(Message(b"%d" % n))
        await asyncio.sleep(7)
        w.east.heal()
        w.pair.mark_healthy("orders")
        while w.pair.state("orders") is not EntityState.HEALTHY:
            await asyncio.sleep(0.01)
        assert w.backlog() == []
        assert len(w.home()) == 30


@in_virtual_time
async def test_order_is_kept_for_one_sender_while_nothing_fails(world):
    async with world(enable_syphon=True, backlog_queue_count=4) as w:
        w.pair.hold("orders")
        w.east.fail(Fault.DOWN)
        sender = w.pair.sender("orders")
        for n in range(250):
            await sender.send(Message(b"%03d" % n))
        w.east.heal()
        await drained(w)
        assert w.home() == [b"%03d" % n for n in range(250)]


@in_virtual_time
async def test_an_entity_that_is_back_in_this_process_drains_at_once(world):
    """Its own ping, or an operator's word, opens the syphon's gate: no one waits for the syphon's next probe."""
    async with world(enable_syphon=True, failover_interval=0, ping_primary_interval=1800) as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(1100)  # its next probe is due after some 1600 s
        w.east.heal()
        w.pair.mark_healthy("orders")
        assert await drained(w, 1) < 1102


@in_virtual_time
async def test_stopping_gives_held_messages_back(world):
    west = SimulatedBroker("west")
    async with world(west=west, enable_syphon=True) as w:
        w.east.fail(Fault.DOWN)
        leave(w, *(envelope(b"%d" % n) for n in range(10)))
        await asyncio.sleep(10)
        assert w.pair._engine.syphon.locked == 10
    stored = list(west.queues[Entity(QUEUE)].stored.values())
    assert len(stored) == 10
    assert all(entry.locked_until is None for entry in stored)


@in_virtual_time
async def test_a_scheduled_message_in_the_past_goes_out_at_once(world):
    async with world(enable_syphon=True) as w:
        past = datetime.fromtimestamp(virtual_wall(), UTC) - timedelta(hours=1)
        leave(w, envelope(b"1", scheduled_enqueue_at=past))
        await drained(w)
        assert w.east.messages("orders")[0].scheduled_enqueue_at == past


@in_virtual_time
async def test_a_hold_of_the_syphon_keeps_an_entity_s_messages_and_moves_the_others(world):
    async with world(enable_syphon=True, syphon_batch=5, backlog_queue_count=1) as w:
        w.pair.hold("orders", syphon=True)
        assert w.pair.syphon_holds == {ORDERS}
        leave(w, *(envelope(b"o%d" % n) for n in range(40)), *(envelope(b"p%d" % n, "prices") for n in range(10)))
        await asyncio.sleep(300)
        assert w.home() == []
        assert sorted(w.home("prices")) == [b"p%d" % n for n in range(10)]
        assert [(e.entity, e.open, e.error) for e in w.of(DestinationChanged)] == [
            (ORDERS, False, "held by an operator")
        ]
        w.pair.mark_healthy("orders")
        assert w.pair.syphon_holds == frozenset()
        await drained(w, 6)  # what went to the tail is seen again after a ``ping_primary_interval``
        assert sorted(w.home()) == sorted(b"o%d" % n for n in range(40))
        # All of it has cost no message a delivery, nor brought one to the dead letters.
        assert not any(event.redelivered for event in w.of(MessageMoved))
        assert w.west.dead_letters(QUEUE) == []


@in_virtual_time
@pytest.mark.parametrize("end", ["mark_healthy", "force_failover", "hold"])
async def test_a_hold_of_the_syphon_ends_at_once_when_it_is_released(world, end):
    async with world(enable_syphon=True) as w:
        w.pair.hold("orders", syphon=True)
        leave(w, envelope(b"1"))
        await asyncio.sleep(600)
        assert w.home() == []
        getattr(w.pair, end)("orders")
        await asyncio.sleep(0.1)
        assert w.home() == [b"1"]
        assert [event.open for event in w.of(DestinationChanged)] == [False, True]


@in_virtual_time
async def test_a_hold_of_the_syphon_stops_a_drain_that_is_under_way_after_one_operation(world):
    async with world(enable_syphon=True, syphon_batch=10, syphon_max_rate=10, backlog_queue_count=1) as w:
        leave(w, *(envelope(b"%d" % n) for n in range(100)))
        await asyncio.sleep(3)
        w.pair.hold("orders", syphon=True)
        await asyncio.sleep(1)
        moved = len(w.home())
        assert 0 < moved < 50
        await asyncio.sleep(150)
        assert len(w.home()) == moved
        w.pair.mark_healthy("orders")
        await drained(w)
        assert len(w.home()) == 100


@in_virtual_time
async def test_what_waits_for_the_rate_is_not_sent_when_its_destination_failed_meanwhile(world):
    async with world(enable_syphon=True, syphon_max_rate=0.2, backlog_queue_count=2) as w:
        w.east.fail(Fault.DOWN, Operation.SEND, times=1, entities=["orders"])
        w.east.fail(Fault.DOWN, Operation.PROBE, entities=["orders"])
        leave(w, envelope(b"1"))
        leave(w, envelope(b"2"), queue="east/x-servicebus-transfer/1")
        await asyncio.sleep(60)
        assert w.home() == []
        w.east.heal()
        await drained(w)
        assert sorted(w.home()) == [b"1", b"2"]


@in_virtual_time
async def test_a_good_probe_ends_no_hold_of_the_syphon(world):
    async with world(enable_syphon=True, syphon_batch=5) as w:
        w.east.fail(Fault.DOWN, entities=["orders"])
        leave(w, *(envelope(b"%d" % n) for n in range(20)))
        await asyncio.sleep(30)
        w.pair.hold("orders", syphon=True)
        w.east.heal()
        await asyncio.sleep(600)
        assert w.home() == []
        w.pair.force_failover("orders")
        await drained(w)
        assert len(w.home()) == 20


@in_virtual_time
async def test_a_hold_of_the_syphon_is_refused_when_the_process_has_none(world):
    async with world() as w:
        with pytest.raises(ConfigurationError, match="this process has no syphon"):
            w.pair.hold("orders", syphon=True)
        assert w.pair.state("orders") is EntityState.HEALTHY
        assert w.pair.syphon_holds == frozenset()


@in_virtual_time
async def test_a_dead_letter_is_logged_when_no_observer_wants_events_of_single_messages(caplog):
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    setup = east.transport()
    await setup.admin.create(Entity("orders"))
    options = PairOptions(backlog_queue_count=1, enable_syphon=True)
    async with Pair(east.transport(), west.transport(), options, clock=Clock(virtual_wall, random.Random(1))):
        west.store(Entity("east/x-servicebus-transfer/0"), Message(b"forged", message_id="forged"))
        await asyncio.sleep(5)
    assert [record.levelname for record in caplog.records if "forged" in record.getMessage()] == ["WARNING"]


@in_virtual_time
async def test_results_of_a_wrong_number_leave_nothing_locked_forever(world, monkeypatch):
    async with world(enable_syphon=True, backlog_queue_count=1) as w:
        with w.pair._engine.syphon._sender(Entity("orders")) as sender:
            send_batch = sender.send_batch

        async def one_too_few(messages):
            results = await send_batch(messages)
            return results[:-1] if short.pop() else results

        short = [False] * 1000 + [True]  # the first time
        monkeypatch.setattr(sender, "send_batch", one_too_few)
        leave(w, *(envelope(b"%d" % n) for n in range(5)))
        await drained(w)
        assert set(w.home()) == {b"%d" % n for n in range(5)}


@in_virtual_time
async def test_a_destination_that_is_held_as_its_gate_opens_is_not_probed(world):
    """An observer holds it in the midst of the probe that found it working."""
    async with world(enable_syphon=True, ping_primary_interval=5.0) as w:
        probes: list[int] = []

        def hold(event: Event) -> None:
            if isinstance(event, DestinationChanged) and event.open:
                w.pair.hold("orders", syphon=True)
                probes.append(w.east.operations["PROBE"])

        w.pair.subscribe(hold)
        w.east.fail(Fault.DOWN)
        leave(w, envelope(b"1"))
        await asyncio.sleep(20)
        w.east.heal()
        await asyncio.sleep(600)
        assert w.pair.syphon_holds == {ORDERS}
        assert probes == [w.east.operations["PROBE"]]
        assert len(w.backlog()) == 1


@in_virtual_time
async def test_a_destination_that_refuses_credentials_is_reported_once_until_it_takes_a_message(world):
    async with world(enable_syphon=True, ping_primary_interval=5.0) as w:
        w.east.fail(Fault.UNAUTHORIZED)
        leave(w, envelope(b"1"))
        await asyncio.sleep(600)
        assert [(event.open, "password" in event.error) for event in w.of(DestinationChanged)] == [(False, True)]
        assert w.west.dead_letters(QUEUE) == []
        w.east.heal()
        await drained(w, 10)
        assert w.home() == [b"1"]
        assert [event.open for event in w.of(DestinationChanged)] == [False, True]


@in_virtual_time
async def test_a_destination_that_is_back_and_refuses_credentials_is_reported_with_that_reason(world):
    async with world(enable_syphon=True, ping_primary_interval=5.0) as w:
        w.east.fail(Fault.DOWN)
        leave(w, envelope(b"1"))
        await asyncio.sleep(60)
        w.east.heal()
        w.east.fail(Fault.UNAUTHORIZED)
        await asyncio.sleep(600)
        assert [event.open for event in w.of(DestinationChanged)] == [False, False]
        assert "password" in w.of(DestinationChanged)[-1].error


@in_virtual_time
async def test_a_destination_whose_probes_alone_are_refused_takes_messages(world):
    async with world(enable_syphon=True, ping_primary_interval=5.0) as w:
        w.east.fail(Fault.UNAUTHORIZED)
        leave(w, envelope(b"1"))
        await asyncio.sleep(60)
        w.east.heal()
        w.east.fail(Fault.UNAUTHORIZED, Operation.PROBE)
        await drained(w, 10)
        assert w.home() == [b"1"]
        assert [event.open for event in w.of(DestinationChanged)] == [False, True]


@in_virtual_time
async def test_a_syphon_connects_while_the_record_is_read(monkeypatch):
    """Over a distance a connection takes seconds: of the primary's the first message would wait for all of them."""
    asked = []

    async def connect(transport, *, sends=False, receives=False):
        asked.append((transport.endpoint.name, sends, receives))
        await asyncio.sleep(5)

    monkeypatch.setattr(Transport, "make_ready", connect)
    slow = PairOptions(enable_syphon=True, close_grace=1)
    async with Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport(), options=slow):
        assert asked == [("east", True, False), ("west", False, True)]
        began = asyncio.get_running_loop().time()
        assert began < 5
    assert asyncio.get_running_loop().time() - began < 1  # closing does not wait for them
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_a_pair_without_a_syphon_connects_to_no_more_than_it_uses(monkeypatch):
    asked = []

    async def connect(transport, *, sends=False, receives=False):
        asked.append(transport)

    monkeypatch.setattr(Transport, "make_ready", connect)
    async with Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport()):
        await asyncio.sleep(1)
    assert asked == []


@in_virtual_time
async def test_brokers_that_cannot_be_connected_to_in_advance_disturb_nothing(monkeypatch):
    tasks = []

    async def refuse(transport, *, sends=False, receives=False):
        tasks.append(asyncio.current_task())
        raise TransportError("connection refused", FailureKind.UNAVAILABLE, FailureReason.CONNECTION)

    monkeypatch.setattr(Transport, "make_ready", refuse)
    syphon = PairOptions(enable_syphon=True)
    async with Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport(), options=syphon):
        await asyncio.sleep(1)
    assert [task.exception() for task in tasks] == [None, None]


@in_virtual_time
async def test_a_queue_that_finds_a_destination_missing_leaves_the_sends_of_others_alone(world):
    """All pumps share its sender: closed at once, it made their messages wait as if the primary were unavailable."""
    async with world(enable_syphon=True) as w:
        await w.pair.primary.admin.delete(ORDERS)
        first, second = (str(queue) for queue in w.pair.backlog_queues[:2])
        leave(w, envelope(b"0"), queue=first)
        await drained(w)  # it has been missing for long
        seen = len(w.of(DestinationChanged))
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)
        leave(w, envelope(b"1"), queue=first)
        await asyncio.sleep(0.2)
        leave(w, *(envelope(b"%d" % number) for number in range(2, 300)), queue=second)
        await drained(w, 10)
        assert len(w.west.dead_letters(first)) + len(w.west.dead_letters(second)) == 300
        assert w.of(DestinationChanged)[seen:] == []


@in_virtual_time
async def test_a_primary_that_comes_back_without_its_queues_gets_the_messages_when_they_are_made(world):
    """A broker that has lost its disk: its programs make their queues when they connect."""
    async with world(enable_syphon=True, ping_primary_interval=20.0) as w:
        await w.pair.primary.admin.delete(ORDERS)
        leave(w, *(envelope(b"%03d" % number) for number in range(250)))
        await asyncio.sleep(50)
        assert w.west.dead_letters(QUEUE) == []
        await w.pair.primary.admin.create(ORDERS)
        await drained(w, 60)
        assert sorted(w.home()) == [b"%03d" % number for number in range(250)]
        assert [
            (event.open, event.error and "no such entity" in event.error) for event in w.of(DestinationChanged)
        ] == [
            (False, True),
            (True, None),
        ]


@in_virtual_time
async def test_messages_of_a_queue_that_stays_missing_are_dead_lettered(world):
    async with world(enable_syphon=True, ping_primary_interval=20.0) as w:
        await w.pair.primary.admin.delete(ORDERS)
        leave(w, *(envelope(b"%03d" % number) for number in range(250)))
        assert await drained(w, 100) >= 60
        assert len(w.west.dead_letters(QUEUE)) == 250
        assert {reason for _, reason in w.west.dead_letters(QUEUE)} == {"not-found"}
