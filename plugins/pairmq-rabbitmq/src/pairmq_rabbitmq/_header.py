"""The properties of a received message, read from the bytes of its content header.

pamqp's parser copies what is left of the header for each value in it, and reads one property after the other by its
name: that is most of what receiving a message costs. The properties and types that nearly every message has are read
here in one pass; any header with others in it, or with a mistake, is pamqp's, whose reading is the same.

Anyone may publish: a header that can't be read gives properties with nothing but the mark `UNREADABLE`.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from pamqp import commands
from pamqp.header import ContentHeader

from pairmq_rabbitmq._labour import is_laborious

UNREADABLE: Final = "x-unreadable-header"
"""Header of a message whose own header could not be read; its value says why."""

Properties = commands.Basic.Properties

_FLAGS_AT, _PROPERTIES_AT = 12, 14
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
_LONG = 1 << 14  # bytes from which is_laborious looks

_flags = struct.Struct(">H").unpack_from
_length = struct.Struct(">I").unpack_from
_int32 = struct.Struct(">i").unpack_from
_int64 = struct.Struct(">q").unpack_from
_float64 = struct.Struct(">d").unpack_from
_S, _I, _l, _t, _V, _d = b"SIltVd"


class _Unusual(Exception):
    """It is pamqp's."""


def read(header: bytes) -> Properties:
    """Read the properties in the payload of a content header frame; never raises."""
    if len(header) < _LONG:
        try:
            return _read(header)
        except (_Unusual, IndexError, UnicodeDecodeError, struct.error):
            pass
    try:
        if is_laborious(header):
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
