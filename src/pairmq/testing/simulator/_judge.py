"""The judge: compares what was promised with what the brokers hold, and what was said with what was so.

Messages are judged by `pairmq.testing.judge`, as in every history; here is what a simulation shows besides: locks,
routes, states, drains and closes.
"""

from __future__ import annotations

from pairmq.testing.judge import Violation, messages_judged
from pairmq.testing.simulator._facts import Facts
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._judge_messages import routes_judged, simulated_judged
from pairmq.testing.simulator._judge_pair import pair_judged


def judged(history: History) -> list[Violation]:
    """Find everything that is wrong in a history, oldest first."""
    facts = Facts(history)
    found = [*messages_judged(facts), *simulated_judged(facts), *routes_judged(facts), *pair_judged(facts)]
    return sorted(found, key=lambda violation: violation.at)
