"""The table's schema, as Arrow has it."""

from __future__ import annotations

import functools

import pyarrow as pa

from pairmq.model.records import COLUMNS, ColumnType

# The first value that Arrow is given makes it look for pandas, with imports that fail while the interpreter ends: the
# journal of a short program may be written only then. And no send shall wait for them.
pa.scalar("")

TYPES: dict[ColumnType, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "list<string>": pa.list_(pa.field("element", pa.string(), nullable=False)),
}

FIELDS: dict[str, pa.Field] = {
    column.name: pa.field(column.name, TYPES[column.type], nullable=column.nullable) for column in COLUMNS
}
"""The fields by name."""

UNIQUE = ("message_id", "options", "text", "description")
"""Texts that hardly ever repeat: a dictionary of them would only be in the way."""


@functools.cache
def arrow_schema() -> pa.Schema:
    """Give the schema of every segment, made from `pairmq.model.records.COLUMNS`."""
    return pa.schema([FIELDS[column.name] for column in COLUMNS])
