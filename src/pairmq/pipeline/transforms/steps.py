"""How every table is made of facts: steps in an order in which each finds what it needs.

A step that is not a table is read by several others. The runner of the steps materializes each before the next one
reads it: Spark would otherwise compute it again for each reader, and could not see how small it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pairmq.model import ConfigurationError, Price
from pairmq.pipeline.transforms._fact import Table
from pairmq.pipeline.transforms.backlog import BACKLOG, ROTATION, SYPHON, backlog, rotation, syphon
from pairmq.pipeline.transforms.episodes import EPISODES, episodes
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
        if not self.patience >= 0:
            raise ConfigurationError(f"patience is {self.patience!r}: it must be 0 seconds or more")


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

    def make(self, frames: Mapping[str, DataFrame], settings: Settings) -> DataFrame:
        return self.made(
            *(frames[name] for name in self.needs), **{name: getattr(settings, name) for name in self.settings}
        )


def _table(
    table: Table,
    made: Callable[..., DataFrame],
    needs: tuple[str, ...],
    settings: tuple[str, ...] = (),
    group: str | None = None,
    small: bool = True,
) -> Step:
    return Step(table.name, table.schema, made, needs, settings, group, small, is_table=True)


STEPS: tuple[Step, ...] = (
    Step("holes", HOLES, holes, ("minutes", "notes"), ("patience", "unread", "unfinished"), "first"),
    # The messages are made when they are first read.
    Step("arrivals", ARRIVALS, arrivals, ("messages",), small=False),
    _table(PROCESSES, processes, ("minutes", "notes"), ("patience",), "first"),
    Step("blind", BLIND, blind_minutes, ("arrivals", "holes"), ("patience",), "second"),
    Step("places", PLACES, places, ("arrivals", "traffic", "notes", "holes", "processes"), ("patience",), "second"),
    Step("troubles", TROUBLES, troubles, ("notes", "holes"), ("patience",), "second"),
    # No step needs one of these: they are made while a processor would wait for the others.
    _table(EPISODES, episodes, ("notes", "processes"), (), "beside"),
    _table(BACKLOG, backlog, ("notes", "minutes"), (), "beside"),
    _table(SYPHON, syphon, ("notes",), (), "beside"),
    _table(ROTATION, rotation, ("notes", "minutes"), (), "beside"),
    _table(AVAILABILITY, availability, ("traffic", "notes"), (), "beside"),
    _table(CONSUMERS, consumers, ("traffic", "notes", "minutes"), (), "beside"),
    _table(COST, cost, ("traffic", "notes"), ("prices",), "beside"),
    Step("late", LATE, late, ("messages", "troubles", "places", "notes"), small=False),
    _table(
        RECONCILIATION,
        reconciliation,
        ("messages", "notes", "names", "places", "troubles", "late", "blind", "processes"),
        ("patience",),
        small=False,
    ),
    _table(ORDER, order, ("reconciliation", "arrivals", "places", "names"), (), "last", small=False),
    _table(OBSERVATION, OBSERVATION.of, ("places",), (), "last", small=False),
)
