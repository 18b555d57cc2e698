"""The test of the tests: transports with one defect each, and the tests of the suites that have to catch them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import defective_others
import defective_receivers
import defective_senders
from pairmq.model import TransportError
from pairmq.testing.conformance import suites
from pairmq.testing.conformance._broker import Broker, capabilities_of, capability
from pairmq.testing.conformance.suites import _failover, _faults, _lifecycle, _receive, _timing
from pairmq.transport import Capabilities
from plain_transport import DEFECTS, Defect, DefectiveHarness, OneAtATime

assert all((defective_senders, defective_receivers, defective_others)), "they enter their defects"

SOUND = Defect("nothing", ())
CAUGHT = (AssertionError, TimeoutError, TransportError, pytest.fail.Exception)
ALONE = "Lifecycle.test_closing_leaves_no_task_behind"
"""It looks at all that goes on in the loop."""

TESTS = sorted({test for defect in DEFECTS for test in defect.caught_by})


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must happen in time happens in this process at once: nobody waits long for what a defect keeps away."""
    for module in list(sys.modules):
        if module.startswith("pairmq.testing.conformance.") and hasattr(sys.modules[module], "PATIENCE"):
            monkeypatch.setattr(sys.modules[module], "PATIENCE", 1.5)
    monkeypatch.setattr(_failover, "_PATIENCE", 3.0)
    monkeypatch.setattr(_faults, "_OUTAGE", 0.3)
    monkeypatch.setattr(_lifecycle, "SLACK", 0.5)
    monkeypatch.setattr(_timing, "SLACK", 1.0)
    # A machine that stands still excuses no defect here: then it would not be found on a busy one.
    monkeypatch.setattr(_timing, "_NOTICEABLE", float("inf"))
    monkeypatch.setattr(_receive, "_ASKING_ONCE", 0.5)


async def run(test: str, defect: Defect) -> None:
    """Run one test of the suites against a transport."""
    harness = DefectiveHarness(defect)
    broker = Broker(harness, await harness.make())
    suite, _, name = test.partition(".")
    try:
        await getattr(getattr(suites, suite)(), name)(broker)
    finally:
        with contextlib.suppress(TransportError):  # a defect of closing
            await broker.end()
        await harness.broker.forget()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.name for defect in DEFECTS])
async def test_a_transport_with_a_defect_is_caught(defect: Defect) -> None:
    before = asyncio.all_tasks()
    outcomes = await asyncio.gather(*(run(test, defect) for test in defect.caught_by), return_exceptions=True)
    missed = {test: told for test, told in zip(defect.caught_by, outcomes, strict=True) if not isinstance(told, CAUGHT)}
    assert missed == {}
    for left in asyncio.all_tasks() - before:
        left.cancel()


async def test_a_sound_transport_passes_what_catches_the_defects() -> None:
    """Without a defect the same tests pass, so that it is the defects that they fail for."""
    tests = [test for test in TESTS if test != ALONE]
    few = asyncio.Semaphore(8)  # so that none holds up another for as long as a lock lasts

    async def run_soon(test: str) -> None:
        async with few:
            await run(test, SOUND)

    outcomes = await asyncio.gather(*map(run_soon, tests), return_exceptions=True)
    assert {test: error for test, error in zip(tests, outcomes, strict=True) if error} == {}


@pytest.mark.usefixtures("hasty")
async def test_one_consumer_may_hold_one_message_at_a_time() -> None:
    tests = [f"Receive.{name}" for name in vars(suites.Receive) if "one_consumer" in name or "next_consumer" in name]
    tests.append("Admin.test_positions_tell_what_is_settled_by_whomever")
    assert len(tests) == 4
    await asyncio.gather(*(run(test, Defect("one at a time", (), receiver=OneAtATime)) for test in tests))


async def test_a_sound_transport_leaves_no_task_behind() -> None:
    await run(ALONE, SOUND)


async def test_a_failure_names_the_clause_that_it_stands_for() -> None:
    by_name = {defect.name: defect for defect in DEFECTS}
    for test, defect, clause in (
        ("Probe.test_a_broker_that_stores_nothing_fails_it_until_it_does", "ProbesByReading", "accepts *writes*"),
        ("Send.test_every_field_comes_back_as_it_was", "LosesAField", "`Sender.send` and `Sender.send_batch`"),
    ):
        with pytest.raises(AssertionError) as caught:
            await run(test, by_name[defect])
        assert any(note.startswith("the contract") and clause in note for note in caught.value.__notes__)


def test_every_test_stands_for_a_clause() -> None:
    assert [suite.__name__ for suite in suites.ALL if not suite.__doc__] == []


def test_every_capability_is_named_by_a_test() -> None:
    named = {name for suite in suites.ALL for test in vars(suite).values() for name in capabilities_of(test)}
    assert named == {entry.name for entry in fields(Capabilities)}


def test_a_capability_that_does_not_exist_can_not_be_named() -> None:
    with pytest.raises(TypeError, match="no field 'telepathy'"):
        capability("telepathy", disclaimed=lambda broker: broker.admin.check())(
            suites.Send.test_a_missing_entity_is_told
        )


def test_the_reference_names_every_suite_and_every_capability() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/conformance.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert rows == {suite.__name__ for suite in suites.ALL} | {entry.name for entry in fields(Capabilities)}
    assert {f"class Test{suite.__name__}(suites.{suite.__name__}): ..." for suite in suites.ALL} <= set(
        text.splitlines()
    )
