"""From the journal's rows to facts, and from facts to tables: pure functions with fixed schemas."""

from pairmq.pipeline.transforms._fact import Fact, Field, Table
from pairmq.pipeline.transforms.backlog import BACKLOG, ROTATION, SYPHON
from pairmq.pipeline.transforms.episodes import EPISODES
from pairmq.pipeline.transforms.facts import FACTS
from pairmq.pipeline.transforms.order import ORDER
from pairmq.pipeline.transforms.processes import PROCESSES
from pairmq.pipeline.transforms.reconciliation import OBSERVATION, RECONCILIATION
from pairmq.pipeline.transforms.steps import STEPS, Settings, Step, Unfinished, Unread
from pairmq.pipeline.transforms.traffic import AVAILABILITY, CONSUMERS, COST
from pairmq.pipeline.transforms.verdicts import FAULTS, RULES, Rule, Verdict

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
    "AVAILABILITY",
    "BACKLOG",
    "CONSUMERS",
    "COST",
    "EPISODES",
    "FACTS",
    "FAULTS",
    "OBSERVATION",
    "ORDER",
    "PROCESSES",
    "RECONCILIATION",
    "ROTATION",
    "RULES",
    "STEPS",
    "SYPHON",
    "TABLES",
    "Fact",
    "Field",
    "Rule",
    "Settings",
    "Step",
    "Table",
    "Unfinished",
    "Unread",
    "Verdict",
]
