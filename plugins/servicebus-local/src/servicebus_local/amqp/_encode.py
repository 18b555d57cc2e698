"""Values to bytes, in the smallest encoding that there is (AMQP 1.0 specification, part 1, section 1.6)."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

from servicebus_local.amqp._types import (
    DECIMALS,
    FIXED,
    ITEM_CODES,
    Array,
    Char,
    Described,
    Int,
    Long,
    Symbol,
    UInt,
    ULong,
)

Writer: TypeAlias = Callable[[bytearray, Any], None]

_U32 = struct.Struct(">I").pack


def encode_value(value: Any) -> bytes:
    """Write one value.

    Args:
        value: a value of one of AMQP's types; a plain `int` is written as a long, a plain `float` as a double.

    Returns:
        Its bytes, constructor first.

    Raises:
        TypeError: AMQP has no such type; times must be given as `Timestamp`.
        ValueError: the value does not fit its type.
    """
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: Any) -> None:
    """Append the bytes of one value to a buffer; like `encode_value`.

    Raises:
        TypeError: AMQP has no such type.
        ValueError: the value does not fit its type.
    """
    writer = _WRITERS.get(type(value)) or _inherited(value)
    try:
        writer(out, value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} does not fit into a {type(value).__name__}") from error


def wrap_compound(small: int, items: bytes | bytearray, count: int) -> bytes:
    """A list or map of encoded items; `small`: its constructor with one-byte sizes. A map counts keys and values."""
    size = len(items)
    if size < 255 and count < 256:
        return bytes((small, size + 1, count)) + items
    return bytes((small + 0x10,)) + _U32(size + 4) + _U32(count) + items


def _inherited(value: Any) -> Writer:
    # A type of another library that inherits from one of ours or of Python's, such as the members of a StrEnum.
    for base in type(value).__mro__:
        if base in _WRITERS:
            return _WRITERS[base]
    raise TypeError(f"AMQP has no type for {type(value).__name__}")


def _null(out: bytearray, value: Any) -> None:
    out.append(0x40)


def _boolean(out: bytearray, value: Any) -> None:
    out.append(0x41 if value else 0x42)


def _packed(code: int, form: str) -> Writer:
    pack = struct.Struct(f">B{form}").pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(code, value)

    return write


def _unsigned(zero: int, small: int, large: int, form: str) -> Writer:
    pack = struct.Struct(f">B{form}").pack

    def write(out: bytearray, value: Any) -> None:
        if not value:
            out.append(zero)
        elif 0 < value < 256:
            out += bytes((small, value))
        else:
            out += pack(large, value)

    return write


def _signed(small: int, large: int, form: str) -> Writer:
    pack = struct.Struct(f">B{form}").pack

    def write(out: bytearray, value: Any) -> None:
        if -129 < value < 128:
            out += bytes((small, value & 0xFF))
        else:
            out += pack(large, value)

    return write


def _char(out: bytearray, value: Any) -> None:
    out.append(0x73)
    out += _U32(ord(value))


def _decimal(code: int) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        out.append(code)
        out += value

    return write


def _uuid(out: bytearray, value: Any) -> None:
    out.append(0x98)
    out += value.bytes


def _sized(small: int) -> Writer:
    large = small + 0x10

    def write(out: bytearray, value: Any) -> None:
        raw = value.encode("utf-8") if isinstance(value, str) else value
        size = len(raw)
        if size < 256:
            out += bytes((small, size))
        else:
            out.append(large)
            out += _U32(size)
        out += raw

    return write


def _list(out: bytearray, value: Any) -> None:
    if not value:
        out.append(0x45)
        return
    items = bytearray()
    for item in value:
        encode_into(items, item)
    out += wrap_compound(0xC0, items, len(value))


def _map(out: bytearray, value: Any) -> None:
    items = bytearray()
    for key, item in value.items():
        encode_into(items, key)
        encode_into(items, item)
    out += wrap_compound(0xC1, items, 2 * len(value))


def _described(out: bytearray, value: Any) -> None:
    out.append(0x00)
    encode_into(out, value.descriptor)
    encode_into(out, value.value)


_WIDE_CODES = {code: code for code in ITEM_CODES.values()} | {
    **dict.fromkeys((0x41, 0x42), 0x56),
    **dict.fromkeys((0x43, 0x52), 0x70),
    **dict.fromkeys((0x44, 0x53), 0x80),
    **dict.fromkeys((0x45, 0xC0), 0xD0),
    **{code: code + 0x10 for code in (0xA0, 0xA1, 0xA3, 0xC1, 0xE0)},
    0x54: 0x71,
    0x55: 0x81,
}
"""Of the constructors that an array was read with, the one of the same type that holds every value."""

_ITEM_FORMS = {code: struct.Struct(f">{form}").pack for code, form in ((0x56, "?"), *(row[1:] for row in FIXED))}


def _array(out: bytearray, value: Any) -> None:
    constructor = bytearray()
    items: list[Any] = list(value)
    if items and isinstance(items[0], Described):
        constructor.append(0x00)
        encode_into(constructor, items[0].descriptor)
        head = bytes(constructor[1:])
        if any(not isinstance(item, Described) or encode_value(item.descriptor) != head for item in items):
            raise TypeError("the items of an array have different descriptors")
        items = [item.value for item in items]
    elif not items and value.descriptor is not None:
        constructor.append(0x00)
        encode_into(constructor, value.descriptor)
    if items:
        code = _item_code(items[0])
        if any(_item_code(item) != code for item in items):
            raise TypeError("the items of an array are of different types")
    else:
        code = _WIDE_CODES[value.constructor] if value.constructor is not None else 0x40
    body = bytearray()
    # Names are the usual items of arrays, and short.
    if code in (0xB0, 0xB1, 0xB3) and all(len(raw) < 256 for raw in map(_raw, items)):
        code -= 0x10
    for item in items:
        _item(body, code, item)
    constructor.append(code)
    out += wrap_compound(0xE0, constructor + body, len(items))


def _item_code(item: Any) -> int:
    for base in type(item).__mro__:
        if base in ITEM_CODES:
            return ITEM_CODES[base]
    raise TypeError(f"AMQP has no array of {type(item).__name__}")


def _raw(item: Any) -> bytes:
    return item.encode("utf-8") if isinstance(item, str) else item


def _item(out: bytearray, code: int, item: Any) -> None:
    if code in _ITEM_FORMS:
        out += _ITEM_FORMS[code](item)
    elif code >= 0xC0:
        out += _widened(encode_value(item))
    elif code >= 0xA0:
        raw = _raw(item)
        out += bytes((len(raw),)) if code < 0xB0 else _U32(len(raw))
        out += raw
    else:
        # Types with a single encoding: what follows their constructor.
        out += encode_value(item)[1:]


def _widened(encoded: bytes) -> bytes:
    """Give a list, map or array in the form with four bytes of size, without its constructor."""
    code = encoded[0]
    if code == 0x45:
        return _U32(4) + _U32(0)
    if code & 0x10:
        return encoded[1:]
    return _U32(encoded[1] + 3) + _U32(encoded[2]) + encoded[3:]


_binary = _sized(0xA0)

_WRITERS: dict[type, Writer] = {
    **{kind: _packed(code, form) for kind, code, form in FIXED},
    **{kind: _decimal(code) for kind, code in DECIMALS.items()},
    type(None): _null,
    bool: _boolean,
    UInt: _unsigned(0x43, 0x52, 0x70, "I"),
    ULong: _unsigned(0x44, 0x53, 0x80, "Q"),
    Int: _signed(0x54, 0x71, "i"),
    Long: _signed(0x55, 0x81, "q"),
    int: _signed(0x55, 0x81, "q"),
    Char: _char,
    uuid.UUID: _uuid,
    bytes: _binary,
    bytearray: _binary,
    str: _sized(0xA1),
    Symbol: _sized(0xA3),
    list: _list,
    tuple: _list,
    dict: _map,
    Array: _array,
    Described: _described,
}
