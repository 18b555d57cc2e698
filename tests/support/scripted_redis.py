"""A server that speaks Redis' protocol and answers what a test sets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class ScriptedRedis:
    """Answers commands, unless it hangs; a subclass says what."""

    def __init__(self) -> None:
        self.hangs = False
        self.address = ("127.0.0.1", 0)
        self.commands: list[list[bytes]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    def answer(self, command: list[bytes], writer: asyncio.StreamWriter) -> bytes:
        """The reply, as it is written."""
        return b"+OK\r\n"

    async def start(self) -> None:
        """Listen, on a free port the first time, and on the same one after `stop`."""
        self._server = await asyncio.start_server(self._serve, *self.address)
        self.address = ("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Refuse connections, and end those that are open."""
        if self._server is not None:
            self._server.close()
        self.drop()

    def drop(self) -> None:
        """End the connections."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                command = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    command.append((await reader.readexactly(size + 2))[:-2])
                self.commands.append(command)
                if not self.hangs:
                    writer.write(self.answer(command, writer))


@contextlib.asynccontextmanager
async def listening(*servers: ScriptedRedis) -> AsyncIterator[None]:
    """Let servers listen for a block."""
    for server in servers:
        await server.start()
    try:
        yield
    finally:
        for server in servers:
            server.stop()


def bulk(text: str) -> str:
    """A string in a reply."""
    return f"${len(text)}\r\n{text}\r\n"
