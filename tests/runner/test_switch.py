"""A fleet of processes that follows an operator's decisions, in virtual time (SPEC 13.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pairmq import ConfigurationError, Entity, EntityState, Message, Pair, PairOptions, Route, TransportError
from pairmq.core.record import MAX_ENTRIES
from pairmq.core.switch import REPORT_INTERVAL, REPORT_LIFETIME, SwitchAction
from pairmq.model import Delivery, Source
from pairmq.model.events import Event, Warned
from pairmq.runner import Clock, SwitchWriter
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time, virtual_wall
from pairmq.transport import Admin, AdminWrapper, Capabilities, QueueCounts, Transport, TransportWrapper

INTERVAL = 15.0
DECISIONS, REPORTS = "east/switch/x-pairmq-record", "east/processes/x-pairmq-record"
ORDERS = Entity("orders")


@dataclass
class Brokers:
    """Two brokers, and any number of pairs of them."""

    east: SimulatedBroker = field(default_factory=lambda: SimulatedBroker("east"))
    west: SimulatedBroker = field(default_factory=lambda: SimulatedBroker("west"))

    def pair(self, *, wrong: float = 0.0, **options: Any) -> Pair:
        """A process whose clock is ``wrong`` by so many seconds."""
        usual = {"backlog_queue_count": 2, "attempt_timeout": 1.0, "control_interval": INTERVAL}
        clock = Clock(lambda: virtual_wall() + wrong)
        return Pair(self.east.transport(), self.secondary(), PairOptions(**{**usual, **options}), clock=clock)

    def secondary(self) -> Transport:
        return self.west.transport()

    @asynccontextmanager
    async def fleet(self, count: int, **options: Any) -> AsyncIterator[list[Pair]]:
        """Processes that start 1.3 s after one another, the first one with a syphon, and run for a while."""
        for name in ("orders", "prices"):
            await self.east.transport().admin.create(Entity(name))
        async with AsyncExitStack() as stack:
            pairs = []
            for number in range(count):
                pairs.append(await stack.enter_async_context(self.pair(enable_syphon=number == 0, **options)))
                await asyncio.sleep(1.3)
            await asyncio.sleep(20)
            yield pairs

    def writer(self, *, wrong: float = 0.0) -> SwitchWriter:
        """An operator's, as of the command line."""
        clock = Clock(lambda: virtual_wall() + wrong)
        return SwitchWriter(self.east.transport().endpoint, self.secondary(), 1.0, clock)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def states(pairs: list[Pair]) -> set[EntityState]:
    return {pair.state("orders") for pair in pairs}


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_a_fleet_of_ten_follows_within_the_interval_and_two_seconds(brokers):
    async with brokers.fleet(10) as pairs:
        writer = brokers.writer()
        for action, wanted in (("hold", {EntityState.FAILED_OVER}), ("resume", {EntityState.HEALTHY})):
            began = now()
            decision = await writer.write(action, [ORDERS])
            report = await writer.watch(decision)
            assert (len(report.followed), report.missing, report.overruled) == (10, (), ())
            assert now() - began <= INTERVAL + 2
            if action == "resume":
                await asyncio.sleep(20)  # the one with the syphon has to see the backlog empty
            assert states(pairs) == wanted


@in_virtual_time
async def test_sends_go_where_the_decision_says(brokers):
    async with brokers.fleet(2) as pairs:
        senders = [pair.sender("orders") for pair in pairs]
        report = await pairs[1].switch("hold", "orders", "prices", syphon=True)
        assert report.complete
        assert {(await sender.send(Message(b""))).route for sender in senders} == {Route.BACKLOG}
        await asyncio.sleep(120)
        assert pairs[0].moved == 0
        assert pairs[0].syphon_holds == {ORDERS, Entity("prices")}
        await pairs[1].switch("resume", "orders", "prices")
        assert {(await sender.send(Message(b""))).route for sender in senders} == {Route.PRIMARY}
        await asyncio.sleep(5)
        assert pairs[0].moved == 2


@in_virtual_time
async def test_the_fleet_follows_while_the_primary_is_down(brokers):
    async with brokers.fleet(3) as pairs:
        brokers.east.fail(Fault.DOWN)
        decision = await brokers.writer().write("hold", [ORDERS])
        assert (await brokers.writer().watch(decision)).complete
        assert states(pairs) == {EntityState.FAILED_OVER}


@in_virtual_time
async def test_a_failover_ends_by_a_ping(brokers):
    async with brokers.fleet(3, ping_primary_interval=5.0, control_interval=1.0) as pairs:
        report = await pairs[0].switch("failover", "orders")
        assert report.complete
        assert states(pairs) == {EntityState.FAILED_OVER}
        await asyncio.sleep(20)
        assert states(pairs) <= {EntityState.HEALTHY, EntityState.DRAINING}


@in_virtual_time
async def test_a_process_that_starts_later_follows_from_its_first_send(brokers):
    async with brokers.fleet(1) as pairs:
        await pairs[0].switch("hold", "orders", timeout=0)
        async with brokers.pair() as late:
            receipt = await late.sender("orders").send(Message(b""))
            assert receipt.route is Route.BACKLOG
            await asyncio.sleep(2)
            (decision,) = [each for _, each in (await brokers.writer().status()).decisions]
            assert len((await brokers.writer().watch(decision)).followed) == 2


@in_virtual_time
async def test_a_process_that_starts_while_the_secondary_is_down_follows_later(brokers):
    async with brokers.fleet(1) as pairs:
        await pairs[0].switch("hold", "orders", timeout=0)
        brokers.west.fail(Fault.DOWN)
        async with brokers.pair() as late:
            brokers.west.heal()
            assert late.state("orders") is EntityState.HEALTHY
            await asyncio.sleep(INTERVAL + 2)
            assert late.state("orders") is EntityState.FAILED_OVER


@in_virtual_time
async def test_of_two_operators_at_once_one_wins_in_every_process_and_both_learn_it(brokers):
    async with brokers.fleet(4) as pairs:
        one, two = await asyncio.gather(*(brokers.writer().write(action, [ORDERS]) for action in ("hold", "resume")))
        told = await asyncio.gather(*(brokers.writer().watch(each, INTERVAL + 2) for each in (one, two)))
        winner, loser = sorted((one, two), key=lambda each: each.order, reverse=True)
        reports = dict(zip((one.id, two.id), told, strict=True))
        assert reports[loser.id].overruled == ((ORDERS, winner),)
        assert (reports[winner.id].complete, len(reports[winner.id].followed)) == (True, 4)
        held = {EntityState.FAILED_OVER} if winner.action == "hold" else {EntityState.HEALTHY}
        assert states(pairs) <= held | ({EntityState.DRAINING} - held if winner.action == "resume" else set())
        assert len(states(pairs[1:])) == 1


@in_virtual_time
async def test_a_process_that_does_not_look_is_listed_with_its_age(brokers):
    async with brokers.fleet(2) as pairs, brokers.pair(control_interval=3600.0) as frozen:
        await asyncio.sleep(60)
        report = await pairs[0].switch("hold", "orders", timeout=INTERVAL + 2)
        assert (len(report.followed), len(report.missing)) == (2, 1)
        assert report.missing[0].interval == 3600.0
        assert report.decision.at - report.missing[0].at == pytest.approx(59, abs=1)
        assert frozen.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_a_process_that_looks_once_an_hour_stays_listed(brokers):
    async with brokers.fleet(1) as pairs, brokers.pair(control_interval=3600.0):
        await asyncio.sleep(2 * REPORT_LIFETIME)
        report = await pairs[0].switch("hold", "orders", timeout=INTERVAL + 2)
        assert [each.interval for each in report.missing] == [3600.0]


@in_virtual_time
async def test_a_decision_that_is_made_while_a_process_starts_is_followed_soon(brokers):
    queues = [f"east/x-servicebus-transfer/{index}" for index in range(2)]
    brokers.west.fail(Fault.SLOW, Operation.ADMIN, entities=queues, delay=5.0)
    pair = brokers.pair(attempt_timeout=30.0, control_interval=600.0)
    opening = asyncio.create_task(pair.open())
    await asyncio.sleep(1)  # it has read the decisions, and makes its queues
    brokers.west.heal()
    decision = await brokers.writer().write("hold", [ORDERS])
    assert (await brokers.writer().watch(decision)).complete  # no process reports yet
    await opening
    await asyncio.sleep(2)
    assert pair.state("orders") is EntityState.FAILED_OVER
    await pair.close()


@in_virtual_time
async def test_a_closed_process_is_not_waited_for_and_a_killed_one_only_for_a_while(brokers):
    async with brokers.fleet(1) as pairs:
        async with brokers.pair():
            await asyncio.sleep(5)
        (killed,) = (await brokers.writer().status()).processes
        brokers.west.store(Entity(REPORTS), replace(killed, process="killed").message())
        assert [each.process for each in (await pairs[0].switch("hold", "orders")).missing] == ["killed"]
        await asyncio.sleep(REPORT_LIFETIME)
        assert (await pairs[0].switch("resume", "orders")).complete


@in_virtual_time
async def test_a_process_whose_clock_is_an_hour_slow_is_waited_for(brokers):
    async with brokers.fleet(2), brokers.pair(wrong=-3600.0, control_interval=300.0) as slow:
        await asyncio.sleep(400)  # others look which reports are old
        decision = await brokers.writer().write("hold", [ORDERS])
        assert [each.interval for each in (await brokers.writer().watch(decision, 20)).missing] == [300.0]
        report = await brokers.writer().watch(decision)
        assert (len(report.followed), report.complete, slow.state("orders")) == (3, True, EntityState.FAILED_OVER)


@in_virtual_time
@pytest.mark.parametrize("wrong", [-3600.0, 3600.0])
async def test_an_operator_whose_clock_is_wrong_by_an_hour_waits_for_all(brokers, wrong: float):
    async with brokers.fleet(3) as pairs:
        for action in ("hold", "resume", "hold"):
            decision = await brokers.writer(wrong=wrong).write(action, [ORDERS])
            report = await brokers.writer(wrong=wrong).watch(decision)
            assert (len(report.followed), report.complete) == (3, True)
        assert states(pairs) == {EntityState.FAILED_OVER}


@in_virtual_time
@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_processes_follow_while_their_clocks_are_set(brokers, step: float):
    class Wall:
        wrong = 0.0

        def __call__(self) -> float:
            return virtual_wall() + self.wrong

    wall = Wall()
    pair = Pair(
        brokers.east.transport(),
        brokers.west.transport(),
        PairOptions(backlog_queue_count=2, control_interval=INTERVAL, enable_syphon=True),
        clock=Clock(wall),
    )
    async with brokers.fleet(1) as pairs, pair:
        sender = pair.sender("orders")
        for action, wanted in (("hold", Route.BACKLOG), ("resume", Route.PRIMARY), ("failover", Route.BACKLOG)):
            await asyncio.sleep(INTERVAL)
            wall.wrong = step - wall.wrong
            report = await pairs[0].switch(action, "orders")
            assert (len(report.followed), report.complete) == (2, True)
            assert (await sender.send(Message(b""))).route is wanted
        await asyncio.sleep(300)  # pings end the failover
        assert pairs[0].moved + pair.moved == 2
        assert brokers.west.messages("east/x-servicebus-transfer/0") == []


@in_virtual_time
async def test_reports_that_are_too_many_to_be_read_are_a_problem(brokers):
    async with brokers.fleet(2) as pairs:
        for number in range(10_000):
            brokers.west.store(Entity(REPORTS), Message(b"%d" % number))
        report = await pairs[0].switch("hold", "orders", timeout=INTERVAL + 2)
        assert not report.complete
        assert REPORTS in report.problem
        assert "delete that queue" in report.problem
        assert (await brokers.writer().status()).problems == (report.problem,)
        warned: list[Event] = []
        pairs[1].subscribe(lambda event: warned.append(event) if isinstance(event, Warned) else None)
        await brokers.west.transport().admin.delete(Entity(REPORTS))
        await asyncio.sleep(REPORT_LIFETIME / 3)
        assert warned == []
        report = await pairs[0].switch("resume", "orders")
        assert (len(report.followed), report.complete, report.problem) == (2, True, "")


@in_virtual_time
async def test_two_messages_of_a_later_release_at_the_head_keep_no_old_report(brokers):
    async with brokers.fleet(2):
        (first, *_) = (await brokers.writer().status()).processes
        later = [
            Message(first.message().body.replace(b'"kind":"process"', b'"kind":"later"'), f"later-{number}")
            for number in range(2)
        ]
        reports = brokers.west.messages(REPORTS)
        await brokers.west.transport().admin.purge(Source(Entity(REPORTS)))
        for message in (*later, *reports):
            brokers.west.store(Entity(REPORTS), message)
        await asyncio.sleep(6 * REPORT_LIFETIME)
        assert len(brokers.west.messages(REPORTS)) <= 10


@in_virtual_time
async def test_a_process_that_was_stopped_across_a_superseded_decision_follows_the_last_one(brokers):
    async with brokers.fleet(1) as pairs, brokers.pair(control_interval=120.0) as stopped:
        await asyncio.sleep(20)
        for action in ("hold", "resume", "hold"):
            await pairs[0].switch(action, "orders", timeout=0)
        assert stopped.state("orders") is EntityState.HEALTHY
        await asyncio.sleep(120)
        assert stopped.state("orders") is EntityState.FAILED_OVER
        assert (await pairs[0].switch("hold", "prices", timeout=INTERVAL)).missing[0].interval == 120.0


@in_virtual_time
async def test_old_reports_are_removed(brokers):
    async with brokers.fleet(3):
        for number in range(16):
            async with brokers.pair():
                await asyncio.sleep(2 + number / 10)
        assert len(brokers.west.messages(REPORTS)) > 30
        await asyncio.sleep(6 * REPORT_LIFETIME)
        assert len(brokers.west.messages(REPORTS)) <= 15


@in_virtual_time
async def test_a_pair_that_never_looks_follows_its_own_decisions_only(brokers):
    async with brokers.fleet(1, control_interval=0.0) as pairs, brokers.pair() as other:
        brokers.west.operations.clear()
        await other.switch("hold", "orders")
        assert pairs[0].state("orders") is EntityState.HEALTHY
        report = await pairs[0].switch("hold", "orders")
        assert [each.interval for each in report.followed] == [INTERVAL]
        assert pairs[0].state("orders") is EntityState.FAILED_OVER


@in_virtual_time
async def test_a_secondary_that_can_not_be_reached_changes_nothing(brokers):
    async with brokers.fleet(2) as pairs:
        brokers.west.fail(Fault.DOWN)
        with pytest.raises(TransportError):
            await pairs[0].switch("hold", "orders")
        brokers.west.heal()
        await asyncio.sleep(INTERVAL + 2)
        assert states(pairs) == {EntityState.HEALTHY}
        assert (await brokers.writer().status()).decisions == ()


@in_virtual_time
async def test_a_cancelled_wait_leaves_the_decision_in_force(brokers):
    async with brokers.fleet(2) as pairs:
        waiting = asyncio.create_task(pairs[0].switch("hold", "orders"))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.sleep(INTERVAL)
        assert states(pairs) == {EntityState.FAILED_OVER}


@in_virtual_time
async def test_a_decision_outlives_a_secondary_that_forgets_it(brokers):
    async with brokers.fleet(2) as pairs:
        await pairs[0].switch("hold", "orders")
        for path in (DECISIONS, REPORTS):
            del brokers.west.queues[Entity(path)]
        await asyncio.sleep(REPORT_LIFETIME)
        assert states(pairs) == {EntityState.FAILED_OVER}
        assert (await pairs[0].switch("resume", "orders")).complete


@in_virtual_time
async def test_superseded_decisions_are_removed_and_the_last_ones_stay(brokers):
    async with brokers.fleet(1) as pairs:
        await pairs[0].switch("hold", "prices", timeout=0)
        for number in range(40):
            await pairs[0].switch(("hold", "resume")[number % 2], "orders", timeout=0)
        assert len(brokers.west.messages(DECISIONS)) < 20
        found = dict((await brokers.writer().status()).decisions)
        assert [found[each].action for each in (ORDERS, Entity("prices"))] == ["resume", "hold"]


@in_virtual_time
async def test_a_decision_is_followed_that_was_made_behind_more_messages_than_are_read(brokers):
    async with brokers.fleet(2) as pairs:
        await pairs[0].switch("hold", "prices")
        for number in range(2 * MAX_ENTRIES):
            brokers.west.store(Entity(DECISIONS), Message(b"%d" % number))
        assert len((await brokers.writer().status()).problems) == 2
        report = await pairs[0].switch("hold", "orders")
        assert (report.complete, len(report.followed)) == (True, 2)
        assert states(pairs) == {EntityState.FAILED_OVER}
        assert [action for _, action in await in_force(brokers)] == ["hold", "hold"]


@in_virtual_time
async def test_a_decision_that_no_process_would_read_is_refused(brokers):
    async with brokers.fleet(1) as pairs:
        resume = await brokers.writer().write("resume", [ORDERS])
        for number in range(1, MAX_ENTRIES):
            other = replace(resume, id=str(number), entities=(Entity(f"q{number}"),))
            brokers.west.store(Entity(DECISIONS), other.message())
        with pytest.raises(ConfigurationError, match="delete that queue"):
            await pairs[0].switch("hold", "orders")
        assert len(brokers.west.messages(DECISIONS)) == MAX_ENTRIES
        await brokers.west.transport().admin.delete(Entity(DECISIONS))
        assert (await pairs[0].switch("hold", "orders")).complete


@in_virtual_time
async def test_a_process_warns_that_there_are_more_decisions_than_it_reads(brokers):
    warned: list[str] = []
    pair = brokers.pair()
    pair.subscribe(lambda event: warned.append(event.text) if isinstance(event, Warned) else None)
    async with brokers.fleet(1), pair:
        await asyncio.sleep(2)
        for number in range(MAX_ENTRIES):
            brokers.west.store(Entity(DECISIONS), Message(b"%d" % number))
        await asyncio.sleep(3 * INTERVAL)
        assert [text for text in warned if "no others are read" in text] == warned[-1:]


async def in_force(brokers: Brokers) -> list[tuple[Entity, str]]:
    return [(entity, decision.action) for entity, decision in (await brokers.writer().status()).decisions]


@in_virtual_time
async def test_a_secondary_that_shows_nothing_is_read_by_receiving():
    west = SimulatedBroker("west", capabilities=Capabilities(dead_letter=True, lock_renewal=True, probes=True))
    brokers = Brokers(west=west)
    async with brokers.fleet(3) as pairs:
        assert len((await pairs[0].switch("hold", "orders")).followed) == 3
        assert states(pairs) == {EntityState.FAILED_OVER}


class Fetching(TransportWrapper):
    """Shows messages by fetching them, as RabbitMQ does: no other reader gets or counts them for a round trip."""

    @property
    def admin(self) -> Admin:
        return FetchingAdmin(self.inner)


class FetchingAdmin(AdminWrapper):
    few = 0  # messages that it shows and releases at once

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport.admin)
        self._transport = transport

    async def peek(self, source: Source, max_messages: int) -> list[Delivery]:
        if max_messages <= self.few:
            return await super().peek(source, max_messages)
        receiver = self._transport.receiver(source)
        found = await receiver.receive(max_messages, 0)
        await self.inner.counts(source)  # takes as long as any operation
        await receiver.close()
        return found

    async def counts(self, source: Source) -> QueueCounts:
        return replace(await super().counts(source), locked=0)


class FetchingBrokers(Brokers):
    def secondary(self) -> Transport:
        return Fetching(super().secondary())


def fetching(latency: float = 0.001) -> Brokers:
    """Brokers of which the secondary shows messages by fetching them; an operation takes ``latency`` seconds."""
    capabilities = Capabilities(dead_letter=True, lock_renewal=True, probes=True, peek=True)
    return FetchingBrokers(west=SimulatedBroker("west", latency=latency, capabilities=capabilities))


@in_virtual_time
async def test_a_fleet_follows_where_looks_over_a_distance_hide_decisions():
    """Were all processes to look each time, the decisions would be hidden nearly all the time."""
    brokers, interval = fetching(latency=0.3), 5.0
    async with brokers.fleet(10, control_interval=interval, attempt_timeout=10.0) as pairs:
        for action, wanted in (("hold", {EntityState.FAILED_OVER}), ("resume", {EntityState.HEALTHY})) * 3:
            report = await pairs[0].switch(action, "orders")
            assert (len(report.followed), report.missing) == (10, ())
            assert states(pairs[1:]) == wanted


@in_virtual_time
async def test_a_fleet_follows_over_a_distance_within_the_interval_and_two_seconds(monkeypatch):
    """The operator's side and the processes made their round trips one after the other, and hid what they read."""
    monkeypatch.setattr(FetchingAdmin, "few", 64)
    brokers, interval = fetching(latency=0.3), 5.0
    async with brokers.fleet(10, control_interval=interval, attempt_timeout=10.0) as pairs:
        writer = brokers.writer()
        for action, wanted in (("hold", {EntityState.FAILED_OVER}), ("resume", {EntityState.HEALTHY})) * 5:
            began = now()
            await writer.write(action, [ORDERS])
            while states(pairs[1:]) != wanted:
                await asyncio.sleep(0.05)
            assert now() - began <= interval + 2
            await asyncio.sleep(3.3)


@in_virtual_time
async def test_decisions_that_looks_would_hide_are_only_looked_at_when_there_may_be_others():
    brokers = fetching()
    async with brokers.fleet(3) as pairs:
        report = await pairs[0].switch("hold", "orders")
        await asyncio.sleep(2 * INTERVAL)
        brokers.west.operations.clear()
        await asyncio.sleep(200)
        assert brokers.west.operations["RECEIVE"] == 0
        assert brokers.west.operations["ADMIN"] >= 3 * (200 // INTERVAL - 1)
        # Another one in the same place.
        decision = replace(report.decision, number=report.decision.number + 1, action=SwitchAction.RESUME)
        await brokers.west.transport().admin.purge(Source(Entity(DECISIONS)))
        brokers.west.store(Entity(DECISIONS), decision.message())
        await asyncio.sleep(REPORT_INTERVAL + INTERVAL)
        assert states(pairs) <= {EntityState.HEALTHY, EntityState.DRAINING}
        # The secondary forgets all.
        del brokers.west.queues[Entity(DECISIONS)]
        await asyncio.sleep(INTERVAL)
        assert (await pairs[1].switch("hold", "orders")).complete


@in_virtual_time
async def test_a_secondary_that_refuses_is_used_all_the_same_and_reported_once(brokers):
    warned: list[str] = []

    def heard(event: Event) -> None:
        if isinstance(event, Warned):
            warned.append(event.text)

    await brokers.east.transport().admin.create(Entity("orders"))
    brokers.west.fail(Fault.UNAUTHORIZED, Operation.ALL, entities=[DECISIONS, REPORTS])
    pair = brokers.pair()
    pair.subscribe(heard)
    async with pair:
        await asyncio.sleep(600)
        await pair.sender("orders").send(Message(b""))
        with pytest.raises(TransportError):
            await pair.switch("hold", "orders")
    assert [text for text in warned if "pairmq switch" in text] == warned
    assert len(warned) == 1


@in_virtual_time
async def test_what_can_not_be_decided_is_refused(brokers):
    async with brokers.fleet(1) as (pair,):
        with pytest.raises(ConfigurationError, match="must be one of"):
            await pair.switch("stop", "orders")
        with pytest.raises(ConfigurationError, match="no entity"):
            await pair.switch("hold")
        with pytest.raises(ConfigurationError, match="only for hold"):
            await pair.switch("resume", "orders", syphon=True)
        with pytest.raises(ValueError, match="timeout"):
            await pair.switch("hold", "orders", timeout=-1)
        assert (await brokers.writer().status()).decisions == ()


@in_virtual_time
@pytest.mark.parametrize("action", list(SwitchAction))
async def test_a_name_that_the_primary_does_not_know_is_refused_with_those_that_are_like_it(brokers, action):
    async with brokers.fleet(1) as (pair,):
        with pytest.raises(ConfigurationError, match="no queue 'ordres', but queue 'orders': ") as refused:
            await pair.switch(action, "prices", "ordres")
        assert str(refused.value).endswith("or use unknown=True for what is created later; nothing was written")
        with pytest.raises(ConfigurationError, match="no topic 'orders', but queue 'orders'"):
            await pair.switch(action, "orders", kind="topic")
        assert (await brokers.writer().status()).decisions == ()


@in_virtual_time
async def test_a_name_that_is_meant_is_taken_and_known_while_it_is_diverted(brokers):
    async with brokers.fleet(1) as (pair,):
        assert (await pair.switch("hold", "later", unknown=True)).complete
        async with brokers.pair() as other:  # which has the name from the decision alone
            assert (await other.switch("resume", "later")).complete
        async with brokers.pair() as third:
            with pytest.raises(ConfigurationError, match="no queue 'later'"):
                await third.switch("hold", "later")


@in_virtual_time
async def test_an_entity_that_is_used_is_not_asked_for(brokers):
    async with brokers.fleet(1) as (pair,):
        pair.sender("later")
        assert (await pair.switch("hold", "later")).complete


@in_virtual_time
async def test_a_primary_that_is_down_keeps_no_decision_from_being_made(brokers):
    warned: list[str] = []
    async with brokers.fleet(1) as (pair,):
        pair.subscribe(lambda event: warned.append(event.text) if isinstance(event, Warned) else None)
        brokers.east.fail(Fault.HANG)
        began = now()
        assert (await pair.switch("hold", "orders", "ordres", timeout=0)).decision.action is SwitchAction.HOLD
        assert now() - began <= 2
    assert [text for text in warned if "can't say whether it has orders" in text] == warned
    assert len(warned) == 1


@in_virtual_time
async def test_a_hold_here_takes_any_name_and_warns_of_one_like_another(brokers):
    warned: list[tuple[str, str]] = []
    async with brokers.fleet(1) as (pair,):
        pair.subscribe(lambda event: warned.append((event.subject, event.text)) if isinstance(event, Warned) else None)
        pair.sender("orders-1")
        for path in ("orders-1", "orders-2", "shipments"):
            pair.hold(path)
        assert warned == []
        pair.hold("order-1")
        pair.mark_healthy("order-1")  # it is known now
        assert pair.state("order-1") is EntityState.DRAINING
    assert warned == [
        ("order-1", "hold of order-1, which this process has not used: correct the name if orders-1 was meant")
    ]


@in_virtual_time
async def test_over_a_distance_no_decision_takes_long_because_old_ones_are_removed(brokers):
    """One by one they took as many round trips, in which nothing else could look at them on some brokers."""
    writer = brokers.writer()
    brokers.west.fail(Fault.SLOW, Operation.ALL, delay=0.3)
    took = []
    for number in range(20):
        began = now()
        await writer.write(("hold", "resume")[number % 2], [ORDERS])
        took.append(now() - began)
    assert len((await brokers.writer().status()).decisions) == 1
    assert len(brokers.west.messages(DECISIONS)) < 16  # some were removed
    assert max(took) < 3
