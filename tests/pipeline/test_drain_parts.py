"""The pieces of a drain that need no broker and no Spark."""

from __future__ import annotations

import asyncio
import errno
import logging
import pickle
import re
import signal
import stat
from dataclasses import replace

import pytest

from pairmq import ConfigurationError, Entity, Message, Pair, PairOptions
from pairmq.model import Delivery, FailureKind, FailureReason, Source, TransportError
from pairmq.pipeline.drain import Drain, Ending, Plan, Report, _task, make_plan
from pairmq.pipeline.drain._handover import Handover, Job, Outcome, Worker
from pairmq.pipeline.drain._report import Journalled, count_journalled
from pairmq.pipeline.drain._spark import check_session, most_at_once, run_job
from pairmq.pipeline.drain._task import EVERY, Task, Watch, drain_queue
from pairmq.pipeline.session import local_settings
from pairmq.runner import backlog_properties
from pairmq.testing import Fault, in_virtual_time, simulated_pair
from pairmq.transport import Capabilities, Depth, QueueCounts, QueueProperties
from watching import watching

EAST, WEST = "redis://:p4ss-east@10.0.0.1:6379/0", "redis://:p4ss-west@10.0.0.2:6379/0"


class Session:
    """As much of a Spark session as is asked for its settings."""

    def __init__(self, **settings: str) -> None:
        self.conf = {"spark." + name.replace("_", "."): value for name, value in settings.items()}


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(
        options=PairOptions(enable_syphon=True),
        primary="memory://p",
        secondary="memory://s",
        config=None,
        handover=str(tmp_path),
        handed_over=True,
        journal=None,
        patience=1.0,
        ends_at=None,
        log_level=logging.CRITICAL,
    )


# Settings.


def test_speculation_is_refused_and_says_what_to_set():
    with pytest.raises(ConfigurationError, match=r"spark\.speculation is on .* set it to false"):
        check_session(Session(master="local[2]", speculation="true"), handed_over=False)


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]", "k8s://https://host"])
def test_urls_of_the_driver_alone_are_refused_where_workers_are_elsewhere(master):
    with pytest.raises(ConfigurationError, match="PAIRMQ_PRIMARY"):
        check_session(Session(master=master), handed_over=True)
    check_session(Session(master=master), handed_over=False)


def test_urls_on_the_command_line_of_spark_submit_are_refused_as_it_is_logged(monkeypatch):
    check_session(Session(master="local[2]"), handed_over=True)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigurationError, match="event log"):
        check_session(Session(master="local[2]"), handed_over=True)


@pytest.mark.parametrize(
    ("master", "tasks", "at_once"),
    [
        ("local[2,4]", 8, 2),
        ("local[2, 4]", 8, 2),
        ("local[16]", 8, 8),
        ("local", 8, 1),
        ("local[*]", 8, 8),
        ("yarn", 8, 8),
    ],
)
def test_the_rate_is_shared_by_as_many_tasks_as_may_run(master, tasks, at_once):
    assert most_at_once(Session(master=master), tasks) == at_once


def test_a_slow_rate_is_not_taken_for_a_standstill():
    plan = make_plan(primary=EAST, secondary=WEST, options={"syphon_max_rate": 0.01}, patience=10)
    job = Drain(plan)._job(2, None)
    assert (job.options.syphon_max_rate, job.patience) == (0.005, 600.0)


def test_a_pair_of_one_broker_is_refused():
    with pytest.raises(ConfigurationError, match="same broker"):
        make_plan(primary=EAST, secondary=EAST)


def test_no_patience_is_refused():
    with pytest.raises(ConfigurationError, match="patience"):
        make_plan(primary=EAST, secondary=WEST, patience=0)


def test_a_pair_with_lanes_is_refused_with_what_drains_them() -> None:
    """Its backlog would be called empty over what the lanes hold."""
    with pytest.raises(ConfigurationError, match=r"continuity is (orders|invoices\.\*), .*pairmq syphon --until-empty"):
        make_plan(primary=EAST, secondary=WEST, options={"continuity": ("orders", "invoices.*")})


# What was set aside.


def report_of(before: tuple[Depth, ...], after: tuple[Depth, ...], journalled: Journalled | None = None) -> Report:
    job = Drain(make_plan(primary=EAST, secondary=WEST, options={"backlog_queue_count": len(before)}))
    job.before = before
    return job._report(after, {}, {}, journalled, None, False)


def holding(active: int, dead_letter: int) -> Depth:
    return Depth(Entity("q"), QueueCounts(active=active, dead_letter=dead_letter))


def test_a_message_dead_lettered_by_a_worker_that_died_before_it_wrote_that_down_is_reported():
    report = report_of((holding(3, 0),), (holding(0, 1),), Journalled(moved=2, again=0, dead_lettered=0))
    assert (report.dead_lettered, report.clean) == (1, False)


def test_dead_letters_requeued_in_one_queue_do_not_hide_those_of_another():
    assert report_of((holding(3, 5), holding(3, 0)), (holding(0, 0), holding(0, 4))).dead_lettered == 4


def test_a_drain_that_can_not_know_what_was_dead_lettered_is_not_clean():
    report = report_of((Depth(Entity("q"), error="no answer"),), (holding(0, 2),))
    assert (report.emptied, report.dead_lettered, report.clean) == (True, None, False)


def test_a_queue_without_dead_letters_at_the_end_has_set_none_aside_whatever_was_known_before():
    assert report_of((Depth(Entity("q"), error="no answer"),), (holding(0, 0),)).clean


# Secrets.


def test_what_spark_pickles_holds_no_password():
    plan = make_plan(primary=EAST, secondary=WEST)
    job = Drain(plan)._job(1, None)
    assert b"10.0.0.1" in pickle.dumps(Task(job, (0,)))
    assert b"p4ss" not in pickle.dumps(Task(job, (0,)))
    assert "p4ss" not in f"{plan!r} {job!r}"


def test_what_is_handed_over_is_for_this_user_only_and_ends_with_the_drain():
    with Handover((EAST, WEST)) as handover:
        assert stat.S_IMODE(handover.directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((handover.directory / "settings").stat().st_mode) == 0o600
        assert Worker(str(handover.directory)).urls() == (EAST, WEST)
    assert not handover.directory.exists()


def test_a_stop_removes_the_urls_at_once():
    with Handover((EAST, WEST)) as handover:
        worker = Worker(str(handover.directory))
        assert not worker.stopped()
        handover.stop()
        assert worker.stopped()
        with pytest.raises(FileNotFoundError):
            worker.urls()


def test_urls_that_workers_find_by_themselves_are_not_written_down():
    with Handover(None) as handover:
        assert not (handover.directory / "settings").exists()


# Tasks.


def test_a_worker_whose_driver_has_gone_ends():
    with Handover(None) as handover:
        worker = Worker(str(handover.directory))
    assert worker.stopped()


def test_attempts_are_known_even_if_they_never_end():
    with Handover(None) as handover:
        worker = Worker(str(handover.directory))
        worker.begin(3, 0, "first")
        worker.begin(3, 1, "second")
        assert [(attempt.index, attempt.journal) for attempt in handover.begun()] == [(3, "first"), (3, "second")]


def test_on_a_full_disk_the_file_that_can_not_be_handed_over_is_named():
    with Handover(None) as handover:
        full = handover.directory / "attempts" / "3-0"
        full.symlink_to("/dev/full")
        with pytest.raises(OSError, match=re.escape(str(full))) as raised:
            Worker(str(handover.directory)).begin(3, 0, "first")
        assert raised.value.errno == errno.ENOSPC


def test_what_can_not_be_recovered_of_a_task_is_not_counted_as_nothing(tmp_path):
    part = tmp_path / "_open" / "mine-000000.part"
    part.parent.mkdir()
    part.write_bytes(b"\xff" * 64)
    assert count_journalled(str(tmp_path), {"another"}) == Journalled(moved=0, again=0, dead_lettered=0)
    with pytest.raises(OSError, match=re.escape(str(part))):
        count_journalled(str(tmp_path), {"mine"})


def test_an_outcome_comes_back_as_it_was():
    outcome = Outcome(3, Ending.STALLED, 2, {"orders": "away"}, "no answer")
    assert Outcome.from_json(outcome.to_json()) == outcome


def test_a_task_that_begins_after_the_stop_does_nothing(job):
    with Handover(None) as handover:
        handover.stop()
        outcome = asyncio.run(drain_queue(replace(job, handover=str(handover.directory)), 0))
    assert outcome.ending is Ending.STOPPED


def test_a_worker_without_settings_is_reported_instead_of_failing_again_and_again(job, monkeypatch):
    monkeypatch.delenv("PAIRMQ_PRIMARY", raising=False)
    monkeypatch.delenv("PAIRMQ_CONFIG", raising=False)
    outcome = asyncio.run(drain_queue(replace(job, handover=None, handed_over=False), 0))
    assert outcome.ending is Ending.MISCONFIGURED
    assert "no primary broker" in (outcome.problem or "")


async def test_an_observer_that_the_settings_file_names_watches_each_task(tmp_path, monkeypatch):
    monkeypatch.setattr(_task, "EVERY", 0.0)
    monkeypatch.setattr(_task, "_LOOK", 0.001)
    config = tmp_path / "pair.toml"
    urls = "primary = 'memory://drained-east'\nsecondary = 'memory://drained-west'\n"
    config.write_text(f"[pair]\n{urls}backlog_queue_count = 1\nobservers = ['audit']\n")
    drain = Drain(make_plan(config=config))
    with watching() as seen:
        assert (await drain_queue(drain._job(1, None), 0)).ending is Ending.DRAINED
    assert {"PairOpened", "BacklogQueueChecked", "PairEnded"} <= set(seen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("stops", [True, False], ids=["the drain's", "the worker's own"])
async def test_a_signal_lets_a_task_finish_what_it_holds(job, monkeypatch, number, stops):
    """A service manager sends it to all processes; only where the driver stops too, no other attempt goes on."""
    monkeypatch.setattr(_task, "EVERY", 1e9)  # it never sees its queue empty
    with Handover((job.primary, job.secondary)) as handover, watching() as seen:
        job = replace(job, handover=str(handover.directory), patience=1e9, observers=("audit",))
        task = asyncio.create_task(drain_queue(job, 0))
        while not handover.begun():
            await asyncio.sleep(0.01)
        if stops:
            handover.stop()
        signal.raise_signal(number)
        if stops:
            assert (await task).ending is Ending.STOPPED
        else:
            with pytest.raises(RuntimeError, match="queue 0 got a signal"):
                await task
    assert "PairEnded" in seen


class Broker:
    """A secondary of which only counts are asked, the last one again and again; and a pair that moves nothing."""

    moved = outbox_moved = 0

    def __init__(self, *pending: int | None) -> None:
        self.admin = self.secondary = self
        self.told = list(pending)
        self.asked_at: list[float] = []

    async def counts(self, source: Source) -> QueueCounts:
        self.asked_at.append(asyncio.get_running_loop().time())
        pending = self.told.pop(0) if len(self.told) > 1 else self.told[0]
        if pending is None:
            raise TransportError("throttled", FailureKind.BUSY)
        return QueueCounts(active=pending)


async def ending_of(broker: Broker, job: Job) -> tuple[Ending, str | None]:
    watch = Watch(broker, job, Worker(None))  # type: ignore[arg-type]
    return await watch.until_end(Source(Entity("b"))), watch.problem


@pytest.mark.parametrize(
    "pending", [range(5, 10**6), [5, None] * 10**5], ids=["senders divert", "counts fail at times"]
)
@in_virtual_time
async def test_patience_ends_although_the_count_changes_while_nothing_is_moved(job, pending):
    assert (await ending_of(Broker(*pending), replace(job, patience=60.0)))[0] is Ending.STALLED


@in_virtual_time
async def test_a_count_that_falls_is_progress_by_whatever_process(job):
    assert await ending_of(Broker(*range(200, -1, -1)), replace(job, patience=60.0)) == (Ending.DRAINED, None)


@in_virtual_time
async def test_a_broker_is_asked_no_more_often_than_every_so_often(job):
    broker = Broker(4, None)
    assert await ending_of(broker, replace(job, patience=60.0)) == (Ending.STALLED, "throttled")
    assert 10 < len(broker.asked_at) <= 60 / EVERY + 1


@in_virtual_time
async def test_a_queue_is_not_drained_while_its_task_holds_messages(job):
    """They are sent, or wait for the primary, and are completed later."""
    async with simulated_pair(backlog_queue_count=1) as it:
        it.primary.fail(Fault.DOWN)
        await it.pair.sender("orders").send_batch([Message(b"x") for _ in range(40)])
        watch = Watch(it.pair, replace(job, patience=3600.0), Worker(None))
        ending = asyncio.create_task(watch.until_end(Source(it.pair.backlog_queues[0])))
        await asyncio.sleep(60.0)
        assert not ending.done()
        it.primary.heal()
        assert await ending is Ending.DRAINED
        assert not it.backlog()
        assert len(it.primary.messages("orders")) == 40


class Hasty:
    """A secondary that has ten messages in its only queue, and answers 0 at once where it was not asked to make it.

    So RabbitMQ does while a queue has no leader.
    """

    def __init__(self) -> None:
        self.admin = self
        self.capabilities = Capabilities(peek=True)
        self.asked_for: list[tuple[Entity, QueueProperties]] = []

    async def __aenter__(self) -> Hasty:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def create(self, entity: Entity, properties: QueueProperties) -> bool:
        self.asked_for.append((entity, properties))
        return False

    async def counts(self, source: Source) -> QueueCounts:
        if not source.entity.path.endswith("/0"):
            raise TransportError("no such queue", FailureKind.REFUSED, FailureReason.NOT_FOUND)
        return QueueCounts(active=10 if self.asked_for else 0)

    async def peek(self, source: Source, most: int) -> list[Delivery]:
        return []

    async def list_entities(self, prefix: str) -> list[Entity]:
        raise TransportError("it can't list them", FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)


async def test_a_quick_0_ends_no_drain_before_it_has_begun(monkeypatch):
    secondary = Hasty()
    monkeypatch.setattr(Plan, "secondary_transport", lambda plan: secondary)
    drain = Drain(make_plan(primary=EAST, secondary=WEST, options={"backlog_queue_count": 2}))
    assert await drain.look() == 10
    assert [depth.missing for depth in drain.before] == [False, True]
    # What does not exist is not made by a look.
    assert secondary.asked_for == [(drain._plan.queues[0], backlog_properties(PairOptions()))]


def test_our_own_session_starts_dead_workers_again_and_never_two_for_one_queue():
    from pairmq.pipeline.drain import session_settings

    settings = local_settings(2) | session_settings(8)
    assert settings["spark.master"] == "local[8,4]"
    assert settings["spark.speculation"] == "false"
    assert callable(run_job)


# What other processes of the pair use.


async def leave_in(primary: str, secondary: str, count: int, **options: object) -> None:
    async with Pair.connect(primary, secondary, options=PairOptions(failover_interval=0.0, **options)) as pair:
        await pair.primary.admin.create(Entity("orders"))
        pair.hold("orders")
        for number in range(count):
            await pair.sender("orders").send(Message(str(number).encode()))


def drain_in(primary: str, secondary: str, queues: int) -> Drain:
    return Drain(make_plan(primary=primary, secondary=secondary, options={"backlog_queue_count": queues}))


async def test_a_drain_takes_in_queues_of_senders_with_more_of_them():
    brokers = "memory://drain-more-p", "memory://drain-more-s"
    await leave_in(*brokers, 30, backlog_queue_count=10)
    drain = drain_in(*brokers, 2)
    assert await drain.look() == 30
    assert len(drain.before) == 10


async def test_a_drain_is_not_clean_while_messages_wait_elsewhere():
    brokers = "memory://drain-else-p", "memory://drain-else-s"
    await leave_in(*brokers, 3, backlog_queue_count=1, backlog_name_template="theirs-{index}")
    drain = drain_in(*brokers, 2)
    assert await drain.look() == 0
    report = drain.nothing()
    assert report.emptied
    assert not report.clean
    assert "theirs-0 holds 3 messages" in report.elsewhere[0]


async def test_a_drain_of_another_primarys_queues_is_refused():
    await leave_in("memory://drain-one-p", "memory://drain-one-s", 1)
    with pytest.raises(ConfigurationError, match="another primary"):
        await drain_in("memory://drain-two-p?name=drain-one-p", "memory://drain-one-s", 2).look()
