"""Processes of one pair that find out where they disagree, in virtual time (SPEC 13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pairmq import ConfigurationError, Entity, Message, Pair, PairFaulted, PairOptions
from pairmq.core.record import MAX_ENTRIES, Configuration, Record
from pairmq.model import Delivery, EntityState, Source
from pairmq.model.events import BacklogQueueChecked, Event, Warned
from pairmq.runner import LOOK_INTERVAL, find_agreement
from pairmq.runner._limits import TimeLimits
from pairmq.runner._record import Looker
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time
from pairmq.transport import Capabilities, Endpoint

RECORD = "east/x-pairmq-record"


@dataclass
class Processes:
    """Two brokers, and any number of pairs of them."""

    east: SimulatedBroker = field(default_factory=lambda: SimulatedBroker("east"))
    west: SimulatedBroker = field(default_factory=lambda: SimulatedBroker("west"))

    @asynccontextmanager
    async def process(
        self, *, primary: Endpoint | None = None, **options: Any
    ) -> AsyncIterator[tuple[Pair, list[str]]]:
        """A process of the pair, and what it warns of."""
        first = self.east.transport()
        if primary is not None:
            first._endpoint = primary
        usual = {
            "failover_interval": 0.0,
            "ping_primary_interval": 5.0,
            "attempt_timeout": 1.0,
            "control_interval": 0.0,
        }
        pair = Pair(first, self.west.transport(), PairOptions(**{**usual, **options}))
        warnings: list[str] = []

        def heard(event: Event) -> None:
            if isinstance(event, Warned):
                warnings.append(event.text)

        pair.subscribe(heard)
        async with pair:
            yield pair, warnings

    async def divert(self, count: int, **options: Any) -> None:
        """Let a process that ends divert messages, each through a sender of its own."""
        async with self.process(**options) as (pair, _):
            pair.force_failover("orders")
            pair.hold("orders")
            for number in range(count):
                await pair.sender("orders").send(Message(b"%d" % number, message_id=f"m{number}"))

    def moved(self) -> int:
        return len(self.east.messages("orders"))

    def left(self) -> int:
        return sum(len(queue.stored) for entity, queue in self.west.queues.items() if entity.path != RECORD)


@pytest.fixture
def processes() -> Processes:
    return Processes()


async def settled(seconds: float = 20.0) -> None:
    await asyncio.sleep(seconds)


@in_virtual_time
async def test_processes_that_agree_write_one_configuration_and_warn_of_nothing(processes):
    async with processes.process(enable_syphon=True) as (_, first), processes.process() as (_, second):
        await settled(3 * LOOK_INTERVAL)
    assert (first, second) == ([], [])
    assert len(processes.west.messages(RECORD)) == 1


@in_virtual_time
async def test_a_syphon_drains_queues_beyond_its_own_count(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(40, backlog_queue_count=10)
    async with processes.process(enable_syphon=True, backlog_queue_count=1) as (pair, warnings):
        await settled()
        assert (processes.moved(), processes.left()) == (40, 0)
        assert len(pair.backlog_queues) == 10
    assert any("backlog_queue_count is 1 here and 10" in text for text in warnings)


@in_virtual_time
async def test_a_syphon_drains_queues_of_senders_that_start_later(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    async with processes.process(enable_syphon=True, backlog_queue_count=1) as (_, warnings):
        await processes.divert(40, backlog_queue_count=10)
        await settled(LOOK_INTERVAL + 20)
        assert (processes.moved(), processes.left()) == (40, 0)
        assert len(warnings) == 1


@in_virtual_time
async def test_a_syphon_drains_queues_of_an_earlier_release_that_kept_no_record(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(40, backlog_queue_count=10)
    del processes.west.queues[Entity(RECORD)]
    async with processes.process(enable_syphon=True, backlog_queue_count=1) as (_, warnings):
        await settled()
        assert (processes.moved(), processes.left()) == (40, 0)
    assert any("in no process's options and holds messages" in text for text in warnings)


@in_virtual_time
async def test_an_entity_is_not_healthy_while_queues_of_another_process_hold_messages(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    async with processes.process(enable_syphon=True, backlog_queue_count=1, syphon_max_rate=1.0) as (pair, _):
        await pair.sender("orders").send(Message(b"first"))
        await settled()
        assert pair.state("orders") is EntityState.HEALTHY
        processes.east.fail(Fault.DOWN)
        await pair.sender("orders").send(Message(b"mine"))
        await settled(90)
        await processes.divert(30, backlog_queue_count=10)
        processes.east.heal()
        left = []
        while pair.state("orders") is not EntityState.HEALTHY:
            left.append(processes.left())
            await asyncio.sleep(0.5)
        assert processes.left() == 0
        assert max(left) > 10


@in_virtual_time
async def test_a_queue_that_ends_is_no_longer_drained_or_counted(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(10, backlog_queue_count=3)
    async with processes.process(enable_syphon=True, backlog_queue_count=1) as (pair, _):
        await settled()
        gone = pair.backlog_queues[2]
        admin = processes.west.transport().admin
        await admin.delete(gone)
        await settled(3600)
        assert gone not in pair.backlog_queues
        assert len(pair.backlog_queues) == 2


@in_virtual_time
async def test_another_primary_of_the_same_name_is_refused_and_writes_nothing(processes):
    async with processes.process(backlog_queue_count=1):
        pass
    other = Endpoint("east", ("simulated", "other"), "simulated://other")
    with pytest.raises(ConfigurationError, match=r"another primary.*'simulated other'"):
        async with processes.process(primary=other):
            pass
    assert len(processes.west.messages(RECORD)) == 1


@in_virtual_time
async def test_localhost_of_another_machine_is_another_primary(processes):
    ends = [Endpoint("east", ("p", "127.0.0.1"), "p://localhost", scope) for scope in ("web-1", "web-2")]
    async with processes.process(primary=ends[0]):
        pass
    with pytest.raises(ConfigurationError, match="web-2"):
        async with processes.process(primary=ends[1]):
            pass


@in_virtual_time
async def test_another_primary_that_is_seen_later_ends_the_pair(processes):
    async with processes.process(enable_syphon=True) as (pair, _):
        # As if both had looked before either wrote.
        other = Configuration.of("east", ("simulated", "other"), "", PairOptions())
        processes.west.store(Entity(RECORD), other.message())
        await settled()
        with pytest.raises(PairFaulted, match="another primary"):
            pair.sender("orders")


@in_virtual_time
async def test_a_syphon_moves_nothing_before_it_knows_whose_queues_they_are(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(5)
    other = Configuration.of("east", ("simulated", "other"), "", PairOptions())
    processes.west.queues[Entity(RECORD)].stored.clear()
    processes.west.store(Entity(RECORD), other.message())
    processes.west.fail(Fault.DOWN, entities=[RECORD])
    async with processes.process(enable_syphon=True) as (pair, _):
        await settled(60)
        assert processes.moved() == 0
        processes.west.heal()
        await settled(60)
        assert processes.moved() == 0
        with pytest.raises(PairFaulted, match="another primary"):
            pair.sender("orders")


@in_virtual_time
async def test_a_secondary_that_can_not_be_reached_is_asked_later(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(20, backlog_queue_count=5)
    processes.west.fail(Fault.DOWN)
    async with processes.process(enable_syphon=True, backlog_queue_count=1) as (_, warnings):
        await settled(5)
        processes.west.heal()
        await settled(60)
        assert processes.left() == 0
        assert len(warnings) == 1


@in_virtual_time
async def test_a_secondary_that_does_not_let_the_record_be_kept_is_used_all_the_same(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(5)
    del processes.west.queues[Entity(RECORD)]
    processes.west.fail(Fault.UNAUTHORIZED, entities=[RECORD])
    async with processes.process(enable_syphon=True) as (_, warnings):
        await settled(3 * LOOK_INTERVAL)
        assert processes.moved() == 5
    assert len(warnings) == 1
    assert "could not compare with the record" in warnings[0]


@in_virtual_time
async def test_a_failure_of_another_kind_than_a_brokers_does_not_end_the_looks(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(5, backlog_queue_count=2)
    processes.west.fail(Fault.BUG, entities=[RECORD], times=3)
    async with processes.process(enable_syphon=True, backlog_queue_count=1):
        await settled(60)
        assert processes.moved() == 5


@in_virtual_time
@pytest.mark.parametrize("body", [b"", b"{}", b'{"pairmq_record":2}', b"\xff" * 20_000])
async def test_a_record_that_can_not_be_read_is_reported_and_left(processes, body):
    await processes.west.transport().admin.create(Entity(RECORD))
    processes.west.store(Entity(RECORD), Message(body))
    async with processes.process() as (_, warnings):
        await settled(2 * LOOK_INTERVAL)
    assert len(warnings) == 1
    assert "of the record" in warnings[0]
    assert [message.body == body for message in processes.west.messages(RECORD)] == [True, False]


@in_virtual_time
async def test_an_emptied_secondary_is_reported_and_has_its_queues_again(processes):
    async with processes.process(backlog_queue_count=3) as (pair, warnings):
        made: list[str] = []
        pair.subscribe(lambda event: made.append(event.queue) if isinstance(event, BacklogQueueChecked) else None)
        for _ in range(2):
            processes.west.queues.clear()
            await settled(LOOK_INTERVAL + 10)
            assert len(processes.west.queues) == 4
        assert len(made) == 6
    assert sum("emptied or replaced" in text for text in warnings) == 2
    assert sum("created again: what it held is lost" in text for text in warnings) == 6


@in_virtual_time
async def test_every_process_makes_its_queues_again_when_another_one_was_first_to_see_them_gone(processes):
    async with processes.process(enable_syphon=True, backlog_queue_count=1):
        await settled()  # so that it looks first, each time
        async with processes.process(backlog_queue_count=3):
            await settled()
            names = {entity.path for entity in processes.west.queues}
            processes.west.queues.clear()
            await settled(2 * LOOK_INTERVAL)
            assert {entity.path for entity in processes.west.queues} == names
            assert len(names) == 4


@in_virtual_time
async def test_processes_that_start_at_once_lose_nothing_of_each_other(processes):
    await processes.east.transport().admin.create(Entity("orders"))

    async def run(count: int) -> list[str]:
        async with processes.process(backlog_queue_count=count) as (_, warnings):
            await settled(60)
            return warnings

    told = await asyncio.gather(*(run(count) for count in (1, 2, 3)))
    assert len(processes.west.messages(RECORD)) == 3
    assert ["1 here and 2 and 3" in " ".join(told[0]), "3 here and 1 and 2" in " ".join(told[2])] == [True, True]


@in_virtual_time
async def test_copies_of_one_configuration_are_removed_and_one_is_left(processes):
    async with processes.process() as (_, warnings):
        (first,) = processes.west.messages(RECORD)
        for _ in range(40):
            processes.west.store(Entity(RECORD), first)
        await settled(2 * LOOK_INTERVAL)
        assert processes.west.messages(RECORD) == [first]
    assert not warnings


@in_virtual_time
async def test_a_broker_that_shows_nothing_is_read_by_receiving():
    west = SimulatedBroker("west", capabilities=Capabilities(dead_letter=True, lock_renewal=True, probes=True))
    processes = Processes(west=west)
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(20, backlog_queue_count=5)
    async with processes.process(enable_syphon=True, backlog_queue_count=1):
        await settled()
        assert (processes.moved(), processes.left()) == (20, 0)
    assert len(west.messages(RECORD)) == 2


@in_virtual_time
async def test_other_templates_of_this_primary_are_drained_and_foreign_ones_named(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(5, backlog_name_template="{primary}/mine/{index}")
    async with processes.process(enable_syphon=True) as (_, warnings):
        await settled()
        assert processes.moved() == 5
        assert "backlog_name_template" in warnings[0]
    await processes.divert(5, backlog_name_template="theirs-{index}", backlog_queue_count=1)
    agreement = await find_agreement(
        processes.east.transport().endpoint, processes.west.transport(), PairOptions(), 1.0
    )
    assert [(stray.queue.path, stray.pending) for stray in agreement.strays] == [("theirs-0", 5)]
    async with processes.process(enable_syphon=True) as (_, warnings):
        await settled()
        assert processes.moved() == 5
        assert any("theirs-0 holds 5 messages" in text for text in warnings)


@in_virtual_time
async def test_what_is_under_a_former_name_is_named_and_left(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    old = Endpoint("localhost-1", ("simulated", "east"), "simulated://east")
    await processes.divert(20, primary=None, backlog_name_template="localhost-1/x-servicebus-transfer/{index}")
    for path in ("localhost-1/x-pairmq-record", RECORD):
        processes.west.queues.pop(Entity(path), None)
    new = Endpoint("east", old.identity, old.url, "web-1", ("localhost-1", "127.0.0.1-1"))
    async with processes.process(primary=new, enable_syphon=True) as (_, warnings):
        await settled()
    assert processes.moved() == 0
    [warning] = warnings  # for all queues of the name
    assert "/x-servicebus-transfer/" in warning
    assert " more queues hold 20 messages: " in warning
    assert "?name=localhost-1" in warning


@in_virtual_time
async def test_what_is_under_the_default_name_is_named_when_the_url_states_another(processes):
    """The default name of a local address has the machine in it, as has the identity that is recorded with it."""
    await processes.east.transport().admin.create(Entity("orders"))
    identity = ("simulated", "localhost")
    before = Endpoint("web-1--0a", identity, "simulated://localhost", "web-1")
    await processes.divert(20, primary=before)
    for stated in (("simulated", "localhost"), ("simulated", "?identity=orders")):
        now = Endpoint("orders", stated, before.url, "", ("web-1--0a",), by_default=(*identity, "web-1"))
        agreement = await find_agreement(now, processes.west.transport(), PairOptions(), 1.0)
        assert sum(stray.pending for stray in agreement.strays) == 20
        assert all(stray.certain for stray in agreement.strays)
        async with processes.process(primary=now, enable_syphon=True) as (_, warnings):
            await settled()
        assert processes.moved() == 0
        assert any("another process calls this primary 'web-1--0a'" in text for text in warnings)
        processes.west.queues.pop(Entity("orders/x-pairmq-record"))


@in_virtual_time
async def test_what_another_machine_left_under_its_default_name_is_not_this_primarys(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    identity = ("simulated", "localhost")
    await processes.divert(20, primary=Endpoint("web-2--0b", identity, "simulated://localhost", "web-2"))
    now = Endpoint("orders", identity, "simulated://localhost", "", ("web-1--0a",), by_default=(*identity, "web-1"))
    agreement = await find_agreement(now, processes.west.transport(), PairOptions(), 1.0, everywhere=True)
    assert not agreement.strays


@in_virtual_time
async def test_looking_everywhere_finds_another_name_and_passes_over_another_primary(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    same = Endpoint("alias", ("simulated", "east"), "simulated://east")
    other = Endpoint("other", ("simulated", "other"), "simulated://other")
    for endpoint in (same, other):
        async with processes.process(primary=endpoint, backlog_queue_count=1) as (pair, _):
            pair.hold("orders")
            await pair.sender("orders").send(Message(b""))
    agreement = await find_agreement(
        processes.east.transport().endpoint, processes.west.transport(), PairOptions(), 1.0, everywhere=True
    )
    assert [stray.queue.path for stray in agreement.strays] == ["alias/x-servicebus-transfer/0"]
    processes.west.queues.pop(Entity("other/x-pairmq-record"))
    agreement = await find_agreement(
        processes.east.transport().endpoint, processes.west.transport(), PairOptions(), 1.0, everywhere=True
    )
    assert len(agreement.strays) == 2


@in_virtual_time
async def test_a_look_at_a_secondary_that_is_down_reports_that(processes):
    processes.west.fail(Fault.DOWN, Operation.ALL)
    agreement = await find_agreement(
        processes.east.transport().endpoint, processes.west.transport(), PairOptions(), 1.0
    )
    assert "can't be read" in (agreement.unread or "")


@in_virtual_time
async def test_a_record_that_is_refused_is_reported_once_and_looked_at_again_soon(processes):
    async with processes.process() as (pair, warnings):
        processes.west.fail(Fault.UNAUTHORIZED, entities=[RECORD])
        await settled(2 * LOOK_INTERVAL)
        assert len(warnings) == 1
        assert warnings[0].startswith("could not compare with the record because the secondary refused: ")
        assert "can't be read" in ((await pair.agreement()).unread or "")
        processes.west.heal()
        async with processes.process(backlog_queue_count=3):
            await settled(LOOK_INTERVAL)
        assert len(warnings) == 2
        assert "backlog_queue_count is 10 here and 3 in another process" in warnings[1]
        assert (await pair.agreement()).unread is None


@in_virtual_time
async def test_a_record_that_is_refused_at_the_start_is_compared_within_two_minutes_of_the_permission(processes):
    processes.west.fail(Fault.UNAUTHORIZED, entities=[RECORD])
    async with processes.process() as (_, warnings):
        await settled(30)
        assert len(warnings) == 1
        processes.west.heal()
        async with processes.process(backlog_queue_count=3):
            await settled(60)
    assert len(warnings) == 2


@in_virtual_time
async def test_a_record_that_may_be_read_and_not_written_is_reported_by_the_pair(processes):
    processes.west.fail(Fault.UNAUTHORIZED, Operation.SEND, entities=[RECORD])
    async with processes.process() as (pair, warnings):
        await settled(30)
        assert "could not compare with the record" in ((await pair.agreement()).unread or "")
        assert len(warnings) == 1


@in_virtual_time
async def test_looks_that_are_refused_for_long_become_as_rare_as_others(processes):
    processes.west.fail(Fault.UNAUTHORIZED, entities=[RECORD])
    async with processes.process():
        await settled(4 * LOOK_INTERVAL)
        processes.west.operations.clear()
        await settled(10 * LOOK_INTERVAL)
        assert sum(processes.west.operations.values()) <= 10


@in_virtual_time
async def test_a_removal_that_is_cancelled_as_it_begins_makes_no_operation_that_nothing_awaits(processes):
    transport = processes.west.transport()
    await transport.admin.create(Entity(RECORD))
    processes.west.store(Entity(RECORD), Message(b"old"))
    receiver = transport.receiver(Source(Entity(RECORD)))
    made: list[Delivery] = []
    begun: list[Delivery] = []

    class Cancelling:
        """A receiver with which the caller is cancelled right after it has received."""

        close = receiver.close

        async def receive(self, most: int, wait: float) -> Any:
            found = await receiver.receive(most, wait)
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
            return found

        def complete(self, delivery: Delivery) -> Any:
            made.append(delivery)
            return self._complete(delivery)

        async def _complete(self, delivery: Delivery) -> None:
            begun.append(delivery)
            await receiver.complete(delivery)

    transport.receiver = lambda source: Cancelling()
    looker = Looker(transport, TimeLimits(60))
    removal = asyncio.ensure_future(looker.remove(Entity(RECORD), lambda delivery: True, 10))
    await asyncio.wait([removal])
    assert removal.cancelled()
    assert made == begun  # with eager tasks it begins before the cancellation


@in_virtual_time
async def test_a_record_with_more_messages_than_are_read_does_not_grow(processes):
    await processes.east.transport().admin.create(Entity("prices"))
    await processes.west.transport().admin.create(Entity(RECORD))
    for number in range(MAX_ENTRIES):
        processes.west.store(Entity(RECORD), Message(b"%d" % number))
    async with processes.process(enable_syphon=True, continuity=("prices*",)) as (pair, warnings):
        made: list[str] = []
        pair.subscribe(lambda event: made.append(event.queue) if isinstance(event, BacklogQueueChecked) else None)
        processes.east.fail(Fault.DOWN)
        await pair.sender("prices").send(Message(b"to a lane of a pattern"))
        processes.east.heal()
        await settled(5 * LOOK_INTERVAL)
        assert len(processes.west.messages(RECORD)) == MAX_ENTRIES
        assert set(made) <= {"east/x-pairmq-lane/prices"}
        assert sum("backlog adopt" in text for text in warnings) == 1
        processes.west.queues[Entity(RECORD)].stored.clear()
        await settled(2 * LOOK_INTERVAL)
        assert len(processes.west.messages(RECORD)) == 2


@in_virtual_time
async def test_a_forged_record_of_half_a_million_queues_keeps_no_syphon_waiting(processes):
    await processes.east.transport().admin.create(Entity("orders"))
    await processes.divert(1)
    [own] = Record.read(message.body for message in processes.west.messages(RECORD)).configurations
    for number in range(400):
        forged = replace(own, template=f"{number}-{{index}}", queues=1000)
        processes.west.store(Entity(RECORD), forged.message())
    processes.west.operations.clear()
    async with processes.process(enable_syphon=True):
        await settled(60)
    assert processes.moved() == 1
    assert processes.west.operations.total() < 2000
