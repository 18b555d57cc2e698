"""The test of the tests: transports with one defect each, and the tests of the suites that have to catch them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

import pairmq.transport
from pairmq.model import ConfigurationError, Delivery, TransportError
from pairmq.plugins import registry
from pairmq.testing.conformance import MemoryHarness, suites
from pairmq.testing.conformance._broker import Limits, Stopwatch, capabilities_of, capability, limited
from pairmq.testing.conformance.mutation import TESTS, Outcome, find, harness_for, planted, run_test, run_tests
from pairmq.testing.defects import DEFECTS, Defect
from pairmq.transport import Capabilities, ReceiverWrapper, Transport

CAUGHT = (AssertionError, TimeoutError, TransportError, pytest.fail.Exception)
ALONE = "Lifecycle.test_closing_leaves_no_task_behind"
"""It looks at all that goes on in the loop."""

SOUND = Defect("nothing", "", (), limited=True)
CATCHING = sorted({test for defect in DEFECTS for test in defect.found_by})

# What must happen in time happens in this process at once: nothing waits long for what a defect keeps back. A machine
# that stalls excuses no defect: then it would not be found on a busy one.
HASTY = Limits(patience=1.5, outage=0.3, slack=0.5, asking_once=0.5, stall=float("inf"))
PATIENT = Limits()


class GuardedHarness(MemoryHarness):
    """``memory://`` under a URL with a password."""

    lock_duration = 2.0
    time_limit = 15.0

    async def make(self) -> str:
        return (await super().make()).replace("://", "://user:pass%2Fword@")

    def transport(self, url: str) -> Transport:
        return registry.transport(f"memory://{urlsplit(url).hostname}")


async def run(test: str, defect: Defect, limits: Limits = HASTY) -> None:
    """Run one test of the suites against a transport."""
    harness = GuardedHarness()
    with limited(limits), planted(harness, defect):
        await run_test(harness, test)


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.name for defect in DEFECTS])
async def test_a_transport_with_a_defect_is_caught(defect: Defect) -> None:
    before = asyncio.all_tasks()
    outcomes = await asyncio.gather(*(run(test, defect) for test in defect.found_by), return_exceptions=True)
    missed = {test: told for test, told in zip(defect.found_by, outcomes, strict=True) if not isinstance(told, CAUGHT)}
    assert missed == {}
    for left in asyncio.all_tasks() - before:
        left.cancel()


async def test_a_sound_transport_passes_what_catches_the_defects() -> None:
    """Without a defect the same tests pass, so that it is the defects that they fail for."""
    tests = [test for test in CATCHING if test != ALONE]
    few = asyncio.Semaphore(8)  # so that none holds up another for as long as a lock lasts

    async def run_soon(test: str) -> None:
        async with few:
            await run(test, SOUND, PATIENT)

    outcomes = await asyncio.gather(*map(run_soon, tests), return_exceptions=True)
    assert {test: error for test, error in zip(tests, outcomes, strict=True) if error} == {}


def test_a_stall_of_the_machine_at_the_end_of_a_measurement_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now, watching = [0.0], threading.Event()

    def monotonic() -> float:
        if threading.current_thread() is not threading.main_thread():
            watching.set()
        return now[0]

    monkeypatch.setattr("pairmq.testing.conformance._broker._TICK", 60.0)  # only the end of the block wakes the thread
    monkeypatch.setattr("pairmq.testing.conformance._broker.time", SimpleNamespace(monotonic=monotonic))
    with Stopwatch() as watch:
        assert watching.wait(60)
        now[0] = 67.0
    assert watch.elapsed == 60.0


class OneAtATime(ReceiverWrapper):
    """No defect: it holds one message, and asks for the next when that is settled."""

    _held: Delivery | None = None

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        if self._held is not None:
            await asyncio.sleep(wait)
            return []
        given = await super().receive(1, wait)
        self._held = given[0] if given else None
        return given

    async def complete(self, delivery: Delivery) -> None:
        await super().complete(delivery)
        self._held = None

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        self._held = None
        return await super().complete_batch(deliveries)


async def test_one_consumer_may_hold_one_message_at_a_time() -> None:
    tests = [f"Receive.{name}" for name in vars(suites.Receive) if "one_consumer" in name or "next_consumer" in name]
    tests.append("Admin.test_positions_report_what_any_consumer_has_settled")
    assert len(tests) == 4
    held = Defect(
        "one at a time", "", (), receiver=lambda transport, source: OneAtATime(transport.inner.receiver(source))
    )
    await asyncio.gather(*(run(test, held) for test in tests))


async def test_a_sound_transport_leaves_no_task_behind() -> None:
    await run(ALONE, SOUND, PATIENT)


class Broken:
    """A broker and a request of pytest's that do nothing but fail."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError("the broker has no answer")


@pytest.mark.parametrize("suite", suites.ALL, ids=lambda suite: suite.__name__)
async def test_every_failure_names_the_clause_that_it_stands_for(suite: type) -> None:
    tests = {name: test for name, test in vars(suite).items() if name.startswith("test_")}
    for name, test in tests.items():
        fixture = "broker" if f"{suite.__name__}.{name}" in TESTS else "request"
        with pytest.raises(AssertionError) as caught:
            await test(suite(), **{fixture: Broken()})
        (clause,) = (note for note in caught.value.__notes__ if note.startswith("the contract (pairmq.transport): "))
        named = re.findall(r"`([\w.]+)`|(SPEC \d)", clause)
        assert any(text or exists(name) for name, text in named), f"{name}: {clause}"


def exists(name: str) -> bool:
    """Whether it is a name of the contract."""
    try:
        reduce(getattr, name.removeprefix("pairmq.transport").split("."), pairmq.transport)
    except AttributeError:
        return name == "pairmq.transport"
    return True


async def test_a_failure_names_the_clause_of_its_test() -> None:
    by_name = {defect.name: defect for defect in DEFECTS}
    for test, defect, clause in (
        ("Probe.test_a_broker_that_stores_nothing_fails_it_until_it_does", "ProbesByReading", "accepts *writes*"),
        ("Send.test_every_field_comes_back_as_it_was", "LosesAField", "`Sender.send`, `Sender.send_batch`"),
    ):
        with pytest.raises(AssertionError) as caught:
            await run(test, by_name[defect])
        assert any(note.startswith("the contract") and clause in note for note in caught.value.__notes__)


def test_names_of_defects_are_unique() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


def test_every_defect_breaks_a_clause_of_the_contract() -> None:
    assert [defect.name for defect in DEFECTS if not exists(defect.clause.partition(":")[0])] == []


def test_every_defect_needs_what_its_tests_need() -> None:
    """Where a transport disclaims it these tests run their other arm, which the defect passes."""
    for defect in DEFECTS:
        named = (
            capabilities_of(getattr(getattr(suites, s), t)) for s, _, t in (x.partition(".") for x in defect.found_by)
        )
        # The limit is planted together with the defect; both arms of ordered_batches ask for the same.
        asked = frozenset.intersection(*named) - {"max_message_bytes", "ordered_batches"}
        assert asked == {*defect.needs, *defect.unless}, defect.name


def test_defects_are_found_by_the_quickest_known_test_or_by_another() -> None:
    harness = GuardedHarness()
    tests = ["Send.test_two_messages_of_one_id_are_two_messages", "Send.test_every_field_comes_back_as_it_was"]
    by_name = {defect.name: defect for defect in DEFECTS}
    known, other = by_name["LosesAField"], by_name["LosesEverySecond"]
    sound = list(run_tests(harness, tests))
    assert [outcome.test for outcome in sound if not (outcome.error or outcome.skipped)] == tests
    found = {finding.defect.name: finding for finding in find(harness, (known, other, SOUND), sound)}
    assert found["LosesAField"].found_by == tests[1]
    assert found["LosesEverySecond"].found_by in tests
    assert found["nothing"].found_by is None and found["nothing"].not_applicable is None
    assert isinstance(harness.transport("memory://after"), type(registry.transport("memory://after")))


def test_a_defect_that_a_transport_can_not_have_is_not_planted() -> None:
    harness = MemoryHarness()
    defects = (Defect("a", "", (), needs=("probes",)), Defect("b", "", (), unless=("probes",)), Defect("c", "", ()))
    claims = Defect("d", "", (), password=True)
    found = [finding.not_applicable for finding in find(harness, (*defects, claims), ())]
    assert found == [None, "the transport claims probes", None, "the harness's URL has no password"]


def test_a_defect_that_needs_a_disclaimed_capability_is_not_applicable() -> None:
    reason = Defect("a", "", (), needs=("sessions",)).not_applicable(Capabilities(), "memory://a")
    assert reason == "the transport disclaims sessions"


def test_a_test_that_a_harness_can_not_run_is_the_reason_of_a_miss() -> None:
    class Weak(MemoryHarness):
        async def refuse_writes(self) -> bool:
            return False

    test = "Probe.test_a_broker_that_stores_nothing_fails_it_until_it_does"
    harness = Weak()
    (sound,) = run_tests(harness, [test])
    assert sound.error is None and "implement Weak.refuse_writes()" in (sound.skipped or "")
    (reading,) = (defect for defect in DEFECTS if defect.name == "ProbesByReading")
    (finding,) = find(harness, [reading], [sound])
    assert finding.found_by is None and finding.skipped == (sound.skipped,)


def test_a_failing_test_is_an_outcome() -> None:
    class Dead(MemoryHarness):
        async def make(self) -> str:
            raise OSError("no server")

    (outcome,) = run_tests(Dead(), ["Send.test_a_missing_entity_is_reported"])
    assert isinstance(outcome, Outcome) and isinstance(outcome.error, OSError)


def test_a_harness_is_found_by_the_scheme() -> None:
    assert type(harness_for("memory://")) is MemoryHarness
    assert type(harness_for("memory")) is MemoryHarness
    with harness_for("sqlite://") as harness:
        assert type(harness).__name__ == "SQLiteHarness"
    assert type(harness_for("memory://", f"{MemoryHarness.__module__}:MemoryHarness")) is MemoryHarness


async def test_options_of_the_url_are_those_of_every_broker() -> None:
    with harness_for("sqlite://?lock_duration=7") as harness:
        assert (await harness.make()).endswith("?poll_interval=0.1&lock_duration=7")
    assert (await harness_for("memory://?a=b").make()).endswith("?a=b")


@pytest.mark.parametrize(
    ("url", "name", "text"),
    [
        ("memory://broker", None, "write memory://"),
        ("nothing://", None, "no transport for nothing://"),
        ("memory://", "no_such_module:Harness", "no harness 'no_such_module:Harness'"),
        ("memory://", "pairmq.testing.conformance", "write module:class"),
        ("memory://", "pairmq.transport:Transport", "pairmq.transport:Transport is not a subclass of Harness"),
        ("memory://", "pairmq.testing.conformance:Harness", "Harness can't be made without arguments"),
    ],
)
def test_a_harness_that_can_not_be_had_is_an_error(url: str, name: str | None, text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        harness_for(url, name)


def test_every_capability_is_named_by_a_test() -> None:
    named = {name for suite in suites.ALL for test in vars(suite).values() for name in capabilities_of(test)}
    assert named == {entry.name for entry in fields(Capabilities)}


def test_a_capability_that_does_not_exist_can_not_be_named() -> None:
    with pytest.raises(TypeError, match="no field 'telepathy'"):
        capability("telepathy", disclaimed=lambda broker: broker.admin.check())(
            suites.Send.test_a_missing_entity_is_reported
        )


def test_the_reference_names_every_suite_and_every_capability() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/conformance.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert rows == {suite.__name__ for suite in suites.ALL} | {entry.name for entry in fields(Capabilities)}
