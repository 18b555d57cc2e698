"""The journal's rows as Spark and Arrow know them, both made of `pairmq.model.records.COLUMNS`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types

from pairmq.model.records import COLUMNS, ColumnType

_SPARK: dict[ColumnType, types.DataType] = {
    "string": types.StringType(),
    "int64": types.LongType(),
    "float64": types.DoubleType(),
    "bool": types.BooleanType(),
    "list<string>": types.ArrayType(types.StringType(), containsNull=False),
}

_PREDICATES = {
    "string": lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_),
    "int64": pa.types.is_int64,
    "float64": pa.types.is_float64,
    "bool": pa.types.is_boolean,
    "list<string>": lambda type_: pa.types.is_list(type_) and pa.types.is_string(type_.value_type),
}

_ARROW: dict[types.DataType, Any] = {
    types.StringType(): pa.string(),
    types.BinaryType(): pa.binary(),
    types.IntegerType(): pa.int32(),
    types.LongType(): pa.int64(),
    types.DoubleType(): pa.float64(),
    types.BooleanType(): pa.bool_(),
    types.TimestampType(): pa.timestamp("us", "UTC"),
}

REQUIRED = tuple(column.name for column in COLUMNS if not column.nullable)
"""The columns that every segment has; one that lacks another is of an earlier version, and has null there."""


def rows_schema() -> types.StructType:
    """Give the schema that segments are read with."""
    return types.StructType(
        [types.StructField(column.name, _SPARK[column.type], column.nullable) for column in COLUMNS]
    )


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """Give a schema of Spark's as Arrow has it, instants in UTC: PySpark's function for that differs by version."""
    return pa.schema([(field.name, _arrow_type(field.dataType)) for field in schema])


def _arrow_type(of: types.DataType) -> Any:
    if isinstance(of, types.StructType):
        return pa.struct([*arrow_schema(of)])
    if isinstance(of, types.ArrayType):
        return pa.list_(_arrow_type(of.elementType))
    if isinstance(of, types.MapType):
        return pa.map_(_arrow_type(of.keyType), _arrow_type(of.valueType))
    if isinstance(of, types.DecimalType):
        return pa.decimal128(of.precision, of.scale)
    return _ARROW[of]


def schema_problem(found: pa.Schema) -> str | None:
    """Return why a file of this schema is not a segment; None if it is one."""
    names = set(found.names)
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        return f"it is not a segment of a journal: it has no column {missing[0]}"
    for column in COLUMNS:
        if column.name not in names:
            continue
        type_ = found.field(column.name).type
        plain = type_.value_type if pa.types.is_dictionary(type_) else type_
        if not _PREDICATES[column.type](plain):
            return f"its column {column.name} is {type_}, not {column.type}"
    return None
