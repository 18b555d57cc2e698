"""The connectors on RabbitMQ, which numbers no messages and can only look at them by fetching them."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pairmq_rabbitmq.testing import pool
from spark_brokers import SCHEMA, SOURCE, Brokers, ids, numbered

pytestmark = pytest.mark.real_server


@pytest.fixture(scope="module")
def server():
    [rabbit] = pool.take(1)
    yield rabbit
    pool.close()


@pytest.fixture
def brokers(server, tmp_path):
    made = Brokers(server.url, "redis://127.0.0.1:1/0", tmp_path)
    made.make()
    yield made
    made.take()


def test_every_message_is_shown_and_kept(brokers):
    brokers.send(numbered(150))
    before = brokers.counts()
    reader = SOURCE({"config": str(brokers.config), "entity": "orders"}).reader(SCHEMA)
    [partition] = reader.partitions()
    shown = Counter(name for batch in reader.read(partition) for name in batch.column("message_id").to_pylist())
    assert shown == Counter(ids(150))
    assert brokers.counts() == before
    assert brokers.take() == Counter(ids(150))


def test_a_stream_takes_what_it_is_to_take_and_leaves_the_rest(brokers, tmp_path):
    brokers.send(numbered(150))
    options = {"config": str(brokers.config), "entity": "orders", "spool": str(tmp_path / "spool")}
    reader = SOURCE(options).streamReader(SCHEMA)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    taken: Counter[str] = Counter()
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            taken.update(batch.column("message_id").to_pylist())
    reader.stop()
    assert taken.total() == 100
    assert taken + brokers.take() == Counter(ids(150))
