"""The performative of outgoing transfers, written by hand: it is by far the most frequent one."""

from __future__ import annotations

import struct

from pairmq_servicebus.server.amqp._frames import FRAME_HEADER_SIZE
from pairmq_servicebus.server.amqp._link import Delivery

_U32 = struct.Struct(">BI").pack
# `rcv-settle-mode`, `state`, `resume`, `aborted` and `batchable` are never set.
_TAIL = b"\x40" * 5


class TransferHead:
    """What stands before the payload in the frames of one delivery.

    Args:
        delivery: the delivery, with its number.
    """

    __slots__ = ("_handle", "_rest")

    def __init__(self, delivery: Delivery) -> None:
        tag = delivery.tag
        settled = b"\x41" if delivery.settled else b"\x42"
        self._handle = _uint(delivery.link.handle)
        self._rest = b"".join(
            (_uint(delivery.delivery_id), b"\xa0", bytes((len(tag),)), tag, _uint(delivery.message_format), settled)
        )

    def size(self, first: bool) -> int:
        """Give the bytes that a frame needs besides its payload."""
        # Frame header, descriptor (3), list8 with size and count (3), handle, fields, more (1), tail (5).
        return FRAME_HEADER_SIZE + 12 + len(self._handle) + len(self._rest if first else _CONTINUED)

    def encode(self, *, first: bool, more: bool) -> bytes:
        """Give the performative.

        Args:
            first: whether this is the delivery's first frame; the others need not repeat what it is.
            more: whether more frames follow.
        """
        fields = b"".join((self._handle, self._rest if first else _CONTINUED, b"\x41" if more else b"\x42", _TAIL))
        return b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 11)) + fields


_CONTINUED = b"\x40" * 4


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else _U32(0x70, value)
