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
from pairmq.pipeline.transforms.facts import minutes, traffic
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
from pairmq.pipeline.transforms.traffic import AVAILABILITY, COST, availability, cost, sample_rates

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
    """

    name: str
    schema: StructType
    needs: tuple[str, ...]
    make: Callable[[Frames, Settings], DataFrame]
    is_table: bool
    group: str | None


_Make = Callable[[Frames, Settings], DataFrame]


def _between(name: str, schema: StructType, needs: tuple[str, ...], make: _Make, *, group: str | None = None) -> Step:
    return Step(name, schema, needs, make, is_table=False, group=group)


def _table(table: Table, needs: tuple[str, ...], make: _Make, *, group: str | None = None) -> Step:
    return Step(table.name, table.schema, needs, make, is_table=True, group=group)


STEPS: tuple[Step, ...] = (
    _between(
        "holes",
        HOLES,
        ("counts", "notes"),
        lambda f, s: holes(
            minutes(f["counts"]), f["notes"], patience=s.patience, unread=s.unread, unfinished=s.unfinished
        ),
        group="first",
    ),
    _between("arrivals", ARRIVALS, ("messages",), lambda f, s: arrivals(f["messages"]), group="first"),
    _table(
        PROCESSES,
        ("counts", "notes"),
        lambda f, s: processes(minutes(f["counts"]), f["notes"], patience=s.patience),
        group="first",
    ),
    _table(
        AVAILABILITY,
        ("counts", "notes"),
        lambda f, s: availability(traffic(f["counts"]), sample_rates(f["notes"])),
        group="first",
    ),
    _table(BACKLOG, ("notes", "counts"), lambda f, s: backlog(f["notes"], minutes(f["counts"])), group="first"),
    _table(SYPHON, ("notes",), lambda f, s: syphon(f["notes"]), group="first"),
    _table(ROTATION, ("notes", "counts"), lambda f, s: rotation(f["notes"], minutes(f["counts"])), group="first"),
    _table(
        COST,
        ("counts", "notes"),
        lambda f, s: cost(traffic(f["counts"]), f["notes"], primary=s.primary, secondary=s.secondary),
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
        ("arrivals", "counts", "notes", "holes", "processes"),
        lambda f, s: places(f["arrivals"], f["counts"], f["notes"], f["holes"], f["processes"], patience=s.patience),
        group="second",
    ),
    _between(
        "troubles",
        TROUBLES,
        ("notes", "holes"),
        lambda f, s: troubles(f["notes"], f["holes"], patience=s.patience),
        group="second",
    ),
    _table(EPISODES, ("notes", "processes"), lambda f, s: episodes(f["notes"], f["processes"]), group="second"),
    _between(
        "late",
        LATE,
        ("messages", "troubles", "places", "notes"),
        lambda f, s: late(f["messages"], f["troubles"], f["places"], f["notes"]),
    ),
    _table(
        RECONCILIATION,
        ("messages", "counts", "places", "troubles", "notes", "late", "blind", "processes"),
        lambda f, s: reconciliation(
            f["messages"],
            f["notes"],
            f["counts"],
            places=f["places"],
            troubles=f["troubles"],
            late=f["late"],
            blind=f["blind"],
            processes=f["processes"],
            patience=s.patience,
        ),
    ),
    _table(
        ORDER,
        ("reconciliation", "arrivals", "places", "counts"),
        lambda f, s: order(f["reconciliation"], f["arrivals"], f["places"], f["counts"]),
        group="last",
    ),
    _table(OBSERVATION, ("places",), lambda f, s: OBSERVATION.of(f["places"]), group="last"),
)

__all__ = ["STEPS", "Frames", "Settings", "Step", "Unfinished", "Unread"]
