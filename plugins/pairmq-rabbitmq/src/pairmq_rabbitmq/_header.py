"""A message's AMQP properties as the bytes of a content header, and back.

pamqp's parser copies the rest of the header for each value in it, and reads one property after the other by its
name: that is most of the cost of receiving a message. The properties and types that nearly every message has are read
here in one pass; any header with others in it, or with an error, is left to pamqp, with the same result.

Any client may publish: a header that can't be read gives properties with nothing but the mark `UNREADABLE`. So does one
that would take too long to read. As pamqp copies the rest of a table for each value in it, a table of many thousands of
tiny values in one frame of 128 KiB blocks the event loop for seconds, and with it every other message and the
connection's heartbeat. A few such messages would stop a receiver. So the values are counted first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from pamqp import commands
from pamqp.header import ContentHeader

UNREADABLE: Final = "x-unreadable-header"
"""Header of a message whose own header could not be read; its value is the reason."""

_FLAGS_AT, _PROPERTIES_AT = 12, 14  # behind class, weight and body size
_HEADERS, _DELIVERY_MODE, _PRIORITY = 0x2000, 0x1000, 0x0800
_TEXTS_BEFORE = ((0x8000, "content_type"), (0x4000, "content_encoding"))
_TEXTS_BEHIND = (
    (0x0400, "correlation_id"),
    (0x0200, "reply_to"),
    (0x0100, "expiration"),
    (0x0080, "message_id"),
    (0x0020, "message_type"),
    (0x0010, "user_id"),
    (0x0008, "app_id"),
)
_UNUSUAL = 0xFFFF & ~(_HEADERS | _DELIVERY_MODE | _PRIORITY | sum(flag for flag, _ in (*_TEXTS_BEFORE, *_TEXTS_BEHIND)))
_SMALL = 1 << 14  # bytes of a header that can't hold enough values to cost much

_MAX_COST: Final = 1 << 28
"""Bytes that the parser may copy for one message, about: some tenths of a second."""

_BROKERS_OWN = (1024, 64)  # bytes and values of what the broker adds: x-delivery-count, x-death and the like
_MORE = 0x0001

_TABLE, _ARRAY = b"FA"
_STRINGS = frozenset(b"Sx")
_SIZES = {
    **dict.fromkeys(b"V\0", 0),
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"su", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"D", 5),
    **dict.fromkeys(b"lLdT", 8),
}

_flags = struct.Struct(">H").unpack_from
_length = struct.Struct(">I").unpack_from
_int32 = struct.Struct(">i").unpack_from
_int64 = struct.Struct(">q").unpack_from
_float64 = struct.Struct(">d").unpack_from
_S, _I, _l, _t, _V, _d = b"SIltVd"

_OCTETS = [bytes((number,)) for number in range(256)]
_pack_flags = struct.Struct(">H").pack
_pack_timestamp = struct.Struct(">Q").pack
_pack_string = struct.Struct(">cI").pack
_pack_int32 = struct.Struct(">ci").pack
_pack_int64 = struct.Struct(">cq").pack
_pack_double = struct.Struct(">cd").pack
_pack_decimal = struct.Struct(">cBi").pack

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_MILLISECOND = timedelta(milliseconds=1)
_LAST_TIMESTAMP = _EPOCH + (2**32 - 1) * _SECOND  # pamqp takes a later one for milliseconds


class _Unusual(Exception):
    """It is left to pamqp."""


def read(header: bytes) -> commands.Basic.Properties:
    """Read the properties in the payload of a content header frame; never raises."""
    if len(header) <= _SMALL:
        try:
            return _read(header)
        except (_Unusual, IndexError, UnicodeDecodeError, struct.error):
            pass
    try:
        if is_costly(header):
            raise ValueError("its headers hold too many values")
        found = ContentHeader()
        found.unmarshal(header)
    except Exception as error:
        return commands.Basic.Properties(headers={UNREADABLE: f"{type(error).__name__}: {error}"[:200]})
    return found.properties


def _read(header: bytes) -> commands.Basic.Properties:
    (flags,) = _flags(header, _FLAGS_AT)
    if flags & _UNUSUAL:
        raise _Unusual
    properties = object.__new__(commands.Basic.Properties)
    properties.timestamp = None
    properties.cluster_id = ""
    at = _read_texts(header, _PROPERTIES_AT, flags, _TEXTS_BEFORE, properties)
    properties.headers = None
    if flags & _HEADERS:
        end = at + 4 + _length(header, at)[0]
        properties.headers = _table(header, at + 4, end)
        at = end
    properties.delivery_mode = properties.priority = None
    if flags & _DELIVERY_MODE:
        properties.delivery_mode = header[at]
        at += 1
    if flags & _PRIORITY:
        properties.priority = header[at]
        at += 1
    at = _read_texts(header, at, flags, _TEXTS_BEHIND, properties)
    if at > len(header):
        raise _Unusual
    return properties


def _read_texts(
    header: bytes, at: int, flags: int, texts: Sequence[tuple[int, str]], properties: commands.Basic.Properties
) -> int:
    """Set the properties that are texts, in a row; returns where the next one begins."""
    for flag, name in texts:
        text = None
        if flags & flag:
            end = at + 1 + header[at]
            text = header[at + 1 : end].decode()
            at = end
        setattr(properties, name, text)
    return at


def _table(header: bytes, at: int, end: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while at < end:
        stop = at + 1 + header[at]
        name = header[at + 1 : stop].decode()
        kind = header[stop]
        at = stop + 1
        if kind == _S:
            stop = at + 4 + _length(header, at)[0]
            found[name] = header[at + 4 : stop].decode()
            at = stop
        elif kind == _l:
            (found[name],) = _int64(header, at)
            at += 8
        elif kind == _I:
            (found[name],) = _int32(header, at)
            at += 4
        elif kind == _t:
            found[name] = header[at] != 0
            at += 1
        elif kind == _V:
            found[name] = None
        elif kind == _d:
            (found[name],) = _float64(header, at)
            at += 8
        else:
            raise _Unusual
    if at != end or end > len(header):
        raise _Unusual
    return found


def is_costly(header: bytes, *, sending: bool = False) -> bool:
    """Return whether reading a content header would block the event loop for long; visits each value once.

    In one that can't be parsed, what precedes the error counts, as the parser reads no further either. When sending,
    room is left for the headers that the broker adds to a message which it redelivers or dead-letters: one that was
    accepted must not become too costly in transit.
    """
    bytes_more, values_more = _BROKERS_OWN if sending else (0, 0)
    size = len(header) + bytes_more
    if size <= _SMALL:
        return False
    try:
        return _exceeds(header, _MAX_COST // size - values_more)
    except (IndexError, struct.error):
        return False


def _exceeds(header: bytes, most: int) -> bool:
    """Whether the headers hold more values than that, over all levels."""
    at = _PROPERTIES_AT
    flags = word = int.from_bytes(header[_FLAGS_AT:at])
    while word & _MORE:  # the parser continues, though the broker, which knows 14 properties, does not
        word = int.from_bytes(header[at : at + 2])
        at += 2
    for flag, _ in _TEXTS_BEFORE:
        if flags & flag:
            at += 1 + header[at]
    if not flags & _HEADERS:
        return False
    ends = [(at + 4 + _length(header, at)[0], True)]
    at += 4
    count = 0
    while ends:
        end, named = ends[-1]
        if at >= end:
            ends.pop()
            continue
        count += 1
        if count > most:
            return True
        if named:
            at += 1 + header[at]
        kind = header[at]
        at += 1
        if kind in (_TABLE, _ARRAY):
            ends.append((at + 4 + _length(header, at)[0], kind == _TABLE))
            at += 4
        elif kind in _STRINGS:
            at += 4 + _length(header, at)[0]
        else:
            at += _SIZES.get(kind, len(header))
    return False


class Properties(commands.Basic.Properties):
    """Properties that are written without loss.

    pamqp's own lose half the digits of a float, cut names to 128 bytes and omit empty strings. So these have to be sent
    as they are, not copied field by field.
    """

    # No __slots__ here: pamqp reads this attribute, and would find no properties in an empty one.

    @classmethod
    def blank(cls) -> Properties:
        """Create some of which only the persistent delivery mode is set."""
        properties = object.__new__(cls)  # without the constructor's checks: this is on the path of many sends
        properties.delivery_mode = 2
        return properties

    def marshal(self) -> bytes:
        """Write the flags and the properties that are set, as pamqp does, but without omitting, cutting or rounding."""
        own = self.__dict__.get
        flags = 0
        parts = [b""]
        try:
            for flag, name, packed in _FIELDS:
                value = own(name)
                if value is not None and (value or name != "cluster_id"):
                    flags |= flag
                    parts.append(packed(value))
        except (IndexError, struct.error) as error:
            raise ValueError(f"a property or header does not fit AMQP 0-9-1: {error}") from error
        parts[0] = _pack_flags(flags)
        return b"".join(parts)


for _name in Properties.__slots__:
    # The default, beside which instances have what is set; of this one pamqp's "not set" is the empty text.
    setattr(Properties, _name, "" if _name == "cluster_id" else None)


def short(text: str) -> bytes:
    """Write a text of at most 255 bytes."""
    raw = text.encode()
    return _OCTETS[len(raw)] + raw


def _field(value: Any) -> bytes:
    """Serialize one value of a table, its type first; one call for each level, as received ones may nest deep."""
    kind = type(value)
    raw: bytes
    if kind is str:
        raw = value.encode()
        return _pack_string(b"S", len(raw)) + raw
    if kind is int:
        # The two types that every client knows.
        return _pack_int32(b"I", value) if -0x80000000 <= value <= 0x7FFFFFFF else _pack_int64(b"l", value)
    if kind is bool:
        return b"t\x01" if value else b"t\x00"
    if kind is float:
        return _pack_double(b"d", value)
    if value is None:
        return b"V"
    parts: list[bytes] = []
    if kind is dict:
        for name, entry in value.items():
            raw = name.encode()
            parts += (_OCTETS[len(raw)], raw, _field(entry))
        raw = b"".join(parts)
        return _pack_string(b"F", len(raw)) + raw
    if kind is list:
        for entry in value:
            parts.append(_field(entry))
        raw = b"".join(parts)
        return _pack_string(b"A", len(raw)) + raw
    if kind is bytearray:
        return _pack_string(b"x", len(value)) + bytes(value)
    if kind is datetime:
        return b"T" + _pack_timestamp(_timestamp_number(value))
    if kind is Decimal:
        sign, digits, exponent = value.as_tuple()
        # Not by arithmetic, which would depend on the thread's decimal context.
        return _pack_decimal(b"D", -exponent, int(Decimal((sign, digits, 0))))
    if kind is bytes:
        return _pack_string(b"S", len(value)) + bytes(value)  # a received string that is not UTF-8
    raise ValueError(f"AMQP 0-9-1 has no type for a {kind.__name__}")


def is_timestamp(value: datetime) -> bool:
    """Whether AMQP's timestamp, in whole seconds, represents an instant exactly."""
    return not value.microsecond and _EPOCH <= value <= _LAST_TIMESTAMP


def _timestamp_number(at: datetime) -> int:
    # A received one that differs from ours was in milliseconds, and pamqp has divided it.
    return (at - _EPOCH) // _SECOND if is_timestamp(at) else round((at - _EPOCH) / _MILLISECOND)


_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "headers": lambda headers: _field(headers)[1:],  # without its type
    "delivery_mode": _OCTETS.__getitem__,
    "priority": _OCTETS.__getitem__,
    "timestamp": lambda at: _pack_timestamp(_timestamp_number(at)),
}

_FIELDS: Final[tuple[tuple[int, str, Callable[[Any], bytes]], ...]] = tuple(
    (flag, name, _WRITERS.get(name, short)) for name, flag in commands.Basic.Properties.flags.items()
)
"""The properties in their order on the wire: the flag, the name, and how it is written."""
