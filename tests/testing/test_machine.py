"""The failover machine: PairMQ stands it, naive code does not, and a bug planted in PairMQ is found."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from pairmq import Entity, EntityState, Message, Pair, PairOptions, Route, SendError, SendUnknown
from pairmq.core import restore
from pairmq.model.events import MessageMoved
from pairmq.pair import PairSender
from pairmq.runner.pump import Pump
from pairmq.testing import TEST_OPTIONS, Fault, in_virtual_time, simulated_pair
from pairmq.testing import strategies as pst
from pairmq.testing.history import Result
from pairmq.testing.machine import TROUBLES, BrokenPromise, FailoverMachine
from patient_examples import examples
from runner_bugs import accept_failed_attempts, limit_no_attempt, refuse_what_is_in_doubt, report_no_second_copy

STOOD = settings(
    max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
# A fixed seed does not fix the examples: Hypothesis mixes in the constants of all local modules that are imported, so
# that each worker of a test run has examples of its own. A search has to find its bug whatever they are.
SEARCH = settings(STOOD, max_examples=1000, database=None, derandomize=True, phases=[Phase.generate])


# ------------------------------------------------------------------------------------------ PairMQ itself stands them


class SyphonInside(FailoverMachine):
    """Everything that the machine does by itself, with the syphon in the sender's process."""


class SyphonBeside(FailoverMachine):
    """The same with the syphon in a process of its own, and topics."""

    syphon = "beside"
    entities = ("orders", "topic:news")


class Impatient(FailoverMachine):
    """Failures are raised at once, and messages' time in the backlog counts."""

    options = PairOptions(
        backlog_queue_count=1,
        failover_interval=0.0,
        ping_primary_interval=1.0,
        while_failing="raise",
        ttl_policy="elapse",
        attempt_timeout=1.0,
        ping_timeout=1.0,
        send_timeout=5.0,
        max_pending_sends=2,
        syphon_batch=2,
        enable_syphon=True,
    )
    messages = pst.messages(with_id=False, scheduled=False, max_body=8)


@pytest.mark.hypothesis
@pytest.mark.parametrize("machine", [SyphonInside, SyphonBeside, Impatient])
def test_pairmq_stands_the_machine(machine: type[FailoverMachine]):
    run_state_machine_as_test(machine, settings=STOOD)


# ------------------------------------------------------------------------------------------------- users' own code


class Shop:
    """Careful code: it gives an order its id once, and sends it again under that until somebody has it."""

    def __init__(self, pair: Pair) -> None:
        self.sender: PairSender = pair.sender("orders")

    async def order(self, number: int) -> bool:
        message = Message(b"%d" % number, message_id=f"order-{number}")
        for _ in range(5):
            try:
                await self.sender.send(message)
            except SendError:
                continue
            return True
        return False


class DropsTheUnknown(Shop):
    """Takes "unknown" for "accepted"."""

    async def order(self, number: int) -> bool:
        try:
            await self.sender.send(Message(b"%d" % number, message_id=f"order-{number}"))
        except SendUnknown:
            return True
        except SendError:
            return False
        return True


class RenamesTheUnknown(Shop):
    """Leaves the id to each send."""

    async def order(self, number: int) -> bool:
        for _ in range(5):
            try:
                await self.sender.send(Message(b"%d" % number))
            except SendError:
                continue
            return True
        return False


class NamesAllAlike(Shop):
    """Has one id for all orders."""

    async def order(self, number: int) -> bool:
        try:
            await self.sender.send(Message(b"%d" % number, message_id="order"))
        except SendError:
            return False
        return True


class KeepsInMemory(Shop):
    """Says yes first, and sends later."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair)
        self.tasks: set[asyncio.Task[Any]] = set()

    async def order(self, number: int) -> bool:
        self.tasks.add(asyncio.create_task(super().order(number)))
        return True


class ShopMachine(FailoverMachine):
    entities = ("orders",)
    traffic = False
    troubles = frozenset(("stops", "confirmations", "crash"))
    options = PairOptions(
        failover_interval=5.0,
        attempt_timeout=1.0,
        send_timeout=3.0,
        ping_primary_interval=2.0,
        enable_syphon=True,
        backlog_queue_count=1,
    )
    shop_type: ClassVar[type[Shop]] = Shop

    async def process_started(self) -> None:
        self.shop = self.shop_type(self.pair)
        self.ordered: int = getattr(self, "ordered", 0)

    @rule()
    def orders(self) -> None:
        self.ordered += 1
        if self.run(self.shop.order(self.ordered)):
            self.promise("orders", b"%d" % self.ordered)


def shop_machine(shop: type[Shop]) -> type[ShopMachine]:
    return type("ShopUnderTest", (ShopMachine,), {"shop_type": shop})


@pytest.mark.hypothesis
def test_careful_code_stands_the_machine():
    run_state_machine_as_test(shop_machine(Shop), settings=STOOD)


@pytest.mark.parametrize(
    ("shop", "told"),
    [
        (DropsTheUnknown, "it never came"),
        (NamesAllAlike, "under one message id"),
        pytest.param(RenamesTheUnknown, "under 2 message ids", marks=pytest.mark.search),
        pytest.param(KeepsInMemory, "it never came", marks=pytest.mark.search),
    ],
)
def test_naive_code_is_found(shop: type[Shop], told: str):
    with pytest.raises(BrokenPromise, match=told):
        run_state_machine_as_test(shop_machine(shop), settings=SEARCH)


# --------------------------------------------------------------------------------------------- bugs planted in PairMQ


@pytest.mark.search
def test_a_failed_attempt_that_counts_as_accepted_is_found(monkeypatch: pytest.MonkeyPatch):
    accept_failed_attempts(monkeypatch)
    assert "is lost: it was accepted by" in broken_promise()


@pytest.mark.search
def test_a_refusal_of_what_was_in_doubt_is_found(monkeypatch: pytest.MonkeyPatch):
    refuse_what_is_in_doubt(monkeypatch)
    assert "was refused, and is stored in" in broken_promise()


@pytest.mark.search
def test_a_second_copy_that_no_receipt_marks_is_found(monkeypatch: pytest.MonkeyPatch):
    report_no_second_copy(monkeypatch)
    assert "no receipt or event says that it may be" in broken_promise()


@pytest.mark.search
def test_a_field_that_is_lost_by_the_syphon_is_found(monkeypatch: pytest.MonkeyPatch):
    def careless(message: Message) -> Any:
        original, diversion = restore(message)
        return replace(original, application_properties={}), diversion

    monkeypatch.setattr("pairmq.core.pump.restore", careless)
    assert "came to the primary altered" in broken_promise()


@pytest.mark.search
def test_a_syphon_that_moves_nothing_is_found(monkeypatch: pytest.MonkeyPatch):
    def idle(self: Any, lines: Any) -> None:
        """Leave them where they are."""

    monkeypatch.setattr(Pump, "_start", idle)
    assert "still holds" in broken_promise()


@pytest.mark.search
def test_an_attempt_without_a_time_limit_is_found(monkeypatch: pytest.MonkeyPatch):
    limit_no_attempt(monkeypatch)
    found = broken_promise(Hanging).splitlines()[0]
    assert "hangs" in found or "to send, and had 20 s" in found


class Hanging(SyphonInside):
    """Brokers that hang, and no other trouble: the others end or hide most of what hangs."""

    troubles = frozenset(("hangs",))


def broken_promise(machine: type[FailoverMachine] = SyphonInside) -> str:
    """What the machine says of PairMQ as it is now."""
    with pytest.raises(BrokenPromise) as caught:
        run_state_machine_as_test(machine, settings=SEARCH)
    return str(caught.value)


# -------------------------------------------------------------------------------------------------- the machine itself


def test_a_failure_reports_the_story_of_its_message():
    machine = shop_machine(DropsTheUnknown)()
    machine.confirmations_are_lost(broker="primary", times=9, applied=False)
    machine.broker_fails(broker="secondary", how="stops", seconds=None)
    machine.orders()
    with pytest.raises(BrokenPromise) as caught:
        machine.teardown()
    told = str(caught.value)
    words = ("the primary will lose 9 confirmations", "the secondary stops", "outcome=unknown", "everything is healed")
    assert [word for word in words if word not in told] == []


def test_an_example_that_has_failed_is_not_judged_again():
    machine = SyphonInside()
    machine.promise("orders", b"never")
    with pytest.raises(ZeroDivisionError):
        fail_and_tear_down(machine)


def fail_and_tear_down(machine: FailoverMachine) -> None:
    try:
        raise ZeroDivisionError("the example's own failure")
    finally:
        machine.teardown()


def test_a_coroutine_that_waits_for_nothing_is_said_to_hang():
    machine = SyphonInside()
    machine.broker_fails(broker="secondary", how="stops", seconds=None)
    with pytest.raises(BrokenPromise, match=r"Event\.wait hangs") as caught:
        try:
            machine.run(asyncio.Event().wait())
        finally:
            machine.teardown()
    assert "the secondary stops" in str(caught.value), "what struck the world belongs to the story"


def test_a_background_task_dies_with_its_process():
    machine = SyphonInside()
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
            seen.append("done")
        finally:
            seen.append("cleaned up")

    machine.start(work())
    machine.process_crashes()
    machine.time_passes(seconds=100)
    assert seen == []
    machine.teardown()


def test_nothing_that_heals_wakes_a_killed_process():
    machine = SyphonInside()
    machine.broker_fails(broker="primary", how="hangs", seconds=None)
    machine.begins_to_send(entity="orders", messages=[Message(b"1")])
    machine.run(asyncio.sleep(0.1))
    machine.process_crashes()
    machine.broker_heals(broker="primary")
    machine.time_passes(seconds=120)
    assert machine._world.ledger.sends == {}
    machine.teardown()


def test_the_syphon_beside_survives_the_process_under_test():
    machine = SyphonBeside()
    machine.broker_fails(broker="primary", how="stops", seconds=None)
    machine.sends(entity="orders", message=Message(b"1"))
    machine.process_crashes()
    machine.broker_heals(broker="primary")
    machine.time_passes(seconds=120)
    assert [message.body for message in machine.primary.messages("orders")] == [b"1"]
    machine.teardown()


def test_a_message_that_no_sender_has_sent_is_found():
    machine = SyphonInside()
    machine.run(stored(machine, Message(b"1", message_id="stray")))
    with pytest.raises(BrokenPromise, match="'stray' to orders is at the primary, but was not sent through the pair"):
        machine.teardown()


async def stored(machine: FailoverMachine, message: Message) -> None:
    machine.primary.store(Entity("orders"), message)


def test_a_task_that_outlives_its_pair_is_found():
    class Forgetful(FailoverMachine):
        async def process_started(self) -> None:
            self.task = asyncio.create_task(asyncio.sleep(1e9))

    machine = Forgetful()
    with pytest.raises(BrokenPromise, match="process 1 has ended and left"):
        machine.teardown()


def test_a_caller_that_gets_another_result_than_the_observers_is_found():
    machine = SyphonInside()
    machine.sends(entity="orders", message=Message(b"1"))
    (answers,) = machine._world.ledger.answers.values()
    answers[0] = replace(answers[0], outcome=Result.BACKLOG)
    told = "was accepted by a backlog queue to its caller and accepted by the primary to those who watch"
    with pytest.raises(BrokenPromise, match=told):
        machine.teardown()


def test_a_send_that_outlives_its_deadline_is_found():
    machine = SyphonInside()
    machine.sends(entity="orders", message=Message(b"1"))
    (answers,) = machine._world.ledger.answers.values()
    answers[0] = replace(answers[0], took=machine.options.send_timeout + 1)
    with pytest.raises(BrokenPromise, match=r"took 21.000 s to send, and had 20 s"):
        machine.teardown()


def test_two_problems_of_one_message_are_both_reported():
    machine = SyphonInside()
    machine.sends(entity="orders", message=Message(b"1"))
    ledger = machine._world.ledger
    ((key, answers),) = ledger.answers.items()
    answers[0] = replace(answers[0], outcome=Result.UNKNOWN)
    ledger.originals[key] = replace(ledger.originals[key], body=b"2")
    with pytest.raises(BrokenPromise, match=r"was unknown to its caller(.|\n)*came to the primary altered"):
        machine.teardown()


def test_sends_of_one_message_that_a_crash_cuts_off_may_all_be_stored():
    machine = SyphonInside()

    async def send() -> None:
        await machine.pair.sender("orders").send(Message(b"1", message_id="1"))

    for _ in range(2):
        machine.broker_is_killed_at_the_next_write(broker="primary", applied=True, seconds=None)
        machine.broker_fails(broker="secondary", how="hangs", seconds=None)
        machine.start(send())
        machine.time_passes(seconds=5)
        machine.process_crashes()
        machine.broker_heals(broker="primary")
    assert len(machine.primary.messages("orders")) == 2
    machine.teardown()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"ttl_policy": "elapse"}, Message(b"1", time_to_live=1.0)), ({"allowed_entities": ("prices",)}, Message(b"1"))],
)
def test_what_is_rightly_dead_lettered_is_not_lost(options: dict[str, Any], message: Message):
    machine = type("Strict", (FailoverMachine,), {"options": replace(TEST_OPTIONS, **options)})()
    machine.broker_fails(broker="primary", how="stops", seconds=60)
    if "allowed_entities" in options:  # by settings that know nothing of the list: its own a pair refuses
        machine.run(sent_by_another_pair(machine, message))
    else:
        machine.sends(entity="orders", message=message)
    machine.time_passes(seconds=120)
    assert machine.primary.messages("orders") == []
    (dead_lettered,) = machine._world.ledger.dead_lettered.values()
    assert len(dead_lettered) == 1
    machine.teardown()


async def sent_by_another_pair(machine: FailoverMachine, message: Message) -> None:
    options = replace(TEST_OPTIONS, enable_syphon=False)
    async with Pair(machine.primary.transport(), machine.secondary.transport(), options) as pair:
        pair.subscribe(machine._world.ledger.take)
        assert (await pair.sender("orders").send(message.with_id("other"))).route is Route.BACKLOG


def test_a_fault_that_lasts_a_while_ends_by_itself():
    machine = SyphonInside()
    machine.broker_is_killed_at_the_next_write(broker="primary", applied=True, seconds=20)
    machine.sends(entity="orders", message=Message(b"1"))
    assert machine.pair.state("orders") is EntityState.FAILED_OVER
    machine.time_passes(seconds=120)
    assert machine.pair.state("orders") is EntityState.HEALTHY
    machine.teardown()


def test_an_operators_hold_is_ended_before_the_judgement():
    machine = SyphonInside()
    machine.operator_says(entity="orders", word="hold")
    assert machine.pair.state("orders") is EntityState.FAILED_OVER
    machine.teardown()


def test_the_same_steps_give_the_same_story():
    assert story() == story()


def story() -> list[str]:
    machine = SyphonInside()
    machine.broker_fails(broker="primary", how="hangs", seconds=None)
    machine.begins_to_send(entity="orders", messages=[Message(b"1"), Message(b"2"), Message(b"3")])
    machine.time_passes(seconds=30)
    machine.process_crashes()
    machine.confirmations_are_lost(broker="secondary", times=2, applied=True)
    machine.sends(entity="prices", message=Message(b"4"))
    machine.process_restarts()
    machine.teardown()
    return machine._world.ledger.story(*machine._world.ledger.sends)


def test_an_unknown_trouble_is_refused():
    class Misspelt(FailoverMachine):
        troubles = frozenset(("stop",))

    with pytest.raises(ValueError, match="unknown troubles stop: known are"):
        Misspelt()


@pytest.mark.search
@pytest.mark.parametrize("trouble", sorted(TROUBLES))
def test_a_machine_can_do_with_any_one_trouble(trouble: str):
    calm = type("Calm", (FailoverMachine,), {"troubles": frozenset((trouble,))})
    run_state_machine_as_test(calm, settings=settings(STOOD, max_examples=3, database=None))


# ------------------------------------------------------------------------------------------------------ simulated_pair


@in_virtual_time
async def test_a_simulated_pair_fails_over_and_comes_back():
    async with simulated_pair() as it:
        it.primary.fail(Fault.DOWN)
        assert (await it.pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG
        assert len(it.backlog()) == 1
        it.primary.heal()
        await asyncio.sleep(30)
        assert [message.body for message in it.delivered("orders")] == [b"1"]
        assert any(isinstance(event, MessageMoved) for event in it.events)


@in_virtual_time
async def test_options_of_a_simulated_pair_are_changed_one_by_one():
    async with simulated_pair(backlog_queue_count=5, entities=["a/b", "topic:news"]) as it:
        assert it.pair.options == replace(TEST_OPTIONS, backlog_queue_count=5)
        assert {str(entity) for entity in it.primary.queues} == {"a/b", "topic:news"}


async def test_a_simulated_pair_refuses_real_time():
    with pytest.raises(RuntimeError, match="in_virtual_time"):
        async with simulated_pair():
            pass
