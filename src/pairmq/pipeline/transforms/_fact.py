"""What a fact is: an associative digest of the journal's rows, and all that a table may be made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F

TEXT, COUNT, NUMBER, FLAG = types.StringType(), types.LongType(), types.DoubleType(), types.BooleanType()

_JOINS = {"sum": F.sum, "min": F.min, "max": F.max}


@dataclass(frozen=True, slots=True)
class Fact:
    """A digest of rows: whatever parts the rows are cut into, the parts' facts together are those of all rows.

    Args:
        name: of the directory, or the view, that holds it.
        schema: its columns; each may be null.
        of: the facts of some rows, each of which is given once.
        merged: the facts of all rows from the union of the facts of parts. It may be given any part's facts, merged
            ones too, but none twice.
    """

    name: str
    schema: types.StructType
    of: Callable[[DataFrame], DataFrame]
    merged: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that a digest knows of each key.

    Args:
        type: of its column.
        joined: how rows, and parts, are put together.
        value: what one row tells; None leaves it as it is.
    """

    type: types.DataType
    joined: Literal["sum", "min", "max"]
    value: Callable[[], Column]


def schema_of(columns: Mapping[str, types.DataType]) -> types.StructType:
    """A schema of columns that may be null."""
    return types.StructType([types.StructField(name, type_, True) for name, type_ in columns.items()])


def typed(frame: DataFrame, schema: types.StructType) -> DataFrame:
    """Exactly a schema's columns."""
    return frame.select(*(F.col(each.name).cast(each.dataType).alias(each.name) for each in schema))


def digest(
    name: str,
    prepared: Callable[[DataFrame], DataFrame],
    keys: Mapping[str, types.DataType],
    measures: Mapping[str, Measure],
    *,
    spread_by: str | None = None,
) -> Fact:
    """Make a fact that has one row for each key.

    Args:
        name: of the fact.
        prepared: the rows that count, with the keys among their columns.
        keys: columns that are the key.
        measures: what is known of each key.
        spread_by: one of the keys, where nearly every row has a key of its own. Rows are then sent to where their key
            is put together before anything is added up: adding up first would keep all of them in memory for nothing.
    """
    schema = schema_of({**keys, **{each: measure.type for each, measure in measures.items()}})

    def together(frame: DataFrame, values: Mapping[str, Column]) -> DataFrame:
        near = frame if spread_by is None else frame.repartition(spread_by)
        if not measures:
            return typed(near.select(*keys).distinct(), schema)
        joined = (_JOINS[measures[each].joined](value).alias(each) for each, value in values.items())
        return typed(near.groupBy(*keys).agg(*joined), schema)

    return Fact(
        name,
        schema,
        of=lambda rows: together(prepared(rows), {each: measure.value() for each, measure in measures.items()}),
        merged=lambda facts: together(facts, {each: F.col(each) for each in measures}),
    )
