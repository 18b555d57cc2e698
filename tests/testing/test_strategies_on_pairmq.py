"""PairMQ itself under its own strategies: envelopes, settings, and simulations with any plan of faults."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairmq import Entity, Message, Pair, PairOptions
from pairmq.core import Diversion, divert, restore
from pairmq.pair import load_settings
from pairmq.runner import Clock
from pairmq.testing import SimulatedBroker, run_virtual, simulate, virtual_wall
from pairmq.testing import strategies as pst
from pairmq.testing.simulator import FAULT_KINDS, Scenario, replay, scenario_of
from pairmq.testing.simulator import Settings as SimulatorSettings
from patient_examples import examples

EXAMPLES = examples(15)
"""Of the tests that run whole worlds."""

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
"""For a busy machine: how long an example takes says nothing here."""

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.lists(st.sampled_from(sorted(FAULT_KINDS)), unique=True).map(tuple)
MODES = st.sampled_from(["safety", "liveness"])
HOURS = st.integers(1, 50).map(lambda thousandths: thousandths / 1000)


@st.composite
def scenarios(draw: st.DrawFn, hours: st.SearchStrategy[float] = HOURS) -> Scenario:
    """Who there is and who sends what from a seed, and a plan of faults that shrinks by itself."""
    quiet = scenario_of(SimulatorSettings(seed=draw(SEEDS), hours=draw(hours), mode=draw(MODES), faults=()))
    return replace(quiet, faults=draw(pst.fault_plans(quiet.setup, seconds=quiet.seconds)))


diversions = st.builds(
    Diversion,
    entity=pst.entities(),
    diverted_at=pst.instants(),
    sender_id=pst.ids(),
    sequence=st.integers(0, 2**63 - 1),
    maybe_duplicate=st.booleans(),
)


@PATIENT
@given(pst.messages(), diversions)
def test_an_envelope_restores_what_was_put_in(message: Message, diversion: Diversion):
    assert restore(divert(message, diversion)) == (message, diversion)


@PATIENT
@given(pst.messages())
def test_a_message_is_pickled_unchanged(message: Message):
    assert pickle.loads(pickle.dumps(message)) == message


@PATIENT
@given(pst.messages())
def test_made_again_of_its_own_fields_a_message_is_the_same(message: Message):
    assert Message(**{field.name: getattr(message, field.name) for field in fields(message)}) == message


# ------------------------------------------------------------------------------------------------- options from texts

# Patterns are separated by commas in a variable, and blanks around them are not part of them; an empty text is no text.
as_variables = pst.options(small=False).filter(
    lambda options: all(part and part == part.strip() and "," not in part for part in options.allowed_entities)
)


@PATIENT
@given(as_variables)
def test_options_go_through_the_environment_unchanged(options: PairOptions):
    environ = {f"PAIRMQ_{name.upper()}": text for name, text in texts_of(options).items()}
    assert load_settings(primary="a://", secondary="b://", environ=environ).options == options


@PATIENT  # the file is written anew by each example
@given(options=pst.options(small=False))
def test_options_go_through_a_file_unchanged(tmp_path: Path, options: PairOptions):
    file = tmp_path / "pair.toml"
    lines = [f"{field.name} = {toml_of(getattr(options, field.name))}" for field in fields(options)]
    file.write_text("\n".join(["[pair]", *(line for line in lines if not line.endswith("None"))]), "utf-8")
    assert load_settings(primary="a://", secondary="b://", config=file, environ={}).options == options


def texts_of(options: PairOptions) -> dict[str, str]:
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: text_of(value) for name, value in values.items() if value not in (None, ())}


def text_of(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def toml_of(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(toml_of(part) for part in value)}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower() if isinstance(value, bool) else str(value)


# -------------------------------------------------------------------------------------------------------- simulations


@settings(PATIENT, max_examples=EXAMPLES)
@given(scenarios())
def test_any_plan_of_faults_is_survived(scenario: Scenario):
    report = replay(scenario)
    assert report.ok, report.text()


@settings(PATIENT, max_examples=EXAMPLES)
@given(st.builds(SimulatorSettings, seed=SEEDS, hours=HOURS, mode=MODES, faults=KINDS, faults_per_hour=st.just(400.0)))
def test_any_short_simulation_is_survived(chosen: SimulatorSettings):
    report = simulate(chosen)
    assert report.ok, report.text()


@settings(PATIENT, max_examples=5)
@given(scenarios(st.just(0.01)))
def test_a_drawn_scenario_goes_through_json_unchanged(scenario: Scenario):
    assert Scenario.from_json(scenario.to_json()) == scenario


# ------------------------------------------------------------------------------------------------ poison, on a syphon


@settings(PATIENT, max_examples=EXAMPLES)
@given(st.lists(pst.hostile_messages(ttl=False, scheduled=False), min_size=1, max_size=3))
def test_what_others_put_on_a_backlog_queue_is_dead_lettered_and_the_syphon_goes_on(messages: list[Message]):
    dead, home = run_virtual(syphoned(messages))
    # In no certain order: a syphon goes on with what is good first.
    assert sorted(repr(message) for message, _ in dead) == sorted(map(repr, messages))
    assert home == [b"behind them"]


async def syphoned(messages: list[Message]) -> tuple[list[Any], list[bytes]]:
    """Put messages on a backlog queue, a good one behind them; gives what is dead-lettered and what was moved back."""
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    options = PairOptions(backlog_queue_count=1, enable_syphon=True)
    async with Pair(east.transport(), west.transport(), options, clock=Clock(virtual_wall)) as pair:
        await pair.primary.admin.create(Entity("orders"))
        (queue,) = pair.backlog_queues
        diversion = Diversion(Entity("orders"), datetime(2024, 1, 1, tzinfo=UTC), "sender", 1)
        for message in (*messages, divert(Message(b"behind them", message_id="1"), diversion)):
            west.store(queue, message)
        await asyncio.sleep(30)
        return west.dead_letters(queue.path), [message.body for message in east.messages("orders")]
