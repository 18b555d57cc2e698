"""The stream's reader as Spark calls it: what it promises about offsets, batches and commits."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import pairwise

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pairmq.model import ConfigurationError, EntityNotFound, PairMQError, TransportError
from pairmq_redis.testing import RedisServer
from spark_brokers import SCHEMA, SOURCE, Brokers, ids, numbered


@pytest.fixture(scope="module")
def server():
    with RedisServer(appendfsync="no") as redis:
        yield redis


@pytest.fixture
def brokers(server, tmp_path):
    server.start()  # a test may have killed it
    server.flush()
    made = Brokers(server.url, "redis://127.0.0.1:1/0", tmp_path)
    made.make()
    return made


@pytest.fixture
def make(brokers, tmp_path):
    readers = []

    def make(**options: str):
        given = {"config": str(brokers.config), "spool": str(tmp_path / "spool"), "entity": "orders"}
        given |= {"receive_wait": "200ms", "spool_wait": "0", "max_rows": "100"} | options
        readers.append(SOURCE(given).streamReader(SCHEMA))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def batch(reader, start, end) -> Counter[str]:
    """A batch's messages, read as tasks do: by other readers in other processes."""
    found: Counter[str] = Counter()
    for partition in reader.partitions(start, end):
        for rows in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
            found.update(rows.column("message_id").to_pylist())
    return found


@pytest.mark.real_server
def test_a_batch_is_what_came_and_can_be_read_again(brokers, make):
    brokers.send(numbered(30))
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert batch(reader, start, end) == batch(reader, start, end) == Counter(ids(30))


@pytest.mark.real_server
def test_no_messages_are_no_batch(make):
    reader = make()
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(100)) == start
    assert reader.partitions(start, start) == []


@pytest.mark.real_server
def test_a_batch_has_no_more_rows_than_the_limit(brokers, make):
    brokers.send(numbered(250))
    reader = make()
    offsets = [reader.initialOffset()]
    for _ in range(3):
        offsets.append(reader.latestOffset(offsets[-1], reader.getDefaultReadLimit()))
    sizes = [batch(reader, *pair).total() for pair in pairwise(offsets)]
    assert sizes == [100, 100, 50]


@pytest.mark.real_server
def test_what_is_beyond_the_limit_stays_with_the_broker(brokers, make):
    brokers.send(numbered(250))
    reader = make()
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert brokers.take().total() == 150


@pytest.mark.real_server
def test_a_trigger_without_a_limit_takes_what_the_broker_has(brokers, make):
    brokers.send(numbered(250))
    reader = make()
    start = reader.initialOffset()
    assert batch(reader, start, reader.latestOffset(start, ReadAllAvailable())) == Counter(ids(250))


@pytest.mark.real_server
def test_a_restarted_query_reads_an_unfinished_batch_again(brokers, make):
    brokers.send(numbered(30))
    first = make()
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(100))
    first.stop()
    assert batch(make(), start, end) == Counter(ids(30))


@pytest.mark.real_server
def test_what_came_into_the_spool_before_its_offset_was_written_down_is_the_next_batch(brokers, make):
    brokers.send(numbered(30))
    first = make()
    start = first.initialOffset()
    first.latestOffset(start, ReadMaxRows(100))
    first.stop()
    brokers.send(numbered(30, "later"))
    again = make()
    end = again.latestOffset(start, ReadMaxRows(100))
    assert batch(again, start, end) == Counter(ids(30))
    assert brokers.counts().active == 30  # nothing more is taken while the spool has some


@pytest.mark.real_server
def test_several_segments_of_an_earlier_run_are_given_within_the_limit(brokers, make):
    brokers.send(numbered(250))
    first = make()
    start = offset = first.initialOffset()
    for _ in range(3):
        offset = first.latestOffset(offset, ReadMaxRows(100))
    first.stop()
    again = make()
    assert batch(again, start, again.latestOffset(start, ReadMaxRows(220))).total() == 200
    assert batch(again, start, again.latestOffset(start, ReadAllAvailable())).total() == 250


@pytest.mark.real_server
def test_a_segment_that_is_larger_than_a_smaller_limit_is_given_all_the_same(brokers, make):
    brokers.send(numbered(100))
    first = make()
    start = first.initialOffset()
    first.latestOffset(start, ReadMaxRows(100))
    first.stop()
    again = make(max_rows="10")
    assert batch(again, start, again.latestOffset(start, ReadMaxRows(10))).total() == 100


@pytest.mark.real_server
def test_a_commit_deletes_what_stands_before_it_and_nothing_else(brokers, make, tmp_path):
    brokers.send(numbered(200))
    reader = make()
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(100))
    end = reader.latestOffset(middle, ReadMaxRows(100))
    reader.commit(middle)
    assert len(list((tmp_path / "spool").glob("*.arrow"))) == 1
    assert batch(reader, middle, end).total() == 100


@pytest.mark.real_server
def test_a_batch_whose_segments_are_gone_is_an_error_and_no_empty_batch(brokers, make):
    brokers.send(numbered(30))
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    reader.commit(end)
    with pytest.raises(PairMQError, match="does not have all segments from 0 to 0"):
        reader.partitions(start, end)


@pytest.mark.real_server
def test_a_checkpoint_that_meets_another_spool_is_refused(make, tmp_path):
    start = make().initialOffset()
    other = make(spool=str(tmp_path / "other"))
    with pytest.raises(PairMQError, match="does not belong to the checkpoint"):
        other.latestOffset(start, ReadMaxRows(100))


@pytest.mark.real_server
def test_a_second_query_on_the_spool_is_locked_out(make):
    make().initialOffset()
    with pytest.raises(ConfigurationError, match="in use by process"):
        make().initialOffset()


@pytest.mark.real_server
def test_a_query_that_ended_gives_the_spool_back(make):
    first = make()
    first.initialOffset()
    first.stop()
    make().initialOffset()


@pytest.mark.real_server
def test_a_query_that_got_no_thread_gives_the_spool_back(make, monkeypatch):
    def no_thread(work):
        work.close()
        raise RuntimeError("can't start new thread")

    first = make()
    with monkeypatch.context() as system:
        system.setattr("pairmq.sync.run", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            first.initialOffset()
    make().initialOffset()


# Queries that take what is there and end.


def run_to_the_end(reader, start) -> list[dict]:
    """As Spark does: until nothing new comes and the reader says so, which takes a while without the broker."""
    offsets = [start]
    while (end := reader.latestOffset(offsets[-1], reader.getDefaultReadLimit())) != offsets[-1]:
        offsets.append(end)
    return offsets


@pytest.mark.real_server
def test_a_query_that_takes_what_is_there_takes_nothing_that_came_later(brokers, make):
    brokers.send(numbered(150))
    reader = make()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    brokers.send(numbered(30, "later"))
    offsets = run_to_the_end(reader, start)
    assert batch(reader, start, offsets[-1]) == Counter(ids(150))
    assert brokers.counts().active == 30


@pytest.mark.real_server
def test_a_query_that_takes_what_is_there_ends_although_another_consumer_was_quicker(brokers, make):
    brokers.send(numbered(150))
    reader = make()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    brokers.take()
    assert run_to_the_end(reader, start) == [start]


@pytest.mark.real_server
def test_a_query_that_takes_what_is_there_waits_for_a_slow_broker(brokers, make, monkeypatch):
    brokers.send(numbered(30))
    reader = make()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    real, dry = reader._consumer.fill, [0, 0]
    monkeypatch.setattr(reader._consumer, "fill", lambda *given: dry.pop() if dry else real(*given))
    offsets = run_to_the_end(reader, start)
    assert batch(reader, start, offsets[-1]) == Counter(ids(30))


# Brokers that are unavailable, or refuse.


@pytest.mark.real_server
def test_a_broker_that_is_unavailable_is_waited_for(brokers, make, server):
    reader = make()
    start = reader.initialOffset()
    server.kill()
    assert reader.latestOffset(start, ReadMaxRows(100)) == start
    server.start()
    brokers.send(numbered(30))
    end = start
    while end == start:
        end = reader.latestOffset(start, ReadMaxRows(100))
    assert batch(reader, start, end) == Counter(ids(30))


@pytest.mark.real_server
def test_a_query_that_is_to_end_does_not_end_well_while_the_broker_is_unavailable(make, server):
    reader = make(attempt_timeout="1s")
    reader.initialOffset()
    server.kill()
    with pytest.raises(TransportError):
        reader.prepareForTriggerAvailableNow()


@pytest.mark.real_server
def test_a_query_that_is_to_end_gives_up_a_broker_that_becomes_unavailable(brokers, make, server):
    brokers.send(numbered(30))
    reader = make()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    server.kill()
    with pytest.raises(TransportError):
        run_to_the_end(reader, start)


@pytest.mark.real_server
def test_a_queue_that_does_not_exist_is_an_error(make):
    reader = make(entity="nowhere")
    with pytest.raises((TransportError, EntityNotFound)):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))


@pytest.mark.real_server
def test_a_backlog_queue_is_not_streamed(brokers, make):
    with pytest.raises(ConfigurationError, match="would take its messages from the syphon"):
        make(entity=brokers.backlog()[0], side="secondary")
