"""Killed with SIGKILL, again and again: every message is in the sink, and none is sent under a second id.

``PAIRMQ_TEST_SPARK_KILLS`` says how often, as each time takes another start of Python processes or of Java: 5 is a good
number. `test_datasource_intake` kills at every single step, without Spark.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import spark_driver
from pairmq.pipeline.datasource import register
from pairmq_redis.testing import RedisServer
from spark_brokers import Brokers, ids, numbered, processes

PYTHON_KILLS = int(os.environ.get("PAIRMQ_TEST_SPARK_KILLS", "2"))
DRIVER_KILLS = int(os.environ.get("PAIRMQ_TEST_SPARK_KILLS", "1"))
PASSWORD = "geheim-77"

pytestmark = [pytest.mark.long, pytest.mark.real_server]


@pytest.fixture(scope="module")
def servers():
    with RedisServer(appendfsync="no", password=PASSWORD) as east, RedisServer(appendfsync="no") as west:
        yield east, west


@pytest.fixture
def brokers(servers, tmp_path):
    for server in servers:
        server.flush()
    made = Brokers(f"{servers[0].url}?poll_interval=0.2", servers[1].url, tmp_path)
    made.make(lock=5.0)  # what a killed consumer held is redelivered after this
    return made


@pytest.fixture
def options(brokers, tmp_path):
    return {
        "config": str(brokers.config),
        "entity": "orders",
        "spool": str(tmp_path / "spool"),
        "max_rows": "100",
        "receive_wait": "300ms",
    }


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


def wait_until(condition) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def stored(session, out: Path) -> Counter[str]:
    """What is in the sink: each id, how often."""
    rows = session.read.parquet(str(out)).select("message_id").collect()
    return Counter(row.message_id for row in rows)


def commits(checkpoint: Path) -> int:
    """Batches that the query has put behind it."""
    return sum(path.name.isdecimal() for path in checkpoint.glob("commits/*"))


@pytest.fixture
def sink(session, options, tmp_path):
    """Gives the stream's writer to a folder of Parquet files."""

    def make(stage=None, **more: str):
        rows = session.readStream.format("pairmq").options(**(options | more)).load().select("message_id")
        staged = rows if stage is None else rows.mapInArrow(stage, rows.schema)
        checkpoint, out = str(tmp_path / "checkpoint"), str(tmp_path / "out")
        return staged.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", out)

    return make


def test_a_stream_whose_consumer_is_killed_loses_nothing(brokers, session, sink, tmp_path):
    chance = random.Random(7)
    for kill in range(PYTHON_KILLS):
        brokers.send(numbered(500, f"{kill}-"))
        query = running(sink, tmp_path / "checkpoint")
        time.sleep(chance.uniform(0, 0.3))
        os.kill(int((tmp_path / "spool" / "lock").read_text()), signal.SIGKILL)
        wait_until(lambda: not query.isActive)  # noqa: B023  # called at once
        assert query.exception() is not None
    drain(brokers, sink)
    # Redis numbers its messages: what came again because of a kill was known.
    assert stored(session, tmp_path / "out") == Counter(
        {name: 1 for kill in range(PYTHON_KILLS) for name in ids(500, f"{kill}-")}
    )


def running(sink, checkpoint: Path):
    """Start the query, and wait for its first batch."""
    while True:
        before = commits(checkpoint)
        query = sink().start()
        wait_until(lambda: commits(checkpoint) > before or not query.isActive)  # noqa: B023  # called at once
        if query.isActive:
            return query
        assert is_too_slow(query)


def is_too_slow(query) -> bool:
    """Whether it failed because Spark gives a Python process ten seconds to start, and this computer took longer."""
    return "failed to connect back" in str(query.exception())


def test_a_stream_whose_workers_are_killed_loses_nothing(brokers, session, sink, tmp_path):
    busy = tmp_path / "busy"

    def linger(batches):  # inside, so that it is pickled by value: workers don't know this file
        busy.touch()
        time.sleep(1.0)
        yield from batches

    brokers.send(numbered(1000))
    query = sink(linger).start()
    for _ in range(PYTHON_KILLS):
        busy.unlink(missing_ok=True)
        while not busy.exists():
            wait_until(lambda: busy.exists() or not query.isActive)  # noqa: B023  # called at once
            if not query.isActive:  # no task is tried again, or it was too slow
                query = sink(linger).start()
        kill_workers()
    query.stop()
    drain(brokers, sink)
    assert stored(session, tmp_path / "out") == Counter(ids(1000))


def kill_workers() -> None:
    """Kill the Python processes that run tasks, and leave alone the one that starts them."""
    python = processes(os.getpid(), "pyspark.daemon", "pyspark.worker")
    tasks = [pid for pid, parent in python.items() if parent in python]
    assert tasks
    for pid in tasks:
        os.kill(pid, signal.SIGKILL)


def drain(brokers: Brokers, sink) -> None:
    """Go on until the broker holds nothing, locked by the dead or not."""
    while True:
        query = sink(max_rows="5000").trigger(availableNow=True).start()
        wait_until(lambda: not query.isActive)  # noqa: B023  # called at once
        if query.exception() is not None:
            assert is_too_slow(query)
        elif not brokers.counts().pending:
            return


def test_a_stream_whose_driver_is_killed_loses_nothing(brokers, session, sink, options, tmp_path):
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    told = json.dumps({"options": options, "checkpoint": str(checkpoint), "out": str(out)})
    chance = random.Random(7)
    for kill in range(DRIVER_KILLS):
        brokers.send(numbered(1000, f"{kill}-"))
        before = commits(checkpoint)
        with (tmp_path / f"driver-{kill}.log").open("wb") as log:
            driver = subprocess.Popen([sys.executable, spark_driver.__file__, "consume", told], stdout=log, stderr=log)
            try:
                wait_until(lambda: commits(checkpoint) > before or driver.poll() is not None)  # noqa: B023  # at once
                time.sleep(chance.uniform(0, 0.5))
                assert driver.poll() is None, "the driver ended by itself"
            finally:
                # Its consumer is left to itself, as on another computer, and keeps the spool until it notices.
                for pid in (*processes(driver.pid, "/java"), driver.pid):
                    os.kill(pid, signal.SIGKILL)
                driver.wait(30)
    drain(brokers, sink)
    assert stored(session, out) == Counter({name: 1 for kill in range(DRIVER_KILLS) for name in ids(1000, f"{kill}-")})


@pytest.fixture(scope="module")
def written(servers, tmp_path_factory):
    """A job of two tasks, each of which sends its rows, fails, and is tried again; its brokers and its event log."""
    folder = tmp_path_factory.mktemp("written")
    for server in servers:
        server.flush()
    brokers = Brokers(servers[0].url, servers[1].url, folder)
    brokers.make()
    (folder / "log").mkdir()
    options = {"primary_url": brokers.primary, "secondary_url": brokers.secondary, "entity": "orders"}
    told = json.dumps({"options": options, "count": 1000, "log": str(folder / "log")})
    subprocess.run([sys.executable, spark_driver.__file__, "write", told], timeout=250, check=True)
    log = b"".join(path.read_bytes() for path in (folder / "log").rglob("*") if path.is_file())
    return brokers.take(), log


def test_a_task_that_is_tried_again_sends_no_message_under_a_second_id(written):
    taken, _ = written
    assert taken.keys() == ids(1000)
    assert set(taken.values()) == {1, 2}  # the first attempt had sent most of its rows


def test_a_url_that_is_given_as_an_option_is_in_no_event_log(written):
    _, log = written
    assert b"SparkListenerJobEnd" in log
    assert PASSWORD.encode() not in log
