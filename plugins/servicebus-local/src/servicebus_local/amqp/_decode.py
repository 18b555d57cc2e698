"""Bytes to values (AMQP 1.0 specification, part 1, section 1.6).

A reader is a function of the buffer, the place after the constructor and the nesting so far. Readers do not check the
buffer's end: a slice that is too short still moves the offset as far as its size says, so that one comparison at the
end finds every size that lies. The offset only ever grows, hence the work is linear in the bytes, whatever they claim.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

from servicebus_local.amqp._types import (
    DECIMALS,
    FIXED,
    AmqpDecodeError,
    Array,
    Char,
    Described,
    Int,
    Long,
    Symbol,
    UInt,
    ULong,
)

Buffer: TypeAlias = bytes | memoryview
Reader: TypeAlias = Callable[[Buffer, int, int], tuple[Any, int]]

MAX_NESTING = 32
"""How deep lists, maps, arrays and described values may be nested."""

MAX_EMPTY_ITEMS = 65536
"""How many items of no bytes (such as null) an array may have; nothing else would bound the memory they take."""

_U32 = struct.Struct(">I").unpack_from

_SURROGATES = range(0xD800, 0xE000)


def decode_value(buffer: Buffer, offset: int = 0) -> tuple[Any, int]:
    """Read one value.

    Returns:
        The value, and the offset behind it.

    Raises:
        AmqpDecodeError: there is no valid value at that place.
    """
    try:
        value, end = READERS[buffer[offset]](buffer, offset + 1, 0)
    except AmqpDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise AmqpDecodeError("A text is not valid UTF-8.") from error
    except (IndexError, ValueError, OverflowError, struct.error) as error:
        raise AmqpDecodeError("A value is truncated or out of its range.") from error
    if end > len(buffer):
        raise AmqpDecodeError("A value is longer than the bytes that should hold it.")
    return value, end


def skip_value(buffer: Buffer, offset: int) -> int:
    """The offset after a value, without reading it; only its outermost size is checked."""
    try:
        pending = 1
        for _ in range(2 * MAX_NESTING):
            code = buffer[offset]
            offset += 1
            if code == 0:
                # A descriptor, which may be described itself, and then the value.
                pending += 1
                continue
            if READERS[code] is _unknown:
                raise AmqpDecodeError(f"There is no type with the code 0x{code:02x}.")
            width = _WIDTHS[code >> 4]
            if width >= 0:
                offset += width
            elif width == -1:
                offset += 1 + buffer[offset]
            else:
                offset += 4 + _U32(buffer, offset)[0]
            pending -= 1
            if not pending:
                break
        else:
            raise AmqpDecodeError(f"Values are nested more than {MAX_NESTING} deep.")
    except (IndexError, struct.error) as error:
        raise AmqpDecodeError("A value is truncated.") from error
    if offset > len(buffer):
        raise AmqpDecodeError("A value is longer than the bytes that should hold it.")
    return offset


# The upper half of a constructor is the width: bytes, or -1 for a size of one byte, -4 for a size of four.
_WIDTHS = (0, 0, 0, 0, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4)


def _unknown(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    raise AmqpDecodeError(f"There is no type with the code 0x{buffer[offset - 1]:02x}.")


def _constant(value: Any) -> Reader:
    def read(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        return value, offset

    return read


def _number(form: str, make: Callable[[Any], Any]) -> Reader:
    layout = struct.Struct(f">{form}")
    unpack, width = layout.unpack_from, layout.size

    def read(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        return make(unpack(buffer, offset)[0]), offset + width

    return read


def _octet(make: Callable[[Any], Any]) -> Reader:
    def read(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        return make(buffer[offset]), offset + 1

    return read


def _fixed_bytes(width: int, make: Callable[[bytes], Any]) -> Reader:
    def read(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        return make(bytes(buffer[offset : offset + width])), offset + width

    return read


def _boolean(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    octet = buffer[offset]
    if octet > 1:
        raise AmqpDecodeError("A boolean is neither true nor false.")
    return octet == 1, offset + 1


def _char(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    (code,) = _U32(buffer, offset)
    if code in _SURROGATES:
        raise AmqpDecodeError("A char is half of a surrogate pair.")
    return Char(chr(code)), offset + 4


def _binary8(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    end = offset + 1 + buffer[offset]
    return bytes(buffer[offset + 1 : end]), end


def _binary32(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    end = offset + 4 + _U32(buffer, offset)[0]
    return bytes(buffer[offset + 4 : end]), end


# The specification wants ASCII in symbols. Clients write the keys of annotations as they come, so UTF-8 is let through.
def _text(make: Callable[[Buffer, str], str]) -> tuple[Reader, Reader]:
    """The readers of texts: with a size of one byte, and of four."""

    def small(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        end = offset + 1 + buffer[offset]
        return make(buffer[offset + 1 : end], "utf-8"), end

    def large(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        end = offset + 4 + _U32(buffer, offset)[0]
        return make(buffer[offset + 4 : end], "utf-8"), end

    return small, large


def _compound(read: Callable[[Buffer, int, int, int, int], Any]) -> tuple[Reader, Reader]:
    """The same of a type of items, whose count follows the size."""

    def small(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        end = offset + 1 + buffer[offset]
        return read(buffer, offset + 2, buffer[offset + 1], end, depth), end

    def large(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
        end = offset + 4 + _U32(buffer, offset)[0]
        return read(buffer, offset + 8, _U32(buffer, offset + 4)[0], end, depth), end

    return small, large


def _deeper(depth: int) -> int:
    if depth >= MAX_NESTING:
        raise AmqpDecodeError(f"Values are nested more than {MAX_NESTING} deep.")
    return depth + 1


def _empty_list(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    return [], offset


def _items(buffer: Buffer, offset: int, count: int, end: int, depth: int) -> list[Any]:
    depth = _deeper(depth)
    items: list[Any] = []
    append = items.append
    readers = READERS
    for _ in range(count):
        item, offset = readers[buffer[offset]](buffer, offset + 1, depth)
        append(item)
    if offset != end:
        raise AmqpDecodeError("The size of a list or map does not fit its items.")
    return items


def _mapping(buffer: Buffer, offset: int, count: int, end: int, depth: int) -> dict[Any, Any]:
    items = _items(buffer, offset, count, end, depth)
    if len(items) % 2:
        raise AmqpDecodeError("A map has a key without a value.")
    try:
        mapping = dict(zip(items[::2], items[1::2], strict=True))
    except TypeError as error:
        raise AmqpDecodeError("A map has a key of a type that cannot be a key.") from error
    if 2 * len(mapping) != len(items):
        raise AmqpDecodeError("A map has the same key twice.")
    return mapping


def _array(buffer: Buffer, offset: int, count: int, end: int, depth: int) -> Array:
    depth = _deeper(depth)
    code = buffer[offset]
    offset += 1
    descriptor = None
    described = code == 0
    if described:
        descriptor, offset = READERS[buffer[offset]](buffer, offset + 1, depth)
        code = buffer[offset]
        offset += 1
        if code == 0:
            raise AmqpDecodeError("The items of an array are described twice.")
    reader = READERS[code]
    if reader is _unknown:
        raise AmqpDecodeError(f"There is no type with the code 0x{code:02x}.")
    if not _WIDTHS[code >> 4] and count > MAX_EMPTY_ITEMS:
        raise AmqpDecodeError(f"An array has {count} items of no bytes.")
    array = Array((), code, descriptor)
    for _ in range(count):
        item, offset = reader(buffer, offset, depth)
        array.append(Described(descriptor, item) if described else item)
    if offset != end:
        raise AmqpDecodeError("The size of an array does not fit its items.")
    return array


def _described(buffer: Buffer, offset: int, depth: int) -> tuple[Any, int]:
    depth = _deeper(depth)
    descriptor, offset = READERS[buffer[offset]](buffer, offset + 1, depth)
    value, offset = READERS[buffer[offset]](buffer, offset + 1, depth)
    return Described(descriptor, value), offset


def _uuid(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)


_string8, _string32 = _text(str)
_symbol8, _symbol32 = _text(Symbol)
_list8, _list32 = _compound(_items)
_map8, _map32 = _compound(_mapping)
_array8, _array32 = _compound(_array)

READERS: list[Reader] = [_unknown] * 256
"""The reader of every constructor."""

for _code, _reader in {
    **{code: _number(form, kind) for kind, code, form in FIXED},
    **{code: _fixed_bytes(kind.width, kind) for kind, code in DECIMALS.items()},
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: _empty_list,
    0x52: _octet(UInt),
    0x53: _octet(ULong),
    0x54: _number("b", Int),
    0x55: _number("b", Long),
    0x56: _boolean,
    0x73: _char,
    0x98: _fixed_bytes(16, _uuid),
    0xA0: _binary8,
    0xA1: _string8,
    0xA3: _symbol8,
    0xB0: _binary32,
    0xB1: _string32,
    0xB3: _symbol32,
    0xC0: _list8,
    0xC1: _map8,
    0xD0: _list32,
    0xD1: _map32,
    0xE0: _array8,
    0xF0: _array32,
}.items():
    READERS[_code] = _reader
