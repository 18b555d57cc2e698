"""From the journal's rows to facts, and from facts to tables: pure functions with fixed schemas."""

from pairmq.pipeline.transforms._fact import Table
from pairmq.pipeline.transforms.backlog import BACKLOG, ROTATION, SYPHON
from pairmq.pipeline.transforms.episodes import EPISODES
from pairmq.pipeline.transforms.facts import FACTS
from pairmq.pipeline.transforms.order import ORDER
from pairmq.pipeline.transforms.processes import PROCESSES, Unfinished, Unread
from pairmq.pipeline.transforms.reconciliation import OBSERVATION, RECONCILIATION
from pairmq.pipeline.transforms.steps import STEPS, Settings
from pairmq.pipeline.transforms.traffic import AVAILABILITY, CONSUMERS, COST
from pairmq.pipeline.transforms.verdicts import FAULTS, RULES, Verdict

TABLES: tuple[Table, ...] = (
    RECONCILIATION,
    EPISODES,
    AVAILABILITY,
    CONSUMERS,
    BACKLOG,
    SYPHON,
    ROTATION,
    ORDER,
    COST,
    OBSERVATION,
    PROCESSES,
)
"""All that a run writes."""

__all__ = [
    "FACTS",
    "FAULTS",
    "OBSERVATION",
    "PROCESSES",
    "RECONCILIATION",
    "RULES",
    "STEPS",
    "TABLES",
    "Settings",
    "Unfinished",
    "Unread",
    "Verdict",
]
