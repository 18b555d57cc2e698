"""Publishing with Kombu through a pair of real brokers: the same messages, whatever becomes of the primary."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu
import kombu.pools
import pytest
import trustme
from celery import Celery
from kombu.exceptions import OperationalError

from pairmq import Route
from pairmq.model import Source
from pairmq_kombu import PublishRefused, PublishUnknown
from pairmq_kombu.transport import close_pairs
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisCluster, RedisSentinels, RedisServer

pytestmark = pytest.mark.real_server

ORDERS = kombu.Queue("orders", durable=True)
ROUTED = kombu.Queue("routed", kombu.Exchange("shop", "topic"), "orders.#", durable=True)
RETRY = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2}
HEADERS: dict[str, Any] = {
    "task": "shop.place",
    "retries": 0,
    "eta": None,
    "timelimit": [None, 1.5],
    "stamps": {"by": ["a", "b"], "deep": {"er": [1, {"x": None}]}},
    "big": 2**40,
    "flag": False,
    "blob": b"as text",
    "umlaut ü": "ü",
    "at": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  # AMQP's have no zone
}


def publish(connection: kombu.Connection, body: Any = None, **arguments: Any) -> Any:
    given = {"routing_key": "orders", "declare": [ORDERS], "retry": True, "retry_policy": RETRY, **arguments}
    return connection.Producer().publish({} if body is None else body, **given)


def received(connection: kombu.Connection, count: int, queue: str = "orders") -> list[Any]:
    """The next messages of a queue; they are given a minute to come."""
    found: list[Any] = []
    until = time.monotonic() + 60
    bound = kombu.Queue(queue)(connection.default_channel)
    while len(found) < count and time.monotonic() < until:
        message = bound.get(no_ack=True)
        if message is None:
            time.sleep(0.05)
        else:
            found.append(message)
    return found


def depth(connection: kombu.Connection, queue: str = "orders") -> int:
    return int(kombu.Queue(queue)(connection.default_channel).queue_declare(passive=True).message_count)


def seen(message: Any) -> dict[str, Any]:
    """All that a consumer sees of a message but where it stood in its queue, and the id that PairMQ gives it."""
    properties = {name: value for name, value in message.properties.items() if name != "message_id"}
    if not message.headers:
        properties.pop("application_headers", None)  # an empty table, or none
    return {"body": message.body, "headers": message.headers, "properties": properties}


@pytest.fixture
def variants() -> list[dict[str, Any]]:
    return [
        {"body": {"number": 1, "text": "ü"}, "headers": HEADERS, "priority": 3, "correlation_id": "c", "reply_to": "r"},
        {"body": b"\x00\xff", "content_type": "application/data", "content_encoding": "binary", "type": "t"},
        {"body": {"a": 1}, "serializer": "json", "compression": "zlib", "expiration": 3600.5, "app_id": "shop"},
        {"body": "text", "content_type": "text/plain", "content_encoding": "utf-8", "priority": None},
    ]


def test_a_consumer_sees_the_same_message_by_the_pair_as_without_it(
    paired: kombu.Connection, plain: kombu.Connection, variants: list[dict[str, Any]]
) -> None:
    expected, found = [], []
    for variant in variants:
        publish(plain, **variant)
        expected += received(plain, 1)
        assert publish(paired, **variant).route is Route.PRIMARY
        found += received(plain, 1)
    assert [seen(message) for message in found] == [seen(message) for message in expected]


def test_a_consumer_sees_the_same_message_by_the_backlog(
    rabbit: RabbitServer, paired: kombu.Connection, variants: list[dict[str, Any]]
) -> None:
    with kombu.Connection(rabbit.url) as plain:
        expected = []
        for variant in variants:
            publish(plain, **variant)
            expected += received(plain, 1)
    rabbit.go_down()
    receipts = [publish(paired, **variant) for variant in variants]
    rabbit.come_up()
    with kombu.Connection(rabbit.url) as plain:
        found = received(plain, len(variants))
    assert [receipt.route for receipt in receipts] == [Route.BACKLOG] * len(variants)
    assert sorted(map(str, map(seen, found))) == sorted(map(str, map(seen, expected)))


def test_a_message_that_a_pair_can_not_carry_goes_as_without_it(
    paired: kombu.Connection, plain: kombu.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"to": "Ada", "subject": "order", "x-ms-path": "elsewhere"}
    publish(paired, headers=headers)
    assert received(plain, 1)[0].headers == headers
    assert "goes to the primary only" in caplog.text


@pytest.mark.long
def test_a_program_that_starts_while_the_primary_is_dead_can_publish(
    rabbit: RabbitServer, paired: kombu.Connection
) -> None:
    with kombu.Connection(rabbit.url) as plain:
        ORDERS(plain.default_channel).declare()
    rabbit.kill()
    receipt = publish(paired, "first")
    rabbit.start()
    with kombu.Connection(rabbit.url) as plain:
        found = received(plain, 1)
    assert receipt.route is Route.BACKLOG
    assert [message.payload for message in found] == ["first"]


@pytest.mark.long
@pytest.mark.parametrize("group", [RedisSentinels, RedisCluster])
def test_the_secondary_may_be_behind_sentinels_or_a_cluster(
    rabbit: RabbitServer, options: dict[str, Any], group: type[RedisSentinels | RedisCluster]
) -> None:
    with group() as servers:
        options["pairmq"]["secondary"] = servers.url
        url = rabbit.url.replace("amqp://", "pairmq://")
        with kombu.Connection(url, transport_options=options, connect_timeout=4) as connection:
            assert publish(connection).route is Route.PRIMARY
            rabbit.go_down()
            assert [publish(connection).route for _ in range(5)] == [Route.BACKLOG] * 5
            rabbit.come_up()
            with kombu.Connection(rabbit.url) as plain:
                assert len(received(plain, 6)) == 6
        close_pairs()


def test_a_queue_that_is_new_in_an_outage_is_declared_by_a_later_publish(
    rabbit: RabbitServer, paired: kombu.Connection
) -> None:
    rabbit.kill()
    publish(paired)
    rabbit.start()
    until = time.monotonic() + 60
    while publish(paired).route is not Route.PRIMARY:
        assert time.monotonic() < until
        time.sleep(0.2)
    with kombu.Connection(rabbit.url) as plain:
        assert depth(plain) >= 1


def test_a_queue_that_the_primary_has_lost_is_declared_anew(paired: kombu.Connection, plain: kombu.Connection) -> None:
    publish(paired)
    ORDERS(plain.default_channel).delete()
    publish(paired, "again")
    assert [message.payload for message in received(plain, 1)] == ["again"]


def test_without_a_queue_nothing_is_taken_for_sent(paired: kombu.Connection) -> None:
    with pytest.raises(OperationalError, match="nowhere"):
        publish(paired, routing_key="nowhere", declare=[])


def test_a_reply_to_someone_who_has_gone_is_no_error(
    paired: kombu.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    publish(paired, routing_key="gone", declare=[], delivery_mode=1)
    assert "not through the pair" not in caplog.text


def test_a_send_ends_in_time_when_the_primary_hangs(
    rabbit: RabbitServer, options: dict[str, Any], paired: kombu.Connection
) -> None:
    options["pairmq"] |= {"attempt_timeout": 3, "send_timeout": 20}
    publish(paired)
    rabbit.pause()
    try:
        begun = time.monotonic()
        receipts = [publish(paired), publish(paired, routing_key="new", declare=[kombu.Queue("new", durable=True)])]
        elapsed = time.monotonic() - begun
    finally:
        rabbit.resume()
    assert [receipt.route for receipt in receipts] == [Route.BACKLOG] * 2
    assert receipts[0].maybe_duplicate
    assert elapsed < 60


def test_with_both_brokers_dead_a_publish_is_refused_in_time(
    rabbit: RabbitServer, redis: RedisServer, paired: kombu.Connection
) -> None:
    publish(paired)
    rabbit.go_down()
    redis.kill()
    # What is on its way when the connection breaks is unknown.
    with pytest.raises((PublishRefused, PublishUnknown)):
        publish(paired, timeout=3)
    with pytest.raises(PublishRefused):
        publish(paired, timeout=3)


@pytest.fixture
def feeds(paired: kombu.Connection) -> kombu.Queue:
    exchange = kombu.Exchange("feeds", type="topic", durable=True)
    return kombu.Queue("sports", exchange, routing_key="feed.sports.#", durable=True)


@pytest.mark.long
def test_a_topic_exchange_is_reached_by_the_backlog_too(
    rabbit: RabbitServer, paired: kombu.Connection, feeds: kombu.Queue
) -> None:
    key = {"exchange": "feeds", "routing_key": "feed.sports.chess", "declare": [feeds]}
    healthy = publish(paired, "healthy", **key)
    rabbit.kill()
    during = publish(paired, "during", **key)
    rabbit.start()
    with kombu.Connection(rabbit.url) as plain:
        found = received(plain, 2, "sports")
    assert [receipt.route for receipt in (healthy, during)] == [Route.PRIMARY, Route.BACKLOG]
    assert [message.payload for message in found] == ["healthy", "during"]


@pytest.fixture
def application(rabbit: RabbitServer, options: dict[str, Any]) -> Iterator[Celery]:
    """One that only publishes, and declares nothing of what its tasks are routed by."""
    application = Celery("publishes", set_as_current=False)
    application.conf.update(
        broker_write_url=rabbit.url.replace("amqp://", "pairmq://"),
        broker_transport_options=options,
        task_queues=[ROUTED],
        task_ignore_result=True,
    )
    yield application
    kombu.pools.reset()
    close_pairs()


def test_a_task_sent_to_an_exchange_of_task_queues_survives_an_outage(
    rabbit: RabbitServer, application: Celery
) -> None:
    with kombu.Connection(rabbit.url) as plain:
        ROUTED(plain.default_channel).declare()  # by a worker
    where = {"exchange": "shop", "routing_key": "orders.new"}
    sent = [application.send_task("order", **where).id]
    rabbit.go_down()
    sent.append(application.send_task("order", **where).id)
    rabbit.come_up()
    with kombu.Connection(rabbit.url) as plain:
        found = received(plain, 2, "routed")
    assert [message.headers["id"] for message in found] == sent


def test_an_exchange_that_is_not_known_is_published_to_with_confirms(
    rabbit: RabbitServer, paired: kombu.Connection
) -> None:
    where = {"exchange": "foreign", "routing_key": "orders.new", "declare": []}
    with kombu.Connection(rabbit.url) as plain:
        kombu.Queue("routed", kombu.Exchange("foreign", "topic"), "orders.#")(plain.default_channel).declare()
        publish(paired, "healthy", **where)
        assert [message.payload for message in received(plain, 1, "routed")] == ["healthy"]
    with pytest.raises(OperationalError, match="no such exchange"):
        publish(paired, **where | {"exchange": "nowhere"})
    publish(paired, "again", **where)
    rabbit.go_down()
    with pytest.raises(OperationalError):
        publish(paired, **where)


def test_a_queue_that_is_missing_for_good_ends_a_publish_without_retry_limit(paired: kombu.Connection) -> None:
    with pytest.raises(OperationalError, match="nowhere"):
        publish(paired, routing_key="nowhere", retry_policy={})


@pytest.mark.long
def test_what_is_for_present_listeners_is_neither_kept_nor_tried_forever(
    rabbit: RabbitServer, paired: kombu.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(paired)
    rabbit.kill()
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("pairmq_kombu._process.time", clock)
    mailbox = kombu.Exchange("mailbox", type="fanout", durable=False)
    with pytest.raises(OperationalError):
        publish(paired, exchange="mailbox", declare=[mailbox])
    pair = paired.connection.process.pair
    counts = [pair.secondary.admin.counts(Source(queue)) for queue in pair.backlog_queues]
    assert [count.active for count in counts] == [0, 0]
    # Kombu finds a connection each time that it tries again: the pauses are ours, and so is their end.
    assert 0 < sum(pauses) <= paired.connect_timeout
    rabbit.start()


def test_localhost_stays_the_name_of_the_pair(rabbit: RabbitServer, options: dict[str, Any]) -> None:
    url = rabbit.url.replace("amqp://", "pairmq://").replace("127.0.0.1", "localhost")
    with kombu.Connection(url, transport_options=options) as connection:
        before = connection.transport.settings()
        connection.default_channel.exchange_declare("amq.direct", "direct", passive=True)  # connects to the primary
        assert connection.transport.settings() == before


def test_no_wait_on_the_primary_is_without_an_end(paired: kombu.Connection) -> None:
    assert paired.connection.link().read_timeout == 5.0


def test_a_forked_child_does_not_close_its_parents_connection(
    paired: kombu.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = paired.connection
    link = connection.link()
    monkeypatch.setattr("pairmq_kombu._channel.os", SimpleNamespace(getpid=lambda: -1))
    assert connection.link() is not link
    connection.collect()
    assert link.connected
    link.close()


def test_a_pair_that_has_ended_is_followed_by_a_new_one(paired: kombu.Connection) -> None:
    publish(paired)
    paired.connection.process.pair.close()
    with pytest.raises(PublishRefused):
        publish(paired)
    assert publish(paired).route is Route.PRIMARY


@pytest.mark.long
def test_over_tls_the_pair_checks_the_primarys_certificate(tmp_path: Path, options: dict[str, Any]) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = [tmp_path / name for name in ("certificate.pem", "key.pem", "ca.pem")]
    certificate.cert_chain_pems[0].write_to_path(files[0])
    certificate.private_key_pem.write_to_path(files[1])
    authority.cert_pem.write_to_path(files[2])
    routes = []
    with RabbitServer(tls=(files[0], files[1], files[2])) as server:
        url = server.tls_url.replace("amqps://", "pairmqs://")
        checked = {"ca_certs": str(files[2]), "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None}
        for tls in (checked, True):  # an authority of its own, and the system's
            with kombu.Connection(url, transport_options=options, ssl=tls) as connection:
                routes.append(publish(connection).route)
            close_pairs()
    assert routes == [Route.PRIMARY, Route.BACKLOG]


FORKING = """
import os, sys
import kombu
import pairmq_kombu

connection = kombu.Connection(sys.argv[1], transport_options={"pairmq": {"secondary": sys.argv[2]}})
producer = connection.Producer()
orders = kombu.Queue("orders", durable=True)
producer.publish("before", routing_key="orders", declare=[orders])
child = os.fork()
if not child:
    producer.publish("child", routing_key="orders", declare=[kombu.Queue("other", durable=True)])
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
producer.publish("after", routing_key="orders", declare=[kombu.Queue("another", durable=True)])
"""


def test_parent_and_child_publish_after_a_fork(rabbit: RabbitServer, redis: RedisServer) -> None:
    url = rabbit.url.replace("amqp://", "pairmq://")
    run = subprocess.run(
        [sys.executable, "-c", FORKING, url, redis.url], capture_output=True, text=True, timeout=200, check=False
    )
    assert run.returncode == 0, run.stderr
    with kombu.Connection(rabbit.url) as plain:
        assert [message.payload for message in received(plain, 3)] == ["before", "child", "after"]


@pytest.mark.long
def test_many_threads_lose_nothing_when_the_primary_is_killed(rabbit: RabbitServer, options: dict[str, Any]) -> None:
    application = Celery("threads", set_as_current=False)
    application.conf.update(
        broker_write_url=rabbit.url.replace("amqp://", "pairmq://"), broker_transport_options=options
    )
    sent: list[str] = []
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.01):
            sent.append(application.send_task("order", ignore_result=True).id)

    sent.append(application.send_task("order", ignore_result=True).id)
    with ThreadPoolExecutor(16) as threads:  # more than the pool has connections
        ended = [threads.submit(send) for _ in range(16)]
        try:
            for step in (rabbit.kill, rabbit.start):
                count = len(sent)
                while len(sent) < count + 200 and not any(thread.done() for thread in ended):
                    time.sleep(0.01)
                step()
        finally:
            stop.set()
    for thread in ended:
        thread.result()  # raises what a call raised
    found = set()
    with kombu.Connection(rabbit.url) as plain:
        while not found >= set(sent):
            found.add(received(plain, 1, "celery")[0].headers["id"])
    kombu.pools.reset()
    close_pairs()
    assert found == set(sent)
