"""Scenarios as values: from a seed, through JSON, and cut down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairmq.testing.simulator import (
    FAULT_KINDS,
    Fault,
    ProcessPlan,
    Scenario,
    SenderPlan,
    Settings,
    Setup,
    Shipment,
    replay,
    scenario_of,
    shrink,
)
from patient_examples import examples
from runner_bugs import divert_what_the_primary_can_not_hold, mark_no_receipt

BLIPS = {"blip", "stall"}


@settings(max_examples=examples(30), deadline=None)
@given(
    seed=st.integers(0, 2**40),
    hours=st.floats(0.01, 0.2),
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
    with pytest.raises(ValueError, match="scenario"):
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
    assert {"primary", "secondary"} <= {fault.broker for fault in scenario.faults if fault.kind not in BLIPS}


def test_seeds_vary_the_options():
    setups = [scenario_of(Settings(seed=seed, hours=0, continuity="off")).setup for seed in range(50)]
    for name in setups[0].options:
        assert len({setup.options[name] for setup in setups}) > 1, name
    assert {sum(process.syphon for process in setup.processes) for setup in setups} == {1, 2}
    # Some syphons work for others only.
    assert any({each.name for each in s.processes} - {each.process for each in s.senders} for s in setups)


def test_seeds_vary_what_sets_processes_and_brokers_apart():
    setups = [scenario_of(Settings(seed=seed, hours=0)).setup for seed in range(60)]
    differing = [plan for setup in setups for plan in setup.processes if plan.own_options]
    assert {plan.syphon for plan in differing if plan.backlog_queue_count} == {False, True}
    assert any(plan.backlog_name_template for plan in differing)
    assert any(setup.latency[0] > 0.5 for setup in setups)
    assert any(setup.latency[1] > 0.5 for setup in setups)
    assert any(setup.jitter for setup in setups)
    assert {name for setup in setups for name in setup.primary_lacks} == {"time_to_live", "scheduling"}
    assert any(setup.most_bytes[0] < setup.most_bytes[1] for setup in setups)
    skews = [plan.skew for setup in setups for plan in setup.processes]
    assert min(skews) < -60 < 60 < max(skews)
    for setup in setups:
        # The time limits fit the distance: else nothing would ever be confirmed.
        assert setup.options["attempt_timeout"] > 2 * max(setup.latency) * (1 + setup.jitter)


def test_blips_are_shorter_than_the_timers_and_of_one_broker_or_both():
    blips = [fault for fault in scenario_of(Settings(seed=3, hours=10)).faults if fault.kind in BLIPS]
    assert {fault.kind for fault in blips} == BLIPS
    assert {fault.broker for fault in blips} == {"", "primary", "secondary"}
    assert all(0.1 <= fault.duration <= 0.7 for fault in blips)


def test_now_and_then_hundreds_of_sends_come_at_once():
    traffic = scenario_of(Settings(seed=3, hours=5)).traffic
    bursts = [shipment for shipment in traffic if shipment.count >= 150]
    assert 1 <= len(bursts) <= 20
    assert not any(shipment.together for shipment in bursts)


def test_a_scenario_of_an_earlier_release_is_read():
    data = json.loads(scenario_of(Settings(hours=0.1)).to_json())
    for name in ("jitter", "primary_lacks", "handling"):
        del data["setup"][name]
    for process in data["setup"]["processes"]:
        for name in ("backlog_queue_count", "backlog_name_template", "continuity", "readers"):
            del process[name]
    setup = Scenario.from_json(json.dumps(data)).setup
    assert (setup.jitter, setup.primary_lacks, setup.handling) == (0.0, (), 0.0)
    assert not any(plan.own_options for plan in setup.processes)


@pytest.mark.parametrize(("name", "value"), [("jitter", 2.0), ("primary_lacks", ["topics"])])
def test_a_setup_that_no_world_has_is_refused(name, value):
    data = json.loads(scenario_of(Settings(hours=0.1)).to_json())
    data["setup"][name] = value
    with pytest.raises(ValueError, match="primary_lacks"):
        Scenario.from_json(json.dumps(data))


def test_a_failing_scenario_loses_what_sets_it_apart_and_does_not_matter(monkeypatch):
    """A bug is planted: no time-to-live is moved back."""
    divert_what_the_primary_can_not_hold(monkeypatch)
    setup = Setup(
        (ProcessPlan("a", skew=300.0), ProcessPlan("s", syphon=True, backlog_queue_count=1)),
        (SenderPlan("a1", "a", "orders"),),
        ("orders",),
        {"backlog_queue_count": 3, "failover_interval": 0.0, "attempt_timeout": 3.0},
        latency=(0.6, 0.01),
        jitter=0.5,
        primary_lacks=("time_to_live",),
    )
    fault = Fault(5.0, "refuse", 20.0, "primary", seed=1)
    shipments = (Shipment(6.0, "a1", 1), Shipment(8.0, "a1", 2, count=200, fields=("ttl",)))
    scenario = Scenario(1, 60.0, "safety", setup, (fault,), shipments)
    small = shrink(scenario)
    assert not replay(small).ok
    assert [shipment.count for shipment in small.traffic] == [1]
    assert small.setup.latency == Setup((), (), ()).latency
    assert not small.setup.jitter
    assert not any(plan.own_options or plan.skew for plan in small.setup.processes)
    assert small.setup.primary_lacks == ("time_to_live",)  # this one matters


def test_a_report_says_what_sets_a_scenario_apart(monkeypatch):
    divert_what_the_primary_can_not_hold(monkeypatch)
    setup = Setup(
        (ProcessPlan("a", backlog_queue_count=2, skew=-300.0),),
        (SenderPlan("a1", "a", "orders"),),
        ("orders",),
        {"failover_interval": 0.0},
        latency=(0.6, 0.01),
        primary_lacks=("scheduling",),
    )
    fault = Fault(5.0, "refuse", 20.0, "primary", seed=1)
    shipment = Shipment(8.0, "a1", 1, fields=("schedule",))
    text = replay(Scenario(1, 60.0, "safety", setup, (fault,), (shipment,))).text()
    assert "backlog_queue_count = 2 in process a" in text
    assert "wall clock of process a: -300 s" in text
    assert "to the primary and back: 0.6 s" in text
    assert "the primary keeps no scheduling" in text
    assert "the primary can never hold it: it keeps no schedule" in text


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
    mark_no_receipt(monkeypatch)
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
