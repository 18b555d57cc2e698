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
_BROKERS_OWN = (1024, 64)  # bytes and values of what the broker adds: x-delivery-count, x-death and the like
_FLAGS = 12  # where the flags stand: behind class, weight and body size
_MORE = 0x0001
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


def is_laborious(header: bytes, *, sending: bool = False) -> bool:
    """Tell whether reading a content header would hold up everything else; one look at each value.

    Args:
        header: the payload of a content header frame; anyone may have written its properties. Of one that can't be
            parsed, what comes before the mistake counts, as the parser reads no further either.
        sending: leave room for the headers that the broker adds to a message which it redelivers or dead-letters: one
            that was accepted must not become too laborious on its way.
    """
    bytes_more, values_more = _BROKERS_OWN if sending else (0, 0)
    size = len(header) + bytes_more
    if size <= _SMALL:
        return False
    try:
        return _exceeds(header, MOST_LABOUR // size - values_more)
    except IndexError:
        return False


def _exceeds(header: bytes, most: int) -> bool:
    """Whether the headers hold more values than that, on all levels together."""
    at = _FLAGS + 2
    flags = word = int.from_bytes(header[_FLAGS:at])
    while word & _MORE:  # the parser reads on, though the broker, which knows 14 properties, does not
        word = int.from_bytes(header[at : at + 2])
        at += 2
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
