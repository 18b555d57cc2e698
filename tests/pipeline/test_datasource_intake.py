"""From a broker into the spool: killed at any step, it loses nothing, and keeps twice only what it can't tell apart."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

from pairmq.model import Delivery, Entity, FailureKind, Message, Source, TransportError
from pairmq.pipeline.datasource import _intake
from pairmq.pipeline.datasource._intake import Intake
from pairmq.pipeline.datasource._rows import Place
from pairmq.pipeline.datasource._spool import Spool, read_segment
from pairmq.plugins import registry
from pairmq.testing import SimulatedBroker, in_virtual_time
from pairmq.transport import QueueProperties
from pairmq_redis.testing import RedisServer
from spark_brokers import Brokers, ids, numbered

PLACE = Place("primary", "orders", "orders")
ORDERS = Source(Entity("orders"))
STEPS = ["received", "written", "named", "synced", "partly acknowledged", "acknowledged"]
LOCK = 5.0  # s: what a killed process held is redelivered after that; and longer than a slow disk takes


@pytest.fixture(scope="module")
def server():
    with RedisServer(appendfsync="no") as redis:
        yield redis


@pytest.fixture
def brokers(server, tmp_path):
    server.flush()
    brokers = Brokers(server.url, "redis://127.0.0.1:1/0", tmp_path)
    brokers.make()
    return brokers


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "spool"


def kept(directory) -> Counter[str]:
    spool = Spool(directory, "orders")
    found: Counter[str] = Counter()
    for segment in spool.segments():
        for batch in read_segment(directory, segment):
            found.update(batch.column("message_id").to_pylist())
    spool.close()
    return found


async def _fill(url: str, source: Source, directory, most: int) -> int:
    spool = Spool(directory, "orders")
    intake = Intake(registry.transport(url), source, PLACE, spool, 5.0)
    for segment in spool.segments():
        intake.remember(read_segment(directory, segment))
    try:
        return await intake.fill(most, 0.2, 0)
    finally:
        await intake.close()
        spool.close()


def fill(brokers: Brokers, directory, most: int = 1000) -> int:
    return asyncio.run(_fill(brokers.primary, ORDERS, directory, most))


@pytest.mark.real_server
def test_everything_comes_into_the_spool_and_leaves_the_broker(brokers, directory):
    brokers.send(numbered(300))
    assert fill(brokers, directory) == 300
    assert kept(directory) == Counter(ids(300))
    assert brokers.counts().pending == 0


@pytest.mark.real_server
def test_no_more_than_the_limit_is_taken_and_the_rest_is_free_for_others(brokers, directory):
    brokers.send(numbered(300))
    assert fill(brokers, directory, most=120) == 120
    assert brokers.take().total() == 180


@pytest.mark.real_server
def test_an_empty_queue_gives_no_segment(brokers, directory):
    assert fill(brokers, directory) == 0
    assert not list(directory.glob("*.arrow"))


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
import pandas
from pairmq.model import Entity, Source
from pairmq.pipeline.datasource import _intake, _spool
from pairmq.pipeline.datasource._rows import Place
from pairmq.plugins import registry

url, folder, steps = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(queue, step):
    spool = _spool.Spool(folder / queue, "orders")
    intake = _intake.Intake(registry.transport(url), Source(Entity(queue)), Place("p", "q", "e"), spool, 5.0)
    if step == "received":
        spool.append = die
    if step == "written":
        Path.rename = die
    if step == "named":
        _spool.sync = die
    if step == "synced":
        intake._acknowledge = die
    if step == "partly acknowledged":
        _intake._SETTLED, acknowledge = 30, intake._within
        async def within(wait, operation, calls=[]):
            outcome = await acknowledge(wait, operation)
            if type(outcome) is list and outcome and not hasattr(outcome[0], "message"):
                die()
            return outcome
        intake._within = within
    if step == "acknowledged":
        acknowledge = intake._acknowledge
        async def and_die(deliveries):
            await acknowledge(deliveries)
            die()
        intake._acknowledge = and_die
    await intake.fill(100, 0.2, 0)

# What takes long is imported once for all of them.
for number, step in enumerate(steps):
    if os.fork() == 0:
        asyncio.run(main(f"q{number}", step))
        os._exit(0)
ends = [os.wait()[1] for _ in steps]
sys.exit(0 if ends == [signal.SIGKILL] * len(steps) else str(ends))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """For each step a queue and a spool, and a process that moved a hundred messages and died at that step."""
    folder = tmp_path_factory.mktemp("killed")
    with RedisServer(appendfsync="no") as redis:
        brokers = Brokers(f"{redis.url}?poll_interval=0.1", "redis://127.0.0.1:1/0", folder)
        for number in range(len(STEPS)):
            brokers.make(f"q{number}", lock=LOCK)
            brokers.send(numbered(100), f"q{number}")
        command = [sys.executable, "-c", textwrap.dedent(KILLED), brokers.primary, str(folder), *STEPS]
        subprocess.run(command, timeout=200, check=True)
        yield brokers, folder


@pytest.mark.real_server
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_keeps_every_message_exactly_once(killed, step):
    brokers, folder = killed
    queue = f"q{STEPS.index(step)}"
    while brokers.counts(queue).pending:  # what the dead one has locked comes when the locks end
        asyncio.run(_fill(brokers.primary, Source(Entity(queue)), folder / queue, 1000))
    # Once, also where the kill came between disk and acknowledgement: Redis numbers its messages.
    assert kept(folder / queue) == Counter(ids(100))


class Stub:
    """A receiver that gives what it is told, and refuses to acknowledge it at first."""

    def __init__(self, *rounds: list[Delivery]) -> None:
        self.rounds = list(rounds)
        self.completed: list[Delivery] = []
        self.refusing = True

    async def receive(self, max_messages, wait):
        return self.rounds.pop(0) if self.rounds else []

    async def complete_batch(self, deliveries):
        if self.refusing:
            self.refusing = False
            return [TransportError("the connection is lost", FailureKind.UNAVAILABLE)] * len(deliveries)
        self.completed += deliveries
        return [None] * len(deliveries)


async def _through(directory, stub: Stub) -> int:
    spool = Spool(directory, "orders")
    intake = Intake(registry.transport("redis://127.0.0.1:1/0"), ORDERS, PLACE, spool, 5.0)
    intake._receiver = stub
    moved = await intake.fill(10, 0.0, 0) + await intake.fill(10, 0.0, 0)
    spool.close()
    return moved


def delivery(number: str, count: int) -> Delivery:
    return Delivery(Message(b"x", message_id="m"), None, delivery_count=count, sequence_number=number)


def test_a_message_whose_acknowledgement_failed_is_kept_once_and_acknowledged_when_it_is_redelivered(directory):
    stub = Stub([delivery("7", 1)], [], [delivery("7", 2)])
    assert asyncio.run(_through(directory, stub)) == 1
    assert len(stub.completed) == 1


def test_copies_that_come_first_do_not_hide_the_messages_behind_them(directory):
    stub = Stub([delivery("7", 1)], [], [delivery("7", 2)], [], [delivery("8", 1)])
    assert asyncio.run(_through(directory, stub)) == 2
    assert len(stub.completed) == 2


def test_another_message_of_the_same_id_is_kept_too(directory):
    stub = Stub([delivery("7", 1)], [], [delivery("8", 2)])
    assert asyncio.run(_through(directory, stub)) == 2


def test_a_message_that_is_redelivered_is_kept_twice_where_the_broker_does_not_number_it(directory):
    stub = Stub([delivery("", 1)], [], [delivery("", 2)])
    assert asyncio.run(_through(directory, stub)) == 2


def test_a_message_whose_lock_ends_while_its_segment_is_gathered_is_kept_once(directory):
    stub = Stub([delivery("7", 1), delivery("8", 1)], [delivery("7", 2)], [])
    stub.refusing = False
    assert asyncio.run(_through(directory, stub)) == 2
    # By the lock that it has now: the older one would be refused.
    assert [(each.sequence_number, each.delivery_count) for each in stub.completed] == [("7", 2), ("8", 1)]


def test_messages_without_numbers_are_all_kept_though_they_look_the_same(directory):
    stub = Stub([delivery("", 1), delivery("", 2)], [delivery("", 2)], [])
    stub.refusing = False
    assert asyncio.run(_through(directory, stub)) == 3
    assert len(stub.completed) == 3


# How long it takes, in virtual time.


class Rows:
    """A spool that only remembers what came."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def append(self, batch: pa.RecordBatch, start: int) -> None:
        self.ids += batch.column("message_id").to_pylist()


class Stream:
    """A queue into which messages come, one each 20 ms, and an intake that reads it."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.body = b"x"
        self.rows = Rows()
        self.transport = broker.transport()
        self.sender = self.transport.sender(ORDERS.entity)
        self.intake = Intake(self.transport, ORDERS, PLACE, self.rows, 10.0)  # type: ignore[arg-type]

    async def feed(self) -> None:
        for number in itertools.count():
            await self.sender.send(Message(self.body, message_id=f"m{number}"))
            await asyncio.sleep(0.02)

    async def fill(self, most: int, wait: float, *, whole: bool = False) -> float:
        """Fill the rows; gives the seconds that this took."""
        began_at = asyncio.get_running_loop().time()
        await self.intake.fill(most, wait, 0, whole=whole)
        return asyncio.get_running_loop().time() - began_at


@asynccontextmanager
async def streaming(broker: SimulatedBroker, *, fed: bool = True) -> AsyncIterator[Stream]:
    await broker.transport().admin.create(ORDERS.entity, QueueProperties(lock_duration=30.0))
    stream = Stream(broker)
    feeding = asyncio.create_task(stream.feed() if fed else asyncio.sleep(0))
    yield stream
    feeding.cancel()


@pytest.fixture
def in_one_thread(monkeypatch):
    """Let what goes to a thread be done in this one: virtual time does not wait for threads."""

    async def to_thread(function, *args):
        return function(*args)

    monkeypatch.setattr("asyncio.to_thread", to_thread)


@pytest.mark.parametrize("wait", [1.0, 60.0])
@in_virtual_time
async def test_messages_that_never_stop_coming_are_no_batch_without_end(in_one_thread, wait):
    async with streaming(SimulatedBroker("p")) as stream:
        # A second of gathering, whatever the wait for the first message may be.
        assert await stream.fill(10_000, wait) < 1.5
        assert len(stream.rows.ids) >= 45
        assert len(stream.rows.ids) == len(set(stream.rows.ids))
        assert await stream.fill(10_000, wait) < 1.5  # and so the next


@in_virtual_time
async def test_segments_that_are_full_in_less_than_a_second_are_no_batch_without_end_either(in_one_thread, monkeypatch):
    monkeypatch.setattr(_intake, "_SEGMENT_BYTES", 10_000)
    async with streaming(SimulatedBroker("p")) as stream:
        stream.body = bytes(1000)
        assert await stream.fill(10_000, 1.0) < 1.5
        assert len(stream.rows.ids) >= 45


@in_virtual_time
async def test_the_first_message_is_waited_for_and_those_after_it_are_gathered_for_a_second(in_one_thread):
    async with streaming(SimulatedBroker("p"), fed=False) as stream:
        asyncio.get_running_loop().call_later(20.0, lambda: feeding.append(asyncio.create_task(stream.feed())))
        feeding: list[asyncio.Task[None]] = []
        assert 20.9 < await stream.fill(10_000, 60.0) < 21.5
        feeding[0].cancel()


@in_virtual_time
async def test_a_trigger_without_a_limit_takes_all_that_was_there_however_slowly_it_comes(in_one_thread):
    async with streaming(SimulatedBroker("p")) as stream:
        await stream.fill(300, 1.0, whole=True)
        assert len(stream.rows.ids) == 300


@in_virtual_time
async def test_a_batch_of_what_waits_is_as_large_as_it_may_be_also_at_a_slow_broker(in_one_thread):
    async with streaming(SimulatedBroker("p", latency=0.7), fed=False) as stream:
        outcomes = await stream.sender.send_batch([Message(b"x", message_id=f"m{n}") for n in range(7000)])
        assert outcomes.count(None) == 7000
        await stream.fill(5100, 1.0)
        assert len(stream.rows.ids) == 5100


async def _failing(directory) -> list[str]:
    class Failing(Stub):
        async def receive(self, max_messages, wait):
            if not self.rounds:
                raise TransportError("the broker is unavailable", FailureKind.UNAVAILABLE)
            return self.rounds.pop(0)

    spool = Spool(directory, "orders")
    intake = Intake(registry.transport("redis://127.0.0.1:1/0"), ORDERS, PLACE, spool, 5.0)
    intake._receiver = Failing([delivery("7", 1)])
    heard = [str(await intake.fill(10, 0.0, 0))]
    try:
        await intake.fill(10, 0.0, 0)
    except TransportError as error:
        heard.append(str(error))
    spool.close()
    return heard


def test_what_came_before_the_broker_became_unavailable_is_kept_before_the_failure_is_reported(directory):
    assert asyncio.run(_failing(directory)) == ["1", "the broker is unavailable"]


@pytest.mark.real_server
def test_a_disk_that_is_full_leaves_the_messages_with_the_broker(brokers, directory, monkeypatch):
    brokers.send(numbered(50))

    def full(self, batch, start):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spool, "append", full)
    with pytest.raises(OSError, match="No space left"):
        fill(brokers, directory)
    assert brokers.take() == Counter(ids(50))
