"""A backlog emptied by Spark, on real servers: everything is moved back, whatever becomes of workers and brokers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from diverted import held, leave, taken, until
from pairmq import ConfigurationError, Entity, Pair, PairOptions
from pairmq.model import Source
from pairmq.model.events import MessageMoved
from pairmq.observe.journal import read_rows
from pairmq.pipeline.drain import Drain, Ending, Report, make_plan
from pairmq.plugins import registry
from pairmq_rabbitmq.testing import pool
from pairmq_redis.testing import RedisServer

pytestmark = [pytest.mark.long, pytest.mark.real_server]

WORKER = re.compile(r".*-(\d+)-\d{8}T\d{6}Z-")


@pytest.fixture
def servers():
    with RedisServer(appendfsync="everysec") as east, RedisServer(appendfsync="everysec") as west:
        yield east, west


@pytest.fixture(params=["redis", "rabbitmq"])
def urls(request):
    """A pair of servers of a product, by their URLs."""
    if request.param == "redis":
        east, west = request.getfixturevalue("servers")
        yield east.url, west.url
    else:
        try:
            yield [server.url for server in pool.take(2)]
        finally:
            pool.close()


@pytest.fixture
def handovers(monkeypatch, tmp_path):
    """Where the directories that drains share with their workers are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def drain_of(east: str, west: str, *, queues: int = 4, patience: float = 60.0, journal=None, ends_at=None, **options):
    return Drain(
        make_plan(
            primary=east,
            secondary=west,
            journal=journal,
            options={"backlog_queue_count": queues, "attempt_timeout": 5.0, **options},
            patience=patience,
            ends_at=ends_at,
        )
    )


@asynccontextmanager
async def draining(drain: Drain, spark, stop: asyncio.Event) -> AsyncIterator[asyncio.Task[Report]]:
    """A drain at work; asked to end when the block is left by an error."""
    await drain.look()
    work = asyncio.create_task(drain.run(spark, stop))
    try:
        yield work
    except BaseException:
        stop.set()
        await asyncio.wait((work,))
        raise
    await work


async def drained(drain: Drain, spark) -> Report:
    await drain.look()
    return await drain.run(spark, asyncio.Event())


async def moved_some(url: str, least: int) -> None:
    """Wait until so many messages have arrived; returns a moment after the last of them came."""
    ends_at = time.monotonic() + 150
    async with registry.transport(url) as transport:
        while (await transport.admin.counts(Source(Entity("orders")))).pending < least:
            assert time.monotonic() < ends_at, f"{least} messages were not moved back"
            await asyncio.sleep(0.002)


# What it moves back.


async def test_every_message_is_moved_back_once_and_the_brokers_counts_agree(spark, servers):
    east, west = servers
    ids = await leave(east.url, west.url, 1000, queues=4, used=3)
    report = await drained(drain_of(east.url, west.url), spark)
    assert (report.before, report.left, report.moved, report.counted_from) == (1000, 0, 1000, "brokers")
    assert report.gone == 1000
    assert report.clean
    assert [queue.ending for queue in report.queues] == [Ending.DRAINED] * 3 + [None]
    assert sorted(await taken(east.url)) == sorted(ids)


async def test_the_journal_counts_what_this_drains_tasks_moved_and_nothing_else(spark, servers, tmp_path):
    east, west = servers
    reports = []
    for count in (100, 300):
        await leave(east.url, west.url, count, queues=2)
        drain = drain_of(east.url, west.url, queues=2, journal=str(tmp_path / "journal"))
        reports.append(await drained(drain, spark))
    told = [(report.moved, report.moved_again, report.dead_lettered, report.counted_from) for report in reports]
    assert told == [(100, 0, 0, "journal"), (300, 0, 0, "journal")]


async def test_what_can_not_be_delivered_is_dead_lettered_and_the_drain_reports_it(spark, servers):
    east, west = servers
    ids = await leave(east.url, west.url, 50, queues=2)
    await leave(east.url, west.url, 7, queues=2, entity="deleted", made=False)
    report = await drained(drain_of(east.url, west.url, queues=2), spark)
    assert (report.left, report.dead_lettered, report.moved) == (0, 7, 50)
    assert report.emptied
    assert not report.clean
    assert sorted(await taken(east.url)) == sorted(ids)


async def test_the_rate_is_that_of_all_tasks_together(spark, servers, tmp_path):
    east, west = servers
    await leave(east.url, west.url, 120, queues=4)
    journal = tmp_path / "journal"
    report = await drained(drain_of(east.url, west.url, journal=str(journal), syphon_max_rate=40.0), spark)
    assert report.left == 0
    instants = sorted(row["at"] for row in read_rows(journal, kinds=[MessageMoved.__name__]))
    # Two tasks at once with 20 a second each, and at most a second's worth in one operation.
    assert (len(instants) - 2 * 20) / 40 <= instants[-1] - instants[0]


# Workers that die.


async def test_five_killed_workers_lose_nothing_and_the_journal_explains_every_second_copy(
    spark, urls, tmp_path, handovers
):
    east, west = urls
    ids = await leave(east, west, 12_000, queues=4, lock=2.0)
    journal = tmp_path / "journal"
    # As fast as may be, so that most kills come between a send and its completion; but not so fast that all is over
    # before the fifth.
    drain = drain_of(east, west, journal=str(journal), syphon_max_rate=4000.0)
    kills: Counter[int] = Counter()
    killed: set[str] = set()

    def at_work() -> list[tuple[int, str]]:
        """Attempts that began and were not killed: the queue, and the name under which they journal."""
        found = [(int(path.name.partition("-")[0]), path.read_text()) for path in handovers.glob("*/attempts/*")]
        known = [(index, name) for index, name in found if name and name not in killed and not closed(name)]
        return [(index, name) for index, name in known if kills[index] < 3]  # at the fourth death Spark gives up

    def closed(name: str) -> bool:
        return not list((journal / "_open").glob(f"{name}-*.part"))

    async with draining(drain, spark, asyncio.Event()) as work:
        for number in range(5):
            await until(at_work, "a worker is at work")
            await moved_some(east, 1500 * (number + 1))
            await until(at_work, "a worker is at work still, or again")
            index, name = min(at_work(), key=lambda each: kills[each[0]])
            kills[index] += 1
            killed.add(name)
            os.kill(int(WORKER.match(name)[1]), signal.SIGKILL)
        report = await work
    copies = Counter(await taken(east))
    assert set(copies) == ids
    assert (report.left, report.problem, report.workers_lost, report.gone) == (0, None, 5, len(ids))
    rows = list(read_rows(journal, kinds=[MessageMoved.__name__]))
    doubtful = {row["message_id"] for row in rows if row["redelivered"] or not row["completed"]}
    again = {message_id for message_id, count in copies.items() if count > 1}
    # Of what a killed worker did in its last moment there is no row, of the second copy neither if its worker died too.
    unwritten = ids - {row["message_id"] for row in rows}
    assert again <= doubtful | unwritten
    assert sum(copies.values()) - len(copies) <= 5 * 100  # a worker has one batch in hand


async def test_what_a_dead_consumer_holds_is_waited_for(spark, servers):
    east, west = servers
    ids = await leave(east.url, west.url, 20, queues=1, lock=3.0)
    name = PairOptions(backlog_queue_count=1).backlog_queue_names(registry.transport(east.url).endpoint.name)[0]
    async with registry.transport(west.url) as transport:
        receiver = transport.receiver(Source(Entity(name)))
        assert len(await receiver.receive(20, 5.0)) == 20
        # It holds them without a sign of life, and never settles them.
        report = await drained(drain_of(east.url, west.url, queues=1), spark)
    assert report.clean
    assert sorted(await taken(east.url)) == sorted(ids)


# Others at the same backlog, brokers that go away, and ends that come early.


async def test_beside_a_syphon_each_message_is_moved_back_once(spark, servers):
    east, west = servers
    ids = await leave(east.url, west.url, 1500, queues=3)
    options = PairOptions(backlog_queue_count=3, enable_syphon=True, syphon_max_rate=250.0, syphon_batch=20)
    async with Pair.connect(east.url, west.url, options=options) as syphon:
        await moved_some(east.url, 20)
        report = await drained(drain_of(east.url, west.url, queues=3, syphon_max_rate=500.0), spark)
        by_syphon = syphon.moved
    assert report.left == 0
    assert sorted(await taken(east.url)) == sorted(ids)
    assert 0 < by_syphon < 1500


async def test_a_primary_that_dies_leaves_the_rest_in_the_backlog_for_another_drain(spark, servers):
    east, west = servers
    ids = await leave(east.url, west.url, 1500, queues=2, lock=10.0)
    drain = drain_of(east.url, west.url, queues=2, patience=3.0, syphon_max_rate=300.0, ping_primary_interval=0.5)
    async with draining(drain, spark, asyncio.Event()) as work:
        await moved_some(east.url, 100)
        east.kill()
        report = await work
    assert not report.clean
    assert report.left
    assert {queue.ending for queue in report.queues} == {Ending.STALLED}
    assert "orders" in report.shut
    east.restart()
    again = await drained(drain_of(east.url, west.url, queues=2), spark)
    assert again.left == 0
    assert set(await taken(east.url)) == ids


async def test_what_a_task_holds_on_rabbitmq_is_not_taken_for_drained(spark, servers):
    east, _ = servers
    try:
        (west,) = pool.take(1)
        ids = await leave(east.url, west.url, 40, queues=1)
        east.kill()
        report = await drained(drain_of(east.url, west.url, queues=1, patience=6.0), spark)
        assert [queue.ending for queue in report.queues] == [Ending.STALLED]
        assert report.left == 40
        assert "orders" in report.shut
        east.restart()
        assert (await drained(drain_of(east.url, west.url, queues=1), spark)).clean
        assert set(await taken(east.url)) == ids
    finally:
        pool.close()


async def test_a_stop_ends_it_soon_and_the_tasks_finish_what_they_hold(spark, servers, handovers):
    east, west = servers
    ids = await leave(east.url, west.url, 2000, queues=4)
    stop = asyncio.Event()
    async with draining(drain_of(east.url, west.url, syphon_max_rate=100.0, syphon_batch=20), spark, stop) as work:
        await moved_some(east.url, 30)
        stop.set()
        report = await work
    assert report.stopped
    assert report.left
    assert {queue.ending for queue in report.queues} == {Ending.STOPPED}
    assert not list(handovers.iterdir())
    home = await taken(east.url)
    assert len(home) == len(set(home)) == 2000 - report.left  # nothing in hand was dropped half-way
    assert set(home) < ids


async def test_at_its_last_instant_it_ends(spark, servers):
    east, west = servers
    await leave(east.url, west.url, 200, queues=2)
    drain = drain_of(east.url, west.url, queues=2, syphon_max_rate=2.0, ends_at=time.time() + 2)
    report = await drained(drain, spark)
    assert report.left
    assert {queue.ending for queue in report.queues} == {Ending.OUT_OF_TIME}
    assert not report.clean


# Settings that can't work.


async def test_a_worker_that_finds_other_brokers_moves_nothing(spark, servers, monkeypatch, tmp_path):
    east, west = servers
    await leave(east.url, west.url, 1, queues=1)
    config = tmp_path / "pair.toml"
    config.write_text(f'[pair]\nprimary = "{east.url}"\nsecondary = "{west.url}"\nbacklog_queue_count = 1\n')
    drain = Drain(make_plan(config=config))
    config.write_text(f'[pair]\nprimary = "redis://127.0.0.1:1/0"\nsecondary = "{west.url}"\n')
    await drain.look()
    with pytest.raises(ConfigurationError, match=r"redis://127\.0\.0\.1:1/0 for a worker"):
        await drain.run(spark, asyncio.Event())
    assert await held(east.url) == 0
