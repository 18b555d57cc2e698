"""Hours of failures with consumers that go on through them: queues with continuity (SPEC 11)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pairmq.core import lane_path
from pairmq.testing.simulator import Counts, Scenario, Settings, Waits, replay, scenario_of, simulate

SEEDS = (1, 2)  # with most traffic in lanes
MORE = (6, 12, 14, 19)
HOURS = 0.25


def hours(seed: int, **more: object) -> Settings:
    return Settings(seed=seed, hours=HOURS, mode="liveness", continuity="on", **more)  # type: ignore[arg-type]


@pytest.mark.search
def test_more_consumers_with_continuity_lose_and_double_nothing():
    reports = [simulate(hours(seed)) for seed in MORE]
    failed = [report.text() for report in reports if not report.ok]
    assert not failed, failed[0]


def test_consumers_with_continuity_lose_and_double_nothing():
    reports = [simulate(hours(seed)) for seed in SEEDS]
    failed = [report.text() for report in reports if not report.ok]
    assert not failed, failed[0]
    counts = sum((report.counts for report in reports), Counts())
    assert counts.to_lanes > 200
    assert counts.from_lanes > 200
    assert counts.prompt > 60
    assert counts.late <= 0.01 * counts.prompt
    assert sum(len(report.waits["lanes"]) for report in reports) > 200
    assert "were handled within two receives" in reports[0].text()
    assert sum(reports[0].to_dict()["waits"]["lanes"].values()) == len(reports[0].waits["lanes"])


def test_these_hours_hold_all_that_sets_consumers_apart():
    scenarios = [scenario_of(hours(seed)) for seed in (*SEEDS, *MORE, 15, 25, 30)]
    setups = [scenario.setup for scenario in scenarios]
    plans = [plan for setup in setups for plan in setup.processes]
    assert {setup.options["lane_patience"] for setup in setups} == {0.0, 5.0, 60.0}
    assert any(plan.continuity == () for plan in plans)  # without
    assert any(len(set(plan.readers)) < len(plan.readers) for plan in plans)  # several of one queue
    assert any(not any(plan.syphon for plan in setup.processes) for setup in setups)
    faults = [fault for scenario in scenarios for fault in scenario.faults]
    assert {"kill", "restart"} <= {fault.kind for fault in faults if fault.process in ("c", "d")}
    assert any(fault.kind == "lock-lost" and lane_path(fault.entity) for fault in faults)


def test_continuity_is_drawn_for_a_share_of_the_seeds_and_changes_no_other_one():
    drawn = [scenario_of(Settings(seed=seed, hours=0.02)) for seed in range(60)]
    without = [scenario_of(Settings(seed=seed, hours=0.02, continuity="off")) for seed in range(60)]
    changed = [one != another for one, another in zip(drawn, without, strict=True)]
    assert 6 < sum(changed) < 25
    ordered = [scenario_of(Settings(seed=seed, hours=0.02, ordering="session")) for seed in range(60)]
    assert not any("continuity" in each.setup.options for each in ordered)
    assert all(one.traffic == another.traffic for one, another in zip(drawn, without, strict=True))


def test_a_scenario_with_consumers_goes_through_a_file():
    scenario = scenario_of(hours(30))
    assert Scenario.from_json(scenario.to_json()) == scenario
    assert replay(Scenario.from_json(scenario.to_json())).ok


@pytest.mark.parametrize("wrong", [{"continuity": "often"}, {"continuity": "on", "ordering": "session"}])
def test_settings_refuse_continuity_that_can_not_be(wrong):
    with pytest.raises(ValueError, match="continuity"):
        Settings(**wrong)


def test_waits_are_counted_and_added_up():
    waits = Waits.of([0.0, 0.001, 0.5, 3.0]) + Waits.of([100.0])
    assert (len(waits), waits.within(0.4), waits.within(0.6), waits.within(1.0)) == (5, 0.01, 0.501, 100.0)
    assert Waits.from_dict(waits.to_dict()) == waits
    bounds = [float(bound) for bound in Waits.of(0.01 * 1.2**step for step in range(60)).to_dict()]
    assert all(one < another for one, another in pairwise(bounds))
