"""The properties of a received message, read from the bytes of its content header.

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
from typing import Any, Final

from pamqp import commands
from pamqp.header import ContentHeader

UNREADABLE: Final = "x-unreadable-header"
"""Header of a message whose own header could not be read; its value is the reason."""

Properties = commands.Basic.Properties

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


class _Unusual(Exception):
    """It is left to pamqp."""


def read(header: bytes) -> Properties:
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
        return Properties(headers={UNREADABLE: f"{type(error).__name__}: {error}"[:200]})
    return found.properties


def _read(header: bytes) -> Properties:
    (flags,) = _flags(header, _FLAGS_AT)
    if flags & _UNUSUAL:
        raise _Unusual
    properties = object.__new__(Properties)
    properties.timestamp = None
    properties.cluster_id = ""
    at = _PROPERTIES_AT
    for flag, name in _TEXTS_BEFORE:
        text = None
        if flags & flag:
            end = at + 1 + header[at]
            text = header[at + 1 : end].decode()
            at = end
        setattr(properties, name, text)
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
    for flag, name in _TEXTS_BEHIND:
        text = None
        if flags & flag:
            end = at + 1 + header[at]
            text = header[at + 1 : end].decode()
            at = end
        setattr(properties, name, text)
    if at > len(header):
        raise _Unusual
    return properties


def _table(header: bytes, at: int, end: int) -> dict[str, Any]:
    """Read a table of plain values."""
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
