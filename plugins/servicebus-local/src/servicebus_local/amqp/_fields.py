"""How the fields of composite types are checked when read and typed when written (AMQP 1.0 specification, part 1, 1.3).

Composite types are lists whose items have fixed meanings. We always write all of them, with explicit nulls, although
trailing nulls may be left out: older clients take the fields by their index.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from types import UnionType
from typing import Any, Final, TypeVar

from servicebus_local.amqp._encode import encode_into, wrap_compound
from servicebus_local.amqp._types import AmqpDecodeError, Array, Described, Symbol, Timestamp, UInt, ULong

T = TypeVar("T")

NULLABLE: Final = {"nullable": True}
"""The metadata of a field without a default that may be null on the wire, since fields with defaults come last."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    # From the decoded value to the field's; raises `AmqpDecodeError`; never called with None.
    read: Callable[[Any], Any]
    # From the field's value to one that encodes as the specification wants; never called with None.
    write: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: Kind
    required: bool
    default: Any


class Composite:
    """A composite type: the descriptor, and the dataclass whose fields are the list's items, in their order.

    Fields with a default, or `NULLABLE`, may be missing. A ``short`` one leaves null fields at the end out, as the
    specification allows: clients are known that then fail.
    """

    def __init__(self, code: int, symbol: str, type_: type, *kinds: Kind, short: bool = False) -> None:
        self.code = code
        self.symbol = symbol
        self.type = type_
        self._short = short
        self._head = bytes((0x00, 0x53, code))
        self._fields = [
            _Field(
                field.name,
                kind,
                required=field.default is dataclasses.MISSING and not field.metadata,
                default=None if field.default is dataclasses.MISSING else field.default,
            )
            for field, kind in zip(dataclasses.fields(type_), kinds, strict=True)
        ]

    def read(self, items: Any) -> Any:
        if type(items) is not list:
            raise AmqpDecodeError(f"The fields of {self.symbol} are not a list.")
        fields = self._fields
        if len(items) > len(fields):
            raise AmqpDecodeError(f"{self.symbol} has {len(items)} fields instead of {len(fields)}.")
        values = []
        for field, item in zip(fields, items, strict=False):
            if item is not None:
                try:
                    values.append(field.kind.read(item))
                except AmqpDecodeError as error:
                    raise AmqpDecodeError(f"The field {field.name} of {self.symbol}: {error}") from error
            elif field.required:
                raise AmqpDecodeError(f"{self.symbol} lacks its field {field.name}.")
            else:
                values.append(field.default)
        for field in fields[len(items) :]:
            if field.required:
                raise AmqpDecodeError(f"{self.symbol} lacks its field {field.name}.")
            values.append(field.default)
        return self.type(*values)

    def write_into(self, out: bytearray, value: Any) -> None:
        items = bytearray()
        written = self._written(value)
        for item in written:
            encode_into(items, item)
        out += self._head
        out += wrap_compound(0xC0, items, len(written))

    def described(self, value: Any) -> Described:
        """Give a dataclass as the value that it is inside of another one."""
        return Described(ULong(self.code), self._written(value))

    def _written(self, value: Any) -> list[Any]:
        items = [
            None if (item := getattr(value, field.name)) is None else field.kind.write(item) for field in self._fields
        ]
        while self._short and items and items[-1] is None:
            items.pop()
        return items


def _same(value: T) -> T:
    return value


def _of(
    wanted: type | UnionType,
    what: str,
    write: Callable[[Any], Any] = _same,
    *,
    read: Callable[[Any], Any] = _same,
) -> Kind:
    """Give the kind of the values of a type; a boolean is not one of the numbers, as it is in Python."""

    def checked(value: Any) -> Any:
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise AmqpDecodeError(f"{type(value).__name__} is not {what}.")
        return read(value)

    return Kind(checked, write)


def whole(bits: int, make: Callable[[Any], Any]) -> Kind:
    """Give the kind of an unsigned integer; peers may send it in any integer type if only it is in the range."""
    limit = 1 << bits

    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
            raise AmqpDecodeError(f"It is not an unsigned integer of {bits} bits.")
        return int(value)

    return Kind(read, make)


def _read_symbols(value: Any) -> list[Symbol]:
    # A single value may stand for an array with only this value (part 1, section 1.4).
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        raise AmqpDecodeError("It is not an array of symbols.")
    return [Symbol(item) for item in items]


def _write_symbols(value: Any) -> Array:
    return Array(map(Symbol, value), 0xA3)


def _write_message_id(value: Any) -> Any:
    return ULong(value) if isinstance(value, int) else value


def _symbol_keys(value: dict[Any, Any]) -> dict[Any, Any]:
    return {Symbol(key) if isinstance(key, str) else key: item for key, item in value.items()}


ANY = Kind(_same, _same)
BOOLEAN = _of(bool, "a boolean", bool)
TEXT = _of(str, "a text", str, read=str)
SYMBOL = _of(str, "a text", Symbol, read=Symbol)
SYMBOLS = Kind(_read_symbols, _write_symbols)
BINARY = _of(bytes, "a binary", bytes)
MAP = _of(dict, "a map")
FIELDS = _of(dict, "a map", _symbol_keys)
MESSAGE_ID = _of(int | str | bytes | uuid.UUID, "a message's id", _write_message_id)
TIMESTAMP = _of(int, "a time", Timestamp, read=Timestamp)
UINT = whole(32, UInt)
ULONG = whole(64, ULong)
