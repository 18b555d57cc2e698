"""Frames: what the stream of bytes is cut into (AMQP 1.0 specification, part 2, section 2.3; part 5, section 5.3.1)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from servicebus_local.amqp._decode import decode_value
from servicebus_local.amqp._types import AmqpDecodeError
from servicebus_local.amqp.performatives import PERFORMATIVES, read_performative

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

AMQP_FRAME = 0
SASL_FRAME = 1

EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""A frame without a body: it only shows that the peer is alive."""

FRAME_HEADER_SIZE = 8

_HEADER = struct.Struct(">IBBH")


class FramingError(Exception):
    """The stream cannot be cut into frames; the message says why."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that came in."""

    channel: int
    body: Any
    payload: bytes


def write_frame(body: bytes, *, channel: int = 0, kind: int = AMQP_FRAME) -> bytes:
    """Put a frame's header before its body."""
    return frame_header(len(body), channel, kind) + body


def frame_header(size: int, channel: int, kind: int = AMQP_FRAME) -> bytes:
    """Give the header of a frame whose body has this many bytes."""
    return _HEADER.pack(FRAME_HEADER_SIZE + size, 2, kind, channel)


def frame_size(data: bytes, offset: int) -> int:
    """Read how many bytes the frame at an offset has, header included; at least 4 must be there."""
    return int.from_bytes(data[offset : offset + 4], "big")


def read_frame(data: bytes, offset: int, end: int, kind: int) -> Frame:
    """Read a frame that is complete."""
    size, skip, found, channel = _HEADER.unpack_from(data, offset)
    start = offset + 4 * skip
    if skip < 2 or start > end:
        raise FramingError(f"A frame of {size} bytes says that its body begins at byte {4 * skip}.")
    if found != kind:
        raise FramingError(f"A frame of type {found} came where one of type {kind} belongs.")
    if start == end:
        return Frame(channel, None, b"")
    if kind == AMQP_FRAME and data[start] == 0 and data[start + 1 : start + 2] == b"\x53":
        # The usual encoding, without the detour of a described value.
        composite = PERFORMATIVES.get(data[start + 2]) if start + 2 < end else None
        if composite is None:
            raise AmqpDecodeError("A frame holds no performative that there is.")
        items, stop = decode_value(data, start + 3)
        body = composite.read(items)
    else:
        value, stop = decode_value(data, start)
        body = read_performative(value, sasl=kind == SASL_FRAME)
    if stop > end:
        raise AmqpDecodeError("A performative is longer than its frame.")
    return Frame(channel, body, data[stop:end])
