"""Some hours of failures, in which every promise is kept."""

from __future__ import annotations

import asyncio

import pytest

import pairmq.testing
from pairmq.model import SendRefused
from pairmq.testing.simulator import FAULT_KINDS, Settings, Verdict, campaign, scenario_of, simulate
from runner_bugs import refuse_what_is_in_doubt, send_to_the_backlog_by

SEEDS = range(556, 561)
SEEDS_WITH_ORDER = range(670, 673)
HOURS = 0.5  # of each; `make test-all` simulates whole ones, of 300 seeds


@pytest.mark.parametrize("ordering", ["none", "session"])
def test_these_hours_hold_all_that_sets_pairs_apart(ordering):
    seeds = SEEDS if ordering == "none" else SEEDS_WITH_ORDER
    scenarios = [scenario_of(Settings(seed=seed, hours=HOURS, ordering=ordering)) for seed in seeds]
    setups = [scenario.setup for scenario in scenarios]
    plans = [plan for setup in setups for plan in setup.processes]
    assert any(plan.backlog_queue_count for plan in plans if plan.syphon)
    assert any(plan.backlog_name_template for plan in plans)
    assert any(max(setup.latency) > 0.5 for setup in setups)
    assert any(setup.jitter for setup in setups)
    assert any(abs(plan.skew) > 60 for plan in plans)
    assert any(setup.primary_lacks for setup in setups)
    assert any(setup.most_bytes[0] < setup.most_bytes[1] for setup in setups)
    assert {"blip", "stall", "demote", "emptied"} <= {fault.kind for each in scenarios for fault in each.faults}
    assert any(fault.kind == "blip" and not fault.broker for each in scenarios for fault in each.faults)
    assert any(shipment.count >= 150 for each in scenarios for shipment in each.traffic)


# In both modes a seed is the same hour. All that can differ is its end: the processes close in the middle of trouble,
# or when all is healed. So the end in trouble has short hours, and the whole ones are simulated once.


def test_nothing_is_lost_doubled_or_late():
    reports = [simulate(Settings(seed=seed, hours=HOURS, mode="liveness")) for seed in SEEDS]
    failed = [report.text() for report in reports if not report.ok]
    assert not failed, failed[0]
    # It was no idle time.
    assert sum(report.counts.backlog for report in reports) > 300
    assert sum(report.counts.duplicates for report in reports) > 50
    assert sum(report.counts.lives for report in reports) > 20


def test_sessions_keep_their_order():
    settings = [Settings(seed=s, hours=HOURS, mode="liveness", ordering="session") for s in SEEDS_WITH_ORDER]
    reports = [simulate(each) for each in settings]
    failed = [report.text() for report in reports if not report.ok]
    assert not failed, failed[0]
    assert sum(report.counts.backlog for report in reports) > 150


@pytest.mark.parametrize("ordering", ["none", "session"])
def test_a_close_in_the_middle_of_trouble_breaks_nothing(ordering):
    seeds = SEEDS if ordering == "none" else SEEDS_WITH_ORDER
    reports = [simulate(Settings(seed=seed, hours=0.1, mode="safety", ordering=ordering)) for seed in seeds]
    failed = [report.text() for report in reports if not report.ok]
    assert not failed, failed[0]
    assert min(report.counts.faults for report in reports) > 2


def struck(kinds: tuple[str, ...], hours: float) -> None:
    report = simulate(Settings(seed=7, hours=hours, faults=kinds, mode="liveness", faults_per_hour=240))
    assert report.ok, report.text()
    assert report.counts.faults > 20
    assert report.counts.messages > 100


@pytest.mark.long
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_each_kind_of_fault_alone_breaks_nothing(kind):
    struck((kind,), 0.12)


@pytest.mark.parametrize("kinds", [FAULT_KINDS[start::6] for start in range(6)], ids=",".join)
def test_some_kinds_of_faults_break_nothing(kinds):
    struck(kinds, 0.15)


def test_a_campaign_on_several_processors_gives_the_same_as_one_by_one():
    runs = [Settings(seed=seed, hours=0.05) for seed in range(4)]
    side_by_side = {outcome.settings.seed: outcome for outcome in campaign(runs, jobs=2)}
    assert [side_by_side[each.seed] for each in runs] == list(campaign(runs))


def test_a_bug_that_raises_is_a_verdict(monkeypatch):
    async def broken(self, *arguments):
        raise AssertionError("a bug")

    send_to_the_backlog_by(monkeypatch, broken)
    report = next(r for r in (simulate(Settings(seed=s, hours=0.2)) for s in range(10)) if not r.ok)
    assert report.violations[0].verdict is Verdict.CRASH
    assert "AssertionError: a bug" in report.text()


def test_a_bug_that_hangs_is_a_verdict(monkeypatch):
    async def hanging(self, *arguments):
        await asyncio.get_running_loop().create_future()

    send_to_the_backlog_by(monkeypatch, hanging)
    report = next(r for r in (simulate(Settings(seed=s, hours=0.2)) for s in range(10)) if not r.ok)
    assert {Verdict.DEADLINE, Verdict.CLOSE, Verdict.STATE} & set(report.verdicts())


def test_a_failure_reports_seed_options_history_and_trace(monkeypatch):
    """A bug is planted: what is in doubt is called refused."""
    refuse_what_is_in_doubt(monkeypatch, SendRefused)
    report = next(r for r in (simulate(Settings(seed=s, hours=0.2)) for s in range(10)) if not r.ok)
    text = report.text()
    assert f"seed {report.scenario.seed}" in text
    assert "backlog_queue_count = " in text
    assert "phantom" in text
    assert f"message {report.violations[0].message}:" in text
    assert "may have been applied" in text
    trace = text.partition("lines of the trace before it:\n")[2].splitlines()
    assert 20 <= len(trace) <= 50
    assert all(float(line.split()[0]) <= report.violations[0].at + 1e-6 for line in trace)
    assert report.to_dict()["violations"][0]["verdict"] == "phantom"


def test_the_test_kit_exports_it():
    report = pairmq.testing.simulate(pairmq.testing.Settings(seed=1, hours=0.05))
    assert isinstance(report, pairmq.testing.Report)
    assert report.ok
