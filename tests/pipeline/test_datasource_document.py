"""The examples of docs/how-to/spark-connectors.md, run one after the other as a reader runs them."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from pairmq.model import ConfigurationError
from pairmq.plugins import registry
from pairmq_redis.testing import RedisServer
from spark_brokers import SCHEMA, SOURCE, Brokers, ids, numbered

DOCUMENT = (Path(__file__).parents[2] / "docs/how-to/spark-connectors.md").read_text("utf-8")
FOLDER = "/srv/orders"


@pytest.fixture(scope="module")
def ran(spark, tmp_path_factory):
    """The brokers and the folder that the examples have worked with, and their variables."""
    folder = tmp_path_factory.mktemp("document")
    with RedisServer(appendfsync="no") as east, RedisServer(appendfsync="no") as west:
        brokers = Brokers(east.url, west.url, folder)
        for queue in ("orders", "prices"):
            brokers.make(queue)
        brokers.send(numbered(20))
        variables: dict[str, object] = {}
        for example in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL):
            exec(compile(example.replace(FOLDER, str(folder)), "spark-connectors.md", "exec"), variables)
        yield brokers, folder, variables


def test_the_stream_has_taken_the_orders(ran, spark):
    brokers, folder, _ = ran
    rows = spark.read.parquet(str(folder / "rows")).select("message_id").collect()
    assert Counter(row.message_id for row in rows) == Counter(ids(20))
    assert brokers.counts("orders").pending == 0


def test_the_prices_have_been_sent(ran):
    brokers, _, _ = ran
    assert sorted(brokers.take("prices").values()) == [1, 1]


def test_the_settings_file_is_one():
    [text] = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    table = tomllib.loads(text)["pair"]
    assert registry.transport_record(table["primary"])
    assert registry.transport_record(table["secondary"])


def test_every_option_and_every_column_is_described():
    described = set(re.findall(r"`([a-z_]+)`", DOCUMENT))
    source = SOURCE({"colour": "red"})
    for door in (source.reader, source.streamReader, lambda schema: source.writer(schema, False)):
        with pytest.raises(ConfigurationError) as unknown:
            door(SCHEMA)
        [known] = re.findall("known are (.*), and the options of a pair", str(unknown.value))
        assert set(known.split(", ")) - described == set()
    assert set(SCHEMA.fieldNames()) - described == set()
