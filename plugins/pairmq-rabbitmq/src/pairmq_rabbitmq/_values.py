"""Values of application properties as pamqp's types, and back: the tree of types holds what these can't express.

Properties that a broker would act on, or whose names are too long for a table, are in a header of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from pairmq.model import MAX_NESTING, PropertyValue
from pairmq_rabbitmq import _layout
from pairmq_rabbitmq._header import is_timestamp

_MAP = "map"

SIMPLE: Final = frozenset((str, int, bool, float, type(None)))
"""Types of received values that are application properties as they are."""

NATIVE: Final = SIMPLE | {Decimal}
"""Types of application properties that are sent as they are."""

INDEX: Final = re.compile(r"0|[1-9][0-9]{0,9}")
"""How the types' tree names an element of an array."""


def to_wire(value: PropertyValue) -> tuple[Any, Any]:
    """Convert a value to pamqp's types, with its entry in the types' tree; None if it needs none."""
    if type(value) in NATIVE:
        return value, None
    if isinstance(value, bytes):
        return bytearray(value), None
    if isinstance(value, datetime):
        return (value, None) if is_timestamp(value) else (value.isoformat(), "datetime")
    if isinstance(value, UUID):
        return str(value), "uuid"
    if isinstance(value, tuple):
        return _array_to_wire(value)
    assert isinstance(value, Mapping)  # noqa: S101  # for mypy; Message has checked it
    if all(map(_layout.fits_short, value)):
        return table_to_wire(value)
    array, node = pairs_to_wire(value)
    return array, {"": _MAP, **(node or {})}


def _array_to_wire(values: tuple[PropertyValue, ...]) -> tuple[list[Any], dict[str, Any] | None]:
    pairs = [to_wire(value) for value in values]
    nodes = {str(index): node for index, (_, node) in enumerate(pairs) if node is not None}
    return [value for value, _ in pairs], nodes or None


def table_to_wire(values: Mapping[str, PropertyValue]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Convert a mapping whose names fit a table to pamqp's types; otherwise as `to_wire`."""
    table: dict[str, Any] = {}
    nodes: dict[str, Any] = {}
    for name, value in values.items():
        table[name], node = to_wire(value)
        if node is not None:
            nodes[name] = node
    return table, nodes or None


def pairs_to_wire(values: Mapping[str, PropertyValue]) -> tuple[list[Any], dict[str, Any] | None]:
    """The same where a name is too long for a table: names and values alternate in an array."""
    return _array_to_wire(tuple(part for pair in values.items() for part in pair))


def converted(values: dict[str, Any], types: Mapping[str, Any], refuse: Callable[[str], None]) -> dict[str, Any]:
    """Convert received values to the types of application properties; as `_read` calls ``refuse``."""
    found = {}
    for name, value in values.items():
        node = types.get(name)
        try:
            found[name] = value if node is None and type(value) in SIMPLE else _from_wire(value, node, name, 0)
        except _layout.MalformedMessage as error:
            refuse(str(error))
            if node is not None and type(value) in SIMPLE:
                found[name] = value  # at least as received
    for name in types:
        if name not in values:
            refuse(misfit(name))
    return found


def _from_wire(value: Any, node: Any, name: str, depth: int) -> Any:
    if node is not None and type(node) is not dict:
        return _from_text(value, node, name)
    if isinstance(value, dict | list):
        if depth == MAX_NESTING:
            raise _layout.MalformedMessage(f"the header {name[:128]!r} is nested more than {MAX_NESTING} deep")
        node = node or {}
        if isinstance(value, dict):
            if not node.keys() <= value.keys():
                raise _layout.MalformedMessage(misfit(name))
            return {key: _from_wire(entry, node.get(key), name, depth + 1) for key, entry in value.items()}
        return _from_array(value, node, name, depth)
    if node is not None:
        raise _layout.MalformedMessage(misfit(name))
    return bytes(value) if isinstance(value, bytearray) else value


def _from_array(values: list[Any], node: dict[str, Any], name: str, depth: int) -> Any:
    nodes = dict(node)
    kind = nodes.pop("", None)
    if not all(INDEX.fullmatch(index) and int(index) < len(values) for index in nodes):
        raise _layout.MalformedMessage(misfit(name))
    found = [_from_wire(value, nodes.get(str(index)), name, depth + 1) for index, value in enumerate(values)]
    if kind is None:
        return tuple(found)
    names = found[::2]
    if kind != _MAP or len(found) % 2 or not all(isinstance(key, str) for key in names) or len(set(names)) < len(names):
        raise _layout.MalformedMessage(misfit(name))
    return dict(zip(names, found[1::2], strict=True))


def _from_text(value: Any, kind: Any, name: str) -> Any:
    if isinstance(value, str):
        if kind == "uuid":
            try:
                return UUID(value)
            except ValueError:
                pass
        elif kind == "datetime":
            at = _layout.instant(value)
            if at is not None:
                return at
    raise _layout.MalformedMessage(misfit(name))


def misfit(name: str) -> str:
    return f"the header {_layout.TYPES} does not fit the property {name[:128]!r}"


def sheltered_in(header: object) -> dict[str, Any] | None:
    """Read the header of sheltered properties; None if PairMQ did not write it."""
    if isinstance(header, dict):
        found = header
        ours = bool(found)
    elif isinstance(header, list) and len(header) % 2 == 0 and all(isinstance(name, str) for name in header[::2]):
        found = dict(zip(header[::2], header[1::2], strict=True))
        ours = len(found) * 2 == len(header) and not all(map(_layout.fits_short, found))
    else:
        return None
    return found if ours and all(_layout.place(name) == _layout.SHELTERED for name in found) else None


def types_by_name(pairs: list[Any], node: dict[str, Any], refuse: Callable[[str], None]) -> dict[str, Any]:
    """Convert the types' tree of alternating names and values, by index, to one by name."""
    named = {}
    for index, inner in node.items():
        if INDEX.fullmatch(index) and int(index) < len(pairs) and int(index) % 2:
            named[pairs[int(index) - 1]] = inner
        else:
            refuse(misfit(_layout.SHELTER))
    return named


def shelter(headers: dict[str, Any], name: str) -> None:
    """Move a foreign header to where no broker acts on it and `decode` finds it."""
    value = headers.pop(name)
    there = headers.get(_layout.SHELTER)
    if there is None:
        headers[_layout.SHELTER] = {name: value}
    elif (sheltered_in(there) or {name: None}).keys() >= {name}:
        headers[_layout.SHELTER] = {_layout.SHELTER: there, name: value}  # an application's own of this name
    elif isinstance(there, list):
        headers[_layout.SHELTER] = [*there, name, value]
    else:
        headers[_layout.SHELTER] = {**there, name: value}
