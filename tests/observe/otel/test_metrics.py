"""What happens to a pair, as metrics."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pairmq import Entity, EntityState, Message, Pair, PairOptions, SendError
from pairmq.model import FailureKind, FailureReason, Source, TransportError
from pairmq.model.events import Cause, PairEnded, PairOpened, SendCompleted, SendOutcome, StateChanged
from pairmq.observe.otel import OpenTelemetryObserver, watch_backlog
from pairmq.testing import TEST_OPTIONS, Fault, Operation, SimulatedBroker, in_virtual_time


def opened(pair: str = "east>west", primary: str = "redis://east:6379/0", secondary: str = "amqps://west/"):
    return PairOpened(at=1.0, pair=pair, primary=primary, secondary=secondary, version="1", options="{}")


def sent(path: str = "orders", outcome: SendOutcome = SendOutcome.PRIMARY, **fields):
    queue = "q/0" if outcome is SendOutcome.BACKLOG else None
    values = {"attempts": 1, "elapsed": 0.02, "maybe_duplicate": False, "size": 1, **fields}
    return SendCompleted(
        at=1.0, pair="east>west", entity=Entity(path), message_id="m", outcome=outcome, backlog_queue=queue, **values
    )


@in_virtual_time
async def test_sends_are_counted_and_timed_by_entity_and_outcome(telemetry, world):
    async with world(telemetry.observer()) as w:
        for path in ("orders", "orders", "prices"):
            await w.pair.sender(path).send(Message(b"1"))
    for metric in ("messaging.client.sent.messages", "messaging.client.operation.duration"):
        assert telemetry.value(metric, messaging_destination_name="orders", pairmq_outcome="accepted-primary") == 2
        assert telemetry.value(metric, messaging_destination_name="prices") == 1


@in_virtual_time
async def test_a_diverted_send_is_one_of_the_secondary(telemetry, world):
    async with world(telemetry.observer(), enable_syphon=False) as w:
        w.pair.hold("orders")
        await w.pair.sender("orders").send(Message(b"1"))
    (point,) = telemetry.points("messaging.client.sent.messages")
    assert point.attributes["server.address"] == "west"
    assert point.attributes["pairmq.outcome"] == "accepted-backlog"
    assert point.attributes["messaging.destination.name"] == "orders"


@in_virtual_time
async def test_a_refused_send_names_its_error(telemetry, world):
    async with world(telemetry.observer()) as w:
        with pytest.raises(SendError):
            await w.pair.sender("unknown").send(Message(b"1"))
    assert telemetry.value("messaging.client.sent.messages", error_type="EntityNotFound", pairmq_outcome="refused") == 1


@in_virtual_time
async def test_an_outage_is_reported_from_end_to_end(telemetry, world):
    async with world(telemetry.observer()) as w:
        sender = w.pair.sender("orders")
        await sender.send(Message(b"before"))
        w.east.fail(Fault.DOWN)
        await sender.send(Message(b"during"))
        assert telemetry.value("pairmq.entity.state", pairmq_state="failed-over") == 1
        assert telemetry.value("pairmq.entity.state", pairmq_state="healthy") == 0
        await asyncio.sleep(20)
        w.east.heal()
        await asyncio.sleep(60)
        assert telemetry.value("pairmq.entity.state", pairmq_state="healthy") == 1
    value = telemetry.value
    assert value("pairmq.entity.transitions", pairmq_state="failed-over", pairmq_cause="failover interval over") == 1
    assert value("pairmq.send.failed_attempts", pairmq_side="primary", pairmq_failure_kind="unavailable") >= 1
    assert value("pairmq.pings", pairmq_result="failed") >= 1
    assert value("pairmq.pings", pairmq_result="good") >= 1
    assert value("messaging.client.operation.duration", messaging_operation_name="ping") >= 2
    assert value("pairmq.syphon.moved", messaging_destination_name="orders") == 1
    (wait,) = telemetry.points("pairmq.backlog.wait")
    assert 20 < wait.sum < 60


@in_virtual_time
async def test_a_lost_backlog_queue_leaves_the_rotation(telemetry, world):
    async with world(telemetry.observer(), enable_syphon=False, backlog_retry_interval=600) as w:
        assert telemetry.value("pairmq.backlog.queues.in_use") == 2
        w.pair.hold("orders")
        w.west.fail(Fault.DOWN, entities=[w.pair.backlog_queues[0].path])
        for _ in range(10):  # each sender picks a queue by chance
            await w.pair.sender("orders").send(Message(b"1"))
        assert telemetry.value("pairmq.backlog.queues.in_use") == 1
    assert telemetry.value("pairmq.backlog.rotation.changes", pairmq_backlog_queue_in_use=False) == 1


@in_virtual_time
async def test_dead_letters_are_counted_by_reason_and_never_by_what_a_message_says(telemetry, world):
    async with world(telemetry.observer(), allowed_entities=("prices",)) as w:
        await w.divert_elsewhere(telemetry.observer())
        await asyncio.sleep(5)
    (point,) = telemetry.points("pairmq.syphon.dead_lettered")
    assert dict(point.attributes) == {"pairmq.pair": w.pair.name, "pairmq.reason": "destination-not-allowed"}


@in_virtual_time
async def test_what_consumers_settle_is_counted(telemetry, world):
    async with world(telemetry.observer()) as w:
        sender = w.pair.sender("orders")
        await sender.send_batch([Message(b"1"), Message(b"2")])
        async with w.pair.receiver("orders") as receiver:
            first, second = await receiver.receive(2)
            await first.complete()
            await second.dead_letter("bad")
    value = telemetry.value
    assert value("messaging.client.consumed.messages", pairmq_settlement="completed") == 1
    assert value("messaging.client.consumed.messages", messaging_operation_name="dead_letter") == 1


@in_virtual_time
async def test_operations_of_brokers_are_counted(telemetry, world):
    async with world(telemetry.observer(), enable_syphon=False) as w:
        await w.pair.sender("orders").send(Message(b"1"))
    assert telemetry.value("pairmq.broker.operations", pairmq_side="primary", pairmq_operation="sends") == 1


@in_virtual_time
async def test_a_closed_pair_has_no_present_values(telemetry, world):
    async with world(telemetry.observer()) as w:
        await w.pair.sender("orders").send(Message(b"1"))
        assert telemetry.points("pairmq.entity.state")
        assert telemetry.points("pairmq.backlog.queues.in_use")
    assert not telemetry.points("pairmq.entity.state")
    assert not telemetry.points("pairmq.backlog.queues.in_use")
    assert telemetry.points("messaging.client.sent.messages")  # what was counted stays


def test_of_two_pairs_the_one_that_is_open_keeps_its_present_values(telemetry):
    observer = telemetry.observer()
    for pair in ("east>west", "north>south"):
        options = '{"backlog_queue_count": 3}'
        observer.on_event(PairOpened(at=1.0, pair=pair, primary="", secondary="", version="", options=options))
        observer.on_event(
            StateChanged(
                at=1.0,
                pair=pair,
                entity=Entity("orders"),
                previous=EntityState.HEALTHY,
                current=EntityState.FAILING,
                cause=Cause.SEND_FAILED,
                epoch=1,
                lasted=1.0,
            )
        )
    observer.on_event(PairEnded(at=2.0, pair="east>west"))
    for gauge in ("pairmq.entity.state", "pairmq.backlog.queues.in_use"):
        assert {point.attributes["pairmq.pair"] for point in telemetry.points(gauge)} == {"north>south"}


@in_virtual_time
async def test_the_gauges_of_two_observers_stand_side_by_side(telemetry, world):
    async with world(telemetry.observer()) as one:
        await one.pair.sender("orders").send(Message(b"1"))
        async with world(telemetry.observer()) as two:
            await two.pair.sender("prices").send(Message(b"1"))
            found = {
                point.attributes["messaging.destination.name"] for point in telemetry.points("pairmq.entity.state")
            }
    assert found == {"orders", "prices"}


@in_virtual_time
async def test_a_pair_that_did_not_open_takes_no_present_values_from_the_next(telemetry):
    """The secondary refuses a login until that is fixed, and the program makes a new pair."""
    observer = telemetry.observer()
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    await east.transport().admin.create(Entity("orders"))
    gauges = ("pairmq.entity.state", "pairmq.backlog.queues.in_use")
    west.fail(Fault.UNAUTHORIZED)
    with pytest.raises(TransportError):
        await Pair(east.transport(), west.transport(), TEST_OPTIONS, observers=[observer])
    assert not any(telemetry.points(gauge) for gauge in gauges)
    west.heal()
    async with Pair(east.transport(), west.transport(), TEST_OPTIONS, observers=[observer]) as pair:
        await pair.sender("orders").send(Message(b"1"))
        assert all(telemetry.points(gauge) for gauge in gauges)
    assert not any(telemetry.points(gauge) for gauge in gauges)


@pytest.mark.parametrize("fixed", [False, True])
@in_virtual_time
async def test_queues_that_an_opening_found_lost_are_those_of_that_opening(telemetry, fixed):
    observer = telemetry.observer()
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    options = replace(TEST_OPTIONS, backlog_queue_count=2, enable_syphon=False)
    lost, other = options.backlog_queue_names("east")
    west.fail(Fault.DOWN, entities=[lost])
    west.fail(Fault.UNAUTHORIZED, entities=[other])
    with pytest.raises(TransportError):
        await Pair(east.transport(), west.transport(), options, observers=[observer])
    west.heal()
    if not fixed:
        west.fail(Fault.DOWN, entities=[lost])
    async with Pair(east.transport(), west.transport(), options, observers=[observer]):
        assert telemetry.value("pairmq.backlog.queues.in_use") == (2 if fixed else 1)


@in_virtual_time
async def test_the_backlog_is_counted_while_it_is_watched(telemetry, world):
    async with world(telemetry.observer(), enable_syphon=False) as w:
        w.pair.hold("orders")
        async with watch_backlog(w.pair, every=10, meter_provider=telemetry.meters):
            await w.pair.sender("orders").send_batch([Message(b"1"), Message(b"2")])
            await asyncio.sleep(11)
            assert telemetry.value("pairmq.backlog.messages", pairmq_message_state="active") == 2
        assert not telemetry.points("pairmq.backlog.messages")


@in_virtual_time
async def test_a_backlog_that_cannot_be_counted_has_no_value(telemetry, world):
    async with (
        world(telemetry.observer(), enable_syphon=False) as w,
        watch_backlog(w.pair, every=10, meter_provider=telemetry.meters),
    ):
        await asyncio.sleep(1)
        assert telemetry.points("pairmq.backlog.messages")
        w.west.fail(Fault.HANG)
        await asyncio.sleep(60)
        assert not telemetry.points("pairmq.backlog.messages")
        w.west.heal()
        await asyncio.sleep(60)
        assert telemetry.points("pairmq.backlog.messages")


@in_virtual_time
async def test_a_count_that_is_refused_is_logged_once(telemetry, world, caplog, monkeypatch):
    """Only "-v" said why a pair had no such metric."""
    async with world(telemetry.observer(), enable_syphon=False, backlog_queue_count=1) as w:

        async def refuse(*_):
            raise TransportError("no right to count", FailureKind.REFUSED, FailureReason.UNAUTHORIZED)

        monkeypatch.setattr(type(w.pair.secondary.admin), "counts", refuse)
        async with watch_backlog(w.pair, every=10, meter_provider=telemetry.meters):
            await asyncio.sleep(60)
    warned = [each for each in caplog.records if "no right to count" in each.getMessage()]
    assert [each.levelname for each in warned if each.levelname != "DEBUG"] == ["WARNING"]


@in_virtual_time
async def test_a_driver_s_own_exception_does_not_end_the_counting(telemetry, world, caplog):
    async with (
        world(telemetry.observer(), enable_syphon=False) as w,
        watch_backlog(w.pair, every=10, meter_provider=telemetry.meters),
    ):
        await asyncio.sleep(1)
        assert telemetry.points("pairmq.backlog.messages")
        w.west.fail(Fault.BUG, Operation.ADMIN)
        await asyncio.sleep(30)
        assert not telemetry.points("pairmq.backlog.messages")
        w.west.heal()
        w.pair.hold("orders")
        await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(30)
        assert telemetry.value("pairmq.backlog.messages") == 1
    assert sum("could not be counted" in record.getMessage() for record in caplog.records) == 1


class Cancelling:
    """A pair whose driver cancels tasks of its own, and makes something else of a cancellation from outside."""

    name = "east>west"
    backlog_queues = (Entity("q/0"),)
    outbox_queue = None

    def __init__(self) -> None:
        self.asked = 0
        self.secondary = SimpleNamespace(admin=self)

    async def counts(self, source: Source) -> SimpleNamespace:
        self.asked += 1
        if self.asked == 1:
            raise asyncio.CancelledError
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionError("the connection is gone") from None
        return SimpleNamespace(active=1, locked=0, scheduled=0, dead_letter=0)


@in_virtual_time
async def test_a_driver_s_cancellations_neither_end_the_counting_nor_keep_it_alive(telemetry, caplog):
    pair = Cancelling()
    async with asyncio.timeout(600):
        async with watch_backlog(pair, every=10, limit=100, meter_provider=telemetry.meters):  # type: ignore[arg-type]
            await asyncio.sleep(71)
            assert telemetry.value("pairmq.backlog.messages") == 1
            await asyncio.sleep(30)
            assert pair.asked == 3
    assert sum("could not be counted" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("wrong", [{"every": 0}, {"limit": -1}])
async def test_a_backlog_is_not_watched_without_a_pause(wrong):
    with pytest.raises(ValueError, match="above 0"):
        async with watch_backlog(None, **wrong):  # type: ignore[arg-type]
            pass


def test_the_brokers_are_named_as_the_conventions_name_them(telemetry):
    observer = telemetry.observer()
    observer.on_event(opened())
    observer.on_event(sent())
    observer.on_event(sent(outcome=SendOutcome.BACKLOG))
    (primary,) = telemetry.points("messaging.client.sent.messages", messaging_system="redis")
    (secondary,) = telemetry.points("messaging.client.sent.messages", messaging_system="rabbitmq")
    assert (primary.attributes["server.address"], primary.attributes["server.port"]) == ("east", 6379)
    assert secondary.attributes["server.address"] == "west"
    assert "server.port" not in secondary.attributes


@pytest.mark.parametrize(
    ("url", "system"),
    [
        ("amqp://east:5672,west:5672/v", "rabbitmq"),
        ("redis+sentinel://east:26379,west:26379/orders/0", "redis"),
    ],
)
def test_a_broker_with_several_hosts_has_no_address(telemetry, url, system):
    observer = telemetry.observer()
    observer.on_event(opened(primary=url))
    observer.on_event(sent())
    (point,) = telemetry.points("messaging.client.sent.messages", messaging_system=system)
    assert not [name for name in point.attributes if name.startswith("server.")]


@pytest.mark.parametrize("url", ["", "redis://[", "redis://east:port/"])
def test_a_broker_whose_url_cannot_be_read_is_unknown(telemetry, url):
    observer = telemetry.observer()
    observer.on_event(opened(primary=url))
    observer.on_event(sent())
    assert telemetry.value("messaging.client.sent.messages", messaging_system="pairmq") == 1


def test_metrics_name_no_more_entities_than_they_may(telemetry):
    observer = telemetry.observer(max_entities=2)
    observer.on_event(opened())
    for n in range(1000):
        observer.on_event(sent(f"q{n}"))
    found = {
        point.attributes["messaging.destination.name"]: point.value
        for point in telemetry.points("messaging.client.sent.messages")
    }
    assert found == {"q0": 1, "q1": 1, "other": 998}


def test_no_metric_names_a_message(telemetry):
    observer = telemetry.observer()
    observer.on_event(opened())
    observer.on_event(sent(session_id="session-7"))
    assert "session-7" not in str(telemetry.points("messaging.client.sent.messages"))
    assert not any("id" in name for p in telemetry.points("messaging.client.sent.messages") for name in p.attributes)


def test_an_observer_without_entities_is_refused():
    with pytest.raises(ValueError, match="max_entities"):
        OpenTelemetryObserver(max_entities=0)


async def test_an_outbox_has_metrics_of_its_own(telemetry, tmp_path):
    options = PairOptions(backlog_queue_count=1, attempt_timeout=30.0)
    urls = (f"memory://{uuid.uuid4().hex}", f"sqlite://{tmp_path}/shop.db?poll_interval=0.02")
    async with Pair.connect(*urls, options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
            await pair.outbox("orders").send(Message(b"1"), connection=connection)
        async with watch_backlog(pair, every=60, meter_provider=telemetry.meters), asyncio.timeout(200):
            while not telemetry.points("pairmq.outbox.messages"):
                await asyncio.sleep(0.01)
            assert telemetry.value("pairmq.outbox.messages", pairmq_message_state="active") == 1
            assert telemetry.value("pairmq.backlog.messages") == 0
    with_syphon = replace(options, enable_syphon=True)
    async with Pair.connect(*urls, options=with_syphon, observers=[telemetry.observer()]) as pair, asyncio.timeout(200):
        while not telemetry.points("pairmq.outbox.wait", messaging_destination_name="orders"):
            await asyncio.sleep(0.01)
        assert (pair.moved, pair.outbox_moved) == (1, 1)
    assert not telemetry.points("pairmq.syphon.moved")
    assert not telemetry.points("pairmq.backlog.wait")
