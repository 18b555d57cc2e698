"""What facts and tables are.

A fact is an associative digest of the journal's rows, and all that a table may be made of. A table's columns have their
meanings beside them: its schema and its documents are made from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, types

TEXT, COUNT, NUMBER, FLAG = types.StringType(), types.LongType(), types.DoubleType(), types.BooleanType()


@dataclass(frozen=True, slots=True)
class Fact:
    """A digest of rows: for any partition of the rows, the parts' facts combine to those of all rows."""

    name: str  # of the directory, or the view, that holds it
    schema: types.StructType  # its columns; each may be null
    of: Callable[[DataFrame], DataFrame]  # the facts of some rows, each of which is given once
    # The facts of all rows from the union of the facts of parts. It may be given any part's facts, merged ones too, but
    # none twice.
    merged: Callable[[DataFrame], DataFrame]


def schema_of(columns: Mapping[str, types.DataType]) -> types.StructType:
    """A schema of columns that may be null."""
    return types.StructType([types.StructField(name, type_, True) for name, type_ in columns.items()])


def typed(frame: DataFrame, schema: types.StructType) -> DataFrame:
    """Exactly a schema's columns.

    In SQL, as all that is said of many columns: from Python each part of an expression takes several calls of Java.
    """
    return frame.selectExpr(*(f"CAST({each.name} AS {each.dataType.simpleString()}) AS {each.name}" for each in schema))


_TYPES: dict[str, types.DataType] = {
    "text": types.StringType(),
    "count": types.LongType(),
    "number": types.DoubleType(),
    "yes or no": types.BooleanType(),
    "instant": types.TimestampType(),
    "day": types.DateType(),
    "money": types.DecimalType(28, 4),
}


EVIDENCE = "evidence"
"""The column that holds what few rows have; null in all others."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a table."""

    name: str
    type: str  # one of the keys of `_TYPES`
    meaning: str  # a line for the reference; durations are in seconds
    # What holds of a row without evidence, in SQL over the table's columns; empty for a column that every row has. To
    # write a value of every row is much of what a large table costs.
    usual: str = ""

    @property
    def column(self) -> str:
        """What to ask the table for."""
        return f"{EVIDENCE}.{self.name}" if self.usual else self.name

    @property
    def described(self) -> str:
        """The meaning, and what holds without evidence."""
        return f"{self.meaning}; without: `{self.usual}`" if self.usual else self.meaning


@dataclass(frozen=True, slots=True)
class Table:
    """A table that the pipeline writes."""

    name: str  # of the table, and of the directory that holds it
    row: str  # the meaning of one row
    fields: tuple[Field, ...]  # its columns in order; those with something usual are in one more column, `EVIDENCE`

    @property
    def schema(self) -> types.StructType:
        plain, apart = self._divided()
        columns = {each.name: _TYPES[each.type] for each in plain}
        evidence = schema_of({each.name: _TYPES[each.type] for each in apart})
        return schema_of({**columns, EVIDENCE: evidence} if apart else columns)

    def in_full(self, source: str) -> str:
        """Give the query that has a column of each field, also where there is no evidence.

        Args:
            source: what SQL calls the table as it was written.
        """
        columns = (
            f"CASE WHEN {EVIDENCE} IS NULL THEN {each.usual} ELSE {each.column} END AS {each.name}"
            if each.usual
            else each.name
            for each in self.fields
        )
        return f"SELECT {', '.join(columns)} FROM {source}"  # noqa: S608  # its own columns

    def of(self, frame: DataFrame, has_evidence: str = "", *, usual: bool = False) -> DataFrame:
        """Give exactly the table's columns, in order and of their types; instants come as seconds since 1970 UTC.

        Which rows have evidence is said in SQL. What is ``usual`` has none, and may lack those columns.
        """
        plain, apart = self._divided()
        columns = [_cast(each) for each in plain]
        if apart and (usual or has_evidence):
            type_ = self.schema[EVIDENCE].dataType.simpleString()
            evidence = "NULL" if usual else f"struct({', '.join(map(_cast, apart))})"
            columns.append(f"CAST(CASE WHEN {has_evidence or 'true'} THEN {evidence} END AS {type_}) AS {EVIDENCE}")
        return frame.selectExpr(*columns)

    def _divided(self) -> tuple[list[Field], list[Field]]:
        return [each for each in self.fields if not each.usual], [each for each in self.fields if each.usual]


def _cast(field: Field) -> str:
    if field.type == "instant":
        # A cast would cut the last microsecond off, and `round` goes through decimal digits.
        return f"timestamp_micros(CAST(rint({field.name} * 1000000) AS bigint)) AS {field.name}"
    return f"CAST({field.name} AS {_TYPES[field.type].simpleString()}) AS {field.name}"
