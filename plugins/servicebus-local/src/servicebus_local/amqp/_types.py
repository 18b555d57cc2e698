"""The values of AMQP 1.0 that Python has no type of its own for (AMQP 1.0 specification, part 1, section 1.6).

Every one of them keeps the type that the peer chose, so that a value that is read and written again is the same value:
an AMQP `int` is not a `long`, and a `symbol` is not a `string`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final


class AmqpDecodeError(ValueError):
    """The peer's bytes are no valid AMQP 1.0; the message says in a sentence what is wrong with them."""


class UByte(int):
    """An unsigned integer of 8 bits."""

    __slots__ = ()


class UShort(int):
    """An unsigned integer of 16 bits."""

    __slots__ = ()


class UInt(int):
    """An unsigned integer of 32 bits."""

    __slots__ = ()


class ULong(int):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


class Byte(int):
    """A signed integer of 8 bits."""

    __slots__ = ()


class Short(int):
    """A signed integer of 16 bits."""

    __slots__ = ()


class Int(int):
    """A signed integer of 32 bits."""

    __slots__ = ()


class Long(int):
    """A signed integer of 64 bits; a plain `int` is written as one too."""

    __slots__ = ()


class Timestamp(int):
    """A point in time, milliseconds since the Unix epoch."""

    __slots__ = ()


class Float(float):
    """A binary floating point number of 32 bits; a plain `float` has 64."""

    __slots__ = ()


class Symbol(str):
    """A name from a set of names that both peers know, such as an error condition."""

    __slots__ = ()


class Char(str):
    """A single Unicode character."""

    __slots__ = ()

    def __new__(cls, character: str) -> Char:
        if len(character) != 1:
            raise ValueError("a char is exactly one character")
        return super().__new__(cls, character)


class _Decimal(bytes):
    """The bytes of a decimal number, not interpreted: Python's `decimal` has no such fixed formats."""

    __slots__ = ()
    width: ClassVar[int] = 0

    def __new__(cls, raw: bytes) -> _Decimal:
        if len(raw) != cls.width:
            raise ValueError(f"a {cls.__name__} has {cls.width} bytes, not {len(raw)}")
        return super().__new__(cls, raw)


class Decimal32(_Decimal):
    """An IEEE 754-2008 decimal32, as its 4 bytes."""

    __slots__ = ()
    width = 4


class Decimal64(_Decimal):
    """An IEEE 754-2008 decimal64, as its 8 bytes."""

    __slots__ = ()
    width = 8


class Decimal128(_Decimal):
    """An IEEE 754-2008 decimal128, as its 16 bytes."""

    __slots__ = ()
    width = 16


class Array(list[Any]):
    """A sequence of values of one type.

    Args:
        items: the values, all of one type.
        constructor: the items' type, or their type code as it was read (part 1, section 1.2); None: what the first
            item needs. An empty array has its type only from this.
        descriptor: the descriptor of all items, if they are described values; only an empty array needs it.
    """

    __slots__ = ("constructor", "descriptor")

    def __init__(
        self, items: Iterable[Any] = (), constructor: int | type | None = None, descriptor: Any = None
    ) -> None:
        super().__init__(items)
        self.constructor = ITEM_CODES[constructor] if isinstance(constructor, type) else constructor
        self.descriptor = descriptor


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor that says what it means (part 1, section 1.1.2)."""

    descriptor: Any
    value: Any


FIXED: Final[tuple[tuple[type, int, str], ...]] = (
    (UByte, 0x50, "B"),
    (UShort, 0x60, "H"),
    (UInt, 0x70, "I"),
    (ULong, 0x80, "Q"),
    (Byte, 0x51, "b"),
    (Short, 0x61, "h"),
    (Int, 0x71, "i"),
    (Long, 0x81, "q"),
    (Float, 0x72, "f"),
    (float, 0x82, "d"),
    (Timestamp, 0x83, "q"),
)
"""Numbers: the type, the constructor that holds each of its values, and how `struct` writes them."""

DECIMALS: Final[dict[type[_Decimal], int]] = {Decimal32: 0x74, Decimal64: 0x84, Decimal128: 0x94}

ITEM_CODES: Final[dict[type, int]] = {
    **{kind: code for kind, code, _ in FIXED},
    **DECIMALS,
    type(None): 0x40,
    bool: 0x56,
    int: 0x81,
    Char: 0x73,
    uuid.UUID: 0x98,
    bytes: 0xB0,
    str: 0xB1,
    Symbol: 0xB3,
    list: 0xD0,
    dict: 0xD1,
    Array: 0xF0,
}
"""The constructor that holds every value of a type; the items of an array share one."""
