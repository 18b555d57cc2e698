"""Application properties as JSON: every property type of a message survives the round trip.

What JSON has no type for is an object that names it: in the records of ``pairmq receive --json``, and in Spark's rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn
from uuid import UUID

from pairmq.model._message import PropertyValue

_FORMS: Final[Mapping[type, tuple[Callable[[Any], str], Callable[[str], PropertyValue]]]] = {
    bytes: (lambda raw: base64.b64encode(raw).decode("ascii"), lambda text: base64.b64decode(text, validate=True)),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    UUID: (str, UUID),
    Decimal: (str, Decimal),
}


class Notation:
    """Names what JSON has no type for: such a value is an object with the name of its type as the only key.

    A mapping that looks like one of these objects is itself in one, under the name ``mapping``.
    """

    def __init__(self, names: Mapping[type, str], *, mapping: str) -> None:
        self._names = names
        self._readers = {name: _FORMS[kind][1] for kind, name in names.items()}
        self._mapping = mapping

    def encode(self, value: PropertyValue) -> str:
        """Write a property as JSON: ``"text"``, ``7``, ``7.0``, ``{"datetime": "2026-05-01T12:00:00+00:00"}``."""
        return json.dumps(self.plain(value), ensure_ascii=False, separators=(",", ":"))

    def decode(self, text: str) -> PropertyValue:
        """Undo `encode` of untrusted text. Raises `ValueError`, which does not repeat it."""
        try:
            return self._typed(json.loads(text, parse_constant=_refuse))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError as error:
            # Report the position only: the content may be confidential.
            raise ValueError(error.msg if isinstance(error, json.JSONDecodeError) else str(error)) from None

    def plain(self, value: PropertyValue) -> Any:
        """Give a property as what `json` can write."""
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if isinstance(value, tuple):
            return [self.plain(entry) for entry in value]
        if isinstance(value, Mapping):
            nested = {key: self.plain(entry) for key, entry in value.items()}
            return {self._mapping: nested} if self._looks_named(nested) else nested
        kind = next(kind for kind in self._names if isinstance(value, kind))
        return {self._names[kind]: _FORMS[kind][0](value)}

    def _typed(self, given: Any) -> PropertyValue:
        if isinstance(given, list):
            return tuple([self._typed(entry) for entry in given])
        if not isinstance(given, dict):
            return given  # type: ignore[no-any-return]  # what JSON has types for
        if not self._looks_named(given):
            return {key: self._typed(entry) for key, entry in given.items()}
        [(name, inner)] = given.items()
        if name == self._mapping:
            if not isinstance(inner, dict):
                raise ValueError(f"what {name!r} names must be an object")
            return {key: self._typed(entry) for key, entry in inner.items()}
        if not isinstance(inner, str):
            raise ValueError(f"what {name!r} names must be a string")
        try:
            return self._readers[name](inner)
        except (ValueError, InvalidOperation):
            raise ValueError(f"what {name!r} names is malformed") from None

    def _looks_named(self, nested: Mapping[str, object]) -> bool:
        return len(nested) == 1 and (self._mapping in nested or not self._readers.keys().isdisjoint(nested))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_NOTATION: Final = Notation(
    {bytes: "base64", datetime: "datetime", UUID: "uuid", Decimal: "decimal"}, mapping="mapping"
)
encode = _NOTATION.encode
decode = _NOTATION.decode
plain = _NOTATION.plain
