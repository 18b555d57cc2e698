"""Inputs of a simulation: settings, plans of faults, and whole scenarios."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hypothesis import strategies as st

from pairmq.testing.simulator import FAULT_KINDS, Fault, Scenario, Settings, Setup, scenario_of
from pairmq.testing.simulator._scenario import PRIMARY, SECONDARY, Mode

_OF_A_PROCESS = frozenset(("kill", "restart", "operator"))
_OF_THE_SECONDARY = frozenset(("lock-lost", "forge", "emptied"))
_OF_A_QUEUE = frozenset(("lock-lost", "forge", "delete", "queue-out", "operator"))
_OF_A_BROKER = frozenset(("refuse", "reset", "broker-kill", "kill", "restart", "blip", "stall", "demote", "emptied"))
_OF_BOTH_BROKERS = frozenset(("blip", "stall"))
_LONGEST_BLIP = 0.7  # s
_DELAYING = frozenset(("slow", "late"))

_SEEDS = st.integers(0, 2**31 - 1)


def simulator_settings(
    *,
    max_hours: float = 0.05,
    mode: Mode | None = None,
    faults: Collection[str] = FAULT_KINDS,
    faults_per_hour: float = 60.0,
) -> st.SearchStrategy[Settings]:
    """Settings of short simulations; a virtual hour takes about half a second.

        @given(simulator_settings(mode="liveness"))
        def test_everything_drains_in_the_end(settings):
            report = simulate(settings)
            assert report.ok, report.text()

    Args:
        max_hours: of virtual time with faults, 0.001 (3.6 s) at least.
        mode: ``"safety"`` or ``"liveness"``; either when left out.
        faults: the kinds of which some are drawn, of `pairmq.testing.simulator.FAULT_KINDS`.
        faults_per_hour: as in `pairmq.testing.simulator.Settings`.
    """
    modes: tuple[Mode, ...] = ("safety", "liveness") if mode is None else (mode,)
    kinds = sorted(faults)
    chosen = st.lists(st.sampled_from(kinds), unique=True, max_size=len(kinds)) if kinds else st.just([])
    return st.builds(
        Settings,
        seed=_SEEDS,
        hours=st.integers(1, max(1, round(max_hours * 1000))).map(lambda thousandths: thousandths / 1000),
        mode=st.sampled_from(modes),
        faults=chosen.map(tuple),
        faults_per_hour=st.just(faults_per_hour),
    )


def fault_plans(
    setup: Setup, *, seconds: float, kinds: Collection[str] = FAULT_KINDS, max_size: int = 6
) -> st.SearchStrategy[tuple[Fault, ...]]:
    """Plans of what goes wrong in a simulation, by their instant; the simplest is that nothing does.

        quiet = scenario_of(Settings(seed=1, hours=0.05, faults=()))

        @given(fault_plans(quiet.setup, seconds=quiet.seconds))
        def test_any_plan_is_survived(plan):
            report = replay(replace(quiet, faults=plan))
            assert report.ok, report.text()

    Args:
        setup: the brokers, processes and entities that the faults may strike.
        seconds: the length of the simulation, within which they begin.
        kinds: of `pairmq.testing.simulator.FAULT_KINDS`.
        max_size: faults at most.
    """
    faults = st.sampled_from(sorted(kinds)).flatmap(lambda kind: _faults(kind, setup, seconds))
    return st.lists(faults, max_size=max_size if kinds else 0).map(lambda plan: tuple(sorted(plan, key=_instant)))


def scenarios(
    *,
    max_hours: float = 0.05,
    mode: Mode | None = None,
    kinds: Collection[str] = FAULT_KINDS,
    max_faults: int = 6,
) -> st.SearchStrategy[Scenario]:
    """Whole scenarios: who there is and who sends what from a seed, and a plan of faults that shrinks by itself.

        @given(scenarios())
        def test_any_scenario_is_survived(scenario):
            report = replay(scenario)
            assert report.ok, report.text()

    Args:
        max_hours: of virtual time.
        mode: as in `simulator_settings`.
        kinds: of faults.
        max_faults: faults at most.
    """
    quiet = simulator_settings(max_hours=max_hours, mode=mode, faults=()).map(scenario_of)
    return quiet.flatmap(lambda scenario: _with_faults(scenario, kinds, max_faults))


def _with_faults(scenario: Scenario, kinds: Collection[str], most: int) -> st.SearchStrategy[Scenario]:
    plans = fault_plans(scenario.setup, seconds=scenario.seconds, kinds=kinds, max_size=most)
    return plans.map(lambda plan: replace(scenario, faults=plan))


def _instant(fault: Fault) -> float:
    return fault.at


@st.composite
def _faults(draw: st.DrawFn, kind: str, setup: Setup, seconds: float) -> Fault:
    """One fault, struck where the world can strike it."""
    processes = [process.name for process in setup.processes]
    broker = process = entity = ""
    if kind in _OF_A_PROCESS:
        process = draw(st.sampled_from(processes))
    else:
        brokers = (PRIMARY, SECONDARY, "") if kind in _OF_BOTH_BROKERS else (PRIMARY, SECONDARY)
        broker = SECONDARY if kind in _OF_THE_SECONDARY else draw(st.sampled_from(brokers))
        if kind not in ("broker-kill", "forge", "emptied"):
            process = draw(st.sampled_from(("", *processes)))
    if kind in _OF_A_QUEUE or (kind not in _OF_A_BROKER and draw(st.booleans())):
        entity = draw(st.sampled_from(_paths(setup, broker)))
    return Fault(
        at=draw(_thousandths(0.0, seconds)),
        kind=kind,
        duration=draw(_thousandths(0.1, _LONGEST_BLIP) if kind in _OF_BOTH_BROKERS else _thousandths(0.3, 60.0)),
        broker=broker,
        process=process,
        entity=entity,
        share=draw(st.integers(0, 8).map(lambda tenths: 1.0 - tenths / 10)),
        delay=draw(_thousandths(0.05, 20.0)) if kind in _DELAYING else 0.0,
        seed=draw(_SEEDS),
    )


def _thousandths(low: float, high: float) -> st.SearchStrategy[float]:
    return st.integers(round(low * 1000), max(round(low * 1000), round(high * 1000) - 1)).map(lambda n: n / 1000)


def _paths(setup: Setup, broker: str) -> list[str]:
    if broker != SECONDARY:
        return [entity.rpartition(":")[2] for entity in setup.entities]
    queues = setup.pair_options(syphon=False).backlog_queue_names(PRIMARY)
    return list(queues)
