"""Browsing as Spark's tasks do it: everything is shown, and nothing is changed."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from pairmq import Message, Pair
from pairmq.model import ConfigurationError, FailureKind, TransportError
from pairmq_redis.testing import RedisServer
from spark_brokers import SCHEMA, SOURCE, Brokers, ids, numbered


@pytest.fixture(scope="module")
def servers():
    with RedisServer(appendfsync="no") as east, RedisServer(appendfsync="no") as west:
        yield east, west


@pytest.fixture
def brokers(servers, tmp_path):
    for server in servers:
        server.flush()
    made = Brokers(servers[0].url, servers[1].url, tmp_path)
    made.make()
    return made


def shown(brokers: Brokers, **options: str) -> list[list[dict]]:
    """The rows of each partition, each read by a reader of its own."""
    reader = SOURCE({"config": str(brokers.config), **options}).reader(SCHEMA)
    parts = [pickle.loads(pickle.dumps(partition)) for partition in reader.partitions()]
    readers = [pickle.loads(pickle.dumps(reader)) for _ in parts]
    return [
        [row for batch in one.read(part) for row in batch.to_pylist()] for one, part in zip(readers, parts, strict=True)
    ]


def names(rows: list[dict]) -> Counter[str]:
    return Counter(row["message_id"] for row in rows)


@pytest.mark.real_server
def test_every_message_is_shown_and_nothing_is_changed(brokers):
    brokers.send(numbered(2500))
    before = brokers.counts()
    [rows] = shown(brokers, entity="orders")
    assert names(rows) == Counter(ids(2500))
    assert brokers.counts() == before
    [again] = shown(brokers, entity="orders")
    assert {row["delivery_count"] for row in again} == {1}
    assert brokers.take() == Counter(ids(2500))


@pytest.mark.real_server
def test_a_message_is_shown_with_where_and_when_it_was_found(brokers):
    since = datetime.now(UTC) - timedelta(minutes=1)
    brokers.send([Message(b"x", message_id="m", application_properties={"price": 1.5})])
    [[row]] = shown(brokers, path="orders")
    assert (row["side"], row["queue"], row["entity"], row["body"]) == ("primary", "orders", "orders", b"x")
    assert dict(row["application_properties"]) == {"price": "1.5"}
    assert row["enqueued_at"] > since
    assert row["sequence_number"]


@pytest.mark.real_server
def test_no_more_messages_are_shown_than_asked_for(brokers):
    brokers.send(numbered(50))
    [rows] = shown(brokers, entity="orders", limit="7")
    assert names(rows) == Counter(ids(7))


@pytest.mark.real_server
def test_very_many_messages_are_shown_only_to_who_asks_for_them(brokers):
    brokers.send(numbered(10_000))
    [rows] = shown(brokers, entity="orders")
    assert len(rows) == 10_000
    brokers.send(numbered(1))
    with pytest.raises(ConfigurationError, match="orders holds more than 10000 messages: set the option limit"):
        shown(brokers, entity="orders")
    [rows] = shown(brokers, entity="orders", limit="20000")
    assert len(rows) == 10_001


async def _divert(brokers: Brokers, count: int) -> None:
    async with Pair.connect(config=str(brokers.config)) as pair:
        pair.hold("orders")
        for number in range(count):  # each sender picks a queue
            await pair.sender("orders").send(Message(b"x", message_id=f"m{number}", session_id="s"))


@pytest.mark.real_server
def test_the_backlog_is_shown_queue_by_queue_as_it_was_sent(brokers):
    asyncio.run(_divert(brokers, 40))
    before = [brokers.counts(queue, side="secondary") for queue in brokers.backlog()]
    parts = shown(brokers, backlog="true")
    assert [{row["queue"] for row in rows} for rows in parts] == [{queue} for queue in brokers.backlog()]
    rows = [row for part in parts for row in part]
    assert names(rows) == Counter(ids(40))
    assert {(row["entity"], row["session_id"], row["side"]) for row in rows} == {("orders", "s", "secondary")}
    assert [brokers.counts(queue, side="secondary") for queue in brokers.backlog()] == before


@pytest.mark.real_server
def test_a_backlog_that_was_never_made_is_empty(brokers):
    assert shown(brokers, backlog="true") == [[], []]


@pytest.mark.real_server
def test_a_queue_that_does_not_exist_is_an_error_that_names_it(brokers):
    with pytest.raises(TransportError, match="nowhere"):
        shown(brokers, entity="nowhere")


@pytest.mark.real_server
def test_a_broker_that_stays_silent_is_an_error_of_the_broker(brokers, servers):
    servers[0].pause()
    try:
        with pytest.raises(TransportError, match="did not show orders within 1 s") as caught:
            shown(brokers, entity="orders", attempt_timeout="1s")
    finally:
        servers[0].resume()
    assert caught.value.kind is FailureKind.UNAVAILABLE


@pytest.mark.real_server
def test_a_broker_that_is_unavailable_is_an_error(brokers, tmp_path):
    away = Brokers("redis://127.0.0.1:1/0", brokers.secondary, tmp_path)
    with pytest.raises(TransportError):
        shown(away, entity="orders")
