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
    strays,
    troubles,
)
from pairmq.pipeline.transforms.traffic import AVAILABILITY, COST, availability, cost

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
    """

    name: str
    schema: StructType
    needs: tuple[str, ...]
    make: Callable[[Frames, Settings], DataFrame]
    is_table: bool


def _between(
    name: str, schema: StructType, needs: tuple[str, ...], make: Callable[[Frames, Settings], DataFrame]
) -> Step:
    return Step(name, schema, needs, make, is_table=False)


def _table(table: Table, needs: tuple[str, ...], make: Callable[[Frames, Settings], DataFrame]) -> Step:
    return Step(table.name, table.schema, needs, make, is_table=True)


STEPS: tuple[Step, ...] = (
    _between(
        "holes",
        HOLES,
        ("minutes", "notes"),
        lambda f, s: holes(f["minutes"], f["notes"], patience=s.patience, unread=s.unread, unfinished=s.unfinished),
    ),
    _between("arrivals", ARRIVALS, ("messages",), lambda f, s: arrivals(f["messages"])),
    _between(
        "blind",
        BLIND,
        ("arrivals", "holes"),
        lambda f, s: blind_minutes(f["arrivals"], f["holes"], patience=s.patience),
    ),
    _between(
        "places",
        PLACES,
        ("arrivals", "traffic", "notes", "minutes", "holes"),
        lambda f, s: places(f["arrivals"], f["traffic"], f["notes"], f["minutes"], f["holes"], patience=s.patience),
    ),
    _between(
        "troubles",
        TROUBLES,
        ("notes", "holes"),
        lambda f, s: troubles(f["notes"], f["holes"], patience=s.patience),
    ),
    _between(
        "late",
        LATE,
        ("messages", "troubles", "places", "notes"),
        lambda f, s: late(f["messages"], f["troubles"], f["places"], f["notes"]),
    ),
    _table(
        RECONCILIATION,
        ("messages", "copies", "names", "minutes", "places", "troubles", "notes", "late", "blind"),
        lambda f, s: reconciliation(
            f["messages"],
            f["copies"],
            f["names"],
            f["minutes"],
            places=f["places"],
            troubles=f["troubles"],
            strays=strays(f["notes"]),
            late=f["late"],
            blind=f["blind"],
            patience=s.patience,
        ),
    ),
    _table(PROCESSES, ("minutes", "notes"), lambda f, s: processes(f["minutes"], f["notes"], patience=s.patience)),
    _table(EPISODES, ("notes", "processes"), lambda f, s: episodes(f["notes"], f["processes"])),
    _table(AVAILABILITY, ("traffic", "notes"), lambda f, s: availability(f["traffic"], f["notes"])),
    _table(BACKLOG, ("notes", "minutes"), lambda f, s: backlog(f["notes"], f["minutes"])),
    _table(SYPHON, ("notes",), lambda f, s: syphon(f["notes"])),
    _table(ROTATION, ("notes", "minutes"), lambda f, s: rotation(f["notes"], f["minutes"])),
    _table(
        ORDER,
        ("reconciliation", "arrivals", "places", "names"),
        lambda f, s: order(f["reconciliation"], f["arrivals"], f["places"], f["names"]),
    ),
    _table(
        COST,
        ("operations", "traffic", "notes"),
        lambda f, s: cost(f["operations"], f["traffic"], f["notes"], primary=s.primary, secondary=s.secondary),
    ),
    _table(OBSERVATION, ("places",), lambda f, s: OBSERVATION.of(f["places"])),
)

__all__ = ["STEPS", "Frames", "Settings", "Step", "Unfinished", "Unread"]
