"""A run of chaos with order: it holds, and a planted fault of order is found.

The fault is planted where the clients' processes import it at their start: they run what every client of chaos runs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pairmq.testing.chaos import ChaosReport, Settings, carry_out, chaos_broker, planned
from pairmq.testing.chaos.broker import KILL
from pairmq.testing.chaos.plan import Strike
from pairmq.testing.simulator import Verdict

pytestmark = [pytest.mark.real_server, pytest.mark.long]

SHORT = Settings(seed=5, seconds=8.0, clients=2, ordering="session", patience=40.0)
OUTAGE = (Strike(1.0, KILL.name, 5.0, "primary"),)

NEVER_RETURNS = """
from pairmq.core.order import KeyOrder

diverted = set()
seen, diverting = KeyOrder.seen, KeyOrder.diverting


def remembers(self):
    diverted.add(id(self))
    diverting(self)


KeyOrder.diverting = remembers
KeyOrder.seen = lambda self, look: id(self) not in diverted and seen(self, look)
"""


def run(directory: Path, settings: Settings = SHORT) -> ChaosReport:
    primary, secondary = chaos_broker("redis"), chaos_broker("redis")
    ledgers = directory / "ledgers"
    ledgers.mkdir()
    plan = planned(("redis", "redis"), settings, (primary.faults, secondary.faults))
    # What chance plans may be over before anything is diverted.
    return carry_out(replace(plan, strikes=OUTAGE), (primary, secondary), ledgers)


def test_sessions_keep_their_order_and_return_when_all_is_healed(tmp_path: Path) -> None:
    report = run(tmp_path)
    broken = [violation for violation in report.violations if violation.verdict is not Verdict.DEADLINE]
    assert not broken, report.text()
    assert report.moved > 10


def test_sessions_that_never_return_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(NEVER_RETURNS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    # Nobody waits in vain for longer than it takes to see that.
    report = run(tmp_path, replace(SHORT, patience=15.0))
    stayed = [violation for violation in report.violations if "for session-" in violation.text]
    assert {violation.verdict for violation in stayed} == {Verdict.NOT_DRAINED}, report.text()
