"""The bytes between aio-pika and the broker, observed: what the driver keeps internal has to be known here at once.

aio-pika's driver gets streams of this module. They see every frame before the driver does, and report

- that the connection is lost, and why, without waiting for the driver to clean up;
- whether the broker has blocked it (a memory or disk alarm), for which the driver has no callback;
- signs of life: whether anything was received since some moment.

The driver reads every frame separately, makes an object of it, and puts it through two queues; a message is three
frames. So the frequent ones, deliveries, returns and confirms, go from the socket's bytes straight to their taker, a
whole read of the socket at once. All other frames reach the driver. Each kind keeps its order; a message may be handed
on before the driver has seen what the broker sent ahead of it, never after what was sent behind it. Only channels with
a taker use this path; basic.get and the control connection are left to the driver.

The driver considers a connection dead on which it has not seen a frame for some heartbeats, and a busy broker sends no
heartbeats. So it is passed a heartbeat now and then, in place of the frames it did not see.

One poison message must not end the connection for everything on it: a header that the driver's parser can't read (a
timestamp beyond the year 9999 will do) is replaced by an empty one with a mark, and the receiver dead-letters the
message under it. And so with the broker's reasons, which it cuts at 255 bytes, within a character of a name if need be:
a queue that does not exist would look like a lost connection. Exchange names and routing keys that are not valid text,
which are not used here, are blanked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable
from typing import Any

import pamqp.frame
from aiormq.connection import TransportFactory
from pamqp import commands
from pamqp.header import ContentHeader
from yarl import URL

from pairmq.transport import dial, keep_from_children
from pairmq_rabbitmq._header import UNREADABLE, is_costly

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_TAG = struct.Struct(">QB").unpack_from
_SIZE = struct.Struct(">Q").unpack_from
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_OVERHEAD = _FRAME.size + 1
_SHORTEST_CONTENT = 2 * _OVERHEAD + 12  # a header frame without properties, and a body frame
_HEARTBEAT = _FRAME.pack(8, 0, 0) + bytes((_END,))
_SIGN_OF_LIFE = 1.0  # s: the shortest heartbeat that can be agreed on
_LARGEST = 1 << 26  # bytes of a frame that is waited for; the broker's frame_max is far below

_CLOSE, _BLOCKED, _UNBLOCKED = (struct.pack(">HH", 10, method) for method in (50, 60, 61))
_CLOSES = frozenset((_CLOSE, struct.pack(">HH", 20, 40)))  # of a connection, of a channel
_RETURN, _DELIVER, _GET_OK, _ACK, _NACK = (struct.pack(">HH", 60, method) for method in (50, 60, 71, 80, 120))
_CONFIRMS = frozenset((_ACK, _NACK))
_CONTENT_METHODS = frozenset((_RETURN, _DELIVER, _GET_OK))


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


class Wire:
    """One connection's stream, as seen from outside; ``on_lost`` is called once, when nothing more can be received."""

    def __init__(self, on_lost: Callable[[BaseException], None], clock: Callable[[], float] | None = None) -> None:
        self.frames = 0  # received so far
        self.blocked = False
        self.close_frame: commands.Connection.Close | None = None
        """The broker's reason when it closed the connection."""
        self._on_lost: Callable[[BaseException], None] | None = on_lost
        self._writer: asyncio.StreamWriter | None = None
        self._clock = clock or asyncio.get_running_loop().time
        self._shown_at = self._clock()
        self._rest = b""
        self._foreign = False  # the stream does not consist of frames
        self._takers: dict[int, Taker] = {}
        self._contents: dict[int, _Content] = {}

    def opened(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        keep_from_children(self, Wire._socket)

    def _socket(self) -> Any:
        writer = self._writer
        return None if writer is None or writer.is_closing() else writer.get_extra_info("socket")

    def abort(self) -> None:
        """Drop the socket at once, without a close handshake."""
        if self._writer is not None:
            self._writer.transport.abort()

    def lost(self, cause: BaseException) -> None:
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(cause)

    def saw(self, kind: int, payload: bytes) -> None:
        if kind != _METHOD:
            return
        method = payload[:4]
        if method == _BLOCKED:
            self.blocked = True
        elif method == _UNBLOCKED:
            self.blocked = False
        elif method == _CLOSE:
            self.close_frame = commands.Connection.Close()
            with contextlib.suppress(ValueError, struct.error):
                self.close_frame.unmarshal(payload[4:])
            self.lost(ConnectionResetError("the broker closed the connection"))

    def take(self, channel: int, taker: Taker) -> None:
        """Send a channel's messages and confirms to ``taker`` from now on."""
        self._takers[channel] = taker
        self._contents.pop(channel, None)

    def leave(self, channel: int, taker: Taker) -> None:
        """Forget a taker; another channel may have the number by now."""
        if self._takers.get(channel) is taker:
            del self._takers[channel]
            self._contents.pop(channel, None)

    def part(self, data: bytes) -> bytes:
        """Take the bytes read from the socket; returns what is for the driver, whole frames."""
        if self._foreign:
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
        self._foreign, self._rest = True, b""
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


class WatchedStreams(TransportFactory):
    def __init__(self, wire: Wire, tls: ssl.SSLContext | None) -> None:
        self._wire = wire
        self._tls = tls

    async def create(self, url: URL, **unused: Any) -> tuple[Any, asyncio.StreamWriter]:
        """Connect; the driver's own TLS settings are ignored."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = _Parting(reader, self._wire)
        host, port = url.host or "", url.port or 0
        connection = await dial(host, port)
        where: dict[str, Any] = {"host": host, "port": port} if connection is None else {"sock": connection}
        if connection is not None and self._tls is not None:
            where["server_hostname"] = host
        transport, _ = await loop.create_connection(lambda: protocol, ssl=self._tls, **where)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self._wire.opened(writer)
        return _WatchedReader(reader, self._wire), writer


class _Parting(asyncio.StreamReaderProtocol):
    """Passes only the driver's part to the stream."""

    def __init__(self, reader: asyncio.StreamReader, wire: Wire) -> None:
        super().__init__(reader)
        self._reader = reader
        self._wire = wire

    def data_received(self, data: bytes) -> None:
        left = self._wire.part(data)
        if left:
            self._reader.feed_data(left)


class _WatchedReader:
    """What the driver reads from: the same bytes, one whole frame at a time."""

    def __init__(self, reader: asyncio.StreamReader, wire: Wire) -> None:
        self._reader = reader
        self._wire = wire
        self._frame = b""
        self._at = 0

    def at_eof(self) -> bool:
        if self._at < len(self._frame) or not self._reader.at_eof():
            return False
        self._wire.lost(ConnectionResetError("the broker closed the connection"))
        return True

    async def read(self, n: int = -1) -> bytes:
        return await self._reader.read(n)

    async def readexactly(self, n: int) -> bytes:
        if self._at == len(self._frame):
            try:
                self._frame = await self._next()
            except BaseException as error:
                self._wire.lost(error)
                raise
            self._at = 0
        part = self._frame[self._at : self._at + n]
        self._at += len(part)
        if len(part) < n:
            part += await self._reader.readexactly(n - len(part))
        return part

    async def _next(self) -> bytes:
        start = await self._reader.readexactly(_FRAME.size)
        if start.startswith(b"AMQP"):
            return start  # the broker speaks another version, which the driver reports
        kind, channel, size = _FRAME.unpack(start)
        rest = await self._reader.readexactly(size + 1)
        if kind == _METHOD and rest[:4] in _CLOSES:
            rest = _with_text(rest)
            start = _FRAME.pack(kind, channel, len(rest) - 1)
        self._wire.saw(kind, rest)
        if kind == _METHOD and rest[:4] in _CONTENT_METHODS and not rest[:-1].isascii():
            rest = _nameable(start, rest)
            start = _FRAME.pack(kind, channel, len(rest) - 1)
        elif kind == _HEADER:
            rest = _readable(channel, start, rest)
            start = _FRAME.pack(kind, channel, len(rest) - 1)
        return start + rest


def _with_text(rest: bytes) -> bytes:
    """A close frame whose reason is text: the broker cuts it in the middle of a character."""
    begin, size = 7, rest[6]  # behind the class, the method, the reply code and its own size
    text = rest[begin : begin + size].decode(errors="ignore").encode()
    return rest[: begin - 1] + bytes((len(text),)) + text + rest[begin + size :]


def _nameable(start: bytes, rest: bytes) -> bytes:
    """A method frame of a message that the driver can parse: exchange and routing key, which are not used here, may
    be any bytes for the broker, and have to be text for the driver."""
    try:
        pamqp.frame.unmarshal(start + rest)
    except Exception:
        payload, end = rest[:-1], rest[-1:]
        if rest.startswith(_DELIVER):  # consumer tag, delivery tag, redelivered
            kept = 4 + 1 + payload[4] + 8 + 1
            return payload[:kept] + b"\0\0" + end
        if rest.startswith(_GET_OK):  # delivery tag, redelivered; then the names, and a count
            return payload[: 4 + 8 + 1] + b"\0\0" + payload[-4:] + end
        kept = 4 + 2 + 1 + payload[6]  # reply code and text
        return payload[:kept] + b"\0\0" + end
    return rest


def _readable(channel: int, start: bytes, rest: bytes) -> bytes:
    """The payload and end of a header frame that the driver can parse: this one, or a bare one with a mark."""
    try:
        if is_costly(rest):
            raise ValueError("its headers hold too many values")
        pamqp.frame.unmarshal(start + rest)
    except Exception as error:
        try:
            size = _CONTENT.unpack_from(rest)[2]
        except struct.error:
            return rest  # not a header frame at all: the driver may end the connection
        problem = f"{type(error).__name__}: {error}"[:200]
        bare = ContentHeader(body_size=size, properties=commands.Basic.Properties(headers={UNREADABLE: problem}))
        return pamqp.frame.marshal(bare, channel)[_FRAME.size :]
    return rest
