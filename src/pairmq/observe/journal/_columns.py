"""Events as Arrow columns: a batch at a time, and nothing done for a row that can be done for a column.

This runs beside the sends of the process, under the same interpreter lock: every microsecond a row is one that a send
waits. A value that all rows share is converted once, a column that none of them has is left out, and message ids are
hashed without a loop where they are PairMQ's own. The table's schema comes first.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pairmq.model.events import Event
from pairmq.model.records import COLUMNS, FIELDS, ColumnType, message_key

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

ARROW_FIELDS: dict[str, pa.Field] = {
    column.name: pa.field(column.name, TYPES[column.type], nullable=column.nullable) for column in COLUMNS
}
"""The fields by name."""

UNIQUE = ("message_id", "options", "text", "description")
"""Texts that hardly ever repeat: a dictionary of them would only be in the way."""


@functools.cache
def arrow_schema() -> pa.Schema:
    """Give the schema of every segment, made from `pairmq.model.records.COLUMNS`."""
    return pa.schema([ARROW_FIELDS[column.name] for column in COLUMNS])


_MOST = 2**63 - 1
_CODES = {pa.int64(): "q", pa.float64(): "d"}


def batch_of(rows: Sequence[Event], first_seq: int, clock: float | None = None) -> pa.RecordBatch:
    """Make the columns of at least one row, without ``process`` and those that are null in all rows."""
    alike = len(set(map(type, rows))) == 1
    columns = _columns_of(type(rows[0]), rows) if alike else _mixed(rows)
    columns["seq"] = _numbers(range(first_seq, first_seq + len(rows)), pa.int64())
    if clock is not None:
        columns["clock"] = pa.repeat(pa.scalar(clock), len(rows))
    return pa.record_batch(
        list(columns.values()), schema=pa.schema([ARROW_FIELDS[name].with_nullable(True) for name in columns])
    )


def _mixed(rows: Sequence[Event]) -> dict[str, pa.Array]:
    """Rows of several kinds: the columns of each kind by themselves, then put into the rows' order."""
    by_kind: dict[type[Event], list[int]] = {}
    for index, row in enumerate(rows):
        by_kind.setdefault(type(row), []).append(index)
    parts = [(len(places), _columns_of(kind, [rows[place] for place in places])) for kind, places in by_kind.items()]
    order = [0] * len(rows)
    for position, place in enumerate(place for places in by_kind.values() for place in places):
        order[place] = position
    indices = pa.array(order, pa.int64())
    names = dict.fromkeys(name for _, columns in parts for name in columns)
    whole = {}
    for name in names:
        logical = ARROW_FIELDS[name].type
        chunks = [columns.get(name) for _, columns in parts]
        filled = [pa.nulls(size, logical) if c is None else c for c, (size, _) in zip(chunks, parts, strict=True)]
        whole[name] = pa.concat_arrays(filled).take(indices)
    return whole


_ATTRIBUTES = {kind: tuple(dict.fromkeys(field.name for field in its)) for kind, its in FIELDS.items()}


def _columns_of(kind: type[Event], rows: Sequence[Event]) -> dict[str, pa.Array]:
    names = _ATTRIBUTES[kind]
    by_name = dict(zip(names, zip(*map(attrgetter(*names), rows), strict=True), strict=True))
    size = len(rows)
    columns = {"kind": pa.repeat(pa.scalar(kind.__name__), size)}
    for field in FIELDS[kind]:
        values: Sequence[Any] = by_name[field.name]
        first = values[0]
        # Comparing the last one first finds most varying columns without a full scan.
        if values[-1] is first and values.count(first) == size:
            if first is not None:
                value = first if field.part is None else getattr(first, field.part)
                columns[field.column] = _repeated(value, size, ARROW_FIELDS[field.column].type)
            continue
        if field.part is not None:
            values = [None if value is None else getattr(value, field.part) for value in values]
        if field.column == "message_id":
            columns["message_id"], columns["message_key"] = ids_and_keys(values)
        else:
            columns[field.column] = _array(values, ARROW_FIELDS[field.column].type)
    if "message_id" in columns and "message_key" not in columns:
        ids = columns["message_id"]
        columns["message_key"] = pa.repeat(pa.scalar(message_key(ids[0].as_py()), pa.int64()), size)
    return columns


def ids_and_keys(ids: Sequence[str | None]) -> tuple[pa.Array, pa.Array]:
    """Both columns, without a loop for PairMQ's own ids: joined they are the bytes, as numbers the hashes."""
    text, raw = _joined(ids)
    if not raw:
        return _array(ids, pa.string()), pa.array(map(message_key, ids), pa.int64())
    size = len(ids)
    ends = pa.py_buffer(array("i", range(0, 32 * size + 1, 32)))
    column = pa.Array.from_buffers(pa.string(), size, [None, ends, pa.py_buffer(text.encode())])
    numbers = pa.Array.from_buffers(pa.int64(), 2 * size, [None, pa.py_buffer(raw)])
    halves = pa.FixedSizeListArray.from_arrays(numbers, 2)
    return column, pc.bit_wise_xor(pc.list_element(halves, 0), pc.list_element(halves, 1))


def _joined(ids: Sequence[str | None]) -> tuple[str, bytes]:
    """All ids as one text, and its bytes, if each is of 32 lower-case hexadecimal digits."""
    try:
        text = "".join(ids)  # type: ignore[arg-type]  # None raises
        if sys.byteorder == "little" and set(map(len, ids)) == {32} and text == text.lower():  # type: ignore[arg-type]
            raw = bytes.fromhex(text)
            return (text, raw) if len(raw) == 16 * len(ids) else ("", b"")  # it reads over spaces
    except (TypeError, ValueError):
        pass
    return "", b""


def _repeated(value: Any, size: int, logical: pa.DataType) -> pa.Array:
    if pa.types.is_list(logical):
        return _array(list(repeat(value, size)), logical)
    return pa.repeat(_array([value], logical)[0], size)


def _array(values: Sequence[Any], logical: pa.DataType) -> pa.Array:
    if logical in _CODES:
        try:
            return _numbers(values, logical)
        except (TypeError, OverflowError):
            pass  # one is null, or too large
    try:
        return pa.array(values, logical)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError, TypeError, ValueError):
        # One value that no column can hold must not cost the others of its batch their place.
        return pa.array([_fitting(value, logical) for value in values], logical)


def _numbers(values: Sequence[Any], logical: pa.DataType) -> pa.Array:
    """Numbers without nulls; in half the time that Arrow takes, which has to ask each one what it is."""
    return pa.Array.from_buffers(logical, len(values), [None, pa.py_buffer(array(_CODES[logical], values))])


def _fitting(value: Any, logical: pa.DataType) -> Any:
    """The nearest value that the column can hold; null without one."""
    if value is None:
        return None
    if pa.types.is_string(logical):
        return str(value).encode("utf-8", "replace").decode()
    if pa.types.is_list(logical):
        return [str(entry).encode("utf-8", "replace").decode() for entry in value]
    if pa.types.is_boolean(logical):
        return bool(value)
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if pa.types.is_floating(logical) else max(-_MOST, min(_MOST, int(value)))
    except (OverflowError, ValueError):
        return None
