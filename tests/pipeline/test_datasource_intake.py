"""From a broker into the spool: killed at any step, it loses nothing, and keeps twice only what it can't tell apart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections import Counter

import pytest

from pairmq.model import Delivery, Entity, FailureKind, Message, Source, TransportError
from pairmq.pipeline.datasource._intake import Intake
from pairmq.pipeline.datasource._rows import Place
from pairmq.pipeline.datasource._spool import Spool, read_segment
from pairmq.plugins import registry
from pairmq_redis.testing import RedisServer
from spark_brokers import Brokers, ids, numbered

PLACE = Place("primary", "orders", "orders")
ORDERS = Source(Entity("orders"))
STEPS = ["received", "written", "named", "synced", "partly acknowledged", "acknowledged"]
LOCK = 5.0  # s: what a killed process held comes again after that; and longer than a slow disk takes


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


def test_everything_comes_into_the_spool_and_leaves_the_broker(brokers, directory):
    brokers.send(numbered(300))
    assert fill(brokers, directory) == 300
    assert kept(directory) == Counter(ids(300))
    assert brokers.counts().pending == 0


def test_no_more_than_the_limit_is_taken_and_the_rest_is_free_for_others(brokers, directory):
    brokers.send(numbered(300))
    assert fill(brokers, directory, most=120) == 120
    assert brokers.take().total() == 180


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
        _spool._sync = die
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


def test_a_message_whose_acknowledgement_failed_is_kept_once_and_acknowledged_when_it_comes_again(directory):
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


def test_a_message_that_comes_again_is_kept_twice_where_the_broker_does_not_number_it(directory):
    stub = Stub([delivery("", 1)], [], [delivery("", 2)])
    assert asyncio.run(_through(directory, stub)) == 2


async def _failing(directory) -> list[str]:
    class Failing(Stub):
        async def receive(self, max_messages, wait):
            if not self.rounds:
                raise TransportError("the broker is away", FailureKind.UNAVAILABLE)
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


def test_what_came_before_the_broker_went_away_is_kept_before_the_failure_is_told(directory):
    assert asyncio.run(_failing(directory)) == ["1", "the broker is away"]


def test_a_disk_that_is_full_leaves_the_messages_with_the_broker(brokers, directory, monkeypatch):
    brokers.send(numbered(50))

    def full(self, batch, start):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spool, "append", full)
    with pytest.raises(OSError, match="No space left"):
        fill(brokers, directory)
    assert brokers.take() == Counter(ids(50))
