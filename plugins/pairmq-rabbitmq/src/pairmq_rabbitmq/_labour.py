"""How much work it is for the driver to read the headers of one message.

Its parser copies the rest of a table for each value that stands in it. A table of many thousands of tiny values in one
frame of 128 KiB keeps the event loop busy for seconds, and with it every other message and the connection's heartbeat:
a few such messages, which anyone who may publish can write, would stop a receiver. So they are counted first.
"""

from __future__ import annotations

from typing import Final

MOST_LABOUR: Final = 1 << 28
"""Bytes that the parser may copy for one message, about: some tenths of a second."""

_SMALL = 1 << 14  # bytes of a header that can't hold enough values to matter
_FLAGS = 12  # where the flags stand: behind class, weight and body size
_HEADERS = 0x2000
_TEXTS_BEFORE = (0x8000, 0x4000)  # content type and encoding stand before the headers

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


def is_laborious(header: bytes) -> bool:
    """Tell whether reading a content header would hold up everything else; one look at each value.

    Args:
        header: the payload of a content header frame; anyone may have written its properties. Of one that can't be
            parsed, what comes before the mistake counts, as the parser reads no further either.
    """
    if len(header) <= _SMALL:
        return False
    try:
        return _exceeds(header, MOST_LABOUR // len(header))
    except IndexError:
        return False


def _exceeds(header: bytes, most: int) -> bool:
    """Whether the headers hold more values than that, on all levels together."""
    flags = int.from_bytes(header[_FLAGS : _FLAGS + 2])
    at = _FLAGS + 2
    for flag in _TEXTS_BEFORE:
        if flags & flag:
            at += 1 + header[at]
    if not flags & _HEADERS:
        return False
    ends = [(at + 4 + _length(header, at), True)]
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
            ends.append((at + 4 + _length(header, at), kind == _TABLE))
            at += 4
        elif kind in _STRINGS:
            at += 4 + _length(header, at)
        else:
            at += _SIZES.get(kind, len(header))
    return False


def _length(header: bytes, at: int) -> int:
    return int.from_bytes(header[at : at + 4])
