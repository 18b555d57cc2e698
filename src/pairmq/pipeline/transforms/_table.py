"""What a table is: its columns with their meanings, from which its schema and its documents are made."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F

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
    """

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table that the pipeline writes.

    Args:
        name: of the table, and of the directory that holds it.
        row: what one row stands for.
        fields: its columns in order.
    """

    name: str
    row: str
    fields: tuple[Field, ...]

    @property
    def schema(self) -> types.StructType:
        """The table's schema; every column may be null."""
        return types.StructType([types.StructField(each.name, _TYPES[each.type], True) for each in self.fields])

    def of(self, frame: DataFrame) -> DataFrame:
        """Give exactly the table's columns, in order and of their types.

        Args:
            frame: has all of them; instants are seconds since 1970 UTC.
        """
        return frame.select(*(self._cast(each, frame).alias(each.name) for each in self.fields))

    @staticmethod
    def _cast(field: Field, frame: DataFrame) -> Column:
        column = F.col(field.name)
        if field.type == "instant":
            # A cast would cut the last microsecond off, and `round` goes through decimal digits.
            return F.timestamp_micros(F.rint(column * 1_000_000).cast("long"))
        return column.cast(_TYPES[field.type])
