"""Consuming through a pair in one process: a worker and plain consumers, with memory:// for both brokers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

import kombu
import pytest
from celery import Celery
from celery.app.task import Task
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject
from celery.signals import setup_logging
from celery.worker.state import revoked

from pairmq import Entity, PairDelivery
from pairmq.core import lanes
from pairmq.model import Source
from pairmq.sync import Pair

QUEUE = kombu.Queue("celery", durable=True)
NOWHERE = "pairmq://127.0.0.1:1//"
"""A primary that takes no connection of py-amqp: remote control is unavailable, and declarations are put off."""


@pytest.fixture
def options(primary_in_memory: str) -> dict[str, Any]:
    table = {"secondary": f"{primary_in_memory}-b", "continuity": ["celery"], "failover_interval": 0}
    return {"pairmq": {**table, "backlog_queue_count": 1, "control_interval": 0}}


@pytest.fixture
def connection(options: dict[str, Any]) -> Iterator[kombu.Connection]:
    with kombu.Connection(NOWHERE, transport_options=options, connect_timeout=1) as made:
        yield made


@pytest.fixture
def pair(connection: kombu.Connection) -> Pair:
    """The process's pair, with the queue on its primary."""
    made: Pair = connection.connection.process.opened()
    made.primary.admin.create(Entity("celery"))
    return made


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


class Consuming:
    """A consumer of the queue that keeps what it gets."""

    def __init__(self, connection: kombu.Connection, prefetch: int = 0, **arguments: Any) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.got: list[Any] = []
        self.consumer = kombu.Consumer(self.channel, [QUEUE], on_message=self.got.append, **arguments)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def drain(self, count: int) -> list[Any]:
        """The bodies of all that it got, once there are so many."""
        until = time.monotonic() + 60
        while len(self.got) < count:
            assert time.monotonic() < until
            try:
                self.connection.drain_events(timeout=0.2)
            except TimeoutError:
                continue
        return sorted(message.payload for message in self.got)

    def nothing_more(self) -> bool:
        before = len(self.got)
        with suppress(TimeoutError):
            self.connection.drain_events(timeout=0.2)
        return len(self.got) == before


def publish(connection: kombu.Connection, *bodies: object) -> None:
    producer = connection.Producer()
    for body in bodies:
        producer.publish(body, routing_key="celery", declare=[QUEUE])


def depth(pair: Pair, lane: str = "") -> int:
    counts = (pair.secondary if lane else pair.primary).admin.counts(Source(Entity(lane or "celery")))
    return counts.active + counts.locked


def lane_of(pair: Pair) -> str:
    return next(entity.path for entity in pair.backlog_queues if entity.path.endswith("lane/celery"))


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """A worker would set the level of the root logger, for all tests that follow, unless a receiver sets logging up.

    What it writes into the environment for its children is removed.
    """

    def leave(**_: object) -> None:
        pass

    before = dict(os.environ)
    setup_logging.connect(leave, weak=False)
    yield
    setup_logging.disconnect(leave)
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.mark.usefixtures("logging_as_it_was")
def test_a_worker_runs_the_tasks_of_both_brokers(options: dict[str, Any], pair: Pair) -> None:
    application = Celery("reading", set_as_current=False)
    application.conf.update(
        broker_read_url=NOWHERE,
        broker_write_url=NOWHERE,
        broker_transport_options=options,
        broker_connection_timeout=1,
        task_ignore_result=True,
        worker_prefetch_multiplier=2,
    )
    ran: list[str] = []

    @application.task(shared=False)
    def early(name: str) -> None:
        ran.append(name)

    @application.task(shared=False, acks_late=True)
    def late(name: str) -> None:
        ran.append(name)

    @application.task(shared=False, bind=True, max_retries=1)
    def again(self: Task, name: str) -> None:
        ran.append(f"{name} {self.request.retries}")
        if not self.request.retries:
            raise self.retry(countdown=0)

    @application.task(shared=False, acks_late=True, bind=True)
    def refused(self: Task, name: str) -> None:
        ran.append(name)
        raise Reject(requeue=not self.request.delivery_info["redelivered"])

    def send(where: str) -> set[str]:
        for number in range(10):
            early.delay(f"{where} early {number}")
        late.delay(f"{where} late")
        late.apply_async((f"{where} eta",), countdown=0.2)
        again.delay(f"{where} again")
        refused.delay(f"{where} refused")
        unwanted = uuid4().hex
        revoked.add(unwanted)  # before the worker can get it
        early.apply_async(("revoked",), task_id=unwanted)
        parts = ("late", "eta", "again 0", "again 1", "refused", *(f"early {number}" for number in range(10)))
        return {f"{where} {part}" for part in parts}

    with application.connection_for_read() as connection:
        assert connection.transport.driver_type == "pairmq"  # Celery's gossip and mingle are for others
    expected: set[str] = set()
    with start_worker(application, pool="solo", perform_ping_check=False, loglevel="CRITICAL"):
        expected |= send("primary")
        wait_until(lambda: expected <= set(ran))
        pair.force_failover("celery")
        expected |= send("lane")
        wait_until(lambda: expected <= set(ran))
        wait_until(lambda: ran.count("primary refused") == ran.count("lane refused") == 2)
        lane = lane_of(pair)
        wait_until(lambda: pair.secondary.admin.counts(Source(Entity(lane))).dead_letter == 1)
    assert set(ran) == expected
    assert sorted(name for name in set(ran) if ran.count(name) > 1) == ["lane refused", "primary refused"]
    assert (depth(pair), depth(pair, lane)) == (0, 0)


def test_a_consumer_has_no_more_than_its_prefetch_and_settles_as_it_asks(
    connection: kombu.Connection, pair: Pair
) -> None:
    publish(connection, *range(5))
    consuming = Consuming(connection, prefetch=2)
    assert consuming.drain(2) == [0, 1]
    assert consuming.nothing_more()
    consuming.got[0].ack()
    assert consuming.drain(3) == [0, 1, 2]
    consuming.consumer.qos(prefetch_count=3)
    assert consuming.drain(4) == [0, 1, 2, 3]
    consuming.got[1].requeue()
    consuming.got[2].reject()
    assert consuming.drain(6) == [0, 1, 1, 2, 3, 4]
    assert [message.delivery_info["redelivered"] for message in consuming.got if message.payload == 1] == [False, True]
    consuming.consumer.cancel()
    for message in consuming.got[3:]:
        message.ack()  # what it has can still be settled
    wait_until(lambda: depth(pair) == 0)
    assert pair.primary.admin.counts(Source(Entity("celery"))).dead_letter == 1


def test_closing_a_channel_releases_what_it_has_not_settled(connection: kombu.Connection, pair: Pair) -> None:
    publish(connection, "primary")
    pair.force_failover("celery")
    publish(connection, "lane")
    first = Consuming(connection)
    assert first.drain(2) == ["lane", "primary"]
    first.channel.close()
    second = Consuming(connection, no_ack=True)
    assert second.drain(2) == ["lane", "primary"]
    second.consumer.cancel()
    wait_until(lambda: depth(pair) + depth(pair, lane_of(pair)) == 0)


def test_locks_are_renewed_while_a_message_is_held(
    connection: kombu.Connection, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "renewal_due", lambda _: 0.02)
    renewed: list[datetime] = []
    renew = PairDelivery.renew_lock

    async def noting(delivery: PairDelivery) -> None:
        await renew(delivery)
        assert delivery.delivery.locked_until is not None
        renewed.append(delivery.delivery.locked_until)

    monkeypatch.setattr(PairDelivery, "renew_lock", noting)
    pair.force_failover("celery")
    publish(connection, "held")
    consuming = Consuming(connection)
    consuming.drain(1)
    wait_until(lambda: len(renewed) > 2)
    assert renewed[2] > renewed[0]
    consuming.got[0].ack()
    wait_until(lambda: depth(pair, lane_of(pair)) == 0)


def test_a_message_whose_acknowledgement_was_forgotten_is_not_given_again(
    connection: kombu.Connection, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(self: object) -> None:
        await self.abandon()  # type: ignore[attr-defined]

    publish(connection, "once")
    with monkeypatch.context() as patched:
        patched.setattr("pairmq.PairDelivery.complete", lost)
        consuming = Consuming(connection, prefetch=1)
        consuming.drain(1)
        consuming.consumer.cancel()
        consuming.got[0].ack()
        wait_until(lambda: pair.primary.admin.counts(Source(Entity("celery"))).active == 1)
    again = Consuming(connection)
    wait_until(lambda: again.nothing_more() and depth(pair) == 0)
    assert not again.got


def test_without_continuity_nothing_is_read_through_the_pair(options: dict[str, Any]) -> None:
    del options["pairmq"]["continuity"]
    with kombu.Connection(NOWHERE, transport_options=options, connect_timeout=60) as connection:
        transport = connection.transport
        assert (transport.driver_type, transport.implements.asynchronous) == ("amqp", False)
        with pytest.raises(OSError, match="unreachable"):
            Consuming(connection)
