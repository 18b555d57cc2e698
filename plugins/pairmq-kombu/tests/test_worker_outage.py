"""A real worker with prefork, a real primary that is killed, and tasks that are sent meanwhile."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import kombu.pools
import pytest
from celery import chord, group

from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

pytestmark = pytest.mark.real_server

HERE = Path(__file__).parent
DEADLINE = 25.0
"""Seconds that a send may take here: the pair's ``send_timeout``, and some for the machine."""


class Ledger:
    """What the worker's tasks have written down.

    Args:
        folder: where.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ledger"
        self._file.touch()

    def lines(self) -> Counter[tuple[str, str]]:
        """Name and id of each task that has run, and how often it did."""
        return Counter(tuple(line.split(" ")) for line in self._file.read_text().splitlines())  # type: ignore[misc]

    def names(self) -> set[str]:
        """The names of the tasks that have run."""
        return {name for name, _ in self.lines()}

    def wait_for(self, *names: str) -> None:
        """Wait until these have run."""
        until = time.monotonic() + 90
        while missing := set(names) - self.names():
            assert time.monotonic() < until, f"did not run: {sorted(missing)}"
            time.sleep(0.1)


def wait_for_answers(control: Any, count: int = 1) -> None:
    """Wait until remote control works."""
    until, answers = time.monotonic() + 90, []
    while len(answers) < count:
        assert time.monotonic() < until
        with suppress(OSError):  # the connection of this process was lost
            answers = control.ping(timeout=10, limit=count)


@pytest.fixture
def folder(
    rabbit: RabbitServer, redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs_closed: None
) -> Path:
    (tmp_path / "results").mkdir()
    monkeypatch.setenv("KOMBU_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("PAIRMQ_PRIMARY", rabbit.url)
    monkeypatch.setenv("PAIRMQ_SECONDARY", redis.url)
    monkeypatch.syspath_prepend(str(HERE))
    return tmp_path


@pytest.fixture
def results_by_rpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOMBU_TEST_BACKEND", "rpc://")


@pytest.fixture
def application(folder: Path) -> Iterator[ModuleType]:
    module = importlib.import_module("worker_app")
    yield module
    kombu.pools.reset()
    del sys.modules["worker_app"]


@pytest.fixture
def worker(folder: Path) -> Iterator[Callable[..., None]]:
    """Starts a worker as a user does; it is ended with the test."""
    started = []

    def start(pool: str = "prefork") -> None:
        name = f"worker{len(started)}@%h"
        command = [sys.executable, "-m", "celery", "-A", "worker_app", "worker", "--pool", pool, "-n", name]
        with (folder / "worker.log").open("a") as log:
            started.append(
                subprocess.Popen(
                    [*command, "--concurrency", "2", "--loglevel", "info"],
                    cwd=HERE,
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join((str(HERE), *filter(None, (os.environ.get("PYTHONPATH"),)))),
                        "PYTHONDONTWRITEBYTECODE": "1",
                    },
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the worker did not end:\n{(folder / 'worker.log').read_text()[-3000:]}") from None


@pytest.fixture(params=["classic", "quorum"])
def queues(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type of the worker's queue: to a quorum queue Celery sends what has an ETA by exchanges of its workers."""
    monkeypatch.setenv("KOMBU_TEST_QUEUES", request.param)


@pytest.mark.long
def test_tasks_sent_while_the_primary_is_dead_run_once_it_is_back(
    queues: None, rabbit: RabbitServer, folder: Path, application: ModuleType, worker: Callable[[], None]
) -> None:
    ledger = Ledger(folder)
    record = application.record
    worker()
    sent = {"before": record.delay("before").id}
    application.forward.delay("child")
    ledger.wait_for("before", "waiting:child")
    sent["early"] = record.apply_async(("early",), countdown=1).id
    ledger.wait_for("early")
    assert application.app.control.ping(timeout=30, limit=1)  # remote control asks and hears through the same URL

    rabbit.kill()
    slowest = 0.0
    for number in range(20):
        begun = time.monotonic()
        sent[f"during-{number}"] = record.delay(f"during-{number}").id
        slowest = max(slowest, time.monotonic() - begun)
    sent["later"] = record.apply_async(("later",), countdown=2).id
    for result, name in zip(group(record.s(f"group-{n}") for n in range(3)).apply_async(), range(3), strict=True):
        sent[f"group-{name}"] = result.id
    sent["retried"] = application.again.delay("retried").id
    chord([record.s("part-1"), record.s("part-2")], application.total.s()).apply_async()
    (folder / "go").touch()
    ledger.wait_for("forwarded:child")
    rabbit.start()

    ledger.wait_for(*sent, "child", "part-1", "part-2", "total:part-1,part-2")
    ran = ledger.lines()
    assert {name: task for name, task in ran if name in sent} == sent
    # The task that sends it may run twice, as it ran when the primary died.
    assert {task for name, task in ran if name == "child"} == {task for name, task in ran if name == "forwarded:child"}
    # What ran when the primary died may be delivered once more, with Celery's own transport too.
    early = {"before", "early"}
    assert [name for (name, _), times in ran.items() if times > 1 and name in sent.keys() - early] == []
    assert slowest < DEADLINE
    assert "not through the pair" not in (folder / "worker.log").read_text()


@pytest.mark.long
def test_results_by_rpc_come_back(
    results_by_rpc: None, folder: Path, application: ModuleType, worker: Callable[[], None]
) -> None:
    worker()
    assert application.record.delay("asked").get(timeout=60) == "asked"


def test_tasks_run_while_the_primary_is_dead_when_their_queue_has_continuity(
    monkeypatch: pytest.MonkeyPatch,
    rabbit: RabbitServer,
    folder: Path,
    request: pytest.FixtureRequest,
    worker: Callable[[], None],
) -> None:
    monkeypatch.setenv("KOMBU_TEST_CONTINUITY", "celery")
    application = request.getfixturevalue("application")
    ledger = Ledger(folder)
    record, control = application.record, application.app.control
    worker()
    sent = {name: record.delay(name).id for name in ("before-1", "before-2")}
    ledger.wait_for(*sent)
    # A worker that is not ready when this is sent hears of it as well: its queue is there before it receives tasks.
    revoked = str(uuid4())
    assert control.revoke(revoked, reply=True, timeout=60, limit=1)
    record.apply_async(("revoked",), task_id=revoked)
    sent["early"] = record.apply_async(("early",), countdown=1.5).id
    ledger.wait_for("early")

    rabbit.kill()
    during = {f"during-{number}": record.delay(f"during-{number}").id for number in range(50)}
    during |= {f"late-{number}": application.late.delay(f"late-{number}").id for number in range(10)}
    during["eta"] = record.apply_async(("eta",), countdown=1).id
    during["again"] = application.again.delay("again").id
    during["killed"] = application.killed.delay("killed").id
    ledger.wait_for(*during)  # the primary is still dead
    worker()  # one that starts in the outage
    sent |= during
    rabbit.start()

    sent["after"] = record.delay("after").id
    ledger.wait_for("after")
    wait_for_answers(control)
    ran = ledger.lines()
    assert dict(ran.keys()) == sent
    # What ran when the primary died may be delivered once more to the other worker.
    again = {name for (name, _), times in ran.items() if times > 1}
    assert again - {"before-1", "before-2", "early"} == {"killed"}


@pytest.mark.long
@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_workers_with_another_pool_run_tasks_while_the_primary_is_dead(
    monkeypatch: pytest.MonkeyPatch,
    rabbit: RabbitServer,
    folder: Path,
    request: pytest.FixtureRequest,
    worker: Callable[..., None],
    pool: str,
) -> None:
    if pool != "threads":
        pytest.importorskip(pool, reason=f"the pool needs {pool}, which is not among the pinned packages")
    monkeypatch.setenv("KOMBU_TEST_CONTINUITY", "celery")
    application = request.getfixturevalue("application")
    ledger = Ledger(folder)
    worker(pool)
    before = {name: application.late.delay(name).id for name in ("before-1", "before-2")}
    ledger.wait_for(*before)
    rabbit.kill()
    during = {f"during-{number}": application.record.delay(f"during-{number}").id for number in range(30)}
    during |= {f"late-{number}": application.late.delay(f"late-{number}").id for number in range(5)}
    during["eta"] = application.record.apply_async(("eta",), countdown=1).id
    during["again"] = application.again.delay("again").id
    ledger.wait_for(*during)  # the primary is still dead
    worker(pool)  # one that starts in the outage
    ready = folder / "worker.log"
    until = time.monotonic() + 90
    while ready.read_text().count(" ready.") < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    rabbit.start()
    after = {"after": application.record.delay("after").id}
    ledger.wait_for("after")
    wait_for_answers(application.app.control, 2)
    ran = ledger.lines()
    assert dict(ran.keys()) == before | during | after
    assert {name for (name, _), times in ran.items() if times > 1} <= before.keys()
