"""Small questions about the journal's rows, asked by several tables."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from pairmq.model.events import Event, SendCompleted, SendOutcome

HOUR, MINUTE, DAY = 3600, 60, 86_400
"""Seconds."""

SLACK = 1.0
"""Seconds by which the clocks of two machines may differ."""


EARLIEST, LATEST = 1_577_836_800.0, 4_102_444_800.0
"""2020 and 2100: an event of PairMQ was between the two, or the clock that dated it was wrong."""


def dated() -> Column:
    """Whether a row has an instant that can be; one that is no number is none."""
    return F.col("at").between(EARLIEST, LATEST)


def of_kind(*kinds: type[Event]) -> Column:
    """Whether a row is an event of one of these kinds."""
    return F.col("kind").isin([kind.__name__ for kind in kinds])


def ended_as(outcome: SendOutcome) -> Column:
    """Whether a row is a send that ended so."""
    return of_kind(SendCompleted) & (F.col("outcome") == outcome.value)


def how_many(condition: Column) -> Column:
    """Count the rows of a group for which something holds."""
    return F.sum(F.when(condition, 1).otherwise(0))


def first_at(condition: Column) -> Column:
    """The earliest instant of a group's rows for which something holds."""
    return F.min(F.when(condition, F.col("at")))


def last_at(condition: Column) -> Column:
    """The latest instant of a group's rows for which something holds."""
    return F.max(F.when(condition, F.col("at")))


def start_of(seconds: int) -> Column:
    """The start of the hour, minute or day that a row is in, as seconds since 1970 UTC."""
    return F.floor(F.col("at") / seconds) * seconds


def place() -> Column:
    """A number for the entity of a pair that a row is about."""
    return F.xxhash64("pair", "entity")
