"""What facts and tables are.

A fact is an associative digest of the journal's rows, and all that a table may be made of. A table's columns have their
meanings beside them: its schema and its documents are made from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F

TEXT, COUNT, NUMBER, FLAG = types.StringType(), types.LongType(), types.DoubleType(), types.BooleanType()


@dataclass(frozen=True, slots=True)
class Fact:
    """A digest of rows: for any partition of the rows, the parts' facts combine to those of all rows.

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


def schema_of(columns: Mapping[str, types.DataType]) -> types.StructType:
    """A schema of columns that may be null."""
    return types.StructType([types.StructField(name, type_, True) for name, type_ in columns.items()])


def typed(frame: DataFrame, schema: types.StructType) -> DataFrame:
    """Exactly a schema's columns."""
    return frame.select(*(F.col(each.name).cast(each.dataType).alias(each.name) for each in schema))


_TYPES: dict[str, types.DataType] = {
    "text": types.StringType(),
    "count": types.LongType(),
    "number": types.DoubleType(),
    "yes or no": types.BooleanType(),
    "instant": types.TimestampType(),
    "day": types.DateType(),
    "money": types.DecimalType(28, 4),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a table.

    Args:
        name: the column's.
        type: one of ``text``, ``count``, ``number``, ``yes or no``, ``instant``, ``day``, ``money``.
        meaning: a line for the reference; durations are in seconds.
        usual: the value that is left out, null standing for it, in SQL over the table's columns; empty where null means
            what it says. To write a value of every row is much of what a large table costs.
    """

    name: str
    type: str
    meaning: str
    usual: str = ""

    @property
    def described(self) -> str:
        """The meaning, and what null stands for."""
        return f"{self.meaning}; null: `{self.usual}`" if self.usual else self.meaning


@dataclass(frozen=True, slots=True)
class Table:
    """A table that the pipeline writes.

    Args:
        name: of the table, and of the directory that holds it.
        row: the meaning of one row.
        fields: its columns in order.
    """

    name: str
    row: str
    fields: tuple[Field, ...]

    @property
    def schema(self) -> types.StructType:
        """The table's schema; every column may be null."""
        return types.StructType([types.StructField(each.name, _TYPES[each.type], True) for each in self.fields])

    def in_full(self, source: str) -> str:
        """Give the query that fills in what is left out.

        Args:
            source: what SQL calls the table as it was written.
        """
        fields = self.fields
        columns = (
            f"coalesce({each.name}, {each.usual}) AS {each.name}" if each.usual else each.name for each in fields
        )
        return f"SELECT {', '.join(columns)} FROM {source}"  # noqa: S608  # its own columns

    def of(self, frame: DataFrame) -> DataFrame:
        """Give exactly the table's columns, in order and of their types.

        Args:
            frame: has all of them; instants are seconds since 1970 UTC.
        """
        return frame.select(*(self._cast(each, frame).alias(each.name) for each in self.fields))

    @staticmethod
    def _cast(field: Field, frame: DataFrame) -> Column:
        column = F.col(field.name)
        if field.usual:
            column = F.when(~column.eqNullSafe(F.expr(field.usual)), column)
        if field.type == "instant":
            # A cast would cut the last microsecond off, and `round` goes through decimal digits.
            return F.timestamp_micros(F.rint(column * 1_000_000).cast("long"))
        return column.cast(_TYPES[field.type])
