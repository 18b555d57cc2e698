"""Scenarios as values: from a seed, through JSON, and cut down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairmq.runner._job import Endings
from pairmq.testing.simulator import FAULT_KINDS, Scenario, Settings, replay, scenario_of, shrink
from pairmq.testing.simulator._scenario import CONDITIONS, entity_of


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    hours=st.floats(0.01, 0.5),
    mode=st.sampled_from(["safety", "liveness"]),
    faults=st.sets(st.sampled_from(FAULT_KINDS)),
)
def test_a_scenario_goes_through_json_unchanged(seed, hours, mode, faults):
    scenario = scenario_of(Settings(seed=seed, hours=hours, mode=mode, faults=tuple(sorted(faults))))
    again = Scenario.from_json(scenario.to_json())
    assert again == scenario
    assert again.setup.pair_options(syphon=True) == scenario.setup.pair_options(syphon=True)
    assert {fault.kind for fault in scenario.faults} <= faults
    assert all(fault.at < scenario.seconds for fault in scenario.faults)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "setup": 3}', "7"])
def test_what_is_no_scenario_is_said_to_be_none(text):
    with pytest.raises(ValueError, match=r"scenario|Expecting"):
        Scenario.from_json(text)


def test_unknown_words_in_a_scenario_are_refused():
    data = json.loads(scenario_of(Settings(hours=0.1)).to_json())
    data["traffic"][0]["colour"] = "red"
    with pytest.raises(ValueError, match="no scenario"):
        Scenario.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("name", "value"), [("hours", -1), ("faults_per_hour", float("nan")), ("mode", "both"), ("faults", ("fire",))]
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match="fire" if name == "faults" else name):
        Settings(**{name: value})


def test_there_are_about_as_many_faults_as_asked_for():
    scenario = scenario_of(Settings(seed=1, hours=20))
    assert 20 * 50 < len(scenario.faults) < 20 * 70
    assert {fault.kind for fault in scenario.faults} == set(FAULT_KINDS)
    assert {"primary", "secondary"} <= {fault.broker for fault in scenario.faults if fault.kind in CONDITIONS}


def test_seeds_vary_the_options():
    setups = [scenario_of(Settings(seed=seed, hours=0)).setup for seed in range(50)]
    for name in setups[0].options:
        assert len({setup.options[name] for setup in setups}) > 1, name
    assert {sum(process.syphon for process in setup.processes) for setup in setups} == {1, 2}
    # Some syphons work for others only.
    assert any({each.name for each in s.processes} - {each.process for each in s.senders} for s in setups)


def test_entities_are_written_with_their_kind():
    assert str(entity_of("topic:news")) == "topic:news"
    assert entity_of("orders").path == "orders"


def test_without_faults_everything_goes_to_the_primary():
    report = replay(scenario_of(Settings(seed=2, hours=0.5, faults=(), mode="liveness")))
    assert report.ok
    assert report.counts.duplicates == report.counts.backlog == 0


def test_a_scenario_that_does_not_fail_is_not_shrunk():
    scenario = scenario_of(Settings(seed=2, hours=0.05))
    assert shrink(scenario) is scenario


@pytest.mark.long
def test_a_failing_scenario_is_cut_down_to_what_fails(monkeypatch):
    """A bug is planted: a receipt never says that a second copy may exist."""
    accept = Endings.accept

    def forgetful(self, state, job, started, queue):
        accept(self, state, job, started, queue)
        job.result = replace(job.result, maybe_duplicate=False)

    monkeypatch.setattr(Endings, "accept", forgetful)
    seed = next(s for s in range(20) if not replay(scenario_of(Settings(seed=s, hours=0.5))).ok)
    scenario = scenario_of(Settings(seed=seed, hours=0.5))
    told: list[int] = []
    small = shrink(scenario, progress=lambda runs, best: told.append(len(best.faults)))
    assert not replay(small).ok
    assert len(small.faults) <= 3
    assert len(small.traffic) <= 3
    assert len(small.setup.senders) <= 2
    assert told[-1] == len(small.faults)
    assert replay(replace(small, faults=())).ok
    assert replay(Scenario.from_json(small.to_json())).violations == replay(small).violations
