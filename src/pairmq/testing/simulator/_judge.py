"""The judge: compares what was promised with what the brokers hold, and what was said with what was so.

It knows neither the world nor the framework, only a `History`; a history made by hand is judged as well. Its verdicts
are those of the guarantees: nothing is lost, nothing comes that was not sent, no second copy without an attempt in
doubt or a syphon that died or lost its lock, no order lost while nothing fails, everything drains, no send outlives its
deadline and no close hangs. Two more are for events: a wrong state, and a crash.
"""

from __future__ import annotations

from pairmq.testing.simulator._facts import Facts
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._judge_messages import messages_judged
from pairmq.testing.simulator._judge_pair import pair_judged
from pairmq.testing.simulator._verdict import Violation


def judged(history: History) -> list[Violation]:
    """Find everything that is wrong in a history, oldest first."""
    facts = Facts(history)
    found = [*messages_judged(facts), *pair_judged(facts)]
    return sorted(found, key=lambda violation: violation.at)
