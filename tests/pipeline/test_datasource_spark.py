"""``format("pairmq")`` in a session: rows that are browsed, streamed and written are the brokers' messages."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from pairmq import Message
from pairmq.pipeline.datasource import register
from pairmq_redis.testing import RedisServer
from spark_brokers import Brokers, ids, numbered

PASSWORD = "geheim-77"


@pytest.fixture(scope="module")
def servers():
    with RedisServer(appendfsync="no", password=PASSWORD) as east, RedisServer(appendfsync="no") as west:
        yield east, west


@pytest.fixture
def brokers(servers, tmp_path):
    for server in servers:
        server.flush()
    made = Brokers(servers[0].url, servers[1].url, tmp_path)
    made.make()
    return made


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


def to_the_end(writer):
    """Start a query, as often as it takes; gives the one that ended well."""
    while True:
        query = writer.start()
        try:
            assert query.awaitTermination(500)
        except StreamingQueryException as problem:
            # Spark gives a Python process ten seconds to start and no setting changes that; a busy one takes longer.
            if "failed to connect back" not in str(problem):
                raise
        else:
            return query


@pytest.mark.long
def test_what_is_browsed_can_be_written_elsewhere_without_a_change(brokers, session):
    sent = Message(
        b"\x00\xff",
        message_id="m0",
        subject="s",
        time_to_live=3600.5,
        priority=3,
        scheduled_enqueue_at=datetime(2026, 5, 1, 12, 30, tzinfo=UTC),
        application_properties={"a": 1, "b": (1.0, None), "c": b"x", "d": datetime(2026, 5, 1, tzinfo=UTC)},
    )
    brokers.send([sent, *numbered(30)[1:]])
    brokers.make("copies")
    read = session.read.format("pairmq").option("config", str(brokers.config))
    copies = read.load("orders").repartition(3).write.format("pairmq").mode("append")
    copies.option("config", str(brokers.config)).save("copies")
    names = [name for name in Message.__slots__ if name != "scheduled_enqueue_at"]
    one, other = (read.load(queue).select(*names).orderBy("message_id").collect() for queue in ("orders", "copies"))
    assert [row.message_id for row in one] == sorted(ids(30))
    assert one == other
    assert json.loads(one[0].application_properties["b"]) == [1.0, None]


def test_a_refused_row_fails_the_job_by_its_id(brokers, session):
    frame = session.range(0, 50, 1, 1).selectExpr(
        "concat('m', id) AS message_id",
        "'x' AS body",
        "IF(id = 7, map('x-ms-path', '1'), NULL) AS application_properties",
    )
    with pytest.raises(PySparkException, match="1 rows have no receipt: message m7"):
        frame.write.format("pairmq").mode("append").option("config", str(brokers.config)).save("orders")


def test_a_thread_that_has_registered_the_format_can_write(brokers, session):
    """A thread of Python's has one of Java's own, in which no session is active at first."""

    def write() -> None:
        register(session)
        rows = session.range(0, 3, 1, 1).selectExpr("concat('m', id) AS message_id", "'x' AS body")
        rows.write.format("pairmq").mode("append").option("config", str(brokers.config)).save("orders")

    with ThreadPoolExecutor(1) as other:
        other.submit(write).result()
    assert brokers.take() == Counter(ids(3))


def test_a_stream_gives_every_message_once_over_restarts(brokers, session, tmp_path):
    source = session.readStream.format("pairmq").option("config", str(brokers.config)).option("max_rows", "100")
    rows = source.option("spool", str(tmp_path / "spool")).load("orders")
    sink = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    for part in range(2):
        brokers.send(numbered(150, f"part{part}-"))
        to_the_end(sink.option("path", str(tmp_path / "out")).trigger(availableNow=True))
    seen = Counter(row.message_id for row in session.read.parquet(str(tmp_path / "out")).select("message_id").collect())
    assert seen == Counter({name: 1 for part in range(2) for name in ids(150, f"part{part}-")})
    assert brokers.counts().pending == 0
    # Spark tells of the last batch when it has another one.
    assert [int(path.stem.partition("-")[2]) for path in (tmp_path / "spool").glob("*.arrow")] == [50]


@dataclass
class Copied:
    """A stream from one queue to another, with URLs as options."""

    brokers: Brokers
    plans: str
    progress: str
    checkpoint: bytes


@pytest.fixture(scope="module")
def copied(servers, session, tmp_path_factory) -> Copied:
    folder = tmp_path_factory.mktemp("copied")
    for server in servers:
        server.flush()
    brokers = Brokers(servers[0].url, servers[1].url, folder)
    for queue in ("orders", "copies"):
        brokers.make(queue)
    brokers.send(numbered(50))
    urls = {"primary_url": brokers.primary, "secondary_url": brokers.secondary}
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        session.read.format("pairmq").options(**urls).load("orders").explain(extended=True)
    source = session.readStream.format("pairmq").options(**urls).option("spool", str(folder / "spool")).load("orders")
    sink = source.writeStream.format("pairmq").options(**urls).option("entity", "copies")
    query = to_the_end(sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True))
    with contextlib.redirect_stdout(told):
        query.explain(extended=True)
    files = [path.read_bytes() for path in (folder / "checkpoint").rglob("*") if path.is_file()]
    return Copied(brokers, told.getvalue(), "".join(one.json for one in query.recentProgress), b"".join(files))


def test_a_stream_is_written_through_the_pair(copied):
    assert copied.brokers.take("copies") == Counter(ids(50))


def test_a_url_that_is_given_as_an_option_is_in_no_plan(copied):
    assert "pairmq" in copied.plans
    assert PASSWORD not in copied.plans


def test_a_url_that_is_given_as_an_option_is_in_no_progress_and_no_checkpoint(copied):
    assert "spool" in copied.progress
    assert PASSWORD not in copied.progress
    assert PASSWORD.encode() not in copied.checkpoint


@pytest.mark.parametrize("option", ["primary_url", "secondary_url"])
def test_an_option_that_takes_a_url_has_a_name_that_spark_hides(session, option):
    assert re.search(session.conf.get("spark.sql.redaction.options.regex").replace("(?i)", ""), option)
