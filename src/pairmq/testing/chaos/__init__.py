"""Chaos on real servers: pairs in several processes, random faults for a chosen time, and the simulator's judge.

    report = carry_out(plan, (chaos_broker("redis"), chaos_broker("rabbitmq")), directory)
    assert report.ok, report.text()

What is done is planned from a seed (`plan`): servers killed and stopped, the network cut (`network`), what each product
has of its own (`broker`), client processes killed (`client`). Each process keeps a ledger; in the end everything is
healed, drained and read out, and the judge compares.
"""

from pairmq.testing.chaos._run import carry_out
from pairmq.testing.chaos.broker import KILL, PAUSE, ChaosBroker, FaultKind, ServerBroker, chaos_broker
from pairmq.testing.chaos.plan import Plan, Settings, Strike, planned
from pairmq.testing.chaos.report import ChaosReport

__all__ = [
    "KILL",
    "PAUSE",
    "ChaosBroker",
    "ChaosReport",
    "FaultKind",
    "Plan",
    "ServerBroker",
    "Settings",
    "Strike",
    "carry_out",
    "chaos_broker",
    "planned",
]
