"""Application properties as JSON: every property type of a message survives the round trip.

What JSON has no type for is an object that names it: in the records of ``pairmq receive --json``, and in Spark's rows.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn
from uuid import UUID

from pairmq.model._message import PropertyValue

_MAPPING: Final = "mapping"
_NAMED: Final[Mapping[str, Callable[[str], PropertyValue]]] = {
    "base64": lambda text: base64.b64decode(text, validate=True),
    "datetime": datetime.fromisoformat,
    "uuid": UUID,
    "decimal": Decimal,
}


def encode(value: PropertyValue) -> str:
    """Write a property as JSON: ``"text"``, ``7``, ``7.0``, ``{"datetime": "2026-05-01T12:00:00+00:00"}``."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def decode(text: str) -> PropertyValue:
    """Undo `encode` of untrusted text. Raises `ValueError`, which does not repeat it."""
    try:
        return _typed(json.loads(text, parse_constant=_refuse))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (ValueError, binascii.Error, InvalidOperation) as error:
        # Report the position only: the content may be confidential.
        raise ValueError(error.msg if isinstance(error, json.JSONDecodeError) else str(error)) from None


def plain(value: PropertyValue) -> Any:
    """Give a property as what `json` can write; what JSON has no type for is an object that names it."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    nested = {key: plain(entry) for key, entry in value.items()}
    # One that looks like those above is named as well, to be unambiguous.
    return {_MAPPING: nested} if _looks_named(nested) else nested


def _typed(given: Any) -> PropertyValue:
    if isinstance(given, list):
        return tuple([_typed(entry) for entry in given])
    if not isinstance(given, dict):
        return given  # type: ignore[no-any-return]  # what JSON has types for
    if not _looks_named(given):
        return {key: _typed(entry) for key, entry in given.items()}
    [(name, inner)] = given.items()
    if name == _MAPPING:
        if not isinstance(inner, dict):
            raise ValueError("what 'mapping' names must be an object")
        return {key: _typed(entry) for key, entry in inner.items()}
    if not isinstance(inner, str):
        raise ValueError(f"what {name!r} names must be a string")
    try:
        return _NAMED[name](inner)
    except (ValueError, InvalidOperation):
        raise ValueError(f"what {name!r} names is malformed") from None


def _looks_named(nested: Mapping[str, object]) -> bool:
    return len(nested) == 1 and (_MAPPING in nested or not _NAMED.keys().isdisjoint(nested))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
