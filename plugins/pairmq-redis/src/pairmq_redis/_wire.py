"""One connection to a server, as the link sees it: commands in, replies out, in the same order.

redis-py opens it: TCP or TLS, AUTH, SELECT. From then on its streams are used directly, and three things that it would
do are left out on purpose: retries and reconnections (the core decides about those), health checks, and waiting for
the socket's buffer when writing, since a wait there could not be told from a hung server; every caller waits for its
reply anyway, which bounds what is in the buffer. Replies are parsed by hiredis, Redis' own parser: redis-py reads each
element of a reply with awaits of its own, which was the dearest part of receiving.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import hiredis
from redis.asyncio import Connection
from redis.connection import DefaultParser
from redis.exceptions import AuthenticationError, InvalidResponse, ResponseError

Command: TypeAlias = Sequence[bytes]
"""A command's name and arguments."""

Reply: TypeAlias = Any
"""What the server answered: None, int, bytes, a list of replies, or an exception for an error reply."""


INCOMPLETE = object()
"""What the parser gives when the next reply has not come whole."""

_READ_SIZE = 1 << 18


class Wire(Protocol):
    """What `Link` needs of a connection."""

    async def open(self) -> None:
        """Connect; raises the driver's exception, and leaves nothing open when it fails or is cancelled."""

    def write(self, commands: Sequence[Command]) -> None:
        """Send commands, in order, without waiting."""

    async def read(self) -> Reply:
        """Give the next reply; error replies are returned. Raises when the connection is lost."""

    def abort(self) -> None:
        """Drop the connection at once, whatever the server does; idempotent."""


class RedisWire:
    """A connection to a real server.

    Args:
        make: makes redis-py's connection object, retries and socket time limit off.
        connect_timeout: seconds for connecting and logging in.
    """

    def __init__(self, make: Callable[[], Connection], connect_timeout: float) -> None:
        self._connection = make()
        self._connect_timeout = connect_timeout
        self._parser = reply_parser()
        self._replies: deque[Reply] = deque()

    async def open(self) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                await self._ask_to_be_let_in()
        except BaseException:
            self.abort()
            raise

    async def _ask_to_be_let_in(self) -> None:
        """Find out whether a server that nobody logs in to wants a login.

        Of a stranger Redis reads only small commands: upon a larger one it ends the connection, and its word for why
        may be lost with it (`unauthenticated bulk length`). That would look like an outage, and messages
        would be diverted that the broker refuses.
        """
        connection = self._connection
        if connection.password or connection.username or connection.credential_provider:
            return  # it has just logged in
        await connection.send_command("PING")
        try:
            await connection.read_response()
        except AuthenticationError:
            raise
        except ResponseError:
            pass  # whatever else it says, it says to the commands that follow as well

    def write(self, commands: Sequence[Command]) -> None:
        writer = self._connection._writer
        if writer is None:
            raise ConnectionResetError("the connection is closed")
        # Its stub names a tuple of one argument.
        writer.write(b"".join([hiredis.pack_command(tuple(command)) for command in commands]))  # type: ignore[arg-type]

    async def read(self) -> Reply:
        replies = self._replies
        while not replies:
            reader = self._connection._reader
            data = await reader.read(_READ_SIZE) if reader is not None else b""
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not INCOMPLETE:
                replies.append(reply)
        return replies.popleft()

    def abort(self) -> None:
        # redis-py's own disconnect first sends what is buffered, which a hung server never takes.
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()
            self._connection._close()  # type: ignore[no-untyped-call]  # redis-py's


def reply_parser() -> hiredis.Reader:
    """A parser whose error replies are redis-py's exceptions, and that gives `INCOMPLETE` until a reply is whole."""
    return hiredis.Reader(
        protocolError=InvalidResponse,
        replyError=DefaultParser.parse_error,
        notEnoughData=INCOMPLETE,
    )
