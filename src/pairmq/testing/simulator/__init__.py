"""A seeded world in virtual time, in which real pairs run against brokers, networks and processes that fail.

    report = simulate(Settings(seed=7, hours=2, mode="liveness"))
    assert report.ok, report.text()

Everything from `pairmq.pair` down is the real code; only the clock, the brokers and the way to them are simulated. The
world (`_world`, `_process`, `_network`, `_broker`, `_transport`) writes a history (`_history`), and the judge
(`_judge`) compares what was promised with what the brokers hold.
"""

from pairmq.testing.judge import Verdict, Violation, Waits
from pairmq.testing.simulator._generate import scenario_of
from pairmq.testing.simulator._loop import interrupts_noted
from pairmq.testing.simulator._report import Counts, Report, handled_text
from pairmq.testing.simulator._scenario import (
    FAULT_KINDS,
    Fault,
    ProcessPlan,
    Scenario,
    SenderPlan,
    Settings,
    Setup,
    Shipment,
)
from pairmq.testing.simulator._simulate import Outcome, campaign, replay, shrink, simulate

__all__ = [
    "FAULT_KINDS",
    "Counts",
    "Fault",
    "Outcome",
    "ProcessPlan",
    "Report",
    "Scenario",
    "SenderPlan",
    "Settings",
    "Setup",
    "Shipment",
    "Verdict",
    "Violation",
    "Waits",
    "campaign",
    "handled_text",
    "interrupts_noted",
    "replay",
    "scenario_of",
    "shrink",
    "simulate",
]
