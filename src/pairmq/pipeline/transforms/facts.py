"""All facts of a journal: small, or as large as its messages, and enough to make every table of.

Rows are read only to make facts, and tables are made only of facts. So a journal that grows has to be read once, part
by part: the facts of its parts are merged, and the tables are the same as those of the whole.
"""

from __future__ import annotations

from dataclasses import replace

from pairmq.pipeline.transforms._fact import Fact
from pairmq.pipeline.transforms._rows import dated
from pairmq.pipeline.transforms.cost import OPERATIONS
from pairmq.pipeline.transforms.messages import COPIES, MESSAGES
from pairmq.pipeline.transforms.notes import NOTES
from pairmq.pipeline.transforms.processes import MINUTES
from pairmq.pipeline.transforms.traffic import NAMES, TRAFFIC


def _of_dated(fact: Fact) -> Fact:
    """The same without the rows of a wrong clock: one would stretch the journal by years."""
    return replace(fact, of=lambda rows: fact.of(rows.filter(dated())))


FACTS: tuple[Fact, ...] = (
    _of_dated(NOTES),
    MINUTES,  # counts these rows
    *map(_of_dated, (TRAFFIC, OPERATIONS, NAMES, MESSAGES, COPIES)),
)

__all__ = ["FACTS", "Fact"]
