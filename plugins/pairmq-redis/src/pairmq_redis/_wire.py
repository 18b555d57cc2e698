"""One connection to a server, as the link sees it: commands in, replies out, in the same order.

redis-py opens it: TCP or TLS, AUTH, SELECT. From then on its transport is used directly, and three things that redis-py
would do are left out on purpose: retries and reconnections (the core decides about those), health checks, and waiting
for the socket's buffer when writing, since a wait there would look like a hung server; every caller waits for
its reply anyway, which bounds what is in the buffer. Replies are parsed by hiredis, Redis' own parser: redis-py reads
each element of a reply with awaits of its own, which was the largest cost of receiving. They are passed from the socket
to their caller in one step: a task that reads a stream would be woken first, and the caller a turn of the loop later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias

import hiredis
from redis.asyncio import Connection
from redis.connection import DefaultParser
from redis.exceptions import AuthenticationError, InvalidResponse, ResponseError

from pairmq.transport import keep_from_children

Command: TypeAlias = Sequence[bytes]
"""A command's name and arguments."""

Reply: TypeAlias = Any
"""The server's answer: None, int, bytes, a list of replies, or an exception for an error reply."""


INCOMPLETE = object()
"""What the parser returns when the next reply is incomplete."""

_READ_SIZE = 1 << 18  # bytes


class Wire(Protocol):
    """What `Link` needs of a connection."""

    async def open(self) -> None:
        """Connect; raises the driver's exception, and leaves nothing open when it fails or is cancelled."""

    def write(self, commands: Sequence[Command]) -> None:
        """Send commands, in order, without waiting."""

    async def deliver(self, take: Callable[[Reply], None]) -> NoReturn:
        """Pass every reply to ``take`` as it arrives, errors too, until the connection is lost: then raise why."""

    def abort(self) -> None:
        """Drop the connection at once, whatever the server does; idempotent."""


class RedisWire:
    """A connection to a real server, made within ``connect_timeout`` seconds; ``find`` gives a place that changes."""

    def __init__(
        self,
        make: Callable[[], Connection],
        connect_timeout: float,
        find: Callable[[], Awaitable[tuple[str, int]]] | None = None,
    ) -> None:
        self._connection = make()
        self._connect_timeout = connect_timeout
        self._find = find
        self._incoming = _Incoming()

    async def open(self) -> None:
        keep_from_children(self, RedisWire._socket)  # from the login on, whose answers a child could take
        try:
            async with asyncio.timeout(self._connect_timeout):
                if self._find is not None:
                    self._connection.host, self._connection.port = await self._find()
                await self._connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                await self._ask_to_be_let_in()
            self._take_over()
        except BaseException:
            self.abort()
            raise

    async def _ask_to_be_let_in(self) -> None:
        """Find out whether a server requires a login when the URL has none.

        From a client that is not logged in Redis reads only small commands: upon a larger one it ends the connection,
        and its reason may be lost with it (`unauthenticated bulk length`). That would look like an outage, and messages
        would be diverted that the broker refuses. The answer also shows that this is Redis: a server that only returns
        what it is sent would otherwise seem to confirm messages.
        """
        connection = self._connection
        if connection.password or connection.username or connection.credential_provider:
            return  # it has just logged in
        await connection.send_command("PING")
        try:
            answer = await connection.read_response()
        except AuthenticationError:
            raise
        except ResponseError:
            return  # any other error is returned to the commands that follow as well
        if answer != b"PONG":
            raise InvalidResponse("what listens there does not answer as Redis does: check host and port")

    def _take_over(self) -> None:
        """Receive here what the server sends, past redis-py, which has read the reply to each of its own commands."""
        reader, writer = self._connection._reader, self._connection._writer
        if reader is None or writer is None or reader.at_eof() or writer.transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        writer.transport.set_protocol(self._incoming)

    def _socket(self) -> Any:
        writer = self._connection._writer
        return None if writer is None or writer.is_closing() else writer.get_extra_info("socket")

    @property
    def address(self) -> tuple[str, int]:
        """Where it leads, once it is open."""
        return self._connection.host, int(self._connection.port)

    def write(self, commands: Sequence[Command]) -> None:
        writer = self._connection._writer
        # It may be lost though nothing has said so: asyncio does that a turn of the loop later, and until then it takes
        # and drops what is written, with a line in the log for each write.
        if writer is None or writer.transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        # Its stub names a tuple of one argument.
        writer.write(b"".join([hiredis.pack_command(tuple(command)) for command in commands]))  # type: ignore[arg-type]

    async def deliver(self, take: Callable[[Reply], None]) -> NoReturn:
        await self._incoming.deliver(take)

    def abort(self) -> None:
        # redis-py's own disconnect first sends what is buffered, which a hung server never reads.
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()
            self._connection._close()  # type: ignore[no-untyped-call]  # redis-py's


class _Incoming(asyncio.BufferedProtocol):
    """The incoming bytes of a connection: received into one buffer, parsed to replies."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._parser = reply_parser()
        self._take: Callable[[Reply], None] | None = None
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def deliver(self, take: Callable[[Reply], None]) -> NoReturn:
        """Pass on replies, those that have arrived already among them, until the connection is lost."""
        self._take = take
        self._hand_on()
        try:
            await self._lost
        finally:
            self._take = None
        raise AssertionError("it ends with an exception only")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._parser.feed(self._buffer[:nbytes])  # type: ignore[arg-type]  # its stub knows bytes alone
        self._hand_on()

    def eof_received(self) -> None:
        self._lose(ConnectionResetError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc or ConnectionResetError("the server closed the connection"))

    def _hand_on(self) -> None:
        take, parser = self._take, self._parser
        if take is None or self._lost.done():
            return
        try:
            while (reply := parser.gets()) is not INCOMPLETE:
                take(reply)
        except Exception as error:
            self._lose(error)

    def _lose(self, why: Exception) -> None:
        if not self._lost.done():
            self._lost.set_exception(why)
            self._lost.exception()  # retrieved, as no caller may wait any more


def reply_parser() -> hiredis.Reader:
    """A parser whose error replies are redis-py's exceptions, and that gives `INCOMPLETE` until a reply is whole."""
    return hiredis.Reader(
        protocolError=InvalidResponse,
        replyError=DefaultParser.parse_error,
        notEnoughData=INCOMPLETE,
    )
