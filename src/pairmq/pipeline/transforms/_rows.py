"""Small questions about the journal's rows, asked by several tables."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import Event, JournalOpened, SendCompleted, SendOutcome

HOUR, MINUTE, DAY = 3600, 60, 86_400
"""Seconds."""


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


def may_be_sampled() -> Column:
    """Whether a send's row stands for others too, where its process keeps only a part of the healthy ones."""
    return (
        ended_as(SendOutcome.PRIMARY)
        & (F.col("state") == "healthy")
        & (F.col("attempts") == 1)
        & ~F.col("maybe_duplicate")
    )


def sample_rates(rows: DataFrame) -> DataFrame:
    """Give the part of healthy sends that each process keeps: one row for each that keeps less than all of them."""
    opened = rows.filter(of_kind(JournalOpened) & (F.col("sample_healthy") < 1) & (F.col("sample_healthy") > 0))
    return opened.groupBy("process").agg(F.min("sample_healthy").alias("rate"))
