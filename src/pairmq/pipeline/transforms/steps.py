"""How every table is made of facts: steps in an order in which each finds what it needs.

A step that is not a table is read by several others. The runner of the steps materializes each before the next one
reads it: Spark would otherwise compute it again for each reader, and could not see how small it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pairmq.model import ConfigurationError, Price
from pairmq.model.events import (
    AttemptFailed,
    Event,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    ReceiverChanged,
    RotationChanged,
    SendCompleted,
    StateChanged,
)
from pairmq.pipeline.transforms._fact import Table
from pairmq.pipeline.transforms.backlog import BACKLOG, ROTATION, SYPHON, backlog, rotation, syphon
from pairmq.pipeline.transforms.episodes import EPISODES, episodes
from pairmq.pipeline.transforms.facts import FROM_LANE
from pairmq.pipeline.transforms.order import LATE, ORDER, late, order
from pairmq.pipeline.transforms.places import ARRIVALS, BLIND, PLACES, arrivals, blind_minutes, places
from pairmq.pipeline.transforms.processes import HOLES, PROCESSES, Unfinished, Unread, holes, processes
from pairmq.pipeline.transforms.reconciliation import OBSERVATION, RECONCILIATION, TROUBLES, reconciliation, troubles
from pairmq.pipeline.transforms.traffic import AVAILABILITY, CONSUMERS, COST, availability, consumers, cost


@dataclass(frozen=True, slots=True)
class Settings:
    """What the tables depend on beside the journal."""

    # Seconds by which a message may be overtaken by others of its queue before it counts as lost, and that the journal
    # of its machine must go on after a process's last row for it to count as killed.
    patience: float = 300.0
    prices: Mapping[str, Price] = field(default_factory=dict)  # of the sides; free when left out
    unread: tuple[Unread, ...] = ()  # the files of the journal that are not read
    unfinished: tuple[Unfinished, ...] = ()  # the parts of the journal that are not yet segments

    def __post_init__(self) -> None:
        if not 0 <= self.patience < math.inf:
            raise ConfigurationError(f"patience is {self.patience!r}: it must be 0 seconds or more, and finite")


@dataclass(frozen=True, slots=True)
class Step:
    """One table, or something in between."""

    name: str  # the table's, or its own; no fact has the same
    schema: StructType
    made: Callable[..., DataFrame]  # given what it needs, in that order, and settings by name; computes nothing yet
    needs: tuple[str, ...]  # names of facts and of earlier steps
    settings: tuple[str, ...] = ()  # names of those that it asks for
    # Those of one group need nothing of each other, and are made by one query; None for one of its own.
    group: str | None = None
    small: bool = True  # what it is made of grows with time and faults, not with messages
    is_table: bool = False  # whether a run writes it for its readers
    # By facts, which of their rows it needs at least one of, in Arrow's terms: it is empty without. Most journals have
    # nothing of some kinds, and to plan such a table takes as long as if there were.
    only_with: Mapping[str, pc.Expression] = field(default_factory=dict)

    def make(self, frames: Mapping[str, DataFrame], settings: Settings) -> DataFrame:
        return self.made(
            *(frames[name] for name in self.needs), **{name: getattr(settings, name) for name in self.settings}
        )


def _table(table: Table, made: Callable[..., DataFrame], needs: tuple[str, ...], **more: Any) -> Step:
    return Step(table.name, table.schema, made, needs, is_table=True, **more)


def _noted(*kinds: type[Event]) -> Mapping[str, pc.Expression]:
    """That there is a note of one of these kinds."""
    return {"notes": pc.field("kind").isin([kind.__name__ for kind in kinds])}


_ABOUT_MESSAGES = _noted(SendCompleted, AttemptFailed, MessageMoved, MessageDeadLettered, MessageDelivered)
_CONTINUITY = {
    "notes": (pc.field("kind") == ReceiverChanged.__name__) | (pc.field("continuity") != "[]"),
    "traffic": pc.field("outcome") == FROM_LANE,
}
_DIVERTED = _noted(SendCompleted, MessageMoved, MessageDeadLettered)
_MOVED = _noted(MessageMoved, MessageDeadLettered)

STEPS: tuple[Step, ...] = (
    Step("holes", HOLES, holes, ("minutes", "notes"), ("patience", "unread", "unfinished"), "first"),
    # The messages are made when they are first read.
    Step("arrivals", ARRIVALS, arrivals, ("messages",), small=False),
    _table(PROCESSES, processes, ("minutes", "notes"), settings=("patience",), group="first"),
    Step("blind", BLIND, blind_minutes, ("arrivals", "holes"), ("patience",), "second"),
    Step("places", PLACES, places, ("arrivals", "traffic", "notes", "holes", "processes"), ("patience",), "second"),
    Step("troubles", TROUBLES, troubles, ("notes", "holes"), ("patience",), "second", only_with=_ABOUT_MESSAGES),
    # No step needs one of these: they are made while a processor would wait for the others.
    _table(EPISODES, episodes, ("notes", "processes"), group="beside", only_with=_noted(StateChanged)),
    _table(BACKLOG, backlog, ("notes", "minutes"), group="beside", only_with=_DIVERTED),
    _table(SYPHON, syphon, ("notes",), group="beside", only_with=_MOVED),
    _table(ROTATION, rotation, ("notes", "minutes"), group="beside", only_with=_noted(RotationChanged)),
    _table(CONSUMERS, consumers, ("traffic", "notes", "minutes"), group="beside", only_with=_CONTINUITY),
    _table(COST, cost, ("traffic", "operations", "notes"), settings=("prices",), group="beside"),
    Step("late", LATE, late, ("messages", "troubles", "places", "notes"), small=False),
    _table(
        RECONCILIATION,
        reconciliation,
        ("messages", "notes", "names", "places", "troubles", "late", "blind", "processes"),
        settings=("patience",),
        small=False,
    ),
    _table(ORDER, order, ("reconciliation", "arrivals", "places", "names"), group="last", small=False),
    _table(OBSERVATION, OBSERVATION.of, ("places",), group="last", small=False),
    # It reads more rows than those beside, which Spark interprets as long as they are few.
    _table(AVAILABILITY, availability, ("latencies", "notes"), group="last", small=False),
)
