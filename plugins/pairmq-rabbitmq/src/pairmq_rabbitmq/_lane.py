"""The path of messages and confirms past the driver.

The driver reads every frame separately, makes an object of it, and puts it through two queues; a message is three
frames. So the frequent ones, deliveries, returns and confirms, go from the socket's bytes straight to their taker, a
whole read of the socket at once. All other frames reach the driver unchanged. Each kind keeps its order; a message may
be handed on before the driver has seen what the broker sent ahead of it, never after what was sent behind it.

Only channels with a taker use this path; basic.get and the control connection are left to the driver.

The driver considers a connection dead on which it has not seen a frame for some heartbeats, and a busy broker sends no
heartbeats. So it is passed a heartbeat now and then, in place of the frames it did not see.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_FRAME = struct.Struct(">BHI")
_TAG = struct.Struct(">QB").unpack_from
_SIZE = struct.Struct(">Q").unpack_from
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_OVERHEAD = _FRAME.size + 1
_SHORTEST_CONTENT = 2 * _OVERHEAD + 12  # a header frame without properties, and a body frame
_HEARTBEAT = _FRAME.pack(8, 0, 0) + bytes((_END,))
_SIGN_OF_LIFE = 1.0  # s: the shortest heartbeat that can be agreed on
_RETURN, _DELIVER, _ACK, _NACK = (struct.pack(">HH", 60, method) for method in (50, 60, 80, 120))
_CONFIRMS = frozenset((_ACK, _NACK))
_LARGEST = 1 << 26  # bytes of a frame that is waited for; the broker's frame_max is far below


class Taker:
    """Receives the messages and confirms of one channel; a subclass has the methods that it needs, and never raises."""

    def delivered(self, tag: int, redelivered: bool, header: bytes, body: bytes) -> None:
        """A message was delivered to a consumer; the header is the payload of its frame."""

    def returned(self, header: bytes) -> None:
        """A publish could not be routed."""

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        """The broker has confirmed a publish, or not; with ``multiple`` all up to the tag without an answer so far."""


class _Content:
    """A message of which not all frames have arrived; a return has no tag."""

    __slots__ = ("got", "header", "parts", "redelivered", "size", "tag")

    def __init__(self, tag: int | None, redelivered: bool) -> None:
        self.tag = tag
        self.redelivered = redelivered
        self.header = b""
        self.size = self.got = 0
        self.parts: list[bytes] = []


class Lane:
    """Separates one connection's incoming frames."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.frames = 0  # received so far
        self._clock = clock
        self._shown_at = clock()
        self._rest = b""
        self._closed = False  # the stream does not consist of frames
        self._takers: dict[int, Taker] = {}
        self._contents: dict[int, _Content] = {}

    def open(self, channel: int, taker: Taker) -> None:
        """Send a channel's messages and confirms to ``taker`` from now on."""
        self._takers[channel] = taker
        self._contents.pop(channel, None)

    def close(self, channel: int, taker: Taker) -> None:
        """Forget a taker; another channel may have the number by now."""
        if self._takers.get(channel) is taker:
            del self._takers[channel]
            self._contents.pop(channel, None)

    def part(self, data: bytes) -> bytes:
        """Take the bytes read from the socket; returns what is for the driver, whole frames."""
        if self._closed:
            return data
        frames = self.frames
        shown = self._part(data)
        if shown or self.frames > frames:
            now = self._clock()
            if not shown and now - self._shown_at >= _SIGN_OF_LIFE:
                shown = _HEARTBEAT
            if shown:
                self._shown_at = now
        return shown

    def _part(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
        if data.startswith(b"AMQP"):
            return self._give_up(data)  # the broker speaks another version, which the driver reports
        at, end = 0, len(data)
        for_driver: list[bytes] = []
        kept = 0  # from here to `at` it is for the driver
        while end - at >= _OVERHEAD:
            kind, channel, size = _FRAME.unpack_from(data, at)
            stop = at + _OVERHEAD + size
            if stop > end and size <= _LARGEST:
                break
            if stop > end or data[stop - 1] != _END:
                return b"".join(for_driver) + self._give_up(data[kept:])
            self.frames += 1
            taker = self._takers.get(channel)
            if taker is not None and kind == _METHOD and data.startswith(_DELIVER, at + _FRAME.size):
                whole = self._whole(taker, channel, data, at + _FRAME.size, stop)
                if whole:
                    self.frames += 2
                    if kept < at:
                        for_driver.append(data[kept:at])
                    kept = at = whole
                    continue
            if taker is not None and self._takes(taker, kind, channel, data, at + _FRAME.size, stop - 1):
                if kept < at:
                    for_driver.append(data[kept:at])
                kept = stop
            at = stop
        self._rest = data[at:]
        if kept < at:
            for_driver.append(data[kept:at])
        return b"".join(for_driver)

    def _whole(self, taker: Taker, channel: int, data: bytes, at: int, stop: int) -> int:
        """Hand on a delivery that is there completely, in the three frames that nearly all have; 0 or where it ends."""
        end = len(data)
        if end - stop < _SHORTEST_CONTENT:
            return 0
        kind, number, size = _FRAME.unpack_from(data, stop)
        body = stop + _OVERHEAD + size
        if kind != _HEADER or number != channel or body + _OVERHEAD > end or data[body - 1] != _END:
            return 0
        header = stop + _FRAME.size
        (length,) = _SIZE(data, header + 4)
        kind, number, size = _FRAME.unpack_from(data, body)
        last: int = body + _OVERHEAD + length
        if kind != _BODY or number != channel or size != length or last > end or data[last - 1] != _END:
            return 0
        tag, redelivered = _TAG(data, at + 5 + data[at + 4])
        self._contents.pop(channel, None)
        taker.delivered(tag, bool(redelivered), data[header : body - 1], data[body + _FRAME.size : last - 1])
        return last

    def _give_up(self, data: bytes) -> bytes:
        """Something other than a frame arrived: the driver gets it, and all that follows."""
        self._closed, self._rest = True, b""
        return data

    def _takes(self, taker: Taker, kind: int, channel: int, data: bytes, at: int, stop: int) -> bool:
        """Hand on a frame; returns whether it was for the taker."""
        if kind == _METHOD:
            method = data[at : at + 4]
            if method == _DELIVER:
                tag, redelivered = _TAG(data, at + 5 + data[at + 4])
                self._contents[channel] = _Content(tag, bool(redelivered))
            elif method in _CONFIRMS:
                tag, bits = _TAG(data, at + 4)
                taker.confirmed(tag, bool(bits & 1), method == _ACK)
            elif method == _RETURN:
                self._contents[channel] = _Content(None, False)
            else:
                return False
            return True
        content = self._contents.get(channel)
        if content is None:
            return False
        if kind == _HEADER:
            content.header = data[at:stop]
            (content.size,) = _SIZE(data, at + 4)
        elif kind == _BODY:
            content.parts.append(data[at:stop])
            content.got += stop - at
        else:
            return False
        if content.got >= content.size:
            del self._contents[channel]
            if content.tag is None:
                taker.returned(content.header)
            else:
                parts = content.parts
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                taker.delivered(content.tag, content.redelivered, content.header, body)
        return True
