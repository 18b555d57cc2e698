"""The fast path between a message and its header, for the plain ones that nearly all are.

The general path, `_header` and `_codec`, makes an object of the properties, sorts them into a message's fields, and has
each validated. Plain texts, integers and booleans under names that neither PairMQ nor the broker interprets need
only be read and written: the rest of the validation is done here, value by value. A header with anything else in it,
or with an error, is left to the general path, whose result is the same.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter

from pairmq.model import MAX_ID_LENGTH, Message, PropertyValue
from pairmq_rabbitmq import _layout
from pairmq_rabbitmq._header import short
from pairmq_rabbitmq._publish import Parcel

_FLAGS_AT, _PROPERTIES_AT = 12, 14
_TYPE, _ENCODING, _HEADERS, _MODE, _PRIORITY = 0x8000, 0x4000, 0x2000, 0x1000, 0x0800
_CORRELATION, _REPLY_TO, _ID, _SUBJECT = 0x0400, 0x0200, 0x0080, 0x0020
_OTHERS = 0xFFFF & ~(_TYPE | _ENCODING | _HEADERS | _MODE | _PRIORITY | _CORRELATION | _REPLY_TO | _ID | _SUBJECT)
_LONG = 1 << 14  # bytes of a header from which it may be too costly

_flags = struct.Struct(">H").unpack_from
_length = struct.Struct(">I").unpack_from
_int32 = struct.Struct(">i").unpack_from
_int64 = struct.Struct(">q").unpack_from
_S, _I, _l, _t = b"SIlt"

_pack_start = struct.Struct(">HxxQH").pack
_pack_length = struct.Struct(">I").pack
_BASIC = 60  # class of all methods that publish
_SMALL_TABLE = 1 << 13  # bytes of a table, far below what makes a header too long or too costly
_PERSISTENT = b"\x02"
_LETTERS = 255 // 4  # so many characters always fit, whatever they are

_OTHER, _COUNT = "", "\0"  # not names of plain properties

_BARE = ("body", "message_id", "application_properties")
_others = attrgetter(*(name for name in Message.__slots__ if name not in _BARE))
_NOTHING = (None,) * (len(Message.__slots__) - len(_BARE))


def is_bare(message: Message) -> bool:
    """Whether a message has nothing but a body and an id, and so a header that always fits."""
    return (
        not message.application_properties
        and _others(message) == _NOTHING
        and (message.message_id is None or len(message.message_id) <= _LETTERS)
    )


def read(header: bytes, body: bytes) -> tuple[Message, int | None] | None:
    """Read a plain message, and how often it was delivered before if the broker reports it; None for any other."""
    if len(header) > _LONG:
        return None
    try:
        return _read(header, body)
    except (IndexError, UnicodeDecodeError, struct.error):
        return None


def _read(header: bytes, body: bytes) -> tuple[Message, int | None] | None:
    (flags,) = _flags(header, _FLAGS_AT)
    if flags & _OTHERS:
        return None
    at = _PROPERTIES_AT
    content_type = content_encoding = correlation_id = reply_to = message_id = subject = None
    priority = count = None
    own: dict[str, PropertyValue] = {}
    if flags & _TYPE:
        content_type, at = _short(header, at)
    if flags & _ENCODING:
        content_encoding, at = _short(header, at)
    if flags & _HEADERS:
        end = at + 4 + _length(header, at)[0]
        at += 4
        while at < end:
            stop = at + 1 + header[at]
            name = _name(header[at + 1 : stop])
            if not name:
                return None
            kind = header[stop]
            at = stop + 5
            value: PropertyValue
            if kind == _S:
                stop = at + _length(header, stop + 1)[0]
                value = header[at:stop].decode()
                at = stop
            elif kind == _I:
                (value,) = _int32(header, stop + 1)
            elif kind == _l:
                (value,) = _int64(header, stop + 1)
                at += 4
            elif kind == _t:
                value = header[stop + 1] != 0
                at -= 3
            else:
                return None
            if name is not _COUNT:
                own[name] = value
            elif type(value) is int and value >= 0:
                count = value
            else:
                return None
        if at != end:
            return None
    if flags & _MODE:
        at += 1
    if flags & _PRIORITY:
        priority = header[at]
        at += 1
    if flags & _CORRELATION:
        correlation_id, at = _short(header, at)
    if flags & _REPLY_TO:
        reply_to, at = _short(header, at)
    if flags & _ID:
        message_id, at = _short(header, at)
        if not 0 < len(message_id) <= MAX_ID_LENGTH:
            return None
    if flags & _SUBJECT:
        subject, at = _short(header, at)
    if at != len(header):
        return None
    message = Message.of_checked(
        body, message_id, content_type, content_encoding, correlation_id, subject, reply_to, priority, own
    )
    return message, count


def _short(header: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + header[at]
    return header[at + 1 : end].decode(), end


@lru_cache(maxsize=1024)
def _name(raw: bytes) -> str:
    """The name of an application property; `_COUNT` for the broker's count, `_OTHER` if it needs the general path."""
    name = raw.decode()
    if name == _layout.DELIVERY_COUNT:
        return _COUNT
    return name if 0 < len(name) <= MAX_ID_LENGTH and _layout.is_plain(name) and name != _COUNT else _OTHER


def pack(method: bytes, message: Message) -> Parcel | None:
    """Make a message ready to be written; None for one that is not plain."""
    message_id = message.message_id
    if (
        message_id is None
        or len(message_id) > _LETTERS
        or message.session_id is not None
        or message.time_to_live is not None
        or message.scheduled_enqueue_at is not None
        or message.correlation_id is not None
        or message.reply_to is not None
        or message.to is not None
        or message.reply_to_session_id is not None
        or message.partition_key is not None
        or message.priority is not None
    ):
        return None
    flags = _MODE | _ID
    texts = b""
    if message.content_type is not None:
        if len(message.content_type) > _LETTERS:
            return None
        flags |= _TYPE
        texts = short(message.content_type)
    if message.content_encoding is not None:
        if len(message.content_encoding) > _LETTERS:
            return None
        flags |= _ENCODING
        texts += short(message.content_encoding)
    table = b""
    if message.application_properties:
        values = _table(message.application_properties)
        if values is None:
            return None
        flags |= _HEADERS
        table = _pack_length(len(values)) + values
    behind = short(message_id)
    if message.subject is not None:
        if len(message.subject) > _LETTERS:
            return None
        flags |= _SUBJECT
        behind += short(message.subject)
    body = message.body
    header = b"".join((_pack_start(_BASIC, len(body), flags), texts, table, _PERSISTENT, behind))
    return Parcel(method, message_id, header, body)


def _table(properties: Mapping[str, PropertyValue]) -> bytes | None:
    """Write a table of plain texts; None if it holds anything else."""
    parts: list[bytes] = []
    for name, value in properties.items():
        if type(value) is not str:
            return None
        key = _key(name)
        if not key:
            return None
        raw = value.encode()
        parts += (key, _pack_length(len(raw)), raw)
    table = b"".join(parts)
    return table if len(table) <= _SMALL_TABLE else None


@lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    """A name as encoded before a text in a table; empty if it needs the general path."""
    return short(name) + b"S" if len(name) <= _LETTERS and _layout.is_plain(name) else b""
