"""How every table is made of facts: steps in an order in which each finds what it needs.

A step that is not a table is read by several others. The runner of the steps materializes each before the next one
reads it: Spark would otherwise compute it again for each reader, and could not see how small it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pairmq.model import Price
from pairmq.pipeline.transforms._fact import Table
from pairmq.pipeline.transforms.backlog import BACKLOG, ROTATION, SYPHON, backlog, rotation, syphon
from pairmq.pipeline.transforms.episodes import EPISODES, episodes
from pairmq.pipeline.transforms.order import LATE, ORDER, late, order
from pairmq.pipeline.transforms.places import ARRIVALS, BLIND, PLACES, arrivals, blind_minutes, places
from pairmq.pipeline.transforms.processes import HOLES, PROCESSES, Unfinished, Unread, holes, processes
from pairmq.pipeline.transforms.reconciliation import (
    OBSERVATION,
    RECONCILIATION,
    TROUBLES,
    reconciliation,
    troubles,
)
from pairmq.pipeline.transforms.traffic import (
    AVAILABILITY,
    CONSUMERS,
    COST,
    availability,
    consumers,
    cost,
    sample_rates,
)

Frames = Mapping[str, DataFrame]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the tables depend on beside the journal.

    Args:
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost, and that
            the journal of its machine must go on after a process's last row for it to count as killed.
        primary: its prices; free when left out.
        secondary: likewise.
        unread: the files of the journal that are not read.
        unfinished: the parts of the journal that are not yet segments.
    """

    patience: float = 300.0
    primary: Price | None = None
    secondary: Price | None = None
    unread: tuple[Unread, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One table, or something in between.

    Args:
        name: the table's, or its own; no fact has the same.
        schema: of what it makes.
        needs: names of facts and of earlier steps.
        make: given what it needs by name; computes nothing yet.
        is_table: whether a run writes it for its readers.
        group: those of one group need nothing of each other, and are made by one query; None for one of its own.
        small: what it is made of grows with time and faults, not with messages.
    """

    name: str
    schema: StructType
    needs: tuple[str, ...]
    make: Callable[[Frames, Settings], DataFrame]
    is_table: bool
    group: str | None
    small: bool = True


_Make = Callable[[Frames, Settings], DataFrame]


def _between(name: str, schema: StructType, needs: tuple[str, ...], make: _Make, *, group: str | None = None) -> Step:
    return Step(name, schema, needs, make, is_table=False, group=group)


def _table(table: Table, needs: tuple[str, ...], make: _Make, *, group: str | None = None, small: bool = True) -> Step:
    return Step(table.name, table.schema, needs, make, True, group, small)


STEPS: tuple[Step, ...] = (
    _between(
        "holes",
        HOLES,
        ("minutes", "notes"),
        lambda f, s: holes(f["minutes"], f["notes"], patience=s.patience, unread=s.unread, unfinished=s.unfinished),
        group="first",
    ),
    # The messages are made when they are first read.
    Step("arrivals", ARRIVALS, ("messages",), lambda f, s: arrivals(f["messages"]), False, None, small=False),
    _table(
        PROCESSES,
        ("minutes", "notes"),
        lambda f, s: processes(f["minutes"], f["notes"], patience=s.patience),
        group="first",
    ),
    _between(
        "blind",
        BLIND,
        ("arrivals", "holes"),
        lambda f, s: blind_minutes(f["arrivals"], f["holes"], patience=s.patience),
        group="second",
    ),
    _between(
        "places",
        PLACES,
        ("arrivals", "traffic", "notes", "holes", "processes"),
        lambda f, s: places(f["arrivals"], f["traffic"], f["notes"], f["holes"], f["processes"], patience=s.patience),
        group="second",
    ),
    _between(
        "troubles",
        TROUBLES,
        ("notes", "holes"),
        lambda f, s: troubles(f["notes"], f["holes"], patience=s.patience),
        group="second",
    ),
    # No step needs one of these: they are made while a processor would wait for the others.
    _table(EPISODES, ("notes", "processes"), lambda f, s: episodes(f["notes"], f["processes"]), group="beside"),
    _table(BACKLOG, ("notes", "minutes"), lambda f, s: backlog(f["notes"], f["minutes"]), group="beside"),
    _table(SYPHON, ("notes",), lambda f, s: syphon(f["notes"]), group="beside"),
    _table(ROTATION, ("notes", "minutes"), lambda f, s: rotation(f["notes"], f["minutes"]), group="beside"),
    _table(
        AVAILABILITY,
        ("traffic", "notes"),
        lambda f, s: availability(f["traffic"], sample_rates(f["notes"])),
        group="beside",
    ),
    _table(
        CONSUMERS,
        ("traffic", "notes", "minutes"),
        lambda f, s: consumers(f["traffic"], f["notes"], f["minutes"]),
        group="beside",
    ),
    _table(
        COST,
        ("traffic", "notes"),
        lambda f, s: cost(f["traffic"], f["notes"], primary=s.primary, secondary=s.secondary),
        group="beside",
    ),
    Step(
        "late",
        LATE,
        ("messages", "troubles", "places", "notes"),
        lambda f, s: late(f["messages"], f["troubles"], f["places"], f["notes"]),
        False,
        None,
        small=False,
    ),
    _table(
        RECONCILIATION,
        ("messages", "names", "places", "troubles", "notes", "late", "blind", "processes"),
        lambda f, s: reconciliation(
            f["messages"],
            f["notes"],
            f["names"],
            places=f["places"],
            troubles=f["troubles"],
            late=f["late"],
            blind=f["blind"],
            processes=f["processes"],
            patience=s.patience,
        ),
        small=False,
    ),
    _table(
        ORDER,
        ("reconciliation", "arrivals", "places", "names"),
        lambda f, s: order(f["reconciliation"], f["arrivals"], f["places"], f["names"]),
        group="last",
        small=False,
    ),
    _table(OBSERVATION, ("places",), lambda f, s: OBSERVATION.of(f["places"]), group="last", small=False),
)

__all__ = ["STEPS", "Frames", "Settings", "Step", "Unfinished", "Unread"]
