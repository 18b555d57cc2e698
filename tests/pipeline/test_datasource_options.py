"""What is wrong with the connectors' options is told before anything happens, and no URL is told to anybody."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.datasource import DataSource

from pairmq import PairOptions
from pairmq.model import ConfigurationError
from spark_brokers import SCHEMA, SOURCE, registered

SECRET = "geheim-77"
URLS = {
    "primary_url": f"redis://:{SECRET}@127.0.0.1:1/0",
    "secondary_url": f"redis://:{SECRET}@127.0.0.1:2/0",
}
WRITE = {**URLS, "entity": "orders"}
STREAM = {**URLS, "entity": "orders", "spool": "/tmp/spool"}


@pytest.fixture(autouse=True)
def _no_settings_of_this_computer(monkeypatch):
    for name in ("PRIMARY", "SECONDARY", "CONFIG", "JOURNAL"):
        monkeypatch.delenv(f"PAIRMQ_{name}", raising=False)


def source(**options: str) -> DataSource:
    return SOURCE(options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"colour": "red"}, "unknown option colour"),
        ({"spool": "/tmp/x"}, "unknown option spool"),  # of another door
        ({}, "no entity is given"),
        ({"entity": "orders", "path": "prices"}, "omit one"),
        ({"entity": "a//b"}, "empty"),
        ({"entity": "orders", "side": "third"}, "option side is 'third': it must be primary or secondary"),
        ({"entity": "orders", "limit": "0"}, "option limit is '0'"),
        ({"entity": "orders", "limit": "-1"}, "option limit is '-1'"),
        ({"entity": "orders", "limit": "9" * 30}, "option limit is"),
        ({"entity": "orders", "dead_letter": "perhaps"}, "option dead_letter"),
        ({"entity": "orders", "attempt_timeout": "soon"}, "option attempt_timeout: invalid duration 'soon'"),
        ({"entity": "orders", "attempt_timeout": "1d"}, "attempt_timeout is 86400"),
        ({"backlog": "true", "entity": "orders"}, "leave entity out"),
        ({"backlog": "true", "side": "primary"}, "leave side out"),
    ],
)
def test_options_that_can_not_be_browsed_with_are_refused(options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        source(**URLS, **options).reader(SCHEMA)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"spool": ""}, "no spool is given: name a directory"),
        ({"spool": "spool"}, "relative path"),
        ({"spool": "s3://bucket/spool"}, "must be a directory of a mounted file system"),
        ({"max_rows": "many"}, "option max_rows is 'many'"),
        ({"receive_wait": "2h"}, "option receive_wait is '2h': it must be from 0 s to 60 s"),
        ({"backlog": "true"}, "unknown option backlog"),
    ],
)
def test_options_that_can_not_be_streamed_with_are_refused(options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        source(**{**STREAM, **options}).streamReader(SCHEMA)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kind": "table"}, "option kind is 'table'"),
        ({"entity": "127.0.0.1:1/x-servicebus-transfer/0"}, "is a backlog queue"),
        ({"window": "0"}, "option window"),
        ({"failover_interval": "2h"}, "failover_interval is 7200"),
        ({"message_id_from": "order"}, "unknown option message_id_from"),
    ],
)
def test_options_that_can_not_be_written_with_are_refused(options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        source(**{**WRITE, **options}).writer(SCHEMA, False)


def test_a_queue_can_not_be_overwritten():
    with pytest.raises(ConfigurationError, match="use mode"):
        source(**WRITE).writer(SCHEMA, True)


@pytest.mark.parametrize("door", ["writer", "streamWriter"])
def test_nothing_is_written_where_tasks_are_started_twice(door):
    with pytest.raises(ConfigurationError, match=r"spark\.speculation is on"):
        getattr(registered(speculation=True)(dict(WRITE)), door)(SCHEMA, False)


def test_what_starts_tasks_twice_may_read():
    registered(speculation=True)(dict(WRITE)).reader(SCHEMA)


def test_other_columns_than_those_of_messages_can_not_be_asked_for():
    with pytest.raises(ConfigurationError, match="columns of messages are fixed"):
        source(**WRITE).reader(type(SCHEMA)(SCHEMA.fields[:2]))


def test_a_broker_that_is_nowhere_named_is_asked_for():
    with pytest.raises(ConfigurationError, match="no primary broker"):
        source(entity="orders").reader(SCHEMA)


def test_brokers_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PAIRMQ_PRIMARY", URLS["primary_url"])
    source(entity="orders").reader(SCHEMA)


def test_brokers_come_from_a_file(tmp_path):
    config = tmp_path / "pair.toml"
    config.write_text(f'[pair]\nsecondary = "{URLS["secondary_url"]}"\n')
    source(entity="orders", side="secondary", config=str(config)).reader(SCHEMA)


def options_of(**options: str) -> PairOptions:
    """The options of the pairs of a writer."""
    return source(**WRITE, **options).writer(SCHEMA, False).brokers.settings().options


def test_an_environment_that_starts_syphons_starts_none_in_a_task(monkeypatch):
    monkeypatch.setenv("PAIRMQ_ENABLE_SYPHON", "true")
    assert not options_of().enable_syphon
    assert options_of(enable_syphon="true").enable_syphon


def test_options_of_the_pair_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("PAIRMQ_FAILOVER_INTERVAL", "5")
    assert options_of(failover_interval="250ms").failover_interval == 0.25


@pytest.mark.parametrize(
    "made",
    [
        lambda: source(**WRITE).reader(SCHEMA),
        lambda: source(**STREAM).streamReader(SCHEMA),
        lambda: source(**WRITE).writer(SCHEMA, False),
        lambda: source(**WRITE).streamWriter(SCHEMA, False),
    ],
)
def test_what_travels_to_the_workers_can_be_pickled_and_shows_no_password(made):
    one = pickle.loads(pickle.dumps(made()))
    told = repr(one) + "".join(map(repr, vars(one).values()))
    assert SECRET not in told


@pytest.mark.parametrize(
    "options",
    [
        {"entity": "orders", "config": URLS["primary_url"]},
        {"entity": "orders", "side": URLS["primary_url"]},
        {"entity": URLS["primary_url"]},
        {"entity": "orders", "attempt_timeout": URLS["primary_url"]},
    ],
)
def test_a_url_in_the_wrong_place_is_in_no_error(options):
    with pytest.raises(ConfigurationError) as caught:
        source(**{**URLS, **options}).reader(SCHEMA)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", [f"nosuch://:{SECRET}@host", f"redis://:{SECRET}@host:port/0"])
def test_an_invalid_url_is_in_no_error(url):
    reader = source(entity="orders", primary_url=url).reader(SCHEMA)
    [partition] = reader.partitions()
    with pytest.raises(ConfigurationError) as caught:
        list(reader.read(partition))
    assert SECRET not in str(caught.value)
