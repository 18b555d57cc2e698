"""The tables, one module each: pure functions from the journal's rows to a table with a fixed schema."""

from pairmq.pipeline.transforms._table import Field, Table
from pairmq.pipeline.transforms.availability import AVAILABILITY, availability
from pairmq.pipeline.transforms.backlog import BACKLOG, backlog
from pairmq.pipeline.transforms.cost import COST, cost
from pairmq.pipeline.transforms.episodes import EPISODES, episodes
from pairmq.pipeline.transforms.evidence import evidence
from pairmq.pipeline.transforms.order import ORDER, order
from pairmq.pipeline.transforms.processes import PROCESSES, holes, processes
from pairmq.pipeline.transforms.reconciliation import OBSERVATION, RECONCILIATION, observation, reconciliation
from pairmq.pipeline.transforms.rotation import ROTATION, rotation
from pairmq.pipeline.transforms.syphon import SYPHON, syphon
from pairmq.pipeline.transforms.verdicts import FAULTS, RULES, Rule, Verdict

TABLES: tuple[Table, ...] = (
    RECONCILIATION,
    EPISODES,
    AVAILABILITY,
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
    "COST",
    "EPISODES",
    "FAULTS",
    "OBSERVATION",
    "ORDER",
    "PROCESSES",
    "RECONCILIATION",
    "ROTATION",
    "RULES",
    "SYPHON",
    "TABLES",
    "Field",
    "Rule",
    "Table",
    "Verdict",
    "availability",
    "backlog",
    "cost",
    "episodes",
    "evidence",
    "holes",
    "observation",
    "order",
    "processes",
    "reconciliation",
    "rotation",
    "syphon",
]
