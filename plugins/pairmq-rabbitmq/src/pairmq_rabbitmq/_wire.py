"""The bytes between aio-pika and the broker, observed: what the driver keeps internal has to be known here at once.

aio-pika's driver gets streams of this module. They see every frame before the driver does, and report

- that the connection is lost, and why, without waiting for the driver to clean up;
- whether the broker has blocked it (a memory or disk alarm), for which the driver has no callback;
- signs of life: whether anything was received since some moment.

Messages and confirms of busy channels don't go through the driver at all: see `_lane`.

They also prevent one poison message from ending the connection for everything on it: a header that the driver's parser
can't read (a timestamp beyond the year 9999 will do) is replaced by an empty one with a mark, and the receiver
dead-letters the message under it. And so with the broker's reasons, which it cuts at 255 bytes, within a character of a
name if need be: a queue that does not exist would look like a lost connection.
Exchange names and routing keys that are not valid text, which are not used here, are blanked.
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

from pairmq.transport import dial
from pairmq_rabbitmq._header import UNREADABLE, is_costly
from pairmq_rabbitmq._lane import Lane

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_METHOD, _HEADER = 1, 2
_BLOCKED, _UNBLOCKED = (struct.pack(">HH", 10, method) for method in (60, 61))
_CLOSE, _CHANNEL_CLOSE = struct.pack(">HH", 10, 50), struct.pack(">HH", 20, 40)
_CLOSES = frozenset((_CLOSE, _CHANNEL_CLOSE))
_RETURN, _DELIVER, _GET_OK = (struct.pack(">HH", 60, method) for method in (50, 60, 71))
_CONTENT_METHODS = frozenset((_RETURN, _DELIVER, _GET_OK))


class Wire:
    """One connection's streams, as seen from outside; ``on_lost`` is called once, when nothing more can be received."""

    def __init__(self, on_lost: Callable[[BaseException], None]) -> None:
        self.lane = Lane(asyncio.get_running_loop().time)
        self.blocked = False
        self._on_lost: Callable[[BaseException], None] | None = on_lost
        self.close_frame: commands.Connection.Close | None = None
        """The broker's reason when it closed the connection."""
        self._writer: asyncio.StreamWriter | None = None

    @property
    def frames(self) -> int:
        return self.lane.frames

    def opened(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def abort(self) -> None:
        """Drop the socket at once, without a close handshake."""
        if self._writer is not None:
            self._writer.transport.abort()

    def lost(self, cause: BaseException) -> None:
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(cause)

    def saw(self, kind: int, payload: bytes) -> None:
        """Observe one frame that is passed to the driver."""
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


class WatchedStreams(TransportFactory):
    """Opens the socket of one connection."""

    def __init__(self, wire: Wire, tls: ssl.SSLContext | None) -> None:
        self._wire = wire
        self._tls = tls

    async def create(self, url: URL, **unused: Any) -> tuple[Any, asyncio.StreamWriter]:
        """Connect; the driver's own TLS settings are ignored."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = _Parting(reader, self._wire.lane)
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

    def __init__(self, reader: asyncio.StreamReader, lane: Lane) -> None:
        super().__init__(reader)
        self._reader = reader
        self._lane = lane

    def data_received(self, data: bytes) -> None:
        left = self._lane.part(data)
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
